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
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from loaders.codecs import Codec, codec_for
from loaders.codecs.heads import MAX_PICTURE_MB, pixels_within
from loaders.codecs.picture import DEFAULT_QUALITY, join_files
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import PICTURE_CODECS, Array, Field, Image, Images, Label, Mask, Text
from packdata.ahead import fetched_ahead
from packdata.describe import counted, numbered
from packdata.files.recipe import FilesRecipe
from packdata.images.fit import MAX_SIDE, Fit, SizeOption
from packdata.images.masks import NUM_PEEKED, ClassMap, Masks
from packdata.images.pictures import KEPT, Picture, PictureFile, decode_picture
from packdata.images.shapes import encode_shape
from packdata.images.stored import (
    divide_without_loss,
    encode_alike,
    encode_planes,
    jpegtran_version,
)
from packdata.options import changed, check_options, opt, parse_target
from packdata.recipe import Tally, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.files.labels import Split
    from packdata.images.fit import Size
    from packdata.sources.base import Item

ONE_SIZE = ("raw", "yuv420", "dct")
_AS_IT_IS = SizeOption(MAX_SIDE, MAX_SIDE)  # which nothing is larger than
# What is counted beside the changes of pictures.
_KEPT, _ENCODED, _MENDED, _DIVIDED = "kept", "re-encoded", "mended", "divided"
_HAS_PROFILE = "colour profiles"
_TURNED_BELOW = "rotated below a mask, boxes or keypoints"
_SMALLER = "smaller than "
_UNLABELLED = "without a label"  # -1 in Hugging Face's columns


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What becomes of each picture."""

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
    palette: Location | str | None = opt(
        None,
        "file with the colours of masks, one per line, in the order of the classes: R G B or #RRGGBB",
        "FILE",
        type=parse_target,
    )
    label_map: Location | str | None = opt(
        None,
        "file that renumbers the classes of masks: two numbers per line, old and new",
        "FILE",
        type=parse_target,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.fit != "shorter" and not self.sizes:
            raise SchemaError(f"fit {self.fit!r} without sizes=: pass sizes=, too")
        if self.segments:
            if self.codec is not None:
                raise SchemaError(f"segments divide files that are kept: leave out {self.codec!r}")
            jpegtran_version()  # SchemaError if it is not installed
        has_quality = self.sizes if self.codec is None else self.codec in ("jpeg", "webp", "dct")
        if self.quality != DEFAULT_QUALITY and not has_quality:
            raise SchemaError(f"quality {self.quality} is for codec='jpeg', 'webp' or 'dct'")
        names = [resize.name for resize in self.resizes]
        if len(set(names)) < len(names):
            raise SchemaError(f"each size can be asked for once, got {', '.join(names)}")
        try:  # what does not go together, the codec says
            codec_for(self.image((16, 16), self.codec or "png"))
        except CodecError as error:
            raise SchemaError(str(error)) from error
        _ = self.class_map  # SourceError if they cannot be read

    @cached_property
    def resizes(self) -> list[SizeOption]:
        """``sizes`` with their ``fit``."""
        return [SizeOption.parse(size, self.fit) for size in self.sizes]  # type: ignore[union-attr]

    @cached_property
    def class_map(self) -> ClassMap | None:
        """``palette`` and ``label_map``, if one is given."""
        is_given = self.palette is not None or self.label_map is not None
        return ClassMap(self.palette, self.label_map) if is_given else None

    @property
    def channels(self) -> int:
        """1 or 3."""
        return 1 if self.gray else 3

    @property
    def dtype(self) -> str:
        """uint8 or uint16."""
        return "uint16" if self.keep_depth else "uint8"

    def image(self, size: Size | None, codec: str) -> Image:
        """Return the field of the pictures."""
        return Image(
            channels=self.channels,
            size=size,
            dtype=self.dtype,
            codec=codec,
            quality=self.quality if codec == "dct" else None,
            subsampling=self.subsampling,
            compression=self.compression,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the options that are not the default, as JSON types."""
        found = changed(self)
        if self.resizes:
            found["sizes"] = [resize.name for resize in self.resizes]
        if self.segments:
            found["jpegtran"] = jpegtran_version()
        if self.class_map is not None:  # what the files hold, wherever they lie
            found["marks"] = self.class_map.to_json()
        return {n: value for n, value in found.items() if n not in ("palette", "label_map")}


class _Output(NamedTuple):
    """One target: a size, and how pictures and masks become it."""

    resize: SizeOption
    fields: dict[str, Field]  # what a sample has of pictures
    codecs: dict[str, Codec]  # of ``image``, where a picture is re-encoded, and of ``mask``


_KEY = codec_for(Text())
_SIZE, _SIZES = Array(dtype="int32", dims=(2,)), Array(dtype="int32", dims=(None, 2))


class ImagesRecipe(FilesRecipe[ImageOptions]):
    """Turns each picture of a source into one sample per size; a ``packdata.recipe.Recipe``.

    Fields: ``image`` (or ``images``), ``label`` and the other columns of the source, ``mask`` if there are masks,
    ``key``, and ``original_size`` (height, width in pixels of the upright source; ``original_sizes`` of
    several). One instance serves all threads.
    """

    command = "images"

    def __init__(self, split: Split, options: ImageOptions) -> None:
        super().__init__(split, options)
        source, class_map = self.source, options.class_map
        if class_map is not None and not source.has_masks:
            names = " and ".join(class_map.names)
            raise SchemaError(f"{names} is for masks, and there are none: pass masks=")
        pixel_nbytes = options.channels * np.dtype(options.dtype).itemsize
        self._max_pixels = pixels_within(options.max_picture_mb, pixel_nbytes)
        self._shapes = [label for label in self.labels if label.column.form]
        self._plain = [label for label in self.labels if not label.column.form]
        self._classes = [label.name for label in self._plain if isinstance(label.field, Label)]
        if source.has_several and (source.has_masks or self._shapes):
            what = "masks, boxes and keypoints belong to one picture, and samples have several"
            hint = "pack them from Python, with packdata.Writer and fields of your own"
            raise SchemaError(f"{what}: {hint}")
        self._masks: Masks | None = None
        if source.has_masks:
            depth = "uint16" if options.keep_depth else None
            self._masks = Masks(source, class_map, depth, self._max_pixels)
        codec, sizes = options.codec or self._usual_codec(), options.resizes or [_AS_IT_IS]
        self._outputs = outputs = [self._output(size, codec) for size in sizes]
        # Pictures "kept" or "re-encoded", and why the latter; those "smaller than" a size.
        self.tally = Tally()
        more = {"original_sizes": _SIZES} if source.has_several else {"original_size": _SIZE}
        folders = [output.resize.name if len(outputs) > 1 else "" for output in outputs]
        schemas = [self._schema(output.fields, {"key": Text(), **more}) for output in outputs]
        self._set_targets([*map(Target, folders, schemas)], options.to_json())

    def _usual_codec(self) -> str:
        """16 bits need PNG; what is kept is named after most of the first files."""
        if self.options.keep_depth:
            return "png"
        if self.options.resizes:
            return "jpeg"
        formats: Counter[str] = Counter()
        for item in fetched_ahead(islice(self.source.items(0), NUM_PEEKED)):
            with suppress(SourceError, CodecError):  # it is rejected in its turn
                data = item.read()
                for file in data if isinstance(data, list) else [data]:
                    name = PictureFile(file).format
                    formats[name if name in KEPT else "png"] += 1
        return max(formats, key=formats.__getitem__, default="jpeg")

    def _output(self, resize: SizeOption, codec: str) -> _Output:
        options, size = self.options, resize.fixed
        if codec in ONE_SIZE and size is None:
            what = f"codec {codec!r} needs pictures of one size"
            raise SchemaError(f"{what}: pass sizes= with fit='cover', 'contain' or 'stretch'")
        fields: dict[str, Field] = {"image": options.image(size, codec)}
        if self.source.has_several:
            fields = {
                "images": Images(codec, channels=options.channels, size=size, dtype=options.dtype)
            }
        # Files are kept, or else stored without loss.
        is_lossless = options.codec is None and not options.resizes and codec in KEPT
        encoded = options.image(size, "png" if is_lossless else codec)
        codecs = {"image": codec_for(encoded, quality=options.quality)}
        if self._masks is not None:
            fields["mask"] = mask = Mask(size=size, dtype=self._masks.dtype)
            codecs["mask"] = codec_for(mask)
        return _Output(resize, fields, codecs)

    def encode(self, item: Item) -> list[dict[str, bytes]]:
        """Return the records of an item for each target.

        Raises:
            SourceError: The picture, its mask or its label is missing, damaged or of the wrong
                kind.
        """
        try:
            data = item.read()
            shared = {label.name: label.encode(item) for label in self._plain}
            shared["key"] = _KEY.encode(item.key)
            made = self._several(item, data) if isinstance(data, list) else self._one(item, data)
            self.tally.add(_UNLABELLED, -1 in map(item.labels.get, self._classes))
            return [pictures | shared for pictures in made]
        except CodecError as error:
            raise SourceError(str(error), item.where) from error

    def _several(self, item: Item, files: Sequence[bytes]) -> list[dict[str, bytes]]:
        """Return what a sample has of its pictures, for each target."""
        made = []
        for number, data in enumerate(files):
            with numbered(number):
                made.append(self._one(item, data))
        return [
            {
                "images": join_files([samples[target]["image"] for samples in made]),
                "original_sizes": b"".join(samples[target]["original_size"] for samples in made),
            }
            for target in range(len(self._outputs))
        ]

    def _one(self, item: Item, data: bytes) -> list[dict[str, bytes]]:
        """Return what a sample has of a picture, for each target."""
        picture = self._decode(data)
        mask = None if self._masks is None else self._masks.read(item, picture.size)
        files = [self._kept(output, picture) for output in self._outputs]
        samples = []
        for output, file in zip(self._outputs, files, strict=True):
            image = self._re_encoded(output, picture) if file is None else self._divided(file)
            sample = {"image": image}
            if mask is not None:
                fitted = output.resize.apply(mask, nearest=True)
                sample["mask"] = output.codecs["mask"].encode(fitted)
            for shape in self._shapes:
                sample[shape.name] = encode_shape(shape, item, picture.size, output.resize)
            sample["original_size"] = np.array(picture.size, "<i4").tobytes()
            samples.append(sample)
        self._count(picture, is_kept=files[0] is not None)
        return samples

    def _decode(self, data: bytes) -> Picture:
        options = self.options
        return decode_picture(
            data,
            channels=options.channels,
            dtype=options.dtype,
            needed=self._needed,
            max_pixels=self._max_pixels,
            to_srgb=options.icc == "srgb",
        )

    def _needed(self, size: Size) -> Size:
        sizes = (output.resize.scaled(size) for output in self._outputs)
        heights, widths = zip(*sizes, strict=True)
        return max(heights), max(widths)

    def _kept(self, output: _Output, picture: Picture) -> bytes | None:
        """Return the file to be stored as it is; None if it is re-encoded."""
        is_as_wanted = self.options.codec is None and (picture.gray or not self.options.gray)
        return picture.kept if is_as_wanted and output.resize.keeps(picture.size) else None

    def _divided(self, file: bytes) -> bytes:
        """Return a file that is kept, in segments where these are asked for and can be had."""
        divided = divide_without_loss(file) if self.options.segments else None
        self.tally.add(_DIVIDED, int(divided is not None))
        return divided or file

    def _re_encoded(self, output: _Output, picture: Picture) -> bytes:
        """Return the record of a picture whose file is not kept; of a JPEG with as little loss as there can be."""
        options, codec = self.options, output.codecs["image"]
        if picture.format == "jpeg" and output.resize.keeps(picture.size):
            if options.codec is None and not options.keep_depth:
                return encode_alike(picture)
            file = picture.kept if not picture.changes else None
            if file and (record := encode_planes(codec, file)):
                return record
        return codec.encode(output.resize.apply(picture.pixels, picture.size))

    def _count(self, picture: Picture, *, is_kept: bool) -> None:
        """Count what became of a picture in the first target."""
        self.tally.add(_KEPT if is_kept else _ENCODED)
        for change in picture.changes:
            self.tally.add(_MENDED if is_kept else change)
        has_places = bool(self._shapes) or self._masks is not None
        self.tally.add(_TURNED_BELOW, has_places and "rotated" in picture.changes)
        self.tally.add(_HAS_PROFILE, picture.has_profile)
        for resize in self.options.resizes:
            is_small = resize.fixed is None and min(picture.size) < resize.height
            self.tally.add(f"{_SMALLER}{resize.name}", is_small)


# -- what was counted, in words ----------------------------------------------------------------------

_NOTES = {
    _TURNED_BELOW: "rotated as Exif says: masks, boxes and keypoints are read as of the upright picture",
    _UNLABELLED: "with label -1, which is no class",
    _HAS_PROFILE: "with a colour profile: pixel values are kept; icc='srgb' converts those that are not sRGB",
    _DIVIDED: "divided into segments, with no pixel changed",
    _MENDED: "mended, with no pixel changed (no end marker, padding)",
}
_LOSSES = {  # among the changes
    "16-bit": "of 16 bits stored as 8: 12 bits in 16 keep 17 levels; keep_depth=True stores 16",
    "animated": "of several frames or pages: only the first is packed",
}


def count_notes(packed: Mapping[str, int]) -> list[str]:
    """Say how many pictures were kept, changed or smaller than asked for."""
    notes = {_KEPT: "kept verbatim", _ENCODED: "re-encoded", **_NOTES}
    notes |= {what: f"{what}, kept that size" for what in packed if what.startswith(_SMALLER)}
    if changes := [f"{num:,} {what}" for what, num in packed.items() if what not in notes]:
        notes[_ENCODED] += f" ({', '.join(changes)})"
    found = [(what, note) for what, note in (notes | _LOSSES).items() if packed.get(what)]
    return [f"{counted(packed[what], 'picture')} {note}" for what, note in found]
