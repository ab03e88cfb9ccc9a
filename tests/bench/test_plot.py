from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from loaders.bench.measure import Config, Result
from loaders.bench.plot import MissingExtra, draw, plot
from loaders.bench.sweep import Sweep
from tests.bench.constructed import a_result, a_sweep

if TYPE_CHECKING:
    from pathlib import Path


def labels(axes: Any) -> list[str]:
    return [line.get_label() for line in axes.lines]


def test_throughput_and_memory_against_workers_with_a_line_per_backend() -> None:
    pytest.importorskip("matplotlib")

    rate, memory = draw(a_sweep(), subtitle="a machine").axes

    assert labels(rate) == ["thread, batch 64", "process, batch 64"]
    assert [list(line.get_ydata()) for line in rate.lines] == [[1001, 2001, 3001]] * 2
    assert [list(line.get_ydata()) for line in memory.lines] == [[100, 200, 300]] * 2  # MB
    assert [tick.get_text() for tick in memory.get_xticklabels()] == ["0", "1", "2"]
    assert (rate.get_ylabel(), memory.get_xlabel()) == ("samples/s", "workers")
    shaded = rate.collections[0].get_paths()[0].get_extents()
    assert (shaded.y0, shaded.y1) == (1000, 3002)


def test_the_chosen_point_is_ringed_in_both_and_named() -> None:
    pytest.importorskip("matplotlib")

    rate, memory = draw(a_sweep()).axes

    assert rate.collections[-1].get_offsets().tolist() == [[2, 3001]]
    assert memory.collections[-1].get_offsets().tolist() == [[2, 300]]
    legend = [text.get_text() for text in rate.get_legend().get_texts()]
    assert legend[-1] == "chosen: thread, batch 64, 2 workers, 3,001 samples/s"


@pytest.mark.parametrize(
    ("repeats", "cache", "said"),
    [
        (3, "cold", "median of 3 runs, shaded: lowest to highest; page cache cold"),
        (1, "warm", "one run each; page cache warm"),
    ],
)
def test_the_title_says_what_was_measured_and_how(repeats: int, cache: str, said: str) -> None:
    """Of a long name the end, which tells most."""
    pytest.importorskip("matplotlib")
    sweep = a_sweep(repeats)
    sweep.cache, sweep.target = cache, "/datasets" * 20 + "/train"

    figure = draw(sweep, subtitle="a machine")

    assert figure.axes[0].get_title() == said
    first, second = figure.get_suptitle().splitlines()
    assert first.startswith("...")
    assert first.endswith("/datasets/train")
    assert second == "a machine"


@pytest.mark.parametrize(
    ("backend", "said"), [("thread", "worker threads"), ("process", "worker processes")]
)
def test_workers_are_called_what_they_are_where_all_are_of_one_kind(
    backend: str, said: str
) -> None:
    pytest.importorskip("matplotlib")

    _, memory = draw(Sweep("d", [a_result(Config(w, 8, backend)) for w in (0, 1)])).axes

    assert memory.get_xlabel() == said


def test_without_workers_there_is_one_point_for_every_prefetch() -> None:
    """Which has no meaning there: each line begins with it. What failed has no point."""
    pytest.importorskip("matplotlib")
    configs = [Config(0, 8), *(Config(w, 8, prefetch=p) for p in (2, 4) for w in (2, 1))]
    failed = Result(Config(4, 8, prefetch=2), error="no room")

    rate, _ = draw(Sweep("d", [*(a_result(config) for config in configs), failed])).axes

    assert labels(rate) == ["auto, batch 8, prefetch 2", "auto, batch 8, prefetch 4"]
    assert [list(line.get_xdata()) for line in rate.lines] == [[0, 1, 2]] * 2


def test_many_lines_differ_in_more_than_their_colour_and_leave_room_for_the_legend() -> None:
    pytest.importorskip("matplotlib")
    configs = [
        Config(w, b, k) for k in ("thread", "process") for b in (1, 2, 4, 8, 16) for w in (0, 1)
    ]

    figure = draw(Sweep("d", [a_result(config) for config in configs]))

    lines = figure.axes[0].lines
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) == 10
    assert figure.axes[0].get_legend() is None
    assert len(figure.legends[0].get_texts()) == 11


@pytest.mark.parametrize(
    ("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")]
)
def test_the_format_follows_from_the_name(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")

    plot(a_sweep(), tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(begins)


def test_without_matplotlib_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install matplotlib"):
        plot(a_sweep(), tmp_path / "sweep.png")
