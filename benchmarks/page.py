"""The page of results: each benchmark writes its own part of it, and its figures with every repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_ORDER = (
    "gpu",
    "spine",
    "trust",
    "storage",
    "remote",
    "compare",
    "codecs",
    "tokens",
    "tables",
    "arrays",
    "cluster",
    "shared",
    "train",
)


def write(out: Path, name: str, title: str, told: dict[str, Any], tables: list[str]) -> None:
    """Write ``results/NAME.json`` and ``results/NAME.md``, and ``RESULTS.md`` anew from all parts.

    Args:
        out: Folder of ``RESULTS.md``.
        name: The benchmark's.
        title: Its heading on the page.
        told: What the JSON holds; its ``conditions`` are shown.
        tables: Markdown.
    """
    results = out / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    where = "\n".join(f"- {key}: {value}" for key, value in told["conditions"].items())
    (results / f"{name}.md").write_text("\n".join([f"## {title}", "", where, "", *tables]))
    compose(out)


def compose(out: Path) -> None:
    """Write ``RESULTS.md`` from the parts that are there."""
    parts = [out / "results" / f"{part}.md" for part in _ORDER]
    page = [(HERE / "RESULTS.head.md").read_text(), *(p.read_text() for p in parts if p.exists())]
    (out / "RESULTS.md").write_text("\n".join(part.rstrip() + "\n" for part in page))
