"""Which file system a path lies in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|lustre|gpfs|beegfs|ceph|9p|afs|panfs|fhgfs|wekafs|ocfs2|gfs2|glusterfs"
    r"|fuse\.(?!fuse-overlayfs).*|fuse"
)

# The fifth word of a line, and the first one behind the dash; str.split() knows other blanks, which names may have.
_LINE = re.compile(r"^(?:[^ \n]+ ){4}([^ \n]+) .*? - ([^ \n]+)", re.MULTILINE)


class Mount(NamedTuple):
    """A mounted file system: where, and of which kind, such as ``"ext4"``."""

    point: Path
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether its files lie on other machines."""
        return bool(_NETWORK.fullmatch(self.kind))


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount | None:
    """Return what a path is on: the deepest mount above it, the last one made if there are more; None: not known."""
    try:
        text = (proc / "self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    resolved, found = path.resolve(), None
    for written, kind in _LINE.findall(text):
        # Spaces are written as \040.
        point = Path(re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), written))
        deeper = found is None or len(point.parts) >= len(found.point.parts)
        if resolved.is_relative_to(point) and deeper:
            found = Mount(point, kind)
    return found
