"""What a packing needs to know of its input: the recipe's side of the bargain with ``pack.py``.

A recipe lists items in a fixed order and turns each into records; the packer runs it on many
threads, cuts shards, and survives being killed. One recipe may fill several datasets from one
decoding (``targets``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from loaders.schema import Schema

Records = Mapping[str, bytes]  # the record of every field of one sample


@dataclass(frozen=True, slots=True)
class Target:
    """One dataset that a recipe fills.

    Attributes:
        folder: Its place below the destination; "" for the destination itself.
        schema: Its fields.
    """

    folder: str
    schema: Schema


class Recipe(Protocol):
    """Lists items and turns each into the records of one sample per target.

    Attributes:
        targets: The datasets to fill, at least one.
        identity: JSON: all that decides the output (source files with size and mtime, options).
            The same identity continues an interrupted packing; another one is refused until
            ``--overwrite``.
        provenance: JSON for the manifest: source name and options, no absolute paths, times or
            host names.
    """

    targets: Sequence[Target]
    identity: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def __len__(self) -> int:
        """Return the number of items, for progress and ETA."""

    def items(self, start: int) -> Iterator[Any]:
        """Yield items from number ``start`` on, always in the same order; called in one thread."""

    def name(self, item: Any) -> str:
        """Return what to call an item in messages and in ``rejected.jsonl``: its file, and its place inside."""

    def encode(self, item: Any) -> Sequence[Records]:
        """Return the records of an item, one mapping per target; runs on worker threads.

        Raises:
            SourceError: The item cannot be packed; the message says why.
            CodecError: The same, from a codec.
        """
