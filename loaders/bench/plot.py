"""A sweep as a picture: throughput and memory against workers, the chosen point marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.bench.report import number
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.bench.measure import Config, Result
    from loaders.bench.sweep import Sweep

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", ":")  # with more lines than colours, these tell them apart
_FEW = 3  # lines whose legend finds room between them
_TITLE = 76  # letters that are as wide as the picture
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
    is_crowded = len(lines) > _FEW
    figure = Figure(figsize=(8, 7 + 0.12 * len(lines) * is_crowded), layout="constrained")
    FigureCanvasAgg(figure)
    rate, memory = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    ticks = sorted({r.config.num_workers for r in sweep.results if r.runs})
    for count, (name, results) in enumerate(lines.items()):
        _draw(rate, memory, name, results, ticks, count)
    _mark(rate, memory, sweep.best, ticks, is_alone=len(lines) == 1)
    _label(rate, memory, sweep, ticks)
    if is_crowded:
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    else:
        rate.legend(frameon=False, fontsize=9, loc="best")
    name = sweep.target if len(sweep.target) <= _TITLE else f"...{sweep.target[3 - _TITLE :]}"
    figure.suptitle(f"{name}\n{subtitle}" if subtitle else name, fontsize=12)
    return figure


def _lines(sweep: Sweep) -> dict[str, list[Result]]:
    """Group results that differ in workers only; 0 workers belong to every prefetch."""
    found: dict[str, list[Result]] = {}
    configs = [r.config for r in sweep.results if r.runs]
    for result in sweep.results:
        if result.runs:
            for name in _names(result.config, configs):
                found.setdefault(name, []).append(result)
    for results in found.values():
        results.sort(key=lambda result: result.config.num_workers)
    return found


def _names(config: Config, configs: list[Config]) -> list[str]:
    prefetches = sorted({c.prefetch for c in configs if c.prefetch is not None})
    if config.prefetch is None and not config.num_workers and prefetches:
        return [_name(config, prefetch) for prefetch in prefetches]
    return [_name(config, config.prefetch)]


def _name(config: Config, prefetch: int | None) -> str:
    text = f"{config.backend}, batch {config.batch_size}"
    return text if prefetch is None else f"{text}, prefetch {prefetch}"


def _draw(
    rate: Any,
    memory: Any,
    name: str,
    results: list[Result],
    ticks: list[int],
    count: int,
) -> None:
    colour = _COLOURS[count % len(_COLOURS)]
    line = {
        "color": colour,
        "marker": _MARKERS[count % len(_MARKERS)],
        "linestyle": _DASHES[count // len(_COLOURS) % len(_DASHES)],
    }
    x = [ticks.index(r.config.num_workers) for r in results]
    lows, highs = zip(*(r.spread for r in results), strict=True)
    rate.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)
    rate.plot(x, [r.rate for r in results], label=name, **line)
    memory.plot(x, [r.peak_pss_bytes / 1e6 for r in results], **line)


def _mark(rate: Any, memory: Any, best: Result, ticks: list[int], *, is_alone: bool) -> None:
    x = ticks.index(best.config.num_workers)
    ring = {"s": 130, "facecolors": "none", "edgecolors": "black", "linewidths": 1.6, "zorder": 5}
    count = best.config.num_workers
    which = "" if is_alone else f"{_name(best.config, best.config.prefetch)}, "
    label = f"chosen: {which}{count} worker{'s' * (count != 1)}, {number(best.rate)} samples/s"
    rate.scatter([x], [best.rate], label=label, **ring)
    memory.scatter([x], [best.peak_pss_bytes / 1e6], **ring)


def _label(rate: Any, memory: Any, sweep: Sweep, ticks: list[int]) -> None:
    repeats = max(len(r.runs) for r in sweep.results)
    runs = (
        f"median of {repeats} runs, shaded: lowest to highest" if repeats > 1 else "one run each"
    )
    rate.set_ylabel("samples/s")
    rate.set_title(f"{runs}; page cache {sweep.cache}", fontsize=10)
    memory.set_ylabel("peak memory (PSS,\nall processes), MB")
    kinds = {r.config.backend for r in sweep.results}
    memory.set_xlabel(
        {"thread": "worker threads", "process": "worker processes"}.get(kinds.pop(), "workers")
        if len(kinds) == 1
        else "workers"
    )
    memory.set_xticks(range(len(ticks)), [str(t) for t in ticks])
    for axes in (rate, memory):
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.08)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
