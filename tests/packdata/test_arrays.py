"""``packdata arrays``: .npy and .npz files to a packed dataset, and back bit for bit."""

import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pictures

from loaders.data.manifest import read_manifest
from loaders.errors import LoadersError, SchemaError, SourceError
from loaders.schema import Array, Label
from packdata import pack_arrays
from packdata.arrays import ArraysRecipe, plan_arrays
from packdata.cli import main
from packdata.inspect.preview import sheet_of, tile_of
from packdata.inspect.stats import stats
from packdata.inspect.verify import verify
from packdata.packing.engine import pack_recipes
from tests.packdata.reading import PackedReader
from tests.refusals import At

AnyArray = npt.NDArray[Any]
INTEGERS = ("uint8", "uint16", "int16", "int8", "int32", "int64")
DTYPES = (*INTEGERS, "float16", "float32", "float64", "bool")


def save(folder: Path, arrays: Mapping[str, Any]) -> Path:
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return folder


def numbers(shape: tuple[int, ...], dtype: str = "int16", seed: int = 0) -> AnyArray:
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


def stored(folder: Path, name: str = "array") -> dict[str, AnyArray]:
    """Return what was packed, by key."""
    reader = PackedReader(folder)
    samples = [reader.sample(i, [name, "key"]) for i in range(len(reader))]
    return {sample["key"]: sample[name] for sample in samples}


def array_field(folder: Path, name: str = "array") -> Array:
    field = read_manifest(folder).schema.fields[name]
    assert isinstance(field, Array)
    return field


def assert_refused(src: Path, dst: Path, **options: Any) -> str:
    with pytest.raises(LoadersError) as caught:
        pack_arrays(src, dst, **options)
    assert not (dst / "manifest.json").exists()
    return str(caught.value)


# -- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: str, format: Any) -> None:
    arrays = {f"a{i}": numbers((4, 5, 6), dtype, i) for i in range(3)}

    pack_arrays(save(tmp_path / "src", arrays), tmp_path / "dst", format=format)

    assert array_field(tmp_path / "dst") == Array(dtype=dtype, dims=(1, 4, 5, 6), spatial=3)
    for key, array in stored(tmp_path / "dst").items():
        assert array.dtype == dtype
        assert np.array_equal(array, arrays[key][None])
    assert verify(tmp_path / "dst").ok


@pytest.mark.parametrize(
    ("shape", "channels", "dims", "spatial"),
    [
        ((7,), None, (7,), 1),
        ((6, 7), None, (6, 7), 2),
        ((5, 6, 7), None, (1, 5, 6, 7), 3),
        ((2, 5, 6, 7), None, (2, 5, 6, 7), 3),
        ((7,), "none", (1, 7), 1),
        ((6, 7), "none", (1, 6, 7), 2),
        ((5, 6, 7), "first", (5, 6, 7), 2),
        ((5, 6, 7), "last", (7, 5, 6), 2),
        ((4, 5, 6, 7), "last", (7, 4, 5, 6), 3),
        ((4, 5, 6, 7), "none", (1, 4, 5, 6, 7), 4),
        ((6, 7), "last", (7, 6), 1),
    ],
)
def test_axes_are_served_channels_first(
    tmp_path: Path, shape: tuple[int, ...], channels: Any, dims: tuple[int, ...], spatial: int
) -> None:
    array = numbers(shape)

    pack_arrays(save(tmp_path / "src", {"a": array}), tmp_path / "dst", channels=channels)

    field = array_field(tmp_path / "dst")
    assert (field.dims, field.spatial) == (dims, spatial)
    expected = np.moveaxis(array, -1, 0) if channels == "last" else array.reshape(dims)
    assert np.array_equal(stored(tmp_path / "dst")["a"], expected)


@pytest.mark.parametrize(
    ("num", "channels"), [(5, None), (1, "first"), (1, "last"), (3, "middle")]
)
def test_axes_that_cannot_be_meant_are_refused(tmp_path: Path, num: int, channels: Any) -> None:
    src = save(tmp_path / "src", {"a": numbers((2,) * num)})

    with pytest.raises(SchemaError):
        plan_arrays(src, channels=channels)


def test_axes_that_differ_vary_and_the_others_are_fixed(tmp_path: Path) -> None:
    arrays = {"a": numbers((4, 6, 6)), "b": numbers((5, 6, 6)), "c": numbers((4, 6, 6))}
    src = save(tmp_path / "src", arrays)

    pack_arrays(src, tmp_path / "dst")
    save(src, {"d": numbers((4, 6, 8))})
    pack_arrays(src, tmp_path / "two")

    assert array_field(tmp_path / "dst").dims == (1, None, 6, 6)
    assert array_field(tmp_path / "two").dims == (1, None, 6, None)
    found = stored(tmp_path / "two")
    assert all(np.array_equal(found[key][0], array) for key, array in arrays.items())


def test_any_order_of_bytes_and_axes_in_the_file_is_the_same_array(tmp_path: Path) -> None:
    array = numbers((3, 4, 5), "float32") / 3
    forms = {
        "plain": array,
        "fortran": np.asfortranarray(array),
        "big": array.astype(">f4"),
        "both": np.asfortranarray(array.astype(">f4")),
    }

    pack_arrays(save(tmp_path / "src", forms), tmp_path / "dst")

    assert array_field(tmp_path / "dst").dtype == "float32"
    found = stored(tmp_path / "dst")
    assert {key: value.tobytes() for key, value in found.items()} == dict.fromkeys(
        forms, array.tobytes()
    )


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_file_format_is_read(tmp_path: Path, version: Any) -> None:
    (tmp_path / "src").mkdir()
    with open(tmp_path / "src/a.npy", "wb") as file:
        np.lib.format.write_array(file, numbers((3, 4)), version=version)

    pack_arrays(tmp_path / "src", tmp_path / "dst")

    assert np.array_equal(stored(tmp_path / "dst")["a"], numbers((3, 4)))


def test_nan_and_infinity_stay_as_they_are(tmp_path: Path) -> None:
    """Down to the bits of a NaN, unless another type is asked for that has none."""
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000], "<u4")
    src = save(tmp_path / "src", {"a": bits.view("<f4"), "b": bits.view("<f4").astype(">f4")})

    pack_arrays(src, tmp_path / "dst")
    found = stored(tmp_path / "dst")

    assert found["a"].view("<u4").tolist() == bits.tolist()
    assert found["b"].view("<u4").tolist() == bits.tolist()
    message = assert_refused(src, tmp_path / "int", dtype="int16")
    assert "values of float32 do not fit the field's int16" in message


def test_dtypes_are_converted_where_every_value_fits(tmp_path: Path) -> None:
    arrays = {"a": np.array([0, 255], "int64"), "b": np.array([1.0, 2.0], "float64")}
    src = save(tmp_path / "src", arrays)

    pack_arrays(src, tmp_path / "small", dtype="uint8")
    pack_arrays(src, tmp_path / "half", dtype="float16")

    assert stored(tmp_path / "small")["a"].tolist() == [0, 255]
    assert stored(tmp_path / "half")["b"].dtype == np.float16
    assert stored(tmp_path / "half")["b"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([-1, 5]), "uint8"),
        (np.array([256]), "uint8"),
        (np.array([0.5]), "int16"),
        (np.array([70000.0]), "float16"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([2]), "bool"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(tmp_path: Path, values: Any, dtype: str) -> None:
    """It names the file, the types and the option; nothing wraps or is cut off."""
    message = assert_refused(save(tmp_path / "src", {"a": values}), tmp_path / "dst", dtype=dtype)

    assert "a.npy" in message
    assert f"values of {values.dtype} do not fit the field's {dtype}" in message
    assert "dtype=" in message


def test_files_of_several_dtypes_need_one_to_be_chosen(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((2,), "uint8"), "b": numbers((2,), "int16")})

    message = assert_refused(src, tmp_path / "dst")

    assert "uint8" in message
    assert "int16" in message
    assert "a.npy" in message
    assert "choose one with dtype" in message
    pack_arrays(src, tmp_path / "dst", dtype="int16")


# -- sources --------------------------------------------------------------------------------------


def test_folders_of_classes_give_labels(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"cat/1": [1.0], "cat/2": [2.0], "dog/deep/1": [3.0]})

    pack_arrays(src, tmp_path / "dst")

    reader = PackedReader(tmp_path / "dst")
    assert reader.schema.fields["label"] == Label(classes=("cat", "dog"))
    assert reader.schema.defaults == ("array", "label")
    assert reader.column("label").tolist() == [0, 0, 1]
    assert set(stored(tmp_path / "dst")) == {"cat/1", "cat/2", "dog/deep/1"}


def test_splits_share_their_classes(tmp_path: Path) -> None:
    save(tmp_path / "src/train", {"cat/1": [1.0], "dog/1": [2.0]})
    save(tmp_path / "src/val", {"dog/2": [3.0]})

    summary = pack_arrays(tmp_path / "src", tmp_path / "dst")

    assert summary.samples == 3
    assert PackedReader(tmp_path / "dst/val").column("label").tolist() == [1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_lists_name_arrays_masks_and_other_columns(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / "data", {"x": numbers((3, 4, 5)), "xm": numbers((3, 4, 5), "uint8")})
    rows = [{"ct": "data/x.npy", "seg": "data/xm.npy", "label": "sick", "age": 41}]
    text = "\n".join(map(json.dumps, rows))
    if suffix == "csv":
        text = "ct,seg,label,age\ndata/x.npy,data/xm.npy,sick,41\n"
    (tmp_path / f"list.{suffix}").write_text(text)

    pack_arrays(
        tmp_path / f"list.{suffix}", tmp_path / "dst", array_column="ct", mask_column="seg"
    )

    reader = PackedReader(tmp_path / "dst")
    sample = reader.sample(0, ["array", "mask", "label", "age", "key"])
    assert np.array_equal(sample["array"][0], numbers((3, 4, 5)))
    assert np.array_equal(sample["mask"], numbers((3, 4, 5), "uint8"))
    assert (int(sample["age"]), sample["key"]) == (41, "data/x")


def test_a_list_without_the_column_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("ct,seg\na.npy,b.npy\n")

    assert "array_column" in assert_refused(tmp_path / "list.csv", tmp_path / "dst")


def test_a_list_of_values_in_place_of_paths_names_what_takes_them(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text('{"array": [[1, 2]], "label": 0}\n')

    message = assert_refused(tmp_path / "list.jsonl", tmp_path / "dst")

    assert "column 'array' holds [[1, 2]], not a path" in message
    assert "packdata.pack" in message


def test_a_listed_file_that_is_missing_is_named_with_its_line(tmp_path: Path) -> None:
    save(tmp_path, {"a": [1.0]})
    (tmp_path / "list.csv").write_text("path\na.npy\nb.npy\n")

    message = assert_refused(tmp_path / "list.csv", tmp_path / "dst")

    assert "list.csv, line 3 (b.npy): " in message
    assert "cannot be read (No such file" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), ": no arrays"),
        (lambda path: (path / "a").mkdir(parents=True), "no arrays"),
        (lambda path: save(path, {"a": [1.0], "b/c": [1.0]}), "beside folders of arrays"),
        (lambda path: path.write_bytes(b""), "this kind of source is not known"),
        (lambda path: None, "there is no such file or folder"),
    ],
)
def test_sources_that_are_none_are_refused(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "src")

    assert message in assert_refused(tmp_path / "src", tmp_path / "dst")


def test_other_files_are_passed_over_and_counted(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": [1.0]})
    (src / "readme.txt").write_text("about")

    summary = pack_arrays(src, tmp_path / "dst")

    assert any("skipped: 1 .txt" in note for note in summary.notes)


def test_a_single_file_and_a_packed_dataset_are_refused_with_a_hint(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": [1.0]})
    pack_arrays(src, tmp_path / "dst")

    assert "Give the folder of this file" in assert_refused(src / "a.npy", tmp_path / "other")
    assert "a packed dataset cannot be a source" in assert_refused(
        tmp_path / "dst", tmp_path / "other"
    )


# -- .npz -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_are_read(tmp_path: Path, write: Any) -> None:
    (tmp_path / "src").mkdir()
    array, mask = numbers((3, 4, 5), "float32"), numbers((3, 4, 5), "uint8")
    write(tmp_path / "src/a.npz", image=np.asfortranarray(array), seg=mask)

    message = assert_refused(tmp_path / "src", tmp_path / "dst")
    pack_arrays(tmp_path / "src", tmp_path / "dst", array="image", mask_array="seg")

    assert "holds image, seg" in message
    assert "array=NAME" in message
    assert np.array_equal(stored(tmp_path / "dst")["a"][0], array)
    assert np.array_equal(stored(tmp_path / "dst", "mask")["a"], mask)
    for wrong in ({"array": "ct"}, {"array": "image", "mask_array": "ct"}):
        message = assert_refused(tmp_path / "src", tmp_path / "no", **wrong)
        assert "'ct', the .npz holds image, seg" in message
        assert "mask_array=NAME" in message


def test_the_only_array_of_an_npz_needs_no_name_nor_the_files_their_suffix(tmp_path: Path) -> None:
    """What a file is, its first bytes say."""
    src = save(tmp_path / "src", {"a": [1.0, 2.0]})
    np.savez(src / "b.npz", [3.0, 4.0])
    (src / "b.npz").rename(src / "b.npy")
    (src / "a.npy").rename(src / "a.npz")

    pack_arrays(src, tmp_path / "dst")

    assert {k: v.tolist() for k, v in stored(tmp_path / "dst").items()} == {
        "a": [1.0, 2.0],
        "b": [3.0, 4.0],
    }


# -- masks ----------------------------------------------------------------------------------------


def test_masks_are_paired_by_name_in_any_form(tmp_path: Path) -> None:
    """With an axis of 1 for channels, in Fortran order, compressed; true or false are 1 and 0."""
    volume, mask = numbers((2, 3, 4, 5)), numbers((3, 4, 5), "int64") > 100
    src = save(tmp_path / "src", dict.fromkeys(("a", "b", "c"), volume))
    save(tmp_path / "masks", {"a": mask[None], "b": np.asfortranarray(mask)})
    np.savez_compressed(tmp_path / "masks/c.npz", mask[..., None])

    pack_arrays(src, tmp_path / "dst", masks=tmp_path / "masks")

    field = array_field(tmp_path / "dst", "mask")
    assert field == Array(dtype="uint8", dims=(3, 4, 5), spatial=3)
    assert read_manifest(tmp_path / "dst").schema.defaults == ("array", "mask")
    assert all(np.array_equal(m, mask) for m in stored(tmp_path / "dst", "mask").values())


def test_masks_of_arrays_of_varying_shape_vary_alike(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((2, 4, 4)), "b": numbers((3, 4, 4))})
    save(tmp_path / "masks", {"a": numbers((2, 4, 4), "int32"), "b": numbers((3, 4, 4), "int32")})

    pack_arrays(src, tmp_path / "dst", masks=tmp_path / "masks", mask_dtype="uint8")

    assert array_field(tmp_path / "dst", "mask").dims == (None, 4, 4)
    assert stored(tmp_path / "dst", "mask")["b"].dtype == np.uint8


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        (np.zeros((3, 4, 6), "uint8"), {}, r"a mask of shape (3, 4, 6)"),
        (np.zeros((2, 3, 4, 5), "uint8"), {}, r"a mask of shape (2, 3, 4, 5)"),
        (np.zeros((3, 4, 5)), {}, "a mask of float64, not of whole numbers"),
        (
            np.full((3, 4, 5), 300),
            {"mask_dtype": "uint8"},
            "the mask: values of int64 do not fit",
        ),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    tmp_path: Path, mask: AnyArray, options: Any, message: str
) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4, 5))})
    masks = save(tmp_path / "masks", {"a": mask})

    found = assert_refused(src, tmp_path / "dst", masks=masks, **options)

    assert message in found
    assert "a.npy" in found


def test_a_missing_mask_is_named_with_the_place_it_is_looked_for(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4)), "b": numbers((3, 4))})
    masks = save(tmp_path / "masks", {"a": numbers((3, 4))})

    message = assert_refused(src, tmp_path / "dst", masks=masks)

    assert "b.npy: the mask is missing" in message
    assert f"{masks / 'b'}, with any suffix" in message


def test_a_single_array_is_not_its_own_mask(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4), "uint8")})

    assert "the mask is missing" in assert_refused(src, tmp_path / "dst", mask_array="seg")
    assert "the mask is missing" in assert_refused(src, tmp_path / "dst", masks=src)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_an_empty_cell_of_masks_is_a_missing_mask(tmp_path: Path, suffix: str) -> None:
    """Also where a file could hold both: its array would be its own mask."""
    for name in ("a", "b", "m"):
        np.save(tmp_path / f"{name}.npy", numbers((2, 3, 4), "uint8"))
        np.savez(tmp_path / f"{name}.npz", numbers((2, 3, 4), "uint8"))
    (tmp_path / "l.csv").write_text(f"path,seg\na.{suffix},m.{suffix}\nb.{suffix},\n")

    with pytest.raises(SourceError, check=At(f"l.csv, line 3 (b.{suffix})")):
        pack_arrays(tmp_path / "l.csv", tmp_path / "dst", mask_column="seg")
    pack_arrays(tmp_path / "l.csv", tmp_path / "skipped", mask_column="seg", on_error="skip")
    assert stored(tmp_path / "skipped", "mask").keys() == {"a"}


def test_arrays_of_other_shapes_without_a_mask_are_rejected_for_the_mask(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {f"c{i}": numbers((3 + i, 4)) for i in range(3)})
    masks = save(tmp_path / "masks", {"c0": numbers((3, 4))})

    packed = pack_arrays(src, tmp_path / "dst", masks=masks, on_error="skip")

    assert all("the mask is missing" in error for _, error in packed.rejected)
    assert len(packed.rejected) == 2
    assert stored(tmp_path / "dst", "mask").keys() == {"c0"}


@pytest.mark.parametrize("option", [{"mask_dtype": "float32"}, {"dtype": "complex64"}])
def test_dtypes_that_cannot_be_stored_are_refused(tmp_path: Path, option: Any) -> None:
    with pytest.raises(SchemaError):
        plan_arrays(save(tmp_path / "src", {"a": [1.0]}), **option)


# -- bad files ------------------------------------------------------------------------------------


def npy_bytes(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def lzma_bytes() -> bytes:
    """Return an .npz whose LZMA is damaged."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy_bytes(GOOD))
    data = bytearray(file.getvalue())
    data[60:80] = b"\xff" * 20
    return bytes(data)


def npz_bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, array)
    return file.getvalue()


def header_bytes(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


GOOD = np.arange(600, dtype="float32")
BAD = {
    "objects": (npy_bytes(np.array([{}, 1], object), allow_pickle=True), "a pickle, never loaded"),
    "objects in an npz": (npz_bytes(np.array([{}, 1], object)), "a pickle, never loaded"),
    "a pickle": (b"\x80\x04\x95" + bytes(50), "not a .npy file"),
    "cut": (npy_bytes(GOOD)[:-1], "2399 bytes of numbers, the header says 2400"),
    "cut in the header": (npy_bytes(GOOD)[:40], "not a .npy file"),
    "two in one": (npy_bytes(GOOD) * 2, "bytes of numbers, the header says 2400"),
    "nothing": (b"", "not a .npy file (EOF"),
    "wrong magic": (b"NUMPY\x93" + npy_bytes(GOOD)[6:], "the magic string is not correct"),
    "version 9": (b"\x93NUMPY\x09\x00" + npy_bytes(GOOD)[8:], "not a .npy file"),
    "one number": (npy_bytes(np.float32(1)), "an empty array or a single number, of shape ()"),
    "empty": (
        npy_bytes(np.zeros((3, 0, 4), "f4")),
        "an empty array or a single number, of shape (3, 0, 4)",
    ),
    "complex": (npy_bytes(GOOD.astype("c8")), "complex64, not numbers"),
    "text": (npy_bytes(np.array(["a"])), "not numbers"),
    "a table": (npy_bytes(np.zeros(2, "i4,f4")), "not numbers"),
    "dates": (npy_bytes(np.array(["2020-01-01"], "M8[D]")), "not numbers"),
    "open bracket": (header_bytes("{'descr': '<f4', 'shape': (1,\n"), "not a .npy file"),
    "code": (header_bytes("__import__('os').abort()\n"), "not a .npy file"),
    "negative": (
        header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n"),
        "the header says -4",
    ),
    "twice negative": (
        header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}\n") + bytes(8),
        "of shape (-1, -2)",
    ),
    "huge": (
        header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}\n"),
        "bytes of numbers, the header says 399999999996",
    ),
    "npz of LZMA": (lzma_bytes(), "the .npz is damaged"),
    "cut npz": (npz_bytes(GOOD)[:-20], "the .npz is damaged"),
    "flipped npz": (
        bytes(b ^ (i == 300) for i, b in enumerate(npz_bytes(GOOD))),
        "the .npz is damaged",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_stop_the_packing_or_are_listed(tmp_path: Path, kind: str) -> None:
    """Alone, among good ones, and left out."""
    data, message = BAD[kind]
    src = save(tmp_path / "src", {"a": GOOD})
    (src / "bad.npy").write_bytes(data)

    found = assert_refused(src, tmp_path / "dst")
    summary = pack_arrays(src, tmp_path / "skip", on_error="skip")
    (src / "a.npy").unlink()

    assert message in found
    assert "bad.npy" in found
    assert summary.samples == 1
    assert message in summary.rejected[0][1]
    assert np.array_equal(stored(tmp_path / "skip")["a"], GOOD)
    assert message in assert_refused(src, tmp_path / "alone")


def test_an_npz_of_nothing_or_under_a_password_is_refused(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    with zipfile.ZipFile(src / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")

    assert "the .npz holds no array" in assert_refused(src, tmp_path / "dst")

    data = bytearray(npz_bytes(GOOD))
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(magic) + flags] |= 1  # encrypted
    (src / "a.npz").write_bytes(data)
    assert "the .npz is damaged (File" in assert_refused(src, tmp_path / "dst")


def test_arrays_of_other_axes_than_the_first_are_refused(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4)), "b": numbers((3, 4, 5))})

    assert "b.npy: 3 axes (3, 4, 5), the first array has 2" in assert_refused(
        src, tmp_path / "dst"
    )


def sparse(path: Path, shape: tuple[int, ...], dtype: str = "|u1") -> None:
    """Write a file of zeros that takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)


def test_an_array_that_no_record_holds_is_refused_before_it_is_read(tmp_path: Path) -> None:
    sparse(tmp_path / "src/a.npy", (2048, 1024, 1024))
    sparse(tmp_path / "mid/a.npy", (1024, 1024, 1024))

    with pytest.raises(SchemaError):
        plan_arrays(tmp_path / "src")
    with pytest.raises(SchemaError):
        plan_arrays(tmp_path / "mid", dtype="float32")


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_an_array_larger_than_a_shard_is_a_shard_of_its_own(tmp_path: Path, format: Any) -> None:
    arrays = {f"a{i}": numbers((8, 32, 32), "uint8", i) for i in range(3)}
    src = save(tmp_path / "src", arrays)

    summary = pack_arrays(src, tmp_path / "dst", format=format, shard_bytes=4096)

    assert summary.shards == 3
    assert verify(tmp_path / "dst").ok
    assert all(np.array_equal(v[0], arrays[k]) for k, v in stored(tmp_path / "dst").items())


# -- packing --------------------------------------------------------------------------------------


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {f"{i:02d}": numbers((3, 5, 6), seed=i) for i in range(20)})
    masks = save(tmp_path / "masks", {f"{i:02d}": numbers((3, 5, 6), "int8") for i in range(20)})

    for workers in (1, 2, 5):
        pack_arrays(src, tmp_path / f"{workers}", masks=masks, workers=workers, shard_bytes=600)

    one, *others = (read_manifest(tmp_path / f"{workers}") for workers in (1, 2, 5))
    assert len(one.shards) > 5
    assert all(other.fingerprint == one.fingerprint for other in others)


class Interrupted(ArraysRecipe):
    """Stops as a kill would, at the fifth item."""

    def encode(self, item: Any) -> list[dict[str, bytes]]:
        if item.key == "05":
            raise KeyboardInterrupt
        return super().encode(item)


def test_an_interrupted_packing_continues_to_the_same_bytes(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {f"{i:02d}": numbers((3, 5, 6), seed=i) for i in range(12)})
    ((_, recipe),) = plan_arrays(src).splits
    stopped = Interrupted(recipe.split, recipe.options)
    options: Any = {"format": "lmdb", "shard_bytes": 400, "workers": 1}

    with pytest.raises(KeyboardInterrupt):
        pack_recipes([("", stopped)], tmp_path / "dst", **options)
    again = pack_arrays(src, tmp_path / "dst", **options)
    whole = pack_arrays(src, tmp_path / "whole", **options)

    assert any("continued" in note for note in again.notes)
    assert again.datasets[0].fingerprint == whole.datasets[0].fingerprint


def test_a_source_that_changes_meanwhile_is_not_published(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4))})
    plan = plan_arrays(src)
    assert plan.is_unchanged()

    save(src, {"b": numbers((3, 4))})
    assert not plan.is_unchanged()
    shutil.rmtree(src)
    assert not plan.is_unchanged()


def test_an_array_that_changes_after_listing_is_an_error(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"a": numbers((3, 4))})
    ((_, recipe),) = plan_arrays(src).splits
    save(src, {"a": numbers((3, 5))})

    with pytest.raises(SourceError, check=At("a.npy")):
        list(map(recipe.encode, recipe.items()))


def test_the_headers_of_all_files_count(tmp_path: Path) -> None:
    src = save(
        tmp_path / "src", {"a": np.ones((3, 4)), "b": np.ones((3, 4)), "c": np.ones((5, 4))}
    )

    pack_arrays(src, tmp_path / "dst")

    assert array_field(tmp_path / "dst").dims == (None, 4)


def test_large_arrays_go_to_lmdb_and_small_ones_to_parquet(tmp_path: Path) -> None:
    small = save(tmp_path / "small", {"a": numbers((10, 10))})
    sparse(tmp_path / "large/a.npy", (1 << 20,))
    save(tmp_path / "large", {"b": numbers((10,), "uint8")})  # the largest counts

    assert plan_arrays(small).settings.format == "parquet"
    assert plan_arrays(tmp_path / "large").settings.format == "lmdb"
    assert plan_arrays(small, format="lmdb").settings.format == "lmdb"


# -- the command and the other commands -----------------------------------------------------------


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    grid = np.indices((12, 16, 20))
    for i in range(6):
        ball = ((grid - np.array([6, 8, 10])[:, None, None, None]) ** 2).sum(0) < 16 + 4 * i
        save(tmp_path / "scans", {f"{'ab'[i % 2]}/{i}": (ball * 500 + i).astype("int16")})
        save(tmp_path / "masks", {f"{'ab'[i % 2]}/{i}": ball})
    return tmp_path


def test_the_command_packs_and_tells(volumes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["arrays", str(volumes / "scans"), str(volumes / "packed")]
    command += ["--masks", str(volumes / "masks"), "--dtype", "float32"]

    assert main([*command, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert main([*command, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)

    assert "array: array of float32 of (1, 12, 16, 20)" in planned
    assert "mask: array of uint8 of (12, 16, 20)" in planned
    assert plan["parts"][0]["targets"][""]["fields"]["array"]["spatial"] == 3
    assert (plan["items"], plan["format"], summary["samples"]) == (6, "parquet", 6)


def test_a_header_that_python_2_wrote_is_read_by_the_command_without_a_warning(
    tmp_path: Path,
) -> None:
    header = header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.npy").write_bytes(header + numbers((3, 4)).astype("<f4").tobytes())

    assert main(["arrays", str(tmp_path / "src"), str(tmp_path / "dst")]) == 0
    assert np.array_equal(stored(tmp_path / "dst")["a"], numbers((3, 4)))


def test_packed_volumes_are_split_merged_extended_and_verified(
    volumes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: Any) -> str:
        assert main([str(part) for part in command]) == 0
        return capsys.readouterr().out

    source, masks, packed = volumes / "scans", volumes / "masks", volumes / "packed"
    run("arrays", source, packed, "--masks", masks)
    run("split", packed, volumes / "parts", "--parts", "x=0.5", "y=0.5", "--stratify", "label")
    run("merge", volumes / "parts/x", volumes / "parts/y", volumes / "merged")
    run("copy", packed, volumes / "only", "--where", "label == 'a'")
    run("copy", packed, volumes / "rest", "--where", "label == 'b'")
    run("extend", volumes / "rest", volumes / "only")

    whole, again, grown = (stored(volumes / name) for name in ("packed", "merged", "only"))
    assert whole.keys() == again.keys() == grown.keys()
    assert all(np.array_equal(whole[key], again[key]) for key in whole)
    assert all(np.array_equal(whole[key], grown[key]) for key in whole)
    run("verify", volumes / "merged")
    assert "array of int16 of (1, 12, 16, 20)" in run("info", volumes / "only")


def test_stats_have_mean_and_deviation_of_each_channel(tmp_path: Path) -> None:
    arrays = {f"{i}": numbers((2, 4, 5, 6), "float32", i) for i in range(3)}
    arrays["0"][0, 0, 0, 0] = arrays["2"][1, 1, 1, 1] = np.nan
    src = save(tmp_path / "src", arrays)
    pack_arrays(src, tmp_path / "dst")

    found = stats(tmp_path / "dst").fields["array"]

    voxels = np.stack(list(arrays.values())).transpose(1, 0, 2, 3, 4).reshape(2, -1).astype("f8")
    assert found["mean"] == pytest.approx(np.nanmean(voxels, axis=1))
    assert found["std"] == pytest.approx(np.nanstd(voxels, axis=1))
    assert found["num_nan"] == 2


def test_the_preview_shows_middle_slices_with_their_masks(volumes: Path) -> None:
    pack_arrays(volumes / "scans", volumes / "packed", masks=volumes / "masks")
    out = volumes / "sheet.png"

    assert main(["preview", str(volumes / "packed"), "--out", str(out)]) == 0

    sheet = np.array(Pictures.open(out).convert("RGB")).reshape(-1, 3).astype(int)
    orange = (sheet[:, 0] - sheet[:, 2] > 100).mean()  # the masks' colour over the balls
    assert orange > 0.01


def test_any_array_with_two_axes_can_be_looked_at(tmp_path: Path) -> None:
    """Floats with NaN, true and false, and a record that is damaged."""
    planes = {
        "nan": np.full((3, 8, 8), np.nan, "f4"),
        "inf": np.array([[np.inf, 1.0], [2.0, -np.inf]]),
        "flags": np.eye(9, dtype=bool),
    }
    for name, array in planes.items():
        src = save(tmp_path / name, {"a": array})
        pack_arrays(src, tmp_path / f"{name}-packed")
        reader = PackedReader(tmp_path / f"{name}-packed")
        assert sheet_of([tile_of(reader, 0)]).width > 100


def test_of_volumes_the_middle_of_the_first_channel_is_drawn(tmp_path: Path) -> None:
    volume = np.zeros((3, 5, 8, 8), "uint8")
    volume[0, 2] = 200
    pack_arrays(save(tmp_path / "a", {"a": volume}), tmp_path / "p")

    (picture,) = tile_of(PackedReader(tmp_path / "p"), 0).pictures

    assert (np.asarray(picture) == 200).all()


def test_the_schema_says_which_axes_are_spatial_only_where_it_does() -> None:
    """Fingerprints of older datasets stay what they are."""
    assert "spatial" not in Array(dims=(3,)).to_json()
    assert Array(dims=(3,), spatial=0).to_json()["spatial"] == 0
    for wrong in (-1, 2, True, False, 1.0, "1"):
        with pytest.raises(SchemaError):
            Array(dims=(3,), spatial=wrong)  # type: ignore[arg-type]
