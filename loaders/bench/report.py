"""Figures as people read them, in 80 columns, and as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loaders.errors import LoadersError
from loaders.system.limits import text, usable_cores
from loaders.text import describe_size, in_seconds, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.measure import Config, Result
    from loaders.bench.sweep import Sweep

_MAX_COLUMNS = 9  # of a table, to fit 80 letters
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_NOT_THE_USERS = (
    *(f"{folder}{os.sep}" for folder in [Path(__file__).parents[1], *_LIBRARIES]),
    "<",  # made while it runs
)


def in_bytes(value: float | None) -> str:
    """Return a size, or a dash for none."""
    return "-" if value is None else describe_size(value)


def table(sweep: Sweep) -> str:
    """Return a sweep as lines of text: what all settings share stands above, the chosen one is marked."""
    configs = [result.config for result in sweep.results]
    columns: dict[str, list[str]] = {
        "": ["*" if result is sweep.best else "" for result in sweep.results],
        "workers": [str(config.num_workers) for config in configs],
    }
    shared = []
    for head, values in _settings(configs).items():
        if len(set(values)) > 1:
            columns[head] = values
        else:
            shared += [f"{head} {values[0]}"] * (values[0] != "-")
    columns |= {
        name: list(map(_cell(name, sweep), sweep.results))
        for name in _figures(sweep, len(columns))
    }
    above = [*shared, f"page cache {sweep.cache}", "range over the repeats"]
    lines = [", ".join(above)]
    lines += aligned([tuple(columns), *zip(*columns.values(), strict=True)])
    lines.append(f"* chosen: {sweep.best.config}")
    failed = (f"failed: {r.config}: {last_line(r.error)}" for r in sweep.results if r.error)
    return "\n".join([*lines, *failed, *(f"note: {note}" for note in sweep.notes)])


def _settings(configs: list[Config]) -> dict[str, list[str]]:
    return {
        "batch": [str(config.batch_size) for config in configs],
        "backend": [config.backend for config in configs],
        "prefetch": [str(config.prefetch or "-") for config in configs],
    }


def _figures(sweep: Sweep, num_settings: int) -> list[str]:
    names = ["samples/s", "range", "first", "p99 wait", "memory"]
    names += ["tokens/s"] if sweep.tokens else []
    names += ["read"] if sweep.cache == "cold" else []
    return (
        names if len(names) + num_settings <= _MAX_COLUMNS else [n for n in names if n != "first"]
    )


def _cell(name: str, sweep: Sweep) -> Any:
    def range_of(result: Result) -> str:
        low, high = result.spread
        return "-" if not result.runs else f"{short(low)}-{short(high)}"

    return {
        "samples/s": lambda r: number(r.rate if r.runs else math.nan),
        "range": range_of,
        "first": lambda r: in_seconds(r.median("first_batch_s")),
        "p99 wait": lambda r: in_seconds(r.latency_s(0.99)),
        "memory": lambda r: in_bytes(r.pss_bytes),
        "tokens/s": lambda r: short(r.rate * sweep.tokens),
        "read": lambda r: in_bytes(r.read_bytes),
    }[name]


def short(value: float) -> str:
    """Return a rate in few letters.

    Example:
        >>> short(1234567.0), short(12345.0), short(12.3)
        ('1.23M', '12.3k', '12.3')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def last_line(text: str | None) -> str:
    """Return the last line of a text: of a worker process's error the one that tells."""
    return ((text or "").strip().splitlines() or [""])[-1]


def of_error(error: BaseException) -> str:
    """Return an error in one line; ours need no name."""
    if isinstance(error, LoadersError):
        return str(error)
    return f"{type(error).__name__}: {last_line(str(error))}"


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first line of the user's own code on; empty if there is none."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        trace = trace.tb_next
    return ""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def conditions() -> dict[str, Any]:
    """Return where and with what something was measured."""
    return {
        "machine": cpu_name(),
        "cores_usable": usable_cores(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def cpu_name() -> str:
    """Return the processor's name."""
    lines = (text(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def as_json(value: Any) -> str:
    """Return JSON; what is not a number becomes null."""
    return json.dumps(_clean(value), indent=1)


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _clean(inner) for key, inner in value.items()}
    return list(map(_clean, value)) if isinstance(value, list | tuple) else value
