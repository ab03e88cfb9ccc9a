import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from loaders import DataLoader, RAMDataset, ShardDataset, augment
from loaders.codecs.picture import encode_jpeg
from loaders.loading.tuning import cache_folder, dataset_key, read_workers, write_workers
from loaders.schema import Image
from tests.packdata.packing import pack


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def dataset(value: int = 0) -> RAMDataset:
    return RAMDataset.from_arrays(image=np.full((8, 3, 4, 4), value, np.uint8))


def test_a_count_is_found_again_for_the_same_dataset_on_the_same_machine() -> None:
    assert read_workers(dataset(), 4) is None
    file = write_workers(dataset(), 4, 3)

    assert file is not None
    assert file.parent == cache_folder()

    assert read_workers(dataset(), 4) == 3
    assert read_workers(dataset(), 8) is None
    assert read_workers(dataset(1), 4) is None


def test_other_work_per_sample_is_another_dataset() -> None:
    keys = {
        dataset_key(d) for d in (dataset(), dataset(1), dataset().replace(fields=["sample_id"]))
    }

    flipped = dataset().replace(augment=[augment.RandomHorizontalFlip()])
    assert len({*keys, dataset_key(flipped)}) == 4
    assert dataset_key(dataset().replace(transform=lambda sample: sample)) is None
    assert dataset_key([1, 2, 3]) is None
    assert write_workers([1, 2, 3], 4, 2) is None


@pytest.mark.parametrize("content", ["", "{", "2.5", "-1", "1000", "9" * 100])
def test_a_file_without_a_count_that_makes_sense_counts_as_none_and_is_replaced(
    content: str,
) -> None:
    file = write_workers(dataset(), 4, 3)
    assert file is not None
    file.write_text(content)

    assert read_workers(dataset(), 4) is None
    write_workers(dataset(), 4, 2)
    assert read_workers(dataset(), 4) == 2


def test_counts_that_are_kept_at_once_are_all_kept() -> None:
    """Each has a file of its own, and nothing is left beside them."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: write_workers(dataset(value), 4, value), range(8)))

    assert [read_workers(dataset(value), 4) for value in range(8)] == list(range(8))
    assert len(list(cache_folder().iterdir())) == 8


def test_a_count_that_several_keep_at_once_is_that_of_one_of_them() -> None:
    made = dataset()
    found: set[int | None] = set()
    with ThreadPoolExecutor(8) as pool:
        for value in range(400):
            pool.submit(write_workers, made, 4, value % 8 + 1)
            found.add(read_workers(made, 4))
        kept = [pool.submit(write_workers, made, 4, value % 8 + 1) for value in range(400)]

    assert all(each.result() for each in kept)
    assert read_workers(made, 4) in range(1, 9)
    assert found <= {None, *range(1, 9)}
    assert len(list(cache_folder().iterdir())) == 1


def test_auto_takes_the_measured_count() -> None:
    from loaders.system.limits import usable_cores

    write_workers(dataset(), usable_cores(), 2)

    assert DataLoader(dataset()).num_workers == 2
    assert DataLoader(dataset(), num_workers=0).num_workers == 0
    assert DataLoader(dataset(1)).num_workers == 1  # small rows, not measured


def test_what_decoding_leaves_out_is_other_work(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(encode_jpeg(np.zeros((16, 16, 3), np.uint8)))
    encoded = RAMDataset.from_files([file], progress=False)
    pixels = RAMDataset(encoded, decode=True, progress=False)

    assert dataset_key(encoded) != dataset_key(pixels)
    assert dataset_key(encoded) == dataset_key(RAMDataset(encoded, progress=False))


def test_pictures_at_another_scale_are_other_work(tmp_path: Path) -> None:
    fields = {"image": Image(codec="dct", size=(32, 32))}
    folder = pack(tmp_path / "a", fields, [{"image": np.zeros((32, 32, 3), np.uint8)}])

    assert len({dataset_key(ShardDataset(folder, scale=scale)) for scale in (1, 0.5, 0.25)}) == 3


HOMELESS = """
import os, sys
import numpy as np
from loaders import DataLoader, RAMDataset
data = RAMDataset.from_arrays(x=np.zeros((4, 3)))
len(DataLoader(data, 2))  # everything is imported
os.environ.pop("XDG_CACHE_HOME", None)
os.environ.pop("HOME", None)
if sys.argv[1]:
    os.environ["HOME"] = sys.argv[1]
os.setgid(54321), os.setuid(54321), os.chdir("/")
print(len(DataLoader(data, 2)))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
@pytest.mark.parametrize("home", ["closed", "unknown"])
@pytest.mark.usefixtures("uncovered")
def test_who_has_no_home_that_can_be_read_has_measured_nothing(tmp_path: Path, home: str) -> None:
    """As in a container whose user is given by number."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    done = subprocess.run(
        [sys.executable, "-c", HOMELESS, str(closed) if home == "closed" else ""],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip

    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_count_that_can_be_kept_nowhere_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    assert read_workers(dataset(), 4) is None
    with pytest.raises(FileNotFoundError):
        write_workers(dataset(), 4, 2)
