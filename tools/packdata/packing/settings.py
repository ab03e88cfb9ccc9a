"""Options that every packing has, and sorting keyword arguments by the function they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from loaders.checks import whole_number
from loaders.system.limits import usable_cores

if TYPE_CHECKING:
    from packdata.packing.progress import Progress

OnError = Literal["fail", "skip"]
ON_ERROR = get_args(OnError)
_T = TypeVar("_T")


class RunSettings(TypedDict, total=False):
    """Keyword arguments of all that packs; ``packdata.packing.engine.Run`` has the defaults.

    Attributes:
        shard_bytes: A shard ends with the sample that brings its records to this size.
        workers: Threads that read and encode; None for all usable cores. The bytes do not depend
            on it.
        on_error: ``"fail"`` stops at an item that cannot be packed, ``"skip"`` leaves it out and
            lists it.
        overwrite: Replace the datasets that are there. They can be read until the new ones are complete.
        progress: Called for every sample.
    """

    shard_bytes: int
    workers: int | None
    on_error: OnError
    overwrite: bool
    progress: Progress | None


class PackSettings(RunSettings, total=False):
    """The same, and what takes a source that was listed.

    Attributes:
        part: Pack this part of the items alone, ``"I/N"``; ``packdata.parts.packing.finish`` joins them all.
        shuffle: A seed: pack in an order drawn by it, as ``--shuffle`` of the command does; None keeps the source's.
    """

    part: str | None
    shuffle: int | None


def take(kind: type[_T], options: dict[str, Any], **more: Any) -> _T:
    """Make a ``kind`` of the ``options`` that belong to it; the others are left.

    Example:
        >>> options = {"workers": 2, "quality": 80}
        >>> take(PackSettings, options), options
        ({'workers': 2}, {'quality': 80})
    """
    names = [name for name in kind.__annotations__ if name in options]
    return kind(**{name: options.pop(name) for name in names}, **more)


def check_workers(workers: int | None) -> int:
    """Return the number of threads to use; ValueError if it is below 1."""
    return usable_cores() if workers is None else whole_number("workers", workers, at_least=1)
