"""``Writer`` and ``pack``: any fields from Python, and errors that name the sample."""

import io
import shutil
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import CodecError, LoadersError, PackError, SchemaError, SourceError
from loaders.schema import Array, Boxes, Bytes, Image, Json, Label, Mask, MultiLabel, Text
from packdata import Writer, pack
from packdata.packing.progress import Quiet
from packdata.packing.target import PACKING_NAME
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.refusals import At

RNG = np.random.default_rng(0)
PIXELS = cv2.GaussianBlur(RNG.integers(0, 256, (30, 40, 3), dtype=np.uint8), (9, 9), 3)


@pytest.fixture(autouse=True)
def _no_thread_stays_and_opencv_is_as_before() -> Any:
    num_threads = cv2.getNumThreads()
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("packdata")]
    assert cv2.getNumThreads() == num_threads


def encoded(pixels: Any = PIXELS, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


# ------------------------------------------------------------------------------ what goes in


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_every_kind_of_field_comes_back(tmp_path: Path, format: Any) -> None:
    fields = {
        "image": Image(codec="png"),
        "depth": Image(codec="raw", channels=1, dtype="uint16", size=(5, 6)),
        "thumb": Image(codec="raw"),
        "mask": Mask(),
        "features": Array(dtype="float32", dims=(None, 3)),
        "label": Label(classes=("cat", "dog")),
        "tags": MultiLabel(classes=("red", "round", "big")),
        "boxes": Boxes(),
        "caption": Text(),
        "meta": Json(),
        "blob": Bytes(),
    }
    depth = RNG.integers(0, 65536, (5, 6, 1), dtype=np.uint16)
    values: list[dict[str, Any]] = [
        {
            "image": PIXELS,
            "depth": depth,
            "thumb": PIXELS[:4, : 5 + i],
            "mask": np.full((30, 40), i),
            "features": np.ones((i, 3)) * i,
            "label": ("cat", 1, np.int32(0))[i],
            "tags": (["big", "red"], [0, 1, 0], set())[i],
            "boxes": ([[1, 2, 3, 4]], np.zeros((0, 4)), [])[i],
            "caption": f"ein schöner Tag {i}",
            "meta": {"n": i, "list": [1, None]},
            "blob": b"\0" * i,
            "key": f"sample/{i}",
        }
        for i in range(3)
    ]

    with Writer(tmp_path, fields, format=format) as writer:
        for value in values:
            writer.add(**value)

    reader = PackedReader(tmp_path)
    samples = [reader.sample(i) for i in range(3)]
    assert len(writer) == len(reader) == 3
    assert list(reader.schema.fields) == [*fields, "key"]
    assert reader.schema.defaults == tuple(fields)
    assert [int(s["label"]) for s in samples] == [0, 1, 0]
    assert [s["tags"].tolist() for s in samples] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert [s["boxes"].shape for s in samples] == [(1, 4), (0, 4), (0, 4)]
    assert [s["features"].shape for s in samples] == [(0, 3), (1, 3), (2, 3)]
    for i, (got, want) in enumerate(zip(samples, values, strict=True)):
        for name in ("image", "depth", "thumb"):
            assert np.array_equal(got[name], want[name]), name
        assert np.array_equal(got["mask"], np.full((30, 40), i))
        for name in ("caption", "meta", "blob", "key"):
            assert got[name] == want[name]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("given", ["str", "path", "bytes", "memoryview"])
def test_files_are_kept_verbatim(tmp_path: Path, kind: str, given: str) -> None:
    data, path = encoded(kind=kind), tmp_path / "ein Bild ä.bin"
    path.write_bytes(data)
    value = {"str": str(path), "path": path, "bytes": data, "memoryview": memoryview(data)}[given]

    with Writer(tmp_path / "out", {"image": Image()}) as writer:
        writer.add(image=value)

    assert bytes(PackedReader(tmp_path / "out").record(0, "image")) == data


def test_files_that_would_not_serve_right_are_encoded_anew(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    gif, turned = encoded(kind="GIF"), encoded(exif=exif, quality=100, subsampling=0)

    with Writer(tmp_path, {"image": Image(codec="png")}) as writer:
        writer.add(image=gif)
        writer.add(image=turned)

    reader = PackedReader(tmp_path)
    assert all(bytes(reader.record(i, "image"))[:4] == b"\x89PNG" for i in range(2))
    assert reader.sample(1)["image"].shape == (40, 30, 3)
    upright = np.rot90(PIXELS, -1).astype(int)
    assert np.abs(reader.sample(1)["image"].astype(int) - upright).mean() < 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_files_of_four_channels_are_turned_upright(tmp_path: Path, kind: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    pixels = PIL.Image.fromarray(PIXELS).convert("RGB" if kind == "JPEG" else "RGBA")
    files = [io.BytesIO(), io.BytesIO()]
    pixels.save(files[0], kind, exif=exif)
    pixels.save(files[1], kind)

    pack(
        [{"image": f.getvalue()} for f in files],
        tmp_path,
        {"image": Image(channels=4, codec="png")},
    )

    reader = PackedReader(tmp_path)
    turned, plain = (reader.sample(i)["image"] for i in range(2))
    assert plain.shape == (30, 40, 4)
    assert np.array_equal(turned, np.rot90(plain, -1))
    assert bytes(reader.record(1, "image")) == files[1].getvalue()


def test_a_raw_field_of_four_channels_takes_files_of_16_bits(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 65_536, (3, 4, 4), dtype=np.uint16)
    data = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA))[1].tobytes()

    pack([{"image": data}], tmp_path, {"image": Image(channels=4, dtype="uint16", codec="raw")})

    assert np.array_equal(PackedReader(tmp_path).sample(0)["image"], pixels)


def test_files_of_16_bits_are_stored_as_such_or_refused(tmp_path: Path) -> None:
    data = encoded(np.full((5, 6), 4000, np.uint16), "PNG")

    pack([{"image": data}], tmp_path / "out", {"image": Image(dtype="uint16", codec="png")})

    assert PackedReader(tmp_path / "out").sample(0)["image"].tolist() == [[[4000] * 3] * 6] * 5
    with pytest.raises(CodecError, match="uint16"):
        pack([{"image": data}], tmp_path / "no", {"image": Image(codec="png")})


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(Image(dtype="uint32", codec="raw"), id="uint32"),
        pytest.param(Image(dtype="uint64", codec="raw"), id="uint64"),
        pytest.param(Image(channels=2, codec="raw"), id="two channels"),
    ],
)
def test_files_are_refused_where_no_file_has_such_pixels(tmp_path: Path, field: Image) -> None:
    """They are not stretched or cut to fit: arrays say what is meant."""
    array = np.ones((3, 4, field.channels), field.dtype)

    with Writer(tmp_path, {"image": field}) as writer:
        for file in (encoded(), tmp_path / "a.png"):
            with pytest.raises(CodecError):
                writer.add(image=file)
        writer.add(image=array)

    assert np.array_equal(PackedReader(tmp_path).sample(0)["image"], array)


def test_an_empty_list_is_an_array_without_rows(tmp_path: Path) -> None:
    fields = {"points": Array(dims=(None, 2)), "plane": Array(dims=(None, None))}

    with Writer(tmp_path, fields) as writer:
        writer.add(points=[], plane=[[1]])
        with pytest.raises(CodecError):  # of how many columns?
            writer.add(points=[], plane=[])

    assert PackedReader(tmp_path).sample(0)["points"].shape == (0, 2)


@pytest.mark.parametrize("dims", [(None,), (2,)], ids=["any number", "two"])
@pytest.mark.parametrize("numbers", [[0, 2], [-1, 1]], ids=["beyond", "none"])
def test_numbers_of_no_class_are_refused_in_an_array_too(
    tmp_path: Path, dims: Any, numbers: list[int]
) -> None:
    """As those of boxes: they would be a class that the model lacks."""
    fields = {"kinds": Array(dtype="int64", dims=dims, classes=("cat", "dog"))}

    with Writer(tmp_path / "a", fields) as writer:
        writer.add(kinds=[1, 0])
        with pytest.raises(CodecError):
            writer.add(kinds=numbers)
    with pytest.raises(CodecError, match="sample 1"):
        pack([{"kinds": [1, 0]}, {"kinds": numbers}], tmp_path / "b", fields)


def test_files_become_pixels_of_a_raw_field(tmp_path: Path) -> None:
    fields = {"image": Image(codec="raw", size=(30, 40)), "mask": Mask(codec="raw", dtype="int32")}
    mask = np.arange(30 * 40, dtype=np.uint16).reshape(30, 40)

    with Writer(tmp_path, fields) as writer:
        writer.add(image=encoded(kind="PNG"), mask=encoded(mask, "PNG"))

    sample = PackedReader(tmp_path).sample(0)
    assert np.array_equal(sample["image"], PIXELS)
    assert np.array_equal(sample["mask"], mask)
    assert sample["mask"].dtype == np.int32


def test_masks_with_a_palette_keep_their_numbers(tmp_path: Path) -> None:
    numbers = RNG.integers(0, 4, (30, 40), dtype=np.uint8)
    picture = PIL.Image.new("P", (40, 30))
    picture.frombytes(numbers.tobytes())
    picture.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9])
    file = io.BytesIO()
    picture.save(file, "PNG")

    with Writer(tmp_path, {"mask": Mask()}) as writer:
        writer.add(mask=file.getvalue())
        writer.add(mask=encoded(numbers, "PNG"))

    reader = PackedReader(tmp_path)
    assert np.array_equal(reader.sample(0)["mask"], numbers)
    assert bytes(reader.record(1, "mask")) == encoded(numbers, "PNG")


def test_arrays_may_change_once_they_are_added(tmp_path: Path) -> None:
    image, features = PIXELS.copy(), np.zeros(3, np.float32)
    fields = {"image": Image(codec="png"), "features": Array(dims=(3,))}

    with Writer(tmp_path, fields, workers=1) as writer:
        for i in range(20):
            image[:] = features[:] = i
            writer.add(image=image, features=features)

    reader = PackedReader(tmp_path)
    for i in range(20):
        assert (reader.sample(i)["image"] == i).all()
        assert (reader.sample(i)["features"] == i).all()


def test_quality_reaches_the_encoder(tmp_path: Path) -> None:
    sizes = []
    for quality in (30, 95):
        with Writer(tmp_path / f"{quality}", {"image": Image()}, quality=quality) as writer:
            writer.add(image=PIXELS)
        sizes.append(len(PackedReader(tmp_path / f"{quality}").record(0, "image")))

    assert sizes[0] < 0.8 * sizes[1]


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        options: Any = {"workers": workers, "shard_bytes": 5000}
        with Writer(tmp_path / f"{workers}", {"image": Image()}, **options) as writer:
            for i in range(40):
                writer.add(image=PIXELS[: 10 + i % 20], key=f"{i}")

    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")
    assert len(read_manifest(tmp_path / "1").shards) > 3


# ------------------------------------------------------------------------------ what is refused

FIELDS = {
    "image": Image(),
    "mask": Mask(),
    "label": Label(classes=("cat", "dog")),
    "tags": MultiLabel(classes=("red", "round")),
    "boxes": Boxes(),
    "vector": Array(dims=(3,)),
    "caption": Text(),
}
GOOD: dict[str, Any] = {
    "image": PIXELS,
    "mask": np.zeros((30, 40), np.uint8),
    "label": "cat",
    "tags": [],
    "boxes": [],
    "vector": [1, 2, 3],
    "caption": "",
    "key": "k",
}


WRONG: list[tuple[str, Any]] = [
    ("image", PIXELS.astype(np.float32)),
    ("image", PIXELS.transpose(2, 0, 1)),
    ("image", PIXELS[:0]),
    *(("image", value) for value in (7, None, [[1], [1, 2]])),
    ("mask", np.full((30, 40), 256)),
    ("mask", np.zeros((30, 41), np.uint8)),  # another size than the image
    *(("mask", value) for value in (None, [[1], [1, 2]])),
    *(("label", value) for value in ("cow", 2, -1, 0.0, None, [[1], [1, 2]])),
    *(("tags", value) for value in (["blue"], "red", [0, 1, 0], [0, 2], [[1], [1, 2]], None)),
    *(("boxes", value) for value in ([1, 2, 3, 4], None, 5, "abc", [[1, 2, 3, 4], [1, 2]])),
    ("boxes", [[10, 10, 5, 20]]),  # x, y, width, height, as COCO has them
    ("boxes", [[0, 0, float("nan"), 1]]),
    ("boxes", [[0, 0, float("inf"), 1]]),
    *(("vector", value) for value in ([1, 2], "abc", None, [1, "a", None])),
    *(("caption", value) for value in (5, "\ud800")),
    ("key", 5),
]


def test_a_wrong_value_is_an_error_at_once_and_names_sample_key_and_field(tmp_path: Path) -> None:
    with Writer(tmp_path, FIELDS) as writer:
        writer.add(**GOOD)
        for field, value in WRONG:
            with pytest.raises(CodecError) as caught:
                writer.add(**(GOOD | {"key": "k2", field: value}))
            assert field in str(caught.value)
            assert str(caught.value).startswith("sample 1 (key ")
        writer.add(**(GOOD | {"key": "k3"}))  # the wrong ones are left out, no more

    assert [PackedReader(tmp_path).sample(i)["key"] for i in range(2)] == ["k", "k3"]


def test_missing_and_unknown_fields_are_errors_at_once(tmp_path: Path) -> None:
    with Writer(tmp_path, {"a": Text(), "b": Text()}) as writer:
        with pytest.raises(SchemaError):
            writer.add(a="", c="")
        writer.add(a="", b="")
        with pytest.raises(SchemaError):
            writer.add(a="", b="", key="x")


def test_keys_are_given_to_all_or_none_and_never_twice(tmp_path: Path) -> None:
    with Writer(tmp_path, {"a": Text()}) as writer:
        writer.add(a="", key="x")
        with pytest.raises(SchemaError):
            writer.add(a="")
        with pytest.raises(CodecError):
            writer.add(a="", key="x")
        writer.add(a="", key="y")

    assert PackedReader(tmp_path).schema.defaults == ("a",)


def add_all(writer: Writer, samples: Iterable[dict[str, Any]]) -> None:
    for sample in samples:
        writer.add(**sample)


def test_a_bad_file_surfaces_with_its_sample_and_ends_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(encoded()[:-200])

    writer = Writer(tmp_path / "out", {"image": Image()})
    writer.add(image=PIXELS, key="a")

    samples = ({"image": PIXELS if i else path, "key": f"{i}" if i else "b"} for i in range(9999))
    with pytest.raises(SourceError, check=At("cut.jpg")):
        add_all(writer, samples)

    with pytest.raises(PackError, check=At("out")):
        writer.add(image=PIXELS, key="z")
    assert len(writer) < 9_000
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "value",
    ["nowhere.jpg", b"", b"no picture at all", encoded(PIXELS[:20])],
    ids=["missing", "empty", "none", "of another size"],
)
def test_what_cannot_be_decoded_surfaces_at_the_end_at_latest(tmp_path: Path, value: Any) -> None:
    with pytest.raises((CodecError, SourceError)) as caught:
        pack([{"image": value}], tmp_path / "out", {"image": Image(size=(30, 40))})

    assert "sample 0, field 'image'" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_mask_file_must_have_the_size_of_the_image_file(tmp_path: Path) -> None:
    fields = {"image": Image(), "mask": Mask()}
    wrong = encoded(np.zeros((30, 39), np.uint8), "PNG")

    with (
        pytest.raises(CodecError),
        Writer(tmp_path / "out", fields) as writer,
    ):
        writer.add(image=encoded(), mask=wrong)


def test_two_images_may_differ_in_size(tmp_path: Path) -> None:
    fields = {"left": Image(), "right": Image(), "mask": Mask()}

    with Writer(tmp_path, fields) as writer:
        writer.add(left=PIXELS, right=PIXELS[:9], mask=np.zeros((9, 40), np.uint8))

    assert PackedReader(tmp_path).sample(0)["right"].shape == (9, 40, 3)


def test_samples_that_cannot_be_packed_are_skipped_on_request(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"image": PIXELS, "key": "a"},
        {"image": b"junk", "key": "b"},
        {"image": PIXELS.astype(float), "key": "c"},
        {"image": PIXELS, "key": "a"},
        {"image": PIXELS, "key": "d"},
    ]

    summary = pack(samples, tmp_path, {"image": Image()}, on_error="skip")

    assert summary.samples == 2
    names = [item for item, _ in summary.rejected]
    assert names == ["sample 1 (key 'b')", "sample 2 (key 'c')", "sample 3 (key 'a')"]
    assert (tmp_path / "rejected.jsonl").read_text().count("\n") == 3


def test_samples_that_are_all_rejected_tell_why_the_first_was(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"image": PIXELS, "label": "cow"},
        {"image": b"junk", "label": "cat"},
    ]
    fields = {"image": Image(), "label": Label(classes=("cat", "dog"))}

    for images, first in ((samples, "field 'label': class 'cow'"), (samples[1:], "field 'image'")):
        with pytest.raises(PackError, check=At("out")) as caught:
            pack(images, tmp_path / "out", fields, on_error="skip")
        assert first in str(caught.value)

    assert not (tmp_path / "out").exists()


def test_what_was_rejected_counts_once_when_all_is_published(tmp_path: Path) -> None:
    writer = Writer(tmp_path, {"image": Image()}, on_error="skip", shard_bytes=1)
    for image in (PIXELS, b"junk"):  # the second one is behind the last shard
        writer.add(image=image)

    summary = writer.close()

    assert len(summary.rejected) == writer.num_rejected == 1


def test_a_field_may_be_called_self(tmp_path: Path) -> None:
    pack([{"self": "x"}], tmp_path, {"self": Text()})

    assert PackedReader(tmp_path).sample(0) == {"self": "x"}


# ------------------------------------------------------------------------------ how it ends


def write_and_fail(writer: Writer, num_samples: int) -> None:
    with writer:
        for _ in range(num_samples):
            writer.add(image=PIXELS)
        raise KeyError("mine")


def test_an_exception_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out", {"image": Image()}, shard_bytes=1000)

    with pytest.raises(KeyError):
        write_and_fail(writer, 50)

    assert list(tmp_path.iterdir()) == []
    assert writer.summary is None


def test_an_exception_while_overwriting_leaves_the_old_dataset(tmp_path: Path) -> None:
    fields = {"image": Image()}
    pack([{"image": PIXELS}], tmp_path, fields)
    before = contents(tmp_path)

    with pytest.raises(PackError):
        Writer(tmp_path, fields)
    with pytest.raises(KeyError):
        write_and_fail(Writer(tmp_path, fields, overwrite=True), 3)
    assert contents(tmp_path) == before

    pack([{"image": PIXELS}] * 2, tmp_path, fields, overwrite=True)
    assert len(PackedReader(tmp_path)) == 2


def add_until_it_fails(writer: Writer) -> None:
    """As a loop that goes on after errors; it ends when the writer has."""
    with writer:
        for i in range(9_999):
            try:
                writer.add(image=b"junk" if i == 2 else PIXELS)
            except CodecError:
                break


def close_in_vain(writer: Writer) -> None:
    with writer, suppress(CodecError):  # of either, as fast as the thread is
        writer.add(image=b"junk")
        writer.close()


@pytest.mark.parametrize("use", [add_until_it_fails, close_in_vain])
def test_leaving_after_an_error_that_was_caught_is_an_error(tmp_path: Path, use: Any) -> None:
    """Nothing is published, and that must not go unnoticed."""
    writer = Writer(tmp_path / "out", {"image": Image()}, workers=1)

    with pytest.raises(PackError, check=At("out")) as caught:
        use(writer)

    assert isinstance(caught.value.__cause__, CodecError)
    assert writer.summary is None
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_cannot_be_published_ends_the_writer(tmp_path: Path) -> None:
    fields, out = {"a": Bytes()}, tmp_path / "out"
    pack([{"a": b"other"}], tmp_path / "other", fields)
    writer = Writer(out, fields)
    writer.add(a=b"x")
    shutil.copy(tmp_path / "other/manifest.json", out)

    for use in (writer.close, lambda: writer.add(a=b"y"), writer.close):
        with pytest.raises(PackError, check=At("out")):
            use()

    (out / "manifest.json").unlink()
    assert pack([{"a": b"z"}], out, fields).samples == 1  # nothing is locked


@pytest.mark.parametrize("value", [PIXELS, b"junk"])
def test_leaving_after_abort_is_silent(tmp_path: Path, value: Any) -> None:
    with Writer(tmp_path / "out", {"image": Image()}) as writer:
        with suppress(CodecError):
            for _ in range(3):
                writer.add(image=value)
            if value is not PIXELS:
                writer.close()
        writer.abort()

    assert writer.summary is None
    assert not (tmp_path / "out").exists()


def test_no_sample_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(PackError, check=At("out")),
        Writer(tmp_path / "out", {"a": Text()}),
    ):
        pass

    assert not (tmp_path / "out").exists()


def test_close_may_be_called_twice_and_adding_after_it_is_an_error(tmp_path: Path) -> None:
    writer = Writer(tmp_path, {"a": Text()})
    writer.add(a="x")

    assert writer.close() is writer.close() is writer.summary
    writer.abort()
    with pytest.raises(PackError):
        writer.add(a="y")

    assert len(PackedReader(tmp_path)) == 1


def test_an_aborted_writer_stays_closed(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out", {"a": Text()})
    writer.add(a="x")
    writer.abort()
    writer.abort()

    with pytest.raises(PackError, check=At("out")):
        writer.close()
    assert not (tmp_path / "out").exists()


def test_what_a_killed_writer_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "from packdata import Writer; from loaders.schema import Bytes\n"
        "w = Writer(sys.argv[1], {'a': Bytes()}, shard_bytes=1000)\n"
        "for i in range(60): w.add(a=bytes(500))\n"
        "while not list(Path(sys.argv[1]).rglob('shard-*')): w.add(a=bytes(500)); time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -9
    assert (tmp_path / PACKING_NAME).exists()

    pack([{"a": b"new"}], tmp_path, {"a": Bytes()})

    (shard,) = read_manifest(tmp_path).shards
    assert sorted(contents(tmp_path)) == ["manifest.json", shard.file]


def test_options_out_of_range_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"quality": 0},
        {"workers": 0},
        {"shard_bytes": 0},
        {"format": "zip"},
        {"on_error": "x"},
        {"provenance": {"from": tmp_path}},
        {"provenance": {"lr": float("nan")}},
        {"provenance": ["a"]},
    ]
    for option in options:
        with pytest.raises(ValueError):
            Writer(tmp_path / "out", {"a": Text()}, **option)
    with pytest.raises(SchemaError):
        Writer(tmp_path / "out", {"a": Text()}, defaults=["b"])

    assert not (tmp_path / "out").exists()


def test_what_becomes_of_the_provenance_later_is_not_written(tmp_path: Path) -> None:
    provenance: dict[str, Any] = {"by": ["me"]}

    with Writer(tmp_path, {"a": Text()}, provenance=provenance) as writer:
        provenance["by"].append(object())
        writer.add(a="x")

    assert read_manifest(tmp_path).provenance["by"] == ["me"]


# ------------------------------------------------------------------------------ pack()


class Told(Quiet):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, total: int | None, done: int) -> None:
        self.calls.append((total, done))

    def advance(self, rejected: int, samples: int = 1) -> None:
        self.calls.append(rejected)

    def close(self) -> None:
        self.calls.append("closed")


def test_pack_takes_sequences_and_streams_and_tells_how_far_it_is(tmp_path: Path) -> None:
    samples = [{"a": f"{i}"} for i in range(3)]
    told = Told()

    summary = pack(samples, tmp_path / "a", {"a": Text()}, progress=told, provenance={"by": "me"})
    pack(iter(samples), tmp_path / "b", {"a": Text()}, progress=Told())

    assert told.calls == [(3, 0), 0, 0, 0, "closed"]
    assert summary.samples == 3
    assert read_manifest(tmp_path / "a").provenance["by"] == "me"
    shards = [read_manifest(tmp_path / name).shards for name in ("a", "b")]
    assert shards[0] == shards[1]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"a": "x"}, "'a'"),
        ([{"a": "x"}, ("a", 1)], "sample 1"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_what_is_no_sample_is_told_with_its_number(
    tmp_path: Path, source: Any, named: str, on_error: Any
) -> None:
    with pytest.raises(TypeError, match=named):
        pack(source, tmp_path / "out", {"a": Text()}, on_error=on_error)

    assert not (tmp_path / "out").exists()


def test_an_option_that_pack_does_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unknown option 'worker'"):
        pack([{"a": "x"}], tmp_path / "out", {"a": Text()}, worker=2)  # type: ignore[call-arg]


def test_rows_of_a_database_are_samples(tmp_path: Path) -> None:
    """They have names, though they are no ``Mapping``; rows of pandas are alike."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        pack(connection.execute("select 'x' as a"), tmp_path, {"a": Text()})

    assert PackedReader(tmp_path).sample(0) == {"a": "x"}


def test_an_error_of_the_stream_publishes_nothing(tmp_path: Path) -> None:
    def stream() -> Any:
        yield {"a": "x"}
        raise ConnectionError

    with pytest.raises(ConnectionError):
        pack(stream(), tmp_path / "out", {"a": Text()})

    assert not (tmp_path / "out").exists()


def test_masked_values_are_refused(tmp_path: Path) -> None:
    values = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])

    with pytest.raises(LoadersError) as caught:
        pack({"x": values}, tmp_path / "p", {"x": Array(dtype="float64")})

    assert "masked" in str(caught.value)
    pack({"x": values.filled(-1)}, tmp_path / "q", {"x": Array(dtype="float64")})
    assert PackedReader(tmp_path / "q").column("x").tolist() == [0, -1, 2]


@pytest.mark.slow
@pytest.mark.memory
def test_arrays_that_wait_to_be_encoded_take_bounded_memory(tmp_path: Path) -> None:
    """Whatever little their records take: 2 GB are added faster than one thread encodes them."""
    picture = np.zeros((1024, 2048, 3), np.uint8)
    tracemalloc.start()
    try:
        with Writer(tmp_path / "a", {"image": Image(codec="jpeg")}, workers=1) as writer:
            for _ in range(340):
                writer.add(image=picture.copy())
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 450 << 20  # some 300 MB


def test_an_error_that_is_none_of_ours_names_sample_and_field(tmp_path: Path) -> None:
    class Odd:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise KeyError("odd")

    with (
        pytest.raises(KeyError) as caught,
        Writer(tmp_path, {"x": Array(dtype="float32")}) as writer,
    ):
        writer.add(x=Odd(), key="a")

    assert "sample 0 (key 'a'), field 'x'" in "".join(caught.value.__notes__)
