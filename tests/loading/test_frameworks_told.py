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


class GradientState:
    """accelerate's, of which all are one: it keeps weak references, of what ends unnoticed None."""

    refs: ClassVar[list[Any]] = []

    @property
    def dataloader_references(self) -> list[Any]:
        return [ref() for ref in self.refs]

    @dataloader_references.setter
    def dataloader_references(self, hooks: list[Any]) -> None:
        self.refs[:] = map(weakref.ref, hooks)

    @property
    def active_dataloader(self) -> Any:
        return self.dataloader_references[-1]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> GradientState:
    module: Any = ModuleType("accelerate.state")
    module.GradientState, module.is_initialized = GradientState, lambda: True
    module.AcceleratorState = SimpleNamespace
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    GradientState.refs.clear()
    return GradientState()


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
        ends.append([told.end_of_dataloader for told in state.dataloader_references])

    assert ends == [[False]] * 3 + [[True]]
    assert state.dataloader_references == []


def test_accelerate_keeps_no_iteration_that_was_left(state: Any) -> None:
    iterator = iter(DataLoader(numbers(8), 2))
    next(iterator)
    reference = weakref.ref(iterator)

    del iterator
    gc.collect()

    assert reference() is None
    assert state.dataloader_references == []


def test_accelerate_forgets_an_iteration_once(state: Any) -> None:
    iterator = iter(DataLoader(numbers(2), 2))
    assert len(list(iterator)) == 1
    iterator.close()

    later = iter(DataLoader(numbers(2), 2))
    state.refs.clear()  # it was reset
    later.close()


@pytest.mark.parametrize(("pad", "remainder"), [(True, 3), ("mark", 3), (False, 0)])
def test_accelerate_learns_where_padding_begins(state: Any, pad: Any, remainder: int) -> None:
    """``gather_for_metrics`` cuts the last batches of all ranks there."""
    loader = DataLoader(numbers(11), 2, rank=0, world_size=2, pad=pad)

    told = [
        (t.end_of_dataloader, t.remainder) for _ in loader for t in state.dataloader_references
    ]

    assert told == [(False, remainder)] * 2 + [(True, remainder)]


def test_an_iteration_that_is_sent_to_another_epoch_is_told_of_that_one(state: Any) -> None:
    loader = DataLoader(numbers(4), 2, shuffle=True)
    iterator = iter(loader)
    loader.set_epoch(3)

    assert [[t.end_of_dataloader for t in state.dataloader_references] for _ in iterator] == [
        [False],
        [True],
    ]


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
    module.GradientState, module.is_initialized = GradientState, lambda: True
    config = SimpleNamespace(non_data_parallel_size=size)
    module.AcceleratorState = lambda: SimpleNamespace(parallelism_config=config)
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    loader = DataLoader(numbers(4), 2, **given)

    if size == 1 or given:
        assert len(list(loader)) == 2
    else:
        with pytest.raises(LoadersError, match="mesh"):
            iter(loader)


def test_releases_of_accelerate_that_would_not_see_the_end_are_refused(
    state: GradientState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GradientState, "active_dataloader", None)

    with pytest.raises(LoadersError, match="accelerate"):
        iter(DataLoader(numbers(4), 2))
