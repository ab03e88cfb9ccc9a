"""A dataset divided into parts that share its schema: always the same way, by label if wanted."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loaders.data.manifest import MANIFEST_NAME
from loaders.data.view import KEY_FIELD, View, open_view
from loaders.division import divide
from loaders.errors import PackError, SchemaError
from packdata.packed.content import DocumentContent, ViewContent
from packdata.packed.rewrite import WriteOptions, Written, format_of, plan_of, write_datasets
from packdata.packing.outside import check_outside
from packdata.packing.provenance import origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.target import REJECTED_NAME
from packdata.tokens.stream import document_hashes, has_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.data.manifest import Manifest
    from packdata.packed.content import Content
    from packdata.packed.rewrite import Note
    from packdata.packing.shards import Format

By = Literal["shuffle", "key-hash"]
_FILES = (MANIFEST_NAME, REJECTED_NAME)  # a folder of datasets with one is taken for a dataset
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def split(
    src: Path | str,
    dst: Path | str,  # folder of the parts' folders
    # Fraction of the samples by name of the part; together at most 1, the rest is left out.
    parts: Mapping[str, float],
    *,
    # ``shuffle`` meets the fractions exactly; ``key-hash`` only nearly, but a key stays in its part when samples are
    # added or removed.
    by: By = "shuffle",
    # A label field, other whole number, or column of a packed table, of which each part gets its share of every
    # value.
    stratify: str | None = None,
    seed: int = 0,  # another seed, another division
    # By default that of the original; this and the rest are as in ``WriteOptions``.
    format: Format | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    tick: Callable[[int], object] = int,
    note: Note = str,
) -> dict[str, Manifest]:
    """Write each part of a dataset as a dataset, ``dst/<part>``: all parts, or none; records stay as they are.

    If it is killed while it publishes, some parts may be there; run again, it publishes the others.
    Of tokens documents are divided, equal ones to one part, and laid into rows anew.

    Raises:
        ValueError: The fractions are not fractions, or the options contradict each other.
        SchemaError: The dataset lacks what the division goes by.
        PackError: A part would be empty, its folder is taken, or is the source itself or inside
            it.
    """
    view = open_view(src)
    by_document = has_tokens(view.schema)
    check_fractions(list(parts.values()))
    if by_document and (by != "shuffle" or stratify is not None):
        raise ValueError("documents have neither keys nor labels: divide them by shuffle")
    divided = _documents if by_document else _samples
    contents = divided(view, list(parts.values()), by=by, stratify=stratify, seed=seed)
    chosen = dict(zip(parts, contents, strict=True))
    _check_parts(chosen, Path(dst), view.path)
    format = format or format_of(view)
    options: dict[str, Any] = {"by": by, "stratify": stratify, "seed": seed, "parts": dict(parts)}
    plan = plan_of("split", [view], **options, format=format, shard_bytes=shard_bytes)
    made_from = {"command": "split", "source": origin_of(view)}
    datasets = {
        name: Written(content, made_from | {"options": options | {"part": name}})
        for name, content in chosen.items()
    }
    written = WriteOptions(format, shard_bytes, overwrite, tick=tick, note=note)
    return write_datasets(dst, plan, datasets, written)


def _samples(
    view: View, fractions: Sequence[float], *, by: By, stratify: str | None, seed: int
) -> Iterator[Content]:
    """Yield the samples of each part."""
    if by == "key-hash" and stratify is not None:
        raise ValueError("key-hash looks at one key at a time: it cannot stratify")
    by_key = by == "key-hash"
    if by_key and not view.has_keys:
        raise SchemaError(f"{view.path} has no field {KEY_FIELD!r}: divide it by shuffle")
    for positions in view.divide(fractions, by_key=by_key, stratify=stratify, seed=seed):
        yield ViewContent(view.select(positions), view.schema)


def _documents(
    view: View, fractions: Sequence[float], *, seed: int, **_: Any
) -> Iterator[Content]:
    """Yield the rows of the documents of each part; equal ones come to one part."""
    hashes = document_hashes(view)
    firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)[1:]
    numbers = np.argsort(np.argsort(firsts))[inverse]  # of different documents, as they come
    for chosen in divide(len(firsts), fractions, seed):
        yield DocumentContent(view, np.flatnonzero(np.isin(numbers, chosen)))


def _check_parts(chosen: Mapping[str, Content], dst: Path, source: Path) -> None:
    """Raise ValueError for a name that no folder has; PackError for a part that is empty, or in the way."""
    for name, content in chosen.items():
        if not _PART_NAME.fullmatch(name) or name in _FILES:
            raise ValueError(f"a part is named by a plain folder name, got {name!r}")
        if not len(content):
            remedy = "Give it a larger share"
            if isinstance(content, DocumentContent):
                remedy += ": parts get whole documents. TokenWindows.split divides within them"
            raise PackError(f"part {name!r} would be empty", source, remedy)
        check_outside(dst / name, [source])


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise ValueError unless they are above 0 and together at most 1."""
    if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"fractions must be above 0 and together at most 1, got {list(fractions)}"
        )


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
