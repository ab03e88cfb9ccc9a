"""What a user can change, tried on a sample of the data beside what is there now."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.bench.measure import Config, interleave, time_loader
from loaders.bench.sweep import make_loader, round_size
from loaders.bench.targets import ImageFiles, Target, ops_for
from loaders.bench.verdict import Change
from loaders.codecs.heads import picture_size
from loaders.datasets.memory.ram import RAMDataset
from loaders.datasets.packed import PackedDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.errors import LoadersError
from loaders.limits import usable_cores
from loaders.schema import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.bench.measure import Result
    from loaders.bench.sweep import Sweep

_SAMPLE = 256
_WORTH_PACKING = 1.2  # times as large as they need be
_PACK_TIMEOUT_S = 60
_SHARE_OF_CROP = 8 / 7  # 256 for a crop of 224, as is usual


@dataclass(frozen=True, slots=True)
class Trial:
    """A dataset to measure in place of another.

    Attributes:
        what: The change in a few words.
        dataset: The same samples, after the change.
        config: Its loader's settings.
    """

    what: str
    dataset: Any
    config: Config


def from_sweep(sweep: Sweep, usual: Config) -> list[Change]:
    """Return what the sweep itself shows: the chosen settings beside those that a loader has by itself."""
    before, best = sweep.find(usual), sweep.best
    if before is None or not before.rate or best.config == usual:
        return []
    new, old = best.config, usual
    said = [f"num_workers={new.num_workers}"] if new.num_workers != old.num_workers else []
    said += [f"batch_size={new.batch_size}"] if new.batch_size != old.batch_size else []
    said += [f"backend={new.backend!r}"] if new.backend != old.backend else []
    said += [f"prefetch_factor={new.prefetch}"] if new.prefetch != old.prefetch else []
    return [_gain(f"{', '.join(said)} instead of {_short(old)}", before, best)]


def _gain(what: str, before: Result, after: Result) -> Change:
    """Return the change that one result is beside another: its least gain is of the slowest run over the quickest."""
    (slow, quick), (slow_after, quick_after) = before.spread, after.spread
    between = slow_after / max(1e-9, quick), quick_after / max(1e-9, slow)
    return Change(what, after.rate / before.rate, between=between)


def _short(config: Config) -> str:
    return f"num_workers={config.num_workers}"


def tried(
    target: Target,
    config: Config,
    *,
    seconds: float = 8.0,
    waits: bool = True,
    told: Callable[[str], None] = lambda _: None,
) -> list[Change]:
    """Try what could help this kind of dataset; each gain is over the same samples served as they are now.

    Args:
        target: What is measured.
        config: The chosen settings.
        seconds: For all of it, about.
        waits: Samples give their core up for part of their time.
        told: Called with what takes long.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loaders-bench-")))
        trials = list(_trials(target, config, folder, waits, told))
        if not trials:
            return []
        return _measured(Trial("", target.dataset, config), trials, seconds)


def _measured(now: Trial, trials: list[Trial], seconds: float) -> list[Change]:
    everything = [now, *trials]
    # Batch sizes tell them apart to `interleave`, which knows configurations only: a number stands for each.
    by_number = {Config(number, 1): trial for number, trial in enumerate(everything)}
    run_s = max(0.2, seconds / 3 / len(everything))

    def run(number: Config) -> Any:
        trial = by_number[number]
        return time_loader(
            make_loader(trial.dataset, trial.config),
            seconds=run_s,
            round_size=round_size(trial.dataset, trial.config),
            watch=False,
        )

    results = interleave(list(by_number), run, repeats=3)
    if not results[0].rate:
        return []
    return [
        _gain(trial.what, results[0], result)
        for trial, result in zip(trials, results[1:], strict=True)
        if result.rate
    ]


def _trials(
    target: Target, config: Config, folder: Path, waits: bool, told: Callable[[str], None]
) -> Iterator[Trial]:
    dataset = target.dataset
    workers = max(config.num_workers, usable_cores())
    threads = replace(config, backend="thread", num_workers=workers, prefetch=None)
    if isinstance(dataset, ImageFiles):
        told("loading a sample of the files into memory")
        yield Trial(
            "RAMDataset.from_files (files in memory, threads)", dataset.in_ram(_SAMPLE), threads
        )
        yield from _packed(_spread(dataset.files), target, folder, threads, told)
    elif isinstance(dataset, PackedDataset):
        yield from _in_memory(dataset, threads, told)
        if target.size:
            yield from _packed(_as_files(dataset, folder), target, folder, threads, told)
    elif not isinstance(dataset, TokenWindows):  # which one thread serves
        yield from _waiting(target, config, waits)


def _waiting(target: Target, config: Config, waits: bool) -> Iterator[Trial]:
    """Workers beyond the cores help only those that wait; of what computes they only take cores from other work."""
    more = max(8, 4 * usable_cores())
    if waits and config.num_workers < more:
        yield Trial(f"num_workers={more}", target.dataset, replace(config, num_workers=more))
    if config.backend == "thread":
        workers = max(1, config.num_workers)
        yield Trial(
            "backend='process'",
            target.dataset,
            replace(config, backend="process", num_workers=workers),
        )


def _spread(files: list[Path]) -> list[Path]:
    return files[:: max(1, len(files) // _SAMPLE)][:_SAMPLE]


def _in_memory(
    dataset: PackedDataset, threads: Config, told: Callable[[str], None]
) -> Iterator[Trial]:
    images = [
        f for f in dataset.schema.fields.values() if isinstance(f, Image) and f.codec != "raw"
    ]
    if not images:
        return
    told("decoding a sample into memory")
    some = dataset.select(np.linspace(0, len(dataset) - 1, min(_SAMPLE, len(dataset))).astype(int))
    try:
        decoded = RAMDataset(some, decode=True, progress=False)
    except LoadersError:  # it does not fit
        return
    yield Trial("RAMDataset(..., decode=True) (pixels in memory)", decoded, threads)


def _as_files(dataset: PackedDataset, folder: Path) -> list[Path]:
    """Write the records of some images back to files, if they are larger than their crops need."""
    name = next((n for n, f in dataset.schema.fields.items() if isinstance(f, Image)), None)
    if name is None or dataset.schema.fields[name].codec != "jpeg":
        return []
    chosen = np.linspace(0, len(dataset) - 1, min(_SAMPLE, len(dataset))).astype(np.int64)
    source = folder / "records" / "one"
    source.mkdir(parents=True)
    for i, record in enumerate(dataset.store.records(name, dataset.rows_of(chosen))):
        (source / f"{i:05}.jpg").write_bytes(record.tobytes())
    return sorted(source.iterdir())


def _packed(
    files: list[Path], target: Target, folder: Path, config: Config, told: Callable[[str], None]
) -> Iterator[Trial]:
    """Pack files by the command that the user would run: at the size that the crops need, or loose ones as they are."""
    if not files:
        return
    wanted = round(target.size * _SHARE_OF_CROP)
    sides = [min(picture_size(file.read_bytes())) for file in files[:32]]
    options, how = ["--size", str(wanted)], f"at {wanted} px"
    if float(np.median(sides)) < _WORTH_PACKING * wanted:
        options, how = [], "as they are"
        if target.kind == "packed":
            return
    told(f"packing {len(files)} images {how} to try it")
    source = folder / "images" / "one"
    source.mkdir(parents=True)
    for i, file in enumerate(files):
        (source / f"{i:05}{file.suffix}").symlink_to(file.absolute())
    out = folder / "packed"
    command = [sys.executable, "-m", "packdata", "images", str(source), str(out)]
    try:
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            timeout=_PACK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
    if done.returncode not in (0, 3):  # 3: some of them were rejected
        return
    named = "SOURCE" if target.kind == "packed" else target.name
    said = " ".join(["packdata images", named, "packed", *options])
    yield Trial(f"pack {how} ({said})", ShardDataset(out, augment=ops_for(target.size)), config)
