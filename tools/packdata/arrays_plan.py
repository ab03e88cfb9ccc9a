"""What ``packdata arrays`` is about to do, as something to look at, and then the doing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.schema import Array
from packdata.arrays import ARRAY, ArraysRecipe, plan_arrays
from packdata.describe import describe_field
from packdata.engine import OnError, Summary, pack_recipes, target_folders
from packdata.plan import ignored_notes
from packdata.shards import DEFAULT_SHARD_BYTES, MAX_RECORD_BYTES, Format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.progress import Progress

_LARGE_BYTES = 1 << 20  # from here on a value of its own is better than a long column


@dataclass(frozen=True, slots=True)
class ArraysPlan:
    """The recipes of a source, one per split.

    Attributes:
        src: The source.
        options: What ``plan_arrays`` was given beside it.
        parts: (split, recipe) each.
        format: Of the shards.
    """

    src: Path | str
    options: Mapping[str, Any]
    parts: Sequence[tuple[str, ArraysRecipe]]
    format: Format

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "src": str(self.src),
            "format": self.format,
            "items": sum(len(recipe) for _, recipe in self.parts),
            "parts": [
                {
                    "split": split,
                    "kind": recipe.source.kind,
                    "items": len(recipe),
                    "ignored": dict(recipe.source.ignored),
                    "targets": {
                        folder: target.schema.to_json()
                        for folder, target in zip(
                            target_folders(split, recipe), recipe.targets, strict=True
                        )
                    },
                }
                for split, recipe in self.parts
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for split, recipe in self.parts:
            name = f"{split}: " if split else ""
            yield f"{name}{len(recipe):,} items of kind {recipe.source.kind!r} in {self.src}"
            yield from ignored_notes([(split, recipe)])
            yield f"  to {split or 'the destination itself'}, as {self.format}:"
            schema = recipe.targets[0].schema
            for field_name, field in schema.fields.items():
                default = "" if field_name in schema.defaults else " (on request)"
                yield f"    {field_name}: {describe_field(field)}{default}"
        yield from self.notes()

    def notes(self) -> list[str]:
        """Return what may not be meant."""
        for split, recipe in self.parts:
            field = recipe.targets[0].schema.fields[ARRAY]
            assert isinstance(field, Array)
            if recipe.options.channels is None and recipe.axes.num == len(field.dims) == 4:
                first, last = field.dims[0], field.dims[-1]
                if first is None or (last is not None and last < first):
                    what = f"{split}: axis 0 of {first or 'varying'} taken as channels"
                    return [f"{what.removeprefix(': ')}; if they come last, say --channels last"]
        return []

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""
        try:
            again = plan_arrays(self.src, **self.options)
        except SourceError:  # what is gone has changed too
            return False
        return [recipe.identity for _, recipe in again] == [r.identity for _, r in self.parts]


def make_arrays_plan(
    src: Path | str, *, format: Format | None = None, **options: Any
) -> ArraysPlan:
    """List a source and say what would become of it; ``options`` are those of ``plan_arrays``.

    Raises:
        SourceError: The source cannot be listed or recognized.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    parts = plan_arrays(src, **options)
    largest = max(recipe.num_bytes for _, recipe in parts)
    chosen: Format = format or ("lmdb" if largest >= _LARGE_BYTES else "parquet")
    for _, recipe in parts:
        recipe.files.max_nbytes = MAX_RECORD_BYTES[chosen]
    return ArraysPlan(src, options, parts, chosen)


def pack_arrays_plan(
    plan: ArraysPlan,
    dst: Path | str,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Pack what was planned; see ``pack_recipes``."""
    summary = pack_recipes(
        plan.parts,
        dst,
        format=plan.format,
        shard_bytes=shard_bytes,
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        progress=progress,
        is_unchanged=plan.is_unchanged,
    )
    return replace(summary, notes=(*summary.notes, *plan.notes(), *ignored_notes(plan.parts)))


def pack_arrays(
    src: Path | str,
    dst: Path | str,
    *,
    format: Format | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Summary:
    """Pack arrays as ``packdata arrays`` does.

    Args:
        src: A folder of ``.npy`` and ``.npz`` files, a list of them, or a folder of splits.
        dst: A folder that is new or empty.
        format: ``"lmdb"`` or ``"parquet"``; by default LMDB for arrays of 1 MiB and more.
        shard_bytes: Size of a shard; one that is larger than that is a shard of its own.
        workers: Threads that encode; None for all usable cores.
        on_error: ``"fail"`` stops at a file that cannot be packed, ``"skip"`` lists it.
        overwrite: Replace the datasets in ``dst``.
        progress: Is told of every array.
        options: ``dtype``, ``mask_dtype``, ``channels``, ``array``, ``mask_array``, ``masks``,
            ``classes``, ``array_column`` and ``mask_column`` of ``packdata.arrays.plan_arrays``.

    Raises:
        SourceError: The source, or an array in it, cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    return pack_arrays_plan(
        make_arrays_plan(src, format=format, **options),
        dst,
        shard_bytes=shard_bytes,
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        progress=progress,
    )
