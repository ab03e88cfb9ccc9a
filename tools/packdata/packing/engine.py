"""The packer: runs recipes on all cores, cuts shards, and can be killed at any moment.

1. Normal: items are encoded on threads and taken in order; each target's records gather until they
   make a shard; a thread writes it, and then the journal says so. A block of samples is cut where
   the shard's size says so. When all is done the datasets are published together.
2. Failure: the first error in the order of items ends the packing. What the journal has stays; the
   same plan continues.
3. Kill, Ctrl-C, lost power: the same as a failure. Items behind a target's last finished shard are
   encoded again, also a block that it ended in, less the rows that it has.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import CodecError, LoadersError, PackError, SourceError
from loaders.system import opencv
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.packing.journal import Reached, Reject, flatten_plan
from packdata.packing.packing import Packing
from packdata.packing.pool import OrderedPool
from packdata.packing.progress import Progress, Quiet
from packdata.packing.provenance import PACKER
from packdata.packing.settings import OnError, check_on_error, check_workers
from packdata.packing.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    ShardBuilder,
    check_records,
    check_shard_options,
)
from packdata.packing.summary import Summary, summarize
from packdata.recipe import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.packing.journal import Kind
    from packdata.packing.publish import ShardSender
    from packdata.recipe import Recipe, Records

_MAX_BLOCK_BYTES = 64 << 20  # of blocks in flight


class Outcome(NamedTuple):
    """What became of an item: its records, one mapping or block per target, or why there are none."""

    number: int
    name: str
    records: Sequence[Records | Block]
    error: LoadersError | None = None
    given_nbytes: int = 0
    counts: Mapping[str, int] = MappingProxyType({})

    @property
    def nbytes(self) -> int:
        """Bytes of all its records, or of what they were made from if that is more."""
        return max(self.given_nbytes, sum(map(_nbytes, self.records)))

    @property
    def num_samples(self) -> int:
        """Samples that it counts for: those in its first target, one if it was left out."""
        first = self.records[0] if self.records else None
        return len(first) + len(first.rejects) if isinstance(first, Block) else 1

    @property
    def rejects(self) -> Sequence[tuple[str, LoadersError]]:
        """Names and errors of what was left out: the item, or some of its block."""
        if self.error is not None:
            return [(self.name, self.error)]
        first = self.records[0] if self.records else None
        return first.rejects if isinstance(first, Block) else ()


def _nbytes(records: Records | Block) -> int:
    return records.nbytes if isinstance(records, Block) else sum(map(len, records.values()))


def pack_recipe(recipe: Recipe, dst: Path | str, *, format: Format, **settings: Any) -> Summary:
    """Pack what one recipe makes; see ``pack_recipes``."""
    return pack_recipes([("", recipe)], dst, format=format, **settings)


def pack_recipes(
    splits: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    progress: Progress | None = None,
    is_unchanged: Callable[[], bool] = lambda: True,
    plan: Mapping[str, str] | None = None,
    sender: ShardSender | None = None,
) -> Summary:
    """Pack recipes into one destination and publish their datasets together.

    The result depends on the recipes, ``format`` and ``shard_bytes`` alone. Ended early, however
    that came about, the same call continues where the journal in ``dst/.packing`` ends.

    Args:
        splits: (folder below ``dst``, recipe) each; "" is ``dst`` itself.
        dst: A URL, or a folder that is new or empty, or holds a packing or a dataset of the same splits.
        format: ``"lmdb"`` or ``"parquet"``.
        shard_bytes: A shard ends with the sample that brings its records to this size.
        workers: Threads that encode; None for all usable cores.
        on_error: ``"fail"`` stops at an item that cannot be packed, ``"skip"`` leaves it out and
            lists it.
        overwrite: Replace the datasets in ``dst``. They can be read until the new ones are
            complete.
        progress: Called for every item.
        is_unchanged: Asked before publishing whether the source is still what the recipes listed.
        plan: Of recipes that are a part of a source, which may be empty and stays staged: what
            decides its output.
        sender: Takes the shards of a part away when they are finished.

    Raises:
        SourceError: An item cannot be packed, and ``on_error`` is ``"fail"``.
        PackError: The target cannot be written, is in use, or holds something else; or the source
        changed.
        ValueError: An option is out of range.
    """
    check_shard_options(format, shard_bytes)
    check_on_error(on_error)
    began, dst, num_workers = time.monotonic(), target_at(dst), check_workers(workers)
    folders = [folder for split, recipe in splits for folder in target_folders(split, recipe)]
    if not folders or len(set(folders)) != len(folders):
        raise ValueError(f"the splits must fill different folders, got {folders}")
    kind: Kind = "packing" if plan is None else "part"
    plan = plan_of(splits, format, shard_bytes) if plan is None else plan
    with Packing(dst, folders, plan, overwrite=overwrite, kind=kind, sender=sender) as packing:
        progress = Quiet() if progress is None else progress
        run = _Run(packing, format, shard_bytes, num_workers, on_error, progress)
        run.check_rejects()
        if packing.is_published:
            run.notes.append(packing.why_finished)
        else:
            run.pack(splits, is_unchanged)
        firsts, seconds = counted_folders(splits), time.monotonic() - began
        return summarize(packing, firsts, seconds, run.num_encoded, run.notes)


@dataclass(slots=True)
class _Run:
    """A packing under way."""

    packing: Packing
    format: Format
    shard_bytes: int
    num_workers: int
    on_error: OnError
    progress: Progress
    num_encoded: int = 0
    num_rejected: int = 0
    notes: list[str] = field(default_factory=list)

    def pack(self, splits: Sequence[tuple[str, Recipe]], is_unchanged: Callable[[], bool]) -> None:
        """Pack what is left, and publish it."""
        packing = self.packing
        packers = [_SplitPacker(self, split, recipe) for split, recipe in splits]
        if not packing.is_part and sum(len(p.recipe) for p in packers) == 0:
            raise PackError("there is nothing to pack", packing.dst, "The source lists no item")
        totals = [p.num_samples for p in packers]
        total = None if None in totals else sum(n for n in totals if n is not None)
        earlier = sum(p.num_earlier for p in packers)
        if earlier:
            some = counted(earlier, "sample")
            some = some if total is None else f"{earlier:,} of {counted(total, 'sample')}"
            self.notes.append(f"continued: {some} packed earlier")
        self.num_rejected = sum(len(r) for r in packing.state.rejects.values())
        is_same = False
        try:
            self.progress.start(total, earlier)
            with opencv.one_thread():
                for packer in packers:
                    packer.stage_files()
                    packer.pack()
                    if packer is packers[-1]:
                        is_same = is_unchanged()  # its last shard is being written
                    packer.end()
        finally:
            self.progress.close()
        if not is_same:
            raise changed(packing.dst)
        packing.publish({f: c for packer in packers for f, c in packer.contents()})

    def check_rejects(self) -> None:
        """Raise PackError if an earlier run has left out what this one is to stop at."""
        earlier = self.packing.rejected()
        if earlier and self.on_error == "fail":
            some = counted(len(earlier), "item")
            what = f"an earlier run left {some} out, such as {earlier[0][0]}"
            hint = "Pass on_error='skip' to continue, or overwrite=True to start anew"
            raise PackError(what, self.packing.dst, hint)


def changed(dst: Path | str) -> PackError:
    """Return the error that a source is not what was listed any more."""
    hint = "Pass overwrite=True to start anew; nothing was published"
    return PackError("the source changed while it was packed", dst, hint)


def plan_of(
    splits: Sequence[tuple[str, Recipe]],
    format: Format,
    shard_bytes: int,
    share: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return all that decides what recipes become, flat; see ``pack_recipes``."""
    targets = {
        folder: target.schema.to_json()
        for split, recipe in splits
        for folder, target in zip(target_folders(split, recipe), recipe.targets, strict=True)
    }
    identities = {split: dict(recipe.identity) for split, recipe in splits}
    plan = {
        "recipe": identities.get("", identities),
        "fields": targets,
        "format": format,
        "shard_bytes": shard_bytes,
        "packer": PACKER,
    }
    return flatten_plan(plan if share is None else plan | {"part": share})


def target_folders(split: str, recipe: Recipe) -> list[str]:
    """Return the folder of each target of a split, below the destination."""
    return ["/".join(filter(None, (split, target.folder))) for target in recipe.targets]


def counted_folders(splits: Sequence[tuple[str, Recipe]]) -> list[str]:
    """Return the folders that hold each sample once between them."""
    return [
        folder
        for split, recipe in splits
        for folder in target_folders(split, recipe)[: None if recipe.divides else 1]
    ]


class _SplitPacker:
    """Packs one split: its items in order, from where its shards end."""

    def __init__(self, run: _Run, split: str, recipe: Recipe) -> None:
        self.run, self.packing, self.split, self.recipe = run, run.packing, split, recipe
        self.folders = target_folders(split, recipe)
        state = self.packing.state
        self.is_ended = split in state.ended
        # The item and its row at which each target goes on.
        self._reached = [(state.items.get(f, 0), state.rows.get(f, 0)) for f in self.folders]
        self._earlier_end = max(self._reached)
        self.start = state.ended.get(split, min(self._reached)[0])
        counted = [state.counts.get(f, {}) for f in self.folders]
        self._counts = Counter(counted[self._reached.index(min(self._reached))])
        self._counts_before = self._counts  # the item under way, of which a shard may hold a part
        self._expected = {
            r.number: r for r in state.rejects.get(split, []) if r.number >= self.start
        }
        self._builders = [
            ShardBuilder(target.schema, run.format, run.shard_bytes) for target in recipe.targets
        ]
        self._rejects: list[Reject] = []

    @property
    def num_samples(self) -> int | None:
        """Samples that the split has, rejected items counted as one each; None if not known."""
        return self.recipe.num_samples if self.recipe.is_of_blocks else len(self.recipe)

    @property
    def num_earlier(self) -> int:
        """Samples that earlier runs packed, where nothing of a block is counted in items."""
        if not self.recipe.is_of_blocks:
            return self.start
        shards = self.packing.state.shards
        return min(sum(s.num_samples for s in shards.get(f, ())) for f in self.folders)

    def contents(self) -> Iterator[tuple[str, tuple[Any, Mapping[str, Any]]]]:
        """Yield each target's folder with its schema and provenance."""
        provenance = {**self.recipe.provenance, "packer": PACKER}
        for folder, target in zip(self.folders, self.recipe.targets, strict=True):
            yield folder, (target.schema, provenance)

    def stage_files(self) -> None:
        """Write what belongs beside the manifests."""
        for folder, target in zip(self.folders, self.recipe.targets, strict=True):
            self.packing.stage_files(folder, target.files)

    def pack(self) -> None:
        """Pack what is left of the split; its last shard may still be on its way to the disk."""
        if not self.is_ended:
            self._encode_all()
            self._cut_rest()

    def end(self) -> None:
        """Return once the split is on disk; PackError if there is nothing of it."""
        if not self.is_ended:
            num = len(self.recipe)
            self.packing.end_split(Reached(num, 0, self.split, self._rejects, self._counts))
        empty = [f for f in self.folders if not self.packing.state.shards.get(f)]
        if empty and not self.packing.is_part:
            # Nothing can go on from here: the same source would end here again, another is another plan.
            self.packing.state.shards.clear()
            where = f"{empty[0]!r} holds " if empty[0] else ""
            raise PackError(
                f"{where}no sample that could be packed", self.packing.dst, self._why_none()
            )

    def _why_none(self) -> str:
        rejects = self.packing.state.rejects.get(self.split, [])
        if rejects:
            return f"It rejected {counted(len(rejects), 'item')}, the first: {rejects[0].error}"
        return self.recipe.why_empty

    def _encode_all(self) -> None:
        from packdata.sources.objects import fetched_ahead  # late: --help is quick without

        # Blocks are alike, so that a few are enough to keep all workers busy.
        limit = {"max_bytes": _MAX_BLOCK_BYTES} if self.recipe.is_of_blocks else {}
        workers = self.run.num_workers
        with (
            closing(fetched_ahead(self.recipe.items(self.start))) as given,
            OrderedPool(self._encode, workers, attrgetter("nbytes"), **limit) as pool,
        ):
            num_items, items = self.start, enumerate(given, self.start)
            for num_items, outcome in enumerate(pool.map(items), self.start + 1):  # noqa: B007
                self._take(outcome)
        if num_items != len(self.recipe):
            what = f"the source listed {len(self.recipe)} items and then gave {num_items}"
            raise PackError(what, self.packing.dst, "It changed while it was packed: run it again")

    def _encode(self, numbered: tuple[int, Any]) -> Outcome:
        """Runs on the threads."""
        outcome = self._encoded(numbered)
        counts = self.recipe.tally.take()
        return outcome._replace(counts=counts) if counts else outcome

    def _encoded(self, numbered: tuple[int, Any]) -> Outcome:
        number, item = numbered
        try:
            all_records = self.recipe.encode(item)
            for records, target in zip(all_records, self.recipe.targets, strict=True):
                check_records(records, target.schema, self.run.format)
            return Outcome(number, "", all_records)
        except SourceError as error:
            return Outcome(number, self.recipe.name(item), (), error)
        except (CodecError, OSError) as error:
            name = self.recipe.name(item)
            refused = SourceError(str(error), name)
            refused.__cause__ = error
            return Outcome(number, name, (), refused)
        except Exception as error:
            error.add_note(f"while packing {self.recipe.name(item)}, item {number}")
            raise

    def _take(self, outcome: Outcome) -> None:
        self._check_unchanged(outcome)
        self._reject(outcome)
        self._counts_before, self._counts = self._counts, self._counts + Counter(outcome.counts)
        for i, records in enumerate(outcome.records):
            items, rows = self._reached[i]
            if outcome.number >= items:
                self._add(i, outcome, records, rows if outcome.number == items else 0)
        self.run.num_encoded += outcome.num_samples - len(outcome.rejects)
        self.run.progress.advance(self.run.num_rejected, outcome.num_samples)

    def _add(self, i: int, outcome: Outcome, records: Records | Block, first: int) -> None:
        """Hand records to a target, all but the ``first`` samples of a block, cutting its shards."""
        builder, number = self._builders[i], outcome.number
        if first and not (isinstance(records, Block) and first < len(records)):
            raise self._changed(f"item {number}")
        if not isinstance(records, Block):
            builder.add(records)
            if builder.is_full:
                self._cut(i, number + 1)
            return
        for reached in builder.fill(records, first):
            at_end = reached == len(records)
            self._cut(i, number + at_end, 0 if at_end else reached)

    def _reject(self, outcome: Outcome) -> None:
        if outcome.rejects and self.run.on_error == "fail":
            raise outcome.rejects[0][1]
        if outcome.number not in self._expected:
            number = outcome.number
            self._rejects += [Reject(number, name, str(why)) for name, why in outcome.rejects]
            self.run.num_rejected += len(outcome.rejects)

    def _check_unchanged(self, outcome: Outcome) -> None:
        """Refuse to continue if an item that was good is bad now, or the other way round."""
        if (outcome.number, 0) >= self._earlier_end:
            return
        if bool(outcome.rejects) != (outcome.number in self._expected):
            names = [name for name, _ in outcome.rejects] or [self._expected[outcome.number].item]
            raise self._changed(names[0])

    def _changed(self, name: str) -> PackError:
        what = f"the source changed while it was packed ({name})"
        return PackError(what, self.packing.dst, "Pass overwrite=True to start anew")

    def _cut(self, i: int, items: int, rows: int = 0) -> None:
        counts = self._counts_before if rows else self._counts
        reached = Reached(items, rows, self.split, self._rejects, counts)
        self._rejects = []
        columns, schema = self._builders[i].take(), self.recipe.targets[i].schema
        self.packing.write(self.folders[i], columns, schema, self.run.format, reached)

    def _cut_rest(self) -> None:
        for i, builder in enumerate(self._builders):
            if builder.num_samples:
                self._cut(i, len(self.recipe))
