"""``dct`` records that leave the host compressed, to be decompressed on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.codecs.dct import DctCodec
from loaders.datasets.base import SamplesOf
from loaders.datasets.on_device import OnDevice, images_of
from loaders.datasets.reading.coefficients import (
    CoefficientReader,
    Finisher,
    MovingReader,
    join_escapes,
    put_range,
)
from loaders.datasets.reading.request import ReaderAround
from loaders.device.decode import DctFinish
from loaders.device.inflate import Compressed, InflateFinish, places_of
from loaders.errors import SchemaError

if TYPE_CHECKING:
    from loaders.buffers import Memory
    from loaders.codecs.dct import Escapes
    from loaders.datasets.base import Halves
    from loaders.datasets.packed import PackedDataset
    from loaders.datasets.reading.request import Reader, Request
    from loaders.device.inflate import Decompress


class InflateOnDevice(OnDevice):
    """A dataset of ``dct`` images whose compressed bands a loader hands to the device.

    The images are the same; the host copies fewer bytes, and does nothing but copy. What a device
    decompresses is not looked at by the host: checksums are what finds damage, so ``check="never"``
    is refused.

    Args:
        dataset: It has images of codec ``dct``.
        decompress: Does it there; default: nvCOMP on CUDA, which has to be installed.

    Raises:
        TypeError: It is no packed dataset.
        SchemaError: It has no such images, or something that only the host can do.
    """

    def __init__(self, dataset: PackedDataset, *, decompress: Decompress | None = None) -> None:
        super().__init__(dataset, finishes_late=decompress is not None)
        self._decompress = decompress
        hint = "; hand the dataset itself to the loader"
        if not any(f.codec == "dct" for f in images_of(dataset).values()):
            raise SchemaError(f"there is no image of codec 'dct' among {dataset.fields}{hint}")
        dataset.check_splits(hint)
        if dataset.store.check == "never":
            raise SchemaError(
                f"check='never' is not possible here: damaged records would reach the device{hint}"
            )

    def halves(self, device: torch.device) -> Halves:
        """Return the same samples, compressed, and what makes images; LoadersError if nothing decompresses there."""
        halves = self.dataset.halves(device)
        assert halves is not None
        half, finisher = halves
        assert isinstance(finisher, Finisher)
        readers = tuple(_compressed(reader) for reader in half.plan.readers)
        fields, modules = images_of(self.dataset), dict(finisher.modules)
        for name, module in modules.items():
            if isinstance(module, DctFinish):
                codec = DctCodec(fields[name])
                modules[name] = InflateFinish(codec, module, device, self._decompress)
        plan = replace(half.plan, readers=readers)
        return SamplesOf(self.dataset, plan), Finisher(modules, finisher.ops)


def _compressed(reader: Reader) -> Reader:
    if isinstance(reader, MovingReader):
        return replace(reader, reader=_compressed(reader.reader))
    return CompressedReader(reader) if isinstance(reader, CoefficientReader) else reader


@dataclass(frozen=True, slots=True)
class CompressedReader(ReaderAround):
    """Copies the bands of ``dct`` records into the slot, as they are."""

    reader: CoefficientReader  # of the same field, decompressed

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Keep what is read by its range of rows: how much it is, is known at the end."""
        parts: dict[int, tuple[int, tuple[list[memoryview], Escapes]]] = {}
        return [parts, memory]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        reader = self.reader
        records = request.records(reader.source.records, reader.name, first, last)
        put_range(values[0], first, last, reader.codec.split(records, reader.side))

    def finish(self, values: list[Any]) -> list[Any]:
        """Copy them, and return ``Compressed``."""
        found, memory = sorted(values[0].items()), values[1]
        bands = [band for _, (_, (parts, _)) in found for band in parts]
        places = places_of([len(band) for band in bands])
        nbytes = places.offsets[-1] + places.sizes[-1] if bands else 0
        flat = memory.take(self.reader.name, nbytes)
        for band, at in zip(bands, places.offsets, strict=True):
            flat[at : at + len(band)] = np.frombuffer(band, np.uint8)
        escapes = [(first, each) for first, (_, (_, each)) in found]
        row_nbytes = self.reader.codec.row_nbytes(self.reader.side)
        joined = join_escapes(escapes, row_nbytes)
        return [Compressed(torch.from_numpy(flat), places.sizes, *joined)]
