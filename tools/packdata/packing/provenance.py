"""What a dataset was made from: all of it for the manifest, and a line for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from packdata.describe import cut, few

if TYPE_CHECKING:
    from loaders.remote.url import Location

PACKER = "loaders 0.1.0"  # a part of every plan, too: another version may encode other bytes
PLAN = "plan_xxh3_128"  # of all that decided the output: by it, the same command finds itself done
_NO_OPTIONS = {"command", "recipe", "source", "sources", "kind", "packer", "options", PLAN}
_NO_OPTIONS |= {"appended", "targets", "tokenizer", "vocab_size", "eod", "row_tokens"}  # in fields
_MAX_ORIGINS = 16  # nested in a manifest: of a dataset copied daily JSON could not read all


def source_of(folder: Location) -> dict[str, Any]:
    """Describe a dataset for the provenance of what is made from it: no path above its own name."""
    manifest = read_manifest(folder)
    described = {"name": folder.absolute().name, "fingerprint": manifest.fingerprint}
    return described | {"provenance": _bounded(manifest.provenance, _MAX_ORIGINS - 1)}


def _bounded(described: Any, depth: int) -> Any:
    """Return a provenance in which provenances nest this deep at most, without plans."""
    if isinstance(described, list):
        return [_bounded(each, depth) for each in described]
    if not isinstance(described, Mapping):
        return described
    return {
        name: _bounded(value, depth - (name == "provenance"))
        for name, value in described.items()
        if name != PLAN and (depth > 0 or name != "provenance")
    }


def describe_origin(provenance: Mapping[str, Any]) -> str:
    """Return what made a dataset, of what, and with which options.

    Example:
        >>> describe_origin({"recipe": "images", "source": "photos", "quality": 80})
        'images: photos, quality=80'
        >>> describe_origin({"command": "merge", "sources": [{"name": "a"}, {"name": "b"}]})
        'merge: a, b'
        >>> describe_origin({"recipe": "arrays", "source": "scans", "appended": [{"name": "more"}]})
        'arrays: scans, extended by more'
    """
    command = provenance.get("command") or provenance.get("recipe")
    source = _names(provenance.get("sources") or provenance.get("source"))
    head = ": ".join(filter(None, [command and str(command), source]))
    added = _names(provenance.get("appended"))
    inner = provenance.get("options")
    options = {**provenance, **(inner if isinstance(inner, Mapping) else {})}
    shown = [f"{n}={cut(str(v), 60)}" for n, v in options.items() if v and n not in _NO_OPTIONS]
    return cut(", ".join(filter(None, [head, *shown, added and f"extended by {added}"])), 300)


def _names(source: Any) -> str:
    """Return the first names of a source or of several."""
    if isinstance(source, Mapping):
        source = source.get("files") or source.get("name") or source.get("kind")
    sources = source if isinstance(source, list) else [source] if source else []
    names = [each.get("name", "?") if isinstance(each, Mapping) else each for each in sources]
    return few(map(str, names), 3)


def as_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of JSON types; ValueError at once, not when everything is packed."""
    try:
        return dict(json.loads(json.dumps(dict(provenance), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        what = "provenance must be a mapping of JSON values"
        raise ValueError(f"{what}, got {provenance!r}: {error}") from error
