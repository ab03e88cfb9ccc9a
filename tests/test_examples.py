"""Each script of examples/ runs on small real data, and goes on where it was stopped."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.remote import servers
from tests.remote.conftest import ended, fetcher_of
from tests.torchvision_v2 import torchvision_v2
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = ROOT / "tests/data/photos"
REAL = ROOT / "tests/data/real"
NETS = "tests.example_nets"
BESIDE = f"""
import runpy, sys
from tests.torchvision_v2 import torchvision_v2
torchvision_v2()
sys.argv.pop(0)
runpy.run_path(f"{ROOT}/examples/{{sys.argv[0]}}", run_name="__main__")
"""


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command of this environment in a folder, with the small nets to be found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    words = shlex.split(command)
    return subprocess.Popen(words, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)


def run(command: str, folder: Path) -> str:
    """Run a command to its end, and return what it printed."""
    process = start(command, folder)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    return out


def example(command: str, folder: Path) -> str:
    """Run an example with arguments."""
    return run(f"python {ROOT}/examples/{command}", folder)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with `packed/train` and `packed/val` of photos."""
    for split, which in (("train", slice(0, 3)), ("val", slice(3, 4))):
        for kind in PHOTOS.iterdir():
            (tmp_path / "photos" / split / kind.name).mkdir(parents=True)
            for file in sorted(kind.iterdir())[which]:
                shutil.copy(file, tmp_path / "photos" / split / kind.name)
    run("packdata images photos packed --size 96", tmp_path)
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with `packed`, tokens of plays."""
    lines = (REAL / "shakespeare.txt").read_text().splitlines(keepends=True)[:600]
    (tmp_path / "plays.txt").write_text("".join(lines))
    run("packdata tokens plays.txt packed --documents '\\n\\n'", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_gpt_learns_and_goes_on(text: Path) -> None:
    small = "--length 32 --batch-size 4 --accumulate 2 --width 64 --depth 1"

    first = example(f"gpt.py packed {small} --steps 6 --eval-every 3", text)
    second = example(f"gpt.py packed {small} --steps 9 --eval-every 3", text)

    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", first + second)]
    assert re.findall(r"step (\d+)", first + second) == ["3", "6", "9"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_imagenet_goes_on_at_the_next_epoch(photos: Path) -> None:
    options = f"--model {NETS}:classifier --batch-size 4 --crop 64 --checkpoint run.pt"

    first = example(f"imagenet.py packed {options} --epochs 1", photos)
    second = example(f"imagenet.py packed {options} --epochs 2", photos)

    assert re.findall(r"epoch (\d+)", first + second) == ["0", "1"]


@pytest.mark.slow
def test_remote_trains_from_a_bucket_and_downloads_once(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "store/bucket").mkdir(parents=True)
    options = f"--cache cache --model {NETS}:classifier --batch-size 2 --crop 64"
    with servers.bucket(photos / "store") as endpoint, ended(photos / "cache"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("LOADERS_CACHE", str(photos / "cache"))
        run("packdata copy packed/train s3://bucket/train", photos)

        first = example(f"remote.py s3://bucket/train {options} --epochs 2", photos)
        wait_until(lambda: not fetcher_of(photos / "cache"), 15)  # another one counts from 0
        second = example(f"remote.py s3://bucket/train {options} --epochs 3", photos)

    told = re.findall(r"epoch (\d+): (\d+) bytes", first + second)
    assert [epoch for epoch, _ in told] == ["0", "1", "2"]
    assert told[0][1] == told[1][1]
    size = sum(path.stat().st_size for path in (photos / "packed/train").iterdir())
    assert int(told[2][1]) < size  # the manifest alone


@pytest.mark.slow
def test_imagenet_saves_on_sigterm_and_goes_on_with_other_ranks(photos: Path) -> None:
    options = f"--model {NETS}:classifier --crop 64 --accumulate 2 --checkpoint run.pt"
    script = ROOT / "examples/imagenet.py"
    process = start(f"python {script} packed {options} --batch-size 1 --epochs 100000", photos)
    wait_for(lambda: (photos / "run.pt").exists())

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    done = re.findall(r"epoch (\d+)", out)
    ranks = "torchrun --nproc-per-node 2 --standalone"
    goes_on = run(
        f"{ranks} {script} packed {options} --batch-size 2 --epochs {len(done) + 2}", photos
    )

    assert [int(epoch) for epoch in re.findall(r"epoch (\d+)", goes_on)][:1] == [len(done)]


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_segmentation(tmp_path: Path) -> None:
    files = sorted(PHOTOS.glob("*/*.jpg"))[:10]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "masks").mkdir()
    for file in files:
        shutil.copy(file, tmp_path / "pictures")
        with Image.open(file) as picture:
            levels = np.asarray(picture.convert("L")) // 64
        Image.fromarray(levels.astype(np.uint8)).save(tmp_path / "masks" / f"{file.stem}.png")
    run("packdata images pictures packed --masks masks --size 96", tmp_path)

    out = example(
        "segmentation.py packed --classes 4 --crop 64 --batch-size 4 --epochs 8", tmp_path
    )

    shares = [float(share) for share in re.findall(r"mean IoU ([\d.]+)%", out)]
    assert len(shares) == 8
    assert max(shares) > 20


@pytest.mark.slow
def test_detection(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    images, boxes = [], []
    for number, file in enumerate(sorted(PHOTOS.glob("*/*.jpg"))[:6]):
        shutil.copy(file, tmp_path / "pictures")
        with Image.open(file) as picture:
            images.append(
                {
                    "id": number,
                    "file_name": file.name,
                    "width": picture.width,
                    "height": picture.height,
                }
            )
        boxes += [
            {
                "id": 2 * number + i,
                "image_id": number,
                "category_id": 1 + i,
                "bbox": [10, 20, 60 + i, 50],
                "area": 3000,
                "iscrowd": 0,
            }
            for i in range(2)
        ]
    kinds = [{"id": 1, "name": "boat"}, {"id": 2, "name": "house"}]
    (tmp_path / "coco.json").write_text(
        json.dumps({"images": images, "annotations": boxes, "categories": kinds})
    )
    run("packdata images pictures packed --annotations coco.json --size 128", tmp_path)

    out = example(
        f"detection.py packed --model {NETS}:Detector --size 64 --batch-size 2 --epochs 2",
        tmp_path,
    )

    assert len(re.findall("loss", out)) == 2


@pytest.mark.slow
def test_dino(photos: Path) -> None:
    out = example(
        "dino.py packed/train --large 64 --small 32 --num-small 2 --width 64 --batch-size 4 --epochs 2",
        photos,
    )

    assert len(re.findall("loss", out)) == 2


@pytest.mark.slow
def test_sft(tmp_path: Path) -> None:
    says = [
        [
            {"role": "user", "content": f"What is {i} and {i}?"},
            {"role": "assistant", "content": f"It is {2 * i}."},
        ]
        for i in range(60)
    ]
    (tmp_path / "chats.jsonl").write_text(
        "\n".join(json.dumps({"messages": messages}) for messages in says)
    )
    (tmp_path / "chat.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    )
    run("packdata tokens chats.jsonl packed --chat-template chat.jinja --train-bpe 300", tmp_path)

    out = example(
        f"sft.py packed --model {NETS}:Chat --length 128 --batch-size 2 --epochs 3 --lr 0.01",
        tmp_path,
    )

    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_tabular(tmp_path: Path) -> None:
    head, *rows = (REAL / "diamonds.csv").read_text().splitlines()
    for name, part in (("train", rows[:2000]), ("test", rows[2000:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]))
    run("packdata tables train.csv packed/train --target price --standardize", tmp_path)
    run("packdata tables test.csv packed/test --like packed/train", tmp_path)

    out = example("tabular.py packed --epochs 8", tmp_path)

    errors = [float(error) for error in re.findall(r"the test ([\d.]+)", out)]
    assert errors[-1] < errors[0] / 2


@pytest.mark.slow
def test_cifar_on_device(tmp_path: Path) -> None:
    labels = np.arange(200) % 2
    images = (
        np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3)) // 2
        + 120 * labels[:, None, None, None]
    )
    np.savez(tmp_path / "cifar.npz", images=images.astype(np.uint8), labels=labels)

    out = example("cifar_on_device.py cifar.npz --epochs 3 --batch-size 32", tmp_path)

    assert re.findall(r": ([\d.]+)% right", out)[-1] == "100.0"


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "hf_trainer"])
def test_frameworks(framework: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip({"hf_trainer": "transformers"}.get(framework, framework))
    folder = request.getfixturevalue("text" if framework == "hf_trainer" else "photos")
    options = "--crop 64 --batch-size 4 --epochs 2"
    if framework == "hf_trainer":
        options = "--length 32 --width 32 --steps 4 --batch-size 2"

    out = example(f"with_{framework}.py packed {options}", folder)

    assert re.search("accuracy|epoch 1|eval_loss", out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "library", "source"),
    [
        ("from_mds.py", "streaming", "mds"),
        ("from_litdata.py", "litdata", "litdata"),
        ("from_tfrecord.py", "tfrecord", "example.tfrecord"),
    ],
)
def test_datasets_of_other_libraries_are_packed_and_jpegs_kept(
    script: str, library: str, source: str, tmp_path: Path
) -> None:
    """By the library itself, which `tools/venv` puts beside; so does it torchvision, which Streaming imports."""
    torchvision_v2()
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    foreign = ROOT / "tests/data/foreign"

    run(f"python -c {shlex.quote(BESIDE)} {script} {foreign / source} packed", tmp_path)

    packed = pq.read_table(*(tmp_path / "packed").glob("*.parquet")).to_pylist()
    record = (foreign / "example.tfrecord").read_bytes()
    assert [row["label"] for row in packed] == [-1, 0, 1]
    assert [row["text"] for row in packed] == [f"größe {i}" for i in range(3)]
    assert all(row["image"] in record for row in packed)


def test_each_example_is_run_and_short() -> None:
    """Under 120 lines each, and each named above."""
    page = Path(__file__).read_text()
    for file in (ROOT / "examples").glob("*.py"):
        assert len(file.read_text().splitlines()) <= 120, file
        assert file.name in page or file.name.startswith("with_"), file


def test_help_of_each_example_says_what_its_data_is() -> None:
    """Some take a packed folder, and some the folder of its splits."""
    for script in (ROOT / "examples").glob("*.py"):
        taken = re.search(
            r'add_argument\(\s*"(?:data|url)"(.*?)\)\n', script.read_text(), re.DOTALL
        )
        assert taken is not None, script
        assert "help=" in taken[1], script
