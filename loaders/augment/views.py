"""Several views of each sample, and the check of a dataset's ``augment``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaders.augment.planning import as_ops
from loaders.checks import as_list
from loaders.schema.schema import check_field_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.augment.geometry import Op


@dataclass(frozen=True, slots=True, init=False)
class Views:
    """Several views of each sample from one decode, each with its own ops and random draws.

    Iterates as (name, ops) pairs; a pair's position is the ``view`` of its draws in ``plan``.

    Args:
        **lists: The ops of each view by its name: the view ``a`` of the field ``image`` is served as ``image_a``.

    Raises:
        TypeError: At construction, one of the lists is not a list of ops.
        ValueError: At construction, there is no view, or a name is not a valid field name.

    Example:
        >>> from loaders.augment import CenterCrop, RandomResizedCrop
        >>> views = Views(weak=[CenterCrop(8)], strong=[RandomResizedCrop(8)])
        >>> views.names
        ('weak', 'strong')
    """

    names: tuple[str, ...]
    lists: tuple[tuple[Op, ...], ...]

    def __init__(self, *unnamed: Any, **lists: Sequence[Op]) -> None:
        if unnamed:
            raise TypeError("Views takes lists of ops by name: Views(weak=[...], strong=[...])")
        if not lists:
            raise ValueError("Views needs at least one list of ops, got none")
        for name in lists:
            check_field_name(name)
        object.__setattr__(self, "names", tuple(lists))
        checked = tuple(as_ops(ops, name) for name, ops in lists.items())
        object.__setattr__(self, "lists", checked)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, tuple[Op, ...]]]:
        return zip(self.names, self.lists, strict=True)


def as_augment(ops: Any) -> tuple[Any, ...]:
    """Check a dataset's ``augment`` and return it as a tuple; TypeError if it is not a list of ops."""
    if isinstance(ops, Views):
        raise TypeError("augment must be a list of ops, got Views(...): write [Views(...)]")
    listed = [] if ops is None else as_list("augment", ops, "ops, such as [CenterCrop(224)]")
    as_ops([op for op in listed if not isinstance(op, Views)])
    return tuple(listed)


def has_draws(augment: Sequence[Op | Views]) -> bool:
    """Return whether any op, those of views included, draws at random."""
    return any(op.num_draws for op in every_op(augment))


def every_op(augment: Sequence[Op | Views]) -> list[Any]:
    """Return the ops of a dataset, those of all views."""
    lists = [op.lists if isinstance(op, Views) else ((op,),) for op in augment]
    return [op for views in lists for ops in views for op in ops]
