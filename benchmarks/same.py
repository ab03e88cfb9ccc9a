"""Two versions of the project do the same: `python benchmarks/same.py --wheel OLD.whl [--examples N]`.

The wheel is installed beside this checkout (without what it depends on), and both run the same programs, each in a
process of its own: packing (every file that `packdata` writes is compared), and random programs of serving, drawn and
shrunk by hypothesis: datasets, fields, crops, views, orders, seeds, ranks, backends, and states that the old version
saved and the new one loads. What differs is printed as the smallest program that shows it; the status is then 1.

It measures nothing: it is what a change of the code's shape is held against.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATA = ROOT / "tests" / "data"
LIMIT_S = 120.0


class Version:
    """A process that runs programs with one version of the project.

    Args:
        name: What to call it.
        paths: Where its packages lie.
        folder: Where it packs.
    """

    def __init__(self, name: str, paths: list[Path], folder: Path) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONWARNINGS": "ignore",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "same_runner.py")],
            cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, program: dict[str, Any]) -> None:
        """Begin a program."""
        assert self._process.stdin is not None
        print(json.dumps(program), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return what came of it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"same.py: the {self.name} version ended: status {self._process.wait()}"
            )
        return json.loads(line)

    def run(self, program: dict[str, Any]) -> Any:
        """Run a program."""
        self.send(program)
        return self.answer()

    def has_target_first(self) -> bool:
        """Tell whether its `packdata merge` takes the target before the sources, as 0.1.0 did at first."""
        usage = self.run({"do": "pack", "words": ["merge", "--help"]}).lower()
        return bool(usage.index(" dst") < usage.index(" src"))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def make_sources(folder: Path) -> None:
    """Write what both versions pack."""
    shutil.copytree(DATA / "photos", folder / "photos")
    rng = np.random.default_rng(0)
    (folder / "arrays").mkdir(parents=True)
    for i in range(9):
        np.save(folder / "arrays" / f"{i}.npy", rng.integers(0, 99, (6 + i % 2, 9, 8), "uint8"))
    shutil.copytree(DATA / "real", folder / "real")
    lines = [
        json.dumps({"text": f"line {i} " * (i % 9), "n": i, "ok": i % 3 == 0}) for i in range(400)
    ]
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")


# Each: name, words (a name in braces is a packing above it, in the version's own folder), kind of what is served.
PACKINGS: list[tuple[str, str, str]] = [
    ("verbatim", "images {src}/photos {dst}", "image"),
    ("sized", "images {src}/photos {dst} --size 96", "image"),
    ("parquet", "images {src}/photos {dst} --size 120 --format parquet --shard-size 50K", "image"),
    ("fixed", "images {src}/photos {dst} --size 96x80 --fit cover --codec raw", "image"),
    ("gray", "images {src}/photos {dst} --size 64 --codec png --gray", "image"),
    ("webp", "images {src}/photos {dst} --size 64 --codec webp", "image"),
    ("yuv", "images {src}/photos {dst} --size 96x96 --fit cover --codec yuv420", "image"),
    ("dct", "images {src}/photos {dst} --size 96x96 --fit cover --codec dct", "image"),
    ("text", "tokens {src}/real/shakespeare.txt {dst} --documents \\n\\n", "tokens"),
    ("lines", "tokens {src}/lines.jsonl {dst} --eod 0 --format lmdb", "tokens"),
    ("bpe", "tokens {src}/real/shakespeare.txt {dst} --train-bpe 300 --val-share 0.1 --documents \\n\\n", ""),
    ("diamonds", "tables {src}/real/diamonds.csv {dst} --target price --standardize", "rows"),
    ("diamonds64", "tables {src}/real/diamonds.csv {dst} --target cut --dtype float64 --format lmdb", "rows"),
    ("taxis", "tables {src}/real/taxis.csv {dst} --target fare --drop tip,total --dates days --missing mean", "rows"),
    ("jsonl", "tables {src}/lines.jsonl {dst}", "rows"),
    ("like", "tables {src}/real/diamonds.csv {dst} --like {diamonds}", "rows"),
    ("volumes", "arrays {src}/arrays {dst}", "array"),
    ("boats", "copy {sized} {dst} --where label=='boats'", "image"),
    ("coded", "copy {verbatim} {dst} --codec png", "image"),
    ("recoded", "copy {sized} {dst} --format parquet --fields image,key", ""),
    ("parts", "split {sized} {dst} --parts a=0.5 b=0.5 --stratify label", ""),
    ("hashed", "split {sized} {dst} --parts a=0.7 b=0.2 --by key-hash", ""),
    ("merged", "merge {parts}/a {parts}/b {dst}", "image"),
]  # fmt: skip


def words_of(line: str, name: str, version: Version, source: Path) -> list[str]:
    """Return the words of a packing for a version."""
    targets = {each: version.folder / each for each, *_ in PACKINGS}
    words = [w.format(src=source, dst=targets[name], **targets) for w in line.split(" ")]
    if words[0] == "merge" and version.has_target_first():
        words = [words[0], words[-1], *words[1:-1]]
    return words


def compare_packings(versions: list[Version], source: Path) -> tuple[list[str], list[str]]:
    """Pack everything with both; return what both packed, and what differs."""
    same, different = [], []
    for name, line, _ in PACKINGS:
        for each in versions:
            words = words_of(line, name, each, source)
            each.send({"do": "pack", "words": words, "target": str(each.folder / name)})
        old, new = (each.answer() for each in versions)
        if old == new and old.get("status") == 0:
            same.append(name)
            continue
        changed = {f for f in {*old.get("files", {}), *new.get("files", {})}
                   if old.get("files", {}).get(f) != new.get("files", {}).get(f)}  # fmt: skip
        what = (
            f"old {old.get('status', old)}, new {new.get('status', new)}, files {sorted(changed)}"
        )
        different.append(f"packdata {line}: {what}")
    return same, different


@st.composite
def programs(draw: Any, packed: list[str]) -> dict[str, Any]:
    """Draw a program of serving."""
    kinds = {name: kind for name, _, kind in PACKINGS}
    name = draw(st.sampled_from([each for each in packed if kinds[each]]))
    kind = kinds[name]
    program: dict[str, Any] = {
        "do": "serve",
        "name": name,
        "augment": "none",
        "epochs": draw(st.integers(1, 2)),
    }
    program["kind"] = draw(st.sampled_from(["shard", "shard", "ram", "decoded"]))
    if kind == "image":
        crops = ["none", "train", "large", "crop", "padded", "views", "flip"]
        program["augment"] = draw(st.sampled_from(crops))
        program["fields"] = draw(
            st.sampled_from([None, ["image", "label", "key", "sample_id"], ["label"]])
        )
    elif kind == "array":
        program["augment"] = draw(st.sampled_from(["none", "nd"]))
    elif kind == "tokens":
        program["kind"] = "windows"
        by = draw(st.sampled_from(["stream", "document"]))
        program["windows"] = {"length": draw(st.sampled_from([16, 64]))}
        program["windows"] |= (
            {"stride": draw(st.sampled_from([16, 500]))} if by == "stream" else {"by": by}
        )
    if kind != "tokens":
        views = st.one_of(
            st.tuples(st.just("select"), st.sampled_from([(0, 9), (1, 12, 2), (0, 1)])),
            st.tuples(st.just("concat"), st.integers(1, 3)),
            st.tuples(
                st.just("split"),
                st.sampled_from([{"fractions": [0.8, 0.2]}, {"fractions": [0.5], "seed": 3}]),
            ),
        )
        program["views"] = draw(st.lists(views, max_size=2))
    small = kind in ("image", "array")
    options: dict[str, Any] = {
        "batch_size": draw(st.sampled_from([1, 3, 5, 16] if small else [64, 1000, 4096]))
    }
    options["num_workers"] = draw(st.sampled_from([0, 1, 2]))
    options["backend"] = draw(st.sampled_from(["auto", "thread", "thread", "subprocess"]))
    options["drop_last"] = draw(st.booleans())
    options["as_dict"] = draw(st.booleans())
    options["seed"] = draw(st.integers(0, 3))
    world = draw(st.sampled_from([1, 1, 2, 3]))
    options |= {"world_size": world, "rank": draw(st.integers(0, world - 1))}
    if not options["drop_last"]:
        options["pad"] = draw(st.sampled_from([True, False]))
    order = draw(st.sampled_from(["shuffle", "shuffle", "shuffle", "Weighted", "ByLength"]))
    if order == "Weighted" and kind != "tokens":
        program["sampler"] = [
            "Weighted",
            {"num_samples": draw(st.integers(1, 40)), "seed": options["seed"]},
        ]
    elif order == "ByLength" and kind != "tokens":
        program["sampler"] = [
            "ByLength",
            {"batch_size": options["batch_size"], "seed": options["seed"]},
        ]
    else:
        options["shuffle"] = draw(st.sampled_from([True, False, "block"]))
    program["loader"] = options
    program["resume"] = draw(st.sampled_from([None, [0, 0], [0, 2], [1, 1]]))
    if program["resume"] and "sampler" not in program:
        program["then"] = {"num_workers": draw(st.sampled_from([0, 2]))}
        if draw(st.booleans()):
            program["then"] |= {"world_size": 2, "rank": 1}
    return program


def compare_serving(program: dict[str, Any], versions: list[Version]) -> None:
    """Run a program with both; the new one goes on from the old one's state, over what the old one packed."""

    def own(version: Version, **more: Any) -> dict[str, Any]:
        where = versions[0] if program["resume"] else version  # a state is of one dataset
        return {**program, "path": str(where.folder / program["name"]), **more}

    old = versions[0].run(own(versions[0]))
    more = {"state": old["states"][0]} if program["resume"] and old.get("states") else {}
    new = versions[1].run(own(versions[1], **more))
    for result in (old, new):
        result.pop("text", None)
        if "error" in result:
            result["error"] = result["error"][0]
    if old.get("after") and not old["after"][0]:
        # A state with no step left was an empty epoch before the first release, and is the next epoch's beginning now.
        for result in (old, new):
            del result["after"], result["states"]
    if old != new:
        parts = [key for key in {*old, *new} if old.get(key) != new.get(key)]
        shown = {
            key: [old.get(key), new.get(key)] for key in parts if key in ("error", "states", "len")
        }
        raise AssertionError(f"{parts} differ: {json.dumps(shown)[:2000]}\n{json.dumps(program)}")


def main() -> int:
    """Compare; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True, help="of the version to compare with")
    parser.add_argument(
        "--examples", type=int, default=200, help="programs of serving (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the programs (default: 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qq",
            "--no-deps",
            "--target",
            str(folder / "wheel"),
        ]
        subprocess.run([*command, str(args.wheel.resolve())], check=True)
        make_sources(folder / "source")
        versions = [
            Version("old", [folder / "wheel"], folder / "old"),
            Version("new", [ROOT, ROOT / "tools"], folder / "new"),
        ]
        packed, different = compare_packings(versions, folder / "source")
        print(f"packings: {len(packed)} the same, {len(different)} not", *different, sep="\n  ")

        @seed(args.seed)
        @settings(max_examples=args.examples, deadline=None, database=None, print_blob=False,
                  report_multiple_bugs=False, suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(programs(packed))
        def serves_the_same(program: dict[str, Any]) -> None:
            compare_serving(program, versions)

        try:
            serves_the_same()
            print(f"serving: {args.examples} programs the same")
        except AssertionError as error:
            different.append("serving")
            print(f"serving: {error}")
        for each in versions:
            each.close()
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
