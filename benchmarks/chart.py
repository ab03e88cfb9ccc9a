"""All comparisons on one picture and in one table: `python benchmarks/chart.py`.

Reads what `compare.py` left in `results/`, one JSON file per workload. Writes `results/compare.png`, and
`results/compare.md` for the page of results: the picture, the table of ratios and the table of each workload. Prints
the table of ratios. `compare.py` does the same after each workload.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # as for a script

from page import HERE, compose

OURS = "loaders"
NAMES = {
    "loaders": "loaders", "torch": "torch DataLoader", "torch:pil": "torch DataLoader, PIL", "ffcv": "FFCV",
    "dali": "DALI (CPU)", "webdataset": "WebDataset", "streaming": "MosaicML Streaming", "litdata": "LitData",
    "spdl": "SPDL", "grain": "Grain", "hf": "HF datasets",
}  # fmt: skip
TITLES = {
    "jpeg": "JPEG as it comes, crop 224", "jpeg256": "JPEG 256 px, crop 224", "raw224": "raw 224 px",
    "raw28": "raw 28 px", "tokens": "windows of 1,024 tokens", "table": "rows of 32 floats",
}  # fmt: skip
# Of Okabe and Ito's colours, which people with any kind of colour vision tell apart.
AXIS = {0.0001: "1/10k", 0.01: "1/100", 1.0: "1"}
LINEAR = 0.15  # a panel whose slowest loader has at least this share begins at 0
BLUE, RED, GRAY = "#0072B2", "#D55E00", "#8a8a8a"
HEADS = {
    "jpeg": "JPEG as it comes,\ncrop 224", "jpeg256": "JPEG 256 px,\ncrop 224", "raw224": "raw\n224 px",
    "raw28": "raw\n28 px", "tokens": "windows of\n1,024 tokens", "table": "rows of\n32 floats",
}  # fmt: skip
SHORT = {"torch": "torch", "torch:pil": "torch, PIL", "streaming": "Streaming", "dali": "DALI"}


@dataclass(frozen=True)
class Workload:
    """What `compare.py` found on one workload.

    Attributes:
        name: As on its command line.
        unit: Of the rates.
        rates: Of each peer, every repeat, the fastest peer first.
        failed: Why a peer has none.
        conditions: Where and how it was measured.
    """

    name: str
    unit: str
    rates: dict[str, list[float]]
    failed: dict[str, str]
    conditions: dict[str, Any]

    def middle(self, peer: str) -> float:
        """Return the median rate of a peer."""
        return statistics.median(self.rates[peer])

    def is_tie(self, peer: str) -> bool:
        """Return whether the runs of a peer overlap with ours: then neither leads."""
        return overlap(self.rates[peer], self.rates[OURS])


def overlap(one: list[float], other: list[float]) -> bool:
    """Return whether the ranges of two lists of rates overlap."""
    return min(one) <= max(other) and min(other) <= max(one)


def cell(ratio: float, is_tie: bool) -> str:
    """Return a ratio as tables show it: a tie with ≈, a loss in bold."""
    if is_tie:
        return f"≈ {times(ratio)}"
    return f"**{times(ratio)}**" if ratio < 1 else times(ratio)


def read(results: Path) -> list[Workload]:
    """Return the workloads that were measured, in the order of `TITLES`; those without a figure of ours left out."""
    found = []
    for name in TITLES:
        path = results / f"compare-{name}.json"
        told = json.loads(path.read_text()) if path.exists() else {"peers": {}}
        rates = {peer: about["rates"] for peer, about in told["peers"].items()}
        if OURS in rates:
            ranked = dict(sorted(rates.items(), key=lambda item: -statistics.median(item[1])))
            found.append(Workload(name, told["unit"], ranked, told["failed"], told["conditions"]))
    return found


def number(value: float) -> str:
    """Return about three digits."""
    if value >= 1e6:
        return f"{value / 1e6:,.3g} M" if value < 1e9 else f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    """Return two digits, and no more of them than are worth reading."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


# -- the table -------------------------------------------------------------------------------------


def ratios(workloads: list[Workload]) -> str:
    """Return the table for the README: how often as fast as each peer `loaders` is; losses in bold, ties with ≈."""
    peers = [
        peer for peer in NAMES if peer != OURS and any(peer in work.rates for work in workloads)
    ]
    lines = [
        f"| `loaders` is so many times as fast as | {' | '.join(TITLES[w.name] for w in workloads)} |",
        f"| --- |{' ---: |' * len(workloads)}",
    ]
    for peer in peers:
        cells = [ratio_cell(work, peer) for work in workloads]
        lines.append(f"| {NAMES[peer]} | {' | '.join(cells)} |")
    rates = [f"{number(work.middle(OURS))} {work.unit}" for work in workloads]
    return "\n".join([*lines, f"| *`loaders` itself* | {' | '.join(rates)} |", ""])


def ratio_cell(work: Workload, peer: str) -> str:
    """Return one ratio."""
    if peer not in work.rates:
        return "failed" if peer in work.failed else ""
    return cell(work.middle(OURS) / work.middle(peer), work.is_tie(peer))


# -- the picture -----------------------------------------------------------------------------------


def order_of(workloads: list[Workload]) -> list[str]:
    """Return ours, then the peers: the fastest over all workloads first."""

    def typical(peer: str) -> float:
        shares = [w.middle(peer) / w.middle(OURS) for w in workloads if peer in w.rates]
        return statistics.geometric_mean(shares) if shares else 0.0

    peers = {peer for work in workloads for peer in (*work.rates, *work.failed)} - {OURS}
    # Variants of a peer (torch:pil) stand below it.
    return [OURS, *sorted(peers, key=lambda peer: (-typical(peer.split(":")[0]), peer))]


def draw(workloads: list[Workload], path: Path) -> None:
    """Draw a row per loader and a column per workload: samples/s as a share of ours, on a scale of the column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    peers = order_of(workloads)
    size = (1.5 + 1.5 * len(workloads), 1.6 + 0.29 * len(peers))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(wspace=0.03, w_pad=0.02)
    all_axes = figure.subplots(1, len(workloads), squeeze=False, sharey=True)[0]
    for axes, work in zip(all_axes, workloads, strict=True):
        panel(axes, work, peers)
    style_names(all_axes[0], peers)
    where = workloads[0].conditions
    title = "Samples per second as a share of loaders' (further right is faster)"
    figure.suptitle(title, fontsize=12.5, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(
        f"median of {where['repeats']} turns, bar: lowest to highest; hollow, ≈: the ranges overlap, a tie;"
        " orange: faster; scales begin at 0, or are logarithmic\n"
        f"{where['cores']} cores ({where['cpu']}), {where['workers']} workers, page cache warm",
        fontsize=8.5, color="#444444",
    )  # fmt: skip
    figure.savefig(path, dpi=150)
    shrink(path)


def spans_of(work: Workload) -> dict[str, tuple[float, float]]:
    """Return each loader's lowest and highest rate, as shares of our median."""
    ours = work.middle(OURS)
    return {peer: (min(rates) / ours, max(rates) / ours) for peer, rates in work.rates.items()}


def panel(axes: Any, work: Workload, peers: list[str]) -> None:
    """Draw one workload."""
    for y, peer in enumerate(peers):
        if peer in work.rates:
            share = work.middle(peer) / work.middle(OURS)
            dot(axes, y, share, spans_of(work)[peer], peer == OURS, work.is_tie(peer))
        elif peer in work.failed:
            axes.annotate("failed", (1, y), (-6, 0), textcoords="offset points", va="center",
                          ha="right", fontsize=8.5, color=GRAY, style="italic")  # fmt: skip
    axes.axvline(1, color=BLUE, linewidth=1, alpha=0.6, zorder=0)
    axes.set_ylim(len(peers) - 0.4, -0.6)
    scale(axes, work)
    axes.tick_params(axis="x", labelsize=8, color="#bbbbbb")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.set_title(f"{HEADS[work.name]}\n", fontsize=9.5, loc="left", linespacing=1.1)
    axes.annotate(f"{number(work.middle(OURS))} {work.unit}", (0, 1), (0, 3), xycoords="axes fraction",
                  textcoords="offset points", fontsize=8.5, color=BLUE, fontweight="bold")  # fmt: skip


def scale(axes: Any, work: Workload) -> None:
    """Begin at 0 where all loaders are of one order of magnitude, and count orders else; leave room for figures."""
    spans = spans_of(work).values()
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    if low >= LINEAR:
        axes.set_xlim(0, 1.3 * max(1, high))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "1/2", "", "1"])
        return
    axes.set_xscale("log")
    axes.set_xlim(low * 0.7, max(1, high) * (max(1, high) / low) ** 0.45)
    axes.set_xticks([tick for tick in (10.0**power for power in range(-4, 2)) if tick > low * 0.7])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: AXIS.get(round(value, 4), ""))


def dot(
    axes: Any, y: int, share: float, span: tuple[float, float], is_ours: bool, is_tie: bool
) -> None:
    """Draw one loader: a line from ours, its range, its median and the figure; hollow where it is a tie."""
    colour = BLUE if is_ours else RED if share > 1 else GRAY
    axes.plot([1, share], [y, y], color=colour, linewidth=1.1, alpha=0.45, zorder=1)
    axes.plot(span, [y, y], color=colour, linewidth=3.4, alpha=0.5, zorder=2)
    fill = "white" if is_tie and not is_ours else colour
    axes.plot(
        share,
        y,
        "D" if is_ours else "o",
        color=colour,
        markersize=6,
        markerfacecolor=fill,
        zorder=3,
    )
    if not is_ours:
        figure = f"{share_of(share)} ≈" if is_tie else share_of(share)
        axes.annotate(figure, (max(1, span[1]), y), (6, 0), textcoords="offset points",
                      va="center", fontsize=8.5, color=RED if share > 1 else "black",
                      fontweight="bold" if share > 1 else "normal")  # fmt: skip


def style_names(axes: Any, peers: list[str]) -> None:
    """Write the loaders' names."""
    axes.set_yticks(range(len(peers)), [SHORT.get(peer, NAMES.get(peer, peer)) for peer in peers])
    for label, peer in zip(axes.get_yticklabels(), peers, strict=True):
        is_ours = peer == OURS
        label.set(fontsize=9.5, color=BLUE if is_ours else "black")
        label.set_fontweight("bold" if is_ours else "normal")


def share_of(share: float) -> str:
    """Return a share of ours as people say it: 1/25, 0.62, 1.3."""
    return f"1/{1 / share:,.0f}" if share < 0.095 else f"{share:.2f}"


def shrink(path: Path) -> None:
    """Store a picture of few colours as such: a quarter of the bytes."""
    import PIL.Image

    with PIL.Image.open(path) as image:
        flat = image.convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE)
    flat.save(path, optimize=True)


# -- the page --------------------------------------------------------------------------------------


def publish(out: Path) -> str:
    """Draw and write what has been measured so far, for the page of results; return the table of ratios."""
    results = out / "results"
    workloads = read(results)
    if not workloads:
        return "no workload has a figure of ours: run compare.py first\n"
    draw(workloads, results / "compare.png")
    table = ratios(workloads)
    parts = [(results / f"compare-{work.name}.md").read_text() for work in workloads]
    title = "## Beside other loaders: `python benchmarks/compare.py WORKLOAD --photos FOLDER`"
    picture = "![Samples per second of each loader, as a share of ours](results/compare.png)"
    note = (
        "Above 1 `loaders` is faster; **bold**: it loses; ≈: the ranges of the runs overlap, a tie."
        " Medians, each workload in one run."
    )
    (results / "compare.md").write_text(
        "\n".join([title, "", picture, "", note, "", table, *parts])
    )
    compose(out)
    return table


def main() -> None:
    """Draw, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder that has results/")
    print(publish(parser.parse_args().out))


if __name__ == "__main__":
    main()
