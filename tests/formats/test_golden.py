"""A dataset that was packed by format version 1, once and for all, and must open for ever.

``tests/data/golden-v1`` holds the same three samples in a shard of each format. A change of the
format makes a ``golden-v2`` beside it (and FORMAT.md says so); version 1 stays. This is how its files
were made, from the repository's root::

    python -c "import runpy; from pathlib import Path; runpy.run_path('tests/formats/test_golden.py')[
        'write_golden'](Path('tests/data/golden-v1'))"
"""

from __future__ import annotations

import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import ShardDataset, formats
from loaders.codecs import codec_for
from loaders.columns import fixed_column, var_column
from loaders.formats import hash_file, open_checksums, open_columns, read_back, write_shard
from loaders.manifest import Manifest, ShardInfo, publish_manifest, read_manifest
from loaders.schema import (
    FIELD_KINDS,
    Array,
    Boxes,
    Bytes,
    Field,
    Image,
    Json,
    Label,
    Mask,
    MultiLabel,
    Schema,
    Text,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden-v1"
MANIFEST = read_manifest(GOLDEN) if GOLDEN.exists() else None  # None: about to be written
SHARDS = MANIFEST.shards if MANIFEST else ()

FIELDS: dict[str, Field] = {
    "image": Image(size=(8, 8)),
    "gray": Image(channels=1, size=(2, 3), dtype="uint16", codec="png"),
    "pixels": Image(size=(1, 2), codec="raw"),
    "mask": Mask(size=(2, 2)),
    "label": Label(classes=("cat", "Hündchen")),
    "tags": MultiLabel(classes=("x", "y")),
    "boxes": Boxes(),
    "vector": Array(dims=(3,)),
    "half": Array(dtype="float16", dims=(2,)),
    "ragged": Array(dtype="int16", dims=(None, None)),
    "long": Array(dtype="uint8", dims=(4096,)),  # in LMDB, the size from which rows lie apart
    "text": Text(),
    "meta": Json(),
    "blob": Bytes(),
}


def values(i: int) -> dict[str, Any]:
    """Return sample ``i`` as it was packed."""
    return {
        "image": np.full((8, 8, 3), (40 * i, 100, 200), np.uint8),
        "gray": np.arange(6, dtype=np.uint16).reshape(2, 3, 1) * 10_000 + i,
        "pixels": np.array([[[i, 2, 3], [4, 5, 255]]], np.uint8),
        "mask": np.array([[0, 1], [i, 255]], np.uint8),
        "label": np.int64(i % 2),
        "tags": np.array([1, i % 2], np.uint8),
        "boxes": np.arange(4 * i, dtype=np.float32).reshape(i, 4),
        "vector": np.array([i, -0.5, 1e30], np.float32),
        "half": np.array([i, 0.25], np.float16),
        "ragged": np.arange(6, dtype=np.int16).reshape(6 // (i + 1), i + 1) - 3,
        "long": np.full(4096, i, np.uint8),
        "text": ["", "grüße", "猫"][i],
        "meta": [None, {"a": [1, 2.5]}, "ü"][i],
        "blob": [b"", b"\0\xff", b"abc" * 5][i],
    }


def write_golden(folder: Path) -> None:
    """Write the dataset as the present code does."""
    folder.mkdir(parents=True)
    shards = []
    for number, suffix in enumerate((".lmdb", ".parquet")):
        columns = {}
        for name, field in FIELDS.items():
            records = [codec_for(field).encode(values(i)[name]) for i in range(3)]
            nbytes = field.record_nbytes
            columns[name] = (
                var_column(records) if nbytes is None else fixed_column(records, nbytes)
            )
        shards.append(write_shard(folder / f"shard-{number:05d}{suffix}", columns, FIELDS))
    schema = Schema(FIELDS, ("image", "label"))
    publish_manifest(folder, Manifest(schema, tuple(shards), {"source": "test_golden.py"}))


def assert_same(name: str, value: Any, expected: Any) -> None:
    if name == "image":  # lossy: decoders may differ by a little
        assert value.dtype == np.uint8
        np.testing.assert_allclose(value, expected, atol=4)
    elif isinstance(value, np.ndarray):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)
    else:
        assert value == expected


def test_the_golden_files_have_every_kind_of_field_and_both_formats() -> None:
    assert {field.kind for field in FIELDS.values()} == set(FIELD_KINDS)
    assert [shard.file for shard in SHARDS] == ["shard-00000.lmdb", "shard-00001.parquet"]


def test_the_golden_manifest_opens() -> None:
    manifest = read_manifest(GOLDEN)

    assert manifest.fingerprint == "e9be067d892472803a6063a758e3d0b3"
    assert dict(manifest.schema.fields) == FIELDS
    assert list(manifest.schema.fields) == list(FIELDS)
    assert manifest.schema.defaults == ("image", "label")
    assert manifest.num_samples == 6
    assert manifest.provenance == {"source": "test_golden.py"}


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: shard.file)
def test_a_golden_shard_opens(shard: ShardInfo) -> None:
    path = GOLDEN / shard.file

    columns = open_columns(path, shard)

    assert hash_file(path) == shard.xxh3_128
    assert read_back(path, columns) is None
    for name, sums in open_checksums(path, shard).items():
        assert sums.first_mismatch(columns[name], np.arange(len(sums.hashes))) is None
    for i in range(3):
        for name, expected in values(i).items():
            value = codec_for(FIELDS[name]).decode(columns[name].row(i))
            assert_same(name, value, expected)


def test_a_golden_dataset_is_served() -> None:
    dataset = ShardDataset(GOLDEN, fields=["label", "text", "vector", "long"])

    assert len(dataset) == 6
    for i in range(6):
        sample = dataset[i]
        assert int(sample.label) == i % 3 % 2
        assert sample.text == values(i % 3)["text"]
        assert sample.vector.tolist() == values(i % 3)["vector"].tolist()
        assert sample.long.tolist() == [i % 3] * 4096


def test_what_is_written_today_differs_from_the_golden_files_in_no_value(tmp_path: Path) -> None:
    """Also when it cannot have the same bytes: encoders and pyarrow put their version in."""
    write_golden(tmp_path / "new")

    new = read_manifest(tmp_path / "new")

    assert new.schema == read_manifest(GOLDEN).schema
    for shard, golden in zip(new.shards, SHARDS, strict=True):
        theirs = open_columns(GOLDEN / golden.file, golden)
        for name, column in open_columns(tmp_path / "new" / shard.file, shard).items():
            codec = codec_for(FIELDS[name])
            for i in range(3):
                assert_same(name, codec.decode(column.row(i)), codec.decode(theirs[name].row(i)))


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: shard.file)
@pytest.mark.parametrize("field", FIELDS)
def test_the_code_on_the_format_page_reads_the_golden_files(shard: ShardInfo, field: str) -> None:
    page = (Path(formats.__file__).parent / "FORMAT.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    code = code.replace('"packed/', f'"{GOLDEN}/').replace('"image"', repr(field))
    code = code.replace('["shards"][0]', f'["shards"][{SHARDS.index(shard)}]')
    code = code.replace("json.load(open(", "json.loads(pathlib.Path(").replace(
        "))", ").read_text())", 1
    )
    found: dict[str, Any] = {"pathlib": pathlib}

    exec(code, found)

    rows = open_columns(GOLDEN / shard.file, shard)[field]
    assert [row.tobytes() for row in found["rows"]] == [rows.row(i).tobytes() for i in range(3)]
