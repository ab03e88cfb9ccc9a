"""Figures of no machine, for tests of what is told of them: measuring takes seconds."""

import pytest

from loaders.bench import cli
from loaders.bench.measure import Config
from loaders.bench.stages import Analysis
from loaders.bench.sweep import Sweep
from loaders.verdict import Facts, judge
from tests.bench.constructed import a_result


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that measured one setting."""
    found = Sweep("d", [a_result(Config(1, 64, "thread"))])
    monkeypatch.setattr(cli, "run_sweep", lambda *_, **options: found)


@pytest.fixture
def judged(swept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of which the verdict is made up."""
    facts = Facts(cores=1, num_workers=1, backend="thread", rate=1.0, cpu_s=1.0)
    monkeypatch.setattr(cli, "_judge", lambda *_: (judge(facts), Analysis(facts)))
