"""What is told while packing: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import os
import sys
import threading
from contextlib import suppress

import pytest

from packdata.progress import Bar, Lines, Quiet, progress_of, progress_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_few_seconds() -> None:
    stream, now = io.StringIO(), iter([0.0, *(float(i) for i in range(1, 21))])
    lines = Lines(stream, clock=lambda: next(now), every_s=5.0)

    lines.start(100, 40)
    for i in range(20):
        lines.advance(rejected=i // 10)
    lines.close()

    assert stream.getvalue().splitlines() == [
        "packed 45 of 100 (45%), 1 images/s, 55 s left",
        "packed 50 of 100 (50%), 1 images/s, 50 s left",
        "packed 55 of 100 (55%), 1 images/s, 45 s left, 1 rejected",
        "packed 60 of 100 (60%), 1 images/s, 40 s left, 1 rejected",
    ]


def test_a_stream_of_unknown_length_has_a_rate_but_no_end() -> None:
    stream, now = io.StringIO(), iter([0.0, 6.0])
    lines = Lines(stream, "samples", clock=lambda: next(now))

    lines.start(None, 0)
    lines.advance(0)

    assert stream.getvalue() == "packed 1, 0 samples/s\n"


def test_a_terminal_gets_a_bar_and_no_thread_stays() -> None:
    stream, before = Terminal(), threading.active_count()
    bar = progress_on(stream)
    assert isinstance(bar, Bar)

    bar.start(10, 4)
    for _ in range(6):
        bar.advance(2)
    bar.close()
    bar.close()

    assert "10/10" in stream.getvalue()
    assert "2 rejected" in stream.getvalue()
    assert threading.active_count() == before


def test_a_terminal_that_reports_no_size_gets_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``docker run -t`` without a window, or of ``script`` in a job."""
    shown, terminal = os.openpty()  # 0 rows of 0 columns
    with open(shown, "rb", buffering=0) as screen, open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)

        bar = progress_on()
        bar.start(10, 0)
        bar.advance(0, 10)
        bar.close()
        stream.close()
        text = ""
        with suppress(
            OSError
        ):  # how a terminal says that this was all: what is written arrives piece by piece
            while True:
                text += screen.read(4096).decode()

    assert "10/10" in text
    assert {len(line) for line in text.split("\r") if "/10" in line} == {79}


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_closing_without_a_start_prints_nothing(stream: io.StringIO) -> None:
    for progress in (Quiet(), progress_on(stream)):
        progress.close()

    assert stream.getvalue() == ""


def test_progress_is_a_line_now_and_then_where_nobody_watches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.progress.LINE_EVERY_S", 0.0)
    with progress_of("reading", 2000) as tick:
        tick(1500)
    with progress_of("reading", None, unit="bytes") as tick:
        tick(3 << 20)

    text = capsys.readouterr()
    assert text.err == "reading: 1,500 samples of 2,000 samples\nreading: 3.0 MiB\n"
    assert text.out == ""
