"""What ``packdata tokens`` is about to do, as something to look at, and then the doing."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.checks import shown
from loaders.data.view import open_view
from loaders.errors import SourceError
from loaders.remote.url import is_url
from packdata.delimited import CsvRows
from packdata.describe import counted, describe_field, passed_over
from packdata.packing.firstpass import FirstPass
from packdata.packing.settings import PackSettings, check_options
from packdata.plan import pack_plan
from packdata.sources.base import read_file
from packdata.sources.listed import list_sources, with_beside, without_secrets
from packdata.sources.opening import joined_splits
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.chat import Chat, open_template
from packdata.tokens.contents import BESIDE_IDS, Ids, Texts, are_numbers, is_list_of_numbers
from packdata.tokens.files import IDS_KINDS, LINE_KINDS, identity_of, list_files
from packdata.tokens.ids import DEFAULT_DTYPE, PIECE_TOKENS, IdsSource
from packdata.tokens.options import Eod
from packdata.tokens.options import TokenOptions as TokenOptions
from packdata.tokens.recipe import NO_TARGET, TokensRecipe
from packdata.tokens.stream import count
from packdata.tokens.texts import PIECE_BYTES, TextOptions, TextSource
from packdata.tokens.tokenizer import (
    BytesTokenizer,
    JsonTokenizer,
    Tokenizer,
    Vocabulary,
    train_bpe,
)
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from packdata.packing.settings import OnError
    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary
    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.files import SourceFile

TRAIN_BYTES = 256 << 20  # of the corpus are enough for a BPE
_FIRST_BYTES, _FIRST_ROWS = 1 << 20, 64  # of a file, looked at for lists beside the ids
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TokensPlan:
    """A recipe, its sources, and their files."""

    sources: tuple[str, ...]
    files: Sequence[SourceFile]
    ignored: Mapping[str, int]
    recipe: TokensRecipe
    format: Format
    first_pass: FirstPass

    def to_json(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "src": list(self.sources),
            "format": self.format,
            "files": len(self.files),
            "pieces": len(recipe),
            "ignored": dict(self.ignored),
            "empty_files": recipe.source.empty_files,
            "targets": {t.folder: t.schema.to_json() for t in recipe.targets},
            "options": dict(recipe.provenance),
            **self.first_pass.to_json(recipe.identity),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        files, recipe = self.files, self.recipe
        size = sum(file.size for file in files)
        kinds = ", ".join(sorted({file.kind for file in files}))
        much = f"{counted(len(files), 'file')} ({kinds}), {counted(size, 'byte')}"
        yield f"{much}, in {counted(len(recipe), 'piece')}"
        yield from self.notes()
        for target in recipe.targets:
            yield f"  to {target.folder or 'the destination itself'}, as {self.format}:"
            for name, field in target.schema.fields.items():
                yield f"    {name}: {describe_field(field)}"

    @property
    def splits(self) -> list[tuple[str, TokensRecipe]]:
        """The recipe, which fills the destination itself."""
        return [("", self.recipe)]

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say what is worth knowing of the source."""
        recipe, notes = self.recipe, []
        if packed is not None and (num := packed.counts.get(NO_TARGET, 0)):
            notes.append(f"{counted(num, 'document')} without a target")
        notes += passed_over(self.ignored)
        if recipe.source.empty_files:
            notes.append(f"empty: {few(recipe.source.empty_files)}")
        return [*notes, *joined_splits([file.path for file in self.files])]

    def amount(self, packed: Summary) -> str:
        """Count tokens and documents: samples are rows of tokens. What was sent is not fetched for that."""
        if is_url(packed.dst):
            return ""
        views = (open_view(Path(packed.dst) / each.folder, "never") for each in packed.datasets)
        tokens, documents = map(sum, zip(*map(count, views), strict=True))
        return f"{counted(tokens, 'token')} in {counted(documents, 'document')}"

    def is_unchanged(self) -> bool:
        """Tell whether the files are still as they were listed."""
        try:
            list_sources(self.sources)
            return bool(identity_of(self.files) == self.recipe.identity["files"])
        except (OSError, SourceError):  # what is gone has changed too
            return False


def plan_tokens(
    sources: Sequence[Path | str] | Path | str,
    options: TokenOptions | None = None,
    *,
    format: Format | None = None,
    on_error: OnError = "fail",
    shuffle: int | None = None,
    first_pass: FirstPass | None = None,
) -> TokensPlan:
    """List sources and say what would become of them; trains the tokenizer, if that is asked for.

    With ``on_error="skip"`` no document is cut into pieces, so that each can be left out by itself, nor with
    ``shuffle``. What is learned of the corpus may come from another plan by ``first_pass``.

    Raises:
        SourceError: A source cannot be listed or recognized, or holds nothing.
        ValueError: The options contradict each other, or do not fit the source.
    """
    options = TokenOptions() if options is None else options
    if not isinstance(options, TokenOptions):
        raise TypeError(f"options must be TokenOptions(...), got {shown(options)}")
    sources = [sources] if isinstance(sources, Path | str) else list(sources)
    files, ignored = list_files(sources)
    kinds = Counter("ids" if f.kind in IDS_KINDS else "text" for f in files)
    if len(kinds) > 1:
        what = f"{counted(kinds['text'], 'file')} of text beside {kinds['ids']} of ids"
        raise SourceError(what, str(sources[0]), "Pack them one after the other")
    _check_used(options, {file.kind for file in files})
    first_pass = FirstPass() if first_pass is None else first_pass
    may_cut = on_error == "fail" and not options.val_share and shuffle is None
    recipe = _recipe(files, options, first_pass, may_cut=may_cut)
    first_pass.check(recipe.identity)
    if not len(recipe):
        raise SourceError("all files are empty", str(sources[0]))
    if isinstance(recipe.source, TextSource):
        _check_targets(recipe.source, str(sources[0]))
    shown_sources = tuple(map(str, without_secrets(sources)))
    return TokensPlan(shown_sources, files, ignored, recipe, format or "parquet", first_pass)


def _check_used(options: TokenOptions, kinds: set[str]) -> None:
    """Raise ValueError for an option that no file there takes: something else was meant."""
    usual = TokenOptions()
    for names, takes, what in (
        (("documents",), {"text"}, "plain text"),
        (("text_column", "ids_column", "chat_template", "drop"), LINE_KINDS, "files of rows"),
        (("bin_dtype",), {"bin", "npy"}, "ids without a header"),
        (("bos",), {"text", *LINE_KINDS}, "text and lists of ids"),
    ):
        used = [name for name in names if getattr(options, name) != getattr(usual, name)]
        if used and not takes & kinds:
            raise ValueError(f"{used[0]} is for {what}, not {', '.join(sorted(kinds))}")


def _check_targets(source: TextSource, where: str) -> None:
    """Raise SourceError if no document has a target: the first pieces with documents usually end the search."""
    seen = False
    for piece in source.pieces() if source.has_labels else ():
        with suppress(SourceError):
            documents = piece.read()
            if documents.rejects or source.options.content.has_targets(documents):
                return  # the packing names what is refused
            seen |= len(documents) > 0
    if seen:
        what = "no document has a target: nothing would be learned"
        raise SourceError(what, where, source.options.content.targets_hint)


def _source_of(
    files: Sequence[SourceFile], options: TokenOptions, *, may_cut: bool
) -> TextSource | IdsSource:
    if files[0].kind in IDS_KINDS:
        cut = PIECE_TOKENS // options.row_tokens * options.row_tokens or options.row_tokens
        return IdsSource(files, options.bin_dtype, _given(options.eod), cut if may_cut else None)
    content = _content_of(files, options)
    is_bytes = options.train_bpe is None and options.tokenizer in (None, "bytes")
    # Then all rows but a file's last are full. With an id before or behind it a document is longer.
    is_plain = is_bytes and content.kind == "text" and options.bos == "none"
    cut = PIECE_BYTES // options.row_tokens * options.row_tokens or options.row_tokens
    cuts = cut if is_plain and may_cut else None
    return TextSource(files, TextOptions(options.documents, content, cuts, PIECE_BYTES))


def _tokenizer_of(
    source: TextSource | IdsSource, options: TokenOptions, first_pass: FirstPass
) -> Tokenizer | None:
    """Return what makes ids of a text, or made those of a source of ids, if that is known."""
    if source.has_ids or not isinstance(source, TextSource):
        if options.train_bpe is not None:
            raise ValueError("train_bpe is for text, and these are ids")
        return None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    if options.vocab_size is not None:
        raise ValueError("vocab_size is for ids: a tokenizer has its own")
    if (num_ids := options.train_bpe) is None:
        return open_tokenizer(options.tokenizer or "bytes", is_chat=source.kind == "chat")

    def train() -> str:
        return train_bpe(source.documents_of(TRAIN_BYTES), num_ids).decode()

    data = first_pass.get("tokenizer", train).encode()
    return JsonTokenizer(data, "the trained tokenizer")


def _vocabulary_of(
    source: TextSource | IdsSource,
    options: TokenOptions,
    tokenizer: Tokenizer | None,
    first_pass: FirstPass,
) -> Vocabulary:
    begin, end = (None, None) if tokenizer is None else (tokenizer.begin, tokenizer.end)
    bos = begin if options.bos == "auto" else _given(options.bos)
    eod = end if options.eod == "auto" and source.kind == "text" else _given(options.eod)
    size, itemsize = options.vocab_size, source.itemsize
    if size is None and tokenizer is not None:
        size = tokenizer.vocab_size
    if isinstance(tokenizer, BytesTokenizer) and not source.has_ids:
        size = _size_with(tokenizer.vocab_size, {"eod": eod, "bos": bos})
    if size is None and itemsize > 2:
        largest = int(first_pass.get("largest", lambda: _largest_in(source, eod, bos)))
        # No fewer than two bytes, so that parts of one corpus agree.
        itemsize = itemsize if largest >= 1 << 16 else 2
    return Vocabulary.of(size, itemsize, eod, bos)


def _content_of(files: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    """Return what the rows of some files hold, by the options, else by the first file's columns.

    Raises:
        SourceError: They hold conversations, and no template is given; or the template cannot be read.
    """
    rows = [file for file in files if file.kind in LINE_KINDS]
    content = _content_of_rows(rows, options) if rows else Texts("text")
    if content.kind != "text" and len(rows) < len(files):
        what = f"{counted(len(files) - len(rows), 'file')} of plain text beside {content.kind}"
        raise SourceError(what, rows[0].path, "Pack them one after the other")
    return content


def _content_of_rows(rows: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    if options.chat_template is not None:
        day = None if options.chat_date is None else date.fromisoformat(options.chat_date)
        template = open_template(options.chat_template, options.tokenizer, day)
        return Chat(options.messages_column or "messages", template)
    columns = _first_values(rows[0])
    text = options.text_column
    if text is None and (options.tokenizer or options.train_bpe) and "text" in columns:
        text = "text"
    if text is None and (options.ids_column is not None or "input_ids" in columns):
        lists = [name for name in BESIDE_IDS if columns.get(name) is not None]
        beside = tuple(name for name in lists if name not in options.drop)
        ids = Ids(options.ids_column or "input_ids", beside, options.drop)
        for file in rows:
            ids.check_first(_first_values(file), file.path)
        return ids
    if text is None and "text" not in columns and "messages" in columns:
        raise SourceError("conversations ('messages')", rows[0].path, "Pass chat_template=")
    return Texts(text or "text")


def _first_values(file: SourceFile) -> dict[str, list[Any] | None]:
    """Return the first values of the columns that hold lists of numbers, None for others."""
    if file.kind == "csv":
        return dict.fromkeys(CsvRows(file.path).columns)
    if file.kind == "jsonl":
        rows = [*islice(_first_objects(file), _FIRST_ROWS)]
        first = rows[0] if rows else {}
        return {n: [r.get(n) for r in rows] if are_numbers(v) else None for n, v in first.items()}
    table = open_row_file(file.path)
    lists = [field.name for field in table.schema if is_list_of_numbers(field.type)]
    firsts = table.groups[:1] if lists else []
    batches = (batch for group in firsts for batch in table.batches(group, lists, _FIRST_ROWS))
    found: dict[str, Any] = next((batch.to_pydict() for batch in batches), {})
    return {name: found.get(name, [] if name in lists else None) for name in table.schema.names}


def _first_objects(file: SourceFile) -> Iterator[dict[str, Any]]:
    """Yield the first objects of JSON lines, as far as they can be read: the packing names what cannot."""
    with suppress(ValueError, RecursionError):
        for line in file.head(_FIRST_BYTES).removeprefix(_BOM).split(b"\n"):
            if isinstance(row := json.loads(line) if line.strip() else None, dict):
                yield row


def _given(token: Eod) -> int | None:
    return None if isinstance(token, str) else token


def _size_with(size: int, added: dict[str, int | None]) -> int:
    """Return the size of a vocabulary of bytes with ids of their own behind these."""
    for name, token in sorted(added.items(), key=lambda item: item[1] or 0):
        if token is not None and token > size:
            what = f"{name} must be a byte (0 to 255) or {size}, an id of its own behind them"
            raise ValueError(f"{what}, got {token}")
        size = max(size, (token or 0) + 1)
    return size


def _largest_in(source: TextSource | IdsSource, *others: int | None) -> int:
    """Look for the largest id in all pieces; the packing names what cannot be read."""
    largest = max((other for other in others if other is not None), default=0)
    for piece in source.pieces():
        with suppress(SourceError):
            ids = piece.read().data
            largest = max(largest, int(ids.max(initial=0)))
    return largest


def _recipe(
    files: Sequence[SourceFile], options: TokenOptions, first_pass: FirstPass, *, may_cut: bool
) -> TokensRecipe:
    source = _source_of(files, options, may_cut=may_cut)
    tokenizer = _tokenizer_of(source, options, first_pass)
    vocabulary = _vocabulary_of(source, options, tokenizer, first_pass)
    about: dict[str, Any] = {
        "documents": options.documents,
        "text_column": options.text_column or "text",
        "tokenizer": None if tokenizer is None else tokenizer.name,
        "trained": options.train_bpe,
        "eod": vocabulary.eod,
        "vocab_size": vocabulary.size,
        "bin_dtype": options.bin_dtype or DEFAULT_DTYPE,
        "row_tokens": options.row_tokens,
        "val_share": options.val_share,
        "seed": options.seed,
    }
    if isinstance(source, TextSource):
        about |= source.options.content.to_json()
    if vocabulary.bos is not None:
        about["bos"] = vocabulary.bos
    provenance = {"recipe": "tokens", "source": [f.name for f in files[:16]], **about}
    identity = {"recipe": "tokens", "files": identity_of(files), "cut": source.cut, **about}
    made: dict[str, Any] = {"identity": identity, "provenance": provenance}
    return TokensRecipe(source, options, vocabulary, tokenizer, **made)


def open_tokenizer(name: Path | str, *, is_chat: bool = False) -> Tokenizer:
    """Return the tokenizer of a name: ``bytes``, or a ``tokenizer.json``.

    Raises:
        SourceError: It cannot be read, or is none.
    """
    if name == "bytes":
        return BytesTokenizer()
    path = with_beside(name)
    data = read_file(path, str(path), "Pass 'bytes' or the path of a tokenizer.json")
    return JsonTokenizer(data, path, is_chat=is_chat)


def pack_tokens(
    sources: Sequence[Path | str] | Path | str,
    dst: Path | str,
    options: TokenOptions | None = None,
    *,
    format: Format | None = None,
    plan: Path | str | None = None,
    **settings: Unpack[PackSettings],
) -> Summary:
    """Pack text or ids as ``packdata tokens`` does.

    Args:
        sources: Files, folders or patterns.
        dst: A folder that is new or empty.
        options: What becomes of them.
        format: ``"parquet"`` (default) or ``"lmdb"``.
        plan: Of a part, so that a tokenizer is trained, or ids are looked at, once: what ``--dry-run --json`` printed.
        settings: As of ``pack_recipes``. With ``on_error="skip"``, or ``shuffle``, each document must fit into memory.

    Raises:
        SourceError: A source, or something in it, cannot be packed.
        PackError: The target cannot be written, is in use, or holds something else.
        ValueError: The options contradict each other.
    """
    if names := [name for name in settings if name in TokenOptions.__annotations__]:
        raise TypeError(f"{names[0]} is one of options=: pass TokenOptions({names[0]}=...)")
    check_options(settings, PackSettings)
    planned = plan_tokens(
        sources,
        options,
        format=format,
        on_error=settings.get("on_error", "fail"),
        shuffle=settings.get("shuffle"),
        first_pass=FirstPass(plan),
    )
    return pack_plan(planned, dst, **settings)
