"""A dataset divided into parts that share its schema: always the same way, by label if wanted."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.errors import PackError, SchemaError
from loaders.rng import hash64, key64
from loaders.schema.tables import find_column
from packdata.reader import KEY_FIELD, PackedReader
from packdata.rewrite import check_target, format_of, origin, write_dataset
from packdata.rows import read_column
from packdata.shards import DEFAULT_SHARD_BYTES
from packdata.tokens.split import has_tokens, num_documents, rows_of_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.manifest import Manifest
    from packdata.recipe import Records
    from packdata.shards import Format

By = Literal["shuffle", "key-hash"]
_PURPOSE = 0x5B117  # so that no other use of the same seed draws the same numbers
_FEW_NUMBERS, _MANY_NUMBERS = 10, 100  # different ones of a column to stratify by: always, never
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def split(
    src: Path | str,
    dst: Path | str,
    parts: Mapping[str, float],
    *,
    by: By = "shuffle",
    stratify: str | None = None,
    seed: int = 0,
    format: Format | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    tick: Callable[[int], object] = int,
) -> dict[str, Manifest]:
    """Write each part of a dataset as a dataset, ``dst/<part>``; records stay as they are.

    Of tokens it is documents that are divided, and laid into rows anew.

    Args:
        src: The dataset's folder.
        dst: Folder of the parts' folders.
        parts: Fraction of the samples by name of the part; together at most 1, the rest is left
            out.
        by: ``shuffle`` meets the fractions exactly; ``key-hash`` only nearly, but a key stays in
            its part when samples are added or removed.
        stratify: A label field, other whole number, or column of a packed table, of which each
            part gets its share of every value.
        seed: Another seed, another division.
        format: Format of the parts; by default that of the original.
        shard_bytes: A shard ends with the sample that reaches this size.
        overwrite: Replace datasets that are there.
        tick: Called with the number of samples written, one at a time.

    Returns:
        The manifest of each part.

    Raises:
        ValueError: The fractions are not fractions, or the options contradict each other.
        SchemaError: The dataset lacks what the division goes by.
        PackError: A part would be empty, or its folder is taken.
    """
    reader = PackedReader(src, check=True)
    by_document = has_tokens(reader.schema)
    if by_document:
        if by != "shuffle" or stratify is not None:
            raise ValueError("documents have neither keys nor labels: divide them by shuffle")
        indices = split_documents(reader, list(parts.values()), seed)
    else:
        indices = split_indices(reader, list(parts.values()), by=by, stratify=stratify, seed=seed)
    for name, chosen in zip(parts, indices, strict=True):
        if not _PART_NAME.fullmatch(name):
            raise ValueError(f"a part is named by a plain folder name, got {name!r}")
        if not len(chosen):
            raise PackError(f"part {name!r} would be empty", reader.path, "Give it a larger share")
        check_target(Path(dst) / name, overwrite=overwrite)
    options: dict[str, Any] = {"by": by, "stratify": stratify, "seed": seed, "parts": dict(parts)}
    made = {}
    for name, chosen in zip(parts, indices, strict=True):
        made[name] = write_dataset(
            Path(dst) / name,
            reader.schema,
            (rows_of_documents if by_document else _samples)(reader, chosen, tick),
            format=format or format_of(reader.manifest),
            shard_bytes=shard_bytes,
            provenance={
                "command": "split",
                "source": origin(reader.path, reader.manifest),
                "options": options | {"part": name},
            },
            overwrite=overwrite,
            files_of=reader.path,
        )
    return made


def _samples(
    reader: PackedReader, indices: npt.NDArray[np.int64], tick: Callable[[int], object]
) -> Iterator[Records]:
    for i in indices.tolist():
        yield {name: record.tobytes() for name, record in reader.records(i).items()}
        tick(1)


def split_indices(
    reader: PackedReader,
    fractions: Sequence[float],
    *,
    by: By = "shuffle",
    stratify: str | None = None,
    seed: int = 0,
) -> list[npt.NDArray[np.int64]]:
    """Return the positions of each part's samples, sorted; arguments as for ``split``."""
    check_fractions(fractions)
    if by == "key-hash":
        if stratify is not None:
            raise ValueError("key-hash looks at one key at a time: it cannot stratify")
        return _by_key(reader, fractions, seed)
    order = np.argsort(hash64(key64(seed, _PURPOSE), np.arange(len(reader))), kind="stable")
    if stratify is None:
        return _cut(order, fractions)
    values = _strata(reader, stratify)
    order = order[np.argsort(values[order], kind="stable")]
    return _deal(order, fractions, seed)


def _strata(reader: PackedReader, name: str) -> npt.NDArray[Any]:
    """Return the value of each sample that a division goes by: of a field, or a table's column."""
    place = find_column(reader.schema, name)
    if place is not None:
        values = read_column(reader, *place)
        _check_few(values, name)
        return values
    values = reader.column(name)
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise SchemaError(f"field {name!r} is no label or whole number: it cannot stratify")
    return values


def _check_few(values: npt.NDArray[Any], name: str) -> None:
    """Raise SchemaError for a column of measurements: hardly any value has samples to share out."""
    num = len(np.unique(values))
    if values.dtype.kind == "f" and num > max(_FEW_NUMBERS, min(_MANY_NUMBERS, len(values) // 2)):
        what = f"column {name!r} has {num:,} different numbers in {len(values):,} samples"
        raise SchemaError(f"{what}: it cannot stratify. Take a column of categories, or a label")


def split_documents(
    reader: PackedReader, fractions: Sequence[float], seed: int
) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of each part's documents, sorted; of a dataset of tokens."""
    check_fractions(fractions)
    order = np.argsort(
        hash64(key64(seed, _PURPOSE), np.arange(num_documents(reader))), kind="stable"
    )
    return _cut(order, fractions)


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise ValueError unless they are above 0 and together at most 1."""
    if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"fractions must be above 0 and together at most 1, got {list(fractions)}"
        )


def _by_key(
    reader: PackedReader, fractions: Sequence[float], seed: int
) -> list[npt.NDArray[np.int64]]:
    if not reader.has_keys:
        raise SchemaError(f"{reader.path} has no field {KEY_FIELD!r}: divide it by shuffle")
    keys = reader.keys()
    hashes = (xxhash.xxh3_64_intdigest(key.encode(), seed % 2**64) for key in keys)
    position = np.fromiter(hashes, np.uint64, len(reader)) * 2.0**-64
    part = np.searchsorted(np.cumsum(fractions), position, side="right")
    return [np.flatnonzero(part == i) for i in range(len(fractions))]


def _cut(order: npt.NDArray[np.int64], fractions: Sequence[float]) -> list[npt.NDArray[np.int64]]:
    """Cut an order into runs."""
    bounds = [0, *(round(len(order) * end) for end in np.cumsum(fractions).tolist())]
    return [np.sort(order[a:b]) for a, b in itertools.pairwise(bounds)]


def _deal(
    order: npt.NDArray[np.int64], fractions: Sequence[float], seed: int
) -> list[npt.NDArray[np.int64]]:
    """Deal an order out evenly, so that every stretch of it (a class) is divided by the fractions.

    The part takes each time the running total of its fraction passes a whole number; the next part
    does the same with what is left. So each part's size is right to one sample, as is its share of
    each class, and the smallest classes are not all rounded the same way.
    """
    parts, left = [], 1.0
    for i, fraction in enumerate(fractions):
        share = min(1.0, fraction / left) if left > 1e-12 else 1.0
        start = float(hash64(key64(seed, _PURPOSE, 1), np.array([i]))[0]) * 2.0**-64
        total = np.arange(len(order) + 1) * share + (start if share < 1 - 1e-9 else 0.0)
        steps = np.floor(total + 1e-9)
        takes = steps[1:] > steps[:-1]
        parts.append(np.sort(order[takes]))
        order, left = order[~takes], left - fraction
    return parts


def parse_parts(texts: Sequence[str]) -> dict[str, float]:
    """Read ``["train=0.9", "val=0.1"]``.

    Raises:
        ValueError: It is not of this form, or names a part twice.
    """
    parts: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            fraction = float(number)
        except ValueError:
            fraction = math.nan
        if not equals or not 0 < fraction <= 1 or name in parts:
            raise ValueError(f"a part is NAME=FRACTION, each name once, got {text!r}")
        parts[name] = fraction
    return parts
