"""``packdata copy``: filter a dataset, choose and add fields, encode pictures anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.data.manifest import read_manifest
from loaders.data.view import open_view
from loaders.remote.options import add_remote
from loaders.remote.url import is_url
from loaders.schema import PICTURE_CODECS
from packdata.commands.common import (
    add_json,
    add_workers,
    add_writing,
    new_parser,
    parse_names,
    parse_path,
    parse_quality,
    parse_source,
    show_made,
    show_notes,
    usage_errors,
)
from packdata.packed.edit import CopyOptions, copy_dataset
from packdata.packed.joined_columns import KINDS
from packdata.packed.remote import as_folder
from packdata.packed.rewrite import format_of
from packdata.packing.progress import progress_of
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.upload import staging, upload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.commandline import Commands
    from loaders.data.manifest import Manifest

    Note = Callable[[str], object]

_DETAILS = (
    "Records that need no change are copied byte for byte.\n\n"
    "A condition is made of comparisons, and, or, not, in, literals, and names of fields that hold\n"
    "one value. Labels compare with numbers and class names; 'x' in key finds part of a text. In a\n"
    "packed table, name columns: carat > 1 and cut == 'Ideal'; cut == '' finds missing categories.\n"
    "Numbers are those of the source, even where --standardize changed what is stored.\n\n"
    "To a URL, the shards are sent first, each under a name with its hash, then the manifest. If it\n"
    "is stopped, the same command continues. Shards that need no change are sent as they are.\n"
    "--overwrite replaces the manifest there and deletes no shard: others may still be reading it."
)  # fmt: skip


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "copy a dataset with other samples, fields or codecs"
    example = "packdata copy packed/all packed/cats --where 'label == \"cat\"' --fields image,key"
    parser = new_parser(commands, "copy", summary, example, _DETAILS)
    parser.add_argument(
        "src", type=parse_source, metavar="SRC", help="folder or URL of the dataset"
    )
    parser.add_argument(
        "dst", type=parse_source, metavar="DST", help="folder of the copy, or its URL in a store"
    )
    parser.add_argument(
        "--where", metavar="EXPR", help="keep the samples that meet a condition (default: all)"
    )
    parser.add_argument(
        "--fields",
        type=parse_names,
        metavar="A,B",
        help="fields to keep, in this order (default: all)",
    )
    _add_columns(parser)
    _add_codecs(parser)
    add_workers(parser)
    add_writing(parser)
    add_json(parser)
    add_remote(parser)
    parser.set_defaults(run=run)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--add",
        type=parse_path,
        metavar="FILE.csv",
        help="add its columns as fields: UTF-8, comma-separated, with a header",
    )
    parser.add_argument(
        "--update",
        type=parse_path,
        metavar="FILE.csv",
        help="change the fields named by its columns, in the samples it lists; an empty cell changes "
        "nothing; labels are names or numbers, multi-labels are JSON lists",
    )
    parser.add_argument(
        "--on",
        default="key",
        metavar="NAME",
        help="with --add and --update: field and column that match samples to lines (default: key)",
    )
    parser.add_argument(
        "--as",
        dest="kinds",
        nargs="+",
        default=(),
        metavar="COLUMN=KIND",
        help=f"with --add: the kind of a column ({', '.join(KINDS)}), instead of a guess",
    )
    parser.add_argument(
        "--missing",
        choices=("error", "skip"),
        default="error",
        help="with --add: samples that are not in the file, or have an empty label there, are an error "
        "(default) or left out",
    )


def _add_codecs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--codec",
        choices=PICTURE_CODECS,
        help="encode pictures with this codec (default: leave them as they are)",
    )
    parser.add_argument(
        "--quality",
        type=parse_quality,
        metavar="Q",
        help="with --codec jpeg, webp or dct: 1 to 100, also of pictures that have this codec "
        "(default: these stay as they are, others get 90)",
    )
    parser.add_argument(
        "--subsampling",
        choices=("420", "444"),
        help="with --codec dct: of the chroma (default: as it is, else 420)",
    )
    parser.add_argument(
        "--compression",
        choices=("lz4", "zstd"),
        help="with --codec dct: fast or small (default: as it is, else lz4)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with usage_errors(args, schema=True):
        options = CopyOptions(
            where=args.where,
            fields=args.fields,
            add=args.add,
            update=args.update,
            on=args.on,
            kinds=_kinds(args.kinds),
            skip_missing=args.missing == "skip",
            codec=args.codec,
            quality=args.quality,
            subsampling=args.subsampling,
            compression=args.compression,
        )
    notes: list[str] = []
    with usage_errors(args, schema=False):
        manifest = (_send if is_url(args.dst) else _copy)(args, args.dst, options, notes.append)
    show_made(args, args.dst, manifest)
    show_notes(notes)
    return 0


def _copy(args: argparse.Namespace, dst: Path, options: CopyOptions, note: Note) -> Manifest:
    with progress_of("writing", None) as tick:
        return copy_dataset(
            args.src,
            dst,
            options,
            format=args.format,
            shard_bytes=args.shard_size,
            overwrite=args.overwrite,
            workers=args.workers,
            tick=tick,
            note=note,
        )


def _send(args: argparse.Namespace, url: Path, options: CopyOptions, note: Note) -> Manifest:
    """Send a dataset as it is, or what is made of it first."""
    is_same = options == CopyOptions() and args.shard_size == DEFAULT_SHARD_BYTES
    if is_same and args.format in (None, format_of(open_view(args.src))):
        with as_folder(args.src) as folder:
            return _upload(args, folder, url, note)
    made = [args.src.absolute(), url, options, options.digests(), args.format, args.shard_size]
    with staging(" ".join(map(str, made))) as folder:
        _copy(args, folder, options, note)
        return _upload(args, folder, url, note)


def _upload(args: argparse.Namespace, folder: Path, url: Path, note: Note) -> Manifest:
    total = read_manifest(folder).size_bytes
    with progress_of("sending", total, unit="bytes") as tick:
        return upload(folder, url, overwrite=args.overwrite, tick=tick, note=note)


def _kinds(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError(f"--as takes COLUMN=KIND, got {' '.join(texts)}")
    return {name: kind for name, _, kind in pairs}
