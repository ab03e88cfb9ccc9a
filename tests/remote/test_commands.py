"""Commands take URLs where they take folders, and show, fill and clear the cache."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import packdata
from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.remote import origin
from loaders.schema import Array
from packdata.cli import main
from packdata.inspect.verify import verify
from packdata.packed.derive import merge
from packdata.packed.remote import cache_report
from tests.remote.conftest import SETTINGS, Store
from tests.remote.test_remote import S3


@pytest.fixture
def options(server: str, cache: Path) -> Iterator[list[str]]:
    settings = [f"--storage={name}={value}" for name, value in SETTINGS.items()]
    yield [*settings, f"--storage=endpoint={server}", f"--cache={cache}"]
    origin.set_defaults()


@pytest.mark.parametrize(
    "command", [["info"], pytest.param(["verify"], marks=pytest.mark.slow), ["stats"]]
)
def test_a_url_is_described_as_the_folder_is(
    packed: Path, options: list[str], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, str(packed / "bucket/packed"), "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    assert main([*command, S3, "--json", *options]) == 0
    remote = json.loads(capsys.readouterr().out)

    if isinstance(local, dict) and "path" in local:
        assert (local.pop("path"), remote.pop("path")) == (str(packed / "bucket/packed"), S3)
    assert remote == local


def test_every_damaged_shard_at_a_url_is_named(store: Store, tmp_path: Path) -> None:
    packdata.pack({"x": np.arange(4)}, tmp_path / "a", {"x": Array(dtype="int64")})
    packdata.pack({"x": np.arange(5)}, tmp_path / "b", {"x": Array(dtype="int64")})
    merge(store.root / "out" / "m", [tmp_path / "a", tmp_path / "b"])
    shards = sorted((store.root / "out" / "m").glob("shard-*"))
    for shard in shards:
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)

    report = verify("s3://out/m")

    assert [fault.file for fault in report.faults] == [shard.name for shard in shards]


def test_a_shard_that_is_evicted_while_a_cache_is_looked_at_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "v2/shards/ab"
    folder.mkdir(parents=True)
    (folder / f"{'ab' * 16}.lmdb").symlink_to("gone")  # it is listed, and not there

    assert cache_report(tmp_path)["size_bytes"] == 0


def test_fetch_fills_the_cache_and_cache_shows_and_clears_it(
    packed: Path,
    cache: Path,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fetch", S3, *options]) == 0
    files = {path.stem for path in (cache / "v2/shards").glob("??/*")}
    assert files == {shard.xxh3_128 for shard in read_manifest(packed / "bucket/packed").shards}
    capsys.readouterr()

    assert main(["cache", str(cache), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (about,) = report["datasets"]
    assert (about["url"], about["num_shards"]) == (S3, about["of_shards"])
    reader = ShardDataset(S3)
    before = reader.read([0])[0]
    assert main(["cache", str(cache), "--clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_deleted"] == about["num_shards"]
    assert not list((cache / "v2/shards").glob("??/*"))
    assert (reader.read([0])[0].values == before.values).all()  # of what it has mapped
    assert main(["diff", S3, str(packed / "bucket/packed"), *options]) == 0


@pytest.mark.parametrize("words", [["--storage", "secret_access_key=x"], ["--storage", "region"]])
def test_secrets_are_no_options_of_commands(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["info", S3, *words])
    assert caught.value.code == 2


def test_a_url_with_secrets_is_refused_without_showing_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["info", "https://me:hunter2@host/packed?sig=abc"])
    told = capsys.readouterr().err
    assert "hunter2" not in told
    assert "abc" not in told
