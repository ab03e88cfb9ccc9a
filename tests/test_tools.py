"""The script that makes the environment, where Python lacks what it needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# As on Debian without python3-venv: an environment without pip, and an error.
_NO_PIP = f"""#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
"{sys.executable}" "$@" --without-pip
echo "ensurepip is not available" >&2
exit 1
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the script reads."""
    (tmp_path / "a folder/tools").mkdir(parents=True)
    for name in ("tools/venv", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / "a folder" / name)
    return tmp_path / "a folder"


def run(copy: Path, *extra: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [copy / "tools/venv", *extra], env=os.environ | environment, capture_output=True, text=True
    )


def test_an_environment_without_pip_is_made_again(copy: Path) -> None:
    python = copy / "python"
    python.write_text(_NO_PIP)
    python.chmod(0o755)

    for _ in range(2):
        made = run(copy, PYTHON=str(python))
        assert (made.returncode, made.stdout) == (1, "")
        assert made.stderr == "ensurepip is not available\n"

    assert (copy / ".venv/bin/python").exists()
    assert (copy / "calls").read_text() == f"-m venv {copy}/.venv\n" * 2


def test_without_torchvision_the_environment_is_made(copy: Path) -> None:
    """As where no wheel of it fits: tests that compare with it are skipped."""
    programs = copy / ".venv/bin"
    programs.mkdir(parents=True)
    for name, does in {"pip": "", "python": 'case "$*" in *torchvision) exit 1 ;; esac\n'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}")
        (programs / name).chmod(0o755)

    made = run(copy, "dev")

    assert (made.returncode, made.stdout) == (0, f"{programs}/python\n")
    assert "torchvision" in made.stderr
    assert (copy / ".venv/installed-dev").exists()


def test_without_python_the_script_says_what_it_needs(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "sh"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)

    made = run(copy, PATH=str(tmp_path / "bin"), PYTHON="")

    assert made.returncode == 1
    assert made.stderr == "tools/venv: no Python >= 3.11 found; set PYTHON to one\n"
