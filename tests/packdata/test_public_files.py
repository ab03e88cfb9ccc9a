"""Files as public datasets have them, written from their documented layout: read as what they are, or refused."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from loaders import ShardDataset
from loaders.errors import SourceError
from packdata import pack_images
from packdata.tables.plan import plan_tables
from tests.packdata.test_tokens import documents, pack, write


def test_ids_of_such_a_size_are_ids(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 3073 * 20).astype("<u2")

    folder = pack(write(tmp_path / "train.bin", ids.tobytes()), tmp_path / "p")

    assert documents(folder) == [ids.tolist()]


ADULT = """\
39, State-gov, 77516, Bachelors, 13, <=50K
50, Self-emp, 83311, Bachelors, 13, <=50K
38, Private, 215646, HS-grad, 9, >50K
53, State-gov, 234721, 11th, 7, >50K
28, Private, 338409, Bachelors, 13, <=50K
"""


@pytest.mark.parametrize("rest", ["", "17, Private, 1, Masters, 14, <=50K\n"])
def test_a_table_of_uci_without_a_header_is_noted(tmp_path: Path, rest: str) -> None:
    plan = plan_tables([write(tmp_path / "adult.csv", ADULT + rest)])

    assert any("header=False" in note for note in plan.notes())


def test_years_as_names_are_not(tmp_path: Path) -> None:
    text = "country,1960,1961,1962\nA,1,2,3\nB,4,5,6\n"

    assert not any(
        "header=False" in n for n in plan_tables([write(tmp_path / "a.csv", text)]).notes()
    )


def lvis(folder: Path, **image: Any) -> Path:
    (folder / "train2017").mkdir(parents=True)
    for i in range(2):
        cv2.imwrite(str(folder / f"train2017/{i:012d}.png"), np.zeros((48, 64, 3), np.uint8))
    data = {
        "images": [
            {"id": i, "height": 48, "width": 64, "not_exhaustive_category_ids": []}
            | {name: value.format(i) for name, value in image.items()}
            for i in range(2)
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 12], "area": 120}
        ],
        "categories": [{"id": 3, "name": "cup", "synset": "cup.n.01", "frequency": "c"}],
    }
    return write(folder / "lvis.json", json.dumps(data))


def test_annotations_of_lvis_name_pictures_by_their_address(tmp_path: Path) -> None:
    file = lvis(tmp_path, coco_url="http://images.cocodataset.org/train2017/{:012d}.png")

    pack_images(tmp_path / "train2017", tmp_path / "p", annotations=file)

    dataset = ShardDataset(tmp_path / "p", fields=["boxes", "box_labels"])
    assert [sample.boxes.tolist() for sample in dataset] == [[], [[1, 2, 11, 14]]]
    assert dataset[1].box_labels.tolist() == [0]


def test_annotations_that_lack_something_are_an_error_of_their_file(tmp_path: Path) -> None:
    file = lvis(tmp_path)
    with pytest.raises(SourceError) as caught:
        pack_images(tmp_path / "train2017", tmp_path / "p", annotations=file)
    assert str(caught.value.path) == str(file)
    write(file, file.read_text().replace('"image_id"', '"picture"').replace('"id": 0, ', ""))
    with pytest.raises(SourceError):
        pack_images(tmp_path / "train2017", tmp_path / "p", annotations=file)
