"""A packing in parts, on as many machines as there are, and the joining of them.

Part I of N has the items from ``I * items // N`` to ``(I + 1) * items // N`` of all splits together.

Where parts lie, and how they are joined, says ``packdata.parts.stored``.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import PackError
from loaders.remote.url import URL
from packdata.bucket import target_at
from packdata.claimed import claimed_folder, on_the_way
from packdata.packing.engine import counted_folders, pack_recipes, plan_of, target_folders
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.target import PARTS_NAME, digest_of
from packdata.parts.joining import whole
from packdata.parts.part import Part, versions
from packdata.parts.stored import PartPlace, finish_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packdata.packing.shards import Format
    from packdata.packing.summary import Summary
    from packdata.packing.upload import ShardSender
    from packdata.recipe import Recipe


def pack_part(
    recipes: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    part: Part,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    **settings: Any,
) -> Summary:
    """Pack one part of recipes below ``dst``; the arguments beside ``part`` are those of ``pack_recipes``.

    Raises:
        SourceError: An item cannot be packed, and is not to be left out.
        PackError: The target cannot be written, or holds something else: also parts made with other options.
    """
    share = {"of": part.of, "counted": counted_folders(recipes), "versions": versions()}
    plan = plan_of(recipes, format, shard_bytes, share)
    folders = [folder for split, recipe in recipes for folder in target_folders(split, recipe)]

    def pack(own: Path, sender: ShardSender | None) -> Summary:
        return pack_recipes(
            part.cut(recipes),
            own,
            format=format,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            plan=plan,
            sender=sender,
            **settings,
        )

    return make_part(dst, part, plan, folders, pack, overwrite=overwrite)


def make_part(
    dst: Path | str,
    part: Part,
    plan: Mapping[str, str],
    folders: Sequence[str],
    make: Callable[[Path, ShardSender | None], Summary],
    *,
    overwrite: bool,
) -> Summary:
    """Make one part of datasets below ``dst`` where it is not made.

    Args:
        dst: Where the parts are joined.
        part: Which one.
        plan: All that decides the output.
        folders: The datasets below ``dst``.
        make: Stages a part (a ``Packing`` of this kind) in a folder, and gives its shards to what takes them away.
        overwrite: Replace what is there.

    Raises:
        PackError: Something else is there, or what ``make`` raises.
    """
    place = target_at(dst)
    with _part_at(place, part, plan, overwrite) as packing:
        if overwrite:
            packing.drop_to_repeat()
        if packing.is_done(folders):
            packing.drop()
            return packing.nothing_done("was packed earlier; nothing was read or written")
        packing.make_room(folders)
        try:
            with packing.sending() as sender:
                summary = make(packing.own, sender)
            packing.complete()
        except PackError:
            if not packing.is_done(folders):  # else another has finished it, and all, meanwhile
                raise
            packing.drop()
            return packing.nothing_done("was packed by another, meanwhile")
    return replace(summary, dst=str(place / PARTS_NAME / part.name))


@contextmanager
def _part_at(
    place: Path, part: Part, plan: Mapping[str, str], overwrite: bool
) -> Iterator[PartPlace]:
    if isinstance(place, URL):
        with claimed_folder(f"{place} {part.name}") as own, on_the_way(own, place):
            yield PartPlace(place, part, plan, overwrite, own)
    else:
        own = place / PARTS_NAME / f"{part.name}.{_this_machine()}"
        yield PartPlace(place, part, plan, overwrite, own)


def digest_of_parts(
    recipes: Sequence[tuple[str, Recipe]], format: Format, shard_bytes: int, of: int
) -> str:
    """Return the hash by which a dataset knows the plan of all its parts."""
    plan = plan_of(recipes, format, shard_bytes, {"of": of})
    return digest_of(whole(plan, of))


def pack_whole(
    recipes: Sequence[tuple[str, Recipe]],
    dst: Path | str,
    *,
    format: Format,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    **settings: Any,
) -> Summary:
    """Pack recipes below a URL as one part, and finish it; what it is given is that of ``pack_recipes``.

    Raises:
        RemoteError: The store does not answer, or refuses.
        SourceError, PackError: As ``pack_recipes`` does.
    """
    began, overwrite = time.monotonic(), bool(settings.get("overwrite"))
    packed = pack_part(
        recipes, dst, Part(0, 1), format=format, shard_bytes=shard_bytes, **settings
    )
    digest = digest_of_parts(recipes, format, shard_bytes, 1)
    summary = finish(dst, overwrite=overwrite, digest=digest)
    if not summary.datasets:
        return summary
    seconds = time.monotonic() - began
    rate = packed.samples_per_s * packed.seconds / seconds
    notes = (*packed.notes, *summary.notes)
    return replace(summary, seconds=seconds, samples_per_s=rate, notes=notes)


def _this_machine() -> str:
    """Return what tells the running kernel from all others, as far as its own locks reach."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return re.sub(r"\W", "-", socket.gethostname())


def finish(
    dst: Path | str,
    *,
    overwrite: bool = False,
    delete_old: bool = False,
    digest: str = "",
) -> Summary:
    """Join the parts of a packing to the dataset, or the datasets, that they are of.

    Args:
        dst: Where the parts were packed.
        overwrite: Replace the datasets that are there.
        delete_old: At a URL, delete what lies beside the datasets of earlier ones.
        digest: Of the plan that all parts are to be of: where it made what is there, all is done.

    Raises:
        PackError: Parts are missing, or were made of other sources, with other options or versions; the target
            holds something else, or cannot be written; or there is nothing to be done.
    """
    place = target_at(dst)
    if delete_old and not isinstance(place, URL):
        raise ValueError("delete_old is for URLs: in a folder nothing of an earlier dataset stays")
    return finish_parts(place, overwrite=overwrite, delete_old=delete_old, digest=digest)
