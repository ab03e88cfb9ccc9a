"""Any number of pictures a sample, as packdata writes them and its commands handle them."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image as Pil

import packdata
from loaders import Normalize, ShardDataset
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Image, Images, Label, Mask
from packdata.cli import main

FIELDS: dict[str, Any] = {"images": Images(), "label": Label()}
COUNTS = [2, 0, 1, 5, 3]


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return cv2.resize(small, (width, height))


def jpeg(height: int, width: int, seed: int = 0) -> bytes:
    out = io.BytesIO()
    Pil.fromarray(pixels(height, width, seed)).save(out, "JPEG")
    return out.getvalue()


def files(dataset: ShardDataset, i: int) -> list[bytes]:
    """Return the stored files of a sample."""
    from loaders.codecs.picture import split_files

    record = dataset.store.record("images", dataset.view.rows(np.array([i])))
    return [file.tobytes() for file in split_files(record)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "packed"
    rows = [
        {
            "images": [jpeg(40 + i, 30 + 4 * k, 10 * i + k) for k in range(n)],
            "label": i,
            "key": f"k{i}",
        }
        for i, n in enumerate(COUNTS)
    ]
    packdata.pack(rows, folder, FIELDS)
    return folder


def test_files_are_kept_and_arrays_are_encoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(8, 16))
    with packdata.Writer(tmp_path / "out", {"images": Images()}) as writer:
        writer.add(images=[path, jpeg(9, 9), pixels(10, 12)])
        writer.add(images=())
        writer.add_batch(images=[[jpeg(4, 4)], np.stack([pixels(6, 6)] * 2)])

    dataset = ShardDataset(tmp_path / "out")

    assert [[tuple(p.shape) for p in sample.images] for sample in dataset] == [
        [(3, 8, 16), (3, 9, 9), (3, 10, 12)],
        [],
        [(3, 4, 4)],
        [(3, 6, 6)] * 2,
    ]
    assert files(dataset, 0)[:2] == [jpeg(8, 16), jpeg(9, 9)]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_do_not_depend_on_the_workers(
    tmp_path: Path, workers: int, packed: Path
) -> None:
    rows = [
        {
            "images": [jpeg(40 + i, 30 + 4 * k, 10 * i + k) for k in range(n)],
            "label": i,
            "key": f"k{i}",
        }
        for i, n in enumerate(COUNTS)
    ]
    packdata.pack(rows, tmp_path / "a", FIELDS, workers=workers)

    assert ShardDataset(tmp_path / "a").fingerprint == ShardDataset(packed).fingerprint


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a.jpg",
        jpeg(4, 4),
        {"a": jpeg(4, 4)},
        pixels(4, 4),
        [jpeg(4, 4), np.zeros((4, 4), np.float32)],
        [jpeg(4, 4), jpeg(4, 4)[:100]],
    ],
)
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CodecError) as caught:
        packdata.pack([{"images": value}], tmp_path / "a", {"images": Images()})
    assert not isinstance(value, list) or "picture 1" in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    rows = [{"images": [jpeg(4, 4), tmp_path / "b.jpg"]}]
    with pytest.raises(SourceError) as caught:
        packdata.pack(rows, tmp_path / "a", {"images": Images()})
    assert str(caught.value.path) == str(tmp_path / "b.jpg")


def test_pictures_of_another_size_than_the_fields_are_refused(tmp_path: Path) -> None:
    rows = [{"images": [jpeg(4, 4), jpeg(4, 5)]}]
    with pytest.raises(CodecError):
        packdata.pack(rows, tmp_path / "a", {"images": Images(size=(4, 4))})


BIG = np.zeros((700, 800, 3), np.uint8)  # 1.6 MiB


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (Image(), BIG),
        (Image(codec="png"), BIG),
        (Image(channels=4, codec="png"), np.zeros((600, 700, 4), np.uint8)),
        (Image(codec="raw"), "file"),
        (Image(), "file"),
        (Images(), [pixels(4, 4), BIG]),
        (Images(), ["file"]),
        (Mask(), np.zeros((1400, 800), np.uint8)),
    ],
)
def test_the_writer_has_a_limit_of_memory_for_a_picture(
    tmp_path: Path, field: Any, value: Any
) -> None:
    path = tmp_path / "big.png"
    cv2.imwrite(str(path), BIG)
    value = path if isinstance(value, str) else value
    value = [path] if isinstance(value, list) and value == ["file"] else value

    packdata.pack([{"x": value}], tmp_path / "a", {"x": field}, max_picture_mb=2)
    with pytest.raises((CodecError, SourceError)):
        packdata.pack([{"x": value}], tmp_path / "b", {"x": field}, max_picture_mb=1)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "8"])
def test_the_limit_is_a_whole_number(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        packdata.Writer(tmp_path / "a", {"x": Image()}, max_picture_mb=wrong)


def run(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_the_commands_take_them(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["copy", packed, tmp_path / "parquet", "--format", "parquet"], capsys)
    packdata.pack([{"images": [jpeg(4, 4)], "label": 9, "key": "other"}], tmp_path / "b", FIELDS)
    run(["merge", packed, tmp_path / "b", tmp_path / "twice"], capsys)
    run(["split", packed, tmp_path / "split", "--parts", "a=0.6", "b=0.4"], capsys)

    for one, other in zip(ShardDataset(packed), ShardDataset(tmp_path / "parquet"), strict=True):
        assert all(a.equal(b) for a, b in zip(one.images, other.images, strict=True))
    twice = ShardDataset(tmp_path / "twice")
    assert [len(sample.images) for sample in twice] == [*COUNTS, 1]
    parts = [ShardDataset(tmp_path / "split" / part) for part in ("a", "b")]
    counts = [len(sample.images) for part in parts for sample in part]
    assert sorted(counts) == sorted(COUNTS)
    for folder in (packed, tmp_path / "parquet", tmp_path / "twice"):
        assert json.loads(run(["verify", folder, "--decode", "--json"], capsys))["ok"]


def test_verify_finds_a_picture_that_does_not_decode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from loaders.codecs.picture import join_files
    from tests.packdata.packing import pack

    records = [join_files([jpeg(8, 8)]), join_files([jpeg(8, 8), jpeg(8, 8)[:-20]])]
    folder = pack(tmp_path / "a", {"images": Images()}, [{"images": r} for r in records])

    assert main(["verify", str(folder), "--decode", "--json"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["field"], fault["rows"]) == ("images", [1, 1])


def test_stats_count_pictures_and_their_pixels(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = ShardDataset(packed)
    every = [p.numpy().reshape(3, -1) for sample in dataset for p in sample.images]
    expected = np.concatenate(every, axis=1).astype(np.float64)

    found = json.loads(run(["stats", packed, "--json"], capsys))

    about = found["fields"]["images"]
    assert about["num_images"] == sum(COUNTS)
    assert about["images_per_sample"]["min"] == 0
    assert about["images_per_sample"]["max"] == 5
    assert about["width"] == {"min": 30, "median": 34, "max": 46}
    np.testing.assert_allclose(about["mean"], expected.mean(axis=1))
    np.testing.assert_allclose(about["std"], expected.std(axis=1))
    assert found["image"] == "images"
    Normalize.from_stats(found)


def test_stats_of_samples_without_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packdata.pack([{"images": []}] * 2, tmp_path / "a", {"images": Images()})

    found = json.loads(run(["stats", tmp_path / "a", "--json"], capsys))

    assert found["fields"]["images"]["num_images"] == 0


def test_preview_shows_the_first_pictures(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["preview", packed, "--out", tmp_path / "sheet.png"], capsys)
    text = run(["preview", packed, "--text", "--num", 5], capsys)

    sheet = np.asarray(Pil.open(tmp_path / "sheet.png"))
    assert sheet.shape[1] > 4 * 208
    assert "5 pictures" in text
    assert "0 pictures" in text


@pytest.mark.parametrize("options", [{"codec": "png"}, {"size": "16x24", "fit": "stretch"}])
def test_several_pictures_are_not_encoded_anew(
    packed: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(SchemaError, match="'images'"):
        packdata.write(ShardDataset(packed), tmp_path / "a", **options)

    assert not (tmp_path / "a").exists()
