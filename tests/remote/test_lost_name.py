"""A server's name that stops resolving in the middle of a run: ridden out, or one error on all ranks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaders import DataLoader, ShardDataset
from tests.remote import servers
from tests.remote.conftest import SETTINGS, ended
from tests.remote.test_remote import S3

NAME = "bucket.test"
RANK = """
import json, sys
from loaders import DataLoader, LoadersError, ShardDataset
url, cache, storage, rank = json.loads(sys.argv[1])
dataset = ShardDataset(url, cache=cache, storage=storage)
options = {"rank": rank, "world_size": 2, "drop_last": True, "num_workers": 1}
try:
    for step, batch in enumerate(DataLoader(dataset, 10, collate_fn=list, **options)):
        print(step, int(sum(each.values.long().sum() for each in batch)), flush=True)
        if step == 0:
            sys.stdin.readline()
except LoadersError as error:
    cause = error.__cause__
    print(json.dumps([type(cause).__name__, str(cause.path), cause.hint]), flush=True)
"""


def can_mount() -> bool:
    """Tell whether a process may have an /etc/hosts of its own."""
    command = ["unshare", "-m", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    try:
        return os.getuid() == 0 and not subprocess.run(command, check=False).returncode
    except OSError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="needs a mount namespace of its own"),
]


class Ranks:
    """Two ranks, and their fetcher, which know a server's name by a file of hosts."""

    def __init__(self, folder: Path, cache: Path, port: str) -> None:
        self._hosts = folder / "hosts"
        self.resolve(True)
        options = SETTINGS | {"endpoint": f"http://{NAME}:{port}", "retry_timeout": 6}
        mount = f"mount --bind {self._hosts} /etc/hosts && exec " + '"$@"'
        command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", RANK]
        self.ranks = [
            subprocess.Popen(
                [*command, json.dumps([S3, str(cache), options, rank])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        self.first = [rank.stdout.readline() for rank in self.ranks if rank.stdout]

    def resolve(self, is_known: bool) -> None:
        """Know the name from now on, or know it no more; the same file, which is mounted."""
        self._hosts.write_text("127.0.0.1 localhost\n" + f"127.0.0.1 {NAME}\n" * is_known)

    def go_on(self) -> list[list[str]]:
        """Let them read on; return what each printed."""
        outputs = [rank.communicate("\n", timeout=120)[0] for rank in self.ranks]
        pairs = zip(self.first, outputs, strict=True)
        return [(first + output).splitlines() for first, output in pairs]


@pytest.fixture
def ranks(tmp_path: Path, proxy: servers.Proxy) -> Iterator[Ranks]:
    """At their second batch, when half of the data is to come; connections that are open by now break."""
    proxy.set(faults=[{"kind": "hang", "match": "shard-0000[5-9]"}])
    with ended(tmp_path / "cache") as cache:
        found = Ranks(tmp_path, cache, proxy.endpoint.rpartition(":")[2])
        proxy.set(faults=[{"kind": "reset", "at": [*range(12)]}])
        yield found
        for rank in found.ranks:
            rank.kill()
            rank.wait()


def test_a_name_that_is_lost_for_good_is_one_error_on_all_ranks_in_bounded_time(
    ranks: Ranks,
) -> None:
    ranks.resolve(False)
    began = time.monotonic()

    outputs = ranks.go_on()

    assert time.monotonic() - began < 60
    for lines in outputs:
        kind, path, hint = json.loads(lines[-1])
        assert (kind, path.rpartition("/")[0]) == ("RemoteError", S3)
        assert hint


def test_a_name_that_comes_back_is_waited_for(ranks: Ranks, packed: Path) -> None:
    ranks.resolve(False)
    for each in ranks.ranks:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    time.sleep(1.5)
    ranks.resolve(True)

    outputs = ranks.go_on()

    local = ShardDataset(packed / "bucket/packed")
    for rank, lines in enumerate(outputs):
        loader = DataLoader(local, 10, rank=rank, world_size=2, drop_last=True)
        sums = [int(batch.values.long().sum()) for batch in loader]
        assert [int(line.split()[1]) for line in lines] == sums
