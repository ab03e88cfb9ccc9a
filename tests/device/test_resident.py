from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset, augment
from loaders.buffers import Memory
from loaders.datasets.memory import resident as resident_module
from loaders.datasets.memory.resident import Resident, _check_room
from loaders.device import fused
from loaders.device.accelerator import Accelerator
from loaders.device.nested import map_tensors
from loaders.device.pinned import page_lock
from loaders.errors import LoadersError, SchemaError
from loaders.schema import Array, Image, Label, Mask, Text
from tests.packdata.packing import pack

NUM = 23
OPS: list[Any] = [augment.RandomResizedCrop(9), augment.RandomHorizontalFlip()]


def arrays() -> RAMDataset:
    """Images, masks, labels, features and 16-bit tokens."""
    random = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        schema={
            "image": Image(channels=3, size=(12, 10), codec="raw"),
            "mask": Mask(size=(12, 10), codec="raw", dtype="int32"),
            "label": Label(),
            "features": Array(dtype="float32", dims=(5,)),
            "tokens": Array(dtype="uint16", dims=(7,)),
        },
        image=random.integers(0, 256, (NUM, 12, 10, 3)).astype(np.uint8),
        mask=random.integers(0, 1 << 30, (NUM, 12, 10)).astype(np.int32),
        label=np.arange(NUM),
        features=random.random((NUM, 5)).astype(np.float32),
        tokens=random.integers(0, 1 << 16, (NUM, 7)).astype(np.uint16),
    )


def same(one: Any, other: Any, within: int = 0) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.double().cpu() - b.double()).abs().max() <= within
        for a, b in pairs
    )


@pytest.mark.parametrize("num_workers", ["auto", 0, 2])
def test_batches_are_those_of_the_host(num_workers: Any) -> None:
    host = arrays()
    resident = RAMDataset(host, device="cpu")
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "num_workers": num_workers}

    pairs = zip(DataLoader(host, **settings), DataLoader(resident, **settings), strict=True)

    assert all(same(got, want) for want, got in pairs)
    assert resident.nbytes == host.nbytes
    assert DataLoader(resident).num_workers == 0


def test_augmentation_draws_what_the_host_draws() -> None:
    fields = ["image", "label", "sample_id"]
    host = arrays().replace(augment=OPS, fields=fields)
    resident = RAMDataset(arrays(), device="cpu", augment=OPS, fields=fields)
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 7}

    for want, got in zip(
        DataLoader(host, **settings), DataLoader(resident, **settings), strict=True
    ):
        assert same(got[:1], want[:1], within=1)
        assert same(got[1:], want[1:])


def test_both_halves_make_the_batch() -> None:
    """What crosses to the device is a few numbers; the loader's own path on a GPU, step by step."""
    dataset = RAMDataset(arrays(), device="cpu", augment=OPS, fields=["image", "mask", "label"])
    halves = dataset.halves("cpu")
    assert halves is not None
    half, finish = halves
    job: Any = half.job([3, 8, 1], Memory())
    job.run(0)
    numbers = map_tensors(job.finish().batch, torch.clone)

    rows, _, _ = numbers
    assert rows.tolist() == [3, 8, 1]
    assert same(finish(numbers), dataset.__getitems__([3, 8, 1]).batch)


def test_views_of_it_stay_resident() -> None:
    dataset = RAMDataset(arrays(), device="cpu")

    some = dataset.select([4, 2, 20])
    part = some.replace(fields=["label"])

    assert some[0].label == 4
    assert [int(sample.label) for sample in part] == [4, 2, 20]
    assert [int(sample.label) for sample in dataset[20:]] == [20, 21, 22]


def test_a_view_of_a_dataset_is_loaded_alone() -> None:
    dataset = RAMDataset(arrays().select([9, 4, 11]), device="cpu")

    assert [int(sample.label) for sample in dataset] == [9, 4, 11]
    assert dataset.select([2])[0].label == 11
    assert dataset.nbytes * NUM == arrays().nbytes * 3


def test_files_are_loaded_part_by_part_and_stay_for_lookups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.datasets.memory.resident._PART_BYTES", 100)
    fields = {"tokens": Array(dtype="uint16", dims=(8,)), "label": Label(), "key": Text()}
    rows = [
        {"key": f"s{i}", "tokens": np.arange(i, i + 8, dtype=np.uint16), "label": i}
        for i in range(30)
    ]
    pack(tmp_path / "packed", fields, rows, format="parquet", defaults=("tokens", "label"))

    dataset = RAMDataset(tmp_path / "packed", device="cpu", progress=False)
    plain = ShardDataset(tmp_path / "packed")

    assert all(same(dataset[i], plain[i]) for i in range(30))
    assert dataset.find("s7") == 7
    assert dataset.column("label").tolist() == list(range(30))
    assert dataset.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    "settings", [{"transform": lambda sample: sample}, {"augment": [augment.Views(a=OPS)]}]
)
def test_what_the_host_must_do_is_refused(settings: Any) -> None:
    with pytest.raises(SchemaError):
        RAMDataset(arrays(), device="cpu", **settings)
    with pytest.raises(SchemaError):
        RAMDataset(arrays(), device="cpu").replace(**settings)


def test_records_that_differ_in_size_are_refused(tmp_path: Path) -> None:
    pack(tmp_path / "packed", {"text": Text()}, [{"text": "a"}, {"text": "abc"}])

    with pytest.raises(SchemaError):
        RAMDataset(tmp_path / "packed", device="cpu", progress=False)


def test_another_device_is_refused() -> None:
    DataLoader(RAMDataset(arrays(), device="cpu"), device="cpu")
    with pytest.raises(ValueError):
        DataLoader(RAMDataset(arrays(), device="cpu"), device="meta")


def on_second_gpu(monkeypatch: pytest.MonkeyPatch) -> RAMDataset:
    """Return samples that a second GPU would read, with what they ask CUDA for replaced."""
    monkeypatch.setattr(fused, "why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(resident_module, "_wait_for", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    dataset = arrays()
    dataset._settle(torch.device("cuda:1"), is_pinned=True)
    return dataset


def test_the_current_gpu_is_refused_if_the_samples_lie_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their kernels would be started there."""
    dataset = on_second_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert dataset.halves("cuda") is not None
    assert dataset.halves("cuda:1") is not None

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    with pytest.raises(ValueError):
        DataLoader(dataset, device="cuda")


def test_batches_go_to_where_the_samples_lie_whatever_gpu_is_current_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = on_second_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    loader = DataLoader(dataset, device="cuda")
    monkeypatch.setattr("loaders.loading.loader.accelerator_for", Accelerator)

    accelerator = loader._accelerator

    assert accelerator is not None
    assert accelerator.device == torch.device("cuda:1")


def test_columns_on_a_device_are_never_read_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory that is page-locked may be; torch refuses the rest."""
    resident = Resident(arrays(), torch.device("meta"), is_pinned=False)
    monkeypatch.setattr(fused, "gathered", lambda *_: pytest.fail("started a kernel"))

    with pytest.raises((RuntimeError, NotImplementedError)):
        resident.gather("label", torch.zeros(2, dtype=torch.int64)).tolist()


class Runtime:
    """The two calls of the CUDA runtime, as they would be seen."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.locked, self.flags = code, dict[int, int](), set[int]()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if address in self.locked:
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.locked[address] = nbytes
        self.flags.add(flags)
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_page_locks_end_before_their_memory_does() -> None:
    runtime, array = Runtime(), np.zeros(100, np.uint8)

    page_lock(array, "column 'image'", runtime)
    address = array.ctypes.data
    tensor = torch.from_numpy(array)
    del array
    assert runtime.locked == {address: 100}
    del tensor

    assert runtime.locked == {}


def test_a_refused_page_lock_says_what_and_how_much() -> None:
    with pytest.raises(LoadersError):
        page_lock(np.zeros(2000, np.uint8), "column 'x'", Runtime(2))


def test_a_refused_page_lock_takes_its_error_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime keeps it: torch would raise it behind the next kernel, which may be anyone's."""
    kept = ["invalid argument"]

    def ones(*_: Any, device: str) -> None:
        raise RuntimeError(f"CUDA error: {kept.pop()}, on {device}")

    monkeypatch.setattr(torch, "ones", ones)

    with pytest.raises(LoadersError):
        page_lock(np.zeros(2000, np.uint8), "column 'x'", Runtime(1))

    assert not kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_works_on_after_a_refused_page_lock() -> None:
    array = np.zeros(1 << 20, np.uint8)
    page_lock(array, "a slot")

    with pytest.raises(LoadersError):  # it is locked already
        page_lock(array[:], "the same memory")

    assert torch.full((4,), 2.0, device="cuda").sum().item() == 8


def test_a_page_locked_arena_serves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned path, with the one CUDA call it makes replaced: the CPU reads the arena itself."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    host = arrays()

    dataset = RAMDataset(host, device="cpu", pin=True, progress=False)

    assert all(same(dataset[i], host[i]) for i in range(NUM))
    assert len(runtime.locked) == 5
    assert isinstance(dataset._resident, Resident)
    assert dataset._resident.is_pinned


def test_a_shared_copy_is_page_locked_once_and_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is mapped read-only, which CUDA has to be told; two datasets of a process have the same."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    fields = {"tokens": Array(dtype="uint16", dims=(8,)), "label": Label()}
    rows = [{"tokens": np.arange(i, i + 8, dtype=np.uint16), "label": i} for i in range(9)]
    pack(tmp_path / "packed", fields, rows, defaults=("tokens", "label"))
    settings: dict[str, Any] = {"shared": True, "device": "cpu", "pin": True, "progress": False}

    plain = ShardDataset(tmp_path / "packed")

    first = RAMDataset(tmp_path / "packed", **settings)
    second = RAMDataset(tmp_path / "packed", **settings)
    del first

    assert runtime.flags == {8}  # cudaHostRegisterReadOnly
    assert len(runtime.locked) == 2
    assert all(same(second[i], plain[i]) for i in range(9))
    del second
    assert runtime.locked == {}


def test_what_a_gpu_may_still_read_is_unlocked_after_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the dropped dataset's columns, which were locked for that GPU; with the calls replaced."""
    runtime, log = Runtime(), list[tuple[str, int]]()
    monkeypatch.setattr(fused, "why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: log.append((str(device), len(runtime.locked)))
    )

    def on(device: torch.device) -> nullcontext[None]:
        log.append((f"on {device}", 0))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", on)
    resident = Resident(arrays(), torch.device("cuda:1"), is_pinned=True)

    del resident

    assert log == [("on cuda:1", 0), ("cuda:1", 5)]
    assert runtime.locked == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("ops", [[], OPS])
def test_a_gpu_serves_the_same(pin: bool, ops: list[Any]) -> None:
    fields = ["image", "label", "features", "tokens", "sample_id"]
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 7}
    host = arrays().replace(augment=ops, fields=fields)
    resident = RAMDataset(
        arrays(), device="cuda", pin=pin, augment=ops, fields=fields, progress=False
    )

    for want, got in zip(
        DataLoader(host, **settings), DataLoader(resident, **settings), strict=True
    ):
        assert all(value.is_cuda for value in got)
        assert same(got[:1], want[:1], within=1 if ops else 0)
        assert same(got[1:], want[1:])
    torch.cuda.synchronize()


def test_what_a_device_cannot_hold_is_refused_with_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the one call replaced that asks CUDA for what is free."""
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 10**9, 8 * 10**9))

    _check_room(3 * 10**9, device)
    with pytest.raises(LoadersError):
        _check_room(4 * 10**9, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_too_much_for_the_gpu_is_refused_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))

    with pytest.raises(LoadersError):
        RAMDataset(arrays(), device="cuda")
