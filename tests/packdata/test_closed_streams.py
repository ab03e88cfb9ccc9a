"""Commands whose standard streams are closed, in real processes: they do their work, silently."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packdata.command_sources import make_sources
from tests.packdata.reading import PackedReader

PACKDATA = f"{shlex.quote(sys.executable)} -W always -m packdata"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = ["sh", "-c", f"exec {PACKDATA} {command}"]
    return subprocess.run(
        line, cwd=folder, timeout=60, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("command", "closed", "num_samples"),
    [
        ("images photos", "2>&-", 4),
        pytest.param("copy packed", ">&- 2>&-", 8, marks=pytest.mark.slow),
        pytest.param("tables t.csv", ">&- 2>&- <&-", 200, marks=pytest.mark.slow),
    ],
)
def test_a_command_packs_with_its_streams_closed(
    folder: Path, tmp_path: Path, command: str, closed: str, num_samples: int
) -> None:
    done = run(f"{command} {shlex.quote(str(tmp_path / 'out'))} {closed}", folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(PackedReader(tmp_path / "out", check=True)) == num_samples


@pytest.mark.slow
def test_an_error_has_its_status_where_nobody_can_read_it(folder: Path, tmp_path: Path) -> None:
    out = shlex.quote(str(tmp_path / "out"))

    assert run(f"images nowhere {out} >&- 2>&-", folder).returncode == 1
    assert run("images >&- 2>&-", folder).returncode == 2
    assert run("--help >&-", folder).returncode == 0


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Or what a library writes to standard error would go into a shard."""
    code = (
        "import os, sys; from packdata.cli import main; main(['info', 'nowhere']); "
        "found = [os.readlink(f'/proc/self/fd/{i}') for i in range(3)]; "
        "open(sys.argv[1], 'w').write(' '.join(found))"
    )
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} found <&- >&- 2>&-"

    subprocess.run(["sh", "-c", line], cwd=tmp_path, timeout=60, check=True)

    assert (tmp_path / "found").read_text() == "/dev/null /dev/null /dev/null"
