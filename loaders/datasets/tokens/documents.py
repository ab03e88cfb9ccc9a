"""Documents packed into windows: none lost, none repeated, none that sees another.

The longest go first. Lengths are whole numbers below a limit, so what is done for one document is done for all of its
length at once: the work grows with the number of different lengths.

Source:
    First-fit and best-fit decreasing: Johnson, "Near-optimal bin packing algorithms", MIT, 1973.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from loaders.datasets.reading.request import SamplesReader
from loaders.datasets.reading.samples import SampleBatch, batch_type
from loaders.sampling.permutation import spans
from loaders.schema.tokens import IGNORED

if TYPE_CHECKING:
    from loaders.buffers import Memory
    from loaders.datasets.reading.request import Request
    from loaders.datasets.tokens.stream import TokenStream

Indices = npt.NDArray[np.int64]
Fit = Literal["first", "best"]
PADDING = -1  # the document of a position that holds none
SAMPLE_FIELDS = ("tokens", "targets", "position_ids", "document_ids")
BATCH_FIELDS = (*SAMPLE_FIELDS, "cu_seqlens", "max_seqlen")


class DocumentPlan:
    """Which parts of which documents lie in which window; longer documents than a window are split into several parts.

    Documents end at ``ends``, ascending; the first begins at ``start``. Window ``i`` has the parts ``bounds[i]`` to
    ``bounds[i + 1]``: of each its position, its tokens, and whether its document goes on behind it.
    """

    def __init__(self, ends: Indices, start: int, length: int, fit: Fit) -> None:
        begins = np.concatenate([np.array([start], np.int64), ends])[: len(ends)]
        counts = -(-(ends - begins) // length)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + (np.arange(len(first)) - first) * length
        stops = np.minimum(starts + length, np.repeat(ends, counts))
        windows = fit_decreasing(stops - starts, length, fit)
        order = np.argsort(windows, kind="stable")
        self.starts, self.lengths = starts[order], (stops - starts)[order]
        self.goes_on = (stops < np.repeat(ends, counts))[order]
        parts = np.bincount(windows) if len(windows) else np.zeros(0, np.int64)
        self.bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts)])
        self.num_windows, self.num_tokens = len(parts), int(self.lengths.sum())

    def parts_of(self, windows: Indices) -> tuple[Indices, Indices]:
        """Return which parts some windows have, and how many each has."""
        counts = self.bounds[windows + 1] - self.bounds[windows]
        return spans(self.bounds[windows], counts), counts


@dataclass(frozen=True)
class DocumentReader(SamplesReader):
    """Windows of documents, with what attention needs to keep these apart."""

    stream: TokenStream  # where the tokens are
    plan: DocumentPlan  # which of them lie together
    length: int  # tokens of a window
    dtype: np.dtype[Any]  # int64 or int32, of tokens and targets
    labels: TokenStream | None = None  # where targets are that are not the tokens themselves
    what = "windows of documents"

    def make(self, request: Request, memory: Memory) -> SampleBatch:
        """Read and lay out all windows of a batch."""
        plan, windows, n = self.plan, request.indices, len(request)
        parts, counts = plan.parts_of(windows)
        firsts, lengths = np.cumsum(counts) - counts, plan.lengths[parts]
        row = np.repeat(np.arange(n), counts)
        fills = np.bincount(row, lengths, n).astype(np.int64)
        tokens, targets = self._read(parts, lengths)
        at = np.cumsum(lengths) - lengths
        inside = np.arange(len(tokens)) - np.repeat(at, lengths)
        documents = np.repeat(np.arange(len(parts)) - np.repeat(firsts, counts), lengths)
        # Of padding, its position: it is a sequence, too.
        behind = np.arange(self.length) - fills[:, None]
        used = behind < 0
        rows = (
            _laid(memory, "tokens", tokens, used, self.dtype, 0),
            _laid(memory, "targets", targets, used, self.dtype, IGNORED),
            _laid(memory, "position_ids", inside, used, np.dtype(np.int64), behind),
            _laid(memory, "document_ids", documents, used, np.dtype(np.int32), PADDING),
        )
        whole = batch_type(BATCH_FIELDS)(*rows, *self._bounds(at, row, fills))
        return SampleBatch(whole, n, batch_type(SAMPLE_FIELDS)(*rows))

    def _read(self, parts: Indices, lengths: Indices) -> tuple[Any, Indices]:
        """Return the tokens of some parts end to end, and what follows each in its document."""
        tokens = self._gather(self.stream, parts, lengths)
        labels = self.stream if self.labels is None else self.labels
        follow = tokens if labels is self.stream else self._gather(labels, parts, lengths)
        targets = np.full(len(tokens), IGNORED, np.int64)
        targets[:-1] = follow[1:]
        lasts = np.cumsum(lengths) - 1
        targets[lasts] = IGNORED
        goes_on = np.flatnonzero(self.plan.goes_on[parts])
        if len(goes_on):
            after = np.empty((len(goes_on), labels.dtype.itemsize), np.uint8)
            labels.gather((self.plan.starts[parts] + lengths)[goes_on], 1, after)
            targets[lasts[goes_on]] = after.view(labels.dtype)[:, 0]
        return tokens, targets

    def _gather(self, stream: TokenStream, parts: Indices, lengths: Indices) -> npt.NDArray[Any]:
        raw = np.empty(int(lengths.sum()) * stream.dtype.itemsize, np.uint8)
        stream.gather_ranges(self.plan.starts[parts], lengths, raw)
        return raw.view(stream.dtype)

    def _bounds(self, at: Indices, row: Indices, fills: Indices) -> tuple[torch.Tensor, int]:
        """Return where sequences begin in the flattened batch (padding is one), and the longest's length."""
        before = np.cumsum(fills) - fills
        begins = at - before[row] + row * self.length
        short = np.flatnonzero(fills < self.length)
        end = np.array([len(fills) * self.length])
        bounds = np.sort(np.concatenate([begins, short * self.length + fills[short], end]))
        longest = int(np.diff(bounds).max(initial=0))
        return torch.from_numpy(bounds.astype(np.int32)), longest


def _laid(
    memory: Memory,
    name: str,
    values: Any,
    used: npt.NDArray[np.bool_],
    dtype: np.dtype[Any],
    rest: int | Indices,
) -> torch.Tensor:
    """Return values laid into windows, ``(N, length)``, the rest of each filled up, by one value or ``(N, length)``."""
    lease = memory.take(name, used.size * dtype.itemsize)
    tensor = torch.from_numpy(lease).view(getattr(torch, dtype.name)).view(used.shape)
    array = tensor.numpy()
    if used.all():
        array.reshape(-1)[:] = values
    else:
        array[...] = rest
        array[used] = values
    return tensor


def fit_decreasing(lengths: Indices, size: int, fit: Fit) -> Indices:
    """Return the bin of each item, from 0 without a gap; a bin holds ``size``, and lengths lie in [1, size].

    By ``"best"`` an item goes to the fullest bin that has room, by ``"first"`` to the first one; of equal items the
    earlier one goes first.

    Example:
        >>> fit_decreasing(np.array([3, 5, 2, 4]), 7, "best").tolist()
        [1, 0, 0, 1]
    """
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    bins = np.empty(len(lengths), np.int64)
    # Room in each bin that is open; of 16 bits, which numpy sorts in linear time, where they do.
    room, done = np.empty(0, np.min_scalar_type(size)), 0
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        chosen = np.flatnonzero(room >= length)
        if fit == "best":
            chosen = chosen[np.argsort(room[chosen], kind="stable")]
        rest = count - int((room[chosen] // length).sum(dtype=np.int64))
        if rest > 0:
            num = -(-rest // (size // length))
            chosen = np.concatenate([chosen, np.arange(len(room), len(room) + num)])
            room = np.concatenate([room, np.full(num, size, room.dtype)])
        taken = _deal(room[chosen].astype(np.int64) // length, count)
        room[chosen] -= (taken * length).astype(room.dtype)
        bins[order[done : done + count]] = np.repeat(chosen, taken)
        done += count
    return bins


def _deal(room: Indices, count: int) -> Indices:
    """Return how many of ``count`` items each bin takes, if each in turn takes what it has room for."""
    before = np.cumsum(room) - room
    taken: Indices = np.clip(count - before, 0, room)
    return taken
