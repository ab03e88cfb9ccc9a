"""What is shown while something long is done: a bar on a terminal, a state now and then elsewhere."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from loaders import progress
from loaders.progress import Meter
from packdata.packing.progress import Quiet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_state_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOG_EVERY_S", 0.0)
    stream = io.StringIO()
    meter = Meter("packed", "images", stream=stream)

    meter.start(100, 40)
    for i in range(20):
        meter.advance(rejected=i // 10)
    meter.close()

    assert "packed:  50%" in stream.getvalue()
    assert "60/100" in stream.getvalue()
    assert "1 rejected" in stream.getvalue()


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


def test_what_is_soon_done_shows_no_bar() -> None:
    stream = Terminal()

    with Meter("loading", "bytes", 10, stream=stream, delay_s=60.0) as meter:
        meter.tick(10)

    assert stream.getvalue().strip() == ""


def test_threads_share_one() -> None:
    stream = Terminal()
    with (
        Meter("reading", "samples", 2000, stream=stream) as meter,
        ThreadPoolExecutor(4) as threads,
    ):
        list(threads.map(meter.tick, [1] * 2000))

    assert "2000/2000" in stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_closing_without_a_start_prints_nothing(stream: io.StringIO) -> None:
    for each in (Quiet(), Meter("packed", "images", stream=stream)):
        each.close()

    assert stream.getvalue() == ""


def test_nothing_is_shown_where_it_does_not_take_long(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("reading", "samples", 2000) as meter:
        meter.tick(2000)

    assert capsys.readouterr() == ("", "")
