"""From measurements to a sentence: what bounds a run, how far the next limit is, and which change helps most.

Everything here is arithmetic on numbers that were measured elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from loaders.bench.report import in_bytes, in_seconds, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.targets import Holds

Bound = Literal[
    "storage", "cpu", "cores", "memory", "gil", "transfer", "finish", "step", "overhead"
]
_SMALL_STALL = 0.05
_SAME = 1.1  # times as much that loading may do within a run as it did alone
_SMALL_QUEUE = 0.1
_EXPLAINED = 0.4  # a limit below this much of the rate that it allows does not explain it
_COPYING = 0.5  # of its CPU time, for a sample to count as copied rather than computed
_BEHIND_LOADING = ("transfer", "finish")
_WORTH = 1.05
BUSY = 0.85  # of the cores: with less, figures say more about the machine than about the dataset
_TOO_BUSY = 0.45


@dataclass(frozen=True, slots=True)
class Change:
    """Something the user can do.

    Attributes:
        what: In a few words, as it would be typed.
        gain: Times as many samples/s, or None where it could not be tried.
        is_measured: False: the gain is computed, not tried.
        between: The least and the most that it may be, by the slowest and quickest of each one's runs; None if unknown.
    """

    what: str
    gain: float | None = None
    is_measured: bool = True
    between: tuple[float, float] | None = None

    @property
    def is_worth_it(self) -> bool:
        """False where it gains nothing, or no more than runs of one setting differ."""
        surely = self.between is None or self.between[0] > 1
        return self.gain is None or (self.gain >= _WORTH and surely)

    def __str__(self) -> str:
        if self.gain is None:
            return f"{self.what} (gain not measured)"
        sure = "" if self.is_measured else " (computed)"
        if self.between is not None:
            low, high = map(number, self.between)
            sure = " (one run)" if low == high else f" ({low} to {high})"
        return f"{self.what}: {number(self.gain)}x{sure}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured; costs are of one sample, where samples are made one after another.

    Attributes:
        cores: Cores the process may use.
        num_workers: Of the chosen configuration.
        backend: Of the chosen configuration.
        rate: Its samples/s, loading alone.
        cpu_s: CPU time of loading a sample.
        wait_s: Time that reading a sample gives up its core, to sleep or to read.
        queued_s: Time that loading a sample could go on, but others have the cores.
        gil_s: The part of ``cpu_s`` that holds the GIL.
        sample_bytes: Bytes of a sample in the batch.
        copy_bytes_per_s: What all cores together copy from memory to memory.
        stages: CPU seconds by stage, to name the largest.
        transfer_s: Copying a sample to the device, 0 without one.
        finish_s: Its work on the device before the step.
        step_s: The user's training step, 0 without one.
        stall_share: Share of a real run's time that the step waited for data, if it was run.
        available: Share of the cores, or of the quota, that was free for this process while it was measured.
        quota: Cores' worth of time that a container may use; None: all of them.
        holds: What samples are of: advice is for these.
        is_whole: Nothing is cropped from them.
        threads: Cores that a worker keeps busy while it computes: above 1 where libraries have threads of their own.
        may_add_workers: False where a worker for each core was measured and not chosen, or may repeat a stream.
    """

    cores: int
    num_workers: int
    backend: str
    rate: float
    cpu_s: float
    wait_s: float = 0.0
    queued_s: float = 0.0
    gil_s: float = 0.0
    sample_bytes: float = 0.0
    copy_bytes_per_s: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    transfer_s: float = 0.0
    finish_s: float = 0.0
    step_s: float = 0.0
    stall_share: float | None = None
    available: float = 1.0
    quota: float | None = None
    holds: Holds = "other"
    is_whole: bool = True
    threads: float = 1.0
    may_add_workers: bool = True

    @property
    def core_time(self) -> float:
        """Seconds on cores that this process gets in a second, at most."""
        return self.cores if self.quota is None else min(self.cores, self.quota)

    @property
    def busy_cores(self) -> int:
        """Cores that work at loading."""
        return min(self.cores, round(max(1, self.num_workers) * self.threads))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer.

    Attributes:
        bound: What bounds the run.
        sentence: The same in words.
        limits: Samples/s that each part, run alone, would allow, the lowest first.
        changes: What helps, the most helpful first.
    """

    bound: Bound
    sentence: str
    limits: dict[str, float]
    changes: list[Change]


def judge(facts: Facts, changes: Sequence[Change] = ()) -> Verdict:
    """Return the verdict on a run."""
    limits = dict(sorted(limits_of(facts).items(), key=lambda item: item[1]))
    bound = _bound(facts, limits)
    ranked = sorted(changes, key=lambda c: -(c.gain or 0.0))
    useful = [change for change in ranked if change.is_worth_it]
    if bound == "step":
        useful = []
    was_tried = any(change.gain is not None for change in changes)
    said = _sentence(bound, facts, limits, _advice(bound, facts, useful, was_tried))
    return Verdict(bound, said, limits, useful)


def limits_of(facts: Facts) -> dict[str, float]:
    """Return the samples/s that each part would allow if it were the only one, as computed from its cost alone."""
    workers = max(1, facts.num_workers)
    cores = min(workers * facts.threads, facts.core_time)
    limits: dict[str, float] = {}
    if facts.cpu_s > 0:
        limits["cpu"] = cores / facts.cpu_s
    if (
        facts.queued_s > facts.cpu_s
    ):  # else what it computes bounds it, on a busy machine as on a quiet one
        limits["cores"] = cores / facts.queued_s
    if facts.wait_s > 0:
        limits["storage"] = workers / facts.wait_s
    seen = facts.available >= _TOO_BUSY  # else threads hardly run at once
    if seen and facts.gil_s > 0 and facts.backend in ("thread", "subprocess"):
        limits["gil"] = 1 / facts.gil_s
    if facts.sample_bytes and facts.copy_bytes_per_s:
        limits["memory"] = facts.copy_bytes_per_s / facts.sample_bytes
    if facts.transfer_s > 0:
        limits["transfer"] = 1 / facts.transfer_s
    if facts.step_s > 0:
        limits["step"] = 1 / (facts.step_s + facts.finish_s)
    elif facts.finish_s > 0:
        limits["finish"] = 1 / facts.finish_s
    return limits


def _bound(facts: Facts, limits: dict[str, float]) -> Bound:
    step = limits.get("step", float("inf"))
    loading = min(facts.rate, limits.get("transfer", float("inf")))
    waits_little = facts.stall_share is not None and facts.stall_share < _SMALL_STALL
    if step <= loading * (_SAME if waits_little else 1):
        return "step"
    inner = {
        # Loading alone did what was seen: of what it contains, no limit is below that.
        name: limit if name in _BEHIND_LOADING else max(limit, facts.rate)
        for name, limit in limits.items()
        if name != "step"
    }
    if not inner:
        return "overhead"
    name = min(inner, key=lambda key: inner[key])
    if name in _BEHIND_LOADING:
        return name  # type: ignore[return-value]
    is_lock = facts.gil_s > 0.7 * facts.cpu_s and facts.core_time >= 1
    if name == "cpu" and is_lock and "gil" in inner:
        name = "gil"  # one worker: a second one would not add to it
    if name == "cpu" and _is_copying(facts):
        name = "memory"
    if facts.rate < _EXPLAINED * facts.available * inner[name]:
        return "overhead"
    return name  # type: ignore[return-value]


def _is_copying(facts: Facts) -> bool:
    """Tell whether the CPU time of a sample is what copying its bytes takes."""
    if not facts.copy_bytes_per_s or not facts.sample_bytes:
        return False
    per_core = facts.copy_bytes_per_s / facts.core_time
    return facts.sample_bytes / per_core > _COPYING * facts.cpu_s


def _sentence(bound: Bound, facts: Facts, limits: dict[str, float], advice: str) -> str:
    said = _SAID[bound](facts, limits)
    nearest = _next_limit(bound, facts, limits)
    busy = ""
    if facts.available < BUSY:  # first, as it puts in doubt whatever follows
        busy = f"Other work took {1 - facts.available:.0%} of the cores meanwhile: measure again on a quiet machine."
    parts = (busy, said, nearest, advice)
    return " ".join(part for part in parts if part)


def _next_limit(bound: Bound, facts: Facts, limits: dict[str, float]) -> str:
    base = limits["step"] if bound == "step" else facts.rate
    above = {n: v for n, v in limits.items() if n != bound and v > base}
    if bound == "step":
        above["loading"] = facts.rate
    if not above:
        return ""
    name = min(above, key=lambda key: above[key])
    times = number(above[name] / base)
    return f"The next limit is {_NAMES[name]}, at {number(above[name])} samples/s ({times}x)."


def _advice(bound: Bound, facts: Facts, changes: Sequence[Change], was_tried: bool) -> str:
    if bound == "step":
        return _advice_to_a_step(facts)
    if not changes:
        return _else(bound, facts, was_tried)
    return f"What helps most: {changes[0]}."


def _advice_to_a_step(facts: Facts) -> str:
    if facts.stall_share is None:
        return "Change nothing in loading."
    waits = f"the step waits for data {facts.stall_share:.0%} of the time"
    if facts.stall_share < _SMALL_STALL:
        return f"Change nothing in loading: {waits}."
    if not facts.num_workers:
        return f"Still, {waits}: num_workers=1 or more makes batches meanwhile, not on the step's own thread."
    return f"Still, {waits}: the two share the cores, or batches come unevenly; try prefetch_factor=4."


def _storage(facts: Facts, limits: dict[str, float]) -> str:
    share = facts.wait_s / (facts.wait_s + facts.cpu_s)
    return (
        f"Storage is the limit: a sample waits {in_seconds(facts.wait_s)} for its bytes "
        f"({share:.0%} of its time) and computes for {in_seconds(facts.cpu_s)}."
    )


def _cpu(facts: Facts, limits: dict[str, float]) -> str:
    used = facts.busy_cores
    largest = max(facts.stages, key=lambda name: facts.stages[name], default="")
    of = facts.stages.get(largest, 0.0) / max(1e-12, sum(facts.stages.values()))
    what = f", {of:.0%} of it to {largest}" if largest else ""
    return (
        f"The CPU is the limit: a sample takes {in_seconds(facts.cpu_s)} of a core{what}{_queued(facts)}, and "
        f"{used} of {facts.cores} core{'s' * (facts.cores > 1)} work at it{_throttled(facts, used)} "
        f"({number(facts.rate)} samples/s)."
    )


def _throttled(facts: Facts, used: int) -> str:
    """Return words on a quota that keeps fewer cores busy than work."""
    if facts.core_time >= used:
        return ""
    return f", held to {number(facts.core_time)} cores' time by the container's quota"


def _queued(facts: Facts) -> str:
    """Return words on the wait for a core, where it is long enough to matter."""
    if facts.queued_s < _SMALL_QUEUE * facts.cpu_s:
        return ""
    return f", waits {in_seconds(facts.queued_s)} for a core that others have"


def _cores(facts: Facts, limits: dict[str, float]) -> str:
    return (
        f"Waiting for a core is the limit: a sample takes {in_seconds(facts.cpu_s)} of a core, and waits "
        f"{in_seconds(facts.queued_s)} for one, because others have them."
    )


def _memory(facts: Facts, limits: dict[str, float]) -> str:
    return (
        f"Memory bandwidth is the limit: samples are only copied, {in_bytes(facts.sample_bytes)} each, at "
        f"{in_bytes(facts.rate * facts.sample_bytes)}/s of the {in_bytes(facts.copy_bytes_per_s)}/s "
        "that all cores copy."
    )


def _gil(facts: Facts, limits: dict[str, float]) -> str:
    end = f"at {number(limits['gil'])} samples/s"
    if limits["gil"] < facts.rate:
        end = f"near the {number(facts.rate)} samples/s that were measured"
    return (
        f"The GIL is the limit: {facts.gil_s / max(1e-12, facts.cpu_s):.0%} of a sample's CPU time "
        f"({in_seconds(facts.gil_s)}) is Python that holds the lock, so threads together end {end}."
    )


def _transfer(facts: Facts, limits: dict[str, float]) -> str:
    moved = facts.sample_bytes * limits["transfer"]
    return (
        f"The copy to the device is the limit: {in_seconds(facts.transfer_s)} per sample "
        f"({in_bytes(moved)}/s), {number(limits['transfer'])} samples/s."
    )


def _finish(facts: Facts, limits: dict[str, float]) -> str:
    return (
        f"What is done to a batch after the copy is the limit: {in_seconds(facts.finish_s)} per sample, "
        f"{number(limits['finish'])} samples/s."
    )


def _step(facts: Facts, limits: dict[str, float]) -> str:
    return (
        f"The training step is the limit: it takes {number(limits['step'])} samples/s, and "
        f"loading gives {number(facts.rate)}."
    )


def _overhead(facts: Facts, limits: dict[str, float]) -> str:
    return (
        f"No stage explains the {number(facts.rate)} samples/s: what is left is handing over, "
        "starting, or other work on this machine."
    )


_SAID = {
    "storage": _storage, "cpu": _cpu, "cores": _cores, "memory": _memory, "gil": _gil,
    "transfer": _transfer, "finish": _finish, "step": _step, "overhead": _overhead,
}  # fmt: skip
_NAMES = {
    "storage": "storage", "cpu": "the CPU", "cores": "waiting for a core", "memory": "memory bandwidth",
    "gil": "the GIL", "transfer": "the copy to the device", "finish": "the work on the device",
    "step": "the training step", "loading": "loading",
}  # fmt: skip
_ELSE = {
    "storage": "Try more workers, shuffle='block', or RAMDataset, which reads once.",
    "cpu": "less work for a sample (a cheaper transform){more} would be{faster}{idle}.",
    "cores": "More workers would wait beside it: end the other work, or give this one more cores.",
    "memory": "smaller samples would be{faster} (narrower dtypes).",
    "gil": "backend='process' runs it in processes; or call what releases the GIL (cv2, numpy on whole batches).",
    "transfer": "Send fewer bytes: uint8 instead of float, a crop before the copy, pin_memory=True.",
    "finish": "Less work there is what would help.",
    "overhead": "Try a larger batch_size, more prefetch, or a quieter machine.",
}
_OF_PICTURES = {
    "cpu": "less work for a sample (smaller images, a cheaper transform){more} would be{faster}{idle}.",
    "memory": "smaller samples would be{faster} (crop at packing, narrower dtypes).",
    "finish": "A smaller crop, or a smaller scale of decoding, is less work there.",
}
_OF_TOKENS = {
    "memory": "TokenWindows(..., dtype='stored') is narrower.",
    "finish": "TokenWindows(..., dtype='int32') makes half of the bytes there, dtype='stored' none.",
}
_OF_VOLUMES = (
    "Whole volumes are read: a crop reads less of each (augment=[augment.RandomCrop(...)])."
)


def _else(bound: Bound, facts: Facts, was_tried: bool) -> str:
    """Return what to try where nothing was, or where nothing that was tried helps."""
    if facts.holds == "volumes" and facts.is_whole and bound in ("storage", "cpu", "memory"):
        return _OF_VOLUMES
    own = {"pictures": _OF_PICTURES, "tokens": _OF_TOKENS}.get(facts.holds, {})
    said = own.get(bound, _ELSE[bound])
    if bound not in ("cpu", "memory"):
        return said
    idle = _idle(facts)
    more, faster = "" if idle else ", or more cores,", "" if was_tried else " faster"
    said = said.format(more=more, faster=faster, idle=idle)
    return f"Nothing that was tried is faster: {said}" if was_tried else said[0].upper() + said[1:]


def _idle(facts: Facts) -> str:
    """Return words on cores that loading leaves alone, if there are any."""
    if facts.busy_cores >= facts.core_time:
        return ""
    idle, most = facts.cores - facts.busy_cores, math.ceil(facts.core_time)
    does = "does" if idle == 1 else "do"
    advice = f": try num_workers={most}" if facts.may_add_workers else ""
    return f"; {idle} of {facts.cores} cores {does} nothing for it{advice}"
