"""Text larger than what is looked at in one go: characters across the cuts, places of bad bytes, line ends."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from loaders.errors import SourceError
from packdata.sources.listed import files_at
from packdata.tokens.documents import Documents, Where
from packdata.tokens.files import SourceFile
from packdata.tokens.options import TokenOptions
from packdata.tokens.plan import pack_tokens
from packdata.tokens.source import TokenSource, split_at
from tests.packdata.test_tokens import pack, texts, write
from tests.refusals import At

MANY = 100_000  # characters; more bytes than are checked at once


def at_byte(at: int) -> Where:
    return Where("a.txt", "byte", at)


def read(path: Path, data: bytes, documents: str = "file") -> Documents:
    path.write_bytes(data)
    file = SourceFile(files_at(path)[0], path.name, "text")
    (piece,) = TokenSource([file], TokenOptions(documents=documents)).pieces()
    return piece.read()


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_characters_across_cuts_are_text(tmp_path: Path, character: str, first: int) -> None:
    data = b"a" * first + character.encode() * MANY

    documents = read(tmp_path / "a.txt", data)

    assert documents.data.tobytes() == data
    assert not documents.rejects


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"abc\xc3\n\xa9def\n\ngood\n"),
        ("a.jsonl", b'{"text":"abc\xc3"}\n{"text":"\xa9def"}\n{"text":"good"}\n'),
    ],
)
def test_halves_of_a_character_in_two_documents_are_no_text(
    tmp_path: Path, name: str, data: bytes
) -> None:
    source, options = write(tmp_path / name, data), TokenOptions(documents="line")
    options = options if name == "a.txt" else TokenOptions()

    summary = pack_tokens(source, tmp_path / "p", options, on_error="skip")

    assert [item for item, _ in summary.rejected] == [f"{name}, line 1", f"{name}, line 2"]
    assert texts(tmp_path / "p") == ["good"]


def test_a_bad_byte_far_behind_is_found_in_its_line(tmp_path: Path) -> None:
    lines = ["é" * 60] * 3000
    data = "\n".join(lines).encode()
    at = data.index(b"\n", 2 * MANY)
    line = data.count(b"\n", 0, at) + 1

    documents = read(tmp_path / "a.txt", data[:at] + b"\xff" + data[at:], "line")

    assert [str(reject.where) for reject in documents.rejects] == [f"a.txt, line {line}"]
    assert len(documents) == 2999


def test_documents_that_are_taken_keep_the_place_of_each_id() -> None:
    documents = Documents(np.arange(6), np.array([1, 4, 6]), at_byte)

    taken = documents.take(np.array([2, 0, 1]))

    assert [taken.place(at).number for at in range(6)] == taken.data.tolist()


@pytest.mark.parametrize("tail", [b"\xc3", b"\xf0\x9f\x98"])
def test_a_character_cut_at_the_end_is_no_text(tmp_path: Path, tail: bytes) -> None:
    documents = read(tmp_path / "a.txt", "é".encode() * MANY + tail)

    assert "not UTF-8" in documents.rejects[0].what


def test_lines_lose_their_ends_and_keep_their_places() -> None:
    """Against Python's own splitting, byte by byte, for every text of these six bytes."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        data = rng.choice(np.frombuffer(b"ab\r\n\r\n", np.uint8), int(rng.integers(1, 12)))
        text = data.tobytes()

        documents = split_at(text, at_byte, b"\n", is_line=True)

        parts = text.split(b"\n")
        parts = [part.removesuffix(b"\r") for part in parts[:-1]] + parts[-1:]
        parts = parts if parts[-1] or not text else parts[:-1]
        bounds = zip(documents.starts, documents.ends, strict=True)
        assert [documents.data[a:b].tobytes() for a, b in bounds] == parts
        places = [documents.place(i).number for i in range(len(documents.data))]
        assert data[places].tobytes() == documents.data.tobytes()
        assert places == sorted(set(places))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("mark", ["\n\n", "aba", "ab", "\n"])
@pytest.mark.parametrize("chunk", [1, 5, 1 << 16])
def test_separators_across_the_cuts_part_the_same_documents(
    tmp_path: Path,
    mark: str,
    name: str,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of the file in one piece, wherever the cuts lie, for texts full of separators."""
    monkeypatch.setattr("packdata.tokens.source._WINDOW_BYTES", chunk)
    rng = np.random.default_rng(0)
    path = tmp_path / name
    for piece_bytes in [1, 2, 3, 7, 20] * 2:
        data = rng.choice(np.frombuffer(b"aaab\n\n\n", np.uint8), 60)
        path.write_bytes(data.tobytes() if name == "a.txt" else gzip.compress(data.tobytes()))
        file = SourceFile(files_at(path)[0], path.name, "text")

        monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", piece_bytes)
        pieces = TokenSource([file], TokenOptions(documents=mark)).pieces()

        found = [document for piece in pieces for document in _texts(piece.read())]
        assert found == _texts(split_at(data.tobytes(), at_byte, mark.encode()))


def test_a_run_of_separators_across_4_mib_is_cut_behind_it(tmp_path: Path) -> None:
    size = 4 << 20
    data = b"a" * (size - 1) + b"\n\n\n" + b"b" * 10 + b"\n\n" + b"c" * 3
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    file = SourceFile(files_at(path)[0], path.name, "text")
    source = TokenSource([file], TokenOptions(documents="\n\n"))

    pieces = [piece.read() for piece in source.pieces()]

    lengths = [(d.ends - d.starts).tolist() for d in pieces]
    assert lengths == [[size - 1, 11], [3]]


@pytest.mark.parametrize("separator", ["\n\n", "\n---\n", "\n"])
def test_a_separator_of_other_line_ends_than_the_file_is_refused(
    tmp_path: Path, separator: str
) -> None:
    data = b"a\r\nb\r\n---\r\nc\r\n\r\nd\r\n"

    with pytest.raises(SourceError, check=At("a.txt")) as caught:
        read(tmp_path / "a.txt", data, separator)

    assert repr(separator.replace("\n", "\r\n")) in caught.value.hint
    documents = read(tmp_path / "a.txt", data, separator.replace("\n", "\r\n"))
    assert len(documents) > 1


def test_a_file_with_both_line_ends_is_separated_as_told(tmp_path: Path) -> None:
    data = b"one\r\n\r\ntwo\n\nthree"

    assert _texts(read(tmp_path / "a.txt", data, "\n\n")) == [b"one\r\n\r\ntwo", b"three"]


def _texts(documents: Documents) -> list[bytes]:
    bounds = zip(documents.starts, documents.ends, strict=True)
    return [documents.data[a:b].tobytes() for a, b in bounds]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv"])
def test_a_column_of_csv_is_documents(tmp_path: Path, suffix: str) -> None:
    mark = "\t" if suffix == "tsv" else ","
    rows = ["id,body", '1,"two, and\na line"', "2,", "3,007", "4,NA"]
    data = "\n".join(row.replace(",", mark, 1) for row in rows).encode()
    source = write(tmp_path / f"a.{suffix}", gzip.compress(data) if suffix[-2:] == "gz" else data)

    assert texts(pack(source, tmp_path / "p", text_column="body")) == [
        "two, and\na line",
        "007",
        "NA",
    ]
    with pytest.raises(SourceError, check=At(source)):
        pack(source, tmp_path / "q")  # without a column that is called text
    source = write(tmp_path / "bad.csv", "text\none\ntwo,three\n")
    with pytest.raises(SourceError, check=At("bad.csv, line 3")):
        pack(source, tmp_path / "r")
