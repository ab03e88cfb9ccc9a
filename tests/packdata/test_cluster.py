"""Parts as tasks of Ray: the bytes of the parts, also where a node is killed while it packs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from loaders.version import __version__
from packdata.arrays.plan import plan_arrays
from packdata.cli import main
from packdata.cluster import _about_node, usual_parts
from packdata.images.plan import plan_images
from packdata.parts.local import finish
from packdata.parts.part import versions
from packdata.plan import SourcePlan, pack_plan
from packdata.tables import plan_tables
from packdata.tokens.plan import TokenOptions, plan_tokens
from tests.packdata.command_sources import make_sources
from tests.packdata.recipes import contents

NUM_PARTS = 12
PACK = ["images", "photos", "DST", "--size", "700", "--codec", "png", "--shard-size", "2MB"]

# Three nodes of one core, of which one is killed while all three pack.
DRIVER = """
import sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster

def kill(cluster, node, parts):
    end = time.monotonic() + 120
    begun = 0
    while time.monotonic() < end and begun < 3:
        begun = len(list(parts.glob("part-*.*/.packing/lock")))
        time.sleep(0.005)
    print("begun:", begun, flush=True)
    cluster.remove_node(node, allow_graceful=False)

if __name__ == "__main__":
    from packdata.cli import main
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    place = Path(sys.argv[3]) / ".parts"
    threading.Thread(target=kill, args=(cluster, nodes[0], place), daemon=True).start()
    code = main([*sys.argv[1:], "--engine", "ray", "--address", cluster.address])
    cluster.shutdown()
    sys.exit(code)
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(3)
    monkeypatch.chdir(tmp_path)
    for i in range(72):
        folder = tmp_path / "photos" / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (800, 800, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i:02d}.png"), pixels)
    return tmp_path


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
        plan = plan_tables(["t.csv"], target=("kind",), keeps=True)

    sent: SourcePlan = pickle.loads(pickle.dumps(plan))

    assert usual_parts(plan) == 1
    pack_plan(plan, tmp_path / "packed")
    pack_plan(sent, tmp_path / "sent")
    assert contents(tmp_path / "sent") == contents(tmp_path / "packed")


def test_options_of_ray_are_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    cv2.imwrite("photos/a.png", np.zeros((8, 8, 3), np.uint8))
    for words in (["--parts", "3"], ["--address", "auto"], ["--engine", "ray", "--part", "0/1"]):
        with pytest.raises(SystemExit) as ended:
            main(["images", "photos", "dst", *words])
        assert ended.value.code == 2


def test_a_node_tells_what_it_does_not_see(tmp_path: Path) -> None:
    """A part packed where the source is not would leave all of it out."""
    mine, lacks = _about_node([str(tmp_path), str(tmp_path / "gone")])

    assert mine == {"loaders": __version__, **versions()}
    assert lacks == [str(tmp_path / "gone")]


@pytest.mark.slow
def test_nothing_to_do_and_no_room_leave_no_folder(photos: Path) -> None:
    pytest.importorskip("ray")
    (photos / "a.txt").write_text("to be\nor not\n")
    tokens = ["tokens", "a.txt", "packed", "--documents", "line"]
    assert main([*tokens, "--part", "0/1"]) == main(["finish", "packed"]) == 0

    assert main([*tokens, "--engine", "ray", "--parts", "1"]) == 0
    assert {path.name for path in Path("packed").iterdir()} == {
        "manifest.json",
        "shard-00000.parquet",
    }
    assert main(["images", "photos", "new", "--engine", "ray", "--workers", "100000"]) == 1
    assert not Path("new").exists()


@pytest.mark.slow
def test_a_node_that_is_killed_costs_no_part(photos: Path) -> None:
    pytest.importorskip("ray")
    script = photos / "driver.py"
    script.write_text(DRIVER)
    words = [word.replace("DST", "on-ray") for word in PACK]
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join([root, f"{root}/tools"])

    done = subprocess.run(
        [sys.executable, str(script), *words, "--parts", str(NUM_PARTS)],
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )

    assert done.returncode == 0, done.stderr
    assert "begun: 3" in done.stdout
    for i in range(NUM_PARTS):
        main([*(word.replace("DST", "calm") for word in PACK), "--part", f"{i}/{NUM_PARTS}"])
    finish("calm")
    assert contents(photos / "on-ray") == contents(photos / "calm")


@pytest.mark.slow
def test_where_no_node_is_left_it_ends(photos: Path) -> None:
    """The one with room for a part is killed; another is waited for, and none comes."""
    pytest.importorskip("ray")
    script = photos / "driver.py"
    two, one = "[cluster.add_node(num_cpus=1) for _ in range(2)]", "[cluster.add_node(num_cpus=3)]"
    lost = DRIVER.replace(two, one).replace("begun < 3", "begun < 1")
    short = "    from packdata import cluster as waits\n    waits._START_S = 30.0\n    code"
    script.write_text(lost.replace("    code", short, 1))
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tools"), os.environ.get("PYTHONPATH", "")])
    words = [*(word.replace("DST", "dst") for word in PACK), "--parts", "12", "--workers", "3"]

    done = subprocess.run(
        [sys.executable, str(script), *words],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 1, done.stderr
    assert "begun: 1" in done.stdout
    assert not (photos / "dst" / "manifest.json").exists()
