"""What a trainer and its child process say to each other.

The trainer sends ``Begin`` and waits for ``Begun``; until that comes, it drops what the child still sends of the pass
before. It then sends a ``Put`` for each turn, and gets a ``Turn`` for each, in order, whenever it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from loaders.backends.maker import Chunk, Made


class Begin(NamedTuple):
    """Begin a pass, and drop what is left of the previous one."""

    payload: bytes | None  # the pickled maker; None: that of the pass before
    epoch: int | None  # to set on the maker's dataset; None: leave it


class Begun(NamedTuple):
    """The pass has begun: nothing of the one before comes any more."""

    error: BaseException | None  # why it could not


class Put(NamedTuple):
    """Make a turn of a chunk."""

    free: list[int]  # places whose tensors the trainer has dropped
    chunk: Chunk | None  # None: that of the last ``Put``
    turn: int


class Turn(NamedTuple):
    """What was asked for first of what did not come yet."""

    group: Made  # its batches, or their errors
    num_replaced: int  # samples that were replaced since the last one
    # By place and bytes: those that were made since the last one; those of 0 bytes are gone.
    slots: list[tuple[int, int]]


Message = Begin | Begun | Put | Turn
_KINDS: dict[str, Any] = {each.__name__: each for each in (Begin, Begun, Put, Turn)}


def to_plain(message: Message) -> tuple[Any, ...]:
    """Return what pickles in a tenth of the time that a class takes; of small batches messages are the cost."""
    return type(message).__name__, *message


def from_plain(plain: tuple[Any, ...]) -> Any:
    """Return the message again."""
    return _KINDS[plain[0]]._make(plain[1:])
