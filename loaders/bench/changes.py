"""What a user can change, tried on a sample of the data beside what is there now."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.bench.measure import as_arguments, interleave
from loaders.bench.report import last_line, of_error
from loaders.bench.sweep import dropped, time_target
from loaders.bench.targets import (
    ImageFiles,
    MeasuredDataset,
    TargetError,
    load,
    spread,
)
from loaders.codecs.heads import picture_size
from loaders.datasets.memory.ram import RAMDataset
from loaders.datasets.packed import PackedDataset
from loaders.datasets.tokens.windows import TokenWindows
from loaders.errors import LoadersError
from loaders.schema import Image
from loaders.system.limits import usable_cores
from loaders.verdict import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.bench.measure import Config, Result, TimedPass
    from loaders.bench.sweep import Sweep

    Told = Callable[[str], None]

_SAMPLE = 256
_MOST_WORKERS = 64  # a process each: more take much memory
_WORTH_PACKING = 1.2  # times as large as they need be
_PACK_TIMEOUT_S = 60
_SHARE_OF_CROP = 8 / 7  # 256 for a crop of 224, as is usual


@dataclass(frozen=True, slots=True)
class Trial:
    """A dataset to measure in place of another."""

    what: str  # the change in a few words
    target: MeasuredDataset  # the same samples, after the change
    config: Config  # its loader's settings


def from_sweep(sweep: Sweep, usual: Config) -> list[Change]:
    """Return what the sweep itself shows: the chosen settings beside those that a loader has by itself."""
    before, best = next((r for r in sweep.results if r.config == usual), None), sweep.best
    if before is None or not before.rate or best.config == usual:
        return []
    now, old = best.config.arguments(), usual.arguments()
    changed = {name: value for name, value in now.items() if old.get(name) != value}
    said = f"{as_arguments(changed)} instead of num_workers={usual.num_workers}"
    return [_gain(said, before, best)]


def _gain(what: str, before: Result, after: Result) -> Change:
    """Return the change that one result is beside another: its least gain is of the slowest run over the quickest."""
    (slow, quick), (slow_after, quick_after) = before.spread, after.spread
    between = slow_after / max(1e-9, quick), quick_after / max(1e-9, slow)
    return Change(what, after.rate / before.rate, between)


def tried(
    target: MeasuredDataset,
    config: Config,
    *,
    seconds: float = 8.0,
    waits: bool = True,
    cold: bool = False,
    told: Told = lambda _: None,
) -> list[Change]:
    """Try what could help this kind of dataset; each gain is over the same samples served as they are now.

    With ``waits``, samples give their core up for part of their time. ``told`` is called with what takes long, and
    with what cannot be tried, and why.
    """
    with tempfile.TemporaryDirectory(prefix="loaders-bench-") as folder:
        trials = [Trial("the dataset as it is", target, config)]
        trials += _trials(target, config, Path(folder), waits, told)
        if len(trials) == 1:
            return []
        run_s = max(0.2, seconds / 3 / len(trials))

        def run(trial: Trial) -> TimedPass:
            reads = cold and bool(trial.target.files)
            if reads:
                notes.update(f"{trial.what}: {note}" for note in dropped(trial.target))
            return time_target(trial.target, trial.config, seconds=run_s, once=reads)

        notes: set[str] = set()
        runs = [(trial.config, partial(run, trial)) for trial in trials]
        results = interleave(runs, repeats=3)
    notes |= {
        f"{trial.what}: failed in run {len(result.runs) + 1}: {last_line(result.error)}"
        for trial, result in zip(trials, results, strict=True)
        if result.error
    }
    for note in sorted(notes):
        told(note)
    pairs = list(zip(trials, results, strict=True))[1:]
    is_known = results[0].error is None
    return [_gain(t.what, results[0], r) for t, r in pairs if is_known and not r.error]


def _trials(
    target: MeasuredDataset, config: Config, folder: Path, waits: bool, told: Told
) -> Iterator[Trial]:
    dataset = target.dataset
    is_ours = isinstance(dataset, PackedDataset) and not dataset.has_own_samples
    if is_ours or isinstance(dataset, ImageFiles):
        threads = replace(config, backend="thread", prefetch=None)
        kinds = {"RAMDataset": _in_memory(dataset, threads, told)}
        if target.size or not is_ours:
            kinds["packing"] = _packed(target, folder, threads, told)
    elif waits and not isinstance(dataset, TokenWindows):  # which one thread serves
        kinds = {"more workers": _waiting(target, config)}
    else:
        kinds = {}
    for what, trials in kinds.items():
        try:
            yield from trials
        except Exception as error:  # a bad file, say, that is served now; or it does not fit
            told(f"{what} is not tried: {of_error(error)}")


def _waiting(target: MeasuredDataset, config: Config) -> Iterator[Trial]:
    """Workers beyond the cores help only those that wait; of what computes they only take cores from other work."""
    most = min(_MOST_WORKERS, max(8, 4 * usable_cores()))
    changes: list[dict[str, Any]] = []
    if config.num_workers < most:
        changes.append({"num_workers": most})
    if config.backend == "thread":
        changes.append({"backend": "process", "num_workers": max(1, config.num_workers)})
    for change in changes:
        yield Trial(as_arguments(change), target, replace(config, **change))


def _in_memory(dataset: ImageFiles | PackedDataset, config: Config, told: Told) -> Iterator[Trial]:
    if isinstance(dataset, ImageFiles):
        told("loading a sample of the files into memory")
        what, held = "RAMDataset.from_files (files in memory, threads)", dataset.in_ram(_SAMPLE)
    else:
        fields = dataset.schema.fields.values()
        if not any(isinstance(field, Image) and field.codec != "raw" for field in fields):
            return
        told("decoding a sample into memory")
        what = "RAMDataset(..., decode=True) (pixels in memory)"
        held = RAMDataset(
            dataset.select(spread(len(dataset), _SAMPLE)), decode=True, progress=False
        )
    yield Trial(what, MeasuredDataset(what, lambda: held), config)


def _packed(target: MeasuredDataset, folder: Path, config: Config, told: Told) -> Iterator[Trial]:
    """Pack files by the command that the user would run: at the size that the crops need, or loose ones as they are."""
    is_loose = isinstance(target.dataset, ImageFiles)
    files = _some_files(target.dataset, folder / "images" / "one")
    if not files:
        return
    sides = list(_sides(files[:32]))
    if not sides:
        raise TargetError(
            f"{files[0].resolve()} and what was looked at beside it is not JPEG, PNG or WebP, or damaged."
        )
    wanted = round(target.size * _SHARE_OF_CROP)
    options, how = ["--size", str(wanted)], f"at {wanted} px"
    if not wanted or float(np.median(sides)) < _WORTH_PACKING * wanted:
        options, how = [], "as they are"
        if not is_loose:
            return
    told(f"packing {len(files)} images {how} to try it")
    out = _pack(folder / "images", folder / "packed", options)
    said = " ".join(["packdata images", target.name if is_loose else "SOURCE", "packed", *options])
    yield Trial(f"pack {how} ({said})", load(str(out), size=target.size), config)


def _some_files(dataset: ImageFiles | PackedDataset, folder: Path) -> list[Path]:
    """Return some of the pictures as files in a folder: links, or the records of a packed dataset if they are JPEGs."""
    folder.mkdir(parents=True)
    if isinstance(dataset, ImageFiles):
        for i, file in enumerate(dataset.some_files(_SAMPLE)):
            (folder / f"{i:05}{file.suffix}").symlink_to(file.absolute())
        return sorted(folder.iterdir())
    name = next((n for n, f in dataset.schema.fields.items() if isinstance(f, Image)), None)
    if name is not None and dataset.schema.fields[name].codec == "jpeg":
        rows = dataset.rows_of(np.array(spread(len(dataset), _SAMPLE)))
        for i, record in enumerate(dataset.store.records(name, rows)):
            (folder / f"{i:05}.jpg").write_bytes(record.tobytes())
    return sorted(folder.iterdir())


def _sides(files: list[Path]) -> Iterator[int]:
    """Yield the shorter side of each picture that shows it."""
    for file in files:
        with suppress(LoadersError, OSError):
            yield min(picture_size(file.read_bytes()))


def _pack(source: Path, out: Path, options: list[str]) -> Path:
    """Pack pictures, and return where they are; TargetError if that fails."""
    words = ["-P", "-m", "packdata", "images", "--on-error", "skip", *options]
    command = [sys.executable, *words, str(source), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PACK_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"it took more than {_PACK_TIMEOUT_S} s") from error
    if done.returncode not in (0, 3):  # 3: some of them were rejected
        raise TargetError(last_line(done.stderr) or "it failed.")
    return out
