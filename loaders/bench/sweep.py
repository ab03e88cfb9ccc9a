"""Measuring a dataset under many settings of its loader, in turns, within a bounded time."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from loaders.bench.measure import (
    Config,
    Result,
    TimedPass,
    as_arguments,
    make_loader,
    round_size,
    time_loader,
)  # fmt: skip
from loaders.bench.stages import batch_maker, one_thread, time_alone
from loaders.bench.targets import is_map_style
from loaders.datasets.base import BatchDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.errors import LoadersError
from loaders.system.limits import usable_cores
from loaders.verdict import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.targets import MeasuredDataset

_BATCH_S = 0.2  # a batch of the default size takes about so long on one worker
_LOOK_S = 0.1  # at a few samples, again and again
_MIN_RUN_S = 0.15
_FEW_SAMPLES, _SHORT_EPOCH_S = 1000, 1.0


@dataclass(slots=True)
class Sweep:
    """What a sweep found."""

    target: str  # the name of what was measured
    results: list[Result]  # one per configuration
    tokens: int = 0  # tokens of a sample; 0 where it has none
    num_samples: float = math.inf  # of the dataset; infinity of a stream

    @property
    def sound(self) -> list[Result]:
        """The configurations that never failed."""
        return [result for result in self.results if result.runs and result.error is None]

    @property
    def best(self) -> Result:
        """The configuration to choose: of sound ones within 3 % of the fastest, the one with the fewest workers."""
        rate = max(result.rate for result in self.sound)
        close = [result for result in self.sound if result.rate >= 0.97 * rate]
        return min(close, key=lambda result: (result.config.num_workers, result.most("pss_bytes")))

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures should know: a dataset is too small for them to hold in training."""
        took = self.num_samples / self.best.rate
        if self.num_samples >= _FEW_SAMPLES or took >= _SHORT_EPOCH_S:
            return []
        what = f"{self.num_samples} samples are too few to measure: an epoch takes {took:.2g} s"
        return [f"{what}, most of it the start of the workers, and all of it comes from caches"]

    def change_from(self, usual: Config) -> Change | None:
        """Return what the chosen settings gain over those that a loader has by default, where both were measured."""
        before, best = next((r for r in self.sound if r.config == usual), None), self.best
        if before is None or best.config == usual:
            return None
        now, old = best.config.arguments(), usual.arguments()
        changed = {name: value for name, value in now.items() if old.get(name) != value}
        what = f"{as_arguments(changed)} instead of num_workers={usual.num_workers}"
        (slow, quick), (best_slow, best_quick) = before.spread, best.spread
        return Change(what, best.rate / before.rate, (best_slow / quick, best_quick / slow))


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
    """Return every combination of settings; those not given get what suits the dataset and the machine.

    Raises:
        LoadersError: A stream is to be measured with several workers, each of which may give all of it.
    """
    is_stream = not is_map_style(target.dataset)
    if workers is None:
        workers = [0, 1] if is_stream else worker_counts(usable_cores())
    if is_stream and max(workers) > 1:
        raise LoadersError("a stream is measured with at most one worker: use --workers 0 1")
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
) -> Sweep:
    """Measure configurations in turns (A B C, A B C, ...), so that drift hits all alike.

    Before that, each kind of loader runs once unmeasured. A configuration that fails is left out from then on, with its
    error in the result.
    """
    tokens = target.dataset.length if isinstance(target.dataset, TokenWindows) else 0
    num = len(target.dataset) if is_map_style(target.dataset) else math.inf
    sweep = Sweep(target.name, [Result(config) for config in configs], tokens, num)
    run_s = max(_MIN_RUN_S, seconds / len(configs) / repeats)
    for config in {config.backend: config for config in configs}.values():
        # Fault in code, slots and, of a small dataset, the files.
        with suppress(Exception):  # which the run that counts will have, too, in its own line
            time_target(target, config, seconds=run_s)
    turns = sweep.results * repeats
    for result in tqdm(turns, desc="measuring", unit="run", disable=None, leave=False):
        if result.error is None:
            try:
                result.runs.append(time_target(target, result.config, seconds=run_s))
            except Exception as error:  # whatever it is, the others are still worth measuring
                result.error = f"{type(error).__name__}: {error}"
    return sweep


def time_target(target: MeasuredDataset, config: Config, *, seconds: float) -> TimedPass:
    """Measure one configuration for some time."""
    loader = make_loader(target.dataset, config)
    together = round_size(target.dataset, config)
    return time_loader(loader, config.batch_size, seconds=seconds, round_size=together)
