"""Measure a dataset and its loader, say what bounds them, and what to change; 'sweep' may be left out."""

from __future__ import annotations

import sys
import traceback
import warnings
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loaders.bench import doctor, planner, report
from loaders.bench.measure import Config, as_arguments
from loaders.bench.stages import Analysis, analyse
from loaders.bench.sweep import Sweep, grid, run_sweep
from loaders.bench.targets import CROP, MeasuredDataset, is_map_style, load, load_object
from loaders.commandline import Command, Commands, number_from, run, show
from loaders.datasets.base import BatchDataset
from loaders.datasets.shard import ShardDataset
from loaders.device.accelerator import as_device
from loaders.errors import LoadersError
from loaders.gone import BENCH
from loaders.loading.loader import DataLoader
from loaders.loading.tuning import write_workers
from loaders.remote.options import add_remote, set_remote
from loaders.remote.url import is_url
from loaders.system.limits import available_memory, usable_cores
from loaders.text import describe_size, in_seconds, number, printable
from loaders.verdict import BUSY, Verdict, judge

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from loaders.commandline import Parser

_BACKENDS = ("thread", "subprocess", "process")
_ORDERS = {"lanes": "lanes", "block": "block", "full": True, "no": False}
_SWEEP_SHARE, _STAGES_SHARE = 0.65, 0.35

_Found = tuple[Verdict, Analysis]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 for done, 1 for what cannot be measured (argparse exits 2)."""
    args = COMMANDS.parse_args(sys.argv[1:] if argv is None else argv)
    # More workers than cores are tried on purpose.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    try:
        return run(args)
    except KeyboardInterrupt:
        _say("loaders.bench: interrupted")
        return 130
    except Exception as error:  # on the command line nothing else catches it
        if not isinstance(error, LoadersError | OSError):  # a mistake in code, the user's or ours
            _say("".join(traceback.format_exception(error)).rstrip())
        _say(f"loaders.bench: {report.of_error(error)}")
        return 1


_count, _positive = number_from(0), number_from(1)
_seconds, _amount = number_from(0.01, kind=float), number_from(0, kind=float)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dataset", help="a packed folder or its URL, a folder of images, or module:object")
    which = "loose images, and those of different sizes"
    what = f"crop {which}, to this (default: {CROP}; 0: do not crop)"
    add("--size", type=_count, metavar="PX", help=what)
    add("--json", action="store_true", help="print JSON")


def _add_measured(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, what bounds a measurement, and what it measures beside loading."""
    _add_dataset(parser)
    add = parser.add_argument
    add("--batch-size", type=_positive, nargs="+", metavar="N", help="batch sizes to try")
    what = "time to spend on measuring, roughly (default: 40)"
    add("--seconds", type=_seconds, default=40, help=what)
    add_remote(parser)
    what = "runs of each configuration (default: 3)"
    add("--repeats", type=_positive, default=3, metavar="N", help=what)
    what = "your training step: called with each batch"
    add("--step", metavar="MODULE:FUNCTION", help=what)
    add("--device", help="where batches go (default: cuda if there is one)")


def _load(args: argparse.Namespace) -> MeasuredDataset:
    set_remote(args)
    if is_url(args.dataset):
        _say(
            "fetching the dataset first: loading is measured from the cache, as in a second epoch"
        )
    target = load(args.dataset, size=CROP if args.size is None else args.size)
    if is_map_style(target.dataset) and not len(target.dataset):
        raise LoadersError(f"{args.dataset!r} has no samples")
    if args.size and target.size != args.size:
        _say(f"--size {args.size} is left out: only folders of images of many sizes are cropped")
    return target


def _check_before(args: argparse.Namespace) -> None:
    """Refuse now what would otherwise fail when all is measured."""
    if args.step and not callable(step := load_object(args.step)):
        raise LoadersError(f"--step {args.step!r} is a {type(step).__name__}, not a function")
    if args.device:
        try:
            as_device(args.device)
        except ValueError as error:
            raise LoadersError(f"--device: {error}") from error


# -- sweep and recommend ---------------------------------------------------------------------------


def _add_sweep(parser: Parser) -> None:
    _add_measured(parser)
    add = parser.add_argument
    what = "numbers of workers to try (default: 0, 1, 2, 4, ... cores)"
    add("--workers", type=_count, nargs="+", metavar="N", help=what)
    names = f"backends to try: {', '.join(_BACKENDS)}"
    add("--backend", choices=_BACKENDS, nargs="+", metavar="NAME", help=names)
    add("--prefetch", type=_positive, nargs="+", metavar="N", help="prefetch factors to try")
    what = "only measure; do not say what limits the run"
    add("--no-verdict", action="store_true", help=what)


def run_sweep_command(args: argparse.Namespace) -> int:
    """Measure, judge, print."""
    _check_before(args)
    target = _load(args)
    said = f"{len(target.dataset):,} samples" if is_map_style(target.dataset) else "a stream"
    if target.window:
        said += f", windows of {target.window:,} tokens (TokenWindows)"
    elif target.size:
        said += f", random crops of {target.size} x {target.size}, flipped at random"
    _say(f"{target.name}: {said}")
    configs = grid(
        target,
        workers=args.workers,
        batch_sizes=args.batch_size,
        backends=args.backend,
        prefetch=args.prefetch,
    )
    sweep = _sweep(target, configs, args)
    if not args.json:
        show(report.table(sweep))
    found = None if args.no_verdict else _judge(target, sweep, args)
    if args.json:
        print(report.as_json(_sweep_json(sweep, found)), flush=True)
    elif found is not None:
        verdict, analysis = found
        show(f"\n{_verdict_text(sweep.best.config, verdict, analysis)}")
    return 0


def _add_recommend(parser: Parser) -> None:
    _add_measured(parser)
    what = "remember the number of workers even if the machine is busy"
    parser.add_argument("--keep", action="store_true", help=what)


def run_recommend(args: argparse.Namespace) -> int:
    """Measure, print one line, and keep the number of workers for ``num_workers="auto"``."""
    _check_before(args)
    target = _load(args)
    sweep = _sweep(target, grid(target, batch_sizes=args.batch_size), args)
    if sweep.notes:
        what = "Nothing is recommended: measure the dataset that you will train on"
        raise LoadersError(f"{sweep.notes[0]}. {what}")
    best, found = sweep.best, _judge(target, sweep, args)
    line = recommended_line(target, best.config, _device(args))
    kept, said = None, "the machine is busy; --keep does it anyway"
    if args.keep or found[1].facts.available >= BUSY:
        kept, said = _keep(target, best.config.num_workers)
    if args.json:
        value = _sweep_json(sweep, found) | {"line": line, "kept_in": str(kept or "")}
        print(report.as_json(value))
    else:
        show(line)
        low, high = map(number, best.spread)
        tokens = f", {number(best.rate * sweep.tokens)} tokens/s" if sweep.tokens else ""
        _say(f"{number(best.rate)} samples/s ({low} to {high}){tokens}")
        _say(str(found[0]))
    _say(said if kept else f'not kept for num_workers="auto": {said}')
    return 0


def _sweep(target: MeasuredDataset, configs: list[Config], args: argparse.Namespace) -> Sweep:
    share = _SWEEP_SHARE * args.seconds
    sweep = run_sweep(target, configs, seconds=share, repeats=args.repeats)
    if not sweep.sound:
        raise LoadersError(f"every setting failed in some run: {sweep.results[0].error}")
    return sweep


def _keep(target: MeasuredDataset, num_workers: int) -> tuple[Path | None, str]:
    """Keep a number of workers; return the file, and for what it counts, or None, and why it is not kept."""
    cores = usable_cores()
    kept = write_workers(target.dataset, cores, num_workers)
    if kept is None:
        return None, "the dataset has no fingerprint to know it by, or a transform"
    said = f'num_workers="auto" now takes {num_workers} on {cores} core{"s" * (cores > 1)} for'
    return kept, f"{said} {target.python}, and for no other settings of it ({kept})"


def recommended_line(
    target: MeasuredDataset, config: Config, device: torch.device | None = None
) -> str:
    """Return Python that makes the loader."""
    given: dict[str, Any] = {"batch_size": config.batch_size}
    if is_map_style(target.dataset):  # a stream has the order that it comes in
        given["shuffle"] = True
    given |= config.arguments()
    if config.backend == target.backend:
        del given["backend"]
    if config.num_workers and config.backend in ("subprocess", "process"):
        given["persistent_workers"] = True
    if device is not None and device.type != "cpu":
        given["device"] = str(device)
    dataset = f"TokenWindows(dataset, length={target.window})" if target.window else "dataset"
    return f"DataLoader({dataset}, {as_arguments(given)})"


def _judge(target: MeasuredDataset, sweep: Sweep, args: argparse.Namespace) -> _Found:
    """Return what bounds the run."""
    best = sweep.best.config
    _say("running each stage alone")
    found = analyse(
        target.dataset,
        best,
        sweep.best.rate,
        seconds=_STAGES_SHARE * args.seconds,
        device=_device(args),
        step=load_object(args.step) if args.step else None,
    )
    usual = Config(0, best.batch_size, target.backend)  # a loader given nothing but the batch size
    if isinstance(target.dataset, BatchDataset):
        loader = DataLoader(target.dataset, best.batch_size, rank=0, world_size=1)
        usual = replace(usual, num_workers=loader.num_workers)
    return judge(found.facts, sweep.change_from(usual)), found


def _device(args: argparse.Namespace) -> torch.device | None:
    """Return where batches go; None: they stay."""
    if args.device:
        return torch.device(args.device)
    return torch.device("cuda") if torch.cuda.is_available() else None


def _verdict_text(config: Config, verdict: Verdict, found: Analysis) -> str:
    rows: list[tuple[str, ...]] = [("stage", "per sample", "on a core", "waiting", "samples/s")]
    for name, cost in found.stages.items():
        rows.append((name, *map(in_seconds, astuple(cost)), number(cost.samples_per_s)))
    limits = ", ".join(f"{name} {number(limit)}" for name, limit in verdict.limits.items())
    lines = [*report.aligned(rows), "", f"limits with {config}, samples/s: {limits}"]
    if found.step_samples_per_s is not None:
        stalled, rate = found.facts.stall_share or 0.0, number(found.step_samples_per_s)
        lines.append(
            f"with your step: {rate} samples/s, {stalled:.0%} of the time waiting for data"
        )
    return "\n".join([*lines, "", str(verdict)])


def _sweep_json(sweep: Sweep, found: _Found | None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "dataset": sweep.target,
        "notes": sweep.notes,
        "tokens_per_sample": sweep.tokens,
        "conditions": report.conditions(),
        "results": [result.summary() for result in sweep.results],
        "chosen": asdict(sweep.best.config),
    }
    if found is not None:
        verdict, analysis = found
        value["verdict"] = asdict(verdict)
        value["stages"] = {name: asdict(cost) for name, cost in analysis.stages.items()}
        value["facts"] = asdict(analysis.facts)
        value["step_samples_per_s"] = analysis.step_samples_per_s
    return value


def _say(text: str) -> None:
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)


# -- plan and doctor -------------------------------------------------------------------------------


def _add_plan(parser: Parser) -> None:
    _add_dataset(parser)
    add, what = parser.add_argument, "samples per batch and rank (default: 256)"
    add("--batch-size", type=_positive, default=256, metavar="N", help=what)
    what = "workers of each rank (default: its share of the cores)"
    add("--workers", type=_count, metavar="N", help=what)
    add("--backend", choices=_BACKENDS)
    add("--prefetch", type=_positive, metavar="N", help="prefetch factor")
    what = "training processes on the machine (default: 1)"
    add("--ranks", type=_positive, default=1, metavar="N", help=what)
    kinds = ("no", "encoded", "decoded")
    add("--ram", choices=kinds, default="no", help="hold the dataset in RAM")
    add("--shared", action="store_true", help="with --ram: one copy for all ranks")
    what = "copy batches to a device through pinned memory"
    add("--pinned", action="store_true", help=what)
    add_remote(parser)
    what = "for a URL: machines that train"
    add("--nodes", type=_positive, default=1, metavar="N", help=what)
    what = "for a URL (default: lanes)"
    add("--shuffle", choices=[*_ORDERS], default="lanes", help=what)
    what = "for a URL: MB/s that a machine gets (default: 125, a link of 1 Gbit/s)"
    add("--rate", type=_amount, default=125, metavar="N", help=what)


def run_plan(args: argparse.Namespace) -> int:
    """Print what a configuration will need."""
    if is_url(args.dataset):
        return _plan_epochs(args)
    if args.shared and args.ram == "no":
        args.parser.error("--shared goes with --ram: it is of the dataset in memory")
    target = _load(args)
    dataset = target.dataset
    share = max(1, usable_cores() // args.ranks)  # as num_workers="auto" has it under torchrun
    workers = share if args.workers is None else args.workers
    config = Config(workers, args.batch_size, args.backend or target.backend, args.prefetch)
    cached = 0 if args.ram == "no" else planner.ram_bytes_of(target, decode=args.ram == "decoded")
    plan = planner.plan(
        dataset,
        planner.sample_bytes_of(dataset),
        config,
        pinned=args.pinned,
        cache_bytes=cached,
        shared=args.shared,
        ranks=args.ranks,
    )
    if args.json:
        said = {"config": asdict(config), "plan": plan}
        print(report.as_json(said | {"available_bytes": available_memory()}))
        return 0
    show(f"{target.name}, {config}")
    show("\n".join(report.aligned(planner.table(plan))))
    show(
        "beside it: the trainer itself, and mapped files, which the kernel drops when it needs room"
    )
    show(planner.fits(plan, available_memory()))
    return 0


def _plan_epochs(args: argparse.Namespace) -> int:
    """Print what an epoch over a dataset at a URL downloads, and how long that takes."""
    set_remote(args)
    dataset = ShardDataset(args.dataset)
    (origin,) = dataset.store.remotes
    cache_bytes = origin.cache.size_bytes or origin.budget()
    found = planner.epochs(
        dataset,
        shuffle=_ORDERS[args.shuffle],
        batch_size=args.batch_size,
        nodes=args.nodes,
        cache_bytes=cache_bytes,
    )
    costs = [each | {"seconds": each["node_bytes"] / max(args.rate, 1e-9) / 1e6} for each in found]
    if args.json:
        epochs = dict(zip(("first_epoch", "each_later_epoch"), costs, strict=True))
        print(report.as_json({"cache_bytes": cache_bytes, "nodes": args.nodes} | epochs))
        return 0
    show(
        f"{origin.url}: {len(dataset):,} samples; shuffle={_ORDERS[args.shuffle]!r}, "
        f"{args.nodes} node(s), each with a cache of {describe_size(cache_bytes)}"
    )
    show("\n".join(report.aligned(planner.epoch_table(costs))))
    show(f"at {number(args.rate)} MB/s of each node; --rate changes it")
    return 0


def _add_doctor(parser: Parser) -> None:
    what = "a folder on the disk to examine (default: here)"
    parser.add_argument("path", nargs="?", default=".", help=what)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_doctor(args: argparse.Namespace) -> int:
    """Print the findings about the machine."""
    if not Path(args.path).exists():
        raise LoadersError(f"there is no {args.path!r} to look at")
    place = doctor.Surroundings(Path(args.path))
    findings = [doctor.examine(check, place) for check in doctor.CHECKS]
    if args.json:
        found = {"conditions": report.conditions(), "findings": [asdict(f) for f in findings]}
        print(report.as_json(found))
        return 0
    for finding in findings:
        show(str(finding))
    return 0


_SWEEP = Command(
    name="sweep",
    summary="measure settings; say what limits the run and what to change",
    add=_add_sweep,
    run=run_sweep_command,
)
_RECOMMEND = Command(
    name="recommend",
    summary="print the DataLoader line to use, kept for num_workers='auto'",
    add=_add_recommend,
    run=run_recommend,
)
_PLAN = Command(
    name="plan",
    summary="say how much memory a configuration will need",
    add=_add_plan,
    run=run_plan,
)
_DOCTOR = Command(
    name="doctor",
    summary="say what on this machine costs speed or will break",
    add=_add_doctor,
    run=run_doctor,
)
COMMANDS = Commands(
    "python -m loaders.bench",
    str(__doc__),
    {"measure": (_SWEEP, _RECOMMEND), "look": (_PLAN, _DOCTOR)},
    default="sweep",
    gone=BENCH,
)
