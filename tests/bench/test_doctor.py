from __future__ import annotations

import threading
from pathlib import Path

import pytest

from loaders.bench import doctor, machine, probes
from loaders.bench.doctor import Finding, Place, examine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty machine: no file of the kernel exists."""
    for name in ("data", "proc", "sys"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "data", tmp_path / "proc", tmp_path / "sys", tmp_path, {})


def test_a_quota_below_the_cores_costs(place: Place) -> None:
    write(place.proc, {"self/status": "Name:\tx\nCpus_allowed_list:\t0-3,8-11\n"})
    write(place.sys, {"fs/cgroup/cpu.max": "250000 100000\n"})

    finding = doctor.cores(place)

    assert finding.level == "cost"
    assert "2.5 of" in finding.found
    assert "num_workers=3" in finding.remedy


@pytest.mark.parametrize(
    ("meminfo", "level"),
    [
        ("MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n", "ok"),
        ("MemTotal: 1000 kB\nMemAvailable: 20 kB\n", "risk"),
        ("MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 900 kB\nSwapFree: 100 kB\n", "cost"),
        ("", "unknown"),
    ],
)
def test_memory(place: Place, meminfo: str, level: str) -> None:
    write(place.proc, {"meminfo": meminfo})

    assert doctor.memory(place).level == level


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:30 / {data} rw,relatime shared:1 - {kind} server:/x rw
24 22 0:31 / /with\\040space rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("kind", "level"),
    [("nfs4", "cost"), ("fuse.s3fs", "cost"), ("overlay", "cost"), ("xfs", "ok"), ("tmpfs", "ok")],
)
def test_the_file_system_under_the_data(place: Place, kind: str, level: str) -> None:
    write(place.proc, {"self/mountinfo": MOUNTS.format(data=place.path, kind=kind)})

    finding = doctor.file_system(place)

    assert finding.level == level
    assert kind in finding.found


def test_turning_disks_cost_also_where_a_partition_is_mounted(place: Place) -> None:
    write(place.proc, {"self/mountinfo": MOUNTS.format(data="/elsewhere", kind="nfs")})
    disk = write(place.sys / "devices/sda", {"queue/rotational": "1\n"})
    (disk / "sda1").mkdir()
    (place.sys / "dev/block").mkdir(parents=True)
    (place.sys / "dev/block/8:1").symlink_to(disk / "sda1")

    finding = doctor.file_system(place)

    assert finding.level == "cost"
    assert "rotational" in finding.found


def test_names_of_mounts_may_have_spaces(place: Place) -> None:
    write(place.proc, {"self/mountinfo": MOUNTS.format(data="/d", kind="nfs")})

    mount = machine.mount_of(Path("/with space/x"), place.proc)

    assert mount is not None
    assert mount.kind == "tmpfs"


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         65536                unlimited            bytes
Max open files            1024                 unlimited            files
"""


def test_limits_of_the_process(place: Place) -> None:
    write(place.proc, {"self/limits": LIMITS})

    files, locked = doctor.open_files(place), doctor.locked_memory(place)

    assert (files.level, files.found) == ("risk", "1,024 (at most unlimited)")
    assert "65.5 kB" in locked.found


def test_governors_that_save_power_cost(place: Place) -> None:
    assert doctor.frequency_governor(place).level == "ok"
    write(place.sys, {"devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"})
    assert doctor.frequency_governor(place).level == "cost"
    write(place.sys, {"devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n"})
    assert doctor.frequency_governor(place).level == "ok"


def test_a_narrow_link_of_a_gpu_costs(place: Place) -> None:
    link = {"class": "0x030200", "current_link_width": "4", "max_link_width": "16"}
    other = {"class": "0x010802", "current_link_width": "1", "max_link_width": "4"}
    write(place.sys / "bus/pci/devices/0000:01:00.0", link)
    write(place.sys / "bus/pci/devices/0000:02:00.0", other)

    finding = doctor.gpu_link(place)

    assert (finding.level, finding.found) == ("cost", "x4 of x16")


@pytest.mark.parametrize(
    ("maps", "name"),
    [
        ("/usr/lib/libjemalloc.so.2", "jemalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("", "glibc"),
    ],
)
def test_allocators_by_name(place: Place, maps: str, name: str) -> None:
    assert machine.allocator(write(place.proc, {"self/maps": maps})) == name


def test_allocators_that_could_be_preloaded(tmp_path: Path) -> None:
    assert machine.other_allocator(tmp_path) is None
    write(tmp_path, {"lib64/libjemalloc.so.2": ""})
    assert machine.other_allocator(tmp_path) == tmp_path / "lib64/libjemalloc.so.2"


def test_cpu_flags(place: Place) -> None:
    write(place.proc, {"cpuinfo": "processor\t: 0\nflags\t\t: sse4_2 avx2\n"})

    assert machine.cpu_flags(place.proc) == {"sse4_2", "avx2"}


def test_a_check_that_hangs_or_fails_costs_its_own_line_only(place: Place) -> None:
    released = threading.Event()

    def hangs(place: Place) -> Finding:
        released.wait(30)
        return Finding("never", "ok", "")

    def fails(place: Place) -> Finding:
        raise OSError("stale file handle")

    def works(place: Place) -> Finding:
        return Finding("works", "ok", "fine")

    found = examine(place=place, checks=(hangs, fails, works), timeout_s=0.1)
    released.set()

    assert [(f.name, f.level) for f in found] == [
        ("hangs", "unknown"),
        ("fails", "unknown"),
        ("works", "ok"),
    ]
    assert "stale file handle" in found[1].found


def test_a_finding_says_what_it_costs_and_what_to_do() -> None:
    assert str(Finding("x", "cost", "found", "slow", "go")).splitlines() == [
        "cost    x: found", "        cost: slow", "        do: go",
    ]  # fmt: skip


def test_reads_past_the_page_cache(tmp_path: Path) -> None:
    assert probes.direct_read_bytes_per_s(tmp_path) is None
    (tmp_path / "large").write_bytes(bytes(3 << 20))

    rate = probes.direct_read_bytes_per_s(tmp_path)

    assert rate is None or rate > 1e5  # a file system in memory has no such reads


def test_every_check_gives_a_finding_on_an_empty_machine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU, no /sys, no /proc: nothing fails."""
    monkeypatch.setattr(probes, "jpeg_simd_gain", lambda timeout_s: None)

    found = examine(place=place)

    assert len(found) == len(doctor.CHECKS)
    assert not [f for f in found if "Error" in f.found]


@pytest.mark.slow
def test_probes_in_processes_of_their_own() -> None:
    gain = probes.jpeg_simd_gain(20)

    assert gain is not None
    assert gain > 0.5
    assert (
        probes.allocator_gain(Path("/nonexistent.so"), 20) is not None
    )  # ld.so warns and goes on


@pytest.mark.parametrize(
    ("opencv", "torch_threads", "omp", "level"),
    [
        (1, 1, "1", "ok"), (4, 1, "1", "cost"), (1, 4, "1", "cost"), (1, 1, "4", "cost"), (1, 1, "", "cost"),
    ],
)  # fmt: skip
def test_threads_of_every_library_are_counted_times_workers(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    opencv: int,
    torch_threads: int,
    omp: str,
    level: str,
) -> None:
    write(place.proc, {"self/status": "Cpus_allowed_list:\t0-3\n"})
    monkeypatch.setattr(probes, "pool_sizes", lambda: (opencv, torch_threads))
    environ = {"OMP_NUM_THREADS": omp} if omp else {}

    finding = doctor.thread_pools(Place(place.path, place.proc, place.sys, place.shm, environ))

    assert finding.level == level
    assert (
        f"OpenCV {opencv} ({4 * opencv}), torch {torch_threads} ({4 * torch_threads})"
        in finding.found
    )
    assert f"OpenMP {omp or 4} ({4 * int(omp or 4)})" in finding.found
