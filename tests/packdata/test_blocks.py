"""Items that are blocks of samples give the bytes that single samples give, whatever happens on the way."""

import io
import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.data.columns import Column, FixedColumn, VarColumn, var_column
from loaders.data.manifest import read_manifest
from loaders.errors import CodecError, PackError, SourceError
from loaders.schema import Array, Bytes, Label, Schema, Text
from packdata.packing import shards
from packdata.packing.engine import pack_recipes
from packdata.packing.journal import Journal
from packdata.packing.progress import Quiet
from packdata.packing.shards import ShardBuilder, check_records
from packdata.packing.target import PACKING_NAME
from packdata.recipe import Block
from tests.columns import fixed_column
from tests.packdata.recipes import SHARD_BYTES, STEPS, BlocksRecipe, Job, contents, labels
from tests.refusals import At

SIZES = (0, 40, None, 7, 0, None, 51, 0)  # 100 samples in shards of about 20
FORMATS = ("lmdb", "parquet")


def files(folder: Path) -> dict[str, bytes]:
    """Return the shards alone: a manifest has the plan's provenance, too."""
    return {name: data for name, data in contents(folder).items() if "shard-" in name}


def pack(dst: Path, sizes: Sequence[int | None] = SIZES, **options: Any) -> Any:
    recipe_options = {k: options.pop(k) for k in ("folders", "bad", "seed") if k in options}
    defaults: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES}
    return pack_recipes([("", BlocksRecipe(sizes, **recipe_options))], dst, **(defaults | options))


# ------------------------------------------------------------------------------ the result


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_are_cut_where_single_samples_are(tmp_path: Path, format: str) -> None:
    Job(tmp_path / "single", folders=("a", "b"), options={"format": format}).run()

    for i, sizes in enumerate((SIZES, (100,), (1,) * 100, (99, 1))):
        blocks = tmp_path / f"blocks-{i}"
        summary = pack(blocks, sizes, folders=("a", "b"), format=format)

        assert contents(blocks) == contents(tmp_path / "single")
        assert labels(blocks / "b") == list(range(100))
        assert summary.samples == 200
        assert len(read_manifest(blocks / "a").shards) > 3


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        pack(tmp_path / f"{workers}", workers=workers)

    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")


def test_one_sample_may_fill_a_shard(tmp_path: Path) -> None:
    pack(tmp_path, (3, 2), shard_bytes=1)

    assert [s.num_samples for s in read_manifest(tmp_path).shards] == [1] * 5


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_block_that_cannot_be_made_ends_the_packing(tmp_path: Path, on_error: str) -> None:
    """Its other samples are not left out with the bad one."""
    with pytest.raises(SourceError, check=At("number 40")):
        pack(tmp_path / "a", bad=[40], on_error=on_error)


class PickyRecipe(BlocksRecipe):
    """Leaves out every sample whose number ends in 3."""

    def encode(self, item: int) -> list[Any]:
        first, (block,) = int(self._starts[item]), super().encode(item)
        keep = [i for i in range(len(block)) if (first + i) % 10 != 3]
        columns = {name: take(column, keep) for name, column in block.columns.items()}
        bad = [f"sample {first + i}" for i in range(len(block)) if (first + i) % 10 == 3]
        return [Block(columns, [SourceError("it ends in 3", name) for name in bad])]


def take(column: Column, rows: Sequence[int]) -> Column:
    if isinstance(column, FixedColumn):
        return FixedColumn(column.data[rows])
    return VarColumn(column.buffer, column.starts[rows], column.lengths[rows])


def test_samples_of_a_block_can_be_left_out_one_by_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES}
    with pytest.raises(SourceError, check=At("sample 3")):
        pack_recipes([("", PickyRecipe((60, 40)))], tmp_path / "a", **options)
    counting = Counting()

    summary = pack_recipes(
        [("", PickyRecipe((60, 40)))],
        tmp_path / "a",
        on_error="skip",
        progress=counting,
        **options,
    )

    assert labels(tmp_path / "a") == [i for i in range(100) if i % 10 != 3]
    assert [name for name, _ in summary.rejected] == [f"sample {i}3" for i in ["", *range(1, 10)]]
    assert counting.done == 100


def test_what_is_left_out_of_a_block_is_listed_once_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES, "on_error": "skip"}
    pack_recipes([("", PickyRecipe((60, 40)))], tmp_path / "whole", **options)
    append, calls = Journal.append, iter(range(100))

    def dying(self: Journal, line: Any) -> None:
        append(self, line)
        if next(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", dying)
    with pytest.raises(KeyboardInterrupt):
        pack_recipes([("", PickyRecipe((60, 40)))], tmp_path / "a", **options)
    monkeypatch.undo()

    anew = "Pass overwrite=True to start anew; nothing was published"
    with pytest.raises(PackError, check=At("a", hint=anew)):  # what was left out is readable now
        pack_recipes([("", BlocksRecipe((60, 40)))], tmp_path / "a", **options)
    counting = Counting()
    summary = pack_recipes(
        [("", PickyRecipe((60, 40)))], tmp_path / "a", progress=counting, **options
    )

    assert contents(tmp_path / "a") == contents(tmp_path / "whole")
    assert counting.rejected == len(summary.rejected) == 10


def test_nothing_but_empty_blocks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackError, check=At("out")):
        pack(tmp_path / "out", (0, 0))

    assert not (tmp_path / "out").exists()


class Counting(Quiet):
    def __init__(self) -> None:
        self.total: int | None = 0
        self.done = self.rejected = 0

    def start(self, total: int | None, done: int) -> None:
        self.total, self.done = total, done

    def advance(self, rejected: int, samples: int = 1) -> None:
        self.done, self.rejected = self.done + samples, rejected


def test_progress_counts_samples(tmp_path: Path) -> None:
    counting = Counting()

    pack(tmp_path, progress=counting)

    assert (counting.done, counting.total) == (100, 100)


# ------------------------------------------------------------------------------ kills


@pytest.mark.parametrize("step", ["write a shard", "append to the journal", "publish a manifest"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_inside_a_block_the_same_command_gives_the_same_bytes(
    tmp_path: Path, step: str, when: Any
) -> None:
    assert step in STEPS
    common: dict[str, Any] = {"sizes": SIZES, "folders": ("a", "b")}
    Job(tmp_path / "whole", **common).run()
    whole = contents(tmp_path / "whole")

    num_killed = 0
    for nth in (0, 3):
        job = Job(tmp_path / f"{nth}", kill=(step, nth, when), **common)
        code = job.run_in_child()
        num_killed += code == -9
        if code == -9:
            Job(job.dst, **common).run()
        assert contents(job.dst) == whole
    assert num_killed >= 1


def test_a_run_goes_on_inside_a_block(tmp_path: Path) -> None:
    job = Job(tmp_path / "a", sizes=(100,), kill=("append to the journal", 1, "after"))
    assert job.run_in_child() == -9
    journal = (tmp_path / "a" / PACKING_NAME / "journal.jsonl").read_text()
    assert '"items":0,"rows":' in journal
    first = next((tmp_path / "a").glob("shard-00000-*.lmdb")).stat()
    counting = Counting()

    summary = pack(tmp_path / "a", (100,), progress=counting)

    assert "samples packed earlier" in summary.notes[0]
    assert counting.total == 100
    assert labels(tmp_path / "a") == list(range(100))
    assert next((tmp_path / "a").glob("shard-00000-*.lmdb")).stat().st_ino == first.st_ino


def test_killed_at_random_moments_again_and_again(tmp_path: Path) -> None:
    rng, options = random.Random(0), {"workers": 3}
    sizes = tuple(rng.randrange(60) for _ in range(40))
    Job(tmp_path / "whole", sizes=sizes, options=options).run()

    dst = tmp_path / "killed"
    for nth in (3, 6, 1, 9):
        step = rng.choice(["write a shard", "append to the journal", "sync"])
        Job(dst, sizes=sizes, options=options, kill=(step, nth, "after")).run_in_child()
    Job(dst, sizes=sizes, options=options).run()

    assert contents(dst) == contents(tmp_path / "whole")


@pytest.mark.parametrize("num_lost", [0, 1])
def test_a_block_that_became_shorter_is_noticed(tmp_path: Path, num_lost: int) -> None:
    """Also where it ends with the shard that is there."""
    job = Job(tmp_path, sizes=(100,), kill=("append to the journal", 1, "after"))
    job.run_in_child()
    lines = (tmp_path / PACKING_NAME / "journal.jsonl").read_text().splitlines()
    recipe = BlocksRecipe((json.loads(lines[-1])["at"]["rows"] - num_lost,))
    recipe.identity = BlocksRecipe((100,)).identity

    with pytest.raises(PackError):
        pack_recipes([("", recipe)], tmp_path, format="lmdb", shard_bytes=SHARD_BYTES)


# ------------------------------------------------------------------------------ the parts


SCHEMA = Schema({"data": Bytes(), "label": Label(), "key": Text()})


def built(
    schema: Schema, format: Any, shard_bytes: int, block: Block, first: int = 0
) -> tuple[list[Any], list[int]]:
    """Return the columns of each shard of a block, and the numbers of the samples behind full ones."""
    builder, found, ends = ShardBuilder(schema, format, shard_bytes), [], list[int]()
    for number in builder.add(block, first):
        found.append(builder.take())
        ends.append(number)
    return ([*found, builder.take()] if len(builder) else found), ends


def test_rows_that_lie_apart_are_taken_as_they_are() -> None:
    rng = np.random.default_rng(0)
    buffer = rng.integers(0, 256, 1000, np.uint8)
    starts, lengths = rng.integers(0, 900, 30), rng.integers(0, 100, 30)
    starts[10:15] = starts[9] + np.cumsum(lengths[9:14])  # a run among strays
    data = VarColumn(buffer, starts, lengths)
    label = FixedColumn(rng.integers(0, 256, (60, 8), np.uint8)[::2])
    block = Block({"data": data, "label": label, "key": var_column([b"k"] * 30)})
    shards, ends = built(SCHEMA, "lmdb", 1 << 20, block, 4)

    assert ends == []
    for name, column in shards[0].items():
        expected = [block.columns[name].row(i).tobytes() for i in range(4, 30)]
        assert [column.row(i).tobytes() for i in range(len(column))] == expected


def test_a_shard_that_is_full_to_the_byte_ends_there() -> None:
    schema = Schema({"label": Label()})
    block = Block({"label": FixedColumn(np.zeros((25, 8), np.uint8))})
    shards, ends = built(schema, "lmdb", 10 * (8 + 8), block)

    assert ends == [10, 20]
    assert [len(columns["label"]) for columns in shards] == [10, 10, 5]


@pytest.mark.parametrize(("format", "sizes"), [("lmdb", [50, 50]), ("parquet", [])])
def test_a_shard_of_lmdb_is_full_at_a_number_of_records(
    format: Any, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer takes memory for each value, however small that is."""
    monkeypatch.setattr(shards, "_MAX_VALUES", 100)  # of two fields
    rows = [b"k"] * 120
    label = FixedColumn(np.zeros((120, 8), np.uint8))
    block = Block({"data": var_column(rows), "label": label, "key": var_column(rows)})

    found, _ = built(SCHEMA, format, 1 << 20, block)

    assert [len(columns["label"]) for columns in found] == [*sizes, 120 - sum(sizes)]


def test_a_block_whose_columns_differ_in_length_is_refused() -> None:
    with pytest.raises(ValueError):
        Block({"label": fixed_column([bytes(8)], 8), "key": var_column([])})
    with pytest.raises(ValueError):
        Block({})


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("label", var_column([bytes(8)])),
        ("label", fixed_column([bytes(4)], 4)),
        ("more", var_column([b""])),
    ],
)
def test_a_block_that_contradicts_the_schema_is_refused(name: str, column: Column) -> None:
    columns: dict[str, Column] = {
        "data": var_column([b""]),
        "key": var_column([b""]),
        "label": fixed_column([bytes(8)], 8),
    }

    check_records(Block(dict(columns)), SCHEMA, "lmdb")
    with pytest.raises(ValueError):
        check_records(Block(columns | {name: column}), SCHEMA, "lmdb")


def test_rows_that_arrow_could_not_open_are_refused_before_they_are_written() -> None:
    """Rows of one length have a limit of their own, which is that of rows of bytes."""
    num = 1 << 28
    block = Block({"x": FixedColumn(np.broadcast_to(np.zeros(1, np.uint8), (1, num)))})
    octets = Schema({"x": Array(dtype="uint8", dims=(num,))})
    for refused in (octets, Schema({"x": Array(dtype="float32", dims=(2, num // 8))})):
        with pytest.raises(CodecError):
            check_records(block, refused, "parquet")
    check_records(block, octets, "lmdb")

    for nbytes in (num - 1, num):
        file = io.BytesIO()
        pq.write_table(pa.schema([("x", pa.binary(nbytes))]).empty_table(), file)
        with pytest.raises(pa.ArrowInvalid) if nbytes == num else nullcontext():
            pq.ParquetFile(io.BytesIO(file.getvalue()))


def test_a_record_that_no_shard_can_hold_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shards.MAX_RECORD_BYTES, "lmdb", 1000)

    check_records({"x": bytes(1000)}, Schema({"x": Bytes()}), "lmdb")
    with pytest.raises(SourceError, check=At("number 1")):
        pack(tmp_path)
