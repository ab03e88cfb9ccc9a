from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment, concat
from loaders.backends.maker import Chunk, Maker, chunks
from loaders.backends.messages import Put
from loaders.backends.subprocess import child_pool
from loaders.codecs.picture import encode_jpeg
from loaders.data.finder import ShardFinder
from loaders.data.gather import Gather
from loaders.data.records import FieldRecords
from loaders.datasets.reading.pictures import PictureReader
from loaders.datasets.reading.samples import collate
from loaders.errors import ChecksumError, SampleError, ShardError
from loaders.sampling.batch import IndexBatch
from loaders.schema import Array, Image, Label
from packdata import pack
from packdata.formats.lmdb import find_values
from tests.refusals import At

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Opens = Callable[[str], ShardDataset]

SIZE = 6
TIMEOUT_S = 30.0
FIELDS = ["image", "x", "label", "sample_id"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Opens:
    """Pictures of a codec that are too large for groups, in several shards, beside labels and arrays; packed once."""
    folder = tmp_path_factory.mktemp("pictures")

    def opened(codec: str) -> ShardDataset:
        if not (folder / codec).exists():
            pack_pictures(folder / codec, codec)
        return ShardDataset(folder / codec, fields=FIELDS)

    return opened


def pack_pictures(folder: Path, codec: str) -> None:
    rng = np.random.default_rng(0)
    size = 512 if codec == "raw" else 40
    field = Image(codec=codec, size=(size, size) if codec == "raw" else None)
    fields = {"image": field, "x": Array(dims=(5,)), "label": Label()}
    samples = (
        {
            "image": rng.integers(0, 256, (size, size, 3), np.uint8),
            "x": np.full(5, i, np.float32),
            "label": i,
        }
        for i in range(72)
    )
    shard_bytes = (8 << 20) if codec == "raw" else (32 << 10)
    pack(samples, folder, fields, shard_bytes=shard_bytes)


def maker(dataset: Any, num_workers: int = 2) -> Maker:
    return Maker(dataset, collate, SIZE, True, num_workers)


def batches(dataset: Any, epoch: int = 3, num: int = 5, *, with_draws: bool = False) -> IndexBatch:
    order = np.random.default_rng(epoch).permutation(len(dataset))
    chosen = order[: num * SIZE].reshape(num, SIZE)
    draws = np.arange(num * SIZE).reshape(num, SIZE) if with_draws else None
    return IndexBatch(chosen, epoch, draws, seed=7)


def request_of(job: Any) -> Any:
    return job.request


def made(job: Any) -> Any:
    for part in reversed(range(job.num_parts)):
        job.run(part)
    return job.finish()[0]


def assert_same(one: Any, other: Any) -> None:
    assert one._fields == other._fields
    for name, a, b in zip(one._fields, one, other, strict=True):
        if isinstance(a, list):
            assert len(a) == len(b)
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), name
        else:
            assert torch.equal(a, b), name


def test_steps_are_cut_as_batches_are_taken_one_by_one() -> None:
    steps = IndexBatch(np.arange(40).reshape(20, 2)), IndexBatch(np.arange(3).reshape(1, 3))
    cut = list(chunks(iter(steps), 8))

    made = [batch.indices.tolist() for chunk in cut for batch in chunk.batches]
    assert made == [batch.indices.tolist() for each in steps for batch in each]
    assert [len(chunk.batches) for chunk in cut] == [1, 2, 4, 8, 5, 1]


def taken(cut: Iterator[Chunk]) -> list[int]:
    return list(next(cut).batches)


def test_the_first_chunks_are_short_and_no_batch_is_left_out() -> None:
    alone = list(chunks(iter(range(20)), 8))
    together = list(chunks(iter(range(40)), 16, is_together=True))

    assert [batch for chunk in alone for batch in chunk.batches] == list(range(20))
    assert [len(chunk.batches) for chunk in alone] == [1, 2, 4, 8, 5]
    assert [chunk.num_turns for chunk in alone] == [1, 2, 4, 8, 5]
    assert [batch for chunk in together for batch in chunk.batches] == list(range(40))
    assert [len(chunk.batches) for chunk in together] == [4, 8, 16, 12]
    assert [chunk.num_turns for chunk in together] == [1] * 4
    assert list(chunks(iter([]), 8)) == []


def test_no_more_is_taken_than_is_asked_for_at_once() -> None:
    given = iter(range(20))
    cut = chunks(given, 4)

    assert taken(cut) == [0]
    assert next(given) == 1
    assert taken(cut) == [2, 3]
    assert next(given) == 4


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_an_error_of_the_order_comes_behind_the_batches_before_it(num: int) -> None:
    def failing() -> Iterator[int]:
        yield from range(num)
        raise ValueError("no more")

    cut = chunks(failing(), 8)

    found: list[int] = []
    while len(found) < num:
        found += taken(cut)
    assert found == list(range(num))
    with pytest.raises(ValueError):
        next(cut)
    assert list(cut) == []


def jobs_of(asked: IndexBatch | list[Any], work: Maker) -> list[Any]:
    chunk = Chunk(asked)
    return [chunk.job(turn, work) for turn in range(chunk.num_turns)]


OPS = [augment.RandomResizedCrop(24), augment.RandomHorizontalFlip()]


@pytest.mark.parametrize(
    ("codec", "ops", "num_workers", "check"),
    [
        ("raw", [], 1, "first"),
        ("raw", [], 2, "always"),
        ("raw", [], 4, "never"),
        ("png", OPS, 1, "always"),
        ("png", OPS, 2, "never"),
        ("png", OPS, 4, "first"),
        ("jpeg", OPS, 1, "never"),
        ("jpeg", OPS, 2, "first"),
        ("jpeg", OPS, 4, "always"),
    ],
)
def test_a_chunk_has_the_batches_that_are_made_one_by_one(
    pictures: Opens, codec: str, ops: list[Any], num_workers: int, check: Any
) -> None:
    dataset = ShardDataset(pictures(codec).path, fields=FIELDS, augment=ops, check=check)
    work = maker(dataset, num_workers)

    for epoch in (0, 1, 2):  # of the first one nothing was read before
        asked = batches(dataset, epoch, with_draws=epoch == 2)
        together = [made(job) for job in jobs_of(asked, work)]
        for one, batch in zip(together, asked, strict=True):
            assert_same(one, work.make(batch))
            assert one.sample_id.tolist() == batch.indices.tolist() == one.label.tolist()


@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_samples_of_a_chunk_that_are_transformed_are_those_that_are_made_one_by_one(
    pictures: Opens, codec: str
) -> None:
    def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randint(0, 9, image.shape, dtype=torch.uint8, generator=generator)
        return image + noise

    plain = pictures(codec)
    dataset = plain.replace(augment=OPS, transform={"image": noisy})
    work = maker(dataset)

    for epoch in (0, 1):
        asked = batches(dataset, epoch)
        for job, batch in zip(jobs_of(asked, work), asked, strict=True):
            assert_same(made(job), work.make(batch))


@pytest.mark.parametrize(
    ("codec", "ops"), [("raw", []), ("raw", [augment.RandomCrop(24)]), ("jpeg", OPS)]
)
def test_what_was_read_before_is_found_once_for_all_of_a_chunk(
    pictures: Opens, codec: str, ops: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = pictures(codec).replace(augment=ops)
    work, calls = maker(dataset, num_workers=1), []

    def count(kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        def counted(self: Any, rows: Any, *rest: Any) -> Any:
            calls.append((name, len(rows)))
            return plain(self, rows, *rest)

        monkeypatch.setattr(kind, name, counted)

    count(ShardFinder, "__call__")
    count(Gather, "find")
    count(PictureReader, "_heads")
    nums: list[int] = []
    for num in (5, 5, 2):
        calls.clear()
        jobs = jobs_of(batches(dataset, num=num), work)
        for job in jobs:
            made(job)
        is_shared = len(nums) > 0  # nothing is known of what is read for the first time
        assert [request_of(job).whole is not None for job in jobs] == [is_shared] * num
        if is_shared:
            assert {size for _, size in calls} == {num * SIZE}
        nums.append(len(calls))
    assert nums[1] == nums[2]  # however many batches


def test_what_does_not_stay_in_memory_is_waited_for_batch_by_batch(
    pictures: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first batch would wait for the samples of all."""
    monkeypatch.setattr("loaders.data.records.memory_bytes", lambda: 1 << 20)
    dataset = pictures("raw")

    for _ in range(2):
        requests: Any = maker(dataset).plan(batches(dataset))
        assert all(request.whole is None for request in requests)
        list(DataLoader(dataset, SIZE, shuffle=False))


FIRST = IndexBatch(np.arange(3), 2, seed=7)


@pytest.mark.parametrize(
    "second",
    [
        IndexBatch(np.arange(3), 1, seed=7),
        IndexBatch(np.arange(3), 2, seed=8),
        IndexBatch(np.arange(3), 2, np.arange(3), seed=7),
        [4, 5],
    ],
    ids=["epoch", "seed", "draws", "indices"],
)
def test_batches_of_several_epochs_or_of_others_share_nothing(
    pictures: Opens, second: Any
) -> None:
    dataset = pictures("jpeg").replace(augment=OPS)
    work = maker(dataset)

    assert work.plan([FIRST, second]) == [FIRST, second]
    for job, batch in zip(jobs_of([FIRST, second], work), [FIRST, second], strict=True):
        assert_same(made(job), work.make(batch))


def test_of_a_chunk_only_what_is_small_is_read_at_once() -> None:
    rng = np.random.default_rng(0)
    image, x = rng.integers(0, 256, (72, 1 << 20), np.uint8), rng.integers(0, 256, (72, 3000))
    dataset = RAMDataset.from_arrays(image=image, x=x.astype(np.uint8), label=np.arange(72))
    work = maker(dataset)

    for job, batch in zip(jobs_of(batches(dataset), work), batches(dataset), strict=True):
        one = made(job)
        assert_same(one, work.make(batch))
        sizes = [tensor.untyped_storage().nbytes() for tensor in one]
        assert sizes == [SIZE << 20, SIZE * 3000, SIZE * 8]


def test_a_bad_index_is_an_error_of_its_own_batch(pictures: Opens) -> None:
    dataset = pictures("raw")
    asked = batches(dataset, num=3)
    asked.indices[1, 1] = 72
    chunk, work = Chunk(asked), maker(dataset)

    assert made(chunk.job(0, work)).label.tolist() == asked[0].indices.tolist()
    with pytest.raises(IndexError):
        chunk.job(1, work)
    assert made(chunk.job(2, work)).label.tolist() == asked[2].indices.tolist()


def test_an_error_that_nobody_expects_is_not_hidden(
    pictures: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = pictures("raw")
    monkeypatch.setattr(type(dataset.store), "is_settled", lambda *_: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        list(DataLoader(dataset, 12, num_workers=2))


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_a_bad_picture_of_a_chunk_costs_its_own_batch_alone(
    tmp_path: Path, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells before it is decoded: its label goes with it."""
    monkeypatch.setattr("loaders.datasets.reading.request._MAX_FEW", 100)
    pack_pictures(tmp_path / "a", "png")
    whole = ShardDataset(tmp_path / "a", fields=FIELDS)
    record = whole.store.records("image", whole.view.rows(np.array([13])))[0].tobytes()
    for file in tmp_path.glob("a/*.lmdb"):
        file.write_bytes(file.read_bytes().replace(record, record[:60] + bytes(len(record) - 60)))
    settings: dict[str, Any] = {"augment": [augment.RandomCrop(24)], "on_error": on_error}
    fields = ["image", "label", "sample_id"]
    data = ShardDataset(tmp_path / "a", fields=fields, check="never", **settings)
    asked = IndexBatch(np.arange(24).reshape(4, SIZE), 1, seed=7)
    work = maker(data, 3)
    for batch in asked:  # from now on all of it is in memory
        with suppress(SampleError):
            work.make(batch)
    chunk = Chunk(asked)

    for number in (0, 1, 3):
        job = chunk.job(number, work)
        assert request_of(job).whole is not None
        assert made(job).label.tolist() == asked[number].indices.tolist()
    if on_error == "raise":
        with pytest.raises(SampleError, check=At(index=13)):
            made(chunk.job(2, work))
        return
    batch = made(chunk.job(2, work))
    assert batch.label.tolist() == batch.sample_id.tolist()
    assert [i for i in range(12, 18) if i not in batch.label.tolist()] == [13]
    assert_same(batch, work.make(asked[2]))


def test_a_loader_plans_batches_of_its_own_order_alone(pictures: Opens) -> None:
    """A third-party sampler may wait for what the loop does with a batch."""
    dataset, samples = pictures("raw").select(range(24)), RAMDataset.from_arrays(x=np.arange(24))

    def sizes(loader: DataLoader[Any]) -> list[int]:
        batches: Any = iter(loader)._batches
        return [len(chunk.batches) for chunk in batches._chunks]

    assert sizes(DataLoader(dataset, 6, shuffle=True, num_workers=2)) == [1, 2, 1]
    assert sizes(DataLoader(dataset, 6, num_workers=0)) == [1, 2, 1]
    assert sizes(DataLoader(dataset, 6, sampler=list(range(24)), num_workers=2)) == [1] * 4
    assert sizes(DataLoader(list(range(9)), 3, num_workers=2, backend="thread")) == [1] * 3
    assert sizes(DataLoader(samples, 2, num_workers=2)) == [4, 8]
    assert sizes(DataLoader(samples, 2, sampler=list(range(24)), num_workers=0)) == [1] * 12


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_every_backend_serves_chunks_as_they_are_made_one_by_one(
    pictures: Opens, codec: str, backend: Any
) -> None:
    dataset = pictures(codec).replace(augment=[augment.RandomCrop(24)])
    loader = DataLoader(
        dataset, 12, shuffle=True, num_workers=2, backend=backend, persistent_workers=True
    )
    other: Any = DataLoader(dataset, 12, shuffle=True)
    plain = maker(dataset)

    for _ in range(3):
        expected = list(other.batch_sampler)
        for one, batch in zip(loader, expected, strict=True):
            assert_same(one, plain.make(batch))


def test_sources_that_are_read_as_one_share_chunks_and_others_do_not(pictures: Opens) -> None:
    parts = [pictures("jpeg") for _ in range(2)]
    joined = concat([part.replace(augment=OPS) for part in parts])
    apart = [parts[0], parts[1].replace(augment=OPS[:1])]

    def is_planned(dataset: Any) -> bool:
        asked = batches(joined)
        return maker(dataset).plan(asked) is not asked

    assert is_planned(joined)
    assert is_planned(Mixture(parts))
    assert not is_planned(Mixture(apart))


@pytest.mark.slow
def test_the_indices_of_a_chunk_are_sent_to_a_child_once(
    pictures: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, sent = pictures("raw"), []
    work = maker(dataset)
    pool = child_pool(None, work, None)
    send = pool.child.send

    def noted(message: Put) -> None:
        sent.append((len(message.chunk.batches) if message.chunk else 0, message.turn))
        send(message)

    monkeypatch.setattr(pool.child, "send", noted)
    asked = batches(dataset), batches(dataset, epoch=4)
    chunks = Chunk(asked[0]), Chunk(asked[1])
    turns = [(chunk, turn) for chunk in chunks for turn in range(5)]
    try:
        for turn, batch in zip(turns, [*asked[0], *asked[1]], strict=True):
            pool.put(*turn)
            (one,) = pool.take(TIMEOUT_S)
            assert_same(one, work.make(batch))
    finally:
        pool.close()

    assert sent == [(5, 0), *((0, turn) for turn in range(1, 5))] * 2


class Picky:
    """An op of a user that knows a sample it will not have."""

    num_draws = 0
    fill_mask = 0

    def move(self, window: Any, draws: Any) -> None:
        if (window.indices == 40).any():
            raise ZeroDivisionError

    def resized(self, size: Any) -> Any:
        return size


def outcomes(loader: DataLoader) -> list[int | str]:
    """Return the first label of each batch, or the name of its error."""
    found: list[int | str] = []
    batches = iter(loader)
    while True:
        try:
            found.append(next(batches).label[0].item())
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_error_a_sample_brings_it_costs_its_own_batch_alone(
    pictures: Opens, num_workers: int
) -> None:
    dataset = pictures("jpeg")
    list(DataLoader(dataset, SIZE))  # from now on nobody waits for another one's samples
    picky = dataset.replace(augment=[augment.RandomCrop(24), Picky()])

    found = outcomes(DataLoader(picky, SIZE, num_workers=num_workers, backend="thread"))

    assert found == ["ZeroDivisionError" if i == 36 else i for i in range(0, 72, SIZE)]


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("num_workers", "keeps", "check"),  # keeps: memory all files, and none is waited for
    [(0, False, "first"), (2, True, "first"), (2, False, "never"), (0, True, "never")],
)
def test_a_small_record_of_another_size_is_an_error_of_its_own_batch_in_every_epoch(
    tmp_path: Path, num_workers: int, keeps: bool, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found when small fields are read, for two batches at once, and by each of them again."""
    if keeps:
        monkeypatch.setattr(FieldRecords, "_new", lambda self, rows: None)
    fields = {"image": Image(), "x": Array(dims=(1024,)), "label": Label()}
    file = encode_jpeg(np.zeros((40, 40, 3), np.uint8))
    samples = ({"image": file, "x": np.full(1024, i, np.float32), "label": i} for i in range(64))
    pack(samples, tmp_path / "a", fields)
    (shard,) = (tmp_path / "a").glob("*.lmdb")
    at, _ = dict(find_values(shard))[b"x__nbytes"]
    with shard.open("r+b") as written:
        written.seek(at + 4 * 6)
        written.write(struct.pack("<i", 4097))
    dataset = ShardDataset(tmp_path / "a", check=check, augment=[augment.RandomCrop(24)])
    loader = DataLoader(dataset, 4, num_workers=num_workers, backend="thread")
    bad = [0, 4, 8, 12] if check == "first" else [4]  # 16 records have one checksum

    epochs = [outcomes(loader) for _ in range(3)]

    assert epochs == [["SampleError" if i in bad else i for i in range(0, 64, 4)]] * 3
    replaced = dataset.replace(on_error="replace")
    assert {len({replaced[i].x[0].item() for _ in range(3)}) for i in range(4, 9)} == {1}
    place: dict[str, Any] = {} if check == "first" else {"row": 6, "field": "x"}
    kind = ChecksumError if check == "first" else ShardError
    with pytest.raises(kind, check=At(**place)):
        dataset.column("x")


def test_a_timeout_while_a_batch_waits_for_its_own_samples_is_not_lost(
    pictures: Opens, tmp_path: Path
) -> None:
    """A signal's handler may raise it, once, where the trainer's own thread reads."""
    request = pictures("jpeg").request([0, 1, 2])
    errors = [TimeoutError(), ShardError("bad", tmp_path)]

    def make(request: Any, first: int, last: int) -> int:
        if errors:
            raise errors.pop(0)
        return last - first

    with pytest.raises(TimeoutError):
        request.shared("it", make, 0, 3)
    assert request.shared("it", make, 0, 2) == (2, 0)  # of this part alone, as one was bad
