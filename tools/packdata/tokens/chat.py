"""Conversations: messages, made text by a chat template, of which the assistant's turns are targets.

Source:
    The environment in which templates run is that of Hugging Face transformers,
    ``utils/chat_template_utils.py``: sandboxed, with ``raise_exception``, ``strftime_now``, ``tojson``
    without escapes, loop controls, and a tag ``generation``, which marks what is a target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from loaders.errors import LoadersError, SourceError
from loaders.remote.url import place_of
from packdata.reading import read_file
from packdata.sources.listed import is_file
from packdata.tokens.contents import DocumentForm
from packdata.tokens.documents import IGNORED, Documents, placed, rejected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packdata.tokens.documents import Place, Reject

    Message = Mapping[str, Any]

CONFIG = "tokenizer_config.json"
TOOLS = "tools"
_NOW = "strftime_now"
_HEAD_CHARS = 16
# No text has these.
_OPEN, _CLOSE = "\ue000{9b1d6f32-generation}\ue001", "\ue000{9b1d6f32-endgeneration}\ue001"


class ChatTemplate:
    """A template in Jinja, with the special tokens that it may spell out; if it asks for the time, midnight of ``day``.

    LoadersError if ``jinja2`` is not installed; SourceError if it is no template, or needs a token that is not given.
    """

    def __init__(self, text: str, tokens: Mapping[str, Any], where: Path | str, day: date) -> None:
        jinja2 = _import_jinja2()
        environment = _environment(jinja2, day)
        try:
            tree = environment.parse(text)
            asked = jinja2.meta.find_undeclared_variables(tree)
            self._template = environment.from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise SourceError(f"the file is not a chat template ({error})", where) from error
        if lost := sorted(asked & {"bos_token", "eos_token"} - {*tokens}):
            hint = f"Put the tokenizer's {CONFIG} beside it, or pass that as the template"
            raise SourceError(f"unknown {' and '.join(lost)} in the template", where, hint)
        self.tokens = {name: value for name, value in tokens.items() if name in asked}
        self._end = str(self.tokens.get("eos_token") or "")
        # Its ``{% generation %}`` marks are the targets.
        data = tree.find_all(jinja2.nodes.TemplateData)
        self.has_marks = any(_OPEN in each.data for each in data)
        made_by = [text, self.tokens, str(day if _NOW in text else None)]
        made_by += ["generation"] * self.has_marks
        written = json.dumps(made_by, sort_keys=True).encode(errors="surrogatepass")
        self.digest = xxhash.xxh3_128_hexdigest(written)  # of what it makes of messages

    def render(self, messages: Sequence[Message], tools: Any, *, opens_turn: bool = False) -> str:
        """Return the text of a conversation's first messages; ValueError if the template refuses them.

        With ``opens_turn`` an answer is begun behind them (``add_generation_prompt``).
        """
        given = {"messages": messages, "tools": tools, "documents": None}
        try:
            text = self._template.render(add_generation_prompt=opens_turn, **given, **self.tokens)
        except Exception as error:  # it is a program: whatever it raises is about these messages
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"the chat template refuses the conversation ({what})") from error
        return str(text)

    def turns(self, messages: Sequence[Message], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and where in it the assistant speaks, or the template's marks are.

        Turns that say that they are not to be trained are left out; ValueError if the template refuses the messages, or
        writes a turn in another way once there are later ones, so that its place is not known.
        """
        text = self.render(messages, tools)
        answers = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        learned = [number for number in answers if _is_learned(messages[number])]
        if not self.has_marks:
            return text, [self._turn(text, messages[: n + 1], tools) for n in learned]
        text, found = _without_marks(text)
        if learned == answers:
            return text, found
        if len(found) != len(answers):
            what = f"{len(found)} {{% generation %}} marks for {len(answers)} turns"
            raise ValueError(f"{what}: turns that are not trained need one mark a turn")
        return text, [found[answers.index(number)] for number in learned]

    def _turn(self, text: str, messages: Sequence[Message], tools: Any) -> tuple[int, int]:
        """Return where the last of some messages lies in the text of the whole conversation."""
        before = self.render(messages[:-1], tools).removesuffix(self._end)
        opened = self.render(messages[:-1], tools, opens_turn=True)
        start = len(opened)
        if not text.startswith(opened):  # it may go on in another way, such as by a thought
            pairs = enumerate(zip(text, opened, strict=False))
            start = next((i for i, (one, other) in pairs if one != other), len(text))
            tag = opened.rfind("<", len(before), start)  # the name of one may be cut
            start = tag if tag >= 0 and ">" not in opened[tag:start] else start
        said = str(messages[-1].get("content") or "").rpartition("</think>")[2].strip()
        # What is behind a short answer is written otherwise, too.
        head = text[start : start + (min(len(said), _HEAD_CHARS) or _HEAD_CHARS)]
        upto = self.render(messages, tools)
        # The end token may stand behind the last message alone.
        for end in (upto, upto.removesuffix(self._end)) if start >= len(before) else ():
            at = start
            while at >= 0:
                if (rest := end[at:]) and text.startswith(rest, start):
                    return start, start + len(rest)
                # A thought, say, is left out of earlier turns: the rest of what was written is there.
                at = end.find(head, at + 1)
        what = f"the chat template writes message {len(messages)} differently when others follow"
        raise ValueError(f"{what}: use a template that marks targets by {{% generation %}}")


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and where they were; ValueError if they do not pair."""
    whole, *parts = text.split(_OPEN)
    found = []
    for part in parts:
        inside, close, behind = part.partition(_CLOSE)
        if not close or _CLOSE in behind:
            raise ValueError("the chat template nests {% generation %} marks")
        found.append((len(whole), len(whole) + len(inside)))
        whole += inside + behind
    return whole, found


def _is_learned(message: Message) -> bool:
    """Tell whether a turn is a target, by the names that other libraries have for that."""
    weight = message.get("weight")
    marks = (message.get(name) for name in ("train", "trainable", "loss"))
    return not (weight is not None and weight == 0) and not any(mark is False for mark in marks)


def _environment(jinja2: Any, day: date) -> Any:
    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
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
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    now = datetime.combine(day, time()).strftime
    environment.globals |= {"raise_exception": raise_exception, _NOW: now}
    return environment


def _import_jinja2() -> Any:
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
    """Open a Jinja file, or a ``tokenizer_config.json``, of several templates the one called ``default``.

    The special tokens of a Jinja file are those of the ``tokenizer_config.json`` beside it, or beside the
    ``tokenizer``; ``day`` is None for today; errors are those of ``ChatTemplate``.
    """
    path = place_of(template)
    text: Any = _read(path)
    if path.suffix == ".json":
        config = _config(text, path)
        text = config.get("chat_template")
        if isinstance(text, list):
            by_name = {t.get("name"): t.get("template") for t in text if isinstance(t, dict)}
            text = by_name.get("default")
        if not isinstance(text, str):
            hint = "Pass the chat_template.jinja beside it"
            raise SourceError("missing 'chat_template'", path, hint)
    else:
        beside = [path, *([] if tokenizer is None else [place_of(tokenizer)])]
        found = (file.with_name(CONFIG) for file in beside)
        file = next(filter(is_file, found), None)
        config = {} if file is None else _config(_read(file), file)
    tokens = {}
    for name, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            tokens[name] = token
    return ChatTemplate(text, tokens, path, day or date.today())


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


@dataclass(frozen=True)
class Chat(DocumentForm):
    """A column of conversations: lists of messages with ``role`` and ``content``; ``tools`` may be beside it."""

    column: str
    template: ChatTemplate
    kind = "chat"
    option = "messages_column="
    holds = "lists of messages"
    optional = (TOOLS,)
    has_labels = True
    targets_hint = "Only turns of role 'assistant' are targets: rename the role, or mark turns by {% generation %}"

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return dict.fromkeys((self.column, TOOLS))

    def to_json(self) -> dict[str, Any]:
        return {"messages_column": self.column, "chat_template": self.template.digest}

    def takes(self, kind: pa.DataType) -> bool:
        return hasattr(kind, "value_type") and pa.types.is_struct(kind.value_type)

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return the documents of rows, whose messages have the keys of any of them: what is null is left out."""
        return self.of_rows([_without_null(row) for row in table.to_pylist()], place)

    def of_rows(self, rows: Sequence[Mapping[str, Any]], place: Place) -> Documents:
        """Return the text of each row as UTF-8, of which what the assistant says is a target."""
        parts, labels = list[bytes](), [np.empty(0, np.int8)]
        kept: list[int] = []
        rejects: list[Reject] = []
        for number, row in enumerate(rows):
            try:
                text, turns = self._text(row.get(self.column), row.get(TOOLS))
                parts.append(text.encode())
            except (ValueError, RecursionError) as error:
                rejects.append(rejected(place(number), str(error)))
                continue
            kept.append(number)
            labels.append(np.full(len(parts[-1]), IGNORED, np.int8))
            for start, stop in turns:
                first = len(text[:start].encode())
                labels[-1][first : first + len(text[start:stop].encode())] = 1
        data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])[1:]
        where = placed(ends, lambda i: place(kept[i]))
        return Documents(data, ends, where, tuple(rejects), np.concatenate(labels))

    def _text(self, messages: Any, tools: Any) -> tuple[str, list[tuple[int, int]]]:
        are_messages = isinstance(messages, list) and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
        )
        if not messages or not are_messages:
            what = "is not a list of messages with 'role' and 'content'"
            raise ValueError(f"{self.column!r} {what}")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        return self.template.turns(messages, tools or None)


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value
