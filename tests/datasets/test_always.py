"""``check="always"``: whatever a file has that is not the manifest's is an error, also where nobody reads it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import DataLoader, RAMDataset, ShardDataset, concat
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
def test_a_sample_is_refused_for_what_is_damaged_in_another_field(
    tmp_path: Path, format: str, fields: list[str]
) -> None:
    """Row by row, whether the field is read or not; the others are served."""
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=fields, check="always")

    for i in (*range(5), *range(6, NUM)):
        assert dataset[i]
    for indices in ([5], [4, 5, 9]):
        with pytest.raises(SampleError, check=At(cause=ChecksumError)) as caught:
            dataset.__getitems__(indices)
        error = caught.value
        assert (error.index, error.row, error.key) == (5, 1, "key 5")
        assert At(field="depth")(error.__cause__)
        assert error.path == folder / f"shard-00001.{format}"
        assert "Run 'packdata verify'" in str(error)
    if "depth" not in fields:
        assert ShardDataset(folder, fields=fields)[5]


def test_small_records_that_nobody_reads_are_told_by_their_rows(
    tmp_path: Path, format: str
) -> None:
    """They have one checksum together."""
    folder = damaged(tmp_path / "a", format, b"a text of sample 6")
    dataset = ShardDataset(folder, fields=["label"], check="always")

    assert dataset[3].label == 3
    assert dataset[8].label == 8
    with pytest.raises(SampleError, check=At(row=0, index=4, key="key 4")):
        dataset[4]


def test_a_file_that_is_there_twice_is_refused_in_both_places(tmp_path: Path, format: str) -> None:
    """It is opened once."""
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=["label"], check="always")
    twice = concat([dataset, dataset])

    assert twice[NUM + 4].label == 4
    for index in (NUM + 5, 5):
        with pytest.raises(SampleError, check=At(row=1, key="key 5")) as caught:
            twice[index]
        assert (caught.value.index, caught.value.row) == (index, 1)


def test_columns_and_copies_are_refused_too(tmp_path: Path, format: str) -> None:
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=["label"], check="always")

    for read in (
        lambda: dataset.column("label"),
        lambda: dataset.find("key 2"),
        lambda: dataset.to_pandas(["text"]),
        lambda: RAMDataset(dataset),
    ):
        with pytest.raises(LoadersError, check=At(row=1, field="depth")):
            read()


def test_only_the_sample_that_is_damaged_is_replaced(tmp_path: Path, format: str) -> None:
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=["label"], check="always", on_error="replace")

    (batch,) = DataLoader(dataset, NUM, num_workers=2)

    assert dataset.num_replaced == 1
    served = batch.label.tolist()
    assert [i for i in range(NUM) if served[i] != i] == [5]


def test_so_is_a_small_scale_of_which_a_part_is_read(tmp_path: Path, format: str) -> None:
    """Whose records are read past the rest of the dataset."""
    fields: dict[str, Field] = {"image": Image(size=(64, 64), codec="dct"), "text": Text()}
    rows = [{"image": sample(i)["image"][:64, :64], "text": "t" * 20_000} for i in range(4)]
    folder = pack(tmp_path / "a", fields, rows, format=format)
    flip(folder / f"shard-00000.{format}", b"t" * 100)
    dataset = ShardDataset(folder, fields=["image"], scale=1 / 2, check="always")

    with pytest.raises(LoadersError, check=At(row=0, index=0)):
        [dataset[i] for i in range(4)]


def test_a_view_that_asks_for_the_damaged_field_later_says_the_same(
    tmp_path: Path, format: str
) -> None:
    folder = damaged(tmp_path / "a", format, sample(5)["depth"].tobytes()[:30])
    dataset = ShardDataset(folder, fields=["label"], check="always")
    told = []

    for view in (dataset, dataset.replace(fields=["depth"]), dataset[5:6]):
        with pytest.raises(SampleError) as caught:
            view[-1 if len(view) == 1 else 5]
        assert isinstance(caught.value.__cause__, ChecksumError)
        told.append(caught.value.what)

    assert told[0] == told[1] == told[2]


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
