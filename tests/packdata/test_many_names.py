"""Names of many items: what a list of them says, in little memory, and which stand twice."""

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import packdata.sources.names
from loaders.remote.origin import origin_of
from loaders.remote.url import URL
from loaders.remote.wire import Entry
from packdata.files.splits import open_splits
from packdata.sources.listed import Tree
from packdata.sources.listed import given as listed
from packdata.sources.lists import ListSource
from packdata.sources.names import Names, twice

TEXTS = st.lists(st.text(max_size=4))


@given(TEXTS)
def test_names_are_a_list(given: list[str]) -> None:
    names = Names(given)

    assert len(names) == len(given)
    assert list(names) == given
    assert [names[i] for i in range(len(given))] == given
    assert [names[-i] for i in range(1, len(given) + 1)] == given[::-1]
    assert names[1:-1] == given[1:-1]
    with pytest.raises(IndexError):
        names[len(given)]


def test_names_of_files_that_are_no_text_are_names() -> None:
    assert list(Names(["caf\udce9", ""])) == ["caf\udce9", ""]


@given(TEXTS)
def test_what_stands_twice_is_found(given: list[str]) -> None:
    assert twice(lambda: iter(given)) == {each for each in given if given.count(each) > 1}


def test_equal_hashes_are_no_equal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packdata.sources.names, "hash_of", len)

    assert twice(lambda: ["aa", "bb", "c", "bb"]) == {"bb"}


def test_ten_million_names_need_less_than_a_gigabyte() -> None:
    num = 20_000  # of as many bytes as those of ImageNet
    tracemalloc.start()
    names = Names(f"n{i % 1000:08d}/n{i % 1000:08d}_{i:06d}.JPEG" for i in range(num))
    assert not twice(lambda: names)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most / num < 80


def test_a_listing_is_sent_without_a_copy_and_reads_the_same() -> None:
    num = 4_000
    names = [f"c{i * 4 // num}/img_{i:08d}.jpg" for i in range(num)]
    entries = [Entry(name, i + 1, 2 * i + 1) for i, name in enumerate(names)]
    buffers: list[pickle.PickleBuffer] = []
    with listed({URL("s3://raw"): reversed(entries)}):
        (split,) = open_splits("s3://raw")
        stream = pickle.dumps(split.source, 5, buffer_callback=buffers.append)

    sent = pickle.loads(stream, buffers=buffers)

    assert len(stream) < num
    assert [item.read.entry for item in sent.items()] == entries
    assert [*sent.keys()] == [*split.source.keys()]
    again = pickle.loads(pickle.dumps(sent, 2))
    assert [item.read.entry for item in again.items(num - 5)] == entries[-5:]


def test_what_a_list_names_of_a_listing_takes_no_room_beside_it() -> None:
    num = 2_500
    names = Names(f"x{i % 4}/img_{i * 7919 % num:08d}.jpg" for i in range(num))
    entries = [Entry(name + end, 9, 1) for end in ("", ".xml") for name in names]
    tree = Tree(origin_of("s3://raw"), entries)
    tree.only(names)  # it is sorted by now
    tracemalloc.start()

    named = tree.only(names)

    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most / num < 80
    assert sorted(named) == sorted(entries[:num])
    assert len(tree.only(["x0/none.jpg", "none"])) == 0
    assert tree.only(entry.name for entry in entries) is tree


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_row_of_a_list_takes_little_memory(tmp_path: Path, suffix: str) -> None:
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
    tracemalloc.start()

    source = ListSource(path)

    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / num < 80
    assert most / num < 240
    items = [(item.key, dict(item.labels)) for item in source.items(num - 2)]
    assert items == [(r["file"][:-4], {"label": r["label"], "x": r["x"]}) for r in rows[-2:]]
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(source, 5, buffer_callback=buffers.append)
    assert len(stream) < num
    assert [*pickle.loads(stream, buffers=buffers).keys()] == [*source.keys()]
