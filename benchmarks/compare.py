"""This project beside other loaders: `python benchmarks/compare.py WORKLOAD [--photos FOLDER]`.

Each peer runs in an environment of its own, made from PyPI when it is first needed (`--cache`; its script in
`benchmarks/peers/` has the versions, and its settings in the docstring), as a process of its own. All get the same
bytes and give the same batches: `benchmarks/peers/protocol.py` says which. Before it is timed, a peer serves a
small set whose every value is compared, and an epoch in which samples are counted. Then the peers take turns (A B C
A B C ...), one running while all others are stopped; a turn is `--seconds` of epochs, the beginning of each
included; the figure is the median of `--repeats` turns. The training loop only takes the batches: it does not look
at them. Files are in the page cache. Memory is the peak over the counted epoch, of the process and its workers:
what is its own, and PSS with mapped files.

A peer that cannot be installed, fails, does not answer or serves wrong values is listed with what it said. Writes
`results/compare-WORKLOAD.json` and `.md`, and with `chart.py` the picture of all workloads, `results/compare.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # `benchmarks` is no installed package

from chart import OURS, cell, number, overlap, publish

from benchmarks.peers.protocol import BASE, SIDE, WINDOW, Job
from loaders.bench.measure import PROC, family, memory, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
PEERS = (
    "loaders", "torch", "torch:pil", "ffcv", "dali", "webdataset", "streaming", "litdata", "spdl", "grain", "hf",
)  # fmt: skip
TORCH = "torch==2.13.0"  # a CPU build, if pip's own settings find one
BASE_PACKAGES = (TORCH, "numpy==2.4.6", "opencv-python-headless==5.0.0.93", "pillow==13.0.0")  # fmt: skip
LIMIT_S = {"prepare": 900, "open": 180, "check": 180, "cover": 300, "run": 120}  # for an answer
TOLERANCE = 4.0  # steps of uint8, mean over a picture: decoders and resizers differ
OUTPUTS = {
    "jpeg": ("uint8", (3, SIDE, SIDE)),
    "raw": ("uint8", None),
    "tokens": ("int64", (2, WINDOW)),
    "table": ("float32", (32,)),
}
"""Dtype and shape of a sample; of raw pictures the shape is that of the source."""


class PeerError(Exception):
    """A peer could not be installed, failed, or was wrong."""


@dataclass(frozen=True)
class Workload:
    """What is loaded; sizes are multiples of the batch for every number of workers up to 4.

    Epochs are long enough for their beginning not to decide: FFCV, for one, needs 12 to 60 ms for it.
    """

    name: str
    title: str
    kind: str
    batch: int
    num_samples: int
    num_checked: int
    side: int | None = None  # of pictures; None: the photos as they are
    unit: str = "images/s"
    per_sample: int = 1


WORKLOADS = {
    w.name: w
    for w in (
        Workload("jpeg", "JPEG as it comes -> RandomResizedCrop(224), flip", "jpeg", 128, 1024, 256),
        Workload("jpeg256", "JPEG, shorter side 256 -> RandomResizedCrop(224), flip", "jpeg", 128, 4096, 256, 256),
        Workload("raw224", "raw 224 x 224 x 3", "raw", 128, 8192, 256, 224),
        Workload("raw28", "raw 28 x 28 x 1", "raw", 1024, 245_760, 4096, 28),
        Workload("tokens", "windows of 1,024 tokens and their targets, int64", "tokens", 32, 81_920, 256,
                 unit="tokens/s", per_sample=WINDOW),
        Workload("table", "rows of 32 float32", "table", 4096, 409_600, 8192, unit="rows/s"),
    )
}  # fmt: skip


# -- data ------------------------------------------------------------------------------------------


def crops(photos: Path, count: int, size: Callable[[int, int], tuple[int, int]]) -> Iterator[Any]:
    """Yield random crops of photos, resized."""
    found = (p for p in sorted(photos.rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    images = [cv2.imread(str(path)) for path in found]
    if not images:
        raise SystemExit(f"{photos}: no .jpg, .jpeg or .png file in it")
    rng = np.random.default_rng(0)
    for _ in range(count):
        photo = images[rng.integers(len(images))]
        height, width = (int(n * rng.uniform(0.7, 1)) for n in photo.shape[:2])
        y, x = (
            rng.integers(n - m + 1) for n, m in zip(photo.shape, (height, width), strict=False)
        )
        crop = photo[y : y + height, x : x + width]
        target = size(height, width)
        yield cv2.resize(crop, target[::-1], interpolation=cv2.INTER_AREA)


def shorter_side(side: int) -> Callable[[int, int], tuple[int, int]]:
    """Return a function from a size to the size with that shorter side."""
    return lambda h, w: (round(h * side / min(h, w)), round(w * side / min(h, w)))


def make_source(work: Workload, photos: Path, folder: Path, count: int, check: bool) -> Path:
    """Write the samples once; return what `Job.source` names."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    if work.kind == "jpeg":
        size = shorter_side(work.side) if work.side else (lambda h, w: (h, w))
        for i, image in enumerate(
            crops(photos, count, (lambda *_: (256, 256)) if check else size)
        ):
            cv2.imwrite(str(folder / f"{i:06}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        return folder
    if work.kind == "raw":
        images = np.empty((count, work.side, work.side, 3 if work.side > 100 else 1), np.uint8)
        for i, image in enumerate(crops(photos, count, lambda *_: (work.side, work.side))):
            images[i] = image if images.shape[-1] == 3 else image[..., :1]
        np.save(folder / "images.npy", images)
        return folder / "images.npy"
    if work.kind == "tokens":
        tokens = rng.integers(0, BASE, count * WINDOW + 1, dtype=np.uint16)
        tokens[:-1:WINDOW], tokens[1::WINDOW] = np.divmod(np.arange(count), BASE)
        tokens.tofile(folder / "tokens.bin")
        return folder / "tokens.bin"
    np.save(folder / "rows.npy", rng.normal(size=(count, 32)).astype(np.float32))
    return folder / "rows.npy"


# -- environments ----------------------------------------------------------------------------------


def requirements(script: Path) -> dict[str, Any]:
    """Read the inline metadata at the top of a peer's script."""
    lines = re.search(r"# /// script\n((?:#.*\n)*?)# ///\n", script.read_text())
    if lines is None:
        raise SystemExit(f"{script}: no '# /// script' block with its dependencies")
    return tomllib.loads(re.sub(r"(?m)^# ?", "", lines[1]))


def pip_install(python: Path, packages: tuple[str, ...], env: dict[str, str]) -> None:
    """Install; raise PeerError with pip's last words."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line or line.startswith("ERROR")] or lines
        raise PeerError(f"does not install: {told[0]}"[:300])


def make_venv(
    folder: Path, packages: tuple[str, ...], env: dict[str, str], base: Path | None
) -> Path:
    """Make or reuse an environment; one with a base also sees the base's packages."""
    python, stamp = folder / "bin/python", folder / "installed.json"
    if stamp.exists() and json.loads(stamp.read_text())["packages"] == list(packages):
        return python
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if base is not None:
        inner = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        (folder / inner / "base.pth").write_text(f"{base / inner}\n")
    began = time.perf_counter()
    print(f"installing {', '.join(packages)}", file=sys.stderr, flush=True)
    held = folder.parent / "constraints.txt"  # else torchvision brings another torch with it
    held.write_text(f"{TORCH}\n")
    pip_install(python, (*packages, "-c", str(held)), env)
    took = round(time.perf_counter() - began, 1)
    stamp.write_text(json.dumps({"packages": packages, "install_s": took}))
    return python


@dataclass(frozen=True)
class Place:
    """An interpreter and the variables it wants."""

    python: Path
    env: dict[str, str]
    packages: tuple[str, ...]


def place_of(name: str, cache: Path, here: bool = False) -> Place:
    """Return where a peer runs; torch and its kin are installed once, for all."""
    script = HERE / "peers" / f"{name}.py"
    if not script.exists():
        raise PeerError(f"there is no {script.relative_to(ROOT)}")
    about = requirements(script)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env |= about.get("tool", {}).get("compare", {}).get("env", {})
    packages = tuple(about["dependencies"])
    if name == "loaders" or (
        here and not packages
    ):  # this very tree, in the environment that runs this
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tools")))
        return Place(Path(sys.executable), env | {"PYTHONPATH": paths}, packages)
    env["PYTHONPATH"] = str(ROOT)
    base = make_venv(cache / "base", BASE_PACKAGES, env, None)
    if not packages:
        return Place(base, env, BASE_PACKAGES)
    prefix = cache / "system/root"
    if about.get("tool", {}).get("compare", {}).get("system") and prefix.exists():
        env |= unpacked(prefix)
    return Place(make_venv(cache / name, packages, env, base.parent.parent), env, packages)


def unpacked(prefix: Path) -> dict[str, str]:
    """Return variables under which libraries are found that were unpacked below a prefix instead of installed."""
    include = prefix / "usr/include"
    libraries = [*prefix.glob("usr/lib/*-linux-gnu"), *prefix.glob("usr/lib/*-linux-gnu/*la*ck")]
    libraries += prefix.glob("usr/lib/*-linux-gnu/blas")
    path = os.pathsep.join(map(str, libraries))
    return {
        "PKG_CONFIG_SYSROOT_DIR": str(prefix),
        "PKG_CONFIG_PATH": os.pathsep.join(f"{each}/pkgconfig" for each in libraries),
        "CPATH": os.pathsep.join((str(include), str(include / "opencv4"))),
        "LIBRARY_PATH": path,
        "LD_LIBRARY_PATH": path,
    }


# -- a peer at work --------------------------------------------------------------------------------


@dataclass
class Running:
    """A peer's process; it is stopped except while it answers."""

    peer: str
    place: Place
    log: Path
    found: dict[str, Any] = field(default_factory=dict)
    repeats: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        module = f"benchmarks.peers.{self.peer.split(':')[0]}"
        self.log_file = self.log.open("w")
        self.process = subprocess.Popen(
            [str(self.place.python), "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log_file,
            text=True,
            env=self.place.env,
            cwd=self.log.parent,
            start_new_session=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request, wait for its answer."""
        self.tell(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps({"do": do} | arguments) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], LIMIT_S[do])[0]:
                raise PeerError(f"{do}: no answer within {LIMIT_S[do]} s, {self.last_words()}")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise PeerError(f"{do}: the process ended, {self.last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{do}: {answer['error']}")
        self.settle()
        self.tell(signal.SIGSTOP)
        return answer

    def cpu_ticks(self) -> int:
        """Return the CPU time of it and its children so far, and of theirs that ended."""
        total = 0
        for pid in family(self.process.pid):
            with contextlib.suppress(OSError):  # it has just ended
                words = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, words[11:15]))
        return total

    def settle(self, limit_s: float = 10.0) -> None:
        """Wait until what was fetched ahead for an epoch that was left is done: nobody else's turn pays for it."""
        ends, before = time.monotonic() + limit_s, -1
        while time.monotonic() < ends:
            now = self.cpu_ticks()
            if now == before:
                return
            before = now
            time.sleep(0.15)

    def last_words(self) -> str:
        """Return the last line that it wrote to stderr."""
        lines = self.log.read_text().strip().splitlines()
        return lines[-1][:300] if lines else "without a word"

    def tell(self, number: int) -> None:
        """Send a signal to the process and its workers."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End it."""
        self.tell(signal.SIGKILL)
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.log_file):
            with contextlib.suppress(BrokenPipeError):  # what was not read is of no use now
                file.close()


def with_memory(running: Running, do: str) -> dict[str, Any]:
    """Ask, and look at the memory of the process and its children meanwhile, five times a second."""
    import threading

    done, peak = threading.Event(), [0, 0]

    def watch() -> None:
        is_over = False
        while not is_over:  # once more behind the end: short epochs
            is_over = done.wait(0.2)
            pids = family(running.process.pid)
            peak[:] = max(peak[0], own_memory(pids)), max(peak[1], memory(pids))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        answer = running.ask(do)
    finally:
        done.set()
        thread.join()
    return answer | {"own_mb": peak[0] / 1e6, "pss_mb": peak[1] / 1e6}


def expected(job: Job) -> np.ndarray:
    """Return the checked set's inputs, in order."""
    if job.kind == "jpeg":
        images = (cv2.imread(file, cv2.IMREAD_COLOR_RGB) for file in job.files)
        small = [
            cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR) for image in images
        ]
        return np.stack(small).transpose(0, 3, 1, 2)
    rows = job.array()
    if job.kind == "raw":
        return rows.transpose(0, 3, 1, 2)
    return (
        np.stack([rows[:, :-1], rows[:, 1:]], 1).astype(np.int64) if job.kind == "tokens" else rows
    )


def check(running: Running, job: Job, out: Path) -> float:
    """Compare every value of the checked set; return the greatest difference."""
    told = running.ask("check", out=str(out))
    with np.load(out) as data:
        inputs, ids = data["inputs"], data["ids"]
    right = expected(job)
    dtype, shape = OUTPUTS[job.kind]
    shape = shape or right.shape[1:]
    if (told["dtype"], tuple(told["shape"])) != (dtype, tuple(shape)):
        raise PeerError(f"check: gives {told['dtype']} {told['shape']}, not {dtype} {list(shape)}")
    if sorted(ids.tolist()) != list(range(job.num_samples)):
        raise PeerError(
            f"check: gives {len(ids)} samples, {len(set(ids.tolist()))} distinct, of {job.num_samples}"
        )
    far = np.abs(inputs.astype(np.float64) - right[ids]).reshape(len(ids), -1).mean(1).max()
    if far > (TOLERANCE if job.kind == "jpeg" else 0):
        raise PeerError(f"check: values are off by {far:.3g} in the mean of a sample")
    return float(far)


@dataclass
class Comparison:
    """Settings, and what was found."""

    work: Workload
    args: argparse.Namespace
    running: list[Running] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def job(self, peer: str, part: str) -> Job:
        """Return the job for a peer, `part` being "data" or "check"; its source is made, once."""
        work, photos = self.work, self.args.photos
        full = max(work.batch, int(work.num_samples * self.args.scale) // work.batch * work.batch)
        count = full if part == "data" else work.num_checked
        key = json.dumps([asdict(work), count, str(photos.resolve()), part])
        home = (
            self.args.cache
            / "data"
            / f"{work.name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        )
        if not (home / "source.json").exists():
            shutil.rmtree(home, ignore_errors=True)
            source = make_source(work, photos, home / "source", count, part == "check")
            (home / "source.json").write_text(json.dumps(str(source)))
        name, _, variant = peer.partition(":")
        script = (HERE / "peers" / f"{name}.py").read_bytes()  # another script, another format
        mark = hashlib.sha256(script + str(self.args.workers).encode()).hexdigest()[:10]
        return Job(
            kind=work.kind,
            source=json.loads((home / "source.json").read_text()),
            folder=str(home / f"{peer.replace(':', '-')}-{mark}"),
            num_samples=count,
            batch=work.batch,
            workers=self.args.workers,
            whole=part == "check",
            variant=variant,
        )

    def prepare(self, running: Running, job: Job) -> dict[str, Any]:
        """Let a peer write its format, unless it has."""
        stamp = Path(job.folder).with_suffix(".json")
        if not stamp.exists():
            shutil.rmtree(job.folder, ignore_errors=True)
            stamp.write_text(json.dumps(running.ask("prepare", job=asdict(job))))
        return json.loads(stamp.read_text())

    def start(self, peer: str) -> None:
        """Install, prepare, check and warm up; leave the peer stopped."""
        logs = self.args.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        running = None
        try:
            place = place_of(peer.split(":")[0], self.args.cache, self.args.here)
            running = Running(peer, place, logs / f"{self.work.name}-{peer.replace(':', '-')}.log")
            small, job = self.job(peer, "check"), self.job(peer, "data")
            self.prepare(running, small)
            found = self.prepare(running, job)
            running.ask("open", job=asdict(small))
            off = check(running, small, logs / f"{running.process.pid}.npz")
            running.close()
            # A new process: what preparing took is not serving's memory.
            running = Running(peer, place, running.log)
            found |= {"off_by": off, "packages": place.packages, "num_samples": job.num_samples}
            found |= running.ask("open", job=asdict(job)) | with_memory(running, "cover")
            running.found = found
            self.running.append(running)
            print(
                f"{peer}: ready, {found['distinct']:,} of {job.num_samples:,} samples",
                file=sys.stderr,
            )
        except PeerError as error:
            self.failed[peer] = str(error)
            print(f"{peer}: {error}", file=sys.stderr)
            if running is not None:
                running.close()
        except BaseException:  # Ctrl-C, say: it is not in the list yet that is closed at the end
            if running is not None:
                running.close()
            raise
        finally:
            for file in logs.glob("*.npz"):
                file.unlink()

    def measure(self) -> None:
        """Take turns, forwards and backwards, so that a drift hits all alike; the first round warms up."""
        for repeat in range(self.args.repeats + 1):
            for running in list(self.running)[:: -1 if repeat % 2 else 1]:
                try:
                    answer = running.ask("run", seconds=self.args.seconds if repeat else 1.0)
                    running.repeats += [answer] if repeat else []
                except PeerError as error:
                    self.failed[running.peer] = str(error)
                    self.running.remove(running)
                    running.close()

    def rates(self, running: Running) -> list[float]:
        """Return units per second of each repeat."""
        return [r["samples"] * self.work.per_sample / r["seconds"] for r in running.repeats]


# -- reporting -------------------------------------------------------------------------------------


def ranked(comparison: Comparison) -> list[tuple[Running, list[float], float]]:
    """Return peers, their rates and medians, the fastest first."""
    rows = [
        (r, rates, statistics.median(rates))
        for r in comparison.running
        if (rates := comparison.rates(r))
    ]
    return sorted(rows, key=lambda row: -row[2])


def table(comparison: Comparison, where: dict[str, Any]) -> str:
    """Return the Markdown report."""
    work, rows = comparison.work, ranked(comparison)
    ours = next((rates for r, rates, _ in rows if r.peer == OURS), None)
    lines = [
        f"### {work.title}; batch {work.batch:,}, {where['workers']} workers",
        "",
        f"Medians of {where['repeats']} turns of {where['seconds']:g} s; {where['cpu']}, {where['cores']} cores, page"
        " cache warm. `loaders` x: how often as fast `loaders` is; **bold**: it loses; ≈: the ranges overlap, a tie.",
        "",
        f"| | {work.unit} | range | `loaders` x | first batch, s | own memory, MB | PSS, MB"
        " | prepare, s | stored, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for running, rates, middle in rows:
        found = running.found
        is_compared = ours is not None and running.peer != OURS
        ratio = cell(statistics.median(ours) / middle, overlap(rates, ours)) if is_compared else ""
        cells = [
            running.peer
            + ("" if found["distinct"] == found["num_samples"] == found["seen"] else " (1)"),
            number(middle),
            f"{number(min(rates))} to {number(max(rates))}",
            ratio,
            f"{found['first_batch_s']:.2f}",
            f"{found['own_mb']:,.0f}",
            f"{found['pss_mb']:,.0f}",
            f"{found['prepare_s']:.1f}",
            f"{found['stored_mb']:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for running, _, _ in rows:
        found = running.found
        if not found["distinct"] == found["num_samples"] == found["seen"]:
            told = f"{found['seen']:,} samples, {found['distinct']:,} distinct, of {found['num_samples']:,}"
            lines += ["", f"(1) {running.peer}: an epoch gave {told}."]
    torches = {running.found["torch"] for running, _, _ in rows}
    if len(torches) > 1:
        told = ", ".join(f"{running.peer} {running.found['torch']}" for running, _, _ in rows)
        lines += ["", f"Not all run the same torch: {told}."]
    lines += ["", *(f"- {peer}: {why}" for peer, why in comparison.failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def as_dict(comparison: Comparison, where: dict[str, Any]) -> dict[str, Any]:
    """Return what was found, with every repeat."""
    rows, work = ranked(comparison), comparison.work
    peers = {}
    for running, rates, _ in rows:
        found = {k: v for k, v in running.found.items() if k != "num_samples"}
        peers[running.peer] = found | {"repeats": running.repeats, "rates": rates}
    about = {"conditions": where, "workload": asdict(work), "unit": work.unit}
    count = max((running.found["num_samples"] for running, _, _ in rows), default=0)
    return about | {"num_samples": count, "peers": peers, "failed": comparison.failed}


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """Say where and how this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "cpu": names[0] if names else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "commit": done.stdout.strip(),
        "page_cache": "warm",
        "workers": args.workers,
        "repeats": args.repeats,
        "seconds": args.seconds,
        "scale": args.scale,
        "load_before": os.getloadavg()[0],
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "loaders-compare"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument(
        "--photos",
        type=Path,
        default=ROOT / "tests/data/photos",
        help="folder of photos to cut up",
    )
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="beside loaders, with commas; default: %(default)s",
    )
    parser.add_argument(
        "--cache", type=Path, default=home, help="for environments and data; default: %(default)s"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the samples, for a quick try"
    )
    parser.add_argument(
        "--here", action="store_true", help="run torch's loader in this environment too"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for RESULTS.md and results/"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Compare; return 1 if a peer that was asked for has no figure."""
    args = parse(argv)
    args.cache = args.cache.resolve()
    comparison = Comparison(WORKLOADS[args.workload], args)
    where = conditions(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or stopped peers would stay behind
    try:
        for peer in dict.fromkeys(["loaders", *filter(None, args.peers.split(","))]):
            if comparison.work.kind == "jpeg" or not peer.endswith(":pil"):
                comparison.start(peer)
        comparison.measure()
        told = table(comparison, where)
        name = args.out / "results" / f"compare-{args.workload}"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.with_suffix(".json").write_text(
            json.dumps(as_dict(comparison, where), indent=1) + "\n"
        )
        name.with_suffix(".md").write_text(told)
        publish(args.out)
        print(told)
    finally:
        for running in comparison.running:
            running.close()
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
