"""Conversations: messages, made text by a chat template, of which the assistant's turns are targets.

Source:
    The environment in which templates run is that of Hugging Face transformers,
    ``utils/chat_template_utils.py``: sandboxed, with ``raise_exception``, ``strftime_now``, ``tojson``
    without escapes, loop controls, and a tag ``generation``, which marks what is a target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from loaders.errors import LoadersError, SourceError
from packdata.sources.base import read_file
from packdata.sources.listed import with_beside
from packdata.tokens.contents import DocumentForm, type_of, value_of
from packdata.tokens.documents import joined, one_document, placed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from packdata.tokens.documents import Documents, Place, Reject

    Message = Mapping[str, Any]

CONFIG = "tokenizer_config.json"
TOOLS = "tools"
_NOW = "strftime_now"
_HEAD_CHARS = 16
# No text has these.
_OPEN, _CLOSE = "\ue000{9b1d6f32-generation}\ue001", "\ue000{9b1d6f32-endgeneration}\ue001"


class ChatTemplate:
    """A template in Jinja, with the special tokens (``bos_token``, ``eos_token``, ...) that it may spell out.

    Raises:
        LoadersError: ``jinja2`` is not installed.
        SourceError: It is no template, or needs a token that is not given.
    """

    def __init__(self, text: str, tokens: Mapping[str, Any], where: Path | str, day: date) -> None:
        jinja2 = import_jinja2()
        environment = _environment(day)
        try:
            asked = jinja2.meta.find_undeclared_variables(environment.parse(text))
            self._template = environment.from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise SourceError(f"the file is not a chat template ({error})", where) from error
        names = environment.parse(text).find_all(jinja2.nodes.Name)
        data = environment.parse(text).find_all(jinja2.nodes.TemplateData)
        # Its ``{% generation %}`` marks are the targets.
        self.has_marks = any(_OPEN in each.data for each in data)
        # What it gets if it asks for the time, that day's midnight; None if it does not.
        self.day = day if _NOW in {name.name for name in names} else None
        self.tokens = {name: value for name, value in tokens.items() if name in asked}
        if lost := sorted(n for n in asked - set(tokens) if n in ("bos_token", "eos_token")):
            hint = f"Put the tokenizer's {CONFIG} beside it, or pass that as the template"
            raise SourceError(f"unknown {' and '.join(lost)} in the template", where, hint)
        marks = ["generation"] if self.has_marks else []
        made_by = json.dumps([text, self.tokens, str(self.day), *marks], sort_keys=True)
        # Identifies what it makes of messages.
        self.digest = xxhash.xxh3_128_hexdigest(made_by.encode(errors="surrogatepass"))

    def render(self, messages: Sequence[Message], tools: Any, *, opens_turn: bool = False) -> str:
        """Return the text of a conversation's first messages; ValueError if the template refuses them.

        With ``opens_turn`` an answer is begun behind them (``add_generation_prompt``).
        """
        try:
            return str(
                self._template.render(
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=opens_turn,
                    **self.tokens,
                )
            )
        except Exception as error:  # it is a program: whatever it raises is about these messages
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"the chat template refuses the conversation ({what})") from error

    def turns(self, messages: Sequence[Message], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and where in it the assistant speaks, or the template's marks are.

        Turns that say that they are not to be trained (``weight`` 0, or ``train`` false) are left out.

        Raises:
            ValueError: The template refuses the messages, or writes an earlier turn differently
                once there are later ones, so that its place is not known.
        """
        text = self.render(messages, tools)
        answers = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        learned = [number for number in answers if _is_learned(messages[number])]
        if self.has_marks:
            text, found = _without_marks(text)
            if learned == answers:
                return text, found
            if len(found) != len(answers):
                what = f"{len(found)} {{% generation %}} marks for {len(answers)} turns"
                raise ValueError(f"{what}: turns that are not trained need one mark a turn")
            return text, [found[answers.index(number)] for number in learned]
        return text, [self._turn(text, messages[: number + 1], tools) for number in learned]

    def _turn(self, text: str, messages: Sequence[Message], tools: Any) -> tuple[int, int]:
        """Return where the last of some messages lies in the text of the whole conversation."""
        start = self._begin_of_turn(text, messages[:-1], tools)
        upto = self.render(messages, tools)
        if start is not None:
            for end in (upto, self._without_end(upto)):
                if text.startswith(end) and len(end) > start:
                    return start, len(end)
                # A thought, say, is left out of earlier turns: the rest of what was written is there.
                head, at = text[start : start + _HEAD_CHARS], -1
                while (at := end.find(head, at + 1)) >= 0:
                    if text.startswith(end[at:], start):
                        return start, start + len(end) - at
        what = f"the chat template writes message {len(messages)} differently when others follow"
        raise ValueError(f"{what}: use a template that marks targets by {{% generation %}}")

    def _begin_of_turn(self, text: str, before: Sequence[Message], tools: Any) -> int | None:
        """Return where the answer to some messages begins in the text; None if that cannot be known."""
        opened = self.render(before, tools, opens_turn=True)
        if text.startswith(opened):
            return len(opened)
        # An opened answer may go on in another way than this one does, such as by a thought.
        closed = self._without_end(self.render(before, tools))
        alike = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, opened, strict=False))
        )
        return max(len(closed), alike) if text.startswith(closed) else None

    def _without_end(self, text: str) -> str:
        """Leave out the end token that some templates put behind the last message, whichever that is."""
        return text.removesuffix(str(self.tokens.get("eos_token") or ""))


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and where they were; ValueError if they do not pair."""
    whole, found = "", []
    first, *parts = text.split(_OPEN)
    for part in parts:
        inside, close, behind = part.partition(_CLOSE)
        if not close or _CLOSE in behind:
            raise ValueError("the chat template nests {% generation %} marks")
        start = len(first) + len(whole)
        found.append((start, start + len(inside)))
        whole += inside + behind
    return first + whole, found


def _is_learned(message: Message) -> bool:
    """Tell whether a turn is a target, by the names that other libraries have for that."""
    weight = message.get("weight")
    marks = (message.get(name) for name in ("train", "trainable", "loss"))
    return not (weight is not None and weight == 0) and not any(mark is False for mark in marks)


def _environment(day: date) -> Any:
    jinja2 = import_jinja2()

    class Generation(jinja2.ext.Extension):  # type: ignore[misc, name-defined]
        """Marks what is between ``generation`` and ``endgeneration``."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            marks = [jinja2.nodes.Output([jinja2.nodes.TemplateData(m)]) for m in (_OPEN, _CLOSE)]
            return jinja2.nodes.Scope([marks[0], *body, marks[1]]).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    now = datetime.combine(day, time())
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, _NOW: now.strftime}
    return environment


def import_jinja2() -> Any:
    """Return the package ``jinja2``; LoadersError if it is not installed."""
    try:
        import jinja2.ext
        import jinja2.meta
        import jinja2.sandbox
    except ImportError as error:
        what = "a chat template needs the package 'jinja2': pip install 'loaders[text]'"
        raise LoadersError(what) from error
    return jinja2


def open_template(
    template: Path | str, tokenizer: Path | str | None, day: date | None
) -> ChatTemplate:
    """Open a Jinja file, or a ``tokenizer_config.json`` with a template.

    The special tokens of a Jinja file are those of the ``tokenizer_config.json`` beside it, or beside the
    ``tokenizer``; ``day`` is None for today.

    Raises:
        SourceError: It cannot be read, holds no template, or needs a token that is not known.
        LoadersError: ``jinja2`` is not installed.
    """
    path = with_beside(template)
    text, config = _read(path), {}
    if path.suffix == ".json":
        config = _config(text, path)
        text = _template_in(config, path)
    else:
        beside = [path, *([] if tokenizer is None else [with_beside(tokenizer)])]
        found = next((f.with_name(CONFIG) for f in beside if f.with_name(CONFIG).is_file()), None)
        config = {} if found is None else _config(_read(found), found)
    return ChatTemplate(text, _special_tokens(config), path, day or date.today())


def _read(path: Path) -> str:
    try:
        return read_file(path, str(path), f"Pass a Jinja file or a {CONFIG}").decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"the file is not UTF-8 ({error})", path) from error


def _config(text: str, path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"the file is not a {CONFIG} ({error})", path) from error


def _template_in(config: Mapping[str, Any], path: Path) -> str:
    """Return the template of a configuration, of several the one called ``default``."""
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = by_name.get("default")
    if not isinstance(template, str):
        raise SourceError(
            "missing 'chat_template'", path, "Pass the chat_template.jinja beside it"
        )
    return template


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by name: each is a string, or an object with its ``content``."""
    found = {}
    for name, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            found[name] = token
    return found


@dataclass(frozen=True)
class Chat(DocumentForm):
    """A column of conversations: lists of messages with ``role`` and ``content``; ``tools`` may be beside it."""

    column: str
    template: ChatTemplate
    kind = "chat"
    has_labels = True
    targets_hint = "Only turns of role 'assistant' are targets: rename the role, or mark turns by {% generation %}"

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return dict.fromkeys((self.column, TOOLS))

    def to_json(self) -> dict[str, Any]:
        return {"messages_column": self.column, "chat_template": self.template.digest}

    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if the column is missing, or holds no lists of messages."""
        kind = type_of(schema, self.column, path, "messages_column=")
        if not (hasattr(kind, "value_type") and pa.types.is_struct(kind.value_type)):
            raise SourceError(f"column {self.column!r} holds {kind}, not lists of messages", path)

    def has_targets(self, documents: Documents) -> bool:
        """Tell whether the assistant says something."""
        return documents.labels is not None and bool(documents.labels.any())

    def value(self, row: Mapping[str, Any], column: str) -> Any:
        return row.get(column) if column == TOOLS else value_of(row, column, "messages_column=")

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        rows = [[_without_null(value) for value in row.values()] for row in table.to_pylist()]
        return self.of_rows(rows, place)

    def of_rows(self, rows: Sequence[Sequence[Any]], place: Place) -> Documents:
        """Return the text of each row as UTF-8, with 1 for each byte that the assistant says, 0 for others."""
        found: list[Documents] = []
        kept: list[int] = []
        rejects: list[Reject] = []
        for number, (messages, tools) in enumerate(rows):
            try:
                data, wanted = self._document(messages, tools)
            except (ValueError, RecursionError) as error:
                rejects.append((place(number), SourceError(str(error), place(number))))
            else:
                found.append(one_document(data, wanted, str))
                kept.append(number)
        documents = joined(found, rejects)
        return replace(documents, place=placed(documents.ends, lambda i: place(kept[i])))

    def _document(
        self, messages: Any, tools: Any
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        _check_messages(messages, self.column)
        if isinstance(tools, str):
            tools = json.loads(tools)
        text, turns = self.template.turns(messages, tools or None)
        data = np.frombuffer(text.encode(), np.uint8)
        wanted = np.zeros(len(data), np.uint8)
        for start, stop in turns:
            first = len(text[:start].encode())
            wanted[first : first + len(text[start:stop].encode())] = 1
        return data, wanted


def _without_null(value: Any) -> Any:
    """Leave out what is null in objects: in a table all messages have the keys of any of them."""
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value


def _check_messages(messages: Any, column: str) -> None:
    """Raise ValueError for what is no list of messages with roles."""
    is_list = isinstance(messages, list) and len(messages) > 0
    if not is_list or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise ValueError(f"{column!r} is not a list of messages with 'role' and 'content'")
