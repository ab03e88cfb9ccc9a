"""Statistics of a packed dataset: pixels per channel, sizes, classes, numbers."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt

from loaders.data.view import open_view
from loaders.schema import (
    Array,
    Boxes,
    Categories,
    Features,
    Image,
    Images,
    Label,
    Mask,
    MultiLabel,
    Text,
    Tokens,
)
from loaders.schema.tokens import DOCUMENT_ENDS
from loaders.system import opencv
from loaders.system.limits import usable_cores
from packdata.moments import Moments, percentiles
from packdata.packing.pool import OrderedPool
from packdata.packing.progress import Quiet
from packdata.tokens.rows import has_tokens, token_stats

if TYPE_CHECKING:
    from loaders.data.view import View
    from loaders.remote.url import Location
    from loaders.schema import Field
    from packdata.packing.progress import Progress


@dataclass(slots=True)
class Stats:
    """What ``stats`` found."""

    num_samples: int
    num_decoded: int  # samples whose values were decoded: all, or the limit
    bytes_per_sample: dict[str, float]  # percentile by its number
    fields: dict[str, dict[str, Any]]  # by field: JSON types whose names say what they are

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON types; ``Normalize.from_stats`` reads them."""
        described = asdict(self)
        for name, found in self.fields.items():
            if found["kind"] in ("image", "images") and "mean" in found:
                pixels = {key: found[key] for key in ("mean", "std", "max_value")}
                return {"image": name, **pixels, **described}
        return described


def stats(
    path: Location | str,
    *,
    limit: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Compute the statistics of a packed dataset, on all cores.

    With a ``limit``, only so many samples are decoded, evenly spread; classes, sizes in bytes and single numbers are
    of all. At a URL everything is then of the samples of the first two shards. ``progress`` counts those decoded.

    Raises:
        SampleError: A record cannot be decoded.
        ShardError: A shard is missing, or what is read of it is damaged.
    """
    whole = open_view(path)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    view = whole if limit is None else whole.first_at_url()
    num = len(view) if limit is None else min(limit, len(view))
    fields = view.schema.fields
    gathered = {name: _Gathered() for name, kind in fields.items() if _is_decoded(kind)}
    if has_tokens(view.schema):
        del gathered[DOCUMENT_ENDS]  # positions in rows mean nothing

    def measure(i: int) -> list[_Gathered]:
        sample = view.sample(i, [*gathered])
        return [_Gathered.of(fields[name], sample[name]) for name in gathered]

    found = {name: {"kind": kind.kind} | _of_all(view, name) for name, kind in fields.items()}
    shown, pool = progress or Quiet(), OrderedPool(measure, workers or usable_cores())
    with closing(shown), opencv.one_thread(), pool:
        shown.start(num, 0)
        indices = (i * len(view) // num for i in range(num if gathered else 0))
        for each in pool.map(indices):
            for total, one in zip(gathered.values(), each, strict=True):
                total.add(one)
            shown.advance(0)
    for name, total in gathered.items():
        found[name] |= total.to_json(fields[name])
    nbytes = sum(map(view.lengths, fields), np.zeros(len(view), np.int64))
    return Stats(len(whole), num, percentiles(nbytes), found)


def _is_decoded(kind: Field) -> bool:
    """Tell whether values are read one by one, not as a whole column."""
    return isinstance(kind, Image | Images | Mask | Array) and not _is_column(kind)


def _is_column(kind: Field) -> bool:
    """Tell whether values are numbers, or rows of them: small enough that a limit does not count for them."""
    return isinstance(kind, Array) and kind.is_fixed and not kind.spatial and len(kind.dims) < 2


# -- samples, decoded one by one -------------------------------------------------------------------


@dataclass(slots=True)
class _Gathered:
    """The statistics of a decoded field: numbers per channel, without NaN."""

    channels: list[Moments] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    values: Counter[int] = field(default_factory=Counter)  # of masks: pixels by value
    counts: list[int] = field(default_factory=list)  # of what was added: pictures of a sample

    @classmethod
    def of(cls, kind: Field, value: Any) -> _Gathered:
        """Summarize one value, of several pictures all of them."""
        if isinstance(kind, Images):
            found = cls()
            for picture in value:
                found.add(cls.of(kind.one, picture))
            return found
        if isinstance(kind, Mask):
            numbers, counts = np.unique(value, return_counts=True)
            pixels = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
            return cls(shapes=[value.shape], values=Counter(pixels))
        planes = value if _has_channels(kind) else [value]
        if isinstance(kind, Image):
            planes = np.moveaxis(value, -1, 0)
        return cls([*map(_moments_of, planes)], [value.shape])

    def add(self, other: _Gathered) -> None:
        """Take another one in."""
        for mine, its in zip(self.channels, other.channels, strict=False):
            mine.add(its)
        self.channels = self.channels or other.channels
        self.shapes += other.shapes
        self.values.update(other.values)
        self.counts.append(len(other.shapes))

    def to_json(self, kind: Field) -> dict[str, Any]:
        """Return what is known, as JSON types."""
        found: dict[str, Any] = {}
        if isinstance(kind, Images):
            found["images_per_sample"] = percentiles(np.array(self.counts))
            found["num_images"] = len(self.shapes)
        if isinstance(kind, Image | Images | Mask) and self.shapes:
            ends = np.quantile([shape[:2] for shape in self.shapes], (0, 0.5, 1), axis=0)
            sides = zip(("height", "width"), ends.T.tolist(), strict=True)
            names = ("min", "median", "max")
            found |= {side: dict(zip(names, at, strict=True)) for side, at in sides}
        if isinstance(kind, Mask):
            pixels = {str(value): num for value, num in sorted(self.values.items())}
            return found | {"pixels_by_value": pixels}
        if isinstance(kind, Image | Images):
            most = {"max_value": int(np.iinfo(kind.dtype).max)}
            return found | (self._by_channel() | most if self.shapes else {})
        num_nan = sum(map(math.prod, self.shapes)) - sum(each.count for each in self.channels)
        if _has_channels(kind) and self.channels and self.channels[0].count:
            return self._by_channel() | {"num_nan": num_nan}
        return _numbers_of(self.channels[0] if self.channels else Moments(), num_nan)

    def _by_channel(self) -> dict[str, Any]:
        return {
            "mean": [_finite(channel.mean) for channel in self.channels],
            "std": [_finite(channel.std) for channel in self.channels],
            "min": _finite(min(channel.least for channel in self.channels)),
            "max": _finite(max(channel.most for channel in self.channels)),
        }


def _has_channels(kind: Field) -> bool:
    """Tell whether a field holds arrays with one axis of channels, as many in each, before the spatial ones."""
    is_volume = isinstance(kind, Array) and len(kind.dims) - 1 == (kind.spatial or -1)
    return is_volume and kind.shape is not None and kind.shape[0] is not None


def _moments_of(numbers: npt.NDArray[Any]) -> Moments:
    """Return what numbers other than NaN come to."""
    if numbers.dtype == np.uint8 and numbers.ndim == 2:
        plane, size = np.ascontiguousarray(numbers), numbers.size
        # OpenCV lets other threads run meanwhile; whole numbers are exact.
        total, squares = int(cv2.sumElems(plane)[0]), round(cv2.norm(plane, cv2.NORM_L2SQR))
        apart = (size * squares - total * total) / size
        return Moments(size, total / size, apart, *cv2.minMaxLoc(plane)[:2])
    return Moments.of(numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers)


# -- all samples: column by column, never row by row ---------------------------------------------------


def _of_all(view: View, name: str) -> dict[str, Any]:
    """Return what is cheap to know of every sample."""
    kind = view.schema.fields[name]
    if isinstance(kind, Label):
        counts, classes = Counter(view.column(name).tolist()), dict(enumerate(kind.classes or ()))
        numbers = sorted({*classes, *counts})  # also those that have no sample
        return {"classes": {classes.get(i, str(i)): counts[i] for i in numbers}}
    if isinstance(kind, MultiLabel):
        nums = (view.column(name) != 0).sum(axis=0).tolist()
        return {"classes": dict(zip(kind.classes, nums, strict=True))}
    if isinstance(kind, Tokens):
        return token_stats(view)
    if isinstance(kind, Features):
        found = _numbers_by_column(view, name, len(kind.columns))
        columns = dict(zip(kind.columns, found, strict=True))
        return ({"standardized": True} if kind.standardized else {}) | {"columns": columns}
    if isinstance(kind, Categories):
        return {"columns": _categories_stats(view, name, kind)}
    if isinstance(kind, Boxes):
        boxes = view.lengths(name) // (4 * np.dtype(kind.dtype).itemsize)
        return {"boxes_per_sample": percentiles(boxes), "num_boxes": int(boxes.sum())}
    if _is_column(kind):
        return _numbers_by_column(view, name, 1)[0]
    if isinstance(kind, Text):
        view.verify(name)
        return {"nbytes": percentiles(view.lengths(name))}
    return {}


def _numbers_by_column(view: View, name: str, num: int) -> list[dict[str, Any]]:
    """Return what is known of the numbers in each column of a field, or of all as one column."""
    found, size = [Moments() for _ in range(num)], 0
    for rows in view.blocks(name):
        size += rows.size
        columns = rows.reshape(1, -1) if num == 1 else np.ascontiguousarray(rows.T)
        for total, numbers in zip(found, columns, strict=True):
            total.add(_moments_of(numbers))
    return [_numbers_of(total, size // num - total.count) for total in found]


def _numbers_of(moments: Moments, num_nan: int) -> dict[str, Any]:
    """Return range, mean and deviation as JSON types; None where there is no number."""
    found = moments.least, moments.mean, moments.std, moments.most
    numbers = [_finite(value) if moments.count else None for value in found]
    return dict(zip(("min", "mean", "std", "max"), numbers, strict=True)) | {"num_nan": num_nan}


def _finite(value: float) -> float | str:
    """Return a number, in words where JSON has none."""
    return value if math.isfinite(value) else str(value)


def _categories_stats(view: View, name: str, kind: Categories) -> dict[str, Any]:
    """Return how often each category of each column occurs; ``None`` counts 0."""
    counts = [np.zeros(num, np.int64) for num in kind.num_categories]
    for rows in view.blocks(name):
        for i, total in enumerate(counts):
            found = np.bincount(rows[:, i].astype(np.int64), minlength=len(total))
            total += found[: len(total)]
    columns = {}
    for column, words, total in zip(kind.columns, kind.vocabularies, counts, strict=True):
        order = np.argsort(-total[1:], kind="stable")[:8].tolist()
        columns[column] = {
            "num_categories": len(words),
            "num_unknown": int(total[0]),
            "most_frequent": {words[k]: int(total[k + 1]) for k in order},
        }
    return columns
