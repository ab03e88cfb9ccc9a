"""``Mixture``: several datasets as one, each served as often as its weight says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xxhash

from loaders.checks import Settled, as_list, one_of, shown
from loaders.datasets.base import BatchDataset, SamplesOf, check_stored
from loaders.datasets.interleave import Sources
from loaders.datasets.joining import check_meaning
from loaders.datasets.packed import PackedDataset, concat
from loaders.datasets.views import serves_stored, unwrap
from loaders.errors import NoValueError, SchemaError
from loaders.sampling.mixture import MixtureOrder, Stop, check_stop
from loaders.sampling.phases import is_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.datasets.base import Collate, Halves
    from loaders.sampling.phases import Schedule

    Int64s = npt.NDArray[np.int64]


class Mixture(Settled, SamplesOf[BatchDataset]):
    """Samples of several datasets, each as often as its weight says.

    ``DataLoader(mixture)`` serves it in an order of its own (``MixtureOrder``, which says how even
    it is): no ``shuffle``. One epoch is what ``stop`` says; each source is gone through pass by
    pass, every pass shuffled anew, across epochs. Resuming, ranks, padding and ``drop_last`` are
    as for any dataset. Repeats of a sample within an epoch are augmented differently.

    Indices number the samples source after source, and ``len(mixture)`` counts them all, whatever
    an epoch has; that is ``mixture.order(seed=0, batch_size=1).length`` samples. ``sources_of`` says
    where a sample is from. A loader of torch draws all alike, unless it is given
    ``sampler=EpochSampler(mixture.order(seed=0, batch_size=1))`` (of ``loaders.sampling``).

    Sources that ``concat`` can join are read as one dataset; a bad sample is replaced by one of its source.
    Others are read one by one, and their samples put together: the names of their fields must be the
    same (``replace(fields=...)``), and where one batch takes samples of several, so must shapes and types.

    Args:
        sources: Datasets of this package, with any settings of their own, but no other mixture.
        weights: One finite number from 0 per source; the scale does not matter. Default: as many
            as it has samples. ``[(0, [0.7, 0.3]), (10_000, [0.5, 0.5])]`` changes them at sample 10,000, counted over
            all ranks and epochs; ``loader.load_state_dict(state, weights="new")`` goes on from a state of other ones.
        stop: Where an epoch ends: ``"first_exhausted"``, the default: when the first of the sources
            was gone through, so that no sample comes twice; ``"all_exhausted"``: when the last one
            was, the others several times; or after a number of samples.
        batch_from: ``"all"``, the default: every batch is mixed; ``"one"``: each rank's batch comes
            from one source; a state then loads at the same batch size only.

    Attributes:
        sources: The datasets.
        weights: As given, or the default.
        joined: The sources as one dataset, if they can be read so, else None.

    Raises:
        ValueError: A weight or option is out of range, or an epoch too short for a weight.
        SchemaError: The sources have different fields, or fields whose values stand for different things (columns,
            vocabularies, classes, standardization, tokenizers).

    Example::

        mixture = Mixture([photos, drawings], weights=[0.7, 0.3])
        for images, labels in DataLoader(mixture, batch_size=256, seed=0):
            loss = cross_entropy(model(normalize(images)), labels)
    """

    _settled = frozenset(["sources", "weights", "stop", "batch_from"])

    def __init__(
        self,
        sources: Sequence[Any],
        weights: Sequence[float] | Schedule | None = None,
        *,
        stop: Stop = "first_exhausted",
        batch_from: Literal["all", "one"] = "all",
    ) -> None:
        if isinstance(sources, torch.utils.data.Dataset):
            raise TypeError(f"sources must be a list of datasets, got {shown(sources)}")
        given = as_list("sources", sources, "datasets")
        if not given:
            raise ValueError("sources is empty: a mixture needs at least one dataset")
        self.sources: tuple[BatchDataset, ...] = tuple(unwrap(source) for source in given)
        for number, source in enumerate(self.sources):
            if isinstance(source, Mixture) or not isinstance(source, BatchDataset):
                raise TypeError(
                    f"source {number} is a {type(source).__name__}: a mixture takes datasets "
                    "of this package, and no other mixture (pass its sources instead)"
                )
            check_stored(source, "a mixture")
        one_of("batch_from", batch_from, ("all", "one"))
        sizes = [len(source) for source in self.sources]
        chosen = sizes if weights is None else as_list("weights", weights, "one number per source")
        check_stop(stop)
        self.stop, self.batch_from = stop, batch_from
        # says now what is wrong with the weights, and with the epoch where the batch size has no say
        kept: Any = MixtureOrder(sizes, chosen, stop if batch_from == "all" else 1 << 39).weights
        self.weights: Any = kept if is_schedule(kept) else tuple(kept.tolist())
        _check_alike(self.sources)
        self._ends = np.cumsum(sizes, dtype=np.int64)
        super().__init__(self._read_as())

    def _read_as(self) -> BatchDataset:
        """Return the sources as one dataset."""
        try:
            return _concat(self.sources)
        except SchemaError as error:
            self._why_not_joined = str(error)
            return Sources(self.sources)

    def job(
        self, indices: Any, memory: Memory, num_workers: int = 1, collate: Collate | None = None
    ) -> Any:
        return self.dataset.job(indices, memory, num_workers, collate)

    @property
    def sample_nbytes(self) -> int | None:
        return self.dataset.sample_nbytes

    @property
    def joined(self) -> PackedDataset | None:
        return self.dataset if isinstance(self.dataset, PackedDataset) else None

    def order(self, seed: int, batch_size: int) -> MixtureOrder:
        sizes = [len(source) for source in self.sources]
        block_size = batch_size if self.batch_from == "one" else 1
        try:
            return MixtureOrder(sizes, self.weights, self.stop, seed, block_size)
        except ValueError as error:  # all but the batch size was checked before
            what = f"with batch_from='one', block_size is the batch_size of the loader: {error}"
            raise ValueError(what) from error

    def sources_of(self, indices: Any) -> Int64s:
        """Return the number of the source that each sample is of."""
        return np.searchsorted(self._ends, np.asarray(indices, np.int64), "right")

    # -- what a loader wants to know ---------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """Identifies the sources; the order's own state tells weights apart."""
        prints = " ".join(source.fingerprint for source in self.sources)
        return xxhash.xxh3_128_hexdigest(f"mixture {prints}".encode())

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number, of the first source that has them."""
        for source in self.sources:
            if classes := getattr(source, "classes", None):
                return tuple(classes)
        raise NoValueError(f"{self!r} has no class names: no source has any")

    def set_epoch(self, epoch: int) -> None:
        """Tell the sources, too."""
        super().set_epoch(epoch)
        for source in self.sources:
            source.set_epoch(epoch)

    def halves(self, device: torch.device) -> Halves | None:
        """Return the two halves of batches, if the sources are read as one.

        Raises:
            SchemaError: A device decodes the sources, and they cannot be joined: the host would, several times slower.
        """
        if self.joined is not None:
            return self.joined.halves(device)
        for number, source in enumerate(self.sources):
            if serves_stored(source) and source.device is None and source.halves(device):
                what = f"batches of source {number} are decoded on {device}, which takes sources that can be joined"
                raise SchemaError(f"{what}: {self._why_not_joined}")
        return None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"dataset": None, "plan": None}  # they are the sources once more

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        super().__init__(self._read_as())
        if self._is_epoch_set:
            self.dataset.set_epoch(self.epoch)

    def __repr__(self) -> str:
        # Those it begins with.
        weights = self.weights[0][1] if is_schedule(self.weights) else self.weights
        shares = np.array(weights) / sum(weights)
        parts = (f"{share:.3g} {s!r}" for share, s in zip(shares, self.sources, strict=True))
        return f"Mixture({', '.join(parts)})"


def _concat(sources: Sequence[BatchDataset]) -> PackedDataset:
    """Return the sources as one dataset; SchemaError if they are too different."""
    packed = [source for source in sources if serves_stored(source) and source.device is None]
    if len(packed) < len(sources):
        raise SchemaError("datasets of packed samples in host memory can be joined, no others")
    if len({source.store.check for source in packed}) > 1:
        raise SchemaError("their check= differs")
    joined = concat(packed)
    joined.plan.bad.ends = np.cumsum([*map(len, packed)]).tolist()
    return joined


def _check_alike(sources: Sequence[BatchDataset]) -> None:
    first = sources[0]
    for number, source in enumerate(sources):
        names, expected = getattr(source, "names", None), getattr(first, "names", None)
        if names != expected:
            raise SchemaError(
                f"samples of source {number} have the fields {names}, those of source 0 "
                f"{expected}: use replace(fields=...), for windows of tokens the same by="
            )
        forms, wanted = getattr(source, "batching", {}), getattr(first, "batching", {})
        if forms != wanted:
            what = f"batching of source {number} is {forms}, that of source 0 {wanted}"
            raise SchemaError(f"{what}: use replace(batching=...)")
        check_meaning(first, source, number)
        if source.device != first.device:
            raise SchemaError(f"source {number} is on {source.device}, source 0 on {first.device}")
