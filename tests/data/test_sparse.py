"""Shards that claim more rows than there is memory for: a sparse file has any size."""

import os
from pathlib import Path

import pytest

from loaders import ShardDataset
from loaders.data.formats import open_checksums, open_columns
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
