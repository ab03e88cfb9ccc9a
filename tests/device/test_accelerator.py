import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.device.accelerator import shared_device
from tests.device.copies import ManualCopies


@pytest.mark.parametrize(
    ("environ", "device", "num_devices", "what"),
    [
        ({}, "cuda:0", 8, None),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}, "cuda:0", 8, None),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "cuda:3", 8, None),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "cpu", 8, None),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "cuda:0", 8, "torch.cuda.set_device(3)"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cuda:0", 1, "shows only 1 for 2 ranks"),
        (
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"},
            "cuda:0",
            1,
            None,
        ),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "8"}, "cuda:0", 8, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "cuda:0", 8, None),
    ],
)
def test_ranks_on_one_device_are_told_of(
    environ: dict[str, str], device: str, num_devices: int, what: str | None
) -> None:
    warning = shared_device(torch.device(device), num_devices, environ)

    assert warning is None if what is None else warning is not None and what in warning


def test_the_loader_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that is not there, with copies of the tests' own."""
    copies = ManualCopies()
    copies.device = torch.device("cuda:0")
    monkeypatch.setattr("loaders.loading.loader.accelerator_for", lambda device: copies)
    monkeypatch.setattr("loaders.loading.loader.pins", lambda device: False)
    monkeypatch.setattr("loaders.loading.delivery.pinned", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    loader = DataLoader(RAMDataset.from_arrays(x=torch.arange(8)), batch_size=2, device="cuda")

    with pytest.warns(UserWarning, match="cuda:0"):
        iter(loader)

    assert len(list(loader)) == 4  # no second warning: it would be an error here
