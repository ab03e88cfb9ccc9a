"""``python -m loaders.bench`` with URLs, on real servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loaders import ShardDataset
from loaders.bench.cli import main
from loaders.bench.planner import epochs
from loaders.bench.store import StoreProbe
from loaders.bench.targets import TargetError, load
from loaders.remote import origin
from tests.remote import servers
from tests.remote.conftest import ended, storage
from tests.remote.test_remote import S3


@pytest.fixture
def defaults(proxy: servers.Proxy, shared: Path) -> Iterator[None]:
    origin.set_defaults(shared, storage(proxy.endpoint))
    yield
    origin.set_defaults()


def findings(write: bool = False) -> dict[str, Any]:
    return {each.name: each for each in StoreProbe(S3, write=write).findings()}


def test_a_store_that_honours_all_is_well_and_nothing_is_left_there(
    packed: Path, proxy: servers.Proxy, defaults: None
) -> None:
    before = sorted(path.name for path in (packed / "bucket/packed").iterdir())

    found = findings(write=True)

    assert {name: each.level for name, each in found.items()} == {
        "latency": "ok",
        "one connection": "ok",
        "16 connections": "ok",
        "clock": "ok",
        "ranges": "ok",
        "if-match": "ok",
        "conditional puts": "ok",
    }
    assert sorted(path.name for path in (packed / "bucket/packed").iterdir()) == before
    puts = [each for each in proxy.requests() if each["method"] == "PUT"]
    assert len(puts) == 2


def test_nothing_is_written_unless_that_is_asked_for(proxy: servers.Proxy, defaults: None) -> None:
    assert findings()["conditional puts"].level == "unknown"

    assert {each["method"] for each in proxy.requests()} <= {"GET", "HEAD"}


def test_what_a_store_lacks_is_said(proxy: servers.Proxy, defaults: None) -> None:
    proxy.set(latency_s=0.21, clock_s=-1000)
    probe = StoreProbe(S3)

    assert probe.latency().level == "cost"
    assert probe.clock().level == "risk"
    proxy.set(faults=[{"kind": "200", "match": "lmdb"}])
    assert probe.ranges().level == "risk"


def test_a_store_that_ignores_conditions_is_told_of(
    server: str, signed: str, shared: Path
) -> None:
    """Without the proxy: the server compares no e-tag; and nanio no condition of a put."""
    origin.set_defaults(shared, storage(server))
    try:
        assert findings()["if-match"].level == "cost"
        options = {"endpoint": signed, "retry_timeout": 3, **servers.SECRET}
        origin.set_defaults(shared, options)
        assert StoreProbe(S3, write=True).conditional_puts().level == "risk"
    finally:
        origin.set_defaults()


def test_an_epoch_is_planned_for_nodes_and_a_cache(packed: Path, defaults: None) -> None:
    size = sum(path.stat().st_size for path in (packed / "bucket/packed").glob("*.lmdb"))
    dataset: Any = ShardDataset(S3)

    def plan(shuffle: Any, nodes: int, cache_bytes: int) -> list[float]:
        found = epochs(
            dataset, shuffle=shuffle, batch_size=16, nodes=nodes, cache_bytes=cache_bytes
        )
        return [each["num_bytes"] / size for each in found]

    assert plan("lanes", 1, size) == [1, 0]
    assert plan(False, 1, size // 2) == [1, pytest.approx(0.5, abs=0.1)]
    assert plan("block", 2, size) == [2, 0]
    lanes = plan("lanes", 2, size)
    assert lanes == [pytest.approx(1.05, abs=0.06), 0]


def test_a_plan_of_a_url_downloads_no_shard_and_shows_no_secret(
    proxy: servers.Proxy, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--cache", str(shared), "--storage", "skip_signature=true"]
    options += ["--storage", f"endpoint={proxy.endpoint}"]

    assert main(["plan", S3, *options, "--rate", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["first_epoch"]

    assert first["num_requests"] == 10
    assert first["seconds"] == pytest.approx(first["num_bytes"] / 3e6)
    assert not proxy.requests(".lmdb")
    assert main(["plan", S3.replace("://", "://somebody:swordfish@"), *options]) == 0
    assert "swordfish" not in capsys.readouterr().out
    origin.set_defaults()


def test_the_doctor_looks_at_a_url(
    proxy: servers.Proxy, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", S3, "--cache", str(shared), "--storage", "skip_signature=true", "--json"]

    assert main([*words, "--storage", f"endpoint={proxy.endpoint}"]) == 0

    names = [each["name"] for each in json.loads(capsys.readouterr().out)["findings"]]
    assert names[:3] == ["latency", "one connection", "16 connections"]
    origin.set_defaults()


@pytest.mark.slow
def test_a_url_is_measured_from_the_cache_when_all_of_it_is_there(
    packed: Path, proxy: servers.Proxy, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each byte comes once; a cache that does not hold all of it is refused before any comes."""
    size = sum(path.stat().st_size for path in (packed / "bucket/packed").glob("*.lmdb"))
    options = ["--storage", "skip_signature=true", "--storage", f"endpoint={proxy.endpoint}"]
    short = ["--seconds", "1", "--repeats", "1", "--workers", "0", "1", "--no-verdict", "--json"]
    try:
        with ended(cache.with_name("small")) as small:
            origin.set_defaults({"path": small, "size": size // 2})
            with pytest.raises(TargetError):
                load(f"{proxy.endpoint}/bucket/packed")
            assert not proxy.requests(".lmdb")

        assert main(["sweep", S3, "--cache", str(cache), *options, *short]) == 0

        assert sum(each["bytes"] for each in proxy.requests(".lmdb")) == size
        told = capsys.readouterr()
        assert "fetching" in told.err
        assert json.loads(told.out)["results"]
    finally:
        origin.set_defaults()
