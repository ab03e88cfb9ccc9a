"""Conversations: messages, made text by a chat template, of which the assistant's turns are targets.

Source:
    The environment in which templates run is that of Hugging Face transformers,
    ``utils/chat_template_utils.py``: sandboxed, with ``raise_exception``, ``strftime_now``, ``tojson``
    without escapes, loop controls, and a tag ``generation``, which marks what is a target.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import jinja2.ext
import jinja2.meta
import jinja2.sandbox
import numpy as np
import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from loaders.remote.url import place_of
from loaders.schema.tokens import IGNORED
from packdata.reading import read_text
from packdata.sources.listed import is_file
from packdata.tokens.contents import Content
from packdata.tokens.documents import Documents, Refusal, placed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loaders.remote.url import Location
    from packdata.tokens.contents import Row
    from packdata.tokens.documents import Place
    from packdata.tokens.options import TokenOptions

    Message = Mapping[str, Any]
    Tools = list[dict[str, Any]] | None

# What would change the text of a conversation, where it stands beside its messages; ``tools`` is used.
BESIDE_CHAT = (
    *("tools", "prompt", "system", "functions", "documents", "chat_template_kwargs"),
    *("enable_thinking", "images", "videos", "audios", "label", "kto_tag"),
)
CONFIG = "tokenizer_config.json"
_HINT = f"Pass a Jinja file or a {CONFIG}"
_NOW = "strftime_now"
_HEAD_CHARS = 16
# As other libraries say whether a turn is trained: 1 or true, 0 or false.
_FLAGS = ("weight", "train", "trainable", "training", "loss", "loss_scale")
# What a message may have beside its content, or in its place; as OLMo's, ``functions`` and ``function_calls``.
_BESIDE = (
    *("tool_calls", "function_call", "function_calls", "functions"),
    *("reasoning_content", "reasoning", "thinking"),
)
_USE_MARKS = "use a template that marks targets by {% generation %}"
# No text has these.
_OPEN, _CLOSE = "\ue000{9b1d6f32-generation}\ue001", "\ue000{9b1d6f32-endgeneration}\ue001"
_PROBE = "9b1d6f32content"  # nor this
_MARKS = re.compile(f"({re.escape(_OPEN)}|{re.escape(_CLOSE)})")


@dataclass(frozen=True, kw_only=True)
class Chat(Content):
    """A column of conversations: lists of messages with ``role`` and ``content``; ``tools`` may be beside it."""

    template: ChatTemplate
    kind, option, holds, type = "chat", "messages_column=", "lists of messages", None
    has_labels = True

    @staticmethod
    def takes(kind: pa.DataType) -> bool:
        return bool(pa.types.is_struct(getattr(kind, "value_type", pa.null())))

    def to_json(self) -> dict[str, Any]:
        made_by = {"messages_column": self.column, "chat_template": self.template.digest}
        return made_by | super().to_json()

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return the documents of rows, whose messages have the keys of any of them: what is null is left out."""
        rows = [_without_null(row) for row in table.to_pylist()]
        messages = (m for row in rows for m in row.get(self.column, ()) if isinstance(m, dict))
        for message in messages:
            message.setdefault("content", None)  # as in JSON: that of a call
        return self.of_rows(rows, place)

    def of_rows(self, rows: Sequence[Row], place: Place) -> Documents:
        """Return the text of each row as UTF-8, of which what the assistant says is a target."""
        parts, labels = list[bytes](), [np.empty(0, np.int8)]
        kept, rejects = list[int](), list[Refusal]()
        for number, row in enumerate(rows):
            try:
                text, turns = self._text(row)
                parts.append(text.encode())
            except (ValueError, RecursionError) as error:
                rejects.append(Refusal(place(number), str(error)))
                continue
            kept.append(number)
            labels.append(np.full(len(parts[-1]), IGNORED, np.int8))
            for start, stop in turns:
                first = len(text[:start].encode())
                labels[-1][first : first + len(text[start:stop].encode())] = 1
        data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])[1:]
        where = placed(ends, lambda i: place(kept[i]))
        return Documents(data, ends, where, tuple(rejects), np.concatenate(labels))

    def _text(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and where its targets are; ValueError if a part of it is not used."""
        for name, value in row.items():
            if name not in (self.column, "tools") and _is_lost(name, value):
                hint = f"write it into the messages, or pass drop={[name]}"
                raise ValueError(f"{name!r} beside {self.column!r} is not used: {hint}")
        return self.template.turns(self._messages(row.get(self.column)), _tools(row.get("tools")))

    def _messages(self, value: Any) -> list[dict[str, Any]]:
        """Return the messages without what is left out or null, as OpenAI's ``tool_calls``; content may be null."""
        said = value if isinstance(value, list) else []
        roles = [m.get("role") if isinstance(m, dict) else None for m in said]
        if not roles or not all(isinstance(role, str) for role in roles):
            what = "is not a list of messages with 'role' and 'content'"
            raise ValueError(f"{self.column!r} {what}")

        def is_used(name: str, value: Any) -> bool:
            return name not in self.drop and (value is not None or name == "content")

        return [{n: each for n, each in m.items() if is_used(n, each)} for m in said]


def _is_lost(name: str, value: Any) -> bool:
    """Tell whether something beside the messages would have changed the text."""
    is_first = name == "prompt" and isinstance(value, str)  # the text of the first message
    is_class = name == "label" and not isinstance(value, bool)  # KTO's tells whether it is wanted
    return not is_first and not is_class and value not in (None, "", [], {})


def _tools(value: Any) -> Tools:
    """Return the tools of a conversation, which may be text, as JSON; ValueError if they are none."""
    try:
        tools = json.loads(value.strip() or "null") if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"'tools' is not JSON ({error})") from error
    is_list = isinstance(tools, list) and all(isinstance(each, dict) for each in tools)
    if tools and not is_list:
        raise ValueError("'tools' is not a list of objects, each a function")
    return tools or None


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value


# -- templates -------------------------------------------------------------------------------------


class ChatTemplate:
    """A template in Jinja, with the special tokens that it may spell out; if it asks for the time, midnight of ``day``.

    SourceError if it is no template, or needs a token that is missing.
    """

    def __init__(
        self, text: str, tokens: Mapping[str, str], where: Location | str, day: date
    ) -> None:
        environment = _environment(day)
        try:
            tree = environment.parse(text)
            asked = jinja2.meta.find_undeclared_variables(tree)
            self._template, self._globals = environment.from_string(text), environment.globals
        except (jinja2.TemplateError, RecursionError) as error:
            raise SourceError(f"the file is not a chat template ({error})", where) from error
        if lost := sorted(asked & {"bos_token", "eos_token"} - {*tokens}):
            hint = f"Put the tokenizer's {CONFIG} beside the template, or pass that instead"
            raise SourceError(f"unknown {' and '.join(lost)} in the template", where, hint)
        self._words = {*re.findall(r"\w+", text)}
        self.tokens = {name: value for name, value in tokens.items() if name in asked}
        self._end = self.tokens.get("eos_token", "")
        # Its ``{% generation %}`` marks are the targets.
        data = tree.find_all(jinja2.nodes.TemplateData)
        self.has_marks = any(_OPEN in each.data for each in data)
        made_by = [text, self.tokens, str(day if _NOW in text else None)]
        made_by += ["generation"] * self.has_marks
        written = json.dumps(made_by, sort_keys=True).encode(errors="surrogatepass")
        self.digest = xxhash.xxh3_128_hexdigest(written)  # of what it makes of messages

    def render(
        self, messages: Sequence[Message], tools: Tools, *, opens_turn: bool = False
    ) -> str:
        """Return the text of a conversation's first messages; ValueError if the template refuses them.

        With ``opens_turn`` an answer is begun behind them (``add_generation_prompt``).
        """
        given: dict[str, Any] = {"messages": messages, "tools": tools, "documents": None}
        given |= {"add_generation_prompt": opens_turn, **self.tokens}
        # Template.render() takes four times as long, to put the globals below what is given.
        context = self._template.new_context(self._globals | given, shared=True)
        try:
            return "".join(self._template.root_render_func(context))
        except Exception as error:  # it is a program: whatever it raises is about these messages
            what = "the conversation" if messages else f"add_generation_prompt alone: {_USE_MARKS}"
            what = f"the chat template failed on {what} ({type(error).__name__}: {error})"
            raise ValueError(what) from error

    def turns(
        self, messages: Sequence[Message], tools: Tools
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and where in it the assistant speaks, or the template's marks are.

        Turns that say that they are not to be trained are left out; ValueError if the template refuses the messages,
        does not use a part of them, or writes a turn in another way once there are later ones, so that its place is
        not known.
        """
        text, marked = _without_marks(self.render(messages, tools))
        self._check_written(messages, tools, text)
        answers = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        learned = [n for n in answers if _is_learned(messages[n])]
        if not self.has_marks:
            return text, [self._turn(text, messages, n, tools) for n in learned]
        if learned == answers:
            return text, marked
        if len(marked) != len(answers):
            what = f"{len(marked)} {{% generation %}} marks for {len(answers)} turns"
            raise ValueError(f"{what}: turns that are not trained need one mark a turn")
        return text, [marked[answers.index(n)] for n in learned]

    def _check_written(self, messages: Sequence[Message], tools: Tools, text: str) -> None:
        """Raise ValueError if the text lacks a part of the messages, or has its Python representation."""
        beside = set[str]().union(*messages).intersection(_BESIDE)
        given = {name for name in beside if any(m.get(name) for m in messages)}
        given |= {"tools"} if tools else set()
        # A template that does not name 'content' may write whole messages.
        if "content" in self._words and (unused := sorted(given - self._words)):
            what = f"the chat template does not use {unused[0]!r}"
            raise ValueError(f"{what}: pass one that does, or drop={unused[:1]} to leave it out")
        at, unsure = 0, list[int]()
        for number, message in enumerate(messages):
            if not isinstance(message.get("content"), str):
                unsure.append(number)
            elif (at := text.find(said := _said(message), at)) >= 0:
                at += len(said)
            else:  # earlier contents may have matched inside other messages: check each
                unsure = [*range(len(messages))]
                break
        for number in unsure:
            self._check_content(number, messages, tools, text)

    def _check_content(
        self, number: int, messages: Sequence[Message], tools: Tools, text: str
    ) -> None:
        """Raise ValueError if the text lacks a message's content, or has its Python representation."""
        message, what = messages[number], f"message {number + 1}"
        said = {name for name, value in message.items() if value and name != "role"}
        content, shown = message.get("content"), str(message.get("content"))
        if content is None and self._words.isdisjoint(said):
            what += f" has no content that the chat template uses, among {sorted(message)}"
            hint = "remove the message, or rename the key of its text to 'content'"
            raise ValueError(f"{what}: {hint}")
        others = messages[:number], messages[number + 1 :]
        probed = self.render([*others[0], {**message, "content": _PROBE}, *others[1]], tools)
        if not isinstance(content, str):
            if probed.count(shown) < text.count(shown):
                what = f"the chat template renders the content of {what} as a Python value"
                raise ValueError(f"{what}, {shown[:40]}: use a string")
        # Of a call some templates write no text (Llama 3.1's): that is how the model calls.
        elif _PROBE not in probed and said.isdisjoint(_BESIDE):
            what = f"the chat template does not render the content of {what} ({message.get('role')!r})"
            raise ValueError(f"{what}: use a template that does, or remove the message")

    def _turn(
        self, text: str, messages: Sequence[Message], number: int, tools: Tools
    ) -> tuple[int, int]:
        """Return where a message lies in the text of the whole conversation."""
        earlier, is_last = messages[:number], number + 1 == len(messages)
        opened = self.render(earlier, tools, opens_turn=True)
        upto = text if is_last else self.render(messages[: number + 1], tools)
        start = len(opened)
        if not text.startswith(opened):
            start = self._begin(text, upto, opened, self.render(earlier, tools))
        said = _said(messages[number])
        # What follows a short answer may change when more messages follow.
        head = text[start : start + (min(len(said), _HEAD_CHARS) or _HEAD_CHARS)]
        # The end token may stand behind the last message alone.
        for end in (upto, upto.removesuffix(self._end)):
            at = start
            while at >= 0:
                if (rest := end[at:]) and text.startswith(rest, start):
                    return start, start + len(rest)
                # A thought, say, is left out of earlier turns: the rest of what was written is there.
                at = end.find(head, at + 1)
        what = f"the chat template writes message {number + 1} differently when others follow"
        raise ValueError(f"{what}: {_USE_MARKS}")

    def _begin(self, text: str, upto: str, opened: str, closed: str) -> int:
        """Return where an answer begins that goes on otherwise than it is ``opened``, such as by a thought.

        -1 if that is not known; ``closed`` is the text before it.
        """
        before, lengths = closed.removesuffix(self._end), range(len(opened))
        start = bisect_left(lengths, True, key=lambda n: not text.startswith(opened[: n + 1]))
        tag = opened.rfind("<", len(before), start)  # the name of one may be cut
        start = tag if tag >= 0 and ">" not in opened[tag:start] else start
        # Before a first turn there may be the template's own system message.
        header = opened[len(before) :].lstrip()
        at = upto.find(header, start)
        if at >= start >= len(before) and text.startswith(upto[: at + len(header)]):
            start = at + len(header)
        return start if start >= len(before) else -1


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and where they were; ValueError if they do not pair."""
    parts = _MARKS.split(text)
    inside, marks = parts[::2], parts[1::2]
    if marks != [_OPEN, _CLOSE] * (len(marks) // 2):
        raise ValueError("the chat template nests {% generation %} marks")
    bounds = [*accumulate(map(len, inside))]
    return "".join(inside), [*zip(bounds[::2], bounds[1::2], strict=False)]


def _said(message: Message) -> str:
    """Return the content without the thought before it."""
    return str(message.get("content") or "").rpartition("</think>")[2].strip()


def _is_learned(message: Message) -> bool:
    """Tell whether a turn is a target; ValueError if it is one in part."""
    flags, masked = [message[name] for name in _FLAGS if name in message], message.get("masked")
    in_part, content = bool(message.get("train_detail")), message.get("content")
    if isinstance(content, list):
        in_part |= any(isinstance(part, dict) and part.keys() & {*_FLAGS} for part in content)
    if in_part or any(flag not in (None, 0, 1) for flag in (*flags, masked)):
        what = "a turn that is trained in part, or with a weight other than 0 and 1"
        raise ValueError(f"{what}: leave that out, or use turns of weight 0 and 1")
    return 0 not in flags and not masked


class _Generation(jinja2.ext.Extension):
    """Marks what is between ``generation`` and ``endgeneration``."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [jinja2.nodes.Output([jinja2.nodes.TemplateData(m)]) for m in (_OPEN, _CLOSE)]
        return jinja2.nodes.Scope([marks[0], *body, marks[1]]).set_lineno(line)


def _environment(day: date) -> jinja2.Environment:
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    now = datetime.combine(day, time()).strftime
    environment.globals |= {"raise_exception": raise_exception, _NOW: now}
    return environment


def chat_of(options: TokenOptions) -> Chat:
    """Return what rows of conversations hold; errors are those of ``ChatTemplate``."""
    assert options.chat_template is not None
    column = options.messages_column or "messages"
    template = open_template(options.chat_template, options.tokenizer, options.chat_date)
    optional = tuple(name for name in BESIDE_CHAT if name not in (column, *options.drop))
    return Chat(column, optional=optional, drop=options.drop, template=template)


def open_template(
    template: Location | str, tokenizer: Location | str | None, day: str | None
) -> ChatTemplate:
    """Open a Jinja file, or a ``tokenizer_config.json``, of several templates the one called ``default``.

    The special tokens of a Jinja file are those of the ``tokenizer_config.json`` beside it, or beside the
    ``tokenizer``; ``day`` is None for today; errors are those of ``ChatTemplate``.
    """
    path = place_of(template)
    if path.name.endswith(".json"):
        config = _config(path)
        text = config.get("chat_template")
        if isinstance(text, list):
            by_name = {t.get("name"): t.get("template") for t in text if isinstance(t, dict)}
            text = by_name.get("default")
        if not isinstance(text, str):
            hint = "Pass the chat_template.jinja beside that file"
            raise SourceError("missing 'chat_template'", path, hint)
    else:
        text = read_text(path, _HINT)
        found = (place_of(each).parent / CONFIG for each in (path, tokenizer or path))
        config = next((_config(file) for file in found if is_file(file)), {})
    named = ((n, v.get("content") if isinstance(v, dict) else v) for n, v in config.items())
    tokens = {n: token for n, token in named if n.endswith("_token") and isinstance(token, str)}
    return ChatTemplate(text, tokens, path, date.fromisoformat(day) if day else date.today())


def _config(path: Location) -> dict[str, Any]:
    text = read_text(path, _HINT)
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"the file is not a {CONFIG} ({error})", path) from error
