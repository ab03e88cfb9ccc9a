"""A sweep as a picture: throughput and memory against workers, the chosen point marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError
from loaders.text import number

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.bench.measure import Config, Result
    from loaders.bench.sweep import Sweep

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_SUFFIXES = (".png", ".svg", ".pdf")


class MissingExtra(LoadersError, ImportError):
    """A package that only this needs is not installed."""


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be written, before there is anything to draw.

    Raises:
        MissingExtra: matplotlib is not installed.
        LoadersError: Its folder does not exist, or its name has no known ending.
    """
    _matplotlib()
    if path.suffix.lower() not in _SUFFIXES:
        raise LoadersError(f"--plot must end in {', '.join(_SUFFIXES)}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise LoadersError(f"--plot {str(path)!r}: there is no folder {str(path.parent)!r}")


def _matplotlib() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("--plot needs matplotlib: pip install matplotlib") from error
    return FigureCanvasAgg, Figure


def plot(sweep: Sweep, path: Path, *, subtitle: str = "") -> None:
    """Write a picture of a sweep; its format follows from the name (png, svg, pdf).

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    draw(sweep, subtitle=subtitle).savefig(path, dpi=150)


def draw(sweep: Sweep, *, subtitle: str = "") -> Any:
    """Return a sweep as a figure of matplotlib's."""
    FigureCanvasAgg, Figure = _matplotlib()
    lines = _lines(sweep)
    figure = Figure(figsize=(8, 7 + 0.12 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    rate, memory = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    ticks = sorted({r.config.num_workers for r in sweep.results if r.runs})
    for count, (name, results) in enumerate(lines.items()):
        style: dict[str, Any] = {
            "color": _COLOURS[count % len(_COLOURS)],
            "marker": _MARKERS[count % len(_MARKERS)],
            "linestyle": "-" if count < len(_COLOURS) else "--",
        }
        x = [ticks.index(r.config.num_workers) for r in results]
        lows, highs = zip(*(r.spread for r in results), strict=True)
        rate.fill_between(x, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
        rate.plot(x, [r.rate for r in results], label=name, **style)
        memory.plot(x, [r.pss_bytes / 1e6 for r in results], **style)
    best = sweep.best
    ring = {"s": 130, "facecolors": "none", "edgecolors": "black", "linewidths": 1.6, "zorder": 5}
    x = [ticks.index(best.config.num_workers)]
    rate.scatter(x, [best.rate], label=f"chosen: {number(best.rate)} samples/s", **ring)
    memory.scatter(x, [best.pss_bytes / 1e6], **ring)
    repeats = max(len(r.runs) for r in sweep.results)
    rate.set_ylabel("samples/s")
    rate.set_title(
        f"median of {repeats}, shaded: lowest to highest; page cache {sweep.cache}", fontsize=10
    )
    memory.set_ylabel("memory (PSS,\nall processes), MB")
    memory.set_xlabel("workers")
    memory.set_xticks(range(len(ticks)), [str(t) for t in ticks])
    for axes in (rate, memory):
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.08)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    name = sweep.target if len(sweep.target) < 76 else f"...{sweep.target[-73:]}"
    figure.suptitle(f"{name}\n{subtitle}" if subtitle else name, fontsize=12)
    return figure


def _lines(sweep: Sweep) -> dict[str, list[Result]]:
    """Group results that differ in workers only."""
    found: dict[str, list[Result]] = {}
    for result in sorted(sweep.results, key=lambda result: result.config.num_workers):
        if result.runs:
            found.setdefault(_name(result.config), []).append(result)
    return found


def _name(config: Config) -> str:
    text = f"{config.backend}, batch {config.batch_size}"
    return text if config.prefetch is None else f"{text}, prefetch {config.prefetch}"
