"""``loaders.profile``: some steps under the clock: data wait against compute, and what the workers do.

All that is seen goes into one list of spans, of which the report, its verdict and the trace are made. It is filled
while a profile is on: a loader then lets it time its iterators and its workers' jobs. Off, a loader asks once an
epoch whether there is one, and nothing between batches.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch.utils.data import IterableDataset

from loaders.checks import as_path, shown, whole_number
from loaders.errors import LoadersError
from loaders.system.limits import usable_cores
from loaders.system.publish import publish_bytes
from loaders.text import in_seconds, number
from loaders.verdict import SMALL_STALL, Facts, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.workers import Job

logger = logging.getLogger(__name__)
_WAIT, _COMPUTE = "wait for data", "compute"
_MAKE, _COLLATE = "read and decode", "collate and pin"
_DEFAULT_STEPS = 100
_WAITING = 0.5  # of the time of their stages, for workers to count as waiting


class TimedSpan(NamedTuple):
    """Something that took time: what, on which thread, from, to."""

    stage: str
    thread: int
    began_s: float
    ended_s: float
    cpu_s: float = 0.0  # for how long the thread was on a core; of workers alone
    num_batches: int = 0  # how many batches came of it


@dataclass(slots=True)
class ProfileReport:
    """What some steps of training spent their time on."""

    # All that was timed, in the order in which it ended.
    spans: list[TimedSpan] = field(default_factory=list)
    batch_size: int = 1  # samples of a batch
    num_workers: int = 0  # of the loader
    has_read: bool = False  # blocks of a disk were read meanwhile
    gil_share: float = 0.0  # of the steps' time: waits for the GIL, as ``LoaderStats`` has it
    is_free: bool = False  # one batch was served again and again

    @property
    def wait_s(self) -> list[float]:
        """How long each step waited for its batch."""
        return self._took(_WAIT)

    @property
    def compute_s(self) -> list[float]:
        """The time from each batch to asking for the next; none of the last, where no batch followed."""
        return self._took(_COMPUTE)

    def _took(self, stage: str) -> list[float]:
        return [span.ended_s - span.began_s for span in tuple(self.spans) if span.stage == stage]

    @property
    def stage_s(self) -> dict[str, float]:
        """Seconds of work on worker threads (or inline), by stage, all threads together."""
        names = dict.fromkeys(span.stage for span in self._of_workers)
        return {name: sum(self._took(name)) for name in names}

    @property
    def _of_workers(self) -> list[TimedSpan]:
        return [span for span in tuple(self.spans) if span.stage not in (_WAIT, _COMPUTE)]

    @property
    def num_batches(self) -> int:
        """Batches that these stages made; more than steps, where some were prefetched."""
        return sum(span.num_batches for span in self._of_workers)

    @property
    def num_steps(self) -> int:
        """Steps that were timed."""
        return len(self.wait_s)

    @property
    def data_share(self) -> float:
        """Share of the time that was waited for data; the first batch, which is late in any run, left out."""
        waits, computes = _later(self.wait_s), _later(self.compute_s)
        return sum(waits) / max(1e-12, sum(waits) + sum(computes))

    @property
    def verdict(self) -> str:
        """What bounds the run, and a line ``Do:``, judged as the bench does by what was seen; empty of no step."""
        if not self.compute_s:
            return ""
        share, spans = self.data_share, self._of_workers
        if self.is_free:
            step_s = statistics.median(self.compute_s)
            per_s = number(self.batch_size / step_s)
            said = f"training alone takes {in_seconds(step_s)} per step, {per_s} samples/s"
            return f"verdict: {said}.\nDo: profile without free=True: the additional time is waiting for data"
        total_s, cpu_s = sum(self.stage_s.values()), sum(span.cpu_s for span in spans)
        wait_s = total_s - cpu_s
        if share >= SMALL_STALL and wait_s >= _WAITING * total_s and not self.has_read:
            said = f"Loading is the limit: the step waits {share:.0%} of the time, its workers not for a disk"
            return f"verdict: {said}.\nDo: python -m loaders.bench DATASET, which says what they wait for"
        num_samples = max(1, self.num_batches) * self.batch_size
        # Means, not medians: steps that save or evaluate take their time of the run, too.
        step_s = statistics.fmean(_later(self.compute_s))
        both_s = step_s + statistics.fmean(_later(self.wait_s))
        facts = Facts(
            cores=usable_cores(),
            num_workers=self.num_workers,
            backend="",  # time with the GIL was not measured
            rate=self.batch_size / both_s,
            cpu_s=cpu_s / num_samples,
            wait_s=wait_s / num_samples if self.has_read else 0.0,
            stages=self.stage_s,
            step_s=step_s / self.batch_size,
            stall_share=share,
            gil_share=self.gil_share,
        )
        return str(judge(facts))

    def __str__(self) -> str:
        if not self.num_steps:
            return "no step was profiled"
        lines = [f"{self.num_steps} steps of one batch, again and again"]
        if not self.is_free:
            lines = [
                f"{self.num_steps} steps: {self.data_share:.1%} of the time waiting for data",
                f"  first batch after {in_seconds(self.wait_s[0])}",
                f"  {_WAIT:18} {_spread(_later(self.wait_s))}",
            ]
        lines.append(f"  {_COMPUTE:18} {_spread(self.compute_s)}")
        lines += [
            f"  {name:18} {in_seconds(total / max(1, self.num_batches))} per batch, all threads together"
            for name, total in self.stage_s.items()
        ]
        return "\n".join([*lines, *self.verdict.splitlines()])


def _later(values: list[float]) -> list[float]:
    return values[1:] or values


def _spread(values: list[float]) -> str:
    values = values or [math.nan]
    worst = sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
    return f"median {in_seconds(statistics.median(values))}, p99 {in_seconds(worst)} per step"


class profile:
    """Time the next steps of a loader: ``with loaders.profile(loader, steps=100) as p: train(); print(p.report)``.

    Args:
        loader: A ``loaders.DataLoader``, over any dataset. Stages of the workers are timed for this package's datasets.
        steps: Stop after so many; the rest of the run is as fast as ever.
        trace: Write a trace for ui.perfetto.dev or chrome://tracing here when it stops.
        tensorboard: A folder, or a ``SummaryWriter``: write the figures of each step there when it stops.
        on_stop: Called with the report when it stops.
        clock: Seconds that only grow.
        free: As if data were free: until the ``with`` ends, serve one batch again and again, as often as an epoch has
            batches (of a stream, ``steps``). The report says what training alone takes; weights that come of it are of
            no use. The loader stays where it stands.

    On a GPU, *compute* is the time that the trainer's thread takes, which is the GPU's only where the step
    waits for it (``loss.item()``); data wait is exact either way.

    ``LOADERS_PROFILE=1`` (or a number of steps) does this to the first loader of a run that is iterated,
    logs the report, and writes ``loaders-profile-PID.json`` to ``LOADERS_PROFILE_DIR`` (default: here).

    Raises:
        TypeError: ``loader`` is not a ``loaders.DataLoader``, or another argument has the wrong type.
        ValueError: The loader is being profiled already, or ``steps`` is below 1.
        ModuleNotFoundError: TensorBoard was asked for and is not installed.
    """

    def __init__(
        self,
        loader: Any,
        steps: int = _DEFAULT_STEPS,
        *,
        trace: Path | str | None = None,
        tensorboard: Any = None,
        on_stop: Callable[[ProfileReport], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        free: bool = False,
    ) -> None:
        if not hasattr(type(loader), "_profile"):
            what = "loader must be a loaders.DataLoader (which serves any dataset)"
            raise TypeError(f"{what}, got {shown(loader)}")
        self.steps, self.clock = whole_number("steps", steps, at_least=1), clock
        self.report = ProfileReport([], loader.batch_size or 1, loader.num_workers, is_free=free)
        self.spans = self.report.spans
        self._loader, self._on_stop, self._free = loader, on_stop, free
        self._trace = None if trace is None else as_path("trace", trace, "a file to write")
        self._writer = tensorboard
        if tensorboard is not None and not hasattr(tensorboard, "add_scalar"):
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(tensorboard))
        self._is_on = False
        self._num_left, self._num_read = self.steps, 0
        self._thread = threading.get_ident()
        self._step_began: float | None = None  # since when the step computes
        self._kept: list[Any] = []  # the batch that is served again and again

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._let_go()

    def start(self) -> None:
        """Begin; the next iterator of the loader is timed."""
        if self._loader._profile is not None:
            raise ValueError("this loader is being profiled already")
        self._loader._profile, self._is_on, self._num_read = self, True, _blocks_read()

    def stop(self) -> None:
        """End, write what was asked for, and leave the loader as it was; may be called twice."""
        if not self._is_on:
            return
        self._is_on = False
        self.report.gil_share = self._loader.stats().gil_share
        self.report.has_read = _blocks_read() > self._num_read
        if not self._free:  # else the rest of the loop would train on real batches
            self._let_go()
        self._step_began = None
        atexit.unregister(self.stop)  # it would keep the loader
        if self._on_stop is not None:
            self._on_stop(self.report)
        if (writer := self._writer) is not None:
            report = self.report
            for name, values in (("wait_ms", report.wait_s), ("compute_ms", report.compute_s)):
                for step, value in enumerate(values):
                    writer.add_scalar(f"loaders/{name}", value * 1e3, step)
            writer.add_scalar("loaders/data_share", report.data_share, report.num_steps)
            writer.flush()
        if self._trace is not None:
            write_trace(self.spans, self._trace, self._thread)

    def _let_go(self) -> None:
        self._kept.clear()
        if self._loader._profile is self:
            self._loader._profile = None

    # -- any thread --------------------------------------------------------------------------------

    def watched(self, job: Job) -> Job:
        """Return a job whose parts are timed."""
        return _TimedJob(job, self)

    def call(
        self, stage: str, work: Callable[..., Any], *arguments: Any, makes: bool = False
    ) -> Any:
        """Do some work, and note it; what ``makes`` returns a list of batches."""
        began, cpu_s = self.clock(), time.thread_time()
        made = work(*arguments)
        if self._is_on:
            cpu_s, num = time.thread_time() - cpu_s, len(made) if makes else 0
            self.spans.append(
                TimedSpan(stage, threading.get_ident(), began, self.clock(), cpu_s, num)
            )
        return made

    # -- the trainer's thread ----------------------------------------------------------------------

    def timed(self, begin: Callable[..., Any], *arguments: Any) -> Any:
        """Return an iterator of an epoch whose batches are waited for under the clock."""
        self._step_began = None  # of an epoch that was left: what came since may be anything
        return _Timed(self._again(begin, *arguments) if self._free else begin(*arguments), self)

    def _again(self, begin: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Yield one batch as often as an epoch has batches; the loader itself stays where it stands."""
        if not self._kept:
            self._kept.append(_first_of(self._loader, begin(*arguments)))
        try:
            num = len(self._loader)
        except TypeError:  # a stream
            num = self.steps
        for _ in range(num):
            yield from self._kept  # of none when the profile has ended

    def next(self, batches: Iterator[Any]) -> Any:
        """Take the next batch, and keep the time."""
        if not self._is_on:
            return next(batches)
        began = self.clock()
        if self._step_began is not None:
            self.spans.append(TimedSpan(_COMPUTE, self._thread, self._step_began, began))
            self._step_began = None
        if not self._num_left:
            try:
                self.stop()
            except OSError as error:  # training goes on
                logger.warning("the profile cannot be written: %s", error)
            return next(batches)
        batch = next(batches)
        self._num_left -= 1
        self._thread, self._step_began = threading.get_ident(), self.clock()
        self.spans.append(TimedSpan(_WAIT, self._thread, began, self._step_began))
        return batch


def _first_of(loader: Any, batches: Any) -> Any:
    """Take a batch, end its iterator, and put the loader back to where it stood."""
    state = None
    if not isinstance(loader.dataset, IterableDataset):
        with suppress(LoadersError):  # in an order that no state can tell
            state = loader.state_dict()
    batch = next(batches)
    getattr(batches, "close", lambda: None)()
    if state is not None:
        loader.load_state_dict(state)
    return batch


def _blocks_read() -> int:
    """Return how many blocks of a disk this process has read so far; 0 where the system does not say."""
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    return 0


class _Timed:
    """An epoch's iterator under the clock."""

    def __init__(self, batches: Any, profile: profile) -> None:
        self._batches, self._profile = batches, profile

    def __iter__(self) -> _Timed:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        return self._profile.next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class _TimedJob:
    """A job whose parts are noted as they end."""

    def __init__(self, job: Job, profile: profile) -> None:
        self._job, self._call = job, profile.call
        self.num_parts, self.describe = job.num_parts, job.describe

    @property
    def needs_prefetch(self) -> bool:
        return self._job.needs_prefetch

    def prefetch(self) -> None:
        self._call(_MAKE, self._job.prefetch)

    def run(self, part: int) -> None:
        self._call(_MAKE, self._job.run, part)

    def finish(self) -> Any:
        return self._call(_COLLATE, self._job.finish, makes=True)


def write_trace(spans: list[TimedSpan], path: Path, trainer: int) -> None:
    """Write spans as a Chrome trace, which ui.perfetto.dev and chrome://tracing show.

    Threads are numbered: viewers read 32 bits of a thread's id, and Python's have more.
    """
    pid = os.getpid()
    numbers = {trainer: 0}
    for span in spans:
        numbers.setdefault(span.thread, len(numbers))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": number,
         "args": {"name": f"worker {number}" if number else "trainer"}}
        for number in numbers.values()
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "loaders", "name": span.stage, "pid": pid, "tid": numbers[span.thread],
         "ts": span.began_s * 1e6, "dur": (span.ended_s - span.began_s) * 1e6}
        for span in spans
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_bytes(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode())


_has_begun: set[int] = set()  # processes whose first loader was iterated


def profile_from_environment(loader: Any) -> None:
    """Profile a loader if ``LOADERS_PROFILE`` asks for it; the first of a process only, which the report says."""
    wanted, pid = os.environ.get("LOADERS_PROFILE", ""), os.getpid()
    if wanted in ("", "0"):
        return
    if not wanted.isdigit():
        raise ValueError(f"LOADERS_PROFILE is 1, or a number of steps, got {wanted!r}")
    if pid in _has_begun:
        return
    _has_begun.add(pid)
    folder = Path(os.environ.get("LOADERS_PROFILE_DIR") or ".")
    path = folder / f"loaders-profile-{pid}.json"

    def tell(report: ProfileReport) -> None:
        if report.num_steps:
            which = "the first loader that was iterated; loaders.profile(loader) times another"
            logger.warning("LOADERS_PROFILE: %s\n%r, %s", report, loader, which)
            logger.warning("LOADERS_PROFILE: trace: %s (open it in ui.perfetto.dev)", path)

    steps = int(wanted) if int(wanted) > 1 else _DEFAULT_STEPS
    found = profile(loader, steps, trace=path, on_stop=tell)
    found.start()
    atexit.register(found.stop)
