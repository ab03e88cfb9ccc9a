"""Parts of a packing, each made on any machine, and joined where they lie, in a folder or at a URL.

1. The journal of a part lies in a folder of its own, where the same command continues it: of a URL below ``$TMPDIR``,
   of a folder in ``DST/.parts/part-00003-of-00010.HERE``, where HERE stands for this machine until it
   boots again: others do not see its locks.
2. Its shards are put under names that hold the part's number and their hash, and a tokenizer under one with its hash:
   every process that packs it puts the same.
3. When all are there, its journal is put as ``DST/.parts/part-00003-of-00010``, if none is, or to replace it: of two
   that made the same part, the second drops its own.
4. ``finish`` reads the journals, asks whether all shards are there, and puts the manifests. Then it deletes the
   journals. Killed, the same command finishes: where manifests are there that say that the same plan made them,
   deleting is all that is left. At a URL nothing that a manifest may have named is deleted but by ``delete_old``.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import PackError
from loaders.remote.url import URL, Location
from packdata.bucket import target_at
from packdata.claimed import claimed_folder
from packdata.describe import counted, few
from packdata.packing.engine import targets_of, why_rejected
from packdata.packing.journal import State, differences, flatten_plan, parse_journal
from packdata.packing.packing import Packing, manifests_of
from packdata.packing.provenance import PLAN
from packdata.packing.store import (
    Store,
    check_target,
    clear_parts,
    datasets_below,
    delete_unnamed,
    files_of,
    lost_at,
    made_at,
    manifests_at,
    marks_at,
    publish,
    rejected_at,
    store_of,
)
from packdata.packing.summary import Summary, summary_of
from packdata.packing.target import (
    JOURNAL_NAME,
    PACKING_NAME,
    PARTS_NAME,
    digest_of,
    explained,
    locked,
)
from packdata.parts.part import Part, versions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from packdata.packing.engine import Run
    from packdata.recipe import Recipe


NUM_PARTS = "num_parts"  # in the provenance of a dataset that was joined of several
OF = "part."  # prefix of what the plan of a part has, and that of the whole has not
_NAME = re.compile(r"part-(\d+)-of-(\d+)(?:\..+)?")
_SHOWN = 10
_THREADS = 16  # that wait for a store, or a network drive


def pack_part(
    run: Run, recipes: Sequence[tuple[str, Recipe]], dst: Location | str, part: Part
) -> Summary:
    """Pack one part of recipes below ``dst``; see ``Run.pack_to``.

    Raises:
        SourceError: An item cannot be packed, and is not to be left out.
        PackError: The target cannot be written, or holds something else: also parts made with other options.
    """
    place = target_at(dst)
    with PartPacking(run, recipes, place, part) as packing:
        if packing.is_published:
            what = f"part {part} was packed earlier; nothing was read or written"
            rejected = packing.state.rejected
            return summary_of(place / packing.record, {}, rejected=rejected, notes=[what])
        summary = run.pack(packing, part.cut(recipes))
    return replace(summary, dst=str(place / packing.record))


class PartPacking(Packing):
    """The making of one part of datasets: what is published is its journal, as ``record``."""

    may_be_empty = True  # what is in no part, ``finish`` finds

    def __init__(
        self, run: Run, recipes: Sequence[tuple[str, Recipe]], dst: Location, part: Part
    ) -> None:
        share = {"of": part.of, "versions": versions()}
        folders, plan = [*targets_of(*recipes)], run.plan_of(recipes)
        plan |= flatten_plan({"part": share})
        super().__init__(dst, folders, plan, overwrite=run.settings.overwrite)
        self._part, self.record = part, f"{PARTS_NAME}/{part.name}"
        if part.of > 1:
            self.prefix = f"shard-{part.number:05d}"

    @contextmanager
    def _working_place(self) -> Iterator[Path]:
        what, own = f"{self.dst} {self._part.name}", self.dst / f"{self.record}.{_this_machine()}"
        with claimed_folder(what) if isinstance(own, URL) else nullcontext(own) as place:
            yield place
            with suppress(OSError):  # what it takes to go on lies there, or what is of other parts
                place.rmdir()
                place.parent.rmdir()

    def _find_made(self) -> bool:
        """Tell whether the part is packed, or all of them are finished; take over what its journal says.

        With ``overwrite``, a part that left items out is packed again: they may be readable now. So is any part of
        datasets that are finished.
        """
        if (found := part_at(self._store, self._part.name)) is None:
            plan = whole(self._plan, self._part.of)
            made = not self._overwrite and made_at(self._store, self.folders, plan)
            self.is_published = bool(made)
        elif not (
            differences(found.plan, self._plan)
            or lost_at(self._store, files_of(manifests_of([found], {})))
            or (self._overwrite and found.rejected)
        ):
            self.is_published, self.state = True, found
        return self.is_published

    def _check_target(self, folders: Collection[str]) -> None:
        check_target(self._store, folders, overwrite=self._overwrite)
        if self._overwrite:
            return
        begun = self.dst / PACKING_NAME / JOURNAL_NAME
        if isinstance(begun, Path) and begun.exists():
            hint = "Finish with the command that began there, or pass overwrite=True"
            raise PackError("unfinished packing", self.dst, hint)
        if others := self._others():
            raise self._other(f"{others[0]}, of another number of parts")
        self._check_record()

    def _make_room(self, folders: Collection[str]) -> None:
        self._store.delete(self.record, *(f"{PARTS_NAME}/{name}" for name in self._others()))

    def _others(self) -> list[str]:
        """Return what lies there of parts of another number of them."""
        return [name for name, part in found_parts(self._store) if part.of != self._part.of]

    def _check_record(self) -> None:
        """Raise PackError if the part is there, made with other options."""
        found = part_at(self._store, self._part.name)
        differs = [] if found is None else differences(found.plan, self._plan)
        if differs:
            raise self._other("; ".join(differs[:4]))

    def _other(self, what: str) -> PackError:
        hint = "Pass what they were packed with, or overwrite=True to drop them"
        return PackError(f"other parts were packed there: {what}", self.dst, hint)

    def _put_made(self) -> None:
        """Put the part's journal; PackError if another packed it differently, unless it is to be replaced."""
        data = self._journal.path.read_bytes()
        if not self._store.put(self.record, data, None if self._overwrite else {}):
            self._check_record()


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())


def finish(dst: Location | str, *, overwrite: bool = False, delete_old: bool = False) -> Summary:
    """Join the parts of a packing to the dataset, or the datasets, that they are of.

    Args:
        dst: Where the parts were packed.
        overwrite: Replace the datasets that are there.
        delete_old: At a URL, delete the shards that no manifest names any more.

    Raises:
        PackError: Parts are missing, or were made of other sources, with other options or versions; the target
            holds something else, or cannot be written; or there is neither a part nor a dataset.
    """
    place, began = target_at(dst), time.monotonic()
    if delete_old and not isinstance(place, URL):
        raise ValueError("delete_old is for URLs: in a folder nothing of an earlier dataset stays")
    store = store_of(place)
    with explained(place), nullcontext() if isinstance(place, URL) else locked(place):
        if parts := _all_parts(store):
            _check_alike(place, parts)
            summary = _join(store, parts, began, overwrite=overwrite)
        else:
            summary = _nothing_left(store)
    return _note_deleted(store, summary) if delete_old else summary


def whole(plan: Mapping[str, str], of: int) -> dict[str, str]:
    """Return the plan of all parts together; of one alone it is that of a packing without parts."""
    found = {name: value for name, value in plan.items() if not name.startswith(OF)}
    return found if of == 1 else found | {f"{OF}of": str(of)}


def part_at(store: Store, name: str) -> State | None:
    """Return a part by the name of its journal; None if it is not complete."""
    data, _ = store.read(f"{PARTS_NAME}/{name}")
    state = parse_journal(data or b"")
    return state if state is not None and state.done is not None else None


def found_parts(store: Store) -> list[tuple[str, Part]]:
    """Return what lies there of parts, by name: journals, and in a folder also what is being packed."""
    entries, folders = store.in_folder(PARTS_NAME)
    paths = sorted([*(entry.name for entry in entries), *folders])
    matches = (_NAME.fullmatch(path.rpartition("/")[2]) for path in paths)
    numbers = ((m[0], int(m[1]), int(m[2])) for m in matches if m is not None)
    return [(name, Part(number, of)) for name, number, of in numbers if number < of]


def _all_parts(store: Store) -> list[State]:
    """Return all parts in order, none if there are none, or they were joined; PackError if some are missing."""
    if not (found := found_parts(store)):
        return []
    dst, counts = store.url, sorted({part.of for _, part in found})
    if len(counts) > 1:
        what = f"there are parts of {' and of '.join(map(str, counts))}"
        raise PackError(what, dst, f"Remove those that are not meant from {dst / PARTS_NAME}")
    names = [Part(number, counts[0]).name for number in range(counts[0])]
    with ThreadPoolExecutor(_THREADS) as pool:
        states = [*pool.map(partial(part_at, store), names)]
    there = [state for state in states if state is not None]
    if not (missing := [number for number, state in enumerate(states) if state is None]):
        return there
    if there and made_at(store, there[0].folders, whole(there[0].plan, counts[0])):
        clear_parts(store)  # killed while it deleted them, or one came late
        return []
    if not found_parts(store):  # another command has joined them meanwhile
        return []
    what = f"{len(missing):,} of {counted(counts[0], 'part')} missing: {few(map(str, missing), _SHOWN)}"
    raise PackError(what, dst, "Run the command that packs each again, then this one")


def _check_alike(dst: Location, parts: Sequence[State]) -> None:
    """Raise PackError if parts are not of one packing, or have nothing in them.

    What their sources are called may differ: the dataset has the name that the first part saw.
    """
    first, of = parts[0], len(parts)
    for number, part in enumerate(parts):
        if differs := differences(first.plan, part.plan):
            what = f"{Part(number, of).name} is of another packing: {'; '.join(differs[:4])}"
            raise PackError(what, dst, "Pack one of them again as the other, with overwrite=True")
    for folder in first.folders:
        if not any(part.shards.get(folder) for part in parts):
            errors = [error for part in parts for _, error in part.rejected]
            raise PackError("no sample that could be packed", dst / folder, why_rejected(errors))


def _join(store: Store, parts: Sequence[State], began: float, *, overwrite: bool) -> Summary:
    # Of one part it is what a packing without parts makes.
    of: dict[str, Any] = {NUM_PARTS: len(parts)} if len(parts) > 1 else {}
    of[PLAN] = digest_of(whole(parts[0].plan, len(parts)))
    joined = manifests_of(parts, of)
    check_target(store, joined, overwrite=True)
    rejected = [each for part in parts for each in part.rejected]
    seen = marks_at(store, joined) if overwrite else {}
    publish(store, joined, rejected={"": rejected}, seen=seen)
    clear_parts(store)
    return summary_of(
        store.url,
        joined,
        rejected=rejected,
        seconds=time.monotonic() - began,
        amount=counted(len(parts), "part"),
        counts=sum((Counter(part.counts) for part in parts), Counter()),
    )


def _nothing_left(store: Store) -> Summary:
    """Return the summary where no part is left; PackError unless there is a dataset."""
    if not manifests_at(store, datasets_below(store)):
        hint = "'packdata images SRC... DST --part I/N' packs one, and so do tokens, tables and arrays"
        raise PackError("no parts found, and no dataset", store.url, hint)
    notes = ["no parts found; nothing was written"]
    return summary_of(store.url, {}, rejected=rejected_at(store), notes=notes)


def _note_deleted(store: Store, summary: Summary) -> Summary:
    """Delete the shards and tokenizers beside datasets that they do not have, and note how many."""
    num = delete_unnamed(store, manifests_at(store, datasets_below(store)))
    deleted = f"deleted {counted(num, 'unreferenced file')}"
    return replace(summary, notes=(*summary.notes, deleted))
