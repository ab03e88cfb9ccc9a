"""Options, declared once by the fields of a dataclass: for Python, the command line and the provenance."""

from __future__ import annotations

import argparse
import csv
import io
import math
from dataclasses import field, fields
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from loaders.checks import as_list, did_you_mean, whole_number
from loaders.commandline import number_from
from loaders.errors import RemoteError, SchemaError
from loaders.remote.url import URL, Location, is_url, place_of, url_of
from loaders.text import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

_FunctionT = TypeVar("_FunctionT")
_OptionsT = TypeVar("_OptionsT")


def opt(
    default: Any,
    help: str,
    metavar: str | None = None,
    *,
    name: str = "",
    within: tuple[int, int | None] | None = None,
    **argument: Any,
) -> Any:
    """Return a field of a dataclass that is an option of a command, too.

    Args:
        default: ``True`` or ``False`` make a switch, ``()`` without ``metavar`` names.
        help: What the option does, for ``--help``.
        metavar: What it takes.
        name: Of the option on the command line, if not that of the field.
        within: The least and the largest whole number that it may be; None for no limit.
        argument: What else ``add_argument`` gets; ``choices`` hold in Python, too.
    """
    if isinstance(default, bool):
        argument["action"] = "store_false" if default else "store_true"
    elif default == () and metavar is None:
        argument |= {"type": parse_names, "action": "extend", "metavar": "NAMES"}
    else:
        argument["metavar"] = metavar
    if within is not None:
        argument["type"] = number_from(within[0], within[1] or math.inf)
    argument["default"] = [] if default == () else default
    about = {"help": help, "name": name, "within": within, "argument": argument}
    return field(default=default, metadata=about)


def takes(*kinds: type, without: str = "", hint: str = "") -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator for a function whose ``**options`` are fields of ``kinds``: its signature shows them.

    All but the field ``without``. Any other argument is a TypeError, which ends in ``hint``.
    """

    def decorate(function: Any) -> Any:
        own = signature(function)
        shown = {p.name: p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD}
        for kind in kinds:
            for name, each in signature(kind).parameters.items():
                shown[name] = each.replace(kind=Parameter.KEYWORD_ONLY)
        shown.pop(without, None)

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            if unknown := [name for name in options if name not in shown]:
                known = f"the options are {', '.join(shown)}{hint}"
                raise TypeError(f"unknown option {unknown[0]!r}; {known}")
            return function(*args, **options)

        checked.__signature__ = own.replace(parameters=[*shown.values()])  # type: ignore[attr-defined]
        return checked

    return decorate


def take(kind: type[_OptionsT], options: dict[str, Any]) -> _OptionsT:
    """Make a dataclass of the ``options`` that are its fields; the others are left.

    Example:
        >>> from packdata.packing.settings import RunSettings
        >>> options = {"workers": 2, "quality": 80}
        >>> take(RunSettings, options).workers, options
        (2, {'quality': 80})
    """
    names = [name for name in signature(kind).parameters if name in options]
    return kind(**{name: options.pop(name) for name in names})


def check_options(options: Any) -> None:
    """Check choices and ranges of options; a single value becomes one of several, where several may be given.

    Raises:
        SchemaError: An option is none of its choices, or out of range.
        TypeError: It is no whole number, no list, or one of other values than texts.
    """
    for each in fields(options):
        value, name = getattr(options, each.name), each.name
        choices = each.metadata.get("argument", {}).get("choices")
        if value == each.default:
            continue
        if choices and value not in choices:
            near = did_you_mean(str(value), choices)
            raise SchemaError(f"{name} must be one of {', '.join(choices)}, got {value!r}{near}")
        if each.default == ():
            is_one = isinstance(value, str | int)
            several = [value] if is_one else as_list(name, value, "values, such as ['a', 'b']")
            if "[str" in each.type and not all(isinstance(one, str) for one in several):
                raise TypeError(f"{name} must be texts, such as ['a', 'b'], got {value!r}")
            object.__setattr__(options, name, tuple(several))
        if (within := each.metadata.get("within")) is not None:
            (least, most), number = within, whole_number(name, value)
            object.__setattr__(options, name, number)  # an int, also of one of numpy's
            if not least <= number <= (most or math.inf):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                raise SchemaError(f"{name} must be {limits}, got {value}")


def changed(options: Any) -> dict[str, Any]:
    """Return the options that are not the default, as JSON types."""
    found = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if value != each.default:
            found[each.name] = list(value) if isinstance(value, tuple) else value
    return found


# -- values of a command line ----------------------------------------------------------------------


def size_from(text: str) -> int:
    """Read a size in bytes."""
    if text.strip().isdecimal() and 0 < int(text) < 1024:
        raise argparse.ArgumentTypeError(f"{text} would be bytes: give a unit, such as {text}MB")
    if not (size := parse_size(text)):
        raise argparse.ArgumentTypeError(f"a size is a number and K, M, G or T, got {text!r}")
    return size


def parse_names(text: str) -> list[str]:
    """Read names separated by commas; one with a comma stands in quotes, as in CSV."""
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        names = [name for cells in lines for cell in cells if (name := cell.strip())]
    except csv.Error as error:
        raise argparse.ArgumentTypeError(f"{error}, in {text!r}") from error
    if not names:
        raise argparse.ArgumentTypeError(f"takes names separated by commas, got {text!r}")
    return names


def parse_shuffle(text: str) -> int | None:
    """Read the seed of an order, or ``none``."""
    try:
        return None if text == "none" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"takes a whole number or none, got {text!r}") from error


def parse_target(text: str) -> URL | str:
    """Read a path, pattern or URL; an empty one, of a shell variable that is not set, is a mistake."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: write . for the folder you are in")
    try:
        return url_of(text) if is_url(text) else text
    except RemoteError as error:
        raise argparse.ArgumentTypeError(f"{error.what} ({error.path})") from None


def parse_source(text: str) -> Location:
    """Read the path or URL of a dataset."""
    return place_of(parse_target(text))


def unescaped(text: str) -> str:
    r"""Read ``\n``, ``\t``, ``\r`` and ``\0`` as Python does: shells pass them on as they are."""
    for written, meant in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(written, meant)
    return text
