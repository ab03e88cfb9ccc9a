"""What a dataset hands out: samples and batches, both named tuples in field order."""

from __future__ import annotations

import reprlib
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.utils.data import get_worker_info

from loaders.checks import shown
from loaders.device.nested import holds, tensors_of
from loaders.errors import BatchError


class Form(NamedTuple):
    """How a batch has arrays of different lengths."""

    # ``"list"``; ``"pad"``: one tensor and the lengths; ``"offsets"``: end to end; ``"equal"``: one tensor where all
    # of a batch have one shape, else a list.
    kind: str = "list"
    value: float = 0  # that padding has
    # The axis along which the arrays differ; None: the first one that is not of length 1.
    axis: int | None = None
    num_axes: int | None = None  # of arrays for which ``axis`` holds; None: of all

    def axis_of(self, tensors: list[torch.Tensor]) -> int:
        """Return the axis along which arrays are joined, which may be none that they have."""
        num_axes = tensors[0].dim()
        if self.axis is not None and self.num_axes in (None, num_axes):
            return self.axis + num_axes if self.axis < 0 else self.axis
        long = (
            a for a in range(num_axes) if any(t.dim() <= a or t.shape[a] != 1 for t in tensors)
        )
        return next(long, 0)


LIST = Form()


class Padded(NamedTuple):
    """Arrays of different lengths as one tensor: ``(N, longest, ...)``, padded behind each; int64 ``lengths``.

    Those that differ along another ``axis`` of theirs have it there: ``(N, channels, longest)``.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def form(self) -> Form:
        """How they were joined."""
        return Form("pad", axis=0)


class Ragged(NamedTuple):
    """Arrays of different lengths end to end: array ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Those that differ along another axis lie end to end along it. Of pictures of different sizes ``values`` is a list.
    """

    values: Any
    offsets: torch.Tensor

    @property
    def form(self) -> Form:
        """How they were joined."""
        return Form("offsets", axis=0)


@lru_cache(maxsize=256)
def _joined_type(form: Form) -> Any:
    """Return the type of arrays that were joined so; instances pickle."""
    plain = Padded if form.kind == "pad" else Ragged
    attributes = {
        "__slots__": (),
        "form": form,
        "__reduce__": lambda value: (_rebuild_joined, (value.form, tuple(value))),
    }
    is_plain = form.axis == 0 and not form.value
    return plain if is_plain else type(plain.__name__, (plain,), attributes)


def _rebuild_joined(form: Form, values: tuple[torch.Tensor, ...]) -> Any:
    return _joined_type(form)(*values)


@lru_cache(maxsize=256)
def sample_type(names: tuple[str, ...]) -> Any:
    """Return the named tuple of these fields; its instances pickle."""
    return type(
        "Sample", (Fields, namedtuple("Sample", names)), {"__slots__": (), "_kind": sample_type}
    )


@lru_cache(maxsize=256)
def batch_type(names: tuple[str, ...]) -> Any:
    """Return the named tuple of a batch of these fields.

    ``batch.valid`` tells real rows (True) from padding: a bool tensor, or None where all are real.
    """
    return type(
        "Batch", (Fields, namedtuple("Batch", names)), {"valid": None, "_kind": batch_type}
    )


class Fields(tuple[torch.Tensor, ...]):
    """A sample, or a batch of them: a named tuple of tensors, one for each field.

    Type checkers take each field for a tensor. Of others, say it: ``train: ShardDataset[Photo] = ShardDataset(...)``,
    where ``Photo`` is a ``NamedTuple`` of the fields' types in a batch.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _fields: tuple[str, ...]
        valid: Any  # a bool tensor, or None where all rows are real

        def _asdict(self) -> dict[str, torch.Tensor]: ...

    else:

        def __getitem__(self, at: Any) -> Any:
            if not isinstance(at, str):
                return super().__getitem__(at)
            what = f"{self._what()}: write .{at}"
            raise TypeError(f"{what}, or set as_dict=True of the DataLoader for [{at!r}]")

    def __repr__(self) -> str:
        values = zip(self._fields, self, strict=True)
        return f"{type(self).__name__}({', '.join(f'{n}={_brief(v)}' for n, v in values)})"

    def __getattr__(self, name: str) -> torch.Tensor:
        hint = "the dataset's fields=[...] chooses among what is stored"
        raise AttributeError(f"{self._what()}; there is no {name!r}: {hint}")

    def _replace(self, **values: Any) -> Self:
        """Return it with other values of some fields, and what stands beside them."""
        record: Self = super()._replace(**values)  # type: ignore[misc]
        for name, value in getattr(self, "__dict__", {}).items():
            setattr(record, name, value)
        return record

    def _what(self) -> str:
        fields = ", ".join(self._fields)
        return f"a {type(self).__name__} is a named tuple of {fields}"

    def __reduce__(self) -> Any:
        names = self._fields
        state = getattr(self, "__dict__", {})
        return _rebuild, (type(self)._kind, names, tuple(self), state)  # type: ignore[attr-defined]


def _brief(value: Any) -> str:
    """Show a tensor by its type and shape, and anything else in short."""
    if isinstance(value, torch.Tensor) and value.dim():
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return reprlib.repr(value)


def _rebuild(
    kind: Any, names: tuple[str, ...], values: tuple[Any, ...], state: dict[str, Any]
) -> Any:
    record = kind(names)(*values)
    for name, value in state.items():
        setattr(record, name, value)
    return record


class SampleBatch(Sequence[Any]):
    """A batch that can also be read sample by sample: what ``dataset.__getitems__`` returns.

    Our ``collate`` takes ``batch`` as it is; any other function sees a sequence of samples. These are made of ``rows``,
    where something in the batch belongs to all of it.
    """

    def __init__(self, batch: Any, num_samples: int, rows: Any = None) -> None:
        self.batch, self._num_samples = batch, num_samples
        self._rows = batch if rows is None else rows

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a batch of {len(self)}")
        return sample_of(self._rows, i)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


class SplitBatches:
    """Several batches whose fields were read at once: these pickle once, and are cut where the batches are used.

    Each batch has storages of its own, since torch saves and resizes whole ones. They lie in one memory, which is free
    again when the last of the batches is dropped; or (``is_copied``) in memory of their own, at the cost of a copy.
    """

    __slots__ = ("is_copied", "sizes", "whole")

    def __init__(self, whole: Any, sizes: list[int], *, is_copied: bool = False) -> None:
        self.whole, self.sizes, self.is_copied = whole, sizes, is_copied

    def __reduce__(self) -> Any:
        return SplitBatches, (self.whole, self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Any]:
        columns: Any = (_cut(tensor, self.sizes) for tensor in self.whole)
        if self.is_copied:
            columns = ([part.clone() for part in t.split(self.sizes)] for t in self.whole)
        parts = zip(*columns, strict=True)
        return map(partial(tuple.__new__, type(self.whole)), parts)  # takes half of ``_make``


def _cut(tensor: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Return the rows of each batch, over the same memory, which they keep."""
    rows, ends = tensor.numpy(), [*accumulate(sizes)]
    parts: Iterable[Any] = (rows[end - n : end] for n, end in zip(sizes, ends, strict=True))
    if len({*sizes}) == 1:  # takes two thirds of the time, for all but the last ones of an epoch
        parts = rows.reshape(len(sizes), sizes[0], *rows.shape[1:])
    return list(map(torch.from_numpy, parts))


def sample_of(batch: Any, i: int) -> Any:
    """Return one sample of a batch, over its memory, with storages of its own."""
    return sample_type(batch._fields)(*(item(values, i) for values in batch))


def item(values: Any, i: int) -> Any:
    """Return the value of one sample, from the values of a batch."""
    if isinstance(values, Padded):
        return with_own_storage(
            values.values[i].narrow(values.form.axis or 0, 0, int(values.lengths[i]))
        )
    if isinstance(values, Ragged):
        i = i if i >= 0 else i + len(values.offsets) - 1
        first, last = values.offsets[i : i + 2].tolist()
        if isinstance(values.values, list):  # pictures of different sizes
            return values.values[first:last]
        return with_own_storage(values.values.narrow(values.form.axis or 0, first, last - first))
    value = values[i]
    return with_own_storage(value) if isinstance(value, torch.Tensor) else value


def with_own_storage(view: torch.Tensor) -> torch.Tensor:
    """Return a part of a host batch with a storage of its own: torch saves and resizes whole storages."""
    if not view.is_cpu or view.dtype is torch.bfloat16:
        return view
    return torch.from_numpy(view.numpy())


def in_form(tensors: list[Any], form: Form, name: str) -> Any:
    """Return the arrays of a field, of different lengths, as ``batching`` asks; BatchError if they cannot be joined."""
    if form.kind == "list" or not tensors:
        return tensors
    if form.kind == "equal":
        is_one = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
        return torch.stack(tensors) if is_one else tensors
    if isinstance(tensors[0], list):
        return _flat(tensors, form, name)
    axis = form.axis_of(tensors)
    tensors = tensors if axis else shaped_alike(tensors)
    _check_joined(tensors, form, axis, name)
    lengths = [t.shape[axis] for t in tensors]
    kind = _joined_type(Form(form.kind, form.value, axis))
    if form.kind == "pad":
        padded = _padded(tensors, axis, form.value)
        return kind(padded, torch.tensor(lengths, dtype=torch.int64, device="cpu"))
    return kind(torch.cat(tensors, axis), _offsets(lengths))


def shaped_alike(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Reshape tensors without rows like those with rows: an empty one does not know how many points an object has."""
    shape = next((t.shape[1:] for t in tensors if t.shape[:1] != (0,)), None)
    return [
        t.reshape(0, *shape) if shape is not None and t.shape[:1] == (0,) else t for t in tensors
    ]


def _offsets(lengths: Iterable[int]) -> torch.Tensor:
    return torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int64, device="cpu")


def _flat(samples: list[list[Any]], form: Form, name: str) -> Any:
    """Return the pictures of all samples, of different sizes, in one list."""
    if form.kind == "pad":
        what = f"images of field {name!r} differ in size, and images cannot be padded"
        raise BatchError(
            f"{what}: bring them to one size with augment, or use 'offsets' or 'list'"
        )
    return Ragged(
        [picture for sample in samples for picture in sample], _offsets(map(len, samples))
    )


def _padded(tensors: list[torch.Tensor], axis: int, value: float) -> torch.Tensor:
    moved = [tensor.movedim(axis, 0) for tensor in tensors]
    padded = torch.nn.utils.rnn.pad_sequence(moved, batch_first=True, padding_value=value)
    return padded.movedim(1, axis + 1).contiguous()


def _check_joined(tensors: list[torch.Tensor], form: Form, axis: int, name: str) -> None:
    first = tensors[0]
    apart = {(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in tensors}
    if (
        not 0 <= axis < first.dim()
        or len(apart) > 1
        or any(t.dim() != first.dim() for t in tensors)
    ):
        shapes = sorted({(*t.shape,) for t in tensors})[:4]
        raise BatchError(
            f"arrays of field {name!r} differ in more than axis {axis}: shapes {shapes}, types "
            f"{sorted({str(t.dtype) for t in tensors})}; name another axis, ('pad', 0, axis), or use 'list'"
        )
    if form.kind == "pad" and not holds(first.dtype, form.value):
        raise BatchError(
            f"arrays of field {name!r} are {first.dtype}, which cannot hold the padding {form.value}"
        )


class TransformedSamples(list[Any]):
    """What a transform made of the samples of a batch, and how arrays of varying length are joined."""

    def __init__(self, samples: Sequence[Any], forms: dict[str, Form]) -> None:
        super().__init__(samples)
        self.forms = forms  # the form by name, of the fields that hold such arrays


def collate(samples: Any) -> Any:
    """Turn samples into a batch, for any DataLoader: without a copy where they came as one.

    What a transform made of our samples becomes a batch like any other if it still is samples;
    everything else goes to torch's ``default_collate``.

    Args:
        samples: A list of samples, or what the dataset's ``__getitems__`` returned.

    Raises:
        BatchError: Samples do not form a batch, or a worker process has no room for it in shared memory.
    """
    batch, worker = _collated(samples), get_worker_info()
    if worker is not None and getattr(worker, "worker_method", "") != "thread":
        _share(batch)
    return batch


def _share(batch: Any) -> None:
    """Move a batch to shared memory, as torch would later, on a thread whose errors the trainer never sees."""
    try:
        for tensor in tensors_of(batch):
            tensor.share_memory_()
    except RuntimeError as error:
        remedy = "Make /dev/shm larger (docker run --shm-size), or leave out backend='process'"
        raise BatchError(f"no shared memory is left for a batch ({error}). {remedy}") from error


def _collated(samples: Any) -> Any:
    if isinstance(samples, SampleBatch):
        return samples.batch
    if isinstance(samples, TransformedSamples) and samples:
        is_ours = isinstance(samples[0], Fields)
        return _collate_transformed(samples) if is_ours else _stacked("the batch", samples)
    if not hasattr(samples, "__len__") or not len(samples):
        raise BatchError(f"collate takes a list of samples, got {shown(samples)}")
    batch = torch.utils.data.default_collate(samples)
    return batch_type(batch._fields)._make(batch) if isinstance(batch, Fields) else batch


def collate_dict(samples: Any) -> Any:
    """Turn samples into a batch as ``collate`` does, as ``{field: values}`` if it has fields."""
    batch = collate(samples)
    return batch._asdict() if hasattr(batch, "_asdict") else batch


def _collate_transformed(samples: TransformedSamples) -> Any:
    names = samples[0]._fields
    columns = (
        in_form(list(values), samples.forms[name], name)
        if name in samples.forms and _are_joined(values, samples.forms[name])
        else _stacked(f"field {name!r}", list(values))
        for name, values in zip(names, zip(*samples, strict=True), strict=True)
    )
    return batch_type(names)._make(columns)


def _are_joined(values: Sequence[Any], form: Form) -> bool:
    """Tell whether values are tensors, or lists of pictures that stay such."""
    are_lists = form.kind != "equal" and all(isinstance(value, list) for value in values)
    return are_lists or all(isinstance(value, torch.Tensor) for value in values)


def _stacked(what: str, values: list[Any]) -> Any:
    if any(value is None for value in values):
        raise BatchError(f"transform returned None for {what}: it must return the sample")
    try:
        return torch.utils.data.default_collate(values)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        shapes = sorted({tuple(v.shape) for v in values if isinstance(v, torch.Tensor)})
        got = f"shapes {shapes[:4]}" if len(shapes) > 1 else str(error)
        raise BatchError(
            f"the samples that transform returned cannot be stacked at {what}: {got}. Return one shape, or "
            "sample._replace(...) beside batching={...: 'list'}, or pass collate_fn"
        ) from error


# What batches are pickled by makes named tuples, and nothing else: torch.load(weights_only=True) may call it.
torch.serialization.add_safe_globals(
    [_rebuild, _rebuild_joined, batch_type, sample_type, Form, Padded, Ragged]
)
