"""What could help is tried for real; what it gains is the machine's business, what is tried is ours."""

import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

from loaders import RAMDataset
from loaders.bench import changes
from loaders.bench.changes import from_sweep, tried
from loaders.bench.measure import Config
from loaders.bench.sweep import Sweep, dropped, time_target
from loaders.bench.targets import MeasuredDataset, load
from loaders.datasets.shard import ShardDataset
from loaders.schema import Image
from loaders.system.limits import usable_cores
from tests.bench.constructed import a_result, a_sweep
from tests.packdata.packing import pack

PHOTOS = Path(__file__).parents[1] / "data/photos"


@pytest.mark.parametrize(
    ("usual", "told"),
    [
        (Config(0, 64, "thread"), ["num_workers=2 instead of num_workers=0: 3x (2.99 to 3)"]),
        (
            Config(0, 64, "process"),
            ["num_workers=2, backend='thread' instead of num_workers=0: 3x (2.99 to 3)"],
        ),
        (Config(2, 64, "thread"), []),  # that is what was chosen
        (Config(1, 32, "thread"), []),  # that was not measured
    ],
)
def test_the_sweep_shows_what_the_chosen_settings_gain(usual: Config, told: list[str]) -> None:
    assert [str(change) for change in from_sweep(a_sweep(), usual)] == told


def test_every_setting_that_differs_is_named() -> None:
    old, new = Config(0, 8, "thread"), Config(1, 16, "thread", 4)

    changes = from_sweep(Sweep("d", [a_result(old), a_result(new)]), old)

    assert [change.what for change in changes] == [
        "num_workers=1, batch_size=16, prefetch_factor=4 instead of num_workers=0"
    ]


def test_ranges_that_overlap_are_not_worth_a_change() -> None:
    """It may be chance."""
    sweep = a_sweep()
    sweep.results[0].runs[0].samples_per_s = 3000.0

    (change,) = from_sweep(sweep, Config(0, 64, "thread"))

    assert change.between == (1.0, 3002 / 1001)
    assert not change.is_worth_it


def test_more_workers_than_cores_are_not_tried_on_what_computes() -> None:
    """On a busy machine they would look quicker: they take the cores of other work."""
    target = load("tests.bench.constructed:Hashes")

    assert tried(target, Config(2, 4, "process"), seconds=0.1, waits=False) == []


@pytest.mark.slow
def test_more_workers_and_processes_are_tried_on_what_may_wait() -> None:
    """Samples that sleep 4 ms each on one thread, and on at least eight: the gain is how many times as fast."""
    found = tried(load("tests.bench.constructed:Sleeps"), Config(1, 4, "thread"), seconds=0.5)

    more = max(8, 4 * usable_cores())
    assert [change.what for change in found] == [
        f"num_workers={more}",
        "backend='process', num_workers=1",
    ]
    assert found[0].gain > 1.5


def test_pixels_in_memory_and_packing_at_the_size_of_the_crops_are_tried(tmp_path: Path) -> None:
    records = [{"image": file.read_bytes()} for file in sorted(PHOTOS.glob("*/*.jpg"))[:4]]
    pack(tmp_path / "d", {"image": Image(codec="jpeg")}, records, defaults=["image"])
    said: list[str] = []

    found = tried(
        load(str(tmp_path / "d"), size=64), Config(0, 4, "thread"), seconds=0.1, told=said.append
    )

    assert [change.what for change in found] == [
        "RAMDataset(..., decode=True) (pixels in memory)",
        "pack at 73 px (packdata images SOURCE packed --size 73)",
    ]
    assert said == ["decoding a sample into memory", "packing 4 images at 73 px to try it"]


def cut_photos(folder: Path) -> Path:
    """Four photos, one of which has lost its end: OpenCV shows what there is of it."""
    for i, file in enumerate(sorted(PHOTOS.glob("*/*.jpg"))[:4]):
        shutil.copy(file, folder / f"{i}.jpg")
    (folder / "2.jpg").write_bytes((folder / "2.jpg").read_bytes()[:-400])
    return folder


@pytest.mark.slow
def test_a_file_that_only_opencv_reads_costs_a_trial_and_not_the_others(tmp_path: Path) -> None:
    said: list[str] = []

    found = tried(
        load(str(cut_photos(tmp_path)), size=64),
        Config(0, 4, "thread"),
        seconds=0.5,
        told=said.append,
    )

    assert [change.what for change in found] == [
        f"pack at 73 px (packdata images {tmp_path} packed --size 73)"
    ]
    assert said == [
        "loading a sample of the files into memory",
        f"RAMDataset is not tried: {tmp_path}/2.jpg: the picture is cut: its end is missing.",
        "packing 4 images at 73 px to try it",
    ]


@pytest.mark.slow
def test_a_picture_whose_head_cannot_be_read_does_not_count_for_the_size(tmp_path: Path) -> None:
    cut_photos(tmp_path)
    (tmp_path / "0.jpg").write_bytes(
        cv2.imencode(".bmp", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    )

    found = tried(load(str(tmp_path), size=64), Config(0, 4, "thread"), seconds=0.5)

    assert [change.what.split(" (")[0] for change in found] == ["pack at 73 px"]


@pytest.mark.parametrize("suffix", [".bmp", ".gif"])
def test_pictures_of_other_kinds_are_measured_and_nothing_is_tried(
    tmp_path: Path, suffix: str
) -> None:
    """By whatever name: OpenCV looks at what they hold."""
    PIL.Image.new("RGB", (40, 40)).save(tmp_path / f"a{suffix}")
    (tmp_path / f"a{suffix}").rename(tmp_path / "a.png")
    said: list[str] = []

    found = tried(load(str(tmp_path), size=32), Config(0, 1, "thread"), told=said.append)

    assert found == []
    assert said[1].startswith(f"RAMDataset is not tried: {tmp_path}/a.png: ")
    assert said[2].startswith(f"packing is not tried: {tmp_path}/a.png ")


def test_packing_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    said: list[str] = []

    tried(load(str(cut_photos(tmp_path)), size=64), Config(0, 4), seconds=0.1, told=said.append)

    assert said[-1] == "packing is not tried: it failed."


def packed_photos(folder: Path) -> Path:
    records = [{"image": file.read_bytes()} for file in sorted(PHOTOS.glob("*/*.jpg"))[:4]]
    pack(folder, {"image": Image(codec="jpeg")}, records, defaults=["image"])
    return folder


class Doubled(ShardDataset):
    """Says itself what a sample is."""

    def __getitem__(self, i: Any) -> Any:
        sample = super().__getitem__(i)
        return sample._replace(image=sample.image * 2)


@pytest.mark.slow
def test_what_a_getitem_of_ones_own_returns_is_neither_packed_nor_held_in_memory(
    tmp_path: Path,
) -> None:
    """That would be what is stored."""
    folder = packed_photos(tmp_path / "d")
    target = MeasuredDataset("d", lambda: Doubled(folder), size=64)
    said: list[str] = []

    found = tried(target, Config(1, 1, "thread"), seconds=0.1, told=said.append)

    assert [change.what for change in found][-1] == "backend='process', num_workers=1"
    assert said == []


def test_a_trial_that_cannot_be_made_or_run_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    def breaks(sample: Any) -> Any:
        raise ValueError("no good")

    folder = packed_photos(tmp_path / "d")
    monkeypatch.setattr(changes, "_some_files", no_room)
    target = load(str(folder), size=64)
    held = RAMDataset(folder, progress=False)
    monkeypatch.setattr(changes, "RAMDataset", lambda *_, **more: held.replace(transform=breaks))
    said: list[str] = []

    found = tried(target, Config(0, 4, "thread"), seconds=0.1, told=said.append)

    assert found == []
    assert said == [
        "decoding a sample into memory",
        "packing is not tried: OSError: [Errno 28] No space left on device",
        "RAMDataset(..., decode=True) (pixels in memory): failed in run 1: ValueError: no good",
    ]


def test_where_the_dataset_itself_fails_nothing_is_compared() -> None:
    said: list[str] = []

    found = tried(
        load("tests.bench.constructed:Fails"),
        Config(1, 4, "thread"),
        seconds=0.1,
        told=said.append,
    )

    assert found == []
    assert "the dataset as it is: failed in run 1: OSError: the disk is gone" in said


@pytest.mark.slow
def test_files_are_dropped_before_each_cold_run_of_a_trial_that_reads_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    timed, drop = time_target, dropped

    def spy_timed(target: MeasuredDataset, *args: Any, once: bool, **options: Any) -> Any:
        events.append(f"{'once' if once else 'run'} {Path(target.name).name.split(' ')[0]}")
        return timed(target, *args, once=once, **options)

    def spy_drop(target: MeasuredDataset) -> list[str]:
        events.append(f"drop {target.files[0].parent.name}")
        return drop(target)

    monkeypatch.setattr(changes, "time_target", spy_timed)
    monkeypatch.setattr(changes, "dropped", spy_drop)
    target = load(str(packed_photos(tmp_path / "now")), size=64)
    target.name = "now"

    tried(target, Config(0, 4, "thread"), seconds=0.1, cold=True)

    reads = ["drop now", "once now", "run RAMDataset(...,", "drop packed", "once packed"]
    assert events == 3 * reads


@pytest.mark.slow
def test_images_that_are_left_whole_are_packed_as_they_are(tmp_path: Path) -> None:
    picture = cv2.imencode(".png", np.zeros((40, 40, 3), np.uint8))[1].tobytes()
    (tmp_path / "a.png").write_bytes(picture)

    found = tried(load(str(tmp_path), size=0), Config(0, 1, "process"), seconds=0.1)

    assert [change.what.split(" (")[0] for change in found] == [
        "RAMDataset.from_files",
        "pack as they are",
    ]
