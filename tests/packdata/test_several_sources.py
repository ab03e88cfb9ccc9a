"""Several sources of pictures or arrays become one dataset, in their order, with one list of classes."""

import os
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import SourceError
from loaders.schema import Label
from packdata.arrays.plan import pack_arrays
from packdata.cli import main
from packdata.images.plan import pack_images
from tests.packdata.reading import PackedReader


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((6, 5, 3), value, np.uint8))


def named_labels(folder: Path) -> list[tuple[str, str]]:
    reader = PackedReader(folder, check=True)
    field = reader.schema.fields["label"]
    assert isinstance(field, Label)
    assert field.classes is not None
    names = [field.classes[number] for number in reader.column("label").tolist()]
    return list(zip(reader.keys(), names, strict=True))


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """``one`` has the classes bird and dog, ``two`` ant and bird: their numbers differ."""
    for i, name in enumerate(
        ["one/dog/3.png", "one/bird/1.png", "two/bird/0.png", "two/ant/9.png"]
    ):
        picture(tmp_path / name, i * 40)
    return tmp_path / "one", tmp_path / "two"


def test_they_follow_each_other_under_one_list_of_classes(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = two

    assert main(["images", str(other), str(one), str(tmp_path / "out")]) == 0

    expected = [("ant/9", "ant"), ("bird/0", "bird"), ("bird/1", "bird"), ("dog/3", "dog")]
    assert named_labels(tmp_path / "out") == expected
    assert read_manifest(tmp_path / "out").provenance["source"] == "two, one"


@pytest.mark.parametrize("start", range(5))
def test_items_begin_anywhere(two: tuple[Path, Path], start: int) -> None:
    from packdata.images.recipe import image_recipes

    ((_, recipe),) = image_recipes(two)

    items = [recipe.name(item) for item in recipe.items()]
    assert [recipe.name(item) for item in recipe.items(start)] == items[start:]
    assert len(recipe) == len(items) == 4


def test_a_key_that_two_have_is_told_apart_by_the_name_of_the_source(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = two
    picture(other / "bird/1.png", 200)

    pack_images([one, other], tmp_path / "out")

    keys = [key for key, _ in named_labels(tmp_path / "out")]
    assert keys == ["one/bird/1", "one/dog/3", "two/ant/9", "two/bird/0", "two/bird/1"]


def test_sources_of_one_name_with_a_key_in_common_are_refused(tmp_path: Path) -> None:
    for part in ("a", "b"):
        picture(tmp_path / part / "images/cat/0.png", 1)

    with pytest.raises(SourceError) as caught:
        pack_images([tmp_path / "a/images", tmp_path / "b/images"], tmp_path / "out")

    assert "'images/cat/0'" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_splits_are_joined_one_by_one(tmp_path: Path) -> None:
    for i, split in enumerate(["a/train", "a/val", "b/val", "b/train"]):
        picture(tmp_path / split / f"c{i}" / f"{i}.png", i)

    pack_images([tmp_path / "a", tmp_path / "b"], tmp_path / "out")

    assert [key for key, _ in named_labels(tmp_path / "out/train")] == ["c0/0", "c3/3"]
    assert [key for key, _ in named_labels(tmp_path / "out/val")] == ["c1/1", "c2/2"]
    train, val = (read_manifest(tmp_path / "out" / name).schema for name in ("train", "val"))
    assert train == val


def test_sources_that_do_not_go_together_are_refused(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    one, _ = two
    picture(tmp_path / "flat/0.png", 0)
    picture(tmp_path / "split/train/a/0.png", 0)
    picture(tmp_path / "split/val/a/1.png", 0)

    for other in ("flat", "split"):
        with pytest.raises(SourceError) as caught:
            pack_images([one, tmp_path / other], tmp_path / "out")
        assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_tars_one_by_one_are_what_their_pattern_is(tmp_path: Path) -> None:
    """A shell makes several words of a pattern that is not quoted."""
    for i in range(3):
        picture(tmp_path / f"{i}.png", i * 50)
        with tarfile.open(tmp_path / f"t{i}.tar", "w") as tar:
            tar.add(tmp_path / f"{i}.png", f"{i}.png")

    pack_images(f"{tmp_path}/t*.tar", tmp_path / "pattern")
    pack_images(sorted(tmp_path.glob("t*.tar")), tmp_path / "words")

    prints = [read_manifest(tmp_path / name).fingerprint for name in ("pattern", "words")]
    assert prints[0] == prints[1]


def test_what_is_worth_knowing_of_one_is_told_of_several(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = two
    for folder in (one / "bee", one / "ant", other / "bee"):
        folder.mkdir()

    notes = pack_images([one, other], tmp_path / "out").notes

    assert "empty folders are not classes: bee (classes= can name them)" in notes


def test_arrays_of_several_folders(tmp_path: Path) -> None:
    for name, value in (("b", 1), ("a", 2)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / f"{name}.npy", np.full((2, 3), value, np.int16))

    pack_arrays([tmp_path / "b", tmp_path / "a"], tmp_path / "out")

    assert PackedReader(tmp_path / "out").keys() == ["b", "a"]


def test_a_source_that_changes_while_others_are_packed_is_seen(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packdata.images.plan import plan_images

    monkeypatch.chdir(tmp_path)
    plan = plan_images(["one", "two"])
    assert plan.is_unchanged()

    os.utime("two/bird/0.png", (1, 1))

    assert not plan.is_unchanged()
