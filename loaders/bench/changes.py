"""What a user can change, tried on a sample of the data beside what is there now."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.bench import planner
from loaders.bench.measure import Config, interleave
from loaders.bench.report import last_line, of_error
from loaders.bench.sweep import IS_SHORT, Dropper, is_short, time_target
from loaders.bench.targets import ImageFiles, Target, TargetError, ops_for, shards_of
from loaders.bench.verdict import Change
from loaders.codecs.heads import picture_size
from loaders.datasets.memory.ram import RAMDataset
from loaders.datasets.packed import PackedDataset
from loaders.datasets.shard import ShardDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.errors import LoadersError
from loaders.limits import available_memory, usable_cores
from loaders.schema import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.bench.measure import Result
    from loaders.bench.sweep import Sweep

_SAMPLE = 256
_WORTH_PACKING = 1.2  # times as large as they need be
_PACK_TIMEOUT_S = 60
_SHARE_OF_CROP = 8 / 7  # 256 for a crop of 224, as is usual
_SHARE_OF_MEMORY = 0.5  # of what is available, for workers beyond the cores


@dataclass(frozen=True, slots=True)
class Trial:
    """A dataset to measure in place of another.

    Attributes:
        what: The change in a few words.
        target: The same samples, after the change.
        config: Its loader's settings.
        is_in_memory: No files are read.
    """

    what: str
    target: Target
    config: Config
    is_in_memory: bool = False


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
    sample_bytes: float = 0.0,
    cold: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> list[Change]:
    """Try what could help this kind of dataset; each gain is over the same samples served as they are now.

    Args:
        target: What is measured.
        config: The chosen settings.
        seconds: For all of it, about.
        waits: Samples give their core up for part of their time.
        sample_bytes: Of a sample in a batch: what does not fit into memory is not tried.
        cold: Drop the files from the page cache before each run.
        told: Called with what takes long, and with what cannot be tried, and why.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loaders-bench-")))
        most_workers = _most_workers(config, sample_bytes) if waits else 0
        trials = list(_trials(target, config, folder, most_workers, told))
        if not trials:
            return []
        now = Trial("the dataset as it is", target, config)
        return _measured(now, trials, seconds, cold, told)


def _measured(
    now: Trial, trials: list[Trial], seconds: float, cold: bool, told: Callable[[str], None]
) -> list[Change]:
    everything = [now, *trials]
    # Batch sizes tell them apart to `interleave`, which knows configurations only: a number stands for each.
    by_number = {Config(number, 1): trial for number, trial in enumerate(everything)}
    run_s = max(0.2, seconds / 3 / len(everything))
    said: list[str] = []

    def run(number: Config) -> Any:
        trial = by_number[number]
        reads = cold and not trial.is_in_memory
        if reads:
            said.extend(_dropped(trial))
        return time_target(trial.target, trial.config, seconds=run_s, once=reads, watch=False)

    results = interleave(list(by_number), run, repeats=3)
    for note in dict.fromkeys(said):
        told(note)
    for trial, result in zip(everything, results, strict=True):
        if result.error:
            told(f"{trial.what}: failed in run {len(result.runs) + 1}: {last_line(result.error)}")
    if results[0].error:
        return []
    return [
        _gain(trial.what, results[0], result)
        for trial, result in zip(trials, results[1:], strict=True)
        if not result.error
    ]


def _dropped(trial: Trial) -> list[str]:
    """Drop what a trial reads from the page cache; return what keeps its run from being a cold one."""
    drop = Dropper(trial.target)
    drop()
    is_brief = is_short(trial.target.dataset, trial.config)
    return [f"{trial.what}: {note}" for note in [*drop.notes, *[IS_SHORT] * is_brief]]


def _trials(
    target: Target, config: Config, folder: Path, most_workers: int, told: Callable[[str], None]
) -> Iterator[Trial]:
    dataset = target.dataset
    threads = replace(config, backend="thread", prefetch=None)
    kinds: dict[str, Iterator[Trial]] = {}
    if isinstance(dataset, ImageFiles):
        kinds["RAMDataset.from_files"] = _in_memory_as_files(dataset, threads, told)
        kinds["packing"] = _packed(target, folder, threads, told)
    elif isinstance(dataset, PackedDataset) and not dataset.has_own_samples:
        kinds["RAMDataset(..., decode=True)"] = _in_memory(dataset, threads, told)
        if target.size:
            kinds["packing"] = _packed(target, folder, threads, told)
    elif not isinstance(dataset, TokenWindows):  # which one thread serves
        kinds["more workers"] = _waiting(target, config, most_workers)
    for what, trials in kinds.items():
        try:
            yield from trials
        except Exception as error:  # a bad file, say, that is served now; or it does not fit
            told(f"{what} is not tried: {of_error(error)}")


def _most_workers(config: Config, sample_bytes: float) -> int:
    """Return how many workers to try beyond the cores: fewer where they would take too much memory."""
    most, room = max(8, 4 * usable_cores()), _SHARE_OF_MEMORY * available_memory()
    while most and planner.plan(sample_bytes, replace(config, num_workers=most)).rank_bytes > room:
        most //= 2
    return most


def _waiting(target: Target, config: Config, most_workers: int) -> Iterator[Trial]:
    """Workers beyond the cores help only those that wait; of what computes they only take cores from other work."""
    if config.num_workers < most_workers:
        more = replace(config, num_workers=most_workers)
        yield Trial(f"num_workers={most_workers}", target, more)
    if config.backend == "thread":
        workers = max(1, config.num_workers)
        said = "backend='process'" + ("" if config.num_workers else f", num_workers={workers}")
        yield Trial(said, target, replace(config, backend="process", num_workers=workers))


def _held(what: str, dataset: RAMDataset, config: Config) -> Trial:
    return Trial(what, Target(what, "object", lambda: dataset), config, is_in_memory=True)


def _spread(files: list[Path]) -> list[Path]:
    return files[:: max(1, len(files) // _SAMPLE)][:_SAMPLE]


def _in_memory_as_files(
    dataset: ImageFiles, threads: Config, told: Callable[[str], None]
) -> Iterator[Trial]:
    told("loading a sample of the files into memory")
    some = dataset.in_ram(_SAMPLE)
    yield _held("RAMDataset.from_files (files in memory, threads)", some, threads)


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
    decoded = RAMDataset(some, decode=True, progress=False)
    yield _held("RAMDataset(..., decode=True) (pixels in memory)", decoded, threads)


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
    target: Target, folder: Path, config: Config, told: Callable[[str], None]
) -> Iterator[Trial]:
    """Pack files by the command that the user would run: at the size that the crops need, or loose ones as they are."""
    dataset = target.dataset
    is_loose = isinstance(dataset, ImageFiles)
    files = _spread(dataset.files) if is_loose else _as_files(dataset, folder)
    if not files:
        return
    sides = list(_sides(files[:32]))
    if not sides:
        others = " and others are" if len(files) > 1 else " is"
        raise TargetError(f"{files[0]}{others} not JPEG, PNG or WebP, or damaged.")
    wanted = round(target.size * _SHARE_OF_CROP)
    options, how = ["--size", str(wanted)], f"at {wanted} px"
    if not wanted or float(np.median(sides)) < _WORTH_PACKING * wanted:
        options, how = [], "as they are"
        if not is_loose:
            return
    told(f"packing {len(files)} images {how} to try it")
    out = _pack(files, folder, options)
    said = " ".join(["packdata images", target.name if is_loose else "SOURCE", "packed", *options])
    what, size = f"pack {how} ({said})", target.size
    packed = Target(
        what, "packed", lambda: ShardDataset(out, augment=ops_for(size)), shards_of(out), size
    )
    yield Trial(what, packed, config)


def _sides(files: list[Path]) -> Iterator[int]:
    """Yield the shorter side of each picture that shows it."""
    for file in files:
        with suppress(LoadersError, OSError):
            yield min(picture_size(file.read_bytes()))


def _pack(files: list[Path], folder: Path, options: list[str]) -> Path:
    """Pack pictures, and return where they are; TargetError if that fails."""
    source, out = folder / "images" / "one", folder / "packed"
    source.mkdir(parents=True)
    for i, file in enumerate(files):
        (source / f"{i:05}{file.suffix}").symlink_to(file.absolute())
    command = [sys.executable, "-m", "packdata", "images", str(source), str(out)]
    command += ["--on-error", "skip", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PACK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"it took more than {_PACK_TIMEOUT_S} s") from error
    if done.returncode not in (0, 3):  # 3: some of them were rejected
        raise TargetError((done.stderr.strip().splitlines() or ["it failed."])[-1])
    return out
