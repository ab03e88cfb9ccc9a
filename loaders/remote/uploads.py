"""Unfinished multipart uploads: a store keeps their parts, and charges for them, until they are aborted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loaders.remote.credentials import ProfileCredentials, from_environment
from loaders.remote.faults import StoreFault
from loaders.remote.url import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loaders.remote.url import URL


def end_uploads(
    url: URL,
    storage: Mapping[str, Any],
    environment: Mapping[str, str],
    names: Iterable[str] | None = None,
) -> int:
    """Abort the unfinished uploads below a URL of S3; return how many. Other stores drop them by a rule.

    Args:
        url: The URL.
        storage: How the store is reached.
        environment: The variables of who asks.
        names: Only those of these objects below the URL.

    Raises:
        StoreFault: The store refuses, or does not answer.
    """
    if KINDS.get(url.scheme, url.scheme) != "s3":
        return 0
    bucket, _, folder = str(url).partition("://")[2].partition("/")
    prefix = f"{folder}/".lstrip("/")
    only = None if names is None else {prefix + name for name in names}
    try:
        client, ended = _client(dict(storage), environment), 0
        for page in client.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix=prefix
        ):
            uploads = page.get("Uploads", ())  # some stores give all, whatever prefix is asked for
            for key, number in ((each["Key"], each["UploadId"]) for each in uploads):
                if key.startswith(prefix) if only is None else key in only:
                    with suppress(client.exceptions.NoSuchUpload):  # it was finished, meanwhile
                        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=number)
                        ended += 1
    except StoreFault:
        raise
    except Exception as error:  # of boto3, which need not be there, or of the store
        raise StoreFault("network", f"{type(error).__name__}: {error}") from None
    return ended


def _client(storage: dict[str, Any], environment: Mapping[str, str]) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    given = from_environment("s3", storage, environment)
    config: dict[str, Any] = {
        "connect_timeout": 5,
        "read_timeout": 20,
        "retries": {"max_attempts": 3},
    }
    keys = {n: given.get(n) for n in ("access_key_id", "secret_access_key", "session_token")}
    if str(given.get("skip_signature")).lower() == "true":
        config["signature_version"], keys = UNSIGNED, {}
    elif keys["access_key_id"] is None:
        found = ProfileCredentials(given.get("profile"), environment).find()
        keys = {"access_key_id": found["access_key_id"], "session_token": found["token"]}
        keys["secret_access_key"] = found["secret_access_key"]
    is_virtual = str(given.get("virtual_hosted_style_request")).lower() == "true"
    config["s3"] = {"addressing_style": "virtual" if is_virtual else "path"}
    return boto3.client(
        "s3",
        endpoint_url=given.get("endpoint"),
        region_name=given.get("region") or given.get("default_region") or "us-east-1",
        config=Config(**config),
        **{f"aws_{name}": value for name, value in keys.items()},
    )
