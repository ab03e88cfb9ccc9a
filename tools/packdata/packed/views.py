"""Views of packed samples as datasets of their own: ``packdata.write``."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_128_hexdigest

from loaders.checks import shown
from loaders.codecs.picture import DEFAULT_QUALITY
from loaders.data.columns import column_of
from loaders.data.view import KEY_FIELD, View, open_view
from loaders.errors import CodecError, SchemaError
from loaders.remote.url import Location
from loaders.schema import Array, Bytes, Field, Json, Schema, Text
from packdata.images.fit import SizeOption
from packdata.options import takes
from packdata.packed.recode import Recoding
from packdata.packed.rewrite import (
    ViewContent,
    check_keys,
    check_no_stream,
    content_of,
    write_datasets,
)
from packdata.packing.provenance import source_of
from packdata.packing.settings import RunSettings
from packdata.packing.shards import shard_format
from packdata.sources.duplicates import row_hashes
from packdata.values import Preparer

if TYPE_CHECKING:
    from loaders.data.columns import Column
    from packdata.images.fit import Size
    from packdata.packing.summary import Summary


@takes(RunSettings, without="on_error")
def write(
    view: Any,
    dst: Location | str,
    *,
    codec: str | None = None,
    size: int | str | Size | None = None,
    fit: str = "shorter",
    quality: int | None = None,
    add: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Summary:
    """Write the samples of a view as a dataset; records that nothing is asked of stay as they are.

    Killed, the same call continues.

    Args:
        view: A dataset of packed samples, or what ``select``, ``split``, ``replace(fields=)`` and ``concat`` make of
            such; or the folder of one. Its fields are written: those that were chosen, else all that are stored.
            ``augment`` does not matter.
        dst: A folder that is new or empty, or a URL.
        codec: Store pictures so; those that are files of this codec already stay as they are.
        size: Bring pictures and masks to this size: ``256``, or ``"224x320"`` as height x width.
        fit: How they come to it (``packdata.images.fit.SizeOption``).
        quality: Of ``jpeg``, ``webp`` and ``dct``.
        add: Values by field, one for each sample: in place of those of a field that is there, or as a new field.
            Numbers are an ``Array``, strings a ``Text``, bytes ``Bytes``, anything else is ``Json``.
        **settings: Those of ``packdata.packing.settings.RunSettings`` but ``on_error``. By default the format is that
            of the view, and a shard has 64 MiB; but shards that hold just these samples are taken as they are, linked
            where the file system has links.

    Raises:
        TypeError: It is no such view.
        SchemaError: It has a ``transform``; or the arguments do not fit its fields.
        ShardError: A record is damaged, or the dataset was replaced since it was opened.
        SourceError: A picture cannot be stored so.
        PackError: The target is taken or cannot be written, is a source or inside one, or there are no samples.

    Example::

        train = ShardDataset("packed/train")
        cats = train.select(train.column("label") == train.classes.index("cat"))
        packdata.write(cats, "packed/cats", codec="dct", size=224, fit="cover", add={"score": scores})
    """
    source, known = _as_view(view)
    if size is None and fit != "shorter":
        raise SchemaError(f"fit {fit!r} without size=: pass size=, too")
    resize = None if size is None else SizeOption.parse(size, fit)
    added = {n: _added(n, each, known.fields.get(n), source) for n, each in (add or {}).items()}
    content = content_of(source, known, Recoding(codec, quality), added, resize)
    if source.numbers is not None:
        check_no_stream(source)
    _check_keys(content)
    asked = RunSettings(**settings)
    is_changed = bool(asked.shard_bytes or content.recoders or added)
    whole = () if is_changed else source.whole_shards or ()
    formats = {shard_format(shard.info.file) for shard in whole}
    if asked.format is None or formats == {asked.format}:
        content.whole = whole
    given = {"codec": codec, "size": size, "fit": size and fit, "quality": quality}
    options: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    options |= {"add": sorted(added)} if added else {}
    content.provenance = {"command": "write", **_made_of(source), "options": options}
    decides = {**options, **_identity(content), "whole": bool(content.whole)}
    return write_datasets(dst, "write", [source], {"": content}, decides, asked)


def _as_view(data: Any) -> tuple[View, Schema]:
    """Return the samples that are to be written, to be verified, with their fields; and all fields that are stored."""
    data = open_view(data) if isinstance(data, Location | str) else data
    view = data if isinstance(data, View) else getattr(data, "view", None)
    if not isinstance(view, View) or getattr(data, "has_own_samples", False):
        what = "takes a dataset of packed samples, such as ShardDataset, or a view of one"
        raise TypeError(f"packdata.write {what}, got {shown(data)}")
    if getattr(data, "transform", None) is not None:
        what = "what a transform makes of samples cannot be stored"
        raise SchemaError(f"{what}: write dataset.replace(transform=None), or use packdata.pack")
    if view is not data:
        chosen = tuple(name for name in data.fields if name in view.schema.fields)
        if chosen != view.schema.defaults:
            view = view.with_fields(chosen, chosen)
    view.check_version()  # also of shards that are open: their origin is read again
    return view.verified(), data.schema


def _check_keys(content: ViewContent) -> None:
    """Raise SchemaError for duplicate keys; samples of one whole dataset have none."""
    view, keys = content.view, content.values.get(KEY_FIELD)
    files = [shard.path for shard in view.store.shards]
    is_whole = view.numbers is None and len({*files}) == len(files) and len(view.folders) == 1
    has_keys = isinstance(content.schema.fields.get(KEY_FIELD), Text)
    if has_keys and (keys is not None or not is_whole):
        check_keys(view, keys)


def _made_of(view: View) -> dict[str, Any]:
    """Describe the datasets whose samples a view has, for the manifest."""
    origins = [*map(source_of, view.folders)]
    origins = origins or [{"name": view.path.name, "fingerprint": view.fingerprint}]
    return {"source": origins[0]} if len(origins) == 1 else {"sources": origins}


def _identity(content: ViewContent) -> dict[str, Any]:
    """Return what tells samples, fields and added values from others."""
    numbers, hashes = content.view.numbers, {n: row_hashes(c) for n, c in content.values.items()}
    which = None if numbers is None else xxh3_128_hexdigest(numbers.tobytes())
    digests = {name: xxh3_128_hexdigest(each.tobytes()) for name, each in hashes.items()}
    return {"samples": which, "schema": content.schema.to_json(), "values": digests}


def _added(name: str, values: Any, field: Field | None, view: View) -> tuple[Field, Column]:
    """Return the field of values that are added, and their records."""
    is_one = isinstance(values, str | bytes) or not hasattr(values, "__len__")
    is_one |= isinstance(values, Set | Mapping) or getattr(values, "ndim", 1) == 0
    if is_one or len(values) != len(view):
        what = f"add takes a value for each of {len(view)} samples"
        raise SchemaError(f"{what}, {name!r} is {shown(values)}")
    field = field or _field_of(values)
    prepare = Preparer(field, DEFAULT_QUALITY)
    if (column := prepare.column(values)) is not None:
        return field, column
    records = []
    for i, value in enumerate(values):  # pictures; or which one is wrong
        try:
            records.append(prepare(value).make().record)
        except CodecError as error:
            raise SchemaError(f"add: value {i} of {name!r} does not fit: {error}") from error
    return field, column_of(records, field.record_nbytes)


def _field_of(values: Any) -> Field:
    """Return a field for values: of numbers of one shape an array, else of texts, bytes, or JSON."""
    with suppress(ValueError):  # of several shapes
        array = np.asarray(values)
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            return Array(dtype=array.dtype.name, dims=array.shape[1:])
    for kind, field in ((str, Text()), (bytes, Bytes())):
        if all(isinstance(value, kind) for value in values):
            return field
    return Json()
