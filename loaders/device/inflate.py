"""``dct`` records decompressed where their images are made: the host only copies bytes.

nvCOMP does it on CUDA, a batch in one call; its Python API has what is needed from version 6 on
(``nvidia-nvcomp-cu12``, ``nvidia-nvcomp-cu13``). The CPU's decompressor stands behind the same interface.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from loaders.device.accelerator import as_device
from loaders.device.decode import Coefficients
from loaders.errors import BatchError, LoadersError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.codecs.dct import DctCodec
    from loaders.device.blocks import Cut
    from loaders.device.decode import DctFinish

ALIGNMENT = 16  # what nvCOMP's documentation says fits every format


class Compressed(NamedTuple):
    """A batch of ``dct`` images as the host reads it."""

    # uint8 ``(n,)``: the bands that a scale needs, image by image, each from the next multiple of ``ALIGNMENT`` on.
    data: torch.Tensor
    sizes: list[int]  # of the bands, in bytes; a list stays on the host
    positions: torch.Tensor  # as in ``Coefficients``
    adds: torch.Tensor  # as in ``Coefficients``


class BufferPlaces(NamedTuple):
    """Where parts lie in a buffer."""

    offsets: list[int]  # where each begins, in bytes
    sizes: list[int]  # their bytes


class Decompress(Protocol):
    """Decompresses the parts of one buffer into places of another, both on the same device."""

    def __call__(
        self, data: torch.Tensor, parts: BufferPlaces, out: torch.Tensor, places: BufferPlaces
    ) -> None:
        """Decompress; what is queued on the current stream comes after it."""


class InflateFinish(nn.Module):
    """Turn ``Compressed`` of N images into pixels: decompress, then ``finish``.

    By default nvCOMP does it on CUDA, the CPU's decompressor on the CPU.

    Raises:
        LoadersError: At construction, there is nothing that decompresses on this device.
        BatchError: At call, the sizes are not those of whole images, or of other data.
    """

    def __init__(
        self,
        codec: DctCodec,
        finish: DctFinish,
        device: torch.device | str,
        decompress: Decompress | None = None,
    ) -> None:
        super().__init__()
        self.finish = finish
        self._bands = _bands_of(codec, finish.side)
        place = as_device(device)
        if decompress is None:
            decompress = HostInflate(codec) if place.type == "cpu" else NvcompInflate(codec, place)
        self._decompress = decompress

    @torch.no_grad()
    def forward(self, batch: Compressed, cut: Cut | None = None) -> torch.Tensor:
        """Return the images, or a window of each."""
        return self.finish(self.coefficients(batch), cut)  # type: ignore[no-any-return]

    def coefficients(self, batch: Compressed) -> Coefficients:
        """Return what the host would have handed over."""
        parts = places_of(batch.sizes)
        num, rest = divmod(len(batch.sizes), len(self._bands))
        end = parts.offsets[-1] + parts.sizes[-1] if parts.sizes else 0
        if rest or end > len(batch.data):
            what = f"{len(batch.sizes)} bands up to byte {end} of {len(batch.data)}"
            raise BatchError(f"takes {len(self._bands)} bands per image, got {what}")
        row = places_of(self._bands)
        stride = -(-(row.offsets[-1] + row.sizes[-1]) // ALIGNMENT) * ALIGNMENT
        offsets = (np.arange(num)[:, None] * stride + row.offsets).reshape(-1)
        # Zeros: so that the same bytes are there, whatever a decompressor leaves between bands.
        out = torch.zeros(num * stride, dtype=torch.uint8, device=batch.data.device)
        if num:
            self._decompress(
                batch.data, parts, out, BufferPlaces(offsets.tolist(), self._bands * num)
            )
        rows = out.view(num, stride)
        bands = [rows[:, at : at + n] for at, n in zip(*row, strict=True)]
        return Coefficients(torch.cat(bands, 1), batch.positions, batch.adds)


def places_of(sizes: Sequence[int]) -> BufferPlaces:
    """Return where parts of these sizes lie in a row, each aligned.

    Example:
        >>> places_of([3, 16, 5])
        BufferPlaces(offsets=[0, 16, 32], sizes=[3, 16, 5])
    """
    room = -(-np.asarray(sizes, np.int64) // ALIGNMENT) * ALIGNMENT
    return BufferPlaces((np.cumsum(room) - room).tolist(), list(sizes))


def _bands_of(codec: DctCodec, side: int) -> list[int]:
    ends = np.cumsum(codec.band_nbytes).tolist()
    return list(codec.band_nbytes[: ends.index(codec.row_nbytes(side)) + 1])


class HostInflate:
    """The CPU's decompressor, part by part."""

    def __init__(self, codec: DctCodec) -> None:
        self._codec = codec

    def __call__(
        self, data: torch.Tensor, parts: BufferPlaces, out: torch.Tensor, places: BufferPlaces
    ) -> None:
        """Decompress; CodecError if a part is damaged."""
        source, target = data.numpy(), out.numpy()
        for at, size, to, nbytes in zip(*parts, *places, strict=True):
            plain = self._codec.decompress_band(source[at : at + size].data, nbytes)
            target[to : to + nbytes] = np.frombuffer(plain, np.uint8)


class NvcompInflate:
    """nvCOMP, all parts in one call on a stream of its own. It trusts its input: see that records are checked.

    LoadersError if it is not installed, or the device is no CUDA device.
    """

    def __init__(self, codec: DctCodec, device: torch.device) -> None:
        if device.type != "cuda":
            raise LoadersError(
                f"records cannot be decompressed on {device}: leave that to the workers"
            )
        self._nvcomp = nvcomp_module()
        self._stream = torch.cuda.Stream(device)
        self._codec = self._nvcomp.Codec(
            algorithm={"lz4": "LZ4", "zstd": "Zstd"}[codec.compression],
            bitstream_kind=self._nvcomp.BitstreamKind.RAW,
            device_id=self._stream.device.index,
            cuda_stream=self._stream.cuda_stream,
        )

    def __call__(
        self, data: torch.Tensor, parts: BufferPlaces, out: torch.Tensor, places: BufferPlaces
    ) -> None:
        """Decompress. The trainer waits once: nvCOMP reads the sizes of its results on the host."""
        current, handle = torch.cuda.current_stream(data.device), self._stream.cuda_stream
        self._stream.wait_stream(current)
        carve = self._nvcomp.as_arrays
        with torch.cuda.stream(self._stream):
            source = carve(data, *parts, cuda_stream=handle)
            self._codec.decode(source, out=carve(out, *places, cuda_stream=handle))
        current.wait_stream(self._stream)
        for tensor in (data, out):
            tensor.record_stream(self._stream)


def nvcomp_module() -> Any:
    """Return nvCOMP's module; LoadersError if it is not installed, or too old."""
    where = "pip install nvidia-nvcomp-cu12 (or -cu13), or leave it to the workers"
    if importlib.util.find_spec("nvidia") is None or not importlib.util.find_spec("nvidia.nvcomp"):
        raise LoadersError(f"decompressing on a GPU needs nvCOMP: {where}")
    nvcomp = importlib.import_module("nvidia.nvcomp")
    if int(nvcomp.__version__.split(".")[0]) < 6:
        raise LoadersError(f"nvCOMP {nvcomp.__version__} is too old, 6 is needed: {where}")
    return nvcomp
