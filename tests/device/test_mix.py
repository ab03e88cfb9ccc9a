"""MixUp and CutMix: what they do is a function of the samples of a batch."""

from typing import Any

import numpy as np
import pytest
import torch

from loaders import CutMix, MixUp, seeded
from loaders.device.mix import _beta_quantiles, one_hot
from loaders.errors import BatchError
from tests.torchvision_v2 import torchvision_v2

IDS = torch.arange(100, 108)


def batch(num: int = 8, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (num, 3, size, size + 4), generator=generator)
    return images.to(torch.uint8), torch.arange(num) % 3


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_the_draw_belongs_to_the_samples_of_the_batch(kind: Any) -> None:
    images, labels = batch()
    mix = kind(3, seed=1)

    first, soft = mix(images, labels, IDS, epoch=2)
    again, _ = kind(3, seed=1)(images, labels, IDS.numpy(), epoch=2)

    assert torch.equal(first, again)
    torch.testing.assert_close(soft.sum(1), torch.ones(8))
    others = [
        kind(3, seed=2)(images, labels, IDS, epoch=2),
        mix(images, labels, IDS, epoch=3),
        mix(images, labels, IDS.flip(0), epoch=2),
        mix(images, labels, IDS + 1, epoch=2),
    ]
    assert all(not torch.equal(soft, other[1]) for other in others)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
@pytest.mark.parametrize("label", [-1, 3, 255])
def test_labels_that_are_no_class_are_an_error_on_the_host_and_nan_on_a_device(
    kind: Any, label: int
) -> None:
    images, labels = batch()
    labels[2] = label

    with pytest.raises(BatchError):
        kind(3)(images, labels, IDS)
    rows = one_hot(labels, 3)
    assert rows.isnan().any(1).tolist() == [i == 2 for i in range(8)]
    assert torch.equal(rows[3:], torch.nn.functional.one_hot(labels[3:], 3).float())


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_several_class_numbers_a_sample_are_no_soft_labels(kind: Any) -> None:
    images, labels = batch()
    flags = torch.nn.functional.one_hot(labels, 3)

    assert torch.equal(kind()(images, flags.bool(), IDS)[1], kind()(images, flags.float(), IDS)[1])
    for wrong in (torch.stack([labels, labels], 1), labels[:, None], -flags):
        with pytest.raises(BatchError):
            kind()(images, wrong, IDS)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_whole_numbers_are_classes(kind: Any, dtype: torch.dtype) -> None:
    images, labels = batch()

    found, want = (kind(3)(images, each, IDS)[1] for each in (labels.to(dtype), labels))

    assert torch.equal(found, want)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_soft_labels_of_another_number_of_classes_are_an_error(kind: Any, num: int) -> None:
    """Class numbers with an axis too many, above all."""
    images, labels = batch()

    with pytest.raises(BatchError):
        kind(3)(images, labels[:, None].expand(-1, num), IDS)
    assert kind()(images, torch.ones(8, num), IDS)[1].shape == (8, num)


def share_of(soft: torch.Tensor, labels: torch.Tensor) -> float:
    return float(soft[torch.arange(len(labels)), labels][labels != labels.roll(1)][0])


def test_mixup_of_floats_is_torchvisions_at_the_same_share() -> None:
    v2 = torchvision_v2()
    images, labels = batch()
    floats = images.float() / 255

    mixed, soft = MixUp(3)(floats, labels, IDS)
    share = share_of(soft, labels)
    theirs = v2.MixUp(num_classes=3)
    want = theirs.transform(floats, {"lam": share, "labels": labels, "batch_size": 8})

    torch.testing.assert_close(mixed, want)
    torch.testing.assert_close(soft, theirs._mixup_label(labels, lam=share))
    rounded, _ = MixUp(3)(images, labels, IDS)
    assert (rounded.float() - want * 255).abs().max() <= 0.5 + 1e-3


def test_cutmix_pastes_a_rectangle_and_counts_its_area() -> None:
    images, labels = batch()

    for k in range(20):
        mixed, soft = CutMix(3)(images, labels, IDS + k)
        is_pasted = (mixed != images).any(1).any(0)
        rows, columns = np.flatnonzero(is_pasted.any(1)), np.flatnonzero(is_pasted.any(0))
        area = 0.0
        if len(rows):
            place = np.s_[:, :, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert torch.equal(mixed[place], images.roll(1, 0)[place])
            area = len(rows) * len(columns) / is_pasted.numel()
        assert share_of(soft, labels) == pytest.approx(1 - area, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 4.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    quantiles = _beta_quantiles(alpha)
    drawn = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))

    wanted = np.quantile(drawn, np.linspace(0.02, 0.98, 49))
    found = quantiles[np.rint(np.linspace(0.02, 0.98, 49) * 4095).astype(int)]
    np.testing.assert_allclose(found, wanted, atol=0.01)


@pytest.mark.slow
def test_shares_of_many_batches_are_spread_as_they_should() -> None:
    images, labels = batch(4, 2)
    mix = MixUp(3)

    shares = np.array(
        [share_of(mix(images, labels, IDS[:4] + 8 * k)[1], labels) for k in range(600)]
    )

    counts, _ = np.histogram(shares, 10, (0, 1))
    assert ((counts - 60) ** 2 / 60).sum() < 34  # 99.99 % at 9 degrees of freedom


def test_soft_labels_go_in_and_what_does_not_fit_is_refused() -> None:
    images, labels = batch()
    soft = torch.eye(3)[labels]

    torch.testing.assert_close(MixUp()(images, soft, IDS)[1], MixUp(3)(images, labels, IDS)[1])
    for mix, wrong, ids in (
        (MixUp(), labels, IDS),
        (MixUp(3), labels[:4], IDS),
        (CutMix(3), labels, IDS[:4]),
    ):
        with pytest.raises(BatchError):
            mix(images, wrong, ids)


def test_modules_of_others_draw_what_follows_from_numbers() -> None:
    dropout = torch.nn.Dropout(0.5)

    def drawn(*words: int) -> torch.Tensor:
        with seeded(*words):
            return torch.cat([dropout(torch.ones(40)), torch.rand(40)])

    torch.manual_seed(1)
    want = torch.rand(2)
    torch.manual_seed(1)
    first = torch.rand(1)
    one, again, other = drawn(0, 1, 5), drawn(0, 1, 5), drawn(0, 1, 6)

    assert torch.equal(torch.cat([first, torch.rand(1)]), want)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    with pytest.raises(TypeError):
        drawn(0.5)  # type: ignore[arg-type]
