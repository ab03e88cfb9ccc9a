"""Parts as tasks of Ray: the bytes of the parts, also where a node is killed while it packs."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from packdata.arrays import plan_arrays
from packdata.cli import main
from packdata.cluster import usual_parts
from packdata.images.plan import plan_images
from packdata.parts.packing import finish
from packdata.plan import SourcePlan, pack_plan
from packdata.tables import plan_tables
from packdata.tokens.plan import TokenOptions, plan_tokens
from packdata.tokens.tokenizer import train_bpe
from tests.packdata.command_sources import make_sources
from tests.packdata.recipes import contents

NUM_PARTS = 12
PACKS = {
    "images": "images photos DST --size 700 --codec png --shard-size 2MB",
    "tokens": "tokens texts DST --documents line --tokenizer bpe.json --shard-size 2MB",
    "arrays": "arrays scans DST --shard-size 9MB",
    "tables": "tables rows DST --target b --shard-size 2MB",
}
LOCKS = "on-ray/.parts/part-*.*/.packing/lock"  # of parts that are being packed

# Three nodes of one core, of which one is killed while all three pack.
DRIVER = """
import glob, os, sys, threading, time
from ray.cluster_utils import Cluster

def kill(cluster, node):
    end = time.monotonic() + 120
    begun = 0
    while time.monotonic() < end and begun < 3:
        begun = len(glob.glob(os.environ["LOCKS"]))
        time.sleep(0.005)
    print("begun:", begun, flush=True)
    cluster.remove_node(node, allow_graceful=False)

if __name__ == "__main__":
    from packdata.cli import main
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    threading.Thread(target=kill, args=(cluster, nodes[0]), daemon=True).start()
    code = main([*sys.argv[1:], "--engine", "ray", "--address", cluster.address])
    cluster.shutdown()
    sys.exit(code)
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_source("images", tmp_path)
    return tmp_path


def make_source(kind: str, place: Path) -> None:
    """Make what takes three cores some seconds to pack, in a folder."""
    rng = np.random.default_rng(3)
    if kind == "tokens":
        words = [bytes(rng.integers(97, 123, n, np.uint8)).decode() for n in range(2, 12)] * 50
        lines = [" ".join(rng.permutation(words)) + "\n" for _ in range(1_000)]
        (place / "bpe.json").write_bytes(train_bpe(lines[:100], 300))
        (place / "texts").mkdir()
        for i in range(NUM_PARTS):
            (place / "texts" / f"{i:02d}.txt").write_text("".join(lines[i:] + lines[:i]))
        return
    if kind == "tables":
        (place / "rows").mkdir()
        cells = rng.integers(-(10**12), 10**12, (20_000, 8)).astype(str)
        rows = "\n".join(map(",".join, cells))
        for i in range(5 * NUM_PARTS):
            (place / "rows" / f"{i:02d}.csv").write_text(f"a,b,c,d,e,f,g,h\n{rows}\n")
        return
    for i in range(72):
        folder = place / ("photos" if kind == "images" else "scans") / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (800, 800, 3), np.uint8)
        if kind == "images":
            cv2.imwrite(str(folder / f"{i:02d}.png"), pixels)
        else:
            np.savez_compressed(folder / f"{i:02d}.npz", pixels & 7)


def run_on_three(place: Path, script: str, words: Sequence[str], **given: str) -> Any:
    """Run a driver in a folder, to its end."""
    (place / "driver.py").write_text(script)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tools"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path, "LOCKS": LOCKS} | given
    return subprocess.run(
        [sys.executable, str(place / "driver.py"), *words],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.parametrize("kind", ["images", "arrays", "tokens", "tables"])
def test_a_plan_that_was_sent_packs_the_same(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(make_sources(tmp_path / "made"))
    plan: SourcePlan
    if kind == "images":
        plan = plan_images("photos", sizes=16, masks="masks")
    elif kind == "arrays":
        plan = plan_arrays("scans")
    elif kind == "tokens":
        plan = plan_tokens("a.txt", TokenOptions(documents="line", train_bpe=270))
    else:
        plan = plan_tables(["t.csv"], target=("kind",))

    sent: SourcePlan = pickle.loads(pickle.dumps(plan))

    assert usual_parts(plan) == 1
    pack_plan(plan, tmp_path / "packed")
    pack_plan(sent, tmp_path / "sent")
    assert contents(tmp_path / "sent") == contents(tmp_path / "packed")


def test_a_part_is_of_128_pieces_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packdata.tokens.source._PIECE_BYTES", 1)
    (tmp_path / "a.txt").write_text("a\n" * 129)
    plan = plan_tokens(tmp_path / "a.txt", TokenOptions(documents="line"))
    ((_, pieces),) = plan.splits

    assert len(pieces) == 129
    assert usual_parts(plan) == 2


def test_options_of_ray_are_refused_without_it(photos: Path) -> None:
    for words in (["--parts", "3"], ["--address", "auto"], ["--engine", "ray", "--part", "0/1"]):
        with pytest.raises(SystemExit) as ended:
            main(["images", "photos", "dst", *words])
        assert ended.value.code == 2


@pytest.mark.slow
def test_nothing_to_do_and_no_room_leave_no_folder(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    (photos / "a.txt").write_text("to be\nor not\n")
    tokens = ["tokens", "a.txt", "packed", "--documents", "line"]
    ray = ["--engine", "ray", "--parts", "1"]
    assert main([*tokens, *ray, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["samples_per_s"] * told["seconds"] == pytest.approx(1)

    assert main([*tokens, *ray]) == 0
    assert {path.suffix for path in Path("packed").iterdir()} == {".json", ".parquet"}
    assert main(["images", "photos", "new", "--engine", "ray", "--workers", "100000"]) == 1
    assert not Path("new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "tokens", "tables"])  # arrays: into a bucket
def test_a_node_that_is_killed_costs_no_part(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    make_source(kind, tmp_path)
    words = PACKS[kind].replace("DST", "on-ray").split()

    done = run_on_three(tmp_path, DRIVER, [*words, "--parts", str(NUM_PARTS)])

    assert done.returncode == 0, done.stderr
    assert "begun: 3" in done.stdout
    pack_calmly(PACKS[kind], "calm")
    assert contents(tmp_path / "on-ray") == contents(tmp_path / "calm")


def pack_calmly(command: str, dst: str, num_parts: int = NUM_PARTS) -> None:
    """Pack the same parts one after the other, here."""
    words = command.replace("DST", dst).split()
    if words[0] == "tables":
        with open("plan.json", "w") as plan, contextlib.redirect_stdout(plan):
            assert main([*words, "--dry-run", "--json"]) == 0
        words += ["--plan", "plan.json"]
    for i in range(num_parts):
        assert main([*words, "--part", f"{i}/{num_parts}"]) == 0
    finish(dst)


@pytest.mark.slow
def test_where_no_node_is_left_it_ends(photos: Path) -> None:
    """The one with room for a part is killed."""
    pytest.importorskip("ray")
    two, one = "[cluster.add_node(num_cpus=1) for _ in range(2)]", "[cluster.add_node(num_cpus=3)]"
    lost = DRIVER.replace(two, one).replace("begun < 3", "begun < 1")
    words = PACKS["images"].replace("DST", "on-ray").split()

    done = run_on_three(photos, lost, [*words, "--parts", "12", "--workers", "3"])

    assert done.returncode == 1, done.stderr
    assert "begun: 1" in done.stdout
    assert not (photos / "on-ray" / "manifest.json").exists()
