"""What is misspelled on a command line is named with what is close to it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.bench.cli import COMMANDS as BENCH
from loaders.commandline import Command, Commands, Parser
from packdata.cli import COMMANDS as PACKDATA
from tests.refusals import At

PROGRAMS = {"packdata": PACKDATA, "loaders-bench": BENCH}


def add_bake(parser: Parser) -> None:
    parser.add_argument("src", nargs="+", metavar="SRC")
    parser.add_argument("dst", metavar="DST")
    parser.add_argument("--flour", choices=("rye", "wheat"), help="what it is made of: one of two")
    parser.add_argument("--salt", action="store_true", help="it isn't needed")


def add_look(parser: Parser) -> None:
    parser.add_argument("what", metavar="WHAT")


BAKE = Command(
    name="bake", summary="make bread", add=add_bake, run=lambda _: 0, example="tool bake a"
)
LOOK = Command(name="look", summary="see bread", add=add_look, run=lambda _: 0)


def small(default: str = "") -> Commands:
    groups = {"make": [BAKE], "see": [LOOK]}
    gone = {"fry": "use 'bake'", "look --long": "look twice"}
    return Commands("tool", "Does things.", groups, version="1.2", default=default, gone=gone)


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


@pytest.mark.parametrize(
    ("words", "default", "what"),
    [
        (["fry", "a"], "", "fry was removed: use 'bake'"),
        (["look", "--long=3"], "", "--long was removed: look twice"),
        (["a", "--long", "3"], "look", "--long was removed: look twice"),
    ],
)
def test_what_was_removed_names_what_to_use_instead(
    capsys: pytest.CaptureFixture[str], words: list[str], default: str, what: str
) -> None:
    assert refused(capsys, *words, default=default).endswith(what)


def test_an_option_of_another_command_is_no_removed_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "there is no option --long" in refused(capsys, "bake", "a", "b", "--long")


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
    assert refused(capsys, "look", "a", "b", "c").endswith("unexpected 'b', 'c'")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, check=At(code=0)):
        small().parse_args(words)
    return capsys.readouterr().out


def test_help_has_every_command_in_its_group_and_help_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_one = printed(capsys, "bake", "--help")

    assert "make:\n  bake  make bread\n\nsee:\n  look  see bread\n" in printed(capsys, "--help")
    assert "usage: tool bake" in of_one
    assert "--flour {rye,wheat}" in of_one
    assert of_one.endswith("example:\n  tool bake a\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_fits_a_terminal_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for examples, which have to be copied in one piece."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    program = PROGRAMS[name]

    texts = [program.format_help(), *(program.parser(n).format_help() for n in program.commands)]

    wide = [line for text in texts for line in text.splitlines() if len(line) > 80]
    assert [line for line in wide if not line.startswith(f"  {name} ")] == []


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_stands_in_the_help_once(name: str) -> None:
    program = PROGRAMS[name]

    text = program.format_help()

    assert {text.count(f"\n  {each} ") for each in program.commands} == {1}
