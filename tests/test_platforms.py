"""Without what only Linux has: importing, packing, threads and memory work, and the rest says so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Libraries are loaded before: they decide by themselves what they are built for.
_WITHOUT = """
import importlib.abc, mmap, os, select, signal, socket, sys
import cv2, lmdb, numpy, pyarrow.parquet, torch, torch.utils.data, xxhash, PIL.Image, simplejpeg, zstandard, tqdm
import concurrent.futures, logging, multiprocessing, subprocess, sysconfig, tempfile, shutil, types

sysconfig.get_config_vars()

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource"):
    sys.modules.pop(name, None)
LACKS = {
    os: ["O_CLOEXEC", "O_DIRECT", "O_NONBLOCK", "fork", "geteuid", "getuid", "memfd_create", "pidfd_open", "pread",
         "posix_fadvise", "preadv", "pwrite", "register_at_fork", "sched_getaffinity", "statvfs"],
    signal: ["SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "setitimer"],
    socket: ["AF_UNIX", "CMSG_SPACE", "MSG_CMSG_CLOEXEC", "MSG_DONTWAIT", "recv_fds", "send_fds"],
    select: ["epoll", "poll"],
    mmap: ["MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED", "MADV_DONTFORK", "MADV_WILLNEED", "PROT_READ", "PROT_WRITE"],
}
for module, names in LACKS.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
shutil._use_fd_functions, shutil._rmtree_impl = False, shutil._rmtree_unsafe  # as there
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda fd, mode, nbytes: None)
"""

_WORKS = """
import numpy as np, packdata
from loaders import DataLoader, RAMDataset, ShardDataset, LoadersError
import loaders.bench.cli
from pathlib import Path

folder = Path(sys.argv[1])
for name in ("cat", "dog"):
    (folder / "photos" / name).mkdir(parents=True)
    for i in range(4):
        PIL.Image.new("RGB", (20, 10), (i, 0, 0)).save(folder / "photos" / name / f"{i}.png")
from packdata.cli import main
assert main(["images", str(folder / "photos"), str(folder / "packed"), "--workers", "2"]) == 0
dataset = ShardDataset(folder / "packed")
memory = RAMDataset(dataset, progress=False)
arrays = RAMDataset.from_arrays(x=np.zeros((8, 40_000), np.uint8), n=np.arange(8))
for served, settings in [(dataset, {}), (memory, {"batch_size": 2}), (arrays, {"num_workers": 2})]:
    for _ in range(2):
        assert sum(1 for _ in DataLoader(served, shuffle=True, **settings)) == 8 // settings.get("batch_size", 1)

def refused(make):
    try:
        make()
    except (LoadersError, ValueError) as error:
        return "Linux" in str(error)
    return False

print(refused(lambda: RAMDataset(dataset, shared=True)),
      refused(lambda: list(DataLoader(dataset, num_workers=1, backend="subprocess"))))
"""


def test_without_what_only_linux_has_importing_packing_threads_and_memory_work(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT + _WORKS, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.stderr.count("Traceback") == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True", done.stderr
