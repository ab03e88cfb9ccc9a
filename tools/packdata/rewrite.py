"""Writing records as a new dataset, or adding shards to one: staged first, published last.

All that a command writes lies in ``DST/.packing`` until it is complete; then the shards get free
names and the manifest is replaced. Whatever goes wrong before that leaves the target as it was.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lmdb

from loaders.errors import ManifestError, PackError
from loaders.formats import write_shard
from loaders.manifest import (
    Manifest,
    ShardInfo,
    publish_bytes,
    publish_manifest,
    read_manifest,
)
from packdata.journal import JOURNAL_NAME, LOCK_NAME, TargetLock
from packdata.settings import OVERWRITE
from packdata.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    check_records,
    check_shard_options,
    shard_name,
)
from packdata.target import PACKING_NAME, REJECTED_NAME, find_datasets, missing_folders
from packdata.verify import file_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from loaders.schema import Schema
    from packdata.recipe import Records

_NUMBER = re.compile(r"shard-(\d+)\.")


class Staging:
    """The right to change one dataset, and the folder in which the change is prepared.

    Args:
        folder: The dataset's folder, made if need be.
        overwrite: Replace a dataset that is there, or abandon an unfinished packing.
        extend: The folder must hold a dataset, which stays; its shards are kept.

    Raises:
        PackError: The folder is taken, cannot be written, or another process is packing into it.
    """

    def __init__(
        self, folder: Path | str, *, overwrite: bool = False, extend: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / PACKING_NAME
        self._overwrite, self._extend = overwrite, extend
        self._made = missing_folders(self.folder)
        self._lock: TargetLock | None = None

    def __enter__(self) -> Self:
        check_target(self.folder, overwrite=self._overwrite or self._extend)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = TargetLock(self.path / LOCK_NAME)
        except OSError as error:
            raise PackError(_cannot_write(error), self.folder) from error
        try:
            self._take_over()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _take_over(self) -> None:
        """Clear what a command that was ended has left, unless it can be finished."""
        if (self.path / JOURNAL_NAME).exists() and not self._overwrite:
            hint = f"Run the same 'packdata' command again, it continues; or {OVERWRITE}"
            raise PackError("packing into it was not finished", self.folder, hint)
        for left in self.path.iterdir():
            if left.name != LOCK_NAME:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()
        if error is not None:
            with suppress(OSError):  # something lies in it
                for folder in self._made:
                    folder.rmdir()
        if isinstance(error, OSError | lmdb.Error):
            raise PackError(_cannot_write(error), self.folder) from error

    def publish(
        self,
        staged: Sequence[ShardInfo],
        schema: Schema,
        provenance: Mapping[str, Any],
        files_of: Path | None = None,
    ) -> Manifest:
        """Give staged shards free names in the folder and make them the dataset.

        With ``extend`` they follow the shards that are there; else those are deleted, and the list
        of what their packing left out. Files that the schema names besides are copied from
        ``files_of``, a dataset that has them.
        """
        self._copy_files(schema, files_of)
        old = _shards_of(self.folder)
        old_files = _files_of(self.folder)
        first = _free_number(self.folder)
        named = [
            replace(info, file=shard_name("shard", first + i, _format_of(info)))
            for i, info in enumerate(staged)
        ]
        shards = (*(old if self._extend else ()), *named)
        manifest = Manifest(schema, shards, provenance)
        moved: list[Path] = []
        try:
            for info, new in zip(staged, named, strict=True):
                os.rename(self.path / info.file, self.folder / new.file)
                moved.append(self.folder / new.file)
            publish_manifest(
                self.folder, manifest
            )  # makes the names durable too: it syncs the folder
        except BaseException:
            if _shards_of(self.folder) != shards:  # or it happened just after publishing
                for path in moved:
                    path.unlink(missing_ok=True)
            raise
        replaced = [] if self._extend else [REJECTED_NAME, *(info.file for info in old)]
        for name in {*replaced, *old_files} - {*schema.files}:
            (self.folder / name).unlink(missing_ok=True)
        return manifest

    def _copy_files(self, schema: Schema, source: Path | None) -> None:
        for name, digest in schema.files.items():
            if file_fault(self.folder / name, digest) is None:
                continue
            what = "nobody has it" if source is None else file_fault(source / name, digest)
            if what is not None or source is None:
                raise PackError(f"its file {name} cannot be copied: {what}", source or self.folder)
            publish_bytes(self.folder / name, (source / name).read_bytes())


def check_target(folder: Path, *, overwrite: bool = False) -> None:
    """Raise PackError if a dataset written to this folder would replace something."""
    if find_datasets(folder, [""]) and not overwrite:
        raise PackError("a packed dataset is there", folder, f"{OVERWRITE} replaces it")


def _cannot_write(error: Exception) -> str:
    return f"it cannot be written ({getattr(error, 'strerror', None) or error})"


def _files_of(folder: Path) -> Mapping[str, str]:
    try:
        return read_manifest(folder).schema.files
    except ManifestError:
        return {}


def _shards_of(folder: Path) -> tuple[ShardInfo, ...]:
    try:
        return read_manifest(folder).shards
    except ManifestError:  # none yet, or one that cannot tell which files are its own
        return ()


def _free_number(folder: Path) -> int:
    taken = (_NUMBER.match(path.name) for path in folder.iterdir())
    return 1 + max((int(match[1]) for match in taken if match), default=-1)


def _format_of(info: ShardInfo) -> Format:
    return "lmdb" if info.file.endswith(".lmdb") else "parquet"


def format_of(manifest: Manifest) -> Format:
    """Return the format of a dataset's shards (of the first, should they differ)."""
    return _format_of(manifest.shards[0]) if manifest.shards else "lmdb"


def origin(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Describe a source for the provenance of what is made from it: no path above its own name."""
    described = {"name": path.absolute().name, "fingerprint": manifest.fingerprint}
    return described | {"provenance": dict(manifest.provenance)}


def write_dataset(
    dst: Path | str,
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
    with Staging(dst, overwrite=overwrite) as staging:
        staged = stage(staging, schema, samples, format=format, shard_bytes=shard_bytes)
        return staging.publish(staged, schema, provenance or {}, files_of)


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
        staged.append(write_shard(path, builder.take(), schema.fields))

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
