"""Datasets put together without reading records: shards are linked or copied, at a URL sent, and listed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.data.manifest import Manifest, read_manifest
from loaders.data.view import join_views, open_view
from loaders.errors import PackError, SchemaError
from packdata.bucket import target_at
from packdata.inspect.compare import schema_differences
from packdata.packed.content import ViewContent, check_keys
from packdata.packed.rewrite import Written, plan_of, write_datasets
from packdata.packing.packing import MADE, Made, Packing
from packdata.packing.provenance import extended, origin_of
from packdata.packing.publish import manifest_at
from packdata.packing.store import store_of
from packdata.packing.target import check_outside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loaders.data.view import View
    from packdata.packed.rewrite import Note

_REMEDY = (
    "'packdata copy' chooses fields (--fields) and codecs (--codec); packing with sizes= and fit= fixes sizes, "
    "with classes= classes, with like= the columns of a table"
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
    sources may be URLs. The other options are those of ``write_datasets``; ``overwrite`` replaces what
    ``merge`` has made, and nothing else.

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
    joined = _joined(views)
    written = Written(
        ViewContent(joined.verified(), joined.schema),
        {"command": "merge", "sources": [origin_of(view) for view in views]},
        joined.whole_shards if shard_bytes is None else None,
    )
    asked = {"whole": shard_bytes is None}
    how: Any = {"shard_bytes": shard_bytes, "overwrite": overwrite, "link": link, "note": note}
    return write_datasets(dst, "merge", views, {"": written}, asked, **how)[""]


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
        before = packing.manifests()[""]
        origins = [origin_of(view) for view in added]
        last = [*before.provenance.get("appended", ())][-len(origins) :]
        if packing.is_continued and last == origins:  # it was killed behind that
            note(f"{dst}: {MADE}")
            return before
        joined = _joined([open_view(dst, "never"), *added])
        provenance = extended(before.provenance, origins)
        shards = [shard for view in added for shard in view.whole_shards or ()]
        packing.publish({"": Made(joined.schema, provenance, whole=shards)})
        return packing.manifests()[""]


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
