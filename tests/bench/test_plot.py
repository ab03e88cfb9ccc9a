import sys
from pathlib import Path
from typing import Any

import pytest

from loaders.bench.measure import Config
from loaders.bench.report import draw, plot
from loaders.bench.sweep import Sweep
from loaders.errors import LoadersError
from tests.bench.constructed import a_result, a_sweep


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
    assert memory.get_ylim()[1] > 1.05 * 300  # or the highest marks would be cut
    shaded = rate.collections[0].get_paths()[0].get_extents()
    assert (shaded.y0, shaded.y1) == (1000, 3002)


def test_the_chosen_point_is_ringed_in_both_and_named() -> None:
    pytest.importorskip("matplotlib")

    figure = draw(a_sweep())
    rate, memory = figure.axes

    assert rate.collections[-1].get_offsets().tolist() == [[2, 3001]]
    assert memory.collections[-1].get_offsets().tolist() == [[2, 300]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-1] == "chosen: 3,001 samples/s"


def test_many_lines_differ_in_more_than_their_colour_and_leave_room_for_the_legend() -> None:
    pytest.importorskip("matplotlib")
    configs = [
        Config(w, b, k) for k in ("thread", "process") for b in (1, 2, 4, 8, 16) for w in (0, 1)
    ]

    figure = draw(Sweep("d", [a_result(config) for config in configs]))

    lines = figure.axes[0].lines
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) == 10
    assert len(figure.legends[0].get_texts()) == 11


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a.svg", b"<?xml"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"))
        ),
    ],
)
def test_the_format_follows_from_the_name(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")

    plot(a_sweep(), tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(begins)


def test_without_matplotlib_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LoadersError, match="pip install matplotlib"):
        plot(a_sweep(), tmp_path / "sweep.png")
