"""A new dataset from an old one: fewer samples, other fields, pictures encoded anew."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.data.formats import hash_file
from loaders.data.view import KEY_FIELD, View, open_view
from loaders.errors import SchemaError, SourceError
from loaders.schema import Boxes, Field, Image, Keypoints, Schema
from loaders.schema.tables import find_column
from packdata.describe import counted
from packdata.packed.content import ViewContent, check_no_stream, check_whole_stream
from packdata.packed.joined_columns import read_updates
from packdata.packed.recode import RecodeOptions
from packdata.packed.rewrite import WriteOptions, Written, format_of, plan_of, write_datasets
from packdata.packed.where import Where, column_fields, has_scalar, parse_condition, scalar
from packdata.packing.outside import check_outside
from packdata.packing.provenance import origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.data.manifest import Manifest
    from packdata.packing.shards import Format

    Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What ``copy_dataset`` changes."""

    # Condition on the samples to keep, as ``packdata.packed.where.Where`` takes it.
    where: str | None = None
    fields: Sequence[str] | None = None  # fields to keep, in this order; all by default
    # CSV file whose columns are fields: samples that it names get its values, as
    # ``packdata.packed.joined_columns.read_updates`` reads them.
    update: Path | str | None = None
    # The column of this file, and the field of the dataset, by which they match; of a label, classes match by name
    # or number.
    on: str = KEY_FIELD
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
        if self.update is None and self.on != KEY_FIELD:
            raise ValueError("no CSV file is read: --on goes with --update")

    def recoding(self) -> RecodeOptions:
        """Return how pictures are to be stored."""
        return RecodeOptions(self.codec, self.quality, self.subsampling, self.compression)

    def to_json(self) -> dict[str, Any]:
        """Return what was asked for, for the provenance: no paths."""
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        options["update"] = self.update and Path(self.update).name
        options["fields"] = self.fields and list(self.fields)
        return {name: value for name, value in options.items() if value}

    def digests(self) -> list[str]:
        """Return a hash of each file that is read besides the dataset, and is there."""
        path = self.update and Path(self.update)
        return [hash_file(path)] if path and path.is_file() else []


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

    ``format`` is by default that of the original; what else is given is as in ``WriteOptions``.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        SourceError: The CSV file cannot be read, or names samples that are not here; or no sample meets the condition.
        ShardError: A record to be copied is damaged.
        PackError: The target is taken, lies inside the source or cannot be written, or no sample
            is left.
    """
    options = options or CopyOptions()
    check_outside(dst, [src])
    view = open_view(src)
    if options.where is not None:
        check_no_stream(view, "choosing rows")
    plan = _EditPlan(view, options)
    provenance = {"command": "copy", "source": origin_of(view), "options": options.to_json()}
    format = format or format_of(view)
    asked = options.to_json() | {"tables": options.digests()}
    written = WriteOptions(format, shard_bytes, overwrite, tick=tick, note=note)
    command = plan_of("copy", [view], **asked, format=format, shard_bytes=shard_bytes)
    dataset = Written(plan.content(workers), provenance, view.path)
    return write_datasets(dst, command, {"": dataset}, written)[""]


class _EditPlan:
    """What becomes of each sample, checked before anything is written."""

    def __init__(self, view: View, options: CopyOptions) -> None:
        self.view, self.options = view, options
        self.kept = list(view.schema.fields if options.fields is None else options.fields)
        view.check_fields(self.kept)
        check_whole_stream(view, self.kept)
        self.recoders = options.recoding().recoders({n: view.schema.fields[n] for n in self.kept})
        if options.codec is not None and not self.recoders:
            what = f"no field that is kept has pictures for codec {options.codec!r}"
            raise SchemaError(f"{view.path}: {what}")
        self.schema = self._schema()
        self.updates = {} if options.update is None else self._read_updates(options.update)
        self.keys = self._keys() if self.updates else []
        self._check_updates()
        self.indices = self._select()

    def content(self, workers: int | None) -> ViewContent:
        """Return the samples to write."""
        changes: dict[str, dict[int, bytes]] = {}
        for n, i in enumerate(self.indices.tolist() if self.updates else []):
            for name, record in self._updated(i).items():
                changes.setdefault(name, {})[n] = record
        view = self.view.select(self.indices)
        return ViewContent(view, self.schema, self.recoders, {}, changes, workers)

    def _read_updates(self, path: Path | str) -> dict[str, dict[str, bytes]]:
        """Return the records that change, by key."""
        updates = read_updates(path, self.options.on, self.view.schema)
        lost = {name for records in updates.values() for name in records} - set(self.kept)
        if lost:
            raise SchemaError(f"field {min(lost)!r} is to change, and is not among those to keep")
        return updates

    def _check_updates(self) -> None:
        """Raise SourceError if a sample is to change that is not there: a key may be misspelled."""
        if unknown := sorted(self.updates.keys() - {*self.keys}):
            belong = "belongs" if len(unknown) == 1 else "belong"
            what = f"{counted(len(unknown), 'key')} in it {belong} to no sample here: "
            hint = f"Correct or remove them; --on NAME takes another column than {self.options.on!r} for the key"
            raise SourceError(what + few(unknown), self.options.update or "", hint)

    def _schema(self) -> Schema:
        old = self.view.schema
        fields: dict[str, Field] = {name: old.fields[name] for name in self.kept}
        fields |= {name: recode.field for name, recode in self.recoders.items()}
        check_boxes(old.fields, fields)
        return Schema(fields, tuple(name for name in old.defaults if name in fields))

    def _keys(self) -> list[str]:
        """Return what each sample is called in the table."""
        on = self.options.on
        self.view.check_fields([on])
        field = self.view.schema.fields[on]
        if not has_scalar(field):
            raise SchemaError(f"field {on!r} has no single value to match a column with")
        every = np.arange(len(self.view))
        values = [scalar(field, value) for value in self._decoded(on, every)]
        # A label is called by its class.
        names = [getattr(value, "name", None) for value in values]
        return [str(v) if name is None else name for name, v in zip(names, values, strict=True)]

    def _select(self) -> Indices:
        keep = np.ones(len(self.view), bool)
        if self.options.where is not None:
            known = {**column_fields(self.view.schema), **self.view.schema.fields}
            where, every = Where(self.options.where, known), np.arange(len(self.view))
            names = sorted(where.names)
            values = [self._scalars(name, known[name], every) for name in names]
            rows = zip(*values, strict=True) if values else [()] * len(every)
            keep[:] = [where(dict(zip(names, row, strict=True))) for row in rows]
            if not keep.any():
                what = f"none of its {counted(len(keep), 'sample')} meets --where {self.options.where!r}"
                raise SourceError(what, self.view.path)
        return np.flatnonzero(keep)

    def _scalars(self, name: str, field: Field, positions: Indices) -> Iterator[Any]:
        """Yield what a condition sees of a field, or of a column of a table, in some samples."""
        if find_column(self.view.schema, name) is not None:
            column = self.view.column(name)
            values: Iterator[Any] = (column[i : i + 1] for i in positions.tolist())
        else:
            values = self._with_updates(name, field, positions)
        return (scalar(field, value) for value in values)

    def _with_updates(self, name: str, field: Field, positions: Indices) -> Iterator[Any]:
        stored = self._decoded(name, positions)
        for i, value in zip(positions.tolist(), stored, strict=True):
            changed = self._updated(i)
            yield _decoded(field, changed[name]) if name in changed else value

    def _decoded(self, name: str, positions: Indices) -> Iterator[Any]:
        """Yield the stored values of a field."""
        view = self.view.select(positions)
        for n, records in enumerate(view.all_records(name)):
            yield view.decode(n, name, records[name])

    def _updated(self, i: int) -> dict[str, bytes]:
        """Return the records of a sample that change."""
        return self.updates.get(self.keys[i], {}) if self.updates else {}


def check_boxes(old: Mapping[str, Field], new: Mapping[str, Field]) -> None:
    """Raise SchemaError if boxes would be taken for those of another image than they were drawn on."""
    before, after = ([n for n, f in each.items() if isinstance(f, Image)] for each in (old, new))
    boxes = [name for name, field in new.items() if isinstance(field, Boxes | Keypoints)]
    if boxes and after and after[0] != before[0]:
        what = f"boxes {boxes[0]!r} are in pixels of {before[0]!r}, the first image"
        raise SchemaError(f"{what}: keep it, before {after[0]!r}, or leave out the boxes")


def _decoded(field: Field, record: bytes) -> Any:
    return codec_for(field).decode(np.frombuffer(record, np.uint8))
