"""The place that is packed into: what is ours in a folder and what is there already, its lock, and its errors."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager, suppress
from glob import glob
from tempfile import gettempdir
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import PackError
from loaders.remote.url import KINDS, URL, Location, place_of
from loaders.system.publish import sync_folder
from packdata.claimed import lock_if_free

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

PACKING_NAME = ".packing"
STAGED_NAME = "shards"  # inside of PACKING_NAME
PARTS_NAME = ".parts"
REJECTED_NAME = "rejected.jsonl"
JOURNAL_NAME = "journal.jsonl"
LOCK_NAME = "lock"
_NOT_IN_THE_WAY = frozenset({PACKING_NAME, PARTS_NAME, "lost+found"})
# Of what is in its place before a manifest names it, a shard or a tokenizer: it holds its hash.
STORED = re.compile(r"shard-[0-9-]+-[0-9a-f]{32}\.\w+|tokenizer-[0-9a-f]{16}\.json")


def make_folder(folder: Path) -> list[Path]:
    """Make a folder durably; return those that were made, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with suppress(PermissionError):  # a folder may be writable below one that cannot be read
            sync_folder(path.parent)
    return missing


def check_empty(dst: Path, folders: Collection[str]) -> None:
    """Raise PackError if a folder below a destination, where a dataset is to be made, holds other files."""
    if dst.exists() and not dst.is_dir():
        raise PackError("not a folder", dst, "Choose a folder that is new or empty")
    # Without one of these they may be all that is left of a dataset whose manifest was lost.
    is_begun = any((dst / name).exists() for name in (PACKING_NAME, PARTS_NAME))
    for folder in folders:
        inner = {f.removeprefix(f"{folder}/").split("/")[0] for f in folders if f != folder}
        for name in sorted(os.listdir(dst / folder)) if (dst / folder).is_dir() else ():
            may_be_there = name in _NOT_IN_THE_WAY or name in inner
            if not may_be_there and not (is_begun and STORED.fullmatch(name)):
                hint = "Choose a folder that is new or empty"
                raise PackError(f"not empty (holds {name!r})", dst / folder, hint)


def digest_of(plan: Mapping[str, str]) -> str:
    """Return the hash by which a dataset knows the plan that made it."""
    return xxhash.xxh3_128_hexdigest(json.dumps(plan, sort_keys=True).encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands out of a folder, which is made; it goes again if nothing came into it.

    Raises:
        PackError: Another process is packing into it.
    """
    path = folder / PACKING_NAME / LOCK_NAME
    made = make_folder(folder)
    try:
        if (fd := lock_if_free(path)) is None:
            raise PackError("in use by another process", folder, "Wait for it, or stop it")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)
    finally:
        with suppress(OSError):  # something lies there
            for each in (path.parent, *made):
                each.rmdir()


def check_outside(dst: Location | str, sources: Sequence[Location | str]) -> None:
    """Raise PackError for a target that is a source, lies in one, or holds one: each is lost or changed by it."""
    (target,) = _real(dst, is_pattern=False)
    for source in sources:
        for real in _real(source, is_pattern=True):
            if f"{target}/".startswith(f"{real}/") or f"{real}/".startswith(f"{target}/"):
                what = f"same as the source {str(source)!r}, or one is inside the other"
                raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _real(place: Location | str, *, is_pattern: bool) -> list[str]:
    """Return a path without links, or a URL as all spell it; of a pattern, what it means."""
    url = place_of(place)
    if isinstance(url, URL) and url.scheme != "file":
        scheme, _, rest = str(url).partition("://")
        return [f"{KINDS.get(scheme, scheme)}://{os.path.normpath(rest)}"]
    path = str(url).removeprefix("file://")
    found = glob(path, recursive=True) if is_pattern and not os.path.lexists(path) else []
    return [*map(os.path.realpath, found or [path])]


@contextmanager
def explained(path: Location, what: str = "cannot be written") -> Iterator[None]:
    """Turn an error of the system into a PackError."""
    try:
        yield
    except OSError as error:
        hint = "Make room there, or choose a folder that you may write to"
        if isinstance(path, URL):
            hint = f"Make room in {gettempdir()}, or set TMPDIR to a folder of another disk"
        what = f"{what} ({error.strerror or error})"
        raise PackError(what, path, f"{hint}. Then run the same command again") from error
