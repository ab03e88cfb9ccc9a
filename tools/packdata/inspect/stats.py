"""Statistics of a packed dataset: pixels per channel, sizes, classes, numbers.

Pixels are summed as integers, so mean and standard deviation are those of all pixels, rounded
once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
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
from loaders.system import opencv
from loaders.system.limits import usable_cores
from packdata.moments import Moments, WholeMoments, percentiles
from packdata.packing.pool import OrderedPool
from packdata.tokens.rows import DOCUMENT_ENDS
from packdata.tokens.stream import has_tokens, token_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from loaders.data.view import View
    from loaders.schema import Field
    from packdata.moments import Summary

_MAX_NUMBERS = 4096  # of a row of which a whole column is read at once


@dataclass(slots=True)
class Stats:
    """What ``stats`` found."""

    num_samples: int
    num_decoded: int  # samples whose values were decoded: all, or the limit
    fields: dict[str, dict[str, Any]]  # by field: JSON types whose names say what they are
    bytes_per_sample: dict[str, float]  # percentile by its number

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON types; ``Normalize.from_stats`` reads them."""
        described: dict[str, Any] = {
            "num_samples": self.num_samples,
            "num_decoded": self.num_decoded,
            "bytes_per_sample": self.bytes_per_sample,
            "fields": self.fields,
        }
        for name, found in self.fields.items():
            if found["kind"] in ("image", "images") and "mean" in found:
                pixels = {key: found[key] for key in ("mean", "std", "max_value")}
                return {"image": name, **pixels, **described}
        return described


def stats(
    path: Path | str,
    *,
    limit: int | None = None,
    workers: int | None = None,
    tick: Callable[[int], object] = int,
) -> Stats:
    """Compute the statistics of a packed dataset, on all cores.

    With a ``limit``, only so many samples are decoded, evenly spread; classes, sizes in bytes and single numbers are
    of all. At a URL everything is then of the samples of the first two shards. ``tick`` is called with the number of
    samples decoded, one at a time.

    Raises:
        SampleError: A record cannot be decoded.
        ShardError: A shard is missing, or what is read of it is damaged.
    """
    whole = open_view(path)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    view = whole if limit is None else whole.first_at_url()
    num = len(view) if limit is None else min(limit, len(view))
    indices = [i * len(view) // num for i in range(num)]
    fields = view.schema.fields
    decoded = [name for name, kind in fields.items() if _is_decoded(kind)]
    if has_tokens(view.schema):
        decoded.remove(DOCUMENT_ENDS)  # positions in rows mean nothing
    found = {name: _of_all(view, name, kind) for name, kind in fields.items()}
    gathered = {name: _Gathered() for name in fields if name in decoded}
    if decoded:
        for values in _decode(view, indices, decoded, workers or usable_cores()):
            for name, value in zip(decoded, values, strict=True):
                gathered[name].add(value)
            tick(1)
    for name, each in gathered.items():
        found[name] |= each.to_json(fields[name])
    return Stats(len(whole), num, found, percentiles(_bytes_per_sample(view)))


def _is_decoded(kind: Field) -> bool:
    is_array = isinstance(kind, Array) and kind.dims != () and not _is_row(kind)
    return isinstance(kind, Image | Images | Mask | Boxes) or is_array


def _decode(
    view: View, indices: Sequence[int], names: Sequence[str], workers: int
) -> Iterator[list[_Gathered]]:
    """Yield what the values of each sample contribute."""

    def measure(i: int) -> list[_Gathered]:
        sample = view.sample(i, names)
        return [_gathered(view.schema.fields[name], sample[name]) for name in names]

    with opencv.one_thread(), OrderedPool(measure, workers) as pool:
        yield from pool.map(indices)


def _has_channels(kind: Field) -> bool:
    """Tell whether a field holds arrays with one axis of channels, as many in each, before the spatial ones."""
    if not isinstance(kind, Array) or len(kind.dims) - 1 != (kind.spatial or -1):
        return False
    return kind.dims[0] is not None


def _gathered(kind: Field, value: Any) -> _Gathered:
    """Return the statistics of one value, of several pictures those of all."""
    if isinstance(kind, Images):
        found = _Gathered()
        for picture in value:
            found.add(_gathered(kind.one, picture))
        return found
    values = Counter[int]()
    if isinstance(kind, Mask):
        numbers, counts = np.unique(value, return_counts=True)
        values.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    planes = [value]
    if isinstance(kind, Image):
        planes = [value[..., c] for c in range(value.shape[-1])]
    elif _has_channels(kind):
        planes = list(value)
    channels = [_summary_of(plane) for plane in planes]
    num_nan = value.size - sum(each.count for each in channels)
    return _Gathered(channels, num_nan, [value.shape], values)


def _summary_of(numbers: npt.NDArray[Any]) -> Summary:
    """Return what numbers other than NaN come to: of few bits, from exact sums."""
    if numbers.dtype == np.uint8 and numbers.ndim == 2:
        plane = np.ascontiguousarray(numbers)  # OpenCV lets other threads run meanwhile
        total, squares = int(cv2.sumElems(plane)[0]), round(cv2.norm(plane, cv2.NORM_L2SQR))
        return WholeMoments(plane.size, total, squares, *cv2.minMaxLoc(plane)[:2])
    if numbers.dtype.kind != "f":
        return (WholeMoments if numbers.itemsize <= 2 else Moments).of(numbers)
    return Moments.of(numbers[~np.isnan(numbers)])


@dataclass(slots=True)
class _Gathered:
    """The statistics of a decoded field: numbers per channel, without NaN."""

    channels: list[Summary] = field(default_factory=list)
    num_nan: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    values: Counter[int] = field(default_factory=Counter)  # of masks: pixels by value
    counts: list[int] = field(default_factory=list)  # of what was added: pictures of a sample

    def add(self, other: _Gathered) -> None:
        """Take another one in."""
        for mine, its in zip(self.channels, other.channels, strict=False):
            mine.add(its)
        self.channels = self.channels or other.channels
        self.num_nan += other.num_nan
        self.shapes += other.shapes
        self.values.update(other.values)
        self.counts.append(len(other.shapes))

    def to_json(self, kind: Field) -> dict[str, Any]:
        """Return what is known, as JSON types."""
        if isinstance(kind, Boxes):
            counts = np.array([shape[0] for shape in self.shapes])
            return {"boxes_per_sample": percentiles(counts), "num_boxes": int(counts.sum())}
        if isinstance(kind, Images):
            counts = np.array(self.counts)
            found = {"images_per_sample": percentiles(counts), "num_images": int(counts.sum())}
            return found | (self._pixels(kind.dtype) if self.shapes else {})
        if isinstance(kind, Image):
            return self._pixels(kind.dtype)
        if isinstance(kind, Mask):
            values = {str(v): n for v, n in sorted(self.values.items())}
            return _sizes(self.shapes) | {"pixels_by_value": values}
        if _has_channels(kind) and self.channels and self.channels[0].count:
            return self._by_channel() | {"num_nan": self.num_nan}
        return _numbers_of(self.channels[0] if self.channels else Moments(), self.num_nan)

    def _pixels(self, dtype: str) -> dict[str, Any]:
        most = int(np.iinfo(dtype).max)
        return _sizes(self.shapes) | self._by_channel() | {"max_value": most}

    def _by_channel(self) -> dict[str, Any]:
        return {
            "mean": [_finite(channel.mean) for channel in self.channels],
            "std": [_finite(channel.std) for channel in self.channels],
            "min": _finite(min(channel.least for channel in self.channels)),
            "max": _finite(max(channel.most for channel in self.channels)),
        }


def _sizes(shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    ends = np.quantile([shape[:2] for shape in shapes], (0, 0.5, 1), axis=0).T.tolist()
    names = ("min", "median", "max")
    return {
        side: dict(zip(names, three, strict=True))
        for side, three in zip(("height", "width"), ends, strict=True)
    }


def _of_all(view: View, name: str, kind: Field) -> dict[str, Any]:
    """Return what is cheap to know of every sample."""
    found: dict[str, Any] = {"kind": kind.kind}
    if isinstance(kind, Label):
        numbers, counts = np.unique(view.column(name), return_counts=True)
        classes = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        if kind.classes is not None:  # also those that have no sample
            classes = {i: classes.get(i, 0) for i in {*range(len(kind.classes)), *classes}}
        found["classes"] = {_class_name(kind, i): n for i, n in sorted(classes.items())}
    elif isinstance(kind, MultiLabel):
        counts = (view.column(name) != 0).sum(axis=0)
        found["classes"] = dict(zip(kind.classes, counts.tolist(), strict=True))
    elif isinstance(kind, Tokens):
        found |= token_stats(view)
    elif isinstance(kind, Features):
        found |= _features_stats(view, name, kind)
    elif isinstance(kind, Categories):
        found |= _categories_stats(view, name, kind)
    elif (isinstance(kind, Array) and kind.dims == ()) or _is_row(kind):
        found |= _stats_of_rows(view.blocks(name))
    elif isinstance(kind, Text):
        view.verify(name)
        found["nbytes"] = percentiles(view.lengths(name))
    return found


def _stats_of_rows(parts: Iterable[npt.NDArray[Any]]) -> dict[str, Any]:
    total, num = Moments(), 0
    for rows in parts:
        total.add(Moments.of(rows[~np.isnan(rows)] if rows.dtype.kind == "f" else rows))
        num += rows.size
    return _numbers_of(total, num - total.count)


def _class_name(kind: Label, number: int) -> str:
    classes = kind.classes or ()
    return classes[number] if 0 <= number < len(classes) else str(number)


def _bytes_per_sample(view: View) -> npt.NDArray[np.int64]:
    total = np.zeros(len(view), np.int64)
    for name in view.schema.fields:
        total += view.lengths(name)  # not the rows: limit leaves most of them out
    return total


# -- rows of tables: column by column, never row by row -----------------------------------------------


def _is_row(kind: Field) -> bool:
    """Tell whether values are short rows of numbers, of which a whole column is read at once."""
    if isinstance(kind, Categories):
        return True
    is_short = isinstance(kind, Array) and kind.is_fixed and len(kind.dims) == 1
    return is_short and (kind.shape or (0,))[0] in range(1, _MAX_NUMBERS + 1)


def _features_stats(view: View, name: str, kind: Features) -> dict[str, Any]:
    """Return mean, deviation, range and number of NaN of each column, as stored."""
    found = [Moments() for _ in kind.columns]
    for rows in view.blocks(name):
        for moments, values in zip(found, np.ascontiguousarray(rows.T), strict=True):
            moments.add(Moments.of(values[~np.isnan(values)]))
    columns = zip(kind.columns, found, strict=True)
    return ({"standardized": True} if kind.standardized else {}) | {
        "columns": {name: _numbers_of(each, len(view) - each.count) for name, each in columns}
    }


def _numbers_of(moments: Summary, num_nan: int) -> dict[str, Any]:
    """Return range, mean and deviation as JSON types; None where there is no number."""
    names = {"min": "least", "mean": "mean", "std": "std", "max": "most"}
    plain = {
        name: _finite(getattr(moments, key)) if moments.count else None
        for name, key in names.items()
    }
    return plain | {"num_nan": num_nan}


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
    return {"columns": columns}
