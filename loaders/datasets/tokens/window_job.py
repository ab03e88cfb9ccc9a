"""The windows of a batch as a job; and what widens them on the device of their use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.buffers import scratch
from loaders.datasets.base import index_array
from loaders.datasets.reading.samples import SampleBatch, SplitBatches, batch_type
from loaders.datasets.tokens.documents import IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.datasets.reading.request import Memory
    from loaders.datasets.tokens.stream import TokenStream
    from loaders.datasets.tokens.windows import TokenWindows

    Indices = npt.NDArray[np.int64]

_NAMES = ("tokens", "targets")
_PART_BYTES = 4 << 20  # of a batch that is not worth another thread


class WindowJob:
    """The windows of one batch, in parts that threads can share.

    Args:
        windows: Whose windows.
        numbers: Which of them.
        memory: Where the batch goes.
        num_workers: How many threads may share the work.
        is_half: Leave tokens and targets in one, as they are stored.
    """

    def __init__(
        self,
        windows: TokenWindows,
        numbers: Indices,
        memory: Memory,
        num_workers: int,
        *,
        is_half: bool = False,
    ) -> None:
        self._windows, self._numbers, self._memory = windows, numbers, memory
        n, nbytes = len(numbers), (windows.sample_nbytes or 1) * len(numbers)
        num_parts = 1 if nbytes < _PART_BYTES else max(1, min(num_workers, n))
        self._part_rows = max(1, -(-n // num_parts))
        self.num_parts = max(1, -(-n // self._part_rows))
        self._is_half, self._is_narrow = is_half, is_half or windows.dtype == "stored"
        self.names = ("windows",) if is_half else _NAMES
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._lock = threading.Lock()

    def run(self, part: int) -> None:
        """Read some of the windows."""
        first = part * self._part_rows
        numbers = self._numbers[first : first + self._part_rows]
        out = [tensor[first : first + len(numbers)].numpy() for tensor in self._begin()]
        if self._is_narrow:
            self._gather(numbers, out[0])
            return
        row = (self._windows.length + 1) * self._windows.stream.dtype.itemsize
        raw = scratch(len(numbers) * row).reshape(len(numbers), row)
        self._gather(numbers, raw)
        narrow = raw.view(self._windows.stream.dtype)
        np.copyto(out[0], narrow[:, :-1])
        np.copyto(out[1], narrow[:, 1:])
        if self._windows.labels is not None:
            self._read_labels(self._windows.labels, numbers, out[1])
        self._pad(numbers, out[1])

    def _begin(self) -> tuple[torch.Tensor, ...]:
        """Take memory when the work begins: by then an earlier batch may have given its own back."""
        with self._lock:
            if not self._tensors:
                self._tensors = tuple(self._take())
            return self._tensors

    def _take(self) -> Iterator[torch.Tensor]:
        windows, n = self._windows, len(self._numbers)
        if self._is_narrow:
            row = (windows.length + 1) * windows.stream.dtype.itemsize
            yield torch.from_numpy(self._memory.take("windows", n * row)).view(n, row)
            return
        dtype = getattr(torch, windows.dtype)
        for name in _NAMES:
            lease = self._memory.take(name, n * windows.length * dtype.itemsize)
            yield torch.from_numpy(lease).view(dtype).view(n, windows.length)

    def _gather(self, numbers: Indices, out: npt.NDArray[np.uint8]) -> None:
        windows = self._windows
        starts = windows.span[0] + numbers * windows.stride
        if windows.num_whole == len(windows) or int(numbers.max(initial=0)) < windows.num_whole:
            windows.stream.gather(starts, windows.length + 1, out)
            return
        for i, start in enumerate(starts.tolist()):  # one of them is the short tail
            stop = min(start + windows.length + 1, windows.span[1])
            row = np.ascontiguousarray(windows.stream.read(start, stop)).view(np.uint8)
            out[i, : len(row)] = row
            out[i, len(row) :].view(windows.stream.dtype)[:] = windows.stream.field.eod or 0

    def _read_labels(
        self, labels: TokenStream, numbers: Indices, targets: npt.NDArray[Any]
    ) -> None:
        """Replace the tokens that follow by their labels."""
        starts = self._windows.span[0] + numbers * self._windows.stride + 1
        stops = np.minimum(starts + self._windows.length, self._windows.span[1])
        if (stops - starts == self._windows.length).all():
            raw = scratch(targets.size * labels.dtype.itemsize).reshape(len(targets), -1)
            labels.gather(starts, self._windows.length, raw)
            np.copyto(targets, raw.view(labels.dtype))
            return
        for row, start, stop in zip(targets, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = labels.read(start, stop)

    def _pad(self, numbers: Indices, targets: npt.NDArray[Any]) -> None:
        windows = self._windows
        for i in np.flatnonzero(numbers >= windows.num_whole).tolist():
            start = windows.span[0] + int(numbers[i]) * windows.stride
            targets[i, max(0, windows.span[1] - start - 1) :] = IGNORED

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the fields of the batch."""
        tensors = self._begin()
        if not self._is_narrow:
            return tensors
        narrow = tensors[0].view(getattr(torch, self._windows.stream.dtype.name))
        return (narrow,) if self._is_half else (narrow[:, :-1], narrow[:, 1:])

    def finish(self) -> SampleBatch:
        """Return the batch."""
        return SampleBatch(batch_type(self.names)._make(self.tensors()), len(self._numbers))

    def describe(self, part: int) -> str:
        """Say what is read."""
        return f"reading {min(self._part_rows, len(self._numbers))} windows of tokens"


def read_group(
    windows: TokenWindows,
    batches: Sequence[Sequence[int]],
    memory: Memory,
    *,
    is_half: bool = False,
) -> SplitBatches:
    """Return several batches whose windows are gathered at once; they share their memory."""
    sizes = [len(batch) for batch in batches]
    numbers = windows.numbers(np.concatenate([index_array(batch) for batch in batches]))
    job = WindowJob(windows, numbers, memory, 1, is_half=is_half)
    job.run(0)
    return SplitBatches(job.names, job.tensors(), sizes)


class Widen:
    """Makes tokens and targets of narrow windows, in the wider type that models take.

    Args:
        dtype: int64 or int32.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype, self._wide = dtype, np.dtype(dtype)
        self._kind = batch_type(_NAMES)

    def __call__(self, batch: Any) -> Any:
        """Return ``tokens`` and ``targets``, ``(N, length)`` each, on the device of the windows."""
        windows: torch.Tensor = batch.windows
        if windows.is_cpu:  # numpy: torch would start threads for so little
            both = self._widen(windows)
            return self._kind(torch.from_numpy(both[0]), torch.from_numpy(both[1]))
        dtype = getattr(torch, self._dtype)
        return self._kind(windows[:, :-1].to(dtype), windows[:, 1:].to(dtype))

    def _widen(self, windows: torch.Tensor) -> npt.NDArray[Any]:
        """Cast both in one call: each would wait for the GIL anew."""
        (num, length), (row, step) = windows.shape, windows.stride()
        both = windows.as_strided((2, num, length - 1), (step, row, step))
        return both.numpy().astype(self._wide, "C")
