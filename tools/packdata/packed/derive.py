"""Datasets made of packed ones: a changed copy, parts of one (split), several as one (merge, extend)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from loaders.data.manifest import read_manifest
from loaders.data.view import join_views, open_view
from loaders.division import divide
from loaders.errors import PackError, SchemaError
from loaders.remote.url import Location, is_url
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.inspect.compare import schema_differences
from packdata.options import changed, opt, parse_names, takes
from packdata.packed.recode import Recoding
from packdata.packed.rewrite import (
    DocumentContent,
    ViewContent,
    check_keys,
    check_no_stream,
    content_of,
    format_of,
    write_datasets,
)
from packdata.packed.where import matching
from packdata.packing.packing import Made, Packing
from packdata.packing.provenance import PLAN, source_of
from packdata.packing.settings import RunSettings
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.store import manifest_at, store_of
from packdata.packing.summary import summary_of
from packdata.packing.target import check_outside
from packdata.tokens.rows import document_hashes, has_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from loaders.data.view import View
    from packdata.packed.rewrite import Content
    from packdata.packing.summary import Summary

By = Literal["shuffle", "key-hash"]
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMEDY = (
    "'packdata copy' chooses fields and codecs; packing with sizes= and fit= fixes sizes, "
    "with classes= classes, with like= the columns of a table; the order of images is that in which they were packed: "
    "pack one anew, or train on Mixture([a, b])"
)


# -- of one dataset --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyOptions(Recoding):
    """What ``copy_dataset`` changes."""

    where: str | None = opt(None, "keep the samples that meet a condition (default: all)", "EXPR")
    fields: Sequence[str] | None = opt(
        None, "fields to keep, in this order (default: all)", "A,B", type=parse_names
    )

    def __post_init__(self) -> None:
        Recoding.__post_init__(self)
        kept = self.fields
        if kept is not None and not 0 < len(set(kept)) == len(kept):
            raise SchemaError(f"fields must be different names, at least one, got {list(kept)}")


@takes(RunSettings, without="on_error")
def copy_dataset(
    src: Location | str,
    dst: Location | str,
    options: CopyOptions | None = None,
    **settings: Any,
) -> Summary:
    """Write a changed copy of a packed dataset; what is not to be changed is copied byte for byte.

    The settings are those of ``packdata.write``.

    Raises:
        SchemaError: The condition or a field's name does not fit the dataset.
        ShardError: A record to be copied is damaged.
        SourceError: A picture cannot be stored so.
        PackError: The target is taken, lies inside the source or cannot be written; or no sample meets the condition.
    """
    options = options or CopyOptions()
    view, asked = open_view(src), changed(options)
    chosen = view.with_fields(options.fields or [*view.schema.fields])
    content = content_of(chosen, view.schema, options)
    if options.where is not None:
        check_no_stream(view)
        chosen = chosen.select(np.flatnonzero(matching(view, options.where)))
        content = replace(content, view=chosen)
    content.provenance = {"command": "copy", "source": source_of(view.path), "options": asked}
    run_settings = RunSettings(**settings)
    is_usual = run_settings.format in (None, format_of(view))
    is_usual &= run_settings.shard_bytes in (None, DEFAULT_SHARD_BYTES)
    if is_url(dst) and is_usual and not asked:
        content.provenance, content.whole = read_manifest(src).provenance, view.whole_shards or ()
    return write_datasets(dst, "copy", [view], {"": content}, asked, run_settings)


@takes(RunSettings, without="on_error")
def split(
    src: Location | str,
    dst: Location | str,
    parts: Mapping[str, float],
    *,
    by: By = "shuffle",
    stratify: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Summary:
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
        **settings: Those of ``packdata.write``.

    Raises:
        ValueError: The fractions are not fractions, or the options contradict each other.
        SchemaError: The dataset lacks what the division goes by.
        PackError: A part would be empty, its folder is taken, or is the source itself or inside
            it.
    """
    view, fractions = open_view(src), list(parts.values())
    if not (fractions and min(fractions) > 0 and sum(fractions) <= 1 + 1e-9):  # NaN is none
        raise ValueError(f"fractions must be above 0 and together at most 1, got {fractions}")
    for name in parts:
        if not _PART_NAME.fullmatch(name):
            raise ValueError(f"a part is named by a plain folder name, got {name!r}")
    is_text, by_key = has_tokens(view.schema), by == "key-hash"
    if is_text + by_key + (stratify is not None) > 1:
        raise ValueError("choose one of by='key-hash' and stratify=, and neither for text")
    contents: Iterable[Content]
    if is_text:
        contents = (DocumentContent(view, some) for some in _documents(view, fractions, seed))
    else:
        divided = view.divide(fractions, by_key=by_key, stratify=stratify, seed=seed)
        contents = (ViewContent(view.select(positions), view.schema) for positions in divided)
    options = {"by": by, "stratify": stratify, "seed": seed, "parts": dict(parts)}
    source = source_of(view.path)
    datasets = dict(zip(parts, contents, strict=True))
    for name, content in datasets.items():
        described = {**options, "part": name}
        content.provenance = {"command": "split", "source": source, "options": described}
    # The order of the parts decides, too, and names are sorted where plans are compared.
    decides = {**options, "parts": [*parts.items()]}
    made = write_datasets(dst, "split", [view], datasets, decides, RunSettings(**settings))
    if (total := sum(fractions)) < 1 - 1e-9:
        what = f"{1 - total:.3g} of the samples are in no part"
        note = f"{src}: {what}: the fractions are {total:.3g} together"
        made = replace(made, notes=(*made.notes, note))
    return made


def _documents(view: View, shares: Sequence[float], seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the documents of each part, by their numbers; equal ones come to one part."""
    hashes = document_hashes(view)
    firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)[1:]
    numbers = np.argsort(np.argsort(firsts))[inverse]  # of different documents, as they come
    for chosen in divide(len(firsts), shares, seed):
        yield np.flatnonzero(np.isin(numbers, chosen))


# -- of several: shards are linked or copied, at a URL sent, and listed anew --------------------------


def merge(
    dst: Location | str,
    sources: Sequence[Location | str],
    *,
    overwrite: bool = False,
    shard_bytes: int | None = None,
) -> Summary:
    """Make one dataset of several with the same fields and classes, in their order; the sources stay as they are.

    Shards are linked or copied whole; with ``shard_bytes`` they are written anew, few of many small ones. ``dst`` and
    sources may be URLs. ``overwrite`` replaces what ``merge`` has made, and nothing else.

    Raises:
        SchemaError: The sources differ in fields or classes, or share a key.
        PackError: No source; a target that is taken or cannot be written, is a source, lies inside one or holds one.
    """
    if not sources:
        raise PackError("there is no source to merge", dst, "Name at least one")
    dst = target_at(dst)
    views = [open_view(path, "never") for path in sources]
    there = manifest_at(store_of(dst), "")
    if there is not None and there.provenance.get("command") != "merge":
        what = "a packed dataset is there, which 'packdata merge' did not make"  # one more source?
        raise PackError(what, dst, "The target comes last: choose a folder that is new or empty")
    joined, whole = _joined(views), shard_bytes is None
    provenance = {"command": "merge", "sources": [source_of(view.path) for view in views]}
    shards = (joined.whole_shards if whole else None) or ()
    view = joined.verified()
    content = ViewContent(view, view.schema, provenance=provenance, whole=shards)
    settings = RunSettings(shard_bytes=shard_bytes, overwrite=overwrite)
    return write_datasets(dst, "merge", views, {"": content}, {"whole": whole}, settings)


def extend(dst: Location | str, sources: Sequence[Location | str]) -> Summary:
    """Add the samples of other datasets to one; readers see the old one or the new one whole. See ``merge``.

    What was added last is not added again: the same command, run again, has done it.

    Raises:
        SchemaError: They differ in fields or classes, or share a key.
        PackError: No source; the target is a source, lies inside one or holds one, cannot be written, or was
            replaced meanwhile.
    """
    if not sources:
        raise PackError("there is no source to add", dst, "Name at least one")
    check_outside(dst, sources)
    dst, began = target_at(dst), time.monotonic()
    read_manifest(dst)  # says what is there instead, before anything is touched
    added = [open_view(path, "never") for path in sources]
    origins = [source_of(view.path) for view in added]
    with Packing(dst, [""], {}, of_packed=True, adds=True) as packing:
        before = read_manifest(dst)
        earlier = before.provenance.get("appended", [])
        if earlier[-len(origins) :] == origins:
            note = "the dataset ends with these samples already; nothing was added"
            return summary_of(dst, {"": before}, notes=[note], amount="no more samples")
        joined = _joined([open_view(dst, "never"), *added])
        # What made the dataset does not make it again: the plan goes.
        provenance = {n: value for n, value in before.provenance.items() if n != PLAN}
        provenance["appended"] = [*earlier, *origins]
        shards = [shard for view in added for shard in view.whole_shards or ()]
        made = Made(joined.schema, provenance, whole=shards, before=before.shards)
        packing.publish({"": made})
        seconds, num_added = time.monotonic() - began, sum(map(len, added))
        amount = counted(num_added, "more sample")
        return summary_of(
            dst, packing.manifests, seconds=seconds, encoded=num_added, amount=amount
        )


def _joined(views: Sequence[View]) -> View:
    """Return the samples of several datasets; SchemaError unless all have the same fields, and no key in common."""
    first = views[0]
    for view in views[1:]:
        if different := schema_differences(first.schema, view.schema):
            what = f"{view.path} (B) does not match {first.path} (A): {'; '.join(different[:5])}"
            raise SchemaError(f"{what}. {_REMEDY}")
    joined = join_views(views)
    if joined.has_keys:
        check_keys(joined)
    return joined
