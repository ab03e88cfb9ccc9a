import copy
import errno
import json
import os
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaders.data.manifest import Manifest, Place, ShardInfo, read_manifest
from loaders.errors import ManifestError
from loaders.schema import Array, Image, Label, Schema, Text
from loaders.system.publish import publish_bytes
from tests.manifests import put_manifest
from tests.refusals import At

Json = dict[str, Any]
SCHEMA = Schema({"image": Image(), "label": Label(), "text": Text()}, ("image", "label"))


def a_shard(number: int = 0, **changes: Any) -> ShardInfo:
    options: Json = {
        "file": f"shard-{number:05d}.lmdb",
        "num_samples": 10,
        "size_bytes": 4096,
        "xxh3_128": f"{number:032x}",
        "places": {
            "image": Place(lengths=100, starts=200),
            "label": Place(16, 8),
            "text": Place(300, lengths=400, gap=4),
        },
        "checksums": (500, 600),
    }
    return ShardInfo(**(options | changes))


MANIFEST = Manifest(SCHEMA, (a_shard(0), a_shard(1, num_samples=3)), {"source": "photos"})


def sign(data: Json) -> Json:
    """Make fingerprint and checksum those of the contents, so that other checks have to speak."""
    shards = [[shard["num_samples"], shard["xxh3_128"]] for shard in data["shards"]]
    text = json.dumps([1, data["schema"], shards], sort_keys=True)
    data["fingerprint"] = xxhash.xxh3_128_hexdigest(text.encode())
    rest = {name: value for name, value in data.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True)
    data["checksum"] = xxhash.xxh3_64_hexdigest(text.encode())
    return data


def write_json(folder: Path, data: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps(data))
    return path


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    put_manifest(tmp_path, MANIFEST)

    found = read_manifest(tmp_path)

    assert found == MANIFEST
    assert read_manifest(str(tmp_path)) == MANIFEST
    assert list(found.schema.fields) == ["image", "label", "text"]
    assert (found.num_samples, found.size_bytes) == (13, 8192)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json"]


def test_a_manifest_pickles() -> None:
    found = pickle.loads(pickle.dumps(MANIFEST))

    assert found == MANIFEST
    assert found.fingerprint == MANIFEST.fingerprint


def test_the_bytes_of_a_manifest_are_golden(tmp_path: Path) -> None:
    """What is published today must be what was published yesterday."""
    put_manifest(tmp_path, MANIFEST)

    data = json.loads((tmp_path / "manifest.json").read_bytes())

    assert sorted(data) == [
        *("checksum", "fingerprint", "format", "num_samples"),
        *("provenance", "schema", "shards", "version"),
    ]
    assert (data["format"], data["version"]) == ("loaders", 1)
    assert data["fingerprint"] == "b35bbef04a6346db24d3a8e56f967256"
    assert data["checksum"] == "b6710b2ab777e219"
    assert data["shards"][0] == {
        "file": "shard-00000.lmdb",
        "num_samples": 10,
        "size_bytes": 4096,
        "xxh3_128": "0" * 32,
        "places": {
            "image": {"lengths": 100, "offset": 0, "starts": 200},
            "label": {"offset": 16, "row_nbytes": 8},
            "text": {"gap": 4, "lengths": 400, "offset": 300},
        },
        "checksums": [500, 600],
    }


def test_the_fingerprint_is_of_the_content() -> None:
    def fingerprint(**changes: Any) -> str:
        options: Json = {"schema": SCHEMA, "shards": MANIFEST.shards, "provenance": {}}
        return Manifest(**(options | changes)).fingerprint

    plain = fingerprint()
    renamed = tuple(
        ShardInfo("x.lmdb", s.num_samples, 1, s.xxh3_128, {}, (0, 0)) for s in MANIFEST.shards
    )

    assert plain == fingerprint(provenance={"host": "elsewhere"})
    assert plain == fingerprint(shards=renamed)  # where bytes lie is not what they are
    assert plain != fingerprint(shards=MANIFEST.shards[::-1])
    assert plain != fingerprint(shards=MANIFEST.shards[:1])
    assert plain != fingerprint(schema=Schema(dict(SCHEMA.fields), ("image",)))
    assert plain != fingerprint(shards=(a_shard(0), a_shard(2, num_samples=3)))


def test_a_name_that_is_not_utf8_survives_as_json(tmp_path: Path) -> None:
    """Linux names files by bytes; Python shows those that are not UTF-8 as lone surrogates."""
    name = os.fsdecode(b"photo-\xff.jpg")
    schema = Schema({"label": Label(classes=(name, "猫"))})
    shard = a_shard(places={"label": Place(16, 8)})

    put_manifest(tmp_path, Manifest(schema, (shard,), {"source": name}))

    text = (tmp_path / "manifest.json").read_bytes().decode()  # strictly UTF-8
    assert "猫" in text
    found = read_manifest(tmp_path)
    assert found.provenance["source"] == name
    label = found.schema.fields["label"]
    assert isinstance(label, Label)
    assert label.classes == (name, "猫")


def test_publishing_is_durable_before_it_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        steps.append(f"fsync {re.sub('[.][0-9a-f]{32}[.]tmp', '.tmp', name)}")
        fsync(fd)

    def spy_replace(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)

    publish_bytes(tmp_path / "manifest.json", b"{}")

    assert steps == [
        "fsync manifest.json.tmp",
        "rename to manifest.json",
        f"fsync {tmp_path.name}",
    ]


def test_a_publishing_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_manifest(tmp_path, MANIFEST)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, check=At(errno=errno.ENOSPC)):
        publish_bytes(tmp_path / "manifest.json", b"{}")

    assert read_manifest(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def change(path: str, value: Any) -> Callable[[Json], None]:
    """Return a function that sets, or (with ...) deletes, the value at ``a.0.b``."""

    def apply(data: Json) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        inner: Any = data
        for parent in parents:
            inner = inner[parent]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value

    apply.__name__ = f"{path}={value!r:.80}"
    return apply


def changes(path: str, *values: Any) -> list[Callable[[Json], None]]:
    return [change(path, value) for value in values]


BIG = 10**30
DAMAGE = [
    *changes("version", 0, 2, -1, 1.0, True, "1", None, BIG),
    *(change(n, ...) for n in ("version", "schema", "shards", "provenance", "num_samples")),
    *changes("format", "webdataset", None, ["loaders"]),
    *changes("num_samples", 12, "13", None),
    *changes("provenance", None, [], "x"),
    *changes("shards", None, 5, "ab", {"a": 1}, [None], [[]]),
    *changes(
        "shards.0.file",
        *("../x.lmdb", "/etc/passwd", "a/b.lmdb", "", ".", "..", ".hidden", "a\0.lmdb"),
        *("C:\\x.lmdb", "a\n", "x" * 201, None, 5, ["a"], "shard-00001.lmdb"),
    ),
    *changes("shards.0.xxh3_128", "", "0" * 31, "0" * 33, "G" * 32, "A" * 32, None),
    *changes("shards.0.checksums_xxh3_64", "", "0" * 15, "0" * 32, "A" * 16, 5, ["0" * 16]),
    *changes("shards.0.num_samples", 0, -1, 1.0, True, "1", None, BIG, 4097, 513, 2**63),
    *changes("shards.0.size_bytes", -1, 0, 4096.0, True, None, BIG, 2**63, 100),
    *changes("shards.0.checksums", [], [1], [1, 2, 3], "ab", None, [-1, 5], [4000, 97]),
    *changes("shards.0.checksums", [0, BIG], [0.0, 5], [False, 5], {"a": 1, "b": 2}),
    change("shards.0.places", {}),
    change("shards.0.places.text", ...),
    change("shards.0.places.other", {"offset": 0, "row_nbytes": 1}),
    *changes(
        "shards.0.places.label",
        *(None, [], {}, {"offset": 16}, {"row_nbytes": 8, "offset": None}),
        {"offset": 16, "row_nbytes": 0},
        {"offset": 16, "row_nbytes": 7},
        {"offset": 16, "row_nbytes": 8.0},
        {"offset": 16, "row_nbytes": "8"},
        {"offset": 16, "row_nbytes": -8},
        {"offset": 16, "row_nbytes": True},
        {"offset": 4017, "row_nbytes": 8},
        {"offset": -1, "row_nbytes": 8},
        {"offset": 16.0, "row_nbytes": 8},
        {"offset": BIG, "row_nbytes": 8},
        {"offset": 16, "row_nbytes": 8, "gap": 4},
        {"offset": 16, "row_nbytes": 8, "lengths": 16},
        {"offset": 16, "row_nbytes": 8, "starts": 16},
        {"offset": 16, "row_nbytes": 8, "file": "x"},
    ),
    *changes(
        "shards.0.places.text",
        {"offset": 16, "row_nbytes": 0},
        {"offset": 16, "row_nbytes": 409},
        {"offset": 16, "row_nbytes": BIG},
        {"offset": 300, "starts": 16},
        {"offset": 300, "lengths": 4057},
        {"offset": 300, "lengths": -4},
        {"offset": 300, "lengths": 16.0},
        {"offset": 300, "lengths": BIG},
        {"offset": 300, "lengths": 400, "gap": -1},
        {"offset": 300, "lengths": 400, "gap": 380},
        {"offset": 300, "lengths": 400, "gap": BIG},
        {"offset": 300, "lengths": 400, "gap": None},
        {"offset": 300, "lengths": 400, "starts": 100},
        {"offset": 0, "lengths": 400, "starts": 100, "gap": 4},
        {"offset": 0, "lengths": 400, "starts": 4017},
        {"offset": 0, "lengths": 400, "starts": -1},
        {"offset": 0, "lengths": 400, "starts": True},
        {"offset": 5000, "lengths": 400},
    ),
    *changes("schema", None, [], {}, {"fields": {}, "defaults": []}),
    *changes("schema.fields.label.codec", 5, None, ["raw"]),
    *changes(
        "schema.fields.image.dtype", None, 5, "(9999999999,)u1", "object", "x" * 9999, ["uint8"]
    ),
]


def test_the_manifest_that_the_damage_is_done_to_is_good(tmp_path: Path) -> None:
    write_json(tmp_path, sign(MANIFEST.to_json()))

    assert read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_contradiction_is_refused_also_with_a_right_checksum(
    damage: Callable[[Json], None], tmp_path: Path
) -> None:
    data = MANIFEST.to_json()
    damage(data)
    with suppress(KeyError, TypeError):  # it has no shards to sign
        sign(data)
    path = write_json(tmp_path, data)

    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path)

    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "damage",
    [
        change("provenance.source", "elsewhere"),
        change("shards.0.places.label.offset", 24),
        change("shards.0.checksums", [501, 600]),
        change("shards.0.num_samples", 9),
        change("shards.1.xxh3_128", "0" * 32),
        change("fingerprint", "0" * 32),
        change("fingerprint", None),
        change("checksum", 5),
        change("schema.defaults", ["label"]),
        change("extra", 1),
    ],
    ids=lambda damage: damage.__name__,
)
def test_an_edit_is_noticed(damage: Callable[[Json], None], tmp_path: Path) -> None:
    data = MANIFEST.to_json()
    damage(data)
    write_json(tmp_path, data)

    with pytest.raises(ManifestError, check=At("manifest.json")):
        read_manifest(tmp_path)


def test_samples_of_all_shards_fit_int64(tmp_path: Path) -> None:
    shards = [a_shard(i, size_bytes=2**62, num_samples=2**50).to_json() for i in range(2)]
    shards[0]["places"]["label"]["offset"] = 0
    data = MANIFEST.to_json() | {"shards": shards, "num_samples": 2**51}
    write_json(tmp_path, sign(data))

    with pytest.raises(ManifestError, check=At("manifest.json")):
        read_manifest(tmp_path)


def test_a_huge_number_of_samples_costs_nothing(tmp_path: Path) -> None:
    shard = a_shard(size_bytes=2**62, num_samples=2**58, places={"label": Place(0, 8)})
    put_manifest(tmp_path, Manifest(Schema({"label": Label()}), (shard,)))

    assert read_manifest(tmp_path).num_samples == 2**58


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'{"format": "loaders"',
        b"[" * 100_000,
        b'{"format":"loaders","version":1,"schema":' + b'{"a":' * 100_000,
        b'{"format": "loaders", "version": ' + b"9" * 5000 + b"}",
        b'{"format": "loaders", "version": NaN}',
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_is_not_a_manifest_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(text)

    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path)

    assert caught.value.path == path


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    put_manifest(tmp_path, MANIFEST)
    path = tmp_path / "manifest.json"
    text = path.read_bytes()

    for size in range(len(text) - 2):
        path.write_bytes(text[:size])
        with pytest.raises(ManifestError):
            read_manifest(tmp_path)


leaves: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), 2**64, 10**40])
    | st.floats()
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
)


def all_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    return [path] * bool(path) + [p for key, v in items for p in all_paths(v, (*path, key))]


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(all_paths(MANIFEST.to_json())), value=leaves)
def test_any_value_anywhere_gives_a_manifest_that_makes_sense_or_an_error(
    path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    data = copy.deepcopy(MANIFEST.to_json())
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with suppress(KeyError, TypeError):
        sign(data)
    (tmp_path / "manifest.json").write_text(json.dumps(data))

    try:
        manifest = read_manifest(tmp_path)
    except ManifestError:
        return

    assert manifest.num_samples == sum(s.num_samples for s in manifest.shards)
    for shard in manifest.shards:
        assert 0 < shard.num_samples <= shard.size_bytes < 2**63
        for place in shard.places.values():
            end = place.offset + (place.row_nbytes or 0) * shard.num_samples
            assert 0 <= place.offset <= end <= shard.size_bytes
            assert (place.row_nbytes is None) != (place.lengths is None)


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, check=At("nowhere")):
        read_manifest(tmp_path / "nowhere")


def test_a_folder_without_a_manifest_says_what_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)

    (tmp_path / ".packing").mkdir()
    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path)
    assert "Writer" in caught.value.hint

    (tmp_path / "train").mkdir()
    put_manifest(tmp_path / "train", MANIFEST)
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


def test_a_folder_of_splits_of_sizes_names_each_dataset(tmp_path: Path) -> None:
    for name in ("train/64", "train/32", "val/32", "val/.packing", ".packing/test"):
        (tmp_path / name).mkdir(parents=True)
        put_manifest(tmp_path / name, MANIFEST)

    names = "train/32, train/64, val/32"
    with pytest.raises(ManifestError, match=names):
        read_manifest(tmp_path)


def test_what_lies_in_an_unfinished_packing_is_no_dataset(tmp_path: Path) -> None:
    for name in (".packing", ".packing/train"):
        (tmp_path / name).mkdir()
        put_manifest(tmp_path / name, MANIFEST)

    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


def test_a_file_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "shard.lmdb").write_bytes(b"")

    with pytest.raises(ManifestError, check=At("shard.lmdb")):
        read_manifest(tmp_path / "shard.lmdb")


def test_a_manifest_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()

    with pytest.raises(ManifestError, check=At("manifest.json")):
        read_manifest(tmp_path)


def test_a_manifest_of_another_gigabyte_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate((1 << 30) + 1)  # a hole: takes no space

    with pytest.raises(ManifestError, check=At("manifest.json")):
        read_manifest(tmp_path)


def test_a_dataset_without_a_shard_is_refused(tmp_path: Path) -> None:
    put_manifest(tmp_path, Manifest(SCHEMA, ()))

    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(("version", "hint"), [(2, "Update loaders"), (0, "Pack again")])
def test_another_version_says_what_to_do(version: int, hint: str, tmp_path: Path) -> None:
    write_json(tmp_path, {"format": "loaders", "version": version, "from the future": []})

    with pytest.raises(ManifestError, check=At("manifest.json", hint=hint)):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(0, 8), {"offset": 0, "row_nbytes": 8}),
        (Place(lengths=0, starts=0), {"offset": 0, "lengths": 0, "starts": 0}),
        (Place(5, lengths=9, gap=4), {"offset": 5, "lengths": 9, "gap": 4}),
    ],
)
def test_a_place_tells_what_is_set(place: Place, expected: Json) -> None:
    assert place.to_json() == expected
    assert Place(**expected) == place


def test_the_hash_of_checksums_comes_back(tmp_path: Path) -> None:
    shards = (a_shard(0), a_shard(1, checksums_xxh3_64="0123456789abcdef"))
    manifest = Manifest(SCHEMA, shards)

    put_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path) == manifest


def test_what_a_later_release_says_more_of_a_shard_is_passed_over(tmp_path: Path) -> None:
    data = MANIFEST.to_json()
    data["shards"][1]["later"] = {"a": [None]}
    write_json(tmp_path, sign(data))

    assert read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize(
    "damage",
    [
        change("shards.3.size_bytes", 10**30),
        change("shards.3.checksums.1", 4000),
        change("shards.3.xxh3_128", "x" * 32),
        change("shards.3.places.label.offset", 4090),
        change("shards.3.places.label.row_nbytes", None),
        change("shards.3.places.text.lengths", None),
        change("shards.3.size_bytes", ...),
        change("shards.3.checksums", [1]),
        change("shards.3.places.text.what", 1),
        change("shards.3.places.label", None),
        change("shards.3.places", None),
    ],
    ids=lambda damage: damage.__name__,
)
def test_of_many_shards_the_one_at_fault_is_named(
    damage: Callable[[Json], None], tmp_path: Path
) -> None:
    data = Manifest(SCHEMA, tuple(a_shard(number) for number in range(5))).to_json()
    damage(data)
    write_json(tmp_path, sign(data))

    with pytest.raises(ManifestError, check=At("manifest.json")) as caught:
        read_manifest(tmp_path)

    assert "shard-00003.lmdb" in caught.value.what


@pytest.mark.parametrize("shard", [None, [], {}])
def test_of_many_shards_one_without_a_name_is_named_by_its_number(
    shard: Any, tmp_path: Path
) -> None:
    data = Manifest(SCHEMA, tuple(a_shard(number) for number in range(5))).to_json()
    data["shards"][3] = shard
    write_json(tmp_path, data)

    with pytest.raises(ManifestError, check=At("manifest.json")) as caught:
        read_manifest(tmp_path)

    assert "shard 3" in caught.value.what


def test_checksums_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    data = MANIFEST.to_json()
    data["shards"][1]["checksums"] = [-1, 5]
    write_json(tmp_path, sign(data))

    with pytest.raises(ManifestError, check=At("manifest.json")) as caught:
        read_manifest(tmp_path)

    assert "shard-00001.lmdb" in caught.value.what


def test_rows_that_do_not_fit_the_schema_are_refused(tmp_path: Path) -> None:
    schema = Schema({"a": Array(dtype="int16", dims=(3,))})
    shard = a_shard(places={"a": Place(16, 7)})
    put_manifest(tmp_path, Manifest(schema, (shard,)))

    with pytest.raises(ManifestError, check=At("manifest.json")):
        read_manifest(tmp_path)


def test_a_folder_that_looks_like_a_url_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s3:/bucket").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ManifestError, check=At("s3:/bucket")):
        read_manifest("s3:/bucket")
