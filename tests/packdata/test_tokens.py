import functools
import gzip
import json
import operator
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packdata
from loaders.data.manifest import read_manifest
from loaders.division import divide
from loaders.errors import PackError, SchemaError, SourceError
from loaders.schema import Tokens
from packdata.cli import main
from packdata.inspect.preview import as_text
from packdata.inspect.stats import stats
from packdata.inspect.verify import verify
from packdata.packed.derive import CopyOptions, copy_dataset, extend, merge, split
from packdata.tokens.files import list_files
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from packdata.tokens.rows import streams_of
from packdata.tokens.source import TokenSource
from packdata.tokens.tokenizer import JsonTokenizer, dtype_of, open_tokenizer, train_bpe
from tests.packdata.breaking import interrupted
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.packdata.test_kills import killed_before
from tests.refusals import At

TEXT = "First line.\n\nGrüße, 猫!\nlast without an end"
WORDS = [
    f"Story {i}: " + "the cat sat on the mat, and the dog ate. " * (i % 7 + 1) for i in range(60)
]


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(folder: Path) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the stream and the documents' ends, as stored."""
    ids, ends, total = [np.zeros(0, np.int64)], [], 0
    for inside, part in streams_of(PackedReader(folder), ["tokens"]):
        ids.append(part.astype(np.int64))
        ends += (inside + total).tolist()
        total += len(part)
    return np.concatenate(ids), ends


def documents(folder: Path) -> list[list[int]]:
    ids, ends = read(folder)
    assert len(ids) == (ends[-1] if ends else 0)
    return [ids[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)]


def texts(folder: Path) -> list[str]:
    return [bytes(ids).decode() for ids in documents(folder)]


def pack(source: Any, dst: Path, format: Any = None, **options: Any) -> Path:
    pack_tokens(source, dst, TokenOptions(**options), format=format, workers=2)
    return dst


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["parquet", "lmdb"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("file", [TEXT]),
        ("line", ["First line.", "Grüße, 猫!", "last without an end"]),
        ("\n\n", ["First line.", "Grüße, 猫!\nlast without an end"]),
        ("no such", [TEXT]),
    ],
)
def test_documents_of_a_text_file_are_files_lines_or_separated(
    tmp_path: Path, how: str, expected: list[str], format: str
) -> None:
    source = write(tmp_path / "a.txt", TEXT)

    folder = pack(source, tmp_path / "packed", format, documents=how, row_tokens=8)

    assert texts(folder) == expected
    assert verify(folder).ok


@pytest.mark.parametrize("row_tokens", [(1 << 16) - 1, 1 << 16])
def test_a_document_ends_where_a_row_does_however_long_rows_are(
    tmp_path: Path, row_tokens: int
) -> None:
    expected = ["a" * row_tokens, "b" * row_tokens]
    source = write(tmp_path / "a.txt", "\n".join(expected))

    folder = pack(source, tmp_path / "packed", documents="line", row_tokens=row_tokens)

    assert texts(folder) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n\na\n\n\nb", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n", ["a"]),
    ],
)
def test_line_ends_blank_lines_and_byte_order_marks_are_no_text(
    tmp_path: Path, data: bytes, expected: list[str]
) -> None:
    assert (
        texts(pack(write(tmp_path / "a.txt", data), tmp_path / "p", documents="line")) == expected
    )


def test_a_folder_is_read_in_order_of_names_and_tells_what_it_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b.txt.gz", "c.png", ".hidden.txt"):
        data = name.encode()
        write(tmp_path / "src" / name, gzip.compress(data) if name.endswith("gz") else data)

    plan = plan_tokens(tmp_path / "src")

    assert texts(pack(tmp_path / "src", tmp_path / "p")) == ["a/b.txt.gz", "a/z.md", "b.txt"]
    assert plan.notes() == ["skipped: 1 .png"]


def test_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    source = write(tmp_path / "src/a.txt", "a").parent
    other = write(tmp_path / "other/deep/b.txt", "b").parent.parent
    (source / "linked").symlink_to(other)
    (source / "one.md").symlink_to(other / "deep/b.txt")
    (other / ".hidden").symlink_to(tmp_path)

    files, _ = list_files([source])

    names = ["a.txt", "linked/deep/b.txt", "one.md"]
    assert [file.name for file in files] == names
    assert [file.path for file in files] == [source / name for name in names]
    assert texts(pack(source, tmp_path / "p")) == ["a", "b", "b"]


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a fake: root may read everything."""
    for name in ("a.txt", "b/c/d.txt"):
        write(tmp_path / name, name)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("c"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(SourceError, check=At("b/c")):
        list_files([tmp_path])


def test_special_tokens_that_separate_documents_are_not_told(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "one<|endoftext|>two")

    plan = plan_tokens(source, TokenOptions(documents="<|endoftext|>", eod=10))

    assert plan.notes() == []


def compress(data: bytes, how: str) -> bytes:
    if how == "gz":
        return gzip.compress(data[:1000]) + gzip.compress(data[1000:])  # members follow each other
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["file", "line", "jsonl"])
def test_compressed_sources_give_what_plain_ones_give(tmp_path: Path, how: str, kind: str) -> None:
    lines = [json.dumps({"text": word}) if kind == "jsonl" else word for word in WORDS]
    data = "\n".join(lines).encode()
    name = "a.jsonl" if kind == "jsonl" else "a.txt"
    plain = write(tmp_path / name, data)
    packed = write(tmp_path / f"{name}.{how}", compress(data, how))
    options = {"documents": "line" if kind == "line" else "file"}

    one, other = (pack(p, tmp_path / p.suffix[1:], **options) for p in (plain, packed))

    assert documents(one) == documents(other)
    assert len(documents(one)) == (1 if kind == "file" else 60)


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, 1 << 20])
def test_documents_do_not_depend_on_where_pieces_are_cut(
    tmp_path: Path, kind: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", piece_bytes)
    lines = [json.dumps({"text": w}) if "jsonl" in kind else w for w in WORDS]
    data = "\n".join(lines).encode()
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": WORDS}), path, row_group_size=25)
    else:
        write(path, gzip.compress(data) if kind.endswith("gz") else data)

    options = TokenOptions(documents="line")
    source = TokenSource(list_files([path])[0], options)

    pieces = list(source.pieces())
    assert len(pieces) == len(source)
    assert piece_bytes > 1 or len(pieces) >= 20
    assert [t.decode() for piece in pieces for t in piece.read().slices()] == WORDS
    later = [
        t.decode() for piece in source.pieces(len(pieces) // 2) for t in piece.read().slices()
    ]
    assert WORDS[len(WORDS) - len(later) :] == later


def test_pieces_of_an_unpacked_file_or_a_group_of_rows_are_read_from_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 1000)
    data = "\n".join(WORDS).encode()
    plain = write(tmp_path / "a.txt", data)
    packed = write(tmp_path / "b.txt.gz", gzip.compress(data))
    monkeypatch.setattr("packdata.rows.PART_BYTES", 1000)
    cells = "\n".join(["text", *(json.dumps(word) for word in WORDS)]).encode()
    table = write(tmp_path / "d.csv.gz", gzip.compress(cells))
    pq.write_table(pa.table({"text": WORDS}), tmp_path / "c.parquet", row_group_size=30)

    found = [
        TokenSource(list_files([path])[0], TokenOptions(documents="line")).runs
        for path in (plain, packed, tmp_path / "c.parquet", table)
    ]

    assert found[0] == [*range(len(found[0]))]
    assert found[1] == [0] * len(found[0])
    assert len({*found[2]}) == 2 < len(found[2])
    assert len(found[3]) > 1
    assert {*found[3]} == {0}


def test_no_document_is_cut_where_bad_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other half may be what is left out."""
    monkeypatch.setattr("packdata.tokens.source._PIECE_TOKENS", 16)
    ids = np.tile(np.r_[1:10, 0], 10).astype(np.uint16)
    ids[25] = 99
    np.save(tmp_path / "a.npy", ids)
    options = TokenOptions(vocab_size=50, eod=0, row_tokens=8)

    summary = pack_tokens(tmp_path / "a.npy", tmp_path / "p", options, on_error="skip")

    assert len(summary.rejected) == 1
    assert documents(tmp_path / "p") == [[*range(1, 10), 0]] * 9


def test_a_tokenizer_learns_from_texts_that_are_spread_over_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 100)
    path = write(tmp_path / "a.txt", "".join(f"{i:09}\n" for i in range(1000)))
    source = TokenSource(list_files([path])[0], TokenOptions(documents="line"))

    learned = [int(text) for text in source.texts(1000)]

    assert 90 <= len(learned) <= 130
    assert np.ptp(learned) >= 900


def test_two_groups_of_rows_are_kept_however_many_there_are(tmp_path: Path) -> None:
    table = pa.table({"text": ["a" * (1 << 18)] * 24})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    source = TokenSource(list_files([tmp_path / "a.parquet"])[0], TokenOptions())
    before = pa.total_allocated_bytes()

    num = sum(len(piece.read().data) for piece in source.pieces())

    assert num == 6 << 20
    assert pa.total_allocated_bytes() - before < 3 << 20


@pytest.mark.parametrize(
    "bad",
    [
        b"ab\xffcd",
        b"abc\xe7\x8c",
        "猫".encode()[:2] + b"abc",
        b"a\x80\x80\x80\x80b",
        b"abcd\xe7\x8c\x80\x80",
    ],
)
def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(SourceError, check=At("a.txt, line 3")):
        pack(write(tmp_path / "a.txt", b"x\ny\n" + bad), tmp_path / "p")


@pytest.mark.parametrize("how", ["file", "line", "\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_text_that_is_not_utf8_is_refused_with_file_and_line(
    tmp_path: Path, how: str, name: str
) -> None:
    data = b"good\ngr\xfc\xdfe\nmore\n"
    source = write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)

    with pytest.raises(SourceError, check=At(f"{name}, line 2")):
        pack(source, tmp_path / "p", documents=how)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"text": "a"', ""),
        (b'["text"]', '["text"]'),
        (b'{"body": "a"}', "'body'"),
        (b'{"text": null}', "'text'"),
        (b'{"text": 5}', "int"),
        (b'{"text": "\\ud800"}', "\\ud800"),
        (b'{"text": "\xff"}', "the line is not UTF-8"),
    ],
)
def test_lines_that_are_not_json_with_a_text_are_refused_with_their_number(
    tmp_path: Path, line: bytes, named: str
) -> None:
    source = write(tmp_path / "a.jsonl", b'{"text": "ok"}\n' + line + b'\n{"text": "ok"}\n')

    with pytest.raises(SourceError, check=At("a.jsonl, line 2")) as caught:
        pack(source, tmp_path / "p")
    assert named in caught.value.what


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_of_nuls_is_one_that_is_not_json(tmp_path: Path, end: str) -> None:
    write(tmp_path / "src/a.jsonl", '{"text": "ok"}\n' + "\0" * 5000 + end)
    write(tmp_path / "src/b.jsonl", "\ufeff" + end)

    pack_tokens(tmp_path / "src", tmp_path / "p", on_error="skip")

    assert texts(tmp_path / "p") == ["ok"]
    (line,) = (tmp_path / "p/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["item"] == "a.jsonl, line 2"


def test_json_lines_are_read_with_escapes_blank_lines_and_other_keys(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "body": 'a "quoted" \n 猫 \U0001f408'},
        {"body": "", "id": [{"x": None}]},
        {"body": "z"},
    ]
    data = "\n\n".join(map(json.dumps, rows))
    source = write(tmp_path / "a.jsonl", data)

    folder = pack(source, tmp_path / "p", text_column="body")

    assert texts(folder) == [rows[0]["body"], "z"]


def test_parquet_columns_of_any_kind_of_string_are_read(tmp_path: Path) -> None:
    for i, kind in enumerate(
        (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))
    ):
        pq.write_table(
            pa.table({"body": pa.array(["ä", "", "b"], kind)}), tmp_path / f"{i}.parquet"
        )

        folder = pack(tmp_path / f"{i}.parquet", tmp_path / f"p{i}", text_column="body")

        assert texts(folder) == ["ä", "b"]


def test_parquet_without_the_column_or_with_nulls_or_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a", "b", None], "n": [1, 2, 3]}), path)

    with pytest.raises(SourceError, check=At("a.parquet")):
        pack(path, tmp_path / "p")
    with pytest.raises(SourceError, check=At("a.parquet")):
        pack(path, tmp_path / "p", text_column="n")
    with pytest.raises(SourceError, check=At("a.parquet, row 2")):
        pack(path, tmp_path / "p", text_column="body")
    write(path, b"PAR1 no")
    with pytest.raises(SourceError, check=At("a.parquet")):
        pack(path, tmp_path / "p")


@pytest.mark.parametrize("kind", ["line", "file", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("val_share", [0.0, 0.5])
def test_skipping_leaves_out_bad_documents_alone_and_lists_them(
    tmp_path: Path, kind: str, val_share: float
) -> None:
    lines = [b"good", b"gr\xfcn", b"better", b"b\xe4d", b"best"]
    places = ["a.txt, line 2", "a.txt, line 4"]
    if kind == "file":
        for i, line in enumerate(lines):
            write(tmp_path / f"src/{i}.txt", line)
        places = ["1.txt, line 1", "3.txt, line 1"]
    elif kind == "parquet":
        texts_or_none = pa.array(["good", None, "better", None, "best"])
        (tmp_path / "src").mkdir()
        pq.write_table(pa.table({"text": texts_or_none}), tmp_path / "src/a.parquet")
        places = ["a.parquet, row 1", "a.parquet, row 3"]
    elif kind == "line":
        write(tmp_path / "src/a.txt", b"\n".join(lines))
    else:
        data = b"\n".join(b'{"text": "' + line + b'"}' for line in lines)
        write(tmp_path / f"src/a.{kind}", gzip.compress(data) if kind.endswith("gz") else data)
        places = [f"a.{kind}, line 2", f"a.{kind}, line 4"]
    options = TokenOptions(
        documents="line" if kind == "line" else "file", val_share=val_share, seed=0
    )

    summary = pack_tokens(tmp_path / "src", tmp_path / "p", options, on_error="skip")

    folders = [tmp_path / "p" / name for name in (("train", "val") if val_share else ("",))]
    assert sorted(t for folder in folders for t in texts(folder)) == ["best", "better", "good"]
    assert [name for name, _ in summary.rejected] == places
    listed = (tmp_path / "p/rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["item"] for line in listed] == places


def test_empty_documents_and_files_have_no_tokens(tmp_path: Path) -> None:
    write(tmp_path / "src/a.txt", "")
    write(tmp_path / "src/b.txt", "b")

    summary = pack_tokens(tmp_path / "src", tmp_path / "p")

    assert texts(tmp_path / "p") == ["b"]
    assert (summary.amount, summary.notes) == ("1 token in 1 document", ())
    (tmp_path / "src/b.txt").unlink()
    with pytest.raises(SourceError, check=At("src")):
        pack_tokens(tmp_path / "src", tmp_path / "q")


def test_a_document_longer_than_a_shard_goes_on_in_the_next(tmp_path: Path) -> None:
    text = "abcdefghij" * 2000
    source = write(tmp_path / "a.txt", text)

    summary = pack_tokens(source, tmp_path / "p", TokenOptions(row_tokens=100), shard_bytes=4096)

    assert summary.shards > 3
    assert texts(tmp_path / "p") == [text]


def test_truncated_archives_are_refused(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(50_000).hex().encode()
    for name, packed in (("a.txt.gz", gzip.compress(data)), ("a.txt.zst", compress(data, "zst"))):
        source = write(tmp_path / name, packed[: len(packed) // 2])
        with pytest.raises(SourceError, check=At(name)):
            pack(source, tmp_path / "p")


@pytest.mark.parametrize("name", ["a.idx", "a.npz", "a.npy.gz"])
def test_files_of_other_kinds_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, check=At(name)):
        list_files([write(tmp_path / name, b"x")])


def test_sources_that_are_missing_or_mixed_or_given_twice_are_refused(tmp_path: Path) -> None:
    text, ids = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.bin", b"\0\0")

    with pytest.raises(SourceError, check=At("c.txt")):
        plan_tokens(tmp_path / "c.txt")
    with pytest.raises(SourceError, check=At(text)):
        plan_tokens([text, ids])
    with pytest.raises(SourceError, check=At(text)):
        plan_tokens([text, text])
    with pytest.raises(SourceError, check=At("only")):
        plan_tokens(write(tmp_path / "only/a.png", b"").parent)
    with pytest.raises(SourceError, check=At("p")):
        plan_tokens(pack(text, tmp_path / "p"))
    (matched,) = list_files([tmp_path / "*.txt"])[0]
    assert matched.path == text


# -- ids -------------------------------------------------------------------------------------------


def write_pair(
    path: Path, parts: Sequence[Sequence[int]], code: int = 8, dtype: str = "<u2", **changed: Any
) -> Path:
    """Write documents of sequences as Megatron-LM does: two sequences to a document."""
    lengths = np.array([len(part) for part in parts], "<i4")
    data = np.concatenate([np.array(part, dtype) for part in parts])
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * data.itemsize
    bounds = np.array([*range(0, len(parts), 2), len(parts)], "<i8")
    header = struct.pack(
        "<9sQBQQ", b"MMIDIDX\0\0", changed.get("version", 1), code, len(parts), len(bounds)
    )
    index = header + lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    write(path.with_suffix(".bin"), data.tobytes() + changed.get("more", b""))
    write(
        path.with_suffix(".idx"),
        index[: changed.get("keep", len(index))] + changed.get("modes", b""),
    )
    return path


PARTS = [[1, 2, 3], [4], [5, 6], [], [7, 8, 9, 10]]
JOINED = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10]]


@pytest.mark.parametrize(
    ("code", "dtype"), [(1, "u1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]
)
@pytest.mark.parametrize("named", ["a.bin", ""])
def test_pairs_of_megatron_are_read_by_document(
    tmp_path: Path, code: int, dtype: str, named: str
) -> None:
    write_pair(tmp_path / "src/a", PARTS, code, dtype)

    folder = pack(tmp_path / "src" / named, tmp_path / "p", vocab_size=11)

    assert documents(folder) == JOINED
    assert read_manifest(folder).schema.fields["tokens"].dtype == "uint8"


def test_an_index_with_modes_is_read(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a", PARTS, modes=bytes(len(PARTS)))

    assert documents(pack(path.with_suffix(".bin"), tmp_path / "p")) == JOINED


@pytest.mark.parametrize(
    "changed", [{"more": b"\1\0"}, {"keep": 60}, {"keep": 5}, {"version": 2}, {"code": 6}]
)
def test_an_index_that_does_not_fit_its_bin_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    write_pair(tmp_path / "a", PARTS, **changed)

    with pytest.raises(SourceError, check=At("a.bin" if "more" in changed else "a.idx")):
        pack(tmp_path / "a.bin", tmp_path / "p")


@pytest.mark.parametrize(("at", "value"), [(34, 9), (34 + 20, 8), (34 + 60, 1), (34 + 68, 5)])
def test_an_index_that_contradicts_itself_is_refused(tmp_path: Path, at: int, value: int) -> None:
    write_pair(tmp_path / "a", PARTS)
    data = bytearray((tmp_path / "a.idx").read_bytes())
    data[at] = value
    (tmp_path / "a.idx").write_bytes(data)

    with pytest.raises(SourceError, check=At("a.idx")):
        pack(tmp_path / "a.bin", tmp_path / "p")


def test_flat_ids_are_one_document_unless_an_id_ends_them(tmp_path: Path) -> None:
    ids = np.array([5, 6, 0, 7, 0, 8], "<u2")
    source = write(tmp_path / "train.bin", ids.tobytes())

    assert documents(pack(source, tmp_path / "a")) == [ids.tolist()]
    assert documents(pack(source, tmp_path / "b", eod=0)) == [[5, 6, 0], [7, 0], [8]]
    write(tmp_path / "c.bin", ids.astype("<i4").tobytes())
    assert documents(pack(tmp_path / "c.bin", tmp_path / "c", bin_dtype="int32")) == [ids.tolist()]


def test_odd_byte_counts_and_wrong_types_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.bin", b"\1\0\2")

    with pytest.raises(SourceError, check=At("a.bin")):
        pack(source, tmp_path / "p")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["u2", "i4", "i8", "u4"])
def test_arrays_of_any_byte_order_are_read(tmp_path: Path, kind: str, order: str) -> None:
    np.save(
        tmp_path / "a.npy", np.array([300, 2, 60_000], order + ("u4" if kind == "i2" else kind))
    )

    assert documents(pack(tmp_path / "a.npy", tmp_path / "p")) == [[300, 2, 60_000]]


def test_rows_of_a_matrix_are_documents(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.int64).reshape(3, 4)
    np.save(tmp_path / "a.npy", rows)

    assert documents(pack(tmp_path / "a.npy", tmp_path / "p")) == rows.tolist()


def test_arrays_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    for name, array in (
        ("objects", np.array([[1], "a"], object)),
        ("floats", np.zeros(3)),
        ("cube", np.zeros((2, 2, 2), np.int32)),
        ("columns", np.zeros((3, 2), np.int32).T),
    ):
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        with pytest.raises(SourceError, check=At(f"{name}.npy")):
            pack(tmp_path / f"{name}.npy", tmp_path / "p")
    head = {"descr": "<u2", "fortran_order": False, "shape": (10**20,)}
    for name, data in (("cut", ""), ("huge", f"v\0{head!r:<117}\n")):
        write(tmp_path / f"{name}.npy", b"\x93NUMPY\1\0" + data.encode())
        with pytest.raises(SourceError, check=At(f"{name}.npy")):
            pack(tmp_path / f"{name}.npy", tmp_path / "p")


@pytest.mark.parametrize(
    ("bad", "limit", "dtype"),
    [
        (70_000, 65_536, "int64"),
        (65_536, 65_536, "int64"),
        (-1, 65_536, "int64"),
        (300, 300, "int64"),
        (65_535, 65_535, "uint16"),
        (255, 255, "uint8"),
    ],
)
def test_an_id_that_does_not_fit_is_an_error_that_names_file_and_position(
    tmp_path: Path, bad: int, limit: int, dtype: str
) -> None:
    ids = np.arange(200, dtype=dtype)
    ids[123] = bad
    np.save(tmp_path / "a.npy", ids)

    with pytest.raises(SourceError, check=At("a.npy, id 123")):
        pack(tmp_path / "a.npy", tmp_path / "p", vocab_size=limit)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("how", [{"shuffle": 1}, {"val_share": 0.5}])
def test_an_id_that_does_not_fit_keeps_its_place_where_documents_are_moved(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    ids = np.arange(400, dtype=np.uint16).reshape(40, 10) % 300
    ids[23, 4] = 300
    np.save(tmp_path / "a.npy", ids)
    options = TokenOptions(vocab_size=300, val_share=how.get("val_share", 0.0))

    with pytest.raises(SourceError, check=At("a.npy, id 234")):
        pack_tokens(tmp_path / "a.npy", tmp_path / "p", options, shuffle=how.get("shuffle"))


def test_pieces_of_ids_cut_where_rows_or_documents_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 5000).astype("<u2")
    files = list_files([write(tmp_path / "a.bin", ids.tobytes())])[0]

    for cut in (7, 64, None):
        if cut is not None:
            monkeypatch.setattr("packdata.tokens.source._PIECE_TOKENS", cut)
        options = TokenOptions(eod=0, row_tokens=cut or 64)
        pieces = list(TokenSource(files, options, may_cut=cut is not None).pieces())
        assert np.array_equal(np.concatenate([piece.read().data for piece in pieces]), ids)
        ends = [piece.read().ends + piece.parts[0].start for piece in pieces]
        expected = np.union1d(np.flatnonzero(ids == 0) + 1, [5000])
        assert np.concatenate(ends).tolist() == expected.tolist()


# -- widths and ends -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (2, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (65_536, "uint16"),
        (65_537, "uint32"),
        (1 << 32, "uint32"),
    ],
)
def test_the_smallest_width_that_holds_the_vocabulary_is_chosen(size: int, dtype: str) -> None:
    assert dtype_of(size, 8) == dtype


def test_an_end_of_document_can_be_an_id_of_its_own_behind_the_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "ab\nc\n")

    folder = pack(source, tmp_path / "p", documents="line", eod=256)
    inside = pack(source, tmp_path / "q", documents="line", eod=0)

    assert documents(folder) == [[97, 98, 256], [99, 256]]
    field = read_manifest(folder).schema.fields["tokens"]
    assert isinstance(field, Tokens)
    assert (field.dtype, field.vocab_size, field.eod) == (
        "uint16",
        257,
        256,
    )
    assert documents(inside) == [[97, 98, 0], [99, 0]]


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    text, ids = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.bin", b"\0\0")
    right: tuple[tuple[Path, dict[str, Any]], ...] = (
        (text, {"eod": 256}),
        (ids, {"eod": 4, "vocab_size": 5}),
    )
    cases: tuple[tuple[Path, dict[str, Any]], ...] = (
        (text, {"vocab_size": 5}),
        (ids, {"train_bpe": 500}),
        (ids, {"eod": 7, "vocab_size": 5}),
        (text, {"eod": 257}),
        (text, {"train_bpe": 100}),
    )
    for source, options in right:
        plan_tokens(source, TokenOptions(**options))
    for source, options in cases:
        with pytest.raises(ValueError):
            plan_tokens(source, TokenOptions(**options))
    wrong: tuple[dict[str, Any], ...] = (
        {"val_share": 1.0},
        {"row_tokens": 1},
        {"bin_dtype": "float32"},
        {"eod": "x"},
        {"tokenizer": "a", "train_bpe": 300},
        {"vocab_size": 0},
    )
    for bad in wrong:
        with pytest.raises(ValueError):
            TokenOptions(**bad)


# -- tokenizers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bpe() -> bytes:
    pytest.importorskip("tokenizers")
    return train_bpe(WORDS, 300)


def test_training_a_tokenizer_gives_the_same_file_again(bpe: bytes) -> None:
    assert train_bpe(WORDS, 300) == bpe
    tokenizer = JsonTokenizer(bpe, "x")
    assert (tokenizer.vocab_size, tokenizer.end) == (300, 0)


def test_a_packed_tokenizer_decodes_to_the_text_that_was_packed(
    tmp_path: Path, bpe: bytes
) -> None:
    path = write(tmp_path / "tokenizer.json", bpe)
    source = write(tmp_path / "a.txt", "\n".join(WORDS))

    folder = pack(source, tmp_path / "p", documents="line", tokenizer=path)

    field = read_manifest(folder).schema.fields["tokens"]
    assert isinstance(field, Tokens)
    assert field.dtype == "uint16"
    assert field.eod == 0
    assert field.tokenizer is not None
    kept = open_tokenizer(folder / field.tokenizer)
    assert [kept.decode(np.array(ids[:-1])) for ids in documents(folder)] == WORDS
    assert all(ids[-1] == 0 for ids in documents(folder))
    assert sum(map(len, documents(folder))) < len("".join(WORDS)) / 2
    assert "the cat sat on the mat" in as_text(PackedReader(folder), 0)
    assert verify(folder).ok
    assert not verify(folder).notes


def test_special_tokens_that_a_text_spells_out_are_text(tmp_path: Path, bpe: bytes) -> None:
    path = write(tmp_path / "tokenizer.json", bpe)
    source = write(tmp_path / "a.txt", "a <|endoftext|> b")

    (ids,) = documents(pack(source, tmp_path / "p", tokenizer=path, eod="none"))

    assert 0 not in ids
    assert open_tokenizer(path).decode(np.array(ids)) == "a <|endoftext|> b"


def test_a_tokenizer_neither_cuts_nor_pads_whatever_its_file_says(
    tmp_path: Path, bpe: bytes
) -> None:
    own = pytest.importorskip("tokenizers").Tokenizer.from_str(bpe.decode())
    own.enable_truncation(3)
    own.enable_padding(length=64)
    source = write(tmp_path / "a.txt", "\n".join(WORDS))
    files = (write(tmp_path / f"{i}.json", data) for i, data in enumerate((bpe, own.to_str())))

    plain, odd = (
        pack(source, tmp_path / file.stem, documents="line", tokenizer=file) for file in files
    )

    assert documents(odd) == documents(plain)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    source = write(tmp_path / "a.txt", "a")
    for data in (b"{}", b"no", b'{"model": {"type": "nothing"}}'):
        with pytest.raises(SourceError, check=At("tokenizer.json")):
            pack(source, tmp_path / "p", tokenizer=write(tmp_path / "tokenizer.json", data))
    with pytest.raises(SourceError, check=At("missing.json")):
        pack(source, tmp_path / "p", tokenizer=tmp_path / "missing.json")


@pytest.mark.parametrize("damage", ["change", "remove"])
def test_a_tokenizer_that_was_changed_or_lost_is_found(
    tmp_path: Path, bpe: bytes, damage: str
) -> None:
    path, source = write(tmp_path / "t.json", bpe), write(tmp_path / "a.txt", WORDS[3])
    folder = pack(source, tmp_path / "p", tokenizer=path)
    (kept,) = folder.glob("tokenizer-*.json")
    kept.unlink() if damage == "remove" else kept.write_bytes(bpe + b" ")

    for quick in (False, True):
        report = verify(folder, quick=quick)
        assert [fault.file for fault in report.faults] == [kept.name]
    with pytest.raises(PackError):
        copy_dataset(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(Exception, match="tokenizer"):
        open_kept(folder)


def test_ids_without_a_tokenizer_are_shown_as_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(70, dtype=np.uint16))

    folder = pack(tmp_path / "a.npy", tmp_path / "packed")

    assert open_kept(folder) == f"{' '.join(map(str, range(64)))} ..."


def open_kept(folder: Path) -> str:
    from packdata.tokens.rows import token_text

    return token_text(PackedReader(folder), 0)


def test_rows_of_several_parquet_files_are_each_their_own(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in "abc":
        rows = pa.table({"text": [f"{name}{i}" for i in range(3)]})
        pq.write_table(rows, tmp_path / "src" / f"{name}.parquet")

    folder = pack(tmp_path / "src", tmp_path / "packed")

    assert texts(folder) == [f"{name}{i}" for name in "abc" for i in range(3)]


# -- packing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, kind: str, bpe: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 700)
    source = write(tmp_path / "a.txt", "\n".join(WORDS))
    tokenizer = write(tmp_path / "t.json", bpe) if kind == "bpe" else None
    options = TokenOptions(documents="line", tokenizer=tokenizer, row_tokens=64)

    for workers in (1, 4):
        pack_tokens(source, tmp_path / f"p{workers}", options, workers=workers, shard_bytes=2000)

    files = [{p.name: p.read_bytes() for p in (tmp_path / f"p{n}").iterdir()} for n in (1, 4)]
    assert files[0] == files[1]
    assert len(files[0]) > 3


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_val_share_divides_by_document_and_equal_documents_stay_together(
    tmp_path: Path, kind: str
) -> None:
    lines = [f"line {i % 400}" for i in range(1000)]
    if kind == "text":
        source = write(tmp_path / "a.txt", "\n".join(lines))
        expected = [list(line.encode()) for line in lines]
    else:
        expected = [[*line.encode(), 0] for line in lines]
        source = write(
            tmp_path / "a.bin",
            np.array(functools.reduce(operator.iadd, expected, []), "<u2").tobytes(),
        )

    pack(
        source,
        tmp_path / "p",
        val_share=0.25,
        **({"documents": "line", "eod": "none"} if kind == "text" else {"eod": 0}),
    )

    train, val = (documents(tmp_path / "p" / name) for name in ("train", "val"))
    assert sorted(train + val) == sorted(expected)
    assert not {tuple(d) for d in train} & {tuple(d) for d in val}
    assert 150 < len(val) < 350
    assert [d for d in expected if d in val] == val  # in their order


def test_equal_documents_of_files_of_several_types_stay_together(tmp_path: Path) -> None:
    ids = np.arange(400).reshape(100, 4)
    (tmp_path / "ids").mkdir()
    for dtype in ("uint16", ">u2", "int32", "int64"):
        np.save(tmp_path / f"ids/{dtype}.npy", ids.astype(dtype))

    pack(tmp_path / "ids", tmp_path / "p", val_share=0.3)

    train, val = (documents(tmp_path / "p" / name) for name in ("train", "val"))
    assert sorted(train + val) == sorted(ids.tolist() * 4)
    assert not {*map(tuple, train)} & {*map(tuple, val)}


def test_split_divides_documents_and_merge_and_extend_join_them(
    tmp_path: Path, bpe: bytes
) -> None:
    source = write(tmp_path / "a.txt", "\n".join(WORDS))
    tokenizer = write(tmp_path / "t.json", bpe)
    options = TokenOptions(documents="line", tokenizer=tokenizer, row_tokens=50)
    folder = tmp_path / "p"
    assert pack_tokens(source, folder, options, shard_bytes=1000).shards > 2

    made = split(folder, tmp_path / "parts", {"train": 0.8, "val": 0.2}, shard_bytes=3000)
    train, val = (documents(tmp_path / "parts" / each.folder) for each in made.datasets)
    assert (len(train), len(val)) == (48, 12)
    assert sorted(train + val) == sorted(documents(folder))
    merge(tmp_path / "merged", [tmp_path / "parts/train", tmp_path / "parts/val"])
    extend(tmp_path / "parts/val", [tmp_path / "parts/train"])

    assert documents(tmp_path / "merged") == train + val
    assert documents(tmp_path / "parts/val") == val + train
    for path in ("parts/train", "parts/val", "merged"):
        assert verify(tmp_path / path).ok
        assert open_kept(tmp_path / path)


@pytest.mark.parametrize("end", ["\n", ""], ids=["ended", "open"])
def test_split_keeps_equal_documents_together(tmp_path: Path, end: str) -> None:
    """A text of train that is in val, too, was trained on."""
    lines = [f"line {i % 30}" for i in range(100)]
    source = write(tmp_path / "a.txt", "\n".join(lines) + end)
    folder = tmp_path / "p"
    pack_tokens(source, folder, TokenOptions(documents="line", row_tokens=16), shard_bytes=300)

    made = split(folder, tmp_path / "parts", {"train": 0.8, "val": 0.2})

    train, val = (texts(tmp_path / "parts" / each.folder) for each in made.datasets)
    assert sorted(train + val) == sorted(lines)
    assert not {*train} & {*val}
    numbers = divide(30, [0.8, 0.2], 0)[1]  # of different documents, as they come first
    assert {*val} == {f"line {number}" for number in numbers}


def test_a_split_of_documents_that_was_killed_goes_on(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "\n".join(f"line {i}" for i in range(100)))
    folder, options = tmp_path / "p", TokenOptions(documents="line", row_tokens=16)
    pack_tokens(source, folder, options, shard_bytes=300)
    argv = ["split", str(folder), "--parts", "train=0.8", "val=0.2", "--shard-size", "300B"]
    assert main([*argv, str(tmp_path / "whole")]) == 0
    assert len(read_manifest(tmp_path / "whole/train").shards) > 3

    for nth in (20, 40):
        dst = tmp_path / f"killed{nth}"
        assert killed_before(nth, dst, [*argv, str(dst)])
        assert main([*argv, str(dst)]) == 0
        for part in ("train", "val"):
            assert contents(dst / part) == contents(tmp_path / "whole" / part)


def test_split_takes_documents_over_many_shards_for_equal_only_where_all_of_them_is(
    tmp_path: Path,
) -> None:
    lines = [first * 100 + "end" * 400 for first in 3 * "abcdef"]
    source = write(tmp_path / "a.txt", "\n".join(lines))
    folder, options = tmp_path / "p", TokenOptions(documents="line", row_tokens=16)
    assert pack_tokens(source, folder, options, shard_bytes=100).shards > 4 * len(lines)

    made = split(folder, tmp_path / "parts", {"train": 2 / 3, "val": 1 / 3})

    train, val = (texts(tmp_path / "parts" / each.folder) for each in made.datasets)
    assert sorted(train + val) == sorted(lines)
    assert (len({*train}), len({*val})) == (4, 2)
    assert not {*train} & {*val}


def test_datasets_of_different_tokenizers_are_not_joined(tmp_path: Path, bpe: bytes) -> None:
    source = write(tmp_path / "a.txt", WORDS[0])
    one = pack(source, tmp_path / "p", tokenizer=write(tmp_path / "t.json", bpe))
    other = pack(source, tmp_path / "q", train_bpe=290)

    with pytest.raises(SchemaError):
        merge(tmp_path / "m", [one, other])


def test_choosing_rows_of_a_stream_is_refused_and_a_plain_copy_is_not(
    tmp_path: Path, bpe: bytes
) -> None:
    folder = pack(
        write(tmp_path / "a.txt", "a b c"),
        tmp_path / "p",
        tokenizer=write(tmp_path / "t.json", bpe),
    )

    with pytest.raises(SchemaError):
        copy_dataset(folder, tmp_path / "c", CopyOptions(where="num_tokens > 1"))
    copy_dataset(folder, tmp_path / "c", format="lmdb")

    assert documents(tmp_path / "c") == documents(folder)
    assert open_kept(tmp_path / "c")


def test_stats_count_tokens_documents_and_what_is_unused(tmp_path: Path) -> None:
    folder = pack(
        write(tmp_path / "a.txt", "aab\nc\n"), tmp_path / "p", documents="line", row_tokens=8
    )

    found = stats(folder).fields["tokens"]

    assert found["num_tokens"] == 4
    assert found["num_documents"] == 2
    assert found["num_ids_used"] == 3
    assert found["unused_share"] == 0.5
    assert found["tokens_per_document"]["min"] == 1
    assert found["tokens_per_document"]["max"] == 3

    source = write(tmp_path / "b.txt", "a" * 50 + "\nbb\n")
    pack_tokens(
        source, tmp_path / "q", TokenOptions(documents="line", row_tokens=8), shard_bytes=1
    )
    found = stats(tmp_path / "q").fields["tokens"]

    assert len(read_manifest(tmp_path / "q").shards) == 7
    assert found["tokens_per_document"] | {"min": 2, "max": 50} == found["tokens_per_document"]


def test_a_writer_refuses_a_schema_that_names_a_file(tmp_path: Path) -> None:
    kept = Tokens(tokenizer="tokenizer-a.json", tokenizer_xxh3_128="0" * 32)

    with pytest.raises(SchemaError):
        packdata.Writer(tmp_path / "p", {"tokens": kept})


def test_overwriting_leaves_no_tokenizer_of_the_old_dataset(tmp_path: Path, bpe: bytes) -> None:
    source = write(tmp_path / "a.txt", WORDS[0])
    folder = pack(source, tmp_path / "p", tokenizer=write(tmp_path / "t.json", bpe))

    pack_tokens(source, folder, overwrite=True)

    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".parquet"]
    assert verify(folder).ok
    assert not verify(folder).notes


def test_a_source_that_changed_since_it_was_listed_is_not_published(tmp_path: Path) -> None:
    from packdata.plan import pack_plan

    source = write(tmp_path / "a.txt", "before")
    plan = plan_tokens(source)
    write(source, "behind!")

    with pytest.raises(PackError, check=At("p")):
        pack_plan(plan, tmp_path / "p")


# -- the command -----------------------------------------------------------------------------------


def test_the_summary_counts_both_parts_of_a_division_with_tokens_and_documents(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "a.txt", "\n".join(WORDS))
    options = TokenOptions(documents="line", val_share=0.5, row_tokens=10)

    summary = pack_tokens(source, tmp_path / "p", options)

    parts = {name: documents(tmp_path / "p" / name) for name in ("train", "val")}
    assert summary.samples == sum(dataset.samples for dataset in summary.datasets)
    assert summary.samples_per_s * summary.seconds == pytest.approx(summary.samples)
    assert summary.amount == f"{sum(map(len, WORDS)):,} tokens in {len(WORDS)} documents"
    assert sum(map(len, parts["train"])) + sum(map(len, parts["val"])) == sum(map(len, WORDS))


def test_a_document_of_ids_that_nothing_ends_is_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "a.bin", np.array([1, 2, 0, 3, 4, 5], "<u2").tobytes())

    ended = pack_tokens(source, tmp_path / "p", TokenOptions(eod=5))
    opened = pack_tokens(source, tmp_path / "q", TokenOptions(eod=0))

    assert str(ended).startswith(
        f"packed 6 tokens in 1 document into {tmp_path / 'p'}: 1 sample, "
    )
    assert (opened.amount, opened.notes) == ("6 tokens in 2 documents", ())


def test_a_part_without_a_document_is_named_with_what_to_change(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "one\ntwo\none")

    with pytest.raises(PackError, check=At("p")):
        pack(source, tmp_path / "p", documents="line", val_share=1e-6)


def test_the_command_packs_and_tells_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.txt", TEXT)
    command = ["tokens", str(source), str(tmp_path / "p"), "--documents", r"\n\n", "--json"]

    assert main([*command, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["pieces"] == 1
    assert plan["targets"][""]["fields"]["tokens"]["tokenizer"] == "bytes"
    assert not (tmp_path / "p").exists()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 1
    assert len(texts(tmp_path / "p")) == 2
    assert main(["info", str(tmp_path / "p")]) == 0
    assert "tokens of uint8, 8,192 a row, 256 ids, bytes" in capsys.readouterr().out
    assert main(["preview", str(tmp_path / "p")]) == 0
    assert "First line. ¶ Grüße, 猫!" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["parquet", "lmdb"])
def test_an_interrupted_packing_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 10_000)  # or all were one piece
    text = "\n\n".join(f"document {i} " + "la " * (i % 50) for i in range(900))
    for i in range(6):
        write(tmp_path / f"in/{i}.txt", f"{i}: {text}")
    options: dict[str, Any] = {"format": format, "shard_bytes": 20_000, "workers": 1}
    given = TokenOptions(documents="\n\n", row_tokens=512)
    pack_tokens(tmp_path / "in", tmp_path / "whole", given, **options)
    with interrupted(6):
        pack_tokens(tmp_path / "in", tmp_path / "a", given, **options)

    summary = pack_tokens(tmp_path / "in", tmp_path / "a", given, **options)

    assert any("packed earlier" in note for note in summary.notes)
    whole, again = (
        {file.name: file.read_bytes() for file in (tmp_path / name).glob("shard-*")}
        for name in ("whole", "a")
    )
    assert len(whole) > 3
    assert again == whole


@pytest.mark.parametrize("depth", [500, 100_000])
def test_json_that_is_nested_deep_beside_the_text_is_read_or_named(
    tmp_path: Path, depth: int
) -> None:
    deep = b'{"text": "a", "x": ' + b"[" * depth + b"]" * depth + b'}\n{"text": "b"}\n'
    source = write(tmp_path / "a.jsonl", deep)

    if depth == 500:
        assert read(pack(source, tmp_path / "p"))[0].tobytes()
    else:
        with pytest.raises(SourceError, check=At("a.jsonl, line 1")):
            pack(source, tmp_path / "p")
