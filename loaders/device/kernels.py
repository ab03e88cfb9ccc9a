"""Triton kernels. Import this module only where Triton is installed: ``loaders.device.fused`` asks first."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024  # pixels, or values, of one program
MAX_VALUES = 1 << 30  # from first to last of one image: positions inside it are 32-bit


@triton.jit
def span(num_items: tl.tensor, num_blocks: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return which image (or row) this program is for, which run of its items, and which of these there are."""
    program = tl.program_id(0)
    items = (program % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    return (program // num_blocks).to(tl.int64), items, items < num_items


@triton.jit
def normalize_planes(
    x: tl.tensor,
    out: tl.tensor,
    mean: tl.tensor,
    std: tl.tensor,
    num_pixels: tl.tensor,
    num_blocks: tl.tensor,
    x_image: tl.tensor,
    x_channel: tl.tensor,
    x_pixel: tl.tensor,
    out_image: tl.tensor,
    out_channel: tl.tensor,
    out_pixel: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalize a run of pixels of one image, channel by channel, from any layout to any.

    A channels-last source is read in steps of C bytes; its lines stay in the first cache until all
    channels are done. All strides are in elements.
    """
    image, pixels, inside = span(num_pixels, num_blocks, BLOCK)
    first = x + image * x_image
    target = out + image * out_image
    for c in range(CHANNELS):
        values = tl.load(first + c * x_channel + pixels * x_pixel, mask=inside, other=0)
        scaled = tl.div_rn(values.to(tl.float32) - tl.load(mean + c), tl.load(std + c))
        place = target + c * out_channel + pixels * out_pixel
        tl.store(place, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def normalize_interleaved(
    x: tl.tensor,
    out: tl.tensor,
    mean: tl.tensor,
    std: tl.tensor,
    num_values: tl.tensor,
    num_blocks: tl.tensor,
    x_image: tl.tensor,
    x_channel: tl.tensor,
    x_pixel: tl.tensor,
    out_image: tl.tensor,
    SAME: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalize a run of values of one image to channels that alternate, from any layout; ``SAME``: from this one.

    Statistics are chosen, not looked up: a lookup of each value costs more than its pixel.
    """
    image, values, inside = span(num_values, num_blocks, BLOCK)
    channel = values % CHANNELS
    at = values if SAME else values // CHANNELS * x_pixel + channel * x_channel
    pixels = tl.load(x + image * x_image + at, mask=inside, other=0).to(tl.float32)
    center, scale = tl.load(mean), tl.load(std)
    for c in tl.static_range(1, CHANNELS):
        center = tl.where(channel == c, tl.load(mean + c), center)
        scale = tl.where(channel == c, tl.load(std + c), scale)
    scaled = tl.div_rn(pixels - center, scale)
    tl.store(out + image * out_image + values, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gather_rows(
    x: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    num_values: tl.tensor,
    num_blocks: tl.tensor,
    x_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Copy rows of equal size: row ``i`` of the result is row ``rows[i]`` of ``x``, which may be host memory."""
    row, values, inside = span(num_values, num_blocks, BLOCK)
    source = tl.load(rows + row)
    found = tl.load(x + source * x_row + values, mask=inside)
    tl.store(out + row * num_values + values, found, mask=inside)
