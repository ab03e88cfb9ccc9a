"""Conditions of ``copy --where``: what they mean, and what is refused."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.data.view import View, open_view
from loaders.errors import SchemaError, ShardError
from loaders.schema import Array, Field, Label, MultiLabel, Text
from packdata.packed.derive import CopyOptions, copy_dataset
from packdata.packed.where import matching
from packdata.tables import pack_tables
from tests.packdata.packing import pack, pack_samples
from tests.packdata.reading import PackedReader
from tests.refusals import accepted

FIELDS: dict[str, Field] = {
    "n": Label(),
    "label": Label(("cat", "dog", "1")),
    "x": Array("int64"),
    "y": Array("float64"),
    "s": Text(),
    "tags": MultiLabel(("day", "night")),
    "pair": Array("int64", dims=(2,)),
}
XS, YS, STRINGS = [-3, -1, 0, 1, 2, 3], [-3.0, -0.5, 0.0, 1.0, 2.5, 3.0], ["", "a", "ab"]


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """Samples of every pair of numbers, each with some text."""
    rows: list[dict[str, Any]] = [
        {"n": i % 3 - 1, "label": i % 3, "x": x, "y": y, "s": STRINGS[(i + j) % 3]}
        | {"tags": [j % 2, i % 2], "pair": [i, j]}
        for i, x in enumerate(XS)
        for j, y in enumerate(YS)
    ]
    return open_view(pack(tmp_path_factory.mktemp("where") / "a", FIELDS, rows, per_shard=10))


def kept(view: View, where: str) -> list[int]:
    return np.flatnonzero(matching(view, where)).tolist()


def test_copy_takes_the_samples_that_meet_a_condition(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 20)

    for where, expected in [
        ('label == "cat"', [i for i in range(20) if i % 3 == 1]),
        ("label == 1 and not score < 2", [i for i in range(20) if i % 3 == 1 and i / 4 >= 2]),
        (
            'label in ("cat", "dog") or width > 25',
            [i for i in range(20) if i % 3 or 20 + i % 7 > 25],
        ),
        ('key in ["cat/001", "dog/002"]', [1, 2]),
        ('"00" in key and label != "bird"', [1, 2, 4, 5, 7, 8]),
        ('"night" in tags', [i for i in range(20) if not i % 2]),
        ("3 <= score < 4", [12, 13, 14, 15]),
        ("score > -1.5", list(range(20))),
    ]:
        copy_dataset(folder, tmp_path / "b", CopyOptions(where=where), overwrite=True)
        keys = PackedReader(tmp_path / "b").keys()
        assert [int(key[-3:]) for key in keys] == expected, where


_NUMBER = st.one_of(st.sampled_from(["x", "y"]), st.integers(-3, 3).map(repr))
_COMPARISON = st.builds(
    lambda first, rest: " ".join([first, *(f"{op} {other}" for op, other in rest)]),
    _NUMBER,
    st.lists(
        st.tuples(st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _NUMBER),
        min_size=1,
        max_size=3,
    ),
)
_IN = st.builds(
    lambda n, op, a, b: f"{n} {op} ({a}, {b})",
    _NUMBER,
    st.sampled_from(["in", "not in"]),
    _NUMBER,
    _NUMBER,
)
_CONDITION = st.recursive(
    _COMPARISON | _IN | st.sampled_from(["'a' in s", "s not in 'abc'", "s == 'ab'"]),
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=8,
)


def test_a_text_in_a_text_is_so_for_all_samples_or_none(view: View) -> None:
    assert matching(view, "'a' in 'abc'").all()
    assert not matching(view, "'x' in 'abc'").any()


@given(_CONDITION)
def test_conditions_mean_what_python_means(view: View, text: str) -> None:
    columns = {name: view.column(name).tolist() for name in "xy"}
    texts = [view.sample(i, ["s"])["s"] for i in range(len(view))]
    code = compile(ast.parse(text, mode="eval"), "", "eval")

    expected = [
        bool(eval(code, {}, {"x": x, "y": y, "s": s}))
        for x, y, s in zip(columns["x"], columns["y"], texts, strict=True)
    ]

    assert matching(view, text).tolist() == expected


def test_labels_compare_with_numbers_and_names(view: View) -> None:
    numbers, x = view.column("label"), view.column("x")

    for where, expected in {
        "label == 'cat'": numbers == 0,
        "label != 'dog'": numbers != 1,
        "label in ('cat', 1)": numbers < 2,
        "label == '1'": numbers == 2,
        "label < 2": numbers < 2,
        "label == x": numbers == x,
        "n == -1": view.column("n") == -1,
    }.items():
        assert matching(view, where).tolist() == expected.tolist(), where


def test_nan_equals_nothing(tmp_path: Path) -> None:
    rows = [{"a": 1.0}, {"a": float("nan")}]
    view = open_view(pack(tmp_path / "a", {"a": Array("float64")}, rows))

    assert [kept(view, where) for where in ("a == a", "a != a", "not a > 0")] == [[0], [1], [1]]
    assert kept(view, "a in (1, a)") == [0]


def test_a_float32_equals_the_number_that_was_stored(tmp_path: Path) -> None:
    rows = [{"a": value} for value in (0.3, 0.1, 1e-3)]
    view = open_view(pack(tmp_path / "a", {"a": Array("float32")}, rows))

    assert [kept(view, f"a {op} 0.3") for op in ("==", "<", ">=")] == [[0], [1, 2], [0]]


def test_any_column_is_named_in_backticks(tmp_path: Path) -> None:
    frame = pd.DataFrame({"income, EUR": [1, 2, 3], "in": ["a", "b", "a"], "_0": [5, 6, 7]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pack_tables(tmp_path / "t.csv", tmp_path / "a")
    view = open_view(tmp_path / "a")

    assert kept(view, "`income, EUR` > 1 and `in` == 'a' and `_0` > 6") == [2]
    assert kept(view, "'`' in `in` or _0 == 5") == [0]
    assert kept(view, "`in` == 'b'") == [1]
    assert kept(view, "`in` > 'aa'") == [1]
    with pytest.raises(SchemaError):
        matching(view, "`income, USD` > 1")


def test_a_condition_on_a_standardized_column_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 6.0], "kind": ["x", "y", "x"]})
    pack_tables(frame, tmp_path / "a", standardize=True)
    view = open_view(tmp_path / "a")

    assert kept(view, "kind == 'x'") == [0, 2]
    with pytest.raises(SchemaError, match=r"'a' is stored as \(value - 3\) / 2.16025: use "):
        matching(view, "a > 2")


NO_CONDITIONS = [
    "label",
    "tags",
    "not s",
    "x > 1 and `y`",
    "1",
    "__import__('os')",
    "s.upper() == 'X'",
    "s[0] == 'c'",
    "(lambda: 1)()",
    "[k for k in s]",
    "x * 2 > 3",
    "f'{s}' == 'a'",
    "(y := 3)",
    "x if label else y",
    "label is 3",
    "s == b'x'",
    "s == None",
    "x == 1j",
    "...",
    "label ==",
    "a; b",
    "(" * 300 + ")" * 300,
    "x" * 20_000,
    "\0",
    "",
    "label = 'cat'",
    "(x < 1) == (y < 1)",
    f"y > -1{'0' * 400}",
]
MISFITS = [
    "pair == 3",
    "klass == 3",
    'label == "catt"',
    "label < 'dog'",
    "'cat' >= label",
    'label in ("cat", "cow")',
    "label == s",
    '"dusk" in tags',
    'tags == "day"',
    '"day" != tags',
    'tags in ("day", "night")',
    '"day" in tags in ("day", "night")',
    "1 in tags",
    '("day", "night") in tags',
    "tags in tags",
    "not tags < 3",
    "y in x",
    "label in 3",
    "1 < 'a'",
    "(1, 2)",
    "(1, 2) == x",
    *("n != '1'", "'-1.5' < n", "n == 'cat'", "n in (0, 'cat')", "0 < x != 'a'", "'1' in x"),
    *("s == 5", "s not in [5, 'b']", "-5 != s", "5 in s", "x == s"),
]


def test_what_is_no_condition_is_refused(view: View) -> None:
    assert accepted(SchemaError, lambda where: matching(view, where), NO_CONDITIONS) == []
    with pytest.raises(SchemaError, match=r"'a b > 1' cannot be read: .*`income, EUR` > 3"):
        matching(view, "a b > 1")


def test_what_is_never_true_is_refused(view: View) -> None:
    """A class that is misspelled, or a number beside a text: they would select nothing, or with != all."""
    assert accepted(SchemaError, lambda where: matching(view, where), MISFITS) == []


def test_a_damaged_shard_is_no_mistake_of_the_condition(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 20)
    shard = sorted(folder.glob("shard-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])

    with pytest.raises(ShardError, match=re.escape(str(shard))):
        matching(open_view(folder), "label == 1")
