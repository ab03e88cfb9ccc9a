"""What becomes of every column of a table: decided by what the first pass found, or by another packing (``like=``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loaders.errors import SchemaError, SourceError
from loaders.schema import Array, Categories, Features, Field, Label, Schema
from packdata.moments import Moments
from packdata.sources.columns import identifier_of
from packdata.sources.row_kinds import TypedRows
from packdata.tables.files import check_names
from packdata.types import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.data.manifest import Manifest
    from loaders.remote.url import Location
    from packdata.rows import RowFile
    from packdata.tables.files import TableFiles
    from packdata.tables.options import TableOptions
    from packdata.tables.scan import ColumnScan, Scan
    from packdata.types import Kind

FEATURES, CATEGORIES, MISSING = "features", "categories", "missing"
# In the provenance: field, column and how of each target; the options that were passed.
TARGETS, OPTIONS = "targets", "options"
# What a column is read as, of which a number, flag, label or days are made.
READ_AS: dict[str, Kind] = {"number": "number", "flag": "flag", "label": "text", "days": "date"}
_NO_NAMES = ("count", "index", "valid", "sample_id", "key")  # of targets
_NAMES = {  # of the kinds of values, in messages
    "number": "numbers",
    "code": "numbers that begin with zeros",
    "flag": "true and false",
    "date": "dates",
    "zoned": "dates with a time zone",
    "text": "text",
}


class TargetColumn(NamedTuple):
    """A column to predict: the name of its field, its own name in the files, and what becomes of it."""

    field: str
    column: str
    how: str  # ``label``, ``number``, ``flag`` or ``days``


@dataclass(frozen=True, slots=True)
class Columns:
    """What becomes of the columns of files: fields, and the columns that are predicted."""

    schema: Schema  # ``features``, ``missing``, ``categories``, if any; and the targets
    targets: Sequence[TargetColumn]

    def kinds(self) -> dict[str, Kind]:
        """Return what each column in the files is read as."""
        features, categories = (self.schema.fields.get(n) for n in (FEATURES, CATEGORIES))
        hows = dict(features.sources) if isinstance(features, Features) else {}
        if isinstance(categories, Categories):
            hows |= dict.fromkeys(categories.columns, "label")
        hows |= {target.column: target.how for target in self.targets}
        return {name: READ_AS[how] for name, how in hows.items()}

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON types."""
        targets = [target._asdict() for target in self.targets]
        return {"schema": self.schema.to_json(), TARGETS: targets}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Columns:
        """Return what ``to_json`` gave."""
        targets = [TargetColumn(**each) for each in data[TARGETS]]
        return cls(Schema.from_json(data["schema"]), targets)


def plan_columns(scan: Scan, files: TableFiles, options: TableOptions) -> Columns:
    """Decide what becomes of the columns of scanned files.

    Raises:
        SourceError: Columns are not of one kind (it names all of these), have no values, or do not fit the options.
        SchemaError: Nothing is left to pack.
    """
    if not scan.num_rows:
        raise SourceError("the table has no rows", files.paths[0])
    dropped, targeted = {*options.drop}, {*options.target}
    check_names([n for n in options.named if n not in dropped], scan.columns, files.paths[0])
    hows = _hows(scan, files, options)
    learned = [name for name in hows if name not in targeted]
    numbers = [name for name in learned if hows[name] != "label"]
    texts = [name for name in learned if hows[name] == "label"]
    fields: dict[str, Field] = {}
    if numbers:
        fields[FEATURES] = _features(numbers, hows, scan, options)
        if options.missing_mask:
            fields[MISSING] = Array(dtype="bool", dims=(len(numbers),))
    if texts:
        fields[CATEGORIES] = _categories(texts, scan)
    dtype = "float64" if numbers and options.dtype == "float64" else "float32"
    targets = []
    for column in options.target:
        name, how = re.sub(r"^[\W_]+|[\W_]+$", "", column) or "target", hows[column]
        name = identifier_of(name, _NO_NAMES)
        while name in (*fields, FEATURES, CATEGORIES, MISSING) or name in hows.keys() - {column}:
            name += "_"
        targets.append(TargetColumn(name, column, how))
        known = scan.columns[column].known_texts()
        classes = files[0].classes.get(column) or _names(files[0], column, known)
        fields[name] = Label(classes=classes) if how == "label" else Array(dtype=dtype)
    return Columns(Schema(fields), targets)


def _hows(scan: Scan, files: TableFiles, options: TableOptions) -> dict[str, str]:
    """Return how each column that is packed is: ``number``, ``flag``, ``days`` or ``label``, of categories too."""
    hows: dict[str, str] = {}
    problems: list[SourceError] = []
    given = dict.fromkeys(options.numeric, "number") | dict.fromkeys(options.categorical, "label")
    for name in options.wanted or scan.columns:
        try:
            hows[name] = _how(name, scan.columns[name], files, options, given.get(name))
        except SourceError as error:
            problems.append(error)
    if len(problems) > 1:
        what = f"{len(problems)} columns cannot be packed as they are:"
        raise SourceError("\n".join([what, *map("  {}".format, problems)]), files.paths[0])
    if problems:
        raise problems[0]
    return hows


def _how(
    name: str, column: ColumnScan, files: TableFiles, options: TableOptions, given: str | None
) -> str:
    """Return how a column is, or is ``given`` to be; SourceError if its values are of no one kind."""
    kinds = sorted(column.kinds, key=lambda kind: (-column.kinds[kind], kind == "text", kind))

    def refused(
        what: str, hint: str = "", seen: Kind | None = None, where: Location | str = files.paths[0]
    ) -> SourceError:
        """Return the error; it shows the first value of a kind, and its place."""
        if seen is not None:
            value, where = files.value(name, *column.first[seen])
            what += f" ({value!r})"
        drop = "target= without it" if name in options.target else f"drop={[name]}"
        return SourceError(f"column {name!r} {what}", where, f"{hint}{drop} leaves it out")

    # Each part of JSON lines declares a kind: where they are cut does not decide what a column is.
    is_several = files[0].columns is None and len(column.declared) > 1
    if column.other or is_several:
        since = column.declared.get("other", max(column.declared.values(), default=None))
        what = f"holds {column.other or 'values of several kinds'}"
        raise refused(what, where=files.since(*since) if since else files.paths[0])
    if not kinds:
        hint = f"categorical={[name]} takes NA and the like as texts, "
        raise refused("has no value in any row", hint)
    if given == "number" and given not in kinds:
        raise refused("holds no number", "", kinds[0])
    if given is not None:
        return given
    # With zeros in front, all its numbers are names.
    if "code" in {*kinds} <= {"code", "number", "flag", "text"}:
        return "label"
    if {*kinds} == {"flag", "text"} and "flag" not in column.declared:
        return "label"
    most, *others = kinds
    if others:
        hint = f"categorical={[name]} takes all as categories, "
        hint += f"numeric={[name]} with on_error='skip' leaves out rows without a number, "
        raise refused(f"holds {_NAMES[most]}, and {_NAMES[others[0]]}", hint, others[0])
    if most in ("date", "zoned") and options.dates is None:
        raise refused("holds dates", "dates='days' makes numbers of them, ", most)
    return {"text": "label", "date": "days", "zoned": "days"}.get(most, most)


def _names(file: RowFile, column: str, texts: Mapping[str, int]) -> tuple[str, ...]:
    """Return texts sorted; of categories that a file declares in an order (pandas', polars' Enum) all of these."""
    if isinstance(file, TypedRows) and getattr(file.schema.field(column).type, "ordered", False):
        for group in file.groups[:1]:
            array = file.table(group, [column])[column].combine_chunks()
            names = tuple(as_text(array.dictionary).drop_null().to_pylist())
            if {*texts} <= {*names}:
                return names
    return _classes(texts)


def _classes(names: Mapping[str, int]) -> tuple[str, ...]:
    """Sort names; whole numbers by their value, of which Python reads no more than 4300 digits."""
    if all(re.fullmatch(r"-?\d{1,4300}", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _features(
    names: Sequence[str], hows: Mapping[str, str], scan: Scan, options: TableOptions
) -> Features:
    """Return the field of numbers; where all of a column are equal, rounding does not count as a deviation."""
    kept = [_moments(scan.columns[name], hows[name]) for name in names]
    std = tuple(0.0 if m.least == m.most else m.std for m in kept)
    if not np.isfinite(std).all():
        column = names[int(np.isfinite(std).argmin())]
        hint = f"drop={[column]} leaves it out"
        raise SchemaError(f"the deviation of column {column!r} is beyond float64; {hint}")
    return Features(
        dtype=options.dtype,
        columns=tuple(names),
        sources=tuple((name, hows[name]) for name in names),
        mean=tuple(m.least if m.least == m.most else m.mean for m in kept),
        std=std,
        least=tuple(m.least for m in kept),
        most=tuple(m.most for m in kept),
        missing=options.missing,
        standardized=options.standardize,
    )


def _moments(column: ColumnScan, how: str) -> Moments:
    if how != "flag":
        return column.moments if column.moments.count else Moments(least=0.0, most=0.0)
    moments = Moments()
    for text, count in column.known_texts().items():
        flag = float(text.strip().lower() == "true")
        moments.add(Moments(count, flag, 0.0, flag, flag))
    return moments


def _categories(names: Sequence[str], scan: Scan) -> Categories:
    """Return the field of categories: of each column the texts by how often they occur, then by name."""
    counts = [scan.columns[name].known_texts() for name in names]
    vocabularies = tuple(tuple(sorted(each, key=lambda n: (-each[n], n))) for each in counts)
    largest = max(map(len, vocabularies))
    dtype = next(t for t in ("uint8", "uint16", "uint32") if largest <= np.iinfo(t).max)
    return Categories(dtype=dtype, columns=tuple(names), vocabularies=vocabularies)


# -- as another packing has them: test data get the dictionaries and statistics of the training data --


def plan_like(
    manifest: Manifest, like: Location | str, files: TableFiles, drop: Sequence[str]
) -> Columns:
    """Return what the packed table ``like`` made of columns, for files with these columns.

    Targets that are dropped may be absent.

    Raises:
        SourceError: It is no packed table, or a column is missing.
    """
    found = (packing.get(TARGETS) or () for packing in packings(manifest.provenance))
    known = {target["field"]: TargetColumn(**target) for target in chain.from_iterable(found)}
    names = [n for n in manifest.schema.fields if n not in (FEATURES, CATEGORIES, MISSING)]
    features, categories = (manifest.schema.fields.get(n) for n in (FEATURES, CATEGORIES))
    sources = features.sources if isinstance(features, Features) else ()
    hows = {how for _, how in sources} | {target.how for target in known.values()}
    is_table = bool(sources) if features is not None else isinstance(categories, Categories)
    if not is_table or not hows <= READ_AS.keys() or not {*names} <= known.keys():
        hint = "like= takes what 'packdata tables' made: pack the training data again"
        raise SourceError("the dataset is not a packed table", like, hint)
    dropped = [name for name in names if not {name, known[name].column}.isdisjoint(drop)]
    fields = {n: field for n, field in manifest.schema.fields.items() if n not in dropped}
    targets = [known[name] for name in names if name not in dropped]
    columns = Columns(Schema(fields), targets)
    wanted = columns.kinds()
    there = {*(wanted if files.columns is None else files.columns)}
    if absent := [name for name in wanted if name not in there]:
        what = f"the table has no column {absent[0]!r}, which {like} (like=) was packed with"
        lost = [target.column for target in targets if target.column in absent]
        hint = f"drop={lost} packs without it" if lost == absent else ""
        raise SourceError(what, files.paths[0], hint)
    return columns


def packings(provenance: Any) -> Iterator[Mapping[str, Any]]:
    """Find what is known of the packing, also below what was split, copied or merged since."""
    if isinstance(provenance, Mapping):
        if provenance.get("command") == "tables":
            yield provenance
        provenance = list(provenance.values())
    if isinstance(provenance, list):
        for each in provenance:
            yield from packings(each)
