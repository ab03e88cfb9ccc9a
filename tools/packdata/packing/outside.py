"""A target that is none of its sources: by whatever path, link or mount they are named."""

from __future__ import annotations

import os
from functools import cache
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import PackError
from loaders.remote.url import KINDS, URL, is_url, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_outside(dst: Path | str, sources: Sequence[Path | str]) -> None:
    """Raise PackError for a target that is a source, lies in one, or holds one: each is lost or changed by it.

    Names do not decide: links and bind mounts are followed, and a dataset is also known by its manifest
    file, which a copy by hard links shares.
    """
    dst, sources = _as_file(dst), [*map(_as_file, sources)]
    if is_url(dst):
        _check_beside(_one_name(dst), [_one_name(s) for s in sources if is_url(s)])
        return
    target = os.path.realpath(dst)  # unlike Path.resolve(), it does not raise for a link to itself
    # Thousands of sources lie in a few folders.
    identity, above = cache(_identity), cache(_identities_above)
    for source in chain.from_iterable(_matches(s) for s in sources if not is_url(s)):
        real, what = os.path.realpath(source), None
        one, other = (os.path.join(folder, MANIFEST_NAME) for folder in (target, real))
        if identity(target) == identity(real) or identity(one) == identity(other):
            what = "it is the source" if target == real else f"it is the source {str(source)!r}"
        elif identity(real) in above(os.path.dirname(target)):
            what = f"it lies inside the source {str(source)!r}"
        elif identity(target) in above(os.path.dirname(real)):
            what = f"the source {str(source)!r} lies inside it"
        if what is not None:
            raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _as_file(place: Path | str) -> Path | str:
    """Return the path that a URL of a file is."""
    url = place_of(place)
    is_file = isinstance(url, URL) and url.scheme == "file"
    return str(url).removeprefix("file://") if is_file else place


def _one_name(place: Path | str) -> str:
    """Return a URL as all spell it."""
    scheme, _, rest = str(place_of(place)).partition("://")
    return f"{KINDS.get(scheme, scheme)}://{os.path.normpath(rest)}"


def _check_beside(dst: str, sources: Sequence[str]) -> None:
    for source in sources:
        if f"{dst}/".startswith(f"{source}/") or f"{source}/".startswith(f"{dst}/"):
            what = f"it is the source {source}, or one lies inside the other"
            raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _matches(source: Path | str) -> list[Path | str]:
    """Return the files that a pattern means; what is there by that name is no pattern."""
    text = os.fspath(source)
    found = [] if os.path.lexists(text) else glob(text, recursive=True)
    return [*found] or [source]


def _identities_above(folder: str) -> set[tuple[int, int] | str]:
    """Return the identity of a folder, and of all above it."""
    return {_identity(folder), *(_identity(str(path)) for path in Path(folder).parents)}


def _identity(path: str) -> tuple[int, int] | str:
    """Return what all names of a file have in common; the path itself where nothing is there."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return path
    return about.st_dev, about.st_ino
