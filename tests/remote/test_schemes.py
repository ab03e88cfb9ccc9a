"""Stores that do not speak S3: Google's by its XML, Azure's by azurite, the Hugging Face hub by a stand-in."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, ShardDataset
from loaders.errors import PackError, RemoteError
from loaders.remote import origin
from loaders.remote.credentials import WAYS, from_environment
from loaders.remote.faults import StoreFault, fault_of
from loaders.remote.served import ServedURL
from loaders.remote.stores import open_objects
from loaders.remote.url import URL, endpoint_of
from loaders.schema import Array
from packdata.cli import main
from packdata.packed.derive import copy_dataset as upload
from tests.remote import servers
from tests.remote.conftest import SETTINGS
from tests.remote.test_remote import assert_same, batches

GOOGLE = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
RETRIES = {name: SETTINGS[name] for name in ("retry_timeout", "timeout")}
has_azurite = pytest.mark.skipif(
    shutil.which("azurite-blob") is None, reason="needs azurite: npm install -g azurite"
)


@pytest.fixture(params=["gs", pytest.param("az", marks=[pytest.mark.slow, has_azurite])])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An empty folder of a store that compares what is to be replaced, with credentials in the environment."""
    (tmp_path / "root" / "out").mkdir(parents=True)
    if request.param == "gs":
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(GOOGLE))
        with servers.bucket(tmp_path / "root") as bucket, servers.proxy(bucket) as proxy:
            proxy.set()
            origin.set_defaults(cache, RETRIES | {"endpoint": proxy.endpoint})
            yield "gs://out/packed"
    else:
        for name, value in servers.AZURE.items():
            monkeypatch.setenv(f"AZURE_STORAGE_{name.upper()}", value)
        with servers.azurite(tmp_path / "root", "out") as endpoint:
            origin.set_defaults(cache, RETRIES | {"endpoint": endpoint})
            yield "az://out/packed"
    origin.set_defaults()


def test_a_dataset_is_sent_read_resumed_replaced_and_extended(
    packed: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, few = packed / "bucket" / "packed", tmp_path / "few"
    assert main(["copy", str(folder), str(few), "--where", "label == 3"]) == 0

    assert not upload(folder, target).notes

    remote, local = ShardDataset(target), ShardDataset(folder)
    for _ in range(2):
        assert_same(batches(remote, shuffle="lanes"), batches(local, shuffle="lanes"))
    loader: Any = DataLoader(remote, 32, shuffle="lanes")
    next(iter(loader))
    rest = [DataLoader(dataset, 32, shuffle="lanes") for dataset in (remote, local)]
    for each in rest:
        each.load_state_dict(loader.state_dict())
    assert_same([list(each) for each in rest[0]], [list(each) for each in rest[1]])
    with pytest.raises(PackError):
        upload(few, target)
    assert not upload(few, target, overwrite=True).notes
    assert main(["extend", str(few), f"{target}/"]) == 0
    assert len(ShardDataset(target)) == 2 * len(ShardDataset(few))
    assert "conditional" not in capsys.readouterr().err


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, servers.Proxy]]:
    """The folder of a repository, ``hf://datasets/me/packed``, and the proxy before its hub."""
    pytest.importorskip("huggingface_hub")
    (tmp_path / "hub" / "datasets" / "me").mkdir(parents=True)
    with servers.hub(tmp_path / "hub") as endpoint, servers.proxy(endpoint) as proxy:
        proxy.set()
        monkeypatch.setenv("HF_ENDPOINT", proxy.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_swordfish")
        yield tmp_path / "hub" / "datasets" / "me" / "packed", proxy


def test_a_dataset_of_the_hub_is_read_each_byte_once_and_anew_when_it_was_replaced(
    packed: Path, hub: tuple[Path, servers.Proxy], tmp_path: Path, cache: Path
) -> None:
    (folder, proxy), url = hub, "hf://datasets/me/packed"
    rows = np.random.default_rng(0).integers(0, 2**31, (300, 10_000), np.int32)
    fields = {"values": Array(dtype="int32", dims=(10_000,))}
    packdata.pack(({"values": row} for row in rows), folder, fields, shard_bytes=20_000_000)
    sizes = [path.stat().st_size for path in folder.glob("*.lmdb")]

    remote = ShardDataset(url, cache=cache)

    assert_same(batches(remote, shuffle="lanes"), batches(ShardDataset(folder), shuffle="lanes"))
    assert sum(each["bytes"] for each in proxy.requests(".lmdb")) == sum(sizes)
    shutil.rmtree(folder)
    shutil.copytree(packed / "bucket" / "packed", folder)
    assert_same(batches(ShardDataset(url)), batches(ShardDataset(folder)))
    assert "swordfish" not in (cache / "v2" / "fetcher.log").read_text()


def test_nothing_is_sent_to_a_web_server(packed: Path, server: str, shared: Path) -> None:
    origin.set_defaults(shared, {})
    try:
        with pytest.raises(RemoteError) as caught:
            upload(packed / "bucket" / "packed", f"{server}/bucket/other")
    finally:
        origin.set_defaults()

    assert caught.value.hint
    assert not (packed / "bucket" / "other").exists()


def test_options_that_are_given_are_used_in_place_of_those_of_the_environment() -> None:
    environment = {
        "AZURE_STORAGE_ACCOUNT_NAME": "theirs",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_CLIENT_SECRET": "theirs",
        "AZURE_TENANT_ID": "somewhere",
        "AZURE_OPENAI_API_KEY": "of something else",
    }
    given = {"azure_storage_account_name": "mine", "sas_token": "sig=mine"}

    found = from_environment("az", given, environment)
    open_objects(URL("az://container/packed"), given, environment)

    expected = {"account_name": "mine", "sas_token": "sig=mine", "tenant_id": "somewhere"}
    assert found == expected
    alone = from_environment("az", {}, environment)
    assert (alone["account_name"], alone["account_key"]) == ("theirs", "a2V5")


@pytest.mark.parametrize("name", ["endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"])
def test_a_server_is_given_by_any_of_its_names(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    remote = ShardDataset("s3://bucket/packed", cache=cache, storage={**SETTINGS, name: server})

    assert len(remote) == 600
    assert endpoint_of("s3", {name: server}, {}) == server


@pytest.mark.parametrize("given", [5, "7"])
def test_options_of_the_client_are_numbers_or_their_texts(given: Any) -> None:
    options = {"skip_signature": True, "pool_max_idle_per_host": given}

    objects: Any = open_objects(URL("s3://bucket/packed"), options, {})

    assert objects.deadline_s > 0


@pytest.mark.parametrize(("given", "seconds"), [(7, 7), ("1.5", 1.5)])
def test_how_long_to_wait_is_seconds(given: Any, seconds: float) -> None:
    options = {"skip_signature": True, "retry_timeout": given}

    assert open_objects(URL("s3://bucket/packed"), options, {}).deadline_s == seconds


@pytest.mark.parametrize("option", [{"timeout": "soon"}, {"retry_timeout": None}])
def test_an_option_that_is_no_number_of_seconds_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(StoreFault) as caught:
        open_objects(URL("s3://bucket/packed"), option, {})

    assert caught.value.kind == "unusable"


def test_secrets_of_the_environment_are_not_shown() -> None:
    names = ("AZURE_CLIENT_SECRET", "AZURE_STORAGE_SAS_KEY", "HF_TOKEN")
    environment = {name: f"swordfish-{i}" for i, name in enumerate(names)}
    source = ServedURL(URL("file:///data"), {}, environment)

    assert "swordfish" not in source.public(f"refused {[*environment.values()]}")


@pytest.mark.parametrize("status", ["403 Forbidden", "404 Not Found"])
def test_a_machine_without_a_role_is_told_the_ways(status: str) -> None:
    text = f"Error performing token request: Error performing GET http://169.254.169.254: {status}"

    fault = fault_of(Exception(text), WAYS["gs"])

    assert (fault.kind, fault.hint) == ("denied", WAYS["gs"])
