"""Figures as people read them: in 80 columns, as JSON, and as a picture of throughput and memory against workers."""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loaders.errors import LoadersError
from loaders.system.limits import text, usable_cores
from loaders.text import describe_size, in_seconds, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.measure import Result
    from loaders.bench.sweep import Sweep

_MAX_COLUMNS = 9  # of a table, to fit 80 letters


def table(sweep: Sweep) -> str:
    """Return a sweep as lines of text: what all settings share stands above, the chosen one is marked."""
    results, above = sweep.results, list[str]()
    columns = {
        "": ["*" if r is sweep.best else "" for r in results],
        "workers": [str(r.config.num_workers) for r in results],
    }
    for name, setting in (
        ("batch", "batch_size"),
        ("backend", "backend"),
        ("prefetch", "prefetch"),
    ):
        values = [str(getattr(r.config, setting) or "-") for r in results]
        if len(set(values)) > 1:
            columns[name] = values
        elif values[0] != "-":
            above.append(f"{name} {values[0]}")
    columns |= {
        "samples/s": [number(r.rate if r.runs else math.nan) for r in results],
        "range": ["-".join(map(short, r.spread)) if r.runs else "-" for r in results],
        "first": [in_seconds(r.median("first_batch_s")) for r in results],
        "p99 wait": [in_seconds(r.latency_s(0.99)) for r in results],
        "memory": [describe_size(r.most("pss_bytes")) for r in results],
    }
    if sweep.tokens:
        columns["tokens/s"] = [short(r.rate * sweep.tokens) for r in results]
    if sweep.cache == "cold":
        columns["read"] = [describe_size(r.most("read_bytes")) for r in results]
    if len(columns) > _MAX_COLUMNS:
        del columns["first"]
    rows = zip(*columns.values(), strict=True)
    lines = [", ".join([*above, f"page cache {sweep.cache}", "range over the repeats"])]
    lines += aligned([tuple(columns), *rows])
    lines.append(f"* chosen: {sweep.best.config}")
    lines += [f"failed: {r.config}: {last_line(r.error)}" for r in results if r.error]
    return "\n".join([*lines, *(f"note: {note}" for note in sweep.notes)])


def short(value: float) -> str:
    """Return a rate in few letters.

    Example:
        >>> short(1234567.0), short(12345.0), short(12.3)
        ('1.23M', '12.3k', '12.3')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def last_line(text: str | None) -> str:
    """Return the last line of a text: of a worker process's error the one that tells."""
    return ((text or "").strip().splitlines() or [""])[-1]


def of_error(error: BaseException) -> str:
    """Return an error in one line; ours need no name."""
    if isinstance(error, LoadersError):
        return str(error)
    return f"{type(error).__name__}: {last_line(str(error))}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def conditions() -> dict[str, Any]:
    """Return where and with what something was measured."""
    return {
        "machine": cpu_name(),
        "cores_usable": usable_cores(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def cpu_name() -> str:
    """Return the processor's name."""
    lines = (text(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def as_json(value: Any) -> str:
    """Return JSON; what is not a number becomes null."""
    return json.dumps(_clean(value), indent=1)


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _clean(inner) for key, inner in value.items()}
    return list(map(_clean, value)) if isinstance(value, list | tuple) else value


# -- a picture -------------------------------------------------------------------------------------

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; then the same with other marks.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = ("o-", "s--", "D:")
_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be written, before there is anything to draw.

    Raises:
        LoadersError: Its folder does not exist, its name has no known ending, or matplotlib is not installed.
    """
    _figure_class()
    if path.suffix.lower() not in _SUFFIXES:
        raise LoadersError(f"--plot must end in {', '.join(_SUFFIXES)}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise LoadersError(f"--plot {str(path)!r}: there is no folder {str(path.parent)!r}")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LoadersError("--plot needs matplotlib: pip install matplotlib") from error
    return Figure


def plot(sweep: Sweep, path: Path, *, subtitle: str = "") -> None:
    """Write a picture of a sweep; its format follows from the name (png, svg, pdf)."""
    draw(sweep, subtitle=subtitle).savefig(path, dpi=150)


def draw(sweep: Sweep, *, subtitle: str = "") -> Any:
    """Return a sweep as a figure of matplotlib's."""
    lines = _lines(sweep)
    figure = _figure_class()(figsize=(8, 7 + 0.12 * len(lines)), layout="constrained")
    rate, memory = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    ticks = sorted({r.config.num_workers for r in sweep.results if r.runs})
    for count, (name, results) in enumerate(lines.items()):
        colour = _COLOURS[count % len(_COLOURS)]
        mark = _MARKS[count // len(_COLOURS) % len(_MARKS)]
        x = [ticks.index(r.config.num_workers) for r in results]
        lows, highs = zip(*(r.spread for r in results), strict=True)
        rate.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)
        rate.plot(x, [r.rate for r in results], mark, color=colour, label=name)
        memory.plot(x, [r.most("pss_bytes") / 1e6 for r in results], mark, color=colour)
    best, ring = sweep.best, {"s": 130, "facecolors": "none", "edgecolors": "black", "zorder": 5}
    chosen = [ticks.index(best.config.num_workers)]
    rate.scatter(chosen, [best.rate], label=f"chosen: {number(best.rate)} samples/s", **ring)
    memory.scatter(chosen, [best.most("pss_bytes") / 1e6], **ring)
    repeats = max(len(r.runs) for r in sweep.results)
    what = f"median of {repeats}, shaded: lowest to highest; page cache {sweep.cache}"
    rate.set_ylabel("samples/s")
    rate.set_title(what, fontsize=10)
    memory.set(xlabel="workers", ylabel="memory (PSS,\nall processes), MB")
    memory.set_xticks(range(len(ticks)), [str(t) for t in ticks])
    for axes in (rate, memory):
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", alpha=0.3)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    name = sweep.target if len(sweep.target) < 76 else f"...{sweep.target[-73:]}"
    figure.suptitle(f"{name}\n{subtitle}".rstrip(), fontsize=12)
    return figure


def _lines(sweep: Sweep) -> dict[str, list[Result]]:
    """Group results that differ in workers only."""
    found: dict[str, list[Result]] = {}
    for result in sorted(sweep.results, key=lambda result: result.config.num_workers):
        config = result.config
        name = f"{config.backend}, batch {config.batch_size}"
        name += f", prefetch {config.prefetch}" if config.prefetch else ""
        if result.runs:
            found.setdefault(name, []).append(result)
    return found
