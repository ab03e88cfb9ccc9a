"""A program with several commands on argparse: options stand anywhere, none is shortened, mistakes are one line."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from loaders.checks import did_you_mean
from loaders.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WRONG_USAGE = 2
_WIDTH = 80  # of running text


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
    """Parses one command."""

    def __init__(self, **options: Any) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=kind, **options)
        self.set_defaults(parser=self)

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
            return f"unexpected {', '.join(map(repr, words))}"
        name, known = option.split("=")[0], re.findall(r"--?\w[\w-]*", self.format_usage())
        return f"there is no option {name}{did_you_mean(name, known)}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: how it is called, and what runs it."""

    name: str
    summary: str  # what it does, in a line
    add: Callable[[Parser], object]  # adds its arguments, once they are needed
    run: Callable[[argparse.Namespace], int]  # returns the exit status
    details: str = ""
    example: str = ""  # how it may be called, in lines


class Commands:
    """The commands of a program, in groups by title.

    ``default`` is the command that is meant where none is named. ``gone`` are commands that were removed, and options
    as they are typed behind theirs, each with a sentence that names what to use instead.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        groups: Mapping[str, Sequence[Command]],
        *,
        end: str = "",
        version: str = "",
        default: str = "",
        gone: Mapping[str, str],
    ) -> None:
        self._prog, self._description, self._end, self._gone = prog, description, end, gone
        self._groups, self._version, self._default = groups, version, default
        self.commands = {each.name: each for each in chain.from_iterable(groups.values())}

    def parser(self, name: str) -> Parser:
        """Return the parser of a command."""
        command = self.commands[name]
        whole = f"{command.summary[0].upper()}{command.summary[1:]}.\n{command.details}"
        about = "\n\n".join(textwrap.fill(text, _WIDTH) for text in whole.split("\n\n"))
        example = "example:\n  " + command.example.replace("\n", "\n  ") if command.example else ""
        parser = Parser(prog=f"{self._prog} {name}", description=about, epilog=example)
        command.add(parser)
        parser.set_defaults(run=command.run)
        return parser

    def format_help(self) -> str:
        """Return what ``--help`` prints."""
        width = max(map(len, self.commands))
        about = textwrap.fill(self._description, _WIDTH)
        lines = [f"usage: {self._prog} COMMAND ...", "", about, ""]
        for title, commands in self._groups.items():
            listed = (f"  {each.name:<{width}}  {each.summary}" for each in commands)
            lines += [f"{title}:", *listed, ""]
        end = f"'{self._prog} COMMAND --help' lists what one takes."
        return "\n".join([*lines, end, self._end, ""])

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words; exits as argparse does."""
        self._refuse_gone(words)
        first, *rest = words or [""]
        if first in ("-h", "--help"):
            sys.stdout.write(self.format_help())
            sys.exit(0)
        if first == "--version" and self._version:
            sys.stdout.write(f"{self._prog} {self._version}\n")
            sys.exit(0)
        if not first:
            sys.stderr.write(self.format_help())
            sys.exit(_WRONG_USAGE)
        if first not in self.commands:
            near = did_you_mean(first, [*self.commands, "--help", "--version"])
            if not self._default or (near and not os.path.exists(first)):
                what = "option" if first.startswith("-") else "command"
                self.error(f"there is no {what} {first!r}{near}")
            first, rest = self._default, list(words)
        found: argparse.Namespace = self.parser(first).parse_args(rest)
        return found

    def _refuse_gone(self, words: Sequence[str]) -> None:
        command = words[0] if words[:1] and words[0] in self.commands else self._default
        for key in (*words[:1], *(f"{command} {word.partition('=')[0]}" for word in words)):
            if key in self._gone:
                self.error(f"{key.split()[-1]} was removed: {self._gone[key]}")

    def error(self, message: str) -> NoReturn:
        """Print a mistake that is of no single command, and exit with status 2."""
        Parser(prog=self._prog).error(message)
