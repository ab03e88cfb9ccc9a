"""A packing in parts, on as many machines as there are, and the joining of them.

Part I of N has the items from ``I * items // N`` to ``(I + 1) * items // N`` of all splits together.

1. A part is packed by the engine in ``DST/.parts/part-00003-of-00010.HERE``, where HERE is the running
   kernel: only processes of one machine meet there, which its lock keeps apart. The same command continues
   what another has left there.
2. Complete, it becomes ``DST/.parts/part-00003-of-00010`` by one rename. Of two that made the same part on
   two machines, the second finds the name taken, and drops its own: their bytes are the same.
3. ``finish`` compares what decided the output of all parts, links their shards into one dataset in their
   order, and publishes it as every packing is. What is left of the parts goes with its journal: killed, the
   same command finishes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loaders.data.shards import FileShard
from loaders.errors import PackError, SchemaError
from loaders.manifest import MANIFEST_NAME, sync_folder
from loaders.rng import hash64, key64
from loaders.schema import Schema
from packdata.describe import counted
from packdata.disk import GO_ON, explained
from packdata.engine import (
    Summary,
    counted_folders,
    pack_recipes,
    plan_of,
    summarize,
    target_folders,
)
from packdata.journal import JOURNAL_NAME, Header, Reject, State, read_journal
from packdata.publish import STAGED, Packing, Reached, digest_of, is_made
from packdata.recipe import Recipe
from packdata.settings import OVERWRITE
from packdata.shards import DEFAULT_SHARD_BYTES
from packdata.target import (
    PACKING_NAME,
    PARTS_NAME,
    find_datasets,
    is_there,
    is_unfinished,
    rejects_at,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.recipe import Block, Records
    from packdata.shards import Format

_NAME = re.compile(r"part-(\d+)-of-(\d+)(\..+)?")
_OF = "part."  # what of a part's plan is no part of that of the whole
# What encodes: another version of one may make other bytes of the same picture.
_CODECS = (
    "numpy",
    "opencv-python-headless",
    "opencv-python",
    "pillow",
    "simplejpeg",
    "tokenizers",
)
_FILES = ("lmdb", "pyarrow", "zstandard", "xxhash")
_SHOWN = 10
_BY_NUMBER = {"classes", "folder", "list"}  # kinds of sources of which any item can be asked for
_SHUFFLE = 0x5BFF1E  # so that no other use of the same seed draws the same numbers
_THREADS = 16  # that wait for a network drive


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a packing, by its number from 0 and how many there are.

    Raises:
        ValueError: There is no such part.

    Example:
        >>> Part.parse("3/10"), Part(3, 10).bounds(25)
        (Part(number=3, of=10), (7, 10))
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"of {self.of} parts the numbers are 0 to {self.of - 1}, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``I/N``."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal()):
            raise ValueError(f"a part is I/N, such as 0/10 to 9/10, got {text!r}")
        return cls(int(number), int(of))

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"part-{self.number:05d}-of-{self.of:05d}"

    def bounds(self, num_items: int) -> tuple[int, int]:
        """Return the number of its first item, and of the first behind it."""
        return self.number * num_items // self.of, (self.number + 1) * num_items // self.of

    def cut(self, parts: Sequence[tuple[str, Recipe]]) -> list[tuple[str, Recipe]]:
        """Return what is this part's of the recipe of each split."""
        start, stop = self.bounds(sum(len(recipe) for _, recipe in parts))
        cut: list[tuple[str, Recipe]] = []
        for split, recipe in parts:
            inside = (min(max(0, at), len(recipe)) for at in (start, stop))
            cut.append((split, PartRecipe(recipe, *inside)))
            start, stop = start - len(recipe), stop - len(recipe)
        return cut


class PartRecipe(Recipe):
    """The items of a recipe from one number to another."""

    def __init__(self, recipe: Recipe, start: int, stop: int) -> None:
        self._recipe, self._start, self._stop = recipe, start, stop
        self.targets, self.identity = recipe.targets, recipe.identity
        self.provenance, self.tally = recipe.provenance, recipe.tally
        self.is_of_blocks, self.divides = recipe.is_of_blocks, recipe.divides
        is_whole = stop - start == len(recipe)
        self.num_samples = recipe.num_samples if is_whole else None

    def __len__(self) -> int:
        return self._stop - self._start

    def items(self, start: int) -> Iterator[Any]:
        """Yield its items."""
        return islice(self._recipe.items(self._start + start), len(self) - start)

    def name(self, item: Any) -> str:
        """Return the place of an item."""
        return self._recipe.name(item)

    def encode(self, item: Any) -> Sequence[Records | Block]:
        """Return the records of an item."""
        return self._recipe.encode(item)


class ShuffledRecipe(PartRecipe):
    """The items of a recipe in an order drawn by a seed."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        source = getattr(recipe, "source", None)
        if not {*str(getattr(source, "kind", "")).split(", ")} <= _BY_NUMBER:
            what = "--shuffle is for pictures and arrays that are files of their own, in folders or a list"
            raise SchemaError(what)
        super().__init__(recipe, 0, len(recipe))
        self.identity = {**recipe.identity, "shuffle": seed}
        self.provenance = {**recipe.provenance, "shuffle": seed}
        self._order = np.argsort(
            hash64(key64(seed, _SHUFFLE), np.arange(len(recipe))), kind="stable"
        )

    def items(self, start: int) -> Iterator[Any]:
        """Yield its items."""
        for number in self._order[start:].tolist():
            yield from islice(self._recipe.items(number), 1)


def in_order(
    recipes: Sequence[tuple[str, Recipe]], shuffle: int | None
) -> Sequence[tuple[str, Recipe]]:
    """Return recipes as they are, or with their items shuffled; SchemaError where that would read files in leaps."""
    if shuffle is None:
        return recipes
    return [(split, ShuffledRecipe(recipe, shuffle)) for split, recipe in recipes]


def pack_part(
    recipes: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    part: Part,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    **settings: Any,
) -> Summary:
    """Pack one part of recipes below ``dst``; what it is given beside ``part`` is that of ``pack_recipes``.

    Raises:
        SourceError: An item cannot be packed, and is not to be left out.
        PackError: The target cannot be written, or holds something else: also parts made with other options.
    """
    share = {"of": part.of, "counted": counted_folders(recipes), "versions": versions()}
    packing = _PartPacking(
        Path(dst), part, plan_of(recipes, format, shard_bytes, share), overwrite
    )
    folders = [folder for split, recipe in recipes for folder in target_folders(split, recipe)]
    if overwrite:
        packing.drop_with_rejects()
    if packing.is_done(folders):
        return packing.nothing_done("was packed earlier; nothing was read or written")
    packing.check(folders)
    try:
        summary = pack_recipes(
            part.cut(recipes),
            packing.own,
            format=format,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            share=share,
            **settings,
        )
        packing.complete()
    except PackError:
        if not packing.is_done(folders):  # else another has finished it, and all, meanwhile
            raise
        packing.drop()
        return packing.nothing_done("was packed by another, meanwhile")
    return replace(summary, dst=str(Path(dst) / PARTS_NAME / part.name))


def _nothing_done(dst: Path | str, why: str, rejected: Sequence[tuple[str, str]]) -> Summary:
    return Summary(str(dst), 0, 0, 0, tuple(rejected), 0, 0, (), (why,))


@dataclass(frozen=True, slots=True)
class _PartPacking:
    """The places of one part, and what is to become of it."""

    dst: Path
    part: Part
    plan: Mapping[str, str]
    overwrite: bool

    @property
    def own(self) -> Path:
        """Where it is packed, on this machine alone."""
        return self.dst / PARTS_NAME / f"{self.part.name}.{_this_machine()}"

    @property
    def record(self) -> Path:
        """Where it lies when it is complete."""
        return self.dst / PARTS_NAME / self.part.name

    def is_done(self, folders: Sequence[str]) -> bool:
        """Tell whether the part is packed, or all of them are finished."""
        found = _complete(self.record)
        if found is not None:
            return not found.header.differences(self.plan)
        return is_made(self.dst, folders, digest_of(_whole(self.plan, self.part.of)))

    def drop_with_rejects(self) -> None:
        """Drop the part if it is complete and left items out, which may be readable now."""
        found = _complete(self.record)
        if found is not None and found.state.all_rejects:
            shutil.rmtree(self.record, ignore_errors=True)

    def nothing_done(self, why: str) -> Summary:
        """Return the summary of a part that is packed, with what that left out."""
        found = _complete(self.record)
        rejects = [] if found is None else found.state.all_rejects
        return _nothing_done(
            self.dst, f"part {self.part} {why}", [(r.item, r.error) for r in rejects]
        )

    def check(self, folders: Sequence[str]) -> None:
        """Make room for the part; PackError if something else is there."""
        if not self.overwrite:
            if find_datasets(self.dst, folders):
                raise is_there(self.dst)
            if is_unfinished(self.dst):
                hint = f"Finish it with the command that began it, or {OVERWRITE}"
                raise PackError("packing into it was not finished", self.dst, hint)
        others = [found.path for found in _found(self.dst) if found.of != self.part.of]
        was_there = self.record.exists()  # asked first: it comes whole, by a rename
        found = _complete(self.record)
        differs = [] if found is None else found.header.differences(self.plan)
        if differs:
            others.append(self.record)
        if others and not self.overwrite:
            what = (
                "; ".join(differs[:4]) or f"{others[0].name} is there, of another number of parts"
            )
            hint = f"Give what they were given, or {OVERWRITE} to drop them"
            raise PackError(f"other parts were packed there: {what}", self.dst, hint)
        if was_there and found is None:
            others.append(self.record)  # some of its files are gone
        for path in others:
            shutil.rmtree(path, ignore_errors=True)

    def complete(self) -> None:
        """Rename the part to what it is called complete; PackError where another was first."""
        staged = self.own / PACKING_NAME
        with explained(self.dst, again=GO_ON):
            if read_journal(staged / JOURNAL_NAME) is None:
                # All were finished, and removed, while the last shards were written.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staged))
            os.rename(staged, self.record)
            shutil.rmtree(self.own, ignore_errors=True)
            sync_folder(self.record.parent)

    def drop(self) -> None:
        """Remove what was packed here."""
        shutil.rmtree(self.own, ignore_errors=True)
        with suppress(OSError):  # there are other parts, or none
            self.record.parent.rmdir()


def versions() -> dict[str, str]:
    """Return the versions of all that encodes: parts made with others are refused."""
    found = {"python": "{}.{}".format(*sys.version_info)}
    for name in (*_CODECS, *_FILES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())


def _whole(plan: Mapping[str, str], of: int) -> dict[str, str]:
    """Return the plan of all parts together; of one alone it is that of a packing without parts."""
    whole = {name: value for name, value in plan.items() if not name.startswith(_OF)}
    return whole if of == 1 else whole | {f"{_OF}of": str(of)}


class _Found(NamedTuple):
    """A folder of a part."""

    path: Path
    number: int
    of: int
    is_complete: bool


def _found(dst: Path) -> list[_Found]:
    """Return the folders of parts below a destination, in order."""
    try:
        names = os.listdir(dst / PARTS_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = ((name, _NAME.fullmatch(name)) for name in sorted(names))
    return [
        _Found(dst / PARTS_NAME / name, int(m[1]), int(m[2]), m[3] is None)
        for name, m in matches
        if m is not None
    ]


class _Complete(NamedTuple):
    """A part that is complete."""

    path: Path
    header: Header
    state: State


def _complete(path: Path) -> _Complete | None:
    """Return the part in a folder, None if it is not complete: also where a shard is gone."""
    found = read_journal(path / JOURNAL_NAME)
    if found is None or found[1].done is None:
        return None
    places = (
        (path / STAGED / folder / shard.file, shard.size_bytes)
        for folder, shards in found[1].shards.items()
        for shard in shards
    )
    if any(size_of(place) != size for place, size in places):
        return None
    return _Complete(path, *found)


def finish(dst: Path | str, *, overwrite: bool = False) -> Summary:
    """Join the parts of a packing to the dataset, or the datasets, that they are of.

    Args:
        dst: Where the parts were packed.
        overwrite: Replace the datasets that are there.

    Raises:
        PackError: Parts are missing, or were made of other sources, with other options or versions; the target
            holds something else, or cannot be written.
    """
    began, dst = time.monotonic(), Path(dst)
    parts = _complete_parts(dst)
    if not parts:
        return _finish_earlier(dst, began)
    _check_alike(dst, parts)
    first = parts[0]
    plan = _whole(first.header.plan, len(parts))
    with Packing(dst, [*first.header.first], plan, overwrite=overwrite, kind="finish") as packing:
        notes = []
        if packing.is_published:
            notes.append(f"the parts were joined earlier: {packing.why_finished}")
        else:
            _join(packing, parts)
        _remove(packing.take_over(dst / PARTS_NAME))
        summary = _summary(packing, first.header.plan, began, notes)
    return replace(summary, amount=counted(len(parts), "part"))


def _finish_earlier(dst: Path, began: float) -> Summary:
    """End what was killed once the parts had been joined; PackError if there is nothing to join."""
    found = read_journal(dst / PACKING_NAME / JOURNAL_NAME)
    if found is None or found[0].kind != "finish" or found[1].done is None:
        if any(next(dst.glob(f"{below}{MANIFEST_NAME}"), None) for below in ("", "*/", "*/*/")):
            why = "no part lies there any more, but what was made of them"
            return _nothing_done(dst, why, rejects_at(dst))
        hint = "'packdata images SRC... DST --part I/N' packs one, and so do tokens, tables and arrays"
        raise PackError("no part of a packing is there", dst, hint)
    header = found[0]
    with Packing(dst, [*header.first], header.plan, overwrite=True, kind="finish") as packing:
        return _summary(packing, {}, began, [packing.why_finished])


def _summary(
    packing: Packing, plan: Mapping[str, str], began: float, notes: Sequence[str]
) -> Summary:
    firsts: Sequence[str] = packing.folders
    with suppress(KeyError, ValueError):  # of very many it is a hash
        firsts = json.loads(plan[f"{_OF}counted"])
    return summarize(packing, firsts, time.monotonic() - began, 0, notes)


def _complete_parts(dst: Path) -> list[_Complete]:
    """Return all parts in order, none if there are none; PackError if some are missing."""
    found = _found(dst)
    if not found:
        return []
    counts = sorted({part.of for part in found})
    if len(counts) > 1:
        what = f"there are parts of {' and of '.join(map(str, counts))}"
        raise PackError(what, dst, f"Remove those that are not meant from {dst / PARTS_NAME}")
    places = [part for part in found if part.is_complete]
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = pool.map(_complete, [part.path for part in places])
        read = zip(places, parts, strict=True)
        complete = {place.number: part for place, part in read if part is not None}
    missing = [i for i in range(counts[0]) if i not in complete]
    if missing:
        shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        are = "part is" if len(missing) == 1 else "parts are"
        what = f"{len(missing):,} of {counts[0]:,} {are} missing: {shown}"
        raise PackError(what, dst, "Run the command that packs each again, then this one")
    return [complete[i] for i in range(counts[0])]


def _check_alike(dst: Path, parts: Sequence[_Complete]) -> None:
    """Raise PackError if parts cannot be of one packing, or there is nothing in them."""
    first = parts[0]
    for part in parts:
        differences = first.header.differences(part.header.plan)
        if differences or part.state.done != first.state.done:
            what = "; ".join(differences[:4]) or "what the datasets hold differs"
            hint = f"Pack one of them again as the other, with {OVERWRITE}"
            raise PackError(
                f"{part.path.name} is of another packing than {first.path.name}: {what}", dst, hint
            )
    for folder in first.header.first:
        if not any(part.state.shards.get(folder) for part in parts):
            where = f"{folder!r} holds " if folder else ""
            rejects = [r for part in parts for r in part.state.all_rejects]
            hint = (
                f"{counted(len(rejects), 'item')} rejected, the first: {rejects[0].error}"
                if rejects
                else ""
            )
            raise PackError(f"{where}no sample that could be packed", dst, hint)


def _join(packing: Packing, parts: Sequence[_Complete]) -> None:
    """Bring the shards of all parts to their target, and publish it."""
    done: Mapping[str, Any] = parts[0].state.done or {}
    contents = {
        folder: (Schema.from_json(content["schema"]), content["provenance"])
        for folder, content in done.items()
    }
    for folder, (schema, _) in contents.items():
        shards = [
            FileShard(part.path / STAGED / folder, info, schema, None)
            for part in parts
            for info in part.state.shards.get(folder, ())
        ]
        packing.take_whole(folder, shards)
        packing.copy_files(folder, schema, parts[0].path / STAGED / folder)
    for split in parts[0].state.ended:
        if split not in packing.state.ended:
            packing.end_part(_reached(split, [part.state for part in parts]))
    packing.publish(contents)


def _remove(parts: Path) -> None:
    """Delete the folders of parts, many at a time: a network drive takes its time for each file."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(partial(shutil.rmtree, ignore_errors=True), parts.glob("*")):
            pass  # none: another has finished, meanwhile
    shutil.rmtree(parts, ignore_errors=True)


def _reached(split: str, states: Sequence[State]) -> Reached:
    """Return what all parts together have packed of a split."""
    counts = sum((Counter(state.ended_counts[split]) for state in states), Counter[str]())
    rejects, before = [], 0
    for state in states:
        rejects += [
            Reject(before + each.number, each.item, each.error)
            for each in state.rejects.get(split, ())
        ]
        before += state.ended[split]
    return Reached(before, 0, split, rejects, counts)
