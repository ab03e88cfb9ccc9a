import gc
import threading
import traceback
import weakref
from collections import UserDict, namedtuple
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.buffers import SlotPool
from loaders.datasets.reading.samples import Padded, batch_type
from loaders.device.accelerator import Accelerator, accelerator_for
from loaders.device.nested import map_tensors, tensors_of
from loaders.device.prefetch import Prefetcher
from tests.device.copies import ManualCopies
from tests.refusals import At

NBYTES = 4096


class Batches:
    """Batches over the slots of a pool: batch ``i`` is full of the number ``i``."""

    def __init__(
        self, num: int, ready: int = 1000, errors: dict[int, BaseException] | None = None
    ) -> None:
        self.pool, self.num, self.ready, self.errors = SlotPool(), num, ready, dict(errors or {})
        self.step = 0

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        if self.step == self.num:
            raise StopIteration
        step, self.step = self.step, self.step + 1
        self.ready -= 1
        if step in self.errors:
            raise self.errors.pop(step)
        lease = self.pool.take(NBYTES)
        lease[:] = step
        return torch.from_numpy(lease)

    def is_ready(self) -> bool:
        return self.ready > 0


def prefetcher(source: Batches, copies: Any, ahead: int = 2) -> Prefetcher:
    return Prefetcher(source, copies, ahead=ahead, is_ready=source.is_ready)


def values(batches: list[torch.Tensor]) -> list[int]:
    assert all((batch == batch[0]).all() for batch in batches)
    return [int(batch[0]) for batch in batches]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_batches_arrive_in_order_whatever_is_ahead(ahead: int) -> None:
    copies = ManualCopies()
    source = Batches(7)

    got = list(prefetcher(source, copies, ahead))
    for event in copies.events:
        if not event.is_done:
            event.happen()

    assert values(got) == list(range(7))


def test_it_copies_two_ahead_and_says_what_they_take() -> None:
    copies = ManualCopies()
    batches = prefetcher(Batches(9), copies)

    next(batches)

    assert copies.log == ["copy 0", "copy 1", "copy 2", "hand over 0, 1 tensors"]
    assert batches.device_bytes == 2 * NBYTES


def test_batches_that_wait_are_counted_for_states_to_leave_them_out() -> None:
    batches = prefetcher(Batches(3, ready=3), ManualCopies(), ahead=5)

    assert [batches.num_waiting for _ in batches] == [2, 1, 0]
    failing = prefetcher(Batches(9, errors={1: ValueError()}), ManualCopies(), ahead=5)
    next(failing)
    assert failing.num_waiting == 1  # the error; what comes behind is not asked for yet


def test_it_does_not_wait_for_a_batch_that_nobody_asked_for() -> None:
    copies = ManualCopies()
    source = Batches(9, ready=2)
    batches = prefetcher(source, copies)

    next(batches)

    assert source.step == 2
    assert batches.device_bytes == NBYTES


def test_slots_return_when_their_copy_is_done_and_not_before() -> None:
    """Copies that run late still read what was to be copied, and at most ahead + 1 slots are out."""
    copies = ManualCopies()
    source = Batches(50)
    batches = prefetcher(source, copies)

    got = list(batches)
    late = [event for event in copies.events if not event.is_done]
    for event in late:
        event.happen()

    assert len(late) == 3
    assert values(got) == list(range(50))
    assert source.pool.num_slots <= 4  # three are read, one is filled


def test_done_copies_are_never_waited_for() -> None:
    copies = ManualCopies()
    batches = prefetcher(Batches(20), copies)

    for _ in batches:
        for event in copies.events:
            if not event.is_done:
                event.happen()

    assert not [line for line in copies.log if line.startswith("synchronize")]


def test_an_error_comes_after_the_batches_before_it_and_before_those_behind() -> None:
    copies = ManualCopies()
    source = Batches(4, errors={2: ValueError("bad batch")})
    batches = prefetcher(source, copies, ahead=5)

    got = [next(batches), next(batches)]
    with pytest.raises(ValueError, check=At(args=("bad batch",))):
        next(batches)
    got.append(next(batches))
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()

    assert values(got) == [0, 1, 3]


def test_an_error_that_was_met_ahead_keeps_nothing_alive() -> None:
    """An early end comes before its turn: no garbage collector shall be needed to end the workers."""

    def fails(sample: Any) -> Any:
        if sample.x >= 4:
            raise ValueError("bad sample")
        return sample

    data = RAMDataset.from_arrays(x=np.arange(40)).replace(transform=fails)
    loader = DataLoader(data, 2, num_workers=2, backend="thread")
    gc.disable()
    try:
        source = iter(loader)
        batches = Prefetcher(source, ManualCopies(), ahead=4, is_ready=lambda: True)
        next(batches)  # and two more, and the error
        left = weakref.ref(source)
        del source, batches

        assert left() is None
    finally:
        gc.enable()


def test_of_an_error_that_was_met_ahead_the_workers_part_is_told() -> None:
    def fails(sample: Any) -> Any:
        raise ValueError("bad sample")

    data = RAMDataset.from_arrays(x=np.arange(4)).replace(transform=fails)
    loader = DataLoader(data, 2, num_workers=2, backend="thread")
    source = iter([torch.zeros(1)])
    batches = Prefetcher(chain(source, loader), ManualCopies(), ahead=2, is_ready=lambda: True)
    next(batches)

    with pytest.raises(ValueError, check=At(args=("bad sample",))) as caught:
        next(batches)

    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fails" in names
    assert "_fetch_ready" not in names


def test_a_failing_copy_is_raised_in_its_turn() -> None:
    copies = ManualCopies()
    copies.fail_after = 1
    batches = prefetcher(Batches(4), copies)

    first = next(batches)
    with pytest.raises(RuntimeError):
        next(batches)
    batches.close()

    assert values([first]) == [0]


def test_an_interrupt_goes_through_at_once() -> None:
    source = Batches(5, errors={1: KeyboardInterrupt()})
    batches = prefetcher(source, ManualCopies())

    with pytest.raises(KeyboardInterrupt):
        next(batches)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_ending_early_gives_slots_back_after_their_copies(how: str) -> None:
    """A batch that was handed over is whole, also when the iterator goes before its copy has run."""
    copies = ManualCopies()
    source = Batches(9)
    batches = prefetcher(source, copies)
    kept = next(batches)

    if how == "close":
        batches.close()
        batches.close()
    del batches
    gc.collect()

    assert all(event.is_done for event in copies.events)
    assert values([kept]) == [0]
    num_slots = source.pool.num_slots
    leases = [source.pool.take(NBYTES) for _ in range(num_slots)]
    assert len(leases) == source.pool.num_slots == num_slots  # each was free


def test_without_background_copies_nothing_is_held_or_fetched_ahead() -> None:
    source = Batches(5)
    batches = prefetcher(source, Accelerator(torch.device("cpu")))

    first = next(batches)

    assert source.step == 1
    assert batches.device_bytes == 0
    assert values([first, *batches]) == list(range(5))


def test_nested_batches_keep_their_form() -> None:
    pair = namedtuple("pair", ["x", "y"])
    batch = batch_type(("image", "rest"))(
        torch.ones(2), {"list": [torch.ones(3), "text"], "none": None}
    )
    batch.valid = torch.tensor([True, False])
    nested = (batch, pair(Padded(torch.ones(1), torch.ones(1)), 3))

    moved = map_tensors(nested, lambda tensor: tensor + 1)

    assert type(moved[0]) is type(batch)
    assert type(moved[1].x) is Padded
    assert moved[1].y == 3
    assert moved[0].rest["list"][1] == "text"
    assert [tensor.tolist() for tensor in tensors_of(moved)] == [
        [2, 2], [2, 2, 2], [2, 1], [2], [2]
    ]  # fmt: skip


class TensorsAlone(UserDict[str, torch.Tensor]):
    """A mapping that takes nothing else."""

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        assert isinstance(value, torch.Tensor)
        super().__setitem__(name, value)


def test_a_mapping_that_takes_tensors_alone_is_asked_for_them() -> None:
    batch = TensorsAlone(x=torch.ones(2))

    (found,) = tensors_of(batch)

    assert found is batch["x"]


def test_mappings_of_other_types_are_moved() -> None:
    from collections import UserDict

    mapping = UserDict(a=torch.ones(1))
    mapping.note = "kept"  # type: ignore[attr-defined]

    moved_mapping = map_tensors(mapping, lambda tensor: tensor + 1)

    assert isinstance(moved_mapping, UserDict)
    assert moved_mapping.note == "kept"  # type: ignore[attr-defined]
    assert moved_mapping["a"].tolist() == [2]


def test_the_cpu_is_a_device_without_copies() -> None:
    accelerator = accelerator_for(torch.device("cpu"))
    tensor = torch.ones(3)

    assert not accelerator.is_ahead
    assert accelerator.copy(tensor) is tensor


# -- through the loader ----------------------------------------------------------------------------


def pixels(num: int = 40) -> RAMDataset:
    images = (
        np.zeros((num, 3, 64, 64), np.uint8) + np.arange(num, dtype=np.uint8)[:, None, None, None]
    )
    return RAMDataset.from_arrays(image=images, label=np.arange(num))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_loader_copies_ahead_and_serves_the_same(
    num_workers: int, as_dict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = ManualCopies()
    monkeypatch.setattr("loaders.loading.loader.accelerator_for", lambda device: copies)
    monkeypatch.setattr("loaders.loading.delivery.pinned", lambda tensor: tensor)
    settings: dict[str, Any] = {
        "batch_size": 7,
        "shuffle": True,
        "pad": "mark",
        "as_dict": as_dict,
    }
    plain = list(DataLoader(pixels(), num_workers=num_workers, **settings))

    loader = DataLoader(pixels(), num_workers=num_workers, device="cpu", **settings)
    batches = iter(loader)
    served = []
    for batch in batches:
        served.append(batch)
        delivered = 7 * len(served)  # at the end a state is the next epoch's beginning
        assert loader.state_dict()["sampler"]["delivered"] == (delivered if delivered < 40 else 0)
    batches.close()

    assert len(served) == len(plain)
    for one, other in zip(served, plain, strict=True):
        ones, others = list(tensors_of(one)), list(tensors_of(other))
        assert len(ones) == len(others) == 3
        assert all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def test_leaving_a_loop_halfway_leaves_no_thread_and_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = ManualCopies()
    monkeypatch.setattr("loaders.loading.loader.accelerator_for", lambda device: copies)
    monkeypatch.setattr("loaders.loading.delivery.pinned", lambda tensor: tensor)
    before = threading.active_count()
    loader = DataLoader(pixels(), batch_size=4, device="cpu", num_workers=2)

    for _ in loader:
        break
    gc.collect()

    assert threading.active_count() == before
    assert all(event.is_done for event in copies.events)
    assert loader.stats().device_bytes == 0


# -- on a GPU --------------------------------------------------------------------------------------


def busy(milliseconds: int) -> None:
    """Keep the current stream at work."""
    torch.cuda._sleep(milliseconds * 1_000_000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow), "process"]
)
def test_batches_on_the_gpu_are_those_of_the_host(backend: Any) -> None:
    """Also when the trainer's stream lags far behind, and batches are kept."""
    dataset = pixels(200)
    settings: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": True,
        "num_workers": 2,
        "backend": backend,
    }
    plain = [tuple(batch) for batch in DataLoader(dataset, **settings)]

    sums, kept = [], []
    for images, labels in DataLoader(dataset, device="cuda", **settings):
        busy(2)
        sums.append(images.long().sum((1, 2, 3)) * 1000 + labels)
        kept.append((images, labels))

    for (images, labels), total, (on_gpu, gpu_labels) in zip(plain, sums, kept, strict=True):
        assert on_gpu.is_cuda
        assert torch.equal(on_gpu.cpu(), images)
        assert torch.equal(gpu_labels.cpu(), labels)
        assert torch.equal(total.cpu(), images.long().sum((1, 2, 3)) * 1000 + labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_slots_are_pinned_and_the_trainer_does_not_wait() -> None:
    """Handing over is done before the GPU is: nothing in it waits for the trainer's own stream."""
    loader = DataLoader(pixels(200), batch_size=8, device="cuda", pad="mark", num_workers=1)
    list(loader)  # now there are slots and device memory enough: taking more may wait for all work
    batches: Iterator[Any] = iter(loader)
    next(batches)

    busy(500)
    event = torch.cuda.Event()
    event.record()
    for _ in range(5):
        next(batches)

    assert not event.query()
    assert loader._slots.nbytes
    assert torch.from_numpy(loader._slots.take("image", 1 << 16)).is_pinned()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_memory_does_not_grow_over_epochs() -> None:
    loader = DataLoader(pixels(200), batch_size=8, device="cuda", num_workers=1)
    for _ in loader:
        pass
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    for _ in range(3):
        for _ in loader:
            pass
    torch.cuda.synchronize()
    gc.collect()

    assert torch.cuda.memory_allocated() <= before
