"""The page that shows the way through the code names what is there."""

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:loaders|tools|benchmarks)/[\w/.]*)`", PAGE)

    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_rooms_are_listed_as_imports_point() -> None:
    """The folders of `loaders`, in the order of the layers that are checked."""
    table = PAGE.partition("| `loaders/` |")[2].partition("| files beside")[0]
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = about["tool"]["importlinter"]["contracts"][0]["layers"]

    rooms = re.findall(r"`(\w+)/`(?:,| \|)", table)
    checked = re.findall(r"loaders\.(\w+)", " ".join(layers))

    assert rooms == [name for name in checked if (ROOT / "loaders" / name).is_dir()]


@pytest.mark.parametrize("package", ["loaders", "packdata"])
def test_no_module_needs_itself(package: str) -> None:
    """By whatever way, and for its types neither."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    modules = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}

    in_order = [*TopologicalSorter(modules).static_order()]  # CycleError names those of a cycle

    assert set(in_order) == graph.modules
