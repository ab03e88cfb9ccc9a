"""What every dataset of packed columns can do, wherever its bytes lie.

A dataset is a store, a choice of fields, and settings; ``select``, ``split``, ``replace`` and
``+`` make cheap views that share the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import xxhash
from torch.utils.data import Dataset

from loaders.augment import Views
from loaders.augment.planning import has_draws
from loaders.checks import Settled, shares, shown, whole_number
from loaders.datasets import frame
from loaders.datasets.base import (
    BatchDataset,
    SamplesOf,
    SampleT,
    from_start,
    whole_numbers,
)
from loaders.datasets.joining import joined
from loaders.datasets.reading.coefficients import check_scale, makers_of
from loaders.datasets.reading.factory import as_forms, forms_of, make_readers
from loaders.datasets.reading.halves import make_whole, with_moves
from loaders.datasets.reading.known import check_followed, check_known
from loaders.datasets.reading.request import BadSamples, ReadPlan, Request
from loaders.datasets.reading.transforming import Transforming
from loaders.datasets.settings import (
    SETTINGS,
    as_settings,
    check_augment,
    check_batching,
    check_pixel_ops,
    note_unmoved,
)
from loaders.errors import NoValueError, SchemaError
from loaders.schema import (
    VIRTUAL_FIELDS,
    Array,
    Boxes,
    Bytes,
    Field,
    Image,
    Json,
    Label,
    MultiLabel,
    Schema,
    Text,
)
from loaders.schema.pictures import first_picture
from loaders.schema.tables import column_names, find_column

if TYPE_CHECKING:
    import torch

    from loaders.data.store import Store
    from loaders.data.view import View
    from loaders.datasets.base import Halves
    from loaders.remote.url import Location

Indices = npt.NDArray[np.int64]
OnError = Literal["raise", "replace"]
Transform = Callable[..., SampleT] | Mapping[str, Callable[..., Any]]


class PackedDataset(Settled, BatchDataset[SampleT]):
    """A view and settings; ``ShardDataset`` and ``RAMDataset`` say where the view's store comes from.

    Attributes:
        view: The samples, with all fields that are stored.
        leader: The picture field that boxes follow, by the schema as it was packed, even if not all of it is here.
    """

    _settled = frozenset(SETTINGS)
    _of_several = "select() takes several of them, and column() the name of a field"
    has_own_samples = False

    fields: tuple[str, ...]
    augment: tuple[Any, ...]
    transform: Transform[SampleT] | None
    batching: dict[str, Any]
    on_error: OnError
    scale: float
    max_picture_mb: int

    def __init__(self, view: View, *, leader: str | None = None, **settings: Any) -> None:
        self.view = view
        self.leader = leader or first_picture(view.schema.fields)
        self.__dict__.update(as_settings(settings, view.schema))
        self.epoch, self.seed = 0, 0
        self._settle_plan()
        check_batching(self.batching, self.fields)

    def _settle_plan(self) -> None:
        """Check the settings together, and make the read plan."""
        self.schema.check_names(self.fields)
        check_scale(self._shown_fields, self.scale)
        check_pixel_ops(self.augment, self._shown_fields)
        note_unmoved(self.augment, self._shown_fields)
        check_followed(self.augment, self._shown_fields, self.view)
        self.plan = self._planned(self._shown_fields, BadSamples())
        self._check_names()

    def _planned(
        self,
        fields: dict[str, Field | None],
        bad: BadSamples,
        *,
        ops: tuple[Any, ...] | None = None,
        unfinished: Callable[[Any, Request], Any] | None = None,
    ) -> ReadPlan:
        check_known(self.augment, self.schema.fields)
        is_transformed = self.transform is not None
        forms = as_forms(self.batching, fields, is_transformed=is_transformed)
        ops = self.augment if ops is None else ops
        # A transform sees samples: what it makes is joined.
        half = unfinished is not None
        readers = make_readers(self, fields, ops, {} if is_transformed else forms, half=half)
        return ReadPlan(
            self.view,
            readers,
            forms=forms_of(readers, fields, forms) if is_transformed else {},
            transforming=None if self.transform is None else Transforming(self.transform),
            is_replacing=self.on_error == "replace",
            bad=bad,
            unfinished=unfinished,
            fields=tuple(name for name, field in fields.items() if field is not None),
        )

    def plan_half(
        self,
        unfinished: Callable[[Any, Request], Any],
        fields: Mapping[str, Field] | None = None,
    ) -> ReadPlan:
        """Return the plan of batches whose pictures a device moves, without transforms.

        Args:
            unfinished: Adds to a batch what a device is to do with it: its crops and flips, but for those of boxes and
                keypoints, which are a few numbers.
            fields: Fields, of any codec, in place of those of the same names.
        """
        read = {**self._shown_fields, **(fields or {})}
        return self._planned(read, self.plan.bad, ops=(), unfinished=unfinished)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields of a sample, in order."""
        return self.plan.names

    def _check_names(self) -> None:
        """Raise SchemaError for a duplicate name of a sample, or a transform of an unexpected one."""
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            what = f"augment.Views makes a field {twice[0]!r}, which exists already"
            raise SchemaError(f"{what}: rename the view")
        functions = self.transform if isinstance(self.transform, Mapping) else {}
        if unknown := set(functions) - set(self.names):
            has = list(self.names)
            raise SchemaError(f"transform is for fields {sorted(unknown)}; samples have {has}")

    @property
    def store(self) -> Store:
        """Where the records lie."""
        return self.view.store

    @property
    def schema(self) -> Schema:
        """All that is stored of a sample."""
        return self.view.schema

    @property
    def _shown_fields(self) -> dict[str, Field | None]:
        return {
            name: None if name in VIRTUAL_FIELDS else self.schema.fields[name]
            for name in self.fields
        }

    @property
    def stored_fields(self) -> dict[str, Field]:
        """The fields that samples have, without what is computed."""
        return {name: field for name, field in self._shown_fields.items() if field is not None}

    # -- two halves --------------------------------------------------------------------------------

    def halves(self, device: torch.device) -> Halves | None:
        """Return the host's half of batches, and what makes images of it on a device; None if no field has halves."""
        makers = makers_of(self._shown_fields, self.scale, device) if self.allows_halves else {}
        if not makers:
            return None
        sizes = {name: make.size for name, make in makers.items()}
        unfinished = partial(with_moves, self.augment, sizes)
        plan = self._planned(self._shown_fields, self.plan.bad, unfinished=unfinished)
        return SamplesOf(self, plan), partial(make_whole, fields=self.stored_fields, makers=makers)

    @property
    def allows_halves(self) -> bool:
        """Whether a device may do its half: transforms act on images, and views share one decode."""
        views = any(isinstance(op, Views) for op in self.augment)
        return self.transform is None and not views

    # -- samples -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.view)

    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> SampleT: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one sample as a named tuple of tensors, or for a slice a view of the dataset."""
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[SampleT]:
        """Yield the samples one by one; a ``DataLoader`` is faster."""
        with self.view.fetching_ahead():
            for i in range(len(self)):
                yield self.read([i])[0]

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        """Turn indices into a request, with the seed, epoch and draws that our samplers attach; leave one as it is."""
        if isinstance(indices, Request):
            return indices
        if not hasattr(indices, "__len__"):
            what = "a batch is a list of sample indices"
            raise TypeError(f"{what}, got {shown(indices)}: a batch_sampler yields lists")
        batch = self.as_batch(indices, self.seed)
        array = from_start(batch.indices, len(self), "sample")
        rows = self.view.rows(array)
        return Request(self.plan, array, rows, batch.epoch, batch.draws, batch.seed, num_workers)

    def by_shard(self) -> tuple[Indices, Indices | None]:
        """Return how many samples of each shard are here, and the samples shard by shard (None: they lie so)."""
        return self.view.by_shard()

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    def shards_read(self, indices: Indices) -> tuple[Indices, ...]:
        return (self.view.rows(indices).shards,)

    @property
    def is_random(self) -> bool:
        transforming = self.plan.transforming
        return has_draws(self.augment) or (transforming is not None and transforming.draws)

    @property
    def may_draw(self) -> bool:
        return self.is_random or self.transform is not None

    @property
    def num_replaced(self) -> int:  # type: ignore[override]  # counted where samples are read
        return self.plan.bad.num_replaced

    # -- looking things up -------------------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes by number: of the first label that has them, else of what else has (``box_labels``).

        Raises:
            NoValueError: No field has any; ``hasattr(dataset, "classes")`` is False.
        """
        fields = self.schema.fields.values()
        labels = [field for field in fields if isinstance(field, Label | MultiLabel)]
        arrays = [field for field in fields if isinstance(field, Array)]
        for field in (*labels, *arrays):
            if field.classes:
                return field.classes
        what = "only numbers are known" if labels else "there are no labels"
        raise NoValueError(f"{self!r} has no class names: {what}")

    @property
    def fingerprint(self) -> str:
        return self.view.fingerprint

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a field of all samples as one read-only array ``(N, ...)``, without decoding pictures.

        Texts, such as keys and captions, come as ``str`` in an array of objects ``(N,)``. The name
        may also be that of a column of a packed table: its numbers, or the numbers of its
        categories, ``(N,)``. Records are verified as samples are.

        Raises:
            SchemaError: The field is no text, and has no fixed shape.
        """
        self.schema.check_names([name], also=column_names(self.schema))
        if (place := find_column(self.schema, name)) is not None:
            return _read_only(self.column(place[0])[:, place[1]])
        if name == "sample_id":
            return _read_only(np.arange(len(self)))
        field = self.schema.fields[name]
        if isinstance(field, Text):
            return _read_only(np.array(frame.decoded(self, name, field), object))
        if field.record_nbytes is None or field.shape is None or field.codec != "raw":
            raise SchemaError(
                f"field {name!r} varies in size, or is encoded: read it sample by sample, or JSON by to_pandas()"
            )
        values = self.view.column(name)
        # It lies as H x W x C, and is served as C x H x W.
        return _read_only(values.transpose(0, 3, 1, 2) if isinstance(field, Image) else values)

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        """Return how long a field is in each sample, ``(N,)``, without reading it.

        Of arrays, how long the axis that varies; of boxes, how many; of texts, JSON and bytes, their bytes (UTF-8).

        Raises:
            SchemaError: It is of another kind, or several of its axes vary.
        """
        self.schema.check_names([name])
        field = self.schema.fields.get(name)
        unit = _unit_nbytes(field)
        if unit is None:
            raise SchemaError(
                f"lengths() needs texts, bytes, or arrays with one varying axis; {name!r} is {field or 'a number'}"
            )
        return self.view.lengths(name) // unit

    def sizes(self, name: str = "image") -> npt.NDArray[np.int32]:
        """Return height and width of each sample's picture as it is stored, upright, ``(N, 2)``, without decoding it.

        Those of one size are not read; of the rest the headers are, and verified as samples are. ``augment`` and
        ``scale`` do not count.

        Raises:
            SchemaError: The field holds no pictures.
            SampleError: The size of one cannot be read.
        """
        self.schema.check_names([name])
        return _read_only(self.view.sizes(name, self.max_picture_mb))

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return samples as a pandas DataFrame; tables with their columns, classes and categories by name.

        Args:
            fields: Which of the stored fields; default: those that samples have, as far as they
                hold one value, text or row of a table.

        Raises:
            SchemaError: A field has no place in a DataFrame, or none has.
            ImportError: pandas is not installed.
        """
        return frame.to_pandas(self, fields)

    def find(self, key: str) -> int:
        """Return the index of the sample with this key; KeyError if there is none."""
        if not isinstance(key, str):
            raise TypeError(f"key must be a text, got {shown(key)}")
        hashes, order = self._keys
        wanted = xxhash.xxh3_64_intdigest(key.encode())
        at = int(np.searchsorted(hashes, wanted))
        while at < len(hashes) and hashes[at] == wanted:
            if self.view.key(int(order[at])) == key:
                return int(order[at])
            at += 1
        example = f", they look like {self.view.key(0)!r}" if len(self) else ""
        raise KeyError(f"none of {len(self)} samples has the key {key!r}{example}")

    def place(self, index: int) -> tuple[Location, int]:
        """Return the file of a sample, or its URL, and its row there."""
        return self.view.place(index)

    @cached_property
    def _keys(self) -> tuple[npt.NDArray[np.uint64], Indices]:
        """The sorted hashes of all keys, and whose they are."""
        hashes = self.view.key_hashes()
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    # -- views -------------------------------------------------------------------------------------

    def replace(self, **settings: Any) -> Self:
        """Return the same samples with other settings: those of ``ShardDataset`` but for ``check``."""
        before = {name: getattr(self, name) for name in SETTINGS}
        other = self._with(**as_settings(before | settings, self.schema))
        if "augment" in settings:
            check_augment(other.augment, self.schema.fields)
        if "batching" in settings:  # else a form of what is left out waits for its return
            check_batching(other.batching, other.fields)
        return other

    def _with(self, **changes: Any) -> Self:
        """Return another dataset that differs in some attributes."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__ | changes)
        other.__dict__.pop("_keys", None)
        other._settle_plan()
        return other

    def select(self, which: Any) -> Self:
        """Return a view of some samples, in the order given.

        Args:
            which: Indices, or a boolean mask of the dataset's length.
        """
        array = np.asarray(which)
        if array.dtype.kind not in "biu" and (array.size or not array.ndim):
            what = "whole numbers, or a mask such as dataset.column('label') == 0"
            raise TypeError(f"select() takes {what}, got {shown(which)} ({array.dtype})")
        if array.dtype == bool:
            if array.shape != (len(self),):
                raise ValueError(
                    f"a mask must have one value per sample ({len(self)}), got shape {array.shape}"
                )
            array = np.flatnonzero(array)
        indices = from_start(whole_numbers(array), len(self), "sample")
        return self._with(view=self.view.select(indices), _num_untold=0)

    def split(
        self,
        parts: Sequence[float],
        *,
        stratify: str | None = None,
        by: Literal["sample", "key"] = "sample",
        seed: int = 0,
    ) -> tuple[Self, ...]:
        """Divide the samples at random, as ``packdata split`` does; each goes to exactly one part.

        Args:
            parts: The share of each part; they sum to 1.
            stratify: A label field, another of one number, or a column of a packed table, of which each part gets
                its share of every value.
            by: ``"key"``: each sample's part follows from its key alone, so it stays when samples
                are added; the shares are then met on average.
            seed: For the division.

        Raises:
            ValueError: The arguments are no shares, contradict each other, or a part would be empty.
            SchemaError: There is no such column, or it has hardly any value twice.
        """
        parts, seed = shares(parts), whole_number("seed", seed)
        if by not in ("sample", "key") or (by == "key" and stratify is not None):
            raise ValueError(f"by must be 'sample', or 'key' without stratify, got {by!r}")
        if not isinstance(stratify, str | None):
            raise TypeError(f"stratify takes the name of a field, got {shown(stratify)}")
        chosen = self.view.divide(parts, by_key=by == "key", stratify=stratify, seed=seed)
        for share, indices in zip(parts, chosen, strict=True):
            if share and len(self) and not len(indices):
                raise ValueError(
                    f"a part of {parts} would get none of the {len(self)} samples: use a larger share"
                )
        return tuple(self.select(indices) for indices in chosen)

    def _refuse(self, name: str, value: Any) -> None:
        what = f"{name} cannot be assigned: settings of a dataset never change"
        raise AttributeError(f"{what}; use dataset.replace({name}=...)")

    def __add__(self, other: Any) -> Any:
        """Return ``concat([self, other])``; with a dataset of another kind, torch's ``ConcatDataset``.

        Raises:
            SchemaError: They differ in their fields.
        """
        if not isinstance(other, Dataset):
            return NotImplemented
        if not isinstance(other, PackedDataset) or self.has_own_samples or other.has_own_samples:
            return super().__add__(other)
        return concat([self, other])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed anew and large, and type arguments."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_keys", "__orig_class__")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples of {', '.join(self.names)})"


def concat(datasets: Sequence[PackedDataset[SampleT]], *unlisted: Any) -> PackedDataset[SampleT]:
    """Return the samples of several datasets, one after the other.

    They must have the same settings (fields, augment, transform, ...) and, in the fields that
    samples show, the same schema: ``replace`` makes settings equal.

    Args:
        datasets: The datasets, in a list.
        *unlisted: Refused: datasets that are not in a list.

    Raises:
        TypeError: ``datasets`` is not a list, or an item is not a ``ShardDataset`` or ``RAMDataset``.
        ValueError: The list is empty.
        SchemaError: They differ; the message says in what.
    """
    view, settings = joined(PackedDataset, datasets, unlisted)
    return PackedDataset(view, **settings)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _unit_nbytes(field: Field | None) -> int | None:
    """Return the bytes of one item of a field that varies along one axis."""
    if isinstance(field, Text | Json | Bytes):
        return 1
    if not isinstance(field, Array | Boxes) or field.shape is None:
        return None
    known = [n for n in field.shape if n is not None]
    is_one = len(known) == len(field.shape) - 1
    return math.prod(known) * np.dtype(field.dtype).itemsize if is_one else None
