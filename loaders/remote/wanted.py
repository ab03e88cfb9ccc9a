"""What all loaders of a machine need, in one order: what the fetcher fetches first, and evicts last."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from loaders.remote.needs import Needs
    from loaders.remote.source import ServedURL
    from loaders.remote.wire import File

NO_NEED = 1e18  # samples: further than any file that a loader is known to need
_WINDOW_SHARE, _WINDOW_BYTES = 32, 2 << 30


class Reading(NamedTuple):
    """What a loader reads, and what of it comes next."""

    source: ServedURL
    needs: Needs
    wanted: list[WantedFile]


class WantedFile(NamedTuple):
    """A file that is needed so many samples ahead. For a far one no file is evicted that a loader needs."""

    distance: int
    is_far: bool
    file: File
    source: ServedURL


class Wants:
    """What loaders need, by the client that told of it.

    Attributes:
        readers: The loaders, by client.
        files: What all of them will read, in the order in which it is needed.
        distances: How many samples ahead each of these files is needed, by hash.
    """

    def __init__(self) -> None:
        self.readers: dict[Any, Reading] = {}
        self.files: list[WantedFile] = []
        self.distances: dict[str, float] = {}

    def come_to(
        self, client: Any, source: ServedURL, needs: Needs, position: int, budget: int
    ) -> None:
        """Note where a loader is, in a cache that may hold so many bytes."""
        self.readers[client] = Reading(source, needs, [*_wanted(source, needs, position, budget)])
        self._order()

    def forget(self, client: Any) -> None:
        """Forget what a loader was to read."""
        if self.readers.pop(client, None):
            self._order()

    def _order(self) -> None:
        """Put the files of all loaders in one order; a file of several counts where the first of them needs it."""
        found = [each for reader in self.readers.values() for each in reader.wanted]
        found.sort(key=itemgetter(0, 1))
        first: dict[str, WantedFile] = {}
        for each in found:
            first.setdefault(each.file.hash, each)
        self.files = [*first.values()]
        self.distances = {digest: each.distance for digest, each in first.items()}

    def others_bytes(self, source: ServedURL, living: Container[Any]) -> int:
        """Return how many bytes loaders of other datasets read just now."""
        readers = (reader for client, reader in self.readers.items() if client in living)
        others = (each.needs.files for each in readers if each.source.url != source.url)
        return sum({file.hash: file.size for files in others for file in files}.values())


def _wanted(source: ServedURL, needs: Needs, position: int, budget: int) -> Iterator[WantedFile]:
    """Yield what a loader needs: near are its next file, and those after it that fit into a window of bytes."""
    window, passed = min(_WINDOW_BYTES, budget // _WINDOW_SHARE), 0
    for distance, file in needs.upcoming(position):
        is_far = bool(passed) and passed + file.size > window
        passed += file.size
        yield WantedFile(distance, is_far, file, source)
