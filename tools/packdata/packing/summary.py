"""What a packing did, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loaders.remote.url import Location, place_of
from loaders.text import describe_size, printable
from packdata.describe import counted
from packdata.packing.target import PARTS_NAME, REJECTED_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loaders.data.manifest import Manifest

_SHOWN_REJECTS = 10


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """One dataset that was packed."""

    folder: str
    samples: int
    shards: int
    bytes: int
    fingerprint: str

    def __str__(self) -> str:
        counts = f"{counted(self.samples, 'sample')}, {counted(self.shards, 'shard')}"
        return f"{self.folder or '.'}: {counts}, {describe_size(self.bytes)}"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a packing did.

    Attributes:
        dst: Where the datasets are.
        samples: Samples of all datasets together.
        shards: Files, of all datasets together.
        bytes: Their size.
        rejected: ``(item, error)`` of what was left out.
        seconds: Time this run took.
        samples_per_s: Samples that this run made, per second.
        datasets: Each dataset, by its folder below ``dst``.
        notes: What else is worth knowing.
        amount: What was packed, in words, where samples are not what people count.
        counts: What the recipes counted, by what it is.
    """

    dst: str
    samples: int
    shards: int
    bytes: int
    rejected: tuple[tuple[str, str], ...]
    seconds: float
    samples_per_s: float
    datasets: tuple[DatasetSummary, ...]
    notes: tuple[str, ...] = ()
    amount: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON types."""
        rejected = [{"item": item, "error": error} for item, error in self.rejected]
        return asdict(self) | {"rejected": rejected}

    def __str__(self) -> str:
        samples, shards = counted(self.samples, "sample"), counted(self.shards, "shard")
        time = f"{self.seconds:.1f} s"
        if self.amount:
            samples, shards = self.amount, f"{samples}, {shards}"
        else:
            time += f", {self.samples_per_s:,.0f}/s"
        size = describe_size(self.bytes)
        lines = [f"packed {samples} into {printable(self.dst)}: {shards}, {size} ({time})"]
        if not self.datasets:  # nothing was to be done
            lines = []
        if len(self.datasets) > 1:
            lines += [f"  {dataset}" for dataset in self.datasets]
        lines += map(printable, self.notes)
        if self.rejected:
            is_part = PARTS_NAME in self.dst.split("/")  # the list is made of all parts
            listed = printable(str(place_of(self.dst) / REJECTED_NAME))
            where = "" if is_part else f", listed in {listed}"
            lines.append(f"rejected {len(self.rejected):,}{where}:")
        for item, error in self.rejected[:_SHOWN_REJECTS]:
            name = printable(item)
            lines.append(f"  {error}" if name in error else f"  {name}: {printable(error)}")
        if len(self.rejected) > _SHOWN_REJECTS:
            lines.append(f"  and {len(self.rejected) - _SHOWN_REJECTS:,} more")
        return "\n".join(lines)


def summary_of(
    dst: Location | str,
    manifests: Mapping[str, Manifest],
    *,
    rejected: Iterable[tuple[str, str]] = (),
    seconds: float = 0.0,
    encoded: int = 0,
    notes: Iterable[str] = (),
    amount: str = "",
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Summary:
    """Return the summary of datasets at a destination, by their folders; this run ``encoded`` so many samples."""
    datasets = tuple(
        DatasetSummary(folder, m.num_samples, len(m.shards), m.size_bytes, m.fingerprint)
        for folder, m in manifests.items()
    )
    return Summary(
        dst=str(dst),
        samples=sum(d.samples for d in datasets),
        shards=sum(d.shards for d in datasets),
        bytes=sum(d.bytes for d in datasets),
        rejected=tuple(rejected),
        seconds=seconds,
        samples_per_s=encoded / max(seconds, 1e-9),
        datasets=datasets,
        notes=tuple(notes),
        amount=amount,
        counts=dict(counts),
    )
