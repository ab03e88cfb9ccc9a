"""The packer: runs recipes on all cores, cuts shards, and can be killed at any moment.

1. Normal: items are encoded on threads and taken in order; each target's records gather until they
   make a shard; a thread writes it, and then the journal says so. A block of samples is cut where
   the shard's size says so. When all is done the datasets are published together.
2. Failure: the first error in the order of items ends the packing. What the journal has stays; the
   same plan continues.
3. Kill, Ctrl-C, lost power: the same as a failure. Each target goes on behind its last finished shard:
   a block that was cut there is encoded again, and the rows that are stored are left out.
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
from packdata.options import takes
from packdata.packing.journal import Reached, Reject, flatten_plan
from packdata.packing.packing import MADE, Made, Packing
from packdata.packing.pool import MAX_RESULT_BYTES, OrderedPool
from packdata.packing.progress import Quiet
from packdata.packing.provenance import PACKER
from packdata.packing.settings import RunSettings
from packdata.packing.shards import DEFAULT_SHARD_BYTES, Format, ShardBuilder, check_records
from packdata.packing.summary import Summary, summary_of
from packdata.recipe import Block, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.recipe import Recipe, Records, Target

_MAX_BLOCK_BYTES = 64 << 20  # of blocks in flight


class Outcome(NamedTuple):
    """What became of an item."""

    records: Sequence[Records | Block] = ()  # one per target; none if the item was left out
    # Names and errors of what was left out: the item, or some of its block.
    rejects: Sequence[tuple[str, LoadersError]] = ()
    counts: Mapping[str, int] = MappingProxyType({})  # by its recipe
    nbytes: int = 0  # about what it holds


@takes(RunSettings)
def pack_recipes(
    splits: Sequence[tuple[str, Recipe]],
    dst: Location | str,
    *,
    is_unchanged: Callable[[], bool] = lambda: True,
    **settings: Any,
) -> Summary:
    """Pack recipes into one destination and publish their datasets together.

    The result depends on the recipes, ``format`` and ``shard_bytes`` alone. Ended early, however
    that came about, the same call continues where the journal in ``dst/.packing`` ends.

    Args:
        splits: (folder below ``dst``, recipe) each; "" is ``dst`` itself.
        dst: A URL, or a folder that is new or empty, or holds a packing or a dataset of the same splits.
        is_unchanged: Asked before publishing whether the source is still what the recipes listed.
        **settings: Those of ``packdata.packing.settings.RunSettings``; LMDB unless ``format`` says otherwise, in shards
            of 64 MiB.

    Raises:
        SourceError: An item cannot be packed, and ``on_error`` is ``"fail"``.
        PackError: The target cannot be written, is in use, or holds something else; or the source
        changed.
        ValueError: An option is out of range.
    """
    return Run(RunSettings(**settings), is_unchanged).pack_to(dst, splits)


class Run:
    """A packing under way, once.

    Args:
        settings: What was asked for; LMDB in shards of 64 MiB, where nothing else is.
        is_unchanged: See ``pack_recipes``.

    Attributes:
        num_encoded: Samples that this run made.
        num_rejected: Items that were left out so far.
    """

    def __init__(
        self, settings: RunSettings, is_unchanged: Callable[[], bool] = lambda: True
    ) -> None:
        self.settings, self._is_unchanged, self._began = settings, is_unchanged, time.monotonic()
        self.format: Format = settings.format or "lmdb"
        self.shard_bytes = settings.shard_bytes or DEFAULT_SHARD_BYTES
        self.shown = Quiet() if settings.progress is None else settings.progress
        self.num_encoded = self.num_rejected = 0

    def pack_to(self, dst: Location | str, splits: Sequence[tuple[str, Recipe]]) -> Summary:
        """Pack recipes into one destination; see ``pack_recipes``."""
        folders, plan = [*targets_of(*splits)], self.plan_of(splits)
        with Packing(target_at(dst), folders, plan, overwrite=self.settings.overwrite) as packing:
            return self.pack(packing, splits)

    def plan_of(self, splits: Sequence[tuple[str, Recipe]]) -> dict[str, str]:
        """Return all that decides what recipes become, flat; see ``pack_recipes``."""
        identities = {split: dict(recipe.identity) for split, recipe in splits}
        plan = {
            "recipe": identities.get("", identities),
            "fields": {f: target.schema.to_json() for f, target in targets_of(*splits).items()},
            "format": self.format,
            "shard_bytes": self.shard_bytes,
            "packer": PACKER,
        }
        return flatten_plan(plan)

    def pack(self, packing: Packing, splits: Sequence[tuple[str, Recipe]]) -> Summary:
        """Pack what is left of the splits, and publish it."""
        earlier = packing.state.rejected
        if earlier and self.settings.on_error == "fail":
            some = counted(len(earlier), "item")
            what = f"an earlier run left {some} out, such as {earlier[0][0]}"
            hint = "Pass on_error='skip' to continue, or overwrite=True to start anew"
            raise PackError(what, packing.dst, hint)
        note = MADE if packing.is_published else self._pack(packing, splits)
        return self.summary(packing, [note] if note else [])

    def summary(self, packing: Packing, notes: Sequence[str] = ()) -> Summary:
        """Return what was done."""
        return summary_of(
            packing.dst,
            packing.manifests,
            rejected=packing.state.rejected,
            seconds=time.monotonic() - self._began,
            encoded=self.num_encoded,
            notes=notes,
            counts=packing.state.counts,
        )

    def _pack(self, packing: Packing, splits: Sequence[tuple[str, Recipe]]) -> str:
        """Pack and publish; return what is worth knowing of it."""
        earlier = sum(map(packing.state.num_samples, targets_of(*splits)))
        self._pack_splits(packing, splits)
        if not self._is_unchanged():
            raise source_changed(packing.dst)
        made = {
            folder: Made(target.schema, recipe.provenance, target.files, recipe.whole)
            for split, recipe in splits
            for folder, target in targets_of((split, recipe)).items()
        }
        packing.publish(made)
        return f"continued: {counted(earlier, 'sample')} packed earlier" if earlier else ""

    def _pack_splits(self, packing: Packing, splits: Sequence[tuple[str, Recipe]]) -> None:
        """Put what is left of the splits into shards."""
        sizes = [r.num_samples if r.is_of_blocks else len(r) for _, r in splits]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        state = packing.state
        done = sum(min(map(state.num_samples, targets_of(each))) for each in splits)
        self.num_rejected = len(state.rejected)
        with closing(self.shown), opencv.one_thread():
            self.shown.start(total, done)
            for split, recipe in splits:
                if recipe.whole:
                    num_samples = sum(shard.info.num_samples for shard in recipe.whole)
                    self.num_encoded += num_samples
                    self.shown.advance(0, num_samples)
                elif split not in state.ended:
                    self._pack_split(packing, split, recipe)

    def _pack_split(self, packing: Packing, split: str, recipe: Recipe) -> None:
        from packdata.ahead import fetched_ahead  # late: --help is quick without

        encode, targets = partial(_encode, recipe, self.format), targets_of((split, recipe))
        # Blocks are alike, so that a few are enough to keep all workers busy.
        most = _MAX_BLOCK_BYTES if recipe.is_of_blocks else MAX_RESULT_BYTES
        num_workers = 0 if recipe.only_copies else self.settings.num_workers
        with OrderedPool(encode, num_workers, attrgetter("nbytes"), most) as pool:
            packer = SplitPacker(self, packing, split, targets, pool)
            with closing(fetched_ahead(recipe.items(packer.num_items))) as items:
                for item in items:
                    packer.put(item)
            if packer.num_items != len(recipe):
                what = f"the source listed {len(recipe)} items and then gave {packer.num_items}"
                hint = "The source changed while it was packed: run the command again"
                raise PackError(what, packing.dst, hint)
            packer.end(recipe.why_empty)


def source_changed(dst: Location | str, where: str = "") -> PackError:
    """Return the error that a source is not what was listed, or what an earlier run has packed."""
    hint = "Pass overwrite=True to start anew; nothing was published"
    return PackError(f"the source changed while it was packed{where}", dst, hint)


def targets_of(*splits: tuple[str, Recipe]) -> dict[str, Target]:
    """Return the targets of splits by their folder below the destination; ValueError if two have the same."""
    targets = [
        ("/".join(filter(None, (split, target.folder))), target)
        for split, recipe in splits
        for target in recipe.targets
    ]
    if not targets or len(dict(targets)) < len(targets):
        folders = [folder for folder, _ in targets]
        raise ValueError(f"the splits must fill different folders, got {folders}")
    return dict(targets)


def _encode(recipe: Recipe, format: Format, item: Any) -> Outcome:
    """Return what became of an item; runs on the threads."""
    try:
        records = recipe.encode(item)
        for each, target in zip(records, recipe.targets, strict=True):
            check_records(each, target.schema, format)
    except (SourceError, CodecError, OSError) as error:
        name, why = recipe.name(item), error
        if not isinstance(why, SourceError):
            why = SourceError(str(error), name)
            why.__cause__ = error
        if recipe.is_of_blocks:  # its good samples would be lost, and counted as one item
            raise why from why.__cause__
        return Outcome((), [(name, why)], recipe.tally.take())
    except LoadersError:  # of a damaged shard, a store: with its place
        raise
    except Exception as error:
        error.add_note(f"while packing {recipe.name(item)}")
        raise
    errors = records[0].rejects if isinstance(records[0], Block) else ()
    rejects = [(str(error.path), error) for error in errors]
    return Outcome(records, rejects, recipe.tally.take(), sum(map(nbytes_of, records)))


class SplitPacker:
    """Packs the items of one split into the shards of its targets, by their folder, from where those end.

    Items are encoded by a pool; what becomes of them is taken in order. The next one to be handed over has the number
    ``num_items``.
    """

    def __init__(
        self,
        run: Run,
        packing: Packing,
        split: str,
        targets: Mapping[str, Target],
        pool: OrderedPool[Any, Outcome],
    ) -> None:
        self._run, self._packing, self._split, self._pool = run, packing, split, pool
        state = packing.state
        self._builders = {
            folder: ShardBuilder(target.schema, run.format, run.shard_bytes)
            for folder, target in targets.items()
        }
        # Where each target goes on, and how many items an earlier run has looked at.
        self._reached = [state.reached.get(folder, Reached()) for folder in targets]
        self._num_seen = max(at.items + (at.rows > 0) for at in self._reached)
        first = min(self._reached, key=lambda at: (at.items, at.rows))
        self.num_items = self._num_taken = first.items
        self._counts = Counter(first.counts)
        self._counts_before = self._counts  # the item under way, of which a shard may hold a part
        self._expected = {reject.number for reject in state.rejects.get(split, ())}
        self._rejects: list[Reject] = []

    def put(self, item: Any) -> None:
        """Hand the next item over, and take those that are encoded; LoadersError if one cannot be packed."""
        self.num_items += 1
        self._take(self._pool.put(item))

    def add(self, block: Block) -> None:
        """Take a block as the next item, behind all that were handed over."""
        self._take(self._pool.drain())
        self.num_items += 1
        self._take([Outcome([block])])

    def end(self, why_empty: str = "") -> None:
        """Pack what is left, and return once it is on disk; PackError if there is nothing in a target."""
        self._take(self._pool.drain())
        for folder, builder in self._builders.items():
            if len(builder):
                self._packing.write(folder, builder, self._at(self.num_items))
        self._packing.end_split(self._at(self.num_items))
        state = self._packing.state
        empty = [folder for folder in self._builders if not state.shards.get(folder)]
        if empty and not self._packing.may_be_empty:
            # Nothing can go on from here: the same source would end here again, another is another plan.
            state.is_kept = False
            where = f"{empty[0]!r} holds " if empty[0] else ""
            errors = [each.error for each in state.rejects.get(self._split, ())]
            hint = why_rejected(errors) or why_empty
            raise PackError(f"{where}no sample that could be packed", self._packing.dst, hint)

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        """Take the records of items, less what targets have of them by an earlier run, and what was left out."""
        for records, rejects, counts, _ in outcomes:
            number, self._num_taken = self._num_taken, self._num_taken + 1
            if rejects or number < self._num_seen:
                self._take_rejects(number, rejects)
            self._counts_before = self._counts
            if counts:
                self._counts = self._counts + Counter(counts)
            num_samples = 0  # in the first target
            targets = zip(self._builders.items(), self._reached, records, strict=False)
            for (folder, builder), at, each in targets:
                first = at.rows if number == at.items else 0
                num = len(each) if isinstance(each, Block) else 1
                if each is records[0]:
                    num_samples = num
                if 0 < first >= num:
                    raise source_changed(self._packing.dst, f" (item {number})")
                if number >= at.items:
                    self._run.num_encoded += num
                    for row in builder.add(each, first):
                        self._packing.write(folder, builder, self._at(number, num, row))
            self._run.shown.advance(self._run.num_rejected, num_samples + len(rejects))

    def _take_rejects(self, number: int, rejects: Sequence[tuple[str, LoadersError]]) -> None:
        """Note what was left out; an earlier run that saw the item has noted the same."""
        if number < self._num_seen:
            if bool(rejects) != (number in self._expected):
                raise source_changed(self._packing.dst, f" (item {number})")
            return
        if self._run.settings.on_error == "fail":
            raise rejects[0][1]
        self._rejects += [Reject(number, name, str(why)) for name, why in rejects]
        self._run.num_rejected += len(rejects)

    def _at(self, number: int, num: int = -1, row: int = 0) -> Reached:
        """Return how far the split is, to be written down, when ``row`` of an item's ``num`` samples are done.

        It has the rejects since the last time.
        """
        rejects, self._rejects = self._rejects, []
        if row == num:
            number, row = number + 1, 0
        counts = self._counts_before if row else self._counts
        return Reached(number, row, self._split, rejects, dict(counts))


def why_rejected(errors: Sequence[str]) -> str:
    """Say why nothing was left of a source; "" if nothing was rejected."""
    return f"{counted(len(errors), 'item')} rejected, the first: {errors[0]}" if errors else ""
