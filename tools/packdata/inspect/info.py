"""What a packed dataset is, from its manifest alone: no shard is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.data.manifest import FORMAT_VERSION, read_manifest
from loaders.schema import Label, MultiLabel

if TYPE_CHECKING:
    from pathlib import Path


def describe(path: Path | str) -> dict[str, Any]:
    """Return what is known of a packed dataset, as JSON types.

    Raises:
        ManifestError: The folder is not a packed dataset, or its manifest is damaged.
    """
    manifest = read_manifest(path)
    suffixes = sorted({shard.file.rpartition(".")[2] for shard in manifest.shards})
    return {
        "path": str(path),
        "format": "+".join(suffixes),
        "version": FORMAT_VERSION,
        "fingerprint": manifest.fingerprint,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "size_bytes": manifest.size_bytes,
        "bytes_per_sample": round(manifest.size_bytes / max(1, manifest.num_samples), 1),
        "fields": {name: field.to_json() for name, field in manifest.schema.fields.items()},
        "defaults": list(manifest.schema.defaults),
        "num_classes": {
            name: None if field.classes is None else len(field.classes)
            for name, field in manifest.schema.fields.items()
            if isinstance(field, Label | MultiLabel)
        },
        "shards": [
            {"file": s.file, "num_samples": s.num_samples, "size_bytes": s.size_bytes}
            for s in manifest.shards
        ],
        "provenance": dict(manifest.provenance),
    }
