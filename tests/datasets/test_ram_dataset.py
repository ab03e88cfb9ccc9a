import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset, augment, concat
from loaders.codecs.picture import encode_jpeg
from loaders.datasets.memory import loading
from loaders.errors import LoadersError, SampleError, SchemaError, SourceError
from loaders.schema import Array, Boxes, Image, Label, Mask, Text
from loaders.system import limits
from tests.packdata.packing import FIELDS, pack, pack_samples, sample
from tests.refusals import At

NUM = 11


@pytest.fixture(scope="module", params=["lmdb", "parquet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, format=request.param)


def assert_equal(one: Any, other: Any) -> None:
    """Every field of every sample, to the bit."""
    assert len(one) == len(other)
    for i in range(len(one)):
        assert one[i]._fields == other[i]._fields
        for a, b in zip(one[i], other[i], strict=True):
            if isinstance(a, torch.Tensor):
                assert a.dtype == b.dtype
                assert torch.equal(a, b)
            else:
                assert a == b


# -- of a packed dataset --------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [False, True])
def test_it_equals_the_shards(folder: Path, decode: bool) -> None:
    shards = ShardDataset(folder, fields=[*FIELDS, "sample_id"])

    loaded = RAMDataset(shards, decode=decode, progress=False)

    assert_equal(loaded, shards)
    assert loaded.fingerprint == shards.fingerprint
    assert loaded.classes == shards.classes
    assert loaded.find(str(sample(4)["key"])) == 4
    assert (loaded.schema.fields["image"].codec == "raw") == decode


def test_a_folder_is_loaded_with_the_settings_of_a_shard_dataset(folder: Path) -> None:
    settings: dict[str, Any] = {
        "fields": ["image", "label"], "augment": [augment.RandomResizedCrop(9)],
    }  # fmt: skip

    loaded = RAMDataset(folder, progress=False, **settings)

    assert_equal(loaded, ShardDataset(folder, **settings))
    assert "pixels" not in loaded.schema.fields
    assert_equal(
        RAMDataset(ShardDataset(folder), fields=["label"], progress=False),
        ShardDataset(folder, fields=["label"]),
    )


@pytest.mark.parametrize("decode", [False, True])
def test_a_view_keeps_its_order(folder: Path, decode: bool) -> None:
    view = ShardDataset(folder, fields=["image", "pixels", "boxes", "key"]).select([7, 0, 0, 10])

    loaded = RAMDataset(view, decode=decode, progress=False)

    assert_equal(loaded, view)
    assert_equal(loaded[::-1], view[::-1])
    assert loaded.nbytes < 4 * (40 * 48 * 3 + 16 * 26 * 3 + 200)


def test_an_empty_view_and_a_joined_dataset_are_loaded(folder: Path) -> None:
    shards = ShardDataset(folder, fields=["image", "pixels", "key"])

    assert len(RAMDataset(shards[:0], decode=True, progress=False)) == 0
    joined = shards[8:] + shards[:2]
    loaded = RAMDataset(joined, progress=False)
    assert_equal(loaded, joined)
    assert_equal(loaded + shards[3:4], concat([shards[8:], shards[:2], shards[3:4]]))


def test_pictures_of_one_size_become_a_tensor_when_decoded(tmp_path: Path) -> None:
    samples = [{"image": np.full((8, 9, 3), i, np.uint8)} for i in range(5)]
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, samples)

    loaded = RAMDataset(folder, decode=True, progress=False)

    assert loaded.column("image").shape == (5, 3, 8, 9)
    (batch,) = DataLoader(loaded, 5)
    assert batch.image[:, 0, 0, 0].tolist() == list(range(5))


@pytest.mark.parametrize(("shared", "share"), [(False, 0.5), (True, 1)])
def test_pictures_are_decoded_on_the_cores_of_this_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, share: float
) -> None:
    """Beside another rank on half of them; where that one waits for the copy to be shared, on all."""
    image = np.zeros((8, 9, 3), np.uint8)
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, [{"image": image}])
    monkeypatch.setattr(limits, "_affinity_cores", lambda: 6)
    monkeypatch.setattr(limits, "cpu_quota", lambda *_: None)
    monkeypatch.setattr(limits, "has_own_cores", lambda: False)
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "2")
    asked: list[int] = []

    class Noted(ThreadPoolExecutor):
        def __init__(self, num_threads: int) -> None:
            asked.append(num_threads)
            super().__init__(num_threads)

    monkeypatch.setattr(loading, "ThreadPoolExecutor", Noted)

    RAMDataset(folder, decode=True, progress=False, shared=shared)

    assert asked == [6 * share]


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_damage_is_found_while_loading(tmp_path: Path, on_error: str) -> None:
    folder = pack_samples(tmp_path / "a", 4, format="parquet", fields=["pixels"])
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[data.index(sample(2)["pixels"].tobytes())] ^= 1
    path.write_bytes(data)

    with pytest.raises(LoadersError, check=At("a/shard-00000.parquet", field="pixels")):
        RAMDataset(folder, progress=False, on_error=on_error)


def test_it_pickles_whole(folder: Path) -> None:
    loaded = RAMDataset(folder, progress=False)[2:]

    assert_equal(pickle.loads(pickle.dumps(loaded)), loaded)


def test_what_does_not_fit_is_refused_with_figures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 30_000)

    with pytest.raises(LoadersError):
        RAMDataset(folder, fields=["pixels"], progress=False)
    shards = ShardDataset(folder, fields=["pixels"])
    assert len(RAMDataset(shards[:2], progress=False)) == 2


def test_pixels_that_do_not_fit_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of varying size, too; encoded they are small."""
    samples = [{"image": np.zeros((300 + i, 300, 3), np.uint8)} for i in range(4)]
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, samples)
    monkeypatch.setattr(loading, "available_memory", lambda: 1_000_000)

    assert len(RAMDataset(folder, progress=False)) == 4
    with pytest.raises(LoadersError):
        RAMDataset(folder, decode=True, progress=False)


# -- of loose files -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three pictures, one of each format, of 20 x 24."""
    y, x = np.mgrid[:20, :24]
    picture = np.stack([y * 12, x * 10, y + x], axis=2).astype(np.uint8)
    paths = [tmp_path / f"{i}.{suffix}" for i, suffix in enumerate(["jpg", "png", "webp"])]
    for path in paths:
        assert cv2.imwrite(
            str(path), picture, [cv2.IMWRITE_WEBP_QUALITY, 101] if path.suffix == ".webp" else []
        )
    return paths


@pytest.mark.parametrize("decode", [False, True])
def test_files_are_samples(files: list[Path], decode: bool) -> None:
    dataset = RAMDataset.from_files(files, ["dog", "cat", "dog"], decode=decode, progress=False)

    picture = cv2.imread(str(files[1]))
    assert picture is not None
    expected = torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1)
    assert dataset.classes == ("cat", "dog")
    assert dataset.column("label").tolist() == [1, 0, 1]
    assert torch.equal(dataset[1].image, expected)
    assert torch.equal(dataset[2].image, expected)
    assert (dataset[0].image.int() - expected.int()).abs().float().mean() < 6
    assert dataset.find(str(files[2])) == 2
    numbered = RAMDataset.from_files(files, np.array([4, 0, 2]), decode=decode, progress=False)
    assert [s.label.item() for s in numbered] == [4, 0, 2]
    assert numbered.fingerprint != dataset.fingerprint


def test_a_jpeg_with_bytes_after_its_end_is_taken(files: list[Path]) -> None:
    files[0].write_bytes(files[0].read_bytes() + b"more")

    assert RAMDataset.from_files(files, progress=False)[0].image.shape == (3, 20, 24)


def test_files_that_are_not_pictures_are_named(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.png").write_text("not a picture")

    for name in ("empty.jpg", "text.png", "missing.png"):
        with pytest.raises(SourceError, check=At(name)):
            RAMDataset.from_files([*files, tmp_path / name], progress=False)


@pytest.mark.parametrize(
    "kind",
    [
        lambda names: np.array(names, object),
        lambda names: np.array(names, np.dtypes.StringDType()),
        pa.array,
        pd.Series,
        lambda names: pd.Series(names, dtype="category"),
    ],
    ids=["objects", "texts", "arrow", "pandas", "categories"],
)
def test_names_in_a_column_of_a_frame_are_names(files: list[Path], kind: Any) -> None:
    targets = kind(["dog", "cat", "dog"])
    dataset = RAMDataset.from_files(pd.Series([*map(str, files)]), targets, progress=False)

    assert dataset.classes == ("cat", "dog")
    assert dataset.column("label").tolist() == [1, 0, 1]
    with pytest.raises(TypeError):
        RAMDataset.from_files(files, pd.Series(["dog", "cat", None]), progress=False)


def test_sets_which_have_no_order_are_neither_files_nor_targets(files: list[Path]) -> None:
    for paths, targets in (({*files}, ["a", "b", "c"]), (files, {"a", "b", "c"})):
        with pytest.raises(TypeError):
            RAMDataset.from_files(paths, targets, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [float("nan"), 1, 2.5, True, None])
def test_what_is_no_name_does_not_become_a_class(files: list[Path], other: object) -> None:
    """Numpy makes a text of it: one class too many."""
    with pytest.raises(TypeError):
        RAMDataset.from_files(files, ["cat", "dog", other], progress=False)  # type: ignore[arg-type]


def test_a_file_that_only_decoding_finds_bad_is_named(files: list[Path]) -> None:
    data = bytearray(files[1].read_bytes())
    at = data.index(b"IDAT") + 8
    data[at : at + 40] = bytes(40)
    files[1].write_bytes(data)

    dataset = RAMDataset.from_files(files, progress=False)

    with pytest.raises(SampleError, check=At("files", row=1, index=1)):
        dataset[1]
    with pytest.raises(SourceError, check=At("1.png")):
        RAMDataset.from_files(files, decode=True, progress=False)


# -- of arrays ------------------------------------------------------------------------------------


def test_arrays_of_other_names_or_values_are_another_dataset() -> None:
    one, other = np.arange(6), np.arange(1, 7)
    given: list[dict[str, Any]] = [{"x": one}, {"y": one}, {"x": other}, {"x": one, "y": other}]

    prints = [RAMDataset.from_arrays(**arrays).fingerprint for arrays in given]

    assert len(set(prints)) == len(prints)
    assert RAMDataset.from_arrays(x=one.copy()).fingerprint == prints[0]


def test_arrays_are_samples() -> None:
    """Pictures in either order of axes, labels, and anything else."""
    rng = np.random.default_rng(0)
    nchw = rng.integers(0, 256, (6, 3, 8, 10), np.uint8)
    features = torch.arange(12.0).reshape(6, 2)

    dataset = RAMDataset.from_arrays(
        chw=nchw, hwc=nchw.transpose(0, 2, 3, 1), label=np.arange(6), features=features,
        flag=np.arange(6) % 2 == 0,
    )  # fmt: skip

    for i, served in enumerate(dataset):
        assert np.array_equal(served.chw, nchw[i])
        assert np.array_equal(served.hwc, nchw[i])
        assert served.label == i
        assert torch.equal(served.features, features[i])
        assert served.flag.dtype == torch.bool
    assert isinstance(dataset.schema.fields["label"], Label)
    assert np.array_equal(dataset.column("chw"), nchw)


def test_a_schema_says_what_arrays_mean() -> None:
    pixels = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    schema = {"image": Image(size=(4, 5), codec="raw"), "x": Array(dtype="int32")}

    for array in (pixels, pixels.transpose(0, 2, 3, 1)):
        dataset = RAMDataset.from_arrays(schema=schema, image=array, x=np.arange(2))
        assert np.array_equal(dataset[1].image, pixels[1])
        assert dataset[1].x.dtype == torch.int32
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(schema=schema, image=pixels.transpose(0, 3, 2, 1), x=np.arange(2))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (np.array([300, -1]), Array(dtype="uint8")),
        (np.array([0.5, 1.7]), Label()),
        (np.array([2**64 - 1, 3], np.uint64), Label()),
        (np.full((2, 4, 4, 3), 0.5, np.float32), Image(codec="raw", size=(4, 4))),
        (np.full((2, 4, 4), 300), Mask(codec="raw", size=(4, 4))),
    ],
)
def test_numbers_that_a_field_cannot_hold_are_refused(values: Any, field: Any) -> None:
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(schema={"x": field}, x=values)


def test_arrays_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(a=np.float32(3))
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(schema={"b": Label()}, a=np.arange(2))


def test_a_crop_may_lie_outside_of_the_picture(tmp_path: Path) -> None:
    """Then nothing of a JPEG is needed, and the batch has zeros, whether pixels or files are kept."""
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{i}.jpg" for i in range(20)]
    for file in files:
        file.write_bytes(encode_jpeg(rng.integers(0, 256, (32, 32, 3), np.uint8)))
    crop = [augment.RandomCrop(8, padding=40)]

    encoded = RAMDataset.from_files(files, progress=False, augment=crop)
    decoded = RAMDataset.from_files(files, progress=False, augment=crop, decode=True)

    pairs = [(encoded[i].image, decoded[i].image) for i in range(len(files))]
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(not a.any() for a, _ in pairs)


@pytest.mark.parametrize("way", ["folder", "files", "pixels"])
def test_the_memory_that_it_takes_is_shown_before_loading_or_refused(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "_MUCH", 1000)
    files = [tmp_path / f"{i}.jpg" for i in range(4)]
    for file in files:
        file.write_bytes(encode_jpeg(np.zeros((32, 32, 3), np.uint8)))
    folder = pack_samples(tmp_path / "p", 12)

    def load(**settings: Any) -> RAMDataset:
        if way == "folder":
            return RAMDataset(folder, **settings)
        return RAMDataset.from_files(files, decode=way == "pixels", **settings)

    load(progress=False)
    assert "RAMDataset" not in capsys.readouterr().err
    load(progress=True)
    assert re.search(r"RAMDataset: \S+ GB; \S+ GB are available", capsys.readouterr().err)
    monkeypatch.setattr(loading, "available_memory", lambda: 100)
    with pytest.raises(LoadersError):
        load()


def test_samples_of_a_subclass_are_not_left_out_in_silence(folder: Path) -> None:
    class Mine(ShardDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index).label * 100

    with pytest.raises(TypeError):
        RAMDataset(Mine(folder))


def test_a_field_that_does_not_lie_on_the_device_is_named() -> None:
    source = RAMDataset.from_arrays(x=np.zeros((4, 3)), label=np.arange(4))
    resident = RAMDataset(source, device="cpu", fields=["x"])

    with pytest.raises(SchemaError):
        resident.replace(fields=["x", "label"])
    assert resident.replace(fields=["x", "sample_id"])[2].sample_id == 2


def test_samples_of_which_nothing_is_stored_are_refused() -> None:
    source = RAMDataset.from_arrays(label=np.arange(4)).replace(fields=["sample_id"])

    with pytest.raises(SchemaError):
        RAMDataset(source)


@pytest.mark.parametrize("codec", ["yuv420", "dct", "jpeg", "png"])
def test_arrays_are_not_taken_for_what_a_codec_makes_of_them(codec: str) -> None:
    schema = {"image": Image(size=(8, 8), codec=codec)}

    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(image=np.zeros((2, 8, 8, 3), np.uint8), schema=schema)


def test_memory_that_cannot_be_page_locked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "cudart", missing)
    with pytest.raises(LoadersError):
        RAMDataset(RAMDataset.from_arrays(x=np.zeros((4, 3))), device="cpu", pin=True)


@pytest.mark.parametrize("shape", [(5, 16, 64, 48), (5, 13, 64, 64), (5, 64, 48, 16)])
def test_pictures_of_other_channels_are_not_guessed(shape: tuple[int, ...]) -> None:
    pixels = np.zeros(shape, np.uint8)

    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(x=pixels)
    said = Image(channels=shape[1], size=(shape[2], shape[3]), codec="raw")
    assert RAMDataset.from_arrays(x=pixels, schema={"x": said})[0].x.shape == shape[1:]


def test_masks_in_memory_say_that_they_are() -> None:
    """Left where they are beside pictures that move, they would be wrong in silence."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 12, 12, 3), dtype=np.uint8)
    arrays: dict[str, Any] = {"image": pixels, "mask": pixels[..., 0].copy()}
    moves = [augment.RandomCrop(12, padding=2), augment.RandomHorizontalFlip()]

    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(**arrays, augment=moves)
    schema = {"mask": Mask(size=(12, 12), codec="raw")}
    dataset = RAMDataset.from_arrays(**arrays, augment=moves, schema=schema)

    assert all(torch.equal(sample.image[0], sample.mask) for sample in dataset)


def test_lengths_are_told_without_reading(tmp_path: Path) -> None:
    fields = {
        "ids": Array(dtype="int32", dims=(None,)),
        "series": Array(dims=(2, None), spatial=1),
        "plane": Array(dims=(None, None)),
        "boxes": Boxes(),
        "text": Text(),
        "label": Label(),
    }
    rows = [
        {
            "ids": np.arange(i),
            "series": np.zeros((2, 3 * i)),
            "plane": np.zeros((i, i)),
            "boxes": np.ones((i, 4)) * [0, 0, 1, 1],
            "text": "ä" * i,
            "label": i,
        }
        for i in range(7)
    ]
    folder = pack(tmp_path / "a", fields, rows, format="parquet")
    shards = ShardDataset(folder)

    for dataset in (shards, RAMDataset(shards, progress=False), concat([shards, shards])[:7]):
        assert dataset.lengths("ids").tolist() == list(range(7))
        assert dataset.lengths("series").tolist() == list(range(0, 21, 3))
        assert dataset.lengths("boxes").tolist() == list(range(7))
        assert dataset.lengths("text").tolist() == list(range(0, 14, 2))
        assert dataset.select([5, 0, 5]).lengths("ids").tolist() == [5, 0, 5]
        for name in ("plane", "label", "sample_id"):
            with pytest.raises(SchemaError):
                dataset.lengths(name)
