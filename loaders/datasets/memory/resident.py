"""Samples that a GPU fetches itself: from its own memory, or over the bus from page-locked host memory.

The host only says which rows: a batch leaves it as a few numbers (``RowNumbers``), and is gathered,
augmented and shaped on the device, on the trainer's current stream. On the CPU the same code runs
over the same tensors.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders.buffers import shown_as_writable
from loaders.datasets.base import SamplesOf, SampleT
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.fixed import served
from loaders.datasets.reading.halves import (
    PictureMoves,
    check_on_device,
    draw_picture_moves,
    move_pictures,
    picture_sizes,
)
from loaders.datasets.reading.request import ReadPlan
from loaders.datasets.reading.samples import batch_type
from loaders.device import fused
from loaders.device.accelerator import indexed, without_autocast
from loaders.device.nested import map_tensors
from loaders.device.pinned import page_lock
from loaders.errors import LoadersError, SchemaError
from loaders.schema import VIRTUAL_FIELDS, Image, Mask

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaders.data.store import Store
    from loaders.datasets.base import Halves
    from loaders.datasets.reading.request import Request
    from loaders.schema import Field

    Int64s = npt.NDArray[np.int64]

_PART_BYTES = 64 << 20  # of one copy to the device
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class RowNumbers(NamedTuple):
    """A batch before it is gathered."""

    rows: torch.Tensor  # where its samples lie, int64 ``(N,)``
    indices: torch.Tensor  # which they are as the user counts them, int64 ``(N,)``
    moves: list[PictureMoves]  # what augmentation does to its pictures


class Resident:
    """The columns of a dataset where a device reads them: of records of one size, pictures as pixels.

    With ``is_pinned`` they stay in host memory, page-locked. LoadersError, with figures, if they do not fit.
    """

    def __init__(
        self, dataset: PackedDataset[Any], device: torch.device, *, is_pinned: bool
    ) -> None:
        self.device, self.is_pinned = device, is_pinned
        numbers = dataset.view.numbers_of(np.arange(len(dataset)))
        self._rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
        if dataset.view.numbers is not None:  # rows are kept in the order of the view
            self._rows = np.full(len(dataset.store), -1, np.int64)
            self._rows[numbers] = np.arange(len(numbers))
        self.fields = dataset.stored_fields
        check_resident(dataset)
        self.nbytes = sum(len(dataset) * (f.record_nbytes or 0) for f in self.fields.values())
        if is_pinned:
            if device.type == "cuda" and (why := fused.why_not(device)) is not None:
                raise LoadersError(
                    f"pin=True needs Triton, whose kernels read host memory: {why}. It needs "
                    "'pip install triton', a C compiler and Python's headers"
                )
            with fused.on_device(device):  # locking would open a context on the current GPU
                self.columns = {name: self._pinned(dataset, name) for name in self.fields}
            if device.type == "cuda":  # a dropped dataset may still be read by what is queued
                weakref.finalize(self, _wait_for, device)
        else:
            _check_room(self.nbytes, device)
            self.columns = {name: _uploaded(dataset, name, device) for name in self.fields}

    def _pinned(self, dataset: PackedDataset[Any], name: str) -> torch.Tensor:
        data = dataset.store.column(name)[0].data  # type: ignore[union-attr]
        page_lock(data, f"column {name!r}")
        return torch.from_numpy(shown_as_writable(data))

    def numbers(self, dataset: PackedDataset[Any], batch: Any, request: Request) -> RowNumbers:
        """Return the rows of a batch, and draw what happens to its pictures."""
        rows = request.rows.indices if self._rows is None else self._rows[request.rows.indices]
        moves = draw_picture_moves(dataset.augment, picture_sizes(dataset), request)
        indices = torch.from_numpy(request.numbers.copy())
        return RowNumbers(torch.from_numpy(rows), indices, moves)

    def whole(self, dataset: PackedDataset[Any], batch: Any, request: Request) -> Any:
        """Return a batch, made where its rows lie."""
        numbers = self.numbers(dataset, batch, request)
        return self.batch(dataset, map_tensors(numbers, lambda t: t.to(self.device)))

    def gather(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the records of some rows, ``(N, nbytes)`` uint8, on the device."""
        column = _wide(self.columns[name])
        if not self.is_pinned or rows.device.type == "cpu":
            return column.index_select(0, rows).view(torch.uint8)
        out = torch.empty((len(rows), column.shape[1]), dtype=column.dtype, device=rows.device)
        return fused.gathered(column, rows, out).view(torch.uint8)

    def batch(self, dataset: PackedDataset[Any], numbers: RowNumbers) -> Any:
        """Gather a batch and bring it into the form that the dataset's samples have."""
        values = {
            name: numbers.indices
            if name in VIRTUAL_FIELDS
            else served(self.gather(name, numbers.rows), self.fields[name])
            for name in dataset.names
        }
        with without_autocast():
            move_pictures(values, self.fields, numbers.moves)
        return batch_type(dataset.names)._make(values.values())


def _wait_for(device: torch.device) -> None:
    with suppress(RuntimeError):  # of a broken device, or a forked process: nothing is read there
        torch.cuda.synchronize(device)


class ResidentDataset(PackedDataset[SampleT]):
    """A packed dataset whose columns may be where a device reads them."""

    _resident: Resident | None = None

    def halves(self, device: torch.device | str) -> Halves | None:
        """Return batches of ``RowNumbers`` and what gathers them; ValueError if they are wanted on another device."""
        if self._resident is None:
            return super().halves(torch.device(device))
        home, asked = self._resident.device, indexed(torch.device(device))
        if asked.type != home.type or asked.index not in (None, home.index):
            raise ValueError(f"the samples lie on {home}: leave out device={str(device)!r}")
        plan = ReadPlan(self.view, (), unfinished=partial(self._resident.numbers, self))
        return SamplesOf(self, plan), partial(self._resident.batch, self)

    @property
    def stores(self) -> tuple[Store, ...]:
        """Where samples are read from: none where batches are gathered on a device."""
        return super().stores if self._resident is None else ()

    def shards_read(self, indices: Int64s) -> tuple[Int64s, ...]:
        """Return which shards some samples lie in, of each store."""
        return super().shards_read(indices) if self._resident is None else ()

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        """Return what is to be read of a batch, by rows where it lies on a device."""
        request = super().request(indices, num_workers)
        if self._resident is not None:
            request.plan = ReadPlan(self.view, (), unfinished=partial(self._resident.whole, self))
        return request

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes that the host copies for a sample, None if it decodes."""
        return super().sample_nbytes if self._resident is None else 0

    def _settle_plan(self) -> None:
        super()._settle_plan()
        if self._resident is None:
            return
        check_resident(self)
        if missing := [name for name in self.stored_fields if name not in self._resident.fields]:
            what = f"field {missing[0]!r} was not loaded to {self.device}, only {[*self._resident.fields]} were"
            raise SchemaError(f"{what}: make the RAMDataset with all fields that will be served")

    def _settle(self, device: torch.device | None, *, is_pinned: bool) -> None:
        """Bring the columns to where a device reads them."""
        if device is not None:
            self.device = indexed(device)
            self._resident = Resident(self, self.device, is_pinned=is_pinned)


def check_resident(dataset: PackedDataset[Any]) -> None:
    """Raise SchemaError, with what to do, if a dataset's fields or settings are not for a device."""
    hint = "; use RAMDataset without device and pin, or other fields=[...]"
    check_on_device(dataset, _why_not_resident, hint)


def _why_not_resident(field: Field) -> str:
    is_picture = isinstance(field, Image | Mask)
    if field.record_nbytes is not None and not (is_picture and field.codec != "raw"):
        return ""
    return f"has records of different sizes{'; decode=True keeps pixels' if is_picture else ''}"


def _check_room(nbytes: int, device: torch.device) -> None:
    """Refuse with figures what does not fit on a GPU."""
    if device.type == "cuda" and nbytes > (memory := torch.cuda.mem_get_info(device))[0]:
        need, free, total = (f"{number / 1e9:.3g} GB" for number in (nbytes, *memory))
        raise LoadersError(
            f"RAMDataset needs {need} of {device}, and {free} of its {total} are free; "
            "RAMDataset(pin=True) keeps the data in host memory"
        )


def _uploaded(dataset: PackedDataset[Any], name: str, device: torch.device) -> torch.Tensor:
    """Copy a column to the device, part by part: the host holds no more than one part."""
    nbytes = dataset.schema.fields[name].record_nbytes
    assert nbytes is not None
    column = torch.empty((len(dataset), nbytes), dtype=torch.uint8, device=device)
    rows = dataset.view.rows(np.arange(len(dataset)))
    for part in rows.pieces(max(1, _PART_BYTES // nbytes)):
        found = np.empty((len(rows[part]), nbytes), np.uint8)
        dataset.store.gather(name, rows[part], found)
        column[part] = torch.from_numpy(found).to(device)
    return column


def _wide(column: torch.Tensor) -> torch.Tensor:
    """See rows of bytes as rows of the widest words that they are made of: fewer loads for a gather."""
    places = column.shape[1] | column.data_ptr()
    return column.view(next(word for word in _WORDS if places % word.itemsize == 0))
