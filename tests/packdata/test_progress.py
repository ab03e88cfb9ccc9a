"""What is told while something long is done: a bar on a terminal, lines elsewhere."""

import io
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from loaders.progress import Meter
from packdata.packing.progress import Quiet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_few_seconds() -> None:
    stream, now = io.StringIO(), iter([0.0, *(float(i) for i in range(1, 21))])
    meter = Meter("packed", "images", stream=stream, clock=lambda: next(now), every_s=5.0)

    meter.start(100, 40)
    for i in range(20):
        meter.advance(rejected=i // 10)
    meter.close()

    assert stream.getvalue().splitlines() == [
        "packed 45 of 100 (45%), 1 images/s, 55 s left",
        "packed 50 of 100 (50%), 1 images/s, 50 s left",
        "packed 55 of 100 (55%), 1 images/s, 45 s left, 1 rejected",
        "packed 60 of 100 (60%), 1 images/s, 40 s left, 1 rejected",
    ]


def test_a_stream_of_unknown_length_has_a_rate_but_no_end() -> None:
    stream, now = io.StringIO(), iter([0.0, 6.0])
    meter = Meter("packed", "samples", stream=stream, clock=lambda: next(now))

    meter.start(None, 0)
    meter.advance(0)

    assert stream.getvalue() == "packed 1, 0 samples/s\n"


def test_bytes_are_sizes() -> None:
    stream, now = io.StringIO(), iter([0.0, 6.0])

    with Meter("verifying", "bytes", 6 << 20, stream=stream, clock=lambda: next(now)) as meter:
        meter.tick(3 << 20)

    assert stream.getvalue() == "verifying 3.0 MiB of 6.0 MiB (50%), 512.0 KiB/s, 6 s left\n"


def test_a_terminal_gets_a_bar_and_no_thread_stays() -> None:
    stream, before = Terminal(), threading.active_count()
    meter = Meter("packed", "images", stream=stream)

    meter.start(10, 4)
    for _ in range(6):
        meter.advance(2)
    meter.close()
    meter.close()

    assert "10/10" in stream.getvalue()
    assert "2 rejected" in stream.getvalue()
    assert threading.active_count() == before


def test_a_bar_shows_what_another_process_counts() -> None:
    stream = Terminal()

    with Meter("loading", "bytes", 0, stream=stream) as meter:
        meter.show(1 << 20, 4 << 20)
        meter.show(4 << 20, 4 << 20)

    assert "4.00M/4.00M" in stream.getvalue()


def test_what_is_soon_done_shows_no_bar() -> None:
    stream = Terminal()

    with Meter("loading", "bytes", 10, stream=stream, delay_s=60.0) as meter:
        meter.tick(10)

    assert stream.getvalue().strip() == ""


def test_threads_share_one() -> None:
    with Meter("reading", "samples", stream=io.StringIO()) as meter:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(meter.tick, [1] * 2000))

        assert meter.done == 2000


def test_a_terminal_that_reports_no_size_gets_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``docker run -t`` without a window, or of ``script`` in a job."""
    shown, terminal = os.openpty()  # 0 rows of 0 columns
    with open(shown, "rb", buffering=0) as screen, open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)

        meter = Meter("packed", "images")
        meter.start(10, 0)
        meter.advance(0, 10)
        meter.close()
        stream.close()
        text = ""
        # OSError: how a terminal says that this was all; what is written arrives piece by piece
        with suppress(OSError):
            while True:
                text += screen.read(4096).decode()

    assert "10/10" in text
    assert {len(line) for line in text.split("\r") if "/10" in line} == {79}


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_closing_without_a_start_prints_nothing(stream: io.StringIO) -> None:
    for progress in (Quiet(), Meter("packed", "images", stream=stream)):
        progress.close()

    assert stream.getvalue() == ""


def test_nothing_is_told_where_it_does_not_take_long(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("reading", "samples", 2000) as meter:
        meter.tick(2000)

    assert capsys.readouterr() == ("", "")
