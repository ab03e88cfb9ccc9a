"""Examples in docstrings do what they show: one test a module, as pytest would look through every file for them."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = [
    ".".join(path.relative_to(above).with_suffix("").parts).removesuffix(".__init__")
    for above, package in ((ROOT, "loaders"), (ROOT / "tools", "packdata"))
    for path in sorted((above / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", NAMES)
def test_examples_do_what_they_show(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(name)).failed
