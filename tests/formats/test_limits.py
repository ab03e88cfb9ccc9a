"""More shards than files may be open."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.packdata.packing import pack_samples

if TYPE_CHECKING:
    from pathlib import Path

READ = """
import resource, sys
from loaders import ShardDataset
soft, hard = map(int, sys.argv[2:])
dataset = ShardDataset(sys.argv[1], fields=["label"])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(len({dataset[i].label.item() for i in range(len(dataset))}) > 0)
"""


def read(folder: Path, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, str(folder), str(soft), str(hard)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_shards_are_mapped_beyond_the_soft_limit_of_open_files(tmp_path: Path) -> None:
    """Before Python 3.13 each map has a file open."""
    folder = pack_samples(tmp_path / "a", 60, format="parquet", fields=["label"], per_shard=1)
    assert len([*folder.glob("shard-*")]) == 60

    done = read(folder, 40, 400)

    assert done.returncode == 0, done.stderr


def test_where_no_more_may_be_open_the_error_says_so(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 60, format="parquet", fields=["label"], per_shard=1)

    done = read(folder, 40, 40)

    assert done.returncode == 0 if sys.version_info >= (3, 13) else "ulimit -n" in done.stderr
