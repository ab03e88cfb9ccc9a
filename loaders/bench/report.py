"""Figures as people read them, and as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loaders.errors import LoadersError
from loaders.system.limits import text, usable_cores
from loaders.text import describe_size, in_seconds, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.sweep import Sweep


def table(sweep: Sweep) -> str:
    """Return a sweep as lines of text: what all settings share stands above, the chosen one is marked."""
    results, above = sweep.results, list[str]()
    columns = {
        "": ["*" if r is sweep.best else "" for r in results],
        "workers": [str(r.config.num_workers) for r in results],
    }
    for setting in ("batch_size", "backend", "prefetch"):
        name = setting.removesuffix("_size")
        values = [str(getattr(r.config, setting) or "-") for r in results]
        if len(set(values)) > 1:
            columns[name] = values
        elif values[0] != "-":
            above.append(f"{name} {values[0]}")
    columns |= {
        "samples/s": [number(r.rate if r.runs else math.nan) for r in results],
        "range": ["-".join(map(number, r.spread)) if r.runs else "-" for r in results],
        "first": [in_seconds(r.median("first_batch_s")) for r in results],
        "p99 wait": [in_seconds(r.latency_s(0.99)) for r in results],
        "memory": [describe_size(r.most("pss_bytes")) for r in results],
    }
    if sweep.tokens:
        columns["tokens/s"] = [number(r.rate * sweep.tokens) for r in results]
    rows = zip(*columns.values(), strict=True)
    lines = [", ".join([*above, "range over the repeats"])]
    lines += aligned([tuple(columns), *rows])
    lines.append(f"* chosen: {sweep.best.config}")
    lines += [f"failed: {r.config}: {last_line(r.error)}" for r in results if r.error]
    return "\n".join([*lines, *(f"note: {note}" for note in sweep.notes)])


def last_line(text: str | None) -> str:
    """Return the last line of a text: of a worker process's error the one that tells."""
    return ((text or "").strip().splitlines() or [""])[-1]


def of_error(error: BaseException) -> str:
    """Return an error in one line; ours need no name."""
    if isinstance(error, LoadersError):
        return str(error)
    return f"{type(error).__name__}: {last_line(str(error))}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def conditions() -> dict[str, Any]:
    """Return where and with what something was measured."""
    lines = (text(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": names[0] if names else platform.machine(),
        "cores_usable": usable_cores(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def as_json(value: Any) -> str:
    """Return JSON; what is not a number becomes null."""
    return json.dumps(_clean(value), indent=1)


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _clean(inner) for key, inner in value.items()}
    return list(map(_clean, value)) if isinstance(value, list | tuple) else value
