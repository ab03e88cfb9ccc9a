"""Making datasets in a folder, all or nothing: staged first, published last, killed at any moment.

Everything unfinished lies in ``DST/.packing``: the lock, the journal, and the staged shards. Nothing else in DST
is touched until every shard is complete; then ``publish.py`` makes datasets of them.
"""

from __future__ import annotations

import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from loaders.data.manifest import (
    Manifest,
    ShardInfo,
    publish_bytes,
    read_manifest,
    sync_folder,
)
from loaders.errors import PackError
from loaders.system.regular import read_regular
from packdata.packing.disk import GO_ON, explained, write_staged
from packdata.packing.journal import (
    JOURNAL_NAME,
    Journal,
    JournalHeader,
    Kind,
    Reached,
    State,
    named,
)
from packdata.packing.links import file_beside, file_fault, stage_whole
from packdata.packing.lock import LOCK_NAME, TargetLock, lock_owner
from packdata.packing.provenance import PLAN
from packdata.packing.publish import Publication
from packdata.packing.shards import SHARDS_AT_ONCE, Format, shard_name, stored_info
from packdata.packing.store import FolderStore
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    REJECTED_NAME,
    check_unclaimed,
    digest_of,
    files_of,
    find_datasets,
    is_there,
    is_unfinished,
    make_folder,
    missing_folders,
    rejects_at,
    remove_unnamed,
    size_of,
    staged_at,
    sync_made,
)
from packdata.packing.upload import is_made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.shards import FileShard
    from loaders.schema import Schema
    from packdata.packing.links import OnLink
    from packdata.packing.upload import ShardSender

MADE = "the same command made it earlier; nothing was written"
FINISHED = "the same command was killed when it had made it; it was finished"
_NOT_PACKED = "it cannot be packed into"


class Packing:
    """The making of datasets in one folder: its lock, its journal, and threads that write shards.

    Nothing is looked at or touched before ``with`` is entered.

    Args:
        dst: The destination.
        folders: The datasets below it that will be filled; "" is the destination itself.
        plan: All that decides the output, flat (``flatten_plan``).
        overwrite: Replace the datasets that are there, and drop an unfinished packing of another
            plan.
        kind: What is left where it ends early. A ``command`` may share the destination with other datasets.
        extend: The shards of the dataset that is there stay, and come first.
        sender: Takes shards away when they are finished.

    Attributes:
        was_there: True if the datasets are there already, made by the same plan, and nothing is to be done.
        is_part: True of a part, which may be empty, and stays staged.
    """

    def __init__(
        self,
        dst: Path,
        folders: Sequence[str],
        plan: Mapping[str, str],
        *,
        overwrite: bool = False,
        kind: Kind = "packing",
        extend: bool = False,
        sender: ShardSender | None = None,
    ) -> None:
        self.dst, self.folders = dst, tuple(folders)
        self._sender = sender
        self._kind, self.is_part = kind, kind == "part"
        self._overwrite, self._extend = overwrite, extend
        self._plan = dict(plan)
        self._journal: Journal | None = None
        self._lock: TargetLock | None = None
        self._writers = ThreadPoolExecutor(SHARDS_AT_ONCE, "packdata-shard")
        self._under_way: deque[Future[None]] = deque()
        self._numbers: dict[str, Iterator[int]] = {}  # of the shards to come
        self._is_closed = self._is_published = self.was_there = False
        with self._explained(dst, _NOT_PACKED):
            self._place = dst.absolute()  # the working folder may change before all is published
        self._work = self._place / PACKING_NAME

    def __enter__(self) -> Self:
        """Lock the destination, and go on where the same plan ended: where it was killed while it published, finish.

        Raises:
            PackError: The target holds something else, is in use, or cannot be written.
        """
        with self._explained(self.dst, _NOT_PACKED):
            self.was_there = self._is_published = self._was_made_before()
            if not self._is_published:
                self._begin()
        return self

    def _begin(self) -> None:
        self._check_no_parts()
        if not self._work.exists():
            check_unclaimed(self.dst)
            self._existing()  # refuses before anything is created
        self._created = missing_folders(self._place)
        make_folder(self._place, self.dst)
        try:
            sync_made(self._created)
            self._lock = TargetLock(self.dst / PACKING_NAME / LOCK_NAME)
        except OSError:
            self._remove_empty()
            raise
        try:
            self._check_neighbours()
            self._check_no_parts()  # some may have begun meanwhile
            if self._has_parts():
                shutil.rmtree(self._place / PARTS_NAME)
            self._journal = self._open_journal()
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
    def why_finished(self) -> str:
        """Say what made the datasets, where nothing was left to do."""
        return MADE if self.was_there else FINISHED

    @property
    def journal(self) -> Journal:
        """What is finished; of no use where the datasets were there."""
        assert self._journal is not None
        return self._journal

    @property
    def state(self) -> State:
        """How far the packing has come."""
        return State() if self._journal is None else self._journal.state

    def _explained(self, path: Path, what: str) -> AbstractContextManager[None]:
        """Turn what the system says into a PackError; a command leaves nothing, and begins anew."""
        if self._kind == "command":
            return explained(self.dst)
        return explained(path, what, GO_ON)

    def _was_made_before(self) -> bool:
        """Tell whether the datasets are there, as the same plan has made them."""
        if self._overwrite or self._extend or self._kind == "writer" or is_unfinished(self._place):
            return False
        return is_made(FolderStore(self._place), self.folders, digest_of(self._plan))

    def _has_parts(self) -> bool:
        """Tell whether parts of another packing lie there."""
        return not self.is_part and any((self._place / PARTS_NAME).glob("*"))

    def _check_no_parts(self) -> None:
        """Raise PackError for parts of another packing, which ``--overwrite`` drops."""
        if self._has_parts() and not self._overwrite:
            hint = "Run 'packdata finish' to join them, or pass overwrite=True to drop them"
            raise PackError("parts of a packing lie there", self.dst, hint)

    def _check_neighbours(self) -> None:
        """Raise PackError if another command works in a folder above, or in one of the targets."""
        check_unclaimed(self.dst)
        for folder in filter(None, self.folders):
            owner = lock_owner(self.dst / folder / PACKING_NAME / LOCK_NAME)
            if owner is not None:
                what, hint = f"{owner} is packing into it", "Wait for it, or stop it"
                raise PackError(what, self.dst / folder, hint)

    def _open_journal(self) -> Journal:
        """Open the journal that is there, if this packing continues it; else begin one."""
        begun = set(self.folders)
        journal = Journal.open(self._work / JOURNAL_NAME, self._has_shard)
        if journal is not None:
            try:
                if self._can_go_on(journal):
                    return journal
            except BaseException:
                journal.close()
                raise
            begun |= journal.header.first.keys()
            journal.close()
            journal.path.unlink()
        existing = self._existing()
        self._clear()
        for folder in begun:
            remove_unnamed(self._place / folder)
        there = existing if self._extend else {}
        first = {f: len(there[f].shards) if f in there else 0 for f in self.folders}
        header = JournalHeader(self._plan, self._kind, first, self._replaced(existing))
        return Journal.create(self._work / JOURNAL_NAME, header)

    def _can_go_on(self, journal: Journal) -> bool:
        """Tell whether this packing continues the journal, or False if it is to be dropped.

        What was killed while it published is finished first.

        Raises:
            PackError: It is of another packing, and still of use.
        """
        was, state = journal.header, journal.state
        is_same = was.kind == self._kind != "writer" and not was.differences(self._plan)
        if was.kind == "command" and not is_same:
            if state.done is not None and (left := self._publication(journal)).is_published():
                left.publish()  # its last step: files of what was replaced go
            return False
        if state.done is not None and was.kind != "part":
            self._is_published = self._finish(journal) and is_same
            return self._is_published
        if is_same:
            return was.replaces == self._replaced(self._existing())
        if was.kind not in ("command", "writer") and not self._overwrite:
            self._check_dropped(was, state)
        return False

    def _finish(self, journal: Journal) -> bool:
        """Publish what a killed run has left complete; False if others took its place, and it may go."""
        left = self._publication(journal)
        try:
            left.check_targets()
        except PackError:
            if not self._overwrite and journal.header.kind not in ("command", "writer"):
                raise
            return False
        left.publish()
        return True

    def _check_dropped(self, was: JournalHeader, state: State) -> None:
        """Raise PackError if something can still be made of the packing that is there."""
        if self._kind == "command":
            hint = "Run the same 'packdata' command again, it continues; or pass overwrite=True"
            raise PackError("packing into it was not finished", self.dst, hint)
        if state.shards:
            what = f"an unfinished packing there is another: {'; '.join(was.differences(self._plan)[:4])}"
            hint = "Pass the same to continue it, or overwrite=True to drop it"
            raise PackError(what, self.dst, hint)

    def _clear(self) -> None:
        """Remove what an ended process has left in our folder, but for the lock that we hold.

        The journal goes last: until then, the command that is run again finishes.
        """
        for path in sorted(self._work.iterdir(), key=lambda path: path.name == JOURNAL_NAME):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK_NAME:
                path.unlink()

    def _existing(self) -> dict[str, Manifest]:
        """Return the datasets that would be replaced; PackError where that is not wanted."""
        if self._kind == "command":
            found = {folder: find_datasets(self.dst / folder, [""]) for folder in self.folders}
            existing = {folder: there[""] for folder, there in found.items() if there}
        else:
            existing = find_datasets(self.dst, self.folders)
        if existing and not self._overwrite and not self._extend:
            raise is_there(self.dst / next(iter(existing)))
        return existing

    def _replaced(self, existing: Mapping[str, Manifest]) -> dict[str, tuple[str, list[str]]]:
        """Return of each dataset that is there the fingerprint, and the files that go; none if it is extended."""
        # Of other kinds our own takes its place.
        rejects = [REJECTED_NAME] if self._kind == "command" else []
        return {
            folder: (there.fingerprint, [] if self._extend else [*files_of(there), *rejects])
            for folder, there in existing.items()
        }

    def _has_shard(self, folder: str, info: ShardInfo) -> bool:
        staged, stored = self._staged(folder) / info.file, stored_info(info).file
        if info.size_bytes in (size_of(staged), size_of(self._place / folder / stored)):
            return True
        return self._sender is not None and self._sender.has(folder, staged, info)

    def _staged(self, folder: str) -> Path:
        return staged_at(self._place, folder)

    def _shown(self, path: Path) -> Path:
        """Return a path below the destination as messages name it: beginning as it was given."""
        return self.dst / path.relative_to(self._place)

    def _next_number(self, folder: str) -> int:
        return self.journal.header.first[folder] + len(self.state.shards.get(folder, ()))

    def write(
        self,
        folder: str,
        columns: Mapping[str, Column],
        schema: Schema,
        format: Format,
        reached: Reached,
    ) -> None:
        """Write the next shard of a target on a thread; ``SHARDS_AT_ONCE``, which bounds memory.

        Args:
            folder: The target.
            columns: Its rows.
            schema: Their fields.
            format: Of the file.
            reached: How far the source has come with it.

        Raises:
            PackError: One before it could not be written.
        """
        self.wait(SHARDS_AT_ONCE - 1)
        numbers = self._numbers.setdefault(folder, count(self._next_number(folder)))
        path = self._staged(folder) / shard_name(next(numbers), format)
        shard = partial(write_staged, path, columns, schema)
        before = [*self._under_way]
        self._under_way.append(
            self._writers.submit(self._write, folder, path, shard, reached, before)
        )

    def _write(
        self,
        folder: str,
        path: Path,
        shard: Callable[[], ShardInfo],
        reached: Reached,
        before: Sequence[Future[None]],
    ) -> None:
        """Runs on the threads."""
        with self._explained(self._shown(path), "the shard cannot be written"):
            info = shard()
            for earlier in before:  # the journal has shards in their order
                earlier.result()
            sync_folder(path.parent)
            self.journal.append(reached.shard_line(folder, info))
        if self._sender is not None:
            self._sender.send(folder, path, info)

    def take_whole(
        self,
        folder: str,
        shards: Sequence[FileShard],
        *,
        link: bool = True,
        on_link: OnLink = str,
    ) -> None:
        """Bring whole shards to a target, those that it has already left out; see ``stage_whole``."""
        staged, sender = self._staged(folder), self._sender
        at_once = max(1, len(shards)) if sender is None else 1  # sent, a copy of each is deleted
        for at in range(len(self.state.shards.get(folder, ())), max(1, len(shards)), at_once):
            with self._explained(self._shown(staged), "the shard cannot be written"):
                staged.mkdir(parents=True, exist_ok=True)
                some, first = shards[at : at + at_once], self._next_number(folder)
                infos = stage_whole(staged, some, first, link=link, on_link=on_link)
                sync_folder(staged)
                self.journal.append(*(Reached(0).shard_line(folder, info) for info in infos))
            for info in infos:
                if sender is not None:
                    sender.send(folder, staged / info.file, info)

    def stage_files(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write the files that a target's schema names, for publishing beside its manifest."""
        for name, data in files.items():
            path = self._staged(folder) / name
            with self._explained(self._shown(path), "it cannot be written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                publish_bytes(path, data)

    def copy_files(self, folder: str, schema: Schema, source: Path | None) -> None:
        """Stage what a schema names besides shards, from a dataset that has it.

        Raises:
            PackError: It has not.
        """
        for name, digest in schema.files.items():
            if file_fault(self._place / folder / name, digest) is None:
                continue
            file = None if source is None else file_beside(source, name)
            what = "no source has it" if file is None else file_fault(file, digest)
            if what is not None or file is None:
                raise PackError(f"its file {name} cannot be copied: {what}", source or self.dst)
            self.stage_files(folder, {name: read_regular(file)})

    def wait(self, num: int = 0) -> None:
        """Return once no more than so many shards are under way; PackError if one cannot be written."""
        while len(self._under_way) > num:
            self._under_way.popleft().result()

    def end_split(self, reached: Reached) -> None:
        """Note that a split of the source is packed to its end."""
        self.wait()
        with self._explained(self.dst / PACKING_NAME, "the journal cannot be written"):
            self.journal.append(reached.end_line())

    def publish(self, contents: Mapping[str, tuple[Schema, Mapping[str, Any]]]) -> None:
        """Make datasets of the finished shards: per target its schema and provenance."""
        self.wait()
        with self._explained(self.dst, "the dataset cannot be published"):
            publication = self._publication(self.journal)
            publication.check_targets()
            is_known = not self._extend and self._kind not in ("part", "writer")
            plan = {PLAN: digest_of(self._plan)} if is_known else {}
            done = {
                folder: {"schema": schema.to_json(), "provenance": {**provenance, **plan}}
                for folder, (schema, provenance) in contents.items()
            }
            self.journal.append({"done": done})
            if not self.is_part:
                publication.publish()
            self._is_published = True

    def _publication(self, journal: Journal) -> Publication:
        return Publication(self.dst, self._place, journal)

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifest of each target, once it is published; of a part, what is staged of it."""
        if self.is_part:
            staged = self._publication(self.journal)
            return {folder: staged.manifest(folder) for folder in self.state.done or {}}
        return {folder: read_manifest(self._place / folder) for folder in self.folders}

    def rejected(self) -> list[tuple[str, str]]:
        """Return (item, error) of what was left out, also by the run that made what was there."""
        if not self.was_there:
            return named(self.state.all_rejects)
        return rejects_at(self._place)

    def close(self) -> None:
        """Wait for the shards under way, and leave what it takes to go on; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writers.shutdown(wait=True, cancel_futures=True)
        if self._journal is None or self._lock is None:
            return
        self._journal.close()
        with suppress(OSError):
            if not self._is_worth_keeping():
                self._clean_up()
        self._lock.release()

    def _is_worth_keeping(self) -> bool:
        if self.is_part:
            return bool(self.state.shards or self.state.done)
        if self._is_published:
            return False
        if self._kind == "packing" and self.state.shards:
            return True
        return self._kind != "command" and self.state.done is not None

    def _clean_up(self) -> None:
        if self._kind == "command":
            for folder in self.folders:
                remove_unnamed(self._place / folder)
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

    def __exit__(self, *_: object) -> None:
        self.close()
