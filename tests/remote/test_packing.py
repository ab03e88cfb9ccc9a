"""Packing into a store, whole or in parts: the bytes of a folder, all or nothing, whatever is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import packdata
from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import LoadersError, PackError, RemoteError
from loaders.remote import origin
from loaders.remote.origin import Origin
from loaders.schema import Array, Text
from packdata.bucket import Bucket
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.parts.packing import finish
from packdata.tokens.plan import TokenOptions, pack_tokens
from tests.packdata.breaking import tmpfs
from tests.packdata.recipes import contents
from tests.remote import servers
from tests.remote.conftest import Store, storage
from tests.waiting import wait_until

OUT = "s3://out/packed"
SHARD = 4096


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures in two splits: 8 to train, 4 to val."""
    above, rng = tmp_path_factory.mktemp("raw"), np.random.default_rng(0)
    for i in range(12):
        folder = above / "photos" / ("train" if i < 8 else "val") / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i:02}.png"), rng.integers(0, 256, (20, 20, 3), np.uint8))
    return above / "photos"


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where things are made before they are sent: nothing of it stays but a manifest of who was killed."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path / "tmp"
    assert not [path for path in (tmp_path / "tmp").rglob("*/*") if path.is_file()]


def pack(photos: Path, dst: Path | str = OUT, **options: Any) -> Any:
    return pack_images(photos, dst, shard_bytes=SHARD, **{"shuffle": None} | options)


def shards_at(folder: Path) -> list[bytes]:
    """Return the shards of a dataset in their order."""
    return [(folder / shard.file).read_bytes() for shard in read_manifest(folder).shards]


def assert_same(store: Store, folder: Path, name: str = "packed") -> None:
    """Assert that the datasets of a bucket are those of a folder, and that nothing else is there."""
    there = store.root / "out" / name
    splits = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
    for split in splits:
        one, other = read_manifest(there / split), read_manifest(folder / split)
        assert (one.fingerprint, one.schema) == (other.fingerprint, other.schema)
        assert one.provenance == other.provenance
        assert shards_at(there / split) == shards_at(folder / split)
    named = {f"{s}/{each.file}" for s in splits for each in read_manifest(there / s).shards}
    assert {*contents(there)} - {"rejected.jsonl"} == named | {
        f"{s}/manifest.json" for s in splits
    }


def killed_before_asking(nth: int, argv: list[str]) -> bool:
    """Run a command in a fork that dies before its nth change of the store; False if it made fewer."""
    pid = os.fork()
    if pid == 0:
        seen, ask = 0, Origin.ask

        def counted(self: Origin, what: str, op: str, **about: Any) -> Any:
            nonlocal seen
            if op in ("put", "delete"):
                if seen == nth:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
            return ask(self, what, op, **about)

        try:
            Origin.ask = counted  # type: ignore[method-assign]
            os._exit(main(argv))
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -9)
    return code == -9


def test_what_is_packed_into_a_bucket_is_what_a_folder_gets(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    local = pack(photos, tmp_path / "local")

    summary = pack(photos)

    assert (summary.samples, summary.shards, summary.bytes) == (12, local.shards, local.bytes)
    assert summary.notes == local.notes
    assert_same(store, tmp_path / "local")
    assert len(ShardDataset(f"{OUT}/train")) == 8
    store.proxy.set()
    assert pack(photos).notes
    assert {each["method"] for each in store.proxy.requests()} <= {"GET", "HEAD"}


def test_pictures_go_to_a_bucket_in_a_drawn_order(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    argv = ["images", str(photos), "--shard-size", "4kB"]
    for i in range(2):
        assert main([*argv, "s3://out/parts", *store.options, "--part", f"{i}/2"]) == 0
    assert finish("s3://out/parts").samples == 12

    assert main([*argv, OUT, *store.options]) == 0
    assert main([*argv, "s3://out/plain", *store.options, "--shuffle", "none"]) == 0

    pack(photos, tmp_path / "drawn", shuffle=0)
    assert_same(store, tmp_path / "drawn")
    pack_images(photos, "s3://out/python", shard_bytes=SHARD)
    assert_same(store, tmp_path / "drawn", "python")
    pack(photos, tmp_path / "plain")
    assert_same(store, tmp_path / "plain", "plain")
    one, other = (
        read_manifest(store.root / "out" / name / "train") for name in ("parts", "packed")
    )
    assert one.provenance["shuffle"] == other.provenance["shuffle"] == 0
    assert shards_at(tmp_path / "drawn/train") != shards_at(tmp_path / "plain/train")


def test_another_dataset_is_replaced_on_demand_and_old_shards_go_on_demand(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    there = store.root / "out" / "packed"
    pack(photos)
    before = contents(there)
    with pytest.raises(PackError) as caught:
        pack(photos, sizes=10)
    assert str(caught.value.path).startswith(OUT)
    assert contents(there) == before

    pack(photos, sizes=10, overwrite=True)
    assert before.keys() - contents(there).keys() == set()
    pack(photos, tmp_path / "local", sizes=10)
    assert main(["finish", OUT, "--delete-old", *store.options]) == 0

    assert_same(store, tmp_path / "local")
    with pytest.raises(SystemExit):
        main(["finish", str(tmp_path / "local"), "--delete-old"])


def test_a_dataset_of_another_layout_is_in_the_way(photos: Path, store: Store) -> None:
    pack(photos / "train")

    with pytest.raises(PackError) as caught:
        pack(photos, overwrite=True)

    assert str(caught.value.path) == OUT


def test_parts_are_joined_to_what_a_folder_gets_by_few_requests(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    for i in (2, 0, 3, 1):
        pack(photos, part=f"{i}/4")
        pack(photos, tmp_path / "local", part=f"{i}/4")
    finish(tmp_path / "local")
    store.proxy.set()

    summary = finish(OUT)

    assert summary.samples == 12
    assert len(store.proxy.requests()) < 4 * 2 + 20
    assert_same(store, tmp_path / "local")
    assert not finish(OUT).datasets
    assert not pack(photos, part="1/4").datasets
    assert_same(store, tmp_path / "local")


def pack_thrice(photos: Path, local: Path) -> None:
    """Pack three parts into the bucket, and into a folder, where they are joined."""
    for i in range(3):
        pack(photos, part=f"{i}/3")
        pack(photos, local, part=f"{i}/3")
    finish(local)


def test_records_that_are_left_when_the_dataset_is_there_are_deleted(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    """As of a finish that is killed while it deletes them."""
    pack_thrice(photos, tmp_path / "local")
    shutil.copytree(store.root / "out/packed/.parts", tmp_path / "records")
    finish(OUT)
    for name in ("part-00000-of-00003", "part-00002-of-00003"):
        (store.root / "out/packed/.parts").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "records" / name, store.root / "out/packed/.parts")

    assert not finish(OUT).datasets

    assert_same(store, tmp_path / "local")


def test_of_two_that_join_parts_the_later_finds_the_dataset(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    """The parts that it has listed are joined, and deleted, before it reads them."""
    pack_thrice(photos, tmp_path / "local")
    store.proxy.set(latency_s=0.8)

    with ThreadPoolExecutor(1) as later:
        joined = later.submit(finish, OUT)
        wait_until(lambda: store.proxy.requests("/part-00002-of-00003"))
        assert finish(store.root / "out" / "packed").samples == 12

    assert not joined.result().datasets
    assert_same(store, tmp_path / "local")


def test_one_part_makes_what_the_plain_command_makes(photos: Path, store: Store) -> None:
    pack(photos)
    pack(photos, "s3://out/parts", part="0/1")
    finish("s3://out/parts")

    assert contents(store.root / "out" / "parts") == contents(store.root / "out" / "packed")


def test_a_tokenizer_and_rejects_come_with_the_manifest(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be\n" * 50)
    options = TokenOptions(documents="line", train_bpe=270)
    for dst in ("s3://out/tokens", tmp_path / "tokens"):
        pack_tokens(text, dst, options)
    shutil.copytree(photos, tmp_path / "bad")
    (tmp_path / "bad" / "train" / "c0" / "00.png").write_bytes(b"no picture")
    for dst in (OUT, tmp_path / "local"):
        assert pack(tmp_path / "bad", dst, on_error="skip").rejected

    at, there = tmp_path / "tokens", store.root / "out" / "tokens"
    names = read_manifest(at).schema.files
    assert names
    assert all((there / name).read_bytes() == (at / name).read_bytes() for name in names)
    assert shards_at(there) == shards_at(at)
    rejected = (store.root / "out" / "packed" / "rejected.jsonl").read_bytes()
    assert rejected == (tmp_path / "local" / "rejected.jsonl").read_bytes()
    for _ in range(2):  # packed, and then it is there
        part = pack(tmp_path / "bad", "s3://out/parts", on_error="skip", part="0/1")
        assert part.rejected
        assert "rejected.jsonl" not in str(part)  # which is written when parts are joined
    assert "rejected.jsonl" in str(finish("s3://out/parts"))


def test_parts_that_are_missing_or_of_another_packing_are_refused(
    photos: Path, store: Store
) -> None:
    pack(photos, part="0/3")
    with pytest.raises(PackError, match="1, 2"):
        finish(OUT)
    several: list[dict[str, Any]] = [{"part": "0/2"}, {"part": "0/3", "gray": True}, {}]
    for options in several:
        with pytest.raises(PackError):
            pack(photos, **options)
    pack(photos, part="1/3", sizes=10)
    pack(photos, part="2/3")
    with pytest.raises(PackError, match="sizes"):
        finish(OUT)

    pack(photos, part="1/3", overwrite=True)

    assert finish(OUT).samples == 12


def test_a_shard_that_is_gone_is_told_before_anything_is_published(
    photos: Path, store: Store
) -> None:
    pack(photos, part="0/2")
    pack(photos, part="1/2")
    next((store.root / "out" / "packed").rglob("shard-00001-*")).unlink()

    with pytest.raises(PackError):
        finish(OUT)

    assert not [*store.root.rglob("manifest.json")]
    for part in ("0/2", "1/2"):
        pack(photos, part=part, overwrite=True)
    assert finish(OUT).samples == 12


def test_where_nothing_lies_finish_does_not_say_that_it_finished(
    photos: Path, store: Store
) -> None:
    pack(photos)

    with pytest.raises(PackError) as caught:
        finish("s3://out/none")

    assert str(caught.value.path) == "s3://out/none"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["plain", "part", "finish", "overwrite"])
def test_killed_before_any_change_the_same_command_goes_on(
    photos: Path, store: Store, tmp_path: Path, what: str
) -> None:
    there, start = store.root / "out" / "packed", tmp_path / "start"
    argv = ["images", str(photos), OUT, "--shard-size", "4kB"]
    argv += {"part": ["--part", "0/2"], "overwrite": ["--overwrite"]}.get(what, [])
    argv = ["finish", OUT] if what == "finish" else argv
    if what == "overwrite":
        pack(photos, sizes=10)
    for i in {"part": (1,), "finish": (0, 1)}.get(what, ()):
        pack(photos, part=f"{i}/2")
    if there.exists():
        shutil.copytree(there, start)
    argv += store.options
    assert main(argv) == 0
    whole = contents(there)
    for nth in range(100):
        shutil.rmtree(there)
        if start.exists():
            shutil.copytree(start, there)

        was_killed = killed_before_asking(nth, argv)

        code = main(argv)
        assert code == 0, nth
        made = contents(there)
        journal = ".parts/part-00000-of-00002"
        assert made.pop(journal, None) is None or what == "part"
        assert made == {name: data for name, data in whole.items() if name != journal}, nth
        if not was_killed:
            break
    assert nth > 2


def test_of_two_that_pack_one_part_both_are_done(
    photos: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is done, and has finished, when this one is to send its shards."""
    put_shard, first = Bucket.put_shard, iter([True])

    def late(*about: Any) -> None:
        if next(first, False):
            pack(photos)
        put_shard(*about)

    monkeypatch.setattr(Bucket, "put_shard", late)
    pack(photos)

    pack(photos, tmp_path / "local")
    assert_same(store, tmp_path / "local")


@pytest.mark.slow
def test_two_commands_at_one_target_leave_what_one_makes(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    store.proxy.set(latency_s=0.02)
    command = [sys.executable, "-m", "packdata", "images", str(photos), OUT, "--shard-size", "4kB"]
    both = [subprocess.Popen([*command, *store.options], stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], errors
    pack(photos, tmp_path / "local", shuffle=0)
    assert_same(store, tmp_path / "local")


@pytest.mark.parametrize(
    "faults",
    [
        [{"kind": "503", "method": method, "every": 3} for method in ("PUT", "GET", "HEAD")],
        [{"kind": "reset", "method": "PUT", "every": 4}],
    ],
)
def test_a_store_that_fails_now_and_then_gets_the_same_bytes(
    photos: Path, store: Store, tmp_path: Path, faults: list[dict[str, Any]]
) -> None:
    store.proxy.set(faults=faults)
    pack(photos, part="0/2")
    pack(photos, part="1/2")
    finish(OUT)

    store.proxy.set()
    for i in range(2):
        pack(photos, tmp_path / "local", part=f"{i}/2")
    finish(tmp_path / "local")
    assert_same(store, tmp_path / "local")


def test_a_bucket_that_is_missing_is_an_error(photos: Path, store: Store) -> None:
    store.proxy.set(faults=[{"kind": "404", "method": "PUT"}])

    with pytest.raises(RemoteError):
        pack(photos)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["412", "403", "503", "hang"])
def test_a_store_that_refuses_all_is_one_error_in_time_and_the_command_goes_on(
    photos: Path, store: Store, tmp_path: Path, kind: str
) -> None:
    store.proxy.set(faults=[{"kind": kind, "method": "PUT"}])
    began = time.monotonic()

    with pytest.raises(LoadersError) as caught:
        pack(photos)

    assert isinstance(caught.value, RemoteError | PackError)
    assert time.monotonic() - began < 90
    store.proxy.set()
    summary = pack(photos)
    assert summary.notes
    pack(photos, tmp_path / "local")
    assert_same(store, tmp_path / "local")


def test_shards_are_sent_and_deleted_while_others_are_packed(
    photos: Path, store: Store, staging: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, most, num_sent = Origin.ask, 0, 0

    def counted(self: Origin, what: str, op: str, **about: Any) -> Any:
        nonlocal most, num_sent
        if op == "put" and "shard-" in about["name"]:
            most = max(most, len([*staging.rglob("shard-*.parquet")]))
            num_sent += 1
        return ask(self, what, op, **about)

    monkeypatch.setattr(Origin, "ask", counted)
    store.proxy.set(latency_s=0.05)
    options: dict[str, Any] = {"sizes": 64, "fit": "stretch", "codec": "raw"}

    assert pack(photos, **options).shards == 12

    assert num_sent == 12
    assert most <= 6  # two are written, and four are on their way
    pack(photos, tmp_path / "local", **options)
    assert_same(store, tmp_path / "local")


def test_a_shard_that_was_sent_and_is_gone_is_packed_again(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    argv = ["images", str(photos), OUT, "--shard-size", "4kB", *store.options]
    sent: list[Path] = []
    for nth in range(2, 9):  # what others send at that moment may not have arrived
        assert killed_before_asking(nth, argv)
        if sent := sorted(store.root.glob("out/packed/train/shard-*")):
            break
    sent[0].unlink()

    assert main(argv) == 0

    pack(photos, tmp_path / "local", shuffle=0)
    assert_same(store, tmp_path / "local")


@pytest.mark.slow
def test_a_staging_disk_that_fills_is_told_and_the_command_goes_on(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "packdata", "images", str(photos)]
    options = ["--size", "64x64", "--fit", "stretch", "--codec", "raw", "--shard-size", "4kB"]
    store.proxy.set(latency_s=0.3)  # what waits to be sent is more than the disk holds
    with tmpfs(tmp_path / "disk", "36k") as disk:

        def run() -> subprocess.CompletedProcess[bytes]:
            env = os.environ | {"TMPDIR": str(disk)}
            whole = [*command, OUT, *options, *store.options]
            return subprocess.run(whole, env=env, capture_output=True, timeout=60)

        full = run()
        assert full.returncode == 1
        assert all(place.encode() in full.stderr for place in (str(disk), OUT))
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        again = run()
        # Whether one was sent before the disk was full is chance: the bytes are the same.
        assert (again.returncode, again.stderr) == (0, b"")

    assert main([*command[3:], str(tmp_path / "local"), *options, "--shuffle", "0"]) == 0
    assert_same(store, tmp_path / "local")


def test_a_store_that_ignores_conditions_is_packed_into_and_no_secret_stays(
    photos: Path, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "out").mkdir(parents=True)
    with servers.signed_bucket(root) as endpoint:
        options = storage(endpoint) | servers.SECRET
        del options["skip_signature"]
        origin.set_defaults(store.cache, options)
        pack(photos, part="0/1")
        places = [tmp_path / "tmp", store.cache, root]
        found = subprocess.run(["grep", "-rl", "swordfish", *places], capture_output=True)
        finish(OUT)

    assert not found.stdout
    assert read_manifest(root / "out" / "packed" / "val").num_samples == 4


def test_a_writer_packs_into_a_bucket_what_it_packs_into_a_folder(
    store: Store, tmp_path: Path
) -> None:
    """Aborted, it leaves no dataset."""
    fields = {"values": Array("float32", (100,)), "key": Text()}
    rows = [{"values": np.full(100, i, np.float32), "key": str(i)} for i in range(30)]

    packdata.pack(rows, tmp_path / "packed", fields, shard_bytes=SHARD)
    summary = packdata.pack(rows, OUT, fields, shard_bytes=SHARD)
    writer = packdata.Writer(f"{OUT}-not", fields)
    writer.add(**rows[0])
    writer.abort()

    there = store.root / "out/packed"
    assert (summary.dst, summary.samples) == (OUT, 30)
    assert shards_at(there) == shards_at(tmp_path / "packed")
    assert not (store.root / "out/packed-not/manifest.json").exists()
