"""What is misspelled on a command line is named with what is close to it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.bench.cli import build_parser as bench
from loaders.commandline import Commands, folded
from packdata.cli import build_parser as packdata
from tests.refusals import At

BUILDERS = {"packdata": packdata, "loaders-bench": bench}


def small(default: str = "") -> Commands:
    commands = Commands(
        "tool", "Does things.", {"make": ["bake"], "see": ["look"]}, version="1.2", default=default
    )
    bake = commands.add_parser("bake", help="make bread")
    bake.add_argument("src", nargs="+", metavar="SRC")
    bake.add_argument("dst", metavar="DST")
    bake.add_argument("--flour", choices=("rye", "wheat"), help="what it is made of: one of two")
    bake.add_argument("--salt", action="store_true", help="it isn't needed")
    commands.add_parser("look", help="see bread").add_argument("what", metavar="WHAT")
    return commands


def refused(capsys: pytest.CaptureFixture[str], *words: str, default: str = "") -> str:
    with pytest.raises(SystemExit) as caught:
        small(default).parse_args(words)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    return err.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["bakke", "a", "b"], "'bake'"),
        (["bake", "a", "b", "--salty"], "'--salt'"),
        (["bake", "a", "b", "--fluor=rye"], "'--flour'"),
        (["--versoin"], "'--version'"),
    ],
)
def test_what_may_be_meant_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert f"did you mean {meant}?" in refused(capsys, *words)


@pytest.mark.parametrize("words", [["bake", "a", "b", "--sal"], ["bake", "a", "b", "--fl", "rye"]])
def test_no_option_is_shortened(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A shortened one would change its meaning with the next release that has another of the kind."""
    assert "there is no option" in refused(capsys, *words)


def test_a_command_may_be_left_out_unless_the_word_looks_like_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert small("look").parse_args(["bread"]).what == "bread"
    assert "did you mean 'bake'" in refused(capsys, "bakee", default="look")
    (tmp_path / "bakee").mkdir()
    assert small("look").parse_args(["bakee"]).what == "bakee"


@pytest.mark.parametrize(
    "words",
    [
        ["--salt", "a", "b", "c"],
        ["a", "--salt", "b", "c"],
        ["a", "b", "--salt", "c"],
        ["a", "b", "c", "--salt"],
    ],
)
def test_options_stand_anywhere(words: list[str]) -> None:
    args = small().parse_args(["bake", *words])

    assert (args.src, args.dst, args.salt) == (["a", "b"], "c", True)


def test_behind_two_dashes_all_are_names() -> None:
    args = small().parse_args(["bake", "--", "-a", "--salt", "c"])

    assert (args.src, args.dst, args.salt) == (["-a", "--salt"], "c", False)


def test_surplus_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "look", "a", "b", "c").endswith("'b', 'c' is too many")


def test_help_has_every_command_in_its_group_and_help_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = small().parse_args(["help"])
    assert args.run(args) == 0
    text = capsys.readouterr().out
    args = small().parse_args(["help", "bake"])
    assert args.run(args) == 0
    of_one = capsys.readouterr().out

    assert "make:\n  bake  make bread\n\nsee:\n  look  see bread\n" in text
    assert "usage: tool bake" in of_one
    assert "--flour {rye,wheat}" in of_one


@pytest.mark.parametrize("name", BUILDERS)
def test_help_fits_a_terminal_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for examples, which have to be copied in one piece."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    commands = BUILDERS[name]()

    texts = [commands.format_help(), *(each.format_help() for each in commands.parsers.values())]

    wide = [line for text in texts for line in text.splitlines() if len(line) > 80]
    assert [line for line in wide if not line.startswith(f"  {name} ")] == []


def test_a_text_is_folded_by_paragraphs_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    text = "some words that are\nfilled anew:\n  one   two three four five\n  left\n\nanother paragraph"

    assert folded(text).splitlines() == [
        "some words that are",
        "filled anew:",
        "  one   two three four",
        "        five",
        "  left",
        "",
        "another paragraph",
    ]
    assert (
        folded("see:\n  a --long command   and why") == "see:\n  a --long command\n      and why"
    )


def test_nothing_is_coloured_where_no_color_is_asked_for() -> None:
    """On a terminal; argparse colours help from Python 3.14 on."""
    ours, terminal = pty.openpty()
    env = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color"}
    code = "from packdata.cli import main; main(['images', '--help'])"
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)

    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert child.wait(60) == 0
    assert b"--size" in shown
    assert b"\x1b" not in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its other end is closed, and all was read
        return b""


def test_help_of_a_command_that_is_none_names_one(capsys: pytest.CaptureFixture[str]) -> None:
    args = small().parse_args(["help", "loook"])

    with pytest.raises(SystemExit, check=At(code=2)):
        args.run(args)

    assert "did you mean 'look'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", BUILDERS)
def test_every_command_stands_in_the_help_once(name: str) -> None:
    commands = BUILDERS[name]()

    text = commands.format_help()

    assert {each: text.count(f"\n  {each} ") for each in commands.parsers} == dict.fromkeys(
        commands.parsers, 1
    )
