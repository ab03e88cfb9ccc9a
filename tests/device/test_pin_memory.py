"""``pin_memory=True`` without ``device=``: the user copies in the background, and drops the batch at once.

torch uses such memory again only when its own copies from it are done. Slots know of no copy.
"""

import ctypes
from typing import Any

import pytest
import torch

from loaders import DataLoader, RAMDataset

NUM, BATCH = 64, 4
WAYS = [
    pytest.param({"num_workers": 0}, id="inline"),
    pytest.param({"num_workers": 2, "backend": "thread"}, id="thread"),
    pytest.param(
        {"num_workers": 2, "backend": "subprocess"}, id="subprocess", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", [16, 128])  # groups of batches, and each alone
def test_what_a_late_copy_reads_is_still_there(
    monkeypatch: pytest.MonkeyPatch, way: dict[str, Any], side: int
) -> None:
    """Page-locked memory needs a GPU: here any that lives on stands for it, as torch's does for late copies."""
    blocks: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        blocks.append(tensor.clone())
        return blocks[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("loaders.backends.maker.pinned", copied)
    images = torch.arange(NUM, dtype=torch.uint8)[:, None, None, None].repeat(1, 3, side, side)
    dataset = RAMDataset.from_arrays(image=images, label=torch.arange(NUM))
    loader = DataLoader(dataset, BATCH, shuffle=True, pin_memory=True, **way)

    late = []
    for _ in range(3):
        for batch in loader:
            late.append((batch.image.data_ptr(), batch.label.tolist()))
            del batch

    assert len(late) == 3 * NUM // BATCH
    for address, labels in late:
        read = [ctypes.string_at(address + i * 3 * side * side, 1)[0] for i in range(BATCH)]
        assert read == labels


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("way", WAYS)
def test_copies_of_ones_own_are_right_however_late(way: dict[str, Any]) -> None:
    images = torch.arange(NUM, dtype=torch.uint8)[:, None, None, None].repeat(1, 3, 128, 128)
    dataset = RAMDataset.from_arrays(image=images, label=torch.arange(NUM))
    loader = DataLoader(dataset, BATCH, shuffle=True, pin_memory=True, **way)

    copied = []
    for image, label in loader:
        assert image.is_pinned()
        torch.cuda._sleep(20_000_000)  # so that copies are late
        copied.append((image.to("cuda", non_blocking=True), label.clone()))

    for image, label in copied:
        assert torch.equal(image[:, 0, 0, 0].cpu().long(), label)
