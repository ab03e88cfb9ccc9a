"""A dataset that leaves more of its work to the device than a loader would by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.datasets.base import SamplesOf, check_stored
from loaders.datasets.packed import PackedDataset
from loaders.schema import Image

if TYPE_CHECKING:
    from collections.abc import Sequence


class OnDevice(SamplesOf[PackedDataset[Any]]):
    """The samples of a packed dataset, their order and their crops; who decodes them is another.

    Without a device, and where nothing was given that does the work instead, it serves what the dataset serves.
    """

    has_own_samples = False

    def __init__(self, dataset: PackedDataset[Any], *, finishes_late: bool) -> None:
        if not isinstance(dataset, PackedDataset):
            what = f"dataset must be a ShardDataset or RAMDataset, got {type(dataset).__name__}"
            raise TypeError(what)
        check_stored(dataset, type(self).__name__)
        super().__init__(dataset)
        self.finishes_late = finishes_late

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, decoded on the host."""
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return samples, decoded on the host."""
        return self.dataset.__getitems__(indices)

    @property
    def classes(self) -> tuple[str, ...]:
        """The dataset's."""
        return self.dataset.classes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"


def images_of(dataset: PackedDataset[Any]) -> dict[str, Image]:
    """Return the image fields that are served."""
    fields = dataset.stored_fields.items()
    return {name: field for name, field in fields if isinstance(field, Image)}
