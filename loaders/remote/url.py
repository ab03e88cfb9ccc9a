"""Where a dataset lies in a store. A URL has no secrets in it, so it may be shown, logged and pickled."""

from __future__ import annotations

import re
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from loaders.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Mapping

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
OBSTORE_SCHEMES = frozenset(["s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"])
KINDS = {"s3a": "s3", "abfs": "az", "abfss": "az"}  # other names of schemes
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "hf": ("HF_ENDPOINT",),
}

# Options that are no secrets; every other one is taken for such.
PUBLIC_OPTIONS = frozenset(
    (
        *("endpoint", "endpoint_url", "region", "skip_signature", "virtual_hosted_style_request"),
        *("allow_http", "allow_invalid_certificates", "profile", "timeout", "connect_timeout"),
        *("retry_timeout", "anon", "account_name", "auto_mkdir"),
    )
)


class URL(PosixPath):
    """A place in a store, ``scheme://host/path``: without user name, password, query and fragment.

    It is a path, so what joins, names or shows paths does the same with URLs; no file lies there.
    """

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":/")
        return f"{scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}"

    @property
    def scheme(self) -> str:
        """What comes before ``://``."""
        return str(self).partition("://")[0]

    def absolute(self) -> URL:
        """Return it as it is."""
        return self


def is_url(place: Path | str) -> bool:
    """Tell whether a place is a URL, and not the path of something that exists."""
    if isinstance(place, URL):
        return True
    found = _URL.match(str(place))
    return found is not None and len(found[1]) > 1 and not Path(place).exists()


def url_of(place: Path | str) -> URL:
    """Return a place as a URL; RemoteError if it names no bucket, holds credentials, or a key that is not read.

    ``Path("s3://bucket")`` loses a slash, which is put back.
    """
    if isinstance(place, URL):
        return place
    scheme, _, rest = _URL.sub(r"\1://", str(place), count=1).partition("://")
    scheme = scheme.lower()
    is_web = scheme in ("http", "https")
    # Keys of buckets may hold a '?' or a '#'.
    host, slash, path = (re.split("[?#]", rest)[0] if is_web else rest).partition("/")
    if scheme == "file":
        host, slash, path = "", "/", rest.lstrip("/")
    public = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    if not host and scheme != "file":  # as of a variable that is not set
        raise RemoteError("a URL names a bucket or a server", f"{scheme}://")
    if "@" in host or (is_web and "?" in rest):
        what = "a URL holds no user, password or query"
        raise RemoteError(what, public, "Pass credentials in storage=, or set their variables")
    if scheme != "file" and ("//" in path.strip("/") or "/./" in path):
        what = "a key with '//' or '/./' in it is another object than the one without, and is not read"
        raise RemoteError(what, public, "Copy the objects to a folder without these")
    return URL(public)


def place_of(place: Path | str) -> Path:
    """Return a path, or a URL; RemoteError for one that holds credentials."""
    return url_of(place) if is_url(place) else Path(place)


def short_name(name: str) -> str:
    """Return the name of an option, or a variable, without that of the provider."""
    short = re.sub(r"^(aws|google|azure(_storage)?)_", "", name.lower())
    return "endpoint" if short == "endpoint_url" else short


def endpoint_of(scheme: str, storage: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the server that options or variables name, where it is not the provider's own."""
    given = {short_name(name): value for name, value in storage.items()}
    names = _ENDPOINT_VARIABLES.get(KINDS.get(scheme, scheme), ())
    said = (environment[name] for name in names if environment.get(name))
    return str(given.get("endpoint") or next(said, ""))
