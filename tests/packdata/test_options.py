"""Every option of every command, through the command line: each does what its argument does in Python.

What that is, is tested beside the functions; here, that it arrives: a command that ignored one of its options fails.
"""

import argparse
import dataclasses
import inspect
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.schema import Label
from loaders.system.limits import usable_cores
from packdata import pack, write
from packdata.arrays import ArrayOptions, pack_arrays
from packdata.cli import COMMANDS, main
from packdata.commands.common import options_of
from packdata.delimited import CsvOptions
from packdata.files.splits import SourceOptions
from packdata.images.plan import pack_images
from packdata.images.recipe import ImageOptions
from packdata.images.shapes import ShapeOptions
from packdata.options import check_options, opt
from packdata.packed.derive import CopyOptions, copy_dataset, split
from packdata.packing.engine import pack_recipes
from packdata.packing.settings import PackSettings, RunSettings
from packdata.tables import pack_tables
from packdata.tables.options import TableOptions
from packdata.tokens.plan import TokenOptions, pack_tokens
from tests.packdata.command_sources import make_sources
from tests.packdata.recipes import contents

DCT = "photos --size 16 --fit cover --codec dct"
AS_DCT: dict[str, Any] = {"sizes": ["16"], "fit": "cover", "codec": "dct"}
HALVES = "packed --parts a=0.5 b=0.5"
IN_HALVES = {"parts": {"a": 0.5, "b": 0.5}}
LINES = "a.txt --documents line"
CHAT: dict[str, Any] = {"chat_template": "chat.jinja"}
BY_LINE = {"documents": "line"}

# Of commands that make a dataset: the command, its source with other options, the option, and what both are in Python.
MAKING: list[tuple[str, str, str, dict[str, Any]]] = [
    ("images", "photos", "--size 20", {"sizes": ["20"]}),
    ("images", "photos --size 20", "--fit stretch", {"sizes": ["20"], "fit": "stretch"}),
    ("images", "photos", "--codec png", {"codec": "png"}),
    ("images", "photos --size 20", "--quality 30", {"sizes": ["20"], "quality": 30}),
    ("images", DCT, "--subsampling 444", AS_DCT | {"subsampling": "444"}),
    ("images", DCT, "--compression zstd", AS_DCT | {"compression": "zstd"}),
    ("images", "photos", "--gray", {"gray": True}),
    ("images", "photos", "--keep-depth", {"keep_depth": True}),
    ("images", "photos", "--masks masks", {"masks": "masks"}),
    ("images", "photos", "--classes classes.txt", {"classes": "classes.txt"}),
    ("images", "list.csv", "--image-column second", {"image_column": "second"}),
    ("images", "list.csv", "--mask-column marks", {"mask_column": "marks"}),
    ("images", "list.csv", "--label-column species", {"label_column": "species"}),
    ("images", "list.csv", "--multi-label '|'", {"multi_label": "|"}),
    ("images", "photos", "--format parquet", {"format": "parquet"}),
    ("images", "photos", "--shard-size 1kB", {"shard_bytes": 1024}),
    ("images", "broken", "--on-error skip", {"on_error": "skip"}),
    ("tokens", "a.txt", "--documents '3: the'", {"documents": "3: the"}),
    ("tokens", "rows.jsonl", "--text-column body", {"text_column": "body"}),
    ("tokens", "rows.jsonl", "--ids-column numbers", {"ids_column": "numbers"}),
    ("tokens", "rows.jsonl", "--chat-template chat.jinja", CHAT),
    ("tokens", "rows.jsonl --chat-template chat.jinja", "--messages-column turns", CHAT | {"messages_column": "turns"}),
    ("tokens", "rows.jsonl --chat-template chat.jinja", "--chat-date 2024-07-26", CHAT | {"chat_date": "2024-07-26"}),
    ("tokens", LINES, "--bos 10", BY_LINE | {"bos": 10}),
    ("tokens", "a.txt", "--tokenizer tokenizer.json", {"tokenizer": "tokenizer.json"}),
    ("tokens", "a.txt", "--train-bpe 280", {"train_bpe": 280}),
    ("tokens", LINES, "--eod 10", BY_LINE | {"eod": 10}),
    ("tokens", "ids.npy", "--vocab-size 90", {"vocab_size": 90}),
    ("tokens", "ids.bin", "--bin-dtype uint32", {"bin_dtype": "uint32"}),
    ("tokens", "a.txt", "--row-tokens 64", {"row_tokens": 64}),
    ("tokens", LINES, "--val-share 0.5", BY_LINE | {"val_share": 0.5}),
    ("tokens", f"{LINES} --val-share 0.5", "--seed 1", BY_LINE | {"val_share": 0.5, "seed": 1}),
    ("tokens", "a.txt", "--format lmdb", {"format": "lmdb"}),
    ("tokens", "a.txt --row-tokens 64", "--shard-size 1kB", {"row_tokens": 64, "shard_bytes": 1024}),
    ("tokens", "bad.jsonl", "--on-error skip", {"on_error": "skip"}),
    ("tables", "t.csv", "--target y,kind", {"target": ("y", "kind")}),
    ("tables", "t.csv", "--features y,kind", {"features": ("y", "kind")}),
    ("tables", "t.csv", "--drop y --drop kind", {"drop": ("y", "kind")}),
    ("tables", "t.csv", "--categorical zip", {"categorical": ("zip",)}),
    ("tables", "odd.csv --on-error skip", "--numeric y", {"numeric": ("y",), "on_error": "skip"}),
    ("tables", "like.csv", "--like train", {"like": "train"}),
    ("tables", "dates.csv", "--dates days", {"dates": "days"}),
    ("tables", "gaps.csv", "--missing mean", {"missing": "mean"}),
    ("tables", "t.csv", "--missing-mask", {"missing_mask": True}),
    ("tables", "t.csv", "--dtype float64", {"dtype": "float64"}),
    ("tables", "t.csv", "--standardize", {"standardize": True}),
    ("tables", "semicolons.csv", "--delimiter ';'", {"delimiter": ";"}),
    ("tables", "tabs.csv", r"--delimiter '\t'", {"delimiter": "\t"}),
    ("tables", "values.csv", "--no-header", {"header": False}),
    ("tables", "values.csv", "--names a,b", {"names": ("a", "b")}),
    ("tables", "values.csv", "--skip-rows 2", {"skip_rows": 2}),
    ("tables", "values.csv", "--missing-values b,c", {"missing_values": ("b", "c")}),
    ("tables", "t.csv", "--format lmdb", {"format": "lmdb"}),
    ("tables", "t.csv", "--shard-size 1kB", {"shard_bytes": 1024}),
    ("tables", "ragged.csv", "--on-error skip", {"on_error": "skip"}),
    ("arrays", "scans", "--dtype float16", {"dtype": "float16"}),
    ("arrays", "scans --masks scan-masks", "--mask-dtype int32", {"masks": "scan-masks", "mask_dtype": "int32"}),
    ("arrays", "maps", "--channels last", {"channels": "last"}),
    ("arrays", "npz", "--array other", {"array": "other"}),
    ("arrays", "npz --array image", "--mask-array marks", {"array": "image", "mask_array": "marks"}),
    ("arrays", "scans", "--masks scan-masks", {"masks": "scan-masks"}),
    ("arrays", "scans", "--classes classes.txt", {"classes": "classes.txt"}),
    ("arrays", "cases.csv", "--array-column second", {"array_column": "second"}),
    ("arrays", "cases.csv", "--mask-column marks", {"mask_column": "marks"}),
    ("arrays", "cases.csv", "--label-column species", {"label_column": "species"}),
    ("arrays", "cases.csv", "--multi-label '|'", {"multi_label": "|"}),
    ("arrays", "scans", "--format lmdb", {"format": "lmdb"}),
    ("arrays", "scans", "--shard-size 0.2kB", {"shard_bytes": 205}),
    ("arrays", "bad-scans", "--on-error skip", {"on_error": "skip"}),
    ("split", "packed", "--parts a=0.5 b=0.5", IN_HALVES),
    ("split", HALVES, "--stratify label", IN_HALVES | {"stratify": "label"}),
    ("split", HALVES, "--by key-hash", IN_HALVES | {"by": "key-hash"}),
    ("split", HALVES, "--seed 1", IN_HALVES | {"seed": 1}),
    ("split", HALVES, "--format parquet", IN_HALVES | {"format": "parquet"}),
    ("split", HALVES, "--shard-size 1kB", IN_HALVES | {"shard_bytes": 1024}),
    ("copy", "packed", "--where 'label == \"cat\"'", {"where": 'label == "cat"'}),
    ("copy", "packed", "--fields label,key", {"fields": ["label", "key"]}),
    ("copy", "packed", "--codec webp", {"codec": "webp"}),
    ("copy", "packed --codec jpeg", "--quality 20", {"codec": "jpeg", "quality": 20}),
    ("copy", "packed", "--format parquet", {"format": "parquet"}),
    ("copy", "packed", "--shard-size 1kB", {"shard_bytes": 1024}),
]  # fmt: skip

# Of commands that print: the command, what it looks at, the option, the exit status, and what only then is said.
SHOWING: list[tuple[str, str, str, int, str]] = [
    ("verify", "undecodable", "--decode", 1, "undecodable: 1 fault"),
    ("preview", "packed --num 1", "--out sheet.png", 0, "sheet.png: 1 of 8 samples"),
    ("preview", "packed", "--num 3", 0, "packed.png: 3 of 8 samples"),
    ("preview", "packed", "--text", 0, "sample 0\n"),
    ("preview", "packed --text --num 1", "--seed 5", 0, "sample 4\n"),
    ("verify", "flipped", "--quick", 0, "flipped: 4 samples in 1 shard"),
    ("stats", "packed", "--limit 2", 0, "8 samples, 2 decoded"),
]

# What a command needs, where an option is the same for many of them; {dst} is new.
PLAIN = {
    "images": "photos {dst}",
    "tokens": "a.txt {dst}",
    "tables": "t.csv {dst}",
    "arrays": "scans {dst}",
    "info": "packed",
    "verify": "packed",
    "preview": "packed",
    "stats": "packed",
    "extend": "more {dst}",
    "merge": "packed {dst}",
    "split": "packed {dst} --parts a=0.5",
    "diff": "packed copy",
    "copy": "packed {dst} --codec webp",
    "cache": "cache",
}
FOR_MANY = ("--json", "--overwrite", "--dry-run", "--workers")
PARTS = {  # in test_parts.py
    *(
        (command, option)
        for command in ("images", "tokens", "tables", "arrays")
        for option in ("--part", "--engine", "--address", "--parts", "--shuffle")
    ),
    *((command, "--plan") for command in ("tokens", "tables")),
    *(("finish", option) for option in ("--json", "--overwrite", "--delete-old")),
}
BY_HAND = {("merge", "--shard-size"),
           ("images", "--max-picture-mb"), ("images", "--boxes"), ("images", "--keypoints"),
           ("images", "--box-labels"), ("images", "--flip-pairs"),
           ("images", "--annotations"),
           ("images", "--mask-suffix"), ("arrays", "--mask-suffix"), ("images", "--palette"),
           ("images", "--label-map"), ("images", "--icc"), ("images", "--segments"),
           ("cache", "--clear"), ("tokens", "--drop"),
           *((name, option) for name in ("arrays", "copy", "diff", "extend", "fetch", "finish", "images", "info",
                                         "merge", "preview", "split", "stats", "tables", "tokens", "verify")
             for option in ("--storage", "--cache"))}  # fmt: skip


def options() -> set[tuple[str, str]]:
    """Return every command with every option it has."""
    return {
        (name, action.option_strings[0])
        for name in COMMANDS.commands
        for action in COMMANDS.parser(name)._actions
        if action.option_strings and action.dest != "help"
    }


def commands_with(option: str) -> list[str]:
    return sorted(command for command, name in options() - PARTS if name == option)


def run(command: str, line: str) -> int:
    try:
        return main([command, *shlex.split(line)])
    except SystemExit as exit:
        return int(exit.code or 0)


def plain(command: str, dst: Path) -> str:
    if command == "extend" and not dst.exists():
        shutil.copytree("packed", dst)
    return PLAIN[command].format(dst=dst)


def data(folder: Path) -> dict[str, Any]:
    """Return fields and shards of the datasets in a folder, without what was asked for to make them."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob(MANIFEST_NAME)):
        manifest, name = read_manifest(path.parent), str(path.parent.relative_to(folder))
        found[name] = manifest.schema.to_json()
        found |= {f"{name}/{s.file}": (path.parent / s.file).read_bytes() for s in manifest.shards}
    return found


def taken(kind: Any, arguments: dict[str, Any]) -> Any:
    """Make options of those arguments that are theirs; the others are left."""
    names = [each.name for each in dataclasses.fields(kind) if each.name in arguments]
    return kind(**{name: arguments.pop(name) for name in names})


def tokens(src: str, dst: Path, **arguments: Any) -> None:
    pack_tokens(src, dst, taken(TokenOptions, arguments), **arguments)


def copy(src: str, dst: Path, **arguments: Any) -> None:
    copy_dataset(src, dst, taken(CopyOptions, arguments), **arguments)


FUNCTIONS: dict[str, Any] = {
    "images": pack_images,
    "tokens": tokens,
    "tables": pack_tables,
    "arrays": pack_arrays,
    "split": split,
    "copy": copy,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_every_option_is_tried_here() -> None:
    words = [(command, option.split()[0]) for command, _, option, _ in MAKING]
    words += [(command, option.split()[0]) for command, _, option, _, _ in SHOWING]
    for_many = {(command, option) for option in FOR_MANY for command in commands_with(option)}

    assert options() == {*words, *for_many, *BY_HAND, *PARTS}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Return what a command makes of a source."""

    @cache
    def made(command: str, base: str) -> dict[str, Any]:
        src, _, rest = base.partition(" ")
        dst = tmp_path_factory.mktemp("without") / "a"
        run(command, f"{src} {dst} {rest}")
        return data(dst)

    return made


@pytest.mark.parametrize(("command", "base", "option", "arguments"), MAKING)
def test_a_dataset_is_made_as_by_the_function(
    tmp_path: Path,
    without: Callable[[str, str], dict[str, Any]],
    command: str,
    base: str,
    option: str,
    arguments: dict[str, Any],
) -> None:
    src, _, rest = base.partition(" ")

    status = run(command, f"{src} {tmp_path}/with {rest} {option}")
    FUNCTIONS[command](src, tmp_path / "function", **arguments)

    made = data(tmp_path / "with")
    assert status == (3 if "--on-error" in (base + option) else 0)
    assert made == data(tmp_path / "function")
    assert made != without(command, base)


@pytest.mark.parametrize(("command", "base", "option", "status", "text"), SHOWING)
def test_what_is_shown_depends_on_the_option(
    capsys: pytest.CaptureFixture[str],
    command: str,
    base: str,
    option: str,
    status: int,
    text: str,
) -> None:
    run(command, base)
    assert text not in capsys.readouterr().out
    Path("packed.png").unlink(missing_ok=True)  # of preview, which replaces no file

    assert run(command, f"{base} {option}") == status

    assert text in capsys.readouterr().out


@pytest.mark.parametrize("command", commands_with("--json"))
def test_json_is_one_value_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(command, plain(command, tmp_path / "a")) == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(capsys.readouterr().out)

    assert run(command, f"{plain(command, tmp_path / 'b')} --json") == 0

    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", commands_with("--overwrite"))
def test_overwrite_replaces_what_is_kept_without_it(tmp_path: Path, command: str) -> None:
    line = plain(command, tmp_path / "out")
    assert run(command, line) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.*")}

    assert run(command, line) == 0  # it is done
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (manifest, *_) = [path for path in before if path.name == "manifest.json"]
    manifest.write_bytes(manifest.read_bytes() + b"\n")  # another than would be made
    assert run(command, f"{line} --overwrite") == 0

    assert not manifest.read_bytes().endswith(b"\n\n")


@pytest.mark.parametrize("command", commands_with("--dry-run"))
def test_a_dry_run_makes_nothing(tmp_path: Path, command: str) -> None:
    line = plain(command, tmp_path / "out")

    assert run(command, f"{line} --dry-run") == 0
    assert not (tmp_path / "out").exists()
    assert run(command, line) == 0

    assert data(tmp_path / "out")


@pytest.mark.parametrize("command", commands_with("--workers"))
def test_as_many_workers_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    started: list[int] = []
    num = (
        3 if usable_cores() != 3 else 2
    )  # another than without the option, and no more than there are shards

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int, *args: Any, **options: Any) -> None:
            started.append(max_workers)
            super().__init__(max_workers, *args, **options)

    monkeypatch.setattr("packdata.packing.pool.ThreadPoolExecutor", Pool)

    assert run(command, f"{plain(command, tmp_path / 'out')} --workers {num}") == 0

    # As many as there are cores look at texts, 16 at the headers of arrays.
    assert {*started} - {usable_cores(), 16} == {num}


# ------------------------------------------------------------------------------ mistakes in Python


@pytest.mark.parametrize("size", [16, "12", "16x12"])
def test_one_size_needs_no_list(tmp_path: Path, size: int | str) -> None:
    make_sources(tmp_path)

    for name, sizes in (("one", size), ("list", [size])):
        pack_images(tmp_path / "photos", tmp_path / name, sizes=sizes, fit="cover")

    found = [read_manifest(tmp_path / name) for name in ("one", "list")]
    assert found[0].fingerprint == found[1].fingerprint


@pytest.mark.parametrize("name", ["target", "features", "drop", "categorical", "numeric"])
def test_one_name_stands_for_a_list_of_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.csv").write_text("a,b,ab\n1,2,3\n")
    one: dict[str, Any] = {name: "ab"}
    listed: dict[str, Any] = {name: ["ab"]}

    pack_tables(tmp_path / "t.csv", tmp_path / "one", **one)
    pack_tables(tmp_path / "t.csv", tmp_path / "listed", **listed)

    assert contents(tmp_path / "one") == contents(tmp_path / "listed")


def test_names_of_defaults_are_a_list(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        pack([{"a": 1}], tmp_path / "out", {"a": Label(), "b": Label()}, defaults="ab")


@pytest.mark.parametrize(
    ("packs", "options", "meant"),
    [
        (pack_images, {"size": 256}, "sizes"),
        (pack_images, {"column": "a"}, "image_column"),
        (pack_images, {"array_column": "a"}, "image_column"),
        (pack_images, {"zzz": 1}, "sizes, fit"),
        (pack_images, {"sizes": 1.5}, "sizes"),
        (pack_images, {"boxes": 3}, "boxes"),
        (pack_images, {"keypoints": ["a", 2.5]}, "keypoints"),
        (pack_tables, {"missing_values": [-1]}, "missing_values"),
        (pack_arrays, {"worker": 2}, "workers"),
        (pack_arrays, {"dtype": np.float32}, "'float32'"),
        (pack_tables, {"targets": ["a"]}, "target"),
        (pack_tokens, {"documents": "line"}, "TokenOptions"),
        (pack_tokens, {"worker": 2}, "workers"),
        (pack_tokens, {"options": {"documents": "line"}}, "TokenOptions"),
    ],
)
def test_a_wrong_option_is_told_what_may_be_meant(
    tmp_path: Path, packs: Any, options: dict[str, Any], meant: str
) -> None:
    with pytest.raises(TypeError, match=meant):
        packs(tmp_path / "none", tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        *((each, PackSettings) for each in (pack_images, pack_arrays, pack_tables, pack_tokens)),
        *((each, RunSettings) for each in (pack_recipes, write, copy_dataset, split)),
    ],
)
def test_help_of_functions_shows_the_settings_with_their_defaults(
    function: Any, kind: Any
) -> None:
    shown = inspect.signature(function).parameters
    left_out = {"on_error"} if function in (write, copy_dataset, split) else set()

    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    for each in dataclasses.fields(kind):
        if each.name not in left_out:
            assert shown[each.name].default is each.default
    assert left_out.isdisjoint(shown)


@pytest.mark.parametrize("function", [write, copy_dataset, split])
def test_what_is_written_anew_leaves_nothing_out(tmp_path: Path, function: Any) -> None:
    with pytest.raises(TypeError, match="unknown option 'on_error'"):
        function("packed", tmp_path / "dst", on_error="skip")


DECLARED: dict[str, list[Any]] = {
    "images": [ImageOptions, ShapeOptions, SourceOptions, PackSettings],
    "tokens": [TokenOptions],
    "tables": [TableOptions, CsvOptions],
    "arrays": [ArrayOptions],
    "copy": [CopyOptions],
}


def out_of_range() -> Iterator[tuple[str, Any, str, object]]:
    """Yield a value beyond each declared choice and range: command, dataclass, name, value."""
    for command, kind in ((name, kind) for name, kinds in DECLARED.items() for kind in kinds):
        for each in dataclasses.fields(kind):
            if each.metadata.get("argument", {}).get("choices"):
                yield command, kind, each.name, "nonsense"
            if each.metadata.get("within"):
                least, most = each.metadata["within"]
                beyond = [least - 1] if most is None else [least - 1, most + 1]
                yield from ((command, kind, each.name, number) for number in beyond)


@dataclasses.dataclass(frozen=True)
class Ranged:
    number: int = opt(2, "a number", "N", within=(1, 3))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_both_ends_of_a_range_are_in_it(number: int) -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(declared={})
    options_of(f"{__name__}:Ranged")(parser)

    check_options(Ranged(number))
    assert parser.parse_args(["--number", str(number)]).number == number


@pytest.mark.parametrize("settings", [{"shard_bytes": True}, {"shard_bytes": "64MB"}], ids=str)
def test_a_size_of_shards_is_a_whole_number(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        RunSettings(**settings)
    assert type(RunSettings(shard_bytes=np.int64(1000)).shard_bytes) is int  # type: ignore[arg-type]


def test_a_number_of_numpy_becomes_an_int() -> None:
    options = Ranged(np.int64(3))  # type: ignore[arg-type]

    check_options(options)

    assert type(options.number) is int


@pytest.mark.parametrize(("command", "kind", "name", "value"), [*out_of_range()])
def test_choices_and_ranges_hold_in_python_and_on_the_command_line(
    command: str, kind: Any, name: str, value: object
) -> None:
    with pytest.raises(ValueError, match=name):
        kind(**{name: value})
    assert run(command, f"packed dst --{name.replace('_', '-')}={value}") == 2
