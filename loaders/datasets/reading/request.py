"""What is asked of a reader: the samples of a batch, and the memory that they go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loaders.datasets.access.store import Rows


class Memory(Protocol):
    """Where batches come from: reusable slots, or fresh memory."""

    def take(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` bytes of undefined content."""


@dataclass(slots=True)
class Request:
    """The samples of one batch.

    Attributes:
        indices: int64 sample numbers as the user counts them.
        rows: The same in the store, where a view has other numbers.
        epoch: The epoch, for augmentation.
        draws: How often each index came before in the epoch, or None for never.
        seed: For augmentation.
        num_workers: How many threads share the work.
    """

    indices: npt.NDArray[np.int64]
    rows: Rows
    epoch: int
    draws: npt.NDArray[np.int64] | None
    seed: int
    num_workers: int = 1

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, first: int, last: int) -> Rows:
        """Return a range of the samples, as the store knows them."""
        return self.rows if last - first == len(self.indices) else self.rows[first:last]


class Reader(Protocol):
    """Reads one field. It is made once per dataset.

    For each batch it begins values over memory that it is given, and fills ranges of rows, on any thread.

    Attributes:
        names: What it contributes to a sample: the field's name, or one name per view.
        min_rows: How many rows are worth a thread.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def min_rows(self) -> int: ...

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return the values of a batch, one per name, undefined as yet."""

    def ask(self, request: Request) -> None:
        """Have storage read what the batch will need of it, without waiting."""

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Fill in rows ``first`` to ``last``."""

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the values in the form that the user gets."""
