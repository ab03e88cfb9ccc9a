"""Boxes and keypoints from the command line: declared columns, and annotations beside folders of pictures."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders import ShardDataset, augment
from loaders.errors import LoadersError, PackError, SchemaError, SourceError
from loaders.schema import Array, Boxes, Json, Keypoints
from packdata.cli import main
from packdata.images.fit import SizeOption
from packdata.images.plan import pack_images, plan_images
from tests.refusals import At

HEIGHT, WIDTH = 40, 80
CORNERS: list[list[float]] = [[8, 4, 24, 20], [40, 10, 80, 40]]  # x1, y1, x2, y2
FORMS: dict[str, list[list[float]]] = {
    "xyxy": CORNERS,
    "xywh": [[x, y, x2 - x, y2 - y] for x, y, x2, y2 in CORNERS],
    "cxcywh": [[(x + x2) / 2, (y + y2) / 2, x2 - x, y2 - y] for x, y, x2, y2 in CORNERS],
    "yolo": [
        [(x + x2) / 2 / WIDTH, (y + y2) / 2 / HEIGHT, (x2 - x) / WIDTH, (y2 - y) / HEIGHT]
        for x, y, x2, y2 in CORNERS
    ],
}


def pictures(folder: Path, *names: str, orientation: int = 1) -> Path:
    """Save pictures with a bright rectangle where the first box is."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    x, y, x2, y2 = CORNERS[0]
    pixels[y:y2, x:x2] = 250
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels).save(folder / name, exif=exif)
    return folder


def listed(folder: Path, rows: list[dict[str, Any]], suffix: str) -> Path:
    file = folder / f"list.{suffix}"
    if suffix == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == "csv":
        names = list(rows[0])
        cells = [
            ";".join(str(row[n]) if isinstance(row[n], str) else json.dumps(row[n]) for n in names)
            for row in rows
        ]
        file.write_text("\n".join([";".join(names), *cells]))
    else:
        data = [{**row, "image": (folder / row["path"]).read_bytes()} for row in rows]
        for row in data:
            del row["path"]
        pq.write_table(pa.Table.from_pylist(data), file)
    return file


def run(*words: Any) -> int:
    try:
        return main(["images", *map(str, words)])
    except SystemExit as exit:
        return int(exit.code or 0)


class TestColumns:
    @pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
    @pytest.mark.parametrize("form", FORMS)
    def test_boxes_of_every_form_become_corners(
        self, tmp_path: Path, form: str, suffix: str
    ) -> None:
        pictures(tmp_path, "a.png", "b.png")
        rows: list[dict[str, Any]]
        rows = [{"path": "a.png", "where": FORMS[form]}, {"path": "b.png", "where": []}]
        source = listed(tmp_path, rows, suffix)

        declared = "where" if form == "xyxy" else f"where:{form}"
        assert run(source, tmp_path / "out", "--boxes", declared) == 0

        dataset = ShardDataset(tmp_path / "out")
        assert dataset.fields == ("image", "where")
        assert isinstance(dataset.schema.fields["where"], Boxes)
        assert np.allclose(dataset[0].where.numpy(), CORNERS, atol=1e-4)
        assert dataset[1].where.shape == (0, 4)

    def test_a_member_of_a_struct_is_named_with_a_dot(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png", "b.png")
        objects = {"bbox": FORMS["xywh"], "category": [1, 2]}
        rows = [{"path": "a.png", "objects": objects}, {"path": "b.png", "objects": objects}]
        source = listed(tmp_path, rows, "parquet")

        pack_images(source, tmp_path / "out", boxes=["objects.bbox:xywh"])

        dataset = ShardDataset(tmp_path / "out", fields=["image", "objects_bbox", "objects"])
        assert dataset[0].objects_bbox.tolist() == CORNERS
        told: Any = dataset[0].objects
        assert told["category"] == [1, 2]

    @pytest.mark.parametrize(
        ("given", "options", "classes", "expected"),
        [
            ([2, 0], {}, None, [2, 0]),
            (["dog", "cat"], {"classes": ["cat", "dog"]}, ("cat", "dog"), [1, 0]),
            (["dog", "cat"], {"classes": ["dog", "cow", "cat"]}, ("dog", "cow", "cat"), [0, 2]),
        ],
    )
    @pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
    def test_classes_of_boxes_are_numbers_that_follow_them(
        self, tmp_path: Path, suffix: str, given: Any, options: Any, classes: Any, expected: Any
    ) -> None:
        pictures(tmp_path, "a.png", "b.png")
        objects = {"bbox": CORNERS, "category": given}
        rows = [{"path": "a.png", "objects": objects}, {"path": "b.png", "objects": objects}]
        source = listed(tmp_path, rows, suffix)

        pack_images(
            source,
            tmp_path / "out",
            boxes="objects.bbox",
            box_labels="objects.category",
            **options,
        )

        dataset = ShardDataset(tmp_path / "out", fields=["image", "objects_bbox", "box_labels"])
        assert dataset[0].box_labels.tolist() == expected
        assert dataset.schema.fields["box_labels"].classes == classes  # type: ignore[attr-defined]

    @pytest.mark.parametrize("is_list", [False, True])
    def test_declared_names_of_classes_are_those_of_boxes(
        self, tmp_path: Path, is_list: bool
    ) -> None:
        pictures(tmp_path, "a.png")
        kind: dict[str, Any] = {"_type": "ClassLabel", "names": ["dog", "cat"]}
        objects: Any = {"bbox": CORNERS, "category": [1, 0]}
        members: Any = {"category": {"_type": "List", "feature": kind}}
        if is_list:
            objects = [{"bbox": box, "category": 1 - i} for i, box in enumerate(CORNERS)]
            members = {"_type": "Sequence", "feature": [{"category": kind}]}
        path = listed(tmp_path, [{"path": "a.png", "objects": objects}], "parquet")
        about = json.dumps({"info": {"features": {"objects": members}}})
        table = pq.read_table(path).replace_schema_metadata({"huggingface": about})
        pq.write_table(table, path)

        options: dict[str, Any] = {"boxes": "objects.bbox", "box_labels": "objects.category"}
        pack_images(path, tmp_path / "out", **options)

        dataset = ShardDataset(tmp_path / "out")
        assert dataset.classes == ("dog", "cat")
        assert dataset[0].box_labels.tolist() == [1, 0]
        assert not any("objects_bbox" in note for note in plan_images(path, **options).notes())
        pack_images(path, tmp_path / "fixed", classes=["cat", "cow", "dog"], **options)
        assert ShardDataset(tmp_path / "fixed")[0].box_labels.tolist() == [0, 2]
        with pytest.raises(SourceError, match="not given: dog"):
            plan_images(path, classes=["cat"], **options)

    def test_boxes_of_another_form_are_another_packing(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        rows = [{"path": "a.png", "box": FORMS["xywh"], "kind": [1, 2]}]
        source = listed(tmp_path, rows, "jsonl")

        pack_images(source, tmp_path / "out", boxes="box:xywh", box_labels="kind")

        with pytest.raises(PackError):
            pack_images(source, tmp_path / "out", boxes="box:cxcywh", box_labels="kind")

    def test_another_member_of_classes_is_another_packing(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        objects = {"bbox": CORNERS, "kind": [0, 1], "group": [1, 1]}
        source = listed(tmp_path, [{"path": "a.png", "objects": objects}], "jsonl")
        for _ in range(2):
            pack_images(source, tmp_path / "out", boxes="objects.bbox", box_labels="objects.kind")

        with pytest.raises(PackError):
            pack_images(source, tmp_path / "out", boxes="objects.bbox", box_labels="objects.group")

    def test_four_numbers_alone_are_a_box_that_has_a_class(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "box": CORNERS[0], "kind": [2]}], "jsonl")

        pack_images(source, tmp_path / "out", boxes="box", box_labels="kind")

        sample = ShardDataset(tmp_path / "out", fields=["image", "box", "box_labels"])[0]
        assert (sample.box.tolist(), sample.box_labels.tolist()) == (CORNERS[:1], [2])

    @pytest.mark.parametrize(
        "labels", [[1], [1, 2, 3], [0.5, 1], [True, False], [[1], [2]], 5, {"a": 1}]
    )
    def test_classes_that_are_not_one_a_box_are_refused(self, tmp_path: Path, labels: Any) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "box": CORNERS, "kind": labels}], "jsonl")

        for classes in None, ["a", "b"]:
            with pytest.raises(SourceError) as caught:
                pack_images(
                    source, tmp_path / "out", boxes="box", box_labels="kind", classes=classes
                )

            assert "line 1" in str(caught.value.path)

    def test_whole_numbers_are_names_where_classes_are_called_by_such(
        self, tmp_path: Path
    ) -> None:
        """As of labels: 1 is the class '1', and not the one after the first."""
        rows = [
            {"path": f"{name}.png", "label": name, "box": CORNERS[:1], "kind": [kind]}
            for name, kind in ((1, 1), (3, "3"))
        ]
        pictures(tmp_path, "1.png", "3.png")
        source = listed(tmp_path, rows, "jsonl")
        options: dict[str, Any] = {"boxes": "box", "box_labels": "kind"}

        pack_images(source, tmp_path / "out", classes=["1", "2", "3"], **options)

        samples = [*ShardDataset(tmp_path / "out", fields=["image", "box_labels"])]
        assert [sample.box_labels.tolist() for sample in samples] == [[0], [2]]
        with pytest.raises(SourceError, match=r"line 2 .* classes="):  # '3' is a name, 1 a number
            pack_images(source, tmp_path / "names", **options)

    def test_a_row_without_a_list_of_classes_is_rejected_in_its_turn(self, tmp_path: Path) -> None:
        kinds = [0], "oops", [1]
        rows = [
            {"path": f"{i}.png", "box": CORNERS[:1], "kind": kind} for i, kind in enumerate(kinds)
        ]
        pictures(tmp_path, "0.png", "1.png", "2.png")
        source = listed(tmp_path, rows, "jsonl")
        options: dict[str, Any] = {"boxes": "box", "box_labels": "kind", "on_error": "skip"}

        summary = pack_images(source, tmp_path / "out", **options)

        assert (summary.samples, len(summary.rejected)) == (2, 1)

    @pytest.mark.parametrize("number", [2, -1])
    def test_a_number_of_a_box_that_is_no_class_is_refused(
        self, tmp_path: Path, number: int
    ) -> None:
        pictures(tmp_path, "a.png")
        row = {"path": "a.png", "box": CORNERS[:1], "kind": [number]}
        source = listed(tmp_path, [row], "jsonl")
        (tmp_path / "classes.txt").write_text("cat\ndog\n")

        with pytest.raises(SourceError, match="line 1 "):
            pack_images(
                source, tmp_path / "out", boxes="box", box_labels="kind",
                classes=tmp_path / "classes.txt",
            )  # fmt: skip

    def test_pairs_of_points_are_declared_or_missed(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "joints": [[[1, 2], [3, 4]]]}], "jsonl")

        assert run(source, tmp_path / "out", "--keypoints", "joints", "--flip-pairs", "0-1") == 0
        assert run(source, tmp_path / "no", "--keypoints", "joints", "--flip-pairs", "0,1") == 2
        assert run(source, tmp_path / "no", "--keypoints", "joints", "--flip-pairs", "1-2") == 1
        alone = plan_images(source, keypoints="joints").notes()
        with pytest.raises(SchemaError):
            plan_images(source, keypoints="joints", flip_pairs=[(1,)])

        field = ShardDataset(tmp_path / "out").schema.fields["joints"]
        assert field.flip_pairs == ((0, 1),)  # type: ignore[attr-defined]
        assert any("flip_pairs" in note for note in alone)

    @pytest.mark.parametrize(
        ("points", "shape"),
        [
            ([[[1, 2], [3, 4]]], (1, 2, 2)),
            ([[1, 2, 2, 3, 4, 0]], (1, 2, 3)),
            ([5, 6, 1], (1, 1, 3)),
            ([[1, 2], [3, 4]], (1, 2, 2)),
        ],
    )
    def test_keypoints_are_declared(
        self, tmp_path: Path, points: Any, shape: tuple[int, ...]
    ) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "joints": points}], "jsonl")

        assert run(source, tmp_path / "out", "--keypoints", "joints") == 0

        dataset = ShardDataset(tmp_path / "out")
        assert isinstance(dataset.schema.fields["joints"], Keypoints)
        assert dataset[0].joints.shape == shape

    def test_flat_keypoints_without_visibility_are_refused(self, tmp_path: Path) -> None:
        """Six numbers may be two points or three."""
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "joints": [1, 2, 30, 4, 5, 6]}], "jsonl")

        with pytest.raises(SourceError):
            pack_images(source, tmp_path / "out", keypoints=["joints"])

    @pytest.mark.parametrize(
        ("boxes", "form"),
        [
            ([[30, 4, 8, 16]], "xyxy"),
            (CORNERS, "xywh"),
            (CORNERS, "yolo"),
            ([[0, 0, 90, 10]], "xyxy"),
            ([[0, 0, float("nan"), 10]], "xyxy"),
            ([[-9, 0, 5, 5]], "xyxy"),
            ([[0.1, 0.2, 0.5, 0.9], [0, 0, 1, 0.5]], "xyxy"),
            ([[0.5, 0.5, 0.2, 0.25]], "cxcywh"),
            ([[1, 2, 3]], "xyxy"),
            ([[1, 2], [30, 20]], "xyxy"),
            (["a"], "xyxy"),
        ],
    )
    def test_boxes_beyond_the_picture_are_an_error_that_names_the_forms(
        self, tmp_path: Path, boxes: Any, form: str
    ) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "where": boxes}], "jsonl")

        with pytest.raises(SourceError) as caught:
            pack_images(source, tmp_path / "out", boxes=f"where:{form}")

        assert "a.png" in str(caught.value)
        if np.shape(boxes)[-1:] == (4,):
            assert all(name in str(caught.value) for name in FORMS)
            assert np.max(boxes) <= 1 or "docs/masks.md" in str(caught.value)

    def test_what_rounding_puts_beyond_an_edge_is_cut_off(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        boxes = [[-0.5, 4, 24, 20], [40, 10, WIDTH + 0.75, HEIGHT + 1]]
        source = listed(tmp_path, [{"path": "a.png", "where": boxes}], "jsonl")

        pack_images(source, tmp_path / "out", boxes=["where"])

        found = ShardDataset(tmp_path / "out")[0].where.tolist()
        assert found == [[0, 4, 24, 20], [40, 10, WIDTH, HEIGHT]]

    @pytest.mark.parametrize("text", ["{", "x", "[" * 100_000, f"[[1, 2, 3, 1{'0' * 400}]]"])
    @pytest.mark.parametrize("option", ["boxes", "keypoints"])
    def test_what_is_no_list_in_a_cell_is_skipped(
        self, tmp_path: Path, text: str, option: str
    ) -> None:
        pictures(tmp_path, "a.png", "b.png")
        rows = [{"path": "a.png", "place": "[]"}, {"path": "b.png", "place": text}]
        source = listed(tmp_path, rows, "jsonl")
        columns: dict[str, Any] = {option: ["place"]}

        summary = pack_images(source, tmp_path / "out", on_error="skip", **columns)

        ((where, _),) = summary.rejected
        assert where.endswith("list.jsonl, line 2 (b.png)")

    @pytest.mark.parametrize(
        "points",
        [
            [[0.25, 0.5], [1, 0]],
            [[1, 2], [300, 4]],
            [[-1, -1], [3, 4]],
            [[None, None, 0], [3, 4, 2]],
        ],
    )
    def test_keypoints_in_shares_beyond_the_picture_or_nowhere_are_an_error(
        self, tmp_path: Path, points: Any
    ) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "joints": [points]}], "jsonl")

        with pytest.raises(SourceError):
            pack_images(source, tmp_path / "out", keypoints=["joints"])

    def test_a_keypoint_that_rounding_puts_beyond_one_edge_is_one(self, tmp_path: Path) -> None:
        """Nowhere is -1, -1 alone."""
        points = [[-1, 4], [3, -1]]
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "joints": [points]}], "jsonl")

        pack_images(source, tmp_path / "out", keypoints=["joints"])

        assert ShardDataset(tmp_path / "out")[0].joints.tolist() == [points]

    def test_what_is_declared_is_there(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "where": []}], "jsonl")

        with pytest.raises(SourceError, check=At("list.jsonl")):
            plan_images(source, boxes=["other"])
        with pytest.raises(SchemaError):
            plan_images(source, boxes=["where:corners"])
        assert run(source, tmp_path / "out", "--boxes", "where:corners") == 2

    def test_another_form_is_another_packing(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png")
        source = listed(tmp_path, [{"path": "a.png", "where": [[1, 2, 3, 4]]}], "jsonl")

        plans = [plan_images(source, boxes=[f"where:{form}"]) for form in ("xyxy", "xywh")]

        assert plans[0].recipes[0].identity != plans[1].recipes[0].identity
        assert all(plan.is_unchanged() for plan in plans)

    def test_turned_pictures_with_boxes_are_noted(self, tmp_path: Path) -> None:
        pictures(tmp_path, "a.png", orientation=6)
        source = listed(tmp_path, [{"path": "a.png", "where": [[1, 2, 30, 70]]}], "jsonl")

        summary = pack_images(source, tmp_path / "out", boxes=["where"])

        assert any("upright picture" in note for note in summary.notes)
        assert ShardDataset(tmp_path / "out")[0].where.tolist() == [[1, 2, 30, 70]]


class TestSizes:
    @pytest.mark.parametrize(
        ("size", "fit"),
        [
            ("20", "shorter"),
            ("30x30", "cover"),
            ("30x30", "contain"),
            ("20x30", "stretch"),
            ("200x90", "cover"),
            (f"{HEIGHT - 20}x{WIDTH}", "cover"),  # cut, at its own scale
            (f"{HEIGHT}x{WIDTH + 20}", "contain"),  # padded alone
        ],
    )
    def test_boxes_and_points_lie_on_the_pixels_that_they_were_on(
        self, tmp_path: Path, size: str, fit: str
    ) -> None:
        pictures(tmp_path, "a.png")
        corners = np.reshape(CORNERS[0], (1, 2, 2)).tolist()
        row = {"path": "a.png", "where": CORNERS[:1], "joints": corners}
        source = listed(tmp_path, [row], "jsonl")
        how: dict[str, Any] = {"boxes": ["where"], "keypoints": ["joints"], "codec": "png"}

        pack_images(source, tmp_path / "out", sizes=[size], fit=fit, **how)

        image, boxes, joints = ShardDataset(tmp_path / "out")[0]
        edges = np.array(image.shape[:0:-1])
        assert np.allclose(joints.numpy().clip(0, edges), boxes.reshape(1, 2, 2), atol=1e-3)
        rows, columns = np.nonzero(image[0].numpy() > 125)
        found = (
            [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            if len(rows)
            else [0] * 4
        )
        if len(rows):
            assert np.abs(boxes[0].numpy() - found).max() <= 1.01
        else:
            assert boxes[0, 0] == boxes[0, 2] or boxes[0, 1] == boxes[0, 3]

    def test_a_window_is_what_apply_shows(self) -> None:
        for fit in ("cover", "contain", "stretch"):
            (y, x, height, width), size, *_ = SizeOption(30, 50, fit).move((40, 80))
            assert size == (30, 50)
            assert np.allclose((y + height / 2, x + width / 2), (20, 40), atol=1)


def coco(folder: Path, names: list[str], **more: Any) -> Path:
    boxes = [
        {
            "id": i,
            "image_id": 7 * k,
            "category_id": (90, 3)[i],
            "bbox": box,
            "iscrowd": i,
            "area": 5.5 + i,
            "segmentation": [[1, 2, 3, 4, 5, 6]],
        }
        for k in range(1)
        for i, box in enumerate(FORMS["xywh"])
    ]
    images = [
        {"id": 7 * k, "file_name": name, "height": HEIGHT, "width": WIDTH}
        for k, name in enumerate(names)
    ]
    categories = [{"id": 90, "name": "dog"}, {"id": 3, "name": "cat"}]
    file = folder / "instances.json"
    file.write_text(
        json.dumps({"images": images, "annotations": boxes, "categories": categories} | more)
    )
    return file


class TestAnnotations:
    def test_coco_is_read_as_what_it_is(self, tmp_path: Path, capsys: Any) -> None:
        pictures(tmp_path / "train2017", "1.png", "2.png")
        file = coco(tmp_path, ["1.png", "2.png"])

        assert run(tmp_path / "train2017", tmp_path / "out", "--annotations", file) == 0

        dataset = ShardDataset(tmp_path / "out")
        fields = dataset.schema.fields
        assert dataset.fields == ("image", "boxes", "box_labels")
        assert isinstance(fields["box_labels"], Array)
        assert fields["box_labels"].classes == ("cat", "dog")
        assert isinstance(fields["segmentation"], Json)
        first, second = dataset.replace(
            fields=[*dataset.fields, "iscrowd", "area", "segmentation"]
        )
        assert first.boxes.tolist() == CORNERS
        assert first.box_labels.tolist() == [1, 0]
        assert (first.iscrowd.tolist(), first.area.tolist()) == ([0, 1], [5.5, 6.5])
        assert first.segmentation == [[[1, 2, 3, 4, 5, 6]]] * 2
        assert (second.boxes.shape, second.box_labels.shape) == ((0, 4), (0,))
        assert "2 classes of boxes: cat, dog" in capsys.readouterr().out

    def test_the_file_of_the_folder_is_taken(self, tmp_path: Path) -> None:
        """The files of COCO's splits lie in one folder, and may list the same names."""
        (tmp_path / "annotations").mkdir()
        for split, box in (("train2017", [1, 2, 3, 4]), ("val2017", [5, 6, 7, 8])):
            pictures(tmp_path / split, "1.png")
            one = {"id": 1, "image_id": 0, "category_id": 3, "bbox": box}
            file = coco(tmp_path, ["1.png"], annotations=[one])
            file.rename(tmp_path / f"annotations/instances_{split}.json")
        pictures(tmp_path / "all", "1.png")

        coco(tmp_path, ["1.png"]).rename(tmp_path / "annotations/person_keypoints_val2017.json")
        for split, box in (("train2017", [1, 2, 4, 6]), ("val2017", [5, 6, 12, 14])):
            out = tmp_path / f"out-{split}"
            plan = plan_images(tmp_path / split, annotations=tmp_path / "annotations")
            is_noted = any("person_keypoints_val2017.json" in note for note in plan.notes())
            assert is_noted == (split == "val2017")
            pack_images(tmp_path / split, out, annotations=tmp_path / "annotations")
            assert ShardDataset(out)[0].boxes.tolist() == [box]
        with pytest.raises(SourceError, check=At(tmp_path / "annotations")):
            plan_images(tmp_path / "all", annotations=tmp_path / "annotations")

    def test_pictures_that_differ_in_the_suffix_alone_have_their_own_boxes(
        self, tmp_path: Path
    ) -> None:
        pictures(tmp_path / "in", "1.png", "1.bmp")
        file = coco(tmp_path, ["1.png"])

        pack_images(tmp_path / "in", tmp_path / "out", annotations=file)

        assert sorted(len(each.boxes) for each in ShardDataset(tmp_path / "out")) == [0, 2]

    def test_they_are_read_once(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        plan = plan_images(tmp_path / "in", annotations=(file := coco(tmp_path, ["1.png"])))

        file.unlink()

        assert plan.is_unchanged()

    def test_a_large_file_is_not_opened_again_for_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pictures(tmp_path, "1.png")
        table = pa.table({"image": [(tmp_path / "1.png").read_bytes()], "key": ["1.png"]})
        pq.write_table(table, tmp_path / "a.parquet")
        plan = plan_images(tmp_path / "a.parquet", annotations=coco(tmp_path, ["1.png"]))

        monkeypatch.delattr("packdata.sources.opening.RowsSource")

        assert plan.is_unchanged()

    @pytest.mark.parametrize("columns", ["boxes", "keypoints"])
    def test_columns_beside_them_are_refused(self, tmp_path: Path, columns: str) -> None:
        pictures(tmp_path / "in", "1.png")
        options: dict[str, Any] = {"annotations": coco(tmp_path, ["1.png"]), columns: "where"}

        with pytest.raises(SchemaError):
            pack_images(tmp_path / "in", tmp_path / "out", **options)

    def test_its_keypoints_have_names(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        names = ["nose", "left_eye", "right_eye"]
        one = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 9, 9]}
        points = [10, 11, 2, 0, 0, 0, 30, 31, 1]
        file = coco(
            tmp_path, ["1.png"], categories=[{"id": 1, "name": "person", "keypoints": names}],
            annotations=[{**one, "keypoints": []}, {**one, "keypoints": points}, one],
        )  # fmt: skip

        pack_images(tmp_path / "in", tmp_path / "out", annotations=file)

        dataset = ShardDataset(tmp_path / "out")
        assert dataset.schema.fields["keypoints"] == Keypoints(3, ((1, 2),))
        flipped = dataset.replace(augment=[augment.RandomHorizontalFlip(p=1)])[0]
        expected = [[WIDTH - 10, 11, 2], [WIDTH - 30, 31, 1], [0, 0, 0]]
        assert flipped.keypoints.tolist() == [[[0, 0, 0]] * 3, expected, [[0, 0, 0]] * 3]

    @pytest.mark.parametrize(
        ("names", "num"),
        [
            (["l_eye", "r_eye"], 0),
            (["eyeLeft", "eyeRight"], 0),
            (["LEye", "REye"], 0),
            (["l ankle", "r ankle"], 0),
            (["Left Eye", "Right Eye"], 0),
            (["Left_eye", "right_eye"], 0),
            (["eyeL", "eyeR"], 0),
            (["tail", "nose"], 1),
        ],
    )
    def test_keypoints_that_no_flip_exchanges_are_noted(
        self, tmp_path: Path, names: list[str], num: int
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        points = {"bbox": [0, 0, 9, 9], "keypoints": [1, 1, 2, 3, 3, 2]}
        file = coco(
            tmp_path, ["1.png"], categories=[{"id": 1, "name": "cat", "keypoints": names}],
            annotations=[{"id": 1, "image_id": 0, "category_id": 1, **points}],
        )  # fmt: skip

        notes = plan_images(tmp_path / "in", annotations=file).notes()

        assert sum("a flip exchanges none" in note for note in notes) == num

    @pytest.mark.parametrize("second", [["nose", "l_eye", "r_eye"], []])
    def test_categories_name_their_keypoints_alike_or_not(
        self, tmp_path: Path, second: list[str]
    ) -> None:
        """A dataset has one list of pairs."""
        pictures(tmp_path / "in", "1.png")
        names = [["nose", "l_eye", "r_eye"], second]
        categories = [{"id": i, "name": f"{i}", "keypoints": n} for i, n in enumerate(names)]
        one = {"id": 1, "image_id": 0, "category_id": 0, "bbox": [0, 0, 9, 9]}
        more = {"categories": categories, "annotations": [{**one, "keypoints": [1, 1, 2] * 3}]}

        pack_images(
            tmp_path / "in", tmp_path / "out", annotations=coco(tmp_path, ["1.png"], **more)
        )

        field = ShardDataset(tmp_path / "out").schema.fields["keypoints"]
        assert field == Keypoints(3, ((1, 2),))
        categories[1]["keypoints"] = ["l_eye", "r_eye", "nose"]
        with pytest.raises(SourceError, check=At("instances.json")):
            plan_images(tmp_path / "in", annotations=coco(tmp_path, ["1.png"], **more))

    @pytest.mark.parametrize("layout", ["images/{split}/{name}", "{split}/images/{name}"])
    def test_yolo_folders_are_read_with_their_splits(self, tmp_path: Path, layout: str) -> None:
        for split in ("train", "val"):
            for name in ("1", "2"):
                pictures(tmp_path, layout.format(split=split, name=f"{name}.png"))
                text = "".join(
                    f"{i} {' '.join(map(str, box))}\n\n" for i, box in enumerate(FORMS["yolo"])
                )
                file = tmp_path / layout.replace("images", "labels").format(
                    split=split, name=f"{name}.txt"
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                if (split, name) != ("val", "2"):
                    file.write_text(text if split == "train" else text.splitlines()[2])
        (tmp_path / "data.yaml").write_text("nc: 2\nnames:\n  0: cat  # or kitten\n  1: 'dog'\n")
        (tmp_path / "README.roboflow.txt").write_text("https://universe.example")
        src = tmp_path / "images" if layout.startswith("images") else tmp_path
        labels = tmp_path / "labels" if layout.startswith("images") else tmp_path

        notes = plan_images(src, annotations=labels).notes()
        pack_images(src, tmp_path.parent / f"{tmp_path.name}-out", annotations=labels)

        assert not any("not there" in note for note in notes)
        train, val = (
            ShardDataset(tmp_path.parent / f"{tmp_path.name}-out" / s) for s in ("train", "val")
        )
        assert np.allclose(train[1].boxes.numpy(), CORNERS, atol=1e-4)
        assert train[0].box_labels.tolist() == [0, 1]
        assert val[0].box_labels.tolist() == [1]
        assert val[1].boxes.shape == (0, 4)
        assert train.schema.fields["box_labels"].classes == ("cat", "dog")  # type: ignore[attr-defined]
        assert "label" not in train.schema.fields

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ("names: {0: cat, 1: dog}", ("cat", "dog")),
            ("names:\n  1: dog\n  0: cat", ("cat", "dog")),
            ("names:\n  0: cat\n\n  # 7: cow\n  1: dog\nnc: 2", ("cat", "dog")),
            ("names: # of two\n- cat\n- dog", ("cat", "dog")),
            ("names: ['cat, tabby', \"dog\"]", ("cat, tabby", "dog")),
            ("names: [\n  'cat', # or kitten\n  it's a dog,\n]", ("cat", "it's a dog")),
            ("names: ['it''s a cat', 'no # comment']", ("it's a cat", "no # comment")),
        ],
    )
    def test_names_of_yolo_are_what_yaml_says(
        self, tmp_path: Path, names: str, expected: tuple[str, ...]
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        (tmp_path / "data.yaml").write_text(f"nc: 2\n{names}\n")

        pack_images(tmp_path / "in", tmp_path / "out", annotations=tmp_path / "labels")

        field = ShardDataset(tmp_path / "out").schema.fields["box_labels"]
        assert field.classes == expected  # type: ignore[attr-defined]

    @pytest.mark.parametrize("name", ["data.yaml", "labels/classes.txt"])
    def test_names_of_yolo_may_begin_with_a_byte_order_mark(
        self, tmp_path: Path, name: str
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        text = "names: [cat, dog]\n" if name == "data.yaml" else "cat\ndog\n"
        (tmp_path / name).write_text(f"\ufeff{text}")

        plan = plan_images(tmp_path / "in", annotations=tmp_path / "labels")

        field = plan.recipes[0].targets[0].schema.fields["box_labels"]
        assert field.classes == ("cat", "dog")  # type: ignore[attr-defined]

    def test_names_of_yolo_in_two_files_agree_or_one_is_nearer(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "set/labels").mkdir(parents=True)
        (tmp_path / "set/labels/1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        (tmp_path / "set/data.yaml").write_text("names: [cat, dog]\n")
        (tmp_path / "set/data2.yaml").write_text("names: {0: cat, 1: dog}\n")
        (tmp_path / "another.yaml").write_text("names: [person, car]\n")
        options: dict[str, Any] = {"annotations": tmp_path / "set/labels"}

        pack_images(tmp_path / "in", tmp_path / "out", **options)

        field = ShardDataset(tmp_path / "out").schema.fields["box_labels"]
        assert field.classes == ("cat", "dog")  # type: ignore[attr-defined]
        (tmp_path / "another.yaml").rename(tmp_path / "set/another.yaml")
        with pytest.raises(SourceError, check=At("labels")):
            plan_images(tmp_path / "in", **options)

    def test_names_of_yolo_are_read_beside_links_that_lead_nowhere(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        (tmp_path / "data.yaml").write_text("names: [cat, dog]\n")
        (tmp_path / "old.yaml").symlink_to(tmp_path / "gone.yaml")

        pack_images(tmp_path / "in", tmp_path / "out", annotations=tmp_path / "labels")

        field = ShardDataset(tmp_path / "out").schema.fields["box_labels"]
        assert field.classes == ("cat", "dog")  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        "names",
        ["{0: cat, 2: dog}", "5", "cat", "[cat, dog", "[cat]\ndate: 2024-02-30", "[" * 9999],
    )
    def test_names_of_yolo_with_a_gap_or_in_no_list_are_refused(
        self, tmp_path: Path, names: str
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        (tmp_path / "data.yaml").write_text(f"names: {names}\n")

        with pytest.raises(SourceError, check=At("data.yaml")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    def test_only_yaml_with_names_needs_pyyaml(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 0.1 0.1\n")
        (tmp_path / "compose.yml").write_text("services: {}\n")
        monkeypatch.setitem(sys.modules, "yaml", None)

        pack_images(tmp_path / "in", tmp_path / "out", annotations=tmp_path / "labels")

        (tmp_path / "data.yaml").write_text("names: [cat]\n")
        with pytest.raises(SourceError, check=At("data.yaml")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    @pytest.mark.parametrize("more", ["", " 0.2 0.5 0.1 0.3"])
    def test_polygons_of_yolo_have_their_bounds(self, tmp_path: Path, more: str) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text(f"0 0.1 0.1 0.3 0.1 0.3 0.5{more}\n")
        (tmp_path / "data.yaml").write_text("names: [cat]\n")

        pack_images(tmp_path / "in", tmp_path / "out", annotations=tmp_path / "labels")

        sample = ShardDataset(tmp_path / "out", fields=["boxes", "segmentation"])[0]
        assert np.allclose(sample.boxes.numpy(), [[8, 4, 24, 20]], atol=1e-4)
        assert sample.segmentation == [[0.1, 0.1, 0.3, 0.1, 0.3, 0.5, *map(float, more.split())]]

    def test_voc_is_read_as_what_it_is(self, tmp_path: Path) -> None:
        pictures(tmp_path / "JPEGImages", "1.png", "2.png", "3.png")
        (tmp_path / "Annotations").mkdir()
        for name, things in (("1", ("dog", "cat")), ("2", ("cat",))):
            objects = "".join(
                f"<object><name>{kind}</name><difficult>{i}</difficult><truncated>{i}</truncated>"
                f"<bndbox><xmax>{x2}</xmax><xmin>{x}</xmin><ymin>{y}</ymin><ymax>{y2}</ymax></bndbox></object>"
                for i, (kind, (x, y, x2, y2)) in enumerate(zip(things, CORNERS, strict=False))
            )
            (tmp_path / f"Annotations/{name}.xml").write_text(
                f"<annotation>{objects}</annotation>"
            )

        packed = pack_images(
            tmp_path / "JPEGImages", tmp_path / "out", annotations=tmp_path / "Annotations"
        )

        assert [note for note in packed.notes if note.endswith("not read: truncated")]
        dataset = ShardDataset(tmp_path / "out", fields=["boxes", "box_labels", "difficult"])
        assert [sample.boxes.tolist() for sample in dataset] == [CORNERS, CORNERS[:1], []]
        assert [sample.box_labels.tolist() for sample in dataset] == [[1, 0], [0], []]
        assert dataset[0].difficult.tolist() == [0, 1]

    @pytest.mark.parametrize("classes", [None, ["1", "10", "2"]])
    def test_classes_of_boxes_called_by_numbers_are_noted(
        self, tmp_path: Path, classes: list[str] | None
    ) -> None:
        """Where names were sorted, that is: what gives the numbers itself gives them as it likes."""
        names, corners = (
            ["2", "10", "1"],
            "<xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>",
        )
        box = f"<bndbox>{corners}</bndbox></object>"
        objects = "".join(f"<object><name>{name}</name>{box}" for name in names)
        (tmp_path / "voc").mkdir()
        (tmp_path / "voc/1.xml").write_text(f"<annotation>{objects}</annotation>")
        folder = pictures(tmp_path / "in", "1.png")

        plan = plan_images(folder, annotations=tmp_path / "voc", classes=classes)

        found = [note for note in plan.notes() if "'1' is class 0" in note]
        assert len(found) == (classes is None)

    @pytest.mark.parametrize(
        ("names", "text"),
        [
            (("images/1.txt", "labels/1.txt"), "0 .5 .5 .1 .1"),
            (("1.XML", "1.xml"), "<annotation/>"),
        ],
    )
    def test_two_files_of_annotations_for_one_picture_are_refused(
        self, tmp_path: Path, names: tuple[str, str], text: str
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        for name in names:
            file = tmp_path / "about" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

        with pytest.raises(SourceError, check=At(names[1])):
            plan_images(tmp_path / "in", annotations=tmp_path / "about")

    @pytest.mark.parametrize(
        ("name", "text"),
        [("1.xml", '<?xml version="1.0" encoding="foo-1"?><annotation/>'),
         ("1.txt", "cat 0 0 1 1"), ("1.txt", "0 0.5 0.5"), ("1.xml", "<annotation><object/></annotation>"),
         ("1.xml", "<other/>"), ("1.xml", "<annotation"),
         ("1.xml", "<annotation><object><name> </name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
                   "</bndbox></object></annotation>")],
    )  # fmt: skip
    def test_a_bad_annotation_is_named(self, tmp_path: Path, name: str, text: str) -> None:
        pictures(tmp_path / "in", "1.png", "2.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels" / name).write_text(text)

        with pytest.raises(SourceError, check=At(f"labels/{name}")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    @pytest.mark.parametrize(
        "text", ["[]", "{", '{"images": [], "annotations": []}', '{"images": [{"id": 1, "file_name": "x.png"}], '
                 '"annotations": [{"image_id": 2, "bbox": [0, 0, 1, 1], "category_id": 1}]}',
                 '{"images": [{"id": 1, "file_name": "1.png", "height": 1e999, "width": 1}], '
                 '"categories": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1], "category_id": 1}]}']
    )  # fmt: skip
    def test_other_json_is_refused(self, tmp_path: Path, text: str) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "a.json").write_text(text)

        with pytest.raises(LoadersError):
            plan_images(tmp_path / "in", annotations=tmp_path / "a.json")

    def test_of_names_that_fit_a_picture_the_longest_counts(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "a/1.png", "b/a/1.png")
        boxes = {"a/1.png": [1, 2, 3, 4], "b/a/1.png": [5, 6, 7, 8]}
        found = [
            {"id": i, "image_id": 7 * i, "category_id": 3, "bbox": box}
            for i, box in enumerate(boxes.values())
        ]
        file = coco(tmp_path, [*boxes], annotations=found)

        pack_images(tmp_path / "in", tmp_path / "out", annotations=file)

        samples = ShardDataset(tmp_path / "out", fields=["key", "boxes"])
        assert {key: each.tolist() for key, each in samples} == {
            "a/1": [[1, 2, 4, 6]],
            "b/a/1": [[5, 6, 12, 14]],
        }

    def test_one_annotation_is_of_one_picture(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "a/1.png", "b/1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 0.1 0.1")

        with pytest.raises(SourceError, check=At("in")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    @pytest.mark.parametrize("kind", ["coco", "yolo"])
    def test_one_annotation_is_of_one_split(self, tmp_path: Path, kind: str) -> None:
        src = pictures(tmp_path / "images", "train/1.png", "val/1.png")
        if kind == "coco":  # whose file of the training set is the only one
            file = coco(tmp_path, ["1.png"]).rename(tmp_path / "instances_train.json")
        else:
            file = tmp_path / "labels"
            file.mkdir()
            (file / "1.txt").write_text("0 .5 .5 .1 .1")

        with pytest.raises(SourceError, check=At("val")):
            plan_images(src, annotations=file)

    def test_one_file_annotates_pictures_of_several_splits(self, tmp_path: Path) -> None:
        src = pictures(tmp_path / "images", "train/1.png", "val/2.png")
        box = {"category_id": 3, "bbox": [1, 2, 3, 4]}
        both = [{**box, "id": i, "image_id": 7 * i} for i in range(2)]
        file = coco(tmp_path, ["1.png", "2.png"], annotations=both)

        pack_images(src, tmp_path / "out", annotations=file)

        for split in "train", "val":
            (sample,) = ShardDataset(tmp_path / "out" / split)
            assert len(sample.boxes)

    def test_keys_of_rows_may_have_dots_and_suffixes(self, tmp_path: Path) -> None:
        data = (pictures(tmp_path, "1.png") / "1.png").read_bytes()
        table = pa.table({"image": [data, data], "key": ["a.1", "b.jpg"]})
        pq.write_table(table, tmp_path / "a.parquet")
        (tmp_path / "labels").mkdir()
        for name in "a.1", "b":
            (tmp_path / f"labels/{name}.txt").write_text("0 .5 .5 .1 .1")

        pack_images(tmp_path / "a.parquet", tmp_path / "out", annotations=tmp_path / "labels")

        assert [len(sample.boxes) for sample in ShardDataset(tmp_path / "out")] == [1, 1]

    def test_pictures_without_annotations_are_counted_split_by_split(self, tmp_path: Path) -> None:
        for split in "train", "val":
            pictures(tmp_path / "in" / split, "1.png", "2.png", "3.png")
            (tmp_path / "labels" / split).mkdir(parents=True)
            (tmp_path / f"labels/{split}/1.txt").write_text("0 .5 .5 .1 .1")

        notes = plan_images(tmp_path / "in", annotations=tmp_path / "labels").notes()

        assert sum("without annotations" in note and ": 2 " in note for note in notes) == 2

    def test_annotations_of_other_pictures_are_refused(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")

        with pytest.raises(SourceError):
            plan_images(tmp_path / "in", annotations=coco(tmp_path, ["x.png"]))
        with pytest.raises(SourceError, check=At("none")):
            plan_images(tmp_path / "in", annotations=tmp_path / "none")

    @pytest.mark.parametrize(
        ("size", "orientation"), [((2 * HEIGHT, 2 * WIDTH), 1), ((HEIGHT, WIDTH), 6)]
    )
    def test_annotations_of_a_picture_of_another_size_are_refused(
        self, tmp_path: Path, size: tuple[int, int], orientation: int
    ) -> None:
        pictures(tmp_path / "in", "1.png", orientation=orientation)
        image = {"id": 0, "file_name": "1.png", "height": size[0], "width": size[1]}
        file = coco(tmp_path, ["1.png"], images=[image])

        with pytest.raises(SourceError, check=At("in/1.png")):
            pack_images(tmp_path / "in", tmp_path / "out", annotations=file)

    @pytest.mark.parametrize("size", [{}, {"height": 0, "width": None}])
    def test_annotations_need_not_tell_a_size(self, tmp_path: Path, size: dict[str, Any]) -> None:
        pictures(tmp_path / "in", "1.png")
        file = coco(tmp_path, ["1.png"], images=[{"id": 0, "file_name": "1.png"} | size])

        assert pack_images(tmp_path / "in", tmp_path / "out", annotations=file).samples == 1

    def test_what_would_be_read_as_something_else_is_refused(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels" / "1.txt").write_text("0 .5 .5 .2 .2 .4 .4 1 .5 .5 1\n")
        (tmp_path / "data.yaml").write_text("kpt_shape: [2, 3]\nnames: [person]\n")
        twice = [{"id": 90, "name": "cat"}, {"id": 3, "name": "cat"}]

        with pytest.raises(SourceError, check=At("data.yaml")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")
        (tmp_path / "data.yaml").unlink()
        (tmp_path / "labels/1.txt").write_text("1 .5 .5 .2 .2\n")
        (tmp_path / "classes.txt").write_text("cat\ncat\n")
        with pytest.raises(SourceError, check=At("labels")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")
        (tmp_path / "classes.txt").write_text("cat\n")  # and the number of its box is 1
        with pytest.raises(SourceError, check=At("labels")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")
        (tmp_path / "labels/1.xml").write_text("<annotation/>")
        with pytest.raises(SourceError, check=At("labels")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")
        same = [*({"id": 3, "name": name} for name in ("cat", "cow")), {"id": 90, "name": "dog"}]
        for wrong in twice, same:
            file = coco(tmp_path, ["1.png"], categories=wrong)
            with pytest.raises(SourceError, check=At("instances.json")):
                plan_images(tmp_path / "in", annotations=file)

    def test_pictures_called_as_files_that_are_no_labels_of_yolo_are_refused(
        self, tmp_path: Path
    ) -> None:
        pictures(tmp_path / "in", "1.png", "test.png")
        (tmp_path / "labels").mkdir()
        for name in "1", "test":
            (tmp_path / f"labels/{name}.txt").write_text("0 .5 .5 .1 .1")

        with pytest.raises(SourceError, check=At("test.png")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    def test_a_class_of_a_box_that_has_no_name_is_an_error_that_names_the_picture(
        self, tmp_path: Path
    ) -> None:
        pictures(tmp_path / "in", "pear.png", "apple.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/apple.txt").write_text("0 .5 .5 .1 .1")
        (tmp_path / "labels/pear.txt").write_text("7 .5 .5 .1 .1")
        (tmp_path / "labels/classes.txt").write_text("x\ny\n")

        with pytest.raises(SourceError, match=r"class 7 .*pear", check=At("labels")):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    def test_splits_number_classes_of_boxes_alike_where_they_are_named(
        self, tmp_path: Path
    ) -> None:
        for split, name in (("train", "dog"), ("val", "cat")):
            pictures(tmp_path / "in" / split, "1.png")
            (tmp_path / "xml" / split).mkdir(parents=True)
            box = "".join(
                f"<{n}>{v}</{n}>"
                for n, v in zip(("xmin", "ymin", "xmax", "ymax"), CORNERS[0], strict=True)
            )
            thing = f"<object><name>{name}</name><bndbox>{box}</bndbox></object>"
            text = f"<annotation>{thing}</annotation>"
            (tmp_path / "xml" / split / "1.xml").write_text(text)
        xml: dict[str, Any] = {"annotations": tmp_path / "xml"}

        pack_images(tmp_path / "in", tmp_path / "out", classes=["cat", "cow", "dog"], **xml)
        pack_images(tmp_path / "in/train", tmp_path / "own", classes=tmp_path / "out/val", **xml)

        for folder, number in (("out/train", 2), ("out/val", 0), ("own", 2)):
            dataset = ShardDataset(tmp_path / folder)
            assert dataset[0].box_labels.tolist() == [number]
            field = dataset.schema.fields["box_labels"]
            assert field.classes == ("cat", "cow", "dog")  # type: ignore[attr-defined]
        with pytest.raises(SourceError):
            plan_images(tmp_path / "in", classes=["cat"], **xml)

    def test_splits_whose_files_number_classes_otherwise_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "json").mkdir()
        for split, name in (("train", "dog"), ("val", "cat")):
            pictures(tmp_path / "in" / split, "1.png")
            one = {"id": 1, "image_id": 0, "category_id": 3, "bbox": [0, 0, 9, 9]}
            known = [{"id": 3, "name": name}]
            file = coco(tmp_path, ["1.png"], annotations=[one], categories=known)
            file.rename(tmp_path / f"json/{split}.json")
        json_files: dict[str, Any] = {"annotations": tmp_path / "json"}

        with pytest.raises(SourceError, check=At("train")):  # 0 would be a dog here, a cat there
            pack_images(tmp_path / "in", tmp_path / "out", **json_files)
        pack_images(tmp_path / "in", tmp_path / "out", classes=["cat", "dog"], **json_files)

        labels = [
            ShardDataset(tmp_path / "out" / s)[0].box_labels.item() for s in ("train", "val")
        ]
        assert labels == [1, 0]

    def test_its_keypoints_are_three_numbers_for_each_name(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")
        one = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4]}
        names = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}
        right = {**one, "keypoints": [1, 2, 2, 3, 4, 2, 5, 6, 2]}

        for wrong in ([1, 2, 2, 3, 4, 2], [1, 2, 2, 3, 4, 2, 5, 6, 2, 7, 8, 2]):
            both = [right, {**one, "keypoints": wrong}]
            file = coco(tmp_path, ["1.png"], annotations=both, categories=[names])
            with pytest.raises(SourceError, match=rf"instances.json.*{len(wrong)} numbers"):
                plan_images(tmp_path / "in", annotations=file)

    @pytest.mark.parametrize("num", [1, 2])
    def test_its_keypoints_without_names_are_those_of_each_box(
        self, tmp_path: Path, num: int
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        one = {"image_id": 0, "category_id": 3, "bbox": [1, 2, 3, 4]}
        boxes = [{**one, "id": i, "keypoints": [3 + i, 4, 2] * num} for i in range(2)]
        file = coco(tmp_path, ["1.png"], annotations=boxes)

        pack_images(tmp_path / "in", tmp_path / "out", annotations=file)

        sample = ShardDataset(tmp_path / "out", fields=["boxes", "keypoints"])[0]
        assert (sample.boxes.shape, sample.keypoints.shape) == ((2, 4), (2, num, 3))

    def test_annotations_without_a_box_are_counted_and_ids_are_unique(
        self, tmp_path: Path
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        one = {"id": 1, "image_id": 0, "category_id": 3, "bbox": [1, 2, 3, 4]}
        none = [{**one, "bbox": []}, {**one, "bbox": None}, {**one, "ignore": 1}]
        images = [{"id": 0, "file_name": name} for name in ("1.png", "2.png")]

        file = coco(tmp_path, ["1.png"], annotations=[one, *none])
        plan = plan_images(tmp_path / "in", annotations=file)

        assert any("without a box, skipped: 2" in note for note in plan.notes())
        assert any("not read: ignore" in note for note in plan.notes())
        with pytest.raises(SourceError, match=r"instances.json.*duplicate image 2.png or id 0"):
            plan_images(tmp_path / "in", annotations=coco(tmp_path, ["1.png"], images=images))

    @pytest.mark.parametrize("points", [".4 .4 1 .5 .5 2", ".4 .4 .9 .5", ".5"])
    def test_polygons_which_poses_look_like_are_refused_without_a_yaml(
        self, tmp_path: Path, points: str
    ) -> None:
        pictures(tmp_path / "in", "1.png")
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels/1.txt").write_text(f"0 .5 .5 .2 .2 {points}\n")

        with pytest.raises(SourceError):
            plan_images(tmp_path / "in", annotations=tmp_path / "labels")

    def test_annotations_of_no_picture_are_counted(self, tmp_path: Path) -> None:
        pictures(tmp_path / "in", "1.png")

        notes = plan_images(
            tmp_path / "in", annotations=coco(tmp_path, ["1.png", "2.png", "3.png"])
        ).notes()

        assert any("not there: 2" in note for note in notes)


@pytest.mark.parametrize("labels", [["dog", "cat"], ["cat", "cat"]])
def test_the_classes_that_are_given_number_labels_and_boxes(
    tmp_path: Path, labels: list[str]
) -> None:
    """In each split alike, whichever of them it has."""
    rows = [
        {"path": f"{i}.png", "label": label, "box": CORNERS[:1], "kind": ["cat"]}
        for i, label in enumerate(labels)
    ]
    source = listed(pictures(tmp_path, "0.png", "1.png"), rows, "jsonl")
    options: dict[str, Any] = {"boxes": "box", "box_labels": "kind"}

    pack_images(source, tmp_path / "out", classes=["dog", "bird", "cat"], **options)

    dataset = ShardDataset(tmp_path / "out", fields=["image", "label", "box_labels"])
    assert [s.label for s in dataset] == [["dog", "bird", "cat"].index(each) for each in labels]
    assert [s.box_labels.tolist() for s in dataset] == [[2], [2]]
    with pytest.raises(SourceError):
        pack_images(source, tmp_path / "other", classes=["bird"], **options)
