"""Serving ``dct`` and ``yuv420``: whole images, or the half that is left to the host.

- *Whole*: both halves on the host, sample by sample; then crops and flips as for raw pixels.
- *Host half*: a batch holds coefficients or planes, decompressed straight into its slot; the device makes images of
  them (``loaders.datasets.reading.halves``).

Both give the same images (where a device resamples, within one step of uint8). At a scale below 1,
no more of a record is decompressed than it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.codecs import codec_for
from loaders.codecs.coefficients import scaled
from loaders.codecs.dct import DctCodec
from loaders.datasets.reading.request import Reader
from loaders.device.decode import Coefficients, DctFinish, Yuv420Finish, side_of
from loaders.errors import SchemaError
from loaders.schema import Boxes, Field, Image, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from loaders.buffers import Memory
    from loaders.codecs.dct import Escapes
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

    UInt8Array = npt.NDArray[np.uint8]


def has_halves(field: Field | None) -> bool:
    """Tell whether a field's images can be finished on a device."""
    return isinstance(field, Image) and field.codec in ("dct", "yuv420")


def check_scale(fields: Mapping[str, Field | None], scale: float) -> None:
    """Raise ValueError if there is no such scale, SchemaError for a field that would no longer fit ``dct`` images."""
    if side_of(scale) == 8:
        return
    for name, field in fields.items():
        if isinstance(field, Boxes | Keypoints | Mask) or (
            isinstance(field, Image) and field.codec != "dct"
        ):
            what = f"scale={scale:g} is for images of codec 'dct'; field {name!r} is {field.kind}"
            raise SchemaError(f"{what} of codec {field.codec!r}: leave it out with fields=[...]")


def pixels_of(field: Image | Mask, dataset: Any) -> tuple[Any, Image | Mask]:
    """Return what decodes pictures of a packed dataset to pixels, and the field of these."""
    if not isinstance(field, Image) or not has_halves(field):
        return codec_for(field, dataset.max_picture_mb), field
    codec, size = codec_for(field), field.size
    if field.codec == "dct":
        codec = DctCodec(field, side_of(dataset.scale))
        size = scaled(codec.grid.size, codec.side)
    unset: dict[str, Any] = dict.fromkeys(("quality", "subsampling", "compression"))
    return codec, replace(field, codec="raw", size=size, **unset)


@dataclass(frozen=True, slots=True)
class CoefficientReader(Reader):
    """The host half of ``dct``: decompression into the slot, escapes beside it."""

    store: Store
    name: str
    codec: DctCodec
    min_rows = 16  # some 20 us each

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Take the slot; escapes are kept by the first row of the range that was read with them."""
        nbytes = self.codec.row_nbytes(self.codec.side)
        flat = memory.take(self.name, num_samples * nbytes)
        parts: dict[int, Escapes] = {}
        return [torch.from_numpy(flat).view(num_samples, nbytes), flat.reshape(-1, nbytes), parts]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        _, rows, parts = values
        records = request.records(self.store.records, self.name, first, last)
        # A range of which a sample is bad is read again one by one: its first row takes its place.
        parts[first] = self.codec.fill(records, rows[first:last])

    def finish(self, values: list[Any]) -> list[Any]:
        planes, rows, parts = values
        found = sorted(parts.items())
        at = [positions + first * rows.shape[1] for first, (positions, _) in found]
        positions = np.concatenate([*at, np.empty(0, np.int64)])
        adds = np.concatenate([*(adds for _, (_, adds) in found), np.empty(0, np.float32)])
        return [Coefficients(planes, torch.from_numpy(positions), torch.from_numpy(adds))]


def makers_of(
    fields: Mapping[str, Field | None], scale: float, device: torch.device
) -> dict[str, DctFinish | Yuv420Finish]:
    """Return what makes images of the host half of each field that has one."""
    makers: dict[str, DctFinish | Yuv420Finish] = {}
    for name, field in fields.items():
        if isinstance(field, Image) and field.size is not None and has_halves(field):
            is_dct = field.codec == "dct"
            module = DctFinish.of(field, scale) if is_dct else Yuv420Finish(field.size)
            makers[name] = module.to(device)
    return makers
