"""Sources in a store: the samples of the folder, listed once, fetched ahead, compared with what was listed."""

import gzip
import io
import json
import pickle
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import PackError, RemoteError, SourceError
from loaders.remote import origin
from loaders.remote.url import URL, url_of
from loaders.remote.wire import Entry
from packdata.ahead import fetched_ahead
from packdata.arrays import plan_arrays
from packdata.bucket import Bucket
from packdata.cli import main
from packdata.images.plan import pack_images, plan_images
from packdata.parts.packing import finish
from packdata.plan import pack_plan
from packdata.reading import RemoteFile
from packdata.sources.listed import Listing, is_file, look_at
from packdata.tables.plan import plan_tables
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from tests.remote.conftest import Store, storage

RAW, OUT = "s3://raw/photos", "s3://out/packed"
ODD = ["a b.png", "ü.png", "100%.png", "a#b.png", "a+b.png", "q?x.png", "[x].png", "it's.png"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred small pictures of two classes, some with names that URLs write otherwise."""
    above, rng = tmp_path_factory.mktemp("raw"), np.random.default_rng(0)
    for i in range(100):
        folder = above / "photos" / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        data = cv2.imencode(".png", rng.integers(0, 256, (8, 8, 3), np.uint8))[1].tobytes()
        (folder / (ODD[i] if i < len(ODD) else f"{i:03}.png")).write_bytes(data)
    (above / "photos" / "c1" / "notes.md").write_text("no picture")
    return above / "photos"


@pytest.fixture
def raw(photos: Path, store: Store) -> Path:
    """The folder that is served as ``RAW``."""
    shutil.copytree(photos, store.root / "raw" / "photos")
    return store.root / "raw" / "photos"


def shards_at(folder: Path) -> list[bytes]:
    return [(folder / shard.file).read_bytes() for shard in read_manifest(folder).shards]


def gets(store: Store, suffix: str = ".png") -> list[dict[str, Any]]:
    requests = store.proxy.requests()
    return [r for r in requests if r["method"] == "GET" and r["path"].endswith(suffix)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(each, marks=SLOW) for each in ({"shuffle": 3}, {"sizes": 4}))]
)
def test_pictures_of_a_url_become_what_those_of_the_folder_do(
    photos: Path, raw: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    local = pack_images(photos, tmp_path / "local", **options)
    there = pack_images(RAW, tmp_path / "there", **options)

    assert shards_at(tmp_path / "there") == shards_at(tmp_path / "local")
    one, other = (read_manifest(tmp_path / name) for name in ("there", "local"))
    assert (one.fingerprint, one.schema) == (other.fingerprint, other.schema)
    differs = {n for n in one.provenance if one.provenance[n] != other.provenance[n]}
    assert differs == {"plan_xxh3_128"}
    assert (there.samples, there.notes) == (local.samples, local.notes)
    again = pack_images(RAW, tmp_path / "there", **options)
    assert any("earlier" in note for note in again.notes)


def test_texts_of_a_url_become_what_those_of_the_folder_do(store: Store, tmp_path: Path) -> None:
    texts = store.root / "raw" / "texts"
    (texts / "sub").mkdir(parents=True)
    for i in range(20):
        (texts / "sub" / f"{i:02}.txt").write_text(f"file {i}: é" + "word " * i)
    (texts / "big.txt").write_text("to be or not to bé\n" * 300_000)
    rows = "".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(99))
    (texts / "z.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    for i, documents in enumerate(("file", "line")):
        options = TokenOptions(documents=documents)
        pack_tokens(texts, tmp_path / f"local{i}", options)
        pack_tokens("s3://raw/texts", tmp_path / f"there{i}", options)
        assert shards_at(tmp_path / f"there{i}") == shards_at(tmp_path / f"local{i}")
    one = texts / "big.txt"
    pack_tokens(one, tmp_path / "local", TokenOptions(documents="line"))
    pack_tokens("s3://raw/texts/big.txt", tmp_path / "there", TokenOptions(documents="line"))
    assert shards_at(tmp_path / "there") == shards_at(tmp_path / "local")


@pytest.mark.slow
def test_parts_of_a_source_that_changed_between_are_refused(
    raw: Path, store: Store, tmp_path: Path
) -> None:
    dst = str(tmp_path / "packed")
    argv = ["images", RAW, dst, *store.options, "--part"]
    assert main([*argv, "0/2"]) == 0
    (raw / "c0" / "new.png").write_bytes((raw / "c0" / ODD[0]).read_bytes())
    assert main([*argv, "1/2"]) == 0

    with pytest.raises(PackError):
        finish(dst)

    assert main([*argv, "0/2", "--overwrite"]) == 0
    assert finish(dst).samples == 101
    assert not (tmp_path / "packed" / ".parts").exists()


@pytest.mark.parametrize("change", ["gone", "replaced", "longer", "shorter"])
def test_what_is_not_what_was_listed_is_an_error_of_that_item(
    raw: Path, tmp_path: Path, change: str
) -> None:
    """Also where it has the same size: e-tags are compared."""
    plan = plan_images(RAW)
    path = raw / "c0" / "098.png"
    data = path.read_bytes()
    path.unlink()
    if change != "gone":
        turned = data[:-9] + data[-9:][::-1]
        path.write_bytes({"longer": data + b"1", "shorter": data[:-1]}.get(change, turned))
    items = list(plan.recipes[0].source.items())

    read = {item.key: item.read for item in fetched_ahead(iter(items))}

    with pytest.raises(SourceError) as caught:
        read["c0/098"]()
    assert "098.png" in str(caught.value)
    assert read["c0/096"]()


def test_a_source_that_changes_while_it_is_packed_is_not_published(
    raw: Path, tmp_path: Path
) -> None:
    plan = plan_images(RAW)
    (raw / "c0" / "new.png").write_bytes((raw / "c0" / ODD[0]).read_bytes())
    with pytest.raises(PackError):
        pack_plan(plan, tmp_path / "packed")

    (store_text := raw.parent / "a.txt").write_text("to be")
    tokens = plan_tokens("s3://raw/a.txt", TokenOptions())
    store_text.write_text("or not")
    with pytest.raises(SourceError):
        pack_plan(tokens, tmp_path / "tokens")


@pytest.mark.parametrize("kind", ["tar", "parquet", "csv"])
def test_large_files_are_fetched_once_to_be_listed_packed_and_published(
    store: Store, tmp_path: Path, kind: str
) -> None:
    """Whether they are still what was listed, the store tells by another listing."""
    data = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    there = store.root / "raw" / "large"
    there.mkdir(parents=True)
    for i in range(3):
        keys = [f"{i}{j}" for j in range(9)]
        if kind == "tar":
            with tarfile.open(there / f"{i}.tar", "w") as tar:
                for key in keys:
                    (member := tarfile.TarInfo(f"{key}.png")).size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        elif kind == "parquet":
            table = pa.table({"image": [data] * 9, "key": keys, "label": [1] * 9})
            pq.write_table(table, there / f"{i}.parquet")
        else:
            (there / f"{i}.csv").write_text("a,b\n" + f"1,{i}\n" * 99)
    url = "s3://raw/large"
    plan = plan_tables(url, target="a") if kind == "csv" else plan_images(url)

    pack_plan(plan, tmp_path / "packed")

    assert len(gets(store, f".{kind}")) == 3
    assert plan.is_unchanged()
    shutil.copy(there / f"0.{kind}", there / f"3.{kind}")
    assert not plan.is_unchanged()
    (there / f"3.{kind}").unlink()
    assert plan.is_unchanged()
    shutil.copy(there / f"0.{kind}", there / f"1.{kind}")
    assert not plan.is_unchanged()
    assert len(gets(store, f".{kind}")) == 3


def test_objects_come_ahead_also_where_the_first_item_reads_none(raw: Path) -> None:
    """As one whose mask is missing, which is rejected in its turn."""
    items = [object(), *list(plan_images(RAW).recipes[0].source.items())]

    found = list(fetched_ahead(iter(items)))

    assert found == items
    assert all(file.coming is not None for item in items[1:] for file in item.reads)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("nbytes", "most"), [(100, 8 * 32), (1 << 20, 32 + 4)])
def test_objects_come_ahead_of_need_and_no_more_than_a_few(
    raw: Path, nbytes: int, most: int
) -> None:
    """While one is looked at, some hundred others are on their way, or 32 MB of large ones, but not all of many."""
    (raw / "notes").mkdir()
    (raw / "notes" / "large.bin").write_bytes(bytes(1 << 20))
    (_, file), taken = Listing(url_of(f"{RAW}/notes")).at(0), 0
    assert isinstance(file, RemoteFile)

    def counted() -> Iterator[Any]:
        nonlocal taken
        for _ in range(5000):
            taken += 1
            yield replace(file, end=nbytes)

    ahead = fetched_ahead(counted())
    assert len(next(ahead)()) == nbytes
    assert 32 <= taken <= most
    ahead.close()


@pytest.mark.parametrize(("options", "num"), [(["--part", "0/2"], 50), (["--shuffle", "1"], 100)])
def test_objects_come_ahead_in_parts_and_in_another_order(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], num: int
) -> None:
    ask, asked = Bucket.objects, list[int]()

    def spy(origin: Bucket, wanted: Sequence[Any]) -> list[bytes | str]:
        asked.append(len(wanted))
        return ask(origin, wanted)

    monkeypatch.setattr(Bucket, "objects", spy)

    assert main(["images", RAW, str(tmp_path / "out"), "--codec", "png", *options]) == 0

    assert sum(asked) == num
    assert len(asked) < 20


def test_pictures_come_ahead_with_their_masks(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its own questions, as they lie in two folders."""
    shutil.copytree(raw, raw.parent / "masks")
    plan, ask, asked = plan_images(RAW, masks="s3://raw/masks"), Bucket.objects, list[int]()

    def spy(origin: Bucket, wanted: Sequence[Any]) -> list[bytes | str]:
        asked.append(len(wanted))
        return ask(origin, wanted)

    monkeypatch.setattr(Bucket, "objects", spy)
    for item in fetched_ahead(plan.recipes[0].source.items()):
        assert item.read_mask is not None
        assert item.read_mask() == item.read()

    assert sum(asked) == 200
    assert len(asked) < 20


def test_the_first_objects_are_not_kept_waiting_by_those_behind_them(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is asked for shares the link, and the store."""
    items, ask, asked = (
        [*plan_images(RAW).recipes[0].source.items()] * 50,
        Bucket.objects,
        list[int](),
    )

    def spy(origin: Bucket, wanted: Sequence[Any]) -> list[bytes | str]:
        asked.append(len(wanted))
        return ask(origin, wanted)

    monkeypatch.setattr(Bucket, "objects", spy)
    for item in fetched_ahead(iter(items)):
        assert item.read()

    assert {4, 8, 16, 32} <= {*asked}
    assert sum(asked) == len(items)


@pytest.mark.slow
def test_a_store_that_fails_now_and_then_gives_the_same_bytes_and_one_that_does_not_answer_an_error(
    photos: Path, raw: Path, store: Store, tmp_path: Path
) -> None:
    faults = [{"kind": kind, "every": 7, "match": "png"} for kind in ("503", "cut")]
    store.proxy.set(faults=faults)
    pack_images(RAW, tmp_path / "there")
    pack_images(photos, tmp_path / "local")
    assert shards_at(tmp_path / "there") == shards_at(tmp_path / "local")

    store.proxy.set(faults=[{"kind": "403", "match": "098.png"}])
    with pytest.raises(RemoteError) as caught:
        pack_images(RAW, tmp_path / "other", on_error="skip")
    assert "098.png" in str(caught.value.path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_arrays_in_a_store_that_does_not_answer_are_no_rejects(
    store: Store, tmp_path: Path, suffix: str
) -> None:
    folder, save = store.root / "raw" / "scans", np.savez if suffix == "npz" else np.save
    folder.mkdir(parents=True)
    for i in range(3):
        save(folder / f"{i}.{suffix}", np.full((2, 3), i, np.int16))
    plan = plan_arrays("s3://raw/scans", on_error="skip")
    store.proxy.set(faults=[{"kind": "503", "match": suffix}])

    with pytest.raises(RemoteError):
        pack_plan(plan, tmp_path / "packed")

    assert not (tmp_path / "packed" / "rejected.jsonl").exists()


def test_secrets_are_in_no_plan(raw: Path, store: Store) -> None:
    """Neither in what it shows, nor in what is sent to other nodes."""
    origin.set_defaults(store.cache, storage(store.proxy.endpoint) | {"token": "swordfish"})
    for plan in (plan_images(RAW), plan_tokens(RAW, TokenOptions())):
        assert "swordfish" not in f"{plan} {plan.to_json()} {plan!r}"
        assert b"swordfish" not in pickle.dumps(plan.splits)
        assert plan.is_unchanged()


def test_what_is_no_source_is_refused(raw: Path, store: Store, tmp_path: Path) -> None:
    (raw.parent / "tars").mkdir()
    (raw.parent / "tars" / "a.tar").write_bytes(b"")
    for line in (
        "images s3://raw/tars DST",
        "images s3://raw/none DST",
        f"images {RAW} {RAW}/packed",
        f"images {RAW} s3://raw",
    ):
        argv = [word.replace("DST", str(tmp_path / "dst")) for word in line.split()]
        with suppress(SystemExit):
            assert main([*argv, *store.options]) == 1
    assert not (tmp_path / "dst").exists()


def test_a_flat_folder_is_packed_and_its_url_meant_as_it_is_written(store: Store) -> None:
    """Of ``a#1``, ``a?1`` and ``a%201`` no fragment, query or code is made: that would be other folders."""
    for i, name in enumerate(["a", "a#1", "a 1", "a%201", "a?1"], 1):
        folder = store.root / "raw" / name
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / "0.png"), np.full((8, 8, 3), i, np.uint8))
        (folder / "metadata.csv").write_text("")

    for name, value in {"a": 1, "a#1": 2, "a%201": 4, "a?1": 5}.items():
        pack_images(f"s3://raw/{name}", f"s3://out/{name}")
        assert (store.root / "out" / name / "manifest.json").exists()
        (image,) = (sample.image for sample in ShardDataset(f"s3://out/{name}"))
        assert (image == value).all()


def test_parts_list_their_source_and_are_joined(store: Store) -> None:
    (store.root / "raw" / "few").mkdir(parents=True)
    for i in range(3):
        cv2.imwrite(str(store.root / "raw" / "few" / f"{i}.png"), np.full((8, 8, 3), i, np.uint8))

    for i in range(2):
        argv = ["images", "s3://raw/few", "s3://out/few", "--part", f"{i}/2", *store.options]
        assert main(argv) == 0
    assert finish("s3://out/few").samples == 3

    images = [sample.image for sample in ShardDataset("s3://out/few")]
    assert [int(image[0, 0, 0]) for image in images] == [0, 1, 2]


def test_files_at_other_urls_are_not_listed(tmp_path: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        plan_images(f"file://{tmp_path}")

    assert str(caught.value.path) == f"file://{tmp_path}"


def test_what_holds_nothing_is_refused(store: Store) -> None:
    (store.root / "empty").mkdir()

    for place in ("s3://empty", "s3://empty/below"):
        with pytest.raises(SourceError):
            look_at(place)


def test_a_name_with_a_line_break_is_refused_at_once(store: Store) -> None:
    (store.root / "raw").mkdir()
    (store.root / "raw" / "a\nb.png").write_bytes(b"")

    with pytest.raises(RemoteError) as caught:
        plan_images("s3://raw")

    assert r"a\nb.png" in repr(str(caught.value))
    assert len(store.proxy.requests()) <= 2


def test_a_file_of_a_large_listing_is_found_at_once_in_whatever_order_they_were_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts are looked at one by one: a search through all names for each took hours."""
    numbers = np.random.default_rng(0).permutation(2_000).tolist()
    for order in (range(2_000), numbers):
        entries = [Entry(f"t/{i:05}", i + 1, 2 * i) for i in order]
        monkeypatch.setattr(Bucket, "below", lambda _, entries=entries: iter([entries]))
        listing = Listing(url_of("s3://raw"))

        began = time.process_time()
        files = listing.files(f"t/{i:05}" for i in range(2_000))
        assert time.process_time() - began < 0.5
        assert [(file.size, file.mark) for file in files] == [(i + 1, 2 * i) for i in range(2_000)]
        assert listing.find("t/0") is listing.find("t/1") is listing.find("t") is None
        assert [*listing.names("t")] == [f"{i:05}" for i in range(2_000)]
        assert [*listing.below("t")] == [f"{i:05}" for i in range(2_000)]


def test_a_url_is_listed_as_a_folder(photos: Path, raw: Path) -> None:
    there, local = Listing(url_of(RAW)), Listing(photos)

    assert [*there] == [*local]
    assert there.folders == local.folders
    assert there.subfolders() == local.subfolders() == ["c0", "c1"]
    flat = Listing(url_of(RAW), deep=False)
    assert (len(flat), flat.subfolders()) == (0, ["c0", "c1"])
    note = there.find("c1/notes.md")
    assert isinstance(note, RemoteFile)
    assert (str(note.path), note.size) == (f"{RAW}/c1/notes.md", len("no picture"))
    assert isinstance(note.path, URL)
    assert note() == b"no picture"
    assert is_file(note.path)
    assert not is_file(note.path / "none")


def test_a_list_is_given_in_pages(store: Store) -> None:
    folder = store.root / "raw" / "many"
    folder.mkdir(parents=True)
    for i in range(2_500):
        (folder / f"{i:05}").write_bytes(b"")

    pages = [*Bucket(URL("s3://raw/many")).below()]

    assert [entry.name for page in pages for entry in page] == [f"{i:05}" for i in range(2_500)]
    assert len(store.proxy.requests()) == 3
