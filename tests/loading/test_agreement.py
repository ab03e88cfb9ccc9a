"""Loaders of ranks that differ: real processes, with a store between them and without one."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from loaders import DataLoader, LoadersError, RAMDataset


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def rows() -> RAMDataset:
    return RAMDataset.from_arrays(x=torch.arange(40))


def loader(data: Any = None, **settings: Any) -> DataLoader:
    given = {"batch_size": 4, "shuffle": True, "num_workers": 0} | settings
    return DataLoader(rows() if data is None else data, **given)


def alike(rank: int) -> None:
    assert len(list(loader())) == 5
    if rank == 0:
        assert len(list(loader(seed=7, rank=0, world_size=1))) == 10  # alone, and not counted
    assert len(list(loader(batch_size=2))) == 10


def seeds(rank: int) -> None:
    iter(loader(seed=rank))


def sizes(rank: int) -> None:
    iter(loader())
    iter(loader(batch_size=4 + rank))


def pads(rank: int) -> None:
    iter(loader(pad=rank == 0))


def orders(rank: int) -> None:
    iter(loader(shuffle="block" if rank else True))


def drops(rank: int) -> None:
    iter(loader(drop_last=rank == 0))


def halves(rank: int) -> None:
    iter(loader(rows()[20 * rank : 20 * rank + 20]))


def states(rank: int) -> None:
    """Load a state on one rank alone, as is done with weights that are broadcast."""
    before, resumed = loader(rank=0, world_size=2), loader()
    next(iter(before))
    if rank == 0:
        resumed.load_state_dict(before.state_dict())
    iter(resumed)


def restarted(rank: int) -> None:
    import os

    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rank)  # nobody is left of those before
    iter(loader(seed=rank))


def without_store(rank: int) -> None:
    import os

    del os.environ["MASTER_PORT"]
    iter(loader(seed=rank))


def another_service(rank: int) -> None:
    """The address is of a server that takes connections, and never answers; or of none."""
    import os

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        os.environ["MASTER_PORT"] = str(silent.getsockname()[1]) if rank else "none"
        iter(loader(seed=rank))


def run(rank: int, port: int, job: Callable[[int], None], results: Any) -> None:
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        job(rank)
        results.put((rank, ""))
    except LoadersError as error:
        results.put((rank, str(error)))
    dist.barrier()  # the store is rank 0's
    dist.destroy_process_group()


def errors_of(job: Callable[[int], None]) -> list[str]:
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, (free_port(), job, results), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    found = dict(results.get() for _ in range(2))
    return [text for text in found.values() if text]


@pytest.mark.slow
@pytest.mark.parametrize("job", [alike, restarted, without_store, another_service])
def test_ranks_whose_loaders_are_alike_or_cannot_be_compared_go_on(job: Any) -> None:
    assert errors_of(job) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "values"),
    [
        (seeds, ["seed", "0", "1"]),
        (sizes, ["loader 2", "batch_size", "4", "5"]),
        (pads, ["pad", "True", "False"]),
        (orders, ["kind"]),
        (drops, ["drop_last", "True", "False"]),
        (halves, ["dataset"]),
        (states, ["delivered", "0", "8"]),
    ],
)
def test_the_rank_that_differs_says_in_what(job: Any, values: list[str]) -> None:
    (error,) = errors_of(job)

    assert all(value in error for value in values), error
