"""A dataset divided into parts that share its schema: always the same way, by label if wanted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loaders.data.view import open_view
from loaders.division import divide
from packdata.packed.content import DocumentContent, ViewContent
from packdata.packed.rewrite import Written, write_datasets
from packdata.packing.provenance import origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.tokens.rows import document_hashes, has_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View
    from packdata.packed.content import Content
    from packdata.packed.rewrite import Note
    from packdata.packing.shards import Format

By = Literal["shuffle", "key-hash"]
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
    note: Note = str,
) -> dict[str, Manifest]:
    """Write each part of a dataset as a dataset, ``dst/<part>``: all parts, or none; records stay as they are.

    If it is killed while it publishes, some parts may be there; run again, it publishes the others.
    Of tokens documents are divided, equal ones to one part, and laid into rows anew.

    Args:
        src: The dataset's folder or URL.
        dst: Folder of the parts' folders.
        parts: Fraction of the samples by name of the part; together at most 1, the rest is left out.
        by: ``shuffle`` meets the fractions exactly; ``key-hash`` only nearly, but a key stays in its part when samples
            are added or removed.
        stratify: A label field, other whole number, or column of a packed table, of which each part gets its share of
            every value.
        seed: Another seed gives another division.
        format: By default that of the original; this and the rest are as in ``write_datasets``.
        shard_bytes: Size of a shard.
        overwrite: Replace the datasets that are there.
        tick: Called with the number of samples written since the last call.
        note: Called with what deserves a look.

    Raises:
        ValueError: The fractions are not fractions, or the options contradict each other.
        SchemaError: The dataset lacks what the division goes by.
        PackError: A part would be empty, its folder is taken, or is the source itself or inside
            it.
    """
    view, fractions = open_view(src), list(parts.values())
    if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise ValueError(f"fractions must be above 0 and together at most 1, got {fractions}")
    for name in parts:
        if not _PART_NAME.fullmatch(name):
            raise ValueError(f"a part is named by a plain folder name, got {name!r}")
    is_text, by_key = has_tokens(view.schema), by == "key-hash"
    if is_text + by_key + (stratify is not None) > 1:
        raise ValueError("choose one of by='key-hash' and stratify=, and neither for text")
    contents: Iterable[Content]
    if is_text:
        contents = _documents(view, fractions, seed)
    else:
        divided = view.divide(fractions, by_key=by_key, stratify=stratify, seed=seed)
        contents = (ViewContent(view.select(positions), view.schema) for positions in divided)
    options: dict[str, Any] = {"by": by, "stratify": stratify, "seed": seed, "parts": dict(parts)}
    made_from = {"command": "split", "source": origin_of(view)}
    datasets = {
        name: Written(content, made_from | {"options": options | {"part": name}})
        for name, content in zip(parts, contents, strict=True)
    }
    how: Any = {"format": format, "shard_bytes": shard_bytes, "overwrite": overwrite}
    how |= {"tick": tick, "note": note}
    return write_datasets(dst, "split", [view], datasets, options, **how)


def _documents(view: View, fractions: Sequence[float], seed: int) -> Iterator[DocumentContent]:
    """Yield the rows of the documents of each part; equal ones come to one part."""
    hashes = document_hashes(view)
    firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)[1:]
    numbers = np.argsort(np.argsort(firsts))[inverse]  # of different documents, as they come
    for chosen in divide(len(firsts), fractions, seed):
        yield DocumentContent(view, np.flatnonzero(np.isin(numbers, chosen)))


def parse_parts(texts: Sequence[str]) -> dict[str, float]:
    """Read ``["train=0.9", "val=0.1"]``; ValueError if one is not of this form, or names a part twice."""
    parts = dict[str, float]()
    for text in texts:
        name, _, number = text.partition("=")
        try:
            fraction = float(number)
        except ValueError:
            fraction = 0
        if not fraction > 0 or name in parts:
            raise ValueError(f"a part is NAME=FRACTION, above 0, each name once, got {text!r}")
        parts[name] = fraction
    return parts
