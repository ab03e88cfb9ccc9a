"""Measuring a dataset under many settings of its loader, in turns, within a bounded time."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from loaders.bench import pagecache
from loaders.bench.measure import Config, Result, Run, end, interleave, iter_of, time_loader
from loaders.bench.planner import group_size_of
from loaders.bench.stages import one_thread, time_alone
from loaders.bench.targets import Endless, Target, is_map_style
from loaders.datasets.base import BatchDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.limits import usable_cores
from loaders.loader import DataLoader
from loaders.sampling.order import Shuffled

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_S = 0.2  # a batch of the default size takes about so long on one worker
_LOOK_S = 0.1  # at a few samples, again and again
_MIN_RUN_S = 0.15
_STREAM = "torch.utils.data.get_worker_info"
_IS_REPEATED = (
    "workers 0 and 1 of this stream begin with the same samples: each gives the whole stream, and several only "
    f"repeat it. Divide it in __iter__, by {_STREAM}"
)
_MAY_BE_REPEATED = (
    "of a stream, each of several workers gives the whole, unless the stream divides itself in __iter__, "
    f"by {_STREAM}"
)
IS_SHORT = "cold: a pass has so few batches that the start of the workers counts, too"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be measured.

    Attributes:
        seconds: For all runs together.
        repeats: Runs of each configuration.
        max_samples: Of each run, or None.
    """

    seconds: float = 25.0
    repeats: int = 3
    max_samples: int | None = None

    def run_s(self, num_configs: int) -> float:
        """Return the time of one run."""
        return max(_MIN_RUN_S, self.seconds / max(1, num_configs) / self.repeats)


@dataclass(slots=True)
class Sweep:
    """What a sweep found.

    Attributes:
        target: The name of what was measured.
        results: One per configuration.
        cache: ``"warm"``, or ``"cold"`` where the files were dropped from the page cache before each run.
        notes: What a reader of the figures should know.
        tokens: Tokens of a sample; 0 where it has none.
        is_repeated: Each worker gives the whole stream, so that samples come as often as there are workers.
    """

    target: str
    results: list[Result]
    cache: str = "warm"
    notes: list[str] = field(default_factory=list)
    tokens: int = 0
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
        return min(close, key=lambda result: (result.config.num_workers, result.peak_pss_bytes))

    def find(self, config: Config) -> Result | None:
        """Return the result of a configuration, if it was measured."""
        return next((r for r in self.results if r.config == config and r.runs), None)


def worker_counts(cores: int) -> list[int]:
    """Return 0, 1, 2, 4, ... and the number of cores itself."""
    powers = itertools.takewhile(lambda n: n < cores, (1 << k for k in itertools.count()))
    return [0, *powers, cores]


def default_batch_size(dataset: Any) -> int:
    """Return a power of four, at most 256, whose batch takes well under a second on one worker.

    What others on the machine take is left out, and the steps are wide, so that two looks seldom disagree.
    """
    if not is_map_style(dataset):
        return 64
    if isinstance(dataset, BatchDataset) and dataset.sample_nbytes is not None:
        return max(1, min(256, len(dataset)))
    count = min(8, len(dataset))
    dataset[0]  # opens files
    with one_thread():
        cost = time_alone(
            lambda: len([dataset[i] for i in range(count)]),
            seconds=_LOOK_S,
            min_calls=1,
            warm_up=False,
        )
    affordable = _BATCH_S / max(1e-9, cost.cpu_s + cost.wait_s)
    return min(len(dataset), next((n for n in (256, 64, 16, 4) if n <= affordable), 1))


def grid(
    target: Target,
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
    configs = [Config(w, b, backend, p if w else None) for backend, b, p, w in found]
    return list(dict.fromkeys(configs))


def make_loader(dataset: Any, config: Config, **more: Any) -> DataLoader:
    """Return an endless shuffled loader over a dataset."""
    is_ordered = is_map_style(dataset)
    if is_ordered and "sampler" not in more:
        more |= {"sampler": Endless(len(dataset)), "rank": 0, "world_size": 1, "drop_last": True}
    with warnings.catch_warnings():  # more workers than cores are tried on purpose
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return DataLoader(dataset, **config.arguments(), **more)


def round_size(dataset: Any, config: Config) -> int:
    """Return how many batches come together."""
    if config.backend == "process" or not isinstance(dataset, BatchDataset):
        return max(1, config.num_workers)
    if not config.num_workers:
        return 1
    return group_size_of(dataset, config)


def run_sweep(
    target: Target,
    configs: Sequence[Config],
    limits: Limits,
    *,
    cold: bool = False,
    progress: bool = True,
) -> Sweep:
    """Measure configurations in turns, after one unmeasured look at each kind of loader."""
    sweep = Sweep(target.name, [], "cold" if cold else "warm", tokens=_tokens_of(target.dataset))
    seconds = limits.run_s(len(configs))
    dropped = Dropper(target) if cold else None
    _note_stream(sweep, target.dataset, configs)

    def measure(config: Config) -> Run:
        if dropped is not None:
            dropped()
        return time_target(
            target, config, seconds=seconds, once=cold, max_samples=limits.max_samples
        )

    if not cold:
        _warm_up(target, configs, seconds, limits.max_samples)
    total = len(configs) * limits.repeats
    with tqdm(
        total=total, desc="measuring", unit="run", disable=None if progress else True, leave=False
    ) as bar:
        sweep.results = interleave(
            configs, measure, repeats=limits.repeats, told=lambda config: bar.update()
        )
    if dropped is not None:
        sweep.notes += dropped.notes
        if any(is_short(target.dataset, config) for config in configs):
            sweep.notes.append(IS_SHORT)
    return sweep


def time_target(
    target: Target,
    config: Config,
    *,
    seconds: float,
    once: bool = False,
    max_samples: int | None = None,
    watch: bool = True,
) -> Run:
    """Measure one configuration for some time; ``once``: no longer than one pass, as files are read once when cold."""
    dataset = target.dataset
    loader, together = make_loader(dataset, config), round_size(dataset, config)
    if once and is_map_style(dataset):
        order = Shuffled(len(dataset))
        loader = make_loader(dataset, config, sampler=order, rank=0, world_size=1)
        if is_short(dataset, config):
            together = len(dataset) + 1  # batches of no round are left out
    return time_loader(
        loader, seconds=seconds, round_size=together, max_samples=max_samples, watch=watch
    )


def is_short(dataset: Any, config: Config) -> bool:
    """Tell whether one pass has no whole round of batches behind the first."""
    if not is_map_style(dataset):
        return False
    return -(-len(dataset) // config.batch_size) < 2 * round_size(dataset, config)


def _tokens_of(dataset: Any) -> int:
    return dataset.length if isinstance(dataset, TokenWindows) else 0


def _note_stream(sweep: Sweep, dataset: Any, configs: Sequence[Config]) -> None:
    """Say what several workers make of a stream."""
    if is_map_style(dataset) or all(config.num_workers < 2 for config in configs):
        return
    sweep.is_repeated = repeats_itself(dataset)
    sweep.notes.append(_IS_REPEATED if sweep.is_repeated else _MAY_BE_REPEATED)


def repeats_itself(stream: Any) -> bool:
    """Tell whether two workers begin with the same samples; False where that cannot be told.

    It cannot of samples that are all alike, and of those in an order that each worker draws for itself.
    """
    with suppress(Exception):  # which the runs will have, too, in their own lines
        loader = make_loader(stream, Config(2, 2, "process", 1), collate_fn=list)
        batches = iter_of(loader)()
        try:
            first, second = next(batches), next(batches)
        finally:
            end(batches)
        return is_same(first, second) and not is_same(first[0], first[-1])
    return False


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two samples are equal, at any depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(np.array_equal(one, other))


def _warm_up(
    target: Target, configs: Sequence[Config], seconds: float, max_samples: int | None
) -> None:
    """Fault in code, slots and, for a small dataset, the files, where nothing is measured yet."""
    dataset = target.dataset
    for backend in dict.fromkeys(config.backend for config in configs):
        config = next(c for c in reversed(configs) if c.backend == backend)
        with suppress(Exception):  # which the run that counts will have, too, in its own line
            loader = make_loader(dataset, config)
            time_loader(loader, seconds=seconds, max_samples=max_samples, watch=False)


class Dropper:
    """Takes the files out of the page cache before each run, and says where that failed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.notes: list[str] = []

    def __call__(self) -> None:
        """Drop the files, and forget the dataset that has them mapped."""
        target = self._target
        target.reopen()
        if not target.files:
            return self._note(
                "cold: it is not known which files the dataset reads, so none was dropped"
            )
        if not pagecache.drop(target.files):
            return self._note("cold: this system cannot drop files from the page cache")
        left = pagecache.resident_share(target.files)
        if left is None:
            return self._note("cold: whether the files left the page cache cannot be seen here")
        if left > 0.05:
            return self._note(
                f"cold: {left:.0%} of the files stayed in the page cache (in use elsewhere, or in memory)"
            )
        return None

    def reopened(self) -> Any:
        """Drop the files, and return the dataset, opened anew."""
        self()
        return self._target.dataset

    def _note(self, text: str) -> None:
        if text.split(":")[0] not in {note.split(":")[0] for note in self.notes}:
            self.notes.append(text)
