"""Budgets, users and full disks; local and remote in turn."""

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaders import DataLoader, ShardDataset
from loaders.errors import CacheError, RemoteError
from loaders.system.mounts import Mount
from tests.remote import servers
from tests.remote.conftest import ended, storage
from tests.remote.test_remote import S3, assert_same, batches


def test_a_run_goes_on_with_the_local_copy_and_with_the_store(
    packed: Path, server: str, cache: Path
) -> None:
    places = [
        ShardDataset(packed / "bucket/packed"),
        ShardDataset(S3, cache=cache, storage=storage(server)),
    ]
    whole = [batch.label.tolist() for batch in _loader(places[0])]

    parts, state = [], None
    for turn in range(4):
        loader = _loader(places[turn % 2])
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            parts.append(batch.label.tolist())
            if len(parts) % 5 == 0 and turn < 3:
                state = loader.state_dict()
                break

    assert parts == whole


def _loader(dataset: ShardDataset) -> DataLoader:
    return DataLoader(dataset, 30, shuffle="lanes", num_workers=1, seed=3)


def test_of_two_budgets_for_one_folder_the_larger_holds_while_its_client_lives(
    server: str, cache: Path
) -> None:
    sizes = [3_000_000, 5_000_000]
    small, large = (
        ShardDataset(S3, cache={"path": cache, "size": size}, storage=storage(server))
        for size in sizes
    )
    (origin,) = small.store.remotes
    assert origin.budget() == 5_000_000

    del large
    gc.collect()

    assert origin.budget() == 3_000_000


def test_bytes_that_a_reader_does_not_check_are_checked_when_they_arrive(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    proxy.set(faults=[{"kind": "flip", "match": "shard", "at": [0, 3, 7]}])
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint), check="never")

    assert_same(batches(remote), batches(ShardDataset(packed / "bucket/packed")))
    assert len(proxy.requests(".lmdb")) == len(remote.store.shards) + 3


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("size", ["7M", "1M"])
def test_a_disk_that_is_full_below_the_budget_is_made_room_on_or_is_an_error(
    packed: Path, server: str, tmp_path: Path, size: str
) -> None:
    limits = {"path": tmp_path / "disk", "size": "1GB"}
    with small_disk(tmp_path / "disk", size), ended(tmp_path / "disk"):
        remote = ShardDataset(S3, cache=limits, storage=storage(server))
        loader = DataLoader(remote, 6, num_workers=1)
        if size == "1M":  # less than a shard
            with pytest.raises(RuntimeError) as caught:
                next(iter(loader))
            assert isinstance(caught.value.__cause__ or caught.value, CacheError)
        else:
            local = DataLoader(ShardDataset(packed / "bucket/packed"), 6)
            for ours, theirs in zip(loader, local, strict=True):
                assert (ours.values == theirs.values).all()
        del remote, loader
        gc.collect()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_refused(server: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)

    with pytest.raises(CacheError) as caught:
        ShardDataset(S3, cache=tmp_path / "theirs", storage=storage(server))

    assert caught.value.path == tmp_path / "theirs"
    assert not os.listdir(tmp_path / "theirs")


def test_keys_of_a_profile_in_the_home_folder_sign_requests(
    signed: str, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"aws_{name} = {value}" for name, value in servers.SECRET.items()]
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("\n".join(["[mine]", *keys, ""]))
    monkeypatch.setenv("HOME", str(tmp_path))
    options = storage(signed) | {"profile": "mine"}
    del options["skip_signature"]

    assert int(ShardDataset(S3, cache=shared, storage=options)[9].label) == 2


def test_keys_that_expire_are_asked_for_anew_before_that(
    signed: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = "$(date -u -d '+60 seconds' +%Y-%m-%dT%H:%M:%SZ)"
    names = {"AccessKeyId": "access_key_id", "SecretAccessKey": "secret_access_key"}
    given = ", ".join(f'"{name}": "{servers.SECRET[key]}"' for name, key in names.items())
    (tmp_path / "keys.sh").write_text(f"""
echo asked >> {tmp_path}/asked
cat <<END
{{"Version": 1, {given}, "Expiration": "{soon}"}}
END
""")
    (tmp_path / ".aws").mkdir()
    profile = f"[profile mine]\ncredential_process = sh {tmp_path}/keys.sh\n"
    (tmp_path / ".aws" / "config").write_text(profile)
    monkeypatch.setenv("HOME", str(tmp_path))
    options = storage(signed) | {"profile": "mine"}
    del options["skip_signature"]

    remote = ShardDataset(S3, cache=cache, storage=options)
    before = (tmp_path / "asked").read_text().count("asked")
    time.sleep(0.3)  # obstore does not ask again within 0.1 s

    assert int(remote.read([9])[0].label) == 2
    assert (tmp_path / "asked").read_text().count("asked") > before > 0


@pytest.mark.parametrize("more", [{}, {"profile": "nobodys"}])
def test_without_credentials_the_error_names_the_ways_in_seconds(
    server: str,
    tmp_path: Path,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = storage(server) | more
    del options["skip_signature"]
    began = time.monotonic()

    with pytest.raises(RemoteError) as caught:
        ShardDataset(S3, cache=shared, storage=options)

    assert time.monotonic() - began < 10
    assert str(caught.value.path) == S3
    assert more.get("profile", "") in caught.value.what
    ways = ("access_key_id", "AWS_ACCESS_KEY_ID", "~/.aws", "metadata", "skip_signature")
    assert all(way in caught.value.hint for way in ways)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_folder_that_is_read_only_is_an_error_with_its_place(
    server: str, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, "1M"):
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)

        with pytest.raises(CacheError) as caught:
            ShardDataset(S3, cache=folder, storage=storage(server))

    assert caught.value.path == folder


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)

    with pytest.raises(CacheError) as caught:
        ShardDataset(S3, cache=tmp_path / "cache")

    assert caught.value.path == tmp_path / "cache"
    assert not os.listdir(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_folder_on_a_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mount = Mount(tmp_path, kind)
    monkeypatch.setattr("loaders.remote.folder.mount_of", lambda folder: mount)

    with pytest.raises(CacheError) as caught:
        ShardDataset(S3, cache=tmp_path / "cache")

    assert caught.value.path == tmp_path / "cache"
    assert kind in caught.value.what
    assert not (tmp_path / "cache").exists()


def test_a_clock_that_was_set_back_leaves_files_of_the_future_that_go_as_others_do(
    packed: Path, server: str, cache: Path
) -> None:
    """What is evicted goes by last use where no order is known, and that is a time."""
    budget = 5_000_000
    limits = {"path": cache, "size": budget}
    remote = ShardDataset(S3, cache=limits, storage=storage(server))
    local = ShardDataset(packed / "bucket/packed")
    for row in (0, 65, 125):
        remote.read([row])
    for path in (cache / "v2/shards").glob("??/*"):
        os.utime(path, (4e9, 4e9))

    found = [int(remote.read([row])[0].label) for row in range(5, 600, 60)]

    assert found == [int(local[row].label) for row in range(5, 600, 60)]
    held = sum(path.stat().st_size for path in (cache / "v2").rglob("*.lmdb"))
    assert held <= budget
