"""What is asked of a reader: the samples of a batch, and the memory that they go to."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from loaders import augment
from loaders.data.finder import Rows
from loaders.datasets.reading.known import known_of
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy.typing as npt

    from loaders.datasets.reading.readplan import ReadPlan

    UInt8Array = npt.NDArray[np.uint8]
T = TypeVar("T")
_NO_ROWS = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Memory(Protocol):
    """Where batches come from: reusable slots, or fresh memory."""

    def take(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` bytes of undefined content."""


class Records(Protocol):
    """Where records are: a store, or something in its place."""

    def records(self, field: str, rows: Rows) -> list[UInt8Array]:
        """Return the record of each sample as a view."""


class SourcePart(NamedTuple):
    """What of a batch is of one source of a mixture.

    Attributes:
        request: Its samples.
        rows: Their places in the batch.
        first: What is added to their ``sample_id``.
    """

    request: Request
    rows: npt.NDArray[np.int64]
    first: int


@dataclass(slots=True)
class Request:
    """The samples of one batch.

    Attributes:
        plan: How they are read.
        indices: int64 sample numbers as the user counts them; of a third-party dataset what the sampler gave.
        rows: The same in the store, where a view has other numbers.
        epoch: The epoch, for augmentation.
        draws: Of each sample a number that tells repeats of an index within the epoch apart, or None for none; not a
            count, and not ascending with position.
        seed: For augmentation.
        num_workers: How many threads share the work.
        known: What was made once for all parts, by a name; None where one of the samples was in the way.
        lock: While something is made; what is made may need something else.
        whole: The samples of several batches, of which these are some; None: nothing is shared with others.
        start: Where in the whole they begin.
        parts: The samples by their source, where a mixture reads its sources one by one.
    """

    plan: ReadPlan
    indices: Any
    rows: Rows = _NO_ROWS
    epoch: int = 0
    draws: npt.NDArray[np.int64] | None = None
    seed: int = 0
    num_workers: int = 1
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)
    whole: Request | None = field(default=None, compare=False, repr=False)
    start: int = 0
    parts: Sequence[SourcePart] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, first: int, last: int) -> Rows:
        """Return a range of the samples, as the store knows them."""
        return self.rows if last - first == len(self.indices) else self.rows[first:last]

    def split(self, sizes: Sequence[int]) -> list[Request]:
        """Return a request for each of several batches, of so many samples.

        What is made once for all parts is made once for all of these, too, where none is waited for: else the first
        batch would wait for the samples of all.
        """
        whole = self if self.plan.is_settled(self) else None
        return [
            Request(
                self.plan,
                self.indices[end - size : end],
                self.rows[end - size : end],
                self.epoch,
                None if self.draws is None else self.draws[end - size : end],
                self.seed,
                self.num_workers,
                whole=whole,
                start=end - size,
            )
            for size, end in zip(sizes, accumulate(sizes), strict=True)
        ]

    def shared(
        self, name: Hashable, make: Callable[[Request, int, int], T], first: int, last: int
    ) -> tuple[T, int]:
        """Return what is made once for all parts, as its calls take as long for few rows; and where in it ``first`` is.

        Where a sample is bad, each part makes its own. A single row is always made alone: that is how bad samples
        are found and replaced, which leaves the rest as it is known.
        """
        if last - first == 1:
            return make(self, first, last), 0
        if self.whole is not None:
            # Any error: no storage is waited for here, and the batch that has the sample meets it again.
            together = self.whole._known(name, make, Exception)
            if together is not None:
                return together, self.start + first
        known = self._known(name, make, LoadersError)
        return (make(self, first, last), 0) if known is None else (known, first)

    def _known(
        self, name: Hashable, make: Callable[[Request, int, int], T], caught: type[Exception]
    ) -> T | None:
        with self.lock:
            if name not in self.known:
                try:
                    self.known[name] = make(self, 0, len(self))
                except caught:
                    self.known[name] = None
            known: T | None = self.known[name]
            return known

    def records(self, source: Records, name: str, first: int, last: int) -> Sequence[UInt8Array]:
        """Return the records of a range of the samples, found for all parts at once."""

        def find(request: Request, first: int, last: int) -> list[UInt8Array]:
            return source.records(name, request.part(first, last))

        found, start = self.shared(("records", name), find, first, last)
        return found[start : start + last - first]

    def geometry(
        self, ops: Sequence[Any], view: int, sizes: npt.NDArray[np.int64], first: int, last: int
    ) -> augment.Geometry:
        """Draw the crops and flips of a range of the samples: the same for every field that has these sizes.

        Args:
            ops: What is drawn for.
            view: Its number: each view has draws of its own.
            sizes: int64 lengths of the spatial axes, a row for each sample of the range.
            first: Where the range begins.
            last: The sample behind its end.
        """
        draws = None if self.draws is None else self.draws[first:last]
        return augment.plan(
            ops,
            sizes,
            seed=self.seed,
            epoch=self.epoch,
            indices=self.indices[first:last],
            draws=draws,
            view=view,
            known=known_of(self, ops, view, first, last),
        )


class Reader(Protocol):
    """Reads one field. It is made once per dataset.

    For each batch it begins values over memory that it is given, and fills ranges of rows, on any thread.

    Attributes:
        names: What it contributes to a sample: the field's name, or one name per view.
        min_rows: How many rows are worth a thread.
        prefetched_field: The field of whose records storage may read all bytes in advance, or None.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def min_rows(self) -> int: ...

    @property
    def prefetched_field(self) -> str | None: ...

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return the values of a batch, one per name, undefined as yet."""

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Fill in rows ``first`` to ``last``."""

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the values in the form that the user gets."""


@dataclass(frozen=True, slots=True)
class ReaderAround:
    """A reader of the same field as another one, which does part of the work.

    Attributes:
        reader: The other.
    """

    reader: Reader

    @property
    def names(self) -> tuple[str, ...]:
        return self.reader.names

    @property
    def min_rows(self) -> int:
        return self.reader.min_rows

    @property
    def prefetched_field(self) -> str | None:
        return self.reader.prefetched_field
