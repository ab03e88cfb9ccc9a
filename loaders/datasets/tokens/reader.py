"""The windows of a batch: how they are read; and what widens them on the device of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.buffers import Memory, scratch
from loaders.datasets.reading.request import Reader
from loaders.datasets.reading.samples import batch_type
from loaders.datasets.tokens.documents import IGNORED

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaders.datasets.reading.request import Request
    from loaders.datasets.tokens.stream import TokenStream

    Indices = npt.NDArray[np.int64]

_NAMES = ("tokens", "targets")
_PART_BYTES = 2 << 20  # less is not worth another thread


@dataclass(frozen=True, slots=True)
class WindowReader(Reader):
    """Windows of one length over a stream."""

    stream: TokenStream  # where the tokens are
    labels: TokenStream | None  # where targets are that are not the tokens that follow
    span: tuple[int, int]  # first position and the one behind the last
    length: int  # tokens of a window
    stride: int  # tokens from one window to the next
    num_whole: int  # windows before the first that is short
    dtype: str  # of tokens and targets: int64, int32, or ``stored``
    is_half: bool = False  # leave tokens and targets in one, as they are stored
    prefetched_field = None

    @property
    def names(self) -> tuple[str, ...]:
        """``windows``, or ``tokens`` and ``targets``."""
        return ("windows",) if self.is_half else _NAMES

    @property
    def nbytes(self) -> int:
        """Bytes of a window as it is stored."""
        return (self.length + 1) * self.stream.dtype.itemsize

    @property
    def min_rows(self) -> int:
        """How many windows are worth a thread."""
        return max(1, _PART_BYTES // self.nbytes)

    @property
    def _is_narrow(self) -> bool:
        return self.is_half or self.dtype == "stored"

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return tensors for the windows as they are stored, or for tokens and targets."""
        if self._is_narrow:
            flat = memory.take("windows", num_samples * self.nbytes)
            return [torch.from_numpy(flat).view(num_samples, self.nbytes)]
        dtype = getattr(torch, self.dtype)
        nbytes = num_samples * self.length * dtype.itemsize
        leases = [memory.take(name, nbytes) for name in _NAMES]
        return [torch.from_numpy(x).view(dtype).view(num_samples, self.length) for x in leases]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        numbers = request.indices[first:last]
        out = [tensor[first:last].numpy() for tensor in values]
        if self._is_narrow:
            self._gather(numbers, out[0])
            return
        raw = scratch(len(numbers) * self.nbytes).reshape(len(numbers), self.nbytes)
        self._gather(numbers, raw)
        narrow = raw.view(self.stream.dtype)
        np.copyto(out[0], narrow[:, :-1])
        np.copyto(out[1], narrow[:, 1:])
        if self.labels is not None:
            self._read_labels(self.labels, numbers, out[1])
        self._pad(numbers, out[1])

    def _gather(self, numbers: Indices, out: npt.NDArray[np.uint8]) -> None:
        starts = self.span[0] + numbers * self.stride
        if int(numbers.max(initial=0)) < self.num_whole:
            self.stream.gather(starts, self.length + 1, out)
            return
        for i, start in enumerate(starts.tolist()):  # one of them is the short tail
            stop = min(start + self.length + 1, self.span[1])
            row = np.ascontiguousarray(self.stream.read(start, stop)).view(np.uint8)
            out[i, : len(row)] = row
            out[i, len(row) :].view(self.stream.dtype)[:] = self.stream.field.eod or 0

    def _read_labels(
        self, labels: TokenStream, numbers: Indices, targets: npt.NDArray[Any]
    ) -> None:
        """Replace the tokens that follow by their labels."""
        starts = self.span[0] + numbers * self.stride + 1
        stops = np.minimum(starts + self.length, self.span[1])
        if (stops - starts == self.length).all():
            raw = scratch(targets.size * labels.dtype.itemsize).reshape(len(targets), -1)
            labels.gather(starts, self.length, raw)
            np.copyto(targets, raw.view(labels.dtype))
            return
        for row, start, stop in zip(targets, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = labels.read(start, stop)

    def _pad(self, numbers: Indices, targets: npt.NDArray[Any]) -> None:
        for i in np.flatnonzero(numbers >= self.num_whole).tolist():
            start = self.span[0] + int(numbers[i]) * self.stride
            targets[i, max(0, self.span[1] - start - 1) :] = IGNORED

    def finish(self, values: list[Any]) -> list[Any]:
        if not self._is_narrow:
            return values
        narrow = values[0].view(getattr(torch, self.stream.dtype.name))
        return [narrow] if self.is_half else [narrow[:, :-1], narrow[:, 1:]]

    def describe(self, values: Any, request: Request, first: int, last: int) -> str:
        """Say what is read."""
        return f"reading {last - first} windows of tokens"


class Widen:
    """Makes tokens and targets of narrow windows, in int64 or int32, which models take."""

    def __init__(self, dtype: str) -> None:
        self._dtype, self._wide = dtype, np.dtype(dtype)
        self._kind = batch_type(_NAMES)

    def __call__(self, batch: Any) -> Any:
        """Return ``tokens`` and ``targets``, ``(N, length)`` each, on the device of the windows."""
        windows: torch.Tensor = batch.windows
        if windows.is_cpu:  # numpy: torch would start threads for so little
            tokens, targets = self._widen(windows.numpy())
            return self._kind(torch.from_numpy(tokens), torch.from_numpy(targets))
        dtype = getattr(torch, self._dtype)
        return self._kind(windows[:, :-1].to(dtype), windows[:, 1:].to(dtype))

    def _widen(self, windows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Cast both in one call: each would wait for the GIL anew."""
        (num, length), (row, step) = windows.shape, windows.strides
        shape, strides = (2, num, length - 1), (step, row, step)
        return np.ndarray(shape, windows.dtype, windows, 0, strides).astype(self._wide, "C")
