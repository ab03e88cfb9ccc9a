"""Writing records as a new dataset, or adding shards to one: staged first, published last.

All that a command writes lies in ``DST/.packing`` until it is complete; then the shards get free
names and the manifest is replaced. Whatever goes wrong before that leaves the target as it was; of
a command that was killed, the next one removes what lies in the target already, and goes on behind its
finished shards if it is the same (``Staging.begin``). If it was killed behind that, the same command finds
itself finished (``finished_before``).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lmdb

from loaders.data.shards import FileShard
from loaders.errors import ManifestError, PackError
from loaders.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardInfo,
    manifest_bytes,
    publish_bytes,
    publish_file,
    read_manifest,
    sync_folder,
)
from loaders.regular import read_regular
from packdata.disk import cannot_write, write_staged
from packdata.journal import (
    JOURNAL_NAME,
    LOCK_NAME,
    TargetLock,
    read_journal,
    shard_from_json,
)
from packdata.leftovers import RECORD_NAME, published_by, record_changes, remove_leftovers
from packdata.links import stage_whole
from packdata.settings import OVERWRITE
from packdata.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    block_ends,
    check_block,
    check_shard_options,
    shard_name,
)
from packdata.target import (
    PACKER,
    PACKING_NAME,
    REJECTED_NAME,
    check_unclaimed,
    find_datasets,
    free_number,
    make_folder,
    missing_folders,
    sync_made,
)
from packdata.verify import file_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from loaders.data.view import View
    from loaders.schema import Schema
    from packdata.content import Content
    from packdata.links import OnLink

    Note = Callable[[str], object]

_STAGED_MANIFEST = "manifest.staged"
_STAGED_LIST = "staged.jsonl"  # the command, and a line for each shard that is finished


class Staging:
    """The right to change one dataset, and the folder in which the change is prepared.

    Args:
        folder: The dataset's folder, made if need be.
        command: What tells the command from others (``command_text``).
        overwrite: Replace a dataset that is there, or abandon an unfinished packing.
        extend: The folder must hold a dataset, which stays; its shards are kept.

    Raises:
        PackError: The folder is taken, cannot be written, or another process is packing into it.
    """

    def __init__(
        self, folder: Path | str, command: str, *, overwrite: bool = False, extend: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / PACKING_NAME
        self._command = command
        self._overwrite, self._extend = overwrite, extend
        self._made = missing_folders(self.folder)
        self._lock: TargetLock | None = None
        self._moves: dict[str, str] = {}  # staged file by its name in the dataset

    def __enter__(self) -> Self:
        self._check_target()
        try:
            make_folder(self.path, self.folder)
            sync_made(self._made)
            self._lock = TargetLock(self.path / LOCK_NAME)
            self._take_over()
        except BaseException as error:
            self._withdraw()
            if isinstance(error, OSError):
                raise cannot_write(error, self.folder) from error
            raise
        return self

    def _check_target(self) -> None:
        check_target(self.folder, overwrite=self._overwrite or self._extend)

    def _withdraw(self) -> None:
        """Leave the folder as it was found."""
        if self._lock is not None and [p.name for p in self.path.iterdir()] == [LOCK_NAME]:
            (self.path / LOCK_NAME).unlink()
        for folder in (self.path, *self._made):
            with suppress(OSError):  # it was never made, or another command works in it
                folder.rmdir()
        if self._lock is not None:
            self._lock.release()

    def _take_over(self) -> None:
        """Clear what a command that was ended has left, unless it can be finished."""
        check_unclaimed(self.folder)
        self._check_target()  # again: from here on no other process changes what is there
        if not self._overwrite:
            self._check_journal()
        names = {info.file for info in _staged_before(self.path, self._command)}
        _clear(self.folder, self.path, keep={_STAGED_LIST, *names} if names else frozenset())

    def begin(self) -> list[ShardInfo]:
        """Return the shards that the same command had finished before it was killed, and go on behind them."""
        staged = _staged_before(self.path, self._command)
        lines = [
            {"command": self._command, "packer": PACKER},
            *(each.to_json() for each in staged),
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        publish_bytes(self.path / _STAGED_LIST, text.encode())
        return staged

    def note(self, info: ShardInfo) -> None:
        """Note that a shard is finished."""
        with open(self.path / _STAGED_LIST, "ab") as file:
            file.write(f"{json.dumps(info.to_json())}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def _check_journal(self) -> None:
        """Raise PackError if something can still be made of an unfinished packing."""
        if not (self.path / JOURNAL_NAME).exists():
            return
        found = read_journal(self.path / JOURNAL_NAME)
        hint = f"Run the same 'packdata' command again, it continues; or {OVERWRITE}"
        if found is not None and not found[0].resumable:
            if found[1].done is None:
                return  # of a Writer that was killed: it cannot be continued
            hint = f"Open a Writer there, it publishes what is complete; or {OVERWRITE}"
        raise PackError("packing into it was not finished", self.folder, hint)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        try:
            _clear(self.folder, self.path)  # of the old dataset, or of the new one if it failed
        except OSError as left:
            error = error or left
        finally:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
        if error is not None:
            with suppress(OSError):  # something lies in it
                for folder in self._made:
                    folder.rmdir()
        if isinstance(error, OSError | lmdb.Error):
            raise cannot_write(error, self.folder) from error

    def prepare(
        self,
        staged: Sequence[ShardInfo],
        schema: Schema,
        provenance: Mapping[str, Any],
        files_of: Path | None = None,
    ) -> Manifest:
        """Make all ready that ``publish`` renames into the folder; return the manifest to come.

        With ``extend`` the staged shards follow those that are there; else those are replaced, and
        the list of what their packing left out goes with them. Files that the schema names besides
        are copied from ``files_of``, a dataset that has them.
        """
        old, old_files = _contents_of(self.folder)
        first = free_number(self.folder)
        named = [
            replace(info, file=shard_name("shard", first + i, _format_of(info)))
            for i, info in enumerate(staged)
        ]
        manifest = Manifest(schema, (*(old if self._extend else ()), *named), provenance)
        self._moves = {new.file: info.file for info, new in zip(staged, named, strict=True)}
        self._moves |= self._copy_files(schema, files_of)
        publish_bytes(self.path / _STAGED_MANIFEST, manifest_bytes(manifest))
        replaced = [] if self._extend else [REJECTED_NAME, *(info.file for info in old)]
        came = {
            name: self.path / file
            for name, file in self._moves.items()
            if not (self.folder / name).exists()  # a file that is damaged stays one of the old
        }
        record_changes(self.path, self._command, came, {*replaced, *old_files})
        return manifest

    def publish(self) -> None:
        """Make a dataset of what was prepared; leaving ``with`` deletes the one before."""
        for name, file in self._moves.items():
            os.rename(self.path / file, self.folder / name)
        sync_folder(self.folder)  # a manifest that outlives a power cut finds its shards
        publish_file(self.path / _STAGED_MANIFEST, self.folder / MANIFEST_NAME)

    def _copy_files(self, schema: Schema, source: Path | None) -> dict[str, str]:
        """Stage what the schema names besides shards; return the staged file by its name."""
        copied: dict[str, str] = {}
        for name, digest in schema.files.items():
            if file_fault(self.folder / name, digest) is None:
                continue
            what = "no source has it" if source is None else file_fault(source / name, digest)
            if what is not None or source is None:
                raise PackError(f"its file {name} cannot be copied: {what}", source or self.folder)
            publish_bytes(self.path / name, read_regular(source / name))
            copied[name] = name
        return copied


def _staged_before(work: Path, command: str) -> list[ShardInfo]:
    """Return the shards that are on the list as far as they are there; none of another command."""
    try:
        lines = (work / _STAGED_LIST).read_bytes().splitlines(keepends=True)
        first, *rest = [json.loads(line) for line in lines if line.endswith(b"\n")]
        if first != {"command": command, "packer": PACKER}:
            return []
        staged = list(map(shard_from_json, rest))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    is_there = [_size_of(work / info.file) == info.size_bytes for info in staged]
    return staged[: [*is_there, False].index(False)]


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _clear(folder: Path, work: Path, keep: Collection[str] = ()) -> None:
    """Remove what a command has left but for the lock; the record goes last: it says that all else is done."""
    for left in work.iterdir():
        if left.name not in (LOCK_NAME, RECORD_NAME, *keep):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    remove_leftovers(folder, work)


def command_text(name: str, sources: Sequence[View], **options: Any) -> str:
    """Return what tells a command from others."""
    prints = [view.source_fingerprint for view in sources]
    return json.dumps({"command": name, "sources": prints} | options, sort_keys=True)


def finished_before(dst: Path | str, command: str, note: Note = str) -> Manifest | None:
    """Remove what a command that was killed has left; return the dataset, if it had made it and was the same one.

    Run again, it would find its own dataset in the way, or add its samples twice.

    Raises:
        PackError: Another process packs into the folder, or it cannot be written.
    """
    folder = Path(dst)
    work = folder / PACKING_NAME
    if not work.is_dir() or (work / JOURNAL_NAME).exists():  # that of a packing stays
        return None
    try:
        lock = TargetLock(work / LOCK_NAME)
        try:
            was_same = published_by(folder, work) == command
            if not was_same and _staged_before(work, command):
                return None  # it goes on there
            _clear(folder, work)
            (work / LOCK_NAME).unlink()
            work.rmdir()
        finally:
            lock.release()
    except OSError as error:
        raise cannot_write(error, folder) from error
    if not was_same:
        return None
    note(f"{folder}: this command was killed when it had made the dataset; it was finished")
    return read_manifest(folder)


def check_target(folder: Path, *, overwrite: bool = False) -> None:
    """Raise PackError if a dataset written to this folder would replace something."""
    if find_datasets(folder, [""]) and not overwrite:
        raise PackError("a packed dataset is there", folder, f"{OVERWRITE} replaces it")


def _contents_of(folder: Path) -> tuple[tuple[ShardInfo, ...], Mapping[str, str]]:
    """Return the shards and the other files of the dataset that is there."""
    try:
        manifest = read_manifest(folder)
    except ManifestError:  # none yet, or one that cannot tell which files are its own
        return (), {}
    return manifest.shards, manifest.schema.files


def _format_of(info: ShardInfo) -> Format:
    return "lmdb" if info.file.endswith(".lmdb") else "parquet"


def format_of(view: View) -> Format:
    """Return the format of a view's shards (of the first, should they differ)."""
    files = (shard for shard in view.store.shards if isinstance(shard, FileShard))
    return next((_format_of(shard.info) for shard in files), "lmdb")


def write_dataset(
    dst: Path | str,
    command: str,
    content: Content,
    *,
    format: Format = "lmdb",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    files_of: Path | None = None,
    tick: Callable[[int], object] = int,
    whole: Sequence[FileShard] | None = None,
    link: bool = True,
    on_link: OnLink = str,
    note: Note = str,
) -> Manifest:
    """Write samples as a packed dataset; all of it appears, or nothing. Killed, the same command continues.

    Args:
        dst: Its folder.
        command: What tells the command from others.
        content: The samples.
        format: Format of the shards.
        shard_bytes: A shard ends with the sample that reaches this size.
        provenance: JSON for the manifest: what it was made from.
        overwrite: Replace a dataset that is there; it may be the source of the samples.
        files_of: A dataset that has the files which the schema names besides shards.
        tick: Called with the number of samples written.
        whole: Shards that hold just these samples, to be used as they are.
        link: Link them, as ``packdata.links.stage_whole`` does.
        on_link: Called with each that was linked.
        note: Called with what is no error and deserves a look: it was killed before, and is finished.

    Raises:
        PackError: The target is taken or cannot be written, or there are no samples.
    """
    check_shard_options(format, shard_bytes)
    finished = finished_before(dst, command, note)
    if finished is not None:
        return finished
    with Staging(dst, command, overwrite=overwrite) as staging:
        if whole is None:
            staged = stage(staging, content, format=format, shard_bytes=shard_bytes, tick=tick)
        else:
            staged = stage_whole(staging.path, whole, link=link, on_link=on_link)
        manifest = staging.prepare(staged, content.schema, provenance or {}, files_of)
        staging.publish()
        return manifest


def stage(
    staging: Staging,
    content: Content,
    *,
    format: Format,
    shard_bytes: int,
    tick: Callable[[int], object] = int,
) -> list[ShardInfo]:
    """Write samples as staged shards, to be published, behind those that the same command has left.

    Arguments as for ``write_dataset``.

    Raises:
        PackError: There are no samples.
    """
    builder = ShardBuilder(content.schema, format, shard_bytes)
    staged = staging.begin()
    done = sum(info.num_samples for info in staged)
    tick(done)

    def flush() -> None:
        path = staging.path / shard_name("shard", len(staged), format)
        staged.append(write_staged(path, builder.take(), content.schema))
        staging.note(staged[-1])

    for block in content.blocks(done):
        check_block(block, content.schema, format)
        ends, taken = block_ends(block), 0
        while taken < len(block):
            taken = builder.add_block(block, ends, taken)
            if builder.is_full:
                flush()
        tick(len(block))
    if builder.num_samples:
        flush()
    if not staged:
        raise PackError("there is no sample to write", staging.folder)
    return staged
