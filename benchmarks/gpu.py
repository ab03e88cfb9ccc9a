"""Everything that runs on a GPU, checked and timed in one short run.

    python benchmarks/gpu.py [--out FOLDER] [--only NAME ...]

Each case runs in a process of its own: one that fails, hangs or breaks the device takes no other with it.
Each figure is in FOLDER/gpu.jsonl as soon as it is known, and in gpu.json and gpu.md after its case.

Each case is checked against a reference first (float64 where it computes, the host's own batches
where it moves bytes) and a case that is wrong has no time. Times are the median of CUDA event
intervals after a warm-up; the figures beside them are limits of the same device, measured in the
same run. ``--dry-run cpu`` runs all of it on the CPU at a size that measures nothing.

Exit status: 0 done, 1 a case was wrong or failed, 2 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_cases import CASES, Row, Run, has, shown

HERE = Path(__file__).resolve().parent


def conditions(device: torch.device, *, is_dry: bool) -> dict[str, Any]:
    """Return what the figures belong to."""
    packages = ("torch", "triton", "torchvision", "kornia", "numpy", "nvidia-dali-cuda130")
    packages += tuple(f"nvidia-nvimgcodec-cu{n}" for n in (12, 13))
    found: dict[str, Any] = {n: importlib.metadata.version(n) for n in packages if has(n)}
    found |= {"python": sys.version.split()[0], "device": str(device), "dry_run": is_dry}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["driver"] = _output(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
    found["commit"] = _output("git", "-C", str(HERE), "rev-parse", "HEAD")
    return found


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def table(rows: list[Row]) -> str:
    """Return the figures as Markdown."""
    lines = ["| case | | figure | beside it |", "| --- | --- | ---: | --- |"]
    for row in rows:
        beside = ", ".join(f"{name} {shown(value)}" for name, value in row.beside.items())
        lines.append(f"| {row.case} | {row.what} | {shown(row.value)} {row.unit} | {beside} |")
    return "\n".join(lines)


def run_each(
    names: list[str], out: Path, found: dict[str, Any], limit_s: float, options: list[str]
) -> int:
    """Run each case in a process of its own; write what is there after each."""
    out.mkdir(parents=True, exist_ok=True)
    rows, failed = out / "gpu.jsonl", list[str]()
    rows.write_text("")
    report = write_report(out, found, rows, failed)
    for name in names:
        command = [sys.executable, __file__, "--only", name, "--rows", str(rows), *options]
        try:
            status = f"exit status {subprocess.run(command, timeout=limit_s).returncode}"
        except subprocess.TimeoutExpired:
            status = f"not done after {limit_s:g} s"
        if status != "exit status 0":
            failed.append(name)
            print(f"{name} failed: {status}", file=sys.stderr, flush=True)
        report = write_report(out, found, rows, failed)
    print(report)
    return 1 if failed else 0


def write_report(out: Path, found: dict[str, Any], rows: Path, failed: list[str]) -> str:
    """Write all that is known so far, and return it."""
    known = [Row(**json.loads(line)) for line in rows.read_text().splitlines()]
    result = {"conditions": found, "failed": failed, "rows": [asdict(row) for row in known]}
    (out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "gpu.md").write_text(table(known) + "\n")
    return f"{table(known)}\n\n{json.dumps(result)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="folder for gpu.jsonl, gpu.json and gpu.md")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--limit", type=float, default=300, help="seconds for one case")
    parser.add_argument("--dry-run", choices=["cpu"], help="everything, tiny, on the CPU")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of a case's own process
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        print(
            "no CUDA device: nothing was measured (--dry-run cpu shows what would be)",
            file=sys.stderr,
        )
        return 2
    device, is_dry = torch.device(args.dry_run or "cuda:0"), bool(args.dry_run)
    if args.rows:
        for name in args.only:
            CASES[name](Run(device, is_dry, args.rows))
        return 0
    found = conditions(device, is_dry=is_dry)
    print(json.dumps(found), flush=True)
    options = ["--dry-run", args.dry_run] if is_dry else []
    with tempfile.TemporaryDirectory() as folder:
        return run_each(args.only, args.out or Path(folder), found, args.limit, options)


if __name__ == "__main__":
    sys.exit(main())
