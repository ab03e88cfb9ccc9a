import os
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
import torch

from loaders.bench import doctor
from loaders.bench.doctor import Finding, Surroundings, examine
from loaders.text import describe_size
from tests.pages import drop_pages, resident_share


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def place(tmp_path: Path) -> Surroundings:
    """An empty machine: no file of the kernel exists."""
    for name in ("data", "proc", "sys"):
        (tmp_path / name).mkdir()
    return Surroundings(tmp_path / "data", tmp_path / "proc", tmp_path / "sys", tmp_path)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_a_quota_below_the_cores_costs(place: Surroundings, eight_cores: None) -> None:
    write(place.sys, {"fs/cgroup/cpu.max": "250000 100000\n"})

    finding = doctor.cores(place)

    assert finding.level == "cost"
    assert "quota of 2.5" in finding.found
    assert "num_workers=3" in finding.remedy


@pytest.mark.parametrize(("counted", "level"), [(64, "cost"), (8, "ok")])
def test_cores_that_are_counted_and_may_not_be_used_cost(
    place: Surroundings,
    monkeypatch: pytest.MonkeyPatch,
    eight_cores: None,
    counted: int,
    level: str,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: counted)

    finding = doctor.cores(place)

    assert finding.level == level
    assert f"8 of {counted}" in finding.found
    assert ("OMP_NUM_THREADS=8" in finding.remedy) is (level == "cost")


@pytest.mark.parametrize(
    ("meminfo", "level"),
    [
        ("MemTotal: 1000 kB\nMemAvailable: 600 kB\n", "ok"),
        ("MemTotal: 1000 kB\nMemAvailable: 20 kB\n", "risk"),
        ("", "unknown"),
    ],
)
def test_memory(place: Surroundings, meminfo: str, level: str) -> None:
    write(place.proc, {"meminfo": meminfo})

    assert doctor.memory(place).level == level


@pytest.mark.parametrize(
    ("used", "files", "level", "left"),
    [
        (10, 0, "ok", 490),
        (440, 0, "ok", 60),
        (480, 0, "risk", 20),
        (480, 200, "ok", 220),
        (499, 2, "risk", 3),
    ],
)
def test_a_container_at_its_limit_is_a_risk_whatever_the_machine_has(
    place: Surroundings, used: int, files: int, level: str, left: int
) -> None:
    """In MB; what it keeps of files can be had back."""
    write(place.proc, {"meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n"})
    group = {"max": "500000000", "current": f"{used}000000", "stat": f"active_file {files}000000"}
    write(place.sys, {f"fs/cgroup/memory.{name}": text for name, text in group.items()})

    finding = doctor.memory(place)

    assert finding.level == level
    assert finding.found.startswith(f"{describe_size(left * 1e6)} of 476.8 MiB available")


@pytest.mark.parametrize(("free", "level"), [(1000 << 20, "risk"), (1100 << 20, "ok")])
def test_little_room_in_shared_memory_is_a_risk(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    """What is free counts, of blocks whose size is not that of a read."""
    stat = os.statvfs_result((1 << 20, 4096, 1 << 20, 1 << 20, free >> 12, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: stat)

    finding = doctor.shared_memory(place)

    assert finding.level == level
    assert finding.found.startswith(f"4.0 GiB at {place.shm}, ")
    assert ("--shm-size" in finding.remedy) is (level == "risk")


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:30 / {data} rw,relatime shared:1 - {kind} server:/x rw
24 22 0:31 / /with\\040space rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *((kind, "cost") for kind in ("nfs4", "fuse.s3fs", "cifs", "smb3", "lustre", "gpfs", "beegfs")),
        *((kind, "cost") for kind in ("ceph", "9p", "glusterfs", "virtiofs", "overlay")),
        ("xfs", "ok"), ("tmpfs", "ok"),
    ],
)  # fmt: skip
def test_the_file_system_under_the_data(place: Surroundings, kind: str, level: str) -> None:
    write(place.proc, {"self/mountinfo": MOUNTS.format(data=place.path, kind=kind)})

    finding = doctor.file_system(place)

    assert finding.level == level
    assert kind in finding.found
    assert bool(finding.cost and finding.remedy) is (level == "cost")


def test_a_folder_on_no_mount_is_not_known(place: Surroundings) -> None:
    finding = doctor.file_system(replace(place, path=Path("a\n\x1b[31mb")))

    assert finding.level == "unknown"
    assert finding.found.isprintable()


def test_random_reads_that_take_as_long_as_on_a_disk_that_turns_cost(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a virtual disk says of itself."""
    monkeypatch.setattr(doctor, "direct_reads", lambda path: (150e6, 0.01))

    finding = doctor.read_rate(place)

    assert (finding.level, "at most 100 samples" in finding.cost) == ("cost", True)
    assert "shuffle='block'" in finding.remedy


@pytest.mark.parametrize(
    ("rate", "level", "said"),
    [
        (50e6, "cost", "at most 2,500 JPEGs of 20 kB a second"),
        (250e6, "ok", "238.4 MiB/s, 100 us for 4 KiB"),
        (None, "unknown", "no file of 1 MiB under {path} can be read"),
    ],
)
def test_slow_reads_cost(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch, rate: float | None, level: str, said: str
) -> None:
    rates = {place.path: None if rate is None else (rate, 1e-4)}
    monkeypatch.setattr(doctor, "direct_reads", rates.__getitem__)

    finding = doctor.read_rate(place)

    assert finding.level == level
    assert said.format(path=place.path) in str(finding)
    assert bool(finding.remedy) is (level != "ok")


@pytest.mark.parametrize(
    ("speed", "level", "said"),
    [(1.0, "cost", "1x with SIMD"), (0.5, "ok", "2x with SIMD")],
)
def test_a_jpeg_decoder_without_simd_costs(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch, speed: float, level: str, said: str
) -> None:
    """It is as quick where SIMD is switched off."""
    monkeypatch.setattr(doctor, "decodes_per_s", lambda **environ: speed if environ else 1.0)

    finding = doctor.simd(place)

    assert finding.level == level
    assert said in finding.found
    assert ("reinstall" in finding.remedy) is (level == "cost")


@pytest.mark.parametrize(
    ("maps", "name"),
    [
        ("/usr/lib/libjemalloc.so.2", "libjemalloc"),
        ("libtcmalloc_minimal.so.4", "libtcmalloc"),
        ("/opt/libmimalloc.so.2", "libmimalloc"),
        ("/lib/ld-musl-x86_64.so.1", "ld-musl"),
        ("", "glibc"),
    ],
)
def test_allocators_by_name(place: Surroundings, maps: str, name: str) -> None:
    write(place.proc, {"self/maps": maps})

    assert doctor.allocator(place).found == name


def test_a_check_that_fails_costs_its_own_line_only(place: Surroundings) -> None:
    def fails(place: Surroundings) -> Finding:
        raise OSError("stale file handle")

    assert examine(fails, place) == Finding("fails", "unknown", "OSError: stale file handle")


def test_a_finding_says_what_it_costs_and_what_to_do() -> None:
    assert str(Finding("x", "cost", "found", "slow", "go")).splitlines() == [
        "cost    x: found", "        cost: slow", "        do: go",
    ]  # fmt: skip


def test_reads_past_the_page_cache_leave_files_where_they_were(tmp_path: Path) -> None:
    assert doctor.direct_reads(tmp_path) is None  # there is nothing to read
    files = [tmp_path / f"{i}" for i in range(3)]
    for file in files:
        file.write_bytes(bytes(9 << 20))
    drop_pages(files)
    if resident_share(files) != 0 or not hasattr(os, "O_DIRECT"):
        pytest.skip("files do not leave the page cache here")

    found = doctor.direct_reads(tmp_path)

    assert resident_share(files) == 0
    assert found is None or found[0] > 1e5  # a file system in memory has no such reads
    assert found is None or 1e-7 < found[1] < 10


def test_small_files_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(bytes(9000))

    assert doctor.direct_reads(tmp_path) is None


def test_every_check_gives_a_finding_on_an_empty_machine(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No /sys, no /proc: nothing fails, and what is measured is measured all the same."""
    monkeypatch.setattr(doctor, "decodes_per_s", lambda **environ: 1.0)
    before = torch.get_num_threads()

    findings = [examine(check, place) for check in doctor.CHECKS]
    found = {finding.name: finding.found for finding in findings}

    assert list(found) == [
        "cores", "memory", "shared memory", "file system", "read rate", "SIMD", "allocator",
    ]  # fmt: skip
    assert not [said for said in found.values() if "Error" in said]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_the_decoder_is_timed(place: Surroundings) -> None:
    assert doctor.simd(place).level == "ok"


@pytest.mark.parametrize(
    ("line", "said"),
    [("SSE SSE2 SSE3 *SSE4.1 *AVX2 *AVX512-SKX?", "AVX2"), ("NEON FP16", "FP16"), ("", "none")],
)
def test_of_opencv_the_widest_instructions_that_it_finds_are_told(
    place: Surroundings, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    """It marks those that were compiled in and are not there."""
    monkeypatch.setattr(cv2, "getCPUFeaturesLine", lambda: line)
    monkeypatch.setattr(doctor, "decodes_per_s", lambda **environ: 1.0)

    assert doctor.simd(place).found.startswith(f"OpenCV: {said}; ")
