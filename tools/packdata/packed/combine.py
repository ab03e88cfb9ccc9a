"""Datasets put together without reading records: shards are linked or copied, at a URL sent, and listed anew.

At a URL:

1. Shards that the manifest there lists stay and are not sent again; nor are those that a killed command has sent.
   None is deleted: an older manifest may name it.
2. The manifest is put last, in place of the one that was seen.
3. ``extend`` first puts what it is about to publish beside the dataset: killed, the same command finds out by that
   whether it was published, and does not add the same twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loaders.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
)
from loaders.data.view import join_views, open_view
from loaders.errors import PackError, SchemaError
from loaders.remote.url import URL
from packdata.bucket import bucket_at, target_at
from packdata.describe import counted
from packdata.inspect.compare import schema_differences
from packdata.packed.content import ViewContent
from packdata.packed.remote import as_folder
from packdata.packed.rewrite import WriteOptions, Written, format_of, plan_of, write_datasets
from packdata.packing.journal import JOURNAL_NAME, read_journal
from packdata.packing.links import file_beside, file_fault
from packdata.packing.outside import check_outside
from packdata.packing.packing import FINISHED, MADE, Packing
from packdata.packing.provenance import PLAN, extended, origin_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES, shard_format, shard_name, stored_info
from packdata.packing.target import PACKING_NAME, PARTS_NAME, digest_of, find_datasets
from packdata.packing.upload import (
    as_file,
    lost_at,
    manifest_at,
    publish_at,
    put_shards,
    seen_at,
)
from packdata.sources.names import repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from loaders.data.manifest import ShardInfo
    from loaders.data.view import View
    from packdata.bucket import Bucket
    from packdata.packed.rewrite import Note
    from packdata.packing.links import OnLink

_TWIN = "the same command made it meanwhile"
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
    plan = plan_of("merge", views, **({} if shard_bytes is None else {"shard_bytes": shard_bytes}))
    if isinstance(dst, URL) and shard_bytes is None:
        return _Sending(dst, views, plan, tick, note).merge(provenance, overwrite=overwrite)
    content = ViewContent(joined.verified(), joined.schema)
    whole = joined.whole_shards if shard_bytes is None else None
    dataset = Written(content, provenance, whole)
    size = DEFAULT_SHARD_BYTES if shard_bytes is None else shard_bytes
    how = format_of(joined), size, overwrite
    options = WriteOptions(*how, link=link, on_link=on_link, note=note)
    return write_datasets(dst, plan, {"": dataset}, options)[""]


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
        return _Sending(dst, added, plan, tick, note).extend(
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
    there = manifest_at(bucket_at(folder), "") if is_sent else find_datasets(folder, [""]).get("")
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


# -- at a URL ----------------------------------------------------------------------------------------


def upload(
    folder: Path,
    url: Path | str,
    *,
    overwrite: bool = False,
    tick: Callable[[int], object] = int,
    note: Callable[[str], object] = str,
) -> Manifest:
    """Send a packed dataset to a URL as it is; if it is killed, the same call continues. See the first lines.

    Args:
        folder: The dataset.
        url: Where it is to be.
        overwrite: Replace the manifest of another dataset there; its shards stay.
        tick: Called with the bytes of each shard when it is there, on another thread.
        note: Called with what deserves a look.

    Returns:
        The manifest at the URL: that of the folder, with other names of shards.

    Raises:
        PackError: Another dataset is there, or was put there meanwhile.
        ChecksumError: A shard is damaged.
        RemoteError: The store does not answer, or refuses.
    """
    manifest = read_manifest(folder)
    named = replace(manifest, shards=tuple(map(stored_info, manifest.shards)))
    sending = _Sending(target_at(url), [open_view(folder, "never")], {}, tick, note)
    return sending.publish(named, overwrite)


@dataclass(frozen=True, slots=True)
class _Sending:
    """Whole datasets on their way to another one at a URL.

    Attributes:
        url: Of the other one.
        views: The datasets.
        plan: What tells the command from others.
        tick: Called with the bytes of each shard when it is there, on another thread.
        note: Called with what deserves a look.
    """

    url: Path
    views: Sequence[View]
    plan: Mapping[str, str]
    tick: Callable[[int], object] = int
    note: Callable[[str], object] = str

    @property
    def _origin(self) -> Bucket:
        return bucket_at(self.url)

    def merge(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Manifest:
        """Make the datasets one at the URL.

        Raises:
            PackError: Another dataset is there, or was put there meanwhile.
            RemoteError: The store does not answer, or refuses.
        """
        about = {**provenance, PLAN: digest_of(self.plan)}
        return self.publish(
            Manifest(self.views[0].schema, tuple(self._infos(0)), about), overwrite
        )

    def publish(self, manifest: Manifest, overwrite: bool) -> Manifest:
        """Put the datasets at the URL as this manifest lists them; raises what ``merge`` does."""
        seen = seen_at(self._origin, "", manifest, overwrite=overwrite)
        if seen is None and not lost_at(self._origin, "", manifest.shards):
            self.note(f"{self.url}: {MADE}")
            return manifest
        self._send(manifest.shards)
        for name, digest in manifest.schema.files.items():
            file = file_beside(self.views[0].path, name)
            if (what := file_fault(file, digest)) is not None:
                raise PackError(f"its file {name} cannot be sent: {what}", self.views[0].path)
            self._origin.put(name, file)
        if seen is not None:
            publish_at(self._origin, "", manifest, seen)
        return manifest

    def extend(
        self, check: Callable[[View], object], about: Callable[[Manifest], Any]
    ) -> Manifest:
        """Add the datasets to the one at the URL.

        Args:
            check: Called with that one before anything is sent.
            about: Returns the provenance of what becomes of it.

        Raises:
            PackError: It was replaced meanwhile.
            RemoteError: The store does not answer, or refuses.
        """
        origin = self._origin
        grown = open_view(self.url, "never")
        data, seen = origin.read(MANIFEST_NAME)
        before = parse_manifest(data or b"", self.url / MANIFEST_NAME)
        if before.fingerprint != grown.fingerprint:
            raise PackError("it was replaced meanwhile", self.url, "Run the same command again")
        record = f"{PARTS_NAME}/extend-{digest_of(self.plan)}.json"
        if self._is_in(before, origin.read(record)[0]):
            origin.delete(record)
            self.note(f"{self.url}: {FINISHED}")
            return before
        check(grown)
        added = self._infos(len(before.shards))
        manifest = Manifest(grown.schema, (*before.shards, *added), about(before))
        self._send(added)
        with as_file(manifest_bytes(manifest)) as path:
            origin.put(record, path)
        made = manifest
        try:
            publish_at(origin, "", manifest, seen, "Run the same command again")
        except PackError:
            data, _ = origin.read(MANIFEST_NAME)
            if data is None:
                raise
            made = parse_manifest(data, self.url / MANIFEST_NAME)
            if not self._is_in(made, manifest_bytes(manifest)):
                raise
            self.note(f"{self.url}: {_TWIN}")
        origin.delete(record)
        return made

    def _is_in(self, there: Manifest, record: bytes | None) -> bool:
        """Tell whether what was about to be published was, though others may have added to it meanwhile."""
        if record is None:
            return False
        shards = parse_manifest(record, self.url / PARTS_NAME).shards
        return there.shards[: len(shards)] == shards

    def _infos(self, first: int) -> list[ShardInfo]:
        """Return the shards under their names at the URL, numbered from one on."""
        shards = [shard.info for view in self.views for shard in view.whole_shards or ()]
        names = (shard_name(i, shard_format(each.file)) for i, each in enumerate(shards, first))
        return [
            stored_info(each._replace(file=name)) for each, name in zip(shards, names, strict=True)
        ]

    def _send(self, infos: Sequence[ShardInfo]) -> None:
        left = iter(infos)
        for view in self.views:
            with as_folder(view.path) as folder:
                places = [folder / shard.info.file for shard in view.whole_shards or ()]
                named = [(place, next(left)) for place in places]
                if named:
                    put_shards(self._origin, "", named, self.tick)
