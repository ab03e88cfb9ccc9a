import builtins
import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest

from loaders import errors
from loaders.errors import (
    BatchError,
    CacheError,
    ChecksumError,
    CodecError,
    LoadersError,
    ManifestError,
    NoValueError,
    PackError,
    RemoteError,
    SampleError,
    SchemaError,
    ShardError,
    SourceError,
    StaleDatasetError,
    StateError,
    UnsendableError,
    sentence,
)

PATH = Path("data/shard-00017.lmdb")
EXAMPLES = {
    SchemaError: (SchemaError("channels must be in [1, 64], got 0"), "channels must be"),
    NoValueError: (NoValueError("the dataset has no class names"), "no class names"),
    BatchError: (BatchError("not a batch"), "not a batch"),
    StateError: (StateError("another dataset"), "another dataset"),
    CodecError: (CodecError("not UTF-8"), "not UTF-8"),
    ManifestError: (
        ManifestError("it is damaged", PATH, "Restore it"),
        "data/shard-00017.lmdb: it is damaged. Restore it.",
    ),
    SourceError: (SourceError("it is empty", "a.jpg"), "a.jpg: it is empty."),
    PackError: (PackError("it is in use.", PATH), "data/shard-00017.lmdb: it is in use."),
    RemoteError: (RemoteError("it hangs", PATH), "data/shard-00017.lmdb: it hangs."),
    CacheError: (CacheError("it is full", PATH), "data/shard-00017.lmdb: it is full."),
    ShardError: (
        ShardError("it is cut", PATH, 4213, "image", "Pack again."),
        "data/shard-00017.lmdb, field image, row 4213: it is cut. Pack again.",
    ),
    StaleDatasetError: (
        StaleDatasetError("the dataset was replaced since it was opened", PATH),
        "data/shard-00017.lmdb: the dataset was replaced since it was opened.",
    ),
    ChecksumError: (
        ChecksumError("its checksum does not match", PATH, 0),
        "data/shard-00017.lmdb, row 0: its checksum does not match.",
    ),
    UnsendableError: (
        UnsendableError("transform", "it does not pickle"),
        "a child process cannot be given transform: it does not pickle. Put it",
    ),
    SampleError: (
        SampleError("not UTF-8", 90, PATH, 3, "a/b.jpg"),
        "sample 90 (data/shard-00017.lmdb, row 3, key 'a/b.jpg'): not UTF-8.",
    ),
}


def public_errors() -> dict[str, type[LoadersError]]:
    return {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, LoadersError) and not name.startswith("_")
    }


def documented_tree() -> dict[str, tuple[str, str]]:
    """Read name -> (parent, builtin or "") out of the module's docstring."""
    tree: dict[str, tuple[str, str]] = {}
    parents = ["LoadersError"]
    pattern = r"^(?P<bars>    [│ ├└─]*)[├└]── (?P<name>\w+)(?: +\((?P<builtin>\w+)\))?"
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(pattern, line):
            depth = (len(match["bars"]) - 4) // 4
            parents = [*parents[: depth + 1], match["name"]]
            tree[match["name"]] = (parents[depth], match["builtin"] or "")
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    tree = documented_tree()

    assert {"LoadersError", *tree} == set(public_errors())
    for name, (parent, builtin) in tree.items():
        cls = getattr(errors, name)
        assert issubclass(cls, getattr(errors, parent))
        assert issubclass(cls, LoadersError)
        expected = builtin or next(b for n, (_, b) in tree.items() if n == parent)
        assert issubclass(cls, getattr(builtins, expected))


def test_every_error_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(public_errors().values()) - {LoadersError}


@pytest.mark.parametrize("cls", EXAMPLES)
def test_an_error_says_where_what_and_what_next(cls: type[LoadersError]) -> None:
    error, text = EXAMPLES[cls]

    assert text in str(error)
    assert not str(error).endswith("..")


@pytest.mark.parametrize("cls", EXAMPLES)
def test_every_error_pickles_with_attributes_and_notes(cls: type[LoadersError]) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        error = pickle.loads(pickle.dumps(EXAMPLES[cls][0], protocol))
        error.add_note("epoch 3, step 120, rank 5")

        copy = pickle.loads(pickle.dumps(error, protocol))

        assert type(copy) is cls
        assert copy.args == EXAMPLES[cls][0].args
        assert vars(copy) == vars(error)
        assert copy.__notes__ == ["epoch 3, step 120, rank 5"]
        assert str(copy) == str(EXAMPLES[cls][0])


def test_row_0_is_named() -> None:
    assert "row 0" in str(ShardError("it is cut", PATH, 0))
    assert "row" not in str(ShardError("it is cut", PATH))


def test_a_sample_without_key_shows_none() -> None:
    assert "key" not in str(SampleError("it is cut", 1, PATH, 1, None))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("a", "b"), "a. b."),
        (("a.", "b."), "a. b."),
        (("a", ""), "a."),
        (("a", "", "c"), "a. c."),
        (("a", "is it b?"), "a. is it b?"),
        (("a, ...", "b"), "a, ... b."),
        ((), ""),
    ],
)
def test_sentences_end_with_one_full_stop(parts: tuple[str, ...], text: str) -> None:
    assert sentence(*parts) == text


KEYS = [
    None,
    "plain",
    "'): ",
    '"): ',
    "it's \"both\"'): x",
    "ends with \\",
    "\\'",
    "x, row 5): y",
    "(a, row 1, key 'b'): ",
    "two\nlines\x1b[0m",
    "",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", ["data/a.lmdb", "data (old), row 7/it's.lmdb"])
def test_the_text_of_a_worker_says_which_sample_it_was(key: str | None, path: str) -> None:
    """Torch makes the error anew from its traceback, and calls it the type that it was."""
    first = SampleError("its key 'b'): is bad", 12, path, 34, key)
    text = "".join(traceback.format_exception(first))

    made = SampleError(message=f"Caught SampleError in DataLoader worker process 0.\n{text}")

    assert (made.index, made.path, made.row, made.key) == (12, path, 34, key)


@pytest.mark.parametrize("text", ["", "no place", "SampleError: sample 1 (a, row 2, key 'x): y"])
def test_a_text_that_says_no_place_is_kept(text: str) -> None:
    made = SampleError(message=text)

    assert (made.what, made.index, made.key) == (text, -1, None)
