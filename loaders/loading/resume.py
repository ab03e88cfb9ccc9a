"""Where a loader stands in an order that is not its own: of a third-party sampler; iterable datasets cannot resume.

A sampler with ``state_dict`` and ``load_state_dict`` keeps its own state, as in torchdata: it is taken with each batch,
and counts when that batch is handed over. Any other is counted: a resumed sampler is asked for the batches that were
done, and they are not read.
"""

from __future__ import annotations

import base64
import copy
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from loaders.checks import whole_number
from loaders.errors import StateError
from loaders.sampling.first import num_first
from loaders.sampling.sampler import EpochBatches, EpochSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.utils.data import DataLoader

_KIND = "third_party"
_NO_RESUME = "an iterable dataset cannot be resumed: use torchdata's StatefulDataLoader"


class ForeignPass:
    """How far one iteration has come."""

    plan = None  # how many steps there are, only the sampler knows
    is_moved = False
    is_over = False  # whether there are no more batches

    def __init__(self, epoch: int, resumed: Mapping[str, Any]) -> None:
        # Which pass this is, and the state it goes on from.
        self.epoch, self.resumed = epoch, resumed
        # Batches that were handed over, those before the state included.
        self.delivered: int = resumed.get("delivered", 0)
        # How the sampler's generators stood at the beginning, and torch's own if the sampler has drawn from it.
        self.drawn: dict[str, Any] = {}
        # Of a sampler with states: at the last batch that was handed over, and at those that were only taken.
        self.states: Mapping[str, Any] = resumed.get("states", {})
        self.taken: deque[Mapping[str, Any]] = deque()

    @property
    def num_new(self) -> int:
        """How many batches were handed over since the state."""
        return self.delivered - int(self.resumed.get("delivered", 0))

    def count(self, num: int) -> None:
        """Note that batches were handed over, or failed."""
        self.delivered += num
        for _ in range(min(num, len(self.taken))):
            self.states = self.taken.popleft()

    def end(self) -> None:
        """Note that there are no more."""
        self.is_over = True


class ThirdParty:
    """The position of a loader with a third-party sampler or batch sampler, or an iterable dataset."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        batch_sampler = loader.batch_sampler
        samplers = [batch_sampler, loader.sampler, getattr(batch_sampler, "sampler", None)]
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        # One that says where it stands, and goes on from there; ours, of a subclass say, are counted.
        others = (s for s in samplers if not isinstance(s, EpochSampler | EpochBatches))
        self._stateful: Any = next((s for s in others if hasattr(s, "state_dict")), None)
        self._is_warned = False
        self._num_first = None if self.is_iterable else num_first()
        # What a batch is: states count batches.
        self._sizes = {"batch_size": loader.batch_size}
        if self._num_first is not None:
            self._sizes["sample"] = self._num_first
        self._own = next((part for part in samplers if isinstance(part, EpochSampler)), None)
        generators = [getattr(part, "generator", None) for part in (*samplers, loader)]
        found = [each for each in generators if isinstance(each, torch.Generator)]
        self._generators = list({id(each): each for each in found}.values())
        self._keeps_workers = loader.persistent_workers  # whose seed is drawn once
        self._num_batches = float("inf")
        self._next: Mapping[str, Any] = {}
        self.epoch = 0
        self._current: ForeignPass | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass; a state that was loaded is of another, then."""
        if epoch != self.epoch:
            self._next, self.epoch = {}, epoch

    def begin(self, num_batches: float) -> ForeignPass:
        """Begin a pass of so many batches, before workers draw their seed; the state tells of it from now on."""
        last = self._current
        is_unused = last is not None and not last.is_over and not last.num_new
        if last is not None and is_unused and self.epoch == last.epoch + 1:
            self._next, self.epoch = last.resumed, last.epoch  # frameworks begin twice
        self._current = ForeignPass(self.epoch, {"states": self._states(), **self._next})
        self._next, self.epoch, self._num_batches = {}, self.epoch + 1, num_batches
        resumed, drawn = self._current.resumed, self._current.drawn
        drawn["seeded"] = self._is_seeded(resumed)
        if not drawn["seeded"]:
            self._restore(resumed)
        drawn["rng"] = resumed.get("rng")
        drawn["generators"] = resumed.get("generators", self._generator_states())
        return self._current

    def _is_seeded(self, resumed: Mapping[str, Any]) -> bool:
        """Tell whether workers drew their seed before the generators of a state were noted."""
        is_kept = self._keeps_workers and resumed.get("epoch", 0) > 0
        return is_kept or bool(resumed.get("seeded", resumed.get("delivered", 0) > 0))

    def _generator_states(self) -> list[str]:
        return [_text(each.get_state()) for each in self._generators]

    def _restore(self, resumed: Mapping[str, Any]) -> None:
        for generator, text in zip(self._generators, resumed.get("generators", []), strict=False):
            generator.set_state(_tensor(text))

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self, loader: DataLoader[Any], pending: int) -> dict[str, Any]:
        """Return where the pass stands; at its end, the beginning of the next."""
        if self.is_iterable and not self._is_warned:
            self._is_warned = True
            warnings.warn(f"this state cannot be loaded: {_NO_RESUME}", stacklevel=3)
        current = self._current
        num = 0 if current is None or self._stateful is not None else current.num_new
        if whole_number("pending", pending, at_least=0) > num:
            raise StateError(
                f"pending={pending} batches cannot be left out of a state: {num} are counted"
            )
        if current is None:
            return self._place_of(self.epoch, 0) | dict(self._next)
        if not pending and (current.is_over or 0 < current.delivered >= num_batches(loader)):
            return self._place_of(current.epoch + 1, 0)
        place = self._place_of(current.epoch, current.delivered - pending)
        return place | current.drawn | {"states": copy.deepcopy(current.states)}

    def _states(self) -> dict[str, Any]:
        """Return the state of a sampler that has one."""
        stateful = self._stateful
        return {} if stateful is None else {"0": copy.deepcopy(stateful.state_dict())}

    def _place_of(self, epoch: int, delivered: int) -> dict[str, Any]:
        generators = self._generator_states()
        # All names in every state: torch.distributed.checkpoint restores those that a fresh loader's state has.
        place = {"epoch": epoch, "delivered": delivered, "generators": generators, "rng": None}
        place["seeded"] = False
        if self._own is not None:
            place["sampler_epoch"] = self._own.epoch
        return {"kind": _KIND, **self._sizes, **place, "states": self._states()}

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass go on where a state was taken; StateError if that was another order, or none can be."""
        if self.is_iterable:
            raise StateError(_NO_RESUME)
        if not isinstance(state, Mapping) or state.get("kind") != _KIND:
            raise StateError("the state is of another order than that of a third-party sampler")
        for name in ("batch_size", "sample"):
            if state.get(name) != self._sizes.get(name):
                what = f"the state was taken with {name}={state.get(name)}, this loader has {self._sizes.get(name)}"
                raise StateError(f"{what}: the state counts batches, and they would differ")
        if len(state.get("generators", [])) != len(self._generators):
            raise StateError("the state is of a sampler with another number of generators")
        if bool(state.get("states")) != (self._stateful is not None):
            raise StateError("of this sampler and that of the state, one has a state of its own")
        for name in ("epoch", "delivered"):
            whole_number(f"{name} in a state", state.get(name), at_least=0)
        self._next, self.epoch, self._current = state, state["epoch"], None

    # -- samplers ----------------------------------------------------------------------------------

    def take(self, number: Callable[[int], Iterable[Any]]) -> Iterator[Any]:
        """Yield the batches of the current pass, which ``number`` returns for an epoch."""
        current = self._current
        assert current is not None
        with self._drawing_again(current):
            iterator = self._go_on(number(current.epoch), current.resumed)
            first = [*islice(iterator, 1)]
        batches = chain(first, iterator)
        for place, batch in enumerate(batches, current.resumed.get("delivered", 0) + 1):
            # At its end torch's RandomSampler draws once more: before a state tells of the next epoch.
            behind = [*islice(batches, 1)] if place == self._num_batches else []
            for each in (batch, *behind):
                if self._stateful is not None:
                    current.taken.append(self._states())
                yield each

    @contextmanager
    def _drawing_again(self, current: ForeignPass) -> Iterator[None]:
        """Draw as when the pass began; note how generators stood then, torch's own if it is drawn from."""
        resumed = current.resumed
        if self._is_seeded(resumed):
            self._restore(resumed)
        current.drawn["generators"] = self._generator_states()
        current.drawn["seeded"] = True
        before = torch.get_rng_state()
        rng = resumed.get("rng")
        if rng is not None:
            torch.set_rng_state(_tensor(rng))
        drawn_from = torch.get_rng_state()
        try:
            yield
            if not torch.equal(drawn_from, torch.get_rng_state()):
                current.drawn["rng"] = _text(drawn_from)
        finally:
            if rng is not None:
                torch.set_rng_state(before)

    def _go_on(self, batches: Iterable[Any], resumed: Mapping[str, Any]) -> Iterator[Any]:
        if self._own is not None and "sampler_epoch" in resumed:
            self._own.set_epoch(resumed["sampler_epoch"])
        if self._num_first is not None:
            batches = _first(batches, self._num_first)
        if self._stateful is None:
            return islice(batches, resumed.get("delivered", 0), None)
        if "0" in resumed["states"]:
            self._stateful.load_state_dict(resumed["states"]["0"])
        return iter(batches)


def _first(batches: Iterable[Any], num: int) -> Iterator[Any]:
    """Yield batches, or indices, up to the one that so many samples end in."""
    for batch in batches:
        yield batch
        num -= len(batch) if hasattr(batch, "__len__") else 1
        if num <= 0:
            return


def num_batches(loader: DataLoader[Any]) -> float:
    """Return the steps of an epoch; infinity if that is not known."""
    try:
        return len(loader)
    except TypeError:
        return float("inf")


def _text(tensor: torch.Tensor) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
