"""Tables are cut into parts where rows end, whatever stands in their cells."""

import csv
import io
import itertools
import re
import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata import rows as row_files
from packdata.delimited import CsvRows, last_record_end
from packdata.jsonl import JsonRows
from packdata.reading import File, open_file
from packdata.sources.listed import files_at
from packdata.tables import pack_tables
from tests.packdata.reading import PackedReader
from tests.refusals import At

# What matters to a CSV reader, and something that does not; stray quotes are not opened in front.
TEXT = st.text('ab,"\n\r ', max_size=12)


def written(rows: list[list[str]], end: str = "\r\n") -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator=end).writerows(rows)
    return buffer.getvalue().encode()


def ends_of_rows(rows: list[list[str]]) -> list[int]:
    return list(itertools.accumulate(len(written([row])) for row in rows))


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8), st.data())
def test_text_cut_anywhere_ends_with_its_last_whole_row(
    rows: list[tuple[str, str]], data: st.DataObject
) -> None:
    cells = [["x", *row] for row in rows]
    text, ends = written(cells), ends_of_rows(cells)
    cut = data.draw(st.integers(0, len(text)))

    expected = max((end for end in ends if end <= cut), default=0)

    assert last_record_end(text[:cut], ord(",")) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'1,5" pipe\n2,"a\nb"\n3,x\n',  # a quote inside of a cell opens nothing
        b'1,a"b"c\n2,"x""y\n"\n',
        b'1,"a"b"\n2,"c\nd"\n',
        b'"",""\n"""",""""\n"\n",x\n',
    ],
)
def test_stray_quotes_open_nothing(text: bytes) -> None:
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    ends = [
        end for end in range(1, len(text) + 1) if _num_rows(text[:end]) and text[end - 1] == 10
    ]

    for cut in range(len(text) + 1):
        expected = max((end for end in ends if end <= cut), default=0)
        assert last_record_end(text[:cut], ord(",")) == expected, cut
    assert len(ends) == len(rows)


def test_a_line_of_names_may_have_line_ends_in_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"a\n\nb",c\n1,2\n')

    rows = CsvRows(files_at(tmp_path / "a.csv")[0])

    assert rows.columns == ("a\n\nb", "c")
    assert [(line, cells) for part in rows.parts() for line, cells, _ in rows.records(part)] == [
        (4, ["1", "2"])
    ]


def _num_rows(text: bytes) -> bool:
    """Tell whether a text holds whole rows: whether one more character would begin another."""
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    more = list(csv.reader(io.StringIO(text.decode() + "x", newline="")))
    return len(more) == len(rows) + 1


@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.integers(-99, 99), TEXT), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_parts_of_any_size_give_the_same_rows(rows: list[tuple[int, str]], size: int) -> None:
    words = [text.strip() or "none" for _, text in rows]
    lines = [["number", "word"], *([str(n), w] for (n, _), w in zip(rows, words, strict=True))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "PART_BYTES", size)
        source = Path(folder) / "t.csv"
        source.write_bytes(written(lines))

        pack_tables(source, Path(folder) / "out", workers=2, categorical=("word",))

        reader = PackedReader(Path(folder) / "out")
        field = reader.schema.fields["categories"]
        names = field.vocabularies[0]  # type: ignore[attr-defined]
        codes = reader.column("categories")[:, 0].tolist()
        assert reader.column("features")[:, 0].tolist() == [n for n, _ in rows]
        assert [names[code - 1] for code in codes] == words


def test_parts_know_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "PART_BYTES", 30)
    text = "a,b\r\n" + "".join(f'{i},"x\n{i}"\r\n\r\n' for i in range(20))
    (tmp_path / "t.csv").write_bytes(text.encode())
    file = CsvRows(files_at(tmp_path / "t.csv")[0])

    found = []
    for part in file.parts():
        for rows in file.read(part):
            found += [(value, rows.line(i)) for i, value in enumerate(rows.table["a"].to_pylist())]

    assert found == [(str(i), 2 + 3 * i) for i in range(20)]


@pytest.mark.parametrize("kind", [CsvRows, JsonRows])
def test_lines_of_many_rows_are_found_by_reading_their_part_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CsvRows | JsonRows]
) -> None:
    (tmp_path / "t").write_text("\n" + '{"a":1}\n' * 100)
    file, reads = kind(files_at(tmp_path / "t")[0]), list[File]()
    (part,) = file.parts()
    (rows,) = file.read(part)

    def counted(file: File) -> BinaryIO:
        reads.append(file)
        return open_file(file)

    monkeypatch.setattr(row_files, "open_file", counted)

    lines = [rows.line(row) for row in range(len(rows.table))]

    assert lines == [*range(102 - len(rows.table), 102)]
    assert len(reads) == 1


def test_a_row_without_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loaders.errors import SourceError

    monkeypatch.setattr(row_files, "PART_BYTES", 100)
    monkeypatch.setattr(row_files, "MAX_ROW_BYTES", 300)
    (tmp_path / "t.csv").write_text('a,b\n1,"' + "x\n" * 400)

    with pytest.raises(SourceError, check=At("t.csv, line 2")):
        pack_tables(tmp_path / "t.csv", tmp_path / "out")


NUMBERS = st.from_regex(r"\A ?[+-]?[0-9]{1,3}(\.[0-9]{1,2})?(e-?[0-9]{1,2})?\Z")


@settings(max_examples=15)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9),
    st.sampled_from([",", "\t", ";", "|"]),
    st.booleans(),
    st.integers(1, 60),
)
def test_numbers_are_numbers_unless_one_of_the_column_begins_with_zeros(
    rows: list[tuple[str, str]], delimiter: str, quoted: bool, size: int
) -> None:
    cells = [(f'"{a}"', b) if quoted else (a, b) for a, b in rows]
    names = [
        any(re.match(r" ?[+-]?0[0-9]", cell) for cell in column)
        for column in zip(*rows, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "PART_BYTES", size)
        source = Path(folder) / "t.csv"
        source.write_text("".join(delimiter.join(row) + "\n" for row in [("a", "b"), *cells]))

        pack_tables(source, Path(folder) / "out", delimiter=delimiter, dtype="float64")

        reader = PackedReader(Path(folder) / "out")
        fields = reader.schema.fields
        found = {name: fields[name].to_json()["columns"] for name in fields}
        assert found.get("categories", []) == [
            n for n, is_name in zip("ab", names, strict=True) if is_name
        ]
        if not any(names):
            assert reader.column("features").tolist() == [[float(a), float(b)] for a, b in rows]
