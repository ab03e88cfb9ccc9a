"""A recipe: what ``engine.py`` packs.

A recipe lists items in a fixed order and turns each into records; the packer runs it on many
threads, cuts shards, and survives being killed. One recipe may fill several datasets from one
decoding (``targets``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loaders.data.columns import Column
    from loaders.data.shards import PackedShard
    from loaders.errors import SourceError
    from loaders.schema import Schema

Records = Mapping[str, bytes]  # the record of every field of one sample
Draw = Callable[[int], "npt.NDArray[np.int64]"]  # an order of so many, drawn at random


@dataclass(frozen=True, slots=True)
class Block:
    """The records of many samples at once; there may be none.

    The packer cuts shards inside a block where their size says so, and continues inside one after
    a kill. Rows of a ``VarColumn`` that lie end to end are copied in one go, others run by run.

    Attributes:
        columns: Column by field name, all of one length: ``FixedColumn`` for fields whose records
            have one size, else ``VarColumn``. They must not change any more.
        rejects: Why parts of the item were left out, by the place of each; the first of them ends the
            packing unless such items are skipped. Those of an item's first target count.

    Raises:
        ValueError: There is no column, or they differ in length.
    """

    columns: Mapping[str, Column]
    rejects: Sequence[SourceError] = ()

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.columns.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"the columns of a block have one length, got {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def nbytes(self) -> int:
        """Bytes of all records together."""
        return sum(column.nbytes for column in self.columns.values())


def nbytes_of(records: Records | Block) -> int:
    """Return the bytes of all records together."""
    return records.nbytes if isinstance(records, Block) else sum(map(len, records.values()))


@dataclass(frozen=True, slots=True)
class Target:
    """One dataset that a recipe fills.

    Attributes:
        folder: Its place below the destination; "" for the destination itself.
        schema: Its fields.
        files: Contents, by name, of the files beside the manifest that the schema names.
    """

    folder: str
    schema: Schema
    files: Mapping[str, bytes] = field(default_factory=dict)


class Tally(threading.local):
    """What a thread has counted in the items that it encoded: the packer takes it with each item's records.

    So a packing that continues knows what earlier runs counted, each item once.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, num: int = 1) -> None:
        """Count."""
        if num:
            self._counts[what] += num

    def __reduce__(self) -> tuple[type[Tally], tuple[()]]:
        """Begin anew where it is sent to."""
        return Tally, ()

    def take(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)


class Recipe(Protocol):
    """Lists items and turns each into the records of one sample, or of a block of them, per target.

    Attributes:
        targets: The datasets to fill, at least one.
        identity: JSON: all that decides the output (source files with size and mtime, options).
            The same identity continues an interrupted packing; another one is refused until
            ``--overwrite``.
        provenance: JSON for the manifest: source name and options, no absolute paths, times or
            host names.
        is_of_blocks: Items are blocks of samples, instead of one sample each.
        only_copies: Records are taken as they are stored: this is not worth threads, and of blocks that may be far
            larger than those before one is held at a time.
        can_shuffle: Items can be read in another order than that of the source.
        num_samples: Of blocks, how many samples there will be; None if not known yet.
        runs: Of each item, the number of the item at which reading must begin to reach it (in a compressed file, say);
            None where each is read alone.
        tally: Where ``encode`` counts what the summary tells.
        why_empty: Why a target may have got no sample, for the error about that.
        whole: Shards that hold just its samples, which its target gets as they are: nothing is encoded then.
    """

    targets: Sequence[Target]
    identity: Mapping[str, Any]
    provenance: Mapping[str, Any]
    is_of_blocks: bool = False
    only_copies: bool = False
    can_shuffle: bool = False
    num_samples: int | None = None
    runs: Sequence[int] | None = None
    tally: Tally = Tally()  # of recipes that count nothing
    why_empty: str = ""
    whole: Sequence[PackedShard] = ()

    def __len__(self) -> int:
        """Return the number of items, for progress and ETA."""

    def items(self, start: int) -> Iterator[Any]:
        """Yield items from number ``start`` on, always in the same order; called in one thread."""

    def name(self, item: Any) -> str:
        """Return what to call an item in messages and in ``rejected.jsonl``: its file, and its place inside."""
        return str(item.where)

    def encode(self, item: Any) -> Sequence[Records | Block]:
        """Return the records of an item, one mapping or block per target; runs on worker threads.

        The same item gives the same block each time: a packing that was killed inside it skips
        the rows that it has. A recipe of blocks takes ``draw``, too: it orders the samples of a block at random.

        Raises:
            SourceError: The item cannot be packed; the message says why. A block that is an error ends the packing;
                samples of it that cannot be packed are its ``rejects``.
            CodecError: The same, from a codec.
        """
