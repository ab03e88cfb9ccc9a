"""``--shuffle`` of tables and tokens: every row and document once, in another order, whoever packs it."""

import gzip
import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from loaders.data.view import open_view
from loaders.errors import PackError, SchemaError, SourceError
from loaders.schema.tokens import LABELS, TOKENS
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.packing.target import LOCK_NAME, PACKING_NAME, REJECTED_NAME
from packdata.plan import pack_plan
from packdata.reading import File
from packdata.rows import open_text
from packdata.tables import pack_tables
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from packdata.tokens.rows import streams_of
from tests.packdata.recipes import contents
from tests.packdata.test_kills import killed_before

NUM = 400
COMMANDS = {
    "csv": "tables csv DST --like like --shard-size 1kB",
    "rows.parquet": "tables rows.parquet DST --like like --shard-size 1kB",
    "a.txt": "tokens a.txt DST --documents line --row-tokens 64 --shard-size 1kB",
    "lines.jsonl.gz": "tokens lines.jsonl.gz more.jsonl.gz DST --row-tokens 64 --shard-size 1kB",
    "texts.parquet": "tokens texts.parquet DST --row-tokens 64 --shard-size 1kB",
    "files": "tokens files DST --row-tokens 64 --shard-size 8kB",
    "labels.jsonl": "tokens labels.jsonl DST --vocab-size 2000 --row-tokens 64 --shard-size 8kB",
    "rows.npy": "tokens rows.npy DST --vocab-size 2000 --row-tokens 64 --shard-size 8kB",
    "ids.npy": "tokens ids.npy DST --vocab-size 2000 --eod 0 --row-tokens 64 --shard-size 8kB",
}
QUICK = ("csv", "lines.jsonl.gz", "labels.jsonl", "rows.npy")
SOURCES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COMMANDS
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of 400 rows or documents each, all different."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    said = [f"{i} " + "so " * int(n) for i, n in enumerate(rng.integers(1, 12, NUM))]
    (folder / "csv").mkdir()
    for part in range(2):
        rows = (f"{i},{'abc'[i % 3]}\n" for i in range(part, NUM, 2))
        (folder / "csv" / f"{part}.csv").write_text("number,kind\n" + "".join(rows))
    pack_tables(folder / "csv", folder / "like")
    table = pa.table({"number": range(NUM), "kind": ["abc"[i % 3] for i in range(NUM)]})
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=30)
    (folder / "a.txt").write_text("\n".join(said) + "\n")
    pa.parquet.write_table(pa.table({"text": said}), folder / "texts.parquet", row_group_size=90)
    lines = [json.dumps({"text": text}) + "\n" for text in said]
    for name, some in (("lines", lines[:333]), ("more", lines[333:])):
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(some).encode()))
    (folder / "files").mkdir()
    for i, text in enumerate(said):
        (folder / "files" / f"{i:03}.txt").write_text(text * 3)
    lists = [[i + 1] * int(n) for i, n in enumerate(rng.integers(1, 30, NUM))]
    rows = (json.dumps({"input_ids": ids, "labels": [-100, *ids[1:]]}) for ids in lists)
    (folder / "labels.jsonl").write_text("\n".join(rows))
    np.save(folder / "rows.npy", np.repeat(np.arange(NUM, dtype=np.uint16), 7).reshape(NUM, 7))
    np.save(folder / "ids.npy", np.concatenate([[*ids, 0] for ids in lists]).astype(np.uint16))
    return folder


@pytest.fixture(autouse=True)
def small_pieces(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setattr("packdata.rows.PART_BYTES", 200)
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 500)
    monkeypatch.setattr("packdata.tokens.source._PIECE_TOKENS", 500)


def words(name: str, dst: Path, *more: str) -> list[str]:
    return [*COMMANDS[name].replace("DST", str(dst)).split(), *more]


def items(folder: Path) -> list[str]:
    """Return the rows, or the documents with their labels, of a packed dataset in their order."""
    view = open_view(folder, "never")
    if TOKENS not in view.schema.fields:
        columns = [view.column(name).tolist() for name in view.schema.fields]
        return [str(row) for row in zip(*columns, strict=True)]
    names = [name for name in (TOKENS, LABELS) if name in view.schema.fields]
    shards = [*streams_of(view, names)]
    sizes = np.cumsum([0, *(len(values[0]) for _, *values in shards)])
    ends = np.concatenate([here + size for (here, *_), size in zip(shards, sizes, strict=False)])
    columns = [
        np.split(np.concatenate([shard[i] for shard in shards]), ends)[: len(ends)]
        for i in range(1, len(names) + 1)
    ]
    return [str([each.tolist() for each in row]) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("name", SOURCES)
def test_every_item_is_there_once_in_an_order_that_the_seed_alone_decides(
    name: str, tmp_path: Path
) -> None:
    assert main(words(name, tmp_path / "plain")) == 0
    assert main(words(name, tmp_path / "a", "--shuffle", "1", "--workers", "1")) == 0
    assert main(words(name, tmp_path / "b", "--shuffle", "1", "--workers", "4")) == 0

    plain, drawn = items(tmp_path / "plain"), items(tmp_path / "a")
    assert len({*plain}) == NUM
    assert sorted(drawn) == sorted(plain)
    assert drawn != plain
    place = {item: i for i, item in enumerate(plain)}
    moves = np.diff([place[item] for item in drawn])
    assert (moves != 1).mean() > 0.7
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_blocks_of_one_size_are_each_drawn_anew(tmp_path: Path) -> None:
    assert main(words("rows.parquet", tmp_path / "plain")) == 0
    assert main(words("rows.parquet", tmp_path / "a", "--shuffle", "1")) == 0

    place = {item: i for i, item in enumerate(items(tmp_path / "plain"))}
    drawn, rows = [place[item] for item in items(tmp_path / "a")], 30  # of a group
    orders = [tuple(n % rows for n in drawn if n // rows == block) for block in range(NUM // rows)]
    assert len({*orders}) == len(orders)


@pytest.mark.parametrize("name", SOURCES)
def test_parts_hold_the_order_of_the_whole(name: str, tmp_path: Path) -> None:
    seed = ("--shuffle", "1")
    assert main(words(name, tmp_path / "whole", *seed)) == 0
    for dst, numbers in (("one", [0]), ("three", [2, 0, 1])):
        for i in numbers:
            part = f"{i}/{len(numbers)}"
            assert main(words(name, tmp_path / dst, *seed, "--part", part)) == 0
        assert main(["finish", str(tmp_path / dst)]) == 0

    assert contents(tmp_path / "one") == contents(tmp_path / "whole")
    assert items(tmp_path / "three") == items(tmp_path / "whole")


def test_another_seed_draws_another_order_and_parts_of_two_are_refused(tmp_path: Path) -> None:
    found = []
    for dst, seed in (("one", "1"), ("two", "2"), ("plain", "none")):
        assert main(words("csv", tmp_path / dst, "--shuffle", seed)) == 0
        found.append(items(tmp_path / dst))
    assert len({*map(tuple, found)}) == 3
    assert main(words("csv", tmp_path / "source")) == 0
    assert contents(tmp_path / "plain") == contents(tmp_path / "source")

    for i in range(2):
        assert main(words("csv", tmp_path / "dst", "--shuffle", f"{i}", "--part", f"{i}/2")) == 0
    assert main(["finish", str(tmp_path / "dst")]) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("name", QUICK)
def test_killed_anywhere_the_same_command_makes_the_same(name: str, tmp_path: Path) -> None:
    argv = words(name, tmp_path / "dst", "--shuffle", "1", "--workers", "1")
    assert main(argv) == 0
    calm = contents(tmp_path / "dst")
    for nth in range(9, 1000, 31):
        shutil.rmtree(tmp_path / "dst")
        was_killed = killed_before(nth, tmp_path / "dst", argv)
        assert main(argv) == 0
        again = contents(tmp_path / "dst")
        again.pop(f"{PACKING_NAME}/{LOCK_NAME}", None)  # killed when nothing else was left
        assert again == calm, nth
        if not was_killed:
            break
    assert nth > 9


def test_a_document_that_is_cut_into_pieces_otherwise_is_whole(tmp_path: Path) -> None:
    Path(tmp_path / "long").mkdir()
    for name in "abc":
        ids = np.full(2_000, ord(name), "<u2")
        (tmp_path / "long" / f"{name}.bin").write_bytes(ids.tobytes())

    pack_tokens(tmp_path / "long", tmp_path / "dst", TokenOptions(row_tokens=64), shuffle=3)

    whole = [str([[ord(name)] * 2_000]) for name in "abc"]
    assert sorted(items(tmp_path / "dst")) == whole
    plan = plan_tokens(tmp_path / "long", TokenOptions(row_tokens=64))
    assert len(plan.recipe) > 3
    torn = replace(plan, settings=replace(plan.settings, shuffle=3))
    with pytest.raises(SourceError):
        pack_plan(torn, tmp_path / "torn")


def test_train_and_val_get_the_documents_that_they_get_otherwise(tmp_path: Path) -> None:
    argv = ["--val-share", "0.3"]
    assert main(words("a.txt", tmp_path / "plain", *argv)) == 0
    assert main(words("a.txt", tmp_path / "drawn", *argv, "--shuffle", "1")) == 0

    for split in ("train", "val"):
        plain, drawn = items(tmp_path / "plain" / split), items(tmp_path / "drawn" / split)
        assert sorted(drawn) == sorted(plain)
        assert drawn != plain


@pytest.mark.parametrize("name", ["csv", "labels.jsonl"])
def test_what_cannot_be_packed_is_named_as_it_is_otherwise(name: str, tmp_path: Path) -> None:
    source = tmp_path / "bad"
    source.mkdir()
    if name == "csv":
        rows = [*Path("csv/0.csv").read_text().splitlines(), *["few", "1,a,b"] * 3]
        rows[1:] = rows[:40:-1] + rows[1:41]
        (source / "0.csv").write_text("\n".join(rows) + "\n")
        argv = ["tables", str(source), "DST", "--like", "like"]
    else:
        lines = Path(name).read_text().splitlines()
        lines[7], lines[300] = '{"input_ids": 3}', "no json"
        (source / "0.jsonl").write_text("\n".join(lines))
        argv = ["tokens", str(source), "DST", "--vocab-size", "2000", "--row-tokens", "64"]
    argv += ["--on-error", "skip"]

    found = []
    for dst, more in (("plain", []), ("drawn", ["--shuffle", "1"])):
        target = tmp_path / dst
        assert main([*(str(target) if w == "DST" else w for w in argv), *more]) == 3
        found.append((sorted(items(target)), (target / REJECTED_NAME).read_text().splitlines()))

    assert found[0][0] == found[1][0]
    assert sorted(found[0][1]) == sorted(found[1][1])
    assert len(found[0][1]) == (6 if name == "csv" else 2)


def test_a_compressed_file_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = list[str]()

    def counted(file: File) -> AbstractContextManager[BinaryIO]:
        unpacked.append(file.path.name)
        return open_text(file)

    monkeypatch.setattr("packdata.rows.open_text", counted)
    sources = ["lines.jsonl.gz", "more.jsonl.gz"]

    plan = plan_tokens(sources, TokenOptions(row_tokens=64), shuffle=1)
    pack_plan(plan, tmp_path / "dst")

    assert len(plan.recipe) > 10
    assert sorted(unpacked) == sources


@pytest.mark.parametrize("shuffle", [True, False, "none", 1.5])
def test_a_seed_is_a_whole_number_and_no_answer_to_whether(tmp_path: Path, shuffle: Any) -> None:
    (tmp_path / "a.txt").write_text("text")

    with pytest.raises(TypeError):
        pack_tokens(tmp_path / "a.txt", tmp_path / "dst", shuffle=shuffle)


def test_pictures_in_an_archive_are_not_shuffled(tmp_path: Path) -> None:
    image = {"image": [b""], "label": [0]}
    pa.parquet.write_table(pa.table(image), tmp_path / "a.parquet")

    with pytest.raises(SchemaError):
        pack_images(tmp_path / "a.parquet", tmp_path / "dst", shuffle=1)


def test_a_dataset_that_got_nothing_is_explained_when_it_is_shuffled_too(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one document\n")
    options = TokenOptions(documents="line", val_share=0.5)
    hints = []

    for shuffle in (None, 1):
        with pytest.raises(PackError) as caught:
            pack_tokens(tmp_path / "one.txt", tmp_path / "dst", options, shuffle=shuffle)
        hints.append(caught.value.hint)

    assert hints[0]
    assert hints[0] == hints[1]
