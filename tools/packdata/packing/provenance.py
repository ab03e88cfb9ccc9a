"""What a dataset was made from: all of it for the manifest, and a line for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from packdata.describe import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest
    from loaders.data.view import View

PACKER = "loaders 0.1.0"  # a part of every plan, too: another version may encode other bytes
PLAN = "plan_xxh3_128"  # of all that decided the output: by it, the same command finds itself done
_MAX_ORIGINS = 8  # nested in a manifest: of a dataset copied daily JSON could not read all
_MAX_CHARS, _MAX_VALUE_CHARS, _MAX_NAMES = 300, 60, 3
_KEPT_FILE_NAMES = 16  # of the files that were packed as tokens the manifest has no more
# Shown elsewhere: at the head of the line, or with the fields (what tokens are).
_ELSEWHERE = frozenset({"command", "recipe", "source", "sources", "kind", "packer", "targets"}) | {
    *("options", "appended", PLAN, "tokenizer", "vocab_size", "eod", "row_tokens")
}
# Options that are recorded with their defaults, too.
USUAL: dict[str, dict[str, Any]] = {
    "images": {"fit": "shorter", "quality": 90},
    "tokens": {"documents": "file", "text_column": "text", "bin_dtype": "uint16"},
    "tables": {"missing": "error", "dtype": "float32"},
    "split": {"by": "shuffle"},
}


def origin(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Describe a source for the provenance of what is made from it: no path above its own name."""
    described = {"name": path.absolute().name, "fingerprint": manifest.fingerprint}
    return described | {"provenance": _bounded(manifest.provenance, _MAX_ORIGINS - 1)}


def extended(provenance: Mapping[str, Any], more: Sequence[Any]) -> dict[str, Any]:
    """Return the provenance of a dataset to which others are added: what made it does not make it again."""
    before = {name: value for name, value in provenance.items() if name != PLAN}
    return before | {"appended": [*before.get("appended", ()), *more]}


def origin_of(view: View) -> dict[str, Any]:
    """Describe the dataset of one folder that a view is of."""
    return origin(view.path, read_manifest(view.path))


def _bounded(provenance: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return a provenance whose origins nest this deep at most: behind the last comes the first."""

    def cut(described: Any) -> Any:
        if not _has_provenance(described):
            return described
        if depth == 1:
            return _first_origin(described)
        return {**described, "provenance": _bounded(described["provenance"], depth - 1)}

    many = {n: list(map(cut, _listed(provenance, n))) for n in ("sources", "appended")}
    one = {"source": cut(provenance.get("source"))}
    kept = {name: value for name, value in provenance.items() if name != PLAN}
    return {**kept, **{name: made for name, made in (one | many).items() if made}}


def _first_origin(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a dataset was made from in the beginning, and how many copies are left out."""
    left_out = 0
    while True:
        provenance = described["provenance"]
        left_out += int(described.get("left_out", 0))
        inner = [provenance.get("source"), *_listed(provenance, "sources")]
        before = next(filter(_has_provenance, inner), None)
        if before is None:
            break
        described, left_out = before, left_out + 1
    names = [
        {name: value for name, value in each.items() if name != "provenance"}
        for each in _listed(provenance, "appended")
        if isinstance(each, Mapping)
    ]
    first = {**described, "provenance": {**provenance, **({"appended": names} if names else {})}}
    return first | ({"left_out": left_out} if left_out else {})


def _listed(provenance: Mapping[str, Any], name: str) -> list[Any]:
    value = provenance.get(name)
    return value if isinstance(value, list) else []  # a Writer is given what its caller likes


def _has_provenance(described: Any) -> bool:
    return isinstance(described, Mapping) and isinstance(described.get("provenance"), Mapping)


def describe_origin(provenance: Mapping[str, Any]) -> str:
    """Return what made a dataset, of what, and the options that are not the usual ones.

    Example:
        >>> describe_origin({"recipe": "images", "source": "photos", "quality": 80, "gray": False})
        'images: photos, quality=80'
        >>> describe_origin({"command": "merge", "sources": [{"name": "a"}, {"name": "b"}]})
        'merge: 2 datasets (a, b)'
    """
    command = str(provenance.get("command") or provenance.get("recipe") or "")
    made_of = _made_of(provenance)
    head = ": ".join(filter(None, [command, made_of]))
    appended = provenance.get("appended")
    more = [f"appended: {_named(appended)}"] if isinstance(appended, list) and appended else []
    return _cut(", ".join(filter(None, [head, *_options(provenance, command), *more])), _MAX_CHARS)


def _made_of(provenance: Mapping[str, Any]) -> str:
    source, sources = provenance.get("source"), provenance.get("sources")
    if isinstance(sources, list):
        return _named(sources)
    if isinstance(source, list):  # files of text or ids
        return _files(source, len(source), at_least=len(source) == _KEPT_FILE_NAMES)
    if isinstance(source, Mapping):
        if isinstance(files := source.get("files"), list):
            return _files(files, source.get("num_files", len(files)))
        return _word(source.get("name", source.get("kind", "")))
    kind = provenance.get("kind")
    return f"{_word(source)} ({kind})" if source and kind else _word(source or "")


def _named(sources: Sequence[Any]) -> str:
    names = [each.get("name", "?") if isinstance(each, Mapping) else each for each in sources]
    return f"{counted(len(names), 'dataset')} ({_some(names)})"


def _files(names: Sequence[Any], num: int, *, at_least: bool = False) -> str:
    return f"{counted(num, 'file')}{' or more' if at_least else ''} ({_some(names)})"


def _some(names: Sequence[Any]) -> str:
    few = ", ".join(_word(name) for name in names[:_MAX_NAMES])
    return few + (", ..." if len(names) > _MAX_NAMES else "")


def _options(provenance: Mapping[str, Any], command: str) -> Iterator[str]:
    inner, usual = provenance.get("options"), USUAL.get(command, {})
    options = {**provenance, **(inner if isinstance(inner, Mapping) else {})}
    for name, value in options.items():
        if name not in _ELSEWHERE and value and value != usual.get(name):
            yield f"{name}={_cut(_value(value), _MAX_VALUE_CHARS)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{_word(name)}:{_word(each)}" for name, each in value.items())
    return ",".join(map(_word, value)) if isinstance(value, list) else _word(value)


def _word(value: Any) -> str:
    """Return a value as it is where it can be printed, and is plainly one."""
    text = str(value)
    return text if text.isprintable() and text == text.strip() else ascii(text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of JSON types; ValueError at once, not when everything is packed."""
    try:
        return dict(json.loads(json.dumps(dict(provenance), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        what = (
            "provenance must be a mapping of JSON values (str, int, finite float, list, dict, ...)"
        )
        raise ValueError(f"{what}, got {provenance!r}: {error}") from error
