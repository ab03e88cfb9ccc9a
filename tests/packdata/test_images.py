import io
import json
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from loaders import ShardDataset
from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Image, Json, Label, Mask, Schema, Text
from packdata.cli import main
from packdata.images.plan import pack_images, plan_images
from packdata.images.recipe import ImagesRecipe
from tests.packdata.packing import pack
from tests.packdata.pngs import clear_png
from tests.packdata.test_sources import write_tar
from tests.refusals import At

Pixels = npt.NDArray[Any]


@cache  # packing switches off a part of OpenCV, which then resizes another way
def photo(height: int = 40, width: int = 60, seed: int = 0) -> Pixels:
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def save(path: Path, pixels: Pixels | PIL.Image.Image, format: str = "", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format or {"jpg": "JPEG"}.get(path.suffix[1:], path.suffix[1:]), **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.getvalue())
    return file.getvalue()


def turned(orientation: int = 6) -> PIL.Image.Exif:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return exif


def plan(src: Path, **options: Any) -> ImagesRecipe:
    ((split, recipe),) = plan_images(src, **options).splits
    assert split == ""
    return recipe


def encode(recipe: ImagesRecipe, target: int = 0) -> list[dict[str, bytes]]:
    return [dict(recipe.encode(item)[target]) for item in recipe.items()]


def decode(recipe: ImagesRecipe, record: dict[str, bytes], target: int = 0) -> dict[str, Any]:
    """Decode as serving does, through the schema alone."""
    schema = Schema.from_json(json.loads(json.dumps(recipe.targets[target].schema.to_json())))
    assert list(record) == list(record)
    assert set(record) == set(schema.fields)
    return {
        name: codec_for(field).decode(np.frombuffer(record[name], np.uint8))
        for name, field in schema.fields.items()
    }


def plan_with_masks(root: Path, kind: str, **options: Any) -> ImagesRecipe:
    """Plan ``images/*`` and ``masks/*`` of a folder as a source of some kind."""
    names = sorted(path.stem for path in (root / "masks").iterdir())
    files = {name: (f"images/{name}.jpg", f"masks/{name}.png") for name in names}
    src = root / f"src.{'csv' if kind == 'list' else kind}"
    if kind == "folder":
        return plan(root / "images", masks=root / "masks", **options)
    if kind == "list":
        src.write_text(
            "path,mask\n" + "".join(f"{image},{mask}\n" for image, mask in files.values())
        )
    elif kind == "parquet":
        images, masks = (
            [(root / pair[i]).read_bytes() for pair in files.values()] for i in (0, 1)
        )
        pq.write_table(pa.table({"image": images, "mask": masks}), src)
    else:
        with tarfile.open(src, "w") as tar:
            for name, (image, mask) in files.items():
                tar.add(root / mask, f"{name}.mask.png")
                tar.add(root / image, f"{name}.jpg")
    return plan(src, **options)


def samples(recipe: ImagesRecipe, target: int = 0) -> list[dict[str, Any]]:
    return [decode(recipe, record, target) for record in encode(recipe, target)]


def only(recipe: ImagesRecipe) -> dict[str, Any]:
    (sample,) = samples(recipe)
    return sample


class TestVerbatim:
    @pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
    @pytest.mark.parametrize("gray", [False, True])
    def test_plain_files_are_kept(self, tmp_path: Path, name: str, gray: bool) -> None:
        data = save(tmp_path / name, photo()[:, :, 0] if gray else photo())

        recipe = plan(tmp_path)
        (record,) = encode(recipe)

        assert record["image"] == data
        assert recipe.tally.take() == {"kept": 1}
        assert decode(recipe, record)["image"].shape == (40, 60, 3)
        codec = name.split(".")[1].replace("jpg", "jpeg")
        assert recipe.targets[0].schema.fields["image"] == Image(codec=codec)

    def test_a_wrong_suffix_does_not_matter(self, tmp_path: Path) -> None:
        data = save(tmp_path / "a.jpg", photo(), "PNG")

        recipe = plan(tmp_path)
        (record,) = encode(recipe)

        assert record["image"] == data
        assert np.array_equal(decode(recipe, record)["image"], photo())

    def test_upright_exif_is_kept_and_turned_pictures_are_not(self, tmp_path: Path) -> None:
        data = save(tmp_path / "a.jpg", photo(), exif=turned(1))
        save(tmp_path / "b.jpg", photo(), exif=turned(6), quality=95)

        recipe = plan(tmp_path)
        first, second = encode(recipe)

        assert first["image"] == data
        sample = decode(recipe, second)
        assert second["image"][:2] == b"\xff\xd8"
        assert sample["image"].shape == (60, 40, 3)
        assert sample["original_size"].tolist() == [60, 40]
        assert np.abs(sample["image"].astype(int) - np.rot90(photo(), -1)).mean() < 4
        assert recipe.tally.take() == {"kept": 1, "re-encoded": 1, "rotated": 1}

    def test_what_is_not_plain_becomes_png_without_loss(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", PIL.Image.fromarray(photo()).quantize(8))
        save(tmp_path / "b.gif", np.full((3, 4, 3), 7, np.uint8))
        (tmp_path / "c.png").write_bytes(
            cv2.imencode(".png", np.full((3, 4), 257 * 99, np.uint16))[1].tobytes()
        )
        save(tmp_path / "d.tiff", photo())

        recipe = plan(tmp_path)
        records = encode(recipe)

        assert all(record["image"][:4] == b"\x89PNG" for record in records)
        images = [decode(recipe, record)["image"] for record in records]
        expected = np.asarray(PIL.Image.open(tmp_path / "a.png").convert("RGB"))
        assert np.array_equal(images[0], expected)
        assert images[1].tolist() == [[[7] * 3] * 4] * 3
        assert images[2].tolist() == [[[99] * 3] * 4] * 3
        assert np.array_equal(images[3], photo())
        counts = {"re-encoded": 4, "palette": 1, "gif": 1, "16-bit": 1, "tiff": 1}
        assert recipe.tally.take() == counts

    def test_what_16_bits_lose_is_said(self, tmp_path: Path) -> None:
        """Of 12 bits in 16, as microscopes write them, 17 levels of gray are left."""
        (tmp_path / "src").mkdir()
        cv2.imwrite(str(tmp_path / "src/a.png"), np.arange(4096, dtype=np.uint16).reshape(64, 64))

        lost = pack_images(tmp_path / "src", tmp_path / "lost")
        kept = pack_images(tmp_path / "src", tmp_path / "kept", keep_depth=True)

        assert len(np.unique(ShardDataset(tmp_path / "lost")[0].image)) == 17
        assert any("keep_depth" in note for note in lost.notes)
        assert not any("keep_depth" in note for note in kept.notes)

    def test_odd_jpegs_are_kept_without_what_is_odd(self, tmp_path: Path) -> None:
        data = save(tmp_path / "a.jpg", photo())
        (tmp_path / "a.jpg").write_bytes(data[:-2] + bytes(59) + data[-2:])
        (tmp_path / "b.jpg").write_bytes(data[:-2])

        recipe = plan(tmp_path)
        first, second = encode(recipe)

        assert second["image"] == data
        assert len(data) <= len(first["image"]) < len(data) + 59
        assert np.array_equal(decode(recipe, first)["image"], decode(recipe, second)["image"])
        assert recipe.tally.take() == {"kept": 2, "mended": 2}

    def test_cmyk_becomes_rgb(self, tmp_path: Path) -> None:
        save(tmp_path / "a.jpg", PIL.Image.fromarray(photo()).convert("CMYK"), quality=95)

        recipe = plan(tmp_path)

        assert np.abs(only(recipe)["image"].astype(int) - photo()).mean() < 4
        assert recipe.tally.take() == {"re-encoded": 1, "cmyk": 1}

    def test_small_pictures_are_kept_under_shorter(self, tmp_path: Path) -> None:
        data = save(tmp_path / "a.png", photo())

        recipe = plan(tmp_path, sizes=[40])

        assert encode(recipe)[0]["image"] == data

    def test_pictures_of_another_size_are_jpegs_and_those_of_16_bits_pngs(
        self, tmp_path: Path
    ) -> None:
        save(tmp_path / "a.png", photo())

        (jpeg,), (png,) = (encode(plan(tmp_path, sizes=[20], keep_depth=d)) for d in (False, True))

        assert jpeg["image"].startswith(b"\xff\xd8")
        assert png["image"].startswith(b"\x89PNG")

    def test_a_codec_re_encodes_everything(self, tmp_path: Path) -> None:
        data = save(tmp_path / "a.png", photo())

        for codec, start in (("jpeg", b"\xff\xd8"), ("webp", b"RIFF"), ("png", b"\x89PNG")):
            options = {} if codec == "png" else {"quality": 70}
            (record,) = encode(plan(tmp_path, codec=codec, **options))
            assert record["image"].startswith(start)
            assert record["image"] != data


class TestOptions:
    def test_several_sizes_come_from_one_decoding(self, tmp_path: Path) -> None:
        save(tmp_path / "a.jpg", photo(400, 600))

        recipe = plan(tmp_path, sizes=["64", 32], codec="png")
        ((item,),) = [list(recipe.items())]
        large, small = recipe.encode(item)

        assert [target.folder for target in recipe.targets] == ["64", "32"]
        assert decode(recipe, dict(large))["image"].shape == (64, 96, 3)
        assert decode(recipe, dict(small), 1)["image"].shape == (32, 48, 3)
        assert large["key"] == small["key"] == b"a"
        assert decode(recipe, dict(large))["original_size"].tolist() == [400, 600]
        (alone,) = encode(plan(tmp_path, sizes=["64"], codec="png"))
        (_, last) = plan(tmp_path, sizes=[32, "64"], codec="png").encode(item)
        # Not of a decoding that is small enough for 32.
        assert large["image"] == last["image"] == alone["image"]
        assert plan(tmp_path, sizes=[32]).targets[0].folder == ""

    @pytest.mark.parametrize("fit", ["cover", "contain", "stretch"])
    def test_fixed_sizes_are_in_the_schema(self, tmp_path: Path, fit: str) -> None:
        save(tmp_path / "a.jpg", photo())

        recipe = plan(tmp_path, sizes=["24x32"], fit=fit, codec="raw")

        field = recipe.targets[0].schema.fields["image"]
        assert field == Image(size=(24, 32), codec="raw")
        (record,) = encode(recipe)
        assert len(record["image"]) == field.record_nbytes == 24 * 32 * 3
        assert only(recipe)["original_size"].tolist() == [40, 60]

    def test_gray_is_one_channel(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", photo())
        gray = save(tmp_path / "b.png", photo()[:, :, 0])

        recipe = plan(tmp_path, gray=True)
        first, second = encode(recipe)

        assert decode(recipe, first)["image"].shape == (40, 60, 1)
        assert second["image"] == gray
        assert recipe.tally.take() == {"kept": 1, "re-encoded": 1}

    def test_a_transparent_gray_of_few_bits_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(clear_png())

        with pytest.raises(SourceError, check=At("a.png")):
            only(plan(tmp_path))

    @pytest.mark.parametrize("codec", [None, "png", "raw"])
    def test_depth_is_kept(self, tmp_path: Path, codec: str | None) -> None:
        pixels = np.random.default_rng(0).integers(0, 65_536, (6, 8), dtype=np.uint16)
        data = cv2.imencode(".png", pixels)[1].tobytes()
        (tmp_path / "a.png").write_bytes(data)
        save(tmp_path / "b.png", np.full((6, 8), 3, np.uint8))
        size = {"sizes": ["6x8"], "fit": "stretch"} if codec == "raw" else {}

        recipe = plan(tmp_path, keep_depth=True, gray=True, codec=codec, **size)
        first, second = samples(recipe)

        assert first["image"].dtype == np.uint16
        assert np.array_equal(first["image"][:, :, 0], pixels)
        assert (second["image"] == 3 * 257).all()
        assert codec is not None or encode(recipe)[0]["image"] == data

    def test_quality_matters(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))

        sizes = [
            len(encode(plan(tmp_path, codec="jpeg", quality=q))[0]["image"]) for q in (30, 95)
        ]

        assert 2 * sizes[0] < sizes[1]

    @pytest.mark.parametrize(
        "options",
        [
            {"codec": "raw"},
            {"codec": "raw", "sizes": [32]},
            {"codec": "gif"},
            {"quality": 0},
            {"codec": "jpeg", "keep_depth": True},
            {"sizes": [32, "32"]},
            {"sizes": ["32x20"]},
            {"sizes": ["32x32"]},
            {"sizes": [(32, 32)]},
        ],
    )
    def test_contradictions_are_refused(self, tmp_path: Path, options: dict[str, Any]) -> None:
        save(tmp_path / "a.png", photo())

        with pytest.raises(SchemaError):
            plan(tmp_path, **options)


class TestLabels:
    def test_folders_are_classes(self, tmp_path: Path) -> None:
        for name in ("dog/1", "cat/2", "cat/1", "çà/ü 1"):
            save(tmp_path / f"{name}.png", photo())

        recipe = plan(tmp_path)

        schema = recipe.targets[0].schema
        assert schema.fields["label"] == Label(classes=("cat", "dog", "çà"))
        assert schema.defaults == ("image", "label")
        assert list(schema.fields) == ["image", "label", "key", "original_size"]
        assert [(s["key"], int(s["label"])) for s in samples(recipe)] == [
            ("cat/1", 0),
            ("cat/2", 0),
            ("dog/1", 1),
            ("çà/ü 1", 2),
        ]

    def test_unlabelled_pictures_come_alone(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", photo())

        schema = plan(tmp_path).targets[0].schema

        assert schema.defaults == ("image",)
        assert list(schema.fields) == ["image", "key", "original_size"]

    def test_splits_share_their_classes(self, tmp_path: Path) -> None:
        for name in ("train/a", "train/c", "val/b", "val/c"):
            save(tmp_path / name / "1.png", photo())

        (train, first), (val, second) = plan_images(tmp_path).splits

        assert [train, val] == ["train", "val"]
        label = Label(classes=("a", "b", "c"))
        assert first.targets[0].schema.fields["label"] == label
        assert second.targets[0].schema.fields["label"] == label
        assert [int(s["label"]) for s in samples(second)] == [1, 2]

    def test_a_split_may_lack_labels(self, tmp_path: Path) -> None:
        for name in "train/a/1.png", "train/b/1.png", "test/1.png":
            save(tmp_path / name, photo())

        (_, train), (_, test) = plan_images(tmp_path).splits

        assert "label" in train.targets[0].schema.fields
        assert test.targets[0].schema.defaults == ("image",)

    @pytest.mark.parametrize("kind", ["names", "file", "dataset"])
    def test_classes_can_be_fixed(self, tmp_path: Path, kind: str) -> None:
        save(tmp_path / "src/cat/1.png", photo())
        names = ["dog", "cat", "emu"]
        (tmp_path / "classes.txt").write_text("dog\ncat\n\nemu\n")
        pack(tmp_path / "packed", {"label": Label(classes=tuple(names))}, [{"label": 0}])
        choices = {
            "names": names,
            "file": tmp_path / "classes.txt",
            "dataset": tmp_path / "packed",
        }

        recipe = plan(tmp_path / "src", classes=choices[kind])

        assert recipe.targets[0].schema.fields["label"] == Label(classes=tuple(names))
        assert int(only(recipe)["label"]) == 1

    @pytest.mark.parametrize("classes", [["dog"], [], ["a", "a"], "nothing.txt"])
    def test_wrong_classes_are_named(self, tmp_path: Path, classes: Any) -> None:
        save(tmp_path / "cat/1.png", photo())

        with pytest.raises(SourceError):
            plan(tmp_path, classes=classes)

    def test_classes_need_labels(self, tmp_path: Path) -> None:
        save(tmp_path / "src/1.png", photo())
        pack(tmp_path / "packed", {"text": Text()}, [{"text": "a"}])

        with pytest.raises(SourceError, check=At("src")):
            plan(tmp_path / "src", classes=["a"])
        with pytest.raises(SourceError, check=At("packed")):
            plan(tmp_path / "src", classes=tmp_path / "packed")

    def test_columns_become_fields(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", photo())
        row = {"path": "a.png", "label": "cat", "age": 3, "size": 1.5, "text": "hé", "tags": [1]}
        (tmp_path / "l.jsonl").write_text(json.dumps(row))

        recipe = plan(tmp_path / "l.jsonl")

        fields = recipe.targets[0].schema.fields
        assert fields["label"] == Label(classes=("cat",))
        assert fields["age"] == Array(dtype="int64")
        assert fields["size"] == Array(dtype="float32")
        assert fields["text"] == Text()
        assert fields["tags"] == Json()
        sample = only(recipe)
        assert [sample[name] for name in ("age", "size", "text", "tags")] == [3, 1.5, "hé", [1]]
        assert recipe.targets[0].schema.defaults == ("image", "label")

    def test_numbers_as_labels(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", photo())
        (tmp_path / "l.csv").write_text("path,target\na.png,7\n")

        recipe = plan(tmp_path / "l.csv")

        assert recipe.targets[0].schema.fields["label"] == Label()
        assert int(only(recipe)["label"]) == 7
        with pytest.raises(SourceError, check=At("l.csv, line 2 (a.png)")):
            encode(plan(tmp_path / "l.csv", classes=["a", "b"]))
        (tmp_path / "l.csv").write_text("path,target\na.png,0.5\n")
        assert plan(tmp_path / "l.csv").targets[0].schema.fields["label"] == Array()
        with pytest.raises(SourceError, check=At("l.csv")):
            plan(tmp_path / "l.csv", classes=["a", "b"])

    @pytest.mark.parametrize("suffix", ["csv", "jsonl"])
    def test_numbers_that_are_names_of_classes_are_taken_as_such(
        self, tmp_path: Path, suffix: str
    ) -> None:
        """Also in a list whose labels are all digits: it cannot know that others have words."""
        for name in "abc":
            save(tmp_path / f"{name}.png", photo())
        lists = {"train": ("a.png,2", "b.png,unknown", "c.png,10"), "val": ("b.png,10", "a.png,2")}
        for name, lines in lists.items():
            rows = [dict(zip(("path", "label"), line.split(","), strict=True)) for line in lines]
            if suffix == "csv":
                text = "path,label\n" + "\n".join(lines)
            else:
                named = [{"path": row["path"], "label": _whole(row["label"])} for row in rows]
                text = "\n".join(map(json.dumps, named))
            (tmp_path / f"{name}.{suffix}").write_text(text)
        names = ["10", "2", "unknown"]

        alone = plan(tmp_path / f"val.{suffix}", classes=names)
        train = plan(tmp_path / f"train.{suffix}", classes=names)

        assert [int(s["label"]) for s in samples(alone)] == [0, 1]
        assert [int(s["label"]) for s in samples(train)] == [1, 2, 0]
        with pytest.raises(SourceError):
            samples(plan(tmp_path / f"val.{suffix}", classes=["10", "a", "b"]))

    def test_a_second_column_of_pictures_may_be_the_mask(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes()
        rows = [{"bytes": file, "path": "a.png"}]
        pq.write_table(pa.table({"image": rows, "annotation": rows}), tmp_path / "a.parquet")
        command = ["images", str(tmp_path / "a.parquet"), str(tmp_path / "p")]

        assert main(command) == 1
        assert "mask_column= is for masks" in capsys.readouterr().err
        assert main([*command, "--mask-column", "annotation"]) == 0

    def test_a_label_that_is_nan_in_parquet_is_missing(self, tmp_path: Path) -> None:
        """Other columns keep it: there it may be a value."""
        images = [save(tmp_path / "x.png", photo())] * 2
        table = {"image": images, "label": [1.0, float("nan")], "score": [float("nan"), 1.0]}
        pq.write_table(pa.table(table), tmp_path / "a.parquet")

        recipe = plan(tmp_path / "a.parquet")
        first, second = recipe.items()

        sample = decode(recipe, dict(recipe.encode(first)[0]))
        assert (sample["label"], np.isnan(sample["score"])) == (1, True)
        with pytest.raises(SourceError, check=At("a.parquet, row 1")):
            recipe.encode(second)

    @pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar"])
    def test_a_missing_text_is_stored_as_an_empty_one(self, tmp_path: Path, kind: str) -> None:
        save(tmp_path / "1.png", photo())
        picture, path = (tmp_path / "1.png").read_bytes(), tmp_path / f"l.{kind}"
        if kind == "jsonl":
            rows = [{"path": "1.png", "key": "1", "caption": "x"}, {"path": "1.png", "key": "2"}]
            path.write_text("\n".join(map(json.dumps, rows)))
        elif kind == "parquet":
            pq.write_table(pa.table({"image": [picture] * 2, "caption": ["x", None]}), path)
        else:
            write_tar(path, {"1.png": picture, "1.txt": b"x", "2.png": picture})

        pack_images(path, tmp_path / "out")

        assert [*ShardDataset(tmp_path / "out").column("caption")] == ["x", ""]

    def test_a_missing_label_names_the_line_and_the_remedy(self, tmp_path: Path) -> None:
        for name in "ab":
            save(tmp_path / f"{name}.png", photo())
        (tmp_path / "l.csv").write_text("path,label\na.png,1\nb.png,\n")

        with pytest.raises(SourceError, check=At("l.csv, line 3 (b.png)")):
            encode(plan(tmp_path / "l.csv"))

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
    def test_missing_numbers_are_stored_as_nan(self, tmp_path: Path, kind: str) -> None:
        """Whole numbers then as float64, which holds those as they are."""
        path = tmp_path / f"l.{kind}"
        images = [save(tmp_path / f"{name}.png", photo()) for name in "ab"]
        known = {"label": 1, "age": 31, "day": 2**53, "score": 0.5}
        if kind == "csv":
            path.write_text(f"path,label,age,day,score\na.png,1,31,{2**53},0.5\nb.png,0,,nan,\n")
        elif kind == "jsonl":
            rows = [{"path": "a.png"} | known, {"path": "b.png", "label": 0, "age": None}]
            path.write_text("\n".join(map(json.dumps, rows)))
        else:
            columns = {name: [value, None] for name, value in known.items()} | {"label": [1, 0]}
            pq.write_table(pa.table({"image": images, **columns}), path)

        made = plan_images(path)
        first, second = samples(made.recipes[0])

        told = "age (1), day (1), score (1)"
        assert f"missing numbers, stored as NaN: {told}" in made.notes()
        assert {name: first[name] for name in known} == known
        assert (second["label"], first["age"].dtype) == (0, np.float64)
        assert all(np.isnan(second[name]) for name in ("age", "day", "score"))

    def test_splits_store_numbers_alike_where_some_miss_them(self, tmp_path: Path) -> None:
        image = save(tmp_path / "x.png", photo())
        ages = {"train": [7, None], "val": [8, 9]}
        for split, numbers in ages.items():
            table = pa.table({"image": [image] * 2, "age": pa.array(numbers).dictionary_encode()})
            pq.write_table(table, tmp_path / f"{split}.parquet")
        (tmp_path / "x.png").unlink()

        made = plan_images(tmp_path)

        assert [r.targets[0].schema.fields["age"].dtype for r in made.recipes] == ["float64"] * 2
        assert samples(made.recipes[1])[0]["age"] == 8
        assert "missing numbers, stored as NaN: age (1)" in made.notes()

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_whole_numbers_that_float64_rounds_are_refused_beside_missing_ones(
        self, tmp_path: Path, kind: str
    ) -> None:
        images = [save(tmp_path / f"{name}.png", photo()) for name in "ab"]
        (tmp_path / "l.csv").write_text(f"path,id\na.png,{2**53 + 1}\nb.png,\n")
        pq.write_table(
            pa.table({"image": images, "id": [2**53 + 1, None]}), tmp_path / "l.parquet"
        )

        recipe = plan(tmp_path / f"l.{kind}")
        first, second = recipe.items()

        assert np.isnan(decode(recipe, dict(recipe.encode(second)[0]))["id"])
        with pytest.raises(SourceError, check=At(first.where, cause=CodecError)):
            recipe.encode(first)

    def test_a_value_that_does_not_fit_names_its_column(self, tmp_path: Path) -> None:
        images = [save(tmp_path / "x.png", photo())]
        pq.write_table(
            pa.table({"image": images, "other": [{"bytes": b"x"}]}), tmp_path / "a.parquet"
        )
        pq.write_table(pa.table({"image": images, "score": [1e300]}), tmp_path / "b.parquet")

        with pytest.raises(SourceError, check=At("a.parquet, row 0")):
            encode(plan(tmp_path / "a.parquet"))
        with pytest.raises(SourceError, check=At("b.parquet, row 0")):
            encode(plan(tmp_path / "b.parquet"))

    @pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
    def test_a_column_that_may_be_the_label_is_named(self, tmp_path: Path, kind: str) -> None:
        table = pa.table({"image": [save(tmp_path / "x.png", photo())], "grade": [1]})
        source = tmp_path / f"a.{kind}"
        if kind == "parquet":
            pq.write_table(table, source)
        elif kind == "arrow":
            pa.feather.write_feather(table, source)
        else:
            source.write_text("path,grade\nx.png,1\n")

        assert plan_images(source).notes()[-1].endswith("takes another: grade")

    def test_hugging_face_classes_keep_their_numbers(self, tmp_path: Path) -> None:
        """Also when --classes orders them anew, and -1 stays the mark of unlabelled pictures."""
        png = save(tmp_path / "x.png", photo())
        classes = {"names": ["zebra", "ant"], "_type": "ClassLabel"}
        features = {"label": classes, "coarse": classes}
        table = pa.table(
            {"image": [{"bytes": png}] * 3, "label": [0, 1, -1], "coarse": [0, -1, 0]}
        )
        # As older versions wrote a list, and others write what they do not know.
        listed = {
            "more": [],
            "rest": {"_type": "List"},
            "boxes": [{"dtype": "float32"}],
            "plane": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"},
            "text": {"_type": "Translation", "languages": ["en", "fr"]},
            **features,
        }
        meta = {"huggingface": json.dumps({"info": {"features": listed}})}
        pq.write_table(table.replace_schema_metadata(meta), tmp_path / "a.parquet")

        recipe = plan(tmp_path / "a.parquet")
        other = plan(tmp_path / "a.parquet", classes=["ant", "bee", "zebra"])

        assert recipe.targets[0].schema.fields["label"] == Label(classes=("zebra", "ant"))
        assert [int(s["label"]) for s in samples(recipe)] == [0, 1, -1]
        assert [int(s["label"]) for s in samples(other)] == [2, 0, -1]
        assert recipe.tally.take()["without a label"] == 2


def both(root: Path) -> str:
    """Return the place of a picture and of its mask."""
    return f"images/a.jpg (mask {root}/masks/a.png)"


class TestMasks:
    def make(self, root: Path, mask: Pixels | PIL.Image.Image, **options: Any) -> ImagesRecipe:
        save(root / "images/a.jpg", photo())
        save(root / "masks/a.png", mask)
        return plan(root / "images", masks=root / "masks", **options)

    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    def test_integers_are_exact(self, tmp_path: Path, dtype: str) -> None:
        values = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (40, 60)).astype(dtype)

        recipe = self.make(tmp_path, values)

        schema = recipe.targets[0].schema
        assert schema.fields["mask"] == Mask(dtype=dtype)
        assert schema.defaults == ("image", "mask")
        assert np.array_equal(only(recipe)["mask"], values)

    def test_palette_indices_are_resized_by_nearest(self, tmp_path: Path) -> None:
        values = 200 * np.random.default_rng(0).integers(0, 2, (40, 60), np.uint8)
        image = PIL.Image.fromarray(values).convert("P")
        image.putpalette(list(range(256)) * 3)

        recipe = self.make(tmp_path, image, sizes=[16, 20], fit="cover")

        for target in (0, 1):
            (sample,) = samples(recipe, target)
            side = (16, 20)[target]
            assert sample["mask"].shape == (side, side)
            assert set(sample["mask"].ravel().tolist()) == {0, 200}
            assert recipe.targets[target].schema.fields["mask"] == Mask(size=(side, side))

    def test_masks_of_other_sizes_are_refused(self, tmp_path: Path) -> None:
        recipe = self.make(tmp_path, np.zeros((60, 40), np.uint8))

        with pytest.raises(SourceError, check=At(both(tmp_path))):
            encode(recipe)

    def test_masks_of_turned_pictures_are_upright(self, tmp_path: Path) -> None:
        recipe = self.make(tmp_path, np.zeros((40, 60), np.uint8))
        save(tmp_path / "images/a.jpg", photo(), exif=turned())

        with pytest.raises(SourceError):
            encode(recipe)
        save(tmp_path / "masks/a.png", np.ones((60, 40), np.uint8))
        assert only(recipe)["mask"].shape == (60, 40)

    def test_a_missing_mask_is_refused(self, tmp_path: Path) -> None:
        recipe = self.make(tmp_path, np.zeros((40, 60), np.uint8))
        save(tmp_path / "images/b.jpg", photo())

        recipe = plan(tmp_path / "images", masks=tmp_path / "masks")

        with pytest.raises(SourceError, check=At("images/b.jpg")):
            encode(recipe)

    @pytest.mark.parametrize("kind", ["folder", "list", "parquet", "tar"])
    def test_masks_have_16_bits_if_one_of_the_first_has(self, tmp_path: Path, kind: str) -> None:
        """The pictures stay as they are: masks have a depth of their own."""
        for i in range(20):
            mask = np.full((4, 4), 300 if i == 9 else 5, np.uint16 if i == 9 else np.uint8)
            save(tmp_path / f"images/{i:02d}.jpg", photo(4, 4))
            save(tmp_path / f"masks/{i:02d}.png", mask)

        recipe = plan_with_masks(tmp_path, kind, codec="jpeg")

        assert recipe.targets[0].schema.fields["image"] == Image(codec="jpeg")
        assert recipe.targets[0].schema.fields["mask"] == Mask(dtype="uint16")
        assert [s["mask"].max() for s in samples(recipe)] == [5] * 9 + [300] + [5] * 10
        (tmp_path / "masks/09.png").rename(tmp_path / "masks/19.png")
        (tmp_path / "masks/09.png").write_bytes((tmp_path / "masks/18.png").read_bytes())
        recipe = plan_with_masks(tmp_path, kind)
        assert recipe.targets[0].schema.fields["mask"] == Mask(dtype="uint8")
        with pytest.raises(SourceError) as caught:
            encode(recipe)
        assert "keep_depth" in caught.value.hint

    def test_the_depth_of_masks_that_are_no_png_is_found(self, tmp_path: Path) -> None:
        save(tmp_path / "images/a.jpg", photo(4, 4))
        save(tmp_path / "masks/a.tiff", PIL.Image.fromarray(np.full((4, 4), 300, np.uint16)))

        recipe = plan(tmp_path / "images", masks=tmp_path / "masks")

        assert recipe.targets[0].schema.fields["mask"] == Mask(dtype="uint16")
        assert only(recipe)["mask"].max() == 300

    def test_masks_that_nothing_uses_have_no_say_in_the_depth(self, tmp_path: Path) -> None:
        """As Cityscapes' instances, which lie beside its labels."""
        save(tmp_path / "masks/a_instances.png", np.full((40, 60), 300, np.uint16))

        recipe = self.make(tmp_path, np.zeros((40, 60), np.uint8))

        assert recipe.targets[0].schema.fields["mask"] == Mask(dtype="uint8")

    def test_a_mask_that_becomes_deeper_is_refused(self, tmp_path: Path) -> None:
        recipe = self.make(tmp_path, np.zeros((40, 60), np.uint8))
        save(tmp_path / "masks/a.png", np.full((40, 60), 300, np.uint16))

        with pytest.raises(SourceError, check=At(both(tmp_path))):
            encode(recipe)

    @pytest.mark.parametrize(
        ("mask", "suffix", "message"),
        [
            (photo(), "png", "the mask cannot be read: colors"),
            (photo(), "jpeg", "the mask cannot be read: jpeg may change"),
            (np.zeros((40, 60), np.float32), "tiff", "the mask cannot be read: a tiff of such"),
            (np.full((40, 60), 7, np.int32), "tiff", "the mask cannot be read: a tiff of such"),
            (None, "png", "the mask cannot be read: the file is empty"),
        ],
    )
    def test_a_bad_mask_is_named_beside_its_picture(
        self, tmp_path: Path, mask: Any, suffix: str, message: str
    ) -> None:
        save(tmp_path / "images/a.jpg", photo())
        file = tmp_path / f"masks/a.{suffix}"
        save(file, photo() if mask is None else mask)
        if mask is None:
            file.write_bytes(b"")

        with pytest.raises(SourceError) as caught:
            encode(plan(tmp_path / "images", masks=tmp_path / "masks"))

        place = f"{tmp_path / 'images/a.jpg'} (mask {file}): "
        assert str(caught.value).startswith(f"{place}{message}")
        assert "damaged" not in str(caught.value)

    @pytest.mark.parametrize(
        ("kind", "place"),
        [
            ("list", "src.csv, line 2 (images/a.jpg) (mask masks/a.png)"),
            ("tar", "src.tar: a.jpg (mask)"),
            ("parquet", "src.parquet, row 0 (mask)"),
        ],
    )
    def test_a_bad_mask_of_other_sources_is_named(
        self, tmp_path: Path, kind: str, place: str
    ) -> None:
        save(tmp_path / "images/a.jpg", photo())
        save(tmp_path / "masks/a.png", photo())

        with pytest.raises(SourceError, check=At(place)):
            encode(plan_with_masks(tmp_path, kind))

    def test_of_a_cut_mask_it_is_said_that_it_is_the_mask(self, tmp_path: Path) -> None:
        recipe = self.make(tmp_path, np.zeros((40, 60), np.uint8))
        mask = next((tmp_path / "masks").rglob("*.png"))
        mask.write_bytes(mask.read_bytes()[:-12])

        with pytest.raises(SourceError, check=At(both(tmp_path))):
            encode(recipe)

    def test_masks_of_splits_lie_in_folders_of_the_same_name(self, tmp_path: Path) -> None:
        for split, value in (("train", 1), ("val", 2)):
            save(tmp_path / f"images/{split}/a.png", photo(4, 4))
            save(tmp_path / f"masks/{split}/a.png", np.full((4, 4), value, np.uint8))

        recipes = plan_images(tmp_path / "images", masks=tmp_path / "masks").splits

        assert [int(only(recipe)["mask"].max()) for _, recipe in recipes] == [1, 2]

    def test_splits_with_masks_in_one_folder_are_packed_one_by_one(self, tmp_path: Path) -> None:
        for split, name in (("train", "a"), ("val", "b")):
            save(tmp_path / f"images/{split}/{name}.png", photo(4, 4))
            save(tmp_path / f"masks/{name}.png", np.zeros((4, 4), np.uint8))

        with pytest.raises(SourceError, check=At("masks")):
            plan_images(tmp_path / "images", masks=tmp_path / "masks")
        found = plan_images(tmp_path / "images/val", masks=tmp_path / "masks")

        assert found.notes() == []
        assert [item.read_mask is not None for item in found.recipes[0].source.items()] == [True]

    def test_a_column_of_masks(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", photo(4, 4))
        save(tmp_path / "m.png", np.full((4, 4), 9, np.uint8))
        (tmp_path / "l.csv").write_text("path,mask,label\na.png,m.png,x\n")

        recipe = plan(tmp_path / "l.csv")

        assert recipe.targets[0].schema.defaults == ("image", "label", "mask")
        assert (only(recipe)["mask"] == 9).all()


def _whole(text: str) -> int | str:
    return int(text) if text.isdigit() else text


class TestBadInput:
    def test_the_limit_of_memory_is_an_option_of_the_command(self, tmp_path: Path) -> None:
        save(tmp_path / "in/a.png", np.zeros((600, 600, 3), np.uint8))

        assert (
            main(["images", str(tmp_path / "in"), str(tmp_path / "a"), "--max-picture-mb", "1"])
            == 1
        )
        assert (
            main(["images", str(tmp_path / "in"), str(tmp_path / "b"), "--max-picture-mb", "2"])
            == 0
        )

    @pytest.mark.parametrize("data", [b"", b"hello", "half"])
    @pytest.mark.parametrize("options", [{}, {"sizes": [16]}, {"codec": "png"}])
    def test_a_bad_file_is_named_and_the_others_go_on(
        self, tmp_path: Path, data: Any, options: dict[str, Any]
    ) -> None:
        good = save(tmp_path / "a.jpg", photo())
        save(tmp_path / "c.jpg", photo())
        (tmp_path / "b.jpg").write_bytes(good[: len(good) // 2] if data == "half" else data)

        recipe = plan(tmp_path, **options)
        first, second, third = recipe.items()

        assert recipe.name(second) == f"{tmp_path}/b.jpg"
        with pytest.raises(SourceError, check=At("b.jpg")):
            recipe.encode(second)
        recipe.encode(first)
        recipe.encode(third)

    def test_a_bad_first_file_does_not_stop_the_planning(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"\0")
        (tmp_path / "b.jpg").write_bytes(b"\xff\xd8")
        for name in "cde":
            save(tmp_path / f"{name}.jpg", photo())

        assert plan(tmp_path).targets[0].schema.fields["image"] == Image(codec="jpeg")

    def test_the_codec_is_what_most_files_are(self, tmp_path: Path) -> None:
        save(tmp_path / "a.jpg", photo())
        save(tmp_path / "b.gif", photo())
        save(tmp_path / "c.bmp", photo())

        assert plan(tmp_path).targets[0].schema.fields["image"] == Image(codec="png")

    def test_what_no_codec_holds_is_named(self, tmp_path: Path) -> None:
        save(tmp_path / "a.png", np.zeros((1, 20_000, 3), np.uint8))

        recipe = plan(tmp_path, codec="webp")

        with pytest.raises(SourceError, check=At("a.png")):
            encode(recipe)
        assert only(plan(tmp_path, codec="jpeg"))["image"].shape == (1, 20_000, 3)

    def test_a_damaged_file_in_parquet_names_its_row(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"image": [b"junk"]}), tmp_path / "a.parquet")

        with pytest.raises(SourceError, check=At("a.parquet, row 0")):
            encode(plan(tmp_path / "a.parquet"))


class TestDeterminism:
    def fill(self, root: Path) -> Path:
        for i in range(6):
            save(root / f"c{i % 2}/{i}.jpg", photo(80 + i, 120, seed=i), quality=90)
        save(root / "c0/odd.png", PIL.Image.fromarray(photo()).quantize(9))
        return root

    @pytest.mark.parametrize("options", [{}, {"sizes": [32, 20]}, {"codec": "webp"}])
    def test_threads_and_start_do_not_matter(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        recipe = plan(self.fill(tmp_path), **options)
        alone = [recipe.encode(item) for item in recipe.items()]

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(plan(tmp_path, **options).encode, recipe.items()))
        rest = [recipe.encode(item) for item in recipe.items(4)]

        assert together == alone
        assert rest == alone[4:]

    def test_identity_is_the_sources_and_the_options(self, tmp_path: Path) -> None:
        src = self.fill(tmp_path / "src")
        shutil.copytree(src, tmp_path / "masks")
        one = plan(src).identity

        same = json.loads(json.dumps(plan(src).identity))
        others = [
            plan(src, sizes=[32]).identity,
            plan(src, sizes=[32], quality=80).identity,
            plan(src, codec="png").identity,
            plan(src, gray=True).identity,
            plan(src, classes=["c1", "c0"]).identity,
            plan(src, masks=tmp_path / "masks").identity,
        ]
        os.utime(src / "c0/odd.png", ns=(1, 1))
        others.append(plan(src).identity)

        assert same == one
        assert all(other != one for other in others)
        assert len({json.dumps(other) for other in others}) == len(others)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_mask_that_changes_after_listing_is_noticed(tmp_path: Path, kind: str) -> None:
    src = tmp_path / "images"
    data = save(src / "a.png", photo(4, 4))
    if kind == "parquet":
        src = tmp_path / "images.parquet"
        pq.write_table(pa.table({"image": [data], "key": ["a"]}), src)
    save(tmp_path / "masks/a.png", np.zeros((4, 4), np.uint8))
    plan = plan_images(src, masks=tmp_path / "masks")
    assert plan.is_unchanged()

    save(tmp_path / "masks/a.png", np.eye(4, dtype=np.uint8))

    assert not plan.is_unchanged()


@pytest.mark.parametrize(("codec", "limit"), [("webp", 16_383), ("jpeg", 65_500)])
def test_a_picture_that_a_format_cannot_hold_is_refused(
    tmp_path: Path, codec: str, limit: int
) -> None:
    save(tmp_path / "fits/a.png", np.zeros((limit, 2, 3), np.uint8))
    save(tmp_path / "high/a.png", np.zeros((limit + 1, 2, 3), np.uint8))

    assert len(encode(plan(tmp_path / "fits", codec=codec))) == 1
    with pytest.raises(SourceError, check=At("high/a.png")):
        encode(plan(tmp_path / "high", codec=codec))


@pytest.mark.parametrize("orientation", [2, 3, 6])
def test_masks_below_turned_pictures_are_told(tmp_path: Path, orientation: int) -> None:
    """Where the sides agree, nothing else says whether a mask was drawn before the picture was turned, or after."""
    for name in ("pictures", "masks"):
        (tmp_path / name).mkdir()
    save(tmp_path / "pictures/a.jpg", photo(16, 16), exif=turned(orientation))
    save(tmp_path / "masks/a.png", np.eye(16, dtype=np.uint8))

    notes = pack_images(tmp_path / "pictures", tmp_path / "out", masks=tmp_path / "masks").notes
    alone = pack_images(tmp_path / "pictures", tmp_path / "alone").notes

    said = "1 picture rotated as Exif says: masks, boxes and keypoints are read as of the upright"
    assert any(note.startswith(said) for note in notes)
    assert not any(note.startswith(said) for note in alone)
    assert "1 picture re-encoded (1 rotated)" in alone
    assert not any("kept" in note for note in alone)


def test_what_was_kept_is_said_first_whichever_picture_was(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    save(tmp_path / "in/a.jpg", photo(16, 16), exif=turned(3))
    save(tmp_path / "in/b.jpg", photo(16, 16))

    notes = pack_images(tmp_path / "in", tmp_path / "out").notes

    assert notes[:2] == ("1 picture kept verbatim", "1 picture re-encoded (1 rotated)")


@pytest.mark.parametrize("is_alone", [True, False])
def test_pictures_of_several_frames_are_told(tmp_path: Path, is_alone: bool) -> None:
    """Also where all files are encoded anew, and no change of others is listed."""
    (tmp_path / "in").mkdir()
    frames = [PIL.Image.fromarray(photo(16, 16, seed)) for seed in range(3)]
    frames[0].save(tmp_path / "in/a.tif", save_all=True, append_images=frames[1:])
    if not is_alone:
        save(tmp_path / "in/b.png", photo())

    notes = pack_images(tmp_path / "in", tmp_path / "out").notes

    assert "1 picture of several frames or pages: only the first is packed" in notes
