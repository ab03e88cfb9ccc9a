"""A dataset is sent to a store: all or nothing, and what is there not again."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import ChecksumError, PackError, RemoteError
from loaders.remote import origin
from loaders.remote.url import url_of
from packdata.bucket import Bucket
from packdata.cli import main
from packdata.packed.derive import copy_dataset as upload
from packdata.packed.derive import merge
from packdata.packed.views import write as write_view
from packdata.packing.progress import Quiet
from packdata.parts.packing import finish
from tests.remote import servers
from tests.remote.conftest import SETTINGS, Store, storage
from tests.waiting import wait_until

OUT = "s3://out/packed"


@pytest.fixture
def target(store: Store) -> Path:
    """The folder of an empty bucket, at ``OUT``."""
    return store.root / "out" / "packed"


@pytest.fixture
def proxy(store: Store) -> servers.Proxy:
    return store.proxy


@pytest.fixture
def cache(store: Store) -> Path:
    return store.cache


def puts(proxy: servers.Proxy, suffix: str = "") -> list[dict[str, Any]]:
    return [
        each for each in proxy.requests() if each["method"] == "PUT" and suffix in each["path"]
    ]


def test_a_dataset_is_sent_with_its_manifest_last_and_read_there(
    packed: Path, target: Path, proxy: servers.Proxy
) -> None:
    folder = packed / "bucket" / "packed"

    made = upload(folder, OUT)

    manifest = read_manifest(target)
    assert ShardDataset(OUT).fingerprint == ShardDataset(folder).fingerprint
    assert int(ShardDataset(OUT)[500].label) == 500 % 7
    assert puts(proxy)[-1]["path"].endswith("manifest.json")
    assert {each.name for each in target.iterdir()} == {
        "manifest.json",
        *(f"shard-{n:05}-{each.xxh3_128}.lmdb" for n, each in enumerate(manifest.shards)),
    }
    assert not made.notes
    proxy.set()
    assert upload(folder, OUT).datasets == made.datasets
    assert not puts(proxy)


def test_a_shard_that_was_lost_there_is_sent_again_though_the_manifest_is_there(
    packed: Path, target: Path, proxy: servers.Proxy
) -> None:
    folder = packed / "bucket" / "packed"
    first = upload(folder, OUT)
    lost = target / read_manifest(target).shards[1].file
    data = lost.read_bytes()
    lost.unlink()
    proxy.set()

    again = upload(folder, OUT, overwrite=True)

    assert again.datasets == first.datasets
    assert lost.read_bytes() == data
    assert {each["path"].rpartition("/")[2].partition("?")[0] for each in puts(proxy)} == {
        lost.name
    }
    assert not again.notes


def test_a_dataset_that_is_there_is_replaced_on_demand_and_its_shards_stay(
    packed: Path, target: Path, tmp_path: Path
) -> None:
    folder = packed / "bucket" / "packed"
    upload(folder, OUT)
    before = read_manifest(target)
    assert main(["copy", str(folder), str(tmp_path / "few"), "--where", "label == 3"]) == 0

    with pytest.raises(PackError) as caught:
        upload(tmp_path / "few", OUT)
    assert len(ShardDataset(OUT)) == before.num_samples
    upload(tmp_path / "few", OUT, overwrite=True)

    assert len(ShardDataset(OUT)) == read_manifest(tmp_path / "few").num_samples
    assert str(caught.value.path) == OUT
    assert read_manifest(target).fingerprint == read_manifest(tmp_path / "few").fingerprint
    assert all((target / shard.file).exists() for shard in before.shards)


@pytest.mark.parametrize("scheme", ["http", "hf", "file"])
def test_a_store_that_is_only_read_is_refused_as_a_target(scheme: str, packed: Path) -> None:
    folder, url = packed / "bucket" / "packed", f"{scheme}:///host/out"
    writes: list[Callable[[], object]] = [
        lambda: upload(folder, url),
        lambda: merge(url, [folder]),
        lambda: finish(url),
        lambda: write_view(ShardDataset(folder), url),
    ]
    for write in writes:
        with pytest.raises(RemoteError) as caught:
            write()

        assert str(caught.value.path) == str(url_of(url))


def test_of_two_who_publish_at_one_place_one_is_refused(
    packed: Path, target: Path, tmp_path: Path
) -> None:
    """The other one comes when the shards are there; with and without a dataset to replace."""
    folder = packed / "bucket" / "packed"
    for overwrite in (False, True):
        other = tmp_path / f"few{overwrite}"
        assert main(["copy", str(folder), str(other), "--where", f"label == {3 + overwrite}"]) == 0
        others = iter([other])

        class Meets(Quiet):
            def advance(
                self,
                rejected: int,
                samples: int = 1,
                others: Iterator[Path] = others,
                overwrite: bool = overwrite,
            ) -> None:
                for source in others:
                    upload(source, OUT, overwrite=overwrite)

        with pytest.raises(PackError):
            upload(folder, OUT, overwrite=overwrite, progress=Meets())

        assert read_manifest(target).fingerprint == read_manifest(other).fingerprint


def test_what_arrives_with_another_byte_is_sent_by_the_next_run_and_a_damaged_shard_never(
    packed: Path, target: Path, proxy: servers.Proxy, tmp_path: Path
) -> None:
    folder = packed / "bucket" / "packed"
    proxy.set(faults=[{"kind": "flip-sent", "match": "shard-", "method": "PUT", "at": [0]}])

    with pytest.raises(ChecksumError):
        upload(folder, OUT)
    upload(folder, OUT)

    for shard in read_manifest(target).shards:
        assert (target / shard.file).read_bytes() == (folder / shard.file).read_bytes()
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    second = next(damaged.glob("shard-00001-*"))
    data = bytearray(second.read_bytes())
    data[9999] ^= 1
    second.unlink()
    second.write_bytes(data)
    with pytest.raises(ChecksumError) as caught:
        upload(damaged, "s3://out/other")
    assert str(caught.value.path).endswith(second.name)
    assert not (target.parent / "other" / "manifest.json").exists()


def test_what_arrives_in_a_store_without_e_tags_is_read_back(
    packed: Path, target: Path, proxy: servers.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ask = packed / "bucket" / "packed", Bucket._ask

    def untagged(self: Bucket, op: str, **about: Any) -> Any:
        found = ask(self, op, **about)
        return (found[0], None) if op == "look" and found else found

    monkeypatch.setattr(Bucket, "_ask", untagged)
    proxy.set(faults=[{"kind": "flip-sent", "match": "shard-", "method": "PUT", "at": [0]}])

    with pytest.raises(ChecksumError):
        upload(folder, OUT)
    upload(folder, OUT)

    for shard in read_manifest(target).shards:
        assert (target / shard.file).read_bytes() == (folder / shard.file).read_bytes()


def test_a_store_that_ignores_conditions_can_be_published_to(
    packed: Path, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "root" / "out").mkdir(parents=True)
    with servers.signed_bucket(tmp_path / "root") as endpoint:
        options = storage(endpoint) | servers.SECRET
        del options["skip_signature"]
        origin.set_defaults(cache, options)
        try:
            upload(packed / "bucket" / "packed", OUT)
            assert int(ShardDataset(OUT)[9].label) == 2
        finally:
            origin.set_defaults()


def test_objects_are_deleted_and_one_that_is_not_there_is_no_error(store: Store) -> None:
    there, names = store.root / "out", [f"sub/{i}" for i in range(20)]
    (there / "sub").mkdir(parents=True)
    for name in (*names, "other"):
        (there / name).write_text(name)
    place = Bucket(url_of("s3://out"))

    place.delete(*names, "gone")
    place.delete()

    assert [path.name for path in there.rglob("*") if path.is_file()] == ["other"]


@pytest.mark.slow
def test_a_copy_that_is_killed_goes_on_where_it_was(
    packed: Path, target: Path, cache: Path, proxy: servers.Proxy
) -> None:
    folder = packed / "bucket" / "packed"
    settings = [f"--storage={name}={value}" for name, value in SETTINGS.items()]
    settings += [f"--storage=endpoint={proxy.endpoint}", f"--cache={cache}"]
    command = [sys.executable, "-m", "packdata", "copy", str(folder), OUT, *settings]
    proxy.set(rate=2e6)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(target.glob("shard-*"))) >= 3, 60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = {path.name for path in target.glob("shard-*.lmdb")}
    assert not (target / "manifest.json").exists()
    proxy.set()

    assert subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode == 0

    assert read_manifest(target).fingerprint == read_manifest(folder).fingerprint
    assert not [each for name in there for each in puts(proxy, name)]


def test_a_changed_copy_is_made_and_sent(packed: Path, target: Path, tmp_path: Path) -> None:
    folder = str(packed / "bucket" / "packed")
    assert main(["copy", folder, OUT, "--where", "label == 3"]) == 0
    assert main(["copy", folder, str(tmp_path / "few"), "--where", "label == 3"]) == 0

    assert read_manifest(target).fingerprint == read_manifest(tmp_path / "few").fingerprint
