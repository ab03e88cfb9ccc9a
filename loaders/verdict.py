"""From figures to a sentence: what bounds a run, and what to do.

Everything here is arithmetic on numbers that were measured elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from loaders.text import describe_size, in_seconds, number

Bound = Literal["storage", "cpu", "memory", "gil", "transfer", "finish", "step", "overhead"]
SMALL_STALL = 0.05
BUSY = 0.85  # of the cores: with less, figures say more about the machine than about the dataset
_TOO_BUSY = 0.6  # of two cores, both must be free most of the time for threads to be seen to wait for each other
_SAME = 1.1  # times as much that loading may do within a run as it did alone
_EXPLAINED = 0.4  # of what a limit allows: a rate below that is not explained by it
_SHARED = 0.15  # the same of copying, where many cores together do less than each by itself
_MOSTLY = 0.5  # of the time waiting for data: with less, the step takes most of it
_COPYING = 2e9  # bytes of a sample per second of its CPU time: decoders and transforms make fewer
_BEHIND_LOADING = ("transfer", "finish")
_WORTH = 1.05
_MORE_THAN_A_STEP = 100_000  # samples/s that hardly any training step takes


@dataclass(frozen=True, slots=True)
class Change:
    """Settings that were measured beside those that a loader has by default."""

    what: str  # in a few words, as it would be typed
    gain: float  # times as many samples/s
    # The least and the most that it may be, by the slowest and quickest of each one's runs.
    between: tuple[float, float]

    @property
    def is_worth_it(self) -> bool:
        """False where it gains nothing, or no more than runs of one setting differ."""
        return self.gain >= _WORTH and self.between[0] > 1

    def __str__(self) -> str:
        low, high = map(number, self.between)
        sure = "one run" if low == high else f"{low} to {high}"
        return f"{self.what}: {number(self.gain)}x ({sure})"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured; costs are of one sample, where samples are made one after another."""

    cores: float  # Cores' worth of time that the process may use
    num_workers: int  # of the chosen configuration
    backend: str  # of the chosen configuration
    rate: float  # its samples/s: loading alone, or within a run
    cpu_s: float  # CPU time of loading a sample
    wait_s: float = 0.0  # time that reading a sample gives up its core, to sleep or to read
    gil_s: float = 0.0  # the part of ``cpu_s`` that holds the GIL
    sample_bytes: float = 0.0  # bytes of a sample in the batch
    # CPU seconds by stage, to name the largest.
    stages: dict[str, float] = field(default_factory=dict)
    transfer_s: float = 0.0  # copying a sample to the device, 0 without one
    finish_s: float = 0.0  # its work on the device before the step
    step_s: float = 0.0  # the user's training step, 0 without one
    # Share of a real run's time that the step waited for data, if it was run.
    stall_share: float | None = None
    gil_share: float = 0.0  # share of the step's time that it waited for the GIL, in that run
    # Share of the cores that was free for this process while it was measured.
    available: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer."""

    bound: Bound  # what bounds the run
    sentence: str  # the same in words
    advice: str  # what to do
    limits: dict[str, float]  # Samples/s that each part, run alone, would allow, the lowest first
    change: Change | None  # other settings that help

    def __str__(self) -> str:
        return f"verdict: {self.sentence}\nDo: {self.advice}"


def judge(facts: Facts, change: Change | None = None) -> Verdict:
    """Return the verdict on a run, beside which other settings may have been measured."""
    limits = dict(sorted(limits_of(facts).items(), key=lambda item: item[1]))
    bound = _bound(facts, limits)
    if bound == "step" or (change is not None and not change.is_worth_it):
        change = None
    said = _SAID[bound].format_map(_words(bound, facts, limits))
    if facts.available < BUSY:
        taken = f"{1 - facts.available:.0%}"
        said = f"Other work took {taken} of the cores meanwhile: measure again on a quiet machine. {said}"
    advice = _advice(bound, facts) if change is None else str(change)
    return Verdict(bound, said, advice, limits, change)


def limits_of(facts: Facts) -> dict[str, float]:
    """Return the samples/s that each part would allow if it were the only one, by its cost alone."""
    workers = max(1, facts.num_workers)
    cores = min(workers, facts.cores)
    # On a busy machine threads hardly run at once.
    may_see_gil = facts.available >= _TOO_BUSY and facts.backend in ("thread", "subprocess")
    by_cost = {
        "cpu": (cores, facts.cpu_s),
        "storage": (workers, facts.wait_s),
        "gil": (1, facts.gil_s if may_see_gil else 0.0),
        "transfer": (1, facts.transfer_s),
        "step": (1, facts.step_s and facts.step_s + facts.finish_s),
        "finish": (1, 0.0 if facts.step_s else facts.finish_s),
    }
    return {name: capacity / cost for name, (capacity, cost) in by_cost.items() if cost > 0}


def _bound(facts: Facts, limits: dict[str, float]) -> Bound:
    step = limits.get("step", math.inf)
    loading = min(facts.rate, limits.get("transfer", math.inf))
    stall = math.inf if facts.stall_share is None else facts.stall_share
    if step <= loading * (_SAME if stall < SMALL_STALL else 1):
        return "step"
    # Loading alone did what was seen: of what it contains, no limit is below that.
    inner: dict[Any, float] = {
        name: limit if name in _BEHIND_LOADING else max(limit, facts.rate)
        for name, limit in limits.items()
        if name != "step"
    }
    name: Bound = min(inner, key=inner.__getitem__, default="overhead")
    if name in (*_BEHIND_LOADING, "overhead"):
        return name
    if name == "cpu" and "gil" in inner and facts.gil_s > 0.7 * facts.cpu_s and facts.cores >= 1:
        name = "gil"  # one worker: a second one would not add to it
    limit, explained = inner[name], _EXPLAINED
    if name == "cpu" and facts.sample_bytes > _COPYING * facts.cpu_s:
        name, explained = "memory", _SHARED
    if facts.rate >= explained * facts.available * limit:
        return name
    # Of a run that nothing in loading explains: the step, if that takes most of the time.
    return "step" if stall < _MOSTLY else "overhead"


# -- words -----------------------------------------------------------------------------------------

_SAID: dict[Bound, str] = {
    "storage": "Storage is the limit: a sample waits {wait} for its bytes and computes for {cpu}.",
    "cpu": "The CPU is the limit: a sample takes {cpu} of a core{largest}, and {used} of "
    "{cores} cores work at it ({rate} samples/s).",
    "memory": "Memory bandwidth is the limit: samples are only copied, {size} each, {copied}/s in all.",
    "gil": "The GIL is the limit: {held:.0%} of a sample's CPU time ({gil}) is Python that holds it, "
    "so threads together end near {least} samples/s.",
    "transfer": "The copy to the device is the limit: {transfer} per sample, {limit} samples/s.",
    "finish": "Finishing batches (what is left to the device) is the limit: {finish} per sample, {limit} "
    "samples/s.",
    "step": "The training step is the limit: it takes {limit} samples/s{loading}.",
    "overhead": "No stage explains the {rate} samples/s: the rest is handing batches over, starting workers, "
    "or other programs on this machine.",
}  # fmt: skip
_DO: dict[Bound, str] = {
    "storage": "try more workers, shuffle='block', augment.RandomCrop of volumes, which reads less, or RAMDataset, "
    "which reads once",
    "cpu": "give a sample less work (pack images at the size that crops need, RAMDataset(..., decode=True), a cheaper "
    "transform), or the process more cores",
    "memory": "make samples smaller (crop at packing, narrower dtypes; of tokens, TokenWindows(..., dtype='stored'))",
    "gil": "use backend='process', or functions that release the GIL (cv2, numpy on whole batches)",
    "transfer": "send fewer bytes: uint8 instead of float, a crop before the copy, pin_memory=True",
    "finish": "crop smaller, or give the device less to do before the step",
    "overhead": "try a larger batch_size, more prefetch, or a quieter machine",
}  # fmt: skip


def _words(bound: Bound, facts: Facts, limits: dict[str, float]) -> dict[str, Any]:
    """Return what sentences are filled with."""
    limit = limits.get(bound, math.nan)
    stage = max(facts.stages, key=facts.stages.__getitem__, default="")
    share = facts.stages.get(stage, 0.0) / max(1e-12, sum(facts.stages.values()))
    return {
        "wait": in_seconds(facts.wait_s),
        "cpu": in_seconds(facts.cpu_s),
        "gil": in_seconds(facts.gil_s),
        "held": facts.gil_s / max(1e-12, facts.cpu_s),
        "transfer": in_seconds(facts.transfer_s),
        "finish": in_seconds(facts.finish_s),
        "largest": f", {share:.0%} of it to {stage}" if len(facts.stages) > 1 else "",
        "used": number(min(max(1, facts.num_workers), facts.cores)),
        "cores": number(facts.cores),
        "size": describe_size(facts.sample_bytes),
        "copied": describe_size(facts.rate * facts.sample_bytes),
        "rate": number(facts.rate),
        "limit": number(limit),
        "least": number(max(limit, facts.rate)),
        "loading": f", and loading gives {number(facts.rate)}" if facts.rate > limit else "",
    }


def _advice(bound: Bound, facts: Facts) -> str:
    """Return what to do where no other settings help."""
    if bound != "step":
        if not facts.step_s and facts.rate >= _MORE_THAN_A_STEP:
            return f"measure it beside training, --step MODULE:FUNCTION: few steps take {number(facts.rate)} samples/s"
        return _DO[bound]
    if facts.gil_share:
        return f"use backend='subprocess': the step waits for the GIL {facts.gil_share:.0%} of its time"
    stall = facts.stall_share or 0.0
    if stall < SMALL_STALL:
        return "change nothing in loading"
    if not facts.num_workers:
        return f"num_workers=1 or more: the step waits {stall:.0%} of the time for batches made on its own thread"
    return f"prefetch_factor=4, or one thread fewer for training: the step waits for data {stall:.0%} of the time"
