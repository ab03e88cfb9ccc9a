"""Masks whose names end otherwise, that hold colours, or numbers of other classes: in real files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from loaders import ShardDataset
from loaders.errors import CodecError, LoadersError, SchemaError, SourceError
from packdata.arrays import pack_arrays
from packdata.cli import main
from packdata.images.masks import ClassMap, decode_mask
from packdata.images.plan import pack_images, plan_images
from packdata.sources.folders import MaskFolder
from packdata.sources.listed import Listing
from tests.refusals import At

NUMBERS = np.arange(12, dtype=np.uint8).reshape(3, 4) % 3
COLORS = np.array([[64, 128, 64], [192, 0, 128], [0, 128, 192]], np.uint8)


def save(file: Path, pixels: npt.NDArray[Any] | PIL.Image.Image, **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    image.save(file, **options)


def picture(file: Path) -> None:
    save(file, np.full((*NUMBERS.shape, 3), 99, np.uint8))


def masks_of(folder: Path) -> list[Any]:
    return [sample.mask.tolist() for sample in ShardDataset(folder, fields=["mask"])]


def test_a_mask_of_more_pixels_than_are_accepted_is_not_decoded(tmp_path: Path) -> None:
    save(tmp_path / "m.png", NUMBERS)
    data = (tmp_path / "m.png").read_bytes()

    assert (decode_mask(data, NUMBERS.size) == NUMBERS).all()
    with pytest.raises(CodecError):
        decode_mask(data, NUMBERS.size - 1)


def test_masks_have_16_bits_where_they_are_asked_for(tmp_path: Path) -> None:
    picture(tmp_path / "in/1.jpg")
    save(tmp_path / "masks/1.png", NUMBERS)

    plan = plan_images(tmp_path / "in", masks=tmp_path / "masks", keep_depth=True)

    assert plan.recipes[0].targets[0].schema.fields["mask"].dtype == "uint16"


class TestSuffixes:
    @pytest.mark.parametrize(
        ("name", "mask", "suffix"),
        [
            ("a/1", "a/1_mask", "_mask"),
            ("ulm_0_leftImg8bit", "ulm_0_gtFine_labelIds", "_leftImg8bit=_gtFine_labelIds"),
            ("1_sat", "1", "_sat="),
        ],
    )
    def test_a_mask_is_found_by_how_its_name_ends(
        self, tmp_path: Path, name: str, mask: str, suffix: str
    ) -> None:
        picture(tmp_path / f"in/{name}.jpg")
        save(tmp_path / f"masks/{mask}.png", NUMBERS)
        words = ["--masks", str(tmp_path / "masks"), "--mask-suffix", suffix]

        if "/" in name:
            picture(tmp_path / "in/b/2.jpg")
            save(tmp_path / f"masks/b/2{suffix}.png", NUMBERS)
        assert main(["images", str(tmp_path / "in"), str(tmp_path / "out"), *words]) == 0

        assert masks_of(tmp_path / "out") == [NUMBERS.tolist()] * (2 if "/" in name else 1)

    def test_masks_beside_their_pictures_are_no_pictures(self, tmp_path: Path) -> None:
        for split in ("train", "val"):
            for name in ("cat/1", "dog/2"):
                picture(tmp_path / f"in/{split}/{name}.png")
                save(tmp_path / f"in/{split}/{name}_mask.png", NUMBERS)

        pack_images(tmp_path / "in", tmp_path / "out", mask_suffix="_mask")

        dataset = ShardDataset(tmp_path / "out/train", fields=["key", "mask"])
        assert [sample.key for sample in dataset] == ["cat/1", "dog/2"]
        assert masks_of(tmp_path / "out/val") == [NUMBERS.tolist()] * 2

    def test_a_picture_that_is_called_as_a_mask_is_not_lost(self, tmp_path: Path) -> None:
        for name in "1.png", "gas_mask.png":
            picture(tmp_path / "in" / name)
        save(tmp_path / "in/1_mask.png", NUMBERS)

        with pytest.raises(SourceError, match="gas_mask", check=At("in")):
            plan_images(tmp_path / "in", mask_suffix="_mask")

    def test_a_missing_mask_is_said_to_be_looked_for(self, tmp_path: Path) -> None:
        picture(tmp_path / "in/1_rgb.jpg")
        picture(tmp_path / "in/2_rgb.jpg")
        save(tmp_path / "masks/1_seg.png", NUMBERS)

        with pytest.raises(SourceError) as caught:
            pack_images(
                tmp_path / "in",
                tmp_path / "out",
                masks=tmp_path / "masks",
                mask_suffix="_rgb=_seg",
            )
        assert f"{tmp_path}/masks/2_seg, with any suffix" in caught.value.hint
        with pytest.raises(SourceError, check=At("masks")):
            MaskFolder(Listing(tmp_path / "masks"), suffix="_mask")

    def test_arrays_have_it_too(self, tmp_path: Path) -> None:
        for name in ("in/case_0000.npy", "masks/case.npy"):
            (tmp_path / name).parent.mkdir()
            np.save(tmp_path / name, np.ones((2, 3, 4), np.uint8))

        pack_arrays(
            tmp_path / "in", tmp_path / "out", masks=tmp_path / "masks", mask_suffix="_0000="
        )

        assert ShardDataset(tmp_path / "out", fields=["mask"])[0].mask.shape == (2, 3, 4)


class TestPalettes:
    @pytest.mark.parametrize(
        "text",
        [
            "64 128 64\tAnimal\n192 0 128\tArchway\n0 128 192\tBicyclist\n",
            "name,r,g,b\nAnimal,64,128,64\nArchway,192,0,128\nBicyclist,0,128,192\n",
            "# classes\n#408040 Animal\n#C00080 Archway\n#0080c0 Bicyclist",
            "R G B\n# 1 2 3 is none\n64 128 64\n\n192 0 128\n#\n0 128 192\n",
        ],
    )
    @pytest.mark.parametrize("kind", ["rgb", "rgba", "palette"])
    def test_colours_become_numbers(self, tmp_path: Path, text: str, kind: str) -> None:
        picture(tmp_path / "in/1.jpg")
        colored = PIL.Image.fromarray(COLORS[NUMBERS])
        image = {"rgb": colored, "rgba": colored.convert("RGBA"), "palette": colored.quantize(8)}[
            kind
        ]
        save(tmp_path / "masks/1.png", image)
        (tmp_path / "colors.txt").write_text(text)
        words = ["--masks", str(tmp_path / "masks"), "--palette", str(tmp_path / "colors.txt")]

        assert main(["images", str(tmp_path / "in"), str(tmp_path / "out"), *words]) == 0

        assert masks_of(tmp_path / "out") == [NUMBERS.tolist()]

    def test_an_unknown_colour_is_named_with_its_place(self, tmp_path: Path) -> None:
        picture(tmp_path / "in/1.jpg")
        colored = COLORS[NUMBERS]
        colored[2, 1] = 1, 2, 255
        save(tmp_path / "masks/1.png", colored)
        (tmp_path / "colors.txt").write_text("64 128 64\n192 0 128\n0 128 192")

        with pytest.raises(SourceError):
            pack_images(
                tmp_path / "in",
                tmp_path / "out",
                masks=tmp_path / "masks",
                palette=tmp_path / "colors.txt",
            )

    @pytest.mark.parametrize(
        "pixels",
        [
            np.array([[[0, 0, 0, 255], [0, 0, 0, 0]]], np.uint8),
            np.array([[10, 65_530]], np.uint16),
        ],
        ids=["transparent", "16 bits"],
    )
    def test_transparency_and_16_bits_are_not_rounded_to_colours(
        self, tmp_path: Path, pixels: npt.NDArray[Any]
    ) -> None:
        save(tmp_path / "1.png", pixels)
        (tmp_path / "colors.txt").write_text("#000000\n#ffffff")

        class_map = ClassMap(tmp_path / "colors.txt", None)

        with pytest.raises(CodecError):
            class_map.read((tmp_path / "1.png").read_bytes(), 99)

    def test_a_lossy_mask_is_refused(self, tmp_path: Path) -> None:
        picture(tmp_path / "in/1.jpg")
        save(tmp_path / "masks/1.jpg", np.full_like(COLORS[NUMBERS], 128))  # as it was, by chance
        colors = tmp_path / "colors.txt"
        colors.write_text("128 128 128")

        with pytest.raises(SourceError):
            pack_images(
                tmp_path / "in", tmp_path / "out", masks=tmp_path / "masks", palette=colors
            )


class TestLabelMaps:
    def test_numbers_become_others(self, tmp_path: Path) -> None:
        save(tmp_path / "in/1.png", np.zeros((1, 3, 3), np.uint8))
        save(tmp_path / "masks/1.png", np.array([[0, 1, 2]], np.uint8))
        (tmp_path / "map.txt").write_text("old new\n0 255\n1 0\n2 300")
        words = ["--masks", str(tmp_path / "masks"), "--label-map", str(tmp_path / "map.txt")]

        assert main(["images", str(tmp_path / "in"), str(tmp_path / "out"), *words]) == 0

        assert masks_of(tmp_path / "out") == [[[255, 0, 300]]]

    def test_a_value_that_is_not_in_it_is_named(self, tmp_path: Path) -> None:
        picture(tmp_path / "in/1.jpg")
        save(tmp_path / "masks/1.png", NUMBERS)
        (tmp_path / "map.txt").write_text("0 1\n1 2")

        with pytest.raises(SourceError):
            pack_images(
                tmp_path / "in",
                tmp_path / "o",
                masks=tmp_path / "masks",
                label_map=tmp_path / "map.txt",
            )

    def test_it_is_applied_to_what_a_palette_gives(self, tmp_path: Path) -> None:
        save(tmp_path / "1.png", COLORS[NUMBERS])
        (tmp_path / "colors.txt").write_text("64 128 64\n192 0 128\n0 128 192")
        (tmp_path / "map.txt").write_text("0 5\n1 6\n2 6")

        class_map = ClassMap(tmp_path / "colors.txt", tmp_path / "map.txt")

        expected = np.array([5, 6, 6])[NUMBERS].tolist()
        assert class_map.read((tmp_path / "1.png").read_bytes(), 99).tolist() == expected
        (tmp_path / "map.txt").write_text("0 5\n1 6")
        with pytest.raises(SourceError, check=At("map.txt")):
            ClassMap(tmp_path / "colors.txt", tmp_path / "map.txt")

    @pytest.mark.parametrize(
        ("option", "text"), [("palette", "no colours"), ("palette", "1 2 3\n1 2 3"), ("label_map", "[1]"),
                             ("palette", "1 2 3\n1 2 256\n4 5 6"), ("palette", "1 2 3\n#80400\n4 5 6"),
                             ("palette", "1 2 3\nroad\n4 5 6"), ("palette", "300 2 3\n4 5 6"),
                             ("label_map", '{"0": 1}'), ("label_map", "0 70000"), ("label_map", "0 0\n1 -1"),
                             ("label_map", "0 1\n0 2")]
    )  # fmt: skip
    def test_other_files_are_refused(self, tmp_path: Path, option: str, text: str) -> None:
        other = "label_map" if option == "palette" else "palette"
        (tmp_path / "it.txt").write_text(text)

        with pytest.raises(LoadersError):
            ClassMap(**{other: None}, **{option: tmp_path / "it.txt"})
        with pytest.raises(SourceError, check=At("none")):
            ClassMap(**{other: None}, **{option: tmp_path / "none"})

    def test_without_masks_they_mean_nothing(self, tmp_path: Path) -> None:
        picture(tmp_path / "in/1.jpg")
        (tmp_path / "colors.txt").write_text("64 128 64")

        with pytest.raises(SchemaError):
            plan_images(tmp_path / "in", palette=tmp_path / "colors.txt")
