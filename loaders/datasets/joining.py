"""Several datasets of packed samples read as one: their shards, one after the other, in one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.checks import as_list, shown
from loaders.data.view import join_views
from loaders.datasets.base import check_stored
from loaders.datasets.settings import SETTINGS
from loaders.errors import SchemaError
from loaders.schema import VIRTUAL_FIELDS, Boxes, Keypoints, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.view import View
    from loaders.datasets.base import BatchDataset


def joined(kind: type[Any], given: Any, unlisted: Sequence[Any]) -> tuple[View, dict[str, Any]]:
    """Return the samples of several datasets of packed samples as one view, and the settings that all of them have."""
    if isinstance(given, kind) or unlisted:
        raise TypeError(f"datasets must be a list, got {shown(given)}: write concat([a, b])")
    datasets = as_list("datasets", given, "datasets")
    if not datasets:
        raise ValueError("concat needs at least one dataset")
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, kind):
            raise TypeError(
                f"datasets[{number}] must be a ShardDataset or RAMDataset, got {shown(dataset)}: "
                "join what it is made of, or mix them: Mixture([a, b])"
            )
        check_stored(dataset, "concat")
        if dataset.device is not None:
            remedy = "join first: RAMDataset(concat([a, b]), device=...)"
            raise SchemaError(f"datasets[{number}] is on {dataset.device}: {remedy}")
    first = datasets[0]
    for other in datasets[1:]:
        _check_alike(first, other)
    view = join_views([dataset.view for dataset in datasets], _common_schema(datasets))
    return view, {name: getattr(first, name) for name in (*SETTINGS, "leader")}


def _common_schema(datasets: Sequence[Any]) -> Schema:
    """Return the fields that all have alike."""
    first = datasets[0]
    fields = {
        name: field
        for name, field in first.schema.fields.items()
        if all(dataset.schema.fields.get(name) == field for dataset in datasets)
    }
    return Schema(fields, _stored(first.fields))


def _check_alike(one: Any, other: Any) -> None:
    for setting in SETTINGS:
        if getattr(one, setting) != getattr(other, setting):
            values = f"{getattr(one, setting)!r} and {getattr(other, setting)!r}"
            raise SchemaError(
                f"datasets to concatenate differ in {setting}: {values}; use replace({setting}=...)"
            )
    for name in _stored(one.fields):
        a, b = one.schema.fields[name], other.schema.fields[name]
        if a != b:
            raise SchemaError(f"datasets to concatenate differ in field {name!r}: {a} and {b}")
        pictures = {one.leader, other.leader} - {None}
        if isinstance(a, Boxes | Keypoints) and len(pictures) > 1:
            what = f"{name!r} is in pixels of {' or of '.join(sorted(pictures))}"
            raise SchemaError(f"{what}: mix the datasets, Mixture([a, b])")


def _stored(fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in fields if name not in VIRTUAL_FIELDS)


def check_meaning(first: BatchDataset, source: BatchDataset, number: int) -> None:
    """Raise SchemaError where values of one field stand for different things."""
    one, other = first.stored_fields, source.stored_fields
    is_changed = any(getattr(each, "transform", None) is not None for each in (first, source))
    for name in sorted(one.keys() & other.keys() if is_changed else one.keys() | other.keys()):
        if name not in one or name not in other:
            missing, there = (0, number) if name not in one else (number, 0)
            what = f"source {there} has a field {name!r}, source {missing} has none"
            raise SchemaError(f"{what}: pack both alike, or use replace(fields=...)")
        if options := one[name].differs_from(other[name]):
            raise SchemaError(
                f"field {name!r} of sources 0 and {number} differs in {options}, so equal values stand for different "
                "things: pack tables with --like, class numbers with --classes, tokens with one tokenizer"
            )
