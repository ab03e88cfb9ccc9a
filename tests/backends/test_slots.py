import os
import threading
from collections import deque, namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders.backends.slots import MappedSlots, SharedSlots, make_file
from loaders.datasets.reading.samples import Padded, batch_type
from loaders.system.hugepages import HUGE
from tests.system.test_hugepages import gives_huge_pages, in_huge_pages

LARGE = 40_000


def pair(lock: Any = None) -> tuple[SharedSlots, MappedSlots]:
    """Both ends, here in one process."""
    fd = make_file()
    try:
        return SharedSlots(fd), MappedSlots(fd, lock)
    finally:
        os.close(fd)


def sent(slots: SharedSlots, mapped: MappedSlots) -> tuple[int, torch.Tensor]:
    """Send a tensor; return its address at this end, and what arrived."""
    data = slots.dump(tensor := in_slot(slots))
    return place(slots, tensor), mapped.load(data)


def place(slots: SharedSlots, tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - slots._memory.address


def in_slot(slots: SharedSlots, nbytes: int = LARGE) -> torch.Tensor:
    flat = torch.from_numpy(slots.take("image", nbytes))
    flat.copy_(torch.arange(nbytes) % 251)
    return flat


def test_a_tensor_in_a_slot_is_the_same_memory_at_the_other_end() -> None:
    slots, mapped = pair()
    image = in_slot(slots).view(4, 100, 100, 1).permute(0, 3, 1, 2)

    data = slots.dump(image)
    arrived = mapped.load(data)

    assert len(data) < 500
    assert torch.equal(arrived, image)
    assert arrived.stride() == image.stride()
    image[2, 0, 5, 5] = 77
    assert arrived[2, 0, 5, 5] == 77


def test_a_large_slot_lies_in_huge_pages_at_both_ends() -> None:
    if not gives_huge_pages():
        pytest.skip("this kernel gives none, or has none left")
    slots, mapped = pair()
    image = in_slot(slots, 3 * HUGE)
    arrived = mapped.load(slots.dump(image))

    assert torch.equal(arrived, image)
    # Not all three for sure: the kernel may leave one out where it finds no room at once.
    assert in_huge_pages(image.data_ptr()) == in_huge_pages(arrived.data_ptr()) >= HUGE


def test_several_tensors_may_share_a_slot() -> None:
    slots, mapped = pair()
    flat = in_slot(slots)

    first, second = mapped.load(slots.dump((flat[:100], flat.view(torch.int32)[50:60])))

    assert torch.equal(first, flat[:100])
    assert torch.equal(second, flat.view(torch.int32)[50:60])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_a_slot_is_free_when_the_last_tensor_over_it_dies() -> None:
    slots, mapped = pair()
    used, arrived = sent(slots, mapped)
    part = arrived[3:5]

    del arrived
    slots.free(mapped.free())
    assert place(slots, in_slot(slots)) != used
    del part
    assert place(slots, in_slot(slots)) != used  # nobody has said so yet

    slots.free(mapped.free())
    assert place(slots, in_slot(slots)) == used


def test_a_slot_stays_taken_when_a_fork_drops_its_copy_of_the_tensor() -> None:
    slots, mapped = pair()
    used, arrived = sent(slots, mapped)

    if not (pid := os.fork()):
        del arrived
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

    assert place(slots, in_slot(slots)) != used
    assert torch.equal(arrived, torch.arange(LARGE) % 251)


def test_slots_are_never_two_batches_at_once_whoever_takes_and_frees_them() -> None:
    """Workers take while others send and the other end frees: each tensor keeps its number until it is dropped."""
    slots, mapped = pair()
    barrier, lock = threading.Barrier(4), threading.Lock()

    def work(number: int) -> int:
        barrier.wait(60)
        wrong, kept = 0, deque[tuple[int, torch.Tensor]]()
        for i in range(200):
            value = (4 * i + number) % 251
            tensor = torch.from_numpy(slots.take("image", LARGE)).fill_(value)
            with lock:  # as the one who sends has it
                data = slots.dump(tensor)
                del tensor
                kept.append((value, mapped.load(data)))
            if len(kept) > number:
                value, arrived = kept.popleft()
                wrong += int((arrived != value).sum())
                del arrived
                slots.free(mapped.free())
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) == 0
    assert slots.nbytes <= 16 * LARGE


def test_the_sender_does_not_use_a_slot_again_before_it_is_told_that_it_is_free() -> None:
    slots, _ = pair()
    image = in_slot(slots)
    used = place(slots, image)
    slots.dump(image)
    del image

    assert place(slots, in_slot(slots)) != used
    slots.free([used])
    assert place(slots, in_slot(slots)) == used


@pytest.mark.parametrize("length", [10, LARGE])
@pytest.mark.parametrize("form", ["whole", "turned", "every second", "one repeated"])
def test_tensors_of_ordinary_memory_arrive_as_they_are(length: int, form: str) -> None:
    slots, mapped = pair()
    value = torch.arange(length, dtype=torch.float32)
    value = {
        "whole": value,
        "turned": value.view(2, -1).t(),
        "every second": value[::2],
        "one repeated": value[:1].expand(length),
    }[form]

    arrived = mapped.load(slots.dump(value))

    assert torch.equal(arrived, value)
    assert arrived.dtype == value.dtype
    if form in ("whole", "turned"):
        assert arrived.stride() == value.stride()
    assert mapped.num_leased == ((length == LARGE and form != "every second") or length == LARGE)


DTYPES = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.bool, torch.complex64]


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(DTYPES))
def test_every_shape_and_dtype_arrives(shape: list[int], dtype: torch.dtype) -> None:
    slots, mapped = pair()
    value = torch.randint(0, 2, shape).to(dtype)

    arrived = mapped.load(slots.dump(value))

    assert arrived.dtype == dtype
    assert torch.equal(arrived, value)


def test_batches_keep_their_form() -> None:
    slots, mapped = pair()
    batch = batch_type(("image", "caption", "boxes"))(
        in_slot(slots), ["a", "b"], Padded(torch.ones(2, 3), torch.tensor([3, 1]))
    )
    batch.valid = torch.tensor([True, False])

    arrived = mapped.load(slots.dump(batch))

    assert type(arrived) is type(batch)
    assert torch.equal(arrived.image, batch.image)
    assert arrived.caption == ["a", "b"]
    assert torch.equal(arrived.boxes.lengths, batch.boxes.lengths)
    assert torch.equal(arrived.valid, batch.valid)


Pair = namedtuple("Pair", ["x", "y"])  # what users return from a collate function


@pytest.mark.parametrize(
    "value",
    [
        {"x": torch.ones(3), "y": [torch.zeros(2), "text", None]},
        Pair(torch.ones(1), 2.5),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
        torch.ones(3, requires_grad=True),
        torch.ones(3, 3).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=["nested", "named tuple", "parameter", "with gradients", "sparse", "conjugate"],
)
def test_anything_that_pickles_arrives(value: Any) -> None:
    slots, mapped = pair()

    arrived = mapped.load(slots.dump(value))

    assert type(arrived) is type(value)
    if isinstance(value, torch.Tensor):
        assert torch.equal(arrived.to_dense(), value.to_dense())
        assert arrived.requires_grad == value.requires_grad
    elif isinstance(value, dict):
        assert torch.equal(arrived["x"], value["x"])
        assert arrived["y"][1:] == ["text", None]
    else:
        assert torch.equal(arrived.x, value.x)


def test_what_is_sent_again_while_the_other_end_has_it_lies_in_another_slot() -> None:
    """Or the first tensor to die there would give away the memory of the second."""
    slots, mapped = pair()
    kept = in_slot(slots)  # by whoever makes batches
    first, second = (mapped.load(slots.dump(kept)) for _ in range(2))

    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_parts_of_a_slot_are_sent_and_freed_apart() -> None:
    """Batches that were made together."""
    slots, mapped = pair()
    rows = in_slot(slots).numpy()
    parts = [torch.from_numpy(rows[at : at + 8000]) for at in (0, 8000, 16_000)]
    arrived = mapped.load(slots.dump(parts))

    assert all(torch.equal(a, b) for a, b in zip(arrived, parts, strict=True))
    assert len({a.untyped_storage().data_ptr() for a in arrived}) == 3
    del rows, parts
    arrived.pop()
    slots.free(mapped.free())
    assert place(slots, in_slot(slots)) != 0
    arrived.clear()
    slots.free(mapped.free())
    assert {place(slots, in_slot(slots)), place(slots, in_slot(slots))} >= {0}


def test_what_is_seen_at_a_fork_is_never_free() -> None:
    slots, mapped = pair()
    used, seen = sent(slots, mapped)
    longer, kept = sent(slots, mapped)
    sent(slots, mapped)  # and nobody sees it any more

    if not (pid := os.fork()):
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    del seen
    assert used not in mapped.free()
    del kept

    assert longer not in mapped.free()


def test_slots_are_page_locked_once_for_as_long_as_they_are_there() -> None:
    locked = list[int]()
    slots, mapped = pair(lambda array: locked.append(len(array)))
    for _ in range(3):
        data = slots.dump(in_slot(slots))
        mapped.change(slots.changes())
        arrived = mapped.load(data)
        assert torch.equal(arrived, torch.arange(LARGE) % 251)
        del arrived
        slots.free(mapped.free())

    assert len(locked) == 1
    assert mapped.nbytes == locked[0] >= LARGE


def test_a_slot_that_is_given_up_gives_its_memory_back() -> None:
    slots, mapped = pair()
    for nbytes in range(50_000, 400_000, 10_007):
        first, second = in_slot(slots, nbytes), in_slot(slots, nbytes + 1)
        arrived = mapped.load(slots.dump((first, second)))

        assert mapped.num_leased == 2
        assert torch.equal(arrived[0], first)
        assert torch.equal(arrived[1], second)
        del arrived, first, second
        slots.free(mapped.free())
        mapped.change(slots.changes())
        assert slots.nbytes <= mapped.nbytes <= 4 * 1.25 * 400_000 + 8192
