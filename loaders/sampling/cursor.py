"""Where the epochs of an order stand: what the next iteration begins with, and what a state tells."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from loaders.checks import whole_number
from loaders.errors import StateError

if TYPE_CHECKING:
    from loaders.sampling.plan import Plan


class Pass:
    """One pass over an epoch: the steps of a plan, and how many of them are done.

    The pass that began last is the cursor's ``active`` one. Others may go on; they move nothing.
    """

    def __init__(self, cursor: Cursor, plan: Plan) -> None:
        self.epoch, self.plan, self.num_steps = cursor.epoch, plan, 0
        self._cursor = cursor

    @property
    def is_moved(self) -> bool:
        """Whether the sampler went elsewhere before any step was done: the pass begins there."""
        return not self.num_steps and self._cursor.active is not self

    @property
    def delivered(self) -> int:
        """The epoch's samples, over all ranks, that are done."""
        return self.plan.delivered(self.num_steps)

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
        self.num_steps += num_steps
        cursor = self._cursor
        if cursor.active is self:
            cursor.start, cursor.is_resumed, cursor.last = 0, False, self

    def end(self) -> None:
        """Note that there are no more steps: the next epoch is the current one, if this pass is the active one."""
        if self._cursor.active is self:
            self._cursor.go(self.epoch + 1)


class Cursor:
    """A place in the epochs of an order, and the pass that is under way there."""

    epoch = 0
    start = 0  # where in it the next pass begins: 0 but for the first one after a state was loaded
    active: Pass | None = None  # the pass that began last, if it began here
    # The active pass once a step of it is done, until then the one before.
    last: Pass | None = None
    chosen: int | None = None  # the epoch that ``set_epoch`` named last
    restarts = False  # ``set_epoch`` chose the epoch after all of it was taken: the next ``iter`` begins it anew
    is_loaders = False  # only the loader that loaded a state begins at ``start``: others skip
    is_resumed = False  # a state was loaded, and nothing was taken since

    # -- where the sampler goes --------------------------------------------------------------------

    def begin(self, plan: Plan) -> Pass:
        """Begin a pass here; the state tells of it from now on."""
        self.active, self.restarts = Pass(self, plan), False
        return self.active

    def go(self, epoch: int, start: int = 0) -> None:
        """Go elsewhere; a pass that has served nothing yet begins there instead."""
        self.epoch, self.start, self.active = epoch, start, None
        self.restarts = self.is_resumed = False

    def set_epoch(self, epoch: int, length: int) -> None:
        """Go to the start of an epoch of so many samples; see ``EpochSampler.set_epoch``."""
        epoch = whole_number("epoch", epoch, at_least=0)
        is_where_it_was = self.is_resumed and epoch == self.chosen
        is_done = self.is_resumed and epoch == self.epoch - 1 and not self.start
        if is_done and self.chosen in (None, epoch):
            self.go(epoch, length)
        elif epoch != self.epoch and not is_where_it_was:
            if self.is_resumed and self.chosen is None and epoch < self.epoch:
                what = f"set_epoch({epoch}) goes back, as the state that was loaded is of epoch {self.epoch}"
                remedy = "continue with range(loader.epoch, num_epochs)"
                warnings.warn(f"{what}: {remedy}", stacklevel=4)
            self.go(epoch)
        else:
            self.restarts = self.active is not None and self.active.is_over
        self.chosen = epoch

    def load(self, epoch: int, start: int, chosen: int | None, *, is_loaders: bool) -> None:
        """Go to the place where a state was taken."""
        self.go(epoch, start)
        self.chosen, self.is_resumed, self.is_loaders, self.last = chosen, True, is_loaders, None

    # -- the active pass ---------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all of the epoch was taken, and not chosen again."""
        return self.active is not None and self.active.is_over and not self.restarts

    # -- state -------------------------------------------------------------------------------------

    def state(self, pending: int) -> dict[str, int]:
        """Return what a state tells of the place; see ``EpochSampler.state_dict``."""
        pending = whole_number("pending", pending, at_least=0)
        epoch, delivered = self._before_last(pending) if pending else self._place()
        state = {"epoch": epoch, "delivered": delivered}
        # A shorter one of several loaders goes on by itself within the epoch that was chosen.
        if self.chosen is not None and self.chosen not in (epoch, epoch - (not delivered)):
            state["chosen"] = self.chosen
        return state

    def _place(self) -> tuple[int, int]:
        if self.is_over:
            return self.epoch + 1, 0
        return self.epoch, self.start if self.active is None else self.active.delivered

    def _before_last(self, num_steps: int) -> tuple[int, int]:
        """Return where the last steps began, which are of one epoch."""
        last = self.last
        num = 0 if last is None else last.num_steps
        if last is None or num_steps > num:
            raise StateError(
                f"pending={num_steps} batches cannot be left out of a state: {num} of this epoch were handed over"
            )
        return last.epoch, last.plan.delivered(num - num_steps)
