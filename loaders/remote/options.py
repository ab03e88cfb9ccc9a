"""How a URL is opened, as options of a command line. Secrets are no such options."""

from __future__ import annotations

import argparse

from loaders.remote.url import PUBLIC_OPTIONS


def parse_option(text: str) -> tuple[str, str]:
    """Read an option of a store that is no secret: ``KEY=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or name not in PUBLIC_OPTIONS:
        known = ", ".join(sorted(PUBLIC_OPTIONS))
        what = "secrets come from the environment, a profile or a role"
        raise argparse.ArgumentTypeError(f"takes KEY=VALUE of {known}; {what}")
    return name, value


def add_remote(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that take URLs."""
    parser.add_argument(
        "--storage",
        type=parse_option,
        action="append",
        metavar="KEY=VALUE",
        help="for a URL: how to reach its store, such as region=eu-west-1; no secrets",
    )
    parser.add_argument(
        "--cache",
        metavar="SIZE|FOLDER",
        help="for a URL: folder of the download cache, or its size",
    )


def set_remote(args: argparse.Namespace) -> None:
    """Let URLs be opened as those options say."""
    if getattr(args, "storage", None) or getattr(args, "cache", None):
        from loaders.remote.origin import set_defaults

        set_defaults(args.cache, dict(args.storage or ()))
