import shutil
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from loaders import ShardDataset, TokenWindows
from loaders.bench import sweep as sweep_module
from loaders.bench.measure import (
    Config,
    TimedPass,
    make_loader,
    round_size,
    time_loader,
)
from loaders.bench.sweep import (
    default_batch_size,
    grid,
    run_sweep,
    worker_counts,
)
from loaders.bench.targets import Endless, ImageFiles, load
from loaders.errors import LoadersError
from loaders.sampling.order import Order
from packdata.tokens.plan import pack_tokens
from tests.bench.constructed import Instant, Sleeps, Stream, a_sweep, small_rows
from tests.packdata.packing import pack_samples


def pack_tokens_of(folder: Path, num: int) -> Path:
    """Pack ids, as they come from elsewhere."""
    np.save(folder / "ids.npy", np.arange(num, dtype=np.uint16))
    pack_tokens(folder / "ids.npy", folder / "tokens")
    return folder / "tokens"


PHOTOS = Path(__file__).parents[1] / "data/photos"


def test_a_packed_folder_is_served_by_threads(tmp_path: Path) -> None:
    target = load(str(pack_samples(tmp_path / "d", 6)))

    assert target.backend == "thread"
    assert isinstance(target.dataset, ShardDataset)
    assert target.size == 224


def test_images_of_one_size_are_served_whole(tmp_path: Path) -> None:
    target = load(str(pack_samples(tmp_path / "d", 3, fields=["pixels", "label"])))

    assert target.size == 0
    assert target.dataset.augment == ()


@pytest.mark.parametrize(("num_tokens", "window"), [(5000, 1024), (300, 299)])
def test_tokens_are_served_in_windows_and_not_in_the_rows_that_they_are_stored_in(
    tmp_path: Path, num_tokens: int, window: int
) -> None:
    target = load(str(pack_tokens_of(tmp_path, num_tokens)))

    assert isinstance(target.dataset, TokenWindows)
    assert (target.window, target.dataset.length) == (window, window)
    assert target.size == 0


def test_one_token_makes_no_window(tmp_path: Path) -> None:
    with pytest.raises(LoadersError):
        load(str(pack_tokens_of(tmp_path, 1)))


def test_a_folder_of_images_is_read_as_a_newcomer_would(tmp_path: Path) -> None:
    for kind in ("boats", "people"):
        shutil.copytree(PHOTOS / kind, tmp_path / kind)
    next((tmp_path / "boats").iterdir()).rename(tmp_path / "boats/UPPER.JPG")
    (tmp_path / "boats/._UPPER.JPG").write_bytes(b"what macOS knows of it")

    target = load(str(tmp_path), size=64)

    assert target.backend == "process"
    image, label = target.dataset[5]
    assert (tuple(image.shape), image.dtype, label) == ((3, 64, 64), torch.uint8, 1)
    assert len(target.dataset) == 8


def test_loose_images_are_flipped_half_of_the_time(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8)[:, None], (64, 1, 3))  # from dark to bright
    cv2.imwrite(str(tmp_path / "a.png"), ramp)
    files = ImageFiles([tmp_path / "a.png"], 16)

    crops = [files[0][0].float().mean((0, 1)) for _ in range(40)]

    assert 5 < sum(int(crop[0] > crop[-1]) for crop in crops) < 35


@pytest.mark.parametrize("size", [0, 16])
def test_loose_images_are_left_as_they_are_at_size_0(tmp_path: Path, size: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), pixels)

    target = load(str(tmp_path), size=size)

    image, _ = target.dataset[0]
    assert target.size == size
    assert tuple(image.shape) == ((3, 16, 16) if size else (3, 40, 30))
    assert size or np.array_equal(image.permute(1, 2, 0).numpy(), pixels[..., ::-1])


some_rows = torch.utils.data.Subset(small_rows, range(100))
twice: Any = torch.utils.data.ConcatDataset([small_rows, some_rows])
others = torch.utils.data.Subset(Instant(), range(100))


@pytest.mark.parametrize(
    ("name", "num", "backend"),
    [("some_rows", 100, "thread"), ("twice", 4196, "thread"), ("others", 100, "process")],
)
def test_views_of_torch_are_measured_as_a_loader_serves_them(
    name: str, num: int, backend: str
) -> None:
    """Those of datasets of ours on threads."""
    target = load(f"tests.bench.test_targets:{name}")

    assert (len(target.dataset), target.backend) == (num, backend)
    assert make_loader(target.dataset, Config(0, 4)).backend == backend
    assert {config.backend for config in grid(target)} == {backend}


def test_any_dataset_by_name() -> None:
    """An object, or a class that makes one."""
    assert load("tests.bench.constructed:instant").dataset[3].shape == (256,)
    assert len(load("tests.bench.constructed:Sleeps").dataset) == 512


def test_a_packed_dataset_by_name_of_a_module_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of the folder that the command is run in are found, as scripts there find them."""
    pack_samples(tmp_path / "d", 6)
    (tmp_path / "a_module_here.py").write_text("import loaders\nd = loaders.ShardDataset('d')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    target = load("a_module_here:d")

    assert (target.backend, len(target.dataset)) == ("thread", 6)


class NoLength:
    def __getitem__(self, i: int) -> int:
        return i


no_length = NoLength()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("tests.bench.test_targets:no_length", "is a NoLength, not a Dataset"),
        ("nowhere", "is no folder"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("tests.bench.constructed:nothing", "has no attribute 'nothing'"),
        ("math:pi", "is a float, not a Dataset"),
    ],
)
def test_what_is_no_dataset_is_named(spec: str, said: str) -> None:
    with pytest.raises(LoadersError, match=said):
        _ = load(spec).dataset


def test_a_folder_of_splits_says_which_to_name(tmp_path: Path) -> None:
    pack_samples(tmp_path / "train", 2)
    pack_samples(tmp_path / "val", 2)
    with pytest.raises(LoadersError):
        load(str(tmp_path))


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(LoadersError):
        ImageFiles([tmp_path / "a.jpg"], 32)[0]


@pytest.mark.parametrize("n", [1, 3, 5000])
def test_the_endless_order_serves_each_sample_about_equally_and_no_draw_twice(n: int) -> None:
    order = Endless(n)
    assert isinstance(order, Order)
    assert order.length > 1 << 39

    indices, draws = order.at(0, np.arange(40 * n))

    assert 15 < np.bincount(indices, minlength=n).min() <= 40
    assert len({*zip(indices.tolist(), draws.tolist(), strict=True)}) == 40 * n


def test_worker_counts_double_up_to_the_cores() -> None:
    assert worker_counts(1) == [0, 1]
    assert worker_counts(2) == [0, 1, 2]
    assert worker_counts(6) == [0, 1, 2, 4, 6]
    assert worker_counts(16) == [0, 1, 2, 4, 8, 16]


def test_the_choice_is_the_fewest_workers_that_are_about_as_fast() -> None:
    sweep = a_sweep()
    sweep.results[0].runs = [TimedPass(2800.0, 0.1, [], 64)]
    sweep.results[1].runs = [TimedPass(2990.0, 0.1, [], 64)]

    assert sweep.best.config == Config(1, 64, "thread")


def test_slow_samples_get_a_small_batch() -> None:
    """Quick ones get 256, if there are so many; of a stream nothing is known."""
    assert 16 <= default_batch_size(Sleeps()) <= 64
    assert default_batch_size(Instant()) == 256
    assert default_batch_size(torch.utils.data.Subset(Instant(), range(5))) == 5
    assert default_batch_size(Stream()) == 64


def test_batches_come_together_from_each_process_and_in_groups_from_threads() -> None:
    assert round_size(Instant(), Config(4, 8, "process")) == 4
    assert round_size(Instant(), Config(0, 8, "process")) == 1
    assert round_size(small_rows, Config(4, 8, "process")) == 4
    assert round_size(small_rows, Config(0, 16, "thread")) == 1
    assert round_size(small_rows, Config(2, 16, "thread")) > 1


def test_a_warm_sweep_begins_with_an_unmeasured_run_of_each_kind_of_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its largest setting; one that fails there fails in its own line later."""
    backends: list[str] = []

    def spy(loader: Any, *args: Any, **options: Any) -> Any:
        backends.append(loader.backend)
        if len(backends) < 3:
            raise OSError("no room")
        return time_loader(loader, *args, **options)

    monkeypatch.setattr(sweep_module, "time_loader", spy)
    configs = [Config(0, 8, backend) for backend in ("thread", "process")]
    sweep = run_sweep(load("tests.bench.constructed:instant"), configs, seconds=0.1, repeats=2)

    assert backends == ["thread", "process"] * 3
    assert [len(result.runs) for result in sweep.results] == [2, 2]


def test_every_combination_is_measured_once(tmp_path: Path) -> None:
    target = load(str(pack_samples(tmp_path / "d", 6)))

    configs = grid(target, workers=[2, 0], batch_sizes=[2, 4], prefetch=[2, 4])

    assert configs[:3] == [
        Config(0, 2, "thread"),
        Config(2, 2, "thread", 2),
        Config(2, 2, "thread", 4),
    ]
    assert len(configs) == 6


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_every_backend_serves_endlessly(tmp_path: Path, backend: str) -> None:
    dataset = ShardDataset(pack_samples(tmp_path / "d", 5), fields=["label"])

    loader = make_loader(dataset, Config(1, 2, backend))

    batches = iter(loader)
    assert [len(next(batches).label) for _ in range(8)] == [2] * 8
    batches.close()
