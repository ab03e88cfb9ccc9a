"""Shards that claim more rows than there is memory for: a sparse file has any size."""

import os
import struct
from pathlib import Path

import pytest

from loaders import ShardDataset
from loaders.data.columns import var_column
from loaders.data.formats import open_checksums, open_columns
from loaders.data.formats.checksums import dump_checksums
from loaders.data.manifest import Manifest, Place, ShardInfo
from loaders.errors import ShardError
from loaders.schema import Array, Field, Schema, Text
from tests.manifests import put_manifest

NUM = 10**11
SIZE = 14 * NUM
CHECKSUMS = (SIZE - 5 * NUM, 5 * NUM)


def sparse(path: Path, place: Place) -> ShardInfo:
    """Make a file of the size that the manifest would say."""
    path.touch()
    os.truncate(path, SIZE)
    return ShardInfo(path.name, NUM, SIZE, "0" * 32, {"x": place}, CHECKSUMS)


@pytest.mark.parametrize(
    ("field", "place"),
    [
        (Array(dtype="int64"), Place(row_nbytes=8)),
        (Text(), Place(lengths=0, offset=4 * NUM)),
        (Text(), Place(lengths=0, starts=4 * NUM)),
    ],
)
def test_a_dataset_of_a_sparse_shard_is_refused(
    tmp_path: Path, field: Field, place: Place
) -> None:
    path = tmp_path / "shard-00000.lmdb"
    info = sparse(path, place)
    put_manifest(tmp_path, Manifest(Schema({"x": field}, ("x",)), (info,), {}))

    for check in ("first", "always", "never"):
        with pytest.raises(ShardError) as caught:
            ShardDataset(tmp_path, check=check)
        assert caught.value.path == path


def test_neither_places_nor_checksums_of_a_sparse_shard_are_read(tmp_path: Path) -> None:
    path = tmp_path / "shard-00000.lmdb"
    info = sparse(path, Place(lengths=0, offset=4 * NUM))

    for read in (open_columns, open_checksums):
        with pytest.raises(ShardError) as caught:
            read(path, info)
        assert caught.value.path == path


def test_what_lies_between_rows_is_not_read_where_they_lie_far_apart(tmp_path: Path) -> None:
    """Though they have one checksum: LMDB puts a large row on pages of its own."""
    path, size = tmp_path / "shard-00000.lmdb", 128 << 20
    text = dump_checksums({"x": var_column([b"first", b"last"])})
    path.write_bytes(struct.pack("<2i2q", 5, 4, 24, size - 4) + b"first" + text)
    os.truncate(path, size)
    with open(path, "r+b") as file:
        file.seek(size - 4)
        file.write(b"last")
    info = ShardInfo(
        path.name, 2, size, "0" * 32, {"x": Place(lengths=0, starts=8)}, (29, len(text))
    )
    put_manifest(tmp_path, Manifest(Schema({"x": Text()}, ("x",)), (info,), {}))
    dataset = ShardDataset(tmp_path)
    before = _mapped_kb()

    assert [sample.x for sample in dataset] == ["first", "last"]
    assert _mapped_kb() - before < 64 << 10


def _mapped_kb() -> int:
    """Pages of files that this process has mapped, and that are in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssFile:")[2].split()[0])
