"""The recipe ``packdata images``: pictures with labels and masks, as they are or in other sizes.

Without ``sizes`` and ``codec``, files are kept verbatim if they are upright JPEG, PNG or WebP of 8
bits, gray or RGB. The others are stored upright and plain: JPEG as JPEG with its own tables and
sampling, the rest as PNG, without loss. With ``sizes`` the same holds for pictures that already have their size.
Whatever is packed has been decoded once, so it can be decoded. Of a source with any number of pictures a
sample each becomes one of the field ``images``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from loaders.codecs import Codec, codec_for
from loaders.codecs.heads import MAX_PICTURE_MB, pixels_within
from loaders.codecs.picture import DEFAULT_QUALITY, PictureCodec
from loaders.codecs.several import join_files
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import PICTURE_CODECS, Array, Field, Image, Images, Mask, Text
from loaders.system.opencv import use_no_ipp
from packdata.describe import numbered
from packdata.files.labels import LABEL, read_classes
from packdata.files.recipe import FilesRecipe
from packdata.files.splits import SourceOptions, open_splits
from packdata.images.alike import encode_alike, encode_jpeg_planes
from packdata.images.fit import Fit, SizeOption
from packdata.images.jpegtran import (
    check_jpegtran,
    divide_without_loss,
    jpegtran_version,
)
from packdata.images.marks import Marks, check_has_masks
from packdata.images.pictures import (
    KEPT,
    Picture,
    decode_mask,
    decode_picture,
    format_of,
    open_picture,
)
from packdata.images.profiles import CONVERTED
from packdata.images.shapes import ShapeOptions, check_same_classes, encode_shape
from packdata.options import changed, check_options, opt, parse_target
from packdata.recipe import Tally, Target
from packdata.sources.base import BOX_LABELS
from packdata.sources.objects import fetched_ahead

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packdata.files.splits import Split
    from packdata.images.fit import Size
    from packdata.sources.base import Item, Pixels

_MAX_SIDES = {"webp": 16_383, "jpeg": 65_500}  # of RFC 9649 (VP8's 14 bits), and of libjpeg
_ONE_SIZE = ("raw", "yuv420", "dct")
MENDED, DIVIDED = "mended", "divided"
HAS_PROFILE = "colour profiles"
ANIMATED = "animated"
TURNED_BELOW = "turned below a mask, boxes or keypoints"
SMALLER = "smaller than "
UNLABELLED = "without a label"  # -1 in Hugging Face's columns
_NUM_PEEKED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """What becomes of each picture; ``resizes`` and ``marks`` are made of the others."""

    sizes: Sequence[int | str | Size] | int | str = opt(
        (),
        "size in pixels: of the shorter side, or HxW with --fit; repeated, each size becomes a dataset DST/SIZE, "
        "all from one decoding (default: that of the files)",
        "N|HxW",
        name="size",
        action="append",
    )
    fit: Fit = opt(
        "shorter",
        "with --size: scale the shorter side down to N, never up (shorter, the default); scale and crop (cover); scale "
        "and pad with 0, masks too (contain); ignore the aspect ratio (stretch)",
        choices=get_args(Fit),
    )
    codec: str | None = opt(
        None,
        "encode all pictures with this codec (default: keep files; with --size: jpeg, or png for 16 bits)",
        choices=PICTURE_CODECS,
    )
    quality: int = opt(
        DEFAULT_QUALITY,
        f"quality of jpeg, webp or dct, 1 to 100 (default: {DEFAULT_QUALITY})",
        "Q",
        within=(1, 100),
    )
    subsampling: str | None = opt(
        None, "chroma subsampling of dct (default: 420)", choices=("420", "444")
    )
    compression: str | None = opt(
        None, "of dct: lz4 is fast, zstd is small (default: lz4)", choices=("lz4", "zstd")
    )
    segments: bool = opt(
        False,
        "divide JPEGs into segments with jpegtran, without changing a pixel: a crop decodes only those it touches",
    )
    icc: str | None = opt(
        None,
        "convert pictures with a colour profile to sRGB (default: keep pixel values)",
        choices=("srgb",),
    )
    max_picture_mb: int = opt(
        MAX_PICTURE_MB,
        f"largest picture to accept, in MiB when decoded; each worker holds one (default: {MAX_PICTURE_MB:,})",
        "N",
        within=(1, None),
    )
    gray: bool = opt(False, "store one channel (default: three, RGB)")
    keep_depth: bool = opt(False, "keep 16 bits per channel (default: 8)")
    palette: Path | str | None = opt(
        None,
        "file with the colours of masks, one per line, in the order of the classes: R G B or #RRGGBB",
        "FILE",
        type=parse_target,
    )
    label_map: Path | str | None = opt(
        None,
        "file that renumbers the classes of masks: two numbers per line, old and new",
        "FILE",
        type=parse_target,
    )
    resizes: tuple[SizeOption, ...] = field(init=False, default=())
    marks: Marks | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_options(self)
        if self.fit != "shorter" and not self.sizes:
            raise SchemaError(f"fit {self.fit!r} without sizes=: pass sizes=, too")
        resizes = tuple(SizeOption.parse(size, self.fit) for size in self.sizes)  # type: ignore[union-attr]
        object.__setattr__(self, "resizes", resizes)
        object.__setattr__(self, "marks", Marks.of(self.palette, self.label_map))
        if self.segments and self.codec is not None:
            raise SchemaError(
                f"segments divide files that are kept: leave out codec {self.codec!r}"
            )
        if self.segments:
            check_jpegtran()
        has_quality = self.sizes if self.codec is None else self.codec in ("jpeg", "webp", "dct")
        if self.quality != DEFAULT_QUALITY and not has_quality:
            raise SchemaError(f"quality {self.quality} is for codec='jpeg', 'webp' or 'dct'")
        if self.keep_depth and self.codec in ("jpeg", "webp", "yuv420", "dct"):
            raise SchemaError(f"codec {self.codec!r} holds 8 bits: to keep 16 take 'png' or 'raw'")
        if self.gray and self.codec == "yuv420":
            raise SchemaError("codec 'yuv420' stores color: of gray pictures take 'raw' or 'dct'")
        self.image(self.channels, None, self.codec or "jpeg")  # says what does not go together
        names = [resize.name for resize in self.resizes]
        if len(set(names)) < len(names):
            raise SchemaError(f"each size can be asked for once, got {', '.join(names)}")

    @property
    def channels(self) -> int:
        """1 or 3."""
        return 1 if self.gray else 3

    @property
    def max_pixels(self) -> int:
        """Of the largest picture."""
        pixel_nbytes = self.channels * np.dtype(self.dtype).itemsize
        return pixels_within(self.max_picture_mb, pixel_nbytes)

    @property
    def dtype(self) -> str:
        """uint8 or uint16."""
        return "uint16" if self.keep_depth else "uint8"

    def image(self, channels: int, size: Size | None, codec: str) -> Image:
        """Return the field of the pictures."""
        dct: dict[str, Any] = {"subsampling": self.subsampling, "compression": self.compression}
        if codec == "dct":
            dct["quality"] = self.quality
        return Image(channels=channels, size=size, dtype=self.dtype, codec=codec, **dct)

    def to_json(self) -> dict[str, Any]:
        """Return the options that are not the default, as JSON types."""
        found = changed(self)
        found.pop("resizes", None)
        if self.resizes:
            found["sizes"] = [resize.name for resize in self.resizes]
        if self.segments:
            found["jpegtran"] = jpegtran_version()
        if self.marks is not None:  # what the files hold, wherever they lie
            found = {n: value for n, value in found.items() if n not in ("palette", "label_map")}
            found["marks"] = self.marks.to_json()
        return found


def image_recipes(
    src: Path | str | Sequence[Path | str],
    options: ImageOptions | None = None,
    source: SourceOptions | None = None,
    shapes: ShapeOptions | None = None,
) -> list[tuple[str, ImagesRecipe]]:
    """Return a recipe for each split of a source, or of several in order, named ``""`` if it has no splits.

    Raises:
        SourceError: The source cannot be listed or recognized, or the classes do not fit it.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    options = options or ImageOptions()
    source, shapes = with_box_classes(source or SourceOptions(), shapes or ShapeOptions())
    splits = open_splits(
        src, source, extend=shapes.extend, has_annotations=shapes.annotations is not None
    )
    check_same_classes({split.name: split.source for split in splits})
    return [(split.name, ImagesRecipe(split, options)) for split in splits]


def with_box_classes(
    source: SourceOptions, shapes: ShapeOptions
) -> tuple[SourceOptions, ShapeOptions]:
    """Return options whose classes are those of boxes, where boxes have some; SourceError if they cannot be read."""
    if source.classes is None or (shapes.annotations is None and shapes.box_labels is None):
        return source, shapes
    return replace(source, classes=None), replace(
        shapes, box_classes=read_classes(source.classes, BOX_LABELS)
    )


@dataclass(frozen=True, slots=True)
class _Output:
    """One target: a size, and the fields and codecs that depend on it."""

    resize: SizeOption | None
    image: Image
    mask: Mask | None
    is_several: bool = False  # of such images, any number
    codec: Codec = field(init=False)
    mask_codec: Codec | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", codec_for(self.image))
        object.__setattr__(self, "mask_codec", self.mask and codec_for(self.mask))

    @property
    def fields(self) -> dict[str, Field]:
        """What a sample has of pictures."""
        if self.is_several:
            one = self.image
            several = Images(one.codec, channels=one.channels, size=one.size, dtype=one.dtype)
            return {"images": several}
        return {"image": self.image, **({} if self.mask is None else {"mask": self.mask})}

    def scaled(self, size: Size) -> Size:
        return size if self.resize is None else self.resize.scaled(size)

    def keeps(self, size: Size) -> bool:
        return self.resize is None or self.resize.keeps(size)

    def fitted(self, picture: Picture) -> npt.NDArray[Any]:
        if self.resize is None:
            return picture.pixels
        return self.resize.apply(picture.pixels, picture.size)

    def mask_record(self, mask: npt.NDArray[Any] | None) -> dict[str, bytes]:
        if mask is None or self.mask_codec is None:
            return {}
        fitted = mask if self.resize is None else self.resize.apply(mask, nearest=True)
        return {"mask": self.mask_codec.encode(fitted)}


_SIZE = Array(dtype="int32", dims=(2,))


@lru_cache(256)
def _size_record(size: Size) -> bytes:
    return codec_for(_SIZE).encode(np.array(size, np.int32))


class ImagesRecipe(FilesRecipe[ImageOptions]):
    """Turns each picture of a source into one sample per size; a ``packdata.recipe.Recipe``.

    Fields: ``image`` (or ``images``), ``label`` and the other columns of the source, ``mask`` if there are masks,
    ``key``, and ``original_size`` (height, width in pixels of the upright source; ``original_sizes`` of
    several). One instance serves all threads.
    """

    command = "images"

    def __init__(self, split: Split, options: ImageOptions) -> None:
        super().__init__(split, options)
        check_has_masks(options.marks, self.masks is not None or self.source.has_masks)
        self._is_several = split.source.has_several
        if self._is_several:
            self._check_alone()
        self._outputs = self._plan_outputs()
        self._codecs = {
            name: codec_for(Image(codec=name, channels=options.channels))
            for name in ("jpeg", "png")
        }
        self._extra: dict[str, Field] = {"key": Text()}
        if self._is_several:
            self._extra["original_sizes"] = Array(dtype="int32", dims=(None, 2))
        else:
            self._extra["original_size"] = _SIZE
        self._extra_codecs = {name: codec_for(extra) for name, extra in self._extra.items()}
        # Pictures "kept" or "re-encoded", and why the latter; those "smaller than" a size.
        self.tally = Tally()
        several = len(self._outputs) > 1
        self._set_targets(
            [
                Target(
                    output.resize.name if output.resize and several else "",
                    self._schema(output.fields, self._extra),
                )
                for output in self._outputs
            ],
            options.to_json(),
        )

    def encode(self, item: Item) -> list[dict[str, bytes]]:
        """Return the records of an item for each target.

        Raises:
            SourceError: The picture, its mask or its label is missing, damaged or of the wrong
                kind.
        """
        use_no_ipp()
        try:
            data = item.read()
            if self._is_several:
                return self._encode_several(item, data)
            picture = self._decode(data)
            shared = self._shared_records(item)
            shared["original_size"] = _size_record(picture.size)
            mask = self._checked_mask(item, picture)
            images, is_kept = self._encode_picture(picture, data)
            samples = [
                {"image": image}
                | output.mask_record(mask)
                | self._shapes(item, output, picture.size)
                | shared
                for output, image in zip(self._outputs, images, strict=True)
            ]
        except CodecError as error:
            raise SourceError(str(error), item.where) from error
        self._count(picture, is_kept, has_mask=mask is not None)
        label = item.labels.get(LABEL)
        self.tally.add(UNLABELLED, int(isinstance(label, int) and label == -1))
        return samples

    def _encode_several(self, item: Item, files: list[bytes]) -> list[dict[str, bytes]]:
        """Return the records of an item of any number of pictures."""
        sizes: list[Size] = []
        made: list[list[bytes]] = [[] for _ in self._outputs]
        for number, data in enumerate(files):
            with numbered(number):
                picture = self._decode(data)
                images, is_kept = self._encode_picture(picture, data)
            for records, image in zip(made, images, strict=True):
                records.append(image)
            sizes.append(picture.size)
            self._count(picture, is_kept)
        shared = self._shared_records(item)
        codec = self._extra_codecs["original_sizes"]
        shared["original_sizes"] = codec.encode(np.array(sizes, np.int32).reshape(-1, 2))
        return [{"images": join_files(records)} | shared for records in made]

    def _encode_picture(self, picture: Picture, data: bytes | Pixels) -> tuple[list[bytes], bool]:
        """Return the record of a picture for each target, and whether the first is the file itself."""
        kept = [self._kept(output, picture, data) for output in self._outputs]
        records = [
            self._encode_image(output, picture, data) if file is None else file
            for output, file in zip(self._outputs, kept, strict=True)
        ]
        return records, kept[0] is not None

    def _check_alone(self) -> None:
        """Raise SchemaError for what belongs to one picture."""
        has_masks = self.masks is not None or self.source.has_masks
        has_shapes = any(label.column.form for label in self.labels)
        for what, is_given in (("masks", has_masks), ("boxes and keypoints", has_shapes)):
            if is_given:
                hint = "pack them from Python, with packdata.Writer and fields of your own"
                what = f"{what} belong to one picture, and samples have several"
                raise SchemaError(f"{what}: {hint}")

    def _decode(self, data: bytes | Pixels) -> Picture:
        options = self.options
        if isinstance(data, np.ndarray):
            pixels = np.repeat(data[:, :, None], self._outputs[0].image.channels, axis=2)
            if options.keep_depth:
                pixels = pixels.astype(np.uint16) * np.uint16(257)
            return Picture(pixels, data.shape, "pixels", True)
        return decode_picture(
            data,
            channels=options.channels,
            dtype=options.dtype,
            needed=self._needed,
            max_pixels=options.max_pixels,
            to_srgb=options.icc == "srgb",
        )

    def _needed(self, size: Size) -> Size:
        sizes = [output.scaled(size) for output in self._outputs]
        return max(height for height, _ in sizes), max(width for _, width in sizes)

    def _shared_records(self, item: Item) -> dict[str, bytes]:
        records = {each.name: each.encode(item) for each in self.labels if not each.column.form}
        records["key"] = self._extra_codecs["key"].encode(item.key)
        return records

    def _shapes(self, item: Item, output: _Output, size: Size) -> dict[str, bytes]:
        shapes = (label for label in self.labels if label.column.form)
        return {each.name: encode_shape(each, item, size, output.resize) for each in shapes}

    def _kept(self, output: _Output, picture: Picture, data: bytes | Pixels) -> bytes | None:
        """Return the file itself if it can be the record, else None."""
        if self.options.codec is not None or not isinstance(data, bytes):
            return None
        if not output.keeps(picture.size) or (self.options.gray and not picture.gray):
            return None
        file = picture.kept
        return file if file is None or picture.format != "jpeg" else self._divided(file)

    def _divided(self, file: bytes) -> bytes:
        """Return a JPEG in segments where that is asked for, and can be."""
        divided = divide_without_loss(file) if self.options.segments else None
        if divided is None:
            return file
        self.tally.add(DIVIDED)
        return divided

    def _encode_image(self, output: _Output, picture: Picture, data: bytes | Pixels) -> bytes:
        options = self.options
        codec = output.codec
        if isinstance(data, bytes) and output.keeps(picture.size):
            record = encode_jpeg_planes(codec, picture)
            if record is None and options.codec is None and picture.format == "jpeg":
                record = self._encode_alike(picture)
            if record is not None:
                return record
        pixels = output.fitted(picture)
        if options.codec is None and not options.resizes and isinstance(codec, PictureCodec):
            codec = codec if options.keep_depth else self._codecs["png"]
        _check_sides(codec, pixels)
        if isinstance(codec, PictureCodec):
            return codec.encode(pixels, options.quality)
        return codec.encode(pixels)

    def _encode_alike(self, picture: Picture) -> bytes | None:
        """Return what cannot be kept of a JPEG as a JPEG like it; None where 16 bits are wanted."""
        if self.options.keep_depth:
            return None
        _check_sides(self._codecs["jpeg"], picture.pixels)
        return encode_alike(picture)

    def _checked_mask(self, item: Item, picture: Picture) -> npt.NDArray[Any] | None:
        data = self._mask_bytes(item)
        if data is None:
            return None
        name = item.mask_name if self.masks is None else self.masks.name(item.key)
        where = item.place_of_mask(name)
        try:
            read = decode_mask if self.options.marks is None else self.options.marks.read
            mask, wanted = read(data, self.options.max_pixels), self._outputs[0].mask
        except CodecError as error:
            raise SourceError(f"the mask cannot be read: {error}", where) from error
        if mask.shape != picture.size:
            height, width = picture.size
            what = f"its mask is {mask.shape[0]} x {mask.shape[1]}, the picture {height} x {width}"
            turned = "rotated" in picture.changes and mask.shape == picture.size[::-1]
            hint = "Turn the mask as Exif turns the picture" if turned else ""
            raise SourceError(f"{what} pixels (height x width)", where, hint)
        if (
            wanted is not None
            and mask.dtype != wanted.dtype
            and mask.max() > np.iinfo(wanted.dtype).max
        ):
            what = f"the mask holds {mask.max()}, and the first {_NUM_PEEKED} masks have 8 bits"
            raise SourceError(what, where, "Pass keep_depth=True")
        return mask if wanted is None else mask.astype(wanted.dtype)

    def _mask_bytes(self, item: Item) -> bytes | None:
        if self.masks is not None:
            return self.masks.find(item)()
        if self.source.has_masks and item.read_mask is None:
            raise SourceError("it has no mask, others have", item.where)
        return None if item.read_mask is None else item.read_mask()

    def _count(self, picture: Picture, kept: bool, *, has_mask: bool = False) -> None:
        self.tally.add("kept" if kept else "re-encoded")
        for change in picture.changes:
            self.tally.add(MENDED if kept else change)
        if picture.has_profile and CONVERTED not in picture.changes:
            self.tally.add(HAS_PROFILE)
        is_drawn_on = has_mask or any(label.column.form for label in self.labels)
        if "rotated" in picture.changes and is_drawn_on:
            self.tally.add(TURNED_BELOW)
        for resize in self.options.resizes:
            if resize.fixed is None and min(picture.size) < resize.height:
                self.tally.add(f"{SMALLER}{resize.name}")

    def _plan_outputs(self) -> list[_Output]:
        options, pixels = self.options, self.source.pixels
        codec = options.codec or self._default_codec()
        mask_dtype = self._mask_dtype()
        outputs = []
        for resize in options.resizes or (None,):
            size = resize.fixed if resize is not None else None
            if pixels is not None:
                size = size or (pixels if resize is None else resize.scaled(pixels))
            if codec in _ONE_SIZE and size is None:
                raise SchemaError(
                    f"codec {codec!r} needs pictures of one size: "
                    "pass sizes= with fit='cover', 'contain' or 'stretch'"
                )
            channels = 1 if pixels is not None else options.channels
            image = options.image(channels, size, codec)
            mask = None if mask_dtype is None else Mask(size=size, dtype=mask_dtype)
            outputs.append(_Output(resize, image, mask, self._is_several))
        _ = [output.fields for output in outputs]  # says what does not go together
        return outputs

    def _default_codec(self) -> str:
        """Pixels stay pixels; 16 bits need PNG; what is kept is named after the first files."""
        if self.source.pixels is not None:
            return "raw"
        if self.options.keep_depth:
            return "png"
        return (None if self.options.resizes else self._peek_format()) or "jpeg"

    def _peek_format(self) -> str | None:
        """Return what most of the first pictures are; None if none of them can be read."""
        formats: Counter[str] = Counter()
        for item in fetched_ahead(islice(self.source.items(0), _NUM_PEEKED)):
            try:
                data = item.read()
                heads = [open_picture(f) for f in (data if self._is_several else [data])]
            except (SourceError, CodecError):  # it is rejected in its turn
                continue
            names = map(format_of, heads)
            formats.update(name if name in KEPT else "png" for name in names)
        return formats.most_common(1)[0][0] if formats else None

    def _mask_dtype(self) -> str | None:
        """uint16 if asked for, or if one of the first masks is; None if there are none."""
        if self.masks is None and not self.source.has_masks:
            return None
        known = self.options.marks and self.options.marks.dtype
        if known or self.options.keep_depth:
            return known or "uint16"
        for item in islice(self.source.items(0), _NUM_PEEKED):
            with suppress(SourceError, CodecError):  # it is rejected in its turn
                data = self._mask_bytes(item)
                if data and decode_mask(data, self.options.max_pixels).dtype == np.uint16:
                    return "uint16"
        return "uint8"


def _check_sides(codec: Codec, pixels: npt.NDArray[Any]) -> None:
    """Raise CodecError for pixels that a format cannot hold, before OpenCV prints that."""
    name = codec.field.codec if isinstance(codec, PictureCodec) else ""
    limit, (height, width) = _MAX_SIDES.get(name), pixels.shape[:2]
    if limit is not None and max(height, width) > limit:
        raise CodecError(
            f"{name} holds up to {limit} pixels in height and width, and it has {height} x {width}: "
            "pass sizes= to make it smaller, or codec='png'"
        )
