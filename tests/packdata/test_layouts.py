"""Roots of public datasets, as they are after unpacking: no folder of theirs becomes a class unasked."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from loaders.errors import SourceError
from packdata.files.splits import SourceOptions, open_splits
from packdata.images.plan import plan_images
from packdata.sources.base import ARRAYS
from packdata.sources.layouts import masks_beside

# By name of the layout: the files, and the arguments of the commands that are meant, without the root.
LAYOUTS = {
    "coco": (
        ["train2017/1.jpg", "val2017/2.jpg", "annotations/instances_train2017.json"],
        [
            "train2017 DST/train2017 --annotations annotations/instances_train2017.json",
            "val2017 DST/val2017",
        ],
    ),
    "coco-images": (
        ["images/train2017/1.jpg", "images/val2017/2.jpg", "annotations/a.json"],
        ["images/train2017 DST/train2017", "images/val2017 DST/val2017"],
    ),
    "voc": (
        [
            "JPEGImages/1.jpg",
            "SegmentationClass/1.png",
            "SegmentationObject/1.png",
            "Annotations/1.xml",
        ],
        ["JPEGImages DST --masks SegmentationClass"],
    ),
    "vocdevkit": (
        ["VOC2012/JPEGImages/1.jpg", "VOC2012/SegmentationClass/1.png"],
        ["VOC2012/JPEGImages DST --masks VOC2012/SegmentationClass"],
    ),
    "intel": (
        [
            *("seg_train/seg_train/sea/1.jpg", "seg_train/seg_train/ice/1.jpg"),
            *("seg_test/seg_test/sea/2.jpg", "seg_test/seg_test/ice/2.jpg"),
            "seg_pred/seg_pred/3.jpg",
        ],
        [
            "seg_test/seg_test DST/seg_test --classes DST/seg_train",
            "seg_pred/seg_pred DST/seg_pred",
        ],
    ),
    "kaggle-cats": (
        [
            "training_set/cat/1.jpg",
            "training_set/dog/1.jpg",
            "test_set/cat/2.jpg",
            "test_set/dog/3.jpg",
        ],
        ["training_set DST/training_set", "test_set DST/test_set --classes DST/training_set"],
    ),
    "one-split": (["train2017/1.jpg"], ["train2017 DST"]),
    "archive": (["archive/cat/1.jpg", "archive/dog/1.jpg"], ["archive DST"]),
    "archive-of-splits": (["a/b/train/x/1.jpg", "a/b/test/x/1.jpg"], ["a/b DST"]),
    "flat-archive": (["archive/1.jpg", "archive/2.jpg"], ["archive DST"]),
    "flowers": (["jpg/1.jpg", "jpg/2.jpg", "imagelabels.mat"], ["jpg DST"]),
    "cub": (["images/001.A/1.jpg", "images/002.B/2.jpg", "parts/parts.txt"], ["images DST"]),
    "images-labels": (["images/1.jpg", "labels/1.png"], ["images DST --masks labels"]),
    "yolo": (["images/1.jpg", "labels/1.txt"], ["images DST --annotations labels"]),
    "voc-boxes": (
        ["JPEGImages/1.jpg", "Annotations/1.xml"],
        ["JPEGImages DST --annotations Annotations"],
    ),
    "yolo-splits": (
        ["images/train/1.jpg", "images/val/2.jpg", "labels/train/1.txt"],
        ["images DST --annotations labels"],
    ),
    "ade20k": (
        [
            *("images/training/1.jpg", "images/validation/2.jpg"),
            *("annotations/training/1.png", "annotations/validation/2.png"),
        ],
        ["images DST --masks annotations"],
    ),
    "cityscapes": (
        ["leftImg8bit/train/ulm/1_leftImg8bit.png", "gtFine/train/ulm/1_gtFine_labelIds.png"],
        [
            "leftImg8bit/train/ulm DST --masks gtFine/train/ulm --mask-suffix "
            "_leftImg8bit=_gtFine_labelIds"
        ],
    ),
    "pets": (
        ["images/a_1.jpg", "annotations/trimaps/a_1.png"],
        ["images DST --masks annotations/trimaps"],
    ),
    "carvana": (
        ["train/1.jpg", "train_masks/1_mask.gif"],
        ["train DST --masks train_masks --mask-suffix _mask"],
    ),
    "camera": (["CameraRGB/1.png", "CameraSeg/1.png"], ["CameraRGB DST --masks CameraSeg"]),
    "camvid": (
        ["train/1.png", "train_labels/1.png", "val/2.png", "val_labels/2.png"],
        ["train DST/train --masks train_labels", "val DST/val --masks val_labels"],
    ),
    "mvtec": (
        [
            "bolt/train/good/1.png",
            "bolt/test/bad/1.png",
            "cup/train/good/1.png",
            "cup/test/bad/1.png",
        ],
        ["bolt DST"],
    ),
    "cyclegan": (
        ["trainA/1.jpg", "trainB/1.jpg", "testA/1.jpg", "testB/1.jpg"],
        ["trainA DST/trainA", "testA DST/testA"],
    ),
    "nuclei": (
        ["a1/images/a1.png", "a1/masks/x.png", "b2/images/b2.png", "b2/masks/y.png"],
        ["a1/images DST --masks a1/masks"],
    ),
    "domains": (
        [
            f"{domain}/{name}/1.jpg"
            for domain in ("photo", "sketch")
            for name in ("cat", "dog", "fox")
        ],
        ["photo DST/photo", "sketch DST/sketch"],
    ),
    "doubled": (
        [
            "flowers/rose/1.jpg",
            "flowers/lily/1.jpg",
            "data/flowers/rose/1.jpg",
            "data/flowers/lily/1.jpg",
        ],
        ["data/flowers DST"],
    ),
    "parts": (["images_001/1.png", "images_002/2.png"], ["list.csv DST"]),
    "folds": (["fold1/cat/1.png", "fold2/cat/2.png"], ["list.csv DST"]),
    "splits-in-classes": (
        ["cat/train/1.jpg", "cat/test/2.jpg", "dog/train/1.jpg", "dog/test/2.jpg"],
        [],
    ),
    "masks-of-classes": (["cat/1.jpg", "dog/1.jpg", "masks/cat/1.png"], ["DST --masks masks"]),
}
CLASSES = {
    "plain": ["cat/1.jpg", "dog/1.jpg"],
    "one": ["good/1.jpg"],
    "deep": ["cat/black/1.jpg", "cat/white/1.jpg", "dog/black/1.jpg", "dog/white/1.jpg"],
    "tiny-imagenet": ["n01/images/1.JPEG", "n02/images/1.JPEG"],
    "vehicles": ["train/1.jpg", "bus/1.jpg", "car/1.jpg"],
    "face-masks": ["with_mask/1.jpg", "without_mask/1.jpg", "mask_weared_incorrect/1.jpg"],
    "sides": ["left/1.jpg", "right/1.jpg"],
    "places": ["train_station/1.jpg", "train_interior/2.jpg", "crash_test/1.jpg"],
    "art": ["photo/1.jpg", "painting/2.jpg", "sketch/3.jpg"],
    "numbered": ["class_1/1.jpg", "class_2/1.jpg"],
    "groups": ["animal/cat/1.jpg", "animal/dog/1.jpg", "plant/rose/1.jpg"],
}


def touch(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_root_of_a_dataset_stops_with_the_command_that_is_meant(
    tmp_path: Path, name: str
) -> None:
    files, meant = LAYOUTS[name]
    root = touch(tmp_path / "root", files)

    with pytest.raises(SourceError) as caught:
        open_splits(root)

    hint = caught.value.hint
    assert all(command in hint.replace(f"{root}/", "") for command in meant)
    for command in re.findall(r"packdata images .+?(?=;| \(| and so)", hint):
        _, _, src, _, *more = shlex.split(command)
        if not src.endswith(".csv") and "moving" not in hint:  # these are yet to be made
            masks = more[more.index("--masks") + 1] if "--masks" in more else None
            assert open_splits(src, SourceOptions(masks=masks))


def test_places_with_blanks_are_quoted(tmp_path: Path) -> None:
    root = touch(tmp_path / "my data", ["archive/a b/1.jpg", "archive/c/1.jpg"])

    with pytest.raises(SourceError) as caught:
        open_splits(root)

    words = shlex.split(caught.value.hint)
    assert words[words.index("packdata") :][2:4] == [f"{root}/archive", "DST"]


@pytest.mark.parametrize("name", CLASSES)
def test_folders_of_classes_are_classes(tmp_path: Path, name: str) -> None:
    root = touch(tmp_path, CLASSES[name])

    (split,) = open_splits(root)

    assert split.source.labels["label"].classes == tuple(
        sorted({f.split("/")[0] for f in CLASSES[name]})
    )


def test_named_classes_are_classes_whatever_they_are_called(tmp_path: Path) -> None:
    root = touch(tmp_path, LAYOUTS["kaggle-cats"][0])

    (split,) = open_splits(root, SourceOptions(classes=["training_set", "test_set"]))

    assert split.source.labels["label"].classes == ("test_set", "training_set")


def test_folders_of_a_split_are_looked_at_too(tmp_path: Path) -> None:
    """As those of YOLO's exports, and of tiny-imagenet's val."""
    root = touch(tmp_path, ["train/images/1.jpg", "train/labels/1.txt", "valid/images/2.jpg"])

    with pytest.raises(SourceError) as caught:
        open_splits(root)

    assert f"packdata images {root}/train/images DST" in caught.value.hint


def test_arrays_have_a_command_of_their_own(tmp_path: Path) -> None:
    root = touch(tmp_path, ["imagesTr/1.npy", "labelsTr/1.npy", "imagesTs/2.npy"])

    with pytest.raises(SourceError) as caught:
        open_splits(root, kind=ARRAYS)

    assert f"packdata arrays {root}/imagesTr DST --masks {root}/labelsTr" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "masks", "found"),
    [
        ("ADE/images", "ADE/annotations/training", "ADE/annotations"),
        ("ADE/images/training", "ADE/annotations/training", "ADE/annotations/training"),
        ("voc/JPEGImages", "voc/SegmentationMasks", "voc/SegmentationMasks"),
        ("ADE/images", "ADE/others", None),
        ("photos/cat", "photos/mask", None),  # a class
    ],
)
def test_masks_beside_pictures_are_found(
    tmp_path: Path, source: str, masks: str, found: str | None
) -> None:
    for folder in (source, masks):
        (tmp_path / folder).mkdir(parents=True)

    beside = masks_beside(tmp_path / source)

    assert beside == ([] if found is None else [tmp_path / found])


def test_pictures_alone_and_masks_beside_them_are_noted(tmp_path: Path) -> None:
    for place in ("images/a.png", "annotations/a.png"):
        (tmp_path / place).parent.mkdir()
        Image.new("L", (8, 8)).save(tmp_path / place)
    alone = plan_images(tmp_path / "images").notes()
    marked = plan_images(tmp_path / "images", masks=tmp_path / "annotations")

    assert sum(str(tmp_path / "annotations") in note or "alone" in note for note in alone) == 2
    assert marked.notes() == []


def test_what_holds_no_pictures_is_not_in_the_way_of_splits(tmp_path: Path) -> None:
    root = touch(tmp_path, ["train/a/1.jpg", "val/a/1.jpg", "annotations/all.json"])

    assert [split.name for split in open_splits(root)] == ["train", "val"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1", "2", "10"], "'10'"),
        (["1", "2", "3"], "'1'"),
        (["0", "1", "2"], ""),
        (["00", "01"], ""),
    ],
)
def test_classes_called_by_numbers_are_noted(
    tmp_path: Path, names: list[str], expected: str
) -> None:
    plan = plan_images(touch(tmp_path, [f"{name}/1.jpg" for name in names]))

    found = [note for note in plan.notes() if "called by numbers" in note]

    assert len(found) == bool(expected)
    assert all(expected in note for note in found)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["HR/a.png", "HR/b.png", "LR/a.png", "LR/b.png"], "HR and LR hold files of the same"),
        (["HR/a.png", "HR/b.png", "LR/a.png", "LR/c.png"], ""),
        (["cat/1.jpg", "dog/1.jpg"], ""),
        (["Cat/1.jpg", "cat /2.jpg", "dog/3.jpg"], "'Cat' and 'cat '"),
        (["caf\u00e9/1.jpg", "cafe\u0301/2.jpg"], "'cafe\\u0301' and 'caf\u00e9'"),
        (["c++/1.jpg", "c/2.jpg"], ""),
    ],
)
def test_classes_that_seem_to_be_no_classes_are_noted(
    tmp_path: Path, files: list[str], expected: str
) -> None:
    notes = plan_images(touch(tmp_path, files)).notes()

    found = [note for note in notes if "same names" in note or "almost the same" in note]
    assert len(found) == bool(expected)
    assert all(expected in note for note in found)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/c/1.jpg"], ["val", "c"]),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"], []),
        (["val/a/1.jpg", "test/b/1.jpg"], []),
    ],
)
def test_a_class_that_is_not_trained_on_is_noted(
    tmp_path: Path, files: list[str], expected: list[str]
) -> None:
    """Its name may be misspelled."""
    notes = plan_images(touch(tmp_path, files)).notes()

    found = [note for note in notes if "train has no file" in note]
    assert [word for note in found for word in (note.split()[0], note.split()[-1])] == expected


def test_a_list_beside_pictures_is_named(tmp_path: Path) -> None:
    root = touch(tmp_path, ["in/1.jpg", "in/2.jpg"])
    (root / "in/metadata.csv").write_text("file_name,label\n1.jpg,cat\n2.jpg,dog\n")

    assert any("in/metadata.csv" in note for note in plan_images(root / "in").notes())


def test_a_column_that_divides_samples_is_told(tmp_path: Path) -> None:
    root = touch(tmp_path, ["1.jpg", "2.jpg"])
    (root / "list.csv").write_text("path,label,split\n1.jpg,cat,train\n2.jpg,dog,val\n")

    assert any("--where" in note for note in plan_images(root / "list.csv").notes())


def test_classes_in_the_order_of_their_numbers_are_not_noted(tmp_path: Path) -> None:
    root = touch(tmp_path, [f"{name}/1.jpg" for name in (1, 2, 10)])

    plan = plan_images(root, classes=["1", "2", "10"])

    assert not [note for note in plan.notes() if "called by numbers" in note]
