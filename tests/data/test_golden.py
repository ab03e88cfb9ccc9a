"""A dataset that was packed by format version 1, once and for all, and must open for ever.

``tests/data/golden-v1`` holds the same three samples in a shard of each format, and
``golden-v1-more``, ``golden-v1-points`` and ``golden-v1-images`` the kinds of fields that version 1
learned later. A change of the format makes a ``golden-v2`` beside them (and FORMAT.md says so); version 1
stays. This is how the files were made, from the repository's root::

    python -c "import runpy; from pathlib import Path; runpy.run_path('tests/data/test_golden.py')[
        'write_golden'](Path('tests/data/golden-v1'))"
"""

import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import ShardDataset
from loaders.codecs import codec_for
from loaders.data import formats
from loaders.data.columns import var_column
from loaders.data.formats import hash_file, open_checksums, open_columns
from loaders.data.manifest import Manifest, ShardInfo, read_manifest
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
    Schema,
    Text,
    Tokens,
)
from packdata.formats import read_back, write_shard
from tests.columns import fixed_column
from tests.manifests import put_manifest

DATA = Path(__file__).parent

FIRST: dict[str, Field] = {
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
MORE: dict[str, Field] = {
    "coarse": Image(size=(16, 24), codec="dct"),
    "small": Image(size=(17, 9), codec="dct", subsampling="444", compression="zstd"),
    "planes": Image(size=(3, 5), codec="yuv420"),
    "tokens": Tokens(dtype="uint16", row_tokens=4, vocab_size=300, eod=0),
    "features": Features(columns=("a", "b c"), mean=(1.0, 2.0), std=(0.5, 0.0)),
    "categories": Categories(columns=("kind",), vocabularies=(("x", "ü"),)),
    "scan": Array(dtype="int16", dims=(2, 3, 4), spatial=3),
}
POINTS: dict[str, Field] = {
    "points": Keypoints(),
    "face": Keypoints(num=3, flip_pairs=((0, 1),)),
}
IMAGES: dict[str, Field] = {
    "images": Images(codec="png"),
    "views": Images(channels=1, size=(2, 3), dtype="uint16", codec="png"),
}
GOLDEN = {
    "golden-v1": FIRST,
    "golden-v1-more": MORE,
    "golden-v1-points": POINTS,
    "golden-v1-images": IMAGES,
}
DEFAULTS = {
    "golden-v1": ("image", "label"),
    "golden-v1-more": ("coarse",),
    "golden-v1-points": ("points",),
    "golden-v1-images": ("images",),
}
FINGERPRINTS = {
    "golden-v1": "e9be067d892472803a6063a758e3d0b3",
    "golden-v1-more": "1c50d53848564aeecc4604e1d8a62251",
    "golden-v1-points": "1271f90ae51146b01f28c59654bffc99",
    "golden-v1-images": "6030d1b415da48a19cab47a0f2aa8d40",
}
SHARDS = [  # none: about to be written
    (DATA / name, shard)
    for name in GOLDEN
    if (DATA / name).exists()
    for shard in read_manifest(DATA / name).shards
]
IDS = [f"{folder.name}/{shard.file}" for folder, shard in SHARDS]
LOSSY = {"image", "coarse", "small", "planes"}  # decoders may differ by a little


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
        "coarse": np.full((16, 24, 3), (40 * i, 100, 200), np.uint8),
        "small": np.full((17, 9, 3), (200, 100, 40 * i), np.uint8),
        "planes": np.full((3, 5, 3), (7, 100, 40 * i), np.uint8),
        "tokens": np.array([299, i, 0, 7], np.uint16),
        "features": np.array([i + 0.5, np.nan], np.float32),
        "categories": np.array([i], np.uint8),
        "scan": np.arange(24, dtype=np.int16).reshape(2, 3, 4) - i,
        "points": np.arange(4 * i, dtype=np.float32).reshape(i, 2, 2) + 0.5,
        "images": [np.full((2, 3 + k, 3), (40 * i, k, 200), np.uint8) for k in range(i)],
        "views": [np.full((2, 3, 1), 1000 * i + k, np.uint16) for k in range(2)],
        "face": np.arange(9, dtype=np.float32).reshape(1, 3, 3) - i,
    }


def write_golden(folder: Path) -> None:
    """Write the dataset as the present code does."""
    folder.mkdir(parents=True)
    fields = GOLDEN[folder.name]
    shards = []
    for number, suffix in enumerate((".lmdb", ".parquet")):
        columns = {}
        for name, field in fields.items():
            records = [codec_for(field).encode(values(i)[name]) for i in range(3)]
            nbytes = field.record_nbytes
            columns[name] = (
                var_column(records) if nbytes is None else fixed_column(records, nbytes)
            )
        shards.append(write_shard(folder / f"shard-{number:05d}{suffix}", columns, fields))
    schema = Schema(fields, DEFAULTS[folder.name])
    put_manifest(folder, Manifest(schema, tuple(shards), {"source": "test_golden.py"}))


def assert_same(name: str, value: Any, expected: Any) -> None:
    if name in LOSSY:
        assert value.dtype == np.uint8
        np.testing.assert_allclose(value, expected, atol=4)
    elif isinstance(value, list) and name in IMAGES:
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_same("", one, other)
    elif isinstance(value, np.ndarray):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)
    else:
        assert value == expected


def test_the_golden_files_have_every_kind_of_field_and_both_formats() -> None:
    assert {field.kind for fields in GOLDEN.values() for field in fields.values()} == set(
        FIELD_KINDS
    )
    files = ["shard-00000.lmdb", "shard-00001.parquet"]
    assert [(folder.name, shard.file) for folder, shard in SHARDS] == [
        (name, file) for name in GOLDEN for file in files
    ]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_manifest_opens(name: str) -> None:
    manifest = read_manifest(DATA / name)

    assert manifest.fingerprint == FINGERPRINTS[name]
    assert dict(manifest.schema.fields) == GOLDEN[name]
    assert list(manifest.schema.fields) == list(GOLDEN[name])
    assert manifest.schema.defaults == DEFAULTS[name]
    assert manifest.num_samples == 6
    assert manifest.provenance == {"source": "test_golden.py"}


@pytest.mark.parametrize(("folder", "shard"), SHARDS, ids=IDS)
def test_a_golden_shard_opens(folder: Path, shard: ShardInfo) -> None:
    path, fields = folder / shard.file, GOLDEN[folder.name]

    columns = open_columns(path, shard)

    assert hash_file(path) == shard.xxh3_128
    assert read_back(path, columns) is None
    for name, sums in open_checksums(path, shard).items():
        assert sums.first_mismatch(columns[name], np.arange(len(sums.hashes))) is None
    for i in range(3):
        for name, field in fields.items():
            assert_same(name, codec_for(field).decode(columns[name].row(i)), values(i)[name])


def test_a_golden_dataset_is_served() -> None:
    dataset = ShardDataset(DATA / "golden-v1", fields=["label", "text", "vector", "long"])

    assert len(dataset) == 6
    for i in range(6):
        sample = dataset[i]
        assert int(sample.label) == i % 3 % 2
        assert sample.text == values(i % 3)["text"]
        assert sample.vector.tolist() == values(i % 3)["vector"].tolist()
        assert sample.long.tolist() == [i % 3] * 4096


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_written_today_differs_from_the_golden_files_in_no_value(
    name: str, tmp_path: Path
) -> None:
    """Also when it cannot have the same bytes: encoders and pyarrow put their version in."""
    write_golden(tmp_path / name)

    new, golden = read_manifest(tmp_path / name), read_manifest(DATA / name)

    assert new.schema == golden.schema
    for shard, old in zip(new.shards, golden.shards, strict=True):
        theirs = open_columns(DATA / name / old.file, old)
        for field, column in open_columns(tmp_path / name / shard.file, shard).items():
            codec = codec_for(GOLDEN[name][field])
            for i in range(3):
                assert_same(field, codec.decode(column.row(i)), codec.decode(theirs[field].row(i)))


@pytest.mark.parametrize(
    ("folder", "shard", "field"),
    [(folder, shard, field) for folder, shard in SHARDS for field in GOLDEN[folder.name]],
)
def test_the_code_on_the_format_page_reads_the_golden_files(
    folder: Path, shard: ShardInfo, field: str
) -> None:
    page = (Path(formats.__file__).parent / "FORMAT.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    code = code.replace('"packed/', f'"{folder}/').replace('"image"', repr(field))
    number = [shard.file for _, shard in SHARDS[:2]].index(shard.file)
    code = code.replace('["shards"][0]', f'["shards"][{number}]')
    code = code.replace("json.load(open(", "json.loads(pathlib.Path(").replace(
        "))", ").read_text())", 1
    )
    found: dict[str, Any] = {"pathlib": pathlib}

    exec(code, found)

    rows = open_columns(folder / shard.file, shard)[field]
    assert [row.tobytes() for row in found["rows"]] == [rows.row(i).tobytes() for i in range(3)]
