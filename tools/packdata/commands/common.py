"""What the commands share: arguments that many have, mistakes in them, and what is printed."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loaders.commandline import number_from, show
from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import LoadersError, SchemaError
from loaders.remote.url import is_url
from loaders.text import describe_size, printable
from packdata.describe import counted
from packdata.options import parse_size, parse_source
from packdata.packing.shards import DEFAULT_SHARD_BYTES, FORMATS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loaders.data.manifest import Manifest

_FLAGS = {"shard_bytes": "--shard-size", "sizes": "--size", "header": "--no-header"}
_NAMED = re.compile(r"(?<![\w'\"/.-])([a-z]+(?:_[a-z]+)*)\b(?:(=)|(?![\w'\"/.-]))")


def add_dataset(
    parser: Any, help: str = "folder or URL of the dataset", name: str = "dataset"
) -> None:
    """Add the place of a packed dataset."""
    parser.add_argument(name, metavar=name.upper(), type=parse_source, help=help)


def add_switch(parser: Any, name: str, help: str) -> None:
    """Add an option that takes nothing."""
    parser.add_argument(name, action="store_true", help=help)


def add_number(parser: Any, name: str, help: str, default: int | None = None) -> None:
    """Add an option that takes a number from 1 on."""
    parser.add_argument(name, type=number_from(1), metavar="N", default=default, help=help)


def add_json(parser: Any) -> None:
    """Add ``--json``."""
    add_switch(parser, "--json", "print the result as JSON")


def add_shards(
    parser: Any,
    usual: str,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    format: str | None = None,
) -> None:
    """Add the format, ``usual`` unless it is given, and size of shards."""
    what = f"file format of the shards (default: {usual})"
    parser.add_argument("--format", choices=FORMATS, default=format, help=what)
    what = (
        "size of a shard; K, M and G are powers of 1024, up to 256MB in Parquet and 64GB in LMDB"
    )
    parser.add_argument(
        "--shard-size",
        dest="shard_bytes",
        type=parse_size,
        metavar="SIZE",
        default=shard_bytes,
        help=f"{what} (default: {shard_bytes >> 20}MB)",
    )


def with_options(text: str, args: argparse.Namespace) -> str:
    """Return a message with the options of the arguments that it names: ``overwrite=``, ``row_tokens``.

    Example:
        >>> from argparse import Namespace
        >>> with_options("Pass overwrite=True to replace it", Namespace(overwrite=False))
        'Pass overwrite=True to replace it (option: --overwrite)'
    """
    # A single word is one of English, too, unless a value follows.
    found = [name for name, equals in _NAMED.findall(text) if equals or "_" in name]
    named = [
        _FLAGS.get(name, f"--{name.replace('_', '-')}") for name in vars(args) if name in found
    ]
    word = "option" if len(named) == 1 else "options"
    return f"{text} ({word}: {', '.join(named)})" if named else text


def datasets_at(folder: Path) -> list[Path]:
    """Return the dataset at a folder; of a folder of splits, of sizes or of both, each of them.

    A folder of shards is one of them, though it may have lost its manifest.
    """
    if is_url(folder) or (folder / MANIFEST_NAME).exists():
        return [folder]
    files = (MANIFEST_NAME, *(f"shard-*.{format}" for format in FORMATS))
    globs = [f"{below}/{file}" for below in ("*", "*/*") for file in files]
    found = {path.parent.relative_to(folder) for glob in globs for path in folder.glob(glob)}
    # what lies in .packing is none yet
    finished = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return sorted(folder / path for path in finished) or [folder]


@contextmanager
def usage_errors(args: argparse.Namespace, *, schema: bool) -> Iterator[None]:
    """Let options that contradict each other end as argparse ends: message, status 2.

    With ``schema``, a SchemaError is the options' fault, too, and not that of a dataset.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, LoadersError) and not (schema and isinstance(error, SchemaError)):
            raise  # bad data: SourceError, ManifestError, ...
        args.parser.error(with_options(str(error), args))


def show_json(data: Any) -> None:
    """Print JSON to standard output."""
    print(json.dumps(data, indent=1))


def show_notes(notes: Sequence[str]) -> None:
    """Print to standard error what deserves a look."""
    sys.stderr.writelines(f"packdata: {printable(text)}\n" for text in notes)


def show_made(args: argparse.Namespace, folder: Path, manifest: Manifest, **more: Any) -> None:
    """Say what was written, and ``more`` of it in JSON."""
    if args.json:
        show_json(made(folder, manifest) | more)
        return
    samples = counted(manifest.num_samples, "sample")
    shards = counted(len(manifest.shards), "shard")
    show(f"{printable(str(folder))}: {samples}, {shards}, {describe_size(manifest.size_bytes)}")


def made(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what was written as JSON types."""
    return {
        "path": str(folder),
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "size_bytes": manifest.size_bytes,
        "fingerprint": manifest.fingerprint,
    }
