"""Checksums of the chunks of large rows, beside those of the rows."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from loaders import ShardDataset, augment
from loaders.data.columns import var_column
from loaders.data.formats import checksums
from loaders.data.formats.checksums import CHUNK_BYTES, dump_checksums, load_checksums, num_chunks
from loaders.errors import SampleError
from loaders.schema import Array
from tests.columns import fixed_column
from tests.packdata.packing import pack

ROW = 1 << 20


def rows(*sizes: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size, np.uint8).tobytes() for size in sizes]


def test_large_rows_have_a_checksum_of_each_chunk() -> None:
    """Row by row, the last chunk of each as long as it is; as the page of the format says."""
    data = rows(ROW, ROW + 5, ROW + CHUNK_BYTES)

    text = dump_checksums({"x": var_column(data)})

    parts = [row[i : i + CHUNK_BYTES] for row in data for i in range(0, len(row), CHUNK_BYTES)]
    expected = [xxhash.xxh3_64_intdigest(part) for part in parts]
    stored = np.frombuffer(base64.b64decode(json.loads(text)["x"]["chunks"]), "<u8")
    assert stored.tolist() == expected
    assert json.loads(text)["x"]["chunk_bytes"] == CHUNK_BYTES
    assert load_checksums(text, 3)["x"].chunks.tolist() == expected
    assert num_chunks(var_column(data), CHUNK_BYTES).tolist() == [32, 33, 33]
    assert num_chunks(fixed_column(data[:1], ROW), CHUNK_BYTES).tolist() == [32]


def test_rows_below_a_mebibyte_have_none() -> None:
    """So the text of all that was packed before is what it was."""
    text = dump_checksums({"x": fixed_column(rows(ROW - 1), ROW - 1)})

    assert set(json.loads(text)["x"]) == {"rows_per_block", "xxh3_64"}
    assert load_checksums(text, 1)["x"].chunk_bytes == 0


def test_keys_of_a_later_version_are_passed_over() -> None:
    entry = json.loads(dump_checksums({"x": fixed_column(rows(100), 100)}))
    entry["x"]["later"] = [1, 2]

    assert load_checksums(json.dumps(entry).encode(), 1)["x"].rows_per_block > 0


@pytest.mark.parametrize(
    "change",
    [
        *({"chunk_bytes": wrong} for wrong in (-1, True, "4", 1 << 70)),
        *({"chunks": wrong} for wrong in ("?", "AAAA")),
        *({"heads": wrong} for wrong in ("?", "AAAA")),
    ],
)
def test_text_that_is_none_is_refused(change: Any) -> None:
    entry = json.loads(dump_checksums({"x": fixed_column(rows(ROW), ROW)}))
    entry["x"] |= change

    with pytest.raises(ValueError):
        load_checksums(json.dumps(entry).encode(), 1)


def test_chunks_of_other_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first crop is read: only then is it known how many there should be."""
    write = checksums._hash_chunks
    monkeypatch.setattr(
        checksums, "_hash_chunks", lambda column, nbytes: write(column, nbytes)[1:]
    )
    fields = {"array": Array(dtype="uint8", dims=(ROW,), spatial=1)}
    folder = pack(tmp_path / "a", fields, [{"array": np.zeros(ROW, np.uint8)}])

    with pytest.raises(SampleError):
        ShardDataset(folder, augment=[augment.RandomCrop(9)])[0]
