"""The windows of a batch: how they are read; and what widens them on the device of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.datasets.reading.request import Reader
from loaders.datasets.reading.samples import batch_type
from loaders.schema.tokens import IGNORED

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.datasets.reading.request import Request
    from loaders.datasets.tokens.stream import TokenStream

    Indices = npt.NDArray[np.int64]

_NAMES = ("tokens", "targets")
_PART_BYTES = 2 << 20  # less is not worth another thread


@dataclass(frozen=True, slots=True)
class WindowReader(Reader):
    """Windows of one length over a stream, read as they are stored; the rest of a short one is filled up."""

    stream: TokenStream  # where the tokens are
    labels: TokenStream | None  # where targets are that are not the tokens that follow
    span: tuple[int, int]  # first position and the one behind the last
    length: int  # tokens of a window
    stride: int  # tokens from one window to the next
    dtype: str  # of tokens and targets: int64, int32, or ``stored``
    is_half: bool = False  # leave tokens and targets in one, as they are stored
    prefetched_field = None
    what = "windows of tokens"

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

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return the windows as they are stored, where each starts, labels if there are some, and room to widen."""
        flat = memory.take("windows", num_samples * self.nbytes)
        windows = torch.from_numpy(flat).view(num_samples, self.nbytes)
        labels = None
        if self.labels is not None:
            nbytes = self.length * self.labels.dtype.itemsize
            flat = memory.take("labels", num_samples * nbytes)
            labels = torch.from_numpy(flat).view(num_samples, nbytes)
        wide = None
        if not self.is_half and self.dtype != "stored":
            dtype = getattr(torch, self.dtype)
            flat = memory.take("wide", 2 * num_samples * self.length * dtype.itemsize)
            wide = torch.from_numpy(flat).view(dtype).view(2, num_samples, self.length)
        return [windows, np.empty(num_samples, np.int64), labels, wide]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        starts = self.span[0] + request.indices[first:last] * self.stride
        values[1][first:last] = starts
        out = values[0][first:last].numpy()
        self._gather(self.stream, starts, out, self.stream.field.eod or 0)
        if self.labels is not None:
            self._gather(self.labels, starts + 1, values[2][first:last].numpy(), IGNORED)

    def _gather(
        self, stream: TokenStream, starts: Indices, out: npt.NDArray[np.uint8], rest: int
    ) -> None:
        length = out.shape[1] // stream.dtype.itemsize
        is_short = starts + length > self.span[1]
        if not is_short.all():
            stream.gather(np.where(is_short, starts.min(), starts), length, out)
        for i in np.flatnonzero(is_short).tolist():
            row, start = out[i].view(stream.dtype), int(starts[i])
            num = self.span[1] - start
            row[:num] = stream.read(start, start + num)
            row[num:] = rest

    def finish(self, values: list[Any]) -> list[Any]:
        windows, starts, labels, wide = values
        narrow = windows.view(getattr(torch, self.stream.dtype.name))
        if self.is_half:
            return [narrow]
        if self.dtype == "stored":
            return [narrow[:, :-1], narrow[:, 1:]]
        out = wide.numpy()
        if self.labels is None:
            widened(narrow.numpy(), out)
        else:
            out[0], out[1] = narrow[:, :-1].numpy(), labels.numpy().view(self.labels.dtype)
        for i in np.flatnonzero(starts + self.length + 1 > self.span[1]).tolist():
            out[1, i, self.span[1] - starts[i] - 1 :] = IGNORED
        return [*wide]


def tokens_and_targets(batch: Any, dtype: str) -> Any:
    """Make ``(N, length)`` each of narrow windows, in int64 or int32, which models take, on their device."""
    windows: torch.Tensor = batch.windows
    if windows.is_cpu:  # numpy: torch would start threads for so little
        num, length = windows.shape
        wide = widened(windows.numpy(), np.empty((2, num, length - 1), dtype))
        return batch_type(_NAMES)._make(map(torch.from_numpy, wide))
    parts = windows[:, :-1], windows[:, 1:]
    return batch_type(_NAMES)._make(part.to(getattr(torch, dtype)) for part in parts)


def widened(windows: npt.NDArray[Any], out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Cast tokens and targets to ``out[0]`` and ``out[1]``, in one call: each would wait for the GIL anew."""
    row, step = windows.strides
    np.copyto(out, np.ndarray(out.shape, windows.dtype, windows, 0, (step, row, step)), "unsafe")
    return out
