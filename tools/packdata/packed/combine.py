"""Datasets put together without reading records: shards are linked or copied, and listed anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loaders.data.manifest import read_manifest
from loaders.data.view import join_views, open_view
from loaders.errors import PackError, SchemaError
from loaders.remote.origin import origin_of as origin_at
from loaders.remote.origin import target_at
from loaders.remote.url import URL
from packdata.describe import counted
from packdata.inspect.compare import schema_differences
from packdata.packed.content import ViewContent
from packdata.packed.rewrite import WriteOptions, Written, format_of, plan_of, write_dataset
from packdata.packed.sent import Sending
from packdata.packing.journal import JOURNAL_NAME, read_journal
from packdata.packing.outside import check_outside
from packdata.packing.provenance import extended, origin_of
from packdata.packing.publish import Packing
from packdata.packing.target import PACKING_NAME, find_datasets
from packdata.packing.upload import manifest_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View
    from packdata.packed.rewrite import Note
    from packdata.packing.links import OnLink

_ENCODE = "'packdata copy --codec' encodes the pictures of one as those of the other"
_REMEDIES = {  # by the option of a field that differs
    **dict.fromkeys(("codec", "quality", "subsampling", "compression"), _ENCODE),
    "size": "packing with the same --size and --fit gives pictures the same size",
}
_REMEDY = (
    "'packdata copy --fields' chooses fields; packing with --classes fixes classes, with --like the "
    "columns of a table"
)


def merge(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    overwrite: bool = False,
    shard_bytes: int | None = None,
    on_link: OnLink = str,
    note: Note = str,
    tick: Callable[[int], object] = int,
) -> Manifest:
    """Make one dataset of several with the same fields and classes, in their order; the sources stay as they are.

    Shards are linked or copied whole; with ``shard_bytes`` they are written anew, few of many small ones. ``dst`` and
    sources may be URLs; ``tick`` is called with the bytes of each shard that is sent to one as it is. The other
    options are those of ``WriteOptions``; ``overwrite`` replaces what ``merge`` has made, and nothing else.

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
    _check_alike(views)
    joined = join_views(views)
    provenance = {"command": "merge", "sources": list(map(origin_of, views))}
    if isinstance(dst, URL) and shard_bytes is None:
        sending = Sending(dst, views, plan_of("merge", views), tick, note)
        return sending.merge(provenance, overwrite=overwrite)
    options = WriteOptions(overwrite=overwrite, link=link, on_link=on_link, note=note)
    if shard_bytes is None:
        content = ViewContent(joined, joined.schema)
        dataset = Written(content, provenance, joined.path, joined.whole_shards)
        return write_dataset(dst, plan_of("merge", views), dataset, options)
    plan = plan_of("merge", views, shard_bytes=shard_bytes)
    dataset = Written(ViewContent(joined.verified(), joined.schema), provenance, joined.path)
    options = replace(options, format=format_of(joined), shard_bytes=shard_bytes)
    return write_dataset(dst, plan, dataset, options)


def extend(
    dst: Path | str,
    sources: Sequence[Path | str],
    *,
    link: bool = True,
    on_link: OnLink = str,
    note: Note = str,
    tick: Callable[[int], object] = int,
) -> Manifest:
    """Add the samples of other datasets to one; readers see the old one or the new one whole. See ``merge``.

    Raises:
        SchemaError: They differ in fields or classes, or share a key.
        PackError: The target is a source, lies inside one or holds one, or cannot be written.
    """
    check_outside(dst, sources)
    dst = target_at(dst)
    read_manifest(dst)  # says what is there instead, before anything is touched
    added = [open_view(path, "never") for path in sources]
    plan = plan_of("extend", added)
    if isinstance(dst, URL):
        return Sending(dst, added, plan, tick, note).extend(
            lambda grown: _check_alike([grown, *added]),
            lambda before: extended(before.provenance, list(map(origin_of, added))),
        )
    with Packing(dst, [""], plan, kind="command", extend=True) as packing:
        if packing.is_published:
            note(f"{dst}: {packing.why_finished}")
            return packing.manifests()[""]
        grown = open_view(dst, "never")
        _check_alike([grown, *added])
        whole = [shard for view in added for shard in view.whole_shards or ()]
        packing.take_whole("", whole, link=link, on_link=on_link)
        packing.copy_files("", grown.schema, grown.path)
        provenance = extended(read_manifest(dst).provenance, list(map(origin_of, added)))
        packing.publish({"": (grown.schema, provenance)})
        return packing.manifests()[""]


def _check_merged_before(folder: Path) -> None:
    """Raise PackError for a target that ``merge`` did not make: it may be meant as one more source."""
    hint = "The target comes last: choose a folder that is new or empty"
    is_sent = isinstance(folder, URL)
    there = manifest_at(origin_at(folder), "") if is_sent else find_datasets(folder, [""]).get("")
    if there is not None and there.provenance.get("command") != "merge":
        what = (
            "a packed dataset is there, which 'packdata merge' did not make and does not replace"
        )
        raise PackError(what, folder, hint)
    if is_sent:
        return
    begun = read_journal(folder / PACKING_NAME / JOURNAL_NAME)
    is_dropped = begun is None or begun[0].kind == "command"  # what that has brought is taken back
    if begun is not None and not is_dropped and (begun[0].kind == "packing" or begun[1].done):
        raise PackError("packing into it was not finished", folder, hint)


def _check_alike(views: Sequence[View]) -> None:
    """Raise SchemaError unless the samples of all can stand in one dataset."""
    first = views[0]
    for view in views[1:]:
        different = schema_differences(first.schema, view.schema, defaults=False)
        if different:
            what = "; ".join(different[:5])
            raise SchemaError(
                f"{view.path} (B) does not match {first.path} (A): {what}. {_remedy(different)}"
            )
    if first.has_keys:
        _check_keys(views)


def _remedy(different: Sequence[str]) -> str:
    def of(what: str) -> str:
        return next((hint for o, hint in _REMEDIES.items() if f": {o} is " in what), _REMEDY)

    return "; ".join(dict.fromkeys(map(of, different)))


def _check_keys(views: Sequence[View]) -> None:
    hashes = [view.key_hashes() for view in views]
    every = np.concatenate(hashes)
    source = np.repeat(np.arange(len(views)), [len(part) for part in hashes])
    order = np.argsort(every, kind="stable")
    twice = np.flatnonzero(every[order][1:] == every[order][:-1])
    if len(twice):
        first = twice[order[twice + 1].argmin()]
        one, other = int(order[first]), int(order[first + 1])
        start = sum(len(views[i]) for i in range(int(source[other])))
        key = views[source[other]].key(other - start)
        where = f"{views[source[one]].path} and {views[source[other]].path}"
        raise SchemaError(
            f"{counted(len(twice), 'key')} would stand twice: {key!r} is in {where}. "
            "'packdata copy --where' leaves samples out"
        )
