"""Statistics of a packed dataset: pixels per channel, sizes, classes, numbers.

Pixels are summed as integers, so mean and standard deviation are those of all pixels, rounded
once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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
_EXACT_PIXELS = 1 << 21  # OpenCV sums in float64: exact below 2**53, with room


class _Value(NamedTuple):
    """What one value contributes: its numbers per channel, without NaN."""

    channels: Sequence[Summary]
    num_nan: int
    shape: tuple[int, ...]
    values: dict[int, int]  # of a mask: pixels by value
    whole: Summary | None = None  # of all channels, where others may have more or fewer


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
    gathered = {name: _Gathered(kind) for name, kind in fields.items() if name in decoded}
    if decoded:
        for values in _decode(view, indices, decoded, workers or usable_cores()):
            for name, value in zip(decoded, values, strict=True):
                gathered[name].add(value)
            tick(1)
    for name, field in gathered.items():
        found[name] |= field.to_json()
    return Stats(len(whole), num, found, percentiles(_bytes_per_sample(view)))


def _is_decoded(kind: Field) -> bool:
    is_array = isinstance(kind, Array) and kind.dims != () and not _is_row(kind)
    return isinstance(kind, Image | Images | Mask | Boxes) or is_array


def _decode(
    view: View, indices: Sequence[int], names: Sequence[str], workers: int
) -> Iterator[list[_Value | list[_Value]]]:
    """Yield what the values of each sample contribute, or of several pictures what each does."""
    kinds = {name: view.schema.fields[name] for name in names}

    def measure(i: int) -> list[_Value | list[_Value]]:
        sample = view.sample(i, names)
        return [
            [_value_of(kind.one, each) for each in sample[name]]
            if isinstance(kind, Images)
            else _value_of(kind, sample[name])
            for name, kind in kinds.items()
        ]

    with opencv.one_thread(), OrderedPool(measure, workers) as pool:
        yield from pool.map(indices)


def _has_channels(kind: Field) -> bool:
    """Tell whether a field holds arrays with one axis of channels before the spatial ones."""
    return isinstance(kind, Array) and len(kind.dims) - 1 == (kind.spatial or -1)


def _channels(value: npt.NDArray[Any]) -> tuple[list[npt.NDArray[Any]], int]:
    """Return the channels of an array, without the places that are NaN in one, and how many those are."""
    if value.dtype.kind != "f" or not (is_nan := np.isnan(value)).any():
        return list(value), 0
    known = ~is_nan.any(axis=0)
    return [plane[known] for plane in value], int(is_nan.sum())


def _value_of(kind: Field, value: npt.NDArray[Any]) -> _Value:
    values: dict[int, int] = {}
    if isinstance(kind, Mask):
        numbers, counts = np.unique(value, return_counts=True)
        values = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    planes, num_nan = [value], 0
    if isinstance(kind, Image):
        planes = [value[..., c] for c in range(value.shape[-1])]
    elif _has_channels(kind):
        planes, num_nan = _channels(value)
    if isinstance(kind, Image) and value.dtype == np.uint8 and value[..., 0].size <= _EXACT_PIXELS:
        return _Value([_moments_of_pixels(plane) for plane in planes], 0, value.shape, values)
    found = [_moments_of(plane) for plane in planes]
    num_nan += sum(num for _, num in found)
    varies = isinstance(kind, Array) and _has_channels(kind) and kind.dims[0] is None
    whole = _moments_of(value)[0] if varies else None
    return _Value([moments for moments, _ in found], num_nan, value.shape, values, whole)


def _moments_of_pixels(plane: npt.NDArray[Any]) -> WholeMoments:
    """Sum bytes fast: OpenCV lets other threads run meanwhile."""
    plane = np.ascontiguousarray(plane)
    total, squares = int(cv2.sumElems(plane)[0]), round(cv2.norm(plane, cv2.NORM_L2SQR))
    least, most = cv2.minMaxLoc(plane)[:2]
    return WholeMoments(plane.size, total, squares, least, most)


def _moments_of(numbers: npt.NDArray[Any]) -> tuple[Summary, int]:
    """Return what numbers other than NaN come to, and how many are NaN."""
    if numbers.dtype.kind != "f":
        return WholeMoments.of(numbers), 0
    known = numbers[~np.isnan(numbers)]
    return Moments.of(known), numbers.size - known.size


class _Gathered:
    """The statistics of one decoded field while they come in; of several pictures a sample, those of all."""

    def __init__(self, kind: Field) -> None:
        self.kind = kind.one if isinstance(kind, Images) else kind
        self._counts: list[int] | None = [] if isinstance(kind, Images) else None  # by sample
        self._channels: list[Summary] = []
        self._whole: Summary = Moments()
        self._is_varied = False
        self._num_nan = 0
        self._shapes: list[tuple[int, ...]] = []
        self._values: Counter[int] = Counter()

    def add(self, value: _Value | list[_Value]) -> None:
        if self._counts is not None and isinstance(value, list):
            self._counts.append(len(value))
        for each in value if isinstance(value, list) else [value]:
            self._add(each)

    def _add(self, value: _Value) -> None:
        if not self._shapes:
            self._channels, self._whole = list(value.channels), value.whole or Moments()
        else:
            self._is_varied |= len(value.channels) != len(self._channels)
            for mine, other in zip(self._channels, value.channels, strict=False):
                mine.add(other)
            if value.whole is not None:
                self._whole.add(value.whole)
        self._num_nan += value.num_nan
        self._shapes.append(value.shape)
        self._values.update(value.values)

    def to_json(self) -> dict[str, Any]:
        if self._counts is None:
            return self._to_json()
        counts = {"images_per_sample": percentiles(np.array(self._counts))}
        pixels = self._to_json() if any(self._counts) else {}
        return {**counts, "num_images": sum(self._counts), **pixels}

    def _to_json(self) -> dict[str, Any]:
        if isinstance(self.kind, Boxes):
            counts = np.array([shape[0] for shape in self._shapes])
            return {"boxes_per_sample": percentiles(counts), "num_boxes": int(counts.sum())}
        if isinstance(self.kind, Mask):
            values = {str(v): n for v, n in sorted(self._values.items())}
            return _sizes(self._shapes) | {"pixels_by_value": values}
        if isinstance(self.kind, Image):
            most = int(np.iinfo(self.kind.dtype).max)
            return _sizes(self._shapes) | self._by_channel() | {"max_value": most} | self._range()
        if self._is_varied:
            return _numbers_of(self._whole, self._num_nan)
        if _has_channels(self.kind) and self._channels and self._channels[0].count:
            return self._by_channel() | self._range() | {"num_nan": self._num_nan}
        return _numbers_of(self._channels[0] if self._channels else Moments(), self._num_nan)

    def _by_channel(self) -> dict[str, Any]:
        return {
            "mean": [_finite(channel.mean) for channel in self._channels],
            "std": [_finite(channel.std) for channel in self._channels],
        }

    def _range(self) -> dict[str, Any]:
        least = min((channel.least for channel in self._channels), default=math.inf)
        most = max((channel.most for channel in self._channels), default=-math.inf)
        return {"min": _finite(least), "max": _finite(most)}


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
    found = [_moments_of(rows) for rows in parts]
    total: Summary = found[0][0] if found else Moments()
    for moments, _ in found[1:]:
        total.add(moments)
    return _numbers_of(total, sum(num_nan for _, num_nan in found))


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
