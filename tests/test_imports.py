from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import loaders
import packdata
from loaders.augment import presets
from packdata.commands import derive, look
from packdata.packed import joined_columns

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import loaders; dir(loaders)", {"torch", "pyarrow", "lmdb", "numpy", "cv2"}),
        (
            "import loaders.data.manifest, loaders.data.columns, loaders.data.formats, "
            "loaders.data.formats.checksums, loaders.workers, loaders.buffers",
            {"torch", "pyarrow", "lmdb", "cv2"},
        ),
        (
            "import loaders.codecs, loaders; loaders.register_codec",
            {"torch", "pyarrow", "lmdb"},
        ),
        ("import loaders.data.formats.lmdb, loaders.data.formats.parquet", {"torch", "cv2"}),
        ("import loaders; loaders.ShardDataset", {"pyarrow", "lmdb"}),
        ("import loaders.remote.fetcher, obstore", {"torch", "numpy", "http.client"}),
        (
            "import packdata.cli",
            {"pyarrow", "lmdb", "loaders.augment", "loaders.data.view", "packdata.packed"},
        ),
    ],
)
def test_importing_a_part_does_not_load_what_it_does_not_need(
    statement: str, absent: set[str]
) -> None:
    assert modules_after(statement) & absent == set()


def test_what_commands_name_in_their_help_without_an_import_is_what_there_is() -> None:
    assert look.PRESETS == presets.NAMES
    assert derive.KINDS == joined_columns.KINDS


def test_packing_a_table_does_not_import_pandas_and_a_process_of_others_keeps_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    words = ["tables", str(tmp_path / "a.csv"), str(tmp_path / "b"), "--target", "y"]
    run = f"import packdata.cli as c; sys.argv[1:] = {words}; c.main()"

    assert "pandas" not in modules_after(run)
    series = "import pandas, pyarrow; assert pyarrow.array(pandas.Series([1])).type == 'int64'"
    assert "pandas" in modules_after(
        f"{run.replace('c.main()', 'c.main(sys.argv[1:])')}; {series}"
    )


def names_for_type_checkers() -> dict[str, str]:
    """Return name -> module of the imports that only type checkers see."""
    tree = ast.parse(Path(loaders.__file__).read_text())
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.asname or alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_what_type_checkers_see_and_what_is_found_at_run_time() -> None:
    assert sorted(names_for_type_checkers()) == sorted(loaders.__all__)
    assert sorted(loaders._WHERE) == sorted(loaders.__all__)
    assert set(loaders.__all__) <= set(dir(loaders))


@pytest.mark.parametrize("package", [loaders, packdata])
def test_a_package_lists_its_public_names_alone(package: Any) -> None:
    """What ``<Tab>`` offers: no helpers of the module itself, also after they were used."""
    for name in package.__all__:
        getattr(package, name)

    listed = {name for name in dir(package) if not name.startswith("__")}

    assert listed == set(package.__all__)
    assert "__doc__" in dir(package)


@pytest.mark.parametrize("name", loaders.__all__)
def test_every_public_name_resolves_to_what_type_checkers_see(name: str) -> None:
    module = names_for_type_checkers()[name]

    value = getattr(loaders, name)

    if module == "loaders":
        assert value is import_module(f"loaders.{name}")
    else:
        assert value is getattr(import_module(module), name)
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = loaders.ShardDataSet


def test_the_version_is_the_one_that_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert loaders.__version__ == project["version"]


@pytest.mark.parametrize("package", ["loaders", "packdata"])
def test_type_checkers_are_told_to_use_our_hints(package: str) -> None:
    assert (files(package) / "py.typed").is_file()
