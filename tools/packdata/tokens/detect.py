"""What the rows of some files hold: what the options say, else what the first file's columns tell."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.describe import counted
from packdata.sources.rowfiles import open_row_file
from packdata.tokens.chat import TOOLS, Chat, open_template
from packdata.tokens.contents import ATTENTION_MASK, LABELS, Ids, Texts, is_list_of_ids
from packdata.tokens.files import LINE_KINDS, ForwardReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.files import SourceFile
    from packdata.tokens.options import TokenOptions

_CHUNK = 1 << 16
_BOM = b"\xef\xbb\xbf"


def content_of(files: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    """Return what the rows of some files hold, by the options, else by the first file's columns.

    Raises:
        SourceError: They hold conversations, and no template is given; or the template cannot be read.
    """
    rows = [file for file in files if file.kind in LINE_KINDS]
    if not rows:
        return Texts("text")
    content = _content_of(rows, options)
    if content.kind != "text" and len(rows) < len(files):
        what = f"{counted(len(files) - len(rows), 'file')} of plain text lie beside {content.kind}"
        raise SourceError(what, rows[0].path, "Pack them one after the other")
    return content


def _content_of(rows: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    columns = _columns_of(rows[0])
    if options.chat_template is not None:
        day = None if options.chat_date is None else date.fromisoformat(options.chat_date)
        template = open_template(options.chat_template, options.tokenizer, day)
        return Chat(options.messages_column or "messages", template, TOOLS in columns)
    text = options.text_column
    if text is None and (options.tokenizer or options.train_bpe) and "text" in columns:
        text = "text"
    if text is None and (options.ids_column is not None or "input_ids" in columns):
        has_labels, has_mask = columns.get(LABELS, False), columns.get(ATTENTION_MASK, False)
        return Ids(options.ids_column or "input_ids", has_labels, has_mask)
    if text is None and "text" not in columns and "messages" in columns:
        hint = "Give --chat-template FILE, which makes text of them"
        raise SourceError("it holds conversations ('messages')", rows[0].path, hint)
    return Texts(text or "text")


def _columns_of(file: SourceFile) -> dict[str, bool]:
    """Return the columns of a file, and whether they hold lists of whole numbers."""
    if file.kind != "jsonl":
        schema = open_row_file(file.path).schema
        return {field.name: is_list_of_ids(field.type) for field in schema}
    return {
        name: isinstance(value, list) and all(type(item) is int for item in value)
        for name, value in _first_row(file).items()
    }


def _first_row(file: SourceFile) -> dict[str, object]:
    """Return the first object of JSON lines; {} if it cannot be read: the packing names its line."""
    data = b""
    with closing(ForwardReader(file)) as reader:
        while b"\n" not in data and (more := reader.read(_CHUNK)):
            data = (data + more).removeprefix(_BOM).lstrip()
    try:
        row = json.loads(data.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
