"""Figures as people read them, and as JSON."""

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
from loaders.limits import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.bench.measure import Result
    from loaders.bench.sweep import Sweep

_COLUMNS = (
    "workers", "batch", "backend", "prefetch", "samples/s", "range", "MB/s", "first batch",
    "wait p50", "p99", "CPU s/1000", "peak PSS", "read", "",
)  # fmt: skip
_MAX_LETTERS = 90  # of an error in a row
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_NOT_THE_USERS = (
    *(f"{folder}{os.sep}" for folder in [Path(__file__).parents[1], *_LIBRARIES]),
    "<",  # made while it runs
)


def number(value: float) -> str:
    """Return three digits, or a whole number.

    Example:
        >>> number(12345.6), number(3.14159), number(0.0)
        ('12,346', '3.14', '0')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def in_bytes(value: float | None) -> str:
    """Return a size.

    Example:
        >>> in_bytes(1_500_000), in_bytes(None)
        ('1.5 MB', '-')
    """
    if value is None:
        return "-"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{number(value / size)} {unit}"
    return f"{value:.0f} B"


def in_seconds(value: float) -> str:
    """Return a time.

    Example:
        >>> in_seconds(0.0123), in_seconds(2.5)
        ('12.3 ms', '2.5 s')
    """
    if math.isnan(value):
        return "-"
    if value >= 1:
        return f"{number(value)} s"
    return f"{number(value * 1e3)} ms" if value >= 1e-3 else f"{number(value * 1e6)} us"


def table(sweep: Sweep) -> str:
    """Return a sweep as lines of text; the chosen configuration is marked."""
    best = sweep.best
    rows = [_row(result, result is best, sweep.is_repeated) for result in sweep.results]
    rows = [_COLUMNS, *rows]
    if sweep.tokens:
        rates = [number(result.rate * sweep.tokens) for result in sweep.results]
        rows = [
            (*row[:5], rate, *row[5:]) if len(row) == len(_COLUMNS) else row
            for row, rate in zip(rows, ["tokens/s", *rates], strict=True)
        ]
    return "\n".join(aligned(rows) + [f"note: {note}" for note in sweep.notes])


def _row(result: Result, is_best: bool, is_repeated: bool) -> Sequence[str]:
    config = result.config
    prefetch = "-" if config.prefetch is None else str(config.prefetch)
    head = (str(config.num_workers), str(config.batch_size), config.backend, prefetch)
    error = last_line(result.error or "")[:_MAX_LETTERS]
    if not result.runs:
        return (*head, f"failed: {error}")
    remarks = ["<- chosen"] * is_best
    if is_repeated and config.num_workers > 1:
        remarks.append(f"each sample {config.num_workers} times")
    if result.error is not None:
        remarks.append(f"failed in run {len(result.runs) + 1}: {error}")
    low, high = result.spread
    reads = [run.read_bytes for run in result.runs if run.read_bytes is not None]
    return (
        *head,
        number(result.rate),
        f"{number(low)} to {number(high)}",
        number(result.mb_per_s),
        in_seconds(result.median("first_batch_s")),
        in_seconds(result.latency_s(0.5)),
        in_seconds(result.latency_s(0.99)),
        number(result.median("cpu_s_per_1000")),
        in_bytes(result.peak_pss_bytes),
        in_bytes(max(reads, default=None)),
        "; ".join(remarks),
    )


def last_line(text: str) -> str:
    """Return the last line of a text: of a worker process's error the one that tells."""
    return (text.strip().splitlines() or [""])[-1]


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
    """Return rows as lines, columns right-aligned; short rows end early, remarks have no head."""
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    has_remarks = rows[0][-1] == ""
    return [
        "  ".join(
            cell
            if i == len(row) - 1 and (has_remarks or len(row) != len(rows[0]))
            else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
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


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def as_json(value: Any) -> str:
    """Return JSON; what is not a number becomes null."""
    return json.dumps(_clean(value), indent=1)


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value
