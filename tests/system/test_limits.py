import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.system import limits

ROOT = Path(__file__).parents[2]
CPU, MEMORY = "sys/fs/cgroup/cpu", "sys/fs/cgroup/memory"


@pytest.fixture
def kernel(tmp_path: Path) -> tuple[Path, Path]:
    """The roots of a kernel's files: none exists yet."""
    return tmp_path / "proc", tmp_path / "sys"


def write(kernel: tuple[Path, Path], files: dict[str, str]) -> None:
    root = kernel[0].parent
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({f"{CPU}/cpu.cfs_quota_us": "-1", f"{CPU}/cpu.cfs_period_us": "100000"}, None),
        ({f"{CPU}/cpu.cfs_quota_us": "400000", f"{CPU}/cpu.cfs_period_us": "100000"}, 4),
        ({f"{CPU}/cpu.cfs_quota_us": "400000", f"{CPU}/cpu.cfs_period_us": "0"}, None),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_quotas_of_both_versions_of_control_groups(
    kernel: tuple[Path, Path], files: dict[str, str], quota: float | None
) -> None:
    write(kernel, files)

    assert limits.cpu_quota(*kernel) == quota


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/jobs/7", "sys/fs/cgroup", ("cpu.max", "{} 100000")),
        ("4:cpu,cpuacct:/jobs/7", CPU, ("cpu.cfs_quota_us", "{}")),
        ("11:cpu:/jobs/7", CPU, ("cpu.cfs_quota_us", "{}")),
    ],
)
@pytest.mark.parametrize("at", ["jobs/7", "jobs"])
def test_a_group_is_limited_by_those_above_it(
    kernel: tuple[Path, Path], line: str, folder: str, files: tuple[str, str], at: str
) -> None:
    name, text = files
    write(kernel, {"proc/self/cgroup": f"9:freezer:/elsewhere\n{line}"})
    for depth, quota in (("jobs/7", 800_000), ("jobs", 900_000), (".", 1_000_000)):
        tight = {True: 200_000, False: quota}[depth == at]
        write(kernel, {f"{folder}/{depth}/{name}": text.format(tight)})
        write(kernel, {f"{folder}/{depth}/cpu.cfs_period_us": "100000"})
    write(kernel, {f"{folder}/elsewhere/{name}": text.format(100_000)})

    assert limits.cpu_quota(*kernel) == 2


@pytest.mark.parametrize("listed", ["cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize("at", [".", "jobs/7"])
def test_controllers_that_are_mounted_together_need_no_link_of_one_name(
    kernel: tuple[Path, Path], listed: str, at: str
) -> None:
    """The order in which the kernel lists them may be another than that of the folder's name."""
    group = f"sys/fs/cgroup/cpu,cpuacct/{at}"
    write(kernel, {"proc/self/cgroup": f"4:{listed}:/jobs/7"})
    write(kernel, {f"{group}/cpu.cfs_quota_us": "150000", f"{group}/cpu.cfs_period_us": "100000"})

    assert limits.cpu_quota(*kernel) == 1.5


def test_a_path_of_the_host_that_a_container_does_not_have_says_nothing(
    kernel: tuple[Path, Path],
) -> None:
    write(kernel, {"proc/self/cgroup": "0::/../../kubepods/pod1"})
    write(kernel, {"sys/fs/cgroup/cpu.max": "300000 100000"})

    assert limits.cpu_quota(*kernel) == 3


@pytest.mark.parametrize(("quota", "cores"), [(0.1, 1), (1.0, 1), (1.5, 2), (1e6, None)])
def test_cores_are_as_many_as_the_quota_keeps_busy(
    kernel: tuple[Path, Path], quota: float, cores: int | None
) -> None:
    write(kernel, {"sys/fs/cgroup/cpu.max": f"{int(quota * 100_000)} 100000"})
    allowed = len(os.sched_getaffinity(0))

    assert limits.usable_cores(*kernel) == min(allowed, cores or allowed)


def test_memory_limits_of_both_versions(kernel: tuple[Path, Path]) -> None:
    write(kernel, {"proc/meminfo": "MemTotal: 4 kB\nMemAvailable: 3 kB"})
    assert limits.memory_limit(*kernel) is None
    assert limits.memory_bytes(*kernel) == 4096

    write(kernel, {f"{MEMORY}/memory.limit_in_bytes": "9223372036854771712"})
    assert limits.memory_limit(*kernel) is None
    write(kernel, {f"{MEMORY}/memory.limit_in_bytes": "1000"})
    assert limits.memory_limit(*kernel) == 1000
    write(kernel, {"sys/fs/cgroup/memory.max": "2000"})
    assert limits.memory_limit(*kernel) == 1000
    write(kernel, {"sys/fs/cgroup/memory.max": "900"})
    assert limits.memory_limit(*kernel) == 900
    assert limits.memory_bytes(*kernel) == 900


@pytest.mark.parametrize(
    ("folder", "limit", "used", "prefix"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", ""),
        (MEMORY, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ],
)
def test_what_a_container_keeps_of_files_is_available(
    kernel: tuple[Path, Path], folder: str, limit: str, used: str, prefix: str
) -> None:
    """It counts the page cache as used, and lets it go when memory is wanted."""
    stat = f"cache 9\n{prefix}inactive_file 3000\n{prefix}active_file 400\n{prefix}shmem 50"
    stat += "\ninactive_file 1\nactive_file 1" if prefix else ""
    write(kernel, {"proc/meminfo": "MemTotal: 90 kB\nMemAvailable: 80 kB"})
    assert limits.available_memory(*kernel) == 80 << 10

    write(kernel, {f"{folder}/{limit}": "10000", f"{folder}/{used}": "9500"})
    assert limits.available_memory(*kernel) == 500
    write(kernel, {f"{folder}/memory.stat": stat})
    assert limits.available_memory(*kernel) == 3900
    write(kernel, {f"{folder}/{used}": "99999"})
    assert limits.available_memory(*kernel) == 0


def test_where_the_kernel_says_nothing_the_c_library_does(kernel: tuple[Path, Path]) -> None:
    assert limits.memory_bytes(*kernel) == limits.available_memory(*kernel) > 1 << 20


def test_the_machine_itself() -> None:
    assert 1 <= limits.usable_cores() <= len(os.sched_getaffinity(0))
    assert 0 < limits.available_memory() <= limits.memory_bytes() <= limits.meminfo()["MemTotal"]


def test_ranks_share_cores_unless_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 16)

    found = [limits.cores_of_rank({"LOCAL_WORLD_SIZE": n}) for n in ("1", "8", "3", "99", "x", "")]
    monkeypatch.setattr(limits, "has_own_cores", lambda: True)

    assert found == [16, 2, 5, 1, 16, 16]
    assert limits.cores_of_rank({"LOCAL_WORLD_SIZE": "8"}) == 16
    assert limits.cores_of_rank({}) == 16


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_that_is_bound_to_some_cores_has_its_own() -> None:
    code = "from loaders.system.limits import has_own_cores; print(has_own_cores())"
    bind = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    found = [
        subprocess.run(
            [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60
        ).stdout
        for text in (code, bind + code)
    ]

    assert found == ["False\n", "True\n"]


def test_a_real_quota_bounds_auto() -> None:
    """In a control group of its own, where this process may make one."""
    group = Path(f"/sys/fs/cgroup/cpu/loaders-test-{os.getpid()}")
    file, quota = group / "cpu.cfs_quota_us", "100000"
    if not group.parent.is_dir():
        group = Path(f"/sys/fs/cgroup/loaders-test-{os.getpid()}")
        file, quota = group / "cpu.max", "100000 100000"
    code = "from loaders.system.limits import usable_cores; print(usable_cores())"
    join = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups cannot be made here")
    try:
        if not file.exists():
            pytest.skip("control groups here do not limit the cpu")
        file.write_text(quota)
        done = subprocess.run(
            [sys.executable, "-c", f"{join}; {code}"],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        group.rmdir()

    assert done.stdout == "1\n", done.stderr
