"""Fields, codecs and counts in a few words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loaders.errors import CodecError
from loaders.schema import Categories, Features, Field, Label, MultiLabel, Tokens
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def describe_field(field: Field) -> str:
    """Return a field in a few words.

    Example:
        >>> describe_field(Label(classes=("cat", "dog")))
        'label of 2 classes (cat, dog)'
        >>> describe_field(Features(columns=("depth", "x")))
        '2 columns of float32 (depth, x)'
    """
    if isinstance(field, Label | MultiLabel):
        if field.classes is None:
            return f"{field.kind}, a number"
        return f"{field.kind} of {counted(len(field.classes), 'class')} ({few(field.classes, 8)})"
    if isinstance(field, Features | Categories):
        return _describe_rows(field)
    if isinstance(field, Tokens):
        return _describe_tokens(field)
    if field.shape is None:
        return field.kind
    shape = f" of {field.shape}".replace("None", "*") if field.shape else ", one number"
    codec = "" if field.codec == "raw" else f", {field.codec}"
    return f"{field.kind} of {field.dtype}{shape}{codec}"


def _describe_rows(kind: Features | Categories) -> str:
    names = list(kind.columns)
    if isinstance(kind, Categories):
        sizes = zip(names, kind.vocabularies, strict=True)
        names = [f"{name}: {len(words)}" for name, words in sizes]
    extra = ", standardized" if isinstance(kind, Features) and kind.standardized else ""
    return f"{counted(len(names), 'column')} of {kind.dtype}{extra} ({few(names, 6)})"


def _describe_tokens(field: Tokens) -> str:
    known: dict[str, Any] = {"{:,} ids": field.vocab_size, "documents end with {}": field.eod}
    known["{}"] = field.tokenizer
    more = (text.format(value) for text, value in known.items() if value is not None)
    return ", ".join([f"tokens of {field.dtype}, {field.row_tokens:,} a row", *more])


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


@contextmanager
def numbered(number: int) -> Iterator[None]:
    """Put the number of a picture of several before an error."""
    try:
        yield
    except CodecError as error:
        raise CodecError(f"picture {number}: {error}") from error
