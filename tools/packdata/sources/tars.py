"""WebDataset tar files: the members that share a name up to its first dot are one sample.

``.jpg``, ``.png`` and the other pictures are the image. Where none has so short a name, ``.0.jpg``, ``.1.jpg``
are any number of images, and ``.left.jpg``, ``.right.jpg`` images that each sample has. ``.cls`` is a whole
number, or in all samples a name of a class, ``.json`` any JSON value, of which one key may be the label,
``.txt`` a caption, ``.npy`` an array, ``.seg.png`` or ``.mask.png`` a mask. The headers are read once, at the
start, and classes and shapes with them; after that any sample is one seek away (in ``.tar.gz`` one pass: a
packing that is continued reads the file from its beginning). Of texts, ``.txt`` is the text and ``.json`` its columns.
"""

from __future__ import annotations

import gzip
import io
import os
import re
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
import pyarrow as pa

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
    read_each,
)
from packdata.sources.folders import no_files
from packdata.sources.refused import check_name, check_regular
from packdata.sources.row_file import RowFile
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
_PART = "image."  # begins the role of a picture that has a name of its own in its sample
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)
LABEL = "label"
_GROUP_BYTES = 16 << 20  # of rows of texts
_TEXT = "text"


@dataclass(slots=True)
class TarSample:
    """Name, offset and size of a sample's members by role (``image``, ``mask``, ``cls``, ...)."""

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
        self._samples: list[TarSample] = []
        for number, path in enumerate(self.paths):
            self._samples += _scan_tar(path, number, ignored)
        self._pictures = _settle_pictures(self._samples, ignored)
        self.has_several = self._pictures not in ([], ["image"])
        self.notes = _notes(self._pictures)
        roles = {role for sample in self._samples for role in sample.members}
        if not self._pictures:
            raise no_files(self.paths[0], PICTURES, ignored)
        self.ignored = dict(ignored)
        self.has_masks = "mask" in roles
        self._roles = [role for role in _LABELS if role in roles]
        self._arrays = {role: _field_of(role) for role in sorted(roles) if _is_array(role)}
        self._label_key = self._find_label_key(label_column)
        self.labels = dict(self._columns())
        if LABEL not in self.labels:
            self.notes = [*self.notes, *_folders_note(self._samples)]
        places = [str(path) for path in self.paths]
        check_unique(lambda: ((s.key, places[s.tar]) for s in self._samples), self.paths[0])

    def _columns(self) -> Iterator[tuple[str, Column]]:
        for role in self._roles:
            name, column = _LABELS[role]
            yield name, self._class_column() if role == "cls" else column
        if self._label_key is not None:
            yield LABEL, column_of(LABEL, (self._label_of(v) for v in self._values("json")))
        for role, name in self._arrays.items():
            yield name, _array_column(self._values(role))

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
            what = f"it has no {wanted!r} in .json, but {sorted(known)}"
            raise SourceError(what, self.paths[0])
        if wanted is not None or "cls" in self._roles:
            return wanted
        usual = (key for key in LABEL_NAMES if isinstance(known.get(key), int | str))
        return next(usual, None)

    def _label_of(self, value: Any) -> Any:
        return value.get(self._label_key) if isinstance(value, dict) else None

    def _values(self, role: str) -> Iterator[Any]:
        """Yield what all samples have of a role; what cannot be read is left to its own item."""
        for number, samples in groupby(self._samples, attrgetter("tar")):
            with _open_tar(self.paths[number]) as file:
                for sample in samples:
                    if role in sample.members:
                        with suppress(SourceError):
                            yield _read_value(file, sample, role, self.paths[number])

    def __len__(self) -> int:
        return len(self._samples)

    def items(self, start: int = 0) -> Iterator[Item]:
        while start < len(self._samples):
            number = self._samples[start].tar
            with _open_tar(self.paths[number]) as file:
                while start < len(self._samples) and self._samples[start].tar == number:
                    yield self._item(self._samples[start], file)
                    start += 1

    def keys(self) -> Iterator[str]:
        return (sample.key for sample in self._samples)

    def mask_heads(self) -> Iterator[bytes]:
        for number, samples in groupby(self._samples, attrgetter("tar")):
            path = self.paths[number]
            with _open_tar(path) as file:
                for sample in samples:
                    if "mask" in sample.members:
                        name, offset, size = sample.members["mask"]
                        yield _read_member(file, offset, min(size, HEAD_NBYTES), f"{path}: {name}")

    def _item(self, sample: TarSample, file: IO[bytes]) -> Item:
        path = self.paths[sample.tar]
        pictures = [role for role in self._pictures if role in sample.members]
        if not pictures and not self._is_numbered:
            names = ", ".join(name for name, _, _ in sample.members.values())
            what = "the sample has no picture"
            return broken_item(sample.key, what, f"{path}: {names or sample.key}")
        first = sample.members[pictures[0]] if pictures else next(iter(sample.members.values()))
        where = f"{path}: {first[0]}"
        try:
            labels = self._labels(file, sample, path)
            read = _reader(file, sample, "image", path)
            if self.has_several:
                wanted = pictures if self._is_numbered else self._pictures
                read = partial(read_each, [_reader(file, sample, r, path) for r in wanted])
            mask = _reader(file, sample, "mask", path) if self.has_masks else None
        except SourceError as error:
            return broken_item(sample.key, error.what, str(error.path), error.hint)
        name = sample.members["mask"][0] if "mask" in sample.members else None
        return Item(sample.key, where, read, labels, mask, mask_name=name)

    @property
    def _is_numbered(self) -> bool:
        """Whether samples have any number of pictures; else each has all that there are."""
        return self.has_several and _are_numbered(self._pictures)

    def _labels(self, file: IO[bytes], sample: TarSample, path: Path) -> dict[str, Any]:
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


class TarRows(RowFile):
    """One tar file. The columns are those of its first samples; pictures and the like are passed over.

    Raises:
        SourceError: It is damaged, or holds neither ``.txt`` nor ``.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        samples = _scan_tar(path, 0, Counter())
        self._samples = [s for s in samples if "txt" in s.members or "json" in s.members]
        if not self._samples:
            raise SourceError("no .txt and no .json", path)
        self._starts = list(self._cut())
        ends = [*self._starts[1:], len(self._samples)]
        self.groups = [end - start for start, end in zip(self._starts, ends, strict=True)]
        self.schema: pa.Schema = None  # of the first group
        self.schema = self._table(0).schema

    def _cut(self) -> Iterator[int]:
        """Yield where groups begin."""
        size = _GROUP_BYTES
        for number in range(len(self._samples)):
            if size >= _GROUP_BYTES:
                yield number
                size = 0
            size += self._size(number)

    def _size(self, number: int) -> int:
        members = self._samples[number].members
        return sum(members[role][2] for role in ("txt", "json") if role in members)

    def _table(self, group: int) -> pa.Table:
        start = self._starts[group]
        with _open_tar(self.path) as file:
            rows = [self._row(file, number) for number in range(start, start + self.groups[group])]
        try:
            return pa.Table.from_pylist(rows, self.schema)
        except (pa.ArrowException, OverflowError) as error:
            what = f"values do not match the column types ({error})"
            where = f"{self.path}, samples from {self._samples[start].key} on"
            raise SourceError(what, where) from error

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        return self._table(group).select([*columns])

    def _row(self, file: Any, number: int) -> dict[str, Any]:
        sample = self._samples[number]
        row: dict[str, Any] = {}
        if "json" in sample.members:
            value = _read_value(file, sample, "json", self.path)
            row |= value if isinstance(value, dict) else {}
        if "txt" in sample.members:
            row[_TEXT] = _read_value(file, sample, "txt", self.path)
        return row

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        start = self._starts[group]
        return sum(self._size(number) for number in range(start, start + self.groups[group]))


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


def _scan_tar(path: Path, number: int, ignored: Counter[str]) -> list[TarSample]:
    """Return the samples of one tar file, from its headers."""
    samples: dict[str, TarSample] = {}
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
                _add(samples.setdefault(key, TarSample(number, key)), role, member, path)
            _check_end(file, tar.offset, path)
    except (tarfile.TarError, *_READ_ERRORS) as error:
        what = f"not a whole tar file ({error})"
        raise SourceError(what, path, "Copy or make it again") from error
    return list(samples.values())


def _role_of(member: tarfile.TarInfo) -> tuple[str, str | None]:
    folder, _, name = member.name.removeprefix("./").rpartition("/")
    stem, _, suffix = name.partition(".")
    suffix = suffix.lower()
    role = None
    part, _, kind = suffix.rpartition(".")
    if suffix in _MASKS:
        role = "mask"
    elif f".{kind}" in PICTURE_SUFFIXES and not suffix.endswith((".seg.png", ".mask.png")):
        role = f"{_PART}{part}" if part else "image"
    elif suffix in _LABELS or _is_array(suffix):
        role = suffix
    usable = member.isreg() and not is_hidden(name) and not member.issparse()
    return (f"{folder}/{stem}" if folder else stem), role if usable else None


def _suffix_of(name: str) -> str:
    """Return what follows a name's first dot: the part that says why it is no picture or label."""
    dot, suffix = os.path.basename(name).partition(".")[1:]
    return dot + suffix or "no suffix"


def _settle_pictures(samples: Sequence[TarSample], ignored: Counter[str]) -> list[str]:
    """Return the roles of pictures in their order; where there is ``image``, others are passed over.

    One name that all pictures have, and that is no number, is that of the image.
    """
    roles = {role for sample in samples for role in sample.members if role.startswith(_PART)}
    has_plain = any("image" in sample.members for sample in samples)
    is_one = len(roles) == 1 and not _are_numbered([*roles])
    if roles and not has_plain and not is_one:
        return sorted(roles, key=_rank)
    for sample in samples if roles else ():
        for role in roles & sample.members.keys():
            member = sample.members.pop(role)
            if has_plain:
                ignored[_suffix_of(member[0])] += 1
            else:
                sample.members["image"] = member
    return ["image"] if has_plain or roles else []


def _rank(role: str) -> tuple[str, int, str]:
    """Order ``img2`` before ``img10``."""
    match = _NUMBERED.fullmatch(role)
    return (match[1], int(match[2]), role) if match else (role, -1, role)


def _are_numbered(roles: Sequence[str]) -> bool:
    """Tell whether names differ in a number at the end alone."""
    matches = [_NUMBERED.fullmatch(role) for role in roles]
    return all(matches) and len({match[1] for match in matches if match}) == 1


def _notes(pictures: Sequence[str]) -> list[str]:
    """Say what the pictures of a sample are, where they have names."""
    if _are_numbered(pictures) or len(pictures) < 2:
        return []
    names = ", ".join(role.removeprefix(_PART) for role in pictures)
    return [f"the images of a sample are, in this order: {names}"]


def _folders_note(samples: Sequence[TarSample]) -> list[str]:
    """Say that folders inside are no classes, where there are several."""
    folders = sorted({sample.key.rpartition("/")[0] for sample in samples} - {""})
    if len(folders) < 2:
        return []
    return [
        f"no label: folders in the tars ({few(folders)}) are not read as classes; unpack them, or add .cls"
    ]


def _add(sample: TarSample, role: str, member: tarfile.TarInfo, path: Path) -> None:
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


def _reader(file: IO[bytes], sample: TarSample, role: str, path: Path) -> Any:
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


def _read_value(file: IO[bytes], sample: TarSample, role: str, path: Path) -> Any:
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


def _array_column(arrays: Iterator[Any]) -> Column:
    """Return the type of the first array, and the axes on which all of them agree."""
    first = next(arrays, None)
    if first is None:
        return Column("array", dtype="float32", dims=())
    dims: list[int | None] = list(first.shape)
    for array in arrays:
        if array.ndim == len(dims):
            dims = [a if a == b else None for a, b in zip(dims, array.shape, strict=True)]
    return Column("array", dtype=first.dtype.name, dims=tuple(dims))


def _check_array(array: Any, column: Column, where: str) -> None:
    if array.dtype.name != column.dtype or array.ndim != len(column.dims):
        what = f"it holds {array.dtype} in {array.ndim} axes"
        raise SourceError(f"{what}, the first one {column.dtype} in {len(column.dims)}", where)
