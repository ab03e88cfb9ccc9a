"""Credentials for a store: from options, from the variables of the client, or from where boto3 looks.

Imported by the fetcher alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from loaders.remote.faults import StoreFault

if TYPE_CHECKING:
    from collections.abc import Mapping

# Variables that obstore would read of its own process, and which are the client's here.
VARIABLES = {
    "s3": re.compile(
        r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION|ENDPOINT_URL"
        r"|SKIP_SIGNATURE|WEB_IDENTITY_TOKEN_FILE|ROLE_ARN|CONTAINER_CREDENTIALS_\w+"
        r"|CONTAINER_AUTHORIZATION_TOKEN_FILE|S3_EXPRESS|REQUEST_PAYER)"
    ),
    "gs": re.compile(r"GOOGLE_(SERVICE_ACCOUNT\w*|APPLICATION_CREDENTIALS|SKIP_SIGNATURE)"),
    "az": re.compile(r"AZURE_\w+"),
}
_WAYS = (
    "Give access_key_id and secret_access_key in storage=, set AWS_ACCESS_KEY_ID, name a profile of ~/.aws, or run \
where a metadata service gives them; of a public bucket, storage={'skip_signature': True}"
)
CREDENTIALS_S = 4.0


def from_environment(
    kind: str, options: dict[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of a kind of store with those that the environment adds."""
    named = {n.lower(): v for n, v in environment.items() if VARIABLES[kind].fullmatch(n)}
    if "aws_endpoint_url" in named:
        named["aws_endpoint"] = named.pop("aws_endpoint_url")
    short = {re.sub(r"^(aws|azure|google)_", "", name) for name in options}
    if {"access_key_id", "skip_signature"} & short:
        named = {n: v for n, v in named.items() if "key" not in n and "token" not in n}
    plain = {n: v for n, v in named.items() if re.sub(r"^aws_", "", n) not in short}
    return plain | options


def has_credentials(options: Mapping[str, Any]) -> bool:
    names = {re.sub(r"^aws_", "", name) for name in options}
    return bool(names & {"access_key_id", "skip_signature", "web_identity_token_file"}) or any(
        name.startswith("container_") for name in names
    )


_environment_lock = threading.Lock()


class ProfileCredentials:
    """Credentials of ``~/.aws`` (keys, SSO, roles) or of the metadata service, by boto3, renewed before they expire."""

    def __init__(self, profile: str | None, environment: Mapping[str, str]) -> None:
        self._profile, self._environment = profile, dict(environment)
        self._credentials: Any = None
        self.config: dict[str, Any] = {}

    async def __call__(self) -> dict[str, Any]:
        """Return credentials as obstore takes them."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(self.find), CREDENTIALS_S)
        except TimeoutError:
            what = f"no credentials were found within {CREDENTIALS_S:.0f} s"
            raise StoreFault("denied", what, _WAYS) from None

    def find(self) -> dict[str, Any]:
        """Return credentials; StoreFault if there are none."""
        if self._credentials is None:
            self._credentials = self._session()
        if self._credentials is None:
            raise StoreFault("denied", "there are no credentials", _WAYS)
        frozen = self._credentials.get_frozen_credentials()
        expires = getattr(self._credentials, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }

    def _session(self) -> Any:
        """Look where boto3 looks, in the environment of the client: profiles lie in its home."""
        try:
            import boto3
        except ImportError:
            return None
        limits = {"AWS_METADATA_SERVICE_TIMEOUT": "2", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "1"}
        with _environment_lock:
            before = dict(os.environ)
            os.environ.update(limits | self._environment)
            try:
                return boto3.Session(profile_name=self._profile).get_credentials()
            except (
                Exception
            ) as error:  # of botocore: a profile that there is not, SSO that has ended
                raise StoreFault("denied", str(error), _WAYS) from None
            finally:
                os.environ.clear()
                os.environ.update(before)
