import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaders.errors import SchemaError
from loaders.schema import (
    FIELD_KINDS,
    MAX_RECORD_NBYTES,
    Array,
    Boxes,
    Bytes,
    Categories,
    Features,
    Field,
    Image,
    Images,
    Json,
    Keypoints,
    Label,
    Mask,
    MultiLabel,
    Schema,
    Text,
    Tokens,
    field_from_json,
)
from tests.refusals import accepted

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
FIELDS: list[Field] = [
    Image(),
    Image(channels=1, size=(7, 9), dtype="uint16", codec="png"),
    Image(channels=64, size=(1, 1), codec="raw"),
    Images(),
    Images(channels=1, size=(7, 9), dtype="uint16", codec="png"),
    Mask(),
    Mask(size=(3, 4), dtype="int64", codec="raw"),
    Array(),
    Array(dtype="float16", dims=(2, 3)),
    Array(dtype="bool", dims=(None, 3, None)),
    Features(columns=("a", "two words", "ü")),
    Features(
        dtype="float16",
        columns=("a_year", "b"),
        sources=(("a", "year"), ("b", "number")),
        mean=(0.5, 1.0),
        std=(1.0, 0.0),
        least=(0.0, 1.0),
        most=(1.0, 1.0),
        missing="mean",
        standardized=True,
    ),
    Categories(columns=("cut", "color"), vocabularies=(("Ideal", "Good"), ())),
    Categories(columns=("zip",), vocabularies=(("007",),), dtype="uint32"),
    Label(),
    Label(classes=("cat", "Hund", "猫", "")),
    MultiLabel(classes=("a", "b")),
    Boxes(),
    Keypoints(3, flip_pairs=((0, 1),)),
    Text(),
    Json(),
    Bytes(),
    Bytes(codec="somebody's"),
    Tokens(),
    Tokens(dtype="uint8", row_tokens=2, vocab_size=256, tokenizer="bytes"),
    Tokens(vocab_size=9, eod=8, tokenizer="tokenizer-ab.json", tokenizer_xxh3_128="0" * 32),
]


def test_there_is_an_example_of_each_kind() -> None:
    assert {field.kind for field in FIELDS} == set(FIELD_KINDS)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_a_field_survives_json_and_pickle(field: Field) -> None:
    described = json.loads(json.dumps(field.to_json()))

    assert field_from_json(described) == field
    assert type(field_from_json(described)) is type(field)
    assert pickle.loads(pickle.dumps(field)) == field
    assert hash(pickle.loads(pickle.dumps(field))) == hash(field)


def test_a_field_cannot_be_changed() -> None:
    assert accepted(AttributeError, lambda field: setattr(field, "codec", "raw"), FIELDS) == []


@given(
    dtype=st.sampled_from([*DTYPES, *FLOATS]),
    dims=st.lists(st.none() | st.integers(1, 9), max_size=5),
)
def test_an_array_survives_json_and_knows_its_size(dtype: str, dims: list[int | None]) -> None:
    field = Array(dtype=dtype, dims=tuple(dims))

    assert field_from_json(json.loads(json.dumps(field.to_json()))) == field
    assert field.shape == tuple(dims)
    assert field.is_fixed == (None not in dims)
    whole = [n for n in dims if n is not None]
    expected = np.empty(whole, dtype).nbytes if field.is_fixed else None
    assert field.record_nbytes == expected


@pytest.mark.parametrize(
    ("field", "shape", "nbytes"),
    [
        (Image(), (3, None, None), None),
        (Image(size=(5, 7)), (3, 5, 7), None),  # encoded: the shape is fixed, the size is not
        (Image(size=(5, 7), codec="raw"), (3, 5, 7), 105),
        (Image(size=(5, 7), codec="raw", dtype="uint16", channels=1), (1, 5, 7), 70),
        (Image(codec="raw"), (3, None, None), None),
        (Mask(size=(5, 7), codec="raw", dtype="int32"), (5, 7), 140),
        (Mask(size=(5, 7)), (5, 7), None),
        (Array(), (), 4),
        (Array(dims=(None,)), (None,), None),
        (Label(), (), 8),
        (Label(codec="somebody's"), (), None),
        (MultiLabel(classes=("a", "b", "c")), (3,), 3),
        (Boxes(), (None, 4), None),
        (Text(), None, None),
        (Json(), None, None),
        (Bytes(), None, None),
        (Bytes(codec="raw"), None, None),
    ],
    ids=str,
)
def test_shapes_and_sizes(
    field: Field, shape: tuple[int | None, ...] | None, nbytes: int | None
) -> None:
    assert field.shape == shape
    assert field.record_nbytes == nbytes
    assert field.is_fixed == (shape is not None and None not in shape)


@pytest.mark.parametrize(
    ("field", "dtype"),
    [(Label(), "int64"), (MultiLabel(classes=("a",)), "uint8"), (Boxes(), "float32")],
    ids=str,
)
def test_kinds_of_one_dtype_do_not_store_it(field: Field, dtype: str) -> None:
    assert field.dtype == dtype
    assert "dtype" not in field.to_json()
    with pytest.raises(SchemaError):
        field_from_json(field.to_json() | {"dtype": "float64"})


@pytest.mark.parametrize(
    "dtype", [np.uint16, np.dtype("uint16"), "uint16", "<u2", ">u2"], ids=repr
)
def test_a_dtype_is_kept_by_its_name(dtype: Any) -> None:
    assert Array(dtype=dtype).dtype == "uint16"


CONTRADICTIONS: list[tuple[Any, dict[str, Any]]] = [
    (Image, {"channels": 0}),
    (Image, {"channels": 65}),
    (Image, {"channels": True}),
    (Image, {"channels": 3.0}),
    (Image, {"channels": "3"}),
    (Image, {"channels": None}),
    (Image, {"size": (0, 5)}),
    (Image, {"size": (-1, 5)}),
    (Image, {"size": (2.0, 5)}),
    (Image, {"size": (True, 5)}),
    (Image, {"size": (5,)}),
    (Image, {"size": 5}),
    (Keypoints, {"num": 0}),
    (Image, {"size": "ab"}),
    (Image, {"size": (1 << 20, 1 << 20)}),
    (Image, {"dtype": "float32"}),
    (Image, {"dtype": "int8"}),
    (Mask, {"dtype": "float32"}),
    (Mask, {"dtype": "bool"}),
    (Mask, {"size": (10**9, 10**9)}),
    (Array, {"dtype": "complex64"}),
    (Array, {"dtype": "object"}),
    (Array, {"dtype": "str"}),
    (Array, {"dtype": "datetime64[s]"}),
    (Array, {"dtype": "longdouble"}),
    (Array, {"dtype": "(2,3)u1"}),
    (Array, {"dtype": "u1,u1"}),
    (Array, {"dtype": "i4,("}),  # numpy parses some strings as Python, and raises SyntaxError
    (Array, {"dtype": "\ud800"}),
    (Array, {"dtype": "bfloat16"}),
    (Array, {"dtype": "no such type"}),
    (Array, {"dtype": ""}),
    (Array, {"dtype": None}),
    (Array, {"dtype": 5}),
    (Array, {"dims": (0,)}),
    (Array, {"dims": (None, 0)}),
    (Array, {"dims": (-1,)}),
    (Array, {"dims": (2.0,)}),
    (Array, {"dims": (True,)}),
    (Array, {"dims": ((1,),)}),
    (Array, {"dims": "ab"}),
    (Array, {"dims": 5}),
    (Array, {"dims": (1,) * 33}),
    (Array, {"dims": (1 << 30, 2)}),
    (Array, {"dims": (10**30,)}),
    (Label, {"classes": ()}),
    (Label, {"classes": ("a", "a")}),
    (Label, {"classes": "abc"}),
    (Label, {"classes": 5}),
    (Label, {"classes": ("a", 1)}),
    (MultiLabel, {}),
    (MultiLabel, {"classes": None}),
    (MultiLabel, {"classes": ("a", "a")}),
    (Features, {}),
    (Features, {"columns": "ab"}),
    (Features, {"columns": ("a", "a")}),
    (Features, {"columns": ("a",), "dims": (2,)}),
    (Features, {"columns": ("a",), "dtype": "int32"}),
    (Features, {"columns": ("a",), "mean": (1.0, 2.0)}),
    (Features, {"columns": ("a",), "std": (float("nan"),)}),
    (Features, {"columns": ("a",), "standardized": True}),
    (Features, {"columns": ("a",), "missing": "zero"}),
    (Features, {"columns": ("a",), "sources": (("a",),)}),
    (Categories, {}),
    (Categories, {"columns": ("a",)}),
    (Categories, {"columns": ("a",), "vocabularies": (("x", "x"),)}),
    (Categories, {"columns": ("a",), "vocabularies": (("x",),), "dtype": "int8"}),
    (Categories, {"columns": ("a",), "vocabularies": (tuple(map(str, range(256))),)}),
    (Tokens, {"dtype": "int32"}),
    (Tokens, {"row_tokens": 1}),
    (Tokens, {"dtype": "uint8", "vocab_size": 257}),
    (Tokens, {"vocab_size": 5, "eod": 5}),
    (Tokens, {"eod": -1}),
    (Tokens, {"tokenizer": "../tokenizer-a.json", "tokenizer_xxh3_128": "0" * 32}),
    (Tokens, {"tokenizer": "manifest.json", "tokenizer_xxh3_128": "0" * 32}),
    (Tokens, {"tokenizer": "tokenizer-a.json"}),
]


def test_a_field_that_contradicts_itself_is_refused() -> None:
    assert accepted(SchemaError, lambda each: each[0](**each[1]), CONTRADICTIONS) == []


def test_doubled_classes_among_many_are_found_at_once() -> None:
    names = [str(i) for i in range(200_000)]

    with pytest.raises(SchemaError):
        Label(classes=tuple(names + names))


def test_the_largest_record_is_allowed_and_one_more_byte_is_not() -> None:
    assert Array(dtype="int8", dims=(MAX_RECORD_NBYTES,)).record_nbytes == MAX_RECORD_NBYTES
    with pytest.raises(SchemaError):
        Array(dtype="int8", dims=(MAX_RECORD_NBYTES + 1,))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "picture"},
        {"kind": None},
        {"kind": ["image"]},
        {"kind": "image", "chanels": 3},
        {"kind": "image", "channels": 3.0},
        {"kind": "image", "size": [[1, 2], 3]},
        {"kind": "image", "size": {"h": 1, "w": 2}},
        {"kind": "array", "dims": 3},
        {"kind": "array", "dims": [[1]]},
        {"kind": "array", "dtype": ["uint8"]},
        {"kind": "label", "classes": {"a": 1}, "codec": "raw", "dtype": "int64"},
        {"kind": "label", "classes": [["a"]]},
        {"kind": "text", "dtype": "uint8"},
    ],
    ids=str,
)
def test_json_that_is_no_field_is_a_schema_error(data: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        field_from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"fields": {}},
        {"fields": {}, "defaults": []},
        {"fields": [], "defaults": []},
        {"fields": {"a": None}, "defaults": []},
        {"fields": {"a": {"kind": "text"}}, "defaults": ["b"]},
        {"fields": {"a": {"kind": "text"}}, "defaults": [["a"]]},
        {"fields": {"a": {"kind": "text"}}, "defaults": [{}]},
        {"fields": {"a": {"kind": "text"}}, "defaults": [1]},
        {"fields": {"a": {"kind": "text"}}, "defaults": ["a", "a"]},
        {"fields": {"a": {"kind": "text", "codec": 5}}, "defaults": ["a"]},
        {"fields": {"a": {"kind": "text", "codec": {}}}, "defaults": ["a"]},
        {"fields": {"a b": {"kind": "text"}}, "defaults": []},
    ],
    ids=str,
)
def test_json_that_is_no_schema_is_a_schema_error(data: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(data)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["image", "array", "label", "uint8", "raw", "a", "kind", "(2,)u1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "dims", "dtype", "size", "classes", "codec", "a"]), inner
        )
    ),
    max_leaves=8,
)


@example({"a": {"kind": "array", "dims": None, "dtype": "a"}}, None)  # of which NumPy warns
@given(st.dictionaries(st.sampled_from(["a", "b c", "image"]), json_values), json_values)
def test_any_json_is_a_schema_or_a_schema_error(fields: Any, defaults: Any) -> None:
    try:
        schema = Schema.from_json({"fields": fields, "defaults": defaults})
    except SchemaError:
        return

    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


NO_NAMES: list[Any] = [
    "",
    "a b",
    "a-b",
    "1a",
    "class",
    "None",
    "_a",
    "a__nbytes",
    "count",
    "index",
    "valid",
    "sample_id",
    "a" * 201,
    "猫" * 67,
    "ﬁeld",  # a ligature: Python reads the attribute as "field"
    "a\0",
    "a\udcff",
    "../a",
    5,
    None,
]


def test_a_name_that_cannot_be_an_attribute_is_refused() -> None:
    assert accepted(SchemaError, lambda name: Schema({name: Text()}), NO_NAMES) == []


@pytest.mark.parametrize("name", ["a", "image", "counts", "a_", "Straße", "猫", "a" * 200])
def test_an_identifier_is_a_name(name: str) -> None:
    assert Schema({name: Text()}).defaults == (name,)


@pytest.mark.parametrize("field", [None, "image", {"kind": "text"}, Field(), Text, 5])
def test_what_is_not_a_field_is_refused(field: Any) -> None:
    with pytest.raises(SchemaError):
        Schema({"a": field})


def test_a_field_of_an_unregistered_class_is_refused() -> None:
    class Mine(Text):
        pass

    with pytest.raises(SchemaError):
        Schema({"a": Mine()})


def test_the_option_that_a_field_is_about_needs_no_name() -> None:
    assert Label(["a", "b"]) == Label(classes=("a", "b"))  # type: ignore[arg-type]
    assert MultiLabel(("a", "b")) == MultiLabel(classes=("a", "b"))
    assert Image("png") == Image(codec="png")
    assert Mask("raw") == Mask(codec="raw")
    assert Array("int64", (None,)) == Array(dtype="int64", dims=(None,))


@pytest.mark.parametrize("kind", FIELD_KINDS.values())
def test_no_kind_of_field_prints_all_of_its_names(kind: type[Field]) -> None:
    assert kind.__repr__ is Field.__repr__


def test_a_schema_prints_a_few_of_many_names_and_how_many_there_are() -> None:
    names = tuple(f"name {i}" for i in range(1000))
    words = Categories(dtype="uint16", columns=("a", "b"), vocabularies=(names, ("x",)))

    shown = repr(Schema({"label": Label(names), "words": words, "few": Label(("a", "b"))}))

    assert shown == (
        "Schema(label=Label(codec='raw', classes=('name 0', 'name 1', 'name 2', ... 1000 in all)), "
        "words=Categories(codec='raw', dtype='uint16', columns=('a', 'b'), "
        "vocabularies=(('name 0', 'name 1', 'name 2', ... 1000 in all), ('x',))), "
        "few=Label(codec='raw', classes=('a', 'b')))"
    )
    assert eval(repr(Array("int8", (3, None)))) == Array("int8", (3, None))


def test_a_schema_survives_json_and_pickle_in_order() -> None:
    schema = Schema({"b": Image(), "a": Label(classes=("x",)), "key": Text()}, ("b", "sample_id"))

    for copy in (
        Schema.from_json(json.loads(json.dumps(schema.to_json()))),
        pickle.loads(pickle.dumps(schema)),
    ):
        assert copy == schema
        assert list(copy.fields) == ["b", "a", "key"]
        assert copy.defaults == ("b", "sample_id")


def test_a_schema_does_not_change_with_what_it_was_made_from() -> None:
    fields: dict[str, Field] = {"a": Text()}
    schema = Schema(fields)

    fields["b"] = Text()

    assert list(schema.fields) == ["a"]
    with pytest.raises(TypeError):
        schema.fields["b"] = Text()  # type: ignore[index]


def test_a_name_is_asked_for_once_and_must_exist() -> None:
    schema = Schema({"a": Text(), "b": Text()})

    schema.check_names(["b", "sample_id"])
    with pytest.raises(SchemaError):
        schema.check_names(["a", "c"])
    with pytest.raises(SchemaError):
        schema.check_names(["a", "a"])


def test_replacing_an_option_checks_it_again() -> None:
    with pytest.raises(SchemaError):
        replace(Image(), size=(0, 1))


def test_categories_know_the_sizes_of_their_embeddings() -> None:
    field = Categories(columns=("a", "b"), vocabularies=(("x", "y"), ()))

    assert field.num_categories == (3, 1)
    assert (field.dtype, field.served_dtype, field.record_nbytes) == ("uint8", "int64", 2)


def test_a_schema_knows_the_files_that_its_fields_need() -> None:
    kept = Tokens(tokenizer="tokenizer-ab.json", tokenizer_xxh3_128="1" * 32)

    assert Schema({"a": Text(), "tokens": kept}).files == {"tokenizer-ab.json": "1" * 32}
    assert Schema({"tokens": Tokens(tokenizer="bytes")}).files == {}
