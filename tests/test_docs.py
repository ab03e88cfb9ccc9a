"""Every command and code block of README and docs/ runs as written, and every link leads somewhere."""

import dataclasses
import gzip
import inspect
import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import loaders
from loaders import DataLoader, RAMDataset
from loaders.codecs.heads import picture_size
from loaders.data.manifest import read_manifest
from loaders.loading.delivery import LoaderStats
from tests.remote import servers

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
)
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}


def blocks(page: str, languages: str = "sh|python") -> list[tuple[str, str]]:
    """Return language and text of the blocks of a page."""
    return re.findall(rf"^```({languages})\n(.*?)^```", TEXTS[page], re.M | re.S)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``packed``, as the first page makes it of the photos."""
    folder = tmp_path_factory.mktemp("page")
    copy_photos(folder)
    run_commands(
        next(text for language, text in blocks("README.md") if text.startswith("packdata")), folder
    )
    return folder / "packed"


def copy_photos(folder: Path) -> None:
    """Copy the photos, as splits with classes."""
    photos = ROOT / "tests/data/photos"
    for split, which in (("train", slice(0, 3)), ("val", slice(3, 4))):
        for kind in photos.iterdir():
            (folder / "photos" / split / kind.name).mkdir(parents=True)
            for file in sorted(kind.iterdir())[which]:
                shutil.copy(file, folder / "photos" / split / kind.name)


def add_sbatch(folder: Path) -> None:
    """Make what stands in for Slurm's command: it runs each task of an array, one after the other."""
    script = folder / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n# --wait --array=FIRST-LAST SCRIPT\nrange=${2#--array=}\n"
        'for i in $(seq ${range%-*} ${range#*-}); do SLURM_ARRAY_TASK_ID=$i sh -e "$3"; done\n'
    )
    script.chmod(0o755)


def run_commands(block: str, folder: Path) -> None:
    """Run a block by the shell with this environment's commands."""
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: Path) -> Path:
    """A folder as the pages assume it: photos, raw and packed, scenes and scans with masks, digits, plays, tables."""
    photos = ROOT / "tests/data/photos"
    copy_photos(tmp_path)
    shutil.copytree(packed, tmp_path / "packed")
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scene-masks").mkdir()
    for file in sorted(photos.glob("boats/*.jpg")):
        shutil.copy(file, tmp_path / "scenes")
        height, width = picture_size(file.read_bytes())
        mask = np.arange(height * width, dtype=np.int64).reshape(height, width) % 5
        cv2.imwrite(str(tmp_path / "scene-masks" / f"{file.stem}.png"), mask.astype(np.uint8))
    (tmp_path / "scans").mkdir()
    (tmp_path / "scan-masks").mkdir()
    for i in range(4):
        scan = np.arange(24 * 40 * 48).reshape(24, 40, 48) % 1000 - 100 * i
        np.save(tmp_path / f"scans/{i}.npy", scan.astype(np.int16))
        np.save(tmp_path / f"scan-masks/{i}.npy", scan > 0)
    (tmp_path / "digits").mkdir()
    for name, shape in (("images-idx3", (10, 28, 28)), ("labels-idx1", (10,))):
        start = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        digits = gzip.compress(start + np.indices(shape, np.uint8)[0].tobytes())
        (tmp_path / f"digits/train-{name}-ubyte.gz").write_bytes(digits)
    real = ROOT / "tests/data/real"
    (tmp_path / "plays").mkdir()
    shutil.copy(real / "shakespeare.txt", tmp_path / "plays")
    shutil.copy(real / "taxis.csv", tmp_path)
    head, *rows = (real / "diamonds.csv").read_text().splitlines()
    for name, part in (("diamonds", rows[:2000]), ("diamonds-test", rows[2000:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def in_a_bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket of a server, as the environment says."""
    (folder / "store/bucket").mkdir(parents=True)
    shutil.copytree(folder / "photos", folder / "store/bucket/raw/photos")
    shutil.copy(folder / "diamonds.csv", folder / "store/bucket/raw")
    with servers.bucket(folder / "store") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("LOADERS_CACHE", str(folder / "cache"))
        yield


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == "README.md" else pytest.mark.slow)
        for page in PAGES
        if blocks(page)
    ],
)
def test_blocks_run(folder: Path, page: str, request: pytest.FixtureRequest) -> None:
    """A page needs nothing that another makes, but for ``packed``."""
    names: dict[str, Any] = {}
    if page in ("docs/remote.md", "docs/cluster.md"):
        request.getfixturevalue("in_a_bucket")
    if page == "docs/cluster.md":
        add_sbatch(folder)
    num_run = 0
    for language, block in blocks(page):
        if language == "python":
            exec(compile(block, page, "exec"), names)
        elif "tools/" not in block:  # that installs; it is tested below
            if "packdata images photos packed " in block:
                shutil.rmtree(folder / "packed")
            run_commands(block, folder)
        else:
            continue
        num_run += 1
    assert num_run > 0


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_bucket")
def test_blocks_that_start_ray_make_what_parts_make(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    add_sbatch(folder)
    by_parts = [text for _, text in blocks("docs/cluster.md") if "sbatch" in text]
    by_ray = [text for _, text in blocks("docs/cluster.md", "bash")]
    assert len(by_parts) == len(by_ray) == 2

    for text in (*by_parts, *by_ray):
        run_commands(text, folder)

    for above in (folder, folder / "store/bucket"):
        for split in ("train", "val"):
            one, other = (read_manifest(above / f"by-{how}" / split) for how in ("ray", "slurm"))
            assert one == other
            assert one.provenance["num_parts"] == 3


def test_the_trainer_of_the_page_gives_our_loader() -> None:
    """The block that needs a framework."""
    transformers = pytest.importorskip("transformers")
    ((_, block),) = blocks("docs/frameworks.md", "py")
    names = {
        "transformers": transformers,
        "loaders": loaders,
        "DataLoader": DataLoader,
        "normalize": loaders.Normalize([0.0], [255.0]),
    }
    definitions, _, _ = block.partition("\ntrainer = ")

    exec(compile(definitions, "frameworks.md", "exec"), names)
    trainer = object.__new__(names["MyTrainer"])
    trainer.args = SimpleNamespace(per_device_train_batch_size=4)
    pictures = torch.zeros(9, 1, 8, 8, dtype=torch.uint8)
    trainer.train_dataset = RAMDataset.from_arrays(image=pictures, label=torch.arange(9))

    batches = list(trainer.get_train_dataloader())

    assert [batch["labels"].shape for batch in batches] == [(4,), (4,)]
    assert {batch["pixel_values"].dtype for batch in batches} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["scenes", "photos"])
def test_quickstart_runs_on_a_folder(folder: Path, source: str) -> None:
    """The quickstart's own steps, on a folder without classes and on one of splits, in this environment."""
    command = [
        sys.executable,
        str(ROOT / "tools/quickstart.py"),
        source,
        "--out",
        "out",
        "--steps",
        "3",
    ]
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out/sheet.png").write_bytes(b"of a run before")

    done = subprocess.run(command, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "images/s" in done.stdout
    assert (folder / "out/sheet.png").stat().st_size > 1000


def test_every_subcommand_is_on_a_page() -> None:
    """What the command can do is what the pages show."""
    from packdata.cli import COMMANDS

    assert COMMANDS.commands
    assert not {
        name for name in COMMANDS.commands if f"packdata {name}" not in "".join(TEXTS.values())
    }


def test_named_tests_exist() -> None:
    """The table of guarantees names files that are there."""
    files = re.findall(r"`(tests/[\w/.]+)`", TEXTS["docs/guarantees.md"])

    assert files
    assert not [file for file in files if not (ROOT / file).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_as_narrow_as_the_site(page: str) -> None:
    """What is wider is cut on a screen of 1,280 pixels."""
    assert not [
        line for _, block in blocks(page) for line in block.splitlines() if len(line) > 118
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Files are there, and so are the headings that links name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            file = (ROOT / page).parent / name if name else ROOT / page
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M) if anchor else []
            assert not anchor or anchor in {
                re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings
            }


def test_every_public_name_is_in_the_reference() -> None:
    """The names of `loaders` by themselves, or with those of the module that they come from."""
    from loaders import errors, sampling

    named = set(re.findall(r"auto\w+:: loaders\.(\w+)$", TEXTS["docs/api.md"], re.M))
    named |= {*sampling.__all__, *vars(errors)}

    assert not set(loaders.__all__) - named


def test_attributes_that_pages_name_are_in_the_reference() -> None:
    """Those of loaders and datasets, and of what loaders count."""
    pages = "\n".join(text for page, text in TEXTS.items() if page != "docs/api.md")
    members = re.findall(r":members: (.+(?:\n {7}.+)*)", TEXTS["docs/api.md"])
    listed = {name for names in members for name in re.findall(r"\w+", names)}
    used = set(re.findall(r"\b(?:loader|dataset|windows|mixture)\.([a-z]\w*)\b", pages))
    counted = set(re.findall(r"\bstats\(\)\.(\w+)", pages))

    assert used - listed - {"bin", "py"} == set()  # files of others
    assert counted
    assert counted - {each.name for each in dataclasses.fields(LoaderStats)} == set()
    assert "loaders.loading.delivery.LoaderStats" in TEXTS["docs/api.md"]
    assert "loaders.profiling.ProfileReport" in TEXTS["docs/api.md"]


def test_members_in_the_reference_exist() -> None:
    listed = re.findall(
        r"^\.\. autoclass:: (\S+)\n +:members: (.+(?:\n {7}.+)*)", TEXTS["docs/api.md"], re.M
    )

    missing = [
        f"{kind}.{name}"
        for kind, names in listed
        for name in re.findall(r"\w+", names)
        if not _has_member(kind, name)
    ]

    assert listed
    assert missing == []


def _has_member(kind: str, name: str) -> bool:
    """Tell whether a class has an attribute, or its instances by an annotation."""
    found: Any = pydoc.locate(kind)
    return hasattr(found, name) or name in {
        n for k in found.__mro__ for n in vars(k).get("__annotations__", ())
    }


def test_public_classes_say_what_each_method_does() -> None:
    """A method that overrides one may leave it to that one to say."""
    homes = (loaders, loaders.augment, loaders.sampling, loaders.schema)
    kinds = {kind for home in homes for kind in vars(home).values() if inspect.isclass(kind)}

    silent = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name in dir(kind)
        if not name.startswith("_")
        and _is_ours(kind, name)
        and not inspect.getdoc(getattr(kind, name))
    ]

    assert silent == []


def _is_ours(kind: type[Any], name: str) -> bool:
    """Tell whether a method or property comes from this package."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    found = vars(owner)[name]
    is_method = callable(found) or isinstance(found, property | classmethod | staticmethod)
    return is_method and owner.__module__.startswith("loaders.")
