"""The site: every page of the repository as it stands, so that its links hold here and on a code host."""

from __future__ import annotations

from typing import Any

PAGES = {
    "Your data": ["images", "masks", "arrays", "text", "tables", "python"],
    "Before training": ["datasets", "remote", "cluster", "codecs", "coming-from"],
    "Training": ["augmentation", "device", "ranks", "frameworks", "slow"],
    "Proof": [
        "guarantees",
        "results",
        "All figures </benchmarks/RESULTS>",
        "/benchmarks/LOG",
        "/loaders/data/formats/FORMAT",
    ],
    "Reference": ["api", "/ARCHITECTURE", "/CHANGELOG"],
}

project = "loaders"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/*.md",
    "benchmarks/RESULTS.md",
    "benchmarks/LOG.md",
    "loaders/data/formats/*.md",
]
exclude_patterns = [".*", "tests", "tools", "site"]
html_theme = "furo"
html_title = "loaders"
html_extra_path = ["index.html"]
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 3
autodoc_typehints = "none"
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_member_order = "bysource"


def add_contents(app: Any, name: str, source: list[str]) -> None:
    """Append the table of contents to the first page, where a code host would show it as a block."""
    if name != root_doc:
        return
    for title, pages in PAGES.items():
        lines = [page if "/" in page else f"/docs/{page}" for page in pages]
        tree = "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *lines, "```"])
        source[0] += f"\n{tree}\n"


def setup(app: Any) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", add_contents)
