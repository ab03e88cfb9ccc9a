"""Packed tables under the names of their columns, and any dataset as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.checks import as_list
from loaders.codecs import codec_for
from loaders.errors import SchemaError
from loaders.schema import Array, Categories, Features, Field, Json, Label, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt


def to_pandas(dataset: Any, fields: Sequence[str] | None) -> Any:
    """Return a DataFrame; see ``PackedDataset.to_pandas``."""
    import pandas as pd

    known = dataset.schema.fields
    usable = [name for name, field in known.items() if has_place(field)]
    if fields is None:
        names = [name for name in dataset.fields if name not in known or name in usable]
    else:
        names = as_list("fields", fields, "names, such as ['label', 'key']")
    dataset.schema.check_names(names)
    bad = [name for name in names or dataset.fields if name in known and name not in usable]
    if bad:
        raise SchemaError(f"fields {bad} cannot be columns of a DataFrame; {usable} can")
    columns: dict[str, Any] = {}
    for name in names:
        for column, values in _columns(dataset, name, known.get(name)):
            columns[column if column not in columns else f"{name}.{column}"] = values
    return pd.DataFrame(columns)


def has_place(field: Field) -> bool:
    """Tell whether a field becomes one or more columns of a DataFrame."""
    is_scalar = field.record_nbytes is not None and field.shape == ()
    return is_scalar or isinstance(field, Features | Categories | Text | Json)


def _columns(dataset: Any, name: str, field: Field | None) -> Iterator[tuple[str, Any]]:
    """Yield the columns that a field becomes; None is the position of each sample."""
    if isinstance(field, Features):
        values = dataset.column(name)
        yield from ((column, values[:, i]) for i, column in enumerate(field.columns))
    elif isinstance(field, Categories):
        codes = dataset.column(name)
        for i, column in enumerate(field.columns):
            yield column, _categorical(codes[:, i].astype(np.int64) - 1, field.vocabularies[i])
    elif isinstance(field, Label) and field.classes is not None:
        yield name, _categorical(dataset.column(name), field.classes)
    elif field is None or isinstance(field, Array | Label):
        yield name, dataset.column(name)
    else:
        yield name, decoded(dataset, name, field)


def decoded(dataset: Any, name: str, field: Field) -> list[Any]:
    """Return the values of a field of all samples, each decoded on its own."""
    view, decode = dataset.view.for_column(name), codec_for(field).decode
    return [decode(record) for record in view.records(name, np.arange(len(dataset)))]


def _categorical(codes: npt.NDArray[np.int64], names: Sequence[str]) -> Any:
    import pandas as pd

    known = (codes >= 0) & (codes < len(names))
    return pd.Categorical.from_codes(np.where(known, codes, -1), categories=list(names))
