"""``packdata images --codec dct|yuv420``, and every command on what it packs."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

import packdata
from loaders import ShardDataset
from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.data.manifest import read_manifest
from loaders.errors import CodecError, SchemaError
from loaders.schema import Image
from packdata.cli import main
from packdata.images.stored import jpeg_planes
from tests.codecs.test_heads import of_441
from tests.packdata.packing import pack
from tests.packdata.reading import PackedReader

PHOTOS = Path(__file__).parents[1] / "data/photos"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four JPEG photos of 192 x 288."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("boats/kodim06", "boats/kodim11", "people/kodim12", "people/kodim15"):
        shutil.copy(PHOTOS / f"{name}.jpg", folder)
    return folder


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    packdata.pack_images(photos, tmp_path / "packed", sizes=["64x96"], fit="cover", codec="dct")
    return tmp_path / "packed"


def image_field(folder: Path) -> Image:
    field = read_manifest(folder).schema.fields["image"]
    assert isinstance(field, Image)
    return field


def pixels(folder: Path) -> list[npt.NDArray[np.uint8]]:
    reader = PackedReader(folder)
    return [reader.sample(i)["image"] for i in range(len(reader))]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--codec", "dct"], {"quality": 90, "subsampling": "420", "compression": "lz4"}),
        (
            ["--codec", "dct", "--compression", "zstd", "--subsampling", "444", "--quality", "75"],
            {"quality": 75, "subsampling": "444", "compression": "zstd"},
        ),
        (["--codec", "dct", "--gray", "--format", "lmdb"], {"channels": 1}),
        (["--codec", "yuv420"], {}),
    ],
)
def test_images_are_packed_as_asked(
    photos: Path, tmp_path: Path, arguments: list[str], options: dict[str, Any]
) -> None:
    """The schema says how, the shards are Parquet by default, and the pictures are theirs."""
    target = str(tmp_path / "packed")

    status = main(["images", str(photos), target, "--size", "64x96", "--fit", "cover", *arguments])

    field = image_field(tmp_path / "packed")
    assert status == 0
    assert field == Image(size=(64, 96), codec=arguments[1], **options)
    expected = "lmdb" if "lmdb" in arguments else "parquet"
    assert read_manifest(target).shards[0].file.endswith(expected)
    for served, file in zip(pixels(tmp_path / "packed"), sorted(photos.iterdir()), strict=True):
        whole = simplejpeg.decode_jpeg(file.read_bytes(), "GRAY" if field.channels == 1 else "RGB")
        small = cv2.resize(whole, (96, 64), interpolation=cv2.INTER_AREA).reshape(served.shape)
        assert np.abs(served.astype(int) - small).mean() < 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--codec", "dct"], "codec 'dct' needs pictures of one size: pass sizes= with fit="),
        (["--codec", "yuv420", "--size", "64"], "codec 'yuv420' needs pictures of one size"),
        (["--codec", "yuv420", "--gray"], "images of 3 channels of uint8"),
        (["--codec", "dct", "--keep-depth"], "channels of uint8"),
        (["--compression", "zstd"], "compression belongs to fields of codec 'dct'"),
    ],
)
def test_options_that_contradict_each_other(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main(["images", str(photos), str(tmp_path / "packed"), *arguments])

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("codec", ["dct", "yuv420"])
def test_a_jpeg_of_this_size_keeps_its_own_planes(
    photos: Path, tmp_path: Path, codec: str
) -> None:
    """Chroma is not resampled: it is the file's, to the bit."""
    packdata.pack_images(photos, tmp_path / "packed", sizes=["192x288"], fit="cover", codec=codec)
    reader, encoder = (
        PackedReader(tmp_path / "packed"),
        codec_for(image_field(tmp_path / "packed")),
    )

    for i, file in enumerate(sorted(photos.iterdir())):
        planes = jpeg_planes(file.read_bytes())
        assert planes is not None
        assert reader.record(i, "image").tobytes() == encoder.encode_planes(planes)  # type: ignore[attr-defined]


def test_planes_of_a_jpeg_are_those_it_was_made_of() -> None:
    rng = np.random.default_rng(0)
    made = [
        np.asarray(cv2.GaussianBlur(rng.integers(0, 256, size, np.uint8), (0, 0), 2), np.uint8)
        for size in ((31, 45), (16, 23), (16, 23))
    ]

    found = jpeg_planes(simplejpeg.encode_jpeg_yuv_planes(*made, 100))

    assert found is not None
    for plane, wanted in zip(found, made, strict=True):
        assert np.abs(plane.astype(int) - wanted).max() <= 2


@pytest.mark.parametrize("subsampling", ["444", "422", "Gray"])
def test_other_jpegs_have_no_such_planes(subsampling: str) -> None:
    image = np.zeros((16, 16, 1 if subsampling == "Gray" else 3), np.uint8)
    space = "GRAY" if subsampling == "Gray" else "RGB"

    assert jpeg_planes(simplejpeg.encode_jpeg(image, 90, space, subsampling)) is None


def test_a_jpeg_whose_sampling_has_no_name_is_packed(tmp_path: Path) -> None:
    file, source = of_441(progressive=True), tmp_path / "photos"
    source.mkdir()
    (source / "a.jpg").write_bytes(file)
    wanted = simplejpeg.decode_jpeg(file).transpose(2, 0, 1)

    assert jpeg_planes(file) is None
    for codec in ("jpeg", "yuv420"):
        options = "--codec", codec, "--size", "64x32", "--fit", "stretch"
        assert main(["images", str(source), str(tmp_path / codec), *options]) == 0
        image = ShardDataset(tmp_path / codec)[0].image.numpy()
        assert np.abs(image.astype(int) - wanted).mean() < 16  # chroma is laid out otherwise


def test_commands_know_what_it_is(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Info names the options, verify decodes, stats has the pixels, preview draws them."""
    assert main(["info", str(packed)]) == 0
    assert ", dct" in capsys.readouterr().out
    assert main(["verify", str(packed), "--decode"]) == 0
    capsys.readouterr()
    assert main(["stats", str(packed), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = np.stack(pixels(packed)).reshape(-1, 3)
    assert np.allclose(found["mean"], wanted.mean(0))
    assert np.allclose(found["std"], wanted.std(0))
    assert main(["preview", str(packed), "--out", str(tmp_path / "sheet.png")]) == 0


def test_verify_names_a_record_that_cannot_be_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that was damaged before it was packed, so that the shard's own checksums are right."""
    field = Image(size=(16, 16), codec="dct")
    record = codec_for(field).encode(np.zeros((16, 16, 3), np.uint8))
    bad = record[:-1] + bytes([record[-1] ^ 1])
    pack(tmp_path / "a", {"image": field}, [{"image": record}, {"image": bad}])

    assert main(["verify", str(tmp_path / "a"), "--decode"]) == 1
    found = capsys.readouterr().out
    assert "row 1" in found
    assert "a check of its bytes does not match" in found


def test_copy_keeps_the_records_of_a_codec_and_encodes_them_no_second_time(
    packed: Path, tmp_path: Path
) -> None:
    assert main(["copy", str(packed), str(tmp_path / "same"), "--codec", "dct"]) == 0
    quality = ["--codec", "dct", "--quality", "40"]
    assert main(["copy", str(packed), str(tmp_path / "a"), *quality]) == 1

    assert read_manifest(tmp_path / "same").fingerprint == read_manifest(packed).fingerprint
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("codec", ["jpeg", "raw", "yuv420"])
def test_copy_turns_it_into_others(packed: Path, tmp_path: Path, codec: str) -> None:
    assert main(["copy", str(packed), str(tmp_path / "a"), "--codec", codec]) == 0
    assert main(["copy", str(tmp_path / "a"), str(tmp_path / "b"), "--codec", "dct"]) == 0

    assert image_field(tmp_path / "a") == Image(size=(64, 96), codec=codec)
    assert image_field(tmp_path / "b") == image_field(packed)
    differences = np.stack(pixels(tmp_path / "b")).astype(int) - np.stack(pixels(packed))
    assert np.abs(differences).mean() < 2


def test_copy_refuses_pictures_of_many_sizes(photos: Path, tmp_path: Path) -> None:
    packdata.pack_images(photos, tmp_path / "files")

    assert main(["copy", str(tmp_path / "files"), str(tmp_path / "a"), "--codec", "dct"]) == 1


def test_the_writer_takes_files_and_arrays(photos: Path, tmp_path: Path) -> None:
    """A file becomes a record of the field's codec, planes and all; others are refused with its size."""
    field = Image(size=(192, 288), codec="dct")
    file = sorted(photos.iterdir())[0]
    array = simplejpeg.decode_jpeg(file.read_bytes())

    packdata.pack([{"image": file}, {"image": array}], tmp_path / "a", {"image": field})

    first, second = pixels(tmp_path / "a")
    assert np.abs(first.astype(int) - second).mean() < 1.5
    assert isinstance(codec_for(field), DctCodec)
    with pytest.raises(CodecError):
        packdata.pack([{"image": array[:100]}], tmp_path / "b", {"image": field})
    with pytest.raises((SchemaError, CodecError)):
        packdata.pack([{"image": array}], tmp_path / "c", {"image": Image(codec="dct")})
