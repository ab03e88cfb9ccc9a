"""The journal of a packing: what is finished, so that the same command can go on after any end.

``journal.jsonl`` is only ever appended to, one JSON object a line, each fsynced:

1. The header: what decides the output (``plan``), and which datasets are made.
2. ``{"target", "shard", "at"}``: a shard is complete at its place. ``at`` is a ``Reached``.
3. ``{"end"}``: a split is at its end, a ``Reached``, too.
4. ``{"done"}``: every shard is complete; only publishing is left. This line has what else the datasets of a part take.

Each line has the hash of what is before that. From one that is torn, because the machine or the process died while it
was written, or damaged, nothing counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from loaders.data.manifest import ShardInfo
from loaders.system.publish import publish_bytes

if TYPE_CHECKING:
    from pathlib import Path

JOURNAL_VERSION = 9
_BEFORE_HASH = b',"hash":"'
_MAX_VALUE_CHARS = 400  # longer values of the plan are kept as their hash
_MAX_SHOWN_CHARS = 60  # and of longer ones a message only says that they differ
_HASH = "xxh3:"


class Reject(NamedTuple):
    """An item, or a part of one, that could not be packed: the item's number, its name, and why."""

    number: int
    item: str
    error: str


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a split of a source has come, with a shard or to its end."""

    items: int = 0  # that are done
    rows: int = 0  # samples of the next item that are done, where it is a block that was cut
    split: str = ""
    rejects: Sequence[Reject] = ()  # since the line before
    counts: Mapping[str, int] = field(default_factory=dict)  # of all these items

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Reached:
        """Return what a line of the journal says."""
        return cls(**{**line, "rejects": [Reject(*each) for each in line["rejects"]]})

    def to_json(self) -> dict[str, Any]:
        """Return the place as JSON types."""
        return asdict(self)


@dataclass(slots=True)
class State:
    """What a packing was started with, and how far it has come."""

    # All that decides the output, flat: name to JSON text or its hash.
    plan: Mapping[str, str] = field(default_factory=dict)
    # Whether an error leaves it, and no other packing touches it; else any other undoes it.
    is_kept: bool = True
    folders: Sequence[str] = ()  # of the targets
    shards: dict[str, list[ShardInfo]] = field(default_factory=dict)  # finished ones, per target
    reached: dict[str, Reached] = field(default_factory=dict)  # by each target, with these
    ended: dict[str, Reached] = field(default_factory=dict)  # by each split that is at its end
    rejects: dict[str, list[Reject]] = field(default_factory=dict)  # per split
    # Per target its schema and provenance, as JSON, once nothing but publishing is left.
    done: dict[str, dict[str, Any]] | None = None
    size: int = 0  # bytes of the journal that was read

    @property
    def rejected(self) -> list[tuple[str, str]]:
        """(item, error) of what was left out, split by split in the order of the source."""
        return [(each.item, each.error) for some in self.rejects.values() for each in some]

    @property
    def counts(self) -> dict[str, int]:
        """What the recipes counted in all splits that are at their end."""
        return dict(sum((Counter(end.counts) for end in self.ended.values()), Counter()))

    def num_samples(self, folder: str) -> int:
        """Return how many samples the finished shards of a target have."""
        return sum(shard.num_samples for shard in self.shards.get(folder, ()))

    def apply(self, line: Mapping[str, Any]) -> None:
        """Take another line in."""
        if "done" in line:
            self.done = line["done"]
            return
        if "shard" in line:
            target, at = line["target"], Reached.from_json(line["at"])
            self.shards.setdefault(target, []).append(ShardInfo.from_json(line["shard"]))
            self.reached[target] = at
        else:
            at = Reached.from_json(line["end"])
            self.ended[at.split] = at
        self.rejects.setdefault(at.split, []).extend(at.rejects)


def flatten_plan(value: Any, name: str = "") -> dict[str, str]:
    """Return a plan as flat names and short texts, so that a difference can be named.

    Example:
        >>> flatten_plan({"options": {"quality": 90}, "format": "lmdb"})
        {'options.quality': '90', 'format': '"lmdb"'}
    """
    if isinstance(value, Mapping) and 0 < len(value) <= 64:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten_plan(inner, f"{name}.{key}" if name else str(key))
        return flat
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) > _MAX_VALUE_CHARS:
        data = text.encode(errors="surrogatepass")
        text = f"{_HASH}{xxhash.xxh3_128_hexdigest(data)}"
    return {name: text}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Say where two plans differ; what differs alike in several splits, once."""
    found: dict[str, None] = {}
    for name in {**before, **after}:
        was, now = (one.get(name, "not there") for one in (before, after))
        if was != now:
            option = name.rpartition(".")[2]  # before it stands whose
            is_short = max(len(was), len(now)) <= _MAX_SHOWN_CHARS and not was.startswith(_HASH)
            found[f"{option} was {was}, is now {now}" if is_short else f"{option} differs"] = None
    return list(found)


class Journal:
    """An open journal; ``append`` returns once the line is on disk."""

    def __init__(self, path: Path, state: State) -> None:
        self.path, self.state = path, state
        self._fd = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        os.ftruncate(self._fd, state.size)
        os.lseek(self._fd, state.size, os.SEEK_SET)

    @classmethod
    def create(cls, path: Path, state: State) -> Journal:
        """Start a journal, replacing one that is there."""
        header = {
            "journal": JOURNAL_VERSION,
            "plan": dict(state.plan),
            "is_kept": state.is_kept,
            "folders": list(state.folders),
        }
        line = _dump(header)
        publish_bytes(path, line)
        state.size = len(line)
        return cls(path, state)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line durably and take it into the state."""
        data = memoryview(_dump(line))
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)
        self.state.apply(line)

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._fd)


def parse_journal(data: bytes) -> State | None:
    """Return what a journal says up to the first bad line; None if that is the header, or of another version."""
    first, *rest = data.splitlines(keepends=True) or [b""]
    if (header := _parse(first)) is None or header.get("journal") != JOURNAL_VERSION:
        return None
    folders = tuple(header["folders"])
    state = State(header["plan"], header["is_kept"], folders, size=len(first))
    for raw in rest:
        if (line := _parse(raw)) is None:
            break
        state.apply(line)
        state.size += len(raw)
    return state


def _dump(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    # A file name that is not UTF-8 is a string with surrogates: what replaces them is JSON, too.
    body = text.removesuffix("}").encode(errors="backslashreplace")
    return body + _end_of(body)


def _parse(raw: bytes) -> dict[str, Any] | None:
    body = raw.rpartition(_BEFORE_HASH)[0]
    return json.loads(raw) if body and raw == body + _end_of(body) else None


def _end_of(body: bytes) -> bytes:
    return b'%b%b"}\n' % (_BEFORE_HASH, xxhash.xxh3_64_hexdigest(body).encode())
