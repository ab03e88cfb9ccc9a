import gc
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders import DataLoader, RAMDataset
from loaders.buffers import Memory, SlotPool, Slots

NBYTES = 1 << 16


def a_batch(pool: SlotPool, nbytes: int = NBYTES) -> torch.Tensor:
    """Take a slot as datasets do: the tensor is all that is left of the lease."""
    return torch.from_numpy(pool.take(nbytes))


def is_free(pool: SlotPool, address: int) -> bool:
    """Tell whether the pool would hand out the slot at an address."""
    num_slots = pool.num_slots
    leases = [pool.take(1) for _ in range(num_slots)]
    found = address in [lease.ctypes.data for lease in leases]
    assert pool.num_slots == num_slots or not found
    return found


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")

WAYS_TO_HOLD: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[5:9],
    "one number": lambda t: t[-1],
    "view of another dtype": lambda t: t.view(torch.int64),
    "view of another shape": lambda t: t.view(4, -1),
    "reshape": lambda t: t.reshape(2, -1, 2),
    "permute": lambda t: t.view(4, 64, -1).permute(2, 0, 1),
    "transpose of a slice": lambda t: t.view(256, -1)[:, 3:5].T,
    "images": lambda t: t.view(4, 64, 64, 4).permute(0, 3, 1, 2)[1, :3],
    "as_strided": lambda t: t.as_strided((10, 4), (1, 1)),
    "unbind": lambda t: t.view(4, -1).unbind()[3],
    "split": lambda t: t.split(1000)[-1],
    "detach": lambda t: t.detach(),
    "expand": lambda t: t[:1].expand(50),
    "squeeze": lambda t: t.view(1, -1).squeeze(0),
    "numpy": lambda t: t.numpy(),
    "slice of numpy": lambda t: t.numpy()[10:20],
    "numpy and back": lambda t: torch.from_numpy(t.numpy()[3:]),
    "as_tensor": lambda t: torch.as_tensor(t.numpy()),
    "dlpack": lambda t: torch.utils.dlpack.from_dlpack(t[4:]),
    "dlpack of numpy": lambda t: np.from_dlpack(t),
    "storage": lambda t: t.untyped_storage(),
    "in a tuple in a dict": lambda t: {"a": (t[3:4], 5)},
    "memoryview": lambda t: t.numpy().data,
    "iterator": lambda t: iter(t.view(4, -1)),
    "closure": lambda t: lambda: t,
    "tensor of a module": lambda t: torch.nn.ParameterList([t.view(torch.float32)]),
}


@pytest.mark.parametrize("way", WAYS_TO_HOLD)
def test_a_slot_is_not_used_again_while_anything_shows_it(way: str) -> None:
    pool = SlotPool()
    batch = a_batch(pool)
    address = batch.data_ptr()

    held = WAYS_TO_HOLD[way](batch)
    del batch
    gc.collect(1)
    assert not is_free(pool, address)

    del held
    gc.collect(1)
    assert is_free(pool, address)


@pytest.mark.parametrize(
    "copy",
    [
        lambda t: t.clone(),
        lambda t: (pickle.loads(pickle.dumps(t)), gc.collect())[0],  # torch 2.6 leaves a cycle
        lambda t: t.float(),
        lambda t: t.view(4, -1).permute(1, 0).contiguous(),
        lambda t: torch.stack([t, t]),
        lambda t: t.tolist(),
        lambda t: int(t[0]),
    ],
    ids=range(7),
)
def test_a_copy_does_not_hold_the_slot(copy: Callable[[torch.Tensor], Any]) -> None:
    pool = SlotPool()
    batch = a_batch(pool).fill_(7)
    address = batch.data_ptr()

    copied = copy(batch)
    del batch
    assert is_free(pool, address)

    a_batch(pool).fill_(0)
    assert torch.as_tensor(copied).unique().tolist() == [7]


def test_a_saved_batch_is_a_copy() -> None:
    pool = SlotPool()
    file = io.BytesIO()

    torch.save(a_batch(pool).fill_(3), file)
    a_batch(pool).fill_(0)
    file.seek(0)

    assert torch.load(file, weights_only=True).unique().tolist() == [3]


def test_a_batch_keeps_its_content_while_others_come_and_go() -> None:
    pool = SlotPool()
    kept = [a_batch(pool).fill_(i).view(4, -1)[1:3] for i in range(5)]

    for i in range(20):
        a_batch(pool).fill_(100 + i)

    assert [t.unique().tolist() for t in kept] == [[i] for i in range(5)]
    assert pool.num_slots == 6


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
def test_no_python_runs_when_a_batch_dies(backend: Any) -> None:
    """Python prints and forgets what is raised in there: Ctrl-C in the trainer's thread, say."""
    dataset = RAMDataset.from_arrays(x=torch.zeros(8, NBYTES, dtype=torch.uint8))
    loader = DataLoader(dataset, 2, num_workers=1, backend=backend)
    seen = list[str]()
    for batch in loader:
        assert batch.x.shape == (2, NBYTES)
        sys.setprofile(lambda frame, event, _: seen.append(f"{event} {frame.f_code.co_name}"))
        del batch
        sys.setprofile(None)

    calls = [call for call in seen if call.startswith("call")]
    assert not calls


def test_what_autograd_keeps_is_kept() -> None:
    pool = SlotPool()
    batch = a_batch(pool).view(torch.float32).fill_(2)
    weight = torch.ones(batch.shape, requires_grad=True)

    loss = (weight * batch).sum()
    del batch
    a_batch(pool).fill_(0)
    loss.backward()

    assert weight.grad is not None
    assert weight.grad.unique().tolist() == [2]


def test_a_steady_loop_needs_as_many_slots_as_are_out_at_once() -> None:
    pool = SlotPool()
    window: list[torch.Tensor] = []

    for _ in range(200):
        window = [*window[-2:], a_batch(pool)]

    assert pool.num_slots == 4  # three in the window, and the one that replaces the oldest
    assert pool.nbytes == 4 * NBYTES


def test_the_slot_used_last_is_used_first() -> None:
    pool = SlotPool()
    first, second = a_batch(pool), a_batch(pool)
    address = first.data_ptr()

    del second, first

    assert a_batch(pool).data_ptr() == address


@needs_proc
def test_memory_is_flat() -> None:
    pool = SlotPool()
    nbytes = 8 << 20
    for _ in range(3):
        a_batch(pool, nbytes).fill_(1)
    before = resident_bytes()

    for _ in range(300):
        a_batch(pool, nbytes).fill_(1)

    assert resident_bytes() - before < 2 * nbytes
    assert pool.num_slots == 1


def test_sizes_that_grow_a_little_do_not_need_a_new_slot_each() -> None:
    sizes: list[int] = []

    def allocate(nbytes: int) -> Any:
        sizes.append(nbytes)
        return np.empty(nbytes, np.uint8)

    pool = SlotPool(allocate)
    for nbytes in range(100_000, 150_000, 500):
        torch.from_numpy(pool.take(nbytes))

    assert len(sizes) == 3
    assert max(sizes) < 1.5 * 150_000


def test_a_larger_request_replaces_slots_that_are_too_small() -> None:
    pool = SlotPool()
    small = a_batch(pool, 100)
    assert (pool.slot_bytes, pool.num_slots, pool.nbytes) == (100, 1, 100)

    del small
    large = a_batch(pool, 1000)
    assert len(large) == 1000
    assert (pool.slot_bytes, pool.num_slots, pool.nbytes) == (1000, 1, 1000)

    del large
    assert len(a_batch(pool, 50)) == 50
    assert pool.num_slots == 1


def test_a_small_slot_that_is_out_is_counted_until_it_is_let_go() -> None:
    pool = SlotPool()
    small = a_batch(pool, 100)
    large = a_batch(pool, 1000)
    assert (pool.num_slots, pool.nbytes) == (2, 1100)

    del small, large
    leases = [pool.take(1000), pool.take(1000)]

    assert (pool.num_slots, pool.nbytes) == (2, 2000)
    assert len(leases) == 2


def test_nothing_may_be_asked_for() -> None:
    pool = SlotPool()

    assert [len(a_batch(pool, 0)) for _ in range(3)] == [0, 0, 0]
    assert pool.nbytes == 0


def test_a_batch_outlives_its_pool() -> None:
    batch = a_batch(SlotPool()).fill_(5)
    gc.collect()

    assert batch.unique().tolist() == [5]


@needs_proc
def test_a_pool_that_is_dropped_takes_its_slots_along() -> None:
    before = resident_bytes()
    for _ in range(30):
        pool = SlotPool()
        batches = [a_batch(pool, 8 << 20).fill_(1) for _ in range(2)]
        del pool, batches

    assert resident_bytes() - before < 100 << 20


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5)), max_size=60))
def test_no_two_leases_overlap_whatever_is_asked_for_and_dropped(
    steps: list[tuple[int, int]],
) -> None:
    pool = SlotPool()
    held: dict[int, tuple[torch.Tensor, int]] = {}

    for number, (nbytes, key) in enumerate(steps):
        if key in held:
            tensor, fill = held.pop(key)
            assert (tensor == fill).all()
            del tensor
        else:
            held[key] = (a_batch(pool, nbytes).fill_(number % 256), number % 256)

    for tensor, fill in held.values():
        assert (tensor == fill).all()
    assert pool.num_slots <= 6


def test_threads_take_and_drop_without_ever_sharing() -> None:
    pool = SlotPool()
    num_threads, passed_on = 8, [None] * 4
    barrier = threading.Barrier(num_threads)

    def work(number: int) -> int:
        rng = np.random.default_rng(number)
        barrier.wait(60)
        wrong = 0
        for i in range(300):
            nbytes = int(rng.integers(1, 5000))
            batch = a_batch(pool, nbytes).fill_(number * 16 + i % 16)
            slots: list[Any] = passed_on
            slots[int(rng.integers(4))] = batch[:7]  # dropped by whichever thread comes next
            wrong += int((batch != number * 16 + i % 16).sum())
        return wrong

    with ThreadPoolExecutor(num_threads) as threads:
        assert sum(threads.map(work, range(num_threads))) == 0

    passed_on.clear()
    gc.collect()
    assert pool.num_slots <= num_threads + 4 + num_threads
    leases = [pool.take(1) for _ in range(pool.num_slots)]
    assert len({lease.ctypes.data for lease in leases}) == len(leases)
    assert all(lease.ctypes.data % 64 == 0 for lease in leases)  # of a cache line


def test_a_lease_may_die_while_another_is_taken() -> None:
    """The garbage collector runs finalizers at any allocation, also inside of take."""
    pool = SlotPool()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle: list[Any] = [a_batch(pool, 100)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)

    gc.collect()
    assert pool.num_slots < 50


def test_slots_of_different_names_are_different_pools() -> None:
    slots = Slots()
    image = torch.from_numpy(slots.take("image", 1 << 20))
    label = torch.from_numpy(slots.take("label", 1 << 17))
    assert slots.nbytes == (1 << 20) + (1 << 17)

    addresses = image.data_ptr(), label.data_ptr()
    del image, label

    assert slots.take("label", 1 << 17).ctypes.data == addresses[1]
    assert slots.take("image", 1 << 20).ctypes.data == addresses[0]
    assert slots.nbytes == (1 << 20) + (1 << 17)


def test_small_slots_are_new() -> None:
    slots = Slots()

    leases = [slots.take("label", 100) for _ in range(9)]

    assert len({lease.ctypes.data for lease in leases}) == 9
    assert [len(lease) for lease in leases] == [100] * 9
    assert slots.nbytes == 0


@pytest.mark.parametrize("nbytes", [0, 100, 1 << 20])
def test_slots_and_fresh_memory_look_the_same(nbytes: int) -> None:
    for memory in (Slots(), Memory()):
        lease = memory.take("a", nbytes)

        assert lease.dtype == np.uint8
        assert lease.shape == (nbytes,)
        assert lease.flags.c_contiguous
        assert lease.flags.writeable
        assert torch.from_numpy(lease).shape == (nbytes,)


def test_a_fork_finds_the_pool_open_whoever_was_allocating() -> None:
    is_inside, go_on = threading.Event(), threading.Event()

    def slow(nbytes: int) -> Any:
        is_inside.set()
        go_on.wait(60)
        return np.empty(nbytes, np.uint8)

    slots = Slots(slow)
    taking = threading.Thread(target=slots.take, args=("image", NBYTES))
    taking.start()
    assert is_inside.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        go_on.set()
        slots.take("image", NBYTES)
        os._exit(0)
    go_on.set()
    taking.join()

    assert os.waitpid(pid, 0)[1] == 0
