"""What ``packdata tokens`` is about to do, as something to look at, and then the doing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.checks import shown
from loaders.data.view import open_view
from loaders.errors import SourceError
from loaders.remote.url import Location, is_url
from loaders.schema import Tokens
from loaders.schema.tokens import IGNORED
from packdata.describe import counted, passed_over
from packdata.options import takes
from packdata.packing.firstpass import FirstPass
from packdata.packing.settings import PackSettings
from packdata.plan import SourcePlan, pack_plan
from packdata.sources.listed import listed_sources
from packdata.tokens.files import COLUMN_KINDS, identity_of, list_files
from packdata.tokens.options import TokenOptions as TokenOptions
from packdata.tokens.rows import NO_TARGET, TokensRecipe, count
from packdata.tokens.source import TokenSource
from packdata.tokens.tokenizer import (
    BytesTokenizer,
    JsonTokenizer,
    dtype_of,
    open_tokenizer,
    train_bpe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packdata.packing.summary import Summary
    from packdata.tokens.options import Eod
    from packdata.tokens.tokenizer import Tokenizer

TRAIN_BYTES = 256 << 20  # of the corpus are enough for a BPE


@dataclass(frozen=True, repr=False)
class TokensPlan(SourcePlan):
    """The plan of some files of text or ids."""

    recipe: TokensRecipe
    ignored: Mapping[str, int]  # how many others were found, by suffix
    first_pass: FirstPass

    def to_json(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "src": [*map(str, self.sources)],
            "format": self.settings.format,
            "files": len(recipe.source.files),
            "pieces": len(recipe),
            "ignored": dict(self.ignored),
            "targets": {t.folder: t.schema.to_json() for t in recipe.targets},
            "options": dict(recipe.provenance),
            **self.first_pass.to_json(recipe.identity),
        }

    def heading(self, split: str, recipe: TokensRecipe) -> str:
        files = recipe.source.files
        kinds = ", ".join(sorted({file.kind for file in files}))
        size = counted(sum(file.size for file in files), "byte")
        pieces = counted(len(recipe), "piece")
        return f"{counted(len(files), 'file')} ({kinds}), {size}, in {pieces}"

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is worth knowing of the source."""
        num = 0 if packed is None else packed.counts.get(NO_TARGET, 0)
        notes = [f"{counted(num, 'document')} without a target"] if num else []
        return [*notes, *passed_over(self.ignored)]

    def amount(self, packed: Summary) -> str:
        """Count tokens and documents: samples are rows of tokens. What was sent is not fetched for that."""
        if is_url(packed.dst):
            return ""
        views = (open_view(Path(packed.dst) / each.folder, "never") for each in packed.datasets)
        tokens, documents = map(sum, zip(*map(count, views), strict=True))
        return f"{counted(tokens, 'token')} in {counted(documents, 'document')}"


def plan_tokens(
    sources: Sequence[Location | str] | Location | str,
    options: TokenOptions | None = None,
    *,
    plan: Location | str | None = None,
    **settings: Any,
) -> TokensPlan:
    """List sources and say what would become of them; trains the tokenizer, if that is asked for.

    With ``on_error="skip"`` no document is cut into pieces, so that each can be left out by itself, nor with
    ``shuffle``. What is learned of the corpus may come from ``plan``, which ``--dry-run --json`` printed.

    Raises:
        SourceError: A source cannot be listed or recognized, or holds nothing.
        ValueError: The options contradict each other, or do not fit the source.
    """
    first_pass, asked = FirstPass(plan), PackSettings(**settings).or_usual("parquet")
    options = TokenOptions() if options is None else options
    if not isinstance(options, TokenOptions):
        raise TypeError(f"options must be TokenOptions(...), got {shown(options)}")
    places = listed_sources(sources)
    files, ignored = list_files(places)
    _check_used(options, {file.kind for file in files})
    is_drawn = asked.shuffle not in (None, ...)
    may_cut = asked.on_error == "fail" and not options.val_share and not is_drawn
    source = TokenSource(files, options, may_cut=may_cut)
    tokenizer = _tokenizer_of(source, first_pass)
    field, bos = _field_of(source, tokenizer, first_pass)
    recipe = TokensRecipe(source, field, bos, tokenizer)
    first_pass.check(recipe.identity)
    if not len(recipe):
        raise SourceError("all files are empty", str(places[0]))
    if source.has_labels:
        _check_targets(source, str(places[0]))
    again = partial(_identity_now, places)
    splits, listed = [("", recipe)], recipe.identity["files"]
    return TokensPlan(places, splits, asked, listed, again, recipe, ignored, first_pass)


def _identity_now(sources: Sequence[Location]) -> list[Any]:
    return identity_of(list_files(sources)[0])


def _check_used(options: TokenOptions, kinds: set[str]) -> None:
    """Raise ValueError for an option that no file there takes: something else was meant."""
    usual = TokenOptions()
    for names, suited, what in (
        (("documents",), {"text"}, "plain text"),
        (("text_column", "ids_column", "chat_template", "drop"), COLUMN_KINDS, "files of rows"),
        (("bin_dtype",), {"bin", "npy"}, "ids without a header"),
        (("bos",), {"text", *COLUMN_KINDS}, "text and lists of ids"),
    ):
        used = [name for name in names if getattr(options, name) != getattr(usual, name)]
        if used and not suited & kinds:
            raise ValueError(f"{used[0]} is for {what}, not {', '.join(sorted(kinds))}")


def _check_targets(source: TokenSource, where: str) -> None:
    """Raise SourceError if no document has a target: the first pieces with documents usually end the search."""
    found = (piece.read() for piece in source.pieces())
    try:
        if any(each.rejects or np.any(each.labels != IGNORED) for each in found):
            return
    except SourceError:
        return  # the packing names what is refused
    hint = "Are all labels -100? Of messages, call the role that answers 'assistant', or mark turns by {% generation %}"
    raise SourceError("no document has a target: nothing would be learned", where, hint)


def _tokenizer_of(source: TokenSource, first_pass: FirstPass) -> Tokenizer | None:
    """Return what makes ids of a text, or made those of a source of ids, if that is known."""
    num_ids, given = source.options.train_bpe, source.options.tokenizer
    if source.has_ids:
        if num_ids is not None:
            raise ValueError("train_bpe is for text, and these are ids")
        return None if given is None else open_tokenizer(given)
    if source.options.vocab_size is not None:
        raise ValueError("vocab_size is for ids: a tokenizer has its own")
    if num_ids is None:
        return open_tokenizer(given or "bytes", is_chat=source.kind == "chat")
    texts = source.texts(TRAIN_BYTES)
    data = first_pass.get("tokenizer", lambda: train_bpe(texts, num_ids).decode())
    return JsonTokenizer(data.encode(), "the trained tokenizer")


def _field_of(
    source: TokenSource, tokenizer: Tokenizer | None, first_pass: FirstPass
) -> tuple[Tokens, int | None]:
    """Return how ids are stored, and the id to put before documents."""
    options, itemsize = source.options, source.itemsize
    begin = end = size = name = digest = None
    if tokenizer is not None:
        begin, end, size = tokenizer.begin, tokenizer.end, tokenizer.vocab_size
        name, digest = tokenizer.name, tokenizer.digest
    bos = _id_of(options.bos, begin)
    eod = _id_of(options.eod, end if source.kind == "text" else None)
    added = {each for each in (eod, bos) if each is not None}
    if isinstance(tokenizer, BytesTokenizer) and not source.has_ids:
        # Ids of their own follow the bytes.
        size = 256 + len({each for each in added if each >= 256})
    size = options.vocab_size or size
    if size is None and itemsize > 2:
        largest = int(first_pass.get("largest", lambda: _largest_in(source)))
        # No fewer than two bytes, so that parts of one corpus agree.
        itemsize = 2 if max({largest, *added}) < 1 << 16 else itemsize
    field = Tokens(
        dtype=dtype_of(size, itemsize, eod=eod, bos=bos),
        row_tokens=options.row_tokens,
        vocab_size=size,
        eod=eod,
        tokenizer=name,
        tokenizer_xxh3_128=digest,
    )
    return field, bos


def _id_of(given: Eod, usual: int | None) -> int | None:
    """Return the id that an option means; ``usual`` is the tokenizer's."""
    return {"auto": usual, "none": None}[given] if isinstance(given, str) else given


def _largest_in(source: TokenSource) -> int:
    """Look for the largest id in all pieces; the packing names what cannot be read."""
    largest = 0
    for piece in source.pieces():
        with suppress(SourceError):
            largest = max(largest, int(piece.read().data.max(initial=0)))
    return largest


@takes(PackSettings, hint=", and those of options=TokenOptions(...)")
def pack_tokens(
    sources: Sequence[Location | str] | Location | str,
    dst: Location | str,
    options: TokenOptions | None = None,
    *,
    plan: Location | str | None = None,
    **settings: Any,
) -> Summary:
    """Pack text or ids as ``packdata tokens`` does.

    Args:
        sources: Files, folders or patterns.
        dst: A folder that is new or empty.
        options: What becomes of them.
        plan: Of a part, so that a tokenizer is trained, or ids are looked at, once: what ``--dry-run --json`` printed.
        settings: Those of ``PackSettings`` (``packdata.packing.settings``); the format is Parquet by default. With
            ``on_error="skip"``, or ``shuffle``, each document must fit into memory.

    Raises:
        SourceError: A source, or something in it, cannot be packed.
        PackError: The target cannot be written, is in use, or holds something else.
        ValueError: The options contradict each other.
    """
    return pack_plan(plan_tokens(sources, options, plan=plan, **settings), dst)
