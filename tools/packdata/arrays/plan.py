"""The plan of ``packdata arrays``, what it would pack; and packing it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.schema import Array
from packdata.arrays.recipe import ARRAY, ArrayOptions, ArraysRecipe, array_recipes
from packdata.files.recipe import FilesPlan
from packdata.files.splits import SourceOptions, open_splits
from packdata.packing.settings import PackSettings, check_options, take
from packdata.packing.shards import MAX_RECORD_BYTES, Format
from packdata.plan import pack_plan
from packdata.sources.base import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packdata.packing.summary import Summary

_MAX_COLORS = 4  # RGB and alpha
_LARGE_BYTES = 1 << 20  # from here on a value of its own is better than a long column


class ArraysPlan(FilesPlan[ArraysRecipe]):
    """The plan of arrays."""

    __slots__ = ()

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say where channels were guessed, too."""
        guesses = [(split, _guess(recipe)) for split, recipe in self.splits]
        told = [f"{split}: {what}" if split else what for split, what in guesses if what]
        return [*told[:1], *FilesPlan.notes(self, packed)]


def _guess(recipe: ArraysRecipe) -> str:
    """Say of channels that may lie elsewhere than taken how they would; "" of others."""
    field = recipe.targets[0].schema.fields[ARRAY]
    assert isinstance(field, Array)
    dims, num = field.dims, recipe.axes.num
    if recipe.options.channels is None and num == len(dims) == 4:
        if dims[0] is None or (dims[-1] is not None and dims[-1] < dims[0]):
            taken = f"axis 0 of {dims[0] or 'varying'} taken as channels"
            return f"{taken}; if they come last, pass channels='last'"
    elif recipe.options.channels is None and num == 3:
        for length, place in ((dims[-1], "last"), (dims[1], "first")):
            if length is not None and length <= _MAX_COLORS:
                shape = " x ".join(str(each or "any") for each in dims[1:])
                return f"{shape} taken as a volume; if it is a picture, pass channels={place!r}"
    return ""


def plan_arrays(
    src: Path | str | Sequence[Path | str],
    *,
    format: Format | None = None,
    array_column: str | None = None,
    **options: Any,
) -> ArraysPlan:
    """List a source and say what would become of it; the arguments are those of ``pack_arrays``.

    Raises:
        SourceError: The source cannot be listed or recognized.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    own = ("format", "array_column")
    check_options(options, ArrayOptions, SourceOptions, PackSettings, own=own, but="column")
    source = take(SourceOptions, options, column=array_column)
    array_options = ArrayOptions(**options)
    splits = array_recipes(src, array_options, source)
    list_again = partial(open_splits, options=source.absolute(), kind=ARRAYS)
    largest = max(recipe.num_bytes for _, recipe in splits)
    chosen: Format = format or ("lmdb" if largest >= _LARGE_BYTES else "parquet")
    for _, recipe in splits:
        recipe.max_nbytes = MAX_RECORD_BYTES[chosen]
    return ArraysPlan.of(src, splits, chosen, list_again)


def pack_arrays(
    src: Path | str | Sequence[Path | str],
    dst: Path | str,
    *,
    format: Format | None = None,
    **options: Any,
) -> Summary:
    """Pack arrays as ``packdata arrays`` does.

    Args:
        src: A folder of ``.npy`` and ``.npz`` files, or of one folder per class; a ``.csv``,
            ``.tsv`` or ``.jsonl`` list of such files; or a folder of splits.
        dst: A folder that is new or empty.
        format: ``"lmdb"`` or ``"parquet"``; by default LMDB for arrays of 1 MiB and more.
        options: Those of ``ArrayOptions`` (``packdata.arrays.recipe``), ``SourceOptions`` (``packdata.files.splits``;
            their ``column`` is ``array_column`` here) and ``PackSettings`` (``packdata.packing.settings``).

    Raises:
        SourceError: The source, or an array in it, cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    settings = take(PackSettings, options)
    return pack_plan(plan_arrays(src, format=format, **options), dst, **settings)
