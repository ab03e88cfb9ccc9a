"""Every kind of source, from URLs and to them: the shards of the same files in a folder, whoever is killed."""

import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import RemoteError, SourceError
from loaders.remote import origin
from loaders.remote.url import url_of
from packdata import copies as copying
from packdata import reading
from packdata.ahead import fetched_ahead
from packdata.arrays import pack_arrays, plan_arrays
from packdata.cli import main
from packdata.copies import Copies, opened_in_order
from packdata.images.plan import pack_images, plan_images
from packdata.packing.engine import pack_recipes
from packdata.parts.packing import finish
from packdata.reading import RemoteFile
from packdata.sources import row_kinds
from packdata.sources.listed import Listing, files_at
from packdata.tables.plan import pack_tables, plan_tables
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from packdata.tokens.tokenizer import train_bpe
from tests.packdata.recipes import contents
from tests.remote.conftest import Store, storage
from tests.remote.test_packing import killed_before_asking, shards_at, staging
from tests.waiting import wait_until

__all__ = ["staging"]  # a fixture: nothing of what is fetched stays
RAW = "s3://raw"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of each kind."""
    root, rng = tmp_path_factory.mktemp("raw"), np.random.default_rng(0)
    for name in (
        "photos/a",
        "photos/b",
        "masks/a",
        "masks/b",
        "arrays",
        "segs",
        "t",
        "tars",
        "yolo/images/a",
        "yolo/labels/a",
        "voc/images",
        "voc/annotations",
        "model",
    ):
        (root / name).mkdir(parents=True)
    names = [f"{'ab'[i % 2]}/{i:02}.png" for i in range(20)]
    for name in names:
        cv2.imwrite(str(root / "photos" / name), rng.integers(0, 256, (9, 7, 3), np.uint8))
        cv2.imwrite(str(root / "masks" / name), rng.integers(0, 3, (9, 7), np.uint8))
    rows = "".join(f"{name},../masks/{name},{i % 3}\n" for i, name in enumerate(names))
    (root / "photos" / "list.csv").write_text(
        "image,label\n" + "".join(f"{n},{i % 3}\n" for i, n in enumerate(names))
    )
    (root / "masked.csv").write_text(
        "image,mask,label\n" + rows.replace("../", "").replace("a/", "photos/a/", 0)
    )
    lines = [{"images": [f"photos/{a}", f"photos/{b}"]} for a, b in pairwise(names)]
    (root / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    images = [
        {"id": i, "file_name": name, "height": 9, "width": 7} for i, name in enumerate(names)
    ]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1, 1, 3, 4]} for i in range(20)
    ]
    coco = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}],
    }
    (root / "coco.json").write_text(json.dumps(coco))
    for i in range(6):
        shutil.copy(root / "photos" / names[0], root / "yolo" / "images" / "a" / f"{i}.png")
        shutil.copy(root / "photos" / names[0], root / "voc" / "images" / f"{i}.png")
        label = f"{i % 2} 0.5 0.5 0.25 0.25\n"
        (root / "yolo" / "labels" / "a" / f"{i}.txt").write_text(label * i)
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>5</ymax>"
        (root / "voc" / "annotations" / f"{i}.xml").write_text(
            f"<annotation><object><name>{'xy'[i % 2]}</name><bndbox>{box}</bndbox></object></annotation>"
        )
    (root / "yolo" / "data.yaml").write_text("path: .\nnames: [cat, dog]\n")
    (root / "classes.txt").write_text("b\nc\na\n")
    (root / "palette.txt").write_text("0 0 0\n1 1 1\n2 2 2\n")
    (root / "chat.jsonl").write_text(
        "".join(
            json.dumps({"messages": [{"role": "assistant", "content": f"é {i}"}]}) + "\n"
            for i in range(30)
        )
    )
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (root / "model" / "chat_template.jinja").write_text(template)
    (root / "model" / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (root / "model" / "tokenizer.json").write_bytes(train_bpe(["some text of words"] * 9, 260))
    for half in ("a", "b"):
        below = ["-C", str(root / "photos"), *(name for name in names if name[0] == half)]
        subprocess.run(["tar", "cf", str(root / "tars" / f"{half}.tar"), *below], check=True)
    data = [{"bytes": (root / "photos" / name).read_bytes(), "path": name} for name in names]
    pq.write_table(
        pa.table({"image": data, "label": list(range(20))}), root / "hf.parquet", row_group_size=6
    )
    for i in range(12):
        array = rng.normal(size=(3, 4 + i % 2, 5)).astype(np.float32)
        np.save(root / "arrays" / f"{i:02}.npy", array)
        np.save(root / "segs" / f"{i:02}.npy", rng.integers(0, 3, array.shape, np.uint8))
        np.savez(root / "arrays" / f"z{i:02}.npz", array)
        np.savez(root / "segs" / f"z{i:02}.npz", rng.integers(0, 3, array.shape, np.uint8))
    (root / "arrays.csv").write_text(
        "array,score\n" + "".join(f"arrays/{i:02}.npy,{i / 4}\n" for i in range(12))
    )
    for year in (2024, 2025):
        text = "".join(f"{i},{i * year / 7:.3f},{'xyz'[i % 3]}\n" for i in range(900))
        (root / "t" / f"{year}.csv").write_text("number,price,kind\n" + text)
    (root / "rows.jsonl").write_text(
        "".join(json.dumps({"a": i, "b": f"w{i % 5}"}) + "\n" for i in range(500))
    )
    pq.write_table(
        pa.table({"a": range(1_200), "b": ["x", "y"] * 600}),
        root / "rows.parquet",
        row_group_size=250,
    )
    with pa.ipc.new_file(str(root / "rows.arrow"), pa.schema({"a": pa.int64()})) as writer:
        writer.write_table(pa.table({"a": list(range(3_000))}), max_chunksize=500)
    np.save(root / "ids.npy", rng.integers(0, 9_000, 40_000, np.uint16))
    pq.write_table(
        pa.table({"text": [f"row {i} é" for i in range(300)]}),
        root / "texts.parquet",
        row_group_size=90,
    )
    return root


CASES: dict[str, tuple[Callable[..., Any], str | list[str], dict[str, Any]]] = {
    "masks": (pack_images, "photos", {"masks": "masks"}),
    "coco": (pack_images, "photos", {"annotations": "coco.json"}),
    "list": (pack_images, "photos/list.csv", {}),
    "list of several": (pack_images, "pairs.jsonl", {}),
    "tars": (pack_images, "tars", {}),
    "two tars": (pack_images, ["tars/b.tar", "tars/a.tar"], {}),
    "yolo": (pack_images, "yolo/images", {"annotations": "yolo/labels"}),
    "voc": (pack_images, "voc/images", {"annotations": "voc/annotations"}),
    "classes": (
        pack_images,
        "photos",
        {"masks": "masks", "palette": "palette.txt", "classes": "classes.txt"},
    ),
    "parquet of pictures": (pack_images, "hf.parquet", {}),
    "arrays": (pack_arrays, "arrays", {"masks": "segs"}),
    "list of arrays": (pack_arrays, "arrays.csv", {}),
    "csv": (pack_tables, "t", {"target": ["price"]}),
    "json lines": (pack_tables, "rows.jsonl", {}),
    "parquet": (pack_tables, "rows.parquet", {}),
    "arrow": (pack_tables, "rows.arrow", {}),
    "ids": (pack_tokens, "ids.npy", {}),
    "texts in parquet": (pack_tokens, "texts.parquet", {}),
    "chat": (
        pack_tokens,
        "chat.jsonl",
        {"tokenizer": "model/tokenizer.json", "chat_template": "model/chat_template.jinja"},
    ),
}
LISTED = ("masks", "annotations")
PLACES = (*LISTED, "classes", "palette", "tokenizer", "chat_template")
JOURNALS = {f".parts/part-0000{i}-of-00002" for i in range(2)}  # which hold times


@pytest.fixture(autouse=True)
def _no_copies(staging: Path) -> Iterator[None]:
    """Nothing of what is fetched stays."""
    yield
    gc.collect()
    assert not [*staging.rglob("made")]


def leave_room(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies of objects find a disk of which they may take so much."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * nbytes))


def stored(*names: str) -> list[RemoteFile]:
    """Return objects below ``RAW``."""
    found = [file for name in names for file in files_at(url_of(f"{RAW}/{name}"))]
    return [file for file in found if isinstance(file, RemoteFile)]


@pytest.fixture
def raw(files: Path, store: Store) -> Path:
    """The folder that is served as ``RAW``."""
    shutil.copytree(files, store.root / "raw")
    return store.root / "raw"


def sources(case: str, above: Path | str) -> tuple[Any, dict[str, Any]]:
    """Return the source of a case, and its options, below a place."""
    _, names, options = CASES[case]
    found = [f"{above}/{name}" for name in ([names] if isinstance(names, str) else names)]
    given = {n: f"{above}/{value}" if n in PLACES else value for n, value in options.items()}
    return found if len(found) > 1 else found[0], given


def pack(case: str, above: Path | str, dst: Path | str, **settings: Any) -> Any:
    src, given = sources(case, above)
    if CASES[case][0] is pack_tokens:
        return pack_tokens(src, dst, TokenOptions(**given), **settings)
    if CASES[case][0] is pack_images:
        settings = {"shuffle": None} | settings  # at URLs pictures are shuffled by default
    return CASES[case][0](src, dst, shard_bytes=2_000, **given, **settings)


QUICK = ("masks", "coco", "list", "tars", "arrays", "csv", "parquet", "chat")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_of_every_source_a_url_gets_what_a_folder_gets(
    case: str, files: Path, raw: Path, store: Store, tmp_path: Path
) -> None:
    local = pack(case, files, tmp_path / "local")

    there = pack(case, RAW, "s3://out/packed")
    mixed = pack(case, files, "s3://out/mixed")

    at, out = tmp_path / "local", store.root / "out"
    assert shards_at(out / "packed") == shards_at(out / "mixed") == shards_at(at)
    one, two, three = (read_manifest(folder) for folder in (out / "packed", out / "mixed", at))
    assert one.schema == two.schema == three.schema
    assert two.provenance == three.provenance
    differs = {name for name in one.provenance if one.provenance[name] != three.provenance[name]}
    assert differs == {"plan_xxh3_128"}
    assert (
        (there.samples, there.shards)
        == (mixed.samples, mixed.shards)
        == (local.samples, local.shards)
    )
    notes = {note.replace("out/mixed", "out/packed") for note in mixed.notes}
    assert {*there.notes} == notes
    assert pack(case, RAW, "s3://out/packed").notes


@pytest.mark.parametrize("case", ["parquet of pictures", "parquet", "texts in parquet"])
def test_of_a_large_parquet_what_is_read_is_fetched_in_ranges(
    case: str,
    files: Path,
    raw: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_kinds, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(reading, "_BUFFER_BYTES", 200)
    monkeypatch.setattr(reading, "_RANGE_BYTES", 300)
    store.proxy.set()

    pack(case, RAW, tmp_path / "there")

    assert len(store.proxy.requests(".parquet")) > 9
    pack(case, files, tmp_path / "local")
    assert shards_at(tmp_path / "there") == shards_at(tmp_path / "local")


def words(case: str, above: Path | str, dst: Path | str, store: Store, *more: str) -> list[str]:
    """Return the command of a case."""
    src, given = sources(case, above)
    command = CASES[case][0].__name__.removeprefix("pack_")
    options = [
        word
        for n, value in given.items()
        for word in (f"--{n.replace('_', '-')}", str(*value) if n == "target" else value)
    ]
    size = [] if command == "tokens" else ["--shard-size", "2kB"]
    return [
        command,
        *([src] if isinstance(src, str) else src),
        str(dst),
        *options,
        *size,
        *more,
        *store.options,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "masks",
        "list",
        "two tars",
        "yolo",
        "arrays",
        "csv",
        "texts in parquet",
    ],
)
def test_parts_of_every_source_are_joined_to_what_parts_of_a_folder_are(
    case: str,
    files: Path,
    raw: Path,
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans: list[list[str]] = [[], []]
    if case == "csv":
        for i, above in enumerate((RAW, str(files))):
            assert main(words(case, above, "s3://out/packed", store, "--dry-run", "--json")) == 0
            (tmp_path / f"plan{i}").write_text(capsys.readouterr().out)
            plans[i] = ["--plan", str(tmp_path / f"plan{i}")]
    if case in ("masks", "list", "yolo"):
        plans[1] = ["--shuffle", "0"]  # as pictures go to a URL
    if case in ("csv", "texts in parquet"):
        plans = [[*plan, "--shuffle", "2"] for plan in plans]
    for i in (1, 0, 2):
        assert main(words(case, RAW, "s3://out/packed", store, "--part", f"{i}/3", *plans[0])) == 0
        assert (
            main(words(case, files, tmp_path / "local", store, "--part", f"{i}/3", *plans[1])) == 0
        )
    finish("s3://out/packed")
    finish(tmp_path / "local")

    assert shards_at(store.root / "out" / "packed") == shards_at(tmp_path / "local")
    capsys.readouterr()
    assert main(words(case, RAW, "s3://out/packed", store, "--part", "1/3", *plans[0])) == 0
    assert "part 1/3" in capsys.readouterr().out
    (raw / "photos" / "a" / "new.png").write_bytes((raw / "photos" / "a" / "00.png").read_bytes())
    if case == "masks":  # of another list: what is there is not made of it
        assert main(words(case, RAW, "s3://out/packed", store, "--part", "1/3")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["csv", "two tars", "arrays"])
@pytest.mark.parametrize("what", ["plain", "part", "finish"])
def test_killed_before_any_change_the_same_command_makes_the_same(
    case: str, what: str, raw: Path, store: Store, tmp_path: Path
) -> None:
    there, start, plan = store.root / "out" / "packed", tmp_path / "start", list[str]()
    argv = words(case, RAW, "s3://out/packed", store)
    if what != "plain":
        if case == "csv":
            command = [sys.executable, "-m", "packdata", *argv, "--dry-run", "--json"]
            found = subprocess.run(command, capture_output=True, check=True)
            (tmp_path / "plan").write_bytes(found.stdout)
            plan = ["--plan", str(tmp_path / "plan")]
        for i in range(1 if what == "part" else 2):
            assert main([*argv, "--part", f"{i}/2", *plan]) == 0
        shutil.copytree(there, start)
        argv = (
            ["finish", "s3://out/packed", *store.options]
            if what == "finish"
            else [*argv, "--part", "1/2", *plan]
        )
    assert main(argv) == 0
    whole = contents(there)
    for nth in range(100):
        shutil.rmtree(there)
        if start.exists():
            shutil.copytree(start, there)

        was_killed = killed_before_asking(nth, argv)

        assert main(argv) == 0, nth
        made = contents(there)
        assert {n: d for n, d in made.items() if n not in JOURNALS} == {
            n: d for n, d in whole.items() if n not in JOURNALS
        }, nth
        assert made.keys() == whole.keys()
        if not was_killed:
            break
    assert nth > 1


def test_what_is_fetched_goes_when_room_ends_and_when_it_was_read(
    files: Path, raw: Path, store: Store, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(6):
        (raw / f"{i}.bin").write_bytes(bytes([i]) * 1_000)
    monkeypatch.setattr(copying, "_SAFE_S", -1.0)
    monkeypatch.setattr(copying, "_AHEAD_BYTES", 0)
    leave_room(2_500, monkeypatch)
    copies = Copies(stored(*(f"{i}.bin" for i in range(6))))
    path = copies.path(0)
    opened, folder = open(path, "rb"), path.parent  # noqa: SIM115
    store.proxy.set()
    for number in (1, 2, 2, 3, 2, 5):
        assert copies.path(number).read_bytes() == bytes([number]) * 1_000
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2_500

    assert opened.read() == bytes(1_000)
    opened.close()
    assert len(store.proxy.requests(".bin")) == 4
    del copies
    assert not folder.exists()


def test_the_next_objects_come_while_one_is_read_and_no_more_than_a_few(
    raw: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(20):
        (raw / f"{i:02}.bin").write_bytes(bytes([i]) * 1_000)
    soon = storage(store.proxy.endpoint, timeout=1, retry_timeout=2)
    origin.set_defaults(store.cache, soon)
    monkeypatch.setattr(copying, "_AHEAD_BYTES", 3_000)
    files = stored(*(f"{i:02}.bin" for i in range(20)))
    opened_in_order(files)

    def read(i: int) -> bool:
        return files[i].local().read_bytes() == bytes([i]) * 1_000

    assert read(4)

    folder = files[4].local().parent
    wait_until(lambda: {path.name for path in folder.iterdir()} == {"4", "5", "6", "7"})
    (raw / "09.bin").unlink()
    assert all(map(read, range(5, 9)))
    with pytest.raises(SourceError):  # what cannot be fetched is an error of whoever opens it
        read(9)
    store.proxy.set(faults=[{"kind": "hang", "match": "17.bin"}])
    assert read(16)
    began = time.monotonic()

    files.clear()
    gc.collect()

    assert time.monotonic() - began < 15
    assert not folder.exists()
    assert not [t for t in threading.enumerate() if t.name.startswith("fetch")]


def test_what_was_yielded_comes_though_nothing_follows_it(raw: Path, store: Store) -> None:
    (raw / "many").mkdir()
    for i in range(300):
        (raw / "many" / f"{i:03}.bin").write_bytes(str(i).encode())
    listing = Listing(url_of(f"{RAW}/many"))
    files = [file for _, file in map(listing.at, range(300))]
    store.proxy.set(latency_s=0.2)

    yielded = [*fetched_ahead(iter(files))]

    assert [file() for file in yielded] == [str(i).encode() for i in range(300)]


def test_many_text_files_are_looked_at_while_one_is_waited_for(raw: Path, store: Store) -> None:
    (raw / "texts").mkdir()
    for i in range(12):
        (raw / "texts" / f"{i:02}.txt").write_text("to be\n\nor not\n\n")
    origin.set_defaults(store.cache, storage(store.proxy.endpoint, timeout=2))
    store.proxy.set(faults=[{"kind": "hang", "match": "00.txt"}])

    with pytest.raises(RemoteError):
        plan_tokens(f"{RAW}/texts", TokenOptions(documents="\n\n"))

    assert len({each["path"] for each in store.proxy.requests(".txt")}) > 8


def test_what_comes_ahead_in_many_ranges_ends_with_the_packing(
    raw: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (raw / "a.bin").write_bytes(bytes(10))
    (raw / "b.bin").write_bytes(bytes(4_000))
    copies = Copies(stored("a.bin", "b.bin"))
    monkeypatch.setattr(copying, "_READ_BYTES", 100)
    store.proxy.set(latency_s=0.2)
    assert copies.path(0).read_bytes() == bytes(10)
    wait_until(lambda: len(store.proxy.requests("b.bin")) > 0)

    held = [copies]
    del copies
    closing = threading.Thread(target=held.clear, daemon=True)
    closing.start()
    closing.join(60)

    assert not closing.is_alive()


def test_what_was_fetched_stays_when_a_forked_process_ends(raw: Path, store: Store) -> None:
    (raw / "a.bin").write_bytes(bytes(10))
    copies = [Copies(stored("a.bin"))]
    path = copies[0].path(0)

    child = os.fork()
    if not child:
        copies.clear()
        os._exit(0)
    os.waitpid(child, 0)

    assert path.read_bytes() == bytes(10)
    copies.clear()
    assert not path.exists()


def test_what_comes_ahead_takes_no_room_that_there_is_not(
    raw: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_room(2_500, monkeypatch)
    for name in "ab":
        (raw / f"{name}.bin").write_bytes(name.encode() * 2_000)
    copies = Copies(stored("a.bin", "b.bin"))

    for _ in range(2):
        path = copies.path(0)
        assert path.read_bytes() == b"a" * 2_000
        wait_until(lambda: all(copy.fetched.done() for copy in copies._copies.values()))
        assert [other.name for other in path.parent.iterdir()] == ["0"]

    assert copies.path(1).read_bytes() == b"b" * 2_000


@pytest.mark.parametrize("labels", ["labels", "some/labels"])
def test_labels_lie_in_a_bucket_that_holds_folders_alone(
    labels: str, files: Path, store: Store, tmp_path: Path
) -> None:
    for above in (store.root / "yolo", tmp_path / "yolo"):
        shutil.copytree(files / "yolo" / "images", above / "images")
        shutil.copytree(files / "yolo" / "labels", above / labels)

    for root, dst in ((tmp_path / "yolo", tmp_path / "local"), ("s3://yolo", tmp_path / "packed")):
        pack_images(f"{root}/images", dst, annotations=f"{root}/{labels}")

    assert shards_at(tmp_path / "packed") == shards_at(tmp_path / "local")


def test_an_object_that_was_replaced_is_not_read_as_what_was_listed(
    raw: Path, store: Store, tmp_path: Path
) -> None:
    (file,) = stored("ids.npy")
    data = (raw / "ids.npy").read_bytes()
    (raw / "ids.npy").write_bytes(data[:-1] + b"x")

    opened_in_order([file])
    with pytest.raises(SourceError) as caught:
        file.local()

    assert str(caught.value.path) == f"{RAW}/ids.npy"


def test_what_is_left_of_a_killed_process_is_removed(
    raw: Path, store: Store, staging: Path
) -> None:
    code = (
        "import os, signal, sys; from loaders.remote import origin; from packdata.sources.listed import *\n"
        "from packdata.copies import *; origin.set_defaults(sys.argv[1], eval(sys.argv[2]))\n"
        "(file,) = files_at(place_of(sys.argv[3])); opened_in_order([file])\n"
        "file.local(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    about = [str(store.cache), repr(storage(store.proxy.endpoint)), f"{RAW}/ids.npy"]
    subprocess.run([sys.executable, "-c", code, *about], check=False)
    left = [*staging.rglob("made/*")]
    assert [path.stat().st_size for path in left] == [(raw / "ids.npy").stat().st_size]

    copies = Copies(stored("chat.jsonl"))
    assert copies.path(0).exists()
    del copies

    assert not any(path.exists() for path in left)


def test_what_is_not_at_a_url_says_so(raw: Path, store: Store, tmp_path: Path) -> None:
    for line in (
        "tables s3://raw/none/*.csv DST",
        "images s3://raw/photos DST --classes s3://raw/none",
        "images s3://raw/photos DST --annotations s3://raw/none",
        "images s3://raw/photos DST --masks s3://raw/masks --palette s3://raw/none",
        "tables s3://raw/t DST --like s3://raw/none",
        "tables s3://raw/t DST --part 0/2 --plan s3://raw/none",
        "tokens s3://raw/chat.jsonl DST --tokenizer s3://raw/none",
        "tokens s3://raw/chat.jsonl DST --chat-template s3://raw/none",
        "images s3://raw/photos DST --masks s3://raw/none",
    ):
        argv = [word.replace("DST", str(tmp_path / "dst")) for word in line.split()]
        assert main([*argv, *store.options]) == 1, line
    assert not (tmp_path / "dst").exists()


def test_tables_are_packed_like_one_at_a_url_and_by_a_plan_there(
    files: Path, raw: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["tables", f"{RAW}/t", "--target", "price", *store.options]
    assert main([*argv, "s3://out/train", "--dry-run", "--json"]) == 0
    (raw / "plan.json").write_text(capsys.readouterr().out)
    parts = [*argv, "s3://out/train", "--plan", f"{RAW}/plan.json", "--part"]
    assert [main([*parts, f"{i}/2"]) for i in range(2)] == [0, 0]
    finish("s3://out/train")

    assert main(["tables", f"{RAW}/t/2024.csv", "s3://out/like", "--like", "s3://out/train"]) == 0

    pack_tables(files / "t", tmp_path / "train", target=["price"])
    assert read_manifest("s3://out/train").schema == read_manifest(tmp_path / "train").schema
    pack_tables(files / "t" / "2024.csv", tmp_path / "like", like=tmp_path / "train")
    assert shards_at(store.root / "out" / "like") == shards_at(tmp_path / "like")


def test_a_part_of_tables_fetches_its_own_files_and_the_first_which_names_the_columns(
    raw: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (raw / "many").mkdir()
    for i in range(9):
        (raw / "many" / f"{i}.csv").write_text(f"a,b\n{i},1\n")
    argv = ["tables", f"{RAW}/many", "s3://out/many", *store.options]
    assert main([*argv, "--dry-run", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    monkeypatch.setattr(copying, "_AHEAD", 1)
    store.proxy.set()

    assert main([*argv, "--part", "5/9", "--plan", str(tmp_path / "plan.json")]) == 0

    gets = [each["path"] for each in store.proxy.requests(".csv") if each["method"] == "GET"]
    assert {Path(path).name for path in gets} <= {"0.csv", "1.csv", "5.csv", "6.csv"}
    assert any(path.endswith("5.csv") for path in gets)


@pytest.mark.parametrize("command", ["images", "tokens", "tables"])
def test_a_pattern_at_a_url_is_refused_with_what_to_give(
    raw: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    argv = [command, f"{RAW}/t/*.csv", str(tmp_path / "dst"), *store.options]

    assert main(argv) == 1

    assert "give a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        "masks",
        "arrays",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("list", "two tars", "csv")),
    ],
)
def test_a_plan_that_is_sent_to_another_process_reads_what_was_listed(
    case: str,
    files: Path,
    raw: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the tasks of Ray get it."""
    src, given = sources(case, RAW)
    makes: dict[Any, Any] = {
        pack_images: plan_images,
        pack_arrays: plan_arrays,
        pack_tables: plan_tables,
    }
    plan = makes[CASES[case][0]]([src] if isinstance(src, str) else src, **given)
    sent = pickle.dumps(plan.splits)

    pack_recipes(
        pickle.loads(sent), tmp_path / "there", format=plan.settings.format, shard_bytes=2_000
    )

    pack(case, files, tmp_path / "local")
    assert shards_at(tmp_path / "there") == shards_at(tmp_path / "local")


def test_what_was_left_out_is_listed_until_the_dataset_is_replaced(
    raw: Path, store: Store
) -> None:
    (raw / "photos" / "a" / "00.png").write_bytes(b"no picture")
    there = store.root / "out" / "packed"

    assert pack_images(f"{RAW}/photos", "s3://out/packed", on_error="skip").rejected
    assert (there / "rejected.jsonl").exists()
    (raw / "photos" / "a" / "00.png").unlink()

    pack_images(f"{RAW}/photos", "s3://out/packed", overwrite=True)

    assert not (there / "rejected.jsonl").exists()
