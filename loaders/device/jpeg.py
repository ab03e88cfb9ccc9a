"""JPEG decoded where the images are used; what the decoder there refuses, the CPU decodes."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from loaders.buffers import shown_as_writable
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.codecs.picture import PictureCodec
from loaders.device.accelerator import as_device, indexed
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from loaders.schema import Image

# Encoded files, uint8 (n,) in host memory, not to be written to, and a device: images, uint8 (C, H, W), there; None for
# what is refused.
Decode = Callable[[list[torch.Tensor], torch.device], Sequence[torch.Tensor | None]]
_REFUSALS = (RuntimeError, ValueError)  # as torchvision's come


class JpegFinish(nn.Module):
    """Turn encoded files into images on a device, a batch in one call.

    Where the call fails, files are tried one by one. The CPU decodes those that fail by themselves, files that come
    back in another shape than their header says, and those that are no JPEG, of other colours than gray and YCbCr, or
    cut at their end.
    nvImageCodec gives the CPU's pixels, but for a few values that are a step apart. torchvision has nvJPEG repeat
    chroma that is stored at half size, where the CPU interpolates: photos differ by about 46 dB.

    Args:
        field: What the files hold.
        device: Where to.
        decode: Decodes there; default on CUDA: nvImageCodec if it is installed, else torchvision;
            the CPU's own elsewhere.
        max_picture_mb: MiB that a picture may take, decoded: a larger one is an error before memory is taken.

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
        self,
        field: Image,
        device: torch.device | str,
        decode: Decode | None = None,
        *,
        max_picture_mb: int = MAX_PICTURE_MB,
    ) -> None:
        super().__init__()
        self.device, self.num_refused = as_device(device), 0
        self._codec = PictureCodec(field, max_picture_mb)
        self._channels = field.channels
        if decode is None and self.device.type != "cpu":
            decode = decoder_for(field.channels, self.device)
        self._decode = decode

    def forward(self, records: Sequence[bytes]) -> list[torch.Tensor]:
        """Return the image of each file, uint8 ``(C, H, W)``."""
        found: list[torch.Tensor | None] = [None] * len(records)
        if self._decode is not None:
            sizes = {
                i: size
                for i, record in enumerate(records)
                if (size := _common_size(record)) and math.prod(size) <= self._codec.max_pixels
            }
            images = self._decoded([_as_tensor(records[i]) for i in sizes])
            for (i, size), image in zip(sizes.items(), images, strict=True):
                if image is not None and image.shape == (self._channels, *size):
                    found[i] = image
            self.num_refused += sum(image is None for image in found)
        return [
            self.decode_on_host(record) if image is None else image
            for record, image in zip(records, found, strict=True)
        ]

    def decode_on_host(self, record: bytes) -> torch.Tensor:
        """Return the image of a file by way of the CPU."""
        pixels = self._codec.decode(np.frombuffer(record, np.uint8))
        return torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)

    def _decoded(self, files: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """Decode files together, or if that fails one by one; None for those that are refused."""
        if not files:
            return []
        assert self._decode is not None
        try:
            return self._decode(files, self.device)
        except _REFUSALS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
        return [None] if len(files) == 1 else [self._decoded([file])[0] for file in files]


def _common_size(record: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG that all decoders read in the same way; None of other files.

    Colours differ, and of a file that is cut not every decoder says so.
    """
    if record[-2:] != b"\xff\xd9":
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(record)
    except (ValueError, KeyError):  # no JPEG, or damaged, or of a sampling that has no name there
        return None
    return (height, width) if colours in ("YCbCr", "Gray") else None


def _as_tensor(record: bytes) -> torch.Tensor:
    return torch.from_numpy(shown_as_writable(np.frombuffer(record, np.uint8)))


def decoder_for(channels: int, device: torch.device) -> Decode:
    """Return what decodes on a device: nvImageCodec, or else torchvision.

    Raises:
        LoadersError: Neither is installed, or the device is of another kind.
    """
    if device.type != "cuda":
        raise LoadersError(f"JPEG cannot be decoded on {device}: leave that to the workers")
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nvimgcodec"):
        return nvimgcodec_decoder(channels, device)
    if importlib.util.find_spec("torchvision"):
        return torchvision_decoder(channels)
    cuda = str(torch.version.cuda).split(".")[0]
    raise LoadersError(
        f"decoding JPEG on {device} needs nvImageCodec: pip install 'nvidia-nvimgcodec-cu{cuda}[all]', "
        "or torchvision, of this torch's version and CUDA. Or leave it to the workers"
    )


def nvimgcodec_decoder(channels: int, device: torch.device) -> Decode:
    """Return nvImageCodec's decoder: the JPEG engine of a GPU that has one, and nvJPEG for what that does not take."""
    nvimgcodec: Any = importlib.import_module("nvidia.nvimgcodec")
    kinds = nvimgcodec.BackendKind
    backends = [nvimgcodec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.HYBRID_CPU_GPU)]
    decoder = nvimgcodec.Decoder(device_id=indexed(device).index, backends=backends)
    space = nvimgcodec.ColorSpec.GRAY if channels == 1 else nvimgcodec.ColorSpec.SRGB
    params = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=space)

    def image_of(found: Any, stream: int) -> torch.Tensor | None:
        return found and from_dlpack(found.to_dlpack(cuda_stream=stream)).permute(2, 0, 1)

    def decode(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
        streams = [nvimgcodec.CodeStream(file.numpy()) for file in files]
        stream = torch.cuda.current_stream(device).cuda_stream
        found = decoder.decode(streams, params=params, cuda_stream=stream)
        return [image_of(image, stream) for image in found]

    return decode


def torchvision_decoder(channels: int) -> Decode:
    """Return torchvision's decoder, which decodes by nvJPEG on CUDA."""
    from torchvision.io import (  # type: ignore[import-not-found, unused-ignore]
        ImageReadMode,
        decode_jpeg,
    )

    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB

    def decode(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
        images: list[torch.Tensor | None] = decode_jpeg(files, mode=mode, device=device)
        return images

    return decode
