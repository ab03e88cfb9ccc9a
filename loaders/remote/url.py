"""Where a dataset or a source lies, a path or a URL; and how the store of a URL is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
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


@dataclass(frozen=True, slots=True)
class URL:
    """A place in a store, ``scheme://host/path``; it has no secrets, so it may be shown, logged and pickled.

    It is joined and named as paths are, and no path: no file lies there.
    """

    text: str  # without user name, password, query and fragment

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"URL({self.text!r})"

    def __truediv__(self, name: str) -> URL:
        return URL(f"{self.text}/{name}".rstrip("/"))

    @property
    def scheme(self) -> str:
        """What comes before ``://``."""
        return self.text.partition("://")[0]

    @property
    def name(self) -> str:
        """What comes behind the last slash."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> URL:
        """The folder that it is in; of a bucket or a server, itself."""
        scheme, _, rest = self.text.partition("://")
        above = rest.rpartition("/")[0]
        return URL(f"{scheme}://{above}") if above else self

    def absolute(self) -> URL:
        """Return it as it is."""
        return self


Location = Path | URL  # where something lies; what opens files takes a Path


def is_url(place: Location | str) -> bool:
    """Tell whether a place is a URL, and not the path of something that exists."""
    if isinstance(place, URL):
        return True
    found = _URL.match(str(place))
    return found is not None and len(found[1]) > 1 and not Path(place).exists()


def url_of(place: Location | str) -> URL:
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
        host, slash, path = "", "/", str(PurePosixPath("/", rest))[1:]
    public = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    if not host and scheme != "file":  # as of a variable that is not set
        raise RemoteError("a URL names a bucket or a server", f"{scheme}://")
    if "@" in host or (is_web and "?" in rest):
        what = "a URL holds no user, password or query"
        raise RemoteError(what, public, "Pass credentials in storage=, or set their variables")
    if "//" in f"/{path}".rstrip("/") or "/./" in f"/{path}/":
        what = "a key with '//' or '/./' in it is another object than the one without, and is not read"
        raise RemoteError(what, public, "Copy the objects to a folder without these")
    return URL(public)


def place_of(place: Location | str) -> Location:
    """Return a path, or a URL; RemoteError for one that holds credentials."""
    return url_of(place) if isinstance(place, URL) or is_url(place) else Path(place)


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
