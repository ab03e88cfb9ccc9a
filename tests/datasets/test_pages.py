"""Records are asked for before they are read, and waited for: seen in the page cache and in the questions."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment, concat
from loaders.buffers import Memory
from loaders.data import formats
from loaders.data import records as pages
from loaders.data.manifest import read_manifest
from loaders.data.records import READ_BYTES, ask_for
from loaders.data.shards import FileShard
from loaders.errors import LoadersError, SampleError, ShardError
from loaders.schema import Array, Field, Image, Label, Text
from loaders.system.libc import libc
from tests.packdata.packing import pack
from tests.pages import drop_pages
from tests.refusals import At
from tests.waiting import wait_until

NUM, PER_SHARD = 24, 8
FIELDS: dict[str, Field] = {"data": Array(dtype="uint8", dims=(None,)), "label": Label()}


class Refusing:
    """A C library whose kernel refuses to copy, as a sandbox makes it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes.CDLL(None), name)

    def process_vm_readv(self, *args: Any) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1


@pytest.fixture(params=["lmdb", "parquet"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def noise(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def packed(path: Path, kind: str = "lmdb", nbytes: int = 300_000, num: int = NUM) -> Path:
    """Pack arrays of somewhat different sizes, and a label each."""
    samples = [{"data": noise(nbytes + 7 * i, i), "label": i % 3} for i in range(num)]
    return pack(path, FIELDS, samples, format=kind, per_shard=PER_SHARD)


def files(folder: Path) -> list[Path]:
    return [folder / shard.file for shard in read_manifest(folder).shards]


def dropped(dataset: ShardDataset, *indices: int) -> list[np.ndarray[Any, Any]]:
    """Return records that nobody has touched, out of the page cache; skip where that cannot be done, or seen.

    Their files are opened before: that reads some of them, and the kernel reads on.
    """
    records = unread(dataset, *indices)
    if libc() is None or not hasattr(os, "posix_fadvise"):
        pytest.skip("files cannot be taken out of the page cache here")
    assert isinstance(dataset.path, Path)
    drop_pages(files(dataset.path))
    if any(map(in_memory, records)):
        pytest.skip("files cannot be taken out of the page cache here")
    return records


def in_memory(record: np.ndarray[Any, Any]) -> bool:
    """Tell whether all pages of a mapped record are in the page cache, without touching them."""
    library = libc()
    assert library is not None
    address = record.__array_interface__["data"][0]
    first = address // 4096 * 4096
    states = np.zeros(-(-(address + len(record) - first) // 4096), np.uint8)
    span = ctypes.c_void_p(first), ctypes.c_size_t(address + len(record) - first)
    assert not library.mincore(*span, ctypes.c_void_p(states.ctypes.data))
    return bool((states & 1).all())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Address and size of all that the kernel is asked for."""
    found: list[tuple[int, int]] = []

    def ask(spans: list[tuple[int, int]]) -> None:
        found.extend(spans)
        ask_for(spans)

    monkeypatch.setattr(pages, "ask_for", ask)
    return found


def rows_of(dataset: ShardDataset, *indices: int) -> Any:
    return dataset.view.rows(np.array(indices, np.int64))


def unread(dataset: ShardDataset, *indices: int) -> list[np.ndarray[Any, Any]]:
    """Return records as views that nobody has touched."""
    found = []
    for i in indices:
        shard = dataset.store.shard(i // PER_SHARD)
        found.append(shard.columns["data"].row(i % PER_SHARD))
    return found


# -- asking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_asked_for_comes_whole_without_being_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fits: bool
) -> None:
    """Records of 1 MB: the kernel reads no more than its read-ahead of one question."""
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0.5 if fits else 0)
    dataset = ShardDataset(packed(tmp_path / "a", kind, 1_000_000, 10), check="never")
    records = dropped(dataset, 3, 8)

    dataset.store.field("data").prefetch(rows_of(dataset, 3, 8))

    wait_until(lambda: all(map(in_memory, records)))
    assert len(records) == 2  # and none of them was looked at here


def test_a_dataset_that_fits_into_memory_is_asked_for_in_one_epoch_and_in_blocks(
    tmp_path: Path, asked: list[tuple[int, int]], kind: str
) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", kind, 20_000), fields=["data"])
    loader = DataLoader(dataset, 5, shuffle=True, num_workers=1)

    assert sum(len(batch.data) for batch in loader) == NUM
    first = asked.copy()
    for _ in range(2):
        assert sum(len(batch.data) for batch in loader) == NUM

    job: Any = dataset.job(range(NUM), Memory())
    assert not job.needs_prefetch
    assert asked == first
    assert all(at % READ_BYTES == nbytes % READ_BYTES == 0 for at, nbytes in asked)


def test_one_that_does_not_fit_is_asked_for_each_time_and_by_the_record(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0)
    dataset = ShardDataset(packed(tmp_path / "a", kind), fields=["data"])
    loader = DataLoader(dataset, 6, shuffle=True, num_workers=2)

    for _ in range(2):
        assert sum(len(batch.data) for batch in loader) == NUM

    places = [
        (record.__array_interface__["data"][0], len(record))
        for record in unread(dataset, *range(NUM))
    ]
    assert sorted(asked) == sorted(2 * places)


def test_a_batch_is_asked_for_before_any_of_it_is_read(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it: threads, in parts, and torch's processes, by ``__getitems__``."""
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0)
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=(300_000,))}
    samples = [{"data": noise(300_000, i)} for i in range(NUM)]
    dataset = ShardDataset(pack(tmp_path / "a", fields, samples, per_shard=PER_SHARD))
    job = dataset.job(range(16), Memory(), num_workers=2)
    assert job.num_parts > 1
    job.run(1)
    assert len(asked) == 16
    job.prefetch()
    job.run(0)
    assert len(asked) == 16
    assert dataset.job(range(16), Memory()).needs_prefetch

    dataset.__getitems__([2, 3])
    assert len(asked) == 18


def test_a_changed_dataset_asks_for_what_it_reads(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0)
    dataset = ShardDataset(packed(tmp_path / "a"), fields=["data"])
    dataset.__getitems__([0, 1])
    del asked[:]

    dataset.replace(fields=["label"]).__getitems__([0, 1])
    assert asked == []
    dataset.replace(fields=["label"]).replace(fields=["data"]).__getitems__([0, 1])
    assert len(asked) == 2


def test_a_batch_is_waited_for_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that lets the lock go for each record gets it back from a busy one after 5 ms."""
    dataset = ShardDataset(packed(tmp_path / "a", nbytes=20_000), fields=["data"], check="never")
    dataset[0], dataset[PER_SHARD], dataset[2 * PER_SHARD]  # files are open
    calls: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(real, name)

    real = pages._libc
    monkeypatch.setattr(pages, "_libc", Counted())
    rows = rows_of(dataset, *range(NUM))
    dataset.store.field("data").prefetch(rows)
    dataset.store.records("data", rows)

    assert calls.count("process_vm_readv") <= 2  # one looks whether it is there


def test_groups_of_small_batches_are_asked_for(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0)
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=(5_000,))}
    samples = [{"data": noise(5_000, i)} for i in range(NUM)]
    dataset = ShardDataset(pack(tmp_path / "a", fields, samples, per_shard=PER_SHARD))

    batches = list(DataLoader(dataset, 2, num_workers=1))

    assert torch.cat([batch.data for batch in batches]).shape == (NUM, 5_000)
    assert len(asked) == NUM


def test_mixtures_ask_for_what_comes_from_each(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0)
    parts = [ShardDataset(packed(tmp_path / name), fields=["data"]) for name in "ab"]
    mixture = Mixture(parts, [0.5, 0.5])
    job: Any = mixture.job([0, NUM, 1, NUM + 1], Memory())

    job.prefetch()

    assert len(asked) == 4


@pytest.mark.parametrize("nbytes", [100, 3_900])
def test_small_records_are_left_to_the_kernel(
    tmp_path: Path, asked: list[tuple[int, int]], nbytes: int
) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", nbytes=nbytes))
    assert sum(len(batch.label) for batch in DataLoader(dataset, 4, num_workers=2)) == NUM
    assert asked == []


def test_what_is_in_memory_is_not_asked_for(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    folder = packed(tmp_path / "a", nbytes=20_000)
    dataset = RAMDataset(folder)
    del asked[:]  # reading the files asks for them
    job: Any = dataset.job(range(NUM), Memory())
    assert not job.needs_prefetch
    assert sum(len(batch.data) for batch in DataLoader(dataset, 4, num_workers=2)) == NUM
    assert asked == []


def test_filling_ram_asks_ahead(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    folder = packed(tmp_path / "a", nbytes=20_000)
    RAMDataset(folder)
    assert sum(nbytes for _, nbytes in asked) >= NUM * 20_000


# -- waiting ---------------------------------------------------------------------------------------


def test_records_are_in_memory_before_python_looks_at_them(tmp_path: Path, kind: str) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", kind, 1_000_000), check="never")
    dropped(dataset, 4, 12, 20)
    pages.wait_for([dataset.store.shard(0).columns["data"].row(4)[:1]])
    if not in_memory(dataset.store.shard(0).columns["data"].row(4)[:1]):
        pytest.skip("this kernel cannot wait for pages")

    found = dataset.store.records("data", rows_of(dataset, 4, 12, 20))

    assert all(map(in_memory, found))


def cut(file: Path, nbytes: int) -> None:
    os.truncate(file, nbytes)


def test_a_file_that_is_cut_while_it_is_in_use_is_an_error(tmp_path: Path, kind: str) -> None:
    """Touching what is missing would end the process (SIGBUS)."""
    folder = packed(tmp_path / "a", kind)
    dataset = ShardDataset(folder, check="never")
    assert len(dataset[0].data) == 300_000  # the file is open
    cut(files(folder)[0], 1_000_000)

    with pytest.raises(SampleError, check=At(row=7, index=7)) as caught:
        dataset[7]

    assert isinstance(caught.value.__cause__, ShardError)
    assert "cut since it was opened" in str(caught.value)
    assert len(dataset[9].data) == 300_000 + 7 * 9  # of another file


ROW = 60_000
OF_ONE_SIZE: dict[str, Field] = {"data": Array(dtype="uint8", dims=(ROW,))}


def test_of_a_thousand_records_the_one_that_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    samples = [{"data": noise(5_000, i)} for i in range(1200)]
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=(5_000,))}
    folder = pack(tmp_path / "a", fields, samples, format=kind, per_shard=1200)
    dataset = ShardDataset(folder, check="never")
    assert len(dataset[0].data) == 5_000  # the file is open
    (file,) = files(folder)
    cut(file, file.read_bytes().index(samples[1150]["data"].tobytes()))

    with pytest.raises(ShardError) as caught:
        dataset.column("data")

    assert caught.value.row in (1148, 1149, 1150)  # the page that it begins on is there


@pytest.mark.parametrize("fits", [True, False])
def test_rows_that_are_gathered_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fits: bool
) -> None:
    monkeypatch.setattr(pages, "_MEMORY_SHARE", 0.5 if fits else 0)
    samples = [{"data": noise(ROW, i)} for i in range(NUM)]
    folder = pack(tmp_path / "a", OF_ONE_SIZE, samples, format=kind, per_shard=PER_SHARD)
    dataset = ShardDataset(folder, check="never")
    assert len(dataset[0].data) == ROW
    cut(files(folder)[0], 4 * ROW)

    with pytest.raises(SampleError, check=At(row=7, cause=ShardError)):
        dataset[7]
    with pytest.raises(SampleError, check=At(cause=ShardError)):
        list(DataLoader(dataset, 8, num_workers=2))


def test_neighbours_that_are_verified_with_a_record_are_waited_for(
    tmp_path: Path, kind: str
) -> None:
    """Eight or so of these have one checksum."""
    folder = packed(tmp_path / "a", kind, nbytes=8_000)
    dataset = ShardDataset(folder, fields=["data"])
    shard = dataset.store.shard(0)
    assert shard.checksums["data"].rows_per_block > 3
    column: Any = shard.columns["data"]
    cut(files(folder)[0], int(column.starts[2]))

    with pytest.raises(SampleError, check=At(row=0, index=0)):
        dataset[0]


@pytest.mark.parametrize("dims", [(None,), (1_000,)])
def test_small_records_are_waited_for_when_they_are_verified(
    tmp_path: Path, kind: str, dims: tuple[int | None]
) -> None:
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=dims)}
    samples = [{"data": noise(1_000, i)} for i in range(400)]
    folder = pack(tmp_path / "a", fields, samples, format=kind, per_shard=400)
    dataset = ShardDataset(folder)
    assert len(dataset[0].data) == 1_000
    cut(files(folder)[0], 200_000)

    for index in (399, 300):
        with pytest.raises(SampleError, check=At(cause=ShardError)):
            dataset[index]
    with pytest.raises(SampleError, check=At(cause=ShardError)):
        list(DataLoader(dataset, 8, shuffle=True, num_workers=2))


@pytest.mark.parametrize("check", ["first", "never"])
@pytest.mark.parametrize("height", [128, None])
def test_parts_of_large_records_are_waited_for(
    tmp_path: Path, kind: str, check: Any, height: int | None
) -> None:
    """Where sizes vary, they stand in front of each record."""
    dims = (1, 96, height, height)
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=dims, spatial=3)}
    samples = [{"data": np.full((1, 96, 128, 128), i, np.uint8)} for i in range(4)]
    folder = pack(tmp_path / "a", fields, samples, format=kind)
    dataset = ShardDataset(folder, augment=[augment.RandomCrop((96, 16, 16))], check=check)
    assert dataset[0].data.shape == (1, 96, 16, 16)

    cut(files(folder)[0], files(folder)[0].stat().st_size * 15 // 16)
    with pytest.raises(SampleError, check=At(row=3, cause=ShardError)):
        dataset[3]
    cut(files(folder)[0], files(folder)[0].stat().st_size // 2)
    with pytest.raises(SampleError, check=At(row=2, cause=ShardError)):
        dataset[2]


@pytest.mark.parametrize("check", ["first", "never"])
@pytest.mark.parametrize("scale", [1 / 2, 1])
def test_coefficients_are_waited_for(tmp_path: Path, kind: str, check: Any, scale: float) -> None:
    fields: dict[str, Field] = {"data": Image(codec="dct", size=(256, 256))}
    samples = [{"data": noise(256 * 256 * 3, i).reshape(256, 256, 3)} for i in range(8)]
    folder = pack(tmp_path / "a", fields, samples, format=kind, per_shard=8)
    dataset = ShardDataset(folder, scale=scale, check=check)
    dataset[0]

    column: Any = dataset.store.shard(0).columns["data"]
    cut(files(folder)[0], int(column.starts[5]) + (8 << 10))  # the header is still there
    for index in range(5, 8):
        with pytest.raises(SampleError, check=At(cause=ShardError)):
            dataset[index]


def test_filling_ram_from_a_cut_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = packed(tmp_path / "a", kind)
    opened = FileShard.open

    def cut_when_open(shard: FileShard, check: Any) -> Any:
        found = opened(shard, check)
        cut(shard.path, 1_000_000)
        return found

    monkeypatch.setattr(FileShard, "open", cut_when_open)
    with pytest.raises(LoadersError, check=At(row=3, field="data")):
        RAMDataset(folder)


def test_memory_before_files_does_not_hide_them(
    tmp_path: Path, asked: list[tuple[int, int]], kind: str
) -> None:
    folder = packed(tmp_path / "a", kind, 20_000)
    dataset: Any = concat([RAMDataset(folder), ShardDataset(folder)])
    del asked[:]

    assert len(dataset[0].data) == 20_000
    assert asked == []
    assert len(dataset[NUM].data) == 20_000
    assert asked


def test_shards_of_small_records_do_not_speak_for_others(tmp_path: Path, kind: str) -> None:
    fields: dict[str, Field] = {"data": Text()}
    samples = [{"data": "x" * (50 if i < 8 else 40_000)} for i in range(16)]
    folder = pack(tmp_path / "a", fields, samples, format=kind, per_shard=8)
    dataset = ShardDataset(folder)
    assert (len(dataset[0].data), len(dataset[8].data)) == (50, 40_000)
    cut(files(folder)[1], 100_000)

    with pytest.raises(SampleError, check=At(row=7, index=15)):
        dataset[15]


@pytest.mark.parametrize("check", ["first", "never"])
def test_the_report_of_an_error_is_not_its_own_end(tmp_path: Path, kind: str, check: Any) -> None:
    """It names the sample's key, which may be what is missing."""
    fields = FIELDS | {"key": Text()}
    samples = [{"data": noise(50_000, i), "label": 0, "key": f"k{i}"} for i in range(16)]
    folder = pack(tmp_path / "a", fields, samples, format=kind, per_shard=16)
    dataset = ShardDataset(folder, check=check, fields=["data"])
    assert dataset.find("k0") == 0
    cut(files(folder)[0], 4096)

    with pytest.raises(SampleError, check=At(cause=ShardError)):
        dataset[7]


def test_a_file_that_is_cut_while_it_is_opened_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = packed(tmp_path / "a", kind)
    mapped = formats.map_shard

    def cut_when_mapped(path: Path, info: Any, **options: Any) -> Any:
        found = mapped(path, info, **options)
        cut(path, 1_000)
        return found

    monkeypatch.setattr(formats, "map_shard", cut_when_mapped)
    with pytest.raises(SampleError, check=At(row=0, index=0)):
        ShardDataset(folder, check="never")[0]


@pytest.mark.parametrize("check", ["first", "always", "never"])
@pytest.mark.parametrize("files_first", [False, True])
def test_memory_and_files_join_whatever_is_checked(
    tmp_path: Path, check: Any, files_first: bool
) -> None:
    mapped = ShardDataset(packed(tmp_path / "a"), check=check)
    parts = [mapped, RAMDataset(mapped)]
    dataset: Any = concat(parts if files_first else parts[::-1])
    for i in (0, NUM - 1, NUM, 2 * NUM - 1):
        assert np.array_equal(dataset[i].data.numpy(), noise(300_000 + 7 * (i % NUM), i % NUM))


def test_pictures_of_a_cut_file_are_replaced_if_that_is_asked_for(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"image": Image(), "key": Text()}
    rng = np.random.default_rng(0)
    samples = []
    for i in range(16):
        done, file = cv2.imencode(".jpg", rng.integers(0, 256, (200, 200, 3), np.uint8))
        assert done
        samples.append({"image": file.tobytes(), "key": str(i)})
    folder = pack(tmp_path / "a", fields, samples, per_shard=PER_SHARD)
    dataset = ShardDataset(folder, on_error="replace", fields=["image"])
    assert dataset[0].image.shape == (3, 200, 200)
    cut(files(folder)[0], files(folder)[0].stat().st_size // 2)

    images = [image for batch in DataLoader(dataset, 4, num_workers=2) for image in batch.image]

    assert len(images) == 16
    assert dataset.num_replaced > 0


@pytest.mark.parametrize("libc", [None, Refusing()])
@pytest.mark.parametrize("dims", [(None,), (300_000,)])
def test_a_kernel_without_the_words_reads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, libc: Any, dims: tuple[int | None]
) -> None:
    fields: dict[str, Field] = {"data": Array(dtype="uint8", dims=dims)}
    samples = [{"data": noise(300_000, i)} for i in range(4)]
    folder = pack(tmp_path / "a", fields, samples, format=kind)
    monkeypatch.setattr(pages, "_libc", libc)
    for i, sample in enumerate(ShardDataset(folder)):
        assert np.array_equal(sample.data.numpy(), noise(300_000, i))
