"""``python -m loaders.bench`` with URLs, on real servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loaders import ShardDataset
from loaders.bench.cli import main
from loaders.bench.planner import epochs
from loaders.bench.targets import load
from loaders.errors import LoadersError
from loaders.remote import origin
from tests.remote import servers
from tests.remote.conftest import ended, storage
from tests.remote.test_remote import S3


@pytest.fixture
def defaults(proxy: servers.Proxy, shared: Path) -> Iterator[None]:
    origin.set_defaults(shared, storage(proxy.endpoint))
    yield
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


def test_a_plan_of_a_url_downloads_no_shard(
    proxy: servers.Proxy, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--cache", str(shared), "--storage", "skip_signature=true"]
    options += ["--storage", f"endpoint={proxy.endpoint}"]

    assert main(["plan", S3, *options, "--rate", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["first_epoch"]
    assert main(["plan", S3, *options]) == 0

    assert "downloaded by all nodes" in capsys.readouterr().out
    assert first["num_requests"] == 10
    assert first["seconds"] == pytest.approx(first["num_bytes"] / 3e6)
    assert not proxy.requests(".lmdb")
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
            with pytest.raises(LoadersError):
                load(f"{proxy.endpoint}/bucket/packed")
            assert not proxy.requests(".lmdb")

        assert main(["sweep", S3, "--cache", str(cache), *options, *short]) == 0

        assert sum(each["bytes"] for each in proxy.requests(".lmdb")) == size
        told = capsys.readouterr()
        assert "fetching" in told.err
        assert json.loads(told.out)["results"]
    finally:
        origin.set_defaults()
