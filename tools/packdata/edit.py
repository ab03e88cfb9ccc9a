"""A new dataset from an old one: fewer samples, other fields, pictures encoded anew."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.codecs.picture import DEFAULT_QUALITY, PictureCodec
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.formats import hash_file
from loaders.limits import usable_cores
from loaders.schema import Boxes, Field, Image, Schema
from loaders.schema.tables import find_column
from packdata.describe import counted
from packdata.joined_columns import KINDS, JoinedColumns, read_columns, read_updates
from packdata.plan import check_outside
from packdata.pool import OrderedPool, one_opencv_thread
from packdata.provenance import origin
from packdata.reader import KEY_FIELD, PackedReader
from packdata.rewrite import (
    check_target,
    command_text,
    finished_before,
    format_of,
    write_dataset,
)
from packdata.rows import column_fields, read_column
from packdata.shards import DEFAULT_SHARD_BYTES
from packdata.tokens.split import check_no_stream, check_whole_stream
from packdata.where import ClassNumber, Where, has_scalar, parse_condition, scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from loaders.manifest import Manifest
    from packdata.recipe import Records
    from packdata.shards import Format

_MAGIC = {"jpeg": b"\xff\xd8", "png": b"\x89PNG", "webp": b"RIFF"}
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What ``copy_dataset`` changes.

    Attributes:
        where: Condition on the samples to keep, as ``packdata.where.Where`` takes it.
        fields: Fields to keep, in this order; all by default.
        add: CSV file whose columns become fields, which samples then have by default.
        update: CSV file whose columns are fields: samples that it names get its values, as
            ``packdata.joined_columns.read_updates`` reads them.
        on: The column of these files, and the field of the dataset, by which they match; of a
            label, classes match by name or number.
        kinds: Kind of an added column, by name, where it should not be guessed.
        skip_missing: Leave out samples that the file lacks, or whose label it leaves empty,
            instead of refusing.
        codec: Codec for the pictures.
        quality: Quality for ``jpeg``, ``webp`` and ``dct``; if given, pictures that have the codec
            already are encoded anew too.
        subsampling: Of ``dct``: ``"420"`` (by default) or ``"444"``.
        compression: Of ``dct``: ``"lz4"`` (by default) or ``"zstd"``.
    """

    where: str | None = None
    fields: Sequence[str] | None = None
    add: Path | str | None = None
    update: Path | str | None = None
    on: str = KEY_FIELD
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skip_missing: bool = False
    codec: str | None = None
    quality: int | None = None
    subsampling: str | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be in [1, 100], got {self.quality}")
        if self.quality is not None and self.codec not in ("jpeg", "webp", "dct"):
            raise ValueError(f"quality is for codec jpeg, webp or dct, got codec {self.codec}")
        if self.where is not None:
            parse_condition(self.where)
        if self.fields is not None and (
            not self.fields or len(set(self.fields)) < len(self.fields)
        ):
            what = "each field can be kept once, and one must be"
            raise SchemaError(f"{what}, got {list(self.fields)}")
        if self.add is None and (self.kinds or self.skip_missing):
            raise ValueError("no CSV file is added: --as and --missing go with --add")
        if self.add is None and self.update is None and self.on != KEY_FIELD:
            raise ValueError("no CSV file is read: --on goes with --add and --update")
        unknown = [kind for kind in self.kinds.values() if kind not in KINDS]
        if unknown:
            raise ValueError(f"kinds are {', '.join(KINDS)}, got {unknown[0]!r}")
        for name in ("subsampling", "compression"):
            if getattr(self, name) is not None and self.codec != "dct":
                raise ValueError(f"{name} is for codec dct, got codec {self.codec}")

    def to_json(self) -> dict[str, Any]:
        """Return what was asked for, for the provenance: no paths."""
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("add", "update"):
            path = getattr(self, name)
            options[name] = None if path is None else Path(path).name
        options["kinds"] = dict(self.kinds)
        options["fields"] = None if self.fields is None else list(self.fields)
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

    Args:
        src: The dataset's folder.
        dst: The copy's.
        options: What to change.
        format: Format of the copy; by default that of the original.
        shard_bytes: A shard ends with the sample that reaches this size.
        overwrite: Replace a dataset at ``dst``.
        workers: Threads that encode pictures; all cores by default.
        tick: Called with the number of samples written, one at a time.
        note: Called with what is no error and deserves a look: rows to add that no sample has.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        SourceError: The CSV file cannot be read, or lacks samples.
        ShardError: A record to be copied is damaged.
        PackError: The target is taken, lies inside of the source or cannot be written, or no sample
            is left.
    """
    options = options or CopyOptions()
    check_outside(dst, [src])
    reader = PackedReader(src, check=True)
    format = format or format_of(reader.manifest)
    asked = options.to_json() | {"tables": options.digests()}
    command = command_text("copy", dst, [reader], **asked, format=format, shard_bytes=shard_bytes)
    finished = finished_before(dst, command, note)
    if finished is not None:
        return finished
    check_target(Path(dst), overwrite=overwrite)
    if options.where is not None or options.skip_missing:
        check_no_stream(reader, "choosing rows")
    table = None
    if options.add is not None:
        field = reader.schema.fields.get(options.on)
        table = read_columns(
            options.add, options.on, options.kinds, field, skip_missing=options.skip_missing
        )
    plan = _Plan(reader, table, options)
    for text in plan.notes():
        note(text)
    with one_opencv_thread():
        return write_dataset(
            dst,
            command,
            plan.schema,
            _ticking(plan.samples(workers or usable_cores()), tick),
            format=format,
            shard_bytes=shard_bytes,
            provenance={
                "command": "copy",
                "source": origin(reader.path, reader.manifest),
                "options": options.to_json(),
            },
            overwrite=overwrite,
            files_of=reader.path,
        )


def _ticking(samples: Iterator[Records], tick: Callable[[int], object]) -> Iterator[Records]:
    for records in samples:
        yield records
        tick(1)


class _Plan:
    """What becomes of each sample, checked before anything is written."""

    def __init__(
        self, reader: PackedReader, table: JoinedColumns | None, options: CopyOptions
    ) -> None:
        self.reader, self.table, self.options = reader, table, options
        self.kept = list(reader.check_fields(options.fields))
        check_whole_stream(reader, self.kept)
        self.added = {} if table is None else dict(table.fields)
        for name in self.added:
            if name in self.kept:
                raise SchemaError(
                    f"field {name!r} is there already: leave it out with --fields, or rename "
                    "the column; --update changes values"
                )
        self.recoders = dict(self._recoders())
        if options.codec is not None and not self.recoders:
            raise SchemaError(
                f"{reader.path}: no field that is kept has pictures for codec {options.codec!r}"
            )
        self.schema = self._schema()
        self.updates = {} if options.update is None else self._read_updates(options.update)
        self.keys = self._keys() if table is not None or self.updates else []
        self._check_updates()
        self._columns: dict[str, tuple[Field, Any]] = {}  # of tables, that the condition names
        self.indices = self._select()

    def _read_updates(self, path: Path | str) -> dict[str, dict[str, bytes]]:
        """Return the records that change, by key."""
        updates = read_updates(path, self.options.on, self.reader.schema)
        lost = {name for records in updates.values() for name in records} - set(self.kept)
        if lost:
            raise SchemaError(f"field {min(lost)!r} is to change, and is not among those to keep")
        return updates

    def _check_updates(self) -> None:
        """Raise SourceError if a sample is to change that is not there: a key may be misspelled."""
        if unknown := sorted(self.updates.keys() - {*self.keys}):
            what = f"{counted(len(unknown), 'key')} of it {'is' if len(unknown) == 1 else 'are'} of no sample here: "
            hint = f"Correct or remove them; --on NAME takes another column than {self.options.on!r} for the key"
            raise SourceError(what + ", ".join(unknown[:_SHOWN]), self.options.update or "", hint)

    def notes(self) -> Iterator[str]:
        """Yield what is no error: a table may be of more samples than are here, all splits say."""
        keys = {*self.keys}
        if self.table is not None and (extra := [k for k in self.table.records if k not in keys]):
            are = "is" if len(extra) == 1 else "are"
            rows = f"{len(extra)} of its {counted(len(self.table.records), 'row')}"
            yield f"{self.options.add}: {rows} {are} of no sample here: {_few(extra)}"

    def _schema(self) -> Schema:
        old = self.reader.schema
        fields: dict[str, Field] = {name: old.fields[name] for name in self.kept} | self.added
        fields |= {name: recode.field for name, recode in self.recoders.items()}
        served = [*(name for name in old.defaults if name in fields), *self.added]
        self._check_boxes(old.fields, fields)
        return Schema(fields, tuple(dict.fromkeys(served)))

    def _check_boxes(self, old: Mapping[str, Field], new: Mapping[str, Field]) -> None:
        """Raise SchemaError if boxes would be taken for those of another image than they were drawn on."""
        before, after = (
            [n for n, f in each.items() if isinstance(f, Image)] for each in (old, new)
        )
        boxes = [name for name, field in new.items() if isinstance(field, Boxes)]
        if boxes and after and after[0] != before[0]:
            what = f"boxes {boxes[0]!r} are in pixels of {before[0]!r}, the first image"
            raise SchemaError(f"{what}: keep it, before {after[0]!r}, or leave out the boxes")

    def _recoders(self) -> Iterator[tuple[str, Recode]]:
        if self.options.codec is None:
            return
        for name in self.kept:
            field = self.reader.schema.fields[name]
            if isinstance(field, Image):
                try:
                    yield name, Recode(field, self.options)
                except CodecError as error:
                    hint = "choose another codec, or leave the field out (--fields)"
                    raise SchemaError(f"field {name!r}: {error}; {hint}") from error

    def _keys(self) -> list[str]:
        """Return what each sample is called in the table."""
        on = self.options.on
        self.reader.check_fields([on])
        field = self.reader.schema.fields[on]
        if not has_scalar(field):
            raise SchemaError(f"field {on!r} has no single value to match a column with")
        values = (self.reader.sample(i, [on])[on] for i in range(len(self.reader)))
        return [_name(scalar(field, value)) for value in values]

    def _select(self) -> npt.NDArray[np.int64]:
        keep = np.ones(len(self.reader), bool)
        if self.table is not None:
            keep = np.array([key in self.table.records for key in self.keys], bool)
            if not keep.all() and not (self.options.skip_missing and keep.any()):
                raise self._lacking(self.table, keep)
        if self.options.where is not None:
            columns = column_fields(self.reader.schema)
            known = columns | dict(self.reader.schema.fields) | self.added
            where = Where(self.options.where, known)
            self._columns |= self._read_columns(where.names & columns.keys())
            for i in np.flatnonzero(keep).tolist():
                keep[i] = where(self._values(i, where.names))
            if not keep.any():
                what = f"none of its {counted(len(keep), 'sample')} meets --where {self.options.where!r}"
                raise SourceError(what, self.reader.path)
        return np.flatnonzero(keep)

    def _lacking(self, table: JoinedColumns, keep: npt.NDArray[np.bool_]) -> SourceError:
        """Return the error that samples are not in the table."""
        lacking = dict.fromkeys(self.keys[i] for i in np.flatnonzero(~keep).tolist())
        what = f"it lacks {int((~keep).sum())} of {len(keep)} samples: {_few(lacking)}"
        hint = "Add them, or leave these samples out with '--missing skip'"
        if not keep.any():
            has = f"Its column {self.options.on!r} has {_few(table.records) or 'nothing'}"
            hint = f"{has}; --on NAME matches by another"
        return SourceError(what, self.options.add or "", hint)

    def _read_columns(self, names: Iterable[str]) -> Iterator[tuple[str, tuple[Field, Any]]]:
        """Yield columns of tables whole, with what they are: row by row would take long."""
        schema = self.reader.schema
        for name in names:
            place = find_column(schema, name)
            if place is not None and name not in self.added:
                yield name, (column_fields(schema)[name], read_column(self.reader, *place))

    def _values(self, i: int, names: set[str]) -> dict[str, Any]:
        values = {}
        for name in names:
            if name in self.added and self.table is not None:
                field, record = self.added[name], self.table.records[self.keys[i]][name]
                value = codec_for(field).decode(np.frombuffer(record, np.uint8))
            elif name in self._columns:
                field, column = self._columns[name]
                value = column[i : i + 1]
            else:
                field = self.reader.schema.fields[name]
                changed = self._updated(i)
                value = (
                    codec_for(field).decode(np.frombuffer(changed[name], np.uint8))
                    if name in changed
                    else self.reader.sample(i, [name])[name]
                )
            values[name] = scalar(field, value)
        return values

    def samples(self, workers: int) -> Iterator[Records]:
        """Yield the records of every sample of the copy."""
        if not self.recoders:
            yield from map(self._records, self.indices.tolist())
            return
        with OrderedPool(self._records, workers, size_of=_nbytes) as pool:
            done = (pool.put(i) for i in self.indices.tolist())
            yield from chain.from_iterable(done)
            yield from pool.drain()

    def _records(self, i: int) -> Records:
        stored = self.reader.records(i, self.kept)
        records = {name: record.tobytes() for name, record in stored.items()}
        for name, recode in self.recoders.items():
            if recode.transcodes:
                records[name] = recode.transcode(stored[name])
            elif not recode.keeps(records[name]):
                picture = self.reader.decode(i, name, stored[name])
                records[name] = recode.encode(picture)
        if self.table is not None:
            records |= self.table.records[self.keys[i]]
        return records | self._updated(i)

    def _updated(self, i: int) -> dict[str, bytes]:
        """Return the records of a sample that change."""
        return self.updates.get(self.keys[i], {}) if self.updates else {}


def _name(value: Any) -> str:
    """Return what a table calls a value: a label by its class."""
    name = value.name if isinstance(value, ClassNumber) else None
    return str(value) if name is None else name


def _few(names: Iterable[str]) -> str:
    return ", ".join(islice(names, _SHOWN))


def _nbytes(records: Records) -> int:
    return sum(map(len, records.values()))


class Recode:
    """Stores pictures of one field with another codec or quality.

    Attributes:
        field: The field afterwards.
        transcodes: True if only the compression changes: nothing is decoded, nothing lost.

    Raises:
        SchemaError: The codec is for pictures of one size, and these vary.
    """

    def __init__(self, field: Image, options: CopyOptions) -> None:
        codec, self._quality = options.codec or field.codec, options.quality
        if codec in ("dct", "yuv420") and field.size is None:
            what = f"codec {codec!r} is for pictures of one size, and these may vary"
            raise SchemaError(f"{what}: pack them with --size and --fit cover, contain or stretch")
        dct: dict[str, Any] = dict.fromkeys(("quality", "subsampling", "compression"))
        if codec == "dct":
            dct = {name: getattr(options, name) or getattr(field, name) for name in dct}
        self.field = dataclasses.replace(field, codec=codec, **dct)
        self._codec = codec_for(self.field)
        self._is_same = codec not in _MAGIC and self.field == field
        self.transcodes = codec == "dct" == field.codec and not self._is_same
        if self.transcodes:
            recompressed = dataclasses.replace(field, compression=self.field.compression)
            self.transcodes = recompressed == self.field
        self._old_codec = codec_for(field)
        self._from_file = field.codec in _MAGIC

    def keeps(self, record: bytes) -> bool:
        """Return whether a record is as wanted already."""
        if self._is_same:
            return True
        magic = _MAGIC.get(self.field.codec)
        alike = self._from_file and magic is not None and record.startswith(magic)
        return alike and self._quality is None

    def transcode(self, record: npt.NDArray[np.uint8]) -> bytes:
        """Return the new record of a record."""
        assert isinstance(self._codec, DctCodec)
        assert isinstance(self._old_codec, DctCodec)
        return self._codec.pack(self._old_codec.unpack(record).astype(np.int64))

    def encode(self, picture: npt.NDArray[Any]) -> bytes:
        """Return the new record of a picture."""
        if isinstance(self._codec, PictureCodec):
            return self._codec.encode(picture, self._quality or DEFAULT_QUALITY)
        return self._codec.encode(picture)
