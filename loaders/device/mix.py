"""MixUp and CutMix: batches mixed with themselves, on whichever device holds them; and seeds for third-party modules.

What is drawn is a function of seed, epoch and the samples of the batch: the same after a resume, whichever worker
made the batch, and without asking the device for anything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from loaders.augment.edits import hashed
from loaders.checks import real_number, shown, whole_number
from loaders.errors import BatchError
from loaders.rng import key64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NUM_QUANTILES = 4096


class _Mix(nn.Module, ABC):
    """A batch mixed with the same one, shifted by one sample, and its labels likewise."""

    def __init__(
        self, num_classes: int | None = None, *, alpha: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        if num_classes is not None:
            whole_number("num_classes", num_classes, at_least=1)
        self.num_classes = num_classes
        self.alpha = float(real_number("alpha", alpha, at_least=1e-3, at_most=1e6))
        self.seed = whole_number("seed", seed)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor, sample_ids: Any, *, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed images, and soft labels float32 ``(N, num_classes)``.

        Args:
            images: ``(N, C, H, W)``, uint8 or floats.
            labels: ``(N,)`` of integers, or soft ones ``(N, num_classes)``: floats, or 0 and 1.
            sample_ids: ``(N,)``: which samples these are, the field ``sample_id``.
            epoch: From 0.

        Raises:
            TypeError: Images or labels are no tensor.
            BatchError: They do not fit together, or a label on the host is not in [0, num_classes). (On a device its
                row is NaN.)
        """
        soft = self._soft(images, labels)
        ids = torch.as_tensor(sample_ids).to(images.device, non_blocking=True)
        if ids.shape != (len(images),):
            raise BatchError(
                f"sample_id must have one entry per image ({len(images)}), got {shown(ids)}"
            )
        word = batch_word(ids, self.seed, whole_number("epoch", epoch, at_least=0))
        numbers = uniform_of(word, (1, 2, 3))
        table = torch.from_numpy(_beta_quantiles(self.alpha)).to(images.device, non_blocking=True)
        at = numbers[0] * (_NUM_QUANTILES - 1)
        low = at.long()
        share = torch.lerp(table[low], table[low + 1], (at - low).to(table.dtype))
        mixed, share = self._mixed(images, share, numbers)
        return mixed, torch.lerp(soft.roll(1, 0), soft, share)

    def _soft(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not all(isinstance(each, torch.Tensor) for each in (images, labels)):
            raise TypeError(f"tensors are mixed, got {shown(images)} and {shown(labels)}")
        is_soft = labels.dim() == 2
        num = labels.shape[1] if is_soft and self.num_classes is None else self.num_classes
        if num is None:
            raise BatchError(f"labels (N,) need {type(self).__name__}(num_classes=...)")
        sizes = (len(images), num) if is_soft else (len(images),)
        if labels.shape != sizes or images.dim() != 4:
            raise BatchError(
                f"{tuple(images.shape)} images and {num} classes do not fit {tuple(labels.shape)} labels"
            )
        soft = labels.float() if is_soft else one_hot(labels, num)
        if is_soft and not labels.is_floating_point():  # flags, not several classes a sample
            soft = soft.where((soft == 0) | (soft == 1), math.nan)
        # A device is not asked, which would wait for it: there the loss is NaN.
        if labels.device.type == "cpu" and (is_bad := soft.isnan()).any():
            bounds = "[0, 1]" if is_soft else f"[0, {num}): check num_classes"
            label = labels[is_bad.any(1)][0].tolist()
            raise BatchError(f"label {label} is not in {bounds}")
        return soft

    @abstractmethod
    def _mixed(
        self, images: torch.Tensor, share: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed images, and the share that a sample keeps of itself."""

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"num_classes={self.num_classes}, alpha={self.alpha}, seed={self.seed}"


class MixUp(_Mix):
    """Mean of two samples, and of their labels, by one share for the batch.

    Args:
        num_classes: Of labels ``(N,)`` of integers; not needed for soft ones ``(N, num_classes)``.
        alpha: Both parameters of the Beta distribution that shares are drawn from, above 0.
        seed: Of the run.

    Raises:
        TypeError: At construction, an argument is not a number.
        ValueError: At construction, an argument is out of range.

    Source:
        ``MixUp`` of torchvision, whose partners are each sample's neighbour in the batch; Zhang et al., "mixup: Beyond
        Empirical Risk Minimization", 2017.
    """

    def _mixed(
        self, images: torch.Tensor, share: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        floats = images if images.is_floating_point() else images.float()
        mixed = torch.lerp(floats.roll(1, 0), floats, share.to(floats.dtype))
        return (mixed if images.is_floating_point() else mixed.round_().to(images.dtype)), share


class CutMix(_Mix):
    """A rectangle of another sample, and as much of its label, at one place for the batch.

    Args:
        num_classes: Of labels ``(N,)`` of integers; not needed for soft ones ``(N, num_classes)``.
        alpha: Both parameters of the Beta distribution that shares are drawn from, above 0.
        seed: Of the run.

    Raises:
        TypeError: At construction, an argument is not a number.
        ValueError: At construction, an argument is out of range.

    Source:
        ``CutMix`` of torchvision; Yun et al., "CutMix", 2019.
    """

    def _mixed(
        self, images: torch.Tensor, share: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.ones((), device=images.device)
        inside = torch.ones((), dtype=torch.bool, device=images.device)
        for axis, number in ((2, numbers[1]), (3, numbers[2])):
            length = images.shape[axis]
            middle, half = (number * length).floor(), (0.5 * (1 - share).sqrt() * length).floor()
            first, last = (middle - half).clamp(min=0), (middle + half).clamp(max=length)
            at = torch.arange(length, device=images.device)
            line = ((at >= first) & (at < last)).view(
                (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
            )
            inside, kept = inside & line, kept * (last - first) / length
        return torch.where(inside, images.roll(1, 0), images), 1 - kept


def one_hot(labels: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return labels ``(N,)`` as float32 ``(N, num_classes)``, rows of NaN for those that are no class."""
    classes = torch.arange(num_classes, device=labels.device)
    is_class = labels.float().unsqueeze(1) == classes  # of unsigned labels, too
    return is_class.float().masked_fill(~is_class.any(1, keepdim=True), math.nan)


def batch_word(ids: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
    """Return a number of 32 bits of the samples of a batch."""
    place = torch.arange(len(ids), device=ids.device)
    mixed = _bits(_bits(ids.long() & 0xFFFFFFFF, seed & 0xFFFFFFFF) + place, epoch & 0xFFFFFFFF)
    return mixed.sum() & 0xFFFFFFFF


def uniform_of(words: torch.Tensor, purposes: Sequence[int]) -> torch.Tensor:
    """Return numbers in [0, 1) of words, float32: for each purpose one of each."""
    return torch.stack([_bits(words, k) >> 8 for k in purposes]).to(torch.float32) * 2.0**-24


def _bits(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Hash to 32 bits, by four bytes of ``hashed``."""
    low, seed = x & 0x7FFFFFFF, (seed ^ 0x2545F491) & 0x7FFFFFFF
    parts: list[torch.Tensor] = [
        hashed(low, (seed + k * 0x3C6EF372) & 0x7FFFFFFF) << (8 * k) for k in range(4)
    ]
    return parts[0] | parts[1] | parts[2] | parts[3]


@cache
def _beta_quantiles(alpha: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return quantiles of the symmetric Beta distribution, ``(4097,)`` float32 from 0 to 1.

    By adding its density up over a grid that is fine where that has poles, at both ends.
    """
    edges = (1 - np.cos(np.linspace(0, np.pi, 200_001))) / 2
    middle = (edges[1:] + edges[:-1]) / 2
    logs = (alpha - 1) * (np.log(middle) + np.log1p(-middle)) + np.log(np.diff(edges))
    below = np.concatenate([[0.0], np.cumsum(np.exp(logs - logs.max()))])
    at = np.linspace(0, 1, _NUM_QUANTILES)
    found = np.interp(at, below / below[-1], edges)
    return np.append(found, 1.0).astype(np.float32)


@contextmanager
def seeded(*words: int) -> Iterator[None]:
    """Draw from torch's generators what follows from some numbers; behind the block they go on as before it.

    Modules that draw for a batch, such as kornia's, then draw the same for it after a resume. Both the generator of the
    CPU and that of the current CUDA device are seeded; nothing waits for the device.

    Args:
        *words: Whole numbers, such as seed, epoch, step and rank.

    Raises:
        TypeError: A word is not an integer.

    Example:
        >>> def drawn(epoch: int, step: int) -> torch.Tensor:
        ...     with seeded(0, epoch, step):
        ...         return torch.rand(3)
        >>> torch.equal(drawn(1, 5), drawn(1, 5)), torch.equal(drawn(1, 5), drawn(1, 6))
        (True, False)
    """
    key = key64(*(whole_number("words", word) for word in words))
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(key)
        if devices:
            torch.cuda.manual_seed(key)
        yield
