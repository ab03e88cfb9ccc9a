"""Folders that become classes, and those that do not unasked."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.errors import SourceError
from packdata.files.splits import SourceOptions, open_splits
from packdata.images.plan import plan_images
from tests.packdata.test_sources import write_tar
from tests.refusals import At

# By name of the layout: the files, and what the message names.
LAYOUTS = {
    "coco": (["train2017/1.jpg", "val2017/2.jpg", "annotations/a.json"], "train2017, val2017"),
    "a version": (["train_v2/1.jpg", "cat/2.jpg"], "train_v2"),
    "one split": (["train2017/1.jpg"], "train2017"),
    "a split beside classes": (["train/1.jpg", "bus/1.jpg", "car/1.jpg"], "train"),
    "images beside labels": (["images/1.jpg", "labels/1.png"], "images"),
    "images beside masks": (["Images/1.jpg", "Masks/1.png", "more/1.png"], "Images"),
    "yolo": (["images/1.jpg", "labels/1.txt"], "images"),
    "pets": (["images/a_1.jpg", "annotations/trimaps/a_1.png"], "annotations"),
    "one folder": (["archive/cat/1.jpg", "archive/dog/1.jpg"], "archive"),
    "one folder beside empty ones": (["images/A/1.jpg", "parts/parts.txt"], "images"),
}
CLASSES = {
    "plain": ["cat/1.jpg", "dog/1.jpg"],
    "deep": ["cat/black/1.jpg", "cat/white/1.jpg", "dog/black/1.jpg", "dog/white/1.jpg"],
    "tiny-imagenet": ["n01/images/1.JPEG", "n02/images/1.JPEG"],
    "other words": ["raw/1.jpg", "input/1.jpg", "mask/1.jpg", "original/1.jpg"],
    "longer words": ["train_station/1.jpg", "testimony/1.jpg", "valley/2.jpg"],
    "numbered": ["class_1/1.jpg", "class_2/1.jpg"],
}


def touch(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_folders_that_are_no_classes_are_refused_unless_they_are_named(
    tmp_path: Path, name: str
) -> None:
    files, what = LAYOUTS[name]
    root = touch(tmp_path / "root", files)
    folders = sorted({file.split("/")[0] for file in files if file.endswith(("jpg", "png"))})

    with pytest.raises(SourceError) as caught:
        open_splits(root)
    (source,) = open_splits(root, SourceOptions(classes=folders)).values()

    assert what in caught.value.what
    assert source.labels["label"].classes == tuple(folders)


@pytest.mark.parametrize("name", CLASSES)
def test_folders_of_classes_are_classes(tmp_path: Path, name: str) -> None:
    root = touch(tmp_path, CLASSES[name])

    (source,) = open_splits(root).values()

    assert source.labels["label"].classes == tuple(
        sorted({f.split("/")[0] for f in CLASSES[name]})
    )


def test_beside_annotations_classes_are_no_remedy_for_folders(tmp_path: Path) -> None:
    """They name those of boxes there."""
    root = touch(tmp_path / "q", ["train2017/1.jpg", "val2017/1.jpg"])

    for classes in None, ["cat"]:
        with pytest.raises(SourceError) as caught:
            plan_images(root, annotations=tmp_path, classes=classes)
        assert caught.value.hint == "Pack each split by itself, with the same classes="


def test_folders_of_a_split_are_looked_at_too(tmp_path: Path) -> None:
    """As those of YOLO's exports."""
    root = touch(tmp_path, ["train/images/1.jpg", "train/labels/1.txt", "valid/images/2.jpg"])

    with pytest.raises(SourceError) as caught:
        open_splits(root)

    assert caught.value.path == root / "train"


def test_the_only_folder_of_a_split_is_no_class_that_splits_of_several_lack(
    tmp_path: Path,
) -> None:
    """As in tiny-imagenet's val and test: their pictures would be a class of its own, before all others."""
    train = ["train/n01/images/1.JPEG", "train/n02/images/2.JPEG"]
    root = touch(tmp_path / "in", [*train, "val/images/3.JPEG", "test/images/4.JPEG"])

    with pytest.raises(SourceError) as caught:
        open_splits(root)
    named = open_splits(root, SourceOptions(classes=["images", "n01", "n02"]))
    part = open_splits(touch(tmp_path / "part", [*train, "val/n02/3.JPEG"]))

    assert "images" in caught.value.what
    assert [len(splits) for splits in (named, part)] == [3, 2]


@pytest.mark.parametrize("names", [["images", "images"], ["a", "b"]])
def test_the_only_folder_of_each_split_is_no_class_unasked(
    tmp_path: Path, names: list[str]
) -> None:
    """Nor is it without splits."""
    root = touch(tmp_path, [f"train/{names[0]}/1.jpg", f"val/{names[1]}/1.jpg"])

    with pytest.raises(SourceError, match="only class", check=At("train")):
        open_splits(root)
    assert len(open_splits(root, SourceOptions(classes=sorted({*names})))) == 2


def test_splits_without_labels_beside_others_are_said(tmp_path: Path) -> None:
    """As ImageNet's val, whose labels lie in a file of their own."""
    root = touch(tmp_path, ["train/a/1.jpg", "train/b/2.jpg", "val/3.jpg"])

    (note,) = [note for note in plan_images(root).notes() if "alone" in note]
    assert note.startswith("samples of val are 'image' alone")


def test_what_holds_no_pictures_is_not_in_the_way_of_splits(tmp_path: Path) -> None:
    root = touch(tmp_path, ["train/1.jpg", "val/1.jpg", "annotations/all.json"])

    assert [*open_splits(root)] == ["train", "val"]


@pytest.mark.parametrize("more", [{}, {"key": ["0", "1"]}], ids=["rows", "keys"])
def test_pictures_are_not_read_to_find_masks_of_several_splits(
    tmp_path: Path, more: dict[str, list[str]]
) -> None:
    (tmp_path / "src").mkdir()
    for split in "train", "val":
        path = tmp_path / "src" / f"{split}.parquet"
        pq.write_table(pa.table({"image": [b"1", b"2"], **more}), path, use_dictionary=False)
        page = pq.read_metadata(path).row_group(0).column(0).data_page_offset
        with open(path, "r+b") as file:
            file.seek(page)
            file.write(b"\xff" * 8)  # whoever reads it says that it is damaged
    masks = touch(tmp_path / "masks", ["train/0.png", "val/0.png"])

    assert len(open_splits(tmp_path / "src", SourceOptions(masks=masks))) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1", "2", "10"], "'1'"),
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


def test_classes_in_the_order_of_their_numbers_are_not_noted(tmp_path: Path) -> None:
    root = touch(tmp_path, [f"{name}/1.jpg" for name in (1, 2, 10)])

    plan = plan_images(root, classes=["1", "2", "10"])

    assert not [note for note in plan.notes() if "called by numbers" in note]


@pytest.mark.parametrize(
    ("cells", "joined"),
    [
        (["a|b", "a", "b", "b|c", "c"], True),
        (["16 0", "0", "16", "16 3", "3"], True),
        (['"a, b"', "a", "b"], True),
        (["\"['a', 'b']\"", "['a']"], True),
        (["New York", "Los Angeles", "Rome"], False),
    ],
)
def test_classes_that_combine_labels_are_noted(
    tmp_path: Path, cells: list[str], joined: bool
) -> None:
    rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
    (tmp_path / "l.csv").write_text(f"path,label\n{rows}")

    notes = plan_images(tmp_path / "l.csv").notes()

    assert any("multi_label" in note for note in notes) == joined


def test_tars_without_labels_are_noted_also_with_folders_in_them(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "several.tar", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})

    assert any("no label" in note for note in plan_images(tar).notes())


def test_classes_that_are_not_given_are_found_in_every_split_of_tars(tmp_path: Path) -> None:
    """All tars of a folder are called as it is."""
    for split, name in (("train", b"dog"), ("val", b"cat")):
        for i in range(2):
            members = {f"{split}{i}.jpg": b"1", f"{split}{i}.cls": name}
            write_tar(tmp_path / f"{split}-{i}.tar", members)

    with pytest.raises(SourceError, match="not given: dog"):
        plan_images(tmp_path, classes=["cat"])
