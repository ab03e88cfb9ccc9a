"""``verify`` reads shards back with processes that are kept: starting one takes longer than what it reads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from packdata.inspect.readback import ReadBack


@pytest.fixture(scope="session")
def idle_readers() -> Iterator[list[ReadBack]]:
    idle: list[ReadBack] = []
    yield idle
    for reader in idle:
        reader.close()


@pytest.fixture(autouse=True)
def kept_readers(idle_readers: list[ReadBack], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def kept(_: float | None) -> Iterator[ReadBack]:
        reader = idle_readers.pop() if idle_readers else ReadBack()
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        idle_readers.append(reader)

    monkeypatch.setattr("packdata.inspect.verify.ReadBack", kept)
