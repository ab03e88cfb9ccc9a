"""The folder that is packed into: who may write there, what is staged, how it is published.

Everything unfinished lies in ``DST/.packing``: the lock, the journal, and the staged shards.
Nothing else in DST is touched until every shard is complete. Then (``publish``) the shards are
renamed into place under names that no file there has, the manifests are replaced, each in one
step, and only after that the files of the dataset that was there before are deleted: a reader
finds the old dataset or the new one, and dying in between costs neither. Each step may be
repeated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loaders.errors import ManifestError, PackError
from loaders.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardInfo,
    publish_bytes,
    publish_manifest,
    read_manifest,
    sync_folder,
)
from loaders.schema import Schema
from loaders.text import printable_json
from packdata.disk import GO_ON, explained, write_staged
from packdata.journal import (
    JOURNAL_NAME,
    LOCK_NAME,
    Header,
    Journal,
    Reject,
    State,
    TargetLock,
    flatten_plan,
    lock_owner,
    read_journal,
)
from packdata.leftovers import leftovers, remove_leftovers
from packdata.settings import OVERWRITE
from packdata.shards import Format, shard_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.columns import Column

PACKER = "loaders 0.1.0"  # part of every plan, too: another version may encode other bytes
PACKING_NAME = ".packing"
REJECTED_NAME = "rejected.jsonl"
_STAGED = "shards"
_NEVER_OURS = frozenset({PACKING_NAME, "lost+found"})
_NUMBERED = re.compile(r"shard-(\d+)\.")
_MAX_DEPTH = 2  # of a target below the destination: split/size


class Packing:
    """A packing under way: the lock on its target, its journal, and a thread that writes shards.

    Args:
        dst: The destination.
        folders: The datasets below it that will be filled; "" is the destination itself.
        plan: JSON of all that decides the output.
        overwrite: Replace the datasets that are there, and drop an unfinished packing of another
            plan.
        resumable: False if nothing can go on where this ends early.

    Raises:
        PackError: The target holds something else, is in use, or cannot be written.
    """

    def __init__(
        self,
        dst: Path,
        folders: Sequence[str],
        plan: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resumable: bool = True,
    ) -> None:
        self.dst, self.folders = dst, tuple(folders)
        self._writer = ThreadPoolExecutor(1, "packdata-shard")
        self._written: Future[None] | None = None
        self._is_published = self._is_closed = False
        with explained(dst, "it cannot be packed into"):
            self._place = dst.absolute()  # the working folder may change before all is published
            self._work = self._place / PACKING_NAME
            if not self._work.exists():
                self._existing(overwrite)  # refuses before anything is created
            self._created = missing_folders(self._place)
            make_folder(self._place, dst)
            try:
                sync_made(self._created)
                self._lock = TargetLock(dst / PACKING_NAME / LOCK_NAME)
            except OSError:
                self._remove_empty()
                raise
            try:
                self._check_neighbours()
                for folder in self.folders:
                    remove_leftovers(dst / folder, dst / folder / PACKING_NAME)
                self.journal = self._open_journal(flatten_plan(plan), overwrite, resumable)
            except BaseException:
                if not (self._work / JOURNAL_NAME).exists():
                    self._clean_up()
                self._lock.release()
                raise

    @property
    def is_published(self) -> bool:
        """True once the target holds the datasets."""
        return self._is_published

    @property
    def state(self) -> State:
        """How far the packing has come."""
        return self.journal.state

    def _check_neighbours(self) -> None:
        """Raise PackError if another command works in a folder above, or in one of the targets."""
        check_unclaimed(self.dst)
        for folder in filter(None, self.folders):
            owner = lock_owner(self.dst / folder / PACKING_NAME / LOCK_NAME)
            if owner is not None:
                what, hint = f"{owner} is packing into it", "Wait for it, or stop it"
                raise PackError(what, self.dst / folder, hint)

    def _open_journal(self, plan: dict[str, str], overwrite: bool, resumable: bool) -> Journal:
        journal = Journal.open(self._work / JOURNAL_NAME, self._has_shard)
        if journal is not None:
            same = resumable and journal.header.resumable and not journal.header.differences(plan)
            if self._can_go_on(journal, plan, same=same, overwrite=overwrite):
                return journal
            journal.close()
            journal.path.unlink()
        existing = self._existing(overwrite)
        self._clear()
        first = {folder: free_number(self.dst / folder) for folder in self.folders}
        header = Header(plan, resumable, first, _replaced(existing))
        return Journal.create(self._work / JOURNAL_NAME, header)

    def _can_go_on(
        self, journal: Journal, plan: dict[str, str], *, same: bool, overwrite: bool
    ) -> bool:
        """Continue the packing of the journal, or return False if it is to be dropped."""
        if journal.state.done is not None:
            self.journal = journal
            try:
                self._check_targets()
            except PackError:
                if overwrite:
                    return False
                raise
            self._publish()  # the last run died while publishing: finish that, whatever comes next
            self._is_published = same
            return same
        if same:
            return journal.header.replaces == _replaced(self._existing(overwrite))
        if journal.header.resumable and journal.state.shards and not overwrite:
            differences = "; ".join(journal.header.differences(plan)[:4])
            what = f"an unfinished packing there is another: {differences}"
            raise PackError(
                what, self.dst, f"Give what it was given to continue it, or {OVERWRITE} to drop it"
            )
        return False

    def _clear(self) -> None:
        """Remove what an ended process has left in our folder, but for the lock that we hold.

        The journal goes last: until then, the command that is run again finishes.
        """
        for path in sorted(self._work.iterdir(), key=lambda path: path.name == JOURNAL_NAME):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_NAME:
                path.unlink()

    def _existing(self, overwrite: bool) -> dict[str, Manifest]:
        """Return the datasets that would be replaced; PackError where that is not wanted."""
        existing = find_datasets(self.dst, self.folders)
        if existing and not overwrite:
            hint = f"{OVERWRITE} replaces it; 'packdata extend' adds to it"
            raise PackError(
                "a packed dataset is there, and is complete", self.dst / next(iter(existing)), hint
            )
        return existing

    def _has_shard(self, folder: str, info: ShardInfo) -> bool:
        places = (self._staged(folder) / info.file, self._place / folder / info.file)
        return any(path.exists() and path.stat().st_size == info.size_bytes for path in places)

    def _staged(self, folder: str) -> Path:
        return self._work / _STAGED / folder

    def _shown(self, path: Path) -> Path:
        """Return a path below the destination as messages name it: beginning as it was given."""
        return self.dst / path.relative_to(self._place)

    def write(
        self,
        part: str,
        folder: str,
        columns: Mapping[str, Column],
        schema: Schema,
        format: Format,
        items: int,
        rejects: Sequence[Reject],
        rows: int = 0,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Write the next shard of a target on a thread; one at a time, which bounds memory.

        Args:
            part: The part it belongs to.
            folder: The target.
            columns: Its rows.
            schema: Their fields.
            format: Of the file.
            items: Items of the part's source that are done with this shard.
            rejects: Items of the part that were left out since the last call.
            rows: Samples of the next item that this shard holds.
            counts: What was counted in these items, of the part.

        Raises:
            PackError: This shard's predecessor could not be written.
        """
        self.wait()
        position = {
            "items": items,
            "rows": rows,
            "rejects": list(rejects),
            "counts": dict(counts or {}),
        }
        line = {"part": part, "target": folder, **position}
        number = self.journal.header.first[folder] + len(self.state.shards.get(folder, ()))
        path = self._staged(folder) / shard_name("shard", number, format)
        self._written = self._writer.submit(self._write, path, columns, schema, line)

    def _write(
        self, path: Path, columns: Mapping[str, Column], schema: Schema, line: dict[str, Any]
    ) -> None:
        with explained(self._shown(path), "the shard cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # half of it may be left from a run that was killed
            try:
                info = write_staged(path, columns, schema)
            except BaseException:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
            self.journal.append(line | {"shard": info.to_json()})

    def stage_files(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write the files that a target's schema names, for publishing beside its manifest."""
        for name, data in files.items():
            path = self._staged(folder) / name
            with explained(self._shown(path), "it cannot be written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                publish_bytes(path, data)

    def wait(self) -> None:
        """Return once the shard under way is on disk; PackError if it cannot be written."""
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def end_part(
        self,
        part: str,
        items: int,
        rejects: Sequence[Reject],
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Note that a part of the source is packed to its end."""
        self.wait()
        with explained(self.dst / PACKING_NAME, "the journal cannot be written"):
            self.journal.append(
                {
                    "part": part,
                    "end": items,
                    "rejects": list(rejects),
                    "counts": dict(counts or {}),
                }
            )

    def publish(self, contents: Mapping[str, tuple[Schema, Mapping[str, Any]]]) -> None:
        """Make datasets of the finished shards: per target its schema and provenance."""
        self.wait()
        with explained(self.dst, "the dataset cannot be published"):
            self._check_targets()
        done = {
            folder: {"schema": schema.to_json(), "provenance": dict(provenance)}
            for folder, (schema, provenance) in contents.items()
        }
        with explained(self.dst, "the dataset cannot be published"):
            self.journal.append({"done": done})
            self._publish()

    def _check_targets(self) -> None:
        """Raise PackError if publishing would cost what others have put there meanwhile."""
        for folder in self.folders:
            target, shards = self._place / folder, self.state.shards[folder]
            replaced, _ = self.journal.header.replaces.get(folder, (None, ()))
            there = _dataset_at(target)
            if there is not None and there.fingerprint != replaced and not _has_any(there, shards):
                what = "the dataset there changed while another was packed to take its place"
                hint = f"{OVERWRITE} packs anew, and replaces it as it is"
                raise PackError(what, self.dst / folder, hint)
            for shard in shards:
                staged = self._staged(folder) / shard.file
                if staged.exists() and os.path.lexists(target / shard.file):
                    what = f"{shard.file} is there, and is not of this packing"
                    raise PackError(what, self.dst / folder, f"Move it away. Then {GO_ON}")

    def _publish(self) -> None:
        for folder in self.state.done or {}:
            self._rename_staged(folder)
        self._publish_rejects()
        for folder in self.state.done or {}:
            replaced, files = self.journal.header.replaces.get(folder, (None, ()))
            target = self._place / folder
            there = _dataset_at(target)
            if there is None or there.fingerprint == replaced:
                there = self.manifest(folder)
                publish_manifest(target, there)
            # else it was published already, and perhaps extended since
            for name in set(files) - set(_files(there)):
                (target / name).unlink(missing_ok=True)
        self._is_published = True

    def _rename_staged(self, folder: str) -> None:
        target = self._place / folder
        made = missing_folders(target)
        target.mkdir(parents=True, exist_ok=True)
        sync_made(made)
        for name in _files(self.manifest(folder)):
            staged = self._staged(folder) / name
            if staged.exists():
                os.replace(staged, target / name)
        sync_folder(target)

    def _publish_rejects(self) -> None:
        path = self._place / REJECTED_NAME
        rejects = self.state.all_rejects
        lines = [
            json.dumps({"item": r.item, "error": r.error}, ensure_ascii=False) for r in rejects
        ]
        if rejects:
            text = "".join(f"{printable_json(line)}\n" for line in lines)
            publish_bytes(path, text.encode(errors="backslashreplace"))  # as the manifest is
        elif self.journal.header.replaces:
            path.unlink(missing_ok=True)

    def manifest(self, folder: str) -> Manifest:
        """Return the manifest of a target that is complete."""
        content = (self.state.done or {})[folder]
        schema = Schema.from_json(content["schema"])
        return Manifest(schema, tuple(self.state.shards[folder]), content["provenance"])

    def close(self) -> None:
        """Wait for the shard under way, and leave what it takes to go on; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.shutdown(wait=True, cancel_futures=True)
        self.journal.close()
        can_go_on = self.journal.header.resumable and bool(self.state.shards)
        with suppress(OSError):
            if self._is_published or not (can_go_on or self.state.done):
                self._clean_up()
        self._lock.release()

    def _clean_up(self) -> None:
        self._clear()
        (self._work / LOCK_NAME).unlink(missing_ok=True)
        if self._is_published:
            self._work.rmdir()
        else:
            self._remove_empty()

    def _remove_empty(self) -> None:
        with suppress(OSError):  # something else lies there by now
            for folder in (self._work, *self._created):
                folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_unfinished(dst: Path | str) -> bool:
    """Tell whether a packing into ``dst`` has begun and can be continued."""
    return os.path.exists(os.path.join(dst, PACKING_NAME, JOURNAL_NAME))


def check_unclaimed(folder: Path) -> None:
    """Raise PackError if a packing into a folder above is about to fill this one.

    Call it with the lock on the folder in hand: who packs into the one above has the lock on that
    and looks at this one, so that of two who come at once, one at least sees the other.
    """
    path = Path(os.path.abspath(folder))
    for above in path.parents[:_MAX_DEPTH]:
        work = above / PACKING_NAME
        found = read_journal(work / JOURNAL_NAME)
        if found is not None and path.relative_to(above).as_posix() not in found[0].first:
            continue
        owner = lock_owner(work / LOCK_NAME)
        if owner is not None:
            what = f"{owner} is packing into {above}, and this is a part of it"
            raise PackError(what, folder, "Wait for it, or stop it")
        if found is not None and found[1].done is not None:
            what = f"a packing into {above} ended while it published, and this is a part of it"
            raise PackError(what, folder, "First run that 'packdata' command again: it finishes")


def missing_folders(folder: Path) -> list[Path]:
    """Return the folders that would have to be made for one, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def make_folder(folder: Path, target: Path) -> None:
    """Make a folder in, or for, a target; PackError where the system takes none, as in ``/proc``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # though what is above is there
        what = f"no folder can be made there ({error.strerror})"
        raise PackError(what, target, "Check the path, or choose another") from error


def sync_made(folders: Sequence[Path]) -> None:
    """Make the names of new folders durable."""
    for folder in folders:
        with suppress(PermissionError):  # a folder may be writable below one that cannot be read
            sync_folder(folder.parent)


def find_datasets(dst: Path, folders: Sequence[str]) -> dict[str, Manifest]:
    """Return which of the folders below a destination are datasets already.

    Raises:
        PackError: The destination holds something that packing did not put there.
    """
    if dst.exists() and not dst.is_dir():
        raise PackError("it is a file", dst, "Choose a folder that is new or empty")
    found = {folder: _dataset_at(dst / folder) for folder in folders}
    datasets = {folder: manifest for folder, manifest in found.items() if manifest is not None}
    foreign = list(_foreign(dst, "", found))
    around = [] if datasets else dict.fromkeys(path.parent for path in foreign)
    others = [path for path in around if _is_dataset(path)]
    others += [path for path in foreign if (path / MANIFEST_NAME).exists()]
    if others:
        raise _other_datasets(dst, others, folders)
    if foreign and not datasets:
        hint = "Choose a folder that is new or empty; nothing here was touched"
        path = foreign[0]
        raise PackError(f"it is not empty (it holds {path.name!r})", path.parent, hint)
    return datasets


def _other_datasets(dst: Path, others: Sequence[Path], folders: Sequence[str]) -> PackError:
    """Return the error that datasets lie where none is to be written: these are never replaced."""
    places = _few([dst / folder for folder in folders])
    remedy = "choose another folder"
    if all(map(_is_dataset, others)):  # a manifest.json may be of something else
        remedy = f"remove {_few(others)} yourself, or {remedy}"
    hint = f"{OVERWRITE} replaces datasets in the same places only, here {places}: {remedy}"
    return PackError("another packed dataset is there", others[0], hint)


def _is_dataset(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except ManifestError:
        return False
    return True


def _few(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:4])) + (", ..." if len(paths) > 4 else "")


def _dataset_at(folder: Path) -> Manifest | None:
    if not (folder / MANIFEST_NAME).exists():
        return None
    try:
        return read_manifest(folder)
    except ManifestError as error:
        hint = "Which files belong to it is not known: remove the folder yourself"
        raise PackError(
            f"the dataset there cannot be replaced ({error.what})", folder, hint
        ) from error


def _foreign(dst: Path, below: str, found: Mapping[str, Manifest | None]) -> Iterator[Path]:
    """Yield what lies in and between the target folders, and belongs to none of their datasets."""
    folder = dst / below
    if found.get(below) is not None or not folder.is_dir():
        return
    left = leftovers(folder, folder / PACKING_NAME)
    inner = {f.split("/")[0] for f in _below(found, below)}
    for path in sorted(folder.iterdir()):
        if path.name in inner and path.is_dir():
            yield from _foreign(dst, f"{below}/{path.name}".lstrip("/"), found)
        elif path.name not in _NEVER_OURS | left:
            yield path


def _below(folders: Mapping[str, Any], below: str) -> list[str]:
    prefix = f"{below}/" if below else ""
    return [f.removeprefix(prefix) for f in folders if f.startswith(prefix) and f != below]


def free_number(folder: Path) -> int:
    """Return the first shard number that no file there has, and none after it."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return 1 + max((int(m[1]) for m in map(_NUMBERED.match, names) if m), default=-1)


def _replaced(existing: Mapping[str, Manifest]) -> dict[str, tuple[str, list[str]]]:
    return {folder: (m.fingerprint, _files(m)) for folder, m in existing.items()}


def _has_any(manifest: Manifest, shards: Sequence[ShardInfo]) -> bool:
    known = {(shard.file, shard.xxh3_128) for shard in shards}
    return any((shard.file, shard.xxh3_128) in known for shard in manifest.shards)


def _files(manifest: Manifest) -> list[str]:
    return [*(shard.file for shard in manifest.shards), *manifest.schema.files]
