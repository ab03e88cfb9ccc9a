"""WebDataset tar files: the members that share a name up to its first dot are one sample.

``.jpg``, ``.png`` and the other pictures are the image, ``.cls`` a whole number, ``.json`` any
JSON value, ``.txt`` a caption, ``.seg.png`` or ``.mask.png`` a mask. The headers are read once, at
the start; after that any sample is one seek away (in ``.tar.gz`` one pass: a packing that is
continued reads the file from its beginning).
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, cast

from loaders.checks import shown
from loaders.errors import SourceError
from packdata.sources.base import (
    HEAD_NBYTES,
    PICTURE_SUFFIXES,
    PICTURES,
    Column,
    Item,
    broken_item,
    check_name,
    check_unique,
    files_identity,
    is_hidden,
    parse_json,
)
from packdata.sources.folders import no_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_MASKS = frozenset({"seg.png", "mask.png"})
_LABELS = {
    "cls": ("label", Column("int")),
    "json": ("json", Column("json")),
    "txt": ("caption", Column("text")),
}
_READ_ERRORS = (OSError, EOFError, zlib.error)  # what gzip raises on damage
_BLOCK = 512


@dataclass(slots=True)
class _Sample:
    """Name, offset and size of a sample's members by role (``image``, ``mask``, ``cls``, ...)."""

    tar: int
    key: str
    members: dict[str, tuple[str, int, int]] = field(default_factory=dict)


class TarSource:
    """The samples of tar files, in the order of the files and of the samples' first members."""

    kind = "tar"
    pixels: tuple[int, int] | None = None

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self.paths, self.name = list(paths), name
        self.identity: Mapping[str, Any] = files_identity(self.kind, self.paths)
        ignored: Counter[str] = Counter()
        self._samples: list[_Sample] = []
        for number, path in enumerate(self.paths):
            self._samples += _scan(path, number, ignored)
        self.ignored: Mapping[str, int] = dict(ignored)
        roles = {role for sample in self._samples for role in sample.members}
        if "image" not in roles:
            raise no_files(self.paths[0], PICTURES, ignored)
        self.has_masks = "mask" in roles
        self._roles = [role for role in _LABELS if role in roles]
        self.labels: Mapping[str, Column] = dict(_LABELS[role] for role in self._roles)
        places = ((sample.key, f"{self.paths[sample.tar]}") for sample in self._samples)
        check_unique(places, self.paths[0])

    def __len__(self) -> int:
        return len(self._samples)

    def items(self, start: int = 0) -> Iterator[Item]:
        """Yield the samples from number ``start`` on."""
        while start < len(self._samples):
            number = self._samples[start].tar
            with _open(self.paths[number]) as file:
                while start < len(self._samples) and self._samples[start].tar == number:
                    yield self._item(self._samples[start], file)
                    start += 1

    def keys(self) -> Iterator[str]:
        """Yield the keys."""
        return (sample.key for sample in self._samples)

    def mask_heads(self) -> Iterator[bytes]:
        """Yield the first bytes of each mask: by their names they are PNG."""
        for number, samples in groupby(self._samples, attrgetter("tar")):
            path = self.paths[number]
            with _open(path) as file:
                for sample in samples:
                    if "mask" in sample.members:
                        name, offset, size = sample.members["mask"]
                        yield _read_member(file, offset, min(size, HEAD_NBYTES), f"{path}: {name}")

    def _item(self, sample: _Sample, file: IO[bytes]) -> Item:
        path = self.paths[sample.tar]
        if "image" not in sample.members:
            names = ", ".join(name for name, _, _ in sample.members.values())
            what = "the sample has no picture"
            return broken_item(sample.key, what, f"{path}: {names or sample.key}")
        where = f"{path}: {sample.members['image'][0]}"
        try:
            labels = {_LABELS[role][0]: _label(file, sample, role, path) for role in self._roles}
            read = _reader(file, sample, "image", path)
            mask = _reader(file, sample, "mask", path) if self.has_masks else None
        except SourceError as error:
            return broken_item(sample.key, error.what, str(error.path), error.hint)
        name = sample.members["mask"][0] if "mask" in sample.members else None
        return Item(sample.key, where, read, labels, mask, mask_name=name)


def _open(path: Path) -> IO[bytes]:
    try:
        if _is_gzip(path):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        return open(path, "rb")
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})", path) from error


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith("gz")


def _scan(path: Path, number: int, ignored: Counter[str]) -> list[_Sample]:
    """Return the samples of one tar file, from its headers."""
    samples: dict[str, _Sample] = {}
    try:
        with _open(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # keep no header twice
                if member.isdir():
                    continue
                key, role = _role_of(member)
                if role is None:
                    if not is_hidden(os.path.basename(member.name)):
                        ignored[_suffix_of(member)] += 1
                    continue
                check_name(member.name, path)
                _add(samples.setdefault(key, _Sample(number, key)), role, member, path)
            _check_end(file, tar.offset, path)
    except (tarfile.TarError, *_READ_ERRORS) as error:
        what = f"it is not a whole tar file ({error})"
        raise SourceError(what, path, "Copy or make it again") from error
    return list(samples.values())


def _role_of(member: tarfile.TarInfo) -> tuple[str, str | None]:
    folder, _, name = member.name.removeprefix("./").rpartition("/")
    stem, _, suffix = name.partition(".")
    suffix = suffix.lower()
    role = None
    if f".{suffix}" in PICTURE_SUFFIXES:
        role = "image"
    elif suffix in _MASKS:
        role = "mask"
    elif suffix in _LABELS:
        role = suffix
    usable = member.isreg() and not is_hidden(name) and not member.issparse()
    return (f"{folder}/{stem}" if folder else stem), role if usable else None


def _suffix_of(member: tarfile.TarInfo) -> str:
    """Return what follows a name's first dot: the part that says why it is no picture or label."""
    dot, suffix = os.path.basename(member.name).partition(".")[1:]
    return dot + suffix or "no suffix"


def _add(sample: _Sample, role: str, member: tarfile.TarInfo, path: Path) -> None:
    if role in sample.members:
        other = sample.members[role][0]
        what = f"{other} and {member.name} are both the {role} of sample {sample.key!r}"
        raise SourceError(what, path, "The part of a name before its first dot is the sample")
    sample.members[role] = (member.name, member.offset_data, member.size)


def _check_end(file: IO[bytes], offset: int, path: Path) -> None:
    """Tell a whole archive from one cut between two members, or with another one behind it.

    Source: POSIX ustar: an archive ends with blocks of zeros; tar fills up to 20 of them.
    """
    file.seek(offset)
    rest = file.read(32 * _BLOCK)
    if len(rest) < _BLOCK:
        what = "it lacks the blocks of zeros that end a tar file: it was probably cut"
        raise SourceError(what, path, "Copy or make it again")
    if any(rest):
        what = f"there is more behind the end mark, at byte {offset}"
        raise SourceError(what, path, "Tar files that were joined must be unpacked and made anew")


def _reader(file: IO[bytes], sample: _Sample, role: str, path: Path) -> Any:
    """Return a function that gives a member: read when called, or from .gz now, in passing."""
    if role not in sample.members:
        return partial(_missing, role, f"{path}: {sample.key}")
    name, offset, size = sample.members[role]
    if not _is_gzip(path):
        return partial(_read_at, path, offset, size, name)
    data = _read_member(file, offset, size, f"{path}: {name}")
    return lambda: data


def _missing(role: str, where: str) -> bytes:
    raise SourceError(f"it has no {role}, others have", where)


def _read_at(path: Path, offset: int, size: int, name: str) -> bytes:
    with _open(path) as file:
        return _read_member(file, offset, size, f"{path}: {name}")


def _read_member(file: IO[bytes], offset: int, size: int, where: str) -> bytes:
    try:
        file.seek(offset)
        data = file.read(size)
    except _READ_ERRORS as error:
        raise SourceError(f"it cannot be read ({error})", where) from error
    if len(data) < size:
        raise SourceError(f"it ends after {len(data)} of {size} bytes", where, "Was it changed?")
    return data


def _label(file: IO[bytes], sample: _Sample, role: str, path: Path) -> Any:
    if role not in sample.members:
        return None
    name, offset, size = sample.members[role]
    data = _read_member(file, offset, size, f"{path}: {name}")
    try:
        if role == "cls":
            return int(data)
        return parse_json(data) if role == "json" else data.decode()
    except (ValueError, RecursionError) as error:
        what, hint = f"it cannot be read ({error})", ""
        if role == "cls":
            found = shown(data.decode(errors="replace").strip())
            what, hint = f"it is not a whole number, but {found}", "It takes a class number"
        raise SourceError(what, f"{path}: {name}", hint) from error
