"""A dataset divided into parts that share its schema: always the same way, by label if wanted."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.division import check_strata, divide, divide_by_key
from loaders.errors import PackError, SchemaError
from loaders.manifest import MANIFEST_NAME
from loaders.schema.tables import find_column
from packdata.plan import check_outside
from packdata.provenance import origin
from packdata.reader import KEY_FIELD, PackedReader
from packdata.rewrite import Staging, check_target, format_of, stage
from packdata.rows import read_column
from packdata.shards import DEFAULT_SHARD_BYTES, check_shard_options
from packdata.target import REJECTED_NAME
from packdata.tokens.split import has_tokens, num_documents, rows_of_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.manifest import Manifest
    from packdata.recipe import Records
    from packdata.shards import Format

By = Literal["shuffle", "key-hash"]
_FILES = (
    MANIFEST_NAME,
    REJECTED_NAME,
)  # a folder of datasets with one of these is taken for a dataset
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
    """Write each part of a dataset as a dataset, ``dst/<part>``: all parts, or none; records stay as they are.

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
        PackError: A part would be empty, its folder is taken, or is the source itself or inside of
            it.
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
        if not _PART_NAME.fullmatch(name) or name in _FILES:
            raise ValueError(f"a part is named by a plain folder name, got {name!r}")
        if not len(chosen):
            raise PackError(f"part {name!r} would be empty", reader.path, "Give it a larger share")
        _check_part(Path(dst) / name, reader.path, overwrite=overwrite)
    chosen_format = format or format_of(reader.manifest)
    check_shard_options(chosen_format, shard_bytes)
    options: dict[str, Any] = {"by": by, "stratify": stratify, "seed": seed, "parts": dict(parts)}
    rows = rows_of_documents if by_document else _samples
    made: dict[str, Manifest] = {}
    with ExitStack() as stack:  # all are staged before one is published, published before one goes
        ready: list[Staging] = []
        for name, chosen in zip(parts, indices, strict=True):
            staging = stack.enter_context(Staging(Path(dst) / name, overwrite=overwrite))
            samples = rows(reader, chosen, tick)
            staged = stage(
                staging, reader.schema, samples, format=chosen_format, shard_bytes=shard_bytes
            )
            provenance = {
                "command": "split",
                "source": origin(reader.path, reader.manifest),
                "options": options | {"part": name},
            }
            made[name] = staging.prepare(staged, reader.schema, provenance, reader.path)
            ready.append(staging)
        for staging in ready:
            staging.publish()
    return made


def _check_part(folder: Path, source: Path, *, overwrite: bool) -> None:
    """Raise PackError if a part's folder is taken, is the dataset that is divided, or inside of it."""
    if folder.exists() and folder.samefile(source):
        what = "this part would take the place of the dataset that is divided"
        raise PackError(what, folder, "Choose another folder for the parts")
    check_outside(folder, [source])
    check_target(folder, overwrite=overwrite)


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
    strata = None if stratify is None else _strata(reader, stratify)
    return divide(len(reader), fractions, seed, strata)


def _strata(reader: PackedReader, name: str) -> npt.NDArray[Any]:
    """Return the value of each sample that a division goes by: of a field, or a table's column."""
    place = find_column(reader.schema, name)
    if place is None:
        reader.check_fields([name])
        if reader.schema.fields[name].shape != ():
            raise SchemaError(f"field {name!r} is no label or number: it cannot stratify")
    values = reader.column(name) if place is None else read_column(reader, *place)
    check_strata(values, name)
    return values


def split_documents(
    reader: PackedReader, fractions: Sequence[float], seed: int
) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of each part's documents, sorted; of a dataset of tokens."""
    check_fractions(fractions)
    return divide(num_documents(reader), fractions, seed)


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
    hashes = (xxhash.xxh3_64_intdigest(key.encode()) for key in keys)
    return divide_by_key(np.fromiter(hashes, np.uint64, len(reader)), fractions, seed)


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
            raise ValueError(
                f"a part is NAME=FRACTION, above 0 and at most 1, each name once, got {text!r}"
            )
        parts[name] = fraction
    return parts
