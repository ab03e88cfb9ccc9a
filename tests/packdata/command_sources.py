"""A folder with one small source of every kind, and packed datasets: what tests of the command line name."""

import csv
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from loaders.data.formats import hash_file
from loaders.data.manifest import read_manifest
from loaders.schema import Image
from packdata.tables import pack_tables
from packdata.tokens.plan import TokenOptions, pack_tokens
from packdata.tokens.tokenizer import train_bpe
from tests.manifests import put_manifest
from tests.packdata.packing import FIELDS, pack, pack_samples, sample

_WORDS = "the cat sat on the mat, and the dog ate it. "


def make_sources(folder: Path) -> Path:
    """Fill a folder, and return it; the functions below say with what."""
    _make_pictures(folder)
    _make_arrays(folder)
    _make_tables(folder)
    _make_texts(folder)
    _make_datasets(folder)
    return folder


def _make_pictures(folder: Path) -> None:
    """``photos`` (a folder per class), ``masks``, ``list.csv``, and ``broken``, with one that is no picture."""
    rng = np.random.default_rng(0)
    for i in range(4):
        name, other = f"{('cat', 'dog')[i % 2]}/{i}", f"{('cat', 'dog')[i % 2]}/{(i + 2) % 4}"
        small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        _save(folder / f"photos/{name}.jpg", cv2.resize(small, (50, 40)))
        _save(folder / f"masks/{name}.png", np.full((40, 50), i, np.uint8))
        _save(folder / f"more-masks/{name}.png", np.full((40, 50), 9, np.uint8))
        _append(folder / "list.csv", _row("photos", "jpg", "png", name, other, i))
    shutil.copytree(folder / "photos", folder / "broken")
    (folder / "broken/cat/bad.jpg").write_bytes(b"\xff\xd8 no")
    (folder / "classes.txt").write_text("bird\ncat\ndog\na\nb\n")


def _make_arrays(folder: Path) -> None:
    """``scans`` of float64, ``scan-masks``, ``maps`` of four axes, ``npz`` of three arrays each, ``cases.csv``."""
    for i in range(4):
        name, other = f"{('a', 'b')[i % 2]}/{i}", f"{('a', 'b')[i % 2]}/{(i + 2) % 4}"
        scan, mask = np.arange(24.0).reshape(2, 3, 4) + i, np.full((2, 3, 4), i, np.uint8)
        for place, array in (("scans", scan), ("scan-masks", mask), ("more-masks", mask + 5)):
            (folder / place / name).parent.mkdir(parents=True, exist_ok=True)
            np.save(folder / place / f"{name}.npy", array)
        _append(
            folder / "cases.csv", _row("scans", "npy", "npy", name, other, i) | _scan_masks(name)
        )
    (folder / "maps").mkdir()
    (folder / "npz").mkdir()
    np.save(folder / "maps/0.npy", np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5))
    volume = np.arange(24.0).reshape(2, 3, 4)
    np.savez(folder / "npz/0.npz", image=volume, other=volume + 1, marks=volume.astype(np.uint8))
    shutil.copytree(folder / "scans", folder / "bad-scans")
    (folder / "bad-scans/a/9.npy").write_bytes(b"no array")


def _scan_masks(name: str) -> dict[str, str]:
    return {"mask": f"scan-masks/{name}.npy"}


def _row(place: str, suffix: str, mask: str, name: str, other: str, i: int) -> dict[str, str]:
    return {
        "path": f"{place}/{name}.{suffix}",
        "second": f"{place}/{other}.{suffix}",
        "mask": f"masks/{name}.{mask}",
        "marks": f"more-masks/{name}.{mask}",
        "label": name[0],
        "species": "ab"[i // 2],
    }


def _make_tables(folder: Path) -> None:
    """``t.csv``, one like it, and some with dates, gaps, text among numbers, semicolons, no header, too many cells."""
    rows = [{"x": i, "y": i / 8, "zip": i % 5, "kind": "pqr"[i % 3]} for i in range(200)]
    _write(folder / "t.csv", rows)
    _write(folder / "like.csv", [row | {"kind": "r"} for row in rows[:50]])
    _write(folder / "dates.csv", [{"day": f"2024-01-{i + 1:02}", "x": i} for i in range(20)])
    _write(folder / "gaps.csv", [{"x": i, "y": i if i % 4 else ""} for i in range(20)])
    _write(folder / "odd.csv", [{"x": i, "y": i if i % 4 else "many"} for i in range(20)])
    (folder / "semicolons.csv").write_text("x;y\n1;2\n3;4\n")
    (folder / "values.csv").write_text("1,a\n2,b\n3,c\n4,d\n")
    (folder / "tabs.csv").write_text("x\ty\n1\t2\n3\t4\n")
    (folder / "ragged.csv").write_text("x,y\n1,2\n3,4,5\n6,7\n")
    (folder / "empty.csv").write_text("")
    pack_tables(folder / "t.csv", folder / "table", target=("kind",), standardize=True)
    pack_tables(folder / "t.csv", folder / "train", standardize=True)


_CHAT = {
    "numbers": [1, 2, 3],
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    "turns": [{"role": "assistant", "content": "b"}],
}


def _make_texts(folder: Path) -> None:
    """``a.txt``, ``rows.jsonl``, ``ids.npy``, ``ids.bin``, ``latin.txt``, ``tokenizer.json``, ``stream``."""
    lines = [f"{i}: {_WORDS * (i % 4 + 1)}" for i in range(40)]
    (folder / "a.txt").write_text("\n".join(lines))
    _append_lines(folder / "rows.jsonl", ({"text": x, "body": x[::-1], **_CHAT} for x in lines))
    template = "{{ strftime_now('%d %b') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "chat.jinja").write_text(template)
    _append_lines(folder / "bad.jsonl", [{"text": "one"}, {"no": 1}, {"text": "two"}])
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "latin.csv").write_bytes(b"caf\xe9,x\n1,2\n")
    ids = np.arange(300, dtype=np.uint32)
    np.save(folder / "ids.npy", ids % 90)
    ids.tofile(folder / "ids.bin")
    (folder / "tokenizer.json").write_bytes(train_bpe([_WORDS], 270))
    pack_tokens(folder / "a.txt", folder / "stream", TokenOptions(documents="line"))


def _make_datasets(folder: Path) -> None:
    """``packed``, ``copy`` of it, ``other``, ``more``, ``flipped``, ``undecodable``; folders ``empty``, ``taken``."""
    fields = ["image", "label", "key", "score", "pixels"]
    for name, first, seed in (("packed", 0, 0), ("copy", 0, 0), ("other", 0, 1), ("more", 8, 0)):
        pack_samples(folder / name, 8, first=first, seed=seed, fields=fields, per_shard=2)
    bad: dict[str, Any] = sample(0) | {"image": b"no picture"}
    pack(folder / "undecodable", {"image": Image(codec="png"), "label": FIELDS["label"]}, [bad])
    _make_flipped(folder / "flipped")
    for name in ("empty", "taken"):
        (folder / name).mkdir()
    (folder / "taken/thesis.tex").write_text("years of work")


def _make_flipped(folder: Path) -> None:
    """Write a dataset whose file is as its manifest says, but one of whose rows is not."""
    manifest = read_manifest(pack_samples(folder, 4, fields=["label", "pixels"]))
    path = folder / manifest.shards[0].file
    data = bytearray(path.read_bytes())
    data[data.find(sample(1)["pixels"].tobytes()) + 7] ^= 1
    path.write_bytes(data)
    shard = manifest.shards[0]._replace(xxh3_128=hash_file(path))
    put_manifest(folder, replace(manifest, shards=(shard,)))


def _save(path: Path, picture: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), picture)


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        _append(path, row)


def _append(path: Path, row: Mapping[str, Any]) -> None:
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))
