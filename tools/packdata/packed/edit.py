"""A new dataset from an old one: fewer samples, fewer fields, pictures encoded anew."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.data.view import open_view
from loaders.errors import SchemaError, SourceError
from packdata.describe import counted
from packdata.packed.content import ViewContent, check_no_stream, written_fields
from packdata.packed.recode import RecodeOptions
from packdata.packed.rewrite import WriteOptions, Written, format_of, plan_of, write_datasets
from packdata.packed.where import matching, parse_condition
from packdata.packing.outside import check_outside
from packdata.packing.provenance import origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from packdata.packing.shards import Format

    Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What ``copy_dataset`` changes."""

    # Condition on the samples to keep, as ``packdata.packed.where.matching`` takes it.
    where: str | None = None
    fields: Sequence[str] | None = None  # fields to keep, in this order; all by default
    codec: str | None = None
    # Quality for ``jpeg``, ``webp`` and ``dct``; if given, pictures that have the codec already are encoded anew
    # too.
    quality: int | None = None
    subsampling: str | None = None  # of ``dct``: ``"420"`` (by default) or ``"444"``
    compression: str | None = None  # of ``dct``: ``"lz4"`` (by default) or ``"zstd"``

    def __post_init__(self) -> None:
        self.recoding()  # checks what it is made of
        if self.where is not None:
            parse_condition(self.where)
        kept = self.fields
        if kept is not None and not 0 < len(set(kept)) == len(kept):
            what = "each field can be kept once, and one must be"
            raise SchemaError(f"{what}, got {list(kept)}")

    def recoding(self) -> RecodeOptions:
        """Return how pictures are to be stored."""
        return RecodeOptions(self.codec, self.quality, self.subsampling, self.compression)

    def to_json(self) -> dict[str, Any]:
        """Return what was asked for, for the provenance."""
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        options["fields"] = self.fields and list(self.fields)
        return {name: value for name, value in options.items() if value}


def copy_dataset(
    src: Path | str,
    dst: Path | str,
    options: CopyOptions | None = None,
    *,
    format: Format | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    workers: int | None = None,
    tick: Callable[[int], object] = int,
    note: Callable[[str], object] = str,
) -> Manifest:
    """Write a changed copy of a packed dataset; what is not to be changed is copied byte for byte.

    ``format`` is by default that of the original. What else is given is as in ``WriteOptions``.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        SourceError: No sample meets the condition.
        ShardError: A record to be copied is damaged.
        PackError: The target is taken, lies inside the source or cannot be written.
    """
    options = options or CopyOptions()
    check_outside(dst, [src])
    view = open_view(src)
    kept = list(view.schema.fields if options.fields is None else options.fields)
    view.check_fields(kept)
    schema, recoders = written_fields(view, kept, {}, options.recoding(), view.schema.fields)
    chosen = view
    if options.where is not None:
        check_no_stream(view, "choosing rows")
        keep = np.flatnonzero(matching(view, options.where))
        if not len(keep):
            what = f"none of {counted(len(view), 'sample')} meets the condition {options.where!r}"
            raise SourceError(what, view.path)
        chosen = view.select(keep)
    provenance = {"command": "copy", "source": origin_of(view), "options": options.to_json()}
    format = format or format_of(view)
    written = WriteOptions(format, shard_bytes, overwrite, tick=tick, note=note)
    command = plan_of("copy", [view], **options.to_json(), format=format, shard_bytes=shard_bytes)
    dataset = Written(ViewContent(chosen, schema, recoders, workers=workers), provenance)
    return write_datasets(dst, command, {"": dataset}, written)[""]
