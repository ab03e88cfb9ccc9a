"""What the commands share: how one is described, what its arguments mean, and what it prints."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.commandline import number_from, show
from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import LoadersError, SchemaError, SourceError
from loaders.remote.options import add_remote
from loaders.remote.url import is_url, split_secrets
from loaders.text import describe_size, printable, printable_json
from packdata.describe import counted
from packdata.packing.shards import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loaders.commandline import Commands, Parser
    from loaders.data.manifest import Manifest

SIZES = "K, M and G are powers of 1024, up to 256MB in Parquet and 64GB in LMDB"
REPEATED = {"action": "append", "default": []}
JSON = "--json\n  print the result as JSON\n"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: how it is called, and what runs it."""

    name: str  # what the user types
    summary: str  # what it does, in a line
    # Its places and options, as ``add_options`` reads them, by the title of their group; "" is for those that stand
    # in none.
    takes: Mapping[str, str]
    run: Callable[[argparse.Namespace], int]  # returns the exit status
    details: str = ""  # says more of what it does, in paragraphs
    example: str = ""  # how it may be called; several lines are examples with what they do
    # By the name of an argument, what ``add_argument`` gets beside what ``takes`` says.
    how: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the parsed arguments
    has_remote: bool = False  # it takes URLs

    def add_to(self, commands: Commands) -> None:
        """Add its parser."""
        about = f"{self.summary[0].upper()}{self.summary[1:]}.\n{self.details}".rstrip()
        title = "examples" if "\n" in self.example else "example"
        example = self.example.replace("\n", "\n  ")
        parser: Parser = commands.add_parser(
            self.name, help=self.summary, description=about, epilog=f"{title}:\n  {example}"
        )
        options: dict[str, str] = {}
        for title, text in self.takes.items():
            named, _, said = title.partition(": ")
            group = parser.add_argument_group(named, said or None) if title else parser
            options |= add_options(group, text, self.how)
        if self.has_remote:
            add_remote(parser)
        parser.set_defaults(run=self.run, options=options, **self.defaults)


def add_options(group: Any, text: str, how: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Add the arguments that a text describes; return the options by the name of their argument.

    Args:
        group: Of a parser, or one.
        text: For each a line ``--name WHAT`` (``{a,b}``: one of those; nothing: a switch), ``PLACE``, ``PLACE...`` or
            ``PLACE?``, and what it does in indented lines below. What it takes tells how it is read.
        how: What else ``add_argument`` gets, by name.
    """
    options: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text.strip("\n")):
        head, _, said = block.partition("\n")
        name, _, takes = head.partition(" ")
        about: dict[str, Any] = {"help": " ".join(said.split())}
        if not name.startswith("-"):
            takes, name = name.rstrip(".?"), name.lower()
            about |= {"nargs": "+"} if name.endswith("...") else {}
            about |= {"nargs": "?"} if name.endswith("?") else {}
            name = name.rstrip(".?")
        if takes.startswith("{"):
            about["choices"] = tuple(takes.strip("{}").split(","))
        elif takes:
            about |= {"metavar": takes, **_READ.get(re.split(r"[|.]", takes)[0], {})}
        else:
            about["action"] = "store_true"
        action = group.add_argument(name, **{**about, **how.get(name.lstrip("-"), {})})
        if name.startswith("-"):
            options[action.dest] = name
    return options


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message with the options of the arguments that it names: ``overwrite=``, ``row_tokens``.

    Args:
        text: The message.
        options: By argument, as ``add_options`` returns them.

    Example:
        >>> with_options("Pass overwrite=True to replace it", {"overwrite": "--overwrite"})
        'Pass overwrite=True to replace it (option: --overwrite)'
    """
    named = [option for name, option in options.items() if _names(text, name)]
    word = "option" if len(named) == 1 else "options"
    return f"{text} ({word}: {', '.join(named)})" if named else text


def _names(text: str, name: str) -> bool:
    """Tell whether a message names an argument: a single word is one of English, too, unless a value follows."""
    ends = r"\b" if "_" in name else "(?==)"
    return re.search(rf"(?<![\w'\"/.-]){name}{ends}(?![\w'\"/.-])", text) is not None


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


# -- arguments -------------------------------------------------------------------------------------


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


def parse_names(text: str) -> list[str]:
    """Read names separated by commas; one with a comma stands in quotes, as in CSV."""
    from packdata.readers import csv_cells

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


_READ: dict[str, dict[str, Any]] = {  # by what an argument takes
    "N": {"type": number_from(1)},
    "Q": {"type": number_from(1, 100)},
    "SIZE": {"type": parse_size},
    "NAMES": {"type": parse_names, "action": "extend", "default": []},
    **{takes: {"type": parse_place} for takes in ("FILE", "FOLDER", "DATASET", "OTHER")},
}
SOURCE, TARGET, PATH = ({"type": read} for read in (parse_source, parse_target, parse_path))


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
        args.parser.error(with_options(str(error), args.options))


# -- output ----------------------------------------------------------------------------------------


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
