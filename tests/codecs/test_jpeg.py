"""Parts of JPEG files: the pixels of a crop are those of the whole, whatever the file."""

import io
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.codecs.heads import HEADS, PictureHead, picture_head, picture_heads, sizes_of
from loaders.codecs.jpeg import cut_out, parts_of, restart_interval, with_index
from loaders.codecs.picture import PictureCodec, encode_jpeg
from loaders.errors import CodecError
from loaders.schema import Image
from tests.codecs.test_codecs import SUBSAMPLINGS, Pixels, jpeg, photo, pil_file, record

UInt8Array = npt.NDArray[np.uint8]
REDUCTIONS = [1, 2, 4, 8]


class Part(NamedTuple):
    """What is decoded of a file: part of it, or all."""

    record: UInt8Array
    height: int
    width: int
    top: int
    left: int
    ends_early: bool


def part(
    data: UInt8Array, *box: int, num_threads: int = 1, head: PictureHead | None = None
) -> Part:
    """Return of one picture what readers take, of a box."""
    head = head or picture_head(data)
    (wanted,) = parts_of(np.array([head], HEADS), np.array([box]), num_threads).tolist()
    file, (top, left, height, width), ends_early = cut_out(data, head, wanted)
    return Part(file, height, width, top, left, ends_early)


def decode(found: Part, codec: PictureCodec, reduction: int = 1) -> Pixels:
    """As readers do: into memory of the size that the header says."""
    size = found.height, found.width
    out = np.empty(found.height * found.width * codec.channels, np.uint8)
    return codec.decode_jpeg(found.record, reduction, *size, out, found.ends_early)


@lru_cache(maxsize=4)
def whole_picture(data: bytes, reduction: int, channels: int) -> UInt8Array:
    return PictureCodec(Image(channels=channels)).decode(np.frombuffer(data, np.uint8), reduction)


def assert_same(
    data: UInt8Array, box: tuple[int, int, int, int], reduction: int = 1, channels: int = 3
) -> Part:
    """Compare the pixels of a box with those of the whole picture; return the part."""
    codec = PictureCodec(Image(channels=channels))
    whole = whole_picture(data.tobytes(), reduction, channels)
    found = part(data, *box)
    pixels = decode(found, codec, reduction)
    top, left = found.top // reduction, found.left // reduction
    assert (found.top, found.left) == (top * reduction, left * reduction)
    y, x, height, width = box
    rows = slice(max(0, y // reduction), max(0, -(-(y + height) // reduction)))
    columns = slice(max(0, x // reduction), max(0, -(-(x + width) // reduction)))
    inner = whole[rows, columns]
    moved = pixels[max(0, rows.start - top) :, max(0, columns.start - left) :]
    assert np.array_equal(moved[: inner.shape[0], : inner.shape[1]], inner)
    return found


# -- files without restart markers: they end below the crop ------------------------------------


def ends_early(data: UInt8Array, rows: int, reduction: int = 1, channels: int = 3) -> bool:
    width = picture_head(data).width
    return assert_same(data, (0, 0, rows, width), reduction, channels).ends_early


@pytest.mark.parametrize(
    ("subsampling", "reduction", "channels"),
    [
        (subsampling, reduction, (3, 1, 4)[(i + k) % 3])  # each of two with each of the third
        for i, subsampling in enumerate(SUBSAMPLINGS)
        for k, reduction in enumerate(REDUCTIONS)
    ],
)
def test_the_first_rows_are_those_of_the_whole(
    subsampling: str, reduction: int, channels: int
) -> None:
    """Chroma is interpolated between rows: the last rows of a cut picture may not be used."""
    data = jpeg(photo(97, 41), subsampling)

    cut = {
        rows: ends_early(data, rows, reduction, channels) for rows in (*range(0, 97, 3), 70, 97)
    }

    assert cut[0]
    assert cut[70]
    assert not cut[97]


@given(
    height=st.integers(1, 200),
    width=st.integers(1, 70),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    quality=st.integers(1, 100),
    reduction=st.sampled_from(REDUCTIONS),
    rows=st.integers(0, 300),
    seed=st.integers(0, 9),
)
def test_the_first_rows_of_any_picture(
    height: int, width: int, subsampling: str, quality: int, reduction: int, rows: int, seed: int
) -> None:
    data = jpeg(photo(height, width, seed=seed), subsampling, quality)

    part = assert_same(data, (0, 0, rows, width), reduction)

    assert part.ends_early == (part.height < height)


def test_ends_of_many_pictures_are_those_of_their_parts() -> None:
    files = [jpeg(photo(60 + seed, 80, seed=seed)) for seed in range(40)]
    rng = np.random.default_rng(0)
    crops = np.column_stack([rng.integers(-9, 70, (40, 2)), rng.integers(1, 90, (40, 2))])

    ends = parts_of(picture_heads(files), crops)[:, 2]

    parts = [part(file, *box) for file, box in zip(files, crops.tolist(), strict=True)]
    assert ends.tolist() == [found.height if found.ends_early else 0 for found in parts]
    assert 10 < np.count_nonzero(ends) < 40


@pytest.mark.parametrize(
    "options",
    [
        {"restart_marker_blocks": 3},
        {"optimize": True},
        {"subsampling": 0},
        {"exif": bytes(3000)},
        {"comment": b"x" * 2000},
    ],
    ids=str,
)
def test_the_first_rows_of_files_of_other_encoders(options: dict[str, Any]) -> None:
    options = options | ({"exif": b"Exif\0\0" + options["exif"]} if "exif" in options else {})
    data = pil_file(photo(128, 64), "JPEG", quality=90, **options)

    for reduction in REDUCTIONS:
        assert [ends_early(data, rows, reduction) for rows in (1, 50, 99)] == [True] * 3


def segments(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Split a JPEG into its segments and the data of its only scan."""
    found: list[tuple[int, bytes]] = []
    at = 2
    while not found or found[-1][0] != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : at + 2 + size]))
        at += 2 + size
    return found, data[at:-2]


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def scan_by_scan(image: Pixels, interval: int = 0) -> UInt8Array:
    """Make a sequential JPEG whose components come one after the other."""
    planes = [image[:, :, c : c + 1].copy() for c in range(3)]
    options: dict[str, Any] = {"restart_marker_blocks": interval} if interval else {}
    parts = [segments(pil_file(plane, "JPEG", **options).tobytes()) for plane in planes]
    tables = [s for s in parts[0][0] if s[0] not in (0xC0, 0xDA)]
    frame = dict(parts[0][0])[0xC0][:5] + b"\3" + b"".join(bytes([c, 0x11, 0]) for c in (1, 2, 3))
    data = b"\xff\xd8" + b"".join(segment(*s) for s in tables) + segment(0xC0, frame)
    for c, (_, scan) in enumerate(parts, 1):
        data += segment(0xDA, bytes([1, c, 0, 0, 63, 0])) + scan
    return record(data + b"\xff\xd9")


@pytest.mark.parametrize("interval", [0, 2])
def test_a_file_of_several_scans(interval: int) -> None:
    data = scan_by_scan(photo(160, 128), interval)

    for reduction in REDUCTIONS:
        for rows in range(0, 161, 13):
            assert_same(data, (rows // 2, 3, rows - rows // 2, 20), reduction)


def test_progressive_files_are_untouched() -> None:
    data = pil_file(photo(256, 256), "JPEG", progressive=True, restart_marker_blocks=4)

    assert part(data, 0, 0, 10, 10) == (data, 256, 256, 0, 0, False)
    assert not ends_early(data, 10, 2)


def test_fill_bytes_between_segments_leave_a_file_untouched() -> None:
    data = jpeg(photo(128, 64)).tobytes()
    filled = record(data[:2] + b"\xff\xff" + data[2:])

    assert part(filled, 0, 0, 10, 10).record is filled
    assert not ends_early(filled, 10)


def test_a_header_of_another_kind_leaves_a_file_untouched() -> None:
    for start in (b"", b"\xff\xd8", b"\xff\xd8\xff\xda", b"\xff\xd8\xff\xe0\0\0" * 3):
        data = record(start + b"\xff\xd9")
        assert part(data, 0, 0, 10, 10, head=PictureHead(100, 100)).record is data


def test_what_stands_before_the_frame_is_passed_over() -> None:
    data = jpeg(photo(128, 64)).tobytes()
    thumbnail = b"Exif\0\0" + jpeg(photo(16, 16)).tobytes()
    for size in (len(thumbnail), 5000, 65_533):
        app = segment(0xE1, thumbnail.ljust(size, b"\0"))
        assert ends_early(record(data[:2] + app + data[2:]), 20)
    long = record(data[:2] + segment(0xE2, bytes(65_533)) * 3 + data[2:])
    assert not ends_early(long, 20)


def test_the_record_is_not_changed() -> None:
    for data in (jpeg(photo(128, 64)), indexed(photo(256, 256)), unindexed(photo(256, 256))):
        before = data.tobytes()
        writable = data.copy()

        found = part(writable, 0, 0, 10, 10)

        assert found.record is not writable
        assert not np.shares_memory(found.record, writable)
        assert writable.tobytes() == before


@pytest.mark.parametrize("interval", [0, 4])
@pytest.mark.parametrize("end", [b"", b"\0\xd9", b"\xff\xd8"])
def test_a_cut_file_is_noticed_also_by_its_parts(interval: int, end: bytes) -> None:
    data = pil_file(photo(256, 256), "JPEG", restart_marker_blocks=interval).tobytes()

    for size in (len(data) // 2, len(data) - 40):  # the end marker alone may lack
        codec = PictureCodec(Image())
        with pytest.raises(CodecError):
            decode(part(record(data[:size] + end), 0, 0, 8, 8), codec)


@pytest.mark.parametrize("rows", [0, -1, -300])
def test_no_rows_at_all_are_a_few(rows: int) -> None:
    """A crop may lie in the border above a picture."""
    data = jpeg(photo(128, 64))

    assert part(data, rows, 0, 0, 9).ends_early
    assert part(data, rows, 0, 0, 9).height == part(data, 0, 0, 0, 9).height


# -- files with restart markers: the segments below the crop -----------------------------------


def unindexed(image: Pixels, interval: int | None = None, subsampling: str = "420") -> UInt8Array:
    """Encode with restart markers, and no index of them."""
    gray = subsampling == "Gray"
    factors = {
        "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
        "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
        "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
        "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
        "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    }
    height, width = image.shape[:2]
    unit = {"444": 8, "440": 8, "411": 32, "Gray": 8}.get(subsampling, 16)
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, 90),
        *(cv2.IMWRITE_JPEG_RST_INTERVAL, interval or restart_interval(height, width, unit)),
        *([] if gray else (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors[subsampling])),
    ]
    done, data = cv2.imencode(".jpg", image[:, :, 0] if gray else image, options)
    assert done
    return record(data.tobytes())


def indexed(image: Pixels, interval: int | None = None, subsampling: str = "420") -> UInt8Array:
    return with_index(unindexed(image, interval, subsampling))


def index_at(data: UInt8Array) -> int | None:
    at = picture_head(data).tables_end
    return at if data[at + 1] == 0xE9 else None


def boxes(height: int, width: int, count: int, seed: int = 0) -> list[tuple[int, int, int, int]]:
    """Return boxes of all sizes, also at and across the borders."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        extent = rng.integers(1, (height, width), endpoint=True)
        corner = rng.integers(-20, np.array((height, width)) - extent + 20, endpoint=True)
        found.append((int(corner[0]), int(corner[1]), int(extent[0]), int(extent[1])))
    return found


@pytest.mark.parametrize(
    ("make", "subsampling", "reduction"),
    [
        ((indexed, unindexed)[(i + k) % 2], subsampling, reduction)
        for i, subsampling in enumerate(SUBSAMPLINGS)
        for k, reduction in enumerate(REDUCTIONS)
    ],
)
def test_a_crop_of_segments_has_the_pixels_of_the_whole(
    make: Any, subsampling: str, reduction: int
) -> None:
    """Chroma is interpolated across the edges of segments: what lies beside a crop is decoded too."""
    data = make(photo(211, 320), None, subsampling)

    found = [assert_same(data, box, reduction) for box in boxes(211, 320, 30)]

    smaller = [part for part in found if len(part.record) < 0.8 * len(data)]
    assert len(smaller) > 15
    assert not any(part.ends_early for part in smaller)
    assert (
        {part.left > 0 for part in smaller} == {part.top > 0 for part in smaller} == {True, False}
    )


def test_every_crop_edge_keeps_its_pixels() -> None:
    """Of both sides, at each distance from the edge of a segment and at each reduction."""
    data = indexed(photo(160, 192))

    for reduction in REDUCTIONS:
        for offset in range(40):
            assert_same(data, (60 + offset, 60 + offset, 20, 20), reduction)
            assert_same(data, (20, 20, 20 + offset, 20 + offset), reduction)


@given(
    sides=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    interval=st.integers(1, 80),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    reduction=st.sampled_from(REDUCTIONS),
    corner=st.tuples(st.integers(-50, 320), st.integers(-50, 320)),
    extent=st.tuples(st.integers(1, 320), st.integers(1, 320)),
    make=st.sampled_from([indexed, unindexed]),
)
def test_any_crop_of_any_file_with_restart_markers(
    sides: Any,
    interval: int,
    subsampling: str,
    reduction: int,
    corner: Any,
    extent: Any,
    make: Any,
) -> None:
    data = make(photo(*sides), interval, subsampling)

    assert_same(data, (*corner, *extent), reduction, 1 if subsampling == "Gray" else 3)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("width", [64, 76, 80])
def test_crops_of_a_few_pixels_are_not_too_narrow_to_interpolate(
    subsampling: str, width: int
) -> None:
    """Decoders repeat chroma of one or two pixels a row, where they would interpolate more."""
    data = unindexed(photo(160, width), 1, subsampling)

    for reduction in REDUCTIONS:
        for extent in range(reduction, 13):
            for left in (0, width - extent):
                assert_same(data, (70, left, extent, extent), reduction)


@pytest.mark.parametrize("rows", [1, 3])
def test_segments_may_be_whole_rows(rows: int) -> None:
    """As many cameras write them."""
    data = pil_file(photo(400, 300), "JPEG", restart_marker_rows=rows)

    found = assert_same(data, (130, 20, 60, 60))

    assert found.top > 0
    assert found.left == 0
    assert len(found.record) < len(data) // 2


def test_segments_that_run_from_row_to_row_are_of_no_use() -> None:
    data = unindexed(photo(400, 336), 5)  # 21 units side by side

    assert part(data, 130, 20, 60, 60).ends_early
    assert with_index(data) is data


def test_more_segments_than_restart_numbers() -> None:
    """Numbers go round after 8, and are counted anew in a part."""
    data = indexed(photo(700, 800), 1)

    for box in boxes(700, 800, 12):
        assert_same(data, box)
    found = part(data, 0, 0, 600, 700)
    marks = [m for m in np.flatnonzero(found.record[:-1] == 0xFF) if found.record[m + 1] >= 0xD0]
    kinds = found.record[np.array(marks) + 1]
    restarts = kinds[(kinds >= 0xD0) & (kinds <= 0xD7)]
    assert len(restarts) > 1024
    assert np.array_equal(restarts & 7, np.arange(len(restarts)) % 8)


def test_an_index_changes_no_pixel_and_no_part() -> None:
    plain, data = unindexed(photo(300, 320)), indexed(photo(300, 320))
    codec = PictureCodec(Image())

    assert len(plain) < len(data) < 1.02 * len(plain)
    assert np.array_equal(codec.decode(plain), codec.decode(data))
    for reader in (
        lambda d: cv2.imdecode(d, cv2.IMREAD_COLOR),
        lambda d: PIL.Image.open(io.BytesIO(d.tobytes())),
    ):
        assert np.array_equal(np.asarray(reader(plain)), np.asarray(reader(data)))
    for box in boxes(300, 320, 20):
        one, other = part(plain, *box), part(data, *box)
        assert one[1:] == other[1:]
        assert (
            one.record[-len(one.record) // 2 :].tobytes()
            == other.record[-len(one.record) // 2 :].tobytes()
        )
    assert with_index(data) is data


@pytest.mark.parametrize("change", ["name", "short", "sum", "another"])
def test_an_index_that_is_wrong_is_not_believed(change: str) -> None:
    data = indexed(photo(300, 320)).copy()
    at = index_at(data)
    assert at is not None
    if change == "name":
        data[at + 5] ^= 1
        inside = [at + 12 + 2 * 41, at + 12 + 2 * 42]
        data[inside] = data[inside[::-1]]  # the sum is as it should be
    elif change == "sum":
        data[at + int(data[at + 2]) * 256 + int(data[at + 3])] ^= 1
    elif change == "another":  # that of another picture, as a tool may keep it
        other = indexed(np.ascontiguousarray(photo(300, 320)[::-1]))
        assert index_at(other) == at
        end = at + 2 + int(data[at + 2]) * 256 + int(data[at + 3])
        data[at:end] = other[at:end]
    else:
        assert data[at + 3] > 2
        length = int(data[at + 2]) << 8 | int(data[at + 3])
        data = np.delete(data, [at + length, at + length + 1])
        data[at + 2 : at + 4] = (length - 2) >> 8, (length - 2) & 255

    found = assert_same(data, (100, 100, 60, 60))

    assert found.top > 0
    assert found.left > 0


def test_an_index_of_bounds_that_are_made_up_is_not_followed() -> None:
    data = indexed(photo(300, 320))
    at = index_at(data)
    assert at is not None
    rng = np.random.default_rng(0)
    for _ in range(100):
        made_up = data.copy()
        made_up[at + 14 : at + 200] = rng.integers(0, 256, 186)
        with suppress(CodecError):
            decode(part(made_up, 100, 100, 60, 60), PictureCodec(Image()))


def test_files_whose_headers_begin_alike_are_told_apart() -> None:
    """What was read of a header is kept, and found again by the bytes before the scan."""
    restart = segment(0xDD, b"\0\4")
    image = photo(256, 256)
    pixels = PictureCodec(Image()).decode(unindexed(image, 4))
    for first in (unindexed(image, 4), jpeg(image)):
        data = first.tobytes()
        at = data.index(b"\xff\xda")
        assert_same(first, (100, 100, 60, 60))
        second = record(data[:at] + segment(0xFE, b"a comment") + data[at:])
        assert_same(second, (100, 100, 60, 60))
    plain = unindexed(image, 4).tobytes()
    bare = plain.replace(restart, b"")
    at = bare.index(b"\xff\xda")
    assert (
        part(record(bare), 100, 100, 60, 60).left == 0
    )  # and is wrong, as its interval is missing
    again = record(bare[:at] + restart + bare[at:])
    assert assert_same(again, (100, 100, 60, 60)).left > 0
    assert np.array_equal(PictureCodec(Image()).decode(again), pixels)


def test_a_gray_picture_has_units_of_a_block_whatever_its_sampling() -> None:
    data = indexed(photo(256, 256), None, "Gray").copy()
    at = picture_head(data).height_at
    data[at + 6] = 0x22

    found = assert_same(data, (100, 100, 60, 60), 1, 1)

    assert found.left > 0


def test_a_sampling_of_nothing_is_left_to_the_decoder() -> None:
    data = indexed(photo(256, 256)).copy()
    at = picture_head(data).height_at
    data[[at + 6, at + 9, at + 12]] = 0

    found = part(data, 100, 100, 60, 60)

    assert found.ends_early
    with pytest.raises(CodecError):
        decode(found, PictureCodec(Image()))


def test_a_picture_of_the_size_of_its_crop_is_decoded_whole() -> None:
    data = indexed(photo(256, 256))

    assert part(data, 0, 0, 256, 256).record is data
    assert part(data, -30, -30, 400, 400).record is data
    assert part(data, 8, 8, 236, 236).record is data


def test_the_more_threads_share_the_interpreter_the_more_must_be_saved() -> None:
    """Putting a part together holds its lock."""
    data = indexed(photo(256, 256))

    small = [part(data, 100, 100, 40, 40, num_threads=n).left > 0 for n in (1, 4, 8, 16)]
    large = [part(data, 40, 80, 180, 160, num_threads=n).left > 0 for n in (1, 4, 8)]

    assert small == [True, True, True, False]
    assert large == [True, True, False]


def test_parts_of_many_pictures_are_those_of_each() -> None:
    files = [
        make(photo(60 + 7 * seed, 300 - 6 * seed, seed=seed))
        for make in (indexed, unindexed, jpeg)
        for seed in range(12)
    ]
    files.insert(5, pil_file(photo(90, 90), "PNG"))
    heads = picture_heads(files)
    sizes = sizes_of(heads)
    covers = np.array([boxes(height, width, 1, seed=height)[0] for height, width in sizes])

    parts = parts_of(heads, covers)

    for i, one in enumerate(parts.tolist()):
        alone = slice(i, i + 1)
        assert parts_of(heads[alone], covers[alone]).tolist() == [one]
    is_divided = parts[:, 0] + parts[:, 1] > 0
    assert 5 < np.count_nonzero(is_divided[:25]) < 25
    assert not is_divided[25:].any()
    assert not parts[5].any()  # PNG


def test_pictures_with_markers_missing_are_left_to_the_decoder() -> None:
    """It knows which pixels are lost; a part would be made of wrong ones."""
    data = unindexed(photo(256, 256)).tobytes()
    at = data.index(b"\xff\xd3")
    for damaged in (
        data[:at] + data[at + 2 :],
        data + data[-400:],
        data[:-2] + b"\xff\xd0\xff\xd9",
    ):
        assert part(record(damaged), 100, 100, 50, 50)[3:5] == (0, 0)


def test_an_index_that_goes_backwards_is_not_believed() -> None:
    whole = indexed(photo(256, 256))
    for at in range(600, 900, 3):
        file = whole.copy()
        file[at] = 0
        with suppress(CodecError):
            found = part(file, 100, 100, 30, 30)
            assert decode(found, PictureCodec(Image())).shape == (found.height, found.width, 3)


@given(st.data())
def test_damaged_headers_are_pictures_or_codec_errors(data: st.DataObject) -> None:
    """Nothing but a CodecError, whatever a header says."""
    file = DAMAGED[data.draw(st.integers(0, len(DAMAGED) - 1))].copy()
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, min(len(file) - 1, 1400)))] = data.draw(st.integers(0, 255))
    with suppress(CodecError):
        head = picture_head(file)
        if head.height * head.width <= 1 << 22:
            found = part(file, 100, 100, 30, 30)
            pixels = decode(found, PictureCodec(Image()))
            assert pixels.shape == (found.height, found.width, 3)
            assert (found.height, found.width) <= head[:2]


DAMAGED = [
    indexed(photo(256, 256)),
    unindexed(photo(256, 256), 1),
    unindexed(photo(256, 200), None, "Gray"),
    jpeg(photo(256, 256)),
]


def test_the_codec_writes_a_grid_and_its_index() -> None:
    for channels in (1, 3):
        data = record(encode_jpeg(photo(256, 320, channels)))

        assert index_at(data) is not None
        found = assert_same(data, (100, 100, 60, 60), 1, channels)
        assert len(found.record) < len(data) // 3


@pytest.mark.parametrize(
    ("width", "unit", "interval"),
    [
        (256, 16, 4),
        (320, 16, 4),
        (352, 16, 2),
        (400, 16, 5),
        (336, 16, 3),
        (304, 16, 19),
        (272, 8, 17),
        (296, 8, 37),
        (299, 8, 19),
        (536, 8, 67),
    ],
)
def test_restart_intervals_divide_the_rows(width: int, unit: int, interval: int) -> None:
    assert restart_interval(200, width, unit) == interval
    assert restart_interval(200, 256, 8) == 8


def test_pictures_too_small_for_parts_have_no_markers() -> None:
    for channels in (1, 3):
        small, large = (record(encode_jpeg(photo(n, n, channels))) for n in (77, 78))

        assert b"\xff\xdd" not in small.tobytes()
        assert index_at(small) is None
        assert index_at(large) is not None
        assert part(large, 0, 0, 1, 1).record is not large


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [28, 97, 299, 304, 341, 592])
def test_markers_and_index_cost_few_bytes_at_any_width(width: int, channels: int) -> None:
    image = photo(2 * width // 3, width, channels)
    sampling = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420)
    options = [*(cv2.IMWRITE_JPEG_QUALITY, 75), *(sampling if channels == 3 else ())]
    plain = cv2.imencode(".jpg", image[:, :, ::-1].copy(), options)[1]

    assert len(encode_jpeg(image, 75)) < 1.09 * len(plain)


def test_a_large_file_of_many_segments_gets_an_index_if_it_fits() -> None:
    """An APP segment has at most 65,533 bytes."""
    flat = np.zeros((1920, 2000, 3), np.uint8)
    assert index_at(indexed(flat, 1)) is not None
    assert_same(indexed(flat, 1), (1000, 1000, 50, 50))
    large = np.zeros((2400, 3200, 3), np.uint8)
    assert index_at(indexed(large, 1)) is None
    assert assert_same(unindexed(large, 1), (1000, 1000, 50, 50)).top > 0
