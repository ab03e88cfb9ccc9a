"""WebDataset tar files: neighbours that share a name up to its first dot are one sample.

``.jpg``, ``.png`` and the other pictures are the image, ``.seg.png`` or ``.mask.png`` a mask. ``.cls`` is a whole
number, or in all samples a name of a class, ``.json`` any JSON value, of which one key may be the label, ``.txt`` a
caption. The headers are read once, at the start, and classes with them; after that any sample is one seek away.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.describe import few
from packdata.parsing import parse_json
from packdata.reading import open_file
from packdata.sources.base import Item, Source, fail
from packdata.sources.columns import LABEL, LABEL_NAMES, Column, column_of
from packdata.sources.duplicates import check_unique
from packdata.sources.listed import files_identity
from packdata.sources.names import PICTURE_SUFFIXES, check_name, is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.remote.url import Location
    from packdata.reading import File

TAR_SUFFIX = ".tar"
_IMAGE, _MASK = "image", "mask"
_FIELDS = {"cls": LABEL, "json": "json", "txt": "caption"}  # by suffix
_ROLES = {
    **{suffix[1:]: _IMAGE for suffix in PICTURE_SUFFIXES},
    **dict.fromkeys(("seg.png", "mask.png"), _MASK),
    **{suffix: suffix for suffix in _FIELDS},
}
_BLOCK = 512
_NEIGHBOURS = "Keys of tars differ, and members of a sample are neighbours: use tar --sort=name"


@dataclass(slots=True)
class _Sample:
    """Name, offset and size of a sample's members by role (``image``, ``mask``, ``cls``, ...)."""

    tar: File
    key: str
    members: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def place(self, role: str) -> str:
        """Say where a member is."""
        return f"{self.tar.path}: {self.members[role][0]}"

    def read(self, role: str, opened: IO[bytes] | None = None) -> bytes:
        """Return a member, from the opened tar if that is given; SourceError if it is not whole."""
        _, offset, size = self.members[role]
        with open_file(self.tar) if opened is None else nullcontext(opened) as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            what = f"{len(data)} of {size} bytes are there"
            raise SourceError(what, self.place(role), "Was the file changed?")
        return data

    def value(self, role: str, opened: IO[bytes]) -> Any:
        """Return what a member holds; of ``.cls`` a number, or the name of a class."""
        data = self.read(role, opened)
        try:
            if role != "cls":
                return parse_json(data) if role == "json" else data.decode()
            name = data.decode().strip()
            return int(name) if name.removeprefix("-").isdecimal() else name
        except (ValueError, RecursionError) as error:
            raise SourceError(f"cannot be read ({error})", self.place(role)) from error


class TarSource(Source):
    """The samples of tar files, in the order of the files and of the samples' first members."""

    kind = "tar"

    def __init__(self, files: Sequence[File], name: str, label_key: str | None) -> None:
        self.name, self.files, self._path = name, files, files[0].path
        label = {"label": label_key} if label_key else {}
        self.identity = {**files_identity(self.kind, files), **label}
        ignored: Counter[str] = Counter()
        self._samples = [sample for tar in files for sample in _scan_tar(tar, ignored)]
        keys = lambda: ((sample.key, str(sample.tar.path)) for sample in self._samples)  # noqa: E731
        check_unique(keys, self._path, _NEIGHBOURS)
        roles = {role for sample in self._samples for role in sample.members}
        nothing = _Sample(files[0], "KEY")
        for sample in self._samples or [nothing]:
            if _IMAGE not in sample.members:
                others = f"; other files: {few(ignored)}" if ignored else ""
                what = f"no picture {sample.key}.jpg, or .png{others}"
                hint = "packdata.pack takes samples of several pictures, and pictures with other names"
                raise SourceError(what, sample.tar.path, hint)
        self.ignored = dict(ignored)
        self.has_masks = _MASK in roles
        self._label_key = self._find_label_key(label_key, roles)
        # The label of .json takes the place of that of .cls.
        taken = "cls" if self._label_key else None
        self._roles = [role for role in _FIELDS if role in roles - {taken}]
        self.labels = {_FIELDS[role]: self._column(role) for role in self._roles}
        if self._label_key:
            self.labels[LABEL] = column_of(LABEL, map(self._label_of, self._values("json")))
        if LABEL not in self.labels:
            self.notes = [f"no label: no .cls, nor {', '.join(LABEL_NAMES)} in the first .json"]

    def _column(self, role: str) -> Column:
        if role != "cls":
            return Column("json" if role == "json" else "text")
        names = {*self._values("cls")}
        kinds = {type(name) for name in names}
        if len(kinds) > 1 or "" in names:
            found = few(sorted(map(str, names)))
            what = f"class numbers beside names in .cls, or nothing ({found})"
            raise SourceError(what, self._path, "Give all samples numbers, or names")
        return Column("int") if int in kinds else Column("class", tuple(sorted(names)))

    def _find_label_key(self, wanted: str | None, roles: set[str]) -> str | None:
        """Return the key of the label in ``.json``: the given one, or a usual one of the first sample."""
        first: Any = next(self._values("json"), None) if "json" in roles else None
        known = first if isinstance(first, dict) else {}
        if wanted is not None and wanted not in known:
            raise SourceError(f"no {wanted!r} in .json, but {sorted(known)}", self._path)
        if wanted is not None or "cls" in roles:
            return wanted
        return next((key for key in LABEL_NAMES if isinstance(known.get(key), int | str)), None)

    def _label_of(self, value: Any) -> Any:
        return value.get(self._label_key) if isinstance(value, dict) else None

    def _values(self, role: str) -> Iterator[Any]:
        """Yield what all samples have of a role."""
        return (each.value(role, file) for each, file in self._opened() if role in each.members)

    def _opened(self, start: int = 0) -> Iterator[tuple[_Sample, IO[bytes]]]:
        """Yield samples with their tar, opened once."""
        samples = map(self._samples.__getitem__, range(start, len(self)))
        for tar, some in groupby(samples, attrgetter("tar")):
            with open_file(tar) as file:
                for sample in some:
                    yield sample, file

    def __len__(self) -> int:
        return len(self._samples)

    def items(self, start: int = 0) -> Iterator[Item]:
        return (self._item(sample, file) for sample, file in self._opened(start))

    def _item(self, sample: _Sample, file: IO[bytes]) -> Item:
        read, where = partial(sample.read, _IMAGE), sample.place(_IMAGE)
        mask = partial(sample.read, _MASK) if _MASK in sample.members else None
        try:
            return Item(sample.key, where, read, self._labels(file, sample), mask)
        except SourceError as error:
            return Item(sample.key, where, partial(fail, error))

    def _labels(self, file: IO[bytes], sample: _Sample) -> dict[str, Any]:
        roles = [role for role in self._roles if role in sample.members]
        values = {_FIELDS[role]: sample.value(role, file) for role in roles}
        if self._label_key:
            values[LABEL] = self._label_of(values.get("json"))
        return {**dict.fromkeys(self.labels), **values}


def _scan_tar(given: File, ignored: Counter[str]) -> list[_Sample]:
    """Return the samples of one tar file, from its headers."""
    samples, path = list[_Sample](), given.path
    try:
        with open_file(given) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # keep no header twice
                if member.isdir() or is_hidden(os.path.basename(member.name)):
                    continue
                key, suffix, role = _role_of(member)
                if role is None:
                    ignored[suffix] += 1
                    continue
                check_name(member.name, path)
                if not samples or samples[-1].key != key:
                    samples.append(_Sample(given, key))
                members = samples[-1].members
                if role in members:
                    what = f"{members[role][0]} and {member.name} are both the {role} of sample {key!r}"
                    hint = "The part of a name before its first dot is the sample"
                    raise SourceError(what, path, hint)
                members[role] = (member.name, member.offset_data, member.size)
            _check_end(file, tar.offset, path)
    except (tarfile.TarError, OSError) as error:
        what = f"not a whole tar file ({error})"
        raise SourceError(what, path, "Copy or make the tar again") from error
    return samples


def _role_of(member: tarfile.TarInfo) -> tuple[str, str, str | None]:
    """Return the sample of a member, what follows its first dot, and its role, None for one that is skipped."""
    folder, _, name = member.name.removeprefix("./").rpartition("/")
    stem, dot, suffix = name.partition(".")
    is_usable = member.isreg() and not member.issparse()
    role = _ROLES.get(suffix.lower()) if is_usable else None
    return f"{folder}/{stem}" if folder else stem, dot + suffix or "no suffix", role


def _check_end(file: IO[bytes], offset: int, path: Location) -> None:
    """Tell a whole archive from one cut between two members, or with another one behind it.

    Source: POSIX ustar: an archive ends with blocks of zeros; tar fills up to 20 of them.
    """
    file.seek(offset)
    rest = file.read(32 * _BLOCK)
    if len(rest) < _BLOCK or any(rest):
        what = f"no blocks of zeros end the archive (byte {offset}): the tar was cut, or joined with another"
        raise SourceError(what, path, "Copy or make the tar again")
