"""Which file system a path lies in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|lustre|gpfs|beegfs|ceph|9p|afs|panfs|fhgfs|wekafs|ocfs2|gfs2|glusterfs"
    r"|fuse\.(?!fuse-overlayfs).*|fuse"
)


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
        lines = (proc / "self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved, found = path.resolve(), None
    for line in lines:
        before, _, after = line.partition(" - ")
        words = before.split()
        # Spaces are written as \040.
        point = Path(re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), words[4]))
        deeper = found is None or len(point.parts) >= len(found.point.parts)
        if resolved.is_relative_to(point) and deeper:
            found = Mount(point, after.split()[0])
    return found
