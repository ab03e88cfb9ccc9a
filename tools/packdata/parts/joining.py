"""Parts wherever they lie, in a folder or at a URL: when one is done, and when all are there and of one packing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import PackError
from packdata.describe import counted
from packdata.packing.journal import JournalHeader, Reached, Reject, State
from packdata.packing.provenance import PLAN
from packdata.packing.summary import Summary
from packdata.packing.target import digest_of
from packdata.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


NUM_PARTS = "num_parts"  # in the provenance of a dataset that was joined of several
OF = "part."  # prefix of what the plan of a part has, and that of the whole has not
Found = Sequence[tuple[Path, Part]]  # paths that belong to parts, in order, and the part of each
_NAME = re.compile(r"part-(\d+)-of-(\d+)(?:\..+)?")
_SHOWN = 10


def found_parts(place: Path, names: Iterable[str]) -> Found:
    """Return what of these names in a place is of parts."""
    matches = ((name, _NAME.fullmatch(name)) for name in sorted(names))
    numbers = ((place / name, int(m[1]), int(m[2])) for name, m in matches if m is not None)
    return [(path, Part(number, of)) for path, number, of in numbers if number < of]


class Complete(NamedTuple):
    """A part that is complete."""

    path: Path
    header: JournalHeader
    state: State


def all_parts(dst: Path, found: Found, complete: Mapping[int, Complete | None]) -> list[Complete]:
    """Return all parts in order; PackError if some are missing, or they are of several numbers of parts."""
    counts = sorted({part.of for _, part in found})
    if len(counts) > 1:
        what = f"there are parts of {' and of '.join(map(str, counts))}"
        raise PackError(what, dst, f"Remove those that are not meant from {found[0][0].parent}")
    there = {number: part for number, part in complete.items() if part is not None}
    if num := counts[0] - len(there):
        missing = islice((i for i in range(counts[0]) if i not in there), _SHOWN)
        shown = ", ".join(map(str, missing)) + (" and more" if num > _SHOWN else "")
        what = f"{num:,} of {counted(counts[0], 'part')} {'is' if num == 1 else 'are'} missing"
        hint = "Run the command that packs each again, then this one"
        raise PackError(f"{what}: {shown}", dst, hint)
    return [there[number] for number in range(counts[0])]


def check_alike(dst: Path, parts: Sequence[Complete], digest: str = "") -> None:
    """Raise PackError if parts are not of one packing (that of a hash, if one is given), or have nothing in them.

    What their sources are called may differ: the dataset tells the name that the first part saw.
    """
    first = parts[0]
    if digest and digest_of(whole(first.header.plan, len(parts))) != digest:
        what = "what was packed there was replaced by another packing, meanwhile"
        raise PackError(what, dst, "Pack one of them into another place")
    for part in parts:
        differences = first.header.differences(part.header.plan)
        if differences or _schemas(part) != _schemas(first):
            what = "; ".join(differences[:4]) or "what the datasets hold differs"
            hint = "Pack one of them again as the other, with overwrite=True"
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


def _schemas(part: Complete) -> dict[str, Any]:
    return {folder: content["schema"] for folder, content in (part.state.done or {}).items()}


def whole(plan: Mapping[str, str], of: int) -> dict[str, str]:
    """Return the plan of all parts together; of one alone it is that of a packing without parts."""
    found = {name: value for name, value in plan.items() if not name.startswith(OF)}
    return found if of == 1 else found | {f"{OF}of": str(of)}


def first_folders(folders: Sequence[str], plan: Mapping[str, str]) -> Sequence[str]:
    """Return the folders that hold each sample once between them, by a part's plan."""
    with suppress(KeyError, ValueError):  # of very many it is a hash
        found: list[str] = json.loads(plan[f"{OF}counted"])
        return found
    return folders


def joined_provenance(content: Mapping[str, Any], num_parts: int) -> dict[str, Any]:
    """Return the provenance of what was joined; of one part it is that of a packing without parts."""
    return {**content["provenance"], **({NUM_PARTS: num_parts} if num_parts > 1 else {})}


def nothing_left(
    dst: Path,
    there: Iterable[Mapping[str, Any]],
    rejected: Sequence[tuple[str, str]],
    digest: str = "",
) -> Summary:
    """Return the summary where no part is left; PackError unless datasets say that they were joined of parts.

    Args:
        dst: Where there is no part.
        there: The provenance of each dataset that is.
        rejected: What their packing left out.
        digest: Or that a plan of this hash made them.
    """
    found = list(there)
    if found and all(each.get(PLAN) == digest for each in found):
        return nothing_done(
            dst, "everything was packed earlier: nothing was read or written", rejected
        )
    if any(NUM_PARTS in each for each in found):
        why = "the parts are gone, and the dataset that was made of them is there"
        return nothing_done(dst, why, rejected)
    what = "no part of a packing is there" + (", but a packed dataset" if found else "")
    hint = "'packdata images SRC... DST --part I/N' packs one, and so do tokens, tables and arrays"
    raise PackError(what, dst, hint)


def nothing_done(dst: Path | str, why: str, rejected: Sequence[tuple[str, str]]) -> Summary:
    """Return the summary of what was done before."""
    return Summary(str(dst), 0, 0, 0, tuple(rejected), 0, 0, (), (why,))


def reached(split: str, states: Sequence[State]) -> Reached:
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
