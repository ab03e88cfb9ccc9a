"""WebDataset tar files: neighbours that share a name up to its first dot are one sample.

``.jpg``, ``.png`` and the other pictures are the image, ``.seg.png`` or ``.mask.png`` a mask. ``.cls`` is a whole
number, or in all samples a name of a class, ``.json`` any JSON value, of which one key may be the label, ``.txt`` a
caption, ``.npy`` an array, of one shape in all samples. The headers are read once, at the start, and classes with
them; after that any sample is one seek away (in ``.tar.gz`` one pass: a packing that is continued reads the file
from its beginning).
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from loaders.checks import shown
from loaders.errors import SourceError
from packdata.readers import parse_json
from packdata.sources.base import (
    HEAD_NBYTES,
    LABEL_NAMES,
    PICTURE_SUFFIXES,
    PICTURES,
    Column,
    Item,
    Source,
    broken_item,
    check_unique,
    column_of,
    files_identity,
    identifier_of,
    is_hidden,
)
from packdata.sources.folders import no_files
from packdata.sources.refused import check_name, check_regular
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
_IMAGE = "image."  # begins the role of a picture; behind it stands what its name has before the last suffix
LABEL = "label"
_NEIGHBOURS = "The members of a sample are neighbours: make the tar with --sort=name"


@dataclass(slots=True)
class _Sample:
    """Name, offset and size of a sample's members by role (``image.``, ``mask``, ``cls``, ...)."""

    tar: int
    key: str
    members: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def place(self, role: str, path: Path) -> str:
        """Say where a member is."""
        return f"{path}: {self.members[role][0]}"


class TarSource(Source):
    """The samples of tar files, in the order of the files and of the samples' first members."""

    kind = "tar"

    def __init__(
        self, paths: Sequence[Path], name: str, *, label_column: str | None = None
    ) -> None:
        self.paths, self.name = list(paths), name
        self.identity = files_identity(self.kind, self.paths)
        ignored: Counter[str] = Counter()
        self._samples: list[_Sample] = []
        for number, path in enumerate(self.paths):
            self._samples += _scan_tar(path, number, ignored)
        places = [str(path) for path in self.paths]
        keys = lambda: ((s.key, places[s.tar]) for s in self._samples)  # noqa: E731
        check_unique(keys, self.paths[0], _NEIGHBOURS)
        roles = Counter(role for sample in self._samples for role in sample.members)
        self._image = self._find_image(roles, ignored)
        self.ignored = dict(ignored)
        self.has_masks = "mask" in roles
        self._roles = [role for role in _LABELS if role in roles]
        self._arrays = {role: _field_of(role) for role in sorted(roles) if _is_array(role)}
        self._label_key = self._find_label_key(label_column)
        self.labels = dict(self._columns())
        if LABEL not in self.labels:
            self.notes = _folders_note(self._samples)

    def _find_image(self, roles: Counter[str], ignored: Counter[str]) -> str:
        """Return the role of the image: the plain one, or the only one there is."""
        pictures = [role for role in roles if role.startswith(_IMAGE)]
        if not pictures:
            raise no_files(self.paths[0], PICTURES, ignored)
        image = _IMAGE if _IMAGE in pictures else pictures[0]
        if image != _IMAGE and len(pictures) > 1:
            names = few([role.removeprefix(_IMAGE) for role in sorted(pictures)])
            hint = "packdata.pack takes them, with a field of Images, or one for each"
            raise SourceError(f"samples have several pictures ({names})", self.paths[0], hint)
        for role in pictures:
            if role != image:
                ignored[f".{role.removeprefix(_IMAGE)}.*"] += roles[role]
        return image

    def _columns(self) -> Iterator[tuple[str, Column]]:
        for role in self._roles:
            name, column = _LABELS[role]
            yield name, self._class_column() if role == "cls" else column
        if self._label_key is not None:
            yield LABEL, column_of(LABEL, (self._label_of(v) for v in self._values("json")))
        for role, name in self._arrays.items():
            first = next(self._values(role), np.zeros((), np.float32))
            yield name, Column("array", dtype=first.dtype.name, dims=first.shape)

    def _class_column(self) -> Column:
        """Return whole numbers if there is one, else the names of classes."""
        names = {text for text in self._values("cls") if text}
        if not names or any(map(_is_whole, names)):
            return Column("int")
        return Column("class", tuple(sorted(names)))

    def _find_label_key(self, wanted: str | None) -> str | None:
        """Return the key of the label in ``.json``: the given one, or a usual one of the first sample."""
        first = next(self._values("json"), None) if "json" in self._roles else None
        known = first if isinstance(first, dict) else {}
        if wanted is not None and wanted not in known:
            what = f"no {wanted!r} in .json, but {sorted(known)}"
            raise SourceError(what, self.paths[0])
        if wanted is not None or "cls" in self._roles:
            return wanted
        usual = (key for key in LABEL_NAMES if isinstance(known.get(key), int | str))
        return next(usual, None)

    def _label_of(self, value: Any) -> Any:
        return value.get(self._label_key) if isinstance(value, dict) else None

    def _values(self, role: str) -> Iterator[Any]:
        """Yield what all samples have of a role; what cannot be read is left to its own item."""
        for sample, file in self._opened():
            if role in sample.members:
                with suppress(SourceError):
                    yield _read_value(file, sample, role, self.paths[sample.tar])

    def _opened(self, start: int = 0) -> Iterator[tuple[_Sample, IO[bytes]]]:
        """Yield samples with their tar, opened once."""
        samples = self._samples[start:] if start else self._samples
        for number, some in groupby(samples, attrgetter("tar")):
            with _open_tar(self.paths[number]) as file:
                for sample in some:
                    yield sample, file

    def __len__(self) -> int:
        return len(self._samples)

    def items(self, start: int = 0) -> Iterator[Item]:
        return (self._item(sample, file) for sample, file in self._opened(start))

    def keys(self) -> Iterator[str]:
        return (sample.key for sample in self._samples)

    def mask_heads(self) -> Iterator[bytes]:
        for sample, file in self._opened():
            if "mask" in sample.members:
                _, offset, size = sample.members["mask"]
                where = sample.place("mask", self.paths[sample.tar])
                yield _read_member(file, offset, min(size, HEAD_NBYTES), where)

    def _item(self, sample: _Sample, file: IO[bytes]) -> Item:
        path, members = self.paths[sample.tar], sample.members
        if self._image not in members:
            names = ", ".join(name for name, _, _ in members.values())
            return broken_item(sample.key, "the sample has no picture", f"{path}: {names}")
        try:
            labels = self._labels(file, sample, path)
            read = _reader(file, sample, self._image, path)
            mask = _reader(file, sample, "mask", path) if "mask" in members else None
        except SourceError as error:
            return broken_item(sample.key, error.what, str(error.path), error.hint)
        name = members["mask"][0] if mask is not None else None
        return Item(
            sample.key, sample.place(self._image, path), read, labels, mask, mask_name=name
        )

    def _labels(self, file: IO[bytes], sample: _Sample, path: Path) -> dict[str, Any]:
        labels = dict.fromkeys(self.labels)
        for role in (*self._roles, *self._arrays):
            if role in sample.members:
                value = _read_value(file, sample, role, path)
                if role == "cls" and self.labels[LABEL].kind == "int":
                    value = _whole(value, sample.place(role, path))
                if role in self._arrays:
                    _check_array(value, self.labels[self._arrays[role]], sample.place(role, path))
                if role == "json" and self._label_key is not None:
                    labels[LABEL] = self._label_of(value)
                labels[self._arrays.get(role) or _LABELS[role][0]] = value
        return labels


def _open_tar(path: Path) -> IO[bytes]:
    """Open a tar file, decompressed; SourceError if that fails."""
    check_regular(path, path)  # not by an opener: gzip takes a name, or leaves the file open
    try:
        if _is_gzip(path):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        return open(path, "rb")
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})", path) from error


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith("gz")


def _scan_tar(path: Path, number: int, ignored: Counter[str]) -> list[_Sample]:
    """Return the samples of one tar file, from its headers."""
    samples: list[_Sample] = []
    try:
        with _open_tar(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # keep no header twice
                if member.isdir():
                    continue
                key, role = _role_of(member)
                if role is None:
                    if not is_hidden(os.path.basename(member.name)):
                        ignored[_suffix_of(member.name)] += 1
                    continue
                check_name(member.name, path)
                if not samples or samples[-1].key != key:
                    samples.append(_Sample(number, key))
                _add(samples[-1], role, member, path)
            _check_end(file, tar.offset, path)
    except (tarfile.TarError, *_READ_ERRORS) as error:
        what = f"not a whole tar file ({error})"
        raise SourceError(what, path, "Copy or make it again") from error
    return samples


def _role_of(member: tarfile.TarInfo) -> tuple[str, str | None]:
    folder, _, name = member.name.removeprefix("./").rpartition("/")
    stem, _, suffix = name.partition(".")
    suffix = suffix.lower()
    role = None
    part, _, kind = suffix.rpartition(".")
    if suffix in _MASKS:
        role = "mask"
    elif f".{kind}" in PICTURE_SUFFIXES and not suffix.endswith((".seg.png", ".mask.png")):
        role = _IMAGE + part
    elif suffix in _LABELS or _is_array(suffix):
        role = suffix
    usable = member.isreg() and not is_hidden(name) and not member.issparse()
    return (f"{folder}/{stem}" if folder else stem), role if usable else None


def _suffix_of(name: str) -> str:
    """Return what follows a name's first dot: the part that says why it is no picture or label."""
    dot, suffix = os.path.basename(name).partition(".")[1:]
    return dot + suffix or "no suffix"


def _folders_note(samples: Sequence[_Sample]) -> list[str]:
    """Say that folders inside are no classes, where there are several."""
    folders = sorted({sample.key.rpartition("/")[0] for sample in samples} - {""})
    if len(folders) < 2:
        return []
    return [
        f"no label: folders in the tars ({few(folders)}) are not read as classes; unpack them, or add .cls"
    ]


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
        what = "the blocks of zeros that end a tar file are missing: it was probably cut"
        raise SourceError(what, path, "Copy or make it again")
    if any(rest):
        what = f"trailing data after the end of the archive (byte {offset})"
        raise SourceError(what, path, "Tar files that were joined must be unpacked and made anew")


def _reader(file: IO[bytes], sample: _Sample, role: str, path: Path) -> Any:
    """Return a function that gives a member: read when called, or from .gz now, in passing."""
    name, offset, size = sample.members[role]
    if not _is_gzip(path):
        return partial(_read_at, path, offset, size, name)
    data = _read_member(file, offset, size, f"{path}: {name}")
    return lambda: data


def _read_at(path: Path, offset: int, size: int, name: str) -> bytes:
    with _open_tar(path) as file:
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


def _read_value(file: IO[bytes], sample: _Sample, role: str, path: Path) -> Any:
    """Return what a member holds; of ``.cls`` its text."""
    name, offset, size = sample.members[role]
    data = _read_member(file, offset, size, f"{path}: {name}")
    try:
        if _is_array(role):
            return _as_numbers(np.load(io.BytesIO(data), allow_pickle=False))
        if role == "json":
            return parse_json(data)
        return data.decode().strip() if role == "cls" else data.decode()
    except (ValueError, EOFError, RecursionError) as error:
        raise SourceError(f"it cannot be read ({error})", f"{path}: {name}") from error


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _whole(text: str, where: str) -> int:
    if not _is_whole(text):
        hint = "It takes a class number, or in all samples the name of a class"
        raise SourceError(f"it is not a whole number, but {shown(text)}", where, hint)
    return int(text)


# -- arrays ----------------------------------------------------------------------------------------


def _is_array(role: str) -> bool:
    return role == "npy" or role.endswith(".npy")


def _field_of(role: str) -> str:
    """Return the name of an array's field: what stands before ``.npy``.

    Example:
        >>> _field_of("npy"), _field_of("text-emb.npy")
        ('npy', 'text_emb')
    """
    return identifier_of(role.removesuffix(".npy"))


def _as_numbers(array: Any) -> Any:
    if array.dtype.kind not in "uifb":
        raise ValueError(f"it holds {array.dtype}, not numbers")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _check_array(array: Any, column: Column, where: str) -> None:
    if (array.dtype.name, array.shape) != (column.dtype, column.dims):
        what = f"an array of {array.dtype} and shape {array.shape}"
        hint = "packdata.pack takes arrays of different shapes"
        first = f"{column.dtype} and shape {column.dims}"
        raise SourceError(f"{what}, the first one of {first}", where, hint)
