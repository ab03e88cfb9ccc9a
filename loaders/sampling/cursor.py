"""Where the epochs of an order stand: what the next iteration begins with, and what a state tells."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING

from loaders.checks import whole_number
from loaders.errors import StateError

if TYPE_CHECKING:
    from loaders.sampling.plan import Plan

_MAX_PENDING = 1024  # batches that a state can leave out


class Cursor:
    """A place in the epochs of an order, and how far the pass has come that began there.

    Cursors are a chain: going elsewhere, or beginning one more pass, makes one that follows, and the sampler is at the
    last. An iterator moves the cursor of its own pass, also if the sampler has gone on from there.

    Args:
        epoch: Which epoch.
        start: Where in it the next pass begins: 0 but for the first one after a state was loaded.

    Attributes:
        plan: The steps of the pass, if one has begun.
        num_steps: How many of them are done.
        has_begun: Whether there is a pass.
        is_moved: Whether the sampler went elsewhere before any step was done: an iterator that has begun begins there.
        is_kept: Whether ``set_epoch`` chose the epoch after all of it was taken: the next ``iter`` begins it anew.
        counts_taken: Whether steps count when they are taken from the sampler, not when a loader has handed them over.
        is_loaders: Whether only the loader that loaded a state begins at ``start``: others skip by themselves.
        is_resumed: Whether a state was loaded, and nothing was taken since.
        chosen: The epoch that ``set_epoch`` named last.
    """

    plan: Plan

    def __init__(self, epoch: int = 0, start: int = 0) -> None:
        self.epoch, self.start, self.num_steps = epoch, start, 0
        self.has_begun = self.is_moved = self.is_kept = False
        self.counts_taken = self.is_loaders = self.is_resumed = False
        self.chosen: int | None = None
        # Before each of the last batches: the epoch, and how many steps of a plan were done.
        self._places: deque[tuple[int, Plan, int]] = deque(maxlen=_MAX_PENDING)
        self._later: Cursor | None = None  # where the sampler went from here
        self._is_overtaken = False  # by a pass that began beside this one
        self._is_ambiguous = False  # a pass that was overtaken went on

    # -- where the sampler goes --------------------------------------------------------------------

    @property
    def last(self) -> Cursor:
        """Where the sampler is now."""
        cursor = self
        while cursor._later is not None:
            cursor = cursor._later
        return cursor

    def begin(self, plan: Plan) -> Cursor:
        """Return the cursor of a pass that begins here; the state tells of it from now on."""
        new = self
        if self.has_begun:
            new, self._is_overtaken = self._follow(self.epoch, self.start), True
            new.is_resumed = self.is_resumed
            new._places.clear()
        new.plan, new.has_begun, new._is_ambiguous = plan, True, False
        return new

    def at(self, epoch: int, start: int = 0) -> Cursor:
        """Return a cursor elsewhere; a pass that began here, and has served nothing yet, begins there instead."""
        self.is_moved = not self.num_steps
        return self._follow(epoch, start)

    def _follow(self, epoch: int, start: int) -> Cursor:
        new = Cursor(epoch, start)
        new.chosen, new.is_loaders = self.chosen, self.is_loaders
        new._places, self._places = self._places, new._places
        self._later = new
        return new

    def set_epoch(self, epoch: int, length: int) -> Cursor:
        """Return the start of an epoch of so many samples; see ``EpochSampler.set_epoch``."""
        epoch = whole_number("epoch", epoch, at_least=0)
        is_where_it_was = self.is_resumed and epoch == self.chosen
        is_done = self.is_resumed and epoch == self.epoch - 1 and not self.start
        new = self
        if is_done and self.chosen in (None, epoch):
            new = self.at(epoch, length)
        elif epoch != self.epoch and not is_where_it_was:
            if self.is_resumed and self.chosen is None and epoch < self.epoch:
                what = f"set_epoch({epoch}) goes back, as the state that was loaded is of epoch {self.epoch}"
                remedy = "continue with range(loader.epoch, num_epochs)"
                warnings.warn(f"{what}: {remedy}", stacklevel=4)
            new = self.at(epoch)
        else:
            self.is_kept = self.is_over
        new.chosen = epoch
        return new

    def load(self, epoch: int, start: int, chosen: int | None, *, is_loaders: bool) -> Cursor:
        """Return the place where a state was taken."""
        new = self.at(epoch, start)
        new.chosen, new.is_resumed, new.is_loaders = chosen, True, is_loaders
        new._places.clear()
        return new

    # -- a pass ------------------------------------------------------------------------------------

    @property
    def delivered(self) -> int:
        """The epoch's samples, over all ranks, that are done."""
        return self.plan.delivered(self.num_steps) if self.has_begun else self.start

    @property
    def is_left(self) -> bool:
        """Whether a pass was left early, if it does not go on: the next ``iter`` begins anew."""
        return self.num_steps > 0

    @property
    def is_done(self) -> bool:
        """Whether there were steps, and all are done."""
        return 0 < self.num_steps >= self.plan.num_remaining_steps

    @property
    def is_over(self) -> bool:
        """Whether every rank is done that has taken as many steps: one that has less of the tail cannot tell before."""
        return 0 < self.num_steps >= self.plan.num_steps_of_all

    def count(self, num_steps: int = 1) -> None:
        """Note that steps are done: what was resumed is used up, the next pass begins at the start."""
        self.start, self.is_resumed = 0, False
        if self._is_overtaken:
            self.last._is_ambiguous = True
        self._places.append((self.epoch, self.plan, self.num_steps))
        self.num_steps += num_steps  # last: an interrupt before it has counted nothing

    def end(self) -> None:
        """Note that there are no more steps: the next epoch is the current one, if the sampler is still in this one.

        It is where other passes over this epoch have begun meanwhile, and were left.
        """
        last = self
        while last._later is not None:
            if not last._is_overtaken or last._later.epoch != self.epoch:
                return
            last = last._later
        last._follow(self.epoch + 1, 0)

    # -- state -------------------------------------------------------------------------------------

    def state(self, pending: int) -> dict[str, int]:
        """Return what a state tells of the place; see ``EpochSampler.state_dict``."""
        if self._is_ambiguous:
            self._is_ambiguous = False
            what = "the state tells of the iteration that began last, and an earlier one has gone on since"
            remedy = "give each of two iterations at once, such as an estimate within an epoch, a loader of its own"
            warnings.warn(f"{what}: {remedy}", stacklevel=4)
        pending = whole_number("pending", pending, at_least=0)
        epoch, delivered = self._before(pending) if pending else self._place()
        state = {"epoch": epoch, "delivered": delivered}
        # A shorter one of several loaders goes on by itself within the epoch that was chosen.
        if self.chosen is not None and self.chosen not in (epoch, epoch - (not delivered)):
            state["chosen"] = self.chosen
        return state

    def _place(self) -> tuple[int, int]:
        if self.is_over and not self.is_kept:
            return self.epoch + 1, 0
        return self.epoch, self.delivered

    def _before(self, num_steps: int) -> tuple[int, int]:
        if num_steps > len(self._places):
            most = f"of {len(self._places)} batches it is known where they began (at most {_MAX_PENDING})"
            raise StateError(f"pending={num_steps} batches cannot be left out of a state: {most}")
        epoch, plan, num_done = self._places[-num_steps]
        return epoch, plan.delivered(num_done)
