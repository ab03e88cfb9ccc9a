"""Runs programs for `same.py` with whichever version of the project is first on its path.

Each line of standard input is a program in JSON, each line of standard output its result: digests, in JSON. It uses
only what both versions have.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import loaders
import packdata.cli
from loaders import augment
from loaders.data.view import open_view

CROPS = {
    "none": [],
    "train": [augment.RandomResizedCrop(64), augment.RandomHorizontalFlip()],
    "large": [augment.RandomResizedCrop((80, 112))],
    "crop": [augment.RandomCrop(48), augment.RandomVerticalFlip()],
    "padded": [augment.RandomCrop((700, 300), pad_if_needed=True)],
    "views": [augment.Views(a=[augment.RandomResizedCrop(32)], b=[augment.RandomCrop(40)])],
    "flip": [augment.RandomHorizontalFlip()],
    "nd": [augment.RandomCrop((3, 5, 4)), augment.RandomFlip()],
}


def digest(value: Any) -> Any:
    """Return what stands for a value of a batch: type, shape, and a hash of its bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        kept = hashlib.blake2b(value.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        return [str(value.dtype), list(value.shape), kept]
    if isinstance(value, dict):
        if "document_ids" in value:  # positions of padding were 0
            positions = value["position_ids"] * (value["document_ids"] >= 0)
            value = {**value, "position_ids": positions}
        return {str(name): digest(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return digest(value._asdict())
    if isinstance(value, list | tuple):
        return [digest(each) for each in value]
    if isinstance(value, np.ndarray):
        return digest(torch.from_numpy(np.ascontiguousarray(value)))
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=8).hexdigest()
    return repr(value)


_HASH = re.compile(r"(?<=shard-\d{5})-[0-9a-f]{32}")  # in the names of shards, as they are now


def files(folder: Path) -> dict[str, str]:
    """Return a hash of each file below a folder; of a manifest, without what wrote it, and names of shards plain."""
    found = {}
    with_heads = {path.parent for path in folder.rglob("manifest.json") if holds_jpegs(path)}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.parent in with_heads and path.suffix in (".lmdb", ".parquet"):
                continue  # its rows are compared: shards of before keep no heads of JPEG files
            if path.name == "manifest.json":
                manifest = json.loads(data)
                # Of options those are noted now that were given, in packings before this all of most recipes.
                said = manifest.get("provenance", {})
                source = said.get("source")  # of copies it has a provenance of its own
                manifest["provenance"] = [said.get("recipe"), source if type(source) is str else 0]
                manifest.pop("checksum", None)  # of all of it
                for shard in manifest.get("shards", ()):
                    shard.pop("checksums_xxh3_64", None)  # which the old version has not
                if path.parent in with_heads:
                    manifest["fingerprint"] = digest(rows_of(path.parent))
                    for shard in manifest["shards"]:
                        for name in ("size_bytes", "xxh3_128", "places", "checksums"):
                            del shard[name]
                data = _HASH.sub("", json.dumps(manifest, sort_keys=True)).encode()
            name = _HASH.sub("", str(path.relative_to(folder)))
            found[name] = hashlib.blake2b(data, digest_size=8).hexdigest()
    return found


def holds_jpegs(path: Path) -> bool:
    """Return True for the manifest of a dataset whose shards keep heads of JPEG files."""
    fields = json.loads(path.read_bytes())["schema"]["fields"].values()
    return any(field["kind"] == "image" and field["codec"] == "jpeg" for field in fields)


def rows_of(folder: Path) -> dict[str, list[bytes]]:
    """Return all records of a dataset, by field."""
    view = open_view(folder)
    everyone = np.arange(len(view))
    names = sorted(view.schema.fields)
    return {name: [bytes(row) for row in view.records(name, everyone)] for name in names}


def pack(program: dict[str, Any]) -> Any:
    """Run packdata's command line; return its status, and what it wrote."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = packdata.cli.main(program["words"])
        except SystemExit as error:
            status = error.code
    if "target" not in program:
        return out.getvalue()
    return {"status": status, "files": files(Path(program["target"]))}


def dataset_of(program: dict[str, Any]) -> Any:
    """Return the dataset that a program names."""
    settings = {"augment": CROPS[program["augment"]]}
    if program.get("fields"):
        settings["fields"] = program["fields"]
    kind = program["kind"]
    if kind == "windows":
        dataset = loaders.TokenWindows(program["path"], **program["windows"])
    elif kind == "shard":
        dataset = loaders.ShardDataset(program["path"], **settings)
    else:
        dataset = loaders.RAMDataset(program["path"], decode=kind == "decoded", **settings)
    for name, value in program.get("views", []):
        if name == "select":
            dataset = dataset.select(np.arange(*value))
        elif name == "split":
            dataset = dataset.split(**value)[0]
        elif name == "concat":
            dataset = loaders.concat([dataset] * value)
    return dataset


def serve(program: dict[str, Any]) -> Any:
    """Return digests of the batches that a program serves, and its states."""
    dataset = dataset_of(program)
    options = dict(program["loader"])
    order = program.get("sampler")
    if order:
        name, arguments = order
        if name == "Weighted":
            arguments = {**arguments, "weights": np.arange(1, len(dataset) + 1)}
        if name == "ByLength":
            arguments = {**arguments, "lengths": np.arange(len(dataset)) % 7}
        options["sampler"] = getattr(loaders.sampling, name)(**arguments)
    loader = loaders.DataLoader(dataset, **options)
    states, batches = [], []
    for epoch in range(program["epochs"]):
        for step, batch in enumerate(loader):
            batches.append(digest(batch))
            if (epoch, step) == tuple(program["resume"] or ()):
                states.append(json.loads(json.dumps(loader.state_dict())))
                break
        if states:
            break
    after: list[Any] = []
    if program["resume"] and states:
        given = program.get("state") or states[0]
        rest = {**options, **program.get("then", {})}
        if order:
            rest["sampler"] = options["sampler"]
        again = loaders.DataLoader(dataset_of(program), **rest)
        again.load_state_dict(given)
        for _ in range(2):
            after.append([digest(batch) for batch in again])
            states.append(json.loads(json.dumps(again.state_dict())))
    return {"batches": batches, "after": after, "states": states, "len": len(loader)}


def main() -> None:
    """Answer programs until input ends."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        program = json.loads(line)
        try:
            result = {"pack": pack, "serve": serve}[program["do"]](program)
        except Exception as error:
            result = {"error": [each.__name__ for each in type(error).__mro__], "text": str(error)}
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
