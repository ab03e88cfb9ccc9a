"""What the commands share: parsers, output, and arguments with units."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import LoadersError, ManifestError, SchemaError, SourceError
from loaders.remote.options import add_remote
from loaders.remote.url import is_url, split_secrets
from loaders.text import describe_size, printable, printable_json
from packdata.describe import counted
from packdata.packing.progress import progress_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES, FORMATS
from packdata.wording import in_shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.commandline import Commands, Parser
    from loaders.data.manifest import Manifest

SIZES = "K, M and G are powers of 1024, up to 256MB in Parquet and 64GB in LMDB"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def new_parser(
    commands: Commands, name: str, summary: str, example: str, details: str = ""
) -> Parser:
    """Add a command with help, and an example below it."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n{details}".rstrip(),
        epilog=f"example:\n  {example}",
    )


def new_reading_parser(
    commands: Commands,
    name: str,
    summary: str,
    example: str,
    details: str = "",
    *,
    several: bool = False,
) -> Parser:
    """Add a command that reads a DATASET, or, of a folder of ``several``, each."""
    parser = new_parser(commands, name, summary, example, details)
    what = "folder or URL of the dataset" + (", or a folder of several" if several else "")
    parser.add_argument("dataset", type=parse_source, metavar="DATASET", help=what)
    add_remote(parser)
    return parser


def add_workers(parser: argparse.ArgumentParser, what: str = "threads") -> None:
    """Add ``--workers``."""
    known = f"{what} (default: all usable cores)"
    parser.add_argument("--workers", type=parse_count, metavar="N", help=known)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def new_joining_parser(
    commands: Commands, name: str, summary: str, example: str, *, src: str, dst: str
) -> Parser:
    """Add a command that makes the shards of SRC... a part of DST, which the caller gives ``join``."""
    parser = new_parser(commands, name, summary, example, _LINKS)
    parser.add_argument("src", type=parse_source, nargs="+", metavar="SRC", help=src)
    parser.add_argument("dst", type=parse_source, metavar="DST", help=dst)
    parser.add_argument(
        "--no-link", action="store_true", help="copy and verify the shards, even where links work"
    )
    add_json(parser)
    add_remote(parser)
    parser.set_defaults(run=_join, options=())
    return parser


def _join(args: argparse.Namespace) -> int:
    linked: list[Path] = []
    notes: list[str] = []
    options = {name: getattr(args, name) for name in args.options}
    try:
        with (
            progress_of("sending", None, unit="bytes")
            if is_url(args.dst)
            else nullcontext(int) as tick
        ):
            manifest: Manifest = args.join(
                args.dst,
                args.src,
                link=not args.no_link,
                on_link=linked.append,
                note=notes.append,
                tick=tick,
                **options,
            )
    except ManifestError as error:
        if not is_url(args.src[0]) and not os.path.lexists(args.src[0]):
            error.add_note(f"the target comes last, and is {args.dst} here")
        raise
    if args.json:
        show_json(made(args.dst, manifest) | {"num_linked": len(linked)})
    else:
        show_made(args, args.dst, manifest)
        if linked:
            what = (
                "1 shard is a hard link and was"
                if len(linked) == 1
                else f"{len(linked):,} shards are hard links and were"
            )
            show(f"{what} not verified: packdata verify {shlex.quote(str(args.dst))}")
    show_notes(notes)
    return 0


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that write a dataset."""
    parser.add_argument(
        "--format", choices=FORMATS, help="file format of the shards (default: that of the source)"
    )
    parser.add_argument(
        "--shard-size",
        type=parse_size,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help=f"size of a shard; {SIZES} (default: 64MB)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset at the target")


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


def parse_size(text: str) -> int:
    """Read a size in bytes; K, M, G and T are powers of 1024.

    Example:
        >>> parse_size("64MB"), parse_size("1.5k")
        (67108864, 1536)
    """
    if text.strip().isdecimal() and 0 < int(text) < 1024:
        raise argparse.ArgumentTypeError(f"{text} would be bytes: give a unit, such as {text}MB")
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"a size is a number and K, M or G, got {text!r}")
    unit: int = 1024 ** " kmgt".index(match[2].lower() or " ")
    return round(float(match[1]) * unit)


def parse_count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def parse_quality(text: str) -> int:
    """Read a quality: a whole number of 1 to 100."""
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"takes a whole number of 1 to 100, got {text!r}")
    return int(text)


def parse_names(text: str) -> list[str]:
    """Read names separated by commas; one with a comma stands in quotes, as in CSV."""
    from packdata.sources.readers import csv_cells

    try:
        names = [name for name in csv_cells(text) if name]
    except SourceError as error:
        raise argparse.ArgumentTypeError(f"{error.what}, in {text!r}") from error
    if not names:
        raise argparse.ArgumentTypeError(f"takes names separated by commas, got {text!r}")
    return names


def parse_place(text: str) -> str:
    """Read a path or pattern; an empty one, of a shell variable that is not set, is a mistake."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: write . for the folder you are in")
    if is_url(text):
        raise argparse.ArgumentTypeError(
            f"{text} is a URL, and files of this machine are read: copy it here first"
        )
    return text


def parse_part(text: str) -> str:
    """Read which part of how many: ``I/N``."""
    from packdata.parts.part import Part

    try:
        return str(Part.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_path(text: str) -> Path:
    """Read a path."""
    return Path(parse_place(text))


def parse_target(text: str) -> Path | str:
    """Read a path or URL to pack into."""
    return parse_source(text) if is_url(text) else parse_place(text)


def parse_source(text: str) -> Path:
    """Read the path or URL of a dataset."""
    if not is_url(text):
        return parse_path(text)
    url, secrets = split_secrets(text)
    if secrets:
        what = "a URL on a command line holds no secrets, which others could read there"
        raise argparse.ArgumentTypeError(f"{what}: set variables of the environment ({url})")
    return url


def unescaped(text: str) -> str:
    r"""Read ``\n``, ``\t``, ``\r`` and ``\0`` as Python does: shells pass them on as they are."""
    for written, meant in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(written, meant)
    return text


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
        args.parser.error(in_shell(str(error), vars(args)))


def show(text: str) -> None:
    """Print lines to standard output; what it has no bytes for, such as half a name, as its number."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = printable(text, keep="\n").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{shown}\n")


def show_json(data: Any) -> None:
    """Print JSON to standard output; in ASCII where that has no bytes for all of its letters."""
    text = printable_json(json.dumps(data, indent=1, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, indent=1)
    sys.stdout.write(f"{text}\n")


def show_notes(notes: Sequence[str]) -> None:
    """Print to standard error what deserves a look."""
    sys.stderr.writelines(f"packdata: {printable(text)}\n" for text in notes)


def show_made(args: argparse.Namespace, folder: Path, manifest: Manifest) -> None:
    """Say what was written."""
    if args.json:
        show_json(made(folder, manifest))
        return
    samples, shards = (
        counted(manifest.num_samples, "sample"),
        counted(len(manifest.shards), "shard"),
    )
    show(f"{printable(str(folder))}: {samples}, {shards}, {describe_size(manifest.size_bytes)}")


_LINKS = (
    "Shards become hard links where the file system has them: nothing is copied or verified. You\n"
    "cannot repair a dataset from a link, as damage to a shard damages both. --no-link copies the\n"
    "shards, and verifies what it copies. To a URL, shards are sent, those that are not there, and\n"
    "the manifest last; no shard is deleted there."
)


def made(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what was written as JSON types."""
    return {
        "path": str(folder),
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "size_bytes": manifest.size_bytes,
        "fingerprint": manifest.fingerprint,
    }
