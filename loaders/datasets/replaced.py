"""Which samples of a dataset are bad: each is counted once, and each cause is logged once."""

from __future__ import annotations

import logging

from loaders.errors import LoadersError, SampleError, ShardError, StaleDatasetError
from loaders.system.locks import ForkLock

logger = logging.getLogger(__name__)
_counting = ForkLock()  # one for all: few are replaced, and datasets are copied and pickled
_MAX_SHARE = 0.01
_MAX_FEW = 10  # so many are allowed in a small dataset, too


class BadSamples:
    """The samples that were replaced so far, in any number of epochs."""

    def __init__(self) -> None:
        self.num_replaced = 0  # how often one was
        self._indices: set[int] = set()
        self._causes: dict[str | int, int] = {}  # with the sample for which each was logged

    def note(self, error: SampleError, num_samples: int) -> None:
        """Note that one of so many samples was replaced; an error if too many were, or the dataset was."""
        with _counting.plain:
            self.num_replaced += 1
        if isinstance(error.__cause__, StaleDatasetError):
            raise error  # every sample may be another one now: replacing this one helps nothing
        if error.index not in self._indices:
            self._indices.add(error.index)
            # One step, since several threads may come upon one damaged block.
            # What samples of one damaged block or file have in common.
            why = error.__cause__
            cause = str(why) if isinstance(why, ShardError) else error.index
            if self._causes.setdefault(cause, error.index) == error.index:
                logger.warning("replaced: %s", error)
        if len(self._indices) > max(_MAX_FEW, _MAX_SHARE * num_samples):
            causes = "one cause" if len(self._causes) == 1 else f"{len(self._causes)} causes"
            raise LoadersError(
                f"{len(self._indices)} samples had to be replaced, more than 1 %, for {causes}; "
                f"the last one: {error}"
            )
