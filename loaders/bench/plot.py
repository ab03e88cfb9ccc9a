"""A sweep as a picture: throughput and memory against workers, the chosen point marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError
from loaders.text import number

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.bench.measure import Result
    from loaders.bench.sweep import Sweep

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
        memory.plot(x, [r.pss_bytes / 1e6 for r in results], mark, color=colour)
    best, ring = sweep.best, {"s": 130, "facecolors": "none", "edgecolors": "black", "zorder": 5}
    chosen = [ticks.index(best.config.num_workers)]
    rate.scatter(chosen, [best.rate], label=f"chosen: {number(best.rate)} samples/s", **ring)
    memory.scatter(chosen, [best.pss_bytes / 1e6], **ring)
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
