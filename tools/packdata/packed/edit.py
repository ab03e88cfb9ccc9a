"""A new dataset from an old one: fewer samples, other fields, pictures encoded anew."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.data.columns import column_of
from loaders.data.formats import hash_file
from loaders.data.view import KEY_FIELD, View, open_view
from loaders.errors import SchemaError, SourceError
from loaders.schema.tables import find_column
from packdata.describe import counted
from packdata.packed.content import ViewContent, check_no_stream, written_fields
from packdata.packed.joined_columns import KINDS, read_columns, read_updates
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
    from loaders.schema import Field
    from packdata.packing.shards import Format

    Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What ``copy_dataset`` changes."""

    # Condition on the samples to keep, as ``packdata.packed.where.Where`` takes it.
    where: str | None = None
    fields: Sequence[str] | None = None  # fields to keep, in this order; all by default
    # CSV file whose columns become fields, which samples then have by default.
    add: Path | str | None = None
    # CSV file whose columns are fields: samples that it names get its values, as
    # ``packdata.packed.joined_columns.read_updates`` reads them.
    update: Path | str | None = None
    # The column of these files, and the field of the dataset, by which they match; of a label, classes match by name
    # or number.
    on: str = KEY_FIELD
    # Kind of an added column, by name, where it should not be guessed.
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Leave out samples that the file lacks, or whose label it leaves empty, instead of refusing.
    skip_missing: bool = False
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
        if self.add is None and (self.kinds or self.skip_missing):
            raise ValueError("no CSV file is added: --as and --missing go with --add")
        if self.add is None and self.update is None and self.on != KEY_FIELD:
            raise ValueError("no CSV file is read: --on goes with --add and --update")
        unknown = [kind for kind in self.kinds.values() if kind not in KINDS]
        if unknown:
            raise ValueError(f"kinds are {', '.join(KINDS)}, got {unknown[0]!r}")

    def recoding(self) -> RecodeOptions:
        """Return how pictures are to be stored."""
        return RecodeOptions(self.codec, self.quality, self.subsampling, self.compression)

    def to_json(self) -> dict[str, Any]:
        """Return what was asked for, for the provenance: no paths."""
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("add", "update"):
            options[name] = options[name] and Path(options[name]).name
        options |= {"kinds": dict(self.kinds), "fields": self.fields and list(self.fields)}
        return {name: value for name, value in options.items() if value}

    def digests(self) -> list[str]:
        """Return a hash of each file that is read besides the dataset, and is there."""
        paths = [Path(path) for path in (self.add, self.update) if path is not None]
        return [hash_file(path) for path in paths if path.is_file()]


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

    ``format`` is by default that of the original; ``note`` is also called with rows to add that no sample has. What
    else is given is as in ``WriteOptions``.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        SourceError: The CSV file cannot be read, or lacks samples.
        ShardError: A record to be copied is damaged.
        PackError: The target is taken, lies inside the source or cannot be written, or no sample
            is left.
    """
    options = options or CopyOptions()
    check_outside(dst, [src])
    view = open_view(src)
    if options.where is not None or options.skip_missing:
        check_no_stream(view, "choosing rows")
    plan = _EditPlan(view, options)
    for text in plan.notes():
        note(text)
    provenance = {"command": "copy", "source": origin_of(view), "options": options.to_json()}
    format = format or format_of(view)
    asked = options.to_json() | {"tables": options.digests()}
    written = WriteOptions(format, shard_bytes, overwrite, tick=tick, note=note)
    command = plan_of("copy", [view], **asked, format=format, shard_bytes=shard_bytes)
    dataset = Written(plan.content(workers), provenance)
    return write_datasets(dst, command, {"": dataset}, written)[""]


class _EditPlan:
    """What becomes of each sample, checked before anything is written."""

    def __init__(self, view: View, options: CopyOptions) -> None:
        self.view, self.options = view, options
        self.added: Mapping[str, Field] = {}  # fields that a table adds, and by key their records
        self.table: Mapping[str, Mapping[str, bytes]] | None = None
        if options.add is not None:
            field, skip = view.schema.fields.get(options.on), options.skip_missing
            self.added, self.table = read_columns(
                options.add, options.on, options.kinds, field, skip_missing=skip
            )
        self.kept = list(view.schema.fields if options.fields is None else options.fields)
        view.check_fields(self.kept)
        for name in self.added:
            if name in self.kept:
                hint = "leave it out with --fields, or rename the column; --update changes values"
                raise SchemaError(f"field {name!r} is there already: {hint}")
        self.schema, self.recoders = written_fields(
            view, self.kept, self.added, options.recoding(), view.schema.fields
        )
        self.updates = {} if options.update is None else self._read_updates(options.update)
        self.keys = self._keys() if self.table is not None or self.updates else []
        self._check_updates()
        self.indices = self._select()

    def content(self, workers: int | None) -> ViewContent:
        """Return the samples to write."""
        changes: dict[str, dict[int, bytes]] = {}
        for n, i in enumerate(self.indices.tolist() if self.updates else []):
            for name, record in self._updated(i).items():
                changes.setdefault(name, {})[n] = record
        values = {}
        if self.table is not None:
            rows = [self.table[self.keys[i]] for i in self.indices.tolist()]
            values = {
                name: column_of([row[name] for row in rows], field.record_nbytes)
                for name, field in self.added.items()
            }
        view = self.view.select(self.indices)
        return ViewContent(view, self.schema, self.recoders, values, changes, workers)

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

    def notes(self) -> Iterator[str]:
        """Yield notes: a table may list more samples than are here, such as those of all splits."""
        keys = {*self.keys}
        if self.table is not None and (extra := [k for k in self.table if k not in keys]):
            belong = "belongs" if len(extra) == 1 else "belong"
            rows = f"{len(extra)} of its {counted(len(self.table), 'row')}"
            yield f"{self.options.add}: {rows} {belong} to no sample here: {few(extra)}"

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
        if self.table is not None:
            keep = np.array([key in self.table for key in self.keys], bool)
            if not keep.all() and not (self.options.skip_missing and keep.any()):
                raise self._lacking(keep)
        if self.options.where is not None:
            columns = column_fields(self.view.schema)
            known = {**columns, **self.view.schema.fields, **self.added}
            where = Where(self.options.where, known)
            left = np.flatnonzero(keep)
            names = sorted(where.names)
            values = [self._scalars(name, known[name], left) for name in names]
            rows = zip(*values, strict=True) if values else [()] * len(left)
            found = [where(dict(zip(names, row, strict=True))) for row in rows]
            keep[left] = found
            if not keep.any():
                what = f"none of its {counted(len(keep), 'sample')} meets --where {self.options.where!r}"
                raise SourceError(what, self.view.path)
        return np.flatnonzero(keep)

    def _lacking(self, keep: npt.NDArray[np.bool_]) -> SourceError:
        """Return the error that samples are not in the table."""
        lacking = dict.fromkeys(self.keys[i] for i in np.flatnonzero(~keep).tolist())
        what = f"it lacks {int((~keep).sum())} of {len(keep)} samples: {few(lacking)}"
        hint = "Add them, or leave these samples out with '--missing skip'"
        if not keep.any():
            has = f"Its column {self.options.on!r} has {few(self.table or ()) or 'nothing'}"
            hint = f"{has}; --on NAME matches by another"
        return SourceError(what, self.options.add or "", hint)

    def _scalars(self, name: str, field: Field, positions: Indices) -> Iterator[Any]:
        """Yield what a condition sees of a field, or of a column of a table, in some samples."""
        if name in self.added and self.table is not None:
            records = (self.table[self.keys[i]][name] for i in positions.tolist())
            values: Iterator[Any] = (_decoded(field, record) for record in records)
        elif find_column(self.view.schema, name) is not None:
            column = self.view.column(name)
            values = (column[i : i + 1] for i in positions.tolist())
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


def _decoded(field: Field, record: bytes) -> Any:
    return codec_for(field).decode(np.frombuffer(record, np.uint8))
