"""Records of one size: copied to where the batch has them, and seen there as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loaders.buffers import Memory, scratch
from loaders.datasets.reading.request import Reader
from loaders.schema import Field, Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from loaders.data.gather import Found
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

    UInt8Array = npt.NDArray[np.uint8]

PART_BYTES = 1 << 20  # copying less than this is not worth another thread


@dataclass(frozen=True, slots=True)
class FixedReader(Reader):
    """Records of one size: gathered in one call, typed where they land."""

    store: Store
    name: str
    row_nbytes: int
    layout: Layout

    @property
    def nbytes(self) -> int:
        return self.row_nbytes

    @property
    def min_rows(self) -> int:
        return max(1, PART_BYTES // self.row_nbytes)

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        flat = memory.take(self.name, num_samples * self.row_nbytes)
        return [flat, flat.reshape(num_samples, self.row_nbytes)]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        self._gather(request, first, last, values[1][first:last])

    def _gather(self, request: Request, first: int, last: int, out: UInt8Array) -> None:
        """Copy records; where they lie is found once for all parts, when nothing else is left to do."""

        def find(request: Request, first: int, last: int) -> Found | None:
            return self.store.find(self.name, request.rows_of(first, last), self.row_nbytes)

        found, start = None, 0
        if last - first < len(request) or request.whole is not None:
            found, start = request.shared(("found", self.name), find, first, last)
        if found is None:
            self.store.gather(self.name, request.rows_of(first, last), out)
        else:
            found.copy(out, start)

    def finish(self, values: list[Any]) -> list[Any]:
        # Not before: each call of torch releases the GIL, and the first copy would wait for the trainer.
        return [self.layout.tensor(values[0], len(values[1]))]


@dataclass(frozen=True, slots=True)
class WideReader(FixedReader):
    """Numbers that are stored in a narrow type and served in a wider one: gathered, then cast where they land."""

    stored: np.dtype[Any]

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [*self.layout.slot(self.name, num_samples, memory)]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        narrow, out = scratch((last - first) * self.row_nbytes), values[1][first:last]
        self._gather(request, first, last, narrow.reshape(len(out), self.row_nbytes))
        out[...] = narrow.view(self.stored).reshape(out.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the values of one field lie in a batch; pictures are H x W x C in memory, whatever their axes are called."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_image: bool

    @classmethod
    def of(cls, field: Field) -> Layout:
        """Return the layout of a field of fixed shape."""
        shape = tuple(n for n in field.shape or () if n is not None)
        if isinstance(field, Image):
            return cls(torch_dtype(field.dtype), (*shape[1:], shape[0]), True)
        return cls(torch_dtype(field.served_dtype), shape, False)

    def slot(
        self, name: str, num_samples: int, memory: Memory
    ) -> tuple[UInt8Array, npt.NDArray[Any]]:
        """Take memory for a batch; return the bytes, and the same as rows of numbers."""
        flat = memory.take(name, num_samples * math.prod(self.shape) * self.dtype.itemsize)
        rows = torch.from_numpy(flat).view(self.dtype).numpy()
        return flat, rows.reshape(num_samples, *self.shape)

    def tensor(self, flat: UInt8Array | torch.Tensor, num_samples: int) -> torch.Tensor:
        """View bytes as the field's tensor; it shares and keeps them."""
        tensor = flat if isinstance(flat, torch.Tensor) else torch.from_numpy(flat)
        if self.dtype is not torch.uint8:
            tensor = tensor.view(self.dtype)
        if self.shape:
            tensor = tensor.view(num_samples, *self.shape)
        return tensor.permute(0, 3, 1, 2) if self.is_image else tensor


def begin_views(
    layouts: Mapping[str, Layout | None], num_samples: int, memory: Memory
) -> list[Any]:
    """Take memory for the views of a field, by name; those without a layout are lists."""
    return [
        [None] * num_samples if layout is None else layout.slot(name, num_samples, memory)
        for name, layout in layouts.items()
    ]


def served(records: torch.Tensor, field: Field) -> torch.Tensor:
    """Turn records of one size, ``(N, nbytes)`` uint8 on any device, into the field's tensor; it may share them."""
    layout = Layout.of(field)
    if field.served_dtype == field.dtype:
        return layout.tensor(records.flatten(), len(records))
    narrow = records.flatten().view(torch_dtype(field.dtype))
    return narrow.to(layout.dtype).view(len(records), *layout.shape)


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of a numpy name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def take_rows(rows: UInt8Array) -> Callable[[npt.NDArray[np.int64], UInt8Array], None]:
    """Return torch's copy of rows, which writes to where the batch has them, without a copy between."""
    source = torch.from_numpy(rows)

    def copy(numbers: npt.NDArray[np.int64], out: UInt8Array) -> None:
        torch.index_select(source, 0, torch.from_numpy(numbers), out=torch.from_numpy(out))

    return copy
