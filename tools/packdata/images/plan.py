"""The plan of ``packdata images``, what it would pack; and packing it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.schema import Image
from packdata.describe import few
from packdata.files.labels import labelled, read_classes
from packdata.files.recipe import FilesPlan
from packdata.files.splits import SourceOptions, open_splits, watched
from packdata.images.recipe import ONE_SIZE, ImageOptions, ImagesRecipe, count_notes
from packdata.images.shapes import ShapeOptions, check_same_classes
from packdata.options import take, takes
from packdata.packing.settings import PackSettings
from packdata.plan import pack_plan
from packdata.sources.columns import BOX_LABELS, LABEL
from packdata.sources.listed import listed_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.remote.url import Location
    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary


class ImagesPlan(FilesPlan[ImagesRecipe]):
    """The plan of pictures."""

    is_drawn_at_urls = True

    def notes(self, packed: Summary | None = None) -> list[str]:
        """Say how many files were kept or changed, that 0 may be a class, and that samples lack labels, too."""
        found = count_notes({} if packed is None else packed.counts)
        kinds = [(r.source, r.targets[0].schema.defaults) for r in self.recipes]
        bare = [source for source, names in kinds if source.kind == "folder" and len(names) == 1]
        if bare:
            labels = "labels come from a folder for each class, or a list with a column of them"
            of = f" of {few(source.name for source in bare)}" * (len(bare) < len(kinds))
            found.append(f"samples{of} are '{kinds[0][1][0]}' alone: {labels}")
        return [*found, *FilesPlan.notes(self, packed)]


def plan_images(src: Location | str | Sequence[Location | str], **options: Any) -> ImagesPlan:
    """List a source and say what would become of it; the arguments are those of ``pack_images``.

    Raises:
        SourceError: The source cannot be listed or recognized.
        SchemaError: The options contradict each other, or do not fit the source.
    """
    settings = take(PackSettings, options)
    sources, shapes = listed_sources(src), take(ShapeOptions, options)
    source = take(SourceOptions, options)
    image_options, has_annotations = ImageOptions(**options), shapes.annotations is not None
    of_boxes, classes = tuple[str, ...](), source.classes
    if classes is not None and (has_annotations or shapes.box_labels is not None):
        of_boxes = read_classes(classes, BOX_LABELS)
        source = replace(source, classes=None)
    open_again = partial(open_splits, sources, source, has_annotations=has_annotations)
    opened = open_again()
    listed, list_again = watched(sources, opened, open_again)
    used = Counter[tuple[str, str]]()
    extended = {name: shapes.extend(s, name, of_boxes, used) for name, s in opened.items()}
    check_same_classes(extended.values())
    kinds = {each.labels[LABEL].kind for each in extended.values() if LABEL in each.labels}
    if of_boxes and "class" not in kinds:  # else they number labels, too
        classes = None
    with_labels = labelled(extended, classes, source.multi_label)
    splits = [(split.name, ImagesRecipe(split, image_options)) for split in with_labels]
    settings = settings.or_usual(_usual_format(splits))
    return ImagesPlan(sources, splits, settings, listed, list_again)


def _usual_format(splits: Sequence[tuple[str, ImagesRecipe]]) -> Format:
    """LMDB for encoded files, which other tools find there by key; Parquet for raw pixels, yuv420 and dct."""
    schemas = (target.schema for _, recipe in splits for target in recipe.targets)
    images = [schema.fields.get("image") for schema in schemas]
    is_ours = all(isinstance(image, Image) and image.codec in ONE_SIZE for image in images)
    return "parquet" if is_ours else "lmdb"


@takes(ImageOptions, SourceOptions, ShapeOptions, PackSettings, without="array_column")
def pack_images(
    src: Location | str | Sequence[Location | str],
    dst: Location | str,
    **options: Any,
) -> Summary:
    """Pack pictures as ``packdata images`` does.

    Args:
        src: A folder, list, tar or Parquet source, or a folder of splits; several tars or Parquet files are one, in
            their order.
        dst: A folder that is new or empty.
        options: Those of ``ImageOptions`` (``packdata.images.recipe``), ``SourceOptions`` (``packdata.files.splits``),
            ``ShapeOptions`` (``packdata.images.shapes``) and ``PackSettings`` (``packdata.packing.settings``). By
            default the format is Parquet for raw pixels, else LMDB. To a URL the pictures of folders and lists are
            packed in a random order, unless ``shuffle`` is None.

    Raises:
        SourceError: The source, or a picture in it, cannot be packed.
        SchemaError: The options contradict each other.
        PackError: The target cannot be written, is in use, or holds something else.
    """
    return pack_plan(plan_images(src, **options), dst)
