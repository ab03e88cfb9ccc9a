"""Commands whose standard streams are closed are refused, in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packdata.command_sources import make_sources


@pytest.mark.parametrize(("closed", "told"), [("2>&-", ""), (">&-", "closed"), (">&- 2>&-", "")])
def test_closed_output_is_wrong_usage_and_makes_nothing(
    tmp_path: Path, closed: str, told: str
) -> None:
    """Else a shard gets the number of the stream, and what a library prints."""
    make_sources(tmp_path)
    line = f'exec "$0" -m packdata images photos out {closed}'

    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        cwd=tmp_path,
        timeout=60,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "out").exists()
