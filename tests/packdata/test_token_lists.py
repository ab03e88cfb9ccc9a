"""Lists of ids, as tokenizers of other libraries leave them in Parquet, Arrow and JSON lines."""

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders import DataLoader, ShardDataset, TokenWindows, concat
from loaders.data.manifest import read_manifest
from loaders.errors import PackError, SourceError
from packdata.inspect.verify import verify
from packdata.packed.derive import merge, split
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from tests.packdata.test_tokens import documents, pack, texts, write
from tests.refusals import At

LISTS = [[5, 6, 7], [8], [], [9, 10, 11, 12]]
LABELS = [[-100, 6, 7], [8], [], [-100, -100, 11, -100]]
KINDS = ["parquet", "arrow", "stream.arrow", "jsonl", "jsonl.gz"]


def write_rows(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns as the suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        return write(path, gzip.compress(data) if path.suffix == ".gz" else data)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
        return path
    make = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def labels_of(folder: Path) -> list[list[int]]:
    """Return the labels of each document."""
    found = ShardDataset(folder, fields=["labels", "num_tokens"])
    flat = np.concatenate([x.labels[: int(x.num_tokens)].numpy() for x in found])
    ends = np.cumsum([len(ids) for ids in documents(folder)])
    return [part.tolist() for part in np.split(flat, ends[:-1])]


@pytest.mark.parametrize("format", ["parquet", "lmdb"])
@pytest.mark.parametrize("row_tokens", [16, 1024, 8192])  # labels of 64 bytes, 4 KiB, 32 KiB a row
def test_labels_are_served_from_either_format(
    tmp_path: Path, format: str, row_tokens: int
) -> None:
    ids = [[*range(number, number + 700)] for number in range(30)]
    labels = [[-100] * 300 + each[300:] for each in ids]
    source = write_rows(tmp_path / "a.parquet", {"input_ids": ids, "labels": labels})

    folder = pack(source, tmp_path / "p", format, vocab_size=1000, row_tokens=row_tokens)

    assert verify(folder).ok
    windows = DataLoader(TokenWindows(folder, 699), batch_size=len(ids), shuffle=False)
    flat: np.ndarray[Any, Any] = np.array(labels).ravel()
    for number, row in enumerate(next(iter(windows)).targets.tolist()):
        assert row == flat[699 * number + 1 :][:699].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_ids_are_documents(tmp_path: Path, kind: str) -> None:
    source = write_rows(tmp_path / f"a.{kind}", {"input_ids": LISTS, "url": ["x"] * 4})

    folder = pack(source, tmp_path / "p", row_tokens=4, vocab_size=13)

    assert documents(folder) == [ids for ids in LISTS if ids]
    assert "labels" not in read_manifest(folder).schema.fields
    assert read_manifest(folder).schema.fields["tokens"].dtype == "uint8"
    assert verify(folder).ok


@pytest.mark.parametrize("kind", KINDS)
def test_labels_beside_the_ids_are_kept(tmp_path: Path, kind: str) -> None:
    source = write_rows(tmp_path / f"a.{kind}", {"ids": LISTS, "labels": LABELS})

    folder = pack(source, tmp_path / "p", row_tokens=4, ids_column="ids")

    assert documents(folder) == [ids for ids in LISTS if ids]
    assert labels_of(folder) == [labels for labels in LABELS if labels]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_labels_are_used_though_the_first_lists_are_empty(tmp_path: Path, kind: str) -> None:
    none: list[list[int]] = [[]] * 100
    columns = {"input_ids": [*none, [5, 6]], "labels": [*none, [-100, 6]]}

    folder = pack(write_rows(tmp_path / f"a.{kind}", columns), tmp_path / "p")

    assert documents(folder) == [[5, 6]]
    assert labels_of(folder) == [[-100, 6]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_padding_that_an_attention_mask_marks_is_left_out(tmp_path: Path, kind: str) -> None:
    columns = {
        "input_ids": [[5, 6, 0, 0], [0, 0, 7, 8]],
        "attention_mask": [[1, 1, 0, 0], [0, 0, 1, 1]],
        "labels": [[-100, 6, -100, -100], [-100, -100, 7, 8]],
    }

    folder = pack(write_rows(tmp_path / f"a.{kind}", columns), tmp_path / "p")

    assert documents(folder) == [[5, 6], [7, 8]]
    assert labels_of(folder) == [[-100, 6], [7, 8]]


@pytest.mark.parametrize(("kind", "place"), [("parquet", "row 1"), ("jsonl", "line 2")])
def test_an_id_behind_padding_that_does_not_fit_is_named_with_its_row(
    tmp_path: Path, kind: str, place: str
) -> None:
    columns = {
        "input_ids": [[5, 6, 0, 0], [7, 9, 0, 0]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 0, 0]],
    }

    with pytest.raises(SourceError, check=At(f"a.{kind}, {place}")):
        pack(write_rows(tmp_path / f"a.{kind}", columns), tmp_path / "p", vocab_size=8)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.uint16()),
        pa.large_list(pa.int32()),
        pa.list_(pa.int8(), 2),
        pa.list_(pa.uint64()),
    ],
)
def test_lists_of_any_type_of_arrow_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    source = write_rows(tmp_path / "a.parquet", {"input_ids": pa.array([[1, 2], [3, 4]], kind)})

    assert documents(pack(source, tmp_path / "p")) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("beside", [{}, {"labels": [[97]]}, {"loss_mask": [[1]]}], ids=str)
def test_where_there_are_texts_and_ids_a_tokenizer_alone_does_not_tell_which_are_meant(
    tmp_path: Path, kind: str, beside: dict[str, Any]
) -> None:
    """It may have made the ids, or shall make some: masks beside them would be lost without a word."""
    source = write_rows(tmp_path / f"a.{kind}", {"text": ["a"], "input_ids": [[97]], **beside})

    assert documents(pack(source, tmp_path / "ids")) == [[97]]
    dropped = tuple(beside)
    assert texts(pack(source, tmp_path / "text", text_column="text", drop=dropped)) == ["a"]
    for made_by in ({"tokenizer": "bytes"}, {"train_bpe": 300}):
        with pytest.raises(SourceError, check=At(source)):
            pack(source, tmp_path / "p", **made_by)
    ids = pack(source, tmp_path / "bytes", tokenizer="bytes", ids_column="input_ids")
    assert documents(ids) == [[97]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    "columns", [{"loss_mask": [[0, 1]]}, {"labels": [[0]], "input_ids": [[97]]}], ids=str
)
def test_masks_beside_texts_are_refused_or_dropped(
    tmp_path: Path, kind: str, columns: dict[str, Any]
) -> None:
    source = write_rows(tmp_path / f"a.{kind}", {"text": ["ab"], **columns})

    with pytest.raises(SourceError, check=At(source)):
        pack(source, tmp_path / "p", text_column="text")
    drop = ("loss_mask", "labels")
    assert texts(pack(source, tmp_path / "q", text_column="text", drop=drop)) == ["ab"]


@pytest.mark.parametrize("beside", [{"loss_mask": [0, 1]}, {"input_ids": [97]}], ids=str)
def test_masks_and_ids_beside_texts_are_refused_from_a_later_line_on_too(
    tmp_path: Path, beside: dict[str, Any]
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(f'{{"text": "ab"}}\n{json.dumps({"text": "cd", **beside})}\n')

    with pytest.raises(SourceError, check=At(source)):
        pack(source, tmp_path / "p", tokenizer="bytes")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "csv"])
def test_masks_beside_texts_of_a_later_file_or_behind_the_first_lines_are_refused(
    tmp_path: Path, kind: str
) -> None:
    first = write_rows(tmp_path / "a.jsonl", {"text": ["ab"]})
    masks: dict[str, Any] = {"text": ["cd"] * 99, "loss_mask": [[0, 1]] * 99}
    later = tmp_path / f"b.{kind}"
    if kind == "csv":
        later.write_text("text,loss_mask\ncd,1\n")
    else:
        write_rows(later, masks)
    behind = tmp_path / "c.jsonl"
    behind.write_text('{"text": "ab"}\n' * 99 + '{"text": "cd", "loss_mask" : [1, 0]}\n')

    line = ", line 1" if kind == "jsonl" else ""
    for source, at in (([first, later], f"b.{kind}{line}"), ([behind], "c.jsonl, line 100")):
        with pytest.raises(SourceError, check=At(at)) as caught:
            pack(source, tmp_path / "p")
        assert "drop=['loss_mask']" in str(caught.value)
    dropped = pack([behind, first], tmp_path / "q", drop=("loss_mask",))
    assert texts(dropped) == [*["ab"] * 99, "cd", "ab"]


def test_a_first_line_of_megabytes_has_its_columns(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", {"input_ids": [[7] * 1_000_000, [8]]})

    assert documents(pack(source, tmp_path / "p")) == [[7] * 1_000_000, [8]]


def test_ids_that_begin_and_end_documents_are_put_where_they_are_missing(tmp_path: Path) -> None:
    columns = {"input_ids": [[1, 5, 2], [6]], "labels": [[-100, 5, 2], [6]]}
    source = write_rows(tmp_path / "a.parquet", columns)

    folder = pack(source, tmp_path / "p", bos=1, eod=2)

    assert documents(folder) == [[1, 5, 2], [1, 6, 2]]
    assert labels_of(folder) == [[-100, 5, 2], [-100, 6, 2]]


def test_lists_that_are_equal_with_begin_and_end_stay_on_one_side(tmp_path: Path) -> None:
    lists = [[5, n, 9] for n in range(10, 30)]
    bare = [[5, n] for n in range(10, 20)] + [[n, 9] for n in range(20, 30)]
    source = write_rows(tmp_path / "a.jsonl", {"input_ids": [*lists, *bare]})

    pack(source, tmp_path / "p", bos=5, eod=9, val_share=0.5)

    train, val = (set(map(tuple, documents(tmp_path / "p" / name))) for name in ("train", "val"))
    assert len(train | val) == 20
    assert not train & val


# -- targets ---------------------------------------------------------------------------------------


def following(ids: Sequence[int], labels: Sequence[int]) -> list[tuple[int, int]]:
    """Return each id with its target: the next label, none behind the last one."""
    return list(zip(ids, [*labels[1:], -100], strict=True))


@pytest.mark.parametrize("row_tokens", [2, 3, 64])
def test_the_target_of_an_id_is_the_next_label(tmp_path: Path, row_tokens: int) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 99, n).tolist() for n in (3, 7, 1, 20, 5, 11)]
    labels = [
        np.where(rng.random(len(x)) < 0.5, -100, rng.integers(0, 9, len(x))).tolist() for x in ids
    ]
    source = write_rows(tmp_path / "a.parquet", {"input_ids": ids, "labels": labels})
    folder = pack(source, tmp_path / "p", row_tokens=row_tokens)

    windows = TokenWindows(folder, 8, by="document")

    found = []
    for batch in DataLoader(windows, batch_size=2):
        used = batch.document_ids >= 0
        found += list(zip(batch.tokens[used].tolist(), batch.targets[used].tolist(), strict=True))
        assert (batch.targets[~used] == -100).all()
    wanted = [pair for x, y in zip(ids, labels, strict=True) for pair in following(x, y)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_windows_of_the_stream_have_labels_as_targets_too(
    tmp_path: Path, tail: Any, dtype: Any
) -> None:
    ids, labels = np.arange(100, 130), np.arange(30)[::-1]
    columns = {"input_ids": [ids[:13].tolist(), ids[13:].tolist()]}
    columns["labels"] = [labels[:13].tolist(), labels[13:].tolist()]
    folder = pack(write_rows(tmp_path / "a.parquet", columns), tmp_path / "p", row_tokens=8)

    windows = TokenWindows(folder, 7, tail=tail, dtype=dtype)
    batches = list(DataLoader(windows, batch_size=3))

    tokens = np.concatenate([batch.tokens.reshape(-1).numpy() for batch in batches])
    targets = np.concatenate([batch.targets.reshape(-1).numpy() for batch in batches])
    num = 28 if tail == "drop" else 29
    assert tokens[:num].tolist() == ids[:num].tolist()
    assert targets[:num].tolist() == labels[1 : num + 1].tolist()
    assert (targets[num:] == -100).all()
    assert targets.dtype == dtype


def test_labels_and_narrow_targets_contradict_each_other(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.parquet", {"input_ids": LISTS, "labels": LABELS})

    folder = pack(source, tmp_path / "p")

    TokenWindows(folder, 2)
    with pytest.raises(ValueError):
        TokenWindows(folder, 2, dtype="stored")


def test_labels_go_with_their_documents_when_these_are_divided_and_joined(tmp_path: Path) -> None:
    ids = [[i, i + 1, i + 2][: 1 + i % 3] for i in range(60)]
    columns = {"input_ids": ids, "labels": [[x + 90 for x in row] for row in ids]}
    source = write_rows(tmp_path / "a.parquet", columns)

    pack(source, tmp_path / "p", row_tokens=16, val_share=0.3, seed=1)
    split(tmp_path / "p/train", tmp_path / "s", parts={"a": 0.5, "b": 0.5})
    merge(tmp_path / "m", [tmp_path / "s/a", tmp_path / "s/b", tmp_path / "p/val"])

    for folder in ("p/train", "p/val", "s/a", "s/b", "m"):
        found = documents(tmp_path / folder)
        assert labels_of(tmp_path / folder) == [[x + 90 for x in row] for row in found]
    assert sorted(documents(tmp_path / "m")) == sorted(ids)
    parts = [ShardDataset(tmp_path / "s" / name) for name in "ab"]
    windows = TokenWindows(concat(parts), 4, by="document")
    assert windows.num_tokens == sum(map(len, documents(tmp_path / "p/train")))


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    "columns",
    [
        {"input_ids": [[1], None]},
        {"input_ids": [[1], [2, None]]},
        {"input_ids": [[1], [2]], "labels": [[1], [2, 3]]},
        {"input_ids": [[1], [2]], "labels": [[1], None]},
    ],
)
def test_rows_that_are_no_document_are_named_and_may_be_skipped(
    tmp_path: Path, kind: str, columns: dict[str, Any]
) -> None:
    source = write_rows(tmp_path / f"a.{kind}", columns)
    where = "a.parquet, row 1" if kind == "parquet" else "a.jsonl, line 2"

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p")
    summary = pack_tokens(source, tmp_path / "q", TokenOptions(), on_error="skip")

    assert caught.value.path == where
    assert [item for item, _ in summary.rejected] == [where]
    assert documents(tmp_path / "q") == [[1]]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        *[(kind, {"labels": [-1, 7]}) for kind in ("jsonl", "parquet")],
        *[(kind, {"input_ids": [1, 99]}) for kind in ("jsonl", "parquet")],
        ("jsonl", {"loss_mask": [1, 1]}),
    ],
    ids=str,
)
def test_a_bad_row_costs_no_other_row(tmp_path: Path, kind: str, bad: dict[str, Any]) -> None:
    rows = [{"input_ids": [1, 2], "labels": [-100, 2]} for _ in range(100)]
    rows[70] |= bad
    source = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    options = TokenOptions(vocab_size=50)
    summary = pack_tokens(source, tmp_path / "p", options, on_error="skip")

    place = "line 71" if kind == "jsonl" else "row 70"
    assert [item for item, _ in summary.rejected] == [f"a.{kind}, {place}"]
    assert documents(tmp_path / "p") == [[1, 2]] * 99


def test_keys_inside_of_others_are_no_columns(tmp_path: Path) -> None:
    row = {"input_ids": [1, 2], "meta": {"labels": 3, "loss_mask": [1]}}
    source = write_rows(tmp_path / "a.jsonl", {name: [value] for name, value in row.items()})

    assert documents(pack(source, tmp_path / "p")) == [[1, 2]]


@pytest.mark.parametrize("row", ['{"input_ids": [3]} {"input_ids": [4]}', '{"input_ids":\n[3]}'])
def test_a_line_of_json_is_one_object(tmp_path: Path, row: str) -> None:
    """Arrow reads two on a line, and one on two lines: places would be those of other rows."""
    source = write(tmp_path / "a.jsonl", f'{{"input_ids": [1]}}\n{row}\n')

    with pytest.raises(SourceError, check=At("a.jsonl, line 2")):
        pack(source, tmp_path / "p")


def test_a_text_that_a_null_hides_is_not_packed(tmp_path: Path) -> None:
    texts_ = pa.array(["keep", "SECRET", "me"])
    hidden = [pa.py_buffer(b"\x05"), *texts_.buffers()[1:]]
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, hidden)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)

    summary = pack_tokens(tmp_path / "a.arrow", tmp_path / "p", TokenOptions(), on_error="skip")

    assert [item for item, _ in summary.rejected] == ["a.arrow, row 1"]
    assert texts(tmp_path / "p") == ["keep", "me"]


def test_columns_with_a_dot_are_cut_into_pieces_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 1000)
    pieces = []
    for name in ("text", "meta.text"):
        rows = {name: ["x" * 100] * 50, "meta": ["y" * 10_000] * 50}
        pq.write_table(pa.table(rows), tmp_path / "a.parquet", use_dictionary=False)
        pieces.append(
            len(plan_tokens(tmp_path / "a.parquet", TokenOptions(text_column=name)).recipe)
        )

    assert pieces[0] == pieces[1] > 1


def test_each_bad_row_is_listed_and_those_behind_it_keep_their_places(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"input_ids": [None, [1], [2, None], [3, 4], [9]]}
    columns["labels"] = [[1], [1], [2, 2, 2], [3], [9]]
    source = write_rows(tmp_path / "a.parquet", columns)

    summary = pack_tokens(source, tmp_path / "p", TokenOptions(vocab_size=10), on_error="skip")

    assert [(item, "'labels'" in why) for item, why in summary.rejected] == [
        ("a.parquet, row 0", False),
        ("a.parquet, row 2", False),
        ("a.parquet, row 3", True),
    ]
    assert labels_of(tmp_path / "p") == documents(tmp_path / "p") == [[1], [9]]
    fewer = pack_tokens(source, tmp_path / "q", TokenOptions(vocab_size=9), on_error="skip")
    assert fewer.rejected[-1][0] == "a.parquet, row 4"
    assert documents(tmp_path / "q") == [[1]]


def test_an_id_too_large_is_named_by_its_line_also_where_lines_are_read_one_by_one(
    tmp_path: Path,
) -> None:
    deep = "[" * 70 + "]" * 70  # which Arrow is not given
    source = tmp_path / "a.jsonl"
    source.write_text(f'{{"input_ids": [1, 2], "x": {deep}}}\n{{"input_ids": [3, 70], "x": 0}}\n')

    with pytest.raises(SourceError) as caught:
        pack_tokens(source, tmp_path / "packed", TokenOptions(vocab_size=10))

    assert str(caught.value.path) == "a.jsonl, line 2"


@pytest.mark.parametrize(
    "line",
    ['{"input_ids": [1, 2.5]}', '{"input_ids": [true]}', '{"input_ids": "1 2"}', '{"ids": "1"}'],
)
def test_json_that_holds_no_list_of_ids_is_refused(tmp_path: Path, line: str) -> None:
    source = write(tmp_path / "a.jsonl", f'{{"input_ids": [1]}}\n\n{line}\n')

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p")

    assert caught.value.path == "a.jsonl, line 3"


@pytest.mark.parametrize("depth", [20_000, pytest.param(500, marks=pytest.mark.slow)])
def test_values_that_are_nested_deep_do_not_end_the_process(tmp_path: Path, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    source = write(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{{"text": "b", "x": {nested}}}\n')
    code = "import sys; from packdata.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "tokens", str(source), str(tmp_path / "p")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode in (0, 1)
    assert done.returncode == 0 or "a.jsonl, line 2" in done.stderr


@pytest.mark.parametrize(("label", "options"), [(70_000, {}), (-1, {}), (12, {"vocab_size": 12})])
def test_a_label_that_is_no_id_is_named_with_its_row(
    tmp_path: Path, label: int, options: dict[str, Any]
) -> None:
    rows = {"input_ids": [[1, 2], [3, 4]], "labels": [[-100, 2], [-100, label]]}
    for kind, place in (("parquet", "row 1"), ("jsonl", "line 2")):
        with pytest.raises(SourceError, check=At(f"a.{kind}, {place}")):
            pack(write_rows(tmp_path / f"a.{kind}", rows), tmp_path / "p", **options)


def test_an_id_beyond_the_vocabulary_is_named_with_its_row(tmp_path: Path) -> None:
    for kind, where in (("parquet", "row 3"), ("jsonl", "line 4")):
        source = write_rows(tmp_path / f"a.{kind}", {"input_ids": LISTS})
        with pytest.raises(SourceError) as caught:
            pack(source, tmp_path / "p", vocab_size=12)
        assert caught.value.path == f"a.{kind}, {where}"


def test_columns_and_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.parquet", {"input_ids": [["x"]], "n": [1]})

    with pytest.raises(SourceError, check=At("a.parquet")):
        pack(source, tmp_path / "p", ids_column="missing")
    with pytest.raises(SourceError, check=At("a.parquet")):
        pack(source, tmp_path / "p", ids_column="n")
    ids = write_rows(tmp_path / "b.parquet", {"input_ids": [[1]], "n": [1]})
    for wrong in ({"text_column": "n"}, {"train_bpe": 300}):
        with pytest.raises(ValueError):
            pack(ids, tmp_path / "p", ids_column="input_ids", **wrong)
    pack(ids, tmp_path / "p", ids_column="input_ids")


def test_plain_text_beside_lists_of_ids_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "src/a.jsonl", {"input_ids": [[1]]})
    write(tmp_path / "src/b.txt", "text")

    with pytest.raises(SourceError, check=At("src/a.jsonl")):
        pack(tmp_path / "src", tmp_path / "p")


def test_files_of_which_only_later_ones_have_labels_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "src/a.parquet", {"input_ids": [[1]]})
    later = write_rows(tmp_path / "src/b.parquet", {"input_ids": [[1]], "labels": [[1]]})

    with pytest.raises(SourceError) as caught:
        pack(tmp_path / "src", tmp_path / "p")

    assert caught.value.path == later


# -- text ------------------------------------------------------------------------------------------


def test_an_id_can_be_put_before_each_text(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "ab\ncd\n")

    folder = pack(source, tmp_path / "p", documents="line", bos=257, eod=256)

    assert documents(folder) == [[257, 97, 98, 256], [257, 99, 100, 256]]
    assert TokenWindows(folder, 4).vocab_size == 258
    alone = pack(source, tmp_path / "alone", documents="line", bos=256, eod="none")
    assert documents(alone) == [[256, 97, 98], [256, 99, 100]]
    numbers = write(tmp_path / "a.bin", b"\1\0")
    for wrong, bos in ((source, 258), (numbers, 1)):
        with pytest.raises(ValueError):
            pack(wrong, tmp_path / "q", bos=bos)
    pack(numbers, tmp_path / "q")


# -- what runs beside the ids ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_labels_that_are_the_next_ids_already_are_refused(tmp_path: Path, kind: str) -> None:
    ids = [[n, n + 1, n + 2, 7, 7] for n in range(20, 40, 3)]
    shifted = [[-100, *row[2:], -100] for row in ids]
    alike = {"input_ids": [[7] * 5] * 9, "labels": [[7] * 5] * 9}
    source = write_rows(tmp_path / f"a.{kind}", {"input_ids": ids, "labels": shifted})

    with pytest.raises(PackError, match="shifted"):
        pack(source, tmp_path / "p")
    assert labels_of(pack(write_rows(tmp_path / f"b.{kind}", alike), tmp_path / "q"))
    where = "a.parquet, row 0" if kind == "parquet" else "a.jsonl, line 1"
    with pytest.raises(PackError, match="shifted", check=At(where)):  # also behind another file
        pack([tmp_path / f"b.{kind}", source], tmp_path / "r")
    assert len(documents(pack(source, tmp_path / "s", drop=("labels",)))) == len(ids)
    with pytest.raises(PackError, match="shifted"):
        pack_tokens(source, tmp_path / "t", TokenOptions(), on_error="skip")


def test_a_value_called_as_a_column_is_none(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", {"input_ids": [[1, 2]], "kind": ["labels"]})

    assert documents(pack(source, tmp_path / "p")) == [[1, 2]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", ["completion_mask", "assistant_masks", "loss_mask"])
@pytest.mark.parametrize("values", [int, bool, float])
def test_masks_beside_the_ids_say_what_is_a_target(
    tmp_path: Path, kind: str, name: str, values: Any
) -> None:
    masks = [[values(each) for each in row] for row in ([0, 0, 1], [1, 0])]
    source = write_rows(tmp_path / f"a.{kind}", {"input_ids": [[5, 6, 7], [8, 9]], name: masks})

    folder = pack(source, tmp_path / "p")

    assert labels_of(folder) == [[-100, -100, 7], [8, -100]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_attention_mask_of_flags_and_labels_of_floats_are_used(
    tmp_path: Path, kind: str
) -> None:
    columns: dict[str, Any] = {"input_ids": [[5, 6, 0]], "attention_mask": [[True, True, False]]}
    columns |= {"labels": [[-100.0, 6.0, -100.0]], "loss_mask": [[1, 1, 1]]}

    folder = pack(write_rows(tmp_path / f"a.{kind}", columns), tmp_path / "p")

    assert documents(folder) == [[5, 6]]
    assert labels_of(folder) == [[-100, 6]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", ["attention_mask", "completion_mask", "loss_mask"])
def test_a_mask_of_other_numbers_than_0_and_1_is_refused_with_its_row(
    tmp_path: Path, kind: str, name: str
) -> None:
    """As those that number the documents of a packed row."""
    columns = {"input_ids": [[5, 6], [7, 8, 9]], name: [[1, 1], [1, 2, 0]]}
    source = write_rows(tmp_path / f"a.{kind}", columns)

    where = "a.parquet, row 1" if kind == "parquet" else "a.jsonl, line 2"
    with pytest.raises(SourceError, check=At(where)):
        pack(source, tmp_path / "p")
    assert documents(pack(source, tmp_path / "q", drop=(name,))) == [[5, 6], [7, 8, 9]]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    ("name", "value"), [("labels", 1), ("labels", [[5, 6]]), ("loss_mask", "01")]
)
def test_what_is_called_as_labels_or_a_mask_and_is_no_list_of_numbers_is_refused(
    tmp_path: Path, kind: str, name: str, value: Any
) -> None:
    source = write_rows(tmp_path / f"a.{kind}", {"input_ids": [[5, 6]], name: [value]})

    with pytest.raises(SourceError, check=At("a.jsonl, line 1" if kind == "jsonl" else source)):
        pack(source, tmp_path / "p")
    assert documents(pack(source, tmp_path / "q", drop=(name,))) == [[5, 6]]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    "lists",
    [[[0, 0, 1], [1, 0]], [None, [1, 0]], [[1, 3], [2]], [[0.5], [0.25, 1.0]], [[True], [False]]],
    ids=["numbers", "later", "ends", "floats", "flags"],
)
def test_another_list_of_numbers_beside_the_ids_is_an_error_that_names_what_to_drop(
    tmp_path: Path, kind: str, lists: Any
) -> None:
    columns: dict[str, Any] = {"input_ids": [[5, 6, 7], [8, 9]], "prompt_mask": lists}
    columns |= {"tags": [["a"], ["b", "c"]], "length": [3, 2], "nested": [[[1]], [[2]]]}
    source = write_rows(tmp_path / f"a.{kind}", columns)

    with pytest.raises(SourceError, check=At(f"a.{kind}")) as caught:
        pack(source, tmp_path / "p")

    assert "drop=['prompt_mask']" in caught.value.hint
    first = write_rows(tmp_path / f"first.{kind}", {"input_ids": [[5, 6]]})
    with pytest.raises(SourceError, check=At(f"a.{kind}")):
        pack([first, source], tmp_path / "p")
    assert documents(pack(source, tmp_path / "p", drop=("prompt_mask",))) == [[5, 6, 7], [8, 9]]


@pytest.mark.parametrize("ids", ["[1, null]", '"x"'], ids=["by Arrow", "by Python"])
def test_time_to_skip_rows_grows_as_their_number(tmp_path: Path, ids: str) -> None:
    row = f'{{"input_ids": {ids}, "x": "{"x" * 200}"}}\n'
    good = '{"input_ids": [5, 6], "x": "x"}\n'
    source = write(tmp_path / "a.jsonl", good + row * 18_000)

    start = time.process_time()
    summary = pack_tokens(source, tmp_path / "p", workers=1, on_error="skip")

    assert (
        time.process_time() - start < 5
    )  # each row's place was looked for from the beginning: 12 s
    assert len(summary.rejected) == 18_000


def test_padding_that_is_kept_is_another_packing(tmp_path: Path) -> None:
    columns = {"input_ids": [[5, 6, 0]], "attention_mask": [[1, 1, 0]]}
    source = write_rows(tmp_path / "a.parquet", columns)
    assert documents(pack(source, tmp_path / "p")) == [[5, 6]]

    with pytest.raises(PackError):
        pack(source, tmp_path / "p", drop=("attention_mask",))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_lists_that_a_later_file_or_line_brings_are_an_error(tmp_path: Path, kind: str) -> None:
    write_rows(tmp_path / f"in/a.{kind}", {"input_ids": [[5, 6]]})
    late = {"input_ids": [[7, 8]], "labels": [[-100, 8]]}
    write_rows(tmp_path / f"in/b.{kind}", late)

    with pytest.raises(SourceError) as caught:
        pack(tmp_path / "in", tmp_path / "p")

    assert "'labels'" in caught.value.what
    assert documents(pack(tmp_path / "in", tmp_path / "p", drop=("labels",))) == [[5, 6], [7, 8]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_lengths_of_packed_rows_divide_documents(tmp_path: Path, kind: str) -> None:
    columns: dict[str, Any] = {"input_ids": [[1, 2, 3, 4], [5, 6]], "seq_lengths": [[3, 1], [2]]}
    source = write_rows(tmp_path / f"a.{kind}", columns)

    assert documents(pack(source, tmp_path / "p")) == [[1, 2, 3], [4], [5, 6]]
    for lengths in ([[3, 1], [3]], [[5, -1], [2]]):
        bad = write_rows(tmp_path / f"b.{kind}", columns | {"seq_lengths": lengths})
        with pytest.raises(SourceError):
            pack(bad, tmp_path / "bad")


def test_rows_of_which_no_id_is_a_target_are_counted_or_an_error(tmp_path: Path) -> None:
    columns = {"input_ids": [[5, 6], [7, 8]], "labels": [[-100, -100], [7, -100]]}
    some = write_rows(tmp_path / "some.parquet", columns)
    none = write_rows(tmp_path / "none.parquet", columns | {"labels": [[-100, -100]] * 2})

    notes = pack_tokens(some, tmp_path / "some").notes

    assert any(note.startswith("1 document without a target") for note in notes)
    with pytest.raises(SourceError):
        pack(none, tmp_path / "none")


def test_a_damaged_file_is_not_taken_for_one_without_a_target(tmp_path: Path) -> None:
    columns = {"input_ids": [[5, 6]] * 4, "labels": [[-100, -100]] * 4}
    damaged = write_rows(tmp_path / "src/a.parquet", columns)
    at = pq.ParquetFile(damaged).metadata.row_group(1).column(0).dictionary_page_offset
    data = bytearray(damaged.read_bytes())
    data[at : at + 16] = b"\xff" * 16
    damaged.write_bytes(data)

    assert len(plan_tokens(damaged).recipe) == 1

    with pytest.raises(SourceError, check=At("a.parquet, row 3")):
        pack(damaged, tmp_path / "p")


def test_what_is_put_around_a_document_is_a_target_only_behind_one(tmp_path: Path) -> None:
    columns = {"input_ids": [[5, 6], [7, 8]], "labels": [[-100, 6], [7, -100]]}
    source = write_rows(tmp_path / "a.parquet", columns)

    folder = pack(source, tmp_path / "p", bos=1, eod=2)

    assert documents(folder) == [[1, 5, 6, 2], [1, 7, 8, 2]]
    assert labels_of(folder) == [[-100, -100, 6, 2], [-100, 7, -100, -100]]


def test_what_is_left_out_is_in_the_order_of_the_source_whatever_is_wrong(tmp_path: Path) -> None:
    few, large = '{"input_ids": [1, 2], "labels": [1]}', '{"input_ids": [99], "labels": [99]}'
    lines = [few, "no JSON", large, "no JSON", few, '{"input_ids": [1], "labels": [1]}'] * 2
    source, options = write(tmp_path / "a.jsonl", "\n".join(lines)), TokenOptions(vocab_size=50)

    with pytest.raises(SourceError, check=At("a.jsonl, line 1")):
        pack_tokens(source, tmp_path / "p", options)
    summary = pack_tokens(source, tmp_path / "p", options, on_error="skip")

    numbers = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert [item for item, _ in summary.rejected] == [f"a.jsonl, line {n}" for n in numbers]
    assert documents(tmp_path / "p") == [[1], [1]]
