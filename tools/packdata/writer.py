"""Packing from Python: samples one by one, of any fields.

1. Normal: ``add`` checks a sample and hands it over; threads encode its pictures, in order; shards
   are written as they fill; ``close``, or leaving ``with``, publishes the dataset.
2. Failure: an error in ``add`` leaves the sample out; an error on a thread comes out of the next
   ``add`` or ``close`` and ends the writer. If it was caught, leaving ``with`` raises another.
3. Early close: ``abort``, or leaving ``with`` by an exception, publishes nothing and removes what
   was written.
4. Fork: a copy of the writer in another process refuses to work, and leaves the files alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
from contextlib import ExitStack, closing
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from loaders.checks import as_list, shown, whole_number
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.errors import CodecError, LoadersError, PackError, SchemaError, SourceError
from loaders.schema import Field, Schema, Text
from loaders.system import opencv
from packdata.bucket import target_at
from packdata.options import takes
from packdata.packing.engine import Outcome, Run, SplitPacker
from packdata.packing.packing import Made, Packing
from packdata.packing.pool import OrderedPool
from packdata.packing.progress import Progress, Quiet
from packdata.packing.provenance import as_json
from packdata.packing.settings import RunSettings
from packdata.packing.shards import DEFAULT_SHARD_BYTES, Format, check_records
from packdata.recipe import Block, Target, nbytes_of
from packdata.values import Preparer, check_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loaders.remote.url import Location
    from packdata.packing.settings import OnError
    from packdata.packing.summary import Summary
    from packdata.values import Prepared

KEY = "key"
_PIECE_BYTES = 4 << 20
_USUAL_ROW_BYTES = 256  # of what does not tell its size, such as a list of texts


class _Sample(NamedTuple):
    """A sample that is checked, but not encoded yet; ``name`` is what messages call it."""

    name: str
    values: Mapping[str, Prepared]
    error: LoadersError | None = None  # why it cannot be packed


class Writer:
    """Writes a packed dataset sample by sample; leaving ``with`` publishes it, or raises.

    Files of pictures and masks are turned upright, as Exif says; boxes and other numbers are stored
    as they are given, so boxes are in pixels of the upright picture.

    A writer belongs to the process that made it: it can neither be pickled nor forked.

    Args:
        dst: A folder that is new or empty, or a URL.
        fields: Field by name. The codec of each says how its values are stored.
        defaults: Names of the fields that ``dataset[i]`` holds; all but ``key`` by default.
        format: ``"lmdb"`` or ``"parquet"``.
        shard_bytes: A shard ends with the sample that brings its records to this size.
        workers: Threads that encode; None for all usable cores. The bytes do not depend on it.
        overwrite: Replace a dataset in ``dst``; it can be read until the new one is complete.
        quality: Of pictures that are newly encoded as JPEG or WebP, 1 to 100.
        max_picture_mb: MiB that an encoded picture may take, decoded to what is stored, whatever its format.
        on_error: ``"fail"`` raises on a sample that cannot be packed, ``"skip"`` leaves it out and
            lists it in ``rejected.jsonl``.
        provenance: A mapping of JSON values for the manifest: what the data is.

    Raises:
        PackError: The target is in use, holds something else, or cannot be written.
        ValueError: An option is out of range, or ``provenance`` is not JSON.

    Example:
        >>> fields = {"image": Image(), "boxes": Boxes(), "caption": Text()}  # doctest: +SKIP
        >>> with Writer("packed", fields) as writer:  # doctest: +SKIP
        ...     writer.add(image="a.jpg", boxes=[[1, 2, 30, 40]], caption="a cat", key="a")
    """

    def __init__(
        self,
        dst: Location | str,
        fields: Mapping[str, Field],
        *,
        defaults: Iterable[str] | None = None,
        format: Format = "lmdb",
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        workers: int | None = None,
        overwrite: bool = False,
        quality: int = 90,
        max_picture_mb: int = MAX_PICTURE_MB,
        on_error: OnError = "fail",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        settings = RunSettings(
            format=format, shard_bytes=shard_bytes, workers=workers, on_error=on_error
        )
        self._run = Run(settings)
        if not 1 <= quality <= 100:
            raise ValueError(f"quality must be in [1, 100], got {quality}")
        whole_number("max_picture_mb", max_picture_mb, at_least=1)
        self._fields = dict(fields)
        if defaults is not None:
            defaults = as_list("defaults", defaults, "names of fields, such as ['image', 'label']")
        self._defaults = tuple(defaults or ()) or tuple(n for n in fields if n != KEY)
        self._schema = Schema(self._fields, self._defaults)
        if names := ", ".join(self._schema.files):
            raise SchemaError(f"a Writer keeps no files beside shards, such as {names}")
        self._preparers = {n: Preparer(f, quality, max_picture_mb) for n, f in fields.items()}
        usual = {"source": {"kind": "python"}}
        self._provenance = as_json(usual if provenance is None else provenance)
        self._keys: set[str] = set()
        self._packer: SplitPacker | None = None  # from the first sample on: it decides on keys
        self._num_samples = 0
        self._error: BaseException | None = None
        self._is_aborted = False
        self._process = os.getpid()
        self.summary: Summary | None = None
        self._packing = Packing(target_at(dst), [""], {}, overwrite=overwrite)
        self._open = ExitStack()  # what is released at the end, last first
        self._open.enter_context(self._packing)
        self._open.enter_context(opencv.one_thread())

    def __len__(self) -> int:
        """Return how many samples were added."""
        return self._num_samples

    @property
    def num_rejected(self) -> int:
        """How many samples were left out, of those that were encoded so far."""
        return self._run.num_rejected

    def add(self, /, **values: Any) -> None:
        """Add one sample.

        Args:
            values: One per field. Pictures and masks: a path, an encoded file as ``bytes``, or an
                array (H x W x C; masks H x W). ``Images``: a list of these, which may be empty.
                Labels: the name or number of the class.
                ``MultiLabel``: names, or a 0 or 1 for each class. ``Boxes``: (n, 4) of x1, y1, x2,
                y2 in pixels of the upright picture. ``key`` may be given for any dataset, but then
                to each sample, and each its own.

        Raises:
            SchemaError: A field is missing, or unknown.
            CodecError: A value is not what its field holds. Message and ``SourceError`` below name
                the sample, its key and the field.
            SourceError: The file of an earlier sample cannot be packed; the writer has ended.
            PackError: A shard cannot be written, or the writer has ended, or belongs to another
                process; a key was used before.
        """
        self._check_open()
        name = _name(self._num_samples, values)
        packer = self._begun(values)
        try:
            sample = self._prepared(name, values)
        except LoadersError as error:
            if self._run.settings.on_error == "fail":
                raise
            sample = _Sample(name, {}, error)
        self._num_samples += 1
        self._or_end(packer.put, sample)

    def add_batch(self, /, **arrays: Any) -> None:
        """Add many samples, as columns: at the speed of memory where no picture has to be encoded.

        The dataset is the one that ``add`` makes of the rows one by one.

        Args:
            arrays: One per field, all of one length N: an array ``(N, ...)``, or a sequence of what ``add``
                takes. Pictures are ``(N, H, W, C)``, masks ``(N, H, W)``.

        Raises:
            SchemaError: A field is missing or unknown, or the lengths differ.
            CodecError, SourceError, PackError: As for ``add``, of the first row that is wrong; those before it
                were added.
        """
        self._check_open()
        packer = self._begun(arrays)
        self._check_fields(arrays, f"the batch from sample {self._num_samples} on")
        sizes = {name: len(values) for name, values in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise SchemaError(f"a batch has arrays of one length, got {sizes}")
        num = next(iter(sizes.values()), 0)
        block = self._block(arrays) if num else None
        if block is None:  # pictures go to threads; and which row is wrong, ``add`` says
            # Not by number, which pandas takes for a label of its index.
            for row in zip(*arrays.values(), strict=True):
                self.add(**dict(zip(arrays, row, strict=True)))
            return
        self._num_samples += num
        self._or_end(packer.add, block)

    def _or_end(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function; its error ends the writer."""
        try:
            function(*args)
        except BaseException as error:
            self._error = error
            self._open.close()
            raise

    def _block(self, arrays: Mapping[str, Any]) -> Block | None:
        """Return the records of many samples; None where a row is wrong, or threads have to encode."""
        columns = {name: self._preparers[name].column(arrays[name]) for name in self._fields}
        made = {name: column for name, column in columns.items() if column is not None}
        keys = arrays[KEY] if isinstance(self._fields.get(KEY), Text) else ()
        if len(made) < len(columns) or len({*keys} - self._keys) < len(keys):
            return None
        block, fields = Block(made), self._fields
        try:
            check_sizes({n: getattr(f, "size", None) for n, f in fields.items()}, fields)
            check_records(block, self._schema, self._run.format)
        except CodecError:
            return None
        self._keys.update(keys)
        return block

    def _check_process(self) -> None:
        """Raise PackError in a process that was forked: it has neither the threads nor the samples."""
        if os.getpid() != self._process:
            what = f"this writer belongs to process {self._process}"
            hint = "Add from there, or write one dataset per process and merge them"
            raise PackError(what, self._packing.dst, hint)

    def _check_open(self) -> None:
        self._check_process()
        if self._error is not None:
            hint = "Nothing is published, and nothing can be added: write anew"
            what = f"the writer has ended ({self._error})"
            raise PackError(what, self._packing.dst, hint) from self._error
        if self.summary is not None:
            raise PackError("the writer is closed", self._packing.dst, "Open another for more")

    def _prepared(self, name: str, values: Mapping[str, Any]) -> _Sample:
        self._check_fields(values, name)
        prepared = self._made(name, values, self._preparers)
        if isinstance(self._fields.get(KEY), Text):
            if values[KEY] in self._keys:
                raise CodecError(f"{name}, field 'key': another sample has this key")
            self._keys.add(values[KEY])
        return _Sample(name, prepared)

    def _made(
        self, name: str, values: Mapping[str, Any], preparers: Mapping[str, Preparer] | None = None
    ) -> dict[str, Any]:
        """Prepare the values of a sample, or encode prepared ones; an error says of which sample and field."""
        made, field = dict[str, Any](), ""
        try:
            for field, value in values.items():
                made[field] = value.make() if preparers is None else preparers[field](value)
            field = ""
            check_sizes({n: each.size for n, each in made.items()}, self._fields)
        except LoadersError as error:
            raise _placed(error, name, field) from error
        except Exception as error:
            error.add_note(f"while packing {name}, field {field!r}")
            raise
        return made

    def _check_fields(self, values: Mapping[str, Any], name: str) -> None:
        if values.keys() != self._fields.keys():
            found = [f"has no {n!r}" for n in self._fields if n not in values]
            found += [f"has unknown {n!r}" for n in values if n not in self._fields]
            raise SchemaError(f"{name} {', '.join(found)}; its fields are {list(self._fields)}")

    def _begun(self, values: Mapping[str, Any]) -> SplitPacker:
        """Return the way into shards; the first sample decides whether there are keys."""
        if self._packer is None:
            if KEY in values and KEY not in self._fields:
                self._fields[KEY] = Text()
                self._schema = Schema(self._fields, self._defaults)
                self._preparers[KEY] = Preparer(self._fields[KEY], 0)
            targets = {"": Target("", self._schema)}
            pool = OrderedPool(self._encode, self._run.settings.num_workers, attrgetter("nbytes"))
            self._open.enter_context(pool)
            self._packer = SplitPacker(self._run, self._packing, "", targets, pool)
        return self._packer

    def _encode(self, sample: _Sample) -> Outcome:
        """Return what became of a sample; runs on the threads."""
        name, values, refused = sample
        try:
            if refused is not None:
                raise refused
            encoded = self._made(name, values)
        except LoadersError as error:
            return Outcome((), [(name, error)])
        records = {n: each.record for n, each in encoded.items()}
        try:
            check_records(records, self._schema, self._run.format)
        except CodecError as error:
            return Outcome((), [(name, _placed(error, name, ""))])
        given = sum(value.nbytes for value in values.values())
        return Outcome([records], nbytes=max(given, nbytes_of(records)))

    def close(self) -> Summary:
        """Encode what is left and publish the dataset; may be called twice.

        Raises:
            PackError: No sample was added, or all were rejected, or a shard cannot be written, or
                the writer has ended, or belongs to another process.
            SourceError: The file of a sample cannot be packed.
        """
        if self.summary is not None:
            return self.summary
        self._check_open()
        made = Made(self._schema, self._provenance)
        self._or_end(self._begun({}).end, "A dataset needs at least one")
        self._or_end(self._packing.publish, {"": made})
        self.summary = self._run.summary(self._packing)
        self._open.close()
        return self.summary

    def abort(self) -> None:
        """Publish nothing and remove what was written; after ``close`` it does nothing.

        Raises:
            PackError: The writer belongs to another process.
        """
        if self.summary is not None:
            return
        self._check_process()
        self._error = self._error or PackError("aborted", self._packing.dst)
        self._is_aborted = True
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._is_aborted:
            self.close()  # which raises if an error has ended the writer
        elif os.getpid() == self._process:
            self.abort()


def _name(number: int, values: Mapping[str, Any]) -> str:
    key = values.get(KEY)
    return f"sample {number}" + ("" if key is None else f" (key {key!r})")


def _placed(error: LoadersError, name: str, field: str) -> LoadersError:
    """Return the error with the sample and field that it belongs to."""
    where = f"{name}, field {field!r}" if field else name
    placed: LoadersError = CodecError(f"{where}: {error}")
    if isinstance(error, SourceError):
        placed = SourceError(f"{error.what} ({where})", error.path, error.hint)
    placed.__cause__ = error
    return placed


def _add_columns(writer: Writer, columns: Mapping[str, Any], progress: Progress) -> None:
    """Add columns in pieces: each is checked and copied while it is in the cache, or nearly."""
    for name, values in columns.items():
        if not isinstance(values, Sized) or isinstance(values, str | bytes):
            what = f"a mapping to pack has a column of values for each field, {name!r} is"
            raise TypeError(f"{what} {shown(values)}; of single samples give a list")
    num = max(map(len, columns.values()), default=0)
    progress.start(num, 0)
    row_nbytes = (int(getattr(c, "nbytes", 0)) // max(1, len(c)) for c in columns.values())
    step = max(1, _PIECE_BYTES // max(1, sum(each or _USUAL_ROW_BYTES for each in row_nbytes)))
    for first in range(0, num, step):
        writer.add_batch(**{n: values[first : first + step] for n, values in columns.items()})
        progress.advance(writer.num_rejected, min(step, num - first))


def _add_samples(writer: Writer, source: Any, progress: Progress) -> None:
    """Add samples one by one."""
    progress.start(len(source) if isinstance(source, Sized) else None, 0)
    for number, values in enumerate(source):
        if not hasattr(values, "keys"):  # rows of pandas and sqlite3 have them, too
            what = f"sample {number} must be a mapping, got {shown(values)}"
            hint = "pass an iterable of mappings, such as [{'label': 3}]"
            raise TypeError(f"{what}; {hint}")
        writer.add(**values)
        progress.advance(writer.num_rejected)


@takes(hint="; a DataFrame is packed by packdata.pack_tables")
def pack(
    source: Iterable[Mapping[str, Any]] | Mapping[str, Any],
    dst: Location | str,
    fields: Mapping[str, Field],
    *,
    defaults: Iterable[str] | None = None,
    format: Format = "lmdb",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    overwrite: bool = False,
    quality: int = 90,
    max_picture_mb: int = MAX_PICTURE_MB,
    on_error: OnError = "fail",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Pack samples, given as mappings of field name to value, or columns; the rest is as in ``Writer``.

    Args:
        source: The samples; read once, in one thread. With a length, progress can say what is
            left. Or a mapping of field name to array ``(N, ...)``, as ``Writer.add_batch`` takes them: columns
            are packed at the speed of memory. A DataFrame is neither: ``pack_tables`` packs it.
        dst: A folder that is new or empty, or a URL.
        fields: Field by name.
        defaults: As in ``Writer``, and so on.
        format: Format of the shards.
        shard_bytes: Size of a shard.
        workers: Threads that encode.
        overwrite: Replace a dataset in ``dst``.
        quality: Of pictures that are newly encoded.
        max_picture_mb: MiB that a picture may take, decoded.
        on_error: What becomes of samples that cannot be packed.
        provenance: JSON for the manifest.
        progress: Called for every sample.

    Raises:
        TypeError: What the source gives is no mapping; other errors are those of ``Writer``.
    """
    progress = Quiet() if progress is None else progress
    with Writer(
        dst,
        fields,
        defaults=defaults,
        format=format,
        shard_bytes=shard_bytes,
        workers=workers,
        overwrite=overwrite,
        quality=quality,
        max_picture_mb=max_picture_mb,
        on_error=on_error,
        provenance=provenance,
    ) as writer:
        with closing(progress):
            if isinstance(source, Mapping):
                _add_columns(writer, source, progress)
            else:
                _add_samples(writer, source, progress)
        return writer.close()
