"""Statistics of a packed dataset: pixels per channel, sizes, classes, numbers.

Pixels are summed as integers, so mean and standard deviation are those of all pixels, rounded
once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from loaders.columns import FixedColumn
from loaders.limits import usable_cores
from loaders.schema import (
    Array,
    Boxes,
    Categories,
    Features,
    Image,
    Label,
    Mask,
    MultiLabel,
    Text,
    Tokens,
)
from packdata.pool import OrderedPool, one_opencv_thread
from packdata.reader import PackedReader
from packdata.rows import blocks, categories_stats, features_stats, is_row
from packdata.tokens.rows import DOCUMENT_ENDS
from packdata.tokens.show import token_stats
from packdata.tokens.split import has_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from loaders.columns import Column
    from loaders.schema import Field

PERCENTILES = (0, 5, 50, 95, 100)
_EXACT_PIXELS = 1 << 21  # OpenCV sums in float64: exact below 2**53, with room


class _Sums(NamedTuple):
    """What one value contributes; sums are of the finite numbers, per channel."""

    num: int
    sums: tuple[float, ...]
    squares: tuple[float, ...]
    least: float
    most: float
    num_nan: int
    shape: tuple[int, ...]
    values: dict[int, int]  # of a mask: pixels by value


@dataclass(slots=True)
class Moments:
    """Mean, deviation and range of numbers, gathered value by value.

    Attributes:
        count: Numbers (per channel) seen, without NaN.
        num_nan: NaNs seen.
        least: The smallest number.
        most: The largest number.
    """

    count: int = 0
    num_nan: int = 0
    least: float = math.inf
    most: float = -math.inf
    _sums: list[float] = field(default_factory=list)
    _squares: list[float] = field(default_factory=list)

    def add(self, part: _Sums) -> None:
        """Take the sums of one value in."""
        if not self._sums:
            self._sums = [0] * len(part.sums)
            self._squares = [0] * len(part.sums)
        self.count += part.num
        self.num_nan += part.num_nan
        self.least, self.most = min(self.least, part.least), max(self.most, part.most)
        for c, (total, squares) in enumerate(zip(part.sums, part.squares, strict=True)):
            self._sums[c] += total
            self._squares[c] += squares

    @property
    def mean(self) -> list[float]:
        """Mean of each channel."""
        return [total / self.count if self.count else math.nan for total in self._sums]

    @property
    def std(self) -> list[float]:
        """Standard deviation of each channel: of the population, not of a sample of it."""
        n = self.count
        pairs = zip(self._sums, self._squares, strict=True)
        # With whole numbers the difference is exact, however large: these are Python's integers.
        return [math.sqrt(max(0, n * q - s * s)) / n if n else math.nan for s, q in pairs]


@dataclass(slots=True)
class Stats:
    """What ``stats`` found.

    Attributes:
        num_samples: Samples of the dataset.
        num_decoded: Samples whose values were decoded: all, or the limit.
        fields: By field: JSON types whose names say what they are.
        bytes_per_sample: Percentile by its number.
    """

    num_samples: int
    num_decoded: int
    fields: dict[str, dict[str, Any]]
    bytes_per_sample: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON types; ``Normalize.from_stats`` reads them."""
        described: dict[str, Any] = {
            "num_samples": self.num_samples,
            "num_decoded": self.num_decoded,
            "bytes_per_sample": self.bytes_per_sample,
            "fields": self.fields,
        }
        for name, found in self.fields.items():
            if found["kind"] == "image":
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

    Args:
        path: The dataset's folder.
        limit: Decode only so many samples, evenly spread; classes, sizes in bytes and single
            numbers are of all.
        workers: Threads; all cores by default.
        tick: Called with the number of samples decoded, one at a time.

    Raises:
        SampleError: A record cannot be decoded.
        ShardError: A shard is missing, or what is read of it is damaged.
    """
    reader = PackedReader(path, check=True)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    num = len(reader) if limit is None else min(limit, len(reader))
    indices = [i * len(reader) // num for i in range(num)]
    fields = reader.schema.fields
    decoded = [name for name, kind in fields.items() if _is_decoded(kind)]
    if has_tokens(reader.schema):
        decoded.remove(DOCUMENT_ENDS)  # positions in rows mean nothing
    found = {name: _of_all(reader, name, kind) for name, kind in fields.items()}
    gathered = {name: _Gathered(fields[name]) for name in decoded}
    if decoded:
        for sums in _decode(reader, indices, decoded, workers or usable_cores()):
            for name, part in zip(decoded, sums, strict=True):
                gathered[name].add(part)
            tick(1)
    for name, values in gathered.items():
        found[name] |= values.to_json()
    return Stats(len(reader), num, found, _percentiles(_bytes_per_sample(reader)))


def _is_decoded(kind: Field) -> bool:
    is_array = isinstance(kind, Array) and kind.dims != () and not is_row(kind)
    return isinstance(kind, Image | Mask | Boxes) or is_array


def _decode(
    reader: PackedReader, indices: Sequence[int], names: Sequence[str], workers: int
) -> Iterator[list[_Sums]]:
    def measure(i: int) -> list[_Sums]:
        sample = reader.sample(i, names)
        return [_sums_of(reader.schema.fields[name], sample[name]) for name in names]

    with one_opencv_thread(), OrderedPool(measure, workers) as pool:
        yield from chain.from_iterable(pool.put(i) for i in indices)
        yield from pool.drain()


def _has_channels(kind: Field) -> bool:
    """Tell whether a field holds arrays with one axis of channels before the spatial ones."""
    return isinstance(kind, Array) and len(kind.dims) - 1 == (kind.spatial or -1)


def _channels(value: npt.NDArray[Any]) -> tuple[list[npt.NDArray[Any]], int]:
    """Return the channels of an array, without the places that are NaN in one, and how many those are."""
    if value.dtype.kind != "f" or not (is_nan := np.isnan(value)).any():
        return list(value), 0
    known = ~is_nan.any(axis=0)
    return [plane[known] for plane in value], int(is_nan.sum())


def _sums_of(kind: Field, value: npt.NDArray[Any]) -> _Sums:
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
        return _sums_of_pixels(planes, value.shape)
    parts = [_sums_of_numbers(plane) for plane in planes]
    sums, squares = tuple(p.sums[0] for p in parts), tuple(p.squares[0] for p in parts)
    least, most = min(p.least for p in parts), max(p.most for p in parts)
    num_nan += sum(p.num_nan for p in parts)
    return _Sums(parts[0].num, sums, squares, least, most, num_nan, value.shape, values)


def _sums_of_pixels(planes: list[npt.NDArray[Any]], shape: tuple[int, ...]) -> _Sums:
    """Sum bytes fast: OpenCV lets other threads run meanwhile."""
    planes = [np.ascontiguousarray(plane) for plane in planes]
    sums = tuple(int(cv2.sumElems(plane)[0]) for plane in planes)
    squares = tuple(round(cv2.norm(plane, cv2.NORM_L2SQR)) for plane in planes)
    ranges = [cv2.minMaxLoc(plane)[:2] for plane in planes]
    least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    return _Sums(planes[0].size, sums, squares, least, most, 0, shape, {})


def _sums_of_numbers(numbers: npt.NDArray[Any]) -> _Sums:
    """Sum whole numbers exactly, others in float64, without NaN."""
    flat, num_nan = numbers.reshape(-1), 0
    if flat.dtype.kind == "f":
        known = ~np.isnan(flat)
        num_nan = int(flat.size - known.sum())
        flat = flat[known].astype(np.float64)
    if not flat.size:
        return _Sums(0, (0,), (0,), math.inf, -math.inf, num_nan, numbers.shape, {})
    least, most = flat.min().item(), flat.max().item()
    total, squares = _exact(flat, least, most) if flat.dtype.kind in "iub" else _floats(flat)
    return _Sums(flat.size, (total,), (squares,), least, most, num_nan, numbers.shape, {})


def _exact(flat: npt.NDArray[Any], least: int, most: int) -> tuple[float, float]:
    largest = max(abs(int(least)), abs(int(most)))
    if largest * largest * flat.size < 2**63:
        wide = flat.astype(np.int64)
        return int(wide.sum()), int(np.dot(wide, wide))
    return _floats(flat.astype(np.float64))


def _floats(flat: npt.NDArray[np.float64]) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(flat.sum()), float(np.square(flat).sum())


class _Gathered:
    """The statistics of one decoded field while they come in."""

    def __init__(self, kind: Field) -> None:
        self.kind, self.moments = kind, Moments()
        self._shapes: list[tuple[int, ...]] = []
        self._values: Counter[int] = Counter()

    def add(self, part: _Sums) -> None:
        self.moments.add(part)
        self._shapes.append(part.shape)
        self._values.update(part.values)

    def to_json(self) -> dict[str, Any]:
        if isinstance(self.kind, Boxes):
            counts = np.array([shape[0] for shape in self._shapes])
            return {"boxes_per_sample": _percentiles(counts), "num_boxes": int(counts.sum())}
        if isinstance(self.kind, Mask):
            values = {str(v): n for v, n in sorted(self._values.items())}
            return _sizes(self._shapes) | {"pixels_by_value": values}
        if isinstance(self.kind, Image):
            most = int(np.iinfo(self.kind.dtype).max)
            pixels = {"mean": self.moments.mean, "std": self.moments.std, "max_value": most}
            return (
                _sizes(self._shapes)
                | pixels
                | {"min": self.moments.least, "max": self.moments.most}
            )
        numbers = _numbers(self.moments)
        if _has_channels(self.kind) and self.moments.count:
            channels = {"mean": self.moments.mean, "std": self.moments.std}
            numbers |= {name: [_finite(x) for x in xs] for name, xs in channels.items()}
        return numbers


def _sizes(shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    sizes = np.array([shape[:2] for shape in shapes])
    return {
        side: dict(
            zip(
                ("min", "median", "max"),
                np.quantile(sizes[:, axis], (0, 0.5, 1)).tolist(),
                strict=True,
            )
        )
        for axis, side in enumerate(("height", "width"))
    }


def _numbers(moments: Moments) -> dict[str, Any]:
    """Return range and mean; None where there is no number, for JSON has no NaN."""
    known = bool(moments.count)
    mean, std = (moments.mean[0], moments.std[0]) if known else (None, None)
    found = {"min": moments.least, "mean": mean, "std": std, "max": moments.most}
    plain = {name: _finite(value) if known else None for name, value in found.items()}
    return plain | {"num_nan": moments.num_nan}


def _finite(value: Any) -> Any:
    return value if value is None or math.isfinite(value) else str(value)


def _of_all(reader: PackedReader, name: str, kind: Field) -> dict[str, Any]:
    """Return what is cheap to know of every sample."""
    found: dict[str, Any] = {"kind": kind.kind}
    if isinstance(kind, Label):
        numbers, counts = np.unique(reader.column(name), return_counts=True)
        classes = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        if kind.classes is not None:  # also those that have no sample
            classes = {i: classes.get(i, 0) for i in {*range(len(kind.classes)), *classes}}
        found["classes"] = {_class_name(kind, i): n for i, n in sorted(classes.items())}
    elif isinstance(kind, MultiLabel):
        counts = (reader.column(name) != 0).sum(axis=0)
        found["classes"] = dict(zip(kind.classes, counts.tolist(), strict=True))
    elif isinstance(kind, Tokens):
        found |= token_stats(reader)
    elif isinstance(kind, Features):
        found |= features_stats(reader, name, kind)
    elif isinstance(kind, Categories):
        found |= categories_stats(reader, name, kind)
    elif isinstance(kind, Array) and kind.dims == ():
        moments = Moments()
        moments.add(_sums_of_numbers(reader.column(name)))
        found |= _numbers(moments)
    elif is_row(kind):
        moments = Moments()
        for rows in blocks(reader, name):
            moments.add(_sums_of_numbers(rows))
        found |= _numbers(moments)
    elif isinstance(kind, Text):
        found["nbytes"] = _percentiles(_lengths(reader.column_parts(name)))
    return found


def _class_name(kind: Label, number: int) -> str:
    known = kind.classes is not None and 0 <= number < len(kind.classes)
    return kind.classes[number] if known and kind.classes is not None else str(number)


def _lengths(columns: Iterable[Column]) -> npt.NDArray[np.int64]:
    parts = [np.empty(0, np.int64)]
    for column in columns:
        if isinstance(column, FixedColumn):
            parts.append(np.full(len(column), column.data.shape[1], np.int64))
        else:
            parts.append(column.lengths)
    return np.concatenate(parts)


def _bytes_per_sample(reader: PackedReader) -> npt.NDArray[np.int64]:
    total = np.zeros(len(reader), np.int64)
    for name in reader.schema.fields:
        # Only sizes are read here: checking the rows would read what --limit leaves out.
        total += _lengths(columns[name] for _, columns in reader.shards())
    return total


def _percentiles(numbers: npt.NDArray[Any]) -> dict[str, float]:
    if not len(numbers):
        return {}
    values = np.percentile(numbers, PERCENTILES).tolist()
    names = ("min", *(f"p{p}" for p in PERCENTILES[1:-1]), "max")
    return dict(zip(names, values, strict=True))
