"""A command with subcommands: help in groups, suggestions for what was misspelled."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from loaders.checks import did_you_mean
from loaders.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WRONG_USAGE = 2
_MAX_WIDTH = 100  # columns of running text, however wide a terminal is
_TWO_COLUMNS = re.compile(r"( +\S.*? {2,})(?=\S)")


def wrapped(text: str) -> str:
    """Return lines that fit the terminal; what is left of a line stands below it, further to the right."""
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns)
    return "\n".join(_wrapped(line, width) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    below = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(
        line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )


def folded(text: str, indent: int = 0) -> str:
    """Return a text as the terminal is wide: paragraphs are filled, indented lines broken below their last column."""
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns) - indent
    blocks = re.split(r"(\n\n|\n(?= )|(?<=:)\n)", text)
    return "".join(block if block.isspace() else _folded(block, width) for block in blocks)


def _folded(block: str, width: int) -> str:
    if not block.startswith(" "):
        return textwrap.fill(block, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(_broken(line, width) for line in block.split("\n"))


def _broken(line: str, width: int) -> str:
    """Return a line of two columns with the second one broken; an example with what is said of it on the next line."""
    columns = _TWO_COLUMNS.match(line)
    if len(line) <= width or columns is None:
        return line
    first, rest = columns[1], line[columns.end() :]
    if len(first) > width // 2:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        return f"{first.rstrip()}\n{textwrap.fill(rest, width, initial_indent=indent, subsequent_indent=indent)}"
    return textwrap.fill(rest, width, initial_indent=first, subsequent_indent=" " * len(first))


def number_from(least: float, most: float = math.inf, kind: type = int) -> Callable[[str], Any]:
    """Return what reads a number in a range, whole unless ``kind`` is ``float``; infinity is none."""

    def parse(text: str) -> Any:
        with suppress(ValueError):
            if least <= kind(text) <= most and kind(text) < math.inf:
                return kind(text)
        what = "a whole number" if kind is int else "a number"
        where = f"from {least}" + (f" to {most:,}" if most < math.inf else "")
        raise argparse.ArgumentTypeError(f"must be {what} {where}, got {text!r}")

    return parse


def run(args: argparse.Namespace) -> int:
    """Run the command that was parsed, and return its status: 0 where who reads the output has seen enough."""
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # Python would complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def show(text: str) -> None:
    """Print lines to standard output; what it has no bytes for, such as half a name, as its number."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = printable(text, keep="\n").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{shown}\n")


class Parser(argparse.ArgumentParser):
    """Parses one command: options may stand anywhere, none is shortened, and mistakes are one line."""

    def __init__(self, summary: str = "", **options: Any) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=kind, **options)
        self.summary = summary  # what the command does, in a line
        self.set_defaults(parser=self)

    def add_argument_group(self, *names: Any, **options: Any) -> Any:
        """Add a group, whose description is folded to the terminal."""
        title, about, *_ = [*names, None, None]
        return super().add_argument_group(title, about and folded(about, indent=2), **options)

    def format_help(self) -> str:
        """Return the help, folded to the terminal."""
        about, end = self.description, self.epilog
        self.description, self.epilog = folded(about or ""), folded(end or "")
        try:
            return super().format_help()
        finally:
            self.description, self.epilog = about, end

    def error(self, message: str) -> NoReturn:
        """Print the mistake, and exit with status 2: usage is longer than most mistakes."""
        where = f"'{self.prog} --help' lists what it takes."
        self.exit(_WRONG_USAGE, f"{self.prog}: error: {message}\n{where}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; what is not known is an error that says what is close to it."""
        words = sys.argv[1:] if args is None else list(args)
        # Behind -- all are names, which the two passes of the other way would take for options.
        parse = self.parse_known_args if "--" in words else self.parse_known_intermixed_args
        found, unknown = parse(words, namespace)
        if unknown:
            self.error(self._unexpected(unknown))
        return found

    def _unexpected(self, words: Sequence[str]) -> str:
        option = next((word for word in words if word.startswith("-")), None)
        if option is None:
            return f"{', '.join(map(repr, words))} is too many"
        name, known = option.split("=")[0], re.findall(r"--?\w[\w-]*", self.format_usage())
        return f"there is no option {name}{did_you_mean(name, known)}"


class Commands:
    """The parsers of all commands, in groups: ``{what they have in common: their names}``.

    ``default`` is the command that is meant where none is named.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        groups: Mapping[str, Sequence[str]],
        *,
        examples: str = "",
        version: str = "",
        default: str = "",
    ) -> None:
        self.prog, self.parsers = prog, dict[str, Parser]()
        self._description, self._examples, self._version = description, examples, version
        self._groups = {**groups, "help": ("help",)}
        self._default = default
        self._add_help()

    def add_parser(self, name: str, *, help: str, **options: Any) -> Parser:
        """Add a command; the arguments are those of ``argparse``."""
        self.parsers[name] = Parser(help, prog=f"{self.prog} {name}", **options)
        return self.parsers[name]

    def _add_help(self) -> None:
        one = self.add_parser("help", help="show all commands, or the help of one")
        one.add_argument("command", nargs="?", metavar="COMMAND", help="whose help to print")
        one.set_defaults(run=self._print_help)

    def _print_help(self, args: argparse.Namespace) -> int:
        text = (
            self.format_help()
            if args.command is None
            else self._parser(args.command).format_help()
        )
        sys.stdout.write(text)
        return 0

    def format_help(self) -> str:
        """Return what ``--help`` prints."""
        width = max(map(len, self.parsers))
        lines = [f"usage: {self.prog} COMMAND ...", "", self._description, ""]
        for title, names in self._groups.items():
            lines.append(f"{title}:")
            lines += [f"  {name:<{width}}  {self.parsers[name].summary}" for name in names]
            lines.append("")
        lines.append(f"'{self.prog} help COMMAND' says what a command takes.")
        return folded("\n".join([*lines, *(["", self._examples] if self._examples else []), ""]))

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words; exits as argparse does."""
        first, *rest = words or [""]
        if first in ("-h", "--help"):
            first, rest = "help", rest[:0]
        elif first == "--version" and self._version:
            sys.stdout.write(f"{self.prog} {self._version}\n")
            sys.exit(0)
        elif not first:
            sys.stderr.write(self.format_help())
            sys.exit(_WRONG_USAGE)
        elif self._default and first not in self.parsers and not self._is_misspelled(first):
            first, rest = self._default, list(words)
        found: argparse.Namespace = self._parser(first).parse_args(rest)
        return found

    def _is_misspelled(self, word: str) -> bool:
        return bool(did_you_mean(word, self.parsers)) and not os.path.exists(word)

    def _parser(self, name: str) -> Parser:
        if name not in self.parsers:
            what = "option" if name.startswith("-") else "command"
            near = did_you_mean(name, [*self.parsers, "--help", "--version"])
            self.error(f"there is no {what} {name!r}{near}")
        return self.parsers[name]

    def error(self, message: str) -> NoReturn:
        """Print a mistake that is of no single command, and exit with status 2."""
        sys.stderr.write(
            f"{self.prog}: error: {message}\n'{self.prog} --help' lists what it takes.\n"
        )
        sys.exit(_WRONG_USAGE)
