"""Credentials for a store: from options, from the variables of the client, or from where boto3 looks.

Imported by the fetcher alone.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from loaders.remote.faults import StoreFault
from loaders.remote.patience import CREDENTIALS_S, METADATA_S
from loaders.remote.url import short_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# Variables of the client, which obstore would read of its own process.
_VARIABLES = {
    "s3": re.compile(
        r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION|ENDPOINT_URL"
        r"|SKIP_SIGNATURE|WEB_IDENTITY_TOKEN_FILE|ROLE_ARN|CONTAINER_CREDENTIALS_\w+"
        r"|CONTAINER_AUTHORIZATION_TOKEN_FILE|S3_EXPRESS|REQUEST_PAYER)"
    ),
    "gs": re.compile(r"GOOGLE_(SERVICE_ACCOUNT\w*|APPLICATION_CREDENTIALS|SKIP_SIGNATURE)"),
    "az": re.compile(
        r"AZURE_STORAGE_(ACCOUNT_NAME|(ACCOUNT|ACCESS|MASTER|SAS)_KEY|(SAS_)?TOKEN|USE_EMULATOR)"
        r"|AZURE_(STORAGE_)?(CLIENT_ID|CLIENT_SECRET|TENANT_ID|AUTHORITY_ID|ENDPOINT)"
        r"|AZURE_(AUTHORITY_HOST|(MSI|IDENTITY)_ENDPOINT|OBJECT_ID|MSI_RESOURCE_ID"
        r"|FEDERATED_TOKEN_FILE|USE_AZURE_CLI|SKIP_SIGNATURE)"
    ),
}
# Options that are credentials, say where they are, or that none are needed.
_CREDENTIALS = {
    "s3": re.compile(r"access_key_id|secret_.*|.*token(_file)?|container_.*|skip_signature"),
    "gs": re.compile(r"service_account.*|application_credentials|skip_signature"),
    "az": re.compile(
        r".*(key|token|secret|token_file)|(msi|identity)_endpoint|use_(azure_cli|emulator)|skip_signature"
    ),
}
_ANYWAY = "or run where a metadata service gives them; of a public bucket, storage={'skip_signature': True}"
WAYS = {
    "s3": "Pass access_key_id and secret_access_key in storage=, set AWS_ACCESS_KEY_ID, name a profile of ~/.aws, "
    + _ANYWAY,
    "gs": "Pass service_account_key in storage=, set GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth "
    f"application-default login', {_ANYWAY}",
    "az": "Pass account_name and account_key (or sas_token) in storage=, set AZURE_STORAGE_ACCOUNT_NAME and "
    f"AZURE_STORAGE_ACCOUNT_KEY, {_ANYWAY}",
}


def from_environment(
    kind: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of a kind of store, by their short names, with those that the environment adds."""
    given = {short_name(name): value for name, value in options.items()}
    found = {short_name(n): v for n, v in environment.items() if _VARIABLES[kind].fullmatch(n)}
    if has_credentials(kind, given):
        found = {n: v for n, v in found.items() if not _CREDENTIALS[kind].fullmatch(n)}
    return found | given


def has_credentials(kind: str, options: Mapping[str, Any]) -> bool:
    """Tell whether options say which credentials to use, or that none are needed."""
    said = (name for name, value in options.items() if str(value).lower() != "false")
    return any(_CREDENTIALS[kind].fullmatch(name) for name in said)


class ProfileCredentials:
    """Credentials of ``~/.aws`` (keys, SSO, roles) or of the metadata service, by botocore, renewed before they expire.

    ``environment`` has the variables of the client: its profiles lie in its home, and it may name one.
    """

    def __init__(self, profile: str | None, environment: Mapping[str, str]) -> None:
        self._profile, self._environment = profile, environment
        self._credentials: Any = None
        self.config: dict[str, Any] = {}  # obstore looks for it
        self.fault: StoreFault | None = None  # why there were none when they were last asked for

    async def __call__(self) -> dict[str, Any]:
        """Return credentials as obstore takes them; it asks again soon, as botocore knows when to renew them."""
        self.fault = None
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._find), CREDENTIALS_S)
        except Exception as error:  # of botocore: no such profile, SSO that has ended
            is_late = isinstance(error, TimeoutError)
            what = (
                f"no credentials were found within {CREDENTIALS_S:.0f} s"
                if is_late
                else str(error)
            )
            self.fault = StoreFault("denied", what, WAYS["s3"])
            raise
        keys = {"access_key_id": found.access_key, "secret_access_key": found.secret_key}
        return keys | {"token": found.token, "expires_at": datetime.now(UTC)}

    def _find(self) -> Any:
        if self._credentials is None:
            self._credentials = self._session().get_credentials()
        if self._credentials is None:
            raise LookupError("there are no credentials")
        return self._credentials.get_frozen_credentials()

    def _session(self) -> Any:
        """Return what looks where boto3 looks, as its own process would."""
        from botocore.session import Session

        given = self._environment
        folder = f"{given.get('HOME', '~')}/.aws"
        variables = {
            "credentials_file": given.get("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials"),
            "config_file": given.get("AWS_CONFIG_FILE", f"{folder}/config"),
            "region": given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION"),
            "ca_bundle": given.get("AWS_CA_BUNDLE"),
            "metadata_service_timeout": METADATA_S,
            "metadata_service_num_attempts": 1,
        }
        profile = self._profile or given.get("AWS_PROFILE") or given.get("AWS_DEFAULT_PROFILE")
        session = Session(profile=profile)
        for name, value in variables.items():
            if value is not None:
                session.set_config_variable(name, value)
        return session
