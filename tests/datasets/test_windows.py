import copy
import itertools
import json
import pickle
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import packdata
from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, TokenWindows, collate, concat
from loaders.datasets.tokens.documents import fit_decreasing
from loaders.errors import ChecksumError, LoadersError, SchemaError, ShardError, StateError
from loaders.schema import Array, Tokens
from packdata.tokens.plan import TokenOptions, pack_tokens
from tests.refusals import At

ROW = 16
DTYPES = {"uint8": 200, "uint16": 60_000, "uint32": 4_000_000_000}


def pack(
    folder: Path,
    documents: Sequence[npt.NDArray[Any]],
    *,
    pieces: int = 1,
    dtype: str = "uint16",
    format: Any = "parquet",
    shard_bytes: int = 1 << 20,
    eod: int | None = None,
) -> Path:
    """Write documents as a stream in rows of 16, of which each piece ends with a short one."""
    fields = {
        "tokens": Tokens(dtype=dtype, row_tokens=ROW, eod=eod),
        "num_tokens": Array(dtype="int32"),
        "document_ends": Array(dtype="uint16", dims=(None,)),
    }

    def rows() -> Any:
        for group in np.array_split(np.arange(len(documents)), pieces):
            parts = [documents[i] for i in group]
            ids = np.concatenate([*parts, np.zeros(0)]).astype(dtype)
            ends = np.cumsum([len(part) for part in parts])
            for first in range(0, len(ids), ROW):
                row = ids[first : first + ROW]
                inside = ends[(ends > first) & (ends <= first + ROW)] - first
                yield {
                    "tokens": np.concatenate([row, np.zeros(ROW - len(row), dtype)]).astype(dtype),
                    "num_tokens": len(row),
                    "document_ends": inside.astype(np.uint16),
                }

    packdata.pack(rows(), folder, fields, format=format, shard_bytes=shard_bytes)
    return folder


def some_documents(num: int, dtype: str = "uint16", longest: int = 60) -> list[npt.NDArray[Any]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, DTYPES[dtype], rng.integers(1, longest), dtype) for _ in range(num)]


def stream_of(documents: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.concatenate(documents).astype(np.int64)


@pytest.fixture(scope="module")
def documents() -> list[npt.NDArray[Any]]:
    return some_documents(40)


@pytest.fixture(scope="module", params=["parquet", "lmdb"])
def folder(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[npt.NDArray[Any]],
) -> Path:
    """Many short rows and several shards, so that runs end everywhere."""
    path = tmp_path_factory.mktemp("tokens") / "packed"
    return pack(path, documents, pieces=9, format=request.param, shard_bytes=1000)


# -- windows over the stream -----------------------------------------------------------------------


def test_windows_of_tokens_that_lie_far_apart_are_copied_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = TokenWindows(folder, 20)
    expected = usual.__getitems__(range(len(usual))).batch

    monkeypatch.setattr("loaders.data.gather._MAX_ELEMENTS", 0)
    apart = TokenWindows(folder, 20)

    assert torch.equal(apart.__getitems__(range(len(apart))).batch.tokens, expected.tokens)


@pytest.mark.parametrize("length", [1, 5, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("stride", [None, 3])
def test_windows_are_cut_from_the_stream_and_targets_are_one_token_later(
    folder: Path, documents: list[npt.NDArray[Any]], length: int, stride: int | None
) -> None:
    stream, step = stream_of(documents), stride or length

    windows = TokenWindows(folder, length, stride)

    assert len(windows) == (len(stream) - 1 - length) // step + 1
    batch = windows.__getitems__(range(len(windows))).batch
    for i in range(len(windows)):
        assert batch.tokens[i].tolist() == stream[i * step : i * step + length].tolist()
        assert batch.targets[i].tolist() == stream[i * step + 1 : i * step + 1 + length].tolist()


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_stored_width_is_widened_exactly(tmp_path: Path, dtype: str) -> None:
    documents = some_documents(5, dtype)
    folder = pack(tmp_path / "a", documents, dtype=dtype)

    windows = TokenWindows(folder, 10)
    narrow = TokenWindows(folder, 10, dtype="stored")
    if dtype == "uint32":  # up to 4e9: int64 holds what int32 would not
        assert int(windows[0].tokens.max()) > 1 << 31

    assert windows[0].tokens.tolist() == stream_of(documents)[:10].tolist()
    assert windows[0].tokens.dtype == windows[0].targets.dtype == torch.int64
    assert narrow[0].tokens.dtype == getattr(torch, dtype)
    assert narrow[1].targets.tolist() == windows[1].targets.tolist()


def test_what_the_loader_hands_over_is_contiguous_int64_whoever_reads_it(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    plain = [windows[i] for i in range(len(windows))]

    for workers, backend in ((0, "auto"), (1, "auto"), (3, "thread")):
        loader = DataLoader(windows, 4, num_workers=workers, backend=backend)  # type: ignore[call-overload]
        seen = 0
        for tokens, targets in loader:
            assert tokens.dtype == targets.dtype == torch.int64
            assert tokens.is_contiguous()
            assert targets.is_contiguous()
            for row in range(len(tokens)):
                assert torch.equal(tokens[row], plain[seen].tokens)
                assert torch.equal(targets[row], plain[seen].targets)
                seen += 1
        assert seen == len(windows)


@pytest.mark.parametrize("format", ["parquet", "lmdb"])
def test_what_packdata_tokens_packs_is_served_across_its_long_rows(
    tmp_path: Path, format: Any
) -> None:
    text = np.random.default_rng(0).integers(32, 127, 40_000, np.uint8)
    text.tofile(tmp_path / "a.txt")
    pack_tokens(tmp_path / "a.txt", tmp_path / "p", format=format, shard_bytes=20_000)

    windows = TokenWindows(tmp_path / "p", 1000)

    assert len(windows.dataset.store.shards) > 1
    batch = windows.__getitems__(range(39)).batch
    assert np.array_equal(batch.tokens.numpy().reshape(-1), text[:39_000])
    assert np.array_equal(batch.targets.numpy().reshape(-1), text[1:39_001])


def test_devices_marks_and_mappings_change_the_form_alone(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    ours = list(DataLoader(windows, 4))

    moved = DataLoader(windows, 4, device="cpu")
    marked = DataLoader(windows, 4, pad="mark", rank=0, world_size=1)
    mapped = DataLoader(windows, 4, as_dict=True)

    for batch, one, two, three in zip(ours, moved, marked, mapped, strict=True):
        assert torch.equal(one.targets, batch.targets)
        assert torch.equal(two.tokens[two.valid], batch.tokens)
        assert torch.equal(three["tokens"], batch.tokens)


@pytest.mark.slow
def test_shards_that_a_store_closes_are_read_where_they_are_mapped_next(tmp_path: Path) -> None:
    """Of a cache that holds few of them, or of more than may be mapped: what was unmapped would end the process."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 60_000, 500, np.uint16) for _ in range(40)]
    dataset = ShardDataset(pack(tmp_path / "few", documents, shard_bytes=8_000))
    assert len(dataset.store.shards) > 3
    dataset.store.max_open = 1
    windows = TokenWindows(dataset, length=100)
    stream = stream_of(documents)

    for i in (*range(0, len(windows), 7), *range(3, len(windows), 11)):
        assert (windows[i].tokens.numpy() == stream[i * 100 :][: len(windows[i].tokens)]).all()


@pytest.mark.parametrize("folder", ["lmdb"], indirect=True)
@pytest.mark.parametrize("by", ["stream", "document"])
def test_a_child_process_serves_the_same_windows(folder: Path, by: Any) -> None:
    windows: Any = Mixture([TokenWindows(folder, 20, by=by)] * 2, [1, 1], batch_from="one")
    child = DataLoader(windows, 4, shuffle=True, backend="subprocess", num_workers=2)
    for one, other in zip(child, DataLoader(windows, 4, shuffle=True), strict=True):
        assert one._fields == other._fields
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.targets, other.targets)


def test_other_loaders_and_collate_functions_see_the_same(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    ours = list(DataLoader(windows, 4))

    for loader in (
        torch.utils.data.DataLoader(windows, 4),
        DataLoader(windows, 4, collate_fn=torch.utils.data.default_collate),
        DataLoader(windows, 4, backend="process", num_workers=1),
    ):
        for one, other in zip(loader, ours, strict=True):
            assert torch.equal(one[0], other.tokens)
            assert torch.equal(one[1], other.targets)


def test_kept_batches_are_never_overwritten(folder: Path) -> None:
    windows = TokenWindows(folder, 20)

    kept = list(DataLoader(windows, 2, num_workers=2))

    for i, batch in enumerate(kept):
        assert torch.equal(batch.tokens[0], windows[2 * i].tokens)


def test_a_shuffled_epoch_has_each_window_once_over_all_ranks(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    expected = sorted(tuple(window.tokens.tolist()) for window in windows)

    seen = [
        tuple(row.tolist())
        for rank in range(3)
        for batch in DataLoader(windows, 4, shuffle=True, rank=rank, world_size=3, pad=False)
        for row in batch.tokens
    ]

    assert sorted(seen) == expected


def test_a_run_resumes_at_the_very_window_with_another_number_of_workers(folder: Path) -> None:
    loader = DataLoader(TokenWindows(folder, 8), 4, shuffle=True, num_workers=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = [batch.tokens.tolist() for batch in batches]

    again = DataLoader(TokenWindows(folder, 8), 4, shuffle=True, num_workers=0)
    again.load_state_dict(state)

    assert [batch.tokens.tolist() for batch in again] == rest
    for other in (TokenWindows(folder, 9), TokenWindows(folder, 8, by="document")):
        with pytest.raises(StateError):
            DataLoader(other, 4, shuffle=True).load_state_dict(state)


def test_whatever_changes_the_windows_changes_the_fingerprint(folder: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"length": 21},
        {"stride": 21},
        {"length": 21, "stride": 20},
        {"tail": "pad"},
        {"span": (0, 400)},
        {"by": "document"},
        {"by": "document", "fit": "first"},
    ]

    prints = [TokenWindows(folder, **({"length": 20} | option)).fingerprint for option in options]

    assert len(set(prints)) == len(options)
    assert TokenWindows(folder, 20).fingerprint == prints[0]


def test_windows_pickle_and_keep_their_options(folder: Path) -> None:
    windows = TokenWindows(folder, 20, 7, span=(3, 200))
    copied = pickle.loads(pickle.dumps(windows))

    assert repr(copied) == repr(windows)
    assert copied.fingerprint == windows.fingerprint
    assert torch.equal(copied[-1].targets, windows[-1].targets)


@pytest.mark.parametrize("options", [{}, {"by": "document"}, {"tail": "pad"}])
def test_the_half_that_is_prefetched_stays_one_when_it_is_copied(
    folder: Path, options: dict[str, Any]
) -> None:
    windows = TokenWindows(folder, 20, **options)
    half: Any = (windows.halves(torch.device("cpu")) or (windows,))[0]
    expected = half.__getitems__([1, 3]).batch

    for copied in (pickle.loads(pickle.dumps(half)), copy.copy(half)):
        batch = copied.__getitems__([1, 3]).batch
        assert batch._fields == expected._fields
        assert torch.equal(batch[0], expected[0])
        assert copied.fingerprint == half.fingerprint


def test_the_half_shares_the_windows_and_plans_nothing_anew(folder: Path) -> None:
    windows, documents = TokenWindows(folder, 20), TokenWindows(folder, 20, by="document")

    halves: Any = windows.halves(torch.device("cpu"))
    half = halves[0]

    assert half.dataset is windows
    assert (len(half), half.sample_nbytes) == (len(windows), windows.sample_nbytes)
    assert documents.halves(torch.device("cpu")) is None  # made whole at once


def test_datasets_in_memory_and_joined_serve_the_same_windows(
    folder: Path, documents: list[npt.NDArray[Any]]
) -> None:
    mapped, stream = TokenWindows(folder, 33), stream_of(documents)
    in_memory = TokenWindows(RAMDataset(folder, progress=False), 33)
    joined = TokenWindows(concat([ShardDataset(folder), ShardDataset(folder)]), 33)

    assert [w.tokens.tolist() for w in in_memory] == [w.tokens.tolist() for w in mapped]
    assert joined.num_tokens == 2 * len(stream)
    twice = np.concatenate([stream, stream])
    assert all(
        joined[i].tokens.tolist() == twice[33 * i : 33 * i + 33].tolist()
        for i in range(len(joined))
    )


def test_the_dropped_tail_is_counted_and_told(
    folder: Path, documents: list[npt.NDArray[Any]]
) -> None:
    total = len(stream_of(documents))

    windows = TokenWindows(folder, 97)

    left = total - 1 - 97 * len(windows)
    assert 0 < left < 97
    assert windows.num_left_out == left
    assert f"{total:,} tokens, the last {left} left out" in repr(windows)


def test_a_padded_tail_keeps_every_token(folder: Path, documents: list[npt.NDArray[Any]]) -> None:
    stream = stream_of(documents)

    windows = TokenWindows(folder, 97, tail="pad")
    last, start = windows[-1], 97 * (len(windows) - 1)
    rest = len(stream) - start

    assert windows.num_left_out == 0
    assert windows.padding_share > 0
    assert last.tokens[:rest].tolist() == stream[start:].tolist()
    assert last.tokens[rest:].tolist() == [0] * (97 - rest)
    assert last.targets[: rest - 1].tolist() == stream[start + 1 :].tolist()
    assert last.targets[rest - 1 :].tolist() == [-100] * (98 - rest)
    (batch,) = DataLoader(windows, len(windows))
    assert torch.equal(batch.targets[-1], last.targets)
    assert torch.equal(batch.tokens[0], windows[0].tokens)


def test_a_padded_tail_holds_the_end_of_document_token_where_there_is_one(tmp_path: Path) -> None:
    ids = np.array([5, 6, 7, 9], np.uint16)
    windows = TokenWindows(pack(tmp_path / "a", [ids], eod=9), 6, tail="pad")

    assert windows[0].tokens.tolist() == [5, 6, 7, 9, 9, 9]
    assert windows[0].targets.tolist() == [6, 7, 9, -100, -100, -100]


def test_a_span_that_ends_with_a_whole_window_needs_no_padding(folder: Path) -> None:
    windows = TokenWindows(folder, 10, tail="pad", span=(0, 41))

    assert len(windows) == 4
    assert windows.padding_share == 0
    assert (windows[3].targets != -100).all()


@pytest.mark.parametrize("stop", [491, 492, 509, 510, 511, 512, 513, 520, 521, 522, 541])
def test_a_padded_window_that_begins_behind_a_gap_has_a_target(folder: Path, stop: int) -> None:
    windows = TokenWindows(folder, 10, stride=30, tail="pad", span=(0, stop))
    begin = 30 * (len(windows) - 1)

    assert begin <= stop - 2 < begin + 30
    valid = min(10, stop - 1 - begin)
    assert (windows[-1].targets != -100).tolist() == [True] * valid + [False] * (10 - valid)
    assert (
        windows[-1].tokens[:valid].tolist() == windows.stream.read(begin, begin + valid).tolist()
    )
    assert windows.num_left_out == max(0, stop - begin - 11)
    num_padded = max(0, begin + 10 - stop)
    rest = windows[-1].tokens[10 - num_padded :].tolist()
    assert rest == [0] * num_padded  # and no tokens from behind the span
    assert windows.padding_share == pytest.approx(num_padded / (10 * len(windows)))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("stop", [3, 61, 700])
def test_several_short_windows_stand_among_whole_ones_in_a_batch(
    folder: Path, documents: list[npt.NDArray[Any]], stop: int, dtype: Any
) -> None:
    """They lie over ends of shards, too."""
    stream = stream_of(documents)[:stop]
    windows = TokenWindows(folder, 60, stride=7, tail="pad", span=(0, stop), dtype=dtype)
    order = np.random.default_rng(0).permutation(len(windows)).tolist()

    (batch,) = DataLoader(windows, len(order), sampler=order)

    for row, number in enumerate(order):
        tokens, targets = batch.tokens[row], batch.targets[row]
        start = 7 * number
        some = stream[start : start + 60]
        assert tokens.tolist() == some.tolist() + [0] * (60 - len(some))
        some = stream[start + 1 : start + 61]
        assert targets.tolist() == some.tolist() + [-100] * (60 - len(some))
        assert tokens.dtype == targets.dtype == getattr(torch, dtype)


def test_padded_windows_have_the_labels_of_their_tokens(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 99, n).tolist() for n in (30, 5, 44)]
    text = [json.dumps({"input_ids": ids, "labels": [-100, -100, *ids[2:]]}) for ids in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(text))
    pack_tokens(tmp_path / "a.jsonl", tmp_path / "packed")
    windows = TokenWindows(tmp_path / "packed", 20, stride=9, tail="pad")
    labels = [label for ids in rows for label in [-100, -100, *ids[2:]]]

    (batch,) = DataLoader(windows, len(windows))

    tokens = [token for ids in rows for token in ids]
    for number, targets in enumerate(batch.targets.tolist()):
        some = tokens[9 * number : 9 * number + 20]
        assert batch.tokens[number].tolist() == some + [0] * (20 - len(some))
        some = labels[9 * number + 1 : 9 * number + 21]
        assert targets == some + [-100] * (20 - len(some))


@pytest.mark.parametrize("by", ["stream", "document"])
def test_split_parts_follow_each_other_and_share_no_token(folder: Path, by: Any) -> None:
    windows = TokenWindows(folder, 10, by=by)

    parts = windows.split([0.5, 0.3, 0.2])

    assert [part.span[0] for part in parts[1:]] == [part.span[1] for part in parts[:-1]]
    assert (parts[0].span[0], parts[-1].span[1]) == windows.span
    if by == "document":
        assert {part.span[1] for part in parts} <= set(windows.stream.document_ends.tolist())
        fills = [round(len(part) * 10 * (1 - part.padding_share)) for part in parts]
        assert sum(fills) == windows.num_tokens
    else:
        for part in parts:
            last = part.span[0] + (len(part) - 1) * 10
            assert part[-1].targets[-1] == windows.stream.read(last + 10, last + 11)[0]
            assert last + 11 <= part.span[1]


def test_indices_are_checked(folder: Path) -> None:
    windows = TokenWindows(folder, 10)

    assert torch.equal(windows[-1].tokens, windows[len(windows) - 1].tokens)
    for bad in (len(windows), -len(windows) - 1):
        with pytest.raises(IndexError):
            windows[bad]
    with pytest.raises(TypeError):
        windows["1"]
    with pytest.raises(TypeError):
        windows.__getitems__([1.7])  # type: ignore[list-item]


@pytest.mark.parametrize("settings", [{}, {"dtype": "stored"}, {"by": "document"}])
def test_a_batch_may_be_empty(folder: Path, settings: Any) -> None:
    batch = TokenWindows(folder, 10, **settings).__getitems__([]).batch

    assert batch.tokens.shape == batch.targets.shape == (0, 10)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_part_that_gets_no_document_is_refused(folder: Path, is_cut: bool) -> None:
    """Also where the last document goes on behind the span."""
    windows = TokenWindows(folder, 10, by="document")
    if is_cut:
        first, second = windows.stream.document_ends[:2].tolist()
        assert second - first > 2
        windows = TokenWindows(folder, 10, by="document", span=(0, first + 2))

    with pytest.raises(ValueError, match="document"):
        windows.split([0.9999, 0.0001])


@pytest.mark.parametrize(
    "options",
    [
        {"length": 0},
        {"stride": 0},
        {"tail": "keep"},
        {"by": "line"},
        {"fit": "worst"},
        {"dtype": "int8"},
        {"stride": 4, "by": "document"},
        {"dtype": "stored", "tail": "pad"},
        {"span": (5, 10**9)},
        {"length": 10**6},
    ],
)
def test_options_that_make_no_sense_are_refused(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        TokenWindows(folder, **options)


def test_a_dataset_without_tokens_or_with_some_rows_only_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    packdata.pack([{"x": 1.0}], tmp_path / "x", {"x": Array()})

    with pytest.raises(SchemaError):
        TokenWindows(tmp_path / "x")
    with pytest.raises(SchemaError):
        TokenWindows(ShardDataset(folder).select([0, 1]))


@pytest.mark.parametrize("check", ["first", "always"])
def test_a_flipped_byte_is_found_when_its_window_is_read(tmp_path: Path, check: Any) -> None:
    folder = pack(tmp_path / "a", [np.arange(40_000)])
    windows = TokenWindows(ShardDataset(folder, check=check), 100)
    (path,) = folder.glob("*.parquet")
    offset = path.read_bytes().find(np.arange(38_000, 38_010, dtype="<u2").tobytes())
    first = windows[0].tokens.tolist()
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\x00")

    assert windows[0].tokens.tolist() == first
    with pytest.raises(ChecksumError, check=At("a/shard-00000.parquet", field="tokens")):
        windows[380]
    unchecked = TokenWindows(ShardDataset(folder, check="never"), 100)
    assert unchecked[380].tokens[0] == 38_000 & 0xFF00


def test_a_flipped_byte_is_found_where_only_the_last_target_of_a_window_has_it(
    tmp_path: Path,
) -> None:
    folder = pack(tmp_path / "a", [np.arange(40_000)])
    (path,) = folder.glob("*.parquet")
    data = path.read_bytes()
    # Block 1 of the checksums begins there: 64 KiB of uint16.
    offset = data.find(np.arange(32_768, 32_778, dtype="<u2").tobytes())
    path.write_bytes(data[:offset] + b"\x01" + data[offset + 1 :])
    windows = TokenWindows(folder, 1024)

    assert windows[30].targets[-1] == 31_744
    with pytest.raises(ChecksumError, check=At("a/shard-00000.parquet", field="tokens")):
        windows[31]


def test_a_row_that_claims_more_tokens_than_it_has_is_refused(tmp_path: Path) -> None:
    fields = {
        "tokens": Tokens(dtype="uint8", row_tokens=4),
        "num_tokens": Array(dtype="int32"),
        "document_ends": Array(dtype="uint16", dims=(None,)),
    }
    row = {
        "tokens": np.zeros(4, np.uint8),
        "num_tokens": 5,
        "document_ends": np.zeros(0, np.uint16),
    }
    packdata.pack([row], tmp_path / "a", fields)

    with pytest.raises(ShardError, check=At("a/shard-00000.lmdb", row=0, field="num_tokens")):
        TokenWindows(tmp_path / "a", 2)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "ends", [[-40_000, 5], [0, 5], [5, 3], [5, 5], [5, 9], [1 << 30], [-1], [5, -5]]
)
def test_documents_that_end_where_their_row_has_no_token_are_refused(
    tmp_path: Path, dtype: str, ends: list[int]
) -> None:
    fields = {
        "tokens": Tokens(dtype="uint8", row_tokens=8),
        "num_tokens": Array(dtype="int32"),
        "document_ends": Array(dtype=dtype, dims=(None,)),
    }
    rows = [
        {
            "tokens": np.zeros(8, np.uint8),
            "num_tokens": 8,
            "document_ends": np.array(inside, dtype),
        }
        for inside in ([3, 8], [8], ends, [])
    ]
    for name, some, row in (("a", rows, 2), ("b", rows[2:], 0)):
        packdata.pack(some, tmp_path / name, fields)
        (path,) = (path for path in (tmp_path / name).iterdir() if path.suffix != ".json")

        with pytest.raises(ShardError, check=At(field="document_ends")) as caught:
            TokenWindows(tmp_path / name, 4, by="document")

        assert (caught.value.row, caught.value.field) == (row, "document_ends")
        assert caught.value.path == path


# -- windows of documents --------------------------------------------------------------------------


def check_documents(windows: TokenWindows, documents: Sequence[npt.NDArray[Any]]) -> None:
    """No token is lost or repeated, targets stay in their document, and the bounds are those of sequences."""
    length = windows.length
    parts: list[tuple[int, ...]] = []
    for batch in DataLoader(windows, 3, num_workers=0):
        n = len(batch.tokens)
        bounds = batch.cu_seqlens.tolist()
        assert batch.cu_seqlens.dtype == torch.int32
        assert bounds[0] == 0
        assert bounds[-1] == n * length
        assert batch.max_seqlen == max(b - a for a, b in itertools.pairwise(bounds))
        for ids in batch.document_ids.tolist():  # from 0 in each window
            known = [number for number, _ in itertools.groupby(ids) if number != -1]
            assert known == list(range(len(known)))
        flat = [values.flatten().tolist() for values in batch[:4]]
        for a, b in itertools.pairwise(bounds):
            tokens, targets, positions, numbers = (values[a:b] for values in flat)
            assert len(set(numbers)) == 1
            assert positions == list(range(b - a))
            if numbers[0] == -1:
                assert set(targets) == {-100}
                assert set(tokens) == {0}
                continue
            assert targets[:-1] == tokens[1:]
            parts.append((*tokens, targets[-1]))
    expected = []
    for document in documents:
        ids = [*map(int, document), -100]
        expected += [tuple(ids[a : a + length + 1]) for a in range(0, len(document), length)]
    assert sorted(parts) == sorted(expected)


@pytest.mark.parametrize("fit", ["first", "best"])
@pytest.mark.parametrize("length", [1, 16, 500])
def test_documents_are_packed_without_losing_or_repeating_a_token(
    folder: Path, documents: list[npt.NDArray[Any]], length: int, fit: Any
) -> None:
    windows = TokenWindows(folder, length, by="document", fit=fit)

    check_documents(windows, documents)
    share = 1 - len(stream_of(documents)) / (len(windows) * length)
    assert windows.padding_share == pytest.approx(share)


def test_rows_of_one_document_each_may_hold_their_ends_as_one_array() -> None:
    ids, nums = np.arange(1, 25, dtype=np.uint16).reshape(3, 8), np.array([8, 3, 8], np.int32)
    arrays: dict[str, Any] = {
        "tokens": ids,
        "num_tokens": nums,
        "document_ends": nums.astype("<u2")[:, None],
    }
    rows = RAMDataset.from_arrays(
        schema={"tokens": Tokens(dtype="uint16", row_tokens=8), "num_tokens": Array("int32")},
        **arrays,
    )

    check_documents(
        TokenWindows(rows, 8, by="document"),
        [row[:num] for row, num in zip(ids, nums, strict=True)],
    )


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    length=st.integers(1, 40),
    fit=st.sampled_from(["first", "best"]),
    pieces=st.integers(1, 4),
)
def test_any_documents_are_packed_without_losing_or_repeating_a_token(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    fit: Any,
    pieces: int,
) -> None:
    ids = iter(range(1, 60_000))
    documents = [np.array([next(ids) for _ in range(n)], np.uint16) for n in lengths]
    folder = pack(tmp_path_factory.mktemp("any") / "a", documents, pieces=pieces)

    check_documents(TokenWindows(folder, length, by="document", fit=fit), documents)


def test_windows_of_documents_have_four_fields_each_and_six_in_a_batch(folder: Path) -> None:
    windows = TokenWindows(folder, 32, by="document")

    assert windows[0]._fields == ("tokens", "targets", "position_ids", "document_ids")
    batch = next(iter(DataLoader(windows, 2)))
    assert batch._fields[4:] == ("cu_seqlens", "max_seqlen")
    assert torch.equal(batch.tokens[1], windows[1].tokens)
    (plain,) = torch.utils.data.DataLoader(
        windows, len(windows), collate_fn=torch.utils.data.default_collate
    )
    assert torch.equal(plain[1][0], windows[0].targets)


def test_attention_masks_of_document_ids_and_of_bounds_agree(folder: Path) -> None:
    windows = TokenWindows(folder, 32, by="document")
    batch = next(iter(DataLoader(windows, 4)))

    same = batch.document_ids[:, :, None] == batch.document_ids[:, None, :]
    number = torch.searchsorted(
        batch.cu_seqlens[1:].long(), torch.arange(4 * 32), right=True
    ).view(4, 32)

    assert torch.equal(same, number[:, :, None] == number[:, None, :])


# -- packing into bins -----------------------------------------------------------------------------


def slow_fit(lengths: list[int], size: int, best: bool) -> list[int]:
    room: list[int] = []
    bins = [0] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = [b for b, left in enumerate(room) if left >= lengths[i]]
        if not fits:
            room.append(size)
            fits = [len(room) - 1]
        bins[i] = min(fits, key=lambda b: (room[b], b)) if best else fits[0]
        room[bins[i]] -= lengths[i]
    return bins


@given(
    lengths=st.lists(st.integers(1, 12), max_size=40), extra=st.integers(0, 12), best=st.booleans()
)
def test_bins_are_those_of_the_plain_algorithm(lengths: list[int], extra: int, best: bool) -> None:
    size = max(lengths, default=1) + extra

    bins = fit_decreasing(np.array(lengths, np.int64), size, "best" if best else "first")

    assert bins.tolist() == slow_fit(lengths, size, best)


@pytest.mark.parametrize("fit", ["first", "best"])
def test_many_documents_are_fitted_at_once_and_leave_little_empty(fit: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6, 1, 300_000).astype(np.int64) + 1, 2048)

    bins = fit_decreasing(lengths, 2048, fit)

    filled = np.bincount(bins, lengths)
    assert filled.max() <= 2048
    assert filled.sum() == lengths.sum()
    assert len(filled) < 1.01 * lengths.sum() / 2048


def test_an_accelerator_gets_narrow_windows_and_widens_them_there(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    halves: Any = windows.halves(torch.device("cpu"))
    dataset, finish = halves
    half = dataset.__getitems__([0, 3])

    assert half.batch._fields == ("windows",)
    assert half.batch.windows.dtype == torch.uint16
    assert half.batch.windows.shape == (2, 21)
    whole = finish(half.batch)
    assert torch.equal(whole.targets[1], windows[3].targets)
    assert TokenWindows(folder, 20, by="document").halves(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_windows_arrive_on_the_gpu_as_int64(folder: Path) -> None:
    windows = TokenWindows(folder, 20)
    for tokens, targets in DataLoader(windows, 4, device="cuda"):
        assert tokens.device.type == targets.device.type == "cuda"
        assert tokens.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for batch in DataLoader(TokenWindows(folder, 20, by="document"), 4, device="cuda"):
        assert batch.cu_seqlens.device.type == "cuda"


# -- what the ids are ------------------------------------------------------------------------------


def packed_text(folder: Path, text: str, **options: Any) -> Path:
    """Pack a text as ``packdata tokens`` does."""
    (folder / "a.txt").write_text(text, encoding="utf-8")
    pack_tokens([folder / "a.txt"], folder / "packed", options=TokenOptions(**options))
    return folder / "packed"


def test_windows_know_their_vocabulary_and_give_the_text_back(tmp_path: Path) -> None:
    """Bytes need no package: ids in any form, what is no byte left out, half a letter replaced."""
    text = "Fünf Boote lägen am Steg. " * 9
    folder = packed_text(tmp_path, text, eod=256)
    for dataset in (folder, RAMDataset(folder, progress=False)):
        windows = TokenWindows(dataset, 16)
        ids = windows[0].tokens

        assert (windows.vocab_size, windows.eod) == (257, 256)
        assert windows.schema.fields["tokens"] == windows.stream.field
        every = torch.cat([tokens for tokens, _ in windows])
        assert text.startswith(windows.decode(every))
        assert windows.decode(ids) == windows.decode(ids.numpy()) == windows.decode(ids.tolist())
        assert windows.decode([256, -100, 72, 105]) == "Hi"
        assert windows.decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"
        assert windows.decode([]) == ""
        assert windows.decode(ids[0]) == "F"


def test_what_cannot_be_decoded_says_why(folder: Path) -> None:
    windows = TokenWindows(folder, 16)

    assert windows.eod is None
    assert not hasattr(windows, "vocab_size")
    with pytest.raises(SchemaError):
        assert windows.vocab_size
    with pytest.raises(SchemaError):
        windows.decode([1])
    with pytest.raises(TypeError):
        windows.decode(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(TypeError):
        windows.decode([0.5])


def test_a_kept_tokenizer_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the file beside the manifest; without its package the error is that of 'packdata preview'."""
    pytest.importorskip("tokenizers")
    folder = packed_text(tmp_path, "the cat sat on the mat. " * 30, train_bpe=270)
    windows = TokenWindows(folder, 20)

    assert windows.decode(windows[0].tokens).startswith("the cat sat on the mat")
    assert copy.deepcopy(windows).decode([0]) == "<|endoftext|>" == windows.decode([windows.eod])
    moved = folder.rename(tmp_path / "elsewhere")  # nothing of it was opened yet
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(LoadersError):
        TokenWindows(moved, 20).decode([1])
    next(moved.glob("tokenizer-*.json")).write_bytes(b"{}")
    with pytest.raises(ShardError, check=At("elsewhere/tokenizer-cc4bf3de30f3f67b.json")):
        TokenWindows(moved, 20).decode([1])


def test_windows_that_are_joined_or_sliced_say_what_does_that(folder: Path) -> None:
    windows = TokenWindows(folder, 16)

    with pytest.raises(TypeError):
        concat([windows, windows])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        windows[:3]
    joined = TokenWindows(concat([windows.dataset, windows.dataset]), 16)
    assert joined.num_tokens == 2 * windows.num_tokens


class Shifted(TokenWindows):
    """Has settings and samples of its own."""

    by_how_many = 1000

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index).tokens + self.by_how_many


def test_a_subclass_stays_what_it_is(folder: Path) -> None:
    windows = Shifted(folder, 8)
    windows.by_how_many = 5
    windows.set_epoch(2)
    plain = TokenWindows(folder, 8)

    for other in (
        windows,
        pickle.loads(pickle.dumps(windows)),
        copy.copy(windows),
        copy.deepcopy(windows),
        windows.split([0.5, 0.5])[0],
    ):
        assert type(other) is Shifted
        assert other.epoch == 2
        assert torch.equal(other[1], plain[1].tokens + 5)


def test_documents_of_a_mixture_of_one_source_a_batch_have_samples(folder: Path) -> None:
    documents = TokenWindows(folder, 64, by="document")
    mixture = Mixture([documents, documents], batch_from="one")

    sample, expected = mixture[len(documents)], documents[0]

    assert sample._fields == expected._fields
    assert torch.equal(sample.tokens, expected.tokens)
    batch = next(iter(torch.utils.data.DataLoader(mixture, 2, collate_fn=collate)))
    assert len(batch.tokens) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("length", 4), ("stride", 3), ("by", "document"), ("tail", "pad"), ("span", (0, 9))],
)
def test_settings_of_windows_stay_as_they_were_made(folder: Path, name: str, value: Any) -> None:
    windows = TokenWindows(folder, 8)
    before = windows[1].tokens.tolist()

    setattr(windows, name, getattr(windows, name))
    with pytest.raises(ValueError):
        setattr(windows, name, value)

    assert windows[1].tokens.tolist() == before
    assert [len(part) > 0 for part in windows.split([0.5, 0.5])] == [True, True]


def test_of_many_windows_few_that_lie_over_two_pieces_take_no_memory(tmp_path: Path) -> None:
    """Those are copied token by token, by an index for each; the others by one for a window."""
    documents = [np.arange(1, 60_008, dtype=np.uint16)] * 4
    dataset = ShardDataset(pack(tmp_path / "packed", documents, pieces=2))
    windows = TokenWindows(dataset, 100, dtype="stored")
    batch = list(range(len(windows)))
    windows.read(batch)

    tracemalloc.start()
    try:
        tokens = collate(windows.read(batch)).tokens
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert np.array_equal(tokens.reshape(-1).long(), stream_of(documents)[: tokens.numel()])
    assert peak < 3 * tokens.numel() * 2


def test_what_is_set_in_the_loop_leaves_the_batches_of_this_iteration_whole(folder: Path) -> None:
    """Windows are finished when they are handed over."""
    windows = TokenWindows(folder, 10)
    expected = [type(batch)._fields for batch in DataLoader(windows, 4, num_workers=0)]
    loader, fields = DataLoader(windows, 4, num_workers=0), []

    for batch in loader:
        fields.append(type(batch)._fields)
        loader.collate_fn = len

    assert fields == expected
    assert set(loader) <= {1, 2, 3, 4}
