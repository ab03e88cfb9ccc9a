"""``loaders.profile``: a bounded number of steps under the clock: data wait against compute, and what the workers do.

Off, it costs nothing: no line of the loader asks whether it is on. On, the loader's class is replaced by
a subclass whose iterator keeps the time, and after so many steps the class is put back.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import statistics
import threading
import time
import weakref
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from loaders.backends.maker import Maker
from loaders.checks import as_path, shown, whole_number
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loaders.workers import Job

logger = logging.getLogger(__name__)
_WAIT, _COMPUTE = "wait for data", "compute"
_MAKE, _COLLATE = "read and decode", "collate and pin"
_DEFAULT_STEPS = 100


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time: from, to, on which thread."""

    name: str
    began_s: float
    ended_s: float
    thread: int


@dataclass(slots=True)
class ProfileReport:
    """What some steps of training spent their time on.

    Attributes:
        wait_s: How long each step waited for its batch.
        compute_s: The time from each batch to asking for the next; None of the last, where no batch followed.
        stage_s: Seconds of work on worker threads (or inline), by stage, all threads together.
        num_batches: Batches that these stages made; more than steps, where some were prefetched.
    """

    wait_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)
    num_batches: int = 0

    @property
    def num_steps(self) -> int:
        """Steps that were timed."""
        return len(self.wait_s)

    @property
    def data_share(self) -> float:
        """Share of the time that was waited for data; the first batch, which is late in any run, left out."""
        waits, computes = self.wait_s[1:] or self.wait_s, self.compute_s[1:] or self.compute_s
        return sum(waits) / max(1e-12, sum(waits) + sum(computes))

    def __str__(self) -> str:
        if not self.wait_s:
            return "no step was profiled"
        lines = [
            f"{self.num_steps} steps: {self.data_share:.1%} of the time waiting for data",
            f"  first batch after {_ms(self.wait_s[0])}",
            f"  {_WAIT:18} {_spread(self.wait_s[1:] or self.wait_s)}",
            f"  {_COMPUTE:18} {_spread(self.compute_s)}",
        ]
        per_batch = max(1, self.num_batches)
        lines += [
            f"  {name:18} {_ms(total / per_batch)} per batch, all threads together"
            for name, total in self.stage_s.items()
        ]
        return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    worst = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"median {_ms(statistics.median(ordered))}, p99 {_ms(worst)} per step"


class profile:
    """Time the next steps of a loader: ``with loaders.profile(loader, steps=100) as p: train(); print(p.report)``.

    Args:
        loader: Of loaders or torch; of loaders, the workers' stages are timed, too.
        steps: Stop after so many; the rest of the run is as fast as ever.
        trace: Write a trace for ui.perfetto.dev or chrome://tracing here when it stops.
        tensorboard: A folder, or a ``SummaryWriter``: write the figures of each step there when it stops.
        told: Called with the report when it stops.
        clock: Seconds that only grow.

    Under ``torch.profiler`` the same stretches appear as ``loaders: wait for data`` and ``loaders: compute``.
    On a GPU, *compute* is the time that the trainer's thread takes, which is the GPU's only where the step
    waits for it (``loss.item()``); data wait is exact either way.

    ``LOADERS_PROFILE=1`` (or a number of steps) does this to the first loader of a run that is iterated,
    logs the report, and writes ``loaders-profile-PID.json`` to ``LOADERS_PROFILE_DIR`` (default: here).

    Raises:
        LoadersError: TensorBoard was asked for and is not installed.
    """

    def __init__(
        self,
        loader: Any,
        steps: int = _DEFAULT_STEPS,
        *,
        trace: Path | str | None = None,
        tensorboard: Any = None,
        told: Callable[[ProfileReport], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise TypeError(f"loader must be a DataLoader, ours or torch's, got {shown(loader)}")
        steps = whole_number("steps", steps, at_least=1)
        self.report = ProfileReport()
        self.spans: list[Span] = []
        self.steps, self.clock = steps, clock
        self._loader, self._told = loader, told
        self._trace = None if trace is None else as_path("trace", trace, "a file to write")
        self._writer = _writer(tensorboard)
        self._kind = type(loader)
        self._is_on = False
        self._asked_s: float | None = None  # when the trainer got its last batch
        self._annotation: Any = None
        self._thread = threading.get_ident()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; the next iterator of the loader is timed."""
        if hasattr(self._kind, "_profile"):
            raise ValueError("this loader is being profiled already")
        self._loader.__class__ = _profiled(self._kind, self)
        self._is_on = True

    def stop(self) -> None:
        """End, write what was asked for, and leave the loader as it was; may be called twice."""
        if not self._is_on:
            return
        self._is_on = False
        self._loader.__class__ = self._kind
        self.leave_step()
        self._sum_up()
        atexit.unregister(self.stop)  # it would keep the loader
        if self._told is not None:
            self._told(self.report)
        if self._writer is not None:
            self._write_scalars()
        if self._trace is not None:
            write_trace(self.spans, self._trace, self._thread)

    def _stop_in_step(self) -> None:
        try:
            self.stop()
        except OSError as error:  # training goes on
            logger.warning("the profile cannot be written: %s", error)

    def add(self, name: str, began_s: float) -> None:
        """Note that something ended now; any thread may."""
        if self._is_on:
            self.spans.append(Span(name, began_s, self.clock(), threading.get_ident()))

    # -- the trainer's thread ----------------------------------------------------------------------

    def wait(self, batches: Iterator[Any]) -> Any:
        """Take the next batch, and keep the time."""
        if not self._is_on:
            return next(batches)
        began = self.clock()
        self._end_compute(began)
        if len(self.report.wait_s) >= self.steps:
            self._stop_in_step()
            return next(batches)
        with _annotated(_WAIT):
            batch = next(batches)
        ended = self.clock()
        self._thread = threading.get_ident()
        self.spans.append(Span(_WAIT, began, ended, self._thread))
        self.report.wait_s.append(ended - began)
        self._annotation = _annotated(_COMPUTE)
        self._annotation.__enter__()
        self._asked_s = ended
        return batch

    def _end_compute(self, now: float) -> None:
        if self._asked_s is None:
            return
        self.report.compute_s.append(now - self._asked_s)
        self.spans.append(Span(_COMPUTE, self._asked_s, now, self._thread))
        self.leave_step()

    def leave_step(self) -> None:
        """Forget a step that was not ended by asking for a batch: what came since may be anything."""
        if self._asked_s is not None:
            self._annotation.__exit__(None, None, None)
            self._asked_s = self._annotation = None

    # -- what it comes to --------------------------------------------------------------------------

    def _sum_up(self) -> None:
        totals: dict[str, float] = defaultdict(float)
        for span in list(self.spans):
            if span.name not in (_WAIT, _COMPUTE):
                totals[span.name] += span.ended_s - span.began_s
                self.report.num_batches += span.name == _COLLATE
        self.report.stage_s = dict(totals)

    def _write_scalars(self) -> None:
        for name, values in (
            ("wait_ms", self.report.wait_s),
            ("compute_ms", self.report.compute_s),
        ):
            for step, value in enumerate(values):
                self._writer.add_scalar(f"loaders/{name}", value * 1e3, step)
        self._writer.add_scalar(
            "loaders/data_share", self.report.data_share, self.report.num_steps
        )
        self._writer.flush()


def _profiled(kind: Any, watcher: profile) -> Any:
    """Return a class like a loader's, whose iterators are timed; its layout is the same, so it can take its place."""

    class Profiled(kind):  # type: ignore[misc]
        _profile = watcher

        def __iter__(self) -> Any:
            return _Timed(super().__iter__(), watcher)

        def __reduce_ex__(self, protocol: Any) -> Any:
            """Pickle and copy what it is without the clock."""
            _, _, *state = super().__reduce_ex__(protocol)
            return object.__new__, (kind,), *state

        def _maker(self) -> Maker:
            return _TimedMaker(**_values(super()._maker()), profile=watcher)

    Profiled.__name__ = kind.__name__
    return Profiled


def _values(maker: Maker) -> dict[str, Any]:
    return {f.name: getattr(maker, f.name) for f in fields(Maker) if f.init}


def _annotated(name: str) -> Any:
    """Name what follows in torch's profiler, if that is running: 5 us, also where no profiler runs."""
    if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    return torch.profiler.record_function(f"loaders: {name}")


class _Timed:
    """An epoch's iterator whose batches are waited for under the clock."""

    def __init__(self, batches: Any, profile: profile) -> None:
        self._batches, self._profile = batches, profile
        profile.leave_step()

    def __iter__(self) -> _Timed:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        return self._profile.wait(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


@dataclass(slots=True)
class _TimedMaker(Maker):
    """Makes batches whose work is noted."""

    profile: profile | None = None

    def for_child(self) -> Maker:  # whose clock and spans would be its own
        return Maker(**_values(self)).for_child()

    def job(self, batches: Sequence[Any]) -> Job:
        assert self.profile is not None
        job = Maker.job(self, batches)
        return _TimedBatch(job, self.profile) if len(batches) == 1 else job

    def make_group(self, group: Sequence[Any]) -> list[Any] | None:
        assert self.profile is not None
        began = self.profile.clock()
        read = self.dataset.read_group(group, self.slots)
        if read is None:  # one by one, as jobs
            return None
        self.profile.add(_MAKE, began)
        batches = []
        for batch in read:
            began = self.profile.clock()
            batches.append(self.pinned(batch))
            self.profile.add(_COLLATE, began)
        return batches


class _TimedBatch:
    """One batch, whose parts are noted as they end."""

    def __init__(self, job: Any, profile: profile) -> None:
        self._job, self._profile = job, profile
        self.num_parts, self.describe = job.num_parts, job.describe

    @property
    def needs_prefetch(self) -> bool:
        return bool(self._job.needs_prefetch)

    def prefetch(self) -> None:
        began = self._profile.clock()
        self._job.prefetch()
        self._profile.add(_MAKE, began)

    def run(self, part: int) -> None:
        began = self._profile.clock()
        self._job.run(part)
        self._profile.add(_MAKE, began)

    def finish(self) -> list[Any]:
        began = self._profile.clock()
        made: list[Any] = self._job.finish()
        self._profile.add(_COLLATE, began)
        return made


def write_trace(spans: list[Span], path: Path, trainer: int) -> None:
    """Write spans as a Chrome trace, which ui.perfetto.dev and chrome://tracing show.

    Threads are numbered: viewers read 32 bits of a thread's id, and Python's have more.
    """
    pid = os.getpid()
    numbers: dict[int, int] = {trainer: 0}
    for span in spans:
        numbers.setdefault(span.thread, len(numbers))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": number,
         "args": {"name": f"worker {number}" if number else "trainer"}}
        for number in numbers.values()
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "loaders", "name": span.name, "pid": pid, "tid": numbers[span.thread],
         "ts": span.began_s * 1e6, "dur": (span.ended_s - span.began_s) * 1e6}
        for span in spans
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    part.replace(path)


def _writer(tensorboard: Any) -> Any:
    if tensorboard is None or hasattr(tensorboard, "add_scalar"):
        return tensorboard
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise LoadersError(
            "profile(tensorboard=...) needs the tensorboard package: pip install tensorboard"
        ) from error
    return SummaryWriter(str(tensorboard))


def profile_from_environment(loader: Any) -> profile | None:
    """Profile a loader if ``LOADERS_PROFILE`` asks for it; the first loader of a process only, which is said."""
    wanted = os.environ.get("LOADERS_PROFILE", "")
    if wanted in ("", "0") or not _first_of_process(loader):
        return None
    if not wanted.isdigit():
        raise ValueError(f"LOADERS_PROFILE is 1, or a number of steps, got {wanted!r}")
    steps = int(wanted) if int(wanted) > 1 else _DEFAULT_STEPS
    folder = Path(os.environ.get("LOADERS_PROFILE_DIR") or ".")
    path = folder / f"loaders-profile-{os.getpid()}.json"

    def tell(report: ProfileReport) -> None:
        if report.num_steps:
            logger.warning(
                "LOADERS_PROFILE: %s\n  of %r, the first loader that was iterated\n"
                "  trace: %s (open it in ui.perfetto.dev)",
                report,
                loader,
                path,
            )

    found = profile(loader, steps, trace=path, told=tell)
    found.start()
    atexit.register(found.stop)
    return found


_processes: set[int] = set()
_first: weakref.ref[Any] | None = None
_told: set[int] = set()


def _first_of_process(loader: Any) -> bool:
    """Tell whether no loader of this process was profiled yet, a forked one counts anew; say once if one was."""
    global _first
    pid = os.getpid()
    if pid not in _processes:
        _processes.add(pid)
        _first = weakref.ref(loader)
        return True
    if pid not in _told and (_first is None or _first() is not loader):
        _told.add(pid)
        what = "only the first loader of a process is; loaders.profile(loader) does it for any"
        logger.warning("LOADERS_PROFILE: %r is not profiled: %s", loader, what)
    return False
