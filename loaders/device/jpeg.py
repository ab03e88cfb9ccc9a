"""JPEG decoded where the images are used; what the decoder there refuses, the CPU decodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from loaders.codecs.heads import picture_size
from loaders.codecs.picture import PictureCodec
from loaders.device.accelerator import as_device
from loaders.errors import CodecError, LoadersError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.schema import Image

# Encoded files, uint8 (n,) in host memory, and a device: images, uint8 (C, H, W), there.
Decode = Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]
_REFUSALS = (RuntimeError, ValueError)  # as torchvision's come


class JpegFinish(nn.Module):
    """Turn encoded files into images on a device, a batch in one call.

    Where the call fails, its halves are tried, and theirs, down to single files: these are decoded
    by the CPU, as are files that are no JPEG or come back in another shape than their header says.
    Decoders differ: of photos most values are the same, others differ by a few steps of uint8.

    Args:
        field: What the files hold.
        device: Where to.
        decode: Decodes there; default: torchvision's on CUDA, the CPU's own elsewhere.

    Attributes:
        num_refused: Files that the CPU decoded in place of ``decode`` so far.

    Raises:
        LoadersError: At construction, there is nothing that decodes on this device.
        CodecError: At call, the CPU cannot decode a file either.

    Example:
        >>> from loaders.schema import Image
        >>> record = PictureCodec(Image(codec="jpeg")).encode(np.full((8, 8, 3), 7, np.uint8))
        >>> [image.unique().tolist() for image in JpegFinish(Image(codec="jpeg"), "cpu")([record])]
        [[7]]
    """

    def __init__(
        self, field: Image, device: torch.device | str, decode: Decode | None = None
    ) -> None:
        super().__init__()
        self.device, self.num_refused = as_device(device), 0
        self._codec, self._channels = PictureCodec(field), field.channels
        if decode is None and self.device.type != "cpu":
            decode = torchvision_decoder(field.channels, self.device)
        self._decode = decode

    def forward(self, records: Sequence[bytes]) -> list[torch.Tensor]:
        """Return the image of each file, uint8 ``(C, H, W)``."""
        found: list[torch.Tensor | None] = [None] * len(records)
        if self._decode is not None:
            numbers = [i for i, record in enumerate(records) if record[:2] == b"\xff\xd8"]
            self._try(records, numbers, found)
            self.num_refused += sum(image is None for image in found)
        return [
            self.decode_on_host(record) if image is None else image
            for record, image in zip(records, found, strict=True)
        ]

    def decode_on_host(self, record: bytes) -> torch.Tensor:
        """Return the image of a file by way of the CPU."""
        pixels = self._codec.decode(np.frombuffer(record, np.uint8))
        return torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)

    def _try(
        self, records: Sequence[bytes], numbers: list[int], found: list[torch.Tensor | None]
    ) -> None:
        """Decode some files together; if that fails, in two parts."""
        if not numbers:
            return
        assert self._decode is not None
        files = [torch.frombuffer(bytearray(records[i]), dtype=torch.uint8) for i in numbers]
        try:
            images = self._decode(files, self.device)
        except _REFUSALS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            middle = len(numbers) // 2
            if middle:
                self._try(records, numbers[:middle], found)
                self._try(records, numbers[middle:], found)
            return
        for i, image in zip(numbers, images, strict=True):
            if self._is_right(records[i], image):
                found[i] = image

    def _is_right(self, record: bytes, image: torch.Tensor) -> bool:
        try:
            return image.shape == (self._channels, *picture_size(record))
        except CodecError:
            return False


def torchvision_decoder(channels: int, device: torch.device) -> Decode:
    """Return torchvision's decoder, which decodes by nvJPEG on CUDA.

    Raises:
        LoadersError: It is not installed, or the device is of another kind.
    """
    if device.type != "cuda":
        raise LoadersError(f"nothing decodes JPEG on {device}: leave it to the workers")
    if importlib.util.find_spec("torchvision") is None:
        raise LoadersError(
            f"decoding JPEG on {device} needs torchvision, of this torch's version and CUDA: "
            "pip install torchvision, or leave it to the workers"
        )
    from torchvision.io import (  # type: ignore[import-not-found, unused-ignore]
        ImageReadMode,
        decode_jpeg,
    )

    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB

    def decode(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decode_jpeg(files, mode=mode, device=device)
        return images

    return decode
