"""Words of messages: fields and counts, the first of many names, the beginning of a long text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from loaders.errors import CodecError
from loaders.schema import Categories, Features, Field, Label, MultiLabel, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def describe_field(field: Field) -> str:
    """Return a field in a few words.

    Example:
        >>> describe_field(Label(classes=("cat", "dog")))
        'label of 2 classes (cat, dog)'
        >>> describe_field(Label())
        'label of int64, one number'
        >>> describe_field(Features(columns=("depth", "x")))
        '2 columns of float32 (depth, x)'
    """
    if isinstance(field, Label | MultiLabel) and field.classes is not None:
        return f"{field.kind} of {counted(len(field.classes), 'class')} ({few(field.classes, 8)})"
    if isinstance(field, Features | Categories):
        names = [*field.columns]
        if isinstance(field, Categories):
            sizes = zip(names, field.vocabularies, strict=True)
            names = [f"{name}: {len(words)}" for name, words in sizes]
        extra = ", standardized" if isinstance(field, Features) and field.standardized else ""
        return f"{counted(len(names), 'column')} of {field.dtype}{extra} ({few(names, 6)})"
    if isinstance(field, Tokens):
        known = {
            "{:,} ids": field.vocab_size,
            "documents end with {}": field.eod,
            "{}": field.tokenizer,
        }
        more = (text.format(value) for text, value in known.items() if value is not None)
        return ", ".join([f"tokens of {field.dtype}, {field.row_tokens:,} a row", *more])
    if field.shape is None:
        return field.kind
    shape = f" of {field.shape}".replace("None", "*") if field.shape else ", one number"
    codec = "" if field.codec == "raw" else f", {field.codec}"
    return f"{field.kind} of {field.dtype}{shape}{codec}"


def counted(n: int, what: str) -> str:
    """Return a number and what it counts, in the plural where it is not 1.

    Example:
        >>> counted(1, "shard"), counted(1200, "shard"), counted(0, "class")
        ('1 shard', '1,200 shards', '0 classes')
    """
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{n:,} {what if n == 1 else plural}"


def passed_over(ignored: Mapping[str, int]) -> list[str]:
    """Say how many files of which suffixes were skipped; nothing where none was.

    Example:
        >>> passed_over({".txt": 2, "": 1, "folder": 2}), passed_over({})
        (['skipped: 2 .txt, 1 without suffix, 2 folders'], [])
    """
    counts = [
        counted(num, what) if what == "folder" else f"{num:,} {what or 'without suffix'}"
        for what, num in ignored.items()
    ]
    return [f"skipped: {few(counts, 8)}"] if counts else []


def few(names: Iterable[str], most: int = 5) -> str:
    """Return the first of some names, with dots where there are more.

    Example:
        >>> few(["a", "b"]), few("abc", 2)
        ('a, b', 'a, b, ...')
    """
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters, with dots where it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


@contextmanager
def numbered(number: int) -> Iterator[None]:
    """Put the number of a picture of several before an error."""
    try:
        yield
    except CodecError as error:
        raise CodecError(f"picture {number}: {error}") from error
