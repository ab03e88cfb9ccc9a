"""Figures of no machine, for tests of what is told of them: measuring takes seconds."""

import pytest

from loaders.bench import cli
from loaders.bench.measure import Config
from loaders.bench.sweep import Sweep
from tests.bench.constructed import a_result


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that measured one setting."""
    found = Sweep("d", [a_result(Config(1, 64, "thread"))])
    monkeypatch.setattr(cli, "run_sweep", lambda *_, **options: found)


@pytest.fixture
def judged(swept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of which no verdict is asked."""
    monkeypatch.setattr(cli, "_judge_if_possible", lambda *_, **options: None)
