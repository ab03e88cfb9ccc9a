"""Folders that become datasets without a packer."""

from pathlib import Path

from loaders.data.manifest import MANIFEST_NAME, Manifest, manifest_bytes


def put_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the folder a dataset, once its shards are there."""
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
