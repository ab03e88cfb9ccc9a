"""Many items: in little memory, and which keys are duplicates."""

import json
import pickle
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packdata.sources.duplicates
from loaders.remote.wire import Entry
from packdata.bucket import Bucket
from packdata.files.splits import open_splits
from packdata.sources.columns import ColumnNames
from packdata.sources.duplicates import duplicates
from packdata.sources.listed import files_at
from packdata.sources.lists import ListSource
from packdata.sources.names import PICTURES

TEXTS = st.lists(st.text(max_size=4))


@given(TEXTS)
def test_duplicates_are_found(given: list[str]) -> None:
    assert duplicates(lambda: iter(given)) == {each for each in given if given.count(each) > 1}


def test_equal_hashes_are_no_equal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packdata.sources.duplicates, "hash_of", len)

    assert duplicates(lambda: ["aa", "bb", "c", "bb"]) == {"bb"}


def test_a_listing_is_sent_and_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    num = 40_000
    names = [f"c{i * 4 // num}/img_{i:08d}.jpg" for i in range(num)]
    entries = [Entry(name, i + 1, 2 * i + 1) for i, name in enumerate(names)]
    buffers: list[pickle.PickleBuffer] = []
    monkeypatch.setattr(Bucket, "below", lambda _: iter([entries[::-1]]))
    (source,) = open_splits("s3://raw").values()
    stream = pickle.dumps(source, 5, buffer_callback=buffers.append)

    sent = pickle.loads(stream, buffers=buffers)

    assert len(stream) < 16 * num

    def listed(items: Iterable[Any]) -> list[Entry]:
        return [Entry(file.name, file.size, file.mark) for file in (item.file for item in items)]

    assert listed(sent.items()) == entries
    assert [item.key for item in sent.items()] == [item.key for item in source.items()]
    again = pickle.loads(pickle.dumps(sent, 2))
    assert listed(again.items(num - 5)) == entries[-5:]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_row_of_a_list_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 10_000)  # beside the rows there is one part
    num, path = 2_500, tmp_path / f"list.{suffix}"
    rows: list[dict[str, Any]] = [
        {"file": f"x/img_{i:010d}.jpg", "label": f"c{i % 10}", "x": i / 7} for i in range(num)
    ]
    with open(path, "w") as file:
        if suffix == "csv":
            file.write("file,label,x\n")
            file.writelines(f"{row['file']},{row['label']},{row['x']}\n" for row in rows)
        else:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    pa.array(["x"])  # pyarrow imports pandas with the first one
    before = pa.total_allocated_bytes()
    tracemalloc.start()

    source = ListSource(files_at(path)[0], PICTURES, ColumnNames())

    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    of_arrow = pa.total_allocated_bytes() - before
    assert (kept + of_arrow) / num < 120
    assert (most + of_arrow) / num < 280
    items = [(item.key, dict(item.labels)) for item in source.items(num - 2)]
    assert items == [(r["file"][:-4], {"label": r["label"], "x": r["x"]}) for r in rows[-2:]]
    sent = pickle.loads(pickle.dumps(source))
    assert [item.key for item in sent.items()] == [item.key for item in source.items()]
