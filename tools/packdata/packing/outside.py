"""A target that is none of its sources, whatever links they are named by."""

from __future__ import annotations

import os
from glob import glob
from typing import TYPE_CHECKING

from loaders.errors import PackError
from loaders.remote.url import KINDS, URL, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def check_outside(dst: Path | str, sources: Sequence[Path | str]) -> None:
    """Raise PackError for a target that is a source, lies in one, or holds one: each is lost or changed by it."""
    (target,) = _real(dst, is_pattern=False)
    for source in sources:
        for real in _real(source, is_pattern=True):
            if f"{target}/".startswith(f"{real}/") or f"{real}/".startswith(f"{target}/"):
                what = f"it is the source {str(source)!r}, or one lies inside the other"
                raise PackError(what, dst, "Choose a folder beside it; nothing was written")


def _real(place: Path | str, *, is_pattern: bool) -> list[str]:
    """Return a path without links, or a URL as all spell it; of a pattern, what it means."""
    url = place_of(place)
    if isinstance(url, URL) and url.scheme != "file":
        scheme, _, rest = str(url).partition("://")
        return [f"{KINDS.get(scheme, scheme)}://{os.path.normpath(rest)}"]
    path = os.fspath(url).removeprefix("file://")
    found = glob(path, recursive=True) if is_pattern and not os.path.lexists(path) else []
    return [*map(os.path.realpath, found or [path])]
