"""Datasets merged and extended in a store: what is there is not sent again, nothing is deleted, none is added twice."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError, PackError, SchemaError
from loaders.remote import origin
from loaders.remote.origin import Origin
from loaders.schema import Array, Text
from packdata.bucket import Bucket
from packdata.cli import main
from packdata.packed.derive import copy_dataset, extend, merge
from packdata.tables import pack_tables
from packdata.tokens.plan import TokenOptions, pack_tokens
from tests.packdata.recipes import contents
from tests.remote import servers
from tests.remote.conftest import SETTINGS, Store, ended
from tests.remote.test_packing import killed_before_asking, shards_at

OUT = "s3://out/all"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of 40 samples in some shards each, with keys."""
    above, rng = tmp_path_factory.mktemp("three"), np.random.default_rng(0)
    fields = {"values": Array(dtype="int32", dims=(300,)), "key": Text()}
    for name in "abc":
        samples = (
            {"values": rng.integers(0, 2**31, 300, np.int32), "key": f"{name}{i}"}
            for i in range(40)
        )
        packdata.pack(samples, above / name, fields, shard_bytes=16_000)
    return [above / name for name in "abc"]


def puts(store: Store) -> list[str]:
    return [r["path"] for r in store.proxy.requests() if r["method"] == "PUT"]


def test_what_is_merged_into_a_bucket_is_what_a_folder_gets(
    three: list[Path], store: Store, tmp_path: Path
) -> None:
    merge(tmp_path / "local", three)
    copy_dataset(three[2], "s3://out/c")

    merge(OUT, [*three[:2], "s3://out/c"])

    there = store.root / "out" / "all"
    assert shards_at(there) == shards_at(tmp_path / "local")
    one, other = read_manifest(there), read_manifest(tmp_path / "local")
    assert (one.fingerprint, one.schema, one.provenance) == (
        other.fingerprint,
        other.schema,
        other.provenance,
    )
    assert [str(sample.key) for sample in ShardDataset(OUT, fields=["key"])][::40] == [
        "a0",
        "b0",
        "c0",
    ]
    store.proxy.set()
    assert len(merge(OUT, [*three[:2], "s3://out/c"]).notes) == 1
    assert not puts(store)


def test_a_folder_is_made_of_datasets_at_urls_with_what_lies_beside_them(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 50)
    made = TokenOptions(documents="line", train_bpe=270)
    pack_tokens(tmp_path / "a.txt", "s3://out/a", made)

    merge(tmp_path / "all", ["s3://out/a"])
    merge(OUT, ["s3://out/a"])
    extend(tmp_path / "all", ["s3://out/a"])

    assert (
        read_manifest(tmp_path / "all").num_samples == 2 * read_manifest("s3://out/a").num_samples
    )
    for folder in (tmp_path / "all", store.root / "out" / "all"):
        names = [*read_manifest(folder).schema.files]
        assert names
        assert all(
            (folder / n).read_bytes() == (store.root / "out" / "a" / n).read_bytes() for n in names
        )


def test_few_shards_are_made_of_many_and_a_target_of_merge_alone_is_replaced(
    three: list[Path], store: Store, tmp_path: Path
) -> None:
    there = store.root / "out" / "all"
    merge(OUT, three)
    before = contents(there)
    with pytest.raises(PackError):
        merge(OUT, three[:2])

    merge(OUT, three, shard_bytes=1 << 20, overwrite=True)

    merge(tmp_path / "local", three, shard_bytes=1 << 20)
    assert shards_at(there) == shards_at(tmp_path / "local")
    assert len(read_manifest(there).shards) == 1
    assert before.keys() <= contents(there).keys()
    copy_dataset(three[0], "s3://out/a")
    with pytest.raises(PackError):
        merge("s3://out/a", three[1:], overwrite=True)
    assert read_manifest(store.root / "out" / "a").num_samples == 40


@pytest.mark.parametrize(
    "command",
    [
        "copy",
        "write",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("merge", "write whole shards")),
    ],
)
def test_what_is_written_anew_is_sent_shard_by_shard(
    three: list[Path], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    ask, most = Origin.ask, 0

    def counted(self: Origin, what: str, op: str, **about: Any) -> Any:
        nonlocal most
        if op == "put" and "shard-" in about["name"]:
            most = max(most, len([*(tmp_path / "tmp").rglob("shard-*.lmdb")]))
        return ask(self, what, op, **about)

    packdata.write(ShardDataset(three[0]), tmp_path / "many", shard_bytes=4096)
    monkeypatch.setattr(Origin, "ask", counted)
    store.proxy.set(latency_s=0.05)

    def write(dst: Path | str, options: list[str]) -> None:
        if command == "write":
            packdata.write(ShardDataset(three[0]), dst, shard_bytes=4096)
            return
        if command == "write whole shards":
            packdata.write(ShardDataset(tmp_path / "many"), dst)
            return
        src = map(str, three if command == "merge" else three[:1])
        assert main([command, *src, str(dst), "--shard-size", "4kB", *options]) == 0

    write(OUT, store.options)

    write(tmp_path / "local", [])
    there = store.root / "out" / "all"
    one, other = read_manifest(there), read_manifest(tmp_path / "local")
    assert (one.fingerprint, one.schema) == (other.fingerprint, other.schema)
    assert one.provenance == other.provenance
    assert shards_at(there) == shards_at(tmp_path / "local")
    assert contents(there).keys() == {"manifest.json", *(shard.file for shard in one.shards)}
    assert most <= 6 < len(one.shards)
    assert (most > 1) == (command != "write whole shards")
    assert not [*(tmp_path / "tmp").glob("packdata-*/*")]
    sent_before = len(puts(store))
    write(OUT, store.options)  # all is there
    assert len(puts(store)) == sent_before
    with pytest.raises(PackError):
        packdata.write(ShardDataset(three[1]), OUT)


def test_a_dataset_in_a_bucket_grows_and_sends_what_is_new_alone(
    three: list[Path], store: Store, tmp_path: Path
) -> None:
    merge(tmp_path / "local", three[:1])
    merge(OUT, three[:1])
    before = contents(store.root / "out" / "all")
    store.proxy.set()

    assert main(["extend", str(three[1]), str(three[2]), OUT, *store.options]) == 0

    extend(tmp_path / "local", three[1:])
    there = store.root / "out" / "all"
    assert shards_at(there) == shards_at(tmp_path / "local")
    assert read_manifest(there).provenance == read_manifest(tmp_path / "local").provenance
    assert not {path.rpartition("/")[2] for path in puts(store)} & (
        before.keys() - {"manifest.json"}
    )
    assert before.keys() <= contents(there).keys()
    assert not any(name.startswith(".parts") for name in contents(there))
    with pytest.raises(SchemaError):  # keys stand there already
        extend(OUT, three[1:2])


def test_what_cannot_be_joined_changes_nothing(
    three: list[Path], store: Store, tmp_path: Path
) -> None:
    fields = {"values": Array(dtype="int16", dims=(2,))}
    packdata.pack(
        ({"values": np.zeros(2, np.int16)} for _ in range(3)), tmp_path / "other", fields
    )
    merge(OUT, three[:1])
    before = contents(store.root / "out" / "all")

    with pytest.raises(SchemaError):
        extend(OUT, [tmp_path / "other"])
    with pytest.raises(PackError):
        extend(OUT, [OUT])
    with pytest.raises(ManifestError):
        extend("s3://out/none", three)

    assert contents(store.root / "out" / "all") == before
    assert {path.name for path in (store.root / "out").iterdir()} == {"all"}


def test_who_is_overtaken_by_another_is_refused_and_adds_nothing(
    three: list[Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(OUT, three[:1])

    put_shard, first = Bucket.put_shard, iter([True])

    def late(*about: Any) -> None:
        if next(first, False):
            extend(OUT, three[1:2])
        put_shard(*about)

    monkeypatch.setattr(Bucket, "put_shard", late)
    with pytest.raises(PackError) as caught:
        extend(OUT, three[2:])

    assert str(caught.value.path) == OUT
    assert read_manifest(store.root / "out" / "all").num_samples == 80
    extend(OUT, three[2:])
    assert read_manifest(store.root / "out" / "all").num_samples == 120


@pytest.mark.slow
@pytest.mark.parametrize("what", ["merge", "extend", "few", "copy", "split"])
def test_killed_before_any_change_the_same_command_makes_one_of_each(
    three: list[Path], store: Store, tmp_path: Path, what: str
) -> None:
    there, start = store.root / "out" / "all", tmp_path / "start"
    if what == "extend":
        merge(OUT, three[:1])
        shutil.copytree(there, start)
    sources, more = three[1:], {"few": "--shard-size 40kB", "copy": "--shard-size 20kB"}
    if what in ("copy", "split"):
        sources, more["split"] = three[:1], "--parts train=0.8 val=0.2"
    argv = ["merge" if what == "few" else what, *map(str, sources), OUT, *store.options]
    argv += more.get(what, "").split()
    assert main(argv) == 0
    whole = contents(there)
    for nth in range(100):
        shutil.rmtree(there)
        if start.exists():
            shutil.copytree(start, there)

        was_killed = killed_before_asking(nth, argv)

        if was_killed:
            assert main(argv) == 0, nth
        assert contents(there) == whole, nth
        if not was_killed:
            break
    assert nth > 2


def test_a_target_is_no_source_however_it_is_spelled(
    three: list[Path], store: Store, tmp_path: Path
) -> None:
    merge(OUT, three[:1])
    merge(tmp_path / "all", three[:1])
    (tmp_path / "link").symlink_to(tmp_path / "all")
    file = f"file://{tmp_path}"
    for dst, src in (
        (OUT, "s3a://out/all"),
        (OUT, "s3://out/other/../all"),
        (tmp_path / "all", f"{file}/all"),
        (tmp_path / "link", f"{file}/all"),
    ):
        with pytest.raises(PackError):
            extend(dst, [src])
        with pytest.raises(PackError):
            merge(dst, [src, three[1]], overwrite=True)


@pytest.mark.parametrize("command", ["merge", "copy"])
def test_what_is_made_of_a_source_that_has_changed_since_it_was_killed_is_made_anew(
    three: list[Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    merge(tmp_path / "a", three[:1])
    argv = [command, str(tmp_path / "a"), OUT, "--shard-size", "40kB", *store.options]
    assert killed_before_asking(1, argv)
    extend(tmp_path / "a", three[1:2])

    assert main(argv) == 0

    assert read_manifest(store.root / "out" / "all").num_samples == 80
    assert not [*(tmp_path / "tmp").glob("packdata-*/*")]


def test_secrets_are_not_shown_where_they_write(
    three: list[Path], signed: str, tmp_path: Path
) -> None:
    given = {name: value for name, value in SETTINGS.items() if name != "skip_signature"}
    given, url = given | servers.SECRET, "s3://bucket/secret"
    (tmp_path / "a.csv").write_text("a\n1\n")
    with ended(tmp_path / "cache") as cache:
        origin.set_defaults(cache, given | {"endpoint": signed})
        try:
            merge(f"{url}/all", three[:1])
            merged = extend(f"{url}/all", three[1:2])
            few = merge(f"{url}/few", three[:2], shard_bytes=1 << 20)
            packed = pack_tables(tmp_path / "a.csv", f"{url}/table")
            written = packdata.write(ShardDataset(three[0]), f"{url}/written", shard_bytes=4096)
            copy_dataset(three[0], f"{url}/copied", shard_bytes=4096)
            again = copy_dataset(three[0], f"{url}/copied", shard_bytes=4096)  # it is there
        finally:
            origin.set_defaults()
    assert (merged.samples, few.samples, packed.samples) == (80, 80, 1)
    shown = f"{packed.dst}{packed.notes}{written.dst}{again.notes}"
    assert again.notes
    assert servers.SECRET["secret_access_key"] not in shown
