"""Writing samples of packed datasets as new ones: what ``copy``, ``merge``, ``split`` and ``write`` do.

What is to be written is a recipe of blocks. A stream of tokens is divided by documents: its rows are where it was cut
for storage, and mean nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.columns import Column, FixedColumn, column_of, rows_between
from loaders.data.shards import MemoryShard
from loaders.errors import CodecError, PackError, SchemaError, SourceError
from loaders.remote.origin import file_beside
from loaders.schema import Boxes, Image, Keypoints, Schema, Tokens
from loaders.schema.tokens import DOCUMENT_ENDS, LABELS, NUM_TOKENS, TOKENS
from loaders.system.regular import read_regular
from packdata.bucket import target_at
from packdata.describe import counted
from packdata.packed.recode import recoders_of
from packdata.packing.engine import Run
from packdata.packing.journal import flatten_plan
from packdata.packing.packing import Packing
from packdata.packing.provenance import PACKER
from packdata.packing.shards import shard_format
from packdata.packing.target import check_outside
from packdata.recipe import Block, Recipe, Target
from packdata.sources.duplicates import repeated, row_hashes
from packdata.tokens.rows import block_of, count, has_tokens, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loaders.data.shards import PackedShard
    from loaders.data.view import View
    from loaders.remote.url import Location
    from loaders.schema import Field
    from packdata.images.fit import SizeOption
    from packdata.packed.recode import Recode, Recoding
    from packdata.packing.settings import RunSettings
    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary

Indices = npt.NDArray[np.int64]
_BLOCK_BYTES = 1 << 20
_NOTHING: Mapping[str, Any] = MappingProxyType({})  # as identity: the command's plan says all
_MAX_ROWS, _MAX_PICTURES = 4096, 16  # of a block, and of one whose pictures are stored anew


def command_plan(name: str, sources: Sequence[View], **options: Any) -> dict[str, str]:
    """Return what tells a command from others, flat."""
    prints = [view.source_fingerprint for view in sources]
    command = json.dumps({"command": name, "sources": prints} | options, sort_keys=True)
    return flatten_plan({"command": command, "packer": PACKER})


def format_of(view: View) -> Format:
    """Return the format of a view's shards (of the first, should they differ)."""
    files = (shard for shard in view.store.shards if not isinstance(shard, MemoryShard))
    return next((shard_format(shard.info.file) for shard in files), "lmdb")


def write_datasets(
    dst: Location | str,
    command: str,
    sources: Sequence[View],
    datasets: Mapping[str, Content],
    options: Mapping[str, Any],
    settings: RunSettings,
) -> Summary:
    """Write samples as packed datasets, by their folder below ``dst``; all of them appear, or none.

    Killed, the same command continues: command, sources, options, format and size of shards tell it from others.

    Args:
        dst: A folder, or a URL.
        command: Its name.
        sources: What the samples come from.
        datasets: What each is to hold, by its folder below ``dst``.
        options: What else decides what is written, as JSON.
        settings: How they are written; the format is by default that of the first source.

    Raises:
        PackError: A target is taken or cannot be written, is a source, lies inside one or holds one; or there are no
            samples.
        RemoteError: The store does not answer, or refuses.
    """
    place, run = target_at(dst), Run(settings.or_usual(format_of(sources[0])))
    folders = [folder for view in sources for folder in view.folders]
    for folder, content in datasets.items():
        check_outside(place / folder, folders)
        if not len(content):
            what = "no sample to write: none meets the condition, or a part's share is too small"
            hint = "Documents stay whole in parts of text; TokenWindows.split divides them"
            is_text = isinstance(content, DocumentContent)
            raise PackError(what, place / folder, hint if is_text else "")
    plan = command_plan(
        command, sources, **options, format=run.format, shard_bytes=run.shard_bytes
    )
    overwrite = settings.overwrite
    with Packing(place, [*datasets], plan, overwrite=overwrite, of_packed=True) as packing:
        return run.pack(packing, [*datasets.items()])


def target_of(view: View, schema: Schema) -> Target:
    """Return the dataset of what is made of a view, with the files that the schema names.

    Raises:
        PackError: One is missing or damaged.
    """
    found, folders = dict[str, bytes](), view.folders
    for name, digest in schema.files.items():
        files = [file_beside(folder, name) for folder in folders[:1]]
        found[name] = b"".join(read_regular(file) for file in files if file.is_file())
        if xxhash.xxh3_128_hexdigest(found[name]) != digest:
            what = f"the file {name} is missing, or not the one that the manifest names"
            raise PackError(what, folders[0] if folders else name, "Copy that file from a backup")
    return Target("", schema, found)


# -- what is written -------------------------------------------------------------------------------


@dataclass
class ViewContent(Recipe):
    """The samples of a view, some of their fields changed; an item is the range of a block."""

    view: View
    schema: Schema
    # By field, what stores its pictures anew.
    recoders: Mapping[str, Recode] = field(default_factory=dict)
    # By field, the records of all samples, in place of those of the view.
    values: Mapping[str, Column] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # Shards that hold just these samples, to be used as they are: of a dataset that is written alone.
    whole: Sequence[PackedShard] = ()
    identity, is_of_blocks = _NOTHING, True

    def __post_init__(self) -> None:
        self.targets, self.only_copies = [target_of(self.view, self.schema)], not self.recoders
        # Rows of a stream of tokens are not samples: progress shows no total.
        self.num_samples = None if has_tokens(self.schema) else len(self.view)
        store = self.view.store
        nbytes = sum(
            sum(column.nbytes for column in shard.columns.values())
            if isinstance(shard, MemoryShard)
            else shard.info.size_bytes
            for shard in store.shards
        )
        most = _MAX_PICTURES if self.recoders else _MAX_ROWS
        self._step = max(1, min(most, _BLOCK_BYTES * len(store) // max(1, nbytes)))

    def __len__(self) -> int:
        return -(-len(self.view) // self._step)

    def items(self, start: int) -> Iterator[range]:
        """Yield the blocks of samples from number ``start`` on."""
        step, num = self._step, len(self.view)
        return (range(at, min(at + step, num)) for at in range(start * step, num, step))

    def name(self, item: range) -> str:
        """Return the place of the first sample."""
        return place_of(self.view, item[0])

    def encode(self, item: range) -> list[Block]:
        """Return the records of a block; ShardError where one is damaged."""
        positions = np.array(item)
        return [Block({name: self._column(name, positions) for name in self.schema.fields})]

    def _column(self, name: str, positions: Indices) -> Column:
        if name in self.values:
            return rows_between(self.values[name], int(positions[0]), int(positions[-1]) + 1)
        view, recode = self.view, self.recoders.get(name)
        nbytes = self.schema.fields[name].record_nbytes
        if recode is None and nbytes is not None:
            out = np.empty((len(positions), nbytes), np.uint8)
            view.store.gather(name, view.rows(positions), out)
            return FixedColumn(out)
        records = view.records(name, positions)
        if recode is None:
            return column_of([record.data for record in records], nbytes)
        stored = list[bytes | memoryview]()
        for i, record in zip(positions.tolist(), records, strict=True):
            try:
                stored.append(recode(record, partial(view.decode, i, name, record)))
            except CodecError as error:
                what = f"{name!r} cannot be stored: {error}"
                raise SourceError(what, place_of(view, i)) from error
        return column_of(stored, nbytes)


def content_of(
    view: View,
    known: Schema,
    recoding: Recoding,
    added: Mapping[str, tuple[Field, Column]] = MappingProxyType({}),
    resize: SizeOption | None = None,
) -> ViewContent:
    """Return the samples of a view, their pictures stored anew, with the fields and records that are added.

    Boxes are in pixels of the first image of all that is stored (``known``). SchemaError where fields do not fit.
    """
    lost = {TOKENS, NUM_TOKENS, DOCUMENT_ENDS} - {*view.schema.fields}
    if has_tokens(known) and lost:
        what = f"{view.path} is a stream of tokens, which is not read without its fields"
        raise SchemaError(f"{what} {', '.join(sorted(lost))}: keep them, too")
    old = view.schema.fields
    recoders = recoders_of({n: f for n, f in old.items() if n not in added}, recoding, resize)
    fields = {**old, **{name: field for name, (field, _) in added.items()}}
    fields |= {name: each.field for name, each in recoders.items()}
    before, after = (
        next((name for name, field in each.items() if isinstance(field, Image)), None)
        for each in (known.fields, fields)
    )
    boxes = [name for name, field in fields.items() if isinstance(field, Boxes | Keypoints)]
    if boxes and after not in (None, before):
        what = f"boxes {boxes[0]!r} are in pixels of {before!r}, the first image"
        raise SchemaError(f"{what}: keep it, before {after!r}, or leave out the boxes")
    new = [name for name in added if name not in old]
    values = {name: column for name, (_, column) in added.items()}
    schema = Schema(fields, (*view.schema.defaults, *new))
    return ViewContent(view, schema, recoders, values)


def check_keys(view: View, keys: Column | None = None) -> None:
    """Raise SchemaError if two samples of a view have one key: their own, or those that they get."""
    later, firsts = repeated(view.key_hashes() if keys is None else row_hashes(keys))
    if later:
        one, other = place_of(view, firsts[0]), place_of(view, later[0])
        key = view.key(later[0]) if keys is None else keys.row(later[0]).tobytes().decode()
        what = f"{counted(len(later), 'duplicate key')}, the first: {key!r} of {one} and {other}"
        hint = "leave samples out ('packdata copy', or select), or use other keys"
        raise SchemaError(f"{what}: {hint}")


def place_of(view: View, position: int) -> str:
    """Return where a sample of a view is stored, in words."""
    path, row = view.place(position)
    return f"{path}, row {row}"


def check_no_stream(view: View) -> None:
    """Raise SchemaError where choosing rows would tear documents apart."""
    if has_tokens(view.schema):
        what = f"{view.path} is a stream of tokens: choosing rows would tear documents apart"
        hint = "'packdata split' and val_share= of tokens divide by documents"
        raise SchemaError(f"{what}. {hint}")


@dataclass
class DocumentContent(Recipe):
    """The rows of some documents of a stream, by their numbers, ascending; they follow each other as they did."""

    view: View
    documents: Indices
    provenance: Mapping[str, Any] = field(default_factory=dict)
    identity, is_of_blocks, only_copies = _NOTHING, True, True

    def __post_init__(self) -> None:
        self.schema = self.view.schema
        self.targets = [target_of(self.view, self.schema)]

    def __len__(self) -> int:
        return len(self.view.store.starts) + 1 if len(self.documents) else 0

    def name(self, item: Block) -> str:
        """Return the folder of the stream."""
        return str(self.view.path)

    def encode(self, item: Block) -> list[Block]:
        """Return the item."""
        return [item]

    def items(self, start: int) -> Iterator[Block]:
        """Yield the full rows that each shard adds, and the rest."""
        return islice(self._blocks(), start, None)

    def _blocks(self) -> Iterator[Block]:
        fields = self.schema.fields
        names, field = [name for name in (TOKENS, LABELS) if name in fields], fields[TOKENS]
        assert isinstance(field, Tokens)
        chosen = np.zeros(count(self.view)[1] + 2, bool)  # the last document may have no end
        chosen[self.documents] = True
        values, ends = [np.empty(0, fields[name].dtype) for name in names], np.empty(0, np.int64)

        def rows(num: int) -> Block:
            ids, *labels = (each[:num] for each in values)
            return block_of(ids, ends[ends <= num], field.row_tokens, *labels)

        for more_ends, *more in streams_of(self.view, names):
            lengths = np.diff(more_ends, prepend=0, append=len(more[0]))
            keep = np.repeat(chosen[: len(lengths)], lengths)
            kept_ends = np.cumsum(keep)[more_ends[chosen[: len(more_ends)]] - 1]
            chosen = chosen[len(more_ends) :]
            ends = np.concatenate([ends, kept_ends + len(values[0])])
            values = [np.concatenate([v, m[keep]]) for v, m in zip(values, more, strict=True)]
            full = len(values[0]) // field.row_tokens * field.row_tokens
            yield rows(full)
            values, ends = [v[full:] for v in values], ends[ends > full] - full
        yield rows(len(values[0]))


Content = ViewContent | DocumentContent  # the samples of a dataset, to be packed
