"""How `compare.py` talks to a peer: a line of JSON in, a line of JSON out.

    {"do": "prepare", "job": {...}}          -> {"prepare_s": ..., "stored_mb": ...}
    {"do": "open", "job": {...}}             -> {"first_batch_s": ..., "torch": ..., "numpy": ...}; making it, one batch
    {"do": "check", "out": "file.npz"}       -> {"dtype": ..., "shape": ..., "batch": ...}; an epoch's inputs and ids
    {"do": "cover"}                          -> {"seen": ..., "distinct": ..., "num_samples": ...}; one whole epoch
    {"do": "run", "seconds": 3.0}            -> {"samples": ..., "seconds": ..., "first_batch_s": ..., "cpu_s": ...}

A failure is `{"error": "..."}`. What a peer's library prints goes to stderr. A peer's script calls `serve` with two
functions: `prepare(job)` writes the source into the peer's own format under `job.folder`, and `open_epochs(job)`
returns a function that begins a new epoch and returns an iterator of `(inputs, ids)`:

    images  uint8  (N, C, H, W), of any memory order
    tokens  int64  (N, 1024) and the same of targets, as a pair
    tables  float32 (N, 32)
    ids     int64  (N,), the number of each sample, as a label would be; for tokens, which begin with it, None

"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

WINDOW = 1024  # tokens
SIDE = 224  # pixels of a crop
BASE = 50_000  # a window begins with its number: two digits of this base


@dataclass(frozen=True)
class Job:
    """One workload for one peer.

    Attributes:
        kind: "jpeg", "raw", "tokens" or "table".
        source: Folder of numbered JPEG files, or the one `.npy` or `.bin` file.
        folder: Where the peer keeps what it prepared.
        whole: Resize the whole picture instead of a random crop, and do not flip: to compare pixels.
        variant: What follows the colon in `--peers torch:pil`.
    """

    kind: str
    source: str
    folder: str
    num_samples: int
    batch: int
    workers: int
    whole: bool = False
    variant: str = ""

    @property
    def files(self) -> list[str]:
        """JPEG files; the number of a sample is its place."""
        return [f"{self.source}/{i:06}.jpg" for i in range(self.num_samples)]

    def array(self) -> np.ndarray:
        """All samples of a kind other than "jpeg", mapped: (N, H, W, C), (N, 1025) or (N, 32)."""
        if self.kind != "tokens":
            return np.load(self.source, mmap_mode="r")
        flat = np.memmap(self.source, np.uint16, "r")
        shape, strides = (self.num_samples, WINDOW + 1), (WINDOW * 2, 2)
        return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)

    def records(self) -> Iterator[bytes]:
        """Each sample's bytes, for formats of records."""
        if self.kind == "jpeg":
            yield from (Path(file).read_bytes() for file in self.files)
        else:
            yield from (row.tobytes() for row in self.array())

    @property
    def row(self) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape of a sample of a kind other than "jpeg"."""
        array = self.array()
        return array.dtype, array.shape[1:]


Batch = tuple[Any, torch.Tensor | None]
Epoch = Callable[[], Iterator[Batch]]


# -- the same work for every peer that has no decoder of its own -----------------------------------


def crop_box(height: int, width: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box as in torchvision: area 0.08 to 1, aspect 3/4 to 4/3."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = (4 / 3) ** random.uniform(-1, 1)
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def decode_into(record: Any, out: np.ndarray, whole: bool) -> None:
    """Decode with OpenCV, crop, resize and flip into `out` (224, 224, 3)."""
    import cv2

    image = cv2.imdecode(np.frombuffer(record, np.uint8), cv2.IMREAD_COLOR_RGB)
    if not whole:
        y, x, height, width = crop_box(*image.shape[:2])
        image = image[y : y + height, x : x + width]
    cv2.resize(image, (SIDE, SIDE), dst=out, interpolation=cv2.INTER_LINEAR)
    if not whole and random.random() < 0.5:
        cv2.flip(out, 1, dst=out)


def decode(record: Any, whole: bool) -> np.ndarray:
    """Return what `decode_into` writes, in new memory."""
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    decode_into(record, out, whole)
    return out


def output(kind: str, rows: np.ndarray | torch.Tensor) -> Any:
    """Turn stacked samples as they are stored into what a trainer gets."""
    if kind == "tokens":  # torch has no arithmetic on uint16
        wide = torch.from_numpy(np.asarray(rows).astype(np.int64))
        return wide[:, :-1], wide[:, 1:]
    rows = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
    return rows.permute(0, 3, 1, 2) if kind in ("jpeg", "raw") else rows


def from_records(job: Job, records: list[Any], ids: list[int]) -> Batch:
    """Make a batch of records as `Job.records` gives them."""
    if job.kind == "jpeg":
        rows = np.empty((len(records), SIDE, SIDE, 3), np.uint8)
        for record, out in zip(records, rows, strict=True):
            decode_into(record, out, job.whole)
    else:
        dtype, shape = job.row
        rows = np.frombuffer(b"".join(records), dtype).reshape(-1, *shape)
        # torch wants memory that it may write.
        rows = rows if job.kind == "tokens" else rows.copy()
    return output(job.kind, rows), torch.tensor(ids, dtype=torch.int64)


def numbers(batch: Batch) -> np.ndarray:
    """Return the numbers of a batch's samples."""
    inputs, ids = batch
    if ids is None:
        ids = inputs[0][:, 0].long() * BASE + inputs[0][:, 1].long()
    return ids.numpy().copy()


def quiet_worker(_worker: int = 0) -> None:
    """Hold a worker to one thread of each library, and seed it apart from its siblings."""
    torch.set_num_threads(1)
    random.seed(os.getpid() + time.time_ns())
    try:
        import cv2

        cv2.setNumThreads(0)
    except ImportError:
        pass


def as_it_is(batch: Any) -> Any:
    """Collate what is a batch already."""
    return batch


def worker_options(job: Job) -> dict[str, Any]:
    """Return what every peer gives torch's DataLoader: processes that are kept between epochs, some batches ahead."""
    return {
        "num_workers": job.workers,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "worker_init_fn": quiet_worker,
    }


# -- serving ---------------------------------------------------------------------------------------


class Server:
    """Answers requests with a peer's two functions."""

    def __init__(
        self, prepare: Callable[[Job], None], open_epochs: Callable[[Job], Epoch], num_kept: int
    ) -> None:
        self.prepare_job, self.open_epochs, self.num_kept = prepare, open_epochs, num_kept
        self.epoch: Epoch | None = None
        self.job: Job | None = None

    def prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        folder = Path(job["folder"])
        folder.mkdir(parents=True)
        self.prepare_job(Job(**job))
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        return {"prepare_s": time.perf_counter() - began, "stored_mb": size / 1e6}

    def open(self, job: dict[str, Any]) -> dict[str, Any]:
        self.job = Job(**job)
        began = time.perf_counter()
        self.epoch = self.open_epochs(self.job)
        batches = iter(self.epoch())
        next(batches)
        took = time.perf_counter() - began
        del batches
        versions = {"torch": torch.__version__, "numpy": np.__version__}
        return {"first_batch_s": took} | versions

    def check(self, out: str) -> dict[str, Any]:
        self.finish()
        parts = [(_numpy(batch[0]), numbers(batch)) for batch in self.epoch()]
        inputs, ids = (np.concatenate(each) for each in zip(*parts, strict=True))
        np.savez(out, inputs=inputs, ids=ids)
        sizes = [len(ids) for _, ids in parts]
        return {"dtype": str(inputs.dtype), "shape": inputs.shape[1:], "batch": max(sizes)}

    def cover(self) -> dict[str, Any]:
        self.finish()
        ids = np.concatenate([numbers(batch) for batch in self.epoch()])
        inside = ids[(ids >= 0) & (ids < self.job.num_samples)]
        distinct = len(np.unique(inside))
        is_sorted = bool((np.diff(ids) > 0).all())
        return {"seen": len(ids), "distinct": distinct, "in_order": is_sorted}

    def finish(self) -> None:
        """Go to the end of an epoch that was left, where the next one would go on with it."""
        if self.num_kept:
            for _ in self.epoch():
                pass

    def run(self, seconds: float) -> dict[str, Any]:
        for _ in range(self.num_kept):  # made while nobody looked at the clock
            next(iter(self.epoch()))
        samples, first, cpu, began = 0, 0.0, _cpu_s(), time.perf_counter()
        while time.perf_counter() - began < seconds:
            batches = iter(self.epoch())
            for inputs, _ids in batches:
                samples += len(inputs[0] if isinstance(inputs, tuple | list) else inputs)
                first = first or time.perf_counter() - began
                if time.perf_counter() - began >= seconds:
                    break
        took = time.perf_counter() - began
        del batches
        found = {"samples": samples, "seconds": took, "first_batch_s": first}
        return found | {"main_process_cpu_s": _cpu_s() - cpu}


def _numpy(inputs: Any) -> np.ndarray:
    """Return a copy; of tokens and targets (N, 2, 1024)."""
    if isinstance(inputs, tuple | list):
        return np.stack([each.numpy() for each in inputs], 1)
    return inputs.contiguous().numpy().copy()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(
    prepare: Callable[[Job], None], open_epochs: Callable[[Job], Epoch], num_kept: int = 0
) -> None:
    """Answer the requests on stdin until it ends.

    `num_kept` is for a peer that goes on with an epoch that was left: the batches that are then ready at most.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print; the channel is ours alone
    server = Server(prepare, open_epochs, num_kept)
    quiet_worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request.pop("do"))(**request)
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # a peer's threads and processes are not waited for
