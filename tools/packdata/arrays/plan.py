"""The plan of ``packdata arrays``, what it would pack; and packing it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.schema import Array
from packdata.arrays.recipe import ARRAY, ArrayOptions, ArraysRecipe
from packdata.files.recipe import FilesPlan
from packdata.files.splits import SourceOptions, open_splits
from packdata.packing.settings import PackSettings, check_options, take
from packdata.plan import pack_plan
from packdata.sources.base import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary

_MAX_CHANNELS = 4  # RGB and alpha, or the modalities of a scan
_LARGE_BYTES = 1 << 20  # from here on a value of its own is better than a long column


class ArraysPlan(FilesPlan[ArraysRecipe]):
    """The plan of arrays."""

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say where channels were guessed, too."""
        guesses = [(split, _guess(recipe)) for split, recipe in self.splits]
        told = [f"{split}: {what}" if split else what for split, what in guesses if what]
        return [*told[:1], *FilesPlan.notes(self, packed)]


def _guess(recipe: ArraysRecipe) -> str:
    """Say of an axis that looks like channels, and was not taken as them, how it would be; "" of others."""
    field, num = recipe.targets[0].schema.fields[ARRAY], recipe.num_axes
    if recipe.options.channels is None and num in (3, 4) and isinstance(field, Array):
        shape = field.dims[-num:]  # in the file: the channels of a volume are put in front
        places = {"last": shape[-1], "first": shape[0] if num == 3 else None}
        for place, length in places.items():
            if length is not None and length <= _MAX_CHANNELS:
                text = " x ".join(str(each or "any") for each in shape)
                taken = "a volume" if num == 3 else "channels and a volume"
                return f"{text} taken as {taken}; if it is not, pass channels={place!r}"
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
    opened = open_splits(src, source, ARRAYS)
    splits = [(split.name, ArraysRecipe(split, array_options)) for split in opened]
    list_again = partial(open_splits, options=source.absolute(), kind=ARRAYS)
    largest = max(recipe.num_bytes for _, recipe in splits)
    chosen: Format = format or ("lmdb" if largest >= _LARGE_BYTES else "parquet")
    return ArraysPlan(src, splits, chosen, list_again)


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
