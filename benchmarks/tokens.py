"""Windows of tokens beside what a user would otherwise run: `python benchmarks/tokens.py [--tokens 100000000]`.

Every case runs its contenders in turns (A B A B ...), in one process, data in the page cache; the table shows the
median, the range, and the ratio to the first line. Writes, with every repeat, `benchmarks/results/tokens.json`. What
a batch is made of differs, so each has a case: the stored uint16 as it is, and int64 tokens and targets.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from page import write
from spine import HERE, Case, Run, Told, conditions

from loaders import DataLoader, RAMDataset, TokenWindows
from packdata.tokens.plan import TokenOptions, pack_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH, BATCH = 1024, 32
VOCABULARY, END = 50_257, 50_256


class Data:
    """Random ids as nanoGPT keeps them, and packed; documents of 20 to 3,000 tokens end with an id."""

    def __init__(self, folder: Path, num_tokens: int) -> None:
        rng = np.random.default_rng(0)
        ids = rng.integers(0, END, num_tokens, dtype=np.uint16)
        lengths = np.exp(rng.uniform(3, 8, max(2, num_tokens // 300))).astype(np.int64)
        ends = np.cumsum(lengths)
        ids[ends[ends < num_tokens] - 1] = END
        self.flat = folder / "train.bin"
        ids.tofile(self.flat)
        for kind in ("parquet", "lmdb"):
            options = TokenOptions(vocab_size=VOCABULARY, eod=END)
            pack_tokens(self.flat, folder / kind, options, format=kind)
        self.folder = folder
        self.ids = np.memmap(self.flat, np.uint16, "r")
        self.num_windows = (num_tokens - 1) // LENGTH

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """All windows and the token behind each, as a view of the mapped file: `(N, LENGTH + 1)`."""
        item = self.ids.itemsize
        shape, strides = (self.num_windows, LENGTH + 1), (LENGTH * item, item)
        return np.lib.stride_tricks.as_strided(self.ids, shape, strides, writeable=False)

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the windows of each batch, in random order."""
        order = np.random.default_rng().permutation(self.num_windows)
        for start in range(0, self.num_windows - BATCH + 1, BATCH):
            yield order[start : start + BATCH]


# -- contenders ------------------------------------------------------------------------------------


def timed(batches: Iterator[Any]) -> float:
    """Return tokens per second of taking all batches."""
    began, num = time.perf_counter(), 0
    for tokens, *_ in batches:
        num += tokens.shape[0] * LENGTH
    return num / (time.perf_counter() - began)


def bare_narrow(data: Data) -> Iterator[Any]:
    """One numpy gather a batch, handed over as it is."""
    for numbers in data.batches():
        rows = torch.from_numpy(data.rows[numbers])
        yield rows[:, :-1], rows[:, 1:]


def bare_int64(data: Data) -> Iterator[Any]:
    """One numpy gather a batch, then tokens and targets as int64."""
    for numbers in data.batches():
        rows = data.rows[numbers]
        yield (
            torch.from_numpy(rows[:, :-1].astype(np.int64)),
            torch.from_numpy(rows[:, 1:].astype(np.int64)),
        )


class FlatFile(torch.utils.data.Dataset[Any]):
    """nanoGPT's file as a Dataset: a slice of a memmap for each window, made int64."""

    def __init__(self, path: Path, num_windows: int) -> None:
        self.path, self.num_windows = path, num_windows
        self.ids = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return self.num_windows

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.ids[i * LENGTH : (i + 1) * LENGTH + 1].astype(np.int64)
        return torch.from_numpy(row[:-1]), torch.from_numpy(row[1:])


class _Share(torch.utils.data.Dataset[Any]):
    """The first windows of a dataset: a slow contender gets a shorter epoch."""

    def __init__(self, dataset: FlatFile, share: float) -> None:
        self.dataset, self.length = dataset, max(BATCH, int(len(dataset) * share))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


def torch_loader(data: Data, workers: int) -> Any:
    """torch's own DataLoader, its processes kept between epochs."""
    dataset = _Share(FlatFile(data.flat, data.num_windows), 0.1)
    return torch.utils.data.DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def ours(dataset: Any, workers: Any = "auto", **options: Any) -> Run:
    """Our loader over windows of a dataset."""
    windows = TokenWindows(dataset, LENGTH, **options)
    loader = DataLoader(windows, BATCH, shuffle=True, drop_last=True, num_workers=workers)
    return lambda: timed(iter(loader))


# -- cases -----------------------------------------------------------------------------------------


def cases(data: Data, num_workers: int) -> Iterator[Case]:
    """Yield every case."""
    unit = "tokens/s"
    note = (
        f"{data.num_windows:,} windows of {LENGTH:,} and one more, batches of {BATCH}, shuffled; "
        "budget: 0.7 of the first line"
    )
    yield Case("windows, handed over as uint16", unit, {
        "bare numpy gather": lambda: timed(bare_narrow(data)),
        "loaders, parquet": ours(data.folder / "parquet", dtype="stored"),
        "loaders, lmdb": ours(data.folder / "lmdb", dtype="stored"),
        "loaders, inline": ours(data.folder / "parquet", 0, dtype="stored"),
    }, note)  # fmt: skip
    yield Case("windows, handed over as int64 tokens and targets", unit, {
        "bare numpy gather": lambda: timed(bare_int64(data)),
        "loaders, parquet": ours(data.folder / "parquet"),
        "loaders, lmdb": ours(data.folder / "lmdb"),
        "loaders, in memory": ours(RAMDataset(data.folder / "parquet", progress=False)),
        "loaders, inline": ours(data.folder / "parquet", 0),
        f"torch DataLoader over a memmap, {num_workers} workers": functools.partial(
            lambda loader: timed(iter(loader)), torch_loader(data, num_workers)),
        "torch DataLoader over a memmap, inline": functools.partial(
            lambda loader: timed(iter(loader)), torch_loader(data, 0)),
    }, note)  # fmt: skip
    documents = TokenWindows(data.folder / "parquet", LENGTH, by="document")
    yield Case("documents packed into windows, six fields", unit, {
        "loaders, best-fit": ours(data.folder / "parquet", by="document"),
        "loaders, best-fit, inline": ours(data.folder / "parquet", 0, by="document"),
    }, f"{len(documents.stream.document_ends):,} documents, {documents.padding_share:.3%} padding")  # fmt: skip
    yield packing(data)


def packing(data: Data) -> Case:
    """Packing text whose bytes are ids, beside reading it and writing it elsewhere."""
    text = data.folder / "text.txt"
    words = np.random.default_rng(0).integers(
        97, 123, max(1 << 20, data.ids.nbytes), dtype=np.uint8
    )
    words[::6], words[59::60] = ord(" "), ord("\n")
    words.tofile(text)
    size, target = text.stat().st_size, data.folder / "packing"

    def copied() -> float:
        began = time.perf_counter()
        with open(text, "rb") as source, open(data.folder / "copy", "wb") as copy:
            shutil.copyfileobj(source, copy, 4 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        return size / (time.perf_counter() - began) / 1e6

    def packed(**options: Any) -> float:
        shutil.rmtree(target, ignore_errors=True)
        began = time.perf_counter()
        pack_tokens(text, target, TokenOptions(**options))
        return size / (time.perf_counter() - began) / 1e6

    return Case("packing text, bytes as ids", "MB/s", {
        "copying the file, with fsync": copied,
        "packdata tokens, a document a file": packed,
        "packdata tokens, a document a line": lambda: packed(documents="line"),
    }, "budget: 200 MB/s; checks UTF-8, hashes, reads back, fsyncs")  # fmt: skip


# -- running ---------------------------------------------------------------------------------------


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="tokens of the stream")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2, help="processes of torch's DataLoader")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results/")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder), args.tokens)
        told = Told()
        for case in cases(data, args.workers):
            told.run(case, args.repeats)
    where = conditions("none") | {"num_tokens": args.tokens, "load": os.getloadavg()[0]}
    title = "Windows of tokens: `python benchmarks/tokens.py`"
    write(args.out, "tokens", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
