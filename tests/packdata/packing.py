"""Small packed datasets, made with nothing but the formats: what the commands are tested on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loaders.codecs import codec_for
from loaders.data.columns import Column, var_column
from loaders.data.manifest import Manifest, ShardInfo
from loaders.schema import Array, Boxes, Field, Image, Label, Mask, MultiLabel, Schema, Text
from packdata.formats import write_shard
from tests.columns import fixed_column
from tests.manifests import put_manifest

CLASSES = ("bird", "cat", "dog")


def pack(
    folder: Path,
    fields: Mapping[str, Field],
    samples: Sequence[Mapping[str, Any]],
    *,
    format: str = "lmdb",
    per_shard: int = 4,
    defaults: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write samples as a dataset, ``per_shard`` to a shard; bytes are records already."""
    folder.mkdir(parents=True)
    shards: list[ShardInfo] = []
    for first in range(0, len(samples), per_shard):
        part = samples[first : first + per_shard]
        path = folder / f"shard-{len(shards):05d}.{format}"
        columns = {name: _column(field, [s[name] for s in part]) for name, field in fields.items()}
        shards.append(write_shard(path, columns, fields))
    schema = Schema(fields, tuple(defaults))
    put_manifest(folder, Manifest(schema, tuple(shards), provenance or {"command": "test"}))
    return folder


def _column(field: Field, values: Sequence[Any]) -> Column:
    codec = codec_for(field)
    rows = [value if isinstance(value, bytes) else codec.encode(value) for value in values]
    return (
        var_column(rows)
        if field.record_nbytes is None
        else fixed_column(rows, field.record_nbytes)
    )


FIELDS: dict[str, Field] = {
    "image": Image(codec="png"),
    "label": Label(classes=CLASSES),
    "key": Text(),
    "score": Array(dtype="float32"),
    "width": Array(dtype="int64"),
    "tags": MultiLabel(classes=("day", "night")),
    "boxes": Boxes(),
    "pixels": Image(size=(40, 48), codec="raw"),
    "mask": Mask(),
}


def sample(i: int, seed: int = 0) -> dict[str, Any]:
    """Return sample ``i``: its values follow from its number."""
    rng = np.random.default_rng([seed, i])
    width = 20 + i % 7
    return {
        "image": rng.integers(0, 256, (16, width, 3), np.uint8),
        "label": i % 3,
        "key": f"{CLASSES[i % 3]}/{i:03d}",
        "score": float(i) / 4,
        "width": width,
        "tags": np.array([i % 2, 1 - i % 2], np.uint8),
        "boxes": np.array([[1, 1, 5 + i, 6]] * (i % 3), np.float32).reshape(-1, 4),
        "pixels": rng.integers(0, 256, (40, 48, 3), np.uint8),
        "mask": rng.integers(0, 3, (16, width), np.uint8),
    }


def pack_samples(
    folder: Path,
    num: int = 10,
    *,
    first: int = 0,
    format: str = "lmdb",
    fields: Sequence[str] = tuple(FIELDS),
    per_shard: int = 4,
    seed: int = 0,
) -> Path:
    """Write samples ``first`` and up, with some of ``FIELDS``."""
    chosen = {name: FIELDS[name] for name in fields}
    samples = [sample(i, seed) for i in range(first, first + num)]
    defaults = [name for name in ("image", "label") if name in chosen]
    return pack(folder, chosen, samples, format=format, per_shard=per_shard, defaults=defaults)
