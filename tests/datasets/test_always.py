"""``check="always"``: whatever a file has that is not the manifest's is an error, also where nobody reads it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import RAMDataset, ShardDataset
from loaders.errors import ChecksumError, LoadersError, SampleError
from loaders.schema import Array, Field, Image, Label, Text
from tests.packdata.packing import pack, pack_samples
from tests.refusals import At

NUM = 10
FIELDS: dict[str, Field] = {
    "image": Image(size=(80, 80), codec="raw"),  # 19 KB: hashed row by row
    "depth": Array(dtype="uint8", dims=(20_000,)),
    "label": Label(),
    "key": Text(),
    "text": Text(),
}


@pytest.fixture(params=["lmdb", "parquet"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, (80, 80, 3), np.uint8),
        "depth": rng.integers(0, 256, 20_000, np.uint8),
        "label": i,
        "key": f"key {i}",
        "text": f"a text of sample {i}",
    }


def damaged(folder: Path, format: str, inside: bytes) -> Path:
    """Pack ten samples, and flip a bit in the shard of samples 4 to 7."""
    pack(folder, FIELDS, [sample(i) for i in range(NUM)], format=format)
    flip(folder / f"shard-00001.{format}", inside)
    return folder


def flip(path: Path, inside: bytes) -> None:
    """Flip a bit of what begins with some bytes."""
    data = bytearray(path.read_bytes())
    data[data.index(inside)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("fields", [["label"], ["image", "label"], ["text"], ["depth"]])
def test_a_shard_that_is_not_the_manifests_is_refused_whatever_is_read_of_it(
    tmp_path: Path, format: str, fields: list[str]
) -> None:
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=fields, check="always")

    for i in (*range(4), *range(8, NUM)):
        assert dataset[i]
    for index in (4, 5, 7):
        with pytest.raises(SampleError, check=At(cause=ChecksumError)) as caught:
            dataset[index]
        assert (caught.value.index, caught.value.row) == (index, index - 4)
        assert caught.value.path == folder / f"shard-00001.{format}"
    if "depth" not in fields:
        assert ShardDataset(folder, fields=fields)[5]


def test_columns_and_copies_are_refused_too(tmp_path: Path, format: str) -> None:
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=["label"], check="always")

    for read in (lambda: dataset.column("label"), lambda: RAMDataset(dataset)):
        with pytest.raises(ChecksumError, check=At(f"a/shard-00001.{format}")):
            read()


def test_no_byte_of_a_file_changes_unnoticed(tmp_path: Path, format: str) -> None:
    """Records, checksums, and what a container has around them; one field of several is read."""
    folder = pack_samples(tmp_path / "a", 3, format=format, fields=["label", "key", "tags"])
    path = folder / f"shard-00000.{format}"
    data = path.read_bytes()
    told: dict[int, str] = {}
    filled = np.flatnonzero(np.frombuffer(data, np.uint8))

    for at in {*filled[::17].tolist(), *range(0, len(data), 193)}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        try:
            for each in ShardDataset(folder, fields=["label"], check="always"):
                assert each
            told[at] = "nothing"
        except LoadersError as error:
            told[at] = str(error)

    assert {at: what for at, what in told.items() if str(path) not in what} == {}
