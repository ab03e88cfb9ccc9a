"""A new dataset from an old one: fewer samples, fewer fields, pictures encoded anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.data.manifest import read_manifest
from loaders.data.view import open_view
from loaders.errors import SchemaError, SourceError
from loaders.remote.url import is_url
from loaders.schema import PICTURE_CODECS
from packdata.describe import counted
from packdata.options import changed, check_options, opt, parse_names
from packdata.packed.content import ViewContent, check_no_stream, written_fields
from packdata.packed.recode import Recoding
from packdata.packed.rewrite import Written, format_of, plan_of, write_datasets
from packdata.packed.where import matching
from packdata.packing.outside import check_outside
from packdata.packing.provenance import origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from packdata.packing.shards import Format


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What ``copy_dataset`` changes."""

    where: str | None = opt(None, "keep the samples that meet a condition (default: all)", "EXPR")
    fields: Sequence[str] | None = opt(
        None, "fields to keep, in this order (default: all)", "A,B", type=parse_names
    )
    codec: str | None = opt(
        None,
        "encode pictures with this codec (default: leave them as they are)",
        choices=PICTURE_CODECS,
    )
    quality: int | None = opt(
        None,
        "with --codec jpeg, webp or dct: 1 to 100, also of pictures that have this codec (default: these stay as they "
        "are, others get 90)",
        "Q",
        within=(1, 100),
    )
    subsampling: str | None = opt(
        None,
        "with --codec dct: of the chroma (default: as it is, else 420)",
        choices=("420", "444"),
    )
    compression: str | None = opt(
        None,
        "with --codec dct: fast or small (default: as it is, else lz4)",
        choices=("lz4", "zstd"),
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.recoding()  # checks what it is made of
        kept = self.fields
        if kept is not None and not 0 < len(set(kept)) == len(kept):
            raise SchemaError(f"fields must be different names, at least one, got {list(kept)}")

    def recoding(self) -> Recoding:
        """Return how pictures are to be stored."""
        return Recoding(self.codec, self.quality, self.subsampling, self.compression)


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

    ``format`` is by default that of the original. What else is given is as in ``write_datasets``.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        SourceError: No sample meets the condition.
        ShardError: A record to be copied is damaged.
        PackError: The target is taken, lies inside the source or cannot be written.
    """
    options = options or CopyOptions()
    check_outside(dst, [src])
    view = open_view(src)
    kept = options.fields or list(view.schema.fields)
    schema, recoders = written_fields(view, kept, {}, view.schema.fields, options.recoding())
    chosen = view
    if options.where is not None:
        check_no_stream(view)
        chosen = view.select(np.flatnonzero(matching(view, options.where)))
        if not len(chosen):
            what = f"none of {counted(len(view), 'sample')} meets the condition {options.where!r}"
            raise SourceError(what, view.path)
    asked = changed(options)
    content = ViewContent(chosen, schema, recoders, workers=workers)
    written = Written(content, {"command": "copy", "source": origin_of(view), "options": asked})
    usual = format_of(view)
    how: Any = {"format": format or usual, "shard_bytes": shard_bytes}
    if is_url(dst) and not asked and how == {"format": usual, "shard_bytes": DEFAULT_SHARD_BYTES}:
        written = Written(content, read_manifest(src).provenance, view.whole_shards)  # as it is
    plan, how = plan_of("copy", [view], **asked, **how), how | {"tick": tick, "note": note}
    return write_datasets(dst, plan, {"": written}, **how, overwrite=overwrite)[""]
