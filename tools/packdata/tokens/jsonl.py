"""JSON lines: one object a line, which is one document."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.readers import arrow_lines, filled_lines, json_object
from packdata.tokens.documents import Documents, join_documents, not_utf8

if TYPE_CHECKING:
    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Document, Place, Reject


def parse_jsonl(
    data: bytes, content: DocumentForm, place: Place, *, is_utf8: bool = True
) -> Documents:
    """Return the documents of whole lines; blank lines are passed over.

    ``place`` says where a byte of the data stands; ``is_utf8`` is False if some bytes are known not to be text.
    """
    table = _parse_at_once(data, content) if is_utf8 else None
    if table is not None:
        documents = content.of_table(
            table, lambda row: place(next(islice(filled_lines(data), row, None))[1])
        )
        if not documents.rejects:
            return documents
    return _parse_lines(data, content, place)


def _parse_at_once(data: bytes, content: DocumentForm) -> pa.Table | None:
    """Let Arrow parse; None where something is not as it should be."""
    if None in content.types.values():
        return None
    small = {pa.large_string(): pa.string(), pa.large_list(pa.int64()): pa.list_(pa.int64())}
    schema = pa.schema({name: small[kind] for name, kind in content.types.items()})
    table = arrow_lines(data, schema, with_others=False)
    return table.cast(pa.schema(dict(content.types))) if table is not None and len(table) else None


def _parse_lines(data: bytes, content: DocumentForm, place: Place) -> Documents:
    found: list[Document] = []
    begins: list[int] = []
    rejects: list[Reject] = []
    for _, at, line in filled_lines(data):
        try:
            found.append(content.of_row(json_object(line)))
            begins.append(at)
        except UnicodeDecodeError as error:
            rejects.append(not_utf8(line[error.start], place(at)))
        except ValueError as error:
            rejects.append((place(at), SourceError(str(error), place(at))))
    return join_documents(found, lambda row: place(begins[row]), rejects)
