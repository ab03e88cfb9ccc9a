"""Sources of any number of pictures a sample: Hugging Face's Parquet, JSON lines of paths."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pil

from loaders import ShardDataset
from loaders.codecs.picture import split_files
from loaders.errors import PackError, SchemaError, SourceError
from loaders.schema import Array, Images, Label
from packdata import pack_images
from packdata.images.plan import plan_images
from packdata.sources.opening import open_source
from tests.packdata.test_sources import write_tar
from tests.refusals import At


def jpeg(number: int, height: int = 12, width: int = 16, **options: Any) -> bytes:
    out = io.BytesIO()
    picture = np.full((height, width, 3), (5 * number, 200 - 5 * number, 40), np.uint8)
    Pil.fromarray(picture).save(out, "JPEG", **options)
    return out.getvalue()


def stored(dataset: ShardDataset) -> dict[str, list[bytes]]:
    """Return the files of each sample by key."""
    rows = dataset.view.rows(np.arange(len(dataset)))
    records = dataset.store.records("images", rows)
    files = [[file.tobytes() for file in split_files(record)] for record in records]
    return dict(zip(dataset.view.keys(), files, strict=True))


def write_list(path: Path, rows: dict[str, list[bytes]], **values: Any) -> Path:
    """Write JSON lines with the files that each row lists, and more values in each."""
    lines = []
    for key, files in rows.items():
        names = [f"{key}-{number}.jpg" for number in range(len(files))]
        for name, data in zip(names, files, strict=True):
            path.with_name(name).write_bytes(data)
        lines.append(json.dumps({"key": key, "images": names, **values}))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("names", [("a.0.jpg", "a.1.jpg"), ("a.rgb.jpg", "b.rgb.jpg")])
def test_pictures_of_a_tar_that_are_not_called_by_their_suffix_alone_are_refused(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    tar = write_tar(tmp_path / "a.tar", dict.fromkeys(names, jpeg(0)))
    with pytest.raises(SourceError) as caught:
        plan_images(tar)
    assert caught.value.path == tar
    assert "packdata.pack" in caught.value.hint


def test_pictures_beside_the_image_are_passed_over_as_ever(tmp_path: Path) -> None:
    members = {"a.jpg": jpeg(1), "a.thumb.jpg": jpeg(2), "b.jpg": jpeg(3)}
    tar = write_tar(tmp_path / "a.tar", members)
    plan = plan_images(tar)
    pack_images(tar, tmp_path / "out")

    assert "images" not in ShardDataset(tmp_path / "out").schema.fields
    assert any(".thumb" in note for note in plan.notes())


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_a_number_beside_names_of_classes_is_a_name(tmp_path: Path, kind: str) -> None:
    members, lines = dict[str, bytes](), list[str]()
    for key, label in {"a": 1, "b": "cat", "c": 1}.items():
        members |= {f"{key}.jpg": jpeg(0), f"{key}.json": json.dumps({"label": label}).encode()}
        lines.append(json.dumps({"path": f"{key}.jpg", "label": label}))
        (tmp_path / f"{key}.jpg").write_bytes(jpeg(0))
    write_tar(tmp_path / "a.tar", members)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    pack_images(tmp_path / f"a.{kind}", tmp_path / "out")

    dataset = ShardDataset(tmp_path / "out")
    assert dataset.classes == ("1", "cat")
    assert [int(sample.label) for sample in dataset] == [0, 1, 0]


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(path: Path, kind: pa.DataType, value: Any) -> Path:
    """Write five rows as Hugging Face does."""
    images = [[value(0), value(1)], [], [value(2)], None, [value(3), value(4), value(5)]]
    labels = pa.array([0, 1, 0, 1, 1], pa.int64())
    table = pa.table({"images": pa.array(images, pa.list_(kind)), "label": labels})
    features = {
        "images": {"_type": "Sequence", "feature": {"_type": "Image"}},
        "label": {"_type": "ClassLabel", "names": ["no", "yes"]},
    }
    about = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), path)
    return path


@pytest.mark.parametrize("form", ["struct", "binary", "path"])
@pytest.mark.parametrize("shards", ["lmdb", "parquet"])
def test_lists_of_pictures_of_parquet(tmp_path: Path, form: str, shards: Any) -> None:
    for n in range(6):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(n))
    values = {
        "struct": (STRUCT, lambda n: {"bytes": jpeg(n), "path": None}),
        "binary": (pa.binary(), jpeg),
        "path": (STRUCT, lambda n: {"bytes": None, "path": f"{n}.jpg"}),
    }
    write_parquet(tmp_path / "a.parquet", *values[form])

    pack_images(tmp_path / "a.parquet", tmp_path / "out", format=shards)

    dataset = ShardDataset(tmp_path / "out")
    assert dataset.names == ("images", "label")
    assert dataset.schema.fields["label"] == Label(classes=("no", "yes"))
    assert [*stored(dataset).values()] == [
        [jpeg(0), jpeg(1)],
        [],
        [jpeg(2)],
        [],
        [jpeg(3), jpeg(4), jpeg(5)],
    ]


def test_a_picture_that_is_missing_in_a_list_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    images = pa.array([[jpeg(0)], [jpeg(1), None]], pa.list_(pa.binary()))
    pq.write_table(pa.table({"images": images}), path)

    with pytest.raises(SourceError) as caught:
        pack_images(path, tmp_path / "out")
    assert "row 1" in str(caught.value)
    assert "picture 1" in str(caught.value)


def test_a_picture_of_one_a_row_comes_before_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    lists = pa.array([[jpeg(1)]], pa.list_(pa.binary()))
    pq.write_table(pa.table({"crops": lists, "image": pa.array([jpeg(0)])}), path)

    assert "image" in plan_images(path).recipes[0].targets[0].schema.fields
    chosen = plan_images(path, image_column="crops")
    assert "images" in chosen.recipes[0].targets[0].schema.fields


def test_lists_of_paths_in_json_lines(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(n))
    rows: list[dict[str, Any]] = [
        {"images": ["2.jpg", "0.jpg"], "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "b"}]},
        {"images": "1.jpg", "messages": []},
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    pack_images(path, tmp_path / "out")

    source = open_source(path)
    lines = [(item.key, item.where) for item in source.items()]
    assert [(item.key, item.where) for item in source.items(1)] == lines[1:]  # to go on there
    dataset = ShardDataset(tmp_path / "out", fields=["images", "messages"])
    assert [*stored(dataset).values()] == [[jpeg(2), jpeg(0)], [], [jpeg(1)]]
    assert [sample.messages for sample in dataset] == [row["messages"] for row in rows]


def test_a_list_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"images": ["a.jpg"]}) + "\n" + json.dumps({"images": [3]}))

    with pytest.raises(SourceError) as caught:
        plan_images(path)
    assert "line 2" in str(caught.value)


def test_a_file_that_changed_is_seen_when_packing_is_continued(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"images": ["a.jpg"]}))
    before = plan_images(path).recipes[0].identity

    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    os.utime(tmp_path / "a.jpg", ns=(1, 1))

    assert plan_images(path).recipes[0].identity != before


@pytest.mark.parametrize("changed", ["a.jpg", "m.png"])
def test_a_picture_or_mask_of_a_list_that_changed_is_another_source(
    tmp_path: Path, changed: str
) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    Pil.new("L", (16, 12)).save(tmp_path / "m.png")
    (tmp_path / "l.csv").write_text("path,mask\na.jpg,m.png\n")
    plan = plan_images(tmp_path / "l.csv")
    assert plan.is_unchanged()

    os.utime(tmp_path / changed, ns=(1, 1))

    assert not plan.is_unchanged()


def test_pictures_are_sized_and_counted_each(tmp_path: Path) -> None:
    rotated = Pil.Exif()
    rotated[0x0112] = 6
    rows = {"a": [jpeg(0, 40, 60), jpeg(1, 40, 60, exif=rotated)]}
    several = write_list(tmp_path / "list.jsonl", rows)

    summary = pack_images(several, tmp_path / "out", sizes=[20, "8x10"], fit="cover")
    small = ShardDataset(tmp_path / "out" / "8x10")
    pack_images(several, tmp_path / "kept")

    assert small.schema.fields["images"] == Images(size=(8, 10))
    assert small[0].images.shape == (2, 3, 8, 10)
    assert [tuple(p.shape) for p in ShardDataset(tmp_path / "kept")[0].images] == [
        (3, 40, 60),
        (3, 60, 40),
    ]
    assert summary.counts["re-encoded"] == 2
    fields = ShardDataset(tmp_path / "kept").schema.fields
    assert fields["original_sizes"] == Array(dtype="int32", dims=(None, 2))


def test_what_belongs_to_one_picture_is_refused(tmp_path: Path) -> None:
    several = write_list(tmp_path / "list.jsonl", {"000": [jpeg(0), jpeg(1)]}, boxes=[])
    (tmp_path / "masks").mkdir()
    Pil.new("L", (16, 12)).save(tmp_path / "masks" / "000.png")

    for options in (
        {"masks": tmp_path / "masks"},
        {"boxes": ["boxes"]},
        {"codec": "raw", "sizes": [8], "fit": "cover"},
    ):
        with pytest.raises(SchemaError):
            plan_images(several, **options)


def test_a_damaged_one_is_rejected_by_its_number(tmp_path: Path) -> None:
    rows = {"a": [jpeg(0), jpeg(1)[:-40]], "b": [jpeg(2)]}
    several = write_list(tmp_path / "list.jsonl", rows)

    with pytest.raises(SourceError) as caught:
        pack_images(several, tmp_path / "out")
    assert "picture 1" in str(caught.value)
    pack_images(several, tmp_path / "skipped", on_error="skip")
    assert [*stored(ShardDataset(tmp_path / "skipped"))] == ["b"]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["+5", "1 "], "int", [5, 1]),
        (["NA", "1"], "int", [None, 1]),
        (["inf", "1"], "float", [float("inf"), 1.0]),
        (["true", "False"], "int", [1, 0]),
        (["007", "8"], "text", ["007", "8"]),
        (["1234567890123456789", "8"], "text", ["1234567890123456789", "8"]),
        (["NA", "x"], "text", ["NA", "x"]),
        (["2020-01-05", "2021-02-06"], "text", ["2020-01-05", "2021-02-06"]),
    ],
)
def test_cells_are_what_they_are_in_tables(
    tmp_path: Path, cells: list[str], kind: str, values: list[object]
) -> None:
    rows = "".join(f'{i}.jpg,"{cell}"\n' for i, cell in enumerate(cells))
    (tmp_path / "l.csv").write_text(f"path,value\n{rows}")

    source = open_source(tmp_path / "l.csv")

    assert source.labels["value"].kind == kind
    assert [item.labels["value"] for item in source.items()] == values


@pytest.mark.parametrize("names", ["xmin,xmax,YMin,ymax", "b_x_min,b_y_min,b_x_max,b_y_max"])
def test_boxes_in_four_columns_are_refused_with_the_way_to_pack_them(
    tmp_path: Path, names: str
) -> None:
    (tmp_path / "l.csv").write_text(f"path,{names}\n1.jpg,1,2,3,4\n")

    with pytest.raises(SourceError) as caught:
        open_source(tmp_path / "l.csv")

    assert "masks.md" in caught.value.hint


def test_corners_in_four_columns_are_noted_as_pictures_may_stay_whole(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2\n1.jpg,1,2,3,4\n")
    (tmp_path / "m.csv").write_text("path,left,top,bbox_width,bbox_height\n1.jpg,1,2,3,4\n")

    columns = {"image": [b"\xff\xd8"], "xmin": [1], "ymin": [2], "xmax": [3], "ymax": [4]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    for name in ("l.csv", "m.csv", "a.parquet"):
        assert any("masks.md" in note for note in plan_images(tmp_path / name).notes())


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("name", ["l.csv", "l.jsonl"])
def test_compressed_lists_are_read_and_cut_ones_refused(
    tmp_path: Path, name: str, suffix: str
) -> None:
    rows = [{"path": f"{i}.jpg", "label": i} for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    text = text if name == "l.jsonl" else "path,label\n0.jpg,0\n1.jpg,1\n2.jpg,2\n"
    source, how = tmp_path / f"{name}{suffix}", {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
    with pa.CompressedOutputStream(str(source), how[suffix]) as file:
        file.write(text.encode())

    assert [item.labels["label"] for item in open_source(source).items()] == [0, 1, 2]

    source.write_bytes(source.read_bytes()[:-9])
    with pytest.raises(SourceError):
        open_source(source)


@pytest.mark.parametrize(
    ("mark", "cells"), [("|", ["a|b", "a", "b | c", ""]), (" ", ["0 16", "0", "16 3", ""])]
)
def test_cells_of_several_labels_are_taken_apart(
    tmp_path: Path, mark: str, cells: list[str]
) -> None:
    expected = [{part.strip() for part in cell.split(mark)} - {""} for cell in cells]
    source = labelled(tmp_path, cells)

    pack_images(source, tmp_path / "out", multi_label=mark)

    dataset = ShardDataset(tmp_path / "out")
    assert dataset.classes == tuple(sorted(set().union(*expected)))
    for sample, names in zip(dataset, expected, strict=True):
        flags = zip(dataset.classes, sample.label.tolist(), strict=True)
        assert {name for name, flag in flags if flag} == names


def test_cells_of_several_labels_are_held_to_the_classes_given(tmp_path: Path) -> None:
    source = labelled(tmp_path, ["a|b"])

    pack_images(source, tmp_path / "out", classes=["b", "a", "x"], multi_label="|")

    assert ShardDataset(tmp_path / "out")[0].label.tolist() == [1, 1, 0]
    with pytest.raises(SourceError):
        plan_images(source, classes=["a"], multi_label="|")
    with pytest.raises(SourceError):
        plan_images(labelled(tmp_path, ["1"]), multi_label="|")


def test_another_separator_of_labels_is_another_packing(tmp_path: Path) -> None:
    source, classes = labelled(tmp_path, ["a|b", "b"]), ["a|b", "a", "b"]
    for _ in range(2):
        pack_images(source, tmp_path / "out", multi_label="|", classes=classes)

    with pytest.raises(PackError):
        pack_images(source, tmp_path / "out", multi_label=";", classes=classes)


def labelled(folder: Path, cells: list[str]) -> Path:
    """Write a list of a picture for each cell of labels."""
    for i in range(len(cells)):
        (folder / f"{i}.jpg").write_bytes(jpeg(i))
    rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    return folder / "list.csv"


def test_an_empty_cell_of_masks_is_a_missing_mask(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(i))
    Pil.new("L", (16, 12)).save(tmp_path / "m.png")
    (tmp_path / "l.csv").write_text("path,seg\n0.jpg,m.png\n1.jpg,\n")

    with pytest.raises(SourceError, check=At("l.csv, line 3 (1.jpg)")):
        pack_images(tmp_path / "l.csv", tmp_path / "out", mask_column="seg")
    packed = pack_images(tmp_path / "l.csv", tmp_path / "out", mask_column="seg", on_error="skip")
    assert packed.samples == 1


@pytest.mark.parametrize(("line", "name"), [(1, '"image"x'), (2, "image")])
def test_a_quote_inside_a_cell_of_a_list_is_an_error_of_its_line(
    tmp_path: Path, line: int, name: str
) -> None:
    (tmp_path / "l.csv").write_text(f'{name},label\n"a"x.png,1\n')

    with pytest.raises(SourceError, check=At(f"l.csv, line {line}")):
        plan_images(tmp_path / "l.csv")


def test_a_file_without_rows_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), tmp_path / "a.parquet")

    with pytest.raises(SourceError, check=At("a.parquet")):
        plan_images(tmp_path / "a.parquet")
