"""Where the epochs of an order stand: what the next iteration begins with, and what a state tells."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaders.checks import whole_number
from loaders.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.sampling.plan import Plan

_MAX_PENDING = 1024  # batches that a state can leave out


class Cursor:
    """The current epoch of an order, and how far it is.

    Attributes:
        epoch: The current one.
        start: Where the next iteration begins: 0 but for the first one after a state was loaded.
        is_loaders: Whether only the loader that loaded the state begins there: other iterations skip by themselves.
    """

    def __init__(self) -> None:
        self.epoch = self.start = 0
        self.is_loaders = False
        self._chosen: int | None = None  # the epoch that set_epoch() named last
        self._is_resumed = False  # a state was loaded, and nothing was taken since
        self._pass: Pass | None = None  # that the state tells of; None: nothing was begun
        # Before each of the last batches, where the epoch stood: a pass, and how many of its steps were done.
        self._places: deque[tuple[Pass, int]] = deque(maxlen=_MAX_PENDING)
        self._is_ambiguous = False  # a pass that was overtaken went on

    @property
    def is_of_taken(self) -> bool:
        """Whether the state tells what was taken from an iterator of the sampler, rather than what a loader gave."""
        return self._pass is not None and self._pass.is_of_taken

    @property
    def is_left(self) -> bool:
        """Whether a pass over the current epoch was left early, and the next ``iter`` begins anew."""
        return self._pass is not None and self._pass.num_steps > 0

    # -- passes ------------------------------------------------------------------------------------

    def go_on(self, make_plan: Callable[[], Plan]) -> Plan:
        """Go to the next epoch if nothing is left of this one, and return the plan to follow.

        All of an epoch was taken, without asking whether there is more (``zip``), or a loaded state leaves no step
        of it. What ``set_epoch`` chose is served as it is.
        """
        if self._pass is not None and self._pass.is_over and not self._pass.is_chosen:
            self.go_to(self.epoch + 1, 0)
        plan = make_plan()
        if self.start and self.epoch != self._chosen and not plan.num_steps_of_all:
            self.go_to(self.epoch + 1, 0)
            plan = make_plan()
        return plan

    def begin(self, plan: Plan) -> Pass:
        """Begin a pass over the current epoch; the state tells of it from now on."""
        if self._pass is not None:
            self._pass.is_overtaken = True
            self._places.clear()
        self._pass, self._is_ambiguous = Pass(self, self.epoch, plan), False
        return self._pass

    def count(self, current: Pass) -> None:
        """Note that a step of a pass is done: what was resumed is used up, the next one begins at the start."""
        if self._pass is current:
            self.start, self._is_resumed = 0, False
            self._places.append((current, current.num_steps))
        elif current.is_overtaken:
            self._is_ambiguous = True

    def end(self, current: Pass) -> None:
        """Advance the epoch, unless someone chose another one or began anew meanwhile."""
        if self._pass is current:
            self.go_to(current.epoch + 1, 0)
            current.is_moved = False

    # -- places ------------------------------------------------------------------------------------

    def go_to(self, epoch: int, delivered: int) -> None:
        """Let the next iteration begin elsewhere, and one that has begun and given nothing yet."""
        if self._pass is not None:
            self._pass.is_moved = not self._pass.num_steps
        self.epoch, self.start, self._is_resumed = epoch, delivered, False
        # passes of before go on counting, and are not read
        self._pass, self._is_ambiguous = None, False

    def set_epoch(self, epoch: int, length: int) -> None:
        """Go to the start of an epoch of so many samples; see ``EpochSampler.set_epoch``."""
        epoch = whole_number("epoch", epoch, at_least=0)
        is_where_it_was = self._is_resumed and epoch == self._chosen
        is_done = self._is_resumed and epoch == self.epoch - 1 and not self.start
        if is_done and self._chosen in (None, epoch):
            self.go_to(epoch, length)
        elif epoch != self.epoch and not is_where_it_was:
            self.go_to(epoch, 0)
        elif self._pass is not None:
            self._pass.is_chosen = self._pass.is_over
        self._chosen = epoch

    def load(
        self, epoch: int, delivered: int, chosen: int | None, *, is_loaders: bool = False
    ) -> None:
        """Go to where a state was taken."""
        self._places.clear()
        self.go_to(epoch, delivered)
        self._chosen, self._is_resumed, self.is_loaders = chosen, True, is_loaders

    def state(self, pending: int) -> dict[str, int]:
        """Return what a state tells of the place; see ``EpochSampler.state_dict``."""
        if self._is_ambiguous:
            self._is_ambiguous = False
            what = "the state tells of the iteration that began last, and an earlier one has gone on since"
            remedy = "give each of two iterations at once, such as an estimate within an epoch, a loader of its own"
            warnings.warn(f"{what}: {remedy}", stacklevel=4)
        pending = whole_number("pending", pending, at_least=0)
        epoch, delivered = self._place_before(pending) if pending else self._place()
        state = {"epoch": epoch, "delivered": delivered}
        # A shorter one of several loaders goes on by itself within the epoch that was chosen.
        if self._chosen is not None and self._chosen not in (epoch, epoch - (not delivered)):
            state["chosen"] = self._chosen
        return state

    def _place(self) -> tuple[int, int]:
        current = self._pass
        if current is None:
            return self.epoch, self.start
        if current.is_over and not current.is_chosen:
            return current.epoch + 1, 0
        # Not self.epoch: go_to() may have been interrupted.
        return current.epoch, current.delivered

    def _place_before(self, num_steps: int) -> tuple[int, int]:
        if num_steps > len(self._places):
            most = f"of {len(self._places)} batches it is known where they began (at most {_MAX_PENDING})"
            raise StateError(f"pending={num_steps} batches cannot be left out of a state: {most}")
        current, num_done = self._places[-num_steps]
        return current.epoch, current.plan.delivered(num_done)


@dataclass(slots=True, eq=False)
class Pass:
    """How far one iteration over an epoch has come.

    Attributes:
        cursor: Its state tells of this pass until another begins, or someone goes elsewhere.
        epoch: Which epoch.
        plan: The steps, from where the pass began.
        num_steps: How many of them are done.
        is_overtaken: Whether another began before this one ended.
        is_chosen: Whether its epoch was chosen when all of it was taken: the next ``iter`` begins it anew.
        is_of_taken: Whether steps are counted when they are taken from the sampler, not when a loader handed them over.
        is_moved: Whether the cursor was sent elsewhere before any step was done: who has begun is to begin there.
    """

    cursor: Cursor
    epoch: int
    plan: Plan
    num_steps: int = 0
    is_overtaken: bool = False
    is_chosen: bool = False
    is_of_taken: bool = False
    is_moved: bool = False

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
        """Note that steps are done."""
        self.cursor.count(self)
        self.num_steps += num_steps  # last: an interrupt before it has counted nothing

    def end(self) -> None:
        """Note that there are no more steps: the next epoch is the current one."""
        self.cursor.end(self)
