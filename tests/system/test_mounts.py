from pathlib import Path

import pytest

from loaders.system.mounts import Mount, mount_of

MOUNTS = """\
22 1 0:29 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:30 / {data} rw,relatime shared:1 - {kind} server:/x rw
24 22 0:31 / /with\\040space rw - tmpfs none rw
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [
        *((kind, True) for kind in ("nfs4", "fuse.s3fs", "fuse", "cifs", "smb3", "lustre", "9p")),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs")),
    ],
)
def test_what_lies_on_other_machines_is_known_by_its_kind(kind: str, is_network: bool) -> None:
    assert Mount(Path("/data"), kind).is_network is is_network


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path) -> None:
    assert mount_of(tmp_path, tmp_path) is None


def test_names_of_mounts_may_have_spaces(proc: Path) -> None:
    (proc / "self/mountinfo").write_text(MOUNTS.format(data="/d", kind="nfs"))

    mount = mount_of(Path("/with space/x"), proc)

    assert mount is not None
    assert mount.kind == "tmpfs"


@pytest.mark.parametrize(
    ("point", "written"),
    [
        ("/mnt/datenü", "/mnt/datenü"),
        ("/mnt/数据", "/mnt/数据"),
        ("/mnt/ü 1", "/mnt/ü\\0401"),
        ("/mnt/a\\n", "/mnt/a\\134n"),
        ("/mnt/a\u3000b", "/mnt/a\u3000b"),
        ("/mnt/a\u2028b", "/mnt/a\u2028b"),
    ],
)
def test_names_of_mounts_may_have_any_characters(proc: Path, point: str, written: str) -> None:
    """The kernel writes some of them as three octal digits."""
    line = f"23 22 0:30 / {written} rw,relatime shared:1 - nfs4 server:/x rw\n"
    (proc / "self/mountinfo").write_text(MOUNTS.format(data="/d", kind="xfs") + line)

    mount = mount_of(Path(point) / "train", proc)

    assert mount is not None
    assert (str(mount.point), mount.kind) == (point, "nfs4")


def test_of_mounts_at_one_place_the_last_one_counts_and_a_deeper_one_more(
    proc: Path,
) -> None:
    """Below it lies what was there before; the order of the others says nothing."""
    lines = [f"2{i} 1 0:3{i} / {p} rw - {k} none rw" for i, (p, k) in enumerate(
        [("/data", "ext4"), ("/data", "xfs"), ("/", "overlay")]
    )]  # fmt: skip
    (proc / "self/mountinfo").write_text("\n".join(lines))

    mount = mount_of(Path("/data/train"), proc)

    assert mount is not None
    assert mount.kind == "xfs"
