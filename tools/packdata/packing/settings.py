"""Settings of a packing, whatever its source: options of commands, and keyword arguments of functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self, get_args

from loaders.checks import whole_number
from loaders.system.limits import usable_cores
from packdata.options import check_options, opt, parse_shuffle, size_from
from packdata.packing.shards import FORMATS, check_shard_options

if TYPE_CHECKING:
    from types import EllipsisType

    from packdata.packing.progress import Progress
    from packdata.packing.shards import Format

OnError = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of every run. A command fills in the braces in their help.

    The bytes depend on format and size of the shards alone; None: the default of that kind of data.

    Raises:
        ValueError: One is none of its choices, or out of range.
    """

    format: Format | None = opt(
        None, "file format of the shards (default: {usual})", choices=FORMATS
    )
    # A shard ends with the sample that brings its records to this size.
    shard_bytes: int | None = opt(
        None,
        "size of a shard; K, M and G are powers of 1024, up to 256MB in Parquet and 64GB in LMDB (default: {size})",
        "SIZE",
        name="shard-size",
        type=size_from,
    )
    workers: int | None = opt(None, "threads (default: all usable cores)", "N", within=(1, None))
    on_error: OnError = opt(
        "fail",
        "at a {item} that cannot be packed: stop (default), or skip it, list it in rejected.jsonl, and exit with 3",
        choices=get_args(OnError),
    )
    # The old dataset can be read until the new one is complete.
    overwrite: bool = opt(False, "replace {old}")
    progress: Progress | None = opt(None, "called for every sample")

    def __post_init__(self) -> None:
        check_options(self)
        if self.shard_bytes is not None:
            object.__setattr__(self, "shard_bytes", whole_number("shard_bytes", self.shard_bytes))
            # Without a format: the larger limit, that of LMDB.
            check_shard_options(self.format or "lmdb", self.shard_bytes)

    def or_usual(self, format: Format, shard_bytes: int | None = None) -> Self:
        """Return the same with this format and size of shards, where none is asked for."""
        return replace(
            self, format=self.format or format, shard_bytes=self.shard_bytes or shard_bytes
        )

    @property
    def num_workers(self) -> int:
        """How many threads that is."""
        return usable_cores() if self.workers is None else self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings(RunSettings):
    """Settings of packing a source: order and part, beside those of every run."""

    # Default: chosen by the plan. None: the order of the source.
    shuffle: int | EllipsisType | None = opt(
        ...,
        "pack {drawn} in a random order drawn from this seed (default: {order})",
        "SEED|none",
        type=parse_shuffle,
    )
    part: str | None = opt(
        None,
        "pack only part I of N (I counts from 0), on any machine; 'packdata finish DST' joins them",
        "I/N",
    )
