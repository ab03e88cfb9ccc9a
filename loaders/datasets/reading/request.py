"""A batch to be read: its samples, the plan by which they are read, its readers; and which samples were replaced."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from loaders.data.finder import Rows
from loaders.errors import LoadersError, SampleError, StaleDatasetError
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.data.view import View
    from loaders.datasets.reading.samples import Form
    from loaders.datasets.reading.transforming import Transforming

    UInt8Array = npt.NDArray[np.uint8]
    Indices = npt.NDArray[np.int64]
T = TypeVar("T")
logger = logging.getLogger(__name__)
_counting = ForkLock()  # one for all: few are replaced, and datasets are copied and pickled
# Of samples that are replaced, and how many may be in a small dataset.
_MAX_SHARE, _MAX_FEW = 0.01, 10
ALL_ROWS = 1 << 30  # ``min_rows`` of what one thread reads
_NO_ROWS = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(slots=True)
class Request:
    """The samples of one batch."""

    plan: ReadPlan  # how they are read
    # int64 sample numbers as the user counts them; of a third-party dataset what the sampler gave.
    indices: Any
    rows: Rows = _NO_ROWS  # the same in the store, where a view has other numbers
    epoch: int = 0  # the epoch, for augmentation
    # Occurrence of each sample, which distinguishes repeats of an index within an epoch; neither a count nor
    # ascending. None: no index repeats.
    draws: npt.NDArray[np.int64] | None = None
    seed: int = 0  # for augmentation
    num_workers: int = 1  # how many threads share the work
    # Results shared by all parts, by name; None where a bad sample prevented it.
    results: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    # Held while something is made; reentrant, as that may need something else that is shared.
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)
    # The request of all batches of a chunk, whose work these share; None: nothing is shared with other batches.
    whole: Request | None = field(default=None, compare=False, repr=False)
    start: int = 0  # where in the whole they begin
    first: int = 0  # the number that a mixture gives to sample 0

    @property
    def numbers(self) -> Any:
        """The samples as a mixture counts them, which ``sample_id`` and all that is drawn go by."""
        return self.indices + self.first if self.first else self.indices

    def __len__(self) -> int:
        return len(self.indices)

    def rows_of(self, first: int, last: int) -> Rows:
        """Return a range of the samples, as the store knows them."""
        return self.rows if last - first == len(self.indices) else self.rows[first:last]

    def split(self, num_batches: int) -> list[Request]:
        """Return a request for each of several batches of one size.

        What is made once for all parts of a batch is made once for all of these batches, unless a sample must be
        waited for: else the first batch would wait for the samples of all.
        """
        whole = self if self.plan.is_settled(self) else None
        size = len(self) // num_batches
        starts = range(0, len(self), size)
        return [self.select(slice(start, start + size), whole, start) for start in starts]

    def select(
        self, part: slice | Indices, whole: Request | None = None, start: int = 0
    ) -> Request:
        """Return the request of some of the samples."""
        return Request(
            self.plan,
            self.indices[part],
            self.rows[part],
            self.epoch,
            self.draws_of(part),
            self.seed,
            self.num_workers,
            whole=whole,
            start=start,
            first=self.first,
        )

    def draws_of(self, part: slice | Indices) -> Indices | None:
        """Return the draws of some of the samples; None: no index repeats."""
        return None if self.draws is None else self.draws[part]

    def shared(
        self, name: Hashable, make: Callable[[Request, int, int], T], first: int, last: int
    ) -> tuple[T, int]:
        """Return what ``make`` makes once for all parts of the batch, or of the chunk, and where ``first`` lies in it.

        Once, as its calls take as long for few rows as for many. If a sample is bad, each part makes its own. A single
        row is always made alone: so a bad sample is found and replaced, and what is known of the others stays.
        """
        if last - first == 1:
            return make(self, first, last), 0
        if self.whole is not None:
            # Any error: no storage is waited for here, and the batch that has the sample meets it again.
            together = self.whole._result(name, make, Exception)
            if together is not None:
                return together, self.start + first
        result = self._result(name, make, LoadersError)
        return (make(self, first, last), 0) if result is None else (result, first)

    def shared_rows(
        self,
        name: Hashable,
        make: Callable[[Request, int, int], Sequence[T]],
        first: int,
        last: int,
    ) -> Sequence[T]:
        """Return for a range of the samples what ``make`` makes of each, once for all parts as ``shared``."""
        made, start = self.shared(name, make, first, last)
        return made[start : start + last - first]

    def _result(
        self, name: Hashable, make: Callable[[Request, int, int], T], caught: type[Exception]
    ) -> T | None:
        with self.lock:
            if name not in self.results:
                try:
                    self.results[name] = make(self, 0, len(self))
                except caught:
                    self.results[name] = None
            result: T | None = self.results[name]
            return result

    def records(
        self, read: Callable[[str, Rows], list[UInt8Array]], name: str, first: int, last: int
    ) -> Sequence[UInt8Array]:
        """Return the records of a range of the samples; ``read`` (``store.records``) is asked once for all parts."""

        def find(request: Request, first: int, last: int) -> list[UInt8Array]:
            return read(name, request.rows_of(first, last))

        return self.shared_rows(("records", name), find, first, last)


class Reader(ABC):
    """Reads one field. It is made once per dataset.

    For each batch it begins values over memory that it is given, and fills ranges of rows, on any thread.
    """

    name: str  # of the field
    what = ""  # is read where there is no view, for reports

    @property
    def min_rows(self) -> int:
        """How many rows are worth a thread."""
        return ALL_ROWS

    @property
    def nbytes(self) -> int | None:
        """Of each row that is copied as it is; None: it is decoded."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """What it contributes to a sample: the field's name, or one name per view."""
        return (self.name,)

    @property
    def prefetched_field(self) -> str | None:
        """The field of whose records storage may read all bytes in advance, or None."""
        return self.name

    @abstractmethod
    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return the values of a batch, one per name, undefined as yet."""

    @abstractmethod
    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Fill in rows ``first`` to ``last``."""

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the values in the form that the user gets."""
        return values


class BadSamples:
    """The samples that were replaced so far, in any number of epochs."""

    def __init__(self) -> None:
        self.num_replaced = 0  # how often one was
        self.ends: Sequence[int] = ()  # of the sources of a mixture that are read as one
        self._bad: dict[range, set[int]] = {}  # by those that may stand for them

    def others(self, index: int, num_samples: int) -> range:
        """Return the samples of which one may stand for a sample: all, or those of its source."""
        number = bisect_right(self.ends, index)
        first = self.ends[number - 1] if number else 0
        return range(first, self.ends[number] if self.ends else num_samples)

    def note(self, error: SampleError, others: range) -> None:
        """Note that a sample is replaced by one of some; an error if too many were, or the dataset was."""
        with _counting.plain:
            self.num_replaced += 1
        if isinstance(error.__cause__, StaleDatasetError):
            raise error  # every sample may be another one now: replacing this one helps nothing
        bad = self._bad.setdefault(others, set())
        if error.index not in bad:
            bad.add(error.index)
            logger.warning("replaced: %s", error)
        if (num := len(bad)) > max(_MAX_FEW, _MAX_SHARE * len(others)):
            raise LoadersError(
                f"{num} samples had to be replaced, more than 1 %; the last one: {error}"
            )


@dataclass(frozen=True)
class ReadPlan:
    """How the samples of a view become batches. It never changes; what it counts is beside it."""

    # The samples, where they are of packed columns: one that cannot be read is named, or replaced.
    view: View | None
    # One for each field, or a single one that returns samples.
    readers: tuple[Reader, ...]
    # By field name, how arrays of varying length that a transform made are joined.
    forms: Mapping[str, Form] = field(default_factory=dict)
    transforming: Transforming | None = None  # the user's function of samples
    # Whether another sample stands for one that cannot be read; else it is an error.
    is_replacing: bool = False
    bad: BadSamples = field(default_factory=BadSamples)  # the samples that were replaced
    # Makes of a batch, and the request it came of, what a device finishes; None leaves the batch.
    unfinished: Callable[[Any, Request], Any] | None = None
    fields: tuple[str, ...] = ()  # names of the fields that are read of the view

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the values of a batch, in order."""
        return tuple(name for reader in self.readers for name in reader.names)

    @cached_property
    def returns_samples(self) -> bool:
        """Whether the reader returns samples, and not the values of fields."""
        return bool(self.readers) and not self.names

    @cached_property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample whose fields are all copied as they are, else None."""
        copied: list[Any] = [reader.nbytes for reader in self.readers]
        return None if None in copied or self.transforming is not None else sum(copied)

    # -- sharing the work --------------------------------------------------------------------------

    def part_rows(self, num_samples: int, num_workers: int) -> int:
        """Return how many samples are worth a part of a batch."""
        if num_workers == 1:
            return num_samples
        share = -(-num_samples // num_workers)
        half = -(-share // 2)
        # To begin a part holds the GIL as long as two JPEGs do, which matters where many threads want it.
        is_large = half >= num_workers // 2
        # Copying takes each worker equally long. Decoding does not: of two parts a worker, the last ones end close
        # together, and the next batch is already begun.
        return max(self.min_rows, half if self.sample_nbytes is None and is_large else share)

    @cached_property
    def min_rows(self) -> int:
        """How many samples are worth a thread."""
        return min((reader.min_rows for reader in self.readers), default=ALL_ROWS)

    # -- storage -----------------------------------------------------------------------------------

    @cached_property
    def _prefetched(self) -> list[str]:
        named = (reader.prefetched_field for reader in self.readers)
        return [name for name in named if name is not None]

    def needs_prefetch(self, request: Request) -> bool:
        """Return True if some of the samples were not prefetched yet."""
        if self.view is None:
            return False
        store, rows = self.view.store, request.rows
        return any(store.field(name).needs_prefetch(rows) for name in self._prefetched)

    def prefetch(self, request: Request) -> None:
        """Have storage read the samples, without waiting for them."""
        for name in self._prefetched:
            self.samples.store.field(name).prefetch(request.rows)

    def is_settled(self, request: Request) -> bool:
        """Return True if the samples stay in memory and are verified: reading them does not wait."""
        store, rows = self.samples.store, request.rows
        return all(store.is_settled(name, rows) for name in self.fields)

    @property
    def samples(self) -> View:
        """The view, where there is one."""
        assert self.view is not None
        return self.view


class SamplesReader(Reader):
    """Reads whole samples instead of the values of a field, by one call on one thread."""

    names = ()
    prefetched_field = None

    @abstractmethod
    def make(self, request: Request, memory: Memory) -> Any:
        """Return the samples."""

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [None, memory]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        values[0] = self.make(request, values[1])

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the samples, and keep none: the traceback of an error among them may hold the job."""
        made, values[0] = values[0], None
        return [made]
