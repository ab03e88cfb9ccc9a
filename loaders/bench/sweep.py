"""Measuring a dataset under many settings of its loader, in turns, within a bounded time."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from loaders.bench import machine
from loaders.bench.measure import (
    Config,
    Result,
    TimedPass,
    as_arguments,
    begin,
    end,
    interleave,
    make_loader,
    round_size,
    time_loader,
)  # fmt: skip
from loaders.bench.stages import batch_maker, one_thread, time_alone
from loaders.bench.targets import MeasuredDataset, is_map_style
from loaders.datasets.base import BatchDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.device.nested import map_tensors
from loaders.sampling.order import Shuffled
from loaders.system.limits import usable_cores
from loaders.verdict import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_S = 0.2  # a batch of the default size takes about so long on one worker
_LOOK_S = 0.1  # at a few samples, again and again
_MIN_RUN_S = 0.15
_FEW_SAMPLES, _SHORT_EPOCH_S = 1000, 1.0
_REPEATED = (
    "workers 0 and 1 of this stream begin with the same samples: each gives the whole stream, and several only "
    "repeat it. Divide it in __iter__, by torch.utils.data.get_worker_info"
)
_MAY_BE_REPEATED = (
    "each of several workers serves the whole stream, unless its __iter__ divides it "
    "by torch.utils.data.get_worker_info"
)
_NOT_READ = (
    "cold: no run was seen to read from storage: files stayed in the page cache (in use elsewhere, or in memory), "
    "or the system does not count what is read"
)
_HAS_START = "a pass has so few batches that the start of the workers counts, too"


@dataclass(slots=True)
class Sweep:
    """What a sweep found."""

    target: str  # the name of what was measured
    results: list[Result]  # one per configuration
    # ``"warm"``, or ``"cold"`` where the files were dropped from the page cache before each run.
    cache: str = "warm"
    notes: list[str] = field(default_factory=list)  # what a reader of the figures should know
    tokens: int = 0  # tokens of a sample; 0 where it has none
    # Each worker gives the whole stream, so that samples come as often as there are workers.
    is_repeated: bool = False

    @property
    def sound(self) -> list[Result]:
        """The configurations that never failed."""
        return [result for result in self.results if result.runs and result.error is None]

    @property
    def best(self) -> Result:
        """The configuration to choose: of those within 3 % of the fastest, the one with the fewest workers.

        One that failed in some run is chosen where there is no other, and so are workers that repeat each other.
        """
        choice = self.sound or self.results
        if self.is_repeated:
            choice = [result for result in choice if result.config.num_workers <= 1] or choice
        rate = max(result.rate for result in choice)
        close = [result for result in choice if result.rate >= 0.97 * rate]
        return min(close, key=lambda result: (result.config.num_workers, result.most("pss_bytes")))

    def too_small(self, dataset: Any) -> str:
        """Say that a dataset is too small for these figures to hold in training; nothing if it is not."""
        if not is_map_style(dataset) or len(dataset) >= _FEW_SAMPLES or not self.best.rate:
            return ""
        took = len(dataset) / self.best.rate
        if took >= _SHORT_EPOCH_S:
            return ""
        what = f"{len(dataset):,} samples are too few to measure: an epoch takes {took:.2g} s"
        return f"{what}, most of it the start of the workers, and all of it comes from caches"

    def changes_from(self, usual: Config) -> list[Change]:
        """Return what the chosen settings gain over those that a loader has by default, where both were measured."""
        before, best = next((r for r in self.results if r.config == usual), None), self.best
        if before is None or not before.rate or best.config == usual:
            return []
        now, old = best.config.arguments(), usual.arguments()
        changed = {name: value for name, value in now.items() if old.get(name) != value}
        what = f"{as_arguments(changed)} instead of num_workers={usual.num_workers}"
        (slow, quick), (best_slow, best_quick) = before.spread, best.spread
        between = best_slow / max(1e-9, quick), best_quick / max(1e-9, slow)
        return [Change(what, best.rate / before.rate, between)]


def worker_counts(cores: int) -> list[int]:
    """Return 0, 1, 2, 4, ... and the number of cores itself."""
    return [0, *(1 << k for k in range(cores.bit_length()) if 1 << k < cores), cores]


def default_batch_size(dataset: Any) -> int:
    """Return a power of four, at most 256, whose batch takes well under a second on one worker.

    What others on the machine take is left out, and the steps are wide, so that two looks seldom disagree.
    """
    if not is_map_style(dataset):
        return 64
    if isinstance(dataset, BatchDataset) and dataset.sample_nbytes is not None:
        return max(1, min(256, len(dataset)))
    few = Config(0, min(8, len(dataset)))
    with one_thread():
        cost = time_alone(batch_maker(dataset, few), seconds=_LOOK_S, min_calls=1)
    affordable = _BATCH_S / max(1e-9, cost.cpu_s + cost.wait_s)
    return min(len(dataset), next((n for n in (256, 64, 16, 4) if n <= affordable), 1))


def grid(
    target: MeasuredDataset,
    *,
    workers: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    backends: Sequence[str] | None = None,
    prefetch: Sequence[int] | None = None,
) -> list[Config]:
    """Return every combination of settings; those not given get what suits the dataset and the machine."""
    workers = worker_counts(usable_cores()) if workers is None else workers
    batch_sizes = batch_sizes or [default_batch_size(target.dataset)]
    chosen: Sequence[int | None] = prefetch or (None,)
    found = itertools.product(
        backends or [target.backend], batch_sizes, chosen, sorted(set(workers))
    )
    return list(
        dict.fromkeys(Config(w, b, backend, p if w else None) for backend, b, p, w in found)
    )


def run_sweep(
    target: MeasuredDataset,
    configs: Sequence[Config],
    *,
    seconds: float,  # for all runs together, about
    repeats: int,  # runs of each configuration
    cold: bool = False,
) -> Sweep:
    """Measure configurations in turns, after one unmeasured look at each kind of loader."""
    # The dataset is not held here: pages that are mapped cannot be dropped from the page cache.
    tokens = target.dataset.length if isinstance(target.dataset, TokenWindows) else 0
    sweep = Sweep(target.name, [], "cold" if cold else "warm", tokens=tokens)
    run_s = max(_MIN_RUN_S, seconds / len(configs) / repeats)
    if not is_map_style(target.dataset) and any(config.num_workers > 1 for config in configs):
        sweep.is_repeated = repeats_itself(target.dataset)
        sweep.notes.append(_REPEATED if sweep.is_repeated else _MAY_BE_REPEATED)

    def measure(config: Config) -> TimedPass:
        if cold:
            sweep.notes += [note for note in dropped(target) if note not in sweep.notes]
        return time_target(target, config, seconds=run_s, once=cold)

    if not cold:  # fault in code, slots and, for a small dataset, the files
        for config in {config.backend: config for config in configs}.values():
            with suppress(Exception):  # which the run that counts will have, too, in its own line
                time_target(target, config, seconds=run_s)
    total = len(configs) * repeats
    with tqdm(total=total, desc="measuring", unit="run", disable=None, leave=False) as bar:
        runs = [(config, partial(measure, config)) for config in configs]
        sweep.results = interleave(runs, repeats=repeats, told=bar.update)
    timed = [run for result in sweep.results for run in result.runs]
    is_read = any(run.read_bytes for run in timed)
    if cold and not is_read and not any(note.startswith("cold") for note in sweep.notes):
        sweep.notes.append(_NOT_READ)
    if any(run.has_start for run in timed):
        sweep.notes.append(_HAS_START)
    return sweep


def time_target(
    target: MeasuredDataset,
    config: Config,
    *,
    seconds: float,
    once: bool = False,
) -> TimedPass:
    """Measure one configuration for some time; ``once``: no longer than one pass, as files are read once when cold."""
    dataset, more = target.dataset, {}
    if once and is_map_style(dataset):
        more = {"sampler": Shuffled(len(dataset))}
        config = replace(config, batch_size=min(config.batch_size, len(dataset)))
    loader = make_loader(dataset, config, **more)
    together = round_size(dataset, config)
    return time_loader(loader, config.batch_size, seconds=seconds, round_size=together)


def dropped(target: MeasuredDataset) -> list[str]:
    """Take the files out of the page cache, and forget who has them mapped; return what keeps a run from being cold."""
    target.reopen()
    if not target.files:
        return ["cold: it is not known which files the dataset reads, so none was dropped"]
    if not machine.drop_pages(target.files):
        return ["cold: this system cannot drop files from the page cache"]
    return []


def repeats_itself(stream: Any) -> bool:
    """Tell whether two workers begin with the same sample; False where that cannot be told.

    It cannot of samples that are all alike, and of those in an order that each worker draws for itself.
    """
    with suppress(Exception):  # which the runs will have, too, in their own lines
        batches = begin(make_loader(stream, Config(2, 1, "process", 1)))
        try:
            first, of_other, second = (map_tensors(next(batches), _as_bytes) for _ in range(3))
        finally:
            end(batches)
        return bool(first == of_other and first != second)
    return False


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().view(torch.uint8).numpy().tobytes()  # numpy knows no bfloat16
