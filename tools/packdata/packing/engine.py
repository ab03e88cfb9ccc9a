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
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.errors import CodecError, LoadersError, PackError, SourceError
from loaders.system import opencv
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.packing.journal import Reached, Reject, flatten_plan
from packdata.packing.packing import MADE, Filling, Made, Packing
from packdata.packing.pool import OrderedPool
from packdata.packing.progress import Progress, Quiet
from packdata.packing.provenance import PACKER
from packdata.packing.settings import OnError, check_on_error, check_workers
from packdata.packing.shards import (
    DEFAULT_SHARD_BYTES,
    Format,
    check_records,
    check_shard_options,
)
from packdata.packing.summary import Summary, summary_of
from packdata.recipe import Block, nbytes_of, num_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.recipe import Recipe, Records

_MAX_BLOCK_BYTES = 64 << 20  # of blocks in flight


class Outcome(NamedTuple):
    """What became of an item.

    Attributes:
        number: The item's.
        records: One mapping or block per target; none if the item was left out.
        rejects: Names and errors of what was left out: the item, or some of its block.
        num_samples: Samples that it counts for: those in its first target and its rejects.
        nbytes: About what it holds.
        counts: What its recipe counted.
    """

    number: int
    records: Sequence[Records | Block]
    rejects: Sequence[tuple[str, LoadersError]] = ()
    num_samples: int = 1
    nbytes: int = 0
    counts: Mapping[str, int] = MappingProxyType({})


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

    Raises:
        SourceError: An item cannot be packed, and ``on_error`` is ``"fail"``.
        PackError: The target cannot be written, is in use, or holds something else; or the source
        changed.
        ValueError: An option is out of range.
    """
    run = Run(format, shard_bytes, workers, on_error, progress, is_unchanged)
    folders, plan = folders_of(splits), plan_of(splits, format, shard_bytes)
    with Packing(target_at(dst), folders, plan, overwrite=overwrite) as packing:
        return run.pack(packing, splits)


class Run:
    """A packing under way; the arguments are those of ``pack_recipes``."""

    def __init__(
        self,
        format: Format,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        workers: int | None = None,
        on_error: OnError = "fail",
        progress: Progress | None = None,
        is_unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        check_shard_options(format, shard_bytes)
        check_on_error(on_error)
        self.format, self.shard_bytes, self.on_error = format, shard_bytes, on_error
        self.num_workers, self._is_unchanged = check_workers(workers), is_unchanged
        self.progress = Quiet() if progress is None else progress
        self.num_encoded = self.num_rejected = 0
        self._began = time.monotonic()

    def pack(self, packing: Packing, splits: Sequence[tuple[str, Recipe]]) -> Summary:
        """Pack what is left of the splits, and publish it."""
        earlier = packing.rejected()
        if earlier and self.on_error == "fail":
            some = counted(len(earlier), "item")
            what = f"an earlier run left {some} out, such as {earlier[0][0]}"
            hint = "Pass on_error='skip' to continue, or overwrite=True to start anew"
            raise PackError(what, packing.dst, hint)
        note = MADE if packing.is_published else self._pack(packing, splits)
        made = packing.dst, packing.manifests(), packing.rejected(), counted_folders(splits)
        seconds, notes = time.monotonic() - self._began, [note] if note else []
        ends = packing.state.ended.values()
        return summary_of(*made, seconds, self.num_encoded, notes, ends)

    def _pack(self, packing: Packing, splits: Sequence[tuple[str, Recipe]]) -> str:
        """Pack and publish; return what is worth knowing of it."""
        packers = [_SplitPacker(self, packing, split, recipe) for split, recipe in splits]
        if packing.kind != "part" and sum(len(p.recipe) for p in packers) == 0:
            raise PackError("there is nothing to pack", packing.dst, "The source lists no item")
        totals = [p.num_samples for p in packers]
        total = None if None in totals else sum(n for n in totals if n is not None)
        earlier = sum(p.num_earlier for p in packers)
        self.num_rejected = len(packing.state.all_rejects)
        is_same = False
        try:
            self.progress.start(total, earlier)
            with opencv.one_thread():
                for packer in packers:
                    packer.pack()
                    if packer is packers[-1]:
                        is_same = self._is_unchanged()  # its last shard is being written
                    packer.end()
        finally:
            self.progress.close()
        if not is_same:
            raise changed(packing.dst)
        packing.publish(dict(made for packer in packers for made in packer.made()))
        if not earlier:
            return ""
        some = counted(earlier, "sample")
        some = some if total is None else f"{earlier:,} of {counted(total, 'sample')}"
        return f"continued: {some} packed earlier"


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


def folders_of(splits: Sequence[tuple[str, Recipe]]) -> list[str]:
    """Return the folders of all targets; ValueError if they are not different."""
    folders = [folder for split, recipe in splits for folder in target_folders(split, recipe)]
    if not folders or len(set(folders)) != len(folders):
        raise ValueError(f"the splits must fill different folders, got {folders}")
    return folders


def counted_folders(splits: Sequence[tuple[str, Recipe]]) -> list[str]:
    """Return the folders that hold each sample once between them."""
    return [
        folder
        for split, recipe in splits
        for folder in target_folders(split, recipe)[: None if recipe.divides else 1]
    ]


class _SplitPacker:
    """Packs one split: its items in order, from where its shards end."""

    def __init__(self, run: Run, packing: Packing, split: str, recipe: Recipe) -> None:
        self.run, self.packing, self.split, self.recipe = run, packing, split, recipe
        self.folders = target_folders(split, recipe)
        state = packing.state
        self._is_ended = split in state.ended
        # Where each target goes on.
        self._reached = [state.reached.get(f, Reached()) for f in self.folders]
        self._earlier_end = max((at.items, at.rows) for at in self._reached)
        first = min(self._reached, key=lambda at: (at.items, at.rows))
        self._start = state.ended.get(split, first).items
        self._counts = Counter(first.counts)
        self._counts_before = self._counts  # the item under way, of which a shard may hold a part
        self._expected = {reject.number for reject in state.rejects.get(split, ())}
        self._targets = dict(zip(self.folders, recipe.targets, strict=True))
        self._fillings = [
            Filling(packing, folder, target.schema, run.format, run.shard_bytes)
            for folder, target in self._targets.items()
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
            return self._start
        shards = self.packing.state.shards
        return min(sum(s.num_samples for s in shards.get(f, ())) for f in self.folders)

    def made(self) -> Iterator[tuple[str, Made]]:
        """Yield each target by its folder."""
        provenance = {**self.recipe.provenance, "packer": PACKER}
        for folder, target in self._targets.items():
            yield folder, Made(target.schema, provenance, target.files)

    def pack(self) -> None:
        """Pack what is left of the split; its last shard may still be on its way to the disk."""
        if not self._is_ended:
            self._encode_all()
            for filling in self._fillings:
                filling.end(partial(self._at, len(self.recipe)))

    def end(self) -> None:
        """Return once the split is on disk; PackError if there is nothing of it."""
        if not self._is_ended:
            self.packing.end_split(self._at(len(self.recipe)))
        state = self.packing.state
        empty = [f for f in self.folders if not state.shards.get(f)]
        if empty and self.packing.kind != "part":
            # Nothing can go on from here: the same source would end here again, another is another plan.
            state.shards.clear()
            where = f"{empty[0]!r} holds " if empty[0] else ""
            hint = why_rejected(state.rejects.get(self.split, ())) or self.recipe.why_empty
            raise PackError(f"{where}no sample that could be packed", self.packing.dst, hint)

    def _encode_all(self) -> None:
        from packdata.reading import fetched_ahead  # late: --help is quick without

        # Blocks are alike, so that a few are enough to keep all workers busy.
        limit = {"max_bytes": _MAX_BLOCK_BYTES} if self.recipe.is_of_blocks else {}
        with (
            closing(fetched_ahead(self.recipe.items(self._start))) as given,
            OrderedPool(self._encode, self.run.num_workers, attrgetter("nbytes"), **limit) as pool,
        ):
            num_items, items = self._start, enumerate(given, self._start)
            for num_items, outcome in enumerate(pool.map(items), self._start + 1):  # noqa: B007
                self._take(outcome)
        if num_items != len(self.recipe):
            what = f"the source listed {len(self.recipe)} items and then gave {num_items}"
            raise PackError(what, self.packing.dst, "It changed while it was packed: run it again")

    def _encode(self, numbered: tuple[int, Any]) -> Outcome:
        """Runs on the threads."""
        number, item = numbered
        try:
            records = self.recipe.encode(item)
            for each, target in zip(records, self.recipe.targets, strict=True):
                check_records(each, target.schema, self.run.format)
        except (SourceError, CodecError, OSError) as error:
            name, why = self.recipe.name(item), error
            if not isinstance(why, SourceError):
                why = SourceError(str(error), name)
                why.__cause__ = error
            return Outcome(number, (), [(name, why)], counts=self.recipe.tally.take())
        except Exception as error:
            error.add_note(f"while packing {self.recipe.name(item)}, item {number}")
            raise
        nbytes, counts, first = sum(map(nbytes_of, records)), self.recipe.tally.take(), records[0]
        if not isinstance(first, Block):
            return Outcome(number, records, (), 1, nbytes, counts)
        num_samples = len(first) + len(first.rejects)
        return Outcome(number, records, first.rejects, num_samples, nbytes, counts)

    def _take(self, outcome: Outcome) -> None:
        """Take the records of the next item, less what targets have of it by an earlier run, and what was left out."""
        number, rejects = outcome.number, outcome.rejects
        was_rejected = number in self._expected
        if (number, 0) < self._earlier_end and bool(rejects) != was_rejected:
            raise self._changed(number)
        if rejects and self.run.on_error == "fail":
            raise rejects[0][1]
        if not was_rejected:
            self._rejects += [Reject(number, name, str(why)) for name, why in rejects]
            self.run.num_rejected += len(rejects)
        self._counts_before, self._counts = self._counts, self._counts + Counter(outcome.counts)
        targets = zip(self._fillings, self._reached, outcome.records, strict=False)
        for filling, at, records in targets:
            first, num = at.rows if number == at.items else 0, num_rows(records)
            if first and first >= num:
                raise self._changed(number)
            if number >= at.items:
                filling.add(records, partial(self._inside, number, num), first)
        self.run.num_encoded += outcome.num_samples - len(rejects)
        self.run.progress.advance(self.run.num_rejected, outcome.num_samples)

    def _changed(self, number: int) -> PackError:
        """Return the error that an item is not what an earlier run has packed."""
        what = f"the source changed while it was packed (item {number})"
        return PackError(what, self.packing.dst, "Pass overwrite=True to start anew")

    def _inside(self, number: int, num: int, row: int) -> Reached:
        """Return how far the split is when so many of an item's samples are done."""
        return self._at(number + 1) if row == num else self._at(number, row)

    def _at(self, items: int, rows: int = 0) -> Reached:
        """Return how far the split is, to be written down: with the rejects since the last time."""
        rejects, self._rejects = self._rejects, []
        counts = self._counts_before if rows else self._counts
        return Reached(items, rows, self.split, rejects, counts)


def why_rejected(rejects: Sequence[Reject]) -> str:
    """Say why nothing was left of a source; "" if nothing was rejected."""
    if not rejects:
        return ""
    return f"It rejected {counted(len(rejects), 'item')}, the first: {rejects[0].error}"
