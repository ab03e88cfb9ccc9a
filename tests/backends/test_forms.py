"""Messages that name a form say what messages that pickle everything say."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders.backends import forms
from loaders.backends.forms import MessageReader, MessageWriter
from loaders.backends.wire import Mapped, SharedSlots
from loaders.datasets.reading.samples import Padded, SplitBatches, batch_type

LARGE = 40_000
NO_FORM = -1


class Ends:
    """Both ends, here in one process: descriptors go from hand to hand."""

    def __init__(self) -> None:
        self.slots = SharedSlots()
        self.mapped = Mapped(self.slots.fds.popleft)
        self.writer, self.reader = MessageWriter(self.slots), MessageReader(self.mapped)

    def in_slot(self, nbytes: int = LARGE, name: str = "image") -> torch.Tensor:
        flat = torch.from_numpy(self.slots.take(name, nbytes))
        flat.copy_(torch.randint(0, 2, (nbytes,)))
        return flat

    def message(self, value: Any, *numbers: Any) -> bytes:
        message = self.writer.write(value, *numbers)
        self.slots.hold(message.leases)
        return message.data

    def sent(self, value: Any) -> Any:
        return self.reader.read(self.message(value))[1]


def form_of(message: bytes) -> int:
    form: int = forms._HEAD.unpack_from(message)[1]
    return form


def pictures(ends: Ends, num: int = 4) -> Any:
    image = ends.in_slot(num * 100 * 100).view(num, 100, 100, 1).permute(0, 3, 1, 2)
    return batch_type(("image", "label"))(image, torch.arange(num))


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())


def test_a_form_is_told_once() -> None:
    ends, lengths = Ends(), []
    for _ in range(3):
        batch = pictures(ends)
        message = ends.message([batch], 7, (3, 5))
        number, group, status = ends.reader.read(message)
        lengths.append(len(message))

        assert (number, status) == (7, (3, 5))
        assert_same(group[0], batch)
        batch.image[2, 0, 5, 5] = 77
        assert group[0].image[2, 0, 5, 5] == 77  # the same memory

    assert lengths[1] == lengths[2] == forms._HEAD.size + 2 * 4 + 4 * 8
    assert lengths[0] > 300


DTYPES = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.bool, torch.complex64]
SHAPES = st.lists(st.integers(0, 5), max_size=4)


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES), st.booleans(), st.booleans()), max_size=3)
)
def test_every_form_arrives(fields: list[tuple[list[int], torch.dtype, bool, bool]]) -> None:
    ends = Ends()

    def tensor(
        name: str, shape: list[int], dtype: torch.dtype, is_in_slot: bool, is_turned: bool
    ) -> torch.Tensor:
        value = torch.randint(0, 2, shape).to(dtype)
        if is_in_slot:
            flat = ends.in_slot(name=name).view(dtype)[3 : 3 + value.numel()]
            value = flat.copy_(value.flatten()).view(shape)
        return value.permute(tuple(range(value.dim()))[::-1]) if is_turned else value

    names = tuple(f"field{i}" for i in range(len(fields)))
    for _ in range(3):
        batch = batch_type(names)(*(tensor(n, *f) for n, f in zip(names, fields, strict=True)))
        assert_same(ends.sent([batch])[0], batch)


def test_several_batches_that_share_memory_have_a_form_by_their_sizes() -> None:
    ends, told = Ends(), []
    for sizes in ([2, 2], [2, 2], [3, 1], [2, 2], [3, 1]):
        batch = pictures(ends)
        group = SplitBatches(batch._fields, [*batch], sizes)
        message = ends.message(group)
        told.append(form_of(message))
        arrived = ends.reader.read(message)[1]

        assert len(arrived) == 2
        for one, other in zip(arrived, group, strict=True):
            assert_same(one, other)

    assert told == [NO_FORM, 0, NO_FORM, 0, 1]


class Marked(torch.Tensor):
    """Not torch's own."""


def with_marks(ends: Ends) -> Any:
    batch = pictures(ends)
    batch.valid = torch.tensor([True, True, False, False])
    return batch


def one(value: Any) -> Any:
    return batch_type(("x",))(value)


@pytest.mark.parametrize(
    "make",
    [
        with_marks,
        lambda ends: tuple(pictures(ends)),
        lambda ends: pictures(ends)._asdict(),
        lambda ends: batch_type(("a", "b"))(*ends.in_slot().split(LARGE // 2)),
        lambda _: one(["a", "b"]),
        lambda _: one(Padded(torch.ones(2, 3), torch.tensor([3, 1]))),
        lambda _: one(torch.ones(3, dtype=torch.bfloat16)),
        lambda _: one(torch.ones(3, requires_grad=True)),
        lambda _: one(torch.ones(3, dtype=torch.complex64).conj()),
        lambda _: one(torch.ones(3, dtype=torch.complex64).conj().imag),
        lambda _: one(torch.ones(3).as_subclass(Marked)),
        lambda _: one(torch.ones(0, 3)),
        lambda _: one(torch.ones(3).expand(2, 3)),
        lambda _: one(torch.ones(LARGE)),
        lambda _: batch_type(())(),
    ],
    ids=["marks", "tuple", "dict", "one slot", "text", "padded", "bfloat16", "gradients", "conjugate",
         "negative", "subclass", "empty", "expanded", "outside", "no field"],
)  # fmt: skip
def test_what_has_no_form_arrives_whole(make: Any) -> None:
    ends = Ends()
    for _ in range(3):
        value = make(ends)
        message = ends.message([value])
        (arrived,) = ends.reader.read(message)[1]

        assert form_of(message) == NO_FORM
        assert type(arrived) is type(value)
        assert vars(arrived).keys() == vars(value).keys() if hasattr(value, "valid") else True
        for a, b in zip(arrived, value, strict=True):
            assert type(a) is type(b)
            if isinstance(a, torch.Tensor):
                assert torch.equal(a, b)
                assert a.requires_grad == b.requires_grad


def test_batches_of_ever_new_shapes_are_told_whole() -> None:
    ends = Ends()
    for length in range(1, 2 * forms._MAX_FORMS):
        batch = one(torch.arange(length))
        assert_same(ends.sent([batch])[0], batch)
        assert_same(ends.sent([batch])[0], batch)

    assert len(ends.writer._numbers) == len(ends.reader._layouts) == forms._MAX_FORMS


def test_a_slot_is_free_when_its_own_tensor_dies() -> None:
    ends = Ends()
    arrived, addresses = [], []
    for _ in range(2):  # the second one names the form
        batch = batch_type(("x", "y"))(ends.in_slot(name="x"), ends.in_slot(name="y"))
        arrived.append(ends.sent([batch])[0])
        addresses.append((batch.x.data_ptr(), batch.y.data_ptr()))
        del batch
    x, y = arrived.pop()
    part = x[5:7]

    del x, y
    ends.mapped.set_free()
    assert ends.in_slot(name="y").data_ptr() == addresses[1][1]
    assert ends.in_slot(name="x").data_ptr() not in {x for x, _ in addresses}
    del part
    ends.mapped.set_free()
    assert ends.in_slot(name="x").data_ptr() == addresses[1][0]
    assert len(arrived) == 1


def test_slots_that_are_no_more_are_told_though_the_form_is_known() -> None:
    ends = Ends()
    for _ in range(2):
        ends.sent([pictures(ends)])
        ends.mapped.set_free()
    held = ends.in_slot(10 * LARGE)  # too large for what there is
    assert ends.slots.given_up

    batch = pictures(ends)
    message = ends.message([batch])
    assert form_of(message) == NO_FORM
    assert_same(ends.reader.read(message)[1][0], batch)
    batch = pictures(ends)
    message = ends.message([batch])
    assert form_of(message) == 0
    assert_same(ends.reader.read(message)[1][0], batch)
    assert not ends.slots.given_up
    assert ends.mapped.nbytes <= ends.slots.nbytes
    del held


def test_what_cannot_be_told_loses_no_slot_that_is_no_more() -> None:
    ends = Ends()
    ends.sent([pictures(ends)])
    ends.mapped.set_free()
    held = ends.in_slot(10 * LARGE)
    before = list(ends.slots.given_up)

    with pytest.raises(TypeError, match="pickle"):
        ends.writer.write([one(iter(weakref.WeakSet()))])

    assert before
    assert list(ends.slots.given_up) == before
    del held


def test_the_memory_of_a_slot_lives_as_long_as_its_tensor() -> None:
    locked: list[weakref.ref[Any]] = []
    ends = Ends()
    ends.mapped = Mapped(ends.slots.fds.popleft, lambda array: locked.append(weakref.ref(array)))
    ends.reader = MessageReader(ends.mapped)
    kept = [ends.sent([pictures(ends)])[0].image for _ in range(2)]
    expected = kept[1].clone()

    del ends, kept[0]
    gc.collect()
    assert [each() is not None for each in locked] == [False, True]
    assert torch.equal(kept[0], expected)
    kept.clear()
    assert locked[1]() is None
