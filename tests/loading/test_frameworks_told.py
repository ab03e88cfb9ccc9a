"""What frameworks learn of a loader, with stand-ins for them; ``tests/test_frameworks.py`` has the frameworks."""

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from loaders import DataLoader, LoadersError, RAMDataset


def numbers(num: int) -> RAMDataset:
    return RAMDataset.from_arrays(x=torch.arange(num))


class Weak:
    """accelerate's state from 1.5 on: what ends unnoticed stays, as None."""

    _shared_state: ClassVar[dict[str, Any]] = {"refs": []}

    def _add_dataloader(self, told: Any) -> None:
        self._shared_state["refs"].append(weakref.ref(told))

    def _remove_dataloader(self, told: Any) -> None:
        refs = self._shared_state["refs"]
        refs[:] = [ref for ref in refs if ref() is not told]

    @classmethod
    def active(cls) -> list[Any]:
        return [ref() for ref in cls._shared_state["refs"]]


class Strong(Weak):
    """That of older ones: it keeps what it is told of, and forgets nothing twice."""

    _shared_state: ClassVar[dict[str, Any]] = {"refs": []}

    def _add_dataloader(self, told: Any) -> None:
        self._shared_state["refs"].append(told)

    def _remove_dataloader(self, told: Any) -> None:
        self._shared_state["refs"].remove(told)

    @classmethod
    def active(cls) -> list[Any]:
        return list(cls._shared_state["refs"])


@pytest.fixture(params=[Weak, Strong])
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("accelerate.state")
    module.GradientState = request.param
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    request.param._shared_state["refs"].clear()
    return request.param


@pytest.mark.parametrize("num_workers", [0, 1])
def test_accelerate_sees_the_end_of_an_epoch_after_another_loop_within_was_left(
    state: Any, num_workers: int
) -> None:
    """There it syncs gradients: those of the last batches would be added to the next epoch's."""
    train = DataLoader(numbers(8), 2, num_workers=num_workers)
    evaluated = DataLoader(numbers(8), 2, num_workers=num_workers)

    ends = []
    for _ in train:
        for _ in evaluated:
            break
        ends.append([told.end_of_dataloader for told in state.active()])

    assert ends == [[False]] * 3 + [[True]]
    assert state.active() == []


def test_accelerate_keeps_no_iteration_that_was_left(state: Any) -> None:
    iterator = iter(DataLoader(numbers(8), 2))
    next(iterator)
    reference = weakref.ref(iterator)

    del iterator
    gc.collect()

    assert reference() is None
    assert state.active() == []


def test_accelerate_forgets_an_iteration_once(state: Any) -> None:
    iterator = iter(DataLoader(numbers(2), 2))
    assert len(list(iterator)) == 1
    iterator.close()

    later = iter(DataLoader(numbers(2), 2))
    state._shared_state["refs"].clear()  # it was reset
    later.close()


@pytest.mark.parametrize(("pad", "remainder"), [(True, 3), ("mark", 3), (False, 0)])
def test_accelerate_learns_where_padding_begins(state: Any, pad: Any, remainder: int) -> None:
    """``gather_for_metrics`` cuts the last batches of all ranks there."""
    loader = DataLoader(numbers(11), 2, rank=0, world_size=2, pad=pad)

    told = [(t.end_of_dataloader, t.remainder) for _ in loader for t in state.active()]

    assert told == [(False, remainder)] * 2 + [(True, remainder)]


def test_an_iteration_that_is_sent_to_another_epoch_is_told_of_that_one(state: Any) -> None:
    loader = DataLoader(numbers(4), 2, shuffle=True)
    iterator = iter(loader)
    loader.set_epoch(3)

    assert [[t.end_of_dataloader for t in state.active()] for _ in iterator] == [[False], [True]]


def test_accelerate_asks_for_uneven_batches_where_they_are_even() -> None:
    """``join_uneven_inputs`` sets ``even_batches`` of every batch sampler, and sets it back."""
    padded: Any = DataLoader(numbers(4), 2).batch_sampler
    dropped: Any = DataLoader(numbers(4), 2, drop_last=True).batch_sampler
    whole: Any = DataLoader(numbers(4), 2, pad=False).batch_sampler

    assert [each.even_batches for each in (padded, dropped, whole)] == [True, True, False]
    dropped.even_batches = whole.even_batches = False
    with pytest.warns(
        UserWarning, match=r"even_batches=False .* pad=True: make it with pad=False"
    ):
        padded.even_batches = False
    assert padded.even_batches


def test_who_counts_epochs_from_zero_after_a_resume_is_told() -> None:
    """As Fabric's ``setup_dataloaders`` does: the samples of epoch 0 would come again."""
    loader = DataLoader(numbers(8), 2, shuffle=True)
    list(loader)
    next(iter(loader))
    resumed = DataLoader(numbers(8), 2, shuffle=True)
    resumed.load_state_dict(loader.state_dict())

    with pytest.warns(UserWarning, match=r"set_epoch\(0\) goes back, .* is of epoch 1"):
        resumed.set_epoch(0)


def test_lightning_may_seed_workers_of_a_loader_that_has_threads() -> None:
    """``seed_everything(workers=True)`` sets ``worker_init_fn`` of every loader that has none."""
    loader = DataLoader(numbers(4), 2, num_workers=1)

    loader.worker_init_fn = print

    assert [batch.x.tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("size", "given"), [(1, {}), (2, {}), (2, {"rank": 0, "world_size": 1})])
def test_ranks_of_a_mesh_of_accelerates_are_refused_unless_they_are_passed(
    monkeypatch: pytest.MonkeyPatch, size: int, given: dict[str, Any]
) -> None:
    module: Any = ModuleType("accelerate.state")
    module.is_initialized = lambda: True
    config = SimpleNamespace(non_data_parallel_size=size)
    module.AcceleratorState = lambda: SimpleNamespace(parallelism_config=config)
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    loader = DataLoader(numbers(4), 2, **given)

    if size == 1 or given:
        assert len(list(loader)) == 2
    else:
        with pytest.raises(LoadersError, match="mesh"):
            iter(loader)
