"""A file that comes in several parts, each of which may come wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.remote import part_jobs, servers
from tests.remote.test_bad_answers import TRANSIENT


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRANSIENT, "replaced"])
def test_whichever_part_is_answered_badly_the_bits_are_the_same(tmp_path: Path, kind: str) -> None:
    with servers.bucket(tmp_path) as endpoint, servers.proxy(endpoint) as proxy:
        command = [sys.executable, part_jobs.__file__, str(tmp_path), proxy.endpoint, kind]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            command, env=environment, stderr=subprocess.PIPE, text=True, timeout=120
        )

    assert not done.returncode, done.stderr
