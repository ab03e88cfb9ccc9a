"""A small recipe for the tests of the packer, and child processes that pack it and get killed."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loaders.data import manifest
from loaders.data.columns import var_column
from loaders.errors import LoadersError, SourceError
from loaders.schema import Bytes, Label, Schema, Text
from packdata.packing import packing, store
from packdata.packing.engine import pack_recipes
from packdata.packing.journal import Journal
from packdata.packing.summary import Summary
from packdata.recipe import Block, Recipe, Records, Target
from tests.columns import fixed_column

SHARD_BYTES = 20_000


class NumbersRecipe(Recipe):
    """Items are numbers; records are pseudo-random bytes of pseudo-random size that follow from them.

    Args:
        num_items: How many items there are.
        folders: One target each; in the second, data is cut to a quarter.
        bad: Items that cannot be packed.
        delay_s: How long an item takes.
        seed: Another one is another source.
    """

    def __init__(
        self,
        num_items: int,
        folders: Sequence[str] = ("",),
        bad: Sequence[int] = (),
        delay_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        schema = Schema({"data": Bytes(), "label": Label(), "key": Text()}, ("data", "label"))
        self.targets: Sequence[Target] = [Target(folder, schema) for folder in folders]
        self.identity: Mapping[str, Any] = {"num_items": num_items, "options": {"seed": seed}}
        self.provenance: Mapping[str, Any] = {"source": "numbers"}
        self._num_items, self._bad, self._delay_s, self._seed = num_items, bad, delay_s, seed

    def __len__(self) -> int:
        return self._num_items

    def items(self, start: int) -> Iterator[int]:
        yield from range(start, self._num_items)

    def name(self, item: int) -> str:
        return f"number {item}"

    def encode(self, item: int) -> list[Records]:
        if self._delay_s:
            time.sleep(self._delay_s * (item % 3))
        if item in self._bad:
            raise SourceError("it is bad luck", self.name(item))
        rng = np.random.default_rng((self._seed, item))
        data = rng.bytes(int(rng.integers(0, 2000)))
        shared = {"label": item.to_bytes(8, "little"), "key": f"key {item}".encode()}
        parts = [data, data[: len(data) // 4]]
        return [{"data": part, **shared} for part in parts[: len(self.targets)]]


class BlocksRecipe(NumbersRecipe):
    """The same samples as ``NumbersRecipe``, but items are blocks of them.

    Args:
        sizes: Samples of each item; None: one sample, not as a block.
        options: As for ``NumbersRecipe``.
    """

    is_of_blocks = True

    def __init__(self, sizes: Sequence[int | None], **options: Any) -> None:
        counts = [1 if size is None else size for size in sizes]
        super().__init__(sum(counts), **options)
        self.num_samples = self._num_items
        self._sizes, self._starts = sizes, np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self._sizes)

    def items(self, start: int) -> Iterator[int]:
        yield from range(start, len(self))

    def encode(self, item: int) -> list[Any]:
        first = int(self._starts[item])
        if self._sizes[item] is None:
            return list(super().encode(first))
        samples = [
            super(BlocksRecipe, self).encode(first + i) for i in range(self._sizes[item] or 0)
        ]
        return [
            Block(
                {
                    "data": var_column([sample[i]["data"] for sample in samples]),
                    "label": fixed_column([sample[i]["label"] for sample in samples], 8),
                    "key": var_column([sample[i]["key"] for sample in samples]),
                }
            )
            for i in range(len(self.targets))
        ]


@dataclass(frozen=True)
class Job:
    """One call of ``pack_recipes`` in a child; ``kill`` is (step, number of the call, when)."""

    dst: Path
    num_items: int = 100
    splits: tuple[str, ...] = ("",)
    folders: tuple[str, ...] = ("",)
    bad: tuple[int, ...] = ()
    delay_s: float = 0.0
    seed: int = 0
    kill: tuple[str, int, Literal["before", "after"]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int | None, ...] | None = None  # of blocks, instead of single items

    def recipe(self) -> NumbersRecipe:
        """Return the recipe of each split."""
        common: dict[str, Any] = {"folders": self.folders, "delay_s": self.delay_s}
        common |= {"bad": self.bad, "seed": self.seed}
        if self.sizes is not None:
            return BlocksRecipe(self.sizes, **common)
        return NumbersRecipe(self.num_items, **common)

    def run(self) -> Summary:
        """Pack in this process."""
        recipes = [(split, self.recipe()) for split in self.splits]
        defaults: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES, "workers": 2}
        return pack_recipes(recipes, self.dst, **(defaults | self.options))

    def start(self) -> multiprocessing.process.BaseProcess:
        """Pack in a child; its exit code is 0, 1 after an error of ours, -9 when killed."""
        child: multiprocessing.process.BaseProcess
        child = _context().Process(target=_child, args=(self,))
        child.start()
        return child

    def run_in_child(self) -> int | None:
        """Pack in a child to its end; return the exit code."""
        child = self.start()
        child.join(60)
        assert child.exitcode is not None, "the child hangs"
        return child.exitcode


def _context() -> Any:
    """Return a context whose children start at once: everything is imported in their parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.packdata.recipes", "lmdb", "pyarrow.parquet"])
    return context


def _child(job: Job) -> None:
    os.fsync = os.fstat  # type: ignore[assignment]  # as in the tests themselves
    if job.kill is not None:
        _patch(*job.kill)
    try:
        job.run()
    except LoadersError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


# Where a packing does something that lasts: (holder of the function, its name).
STEPS: dict[str, tuple[Any, str]] = {
    "write a shard": (packing, "write_shard"),
    "start the journal": (Journal, "create"),
    "append to the journal": (Journal, "append"),
    "rename": (os, "replace"),
    "sync": (os, "fsync"),
    "unlink": (os, "unlink"),
    "link": (os, "link"),
    "publish a manifest": (store, "swap"),
    "clean up": (packing.Packing, "_clear"),
}


def _patch(step: str, nth: int, when: str) -> None:
    """Let the process kill itself at the nth call of a step."""
    holder, name = STEPS[step]
    original: Callable[..., Any] = getattr(holder, name)
    calls = iter(range(1_000_000))

    def dying(*args: Any, **kwargs: Any) -> Any:
        is_last = next(calls) == nth
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return original(*args, **kwargs)
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(holder, name, dying)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def labels(folder: Path) -> list[int]:
    """Return the labels of a packed dataset, in order."""
    from loaders.data.formats import open_columns

    found: list[int] = []
    for shard in manifest.read_manifest(folder).shards:
        column = open_columns(folder / shard.file, shard)["label"]
        found += [int.from_bytes(column.row(i).tobytes(), "little") for i in range(len(column))]
    return found
