"""Writing records as a new dataset, or adding shards to one: staged first, published last.

All that a command writes lies in ``DST/.packing`` until it is complete; then the shards get free
names and the manifest is replaced. Whatever goes wrong before that leaves the target as it was; of
a command that was killed, the next one removes what lies in the target already. If it was killed
behind that, the same command finds itself finished (``finished_before``).
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
from packdata.journal import JOURNAL_NAME, LOCK_NAME, TargetLock, read_journal
from packdata.leftovers import RECORD_NAME, published_by, record_changes, remove_leftovers
from packdata.settings import OVERWRITE
from packdata.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    check_records,
    check_shard_options,
    shard_name,
)
from packdata.target import (
    PACKING_NAME,
    REJECTED_NAME,
    check_unclaimed,
    find_datasets,
    free_number,
    make_folder,
    missing_folders,
    remedy_of,
    sync_made,
    write_staged,
)
from packdata.verify import file_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from loaders.schema import Schema
    from packdata.reader import PackedReader
    from packdata.recipe import Records

    Note = Callable[[str], object]

_STAGED_MANIFEST = "manifest.staged"


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
        self._check_target()  # again: now nobody else can change what is there
        if not self._overwrite:
            self._check_journal()
        _clear(self.folder, self.path)

    def _check_journal(self) -> None:
        """Raise PackError if something can still be made of an unfinished packing."""
        if not (self.path / JOURNAL_NAME).exists():
            return
        found = read_journal(self.path / JOURNAL_NAME)
        hint = f"Run the same 'packdata' command again, it continues; or {OVERWRITE}"
        if found is not None and not found[0].resumable:
            if found[1].done is None:
                return  # of a Writer that was killed: nobody can go on with it
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
            _clear(self.folder, self.path)  # of the old dataset, or of ours if it failed
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
            what = "nobody has it" if source is None else file_fault(source / name, digest)
            if what is not None or source is None:
                raise PackError(f"its file {name} cannot be copied: {what}", source or self.folder)
            publish_bytes(self.path / name, read_regular(source / name))
            copied[name] = name
        return copied


def _clear(folder: Path, work: Path) -> None:
    """Remove what a command has left but for the lock; the record goes last, it tells that all else did."""
    for left in work.iterdir():
        if left.name not in (LOCK_NAME, RECORD_NAME):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    remove_leftovers(folder, work)


def command_text(
    name: str, dst: Path | str, sources: Sequence[PackedReader], **options: Any
) -> str:
    """Return what tells a command from others: of a source that it replaces, that it does."""
    target = os.path.realpath(dst)
    prints = [
        "" if os.path.realpath(reader.path) == target else reader.manifest.fingerprint
        for reader in sources
    ]
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


def cannot_write(error: Exception, path: Path) -> PackError:
    """Return what is raised where a command that begins anew when it is run again cannot write."""
    what = f"it cannot be written ({getattr(error, 'strerror', None) or error})"
    return PackError(what, path, remedy_of(error, path).removesuffix(": it continues"))


def _contents_of(folder: Path) -> tuple[tuple[ShardInfo, ...], Mapping[str, str]]:
    """Return the shards and the other files of the dataset that is there."""
    try:
        manifest = read_manifest(folder)
    except ManifestError:  # none yet, or one that cannot tell which files are its own
        return (), {}
    return manifest.shards, manifest.schema.files


def _format_of(info: ShardInfo) -> Format:
    return "lmdb" if info.file.endswith(".lmdb") else "parquet"


def format_of(manifest: Manifest) -> Format:
    """Return the format of a dataset's shards (of the first, should they differ)."""
    return _format_of(manifest.shards[0]) if manifest.shards else "lmdb"


def write_dataset(
    dst: Path | str,
    command: str,
    schema: Schema,
    samples: Iterable[Records],
    *,
    format: Format = "lmdb",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    files_of: Path | None = None,
) -> Manifest:
    """Write records as a packed dataset; all of it appears, or nothing.

    Args:
        dst: Its folder.
        command: What tells the command from others.
        schema: The fields of every sample.
        samples: The records of each sample, in order.
        format: Format of the shards.
        shard_bytes: A shard ends with the sample that reaches this size.
        provenance: JSON for the manifest: what it was made from.
        overwrite: Replace a dataset that is there; it may be the source of ``samples``.
        files_of: A dataset that has the files which the schema names besides shards.

    Raises:
        PackError: The target is taken or cannot be written, or there are no samples.
    """
    check_shard_options(format, shard_bytes)
    with Staging(dst, command, overwrite=overwrite) as staging:
        staged = stage(staging, schema, samples, format=format, shard_bytes=shard_bytes)
        manifest = staging.prepare(staged, schema, provenance or {}, files_of)
        staging.publish()
        return manifest


def stage(
    staging: Staging,
    schema: Schema,
    samples: Iterable[Records],
    *,
    format: Format,
    shard_bytes: int,
) -> list[ShardInfo]:
    """Write records as staged shards, to be published; arguments as for ``write_dataset``.

    Raises:
        PackError: There are no samples.
    """
    builder = ShardBuilder(schema, format, shard_bytes)
    staged: list[ShardInfo] = []

    def flush() -> None:
        path = staging.path / shard_name("shard", len(staged), format)
        staged.append(write_staged(path, builder.take(), schema))

    for records in samples:
        check_records(records, schema, format)
        builder.add(records)
        if builder.is_full:
            flush()
    if builder.num_samples:
        flush()
    if not staged:
        raise PackError("there is no sample to write", staging.folder)
    return staged
