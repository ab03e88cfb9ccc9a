"""The folder that is packed into: what is there, whose it is, and what a killed command has left in it."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.data.manifest import MANIFEST_NAME, Manifest, ShardInfo, read_manifest, sync_folder
from loaders.errors import ManifestError, PackError
from loaders.system.regular import read_regular
from loaders.text import printable_json
from packdata.packing.journal import JOURNAL_NAME, Reject, read_journal
from packdata.packing.lock import LOCK_NAME, lock_owner
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PACKING_NAME = ".packing"
STAGED_NAME = "shards"  # inside of PACKING_NAME
PARTS_NAME = ".parts"
REJECTED_NAME = "rejected.jsonl"
_NEVER_OURS = frozenset({PACKING_NAME, PARTS_NAME, "lost+found"})
# Of a shard that was brought to its place before a manifest names it: it holds its hash.
STORED_SHARD = re.compile(r"shard-[0-9-]+-[0-9a-f]{32}\.\w+")
_MAX_DEPTH = 2  # of a target below the destination: split/size


def staged_at(dst: Path, folder: str) -> Path:
    """Return where the files of a target lie until they are published."""
    return dst / PACKING_NAME / STAGED_NAME / folder


def is_unfinished(dst: Path | str) -> bool:
    """Tell whether a packing into ``dst`` has begun and can be continued."""
    return os.path.exists(os.path.join(dst, PACKING_NAME, JOURNAL_NAME))


def check_unclaimed(folder: Path) -> None:
    """Raise PackError if a packing into a folder above is about to fill this one.

    Call it with the lock on the folder in hand: who packs into the one above has the lock on that
    and looks at this one, so that of two who come at once, one at least sees the other.
    """
    path = Path(os.path.abspath(folder))
    for above in path.parents[:_MAX_DEPTH]:
        work = above / PACKING_NAME
        found = read_journal(work / JOURNAL_NAME)
        if found is not None and path.relative_to(above).as_posix() not in found[0].first:
            continue
        owner = lock_owner(work / LOCK_NAME)
        if owner is not None:
            what = f"{owner} is packing into {above}, and this is a part of it"
            raise PackError(what, folder, "Wait for it, or stop it")
        if found is not None and found[1].done is not None:
            what = f"a packing into {above} ended while it published, and this is a part of it"
            raise PackError(what, folder, "First run that 'packdata' command again: it finishes")


def missing_folders(folder: Path) -> list[Path]:
    """Return the folders that would have to be made for one, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def make_folder(folder: Path, target: Path) -> None:
    """Make a folder in, or for, a target; PackError where the system takes none, as in ``/proc``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # though what is above is there
        what = f"no folder can be made there ({error.strerror})"
        raise PackError(what, target, "Check the path, or choose another") from error


def sync_made(folders: Sequence[Path]) -> None:
    """Make the names of new folders durable."""
    for folder in folders:
        with suppress(PermissionError):  # a folder may be writable below one that cannot be read
            sync_folder(folder.parent)


def find_datasets(dst: Path, folders: Sequence[str]) -> dict[str, Manifest]:
    """Return which of the folders below a destination are datasets already.

    Raises:
        PackError: The destination holds something that packing did not put there.
    """
    if dst.exists() and not dst.is_dir():
        raise PackError("it is a file", dst, "Choose a folder that is new or empty")
    found = {folder: dataset_at(dst / folder) for folder in folders}
    datasets = {folder: manifest for folder, manifest in found.items() if manifest is not None}
    foreign = list(_foreign(dst, "", found))
    around = [] if datasets else dict.fromkeys(path.parent for path in foreign)
    others = [path for path in around if _is_dataset(path)]
    others += [path for path in foreign if (path / MANIFEST_NAME).exists()]
    if others:
        raise _other_datasets(dst, others, folders)
    if foreign and not datasets:
        hint = "Choose a folder that is new or empty; nothing here was touched"
        path = foreign[0]
        raise PackError(f"it is not empty (it holds {path.name!r})", path.parent, hint)
    return datasets


def is_there(folder: Path) -> PackError:
    """Return the error that a dataset is where another would go."""
    hint = "Pass overwrite=True to replace it; 'packdata extend' adds to it"
    return PackError("a packed dataset is there, and is complete", folder, hint)


def _other_datasets(dst: Path, others: Sequence[Path], folders: Sequence[str]) -> PackError:
    """Return the error that datasets lie where none is to be written: these are never replaced."""
    places = few([str(dst / folder) for folder in folders], 4)
    remedy = "choose another folder"
    if all(map(_is_dataset, others)):  # a manifest.json may be of something else
        remedy = f"remove {few(map(str, others), 4)} yourself, or {remedy}"
    hint = f"overwrite=True replaces datasets in the same places only, here {places}: {remedy}"
    return PackError("another packed dataset is there", others[0], hint)


def _is_dataset(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except ManifestError:
        return False
    return True


def dataset_at(folder: Path) -> Manifest | None:
    """Return the manifest of the dataset in a folder, if there is one; PackError if it cannot be read."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    try:
        return read_manifest(folder)
    except ManifestError as error:
        hint = "Which files belong to it is not known: remove the folder yourself"
        raise PackError(
            f"the dataset there cannot be replaced ({error.what})", folder, hint
        ) from error


def _foreign(dst: Path, below: str, found: Mapping[str, Manifest | None]) -> Iterator[Path]:
    """Yield what lies in and between the target folders, and belongs to none of their datasets."""
    folder = dst / below
    if found.get(below) is not None or not folder.is_dir():
        return
    # Without one of these they may be all that is left of a dataset whose manifest was lost.
    is_begun = any((dst / name).exists() for name in (PACKING_NAME, PARTS_NAME))
    inner = {f.split("/")[0] for f in _below(found, below)}
    for path in sorted(folder.iterdir()):
        if path.name in inner and path.is_dir():
            yield from _foreign(dst, f"{below}/{path.name}".lstrip("/"), found)
        elif path.name not in _NEVER_OURS and not (is_begun and STORED_SHARD.fullmatch(path.name)):
            yield path


def _below(folders: Mapping[str, Any], below: str) -> list[str]:
    prefix = f"{below}/" if below else ""
    return [f.removeprefix(prefix) for f in folders if f.startswith(prefix) and f != below]


def has_all(manifest: Manifest, shards: Sequence[ShardInfo]) -> bool:
    """Return whether a dataset has these shards, under the names that they are stored by."""
    return {shard.file for shard in shards} <= {shard.file for shard in manifest.shards}


def files_of(manifest: Manifest) -> list[str]:
    """Return the names of all files of a dataset but its manifest."""
    return [*(shard.file for shard in manifest.shards), *manifest.schema.files]


def size_of(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def rejects_at(folder: Path) -> list[tuple[str, str]]:
    """Return (item, error) of what the packing of the datasets in a folder left out."""
    path = folder / REJECTED_NAME
    return parse_rejects(read_regular(path) if path.exists() else b"")


def parse_rejects(data: bytes) -> list[tuple[str, str]]:
    """Return (item, error) of each line of ``rejected.jsonl``."""
    lines = map(json.loads, data.splitlines())
    return [(line["item"], line["error"]) for line in lines]


def rejects_bytes(rejects: Sequence[Reject]) -> bytes:
    """Return what ``rejected.jsonl`` holds, escaped as the manifest is."""
    lines = [json.dumps({"item": r.item, "error": r.error}, ensure_ascii=False) for r in rejects]
    text = "".join(f"{printable_json(line)}\n" for line in lines)
    return text.encode(errors="backslashreplace")


def remove_unnamed(folder: Path) -> None:
    """Delete the shards in a folder that its dataset does not have: of a command that was killed, or gave up."""
    there = dataset_at(folder)
    kept = [] if there is None else files_of(there)
    for path in folder.iterdir() if folder.is_dir() else ():
        if STORED_SHARD.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)


def digest_of(plan: Mapping[str, str]) -> str:
    """Return the hash by which a dataset knows the plan that made it."""
    return xxhash.xxh3_128_hexdigest(json.dumps(plan, sort_keys=True).encode())
