"""Making datasets in a folder, all or nothing: staged first, published last, killed at any moment.

Everything unfinished lies in ``DST/.packing``: the lock, the journal, and the staged shards. Nothing else in DST
is touched until every shard is complete. Then (``publish``) the shards are renamed into place under names that no
file there has, the manifests are replaced, each in one step, and only after that the files of the dataset that was
there before are deleted: a reader finds the old dataset or the new one, and dying in between costs neither. Each
step may be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from loaders.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardInfo,
    manifest_bytes,
    publish_bytes,
    publish_file,
    read_manifest,
    sync_folder,
)
from loaders.errors import PackError
from loaders.schema import Schema
from loaders.system.regular import read_regular
from packdata.packing.disk import GO_ON, explained, write_staged
from packdata.packing.journal import (
    JOURNAL_NAME,
    Journal,
    JournalHeader,
    Kind,
    Reject,
    State,
    named,
)
from packdata.packing.links import file_beside, file_fault, stage_whole
from packdata.packing.lock import LOCK_NAME, TargetLock, lock_owner
from packdata.packing.provenance import PLAN
from packdata.packing.settings import OVERWRITE
from packdata.packing.shards import SHARDS_AT_ONCE, Format, shard_name
from packdata.packing.target import (
    PACKING_NAME,
    PARTS_NAME,
    REJECTED_NAME,
    check_unclaimed,
    dataset_at,
    digest_of,
    files_of,
    find_datasets,
    free_number,
    has_any,
    is_made,
    is_there,
    is_unfinished,
    make_folder,
    missing_folders,
    rejects_at,
    rejects_bytes,
    remove_leftovers,
    size_of,
    sync_made,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.shards import FileShard
    from packdata.packing.links import OnLink
    from packdata.packing.upload import ShardSender

PACKER = "loaders 0.1.0"  # part of every plan, too: another version may encode other bytes
STAGED = "shards"
MADE = "the same command made it earlier; nothing was written"
FINISHED = "the same command was killed when it had made it; it was finished"
_DONE = "done"


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a part of a source has come with a shard.

    Attributes:
        items: Items of it that are done.
        rows: Samples of the next item that are done.
        part: The part.
        rejects: Its items that were left out since the last shard.
        counts: What was counted in all these items.
    """

    items: int
    rows: int = 0
    part: str = ""
    rejects: Sequence[Reject] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the journal has it."""
        return {
            "part": self.part,
            "items": self.items,
            "rows": self.rows,
            "rejects": list(self.rejects),
            "counts": dict(self.counts),
        }


class Packing:
    """The making of datasets in one folder: its lock, its journal, and threads that write shards.

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

    Raises:
        PackError: The target holds something else, is in use, or cannot be written.
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
        self._is_closed = False
        with self._explained(dst, "it cannot be packed into"):
            self._place = dst.absolute()  # the working folder may change before all is published
            self._work = self._place / PACKING_NAME
            self.was_there = self._is_published = self._was_made_before()
            if not self._is_published:
                self._begin()

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
            for folder in filter(None, self.folders):
                remove_leftovers(self._place / folder)
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
        return is_made(self._place, self.folders, digest_of(self._plan))

    def _has_parts(self) -> bool:
        """Tell whether parts of another packing lie there."""
        is_other = self._kind not in ("part", "finish")
        return is_other and any((self._place / PARTS_NAME).glob("*"))

    def _check_no_parts(self) -> None:
        """Raise PackError for parts of another packing, which ``--overwrite`` drops."""
        if self._has_parts() and not self._overwrite:
            hint = f"'packdata finish' joins them, {OVERWRITE} drops them"
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
        journal = Journal.open(self._work / JOURNAL_NAME, self._has_shard)
        if journal is not None:
            if self._can_go_on(journal):
                return journal
            journal.close()
            journal.path.unlink()
        existing = self._existing()
        self._clear()
        first = {folder: free_number(self.dst / folder) for folder in self.folders}
        header = JournalHeader(self._plan, self._kind, first, self._replaced(existing))
        return Journal.create(self._work / JOURNAL_NAME, header)

    def _can_go_on(self, journal: Journal) -> bool:
        """Continue the packing of the journal, or return False if it is to be dropped."""
        was, state = journal.header, journal.state
        is_same = was.kind == self._kind != "writer" and not was.differences(self._plan)
        if was.kind == "command" and not is_same:
            remove_leftovers(self._place)
            return False
        if state.done is not None and was.kind != "part":
            self._journal = journal
            try:
                self._check_targets()
            except PackError:
                if not self._overwrite and self._kind != "command":
                    raise
                remove_leftovers(self._place)
                return False
            self._publish()  # the last run died while publishing: finish that, whatever comes next
            self._is_published = is_same
            return is_same
        if is_same:
            return was.replaces == self._replaced(self._existing())
        if was.kind not in ("command", "writer") and not self._overwrite:
            self._check_dropped(was, state)
        return False

    def _check_dropped(self, was: JournalHeader, state: State) -> None:
        """Raise PackError if something can still be made of the packing that is there."""
        if self._kind == "command":
            hint = f"Run the same 'packdata' command again, it continues; or {OVERWRITE}"
            raise PackError("packing into it was not finished", self.dst, hint)
        if state.shards:
            what = f"an unfinished packing there is another: {'; '.join(was.differences(self._plan)[:4])}"
            hint = f"Give what it was given to continue it, or {OVERWRITE} to drop it"
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
        """Return of each dataset that is there the fingerprint, and the files that go."""
        # Of other kinds our own takes its place.
        rejects = [REJECTED_NAME] if self._kind == "command" else []
        return {
            folder: (there.fingerprint, [] if self._extend else [*files_of(there), *rejects])
            for folder, there in existing.items()
        }

    def _has_shard(self, folder: str, info: ShardInfo) -> bool:
        staged = self._staged(folder) / info.file
        if any(size_of(p) == info.size_bytes for p in (staged, self._place / folder / info.file)):
            return True
        return self._sender is not None and self._sender.has(folder, staged, info)

    def _staged(self, folder: str) -> Path:
        return self._work / STAGED / folder

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
        line = {**reached.to_json(), "target": folder}
        shard = partial(write_staged, path, columns, schema)
        self._under_way.append(
            self._writers.submit(self._write, path, shard, line, [*self._under_way])
        )

    def _write(
        self, path: Path, shard: Callable[[], ShardInfo], line: Any, before: list[Future[None]]
    ) -> None:
        with self._explained(self._shown(path), "the shard cannot be written"):
            info = shard()
            for earlier in before:  # the journal has shards in their order
                earlier.result()
            sync_folder(path.parent)
            self.journal.append(line | {"shard": info.to_json()})
        if self._sender is not None:
            self._sender.send(line["target"], path, info)

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
                about = {**Reached(0).to_json(), "target": folder}
                self.journal.append(*(about | {"shard": info.to_json()} for info in infos))
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

    def end_part(self, reached: Reached) -> None:
        """Note that a part of the source is packed to its end."""
        self.wait()
        with self._explained(self.dst / PACKING_NAME, "the journal cannot be written"):
            line = reached.to_json()
            self.journal.append({"end": line.pop("items"), **line})

    def publish(self, contents: Mapping[str, tuple[Schema, Mapping[str, Any]]]) -> None:
        """Make datasets of the finished shards: per target its schema and provenance."""
        self.wait()
        with self._explained(self.dst, "the dataset cannot be published"):
            self._check_targets()
            is_known = not self._extend and self._kind not in ("part", "writer")
            plan = {PLAN: digest_of(self._plan)} if is_known else {}
            done = {
                folder: {"schema": schema.to_json(), "provenance": {**provenance, **plan}}
                for folder, (schema, provenance) in contents.items()
            }
            self.journal.append({"done": done})
            if self.is_part:
                self._is_published = True
            else:
                self._publish()

    def _check_targets(self) -> None:
        """Raise PackError if publishing would cost what others have put there meanwhile."""
        for folder in self.folders:
            target, shards = self._place / folder, self.state.shards.get(folder, ())
            replaced, _ = self.journal.header.replaces.get(folder, (None, ()))
            there = dataset_at(target)
            if there is not None and there.fingerprint != replaced and not has_any(there, shards):
                what = "the dataset there changed while another was packed to take its place"
                hint = f"{OVERWRITE} packs anew, and replaces it as it is"
                raise PackError(what, self.dst / folder, hint)
            for shard in shards:
                staged = self._staged(folder) / shard.file
                if staged.exists() and os.path.lexists(target / shard.file):
                    what = f"{shard.file} is there, and is not of this packing"
                    raise PackError(what, self.dst / folder, f"Move it away. Then {GO_ON}")

    def _publish(self) -> None:
        done = self.state.done or {}
        for folder in done:
            self._stage_manifest(folder)
        for folder in done:
            self._rename_staged(folder)
        self._publish_rejects()
        for folder in done:
            target, staged = self._place / folder, self._staged(folder) / MANIFEST_NAME
            if staged.exists():
                publish_file(staged, target / MANIFEST_NAME)
        for folder in done:
            _, files = self.journal.header.replaces.get(folder, (None, ()))
            for name in {*files}.difference(files_of(read_manifest(self._place / folder))):
                (self._place / folder / name).unlink(missing_ok=True)
        self._is_published = True

    def _stage_manifest(self, folder: str) -> None:
        """Make the manifest of a target ready, if it is not there: published already, and perhaps extended since."""
        replaced, _ = self.journal.header.replaces.get(folder, (None, ()))
        there = dataset_at(self._place / folder)
        if there is None or there.fingerprint == replaced:
            before = there.shards if there is not None and self._extend else ()
            content, shards = (self.state.done or {})[folder], self.state.shards[folder]
            schema = Schema.from_json(content["schema"])
            manifest = Manifest(schema, (*before, *shards), content["provenance"])
            publish_bytes(self._staged(folder) / MANIFEST_NAME, manifest_bytes(manifest))

    def _rename_staged(self, folder: str) -> None:
        target, schema = self._place / folder, (self.state.done or {})[folder]["schema"]
        made = missing_folders(target)
        target.mkdir(parents=True, exist_ok=True)
        sync_made(made)
        shards = (shard.file for shard in self.state.shards[folder])
        for name in (*shards, *Schema.from_json(schema).files):
            staged = self._staged(folder) / name
            if staged.exists():
                os.replace(staged, target / name)
        sync_folder(target)  # a manifest that outlives a power cut finds its shards

    def _publish_rejects(self) -> None:
        path = self._place / REJECTED_NAME
        rejects = self.state.all_rejects
        if rejects:
            publish_bytes(path, rejects_bytes(rejects))
        elif self.journal.header.replaces and self.journal.header.kind != "command":
            path.unlink(missing_ok=True)

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifest of each target, once it is published; of a part, what is staged of it."""
        if self.is_part:
            return {
                folder: Manifest(
                    Schema.from_json(content["schema"]),
                    tuple(self.state.shards.get(folder, ())),
                    content["provenance"],
                )
                for folder, content in (self.state.done or {}).items()
            }
        return {folder: read_manifest(self._place / folder) for folder in self.folders}

    def rejected(self) -> list[tuple[str, str]]:
        """Return (item, error) of what was left out, also by the run that made what was there."""
        if not self.was_there:
            return named(self.state.all_rejects)
        return rejects_at(self._place)

    def take_over(self, folder: Path) -> Path:
        """Let a folder go with the journal, from one step on; return where it is then."""
        if self._lock is None or (self._work / _DONE).exists():
            return folder
        with self._explained(folder, "it cannot be moved"):
            os.rename(folder, self._work / _DONE)
        return self._work / _DONE

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
        if self._kind in ("packing", "finish") and self.state.shards:
            return True
        return self._kind != "command" and self.state.done is not None

    def _clean_up(self) -> None:
        if self._kind == "command":
            remove_leftovers(self._place)
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
