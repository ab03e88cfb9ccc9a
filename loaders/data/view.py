"""A view: samples of a store, all of them or some in any order, and what is known of their fields.

It finds and decodes records. A dataset adds settings to it; packdata writes it as a dataset of its own.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.codecs import Codec, codec_for
from loaders.codecs.heads import MAX_PICTURE_MB, picture_size
from loaders.codecs.picture import PictureCodec
from loaders.codecs.raw import RawCodec
from loaders.data.columns import FixedColumn
from loaders.data.remote_columns import with_column
from loaders.data.shards import PackedShard, open_manifest
from loaders.data.store import ShardRuns, Store
from loaders.division import check_strata, divide, divide_by_key
from loaders.errors import CodecError, LoadersError, SampleError, SchemaError, ShardError
from loaders.remote.url import Location, place_of
from loaders.schema import Image, Label, Mask, Schema, Text
from loaders.schema.tables import find_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loaders.data.columns import Column
    from loaders.data.finder import Rows
    from loaders.data.shards import Check

Indices = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]
KEY_FIELD = "key"
_PIECE_BYTES = 32 << 20
_MAX_PIECE = 1 << 16
_MAX_OPEN = 256  # fewer than any system lets be mapped or open
_CHECKS = ("never", "first", "always")  # of joined stores the strictest holds for all


@dataclass(eq=False)
class View:
    """Some samples of a store; immutable, and safe under threads."""

    store: Store  # where the records lie
    schema: Schema  # the fields that samples have here, of those that are stored
    source_fingerprint: str  # identifies all that the store holds
    path: Location  # what messages call the dataset
    numbers: Indices | None = None  # of the samples in the store; None: all, as they lie
    _codecs: dict[str, Codec] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.store) if self.numbers is None else len(self.numbers)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made anew."""
        return self.__dict__ | {"_codecs": {}}

    @cached_property
    def fingerprint(self) -> str:
        """Identify the samples and their order."""
        if self.numbers is None:
            return self.source_fingerprint
        which = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.numbers).data)
        return xxhash.xxh3_128_hexdigest(f"{self.source_fingerprint} {which}".encode())

    @property
    def has_keys(self) -> bool:
        """True if every sample has a key."""
        return isinstance(self.schema.fields.get(KEY_FIELD), Text)

    # -- other views -------------------------------------------------------------------------------

    def select(self, positions: Indices) -> View:
        """Return the samples at some positions, in that order."""
        numbers = np.array(self.numbers_of(positions))  # the caller's array is theirs
        numbers.flags.writeable = False
        return replace(self, numbers=numbers)

    def by_shard(self) -> tuple[Indices, Indices | None]:
        """Return how many of the samples each shard has, of those that have any, and the samples shard by shard.

        (None: they lie so.) A copy in memory reports the shards it was loaded from, so it and its source divide alike.
        """
        ends, shards = self.store.runs
        if self.numbers is None and (np.diff(shards) > 0).all():
            sizes = np.diff(ends, prepend=0)
            return sizes[sizes > 0], None
        shards = self.packed_shards()
        sizes = np.bincount(shards)
        members = None if (np.diff(shards) >= 0).all() else np.argsort(shards, kind="stable")
        return sizes[sizes > 0], members

    def packed_shards(self) -> Indices:
        """Return the number of the shard that each sample was packed in."""
        return self.store.runs(self.numbers_of(np.arange(len(self))))

    def verified(self) -> View:
        """Return the same samples, of which each record is compared with its checksum: to be written anew."""
        if self.store.check != "never":
            return self
        return replace(self, store=Store(self.store.shards, "first", max_open=_MAX_OPEN))

    def first_at_url(self) -> View:
        """Return the samples of the first two shards if they lie at a URL, all otherwise: enough to look at some."""
        if not self.store.is_remote or self.numbers is not None:
            return self
        return self.select(np.arange(self.store.ends[:2][-1]))

    def for_column(self, name: str) -> View:
        """Return the same samples to read one field of all of them: by ranges of shards at URLs, where that is less."""
        store = self.store
        shards = with_column(store.shards, self._shards_read(), name) if store.is_remote else None
        if shards is None:
            return self
        store = Store(shards, store.check, store.take, store.max_open, store.runs)
        return replace(self, store=store)

    @contextmanager
    def fetching_ahead(self, *, by_shard: bool = False) -> Iterator[None]:
        """Have shards at URLs fetched ahead while the samples are read from first to last, or shard by shard."""
        if not self.store.is_remote:
            yield
            return
        shards = np.arange(len(self.store.shards))
        if self.numbers is not None:
            found, first = np.unique(self.store.shards_of(self.numbers), return_index=True)
            shards = found if by_shard else found[np.argsort(first)]
        with self.store.fetching_ahead(shards):
            yield

    def with_fields(self, names: Sequence[str], defaults: Sequence[str] | None = None) -> View:
        """Return the samples with some of their fields; SchemaError if one is not stored."""
        self.check_fields(names)
        fields = {name: self.schema.fields[name] for name in names}
        served = self.schema.defaults if defaults is None else defaults
        return replace(self, schema=Schema(fields, tuple(n for n in served if n in fields)))

    def divide(
        self,
        fractions: Sequence[float],  # the share of each part
        *,
        by_key: bool = False,  # a sample's part follows from its key alone
        # A field of one value, or a column of a table, of which each part gets its share of every value.
        stratify: str | None = None,
        seed: int = 0,  # for the division
    ) -> list[Indices]:
        """Return the positions of the samples of each part, sorted; SchemaError if there is no such column or key."""
        if by_key:
            return divide_by_key(self.key_hashes(), fractions, seed)
        strata = None
        if stratify is not None:
            if find_column(self.schema, stratify) is None:
                self.check_fields([stratify])
                if self.schema.fields[stratify].shape != ():
                    what = f"field {stratify!r} is not a label or number: stratify needs one"
                    raise SchemaError(what)
            strata = self.column(stratify)
            field = self.schema.fields.get(stratify)
            words = (field.classes if isinstance(field, Label) else None) or ()
            check_strata(strata, stratify, words)
        return divide(len(self), fractions, seed, strata)

    # -- places ------------------------------------------------------------------------------------

    def numbers_of(self, positions: Indices) -> Indices:
        """Return the numbers of some samples in the store."""
        return positions if self.numbers is None else self.numbers[positions]

    def rows(self, positions: Indices) -> Rows:
        """Find some samples in the store."""
        return self.store.rows(self.numbers_of(positions))

    def place(self, position: int) -> tuple[Location, int]:
        """Return the file of a sample, and its row there."""
        return self.store.place(int(self.numbers_of(np.array([position], np.int64))[0]))

    def check_fields(self, names: Sequence[str]) -> None:
        """Raise SchemaError if one of these is not a stored field."""
        for name in names:
            if name not in self.schema.fields:
                known = ", ".join(self.schema.fields)
                raise SchemaError(f"{self.path} has no field {name!r}; it has {known}")

    # -- records -----------------------------------------------------------------------------------

    def records(self, name: str, positions: Indices) -> list[UInt8Array]:
        """Return the record of each of some samples as a view, verified."""
        return self.store.records(name, self.rows(positions))

    def pieces(self, *names: str) -> Iterator[Indices]:
        """Yield the positions of all samples in pieces, of about 32 MiB of some fields.

        No piece spans two shards if the view has the samples in stored order.
        """
        with self.fetching_ahead():
            mean = max(1, sum(map(self._mean_nbytes, names)))
            step = max(1, min(_MAX_PIECE, int(_PIECE_BYTES / mean)))
            ends = self.store.ends.tolist() if self.numbers is None else [len(self)]
            for start, end in itertools.pairwise([0, *ends]):
                for first in range(start, end, step):
                    yield np.arange(first, min(first + step, end))

    def _mean_nbytes(self, name: str) -> float:
        """Return the bytes of a record, of those that vary on average."""
        nbytes = self.schema.fields[name].record_nbytes
        return self.stored_lengths(name).mean() if nbytes is None and len(self) else nbytes or 0

    def all_records(self, *names: str) -> Iterator[dict[str, UInt8Array]]:
        """Yield the records of some fields, sample by sample, verified."""
        for positions in self.pieces(*names):
            columns = [self.records(name, positions) for name in names]
            for records in zip(*columns, strict=True):
                yield dict(zip(names, records, strict=True))

    def verify(self, name: str) -> None:
        """Compare all records of a field with their checksums; ChecksumError if one differs."""
        for positions in self.pieces(name):
            self.store.field(name).verify(self.rows(positions))

    def lengths(self, name: str) -> Indices:
        """Return the size of each sample's record, ``(N,)``, without reading it."""
        return self.for_column(name).stored_lengths(name)

    def stored_lengths(self, name: str) -> Indices:
        """Return what ``lengths`` does, from shards that are opened for it."""
        store, lengths = self.store, np.zeros(len(self.store), np.int64)
        for n in self._shards_read():
            lengths[store.starts[n] : store.ends[n]] = store.shard(n).columns[name].lengths
        return lengths if self.numbers is None else lengths[self.numbers]

    def _shards_read(self) -> list[int]:
        """Return the numbers of the shards that the samples lie in."""
        if self.numbers is None:
            return list(range(len(self.store.shards)))
        numbers: list[int] = np.unique(self.store.shards_of(self.numbers)).tolist()
        return numbers

    # -- values ------------------------------------------------------------------------------------

    def codec(self, name: str) -> Codec:
        """Return the codec of a field; one instance serves all threads."""
        if name not in self._codecs:
            self._codecs[name] = codec_for(self.schema.fields[name])
        return self._codecs[name]

    def sample(self, position: int, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the decoded values of the named fields (default: all) of a sample; pictures are H x W x C here.

        SampleError, with shard, row and key, if a record cannot be decoded.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample index must be in [0, {len(self)}), got {position}")
        names = list(self.schema.fields) if names is None else names
        self.check_fields(names)
        at = np.array([position % len(self)], np.int64)
        return {name: self.decode(position, name, self.records(name, at)[0]) for name in names}

    def decode(self, position: int, name: str, record: UInt8Array) -> Any:
        """Return the value of a record that a sample stores; SampleError if it has none."""
        try:
            return self.codec(name).decode(record)
        except CodecError as error:
            raise self.sample_error(position, f"field {name!r}: {error}") from error

    def sample_error(self, position: int, what: str | LoadersError) -> SampleError:
        """Return the error of a sample that cannot be served, with its place and key."""
        path, row = self.place(position)
        cause = what.beside(path, row) if isinstance(what, ShardError) else str(what)
        error = SampleError(cause, position, path, row, self.key(position))
        error.__cause__ = what if isinstance(what, LoadersError) else None
        return error

    def sizes(
        self,
        name: str,
        max_picture_mb: int = MAX_PICTURE_MB,
        report: Callable[[int], object] | None = None,  # called with numbers of samples
    ) -> npt.NDArray[np.int32]:
        """Return height and width of each sample's picture, ``(N, 2)``; of encoded ones as their headers say.

        SampleError if one has no readable header, or more pixels than ``max_picture_mb`` allows.
        """
        self.check_fields([name])
        field = self.schema.fields[name]
        if not isinstance(field, Image | Mask):
            raise SchemaError(f"field {name!r} holds no images: {field}")
        if field.size is not None:
            return np.tile(np.array(field.size, np.int32), (len(self), 1))
        codec, sizes = codec_for(field, max_picture_mb), np.empty((len(self), 2), np.int32)
        for positions in self.pieces(name):
            for position, record in zip(
                positions.tolist(), self.records(name, positions), strict=True
            ):
                try:
                    sizes[position] = _size(codec, record)
                except CodecError as error:
                    raise self.sample_error(position, f"field {name!r}: {error}") from error
            if report is not None:
                report(len(positions))
        return sizes

    def key(self, position: int) -> str | None:
        """Return the key of a sample, or None where there is none that can be read."""
        if not self.has_keys:
            return None
        try:
            rows = self.rows(np.array([position], np.int64))
            return self.store.record(KEY_FIELD, rows).tobytes().decode(errors="backslashreplace")
        except LoadersError:
            return None

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order; SchemaError if there are none."""
        return [key.decode(errors="backslashreplace") for key in self._raw_keys()]

    def key_hashes(self) -> npt.NDArray[np.uint64]:
        """Return the xxh3-64 of every sample's key: equal for equal keys, and small."""
        return np.fromiter(map(xxhash.xxh3_64_intdigest, self._raw_keys()), np.uint64, len(self))

    def _raw_keys(self) -> Iterator[bytes]:
        if not self.has_keys:
            raise SchemaError(f"{self.path} has no field {KEY_FIELD!r}: its samples have no names")
        for records in self.for_column(KEY_FIELD).all_records(KEY_FIELD):
            yield records[KEY_FIELD].tobytes()

    def columns(self, name: str) -> list[Column]:
        """Return a field of each shard as it lies there, verified: of all samples of the store."""
        view = self.for_column(name)
        with view.fetching_ahead():
            return view.store.column(name)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return the values of a field of fixed shape, or of a column of a table, of all samples.

        ``(N, *shape)``, where it can be over the bytes as they lie; pictures H x W x C. SchemaError if the field is not
        an array of fixed shape, stored raw.
        """
        place = find_column(self.schema, name)
        if place is not None:
            parts = [rows[:, place[1]] for rows in self.blocks(place[0])]
            return np.concatenate([*parts, np.empty(0, self.schema.fields[place[0]].dtype)])
        nbytes, codec = self._raw(name)
        view = self.for_column(name)
        is_one = self.numbers is None and len(self.store.shards) == 1
        if is_one and isinstance(column := view.store.column(name)[0], FixedColumn):
            rows = column.data
        else:
            rows = np.empty((len(self), nbytes), np.uint8)
            for part in view.pieces(name):
                view.store.gather(name, view.rows(part), rows[part[0] : part[-1] + 1])
        flat = np.ascontiguousarray(rows).reshape(-1).view(codec.dtype)
        return flat.reshape(len(self), *codec.shape)

    def blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield the values of a field as of ``column``, some megabytes at a time: ``(N, numbers)``."""
        nbytes, codec = self._raw(name)
        view = self.for_column(name)
        for part in view.pieces(name):
            out = np.empty((len(part), nbytes), np.uint8)
            view.store.gather(name, view.rows(part), out)
            yield out.view(codec.dtype)

    def _raw(self, name: str) -> tuple[int, RawCodec]:
        """Return the size of the records of a field, and their codec."""
        self.check_fields([name])
        nbytes, codec = self.schema.fields[name].record_nbytes, self.codec(name)
        if nbytes is None or not isinstance(codec, RawCodec):
            raise SchemaError(f"field {name!r} has no column: its records vary, or are encoded")
        return nbytes, codec

    # -- files -------------------------------------------------------------------------------------

    @property
    def _files(self) -> list[PackedShard]:
        return [shard for shard in self.store.shards if isinstance(shard, PackedShard)]

    @property
    def folders(self) -> list[Location]:
        """The folders, or URLs, of the datasets whose shards these are, in order."""
        return list(dict.fromkeys(shard.path.parent for shard in self._files))

    def check_version(self) -> None:
        """Raise StaleDatasetError if a dataset was replaced since its shards were listed."""
        for shard in self._files:
            shard.check_version()

    @property
    def whole_shards(self) -> list[PackedShard] | None:
        """The files that hold just these samples with just these fields, in order; None if there are no such files."""
        files = self._files
        is_whole = self.numbers is None and len(files) == len(self.store.shards)
        is_same = all(shard.info.places.keys() == self.schema.fields.keys() for shard in files)
        return files if is_whole and is_same else None


def _size(codec: Codec, record: UInt8Array) -> Any:
    """Return height and width of a picture; that of a file is only looked at."""
    if isinstance(codec, PictureCodec):
        return picture_size(record, codec.max_pixels)
    return codec.decode(record).shape[:2]


def open_view(path: Location | str, check: Check = "first") -> View:
    """Open the dataset of a folder, or at a URL; ManifestError if there is none, or it is damaged."""
    manifest, shards, _ = open_manifest(path)
    store = Store(shards, check, max_open=_MAX_OPEN)
    place = place_of(path)  # as it was given
    return View(store, manifest.schema, manifest.fingerprint, place)


def join_views(views: Sequence[View], schema: Schema | None = None) -> View:
    """Return the samples of several views, one view after the other, with fields that all of them have alike."""
    first = views[0]
    shards = [shard for view in views for shard in view.store.shards]
    prints = " ".join(view.fingerprint for view in views)
    numbers = None
    if any(view.numbers is not None for view in views):
        ends = np.cumsum([len(view.store) for view in views])
        numbers = np.concatenate(
            [
                view.numbers_of(np.arange(len(view))) + (end - len(view.store))
                for view, end in zip(views, ends.tolist(), strict=True)
            ]
        )
    fingerprint = xxhash.xxh3_128_hexdigest(prints.encode())
    check = max((view.store.check for view in views), key=_CHECKS.index)
    store = Store(shards, check, first.store.take, runs=_joined_runs(views))
    return View(store, schema or first.schema, fingerprint, first.path, numbers)


def _joined_runs(views: Sequence[View]) -> ShardRuns:
    """Return where the samples of several stores were packed: in shards counted one store after the other."""
    ends, shards, num_samples, num_shards = [], [], 0, 0
    for view in views:
        runs = view.store.runs
        ends.append(runs.ends + num_samples)
        shards.append(runs.shards + num_shards)
        num_samples += len(view.store)
        num_shards += int(runs.shards.max(initial=-1)) + 1
    return ShardRuns(np.concatenate(ends), np.concatenate(shards))
