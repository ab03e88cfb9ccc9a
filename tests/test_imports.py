import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import loaders
import packdata

ROOT = Path(__file__).parents[1]


def modules_after(*statements: str) -> list[set[str]]:
    """Return the modules that a fresh interpreter has loaded after each statement."""
    code = "import sys" + "".join(f"; {each}; print(*sys.modules)" for each in statements)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in done.stdout.splitlines()[-len(statements) :]]


IMPORTING = [  # one after another in each interpreter, with what none of it loads
    [
        ("import loaders; dir(loaders)", {"torch", "pyarrow", "lmdb", "numpy", "cv2"}),
        ("import loaders.remote.fetcher, obstore", {"torch", "numpy", "http.client"}),
        (
            "import loaders.data.manifest, loaders.data.columns, loaders.data.formats, "
            "loaders.data.formats.checksums, loaders.workers, loaders.buffers",
            {"torch", "pyarrow", "lmdb", "cv2"},
        ),
        ("import loaders.codecs; loaders.register_codec", {"torch", "pyarrow", "lmdb"}),
        ("loaders.ShardDataset", {"pyarrow", "lmdb"}),
    ],
    [
        (
            "import packdata.cli",
            {"pyarrow", "lmdb", "loaders.augment", "loaders.data.view", "packdata.packed"},
        ),
        (
            "import packdata.commands; packdata.cli.COMMANDS.format_help()",
            {"torch", "pyarrow", "matplotlib"},
        ),
    ],
    [("import packdata.formats", {"torch", "cv2"})],
]


@pytest.mark.parametrize("steps", IMPORTING)
def test_importing_a_part_does_not_load_what_it_does_not_need(
    steps: list[tuple[str, set[str]]],
) -> None:
    loaded = modules_after(*(statement for statement, _ in steps))

    assert [found & absent for found, (_, absent) in zip(loaded, steps, strict=True)] == [
        set() for _ in steps
    ]


def test_packing_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    words = ["tables", str(tmp_path / "a.csv"), str(tmp_path / "b"), "--target", "y"]
    run = f"import packdata.cli as c; sys.argv[1:] = {words}; c.main()"

    assert "torch" not in modules_after(run)[0]


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_packing_pictures_imports_no_pandas(tmp_path: Path, format: str) -> None:
    """pyarrow imports it, where it is installed, when it is handed a value in Python."""
    for label in "ab":
        (tmp_path / "a" / label).mkdir(parents=True)
        PIL.Image.new("RGB", (9, 9)).save(tmp_path / "a" / label / "1.png")
    words = ["images", str(tmp_path / "a"), str(tmp_path / "b"), "--format", format]
    run = f"import packdata.cli as c; sys.argv[1:] = {words}; c.main()"

    assert "pandas" not in modules_after(run)[0]


# Prints what is imported on any thread but the main one: a fork, or Ctrl-C, in the middle of it blocks who waits for
# the module. What lmdb imports when it opens its first file, it alone imports.
WATCHED = """
import sys, threading
late = set()
def look(event, args):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        late.add(args[0])
sys.addaudithook(look)
import packdata.cli
sys.argv[1:] = {}
assert packdata.cli.main() in (0, 3)
print(sorted(name for name in late if not name.startswith("lmdb.")))
"""


def test_threads_of_a_packing_import_nothing(tmp_path: Path) -> None:
    pictures, texts, rows = (tmp_path / name for name in ("pictures", "texts", "rows"))
    for folder in (pictures / "a", pictures / "b", texts, rows):
        folder.mkdir(parents=True)
    for number, kind in enumerate(("jpg", "png", "webp", "gif", "tif", "bmp")):
        for label in "ab":
            PIL.Image.new("RGB", (9, 9), (number, 9, 9)).save(
                pictures / label / f"{number}.{kind}"
            )
    (texts / "a.jsonl").write_text('{"text": "abc"}\n{"text": "de"}\n')
    (texts / "b.txt").write_text("abc")
    (rows / "a.csv").write_text("x,y\n1.5,a\n2,b\n")
    commands = (
        ["images", str(pictures)],
        ["images", str(pictures), "--size", "8", "--fit", "cover", "--codec", "dct"],
        ["tokens", str(texts), "--tokenizer", "bytes"],
        ["tables", str(rows), "--target", "y", "--format", "parquet"],
    )
    for number, words in enumerate(commands):
        code = WATCHED.format([*words[:2], str(tmp_path / f"{number}"), *words[2:]])
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


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
    assert set(loaders.__all__) <= set(dir(loaders))
    assert set(packdata.__all__) <= set(dir(packdata))


def test_mypy_sees_no_list_of_names_that_is_computed() -> None:
    """Of ``from loaders import *`` it would find none."""
    body = ast.parse(Path(loaders.__file__).read_text()).body
    seen = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]
    assert "_WHERE" in seen
    assert "__all__" not in seen


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
