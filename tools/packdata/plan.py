"""What ``packdata images`` is about to do, as something to look at, and then the doing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.schema import Field, Image, Label
from packdata.describe import codec_text
from packdata.engine import OnError, Summary, pack_recipes, target_folders
from packdata.images import ImagesRecipe, plan_images
from packdata.shards import DEFAULT_SHARD_BYTES, Format
from packdata.sources.base import files_identity
from packdata.values import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from packdata.progress import Progress

_SHOWN_CLASSES = 8
_OURS = ("raw", "yuv420", "dct")
_PLAIN = ("raw", "text", "json", "bytes")


@dataclass(frozen=True, slots=True)
class ImagesPlan:
    """The recipes of a source, one per split.

    Attributes:
        src: The source.
        options: What ``plan_images`` was given beside it.
        parts: (split, recipe) each.
        format: Of the shards.
    """

    src: Path | str
    options: Mapping[str, Any]
    parts: Sequence[tuple[str, ImagesRecipe]]
    format: Format

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return {
            "src": str(self.src),
            "format": self.format,
            "items": sum(len(recipe) for _, recipe in self.parts),
            "parts": [
                {
                    "split": split,
                    "kind": recipe.source.kind,
                    "items": len(recipe),
                    "ignored": dict(recipe.source.ignored),
                    "targets": {
                        folder: target.schema.to_json()
                        for folder, target in zip(
                            target_folders(split, recipe), recipe.targets, strict=True
                        )
                    },
                }
                for split, recipe in self.parts
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for split, recipe in self.parts:
            name = f"{split}: " if split else ""
            yield f"{name}{len(recipe):,} items of kind {recipe.source.kind!r} in {self.src}"
            yield from ignored_notes([(split, recipe)])
            for folder, target in zip(target_folders(split, recipe), recipe.targets, strict=True):
                yield f"  to {folder or 'the destination itself'}, as {self.format}:"
                for field_name, field in target.schema.fields.items():
                    default = "" if field_name in target.schema.defaults else " (on request)"
                    yield f"    {field_name}: {_field_text(field)}{default}"

    def is_unchanged(self) -> bool:
        """Tell whether the source is still as it was listed."""
        try:
            return self._identities() == [recipe.identity for _, recipe in self.parts]
        except SourceError:  # what is gone has changed too
            return False

    def _identities(self) -> list[Mapping[str, Any]]:
        recipes = [recipe for _, recipe in self.parts]
        paths: list[list[Path]] = [getattr(recipe.source, "paths", []) for recipe in recipes]
        if all(paths) and not any(
            recipe.masks for recipe in recipes
        ):  # no need to list them again
            return [
                {**recipe.identity, "source": files_identity(recipe.source.kind, files)}
                for recipe, files in zip(recipes, paths, strict=True)
            ]
        return [recipe.identity for _, recipe in plan_images(self.src, **self.options)]


def _field_text(field: Field) -> str:
    text = field.kind if field.shape is None else f"{field.kind}, {describe(field)}"
    text += f", codec {codec_text(field)}" if field.codec not in _PLAIN else ""
    if isinstance(field, Label) and field.classes is not None:
        names = ", ".join(field.classes[:_SHOWN_CLASSES])
        more = ", ..." if len(field.classes) > _SHOWN_CLASSES else ""
        text += f", {len(field.classes)} classes: {names}{more}"
    return text


def ignored_notes(parts: Sequence[tuple[str, Any]]) -> list[str]:
    """Say which files of a source are passed over."""
    ignored: Counter[str] = Counter()
    for _, recipe in parts:
        ignored.update(recipe.source.ignored)
    listed = ", ".join(
        f"{count:,} {suffix or 'without suffix'}" for suffix, count in ignored.items()
    )
    return [f"passed over: {listed}"] if listed else []


def make_plan(src: Path | str, *, format: Format | None = None, **options: Any) -> ImagesPlan:
    """List a source and say what would become of it; ``options`` are those of ``plan_images``.

    Raises:
        SourceError: The source cannot be listed or recognized.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    parts = plan_images(src, **options)
    return ImagesPlan(src, options, parts, format or _usual_format(parts))


def _usual_format(parts: Sequence[tuple[str, ImagesRecipe]]) -> Format:
    """Files lie best in LMDB, where other tools find them by key; what is ours, in Parquet."""
    images = [target.schema.fields["image"] for _, recipe in parts for target in recipe.targets]
    is_ours = all(isinstance(image, Image) and image.codec in _OURS for image in images)
    return "parquet" if is_ours else "lmdb"


def pack_plan(
    plan: ImagesPlan,
    dst: Path | str,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Pack what was planned; see ``pack_recipes``."""
    summary = pack_recipes(
        plan.parts,
        dst,
        format=plan.format,
        shard_bytes=shard_bytes,
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        progress=progress,
        is_unchanged=plan.is_unchanged,
    )
    notes = [*summary.notes, *_change_notes(plan), *ignored_notes(plan.parts)]
    return replace(summary, notes=tuple(notes))


def _change_notes(plan: ImagesPlan) -> list[str]:
    counts: Counter[str] = Counter()
    for _, recipe in plan.parts:
        counts.update(recipe.counts)
    if not counts["kept"]:
        return []
    encoded = counts["re-encoded"]
    causes = {cause: n for cause, n in counts.items() if cause not in ("kept", "re-encoded")}
    listed = f" ({', '.join(f'{n:,} {cause}' for cause, n in causes.items())})" if causes else ""
    kept = f"{counts['kept']:,} files kept verbatim"
    return [f"{kept}, {encoded:,} encoded anew{listed}" if encoded else kept]


def pack_images(
    src: Path | str,
    dst: Path | str,
    *,
    format: Format | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Summary:
    """Pack pictures as ``packdata images`` does.

    Args:
        src: A folder, list, tar, Parquet or IDX source, or a folder of splits.
        dst: A folder that is new or empty.
        format: ``"lmdb"`` or ``"parquet"``; by default Parquet for raw pixels, LMDB for files.
        shard_bytes: Size of a shard.
        workers: Threads that encode; None for all usable cores.
        on_error: ``"fail"`` stops at a file that cannot be packed, ``"skip"`` lists it.
        overwrite: Replace the datasets in ``dst``.
        progress: Is told of every picture.
        options: ``sizes``, ``fit``, ``codec``, ``quality``, ``gray``, ``keep_depth``, ``masks``,
            ``subsampling``, ``compression``, ``classes``, ``image_column`` and ``mask_column`` of
            ``packdata.images.plan_images``.

    Raises:
        SourceError: The source, or a picture in it, cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    return pack_plan(
        make_plan(src, format=format, **options),
        dst,
        shard_bytes=shard_bytes,
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        progress=progress,
    )
