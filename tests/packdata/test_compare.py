"""What differs between schemas, and what may stand in one dataset."""

from pathlib import Path

import numpy as np
import pytest

import packdata
from loaders.errors import SchemaError
from loaders.schema import Array, Boxes, Field, Image, Label, Schema
from packdata.inspect.compare import diff, schema_differences
from packdata.packed.derive import CopyOptions, copy_dataset, extend, merge
from tests.packdata.reading import PackedReader

OTHER = [
    (Array(dims=(2, 2, 2), spatial=3), Array(dims=(2, 2, 2)), "spatial is 3 in A, None in B"),
    (Image(codec="dct", quality=90), Image(codec="jpeg"), "quality is 90 in A, None in B"),
]


@pytest.mark.parametrize(("one", "other", "what"), OTHER)
def test_options_that_only_one_has_are_differences_in_both_orders(
    one: Field, other: Field, what: str
) -> None:
    a, b = Schema({"x": one}), Schema({"x": other})

    assert f"field 'x': {what}" in schema_differences(a, b)
    assert len(schema_differences(b, a)) == len(schema_differences(a, b))


def test_a_list_that_ends_earlier_differs_though_the_other_goes_on_with_none() -> None:
    a, b = Schema({"x": Array(dims=(None,))}), Schema({"x": Array(dims=(None, None))})

    assert [len(schema_differences(*pair)) for pair in ((a, b), (b, a))] == [1, 1]


def test_pictures_of_several_codecs_are_told_to_be_encoded_alike(tmp_path: Path) -> None:
    picture, label = np.zeros((8, 8, 3), np.uint8), Label(classes=("a", "b"))
    fields: dict[str, dict[str, Field]] = {
        "jpeg": {"x": Image(codec="jpeg", size=(8, 8)), "y": label},
        "raw": {"x": Image(codec="raw", size=(8, 8)), "y": label},
        "dct": {"x": Image(codec="dct", size=(8, 8)), "y": Label(classes=("a", "c"))},
    }
    for name, kinds in fields.items():
        packdata.pack([{"x": picture, "y": 0}], tmp_path / name, kinds)

    with pytest.raises(SchemaError):
        merge(tmp_path / "m", [tmp_path / "jpeg", tmp_path / "raw"])
    with pytest.raises(SchemaError):
        merge(tmp_path / "m", [tmp_path / "jpeg", tmp_path / "dct"])
    copy_dataset(tmp_path / "raw", tmp_path / "alike", CopyOptions(codec="jpeg"))
    assert merge(tmp_path / "m", [tmp_path / "jpeg", tmp_path / "alike"]).samples == 2


def test_volumes_that_differ_in_their_spatial_axes_are_not_joined(tmp_path: Path) -> None:
    folders = []
    for name, spatial in (("said", 3), ("unsaid", None)):
        field = Array(dims=(2, 2, 2), spatial=spatial)
        packdata.pack([{"x": np.zeros((2, 2, 2), "f4")}], tmp_path / name, {"x": field})
        folders.append(tmp_path / name)

    for a, b in (folders, folders[::-1]):
        assert any("spatial" in what for what in diff(a, b))
        with pytest.raises(SchemaError):
            merge(tmp_path / "merged", [a, b])
        with pytest.raises(SchemaError):
            extend(a, [b])
        assert len(PackedReader(a)) == 1


def test_boxes_in_pixels_of_other_images_are_not_joined(tmp_path: Path) -> None:
    image, value = Image(codec="raw", size=(8, 8)), np.zeros((8, 8, 3), np.uint8)
    folders = []
    for names in ("xy", "yx"):
        fields: dict[str, Field] = dict.fromkeys(names, image) | {"boxes": Boxes()}
        row = dict.fromkeys(names, value) | {"boxes": np.zeros((1, 4), np.float32)}
        packdata.pack([row], tmp_path / names, fields)
        folders.append(tmp_path / names)

    assert sum("image" in what or "default" in what for what in diff(*folders)) == 2
    with pytest.raises(SchemaError):
        merge(tmp_path / "merged", folders)
