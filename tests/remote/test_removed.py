"""What somebody removes or kills beside a reader: its cache, a fetcher that starts, the end of an object."""

import os
import shutil
from pathlib import Path

import pytest

from loaders import DataLoader, ShardDataset
from loaders.errors import ChecksumError, SampleError
from tests.remote import servers
from tests.remote.conftest import fetcher_of, is_alive, storage
from tests.remote.test_remote import S3, assert_same, batches
from tests.waiting import wait_until


@pytest.mark.parametrize("what", ["", "v2/lock"])
def test_a_cache_that_is_removed_while_it_is_read_is_made_anew(
    packed: Path, proxy: servers.Proxy, cache: Path, what: str
) -> None:
    """By hand, or by what cleans up temporary folders."""
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    first, pid = next(iter(DataLoader(remote, batch_size=60, num_workers=1))), fetcher_of(cache)

    if what:
        (cache / what).unlink()
    else:
        shutil.rmtree(cache.rename(cache.with_name("removed")))

    assert (first.values == next(iter(DataLoader(local, batch_size=60))).values).all()
    assert_same(batches(remote, batch_size=60), batches(local, batch_size=60))
    wait_until(lambda: not is_alive(pid))
    assert fetcher_of(cache) != pid


def test_an_object_that_ends_early_is_named_so(packed: Path, server: str, cache: Path) -> None:
    """Its server answers with what there is of the range, as servers do."""
    cut = packed / "bucket" / "cut"
    shutil.copytree(packed / "bucket" / "packed", cut)
    shard = next(cut.glob("shard-00001-*"))
    shard.chmod(0o644)
    os.truncate(shard, shard.stat().st_size - 4096)
    remote = ShardDataset("s3://bucket/cut", cache=cache, storage=storage(server))

    with pytest.raises(SampleError) as caught:
        list(DataLoader(remote, batch_size=60, num_workers=0))

    shutil.rmtree(cut)
    assert isinstance(caught.value.__cause__, ChecksumError)
    assert "smaller than the manifest says" in str(caught.value)
