"""Datasets put together without reading records: shards are linked or copied, at a URL sent, and listed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loaders.data.manifest import MANIFEST_NAME, Manifest, parse_manifest, read_manifest
from loaders.data.view import join_views, open_view
from loaders.errors import PackError, SchemaError
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.inspect.compare import schema_differences
from packdata.packed.content import ViewContent
from packdata.packed.rewrite import (
    WriteOptions,
    Written,
    format_of,
    plan_of,
    write_datasets,
)
from packdata.packing.outside import check_outside
from packdata.packing.packing import MADE, Packing
from packdata.packing.provenance import extended, origin_of
from packdata.packing.publish import manifest_at
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.store import store_of
from packdata.sources.names import repeated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loaders.data.view import View
    from packdata.packed.rewrite import Note

_ENCODE = "'packdata copy --codec' encodes the pictures of one as those of the other"
_REMEDIES = {  # by the option of a field that differs
    **dict.fromkeys(("codec", "quality", "subsampling", "compression"), _ENCODE),
    "size": "packing with the same sizes= and fit= gives pictures the same size",
}
_REMEDY = (
    "'packdata copy --fields' chooses fields; packing with classes= fixes classes, with like= the "
    "columns of a table"
)


def merge(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    overwrite: bool = False,
    shard_bytes: int | None = None,
    note: Note = str,
) -> Manifest:
    """Make one dataset of several with the same fields and classes, in their order; the sources stay as they are.

    Shards are linked or copied whole; with ``shard_bytes`` they are written anew, few of many small ones. ``dst`` and
    sources may be URLs. The other options are those of ``WriteOptions``; ``overwrite`` replaces what ``merge`` has
    made, and nothing else.

    Raises:
        SchemaError: The sources differ in fields or classes, or share a key.
        PackError: No source; a target that is taken or cannot be written, is a source, lies inside one or holds one.
    """
    if not sources:
        raise PackError("it would be made of no dataset", dst, "Name at least one source")
    check_outside(dst, sources)
    dst = target_at(dst)
    views = [open_view(path, "never") for path in sources]
    _check_merged_before(dst)
    _check_schemas(views)
    _check_keys(views)
    joined = join_views(views)
    provenance = {"command": "merge", "sources": list(map(origin_of, views))}
    plan = plan_of("merge", views, **({} if shard_bytes is None else {"shard_bytes": shard_bytes}))
    content = ViewContent(joined.verified(), joined.schema)
    whole = joined.whole_shards if shard_bytes is None else None
    dataset = Written(content, provenance, whole)
    size = DEFAULT_SHARD_BYTES if shard_bytes is None else shard_bytes
    how = format_of(joined), size, overwrite
    options = WriteOptions(*how, link=link, note=note)
    return write_datasets(dst, plan, {"": dataset}, options)[""]


def extend(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    note: Note = str,
) -> Manifest:
    """Add the samples of other datasets to one; readers see the old one or the new one whole. See ``merge``.

    Raises:
        SchemaError: They differ in fields or classes, or share a key.
        PackError: The target is a source, lies inside one or holds one, or cannot be written; or it was replaced
            meanwhile.
    """
    check_outside(dst, sources)
    dst = target_at(dst)
    read_manifest(dst)  # says what is there instead, before anything is touched
    added = [open_view(path, "never") for path in sources]
    plan = plan_of("extend", added)
    with Packing(dst, [""], plan, kind="command", grows=True, link=link) as packing:
        data, seen = store_of(dst).read(MANIFEST_NAME)
        before = parse_manifest(data or b"", dst / MANIFEST_NAME)
        grown = open_view(dst, "never")
        if before.fingerprint != grown.fingerprint:
            raise PackError("the dataset was replaced meanwhile", dst, "Run the command again")
        _check_schemas([grown, *added])
        origins = [origin_of(view) for view in added]
        last = [*before.provenance.get("appended", ())][-len(origins) :]
        if packing.is_continued and last == origins:  # it was killed behind that
            note(f"{dst}: {MADE}")
            return before
        _check_keys([grown, *added])
        provenance = extended(before.provenance, origins)
        shards = [shard for view in added for shard in view.whole_shards or ()]
        return packing.publish_whole(grown.schema, provenance, shards, grown=(before, seen))


def _check_merged_before(folder: Path) -> None:
    """Raise PackError for a dataset that ``merge`` did not make: it may be meant as one more source."""
    there = manifest_at(store_of(folder), "")
    if there is not None and there.provenance.get("command") != "merge":
        what = "a packed dataset is there, which 'packdata merge' did not make"
        hint = "The target comes last: choose a folder that is new or empty"
        raise PackError(what, folder, hint)


def _check_schemas(views: Sequence[View]) -> None:
    """Raise SchemaError unless all have the same fields."""
    first = views[0]
    for view in views[1:]:
        different = schema_differences(first.schema, view.schema, defaults=False)
        if different:
            what = "; ".join(different[:5])
            raise SchemaError(
                f"{view.path} (B) does not match {first.path} (A): {what}. {_remedy(different)}"
            )


def _remedy(different: Sequence[str]) -> str:
    def of(what: str) -> str:
        return next((hint for o, hint in _REMEDIES.items() if f": {o} is " in what), _REMEDY)

    return "; ".join(dict.fromkeys(map(of, different)))


def _check_keys(views: Sequence[View]) -> None:
    """Raise SchemaError if samples share a key."""
    if not views[0].has_keys:
        return
    hashes = [view.key_hashes() for view in views]
    source = np.repeat(np.arange(len(views)), [len(part) for part in hashes])
    twice, firsts = repeated(np.concatenate(hashes))
    if twice:
        one, other = firsts[0], twice[0]
        start = sum(len(views[i]) for i in range(int(source[other])))
        key = views[source[other]].key(other - start)
        where = f"{views[source[one]].path} and {views[source[other]].path}"
        raise SchemaError(
            f"{counted(len(twice), 'key')} would stand twice: {key!r} is in {where}. "
            "'packdata copy --where' leaves samples out"
        )
