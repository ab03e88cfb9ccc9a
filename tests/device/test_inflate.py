"""``dct`` records that are decompressed behind the copy to the device: the same coefficients, the same images."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, InflateOnDevice, RAMDataset, ShardDataset, augment
from loaders.codecs.dct import DctCodec
from loaders.datasets.reading.coefficients import Moved
from loaders.device.decode import Coefficients, DctFinish
from loaders.device.inflate import (
    Compressed,
    HostInflate,
    InflateFinish,
    nvcomp_module,
    places_of,
)
from loaders.errors import (
    BatchError,
    ChecksumError,
    CodecError,
    LoadersError,
    SampleError,
    SchemaError,
)
from loaders.schema import Field, Image, Label, Text
from tests.device.test_decode import host_half, pictures
from tests.packdata.packing import pack
from tests.refusals import At

SIZE = (48, 56)
FIELDS = {
    "lz4": Image(size=SIZE, codec="dct", quality=98),
    "zstd": Image(size=SIZE, codec="dct", quality=98, compression="zstd"),
    "gray": Image(size=SIZE, codec="dct", channels=1),
}
SCALES = [1, 1 / 2, 1 / 4, 1 / 8]


def encoded(field: Image, num: int) -> list[bytes]:
    """Return records of black and white alone, most of which have values beyond int8; one is plain."""
    codec = DctCodec(field)
    images = [
        np.where(p < 128, 0, 255).astype(np.uint8) for p in pictures(num, SIZE, field.channels)
    ]
    images[-1][:] = 77
    return [codec.encode(image) for image in images]


def as_arrays(records: list[bytes]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    return [np.frombuffer(record, np.uint8) for record in records]


def compressed(field: Image, records: list[bytes], side: int) -> Compressed:
    parts, escapes = DctCodec(field).split(as_arrays(records), side)
    places = places_of([len(part) for part in parts])
    data = torch.full((places.offsets[-1] + places.sizes[-1],), 255, dtype=torch.uint8)
    for part, at in zip(parts, places.offsets, strict=True):
        data[at : at + len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    return Compressed(data, places.sizes, *(torch.from_numpy(part) for part in escapes))


# -- records and their bands -----------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("side", [8, 4, 2, 1])
def test_bands_are_what_stands_in_the_records(name: str, side: int) -> None:
    """As many as the scale needs, in the order of the prefix, and nothing else."""
    codec, records = DctCodec(FIELDS[name]), encoded(FIELDS[name], 4)

    parts, _ = codec.split(as_arrays(records), side)

    per_record = len(parts) // len(records)
    assert per_record == {8: 4, 4: 3, 2: 2, 1: 1}[side]
    for i, record in enumerate(as_arrays(records)):
        bands = b"".join(parts[i * per_record : (i + 1) * per_record])
        prefix = record[: codec.prefix_nbytes(record, side)].tobytes()
        assert prefix.endswith(bands)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("scale", SCALES)
def test_coefficients_are_those_that_the_host_decompresses(name: str, scale: float) -> None:
    field, side = FIELDS[name], round(8 * scale)
    records = encoded(field, 5)
    codec, finish = DctCodec(field), DctFinish.of(field, scale)
    inflate = InflateFinish(codec, finish, "cpu")

    found = inflate.coefficients(compressed(field, records, side))

    wanted = host_half(codec, records, side)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(inflate(compressed(field, records, side)), finish(wanted))


@pytest.mark.parametrize("scale", SCALES)
def test_every_band_begins_at_a_multiple_of_16_bytes(scale: float) -> None:
    calls: list[Any] = []

    def note(data: torch.Tensor, parts: Any, out: torch.Tensor, places: Any) -> None:
        calls.append((parts, places))
        HostInflate(codec)(data, parts, out, places)

    field = FIELDS["lz4"]
    codec = DctCodec(field)
    batch = compressed(field, encoded(field, 3), round(8 * scale))
    InflateFinish(codec, DctFinish.of(field, scale), "cpu", note)(batch)

    ((parts, places),) = calls  # one call for all of them
    num = SCALES[::-1].index(scale) + 1
    assert len(parts.offsets) == len(places.offsets) == 3 * num
    assert all(at % 16 == 0 for at in (*parts.offsets, *places.offsets))
    assert places.sizes == list(codec.band_nbytes[:num]) * 3


def test_records_that_are_cut_are_refused() -> None:
    codec, records = DctCodec(FIELDS["lz4"]), as_arrays(encoded(FIELDS["lz4"], 2))

    with pytest.raises(CodecError):
        codec.split([records[0], records[1][:-1]])
    with pytest.raises(CodecError):
        codec.split([records[0][:10]])
    assert len(codec.split([records[0][: codec.prefix_nbytes(records[0], 4)]], 4)[0]) == 3


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_damaged_bands_are_an_error_on_the_host(name: str) -> None:
    field = FIELDS[name]
    batch = compressed(field, encoded(field, 1), 8)
    batch.data[: batch.sizes[0]] = 255

    with pytest.raises(CodecError):
        InflateFinish(DctCodec(field), DctFinish.of(field), "cpu")(batch)


def test_sizes_of_other_data_are_refused() -> None:
    field = FIELDS["lz4"]
    inflate = InflateFinish(DctCodec(field), DctFinish.of(field), "cpu")
    batch = compressed(field, encoded(field, 2), 8)

    for other in (batch._replace(sizes=batch.sizes[:-1]), batch._replace(data=batch.data[:-1])):
        with pytest.raises(BatchError):
            inflate(other)


def test_an_empty_batch_has_no_images() -> None:
    field = FIELDS["lz4"]
    none = Compressed(torch.zeros(0).byte(), [], torch.zeros(0).long(), torch.zeros(0))

    images = InflateFinish(DctCodec(field), DctFinish.of(field), "cpu")(none)

    assert images.shape == (0, 3, *SIZE)


def test_a_device_without_a_decompressor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    field = FIELDS["lz4"]
    with pytest.raises(LoadersError):
        InflateFinish(DctCodec(field), DctFinish.of(field), "meta")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadersError):
        nvcomp_module()
    old = ModuleType("nvidia.nvcomp")
    old.__dict__["__version__"] = "5.1.0.21"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", old)
    with pytest.raises(LoadersError):
        nvcomp_module()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("nvidia") is None,
    reason="needs a CUDA device and nvCOMP",
)
@pytest.mark.parametrize("name", FIELDS)
def test_nvcomp_decompresses_what_the_host_does(name: str) -> None:
    pytest.importorskip("nvidia.nvcomp")
    field = FIELDS[name]
    codec, batch = DctCodec(field), compressed(field, encoded(field, 5), 8)
    there = batch._replace(
        data=batch.data.cuda(), positions=batch.positions.cuda(), adds=batch.adds.cuda()
    )

    found = InflateFinish(codec, DctFinish.of(field).to("cuda"), "cuda").coefficients(there)

    wanted = InflateFinish(codec, DctFinish.of(field), "cpu").coefficients(batch)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, wanted, strict=True))


# -- in a loader -----------------------------------------------------------------------------------


def packed(folder: Path, name: str, num: int = 9) -> Path:
    fields: dict[str, Field] = {"image": FIELDS[name], "label": Label(), "key": Text()}
    samples = [
        {"image": record, "label": i, "key": f"k{i}"}
        for i, record in enumerate(encoded(FIELDS[name], num))
    ]
    return pack(folder, fields, samples, defaults=["image", "label"], format="parquet")


def on_device(dataset: Any, name: str) -> InflateOnDevice:
    return InflateOnDevice(dataset, decompress=HostInflate(DctCodec(FIELDS[name])))


OPS: list[Any] = [augment.RandomCrop(16), augment.RandomHorizontalFlip()]


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ops", [[], OPS])
@pytest.mark.parametrize(("name", "scale"), [("lz4", 1), ("lz4", 1 / 2), ("zstd", 1), ("gray", 1)])
def test_a_loader_serves_the_same_images(
    tmp_path: Path, backend: Any, ops: list[Any], name: str, scale: float
) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", name), augment=ops, scale=scale)
    make: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2, "pad": False}
    make |= {"num_workers": 2, "backend": backend}

    plain = DataLoader(dataset, augment_on="host", **make)
    there = DataLoader(on_device(dataset, name), **make)

    for _ in range(2):
        for want, got in zip(plain, there, strict=True):
            assert torch.equal(got.image, want.image)
            assert got.label.tolist() == want.label.tolist()


def test_what_moves_is_the_compressed_bands(tmp_path: Path) -> None:
    """And the part of the images that the crops touch, as for any other."""
    dataset = ShardDataset(packed(tmp_path / "a", "lz4"), augment=OPS)

    wholes: list[Any] = [on_device(dataset, "lz4"), dataset]
    halves = [whole.halves(torch.device("cpu"))[0] for whole in wholes]
    compressed, plain = (half.__getitems__([1, 8, 1]).batch.image for half in halves)

    assert isinstance(compressed, Moved)
    assert isinstance(compressed.half, Compressed)
    assert isinstance(plain.half, Coefficients)
    assert compressed.half.data.nbytes < plain.half.planes.nbytes
    assert compressed.cut is not None
    assert torch.equal(compressed.cut.corners, plain.cut.corners)


def test_memory_views_and_single_samples_are_the_datasets(tmp_path: Path) -> None:
    dataset = RAMDataset(packed(tmp_path / "a", "lz4"), progress=False)
    there = on_device(dataset.select([4, 2, 7]), "lz4")

    (batch,) = DataLoader(there, batch_size=3)

    assert torch.equal(batch.image, torch.stack([dataset[i].image for i in (4, 2, 7)]))
    assert torch.equal(there[1].image, dataset[2].image)
    assert (len(there), there.num_replaced) == (3, 0)
    with pytest.raises(SchemaError):
        assert there.classes


def test_damage_is_found_before_a_device_sees_it(tmp_path: Path) -> None:
    """By the checksums; it is an error, or replaced as without a device."""
    folder = packed(tmp_path / "a", "lz4")
    record = encoded(FIELDS["lz4"], 9)[2]
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[data.index(record) + len(record) - 3] ^= 16
    path.write_bytes(data)

    with pytest.raises(SampleError, check=At(cause=ChecksumError)):
        list(DataLoader(on_device(ShardDataset(folder), "lz4"), 4))
    dataset = ShardDataset(folder, on_error="replace")
    (want,), (got,) = (DataLoader(d, 9) for d in (dataset, on_device(dataset, "lz4")))
    assert torch.equal(want.image, got.image)


def test_other_datasets_are_refused(tmp_path: Path) -> None:
    folder = packed(tmp_path / "a", "lz4")
    dataset = ShardDataset(folder)
    for other in (
        dataset.replace(fields=["label"]),
        dataset.replace(transform=lambda sample: sample),
        ShardDataset(folder, check="never"),
    ):
        with pytest.raises(SchemaError):
            InflateOnDevice(other)
    not_packed: Any = [1]
    with pytest.raises(TypeError):
        InflateOnDevice(not_packed)
