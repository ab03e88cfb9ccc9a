"""A file that comes in several parts, each of which may come wrong."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaders.remote.transfer import Slots
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


def test_a_slot_whose_turn_comes_as_its_download_is_dropped_goes_to_the_next() -> None:
    download: Any = SimpleNamespace(distance=0)

    async def take(slots: Slots) -> None:
        async with slots.of(download):
            await asyncio.sleep(0)

    async def run() -> None:
        slots = Slots(1)
        async with slots.of(download):
            dropped = asyncio.create_task(take(slots))
            await asyncio.sleep(0)
        dropped.cancel()
        with suppress(asyncio.CancelledError):
            await dropped
        await asyncio.wait_for(take(slots), 5)

    asyncio.run(run())
