"""Making datasets in a folder or at a URL, all or nothing, killed at any moment.

The lock, the journal and shards that are being written lie in ``DST/.packing``, of a URL in a folder below ``$TMPDIR``.
A shard that is complete is put into the store at once, under its name with its hash, which no manifest names yet; then
the journal says so. When all are there, ``publish`` makes datasets of them.

1. Normal: ``write`` hands a shard to a thread, and waits where too many are under way; ``wait`` returns once all are in
   place. Lines of the journal have the order in which shards were handed over.
2. Failure: the error of a thread comes out of the next ``write`` or ``wait``; shards behind it get no line.
3. Early close: leaving ``with`` drops shards that have not begun and waits for the others. What it takes to go on
   stays, where that is kept (``State.is_kept``).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from itertools import count
from threading import Semaphore
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import lmdb

from loaders.data.manifest import Manifest, ShardInfo
from loaders.errors import LoadersError, PackError
from loaders.remote.url import URL, Location
from loaders.schema import Schema
from loaders.system.regular import read_regular
from packdata.bucket import name_at
from packdata.claimed import claimed_folder
from packdata.formats import write_shard
from packdata.packing.journal import (
    Journal,
    Reached,
    Reject,
    State,
    differences,
    parse_journal,
)
from packdata.packing.provenance import PACKER, PLAN
from packdata.packing.shards import named_by_hash
from packdata.packing.store import (
    check_target,
    clear_parts,
    delete_unnamed,
    lost_at,
    made_at,
    marks_at,
    publish,
    rejected_at,
    store_of,
)
from packdata.packing.target import (
    JOURNAL_NAME,
    LOCK_NAME,
    PACKING_NAME,
    PARTS_NAME,
    STAGED_NAME,
    digest_of,
    explained,
    locked,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.shards import PackedShard
    from packdata.packing.shards import ShardBuilder

MADE = "the same command made it earlier; nothing was written"
_WRITTEN_AT_ONCE = 2  # as writing takes one core; bounds the memory of shards
_AT_ONCE = _WRITTEN_AT_ONCE + 4  # shards under way: the others are put in their place


class Made(NamedTuple):
    """A dataset that is complete, but for its manifest."""

    schema: Schema
    provenance: Mapping[str, Any]  # what made it, as JSON
    files: Mapping[str, bytes] = MappingProxyType({})  # beside shards, which the schema names
    whole: Sequence[PackedShard] = ()  # of other datasets, in place of shards written here
    before: Sequence[ShardInfo] = ()  # that are there, and to which the others are added


class Packing:
    """The making of datasets at one place: its lock, its journal, and threads that write shards and put them there.

    Nothing is looked at or touched before ``with`` is entered. Where that is, what counts as made, what is in the way,
    and what is put there in the end, five methods say, which are others of a part (``packdata.parts.packing``).

    Args:
        dst: The destination, a folder or a URL.
        folders: The datasets below it that will be filled; "" is the destination itself.
        plan: All that decides the output, flat (``flatten_plan``): the same one goes on where it was killed, and finds
            itself done. Empty where a packing cannot be continued, as when a program passes the samples.
        overwrite: Replace the datasets that are there, and drop an unfinished packing of another
            plan.
        of_packed: The samples are those of packed datasets, whose provenance says what packed them; none is rejected,
            and other datasets may be below the destination. Copying them again is cheap: as without a plan, an error
            leaves nothing, and any packing deletes what a kill left. Otherwise the same plan continues.
        adds: Add to the dataset that is there (``Made.before``).

    Attributes:
        is_published: True once the datasets are there: on entering, if the same plan has made them.
        manifests: Theirs by then, by folder.
    """

    may_be_empty = False  # whether a dataset may get no sample
    prefix = "shard"  # of the names of shards

    def __init__(
        self,
        dst: Location,
        folders: Sequence[str],
        plan: Mapping[str, str],
        *,
        overwrite: bool = False,
        of_packed: bool = False,
        adds: bool = False,
    ) -> None:
        self.dst, self.folders = dst, tuple(folders)
        self._plan, self._of_packed = dict(plan), of_packed
        self._overwrite, self._adds = overwrite, adds
        self._store = store_of(dst)
        self.state = State()  # how far the packing has come
        self._pool = ThreadPoolExecutor(_AT_ONCE, "packdata-shard")
        self._room = Semaphore(_WRITTEN_AT_ONCE)
        self._under_way: deque[Future[None]] = deque()
        self._numbers: dict[str, Iterator[int]] = {}  # of the shards to come
        self.manifests: dict[str, Manifest] = {}
        self._seen: dict[str, Mapping[str, Any]] = {}  # marks of the manifests to be replaced
        self._open = ExitStack()
        self.is_published = False

    def __enter__(self) -> Self:
        """Lock the destination, and go on where the same plan ended.

        Raises:
            PackError: The target holds something else, is in use, or cannot be written.
        """
        with explained(self.dst, "cannot be packed into"), ExitStack() as opened:
            place = opened.enter_context(self._working_place())
            self._work = place.absolute() / PACKING_NAME
            # With the lock in the destination no other packing runs there: what no manifest names is left over.
            self._owns_shards = place == self.dst
            self._begin(opened)
            self._open = opened.pop_all()
        return self

    def _working_place(self) -> AbstractContextManager[Path]:
        """Yield the folder in which the lock, the journal and unfinished shards lie."""
        if isinstance(self.dst, URL):
            return claimed_folder(str(self.dst))
        return nullcontext(self.dst)

    def _begin(self, opened: ExitStack) -> None:
        if not self._work.exists():
            if self._find_made():
                return
            self._check_target(self.folders)  # refuses before anything is made
        for folder in sorted({"", *self.folders}) if self._owns_shards else ("",):
            opened.enter_context(locked(self._work.parent / folder))
        self._journal = self._open_journal()
        self.state = self._journal.state
        opened.callback(self._leave)
        opened.callback(partial(self._pool.shutdown, cancel_futures=True))
        if not self._find_made() and self.state.done is None:  # another may have been faster
            self._check_target(self.folders)
        if self._overwrite or self._adds:
            self._seen = marks_at(self._store, self.folders)

    def _find_made(self) -> bool:
        """Return whether the same plan has published the datasets; read their manifests and rejects."""
        if self._plan and not self._overwrite:
            self.manifests = made_at(self._store, self.folders, self._plan)
            self.is_published = bool(self.manifests)
        if self.is_published and not self._of_packed:
            rejects = [Reject(0, *each) for each in rejected_at(self._store)]
            self.state = State(rejects={"": rejects})
        return self.is_published

    def _check_target(self, folders: Collection[str]) -> None:
        """Raise PackError if something is there that is not to be replaced, also in folders of another packing."""
        if not self._overwrite and any(self._store.in_folder(PARTS_NAME)):
            hint = "Run 'packdata finish' to join them, or pass overwrite=True to drop them"
            raise PackError("unfinished packing in parts", self.dst, hint)
        may_be_there, is_alone = self._overwrite or self._adds, not self._of_packed
        check_target(self._store, folders, overwrite=may_be_there, is_alone=is_alone)

    def _open_journal(self) -> Journal:
        """Open the journal that is there, if this packing continues it; else begin one."""
        path, begun = self._work / JOURNAL_NAME, {*self.folders}
        data = read_regular(path) if path.exists() else b""
        was = parse_journal(data)
        if data and was is None and not self._overwrite:
            what = "unfinished packing of another version, or with a damaged journal"
            hint = f"Pass overwrite=True to drop it, or remove {self._work}"
            raise PackError(what, self.dst, hint)
        if was is not None:
            differs = differences(was.plan, self._plan)
            finished = {
                name_at(folder, shard.file): shard.size_bytes
                for folder, shards in was.shards.items()
                for shard in shards
            }
            if self._plan and not differs and not lost_at(self._store, finished):
                return Journal(path, was)
            if differs and was.is_kept and was.shards and not self._overwrite:
                what = f"unfinished packing with other settings: {'; '.join(differs[:4])}"
                hint = "Pass the same settings to continue, or overwrite=True to start anew"
                raise PackError(what, self.dst, hint)
            begun.update(was.folders)
        if not self._find_made():
            self._check_target(begun)  # refuses before anything is dropped
        self._clear()
        self._make_room(begun)
        is_kept = bool(self._plan) and not self._of_packed
        return Journal.create(path, State(self._plan, is_kept, self.folders))

    def _make_room(self, folders: Collection[str]) -> None:
        """Delete what is in the way of a packing that begins."""
        self._delete_unnamed(folders)
        for folder in {*folders} - {"", *self.folders} if self._owns_shards else ():
            place = self._work.parent / folder
            if place.is_dir():
                with locked(place):  # removes the lock of a killed packing
                    pass
                with suppress(OSError):  # a dataset lies there
                    place.rmdir()
        clear_parts(self._store)

    def _delete_unnamed(self, folders: Collection[str]) -> None:
        """Delete shards and tokenizers that no manifest names: of a command that was killed, or gave up."""
        if self._owns_shards:
            delete_unnamed(self._store, folders)

    def _clear(self) -> None:
        """Remove what an ended process has left in our folder, but for the lock that we hold.

        The journal goes last: until then, the command that is run again finishes.
        """
        for path in sorted(self._work.iterdir(), key=lambda path: path.name == JOURNAL_NAME):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_NAME:
                path.unlink()

    def write(self, folder: str, builder: ShardBuilder, reached: Reached) -> None:
        """Write what was built as the next shard of a target, and put it there, on threads.

        ``reached`` is how far the source has come with it. PackError if a shard before could not be written.
        """
        self.wait(_AT_ONCE - 1)
        self._room.acquire()
        columns, schema = builder.take(), builder.schema
        first = len(self.state.shards.get(folder, ()))
        name = f"{self.prefix}-{next(self._numbers.setdefault(folder, count(first))):05d}"
        path = self._work / STAGED_NAME / folder / f"{name}.{builder.format}"
        before = self._under_way[-1] if self._under_way else None

        def put() -> None:
            with explained(self.dst / name_at(folder, path.name), "the shard cannot be written"):
                try:
                    info = named_by_hash(write_staged(path, columns, schema), name)
                finally:
                    columns.clear()  # no memory is taken while the file is put in its place
                    self._room.release()
                self._store.put_shard(folder, path, info)
                path.unlink(missing_ok=True)
                if before is not None:  # the journal has shards in their order
                    before.result()
                line = {"target": folder, "shard": info.to_json(), "at": reached.to_json()}
                self._journal.append(line)

        self._under_way.append(self._pool.submit(put))

    def wait(self, num: int = 0) -> None:
        """Return once no more than so many shards are under way; PackError if one cannot be written."""
        while len(self._under_way) > num or (self._under_way and self._under_way[0].done()):
            self._under_way.popleft().result()

    def end_split(self, reached: Reached) -> None:
        """Note that a split of the source is packed to its end."""
        self.wait()
        with explained(self.dst, "the journal cannot be written"):
            self._journal.append({"end": reached.to_json()})

    def publish(self, datasets: Mapping[str, Made]) -> None:
        """Publish datasets, by their folder."""
        self.wait()
        made_by = {} if self._of_packed else {"packer": PACKER}
        done = dict[str, Any]()
        with explained(self.dst, "the dataset cannot be published"):
            for folder, made in datasets.items():
                if made.before or made.whole:
                    self.state.shards[folder] = [*made.before, *self._put_whole(folder, made)]
                for name, data in made.files.items():
                    self._store.put(name_at(folder, name), data)
                provenance = {**made.provenance, **made_by}
                done[folder] = {"schema": made.schema.to_json(), "provenance": provenance}
            self._journal.append({"done": done})
            digest = {PLAN: digest_of(self._plan)} if self._plan else {}
            self.manifests = manifests_of([self.state], digest)
            self._put_made()
        self.is_published = True

    def _put_whole(self, folder: str, made: Made) -> list[ShardInfo]:
        """Put shards of other datasets there, behind those before; return what the manifest says of them."""
        shards, first = made.whole, len(made.before)
        infos = [named_by_hash(s.info, f"shard-{n:05d}") for n, s in enumerate(shards, first)]

        def put(shard: PackedShard, info: ShardInfo) -> None:
            try:
                self._store.put_shard(folder, shard.fetch(), info)
            except LoadersError:
                shard.check_version()
                raise

        list(self._pool.map(put, shards, infos))
        for shard in shards:
            shard.check_version()  # last: what replaces it from here on is not what was linked
        return infos

    def _put_made(self) -> None:
        """Put the manifests there."""
        rejected = {"": self.state.rejected}
        if self._of_packed:  # nothing is left out; what is added to keeps its list
            rejected = {} if self._adds else {folder: [] for folder in self.folders}
        publish(self._store, self.manifests, rejected=rejected, seen=self._seen)

    def _leave(self) -> None:
        """Leave what it takes to go on."""
        self._journal.close()
        if self.state.is_kept and self.state.shards and not self.is_published:
            return
        with suppress(OSError):
            if not self.is_published:
                self._delete_unnamed(self.folders)
            self._clear()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def manifests_of(states: Sequence[State], more: Mapping[str, Any]) -> dict[str, Manifest]:
    """Return the manifests of what was packed, whole or in parts; ``more`` is of the provenance of each."""
    return {
        folder: Manifest(
            Schema.from_json(made["schema"]),
            tuple(shard for state in states for shard in state.shards.get(folder, ())),
            {**made["provenance"], **more},
        )
        for folder, made in (states[0].done or {}).items()
    }


def write_staged(path: Path, columns: Mapping[str, Column], schema: Schema) -> ShardInfo:
    """Write a shard that is not published yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # half of it may be left from a run that was killed
    try:
        return write_shard(path, columns, schema.fields)
    except (OSError, lmdb.Error) as error:  # as of a full disk: what is finished needs the room
        is_full = not os.statvfs(path.parent).f_bavail
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise
        # LMDB says EIO.
        raise OSError(os.strerror(errno.ENOSPC) if is_full else str(error)) from error
