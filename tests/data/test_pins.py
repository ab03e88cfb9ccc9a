"""A shard that a reader of a cache has mapped is locked, wherever the cache lies."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.data.formats import map_shard
from loaders.data.manifest import ShardInfo

_OVERLAY = """
mkdir lower upper work merged &&
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 77
exec "$0" "$@"
"""
_TRY = """
import pathlib, sys
from tests.data.test_pins import is_kept
sys.exit(0 if is_kept(pathlib.Path("merged/shard.lmdb").absolute()) else 1)
"""


def is_kept(path: Path) -> bool:
    """Tell whether nobody else can lock a file as long as it is mapped, and everybody afterwards."""
    path.write_bytes(bytes(5000))
    data = map_shard(path, ShardInfo(path.name, 1, 5000, "", {}, (0, 0)), pin=True)
    while_mapped = _can_be_locked(path)
    del data
    return not while_mapped and _can_be_locked(path)


def _can_be_locked(path: Path) -> bool:
    with open(path, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_shard_of_a_cache_is_locked_while_it_is_mapped(tmp_path: Path) -> None:
    assert is_kept(tmp_path / "shard.lmdb")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="mounts take a namespace of their own")
def test_a_shard_of_a_cache_in_a_containers_layer_is_locked_too(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """There a map does not keep the file that was locked."""
    program = f"import sys; sys.path.insert(0, {str(pytestconfig.rootpath)!r})\n{_TRY}"
    command = ["unshare", "-rm", "sh", "-c", _OVERLAY, sys.executable, "-c", program]

    done = subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True)

    if done.returncode == 77 or b"unshare" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
