"""One suite for all shard formats: what goes in comes out, with the library and without it."""

import base64
import gc
import json
import os
import shutil
import struct
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loaders.codecs import codec_for
from loaders.data.columns import Column, FixedColumn, VarColumn, var_column
from loaders.data.formats import hash_file, map_shard, open_checksums, open_columns
from loaders.data.formats.checksums import checksum_column, dump_checksums, load_checksums
from loaders.data.manifest import Place
from loaders.errors import ShardError
from loaders.schema import (
    FIELD_KINDS,
    Array,
    Boxes,
    Bytes,
    Categories,
    Features,
    Field,
    Image,
    Images,
    Json,
    Keypoints,
    Label,
    Mask,
    MultiLabel,
    Text,
    Tokens,
)
from packdata.formats import lmdb as lmdb_format
from packdata.formats import parquet as parquet_format
from packdata.formats import read_back, write_shard
from tests.columns import fixed_column
from tests.refusals import At

Columns = dict[str, Column]
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
)


@pytest.fixture(params=(".lmdb", ".parquet"))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A shard of each format."""
    return tmp_path / f"shard-00000{request.param}"


def some_bytes(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def rows_of(column: Column) -> list[bytes]:
    return [column.row(i).tobytes() for i in range(len(column))]


def library_rows(path: Path, name: str, column: Column) -> list[bytes]:
    """Read a column as someone would who has the format's library and FORMAT.md, but not ours."""
    n = len(column)
    if path.suffix == ".parquet":
        array = pq.ParquetFile(path).read([name])[name].combine_chunks()
        if pa.types.is_string(array.type):
            return [value.encode() for value in array.to_pylist()]
        if pa.types.is_binary(array.type) or pa.types.is_fixed_size_binary(array.type):
            return list(array.to_pylist())
        if pa.types.is_fixed_size_list(array.type):
            array = array.flatten()
        data = array.to_numpy().tobytes()
        return [data[i * len(data) // n : (i + 1) * len(data) // n] for i in range(n)]
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env, env.begin() as txn:
        items = dict(txn.cursor())
    key = name.encode()
    if key in items:
        size = len(items[key]) // n
        return [items[key][i * size : (i + 1) * size] for i in range(n)]
    return [items[key + i.to_bytes(8, "big")] for i in range(n)]


def assert_shard_holds(path: Path, columns: Mapping[str, Column], fields: Any) -> None:
    """Write a shard, and read it in every way there is."""
    info = write_shard(path, columns, fields)

    opened = open_columns(path, info)
    raw = path.read_bytes()
    assert (info.file, info.size_bytes, info.xxh3_128) == (path.name, len(raw), hash_file(path))
    assert list(opened) == list(info.places) == list(columns)
    for name, column in columns.items():
        expected = rows_of(column)
        assert rows_of(opened[name]) == expected
        assert library_rows(path, name, column) == expected
        assert rows_at(raw, info.places[name], len(expected)) == expected
    for name, sums in open_checksums(path, info).items():
        blocks = np.arange(len(sums.hashes))
        assert sums.first_mismatch(opened[name], blocks) is None
        assert hashes_by_hand(rows_of(columns[name]), sums.rows_per_block) == sums.hashes.tolist()


def rows_at(raw: bytes, place: Place, n: int) -> list[bytes]:
    """Read rows as FORMAT.md describes a place."""
    if place.row_nbytes is not None:
        starts = [place.offset + i * place.row_nbytes for i in range(n)]
        return [raw[start : start + place.row_nbytes] for start in starts]
    assert place.lengths is not None
    lengths = struct.unpack_from(f"<{n}i", raw, place.lengths)
    if place.starts is not None:
        starts = list(struct.unpack_from(f"<{n}q", raw, place.starts))
    else:
        starts, at = [], place.offset
        for length in lengths:
            starts.append(at + place.gap)
            at += place.gap + length
    return [raw[start : start + size] for start, size in zip(starts, lengths, strict=True)]


def hashes_by_hand(rows: Sequence[bytes], rows_per_block: int) -> list[int]:
    blocks = range(0, len(rows), rows_per_block)
    return [xxhash.xxh3_64_intdigest(b"".join(rows[b : b + rows_per_block])) for b in blocks]


def encoded(field: Field, values: Any) -> Column:
    records = [codec_for(field).encode(value) for value in values]
    return (
        var_column(records)
        if field.record_nbytes is None
        else fixed_column(records, len(records[0]))
    )


PIXELS = some_bytes(3, 8, 9, 3)
FIELDS: dict[str, tuple[Field, Any]] = {
    "jpeg": (Image(), PIXELS),
    "png16": (Image(codec="png", dtype="uint16", channels=1), PIXELS[..., :1].astype(np.uint16)),
    "webp": (Image(codec="webp", size=(8, 9)), PIXELS),
    "images": (Images(), [[], list(PIXELS[:2]), [PIXELS[2, :2]]]),
    "raw_image": (Image(codec="raw", size=(8, 9)), PIXELS),
    "raw_image_of_any_size": (Image(codec="raw"), [PIXELS[0], PIXELS[1, :2], PIXELS[2, :, :4]]),
    "mask": (Mask(), PIXELS[..., 0]),
    "raw_mask": (Mask(codec="raw", dtype="int64", size=(8, 9)), PIXELS[..., 0].astype(np.int64)),
    "label": (Label(classes=("a", "b")), [0, 1, -5]),
    "multilabel": (MultiLabel(classes=("a", "b", "c")), np.eye(3, dtype=np.uint8)),
    "points": (
        Keypoints(),
        [np.zeros((0, 0, 2), np.float32), np.ones((1, 5, 3)), np.ones((2, 1, 2))],
    ),
    "boxes": (Boxes(), [np.zeros((0, 4), np.float32), np.ones((1, 4)), np.ones((9, 4))]),
    "text": (Text(), ["", "grüße 猫", "a\0b\n"]),
    "json": (Json(), [None, {"a": [1, 2.5, "ü"]}, []]),
    "bytes": (Bytes(), [b"", b"\0\xff", bytes(5000)]),
    **{
        f"{dtype}_scalar": (Array(dtype=dtype), np.arange(3).astype(dtype))
        for dtype in ("bool", "int8", "uint16", "int32", "uint32", "int64", "uint64")
    },
    **{
        f"{dtype}_vector": (
            Array(dtype=dtype, dims=(5,)),
            np.arange(15).reshape(3, 5).astype(dtype),
        )
        for dtype in (
            "bool",
            "uint8",
            "float16",
            "float32",
            "float64",
            "uint32",
            "int64",
            "uint64",
        )
    },
    "matrix": (Array(dims=(2, 3)), np.arange(18, dtype=np.float32).reshape(3, 2, 3)),
    "large": (Array(dtype="uint8", dims=(5000,)), some_bytes(3, 5000)),
    "tokens": (Tokens(row_tokens=5), np.arange(15).reshape(3, 5).astype(np.uint16)),
    "long_tokens": (Tokens(dtype="uint8", row_tokens=5000), some_bytes(3, 5000)),
    "features": (Features(columns=("a", "b c")), np.arange(6, dtype=np.float32).reshape(3, 2)),
    "features16": (Features(columns=("a",), dtype="float16"), np.ones((3, 1), np.float16)),
    "categories": (
        Categories(columns=("a", "b"), vocabularies=(("x", "y"), ())),
        np.array([[0, 0], [1, 0], [2, 0]], np.uint8),
    ),
    "many_categories": (
        Categories(columns=("a",), vocabularies=(("x",),), dtype="uint32"),
        np.array([[0], [1], [1]], np.uint32),
    ),
    "ragged": (Array(dims=(None,)), [np.zeros(0), np.ones(1), np.arange(2000.0)]),
    "ragged2": (Array(dims=(None, None)), [np.zeros((0, 5)), np.ones((1, 2)), np.ones((3, 0))]),
}


def test_there_is_an_example_of_each_kind() -> None:
    assert {field.kind for field, _ in FIELDS.values()} == set(FIELD_KINDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_kind_of_field_comes_back(name: str, path: Path) -> None:
    field, values = FIELDS[name]

    assert_shard_holds(path, {name: encoded(field, values)}, {name: field})


def test_all_kinds_share_one_shard(path: Path) -> None:
    columns = {name: encoded(*example) for name, example in FIELDS.items()}

    assert_shard_holds(path, columns, {name: field for name, (field, _) in FIELDS.items()})


@SHARED
@given(st.lists(st.binary(max_size=60) | st.integers(0, 9000).map(bytes), min_size=1, max_size=30))
@example([b""])
@example([b"", b"", b""])
@example([bytes(n) for n in range(2000, 2100)])  # about where LMDB gives a value pages of its own
def test_rows_of_any_size_come_back(path: Path, rows: list[bytes]) -> None:
    assert_shard_holds(path, {"a": var_column(rows)}, {"a": Bytes()})


@SHARED
@given(
    n=st.integers(1, 20), nbytes=st.integers(1, 40) | st.sampled_from([4095, 4096, 4097, 20_000])
)
@example(n=1, nbytes=1)
def test_rows_of_one_size_come_back(path: Path, n: int, nbytes: int) -> None:
    column = FixedColumn(some_bytes(n, nbytes))

    assert_shard_holds(path, {"a": column}, {"a": Array(dtype="uint8", dims=(nbytes,))})


@SHARED
@given(
    st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 255), st.binary()), min_size=1),
    st.permutations(["b", "a", "key"]),
)
def test_the_order_of_columns_is_kept(
    path: Path, samples: list[tuple[bytes, int, bytes]], names: list[str]
) -> None:
    first, second, third = zip(*samples, strict=True)
    everything: Columns = {
        "a": var_column(first),
        "b": FixedColumn(np.array(second, np.uint8)[:, None]),
        "key": var_column(third),
    }
    fields = {"a": Bytes(), "b": Array(dtype="uint8"), "key": Bytes()}

    assert_shard_holds(path, {name: everything[name] for name in names}, fields)


def test_large_values_lie_in_one_piece(path: Path) -> None:
    rows = [some_bytes(3 << 20).tobytes(), b"", some_bytes(1 << 20, seed=1).tobytes()]

    assert_shard_holds(path, {"a": var_column(rows)}, {"a": Bytes()})


def test_many_rows_need_branches_of_branches(path: Path) -> None:
    rows = [b"%d" % i * (i % 5) for i in range(30_000)]
    column = var_column(rows)

    info = write_shard(path, {"a": column}, {"a": Bytes()})

    assert rows_of(open_columns(path, info)["a"]) == rows
    assert library_rows(path, "a", column) == rows
    if path.suffix == ".lmdb":
        with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env:
            assert env.stat()["depth"] >= 3


def test_the_longest_name_fits(path: Path) -> None:
    name = "ü" * 100

    assert_shard_holds(path, {name: var_column([b"a", bytes(9999)])}, {name: Bytes()})


def test_rows_may_come_from_anywhere(path: Path) -> None:
    """Columns of another shard are views of its file: unaligned, with gaps, in any order."""
    buffer = some_bytes(999)
    var = VarColumn(buffer, np.array([500, 3, 3]), np.array([20, 0, 40]))
    fixed = FixedColumn(np.frombuffer(buffer[1:25].tobytes() + b"x", np.uint8)[1:].reshape(3, 8))
    unaligned = FixedColumn(buffer[1:25].reshape(3, 8))

    assert_shard_holds(
        path,
        {"a": var, "b": fixed, "c": unaligned},
        {"a": Bytes(), "b": Label(), "c": Label()},
    )


# -- bytes -------------------------------------------------------------------------------------


def test_the_same_columns_give_the_same_bytes(path: Path, tmp_path: Path) -> None:
    """Whatever memory they lie in, whatever was there before, on any thread."""
    columns = {name: encoded(*example) for name, example in FIELDS.items()}
    fields = {name: field for name, (field, _) in FIELDS.items()}
    other = tmp_path / "elsewhere" / path.name
    other.parent.mkdir()
    moved: Columns = {
        name: FixedColumn(np.array(column.data[::-1])[::-1].copy())
        if isinstance(column, FixedColumn)
        else VarColumn(
            np.concatenate([column.buffer[:0], some_bytes(7), column.buffer]),
            column.starts + 7,
            column.lengths,
        )
        for name, column in columns.items()
    }

    info = write_shard(path, columns, fields)
    other.write_bytes(path.read_bytes()[:5000])
    with ThreadPoolExecutor(1) as thread:
        again = thread.submit(write_shard, other, moved, fields).result()

    assert again == info
    assert other.read_bytes() == path.read_bytes()


def test_a_shard_replaces_what_has_its_name(path: Path) -> None:
    write_shard(path, {"a": var_column([bytes(99_999)] * 3)}, {"a": Bytes()})

    assert_shard_holds(path, {"b": var_column([b"new"])}, {"b": Bytes()})
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]


def test_shards_are_written_on_several_threads(path: Path) -> None:
    def write(number: int) -> list[bytes]:
        shard = path.with_stem(f"shard-{number}")
        info = write_shard(shard, {"a": FixedColumn(some_bytes(50, 300, seed=number))}, fields)
        return rows_of(open_columns(shard, info)["a"])

    fields = {"a": Array(dtype="uint8", dims=(300,))}
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(write, range(8)))

    assert found == [rows_of(FixedColumn(some_bytes(50, 300, seed=i))) for i in range(8)]


def test_a_path_may_look_like_anything(tmp_path: Path, path: Path) -> None:
    folder = tmp_path / "label=3" / "s3:x y" / "ü%20#?"
    folder.mkdir(parents=True)

    assert_shard_holds(folder / path.name, {"label": var_column([b"a"])}, {"label": Bytes()})


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["label", "text", "large"])
def test_mapped_rows_cannot_be_written_to(name: str, path: Path) -> None:
    field, values = FIELDS[name]
    info = write_shard(path, {name: encoded(field, values)}, {name: field})

    row = open_columns(path, info)[name].row(1)

    assert not row.flags.writeable
    with pytest.raises(ValueError):
        row.flags.writeable = True
    with pytest.raises(ValueError):
        row[:] = 0


def test_rows_are_not_copied(path: Path) -> None:
    info = write_shard(path, {"a": var_column([b"abc", bytes(9999)])}, {"a": Bytes()})
    data = open_columns(path, info)["a"]
    assert isinstance(data, VarColumn)

    assert len(data.buffer) == info.size_bytes
    assert np.shares_memory(data.row(1), data.buffer)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files as Linux does")
def test_closing_is_forgetting(path: Path) -> None:
    info = write_shard(path, {"a": var_column([b"abc"])}, {"a": Bytes()})
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(50):
        open_columns(path, info)
        open_checksums(path, info)

    assert len(os.listdir("/proc/self/fd")) == before
    if sys.version_info >= (3, 13):
        maps = [map_shard(path, info) for _ in range(50)]
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(maps) == 50


def test_a_row_outlives_its_columns_and_its_file(path: Path) -> None:
    info = write_shard(path, {"a": var_column([b"abc"])}, {"a": Bytes()})

    row = open_columns(path, info)["a"].row(0)
    path.unlink()
    gc.collect()

    assert row.tobytes() == b"abc"


# -- other tools -------------------------------------------------------------------------------


def tool_columns() -> tuple[Columns, dict[str, Field]]:
    names = ("label", "text", "json", "bytes", "float32_vector", "jpeg", "uint16_scalar", "boxes")
    columns = {name: encoded(*FIELDS[name]) for name in names}
    return columns, {name: FIELDS[name][0] for name in names}


def test_pandas_reads_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "a.parquet"
    write_shard(path, *tool_columns())

    frame = pandas.read_parquet(path)

    assert frame["label"].tolist() == [0, 1, -5]
    assert frame["text"].tolist() == list(FIELDS["text"][1])
    assert {*map(type, frame["json"])} == {str}
    assert [json.loads(text) for text in frame["json"]] == list(FIELDS["json"][1])
    vectors = FIELDS["float32_vector"][1].tolist()
    assert np.stack(frame["float32_vector"].tolist()).tolist() == vectors
    assert np.frombuffer(b"".join(frame["uint16_scalar"]), "<u2").tolist() == [0, 1, 2]


def test_duckdb_reads_parquet(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "a.parquet"
    write_shard(path, *tool_columns())

    with duckdb.connect() as connection:
        found = connection.execute(
            "select sum(label), max(text), sum(bytes__nbytes), sum(octet_length(jpeg)) "
            f"from '{path}' where float32_vector[1] < 10"
        ).fetchall()
        kinds = connection.execute(f"select * from '{path}'").description

    jpegs = encoded(*FIELDS["jpeg"])
    expected = (1, "grüße 猫", 2, len(jpegs.row(0)) + len(jpegs.row(1)))
    assert found == [expected]
    assert str({kind[0]: kind[1] for kind in kinds}["text"]) == "VARCHAR"


def test_parquet_has_the_documented_types_and_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {name: encoded(*example) for name, example in FIELDS.items()}
    write_shard(path, columns, {name: field for name, (field, _) in FIELDS.items()})

    file = pq.ParquetFile(path)

    assert file.metadata.num_row_groups == 1
    physical = {}
    for i in range(file.metadata.num_columns):
        chunk = file.metadata.row_group(0).column(i)
        assert chunk.compression == "UNCOMPRESSED"
        assert not chunk.has_dictionary_page
        assert file.schema.column(i).max_definition_level == chunk.path_in_schema.count(".list.")
        physical[chunk.path_in_schema] = chunk.physical_type
    assert physical["label"] == "INT64"
    assert physical["uint32_scalar"] == "INT32"
    assert physical["float32_vector.list.element"] == "FLOAT"
    assert physical["float64_vector.list.element"] == "DOUBLE"
    assert physical["jpeg"] == physical["text"] == "BYTE_ARRAY"
    assert physical["jpeg__nbytes"] == "INT32"
    for name in ("float16_vector", "bool_vector", "uint16_scalar", "raw_image", "matrix"):
        assert physical[name] == "FIXED_LEN_BYTE_ARRAY"
    checksums = json.loads(file.metadata.metadata[b"loaders.checksums"])
    heads = {name: entry.pop("heads") for name, entry in checksums.items() if "heads" in entry}
    assert heads.keys() == {"jpeg"}
    assert checksums == json.loads(dump_checksums(columns))


def test_what_foreign_codecs_make_is_stored_as_bytes(tmp_path: Path) -> None:
    """A column that other tools read as strings must be UTF-8."""
    columns: Columns = {"a": var_column([b"\xff\xfe"] * 3), "b": FixedColumn(some_bytes(3, 1))}
    fields = {"a": Text(codec="somebody's"), "b": Label(codec="short")}

    assert_shard_holds(tmp_path / "a.parquet", columns, fields)
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert (schema.field("a").type, schema.field("b").type) == (pa.binary(), pa.binary(1))


def test_lmdb_has_the_documented_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    write_shard(path, *tool_columns())

    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env, env.begin() as txn:
        items = dict(txn.cursor())

    per_row = {"text", "json", "bytes", "jpeg", "boxes"}
    rows = {name.encode() + i.to_bytes(8, "big") for name in per_row for i in range(3)}
    tables = {f"{name}__{what}".encode() for name in per_row for what in ("nbytes", "starts")}
    assert (
        set(items)
        == {b"__checksums", b"label", b"float32_vector", b"uint16_scalar"} | rows | tables
    )
    raw = path.read_bytes()
    for i, start in enumerate(struct.unpack("<3q", items[b"jpeg__starts"])):
        value = items[b"jpeg" + i.to_bytes(8, "big")]
        assert value == raw[start : start + len(value)]
        assert value[:2] == b"\xff\xd8"


@pytest.mark.parametrize("nbytes", [4095, 4096])
def test_lmdb_gives_large_fixed_rows_a_value_each(nbytes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    field = Array(dtype="uint8", dims=(nbytes,))

    info = write_shard(path, {"a": FixedColumn(some_bytes(2, nbytes))}, {"a": field})

    keys = {key for key, _ in lmdb_format.find_values(path)}
    assert (b"a" in keys) == (nbytes < 4096)
    assert isinstance(open_columns(path, info)["a"], FixedColumn if nbytes < 4096 else VarColumn)


# -- checksums ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "n", "rows_per_block"),
    [
        (1, 10, 64 << 10),
        (8, 10_000, 8192),
        (1000, 100, 65),
        ((16 << 10) - 1, 9, 4),
        (16 << 10, 9, 1),
        (99_999, 2, 1),
    ],
)
def test_small_rows_are_hashed_together(nbytes: int, n: int, rows_per_block: int) -> None:
    fixed = FixedColumn(some_bytes(n, nbytes))
    var = VarColumn(fixed.data.reshape(-1), np.arange(n) * nbytes, np.full(n, nbytes))

    sums = checksum_column(fixed)

    assert sums.rows_per_block == rows_per_block
    assert sums.hashes.tolist() == hashes_by_hand(rows_of(fixed), rows_per_block)
    assert checksum_column(var).hashes.tolist() == sums.hashes.tolist()


def test_the_text_of_checksums_is_golden() -> None:
    columns: Columns = {
        "a": var_column([b"abc", b"", b"d"]),
        "b": FixedColumn(np.zeros((3, 2), np.uint8)),
    }

    text = dump_checksums(columns)

    one = base64.b64encode(xxhash.xxh3_64(b"abcd").digest()[::-1]).decode()
    assert json.loads(text)["a"] == {"rows_per_block": 65536, "xxh3_64": one}
    assert text == (
        b'{"a":{"rows_per_block":65536,"xxh3_64":"kJioU2+pl2Q="},'
        b'"b":{"rows_per_block":32768,"xxh3_64":"5/2SOIFz3wY="}}'
    )
    assert list(load_checksums(text, 3)) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b'{"a": null}',
        b'{"a": {}}',
        b'{"a": {"rows_per_block": 0, "xxh3_64": ""}}',
        b'{"a": {"rows_per_block": -1, "xxh3_64": ""}}',
        b'{"a": {"rows_per_block": true, "xxh3_64": "AAAAAAAAAAA="}}',
        b'{"a": {"rows_per_block": 1.0, "xxh3_64": "AAAAAAAAAAA="}}',
        b'{"a": {"rows_per_block": 1e400, "xxh3_64": "AAAAAAAAAAA="}}',
        b'{"a": {"rows_per_block": 99999999999999999999, "xxh3_64": "AAAAAAAAAAA="}}',
        b'{"a": {"rows_per_block": 1}}',
        b'{"a": {"rows_per_block": 1, "xxh3_64": "AAA"}}',
        b'{"a": {"rows_per_block": 1, "xxh3_64": "AAAA"}}',
        b'{"a": {"rows_per_block": 1, "xxh3_64": "AAAAAAAAAAA=AAAA"}}',
        b'{"a": {"rows_per_block": 1, "xxh3_64": "\xc3\xbc"}}',
        b'{"a": {"rows_per_block": 1, "xxh3_64": "AAAAAAAAAAAAAAAAAAAAAA=="}}',
    ],
)
def test_text_that_is_no_checksums_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        load_checksums(text, 1)


def test_the_first_block_that_differs_is_found() -> None:
    column = FixedColumn(some_bytes(9, 20_000).copy())
    sums = checksum_column(column)

    column.data[4, 19_999] ^= 1
    column.data[7, 0] ^= 1

    assert sums.first_mismatch(column, np.arange(9)) == 4
    assert sums.first_mismatch(column, np.array([8, 7, 4])) == 7
    assert sums.first_mismatch(column, np.array([0, 8])) is None
    assert sums.first_mismatch(column, np.array([], np.int64)) is None


# -- damage ------------------------------------------------------------------------------------


def damaged_columns() -> tuple[Columns, dict[str, Field]]:
    columns: Columns = {
        "image": var_column([some_bytes(n).tobytes() for n in (20_000, 17_000, 30_000)]),
        "label": FixedColumn(some_bytes(3, 8)),
        "text": var_column([b"one", b"", b"three"]),
    }
    return columns, {"image": Bytes(), "label": Label(), "text": Bytes()}


@pytest.mark.parametrize("change", [-1, -1000, 1, 4096])
def test_a_file_of_another_size_is_refused(change: int, path: Path) -> None:
    info = write_shard(path, *damaged_columns())
    os.truncate(path, info.size_bytes + change)

    with pytest.raises(ShardError) as caught:
        open_columns(path, info)

    assert caught.value.path == path
    what = f"the file has {info.size_bytes + change} bytes, the manifest says {info.size_bytes}"
    assert caught.value.what == what
    assert caught.value.__cause__ is None  # said once, not wrapped in another error


def test_a_missing_file_and_a_folder_are_shard_errors(path: Path) -> None:
    info = write_shard(path, *damaged_columns())
    path.unlink()

    for _ in range(2):
        with pytest.raises(ShardError):
            open_columns(path, info)
        with pytest.raises(ShardError):
            open_checksums(path, info)
        path.mkdir(exist_ok=True)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1])
def test_a_record_outside_of_the_file_is_named(length: int, path: Path) -> None:
    info = write_shard(path, *damaged_columns())
    at = info.places["image"].lengths
    assert at is not None
    with open(path, "r+b") as file:
        file.seek(at + 4)
        file.write(struct.pack("<i", length))

    with pytest.raises(ShardError) as caught:
        open_columns(path, info)

    assert (caught.value.path, caught.value.row, caught.value.field) == (path, 1, "image")


@pytest.mark.parametrize("start", [-1, 2**63 - 1, -(2**63), 1 << 40])
def test_an_offset_outside_of_the_file_is_named(start: int, tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    info = write_shard(path, *damaged_columns())
    at = info.places["text"].starts
    assert at is not None
    with open(path, "r+b") as file:
        file.seek(at + 16)
        file.write(struct.pack("<q", start))

    with pytest.raises(ShardError, check=At("a.lmdb", row=2, field="text")) as caught:
        open_columns(path, info)

    assert (caught.value.row, caught.value.field) == (2, "text")


def test_checksums_that_cannot_be_read_are_a_shard_error(path: Path) -> None:
    info = write_shard(path, *damaged_columns())
    good = path.read_bytes()
    at, nbytes = info.checksums

    for text in (b"\0" * nbytes, b"[" * nbytes, good[at + 1 : at + nbytes] + b" "):
        path.write_bytes(good[:at] + text + good[at + nbytes :])
        with pytest.raises(ShardError):
            open_checksums(path, info)
    path.write_bytes(good.replace(b'"label":{"rows', b'"lebal":{"rows'))
    with pytest.raises(ShardError):
        open_checksums(path, info)
    path.write_bytes(good[: at + nbytes - 1])
    with pytest.raises(ShardError):
        open_checksums(path, info._replace(checksums=(at, 1 << 60)))


def test_any_flipped_bit_of_a_record_is_found(path: Path) -> None:
    """A flip is found by a check, or it lies where serving does not look."""
    info = write_shard(path, *damaged_columns())
    good = path.read_bytes()
    rng = np.random.default_rng(1)
    records = [np.frombuffer(row, np.uint8) for row in rows_at(good, info.places["image"], 3)]
    starts = [good.index(record.tobytes()) for record in records]
    inside = [start + int(rng.integers(len(r))) for start, r in zip(starts, records, strict=True)]
    tables = [
        at + int(rng.integers(12))
        for place in info.places.values()
        for at in (place.lengths, place.starts)
        if at is not None
    ]
    label = info.places["label"].offset
    anywhere = rng.integers(0, len(good), 250).tolist()

    for at in [*inside, *tables, label, label + 23, *anywhere]:
        data = bytearray(good)
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        found = what_is_wrong(path, info)
        if at in (*inside, label, label + 23):
            assert found, f"byte {at}"


def what_is_wrong(path: Path, info: Any) -> str:
    """Return what serving finds, and make sure that it sees good rows where it finds nothing."""
    try:
        opened = open_columns(path, info)
        sums = open_checksums(path, info)
    except ShardError as error:
        return str(error)
    for name, column in opened.items():
        if sums[name].first_mismatch(column, np.arange(len(sums[name].hashes))) is not None:
            return name
    expected, _ = damaged_columns()
    assert {name: rows_of(c) for name, c in opened.items()} == {
        name: rows_of(c) for name, c in expected.items()
    }
    return ""


# -- what the writer refuses -------------------------------------------------------------------


def test_what_is_beyond_the_limit_of_a_format_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_format, "_MAX_VALUE_BYTES", 1000)
    monkeypatch.setattr(parquet_format, "MAX_COLUMN_BYTES", 1000)

    with pytest.raises(ValueError):
        write_shard(path, {"a": var_column([bytes(1001)])}, {"a": Bytes()})


@pytest.mark.parametrize("num_rows", [1, 2, 3, 9, 700])
def test_parquet_is_written_as_arrow_writes_it(num_rows: int, tmp_path: Path) -> None:
    """Byte for byte; of lists, which are written another way, with every period of their levels."""
    rng, fields = np.random.default_rng(num_rows), dict[str, Field]()
    for size in (*range(1, 34), 63, 64, 65, 100, 1000):
        dtype = rng.choice(["float32", "float64", "int32", "uint32", "int64", "uint64"])
        fields[f"list{size}"] = Array(dtype=str(dtype), dims=(size,))
    fields |= {dtype: Array(dtype=dtype) for dtype in ("uint8", "int32", "uint64", "float64")}
    columns: Columns = {
        name: FixedColumn(some_bytes(num_rows, field.record_nbytes or 0))
        for name, field in fields.items()
    }
    for name, other in {"text": Text(), "json": Json(), "bytes": Bytes()}.items():
        fields[name] = other
        columns[name] = var_column([b"x" * n for n in rng.integers(0, 50, num_rows)])
    path, theirs = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_shard(path, columns, fields)
    table = pq.read_table(path)
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    options |= {"data_page_size": 2**31 - 1, "write_page_checksum": True}
    if int(pa.__version__.split(".")[0]) >= 22:
        options["max_rows_per_page"] = num_rows

    schema = table.schema.remove_metadata()
    with pq.ParquetWriter(theirs, schema, write_statistics=False, **options) as writer:
        writer.write_table(table.cast(schema))
        writer.add_key_value_metadata({b"loaders.checksums": dump_checksums(columns)})

    assert path.read_bytes() == theirs.read_bytes()


# -- reading back ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["image", "label", "text"])
def test_reading_back_names_the_column_that_differs(name: str, path: Path) -> None:
    columns, fields = damaged_columns()
    info = write_shard(path, columns, fields)
    opened = open_columns(path, info)
    assert read_back(path, opened) is None

    rows = rows_of(opened[name])
    rows[2] = rows[2][:-1] + bytes([rows[2][-1] ^ 1])
    other = fixed_column(rows, 8) if name == "label" else var_column(rows)

    assert repr(name) in str(read_back(path, dict(opened) | {name: other}))


def test_reading_back_compares_sizes_too(path: Path) -> None:
    info = write_shard(path, {"a": var_column([b"ab", b"c"])}, {"a": Bytes()})
    assert read_back(path, open_columns(path, info)) is None

    assert "'a'" in str(read_back(path, {"a": var_column([b"a", b"bc"])}))


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_wrong_place_is_found_before_the_shard_is_used(
    off_by: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lmdb_format, parquet_format):
        write = module.write

        def wrong(*args: Any, _write: Any = write) -> Any:
            places, checksums = _write(*args)
            return {n: p._replace(offset=p.offset + off_by) for n, p in places.items()}, checksums

        monkeypatch.setattr(module, "write", wrong)

    with pytest.raises(ShardError, check=At(path.name)):
        write_shard(path, {"label": FixedColumn(some_bytes(3, 8))}, {"label": Label()})


def test_values_are_found_also_after_changes_by_other_tools(tmp_path: Path) -> None:
    """The newer of two meta pages counts, whichever it is."""
    path = tmp_path / "a.lmdb"
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 20) as env:
        for i in range(4):
            with env.begin(write=True) as txn:
                txn.put(b"key", b"%d" % i)
            copy = shutil.copy(path, tmp_path / f"{i}.lmdb")
            ((key, (at, size)),) = lmdb_format.find_values(Path(copy))
            assert (key, Path(copy).read_bytes()[at : at + size]) == (b"key", b"%d" % i)
