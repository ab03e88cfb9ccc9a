"""Fused steps on a GPU: one pass over the pixels where Triton works; None says that plain operations must do."""

from __future__ import annotations

import importlib.util
import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import pairwise
from typing import Any

import torch

_log = logging.getLogger(__name__)
# Plain operations round after each step, and so do kernels; Triton 3.9 warns where it is left open.
LAUNCH = {"enable_fp_fusion": False}
_SOURCES = (torch.uint8, torch.uint16, torch.int16)
_TARGETS = (torch.float32, torch.float16, torch.bfloat16)


@cache
def kernels() -> Any:
    """Return the module of kernels, or None where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    from loaders.device import kernels as module

    return module


@cache
def why_not(device: torch.device) -> str | None:
    """Say why no kernel can be started on a device, having tried; None if one can.

    Triton builds its launcher with a C compiler and Python's headers, which many images lack.
    """
    try:
        if kernels() is None:
            return "Triton is not installed"
        row = torch.zeros((1, 1), dtype=torch.int64, device=device)
        gathered(row, row[0], torch.empty_like(row))
    except Exception as error:  # whatever it is, plain operations give the same values
        what = "Triton is installed but starts no kernel here; plain operations take its place"
        _log.warning("%s: %s", what, error)
        return str(error)
    return None


def can_fuse(tensor: torch.Tensor) -> bool:
    """Tell whether kernels may be used on this tensor now: not while it is traced by ``torch.compile``."""
    if torch.compiler.is_compiling() or not tensor.is_cuda:
        return False
    return why_not(tensor.device) is None


def normalized(
    images: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, out: torch.Tensor
) -> torch.Tensor | None:
    """Write ``(images - mean) / std``, float32 and rounded once, to ``out``; None if no kernel takes dtypes or layouts.

    Images are ``(N, C, ...)`` of integers, statistics ``(C,)`` float32, ``out`` floats: all on the device.
    """
    source, target = strides(images), strides(out)
    module, (channels, pixels) = kernels(), (images.shape[1], images.shape[2:].numel())
    if (
        source is None
        or target is None
        or images.dtype not in _SOURCES
        or out.dtype not in _TARGETS
        or pixels * channels > module.MAX_VALUES
        # A slice of something larger: its steps go further than its values.
        or any(c * (channels - 1) + p * pixels > module.MAX_VALUES for _, c, p in (source, target))
    ):
        return None
    if not out.numel():
        return out
    options = {"CHANNELS": channels, "BLOCK": module.BLOCK} | LAUNCH
    is_interleaved = target[1:] == (1, channels)
    num_items = pixels * channels if is_interleaved else pixels
    num_blocks = -(-num_items // module.BLOCK)
    grid = (len(out) * num_blocks,)
    with on_device(out.device):
        if is_interleaved:
            options["SAME"] = source[1:] == target[1:]
            module.normalize_interleaved[grid](
                images, out, mean, std, num_items, num_blocks, *source, target[0], **options
            )
        else:
            module.normalize_planes[grid](
                images, out, mean, std, num_items, num_blocks, *source, *target, **options
            )
    return out


def gathered(x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copy rows of ``x``, in page-locked host memory or on the device, to ``out``, contiguous and on the device."""
    module, num_values = kernels(), x.shape[1]
    num_blocks = -(-num_values // module.BLOCK)
    if out.numel():
        with on_device(out.device):
            grid = (len(out) * num_blocks,)
            options = {"BLOCK": module.BLOCK} | LAUNCH
            module.gather_rows[grid](x, out, rows, num_values, num_blocks, x.stride(0), **options)
    return out


def strides(images: torch.Tensor) -> tuple[int, int, int] | None:
    """Return the steps from image to image, channel to channel and pixel to pixel; None if those are uneven."""
    sizes, steps = images.shape[2:], images.stride()[2:]
    axes = [(n, step) for n, step in zip(sizes, steps, strict=True) if n != 1]
    if not axes:
        return images.stride(0), images.stride(1), 1
    if any(outer != n * inner for (_, outer), (n, inner) in pairwise(axes)):
        return None
    return images.stride(0), images.stride(1), axes[-1][1]


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one: kernels are started there; other devices need no such thing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
