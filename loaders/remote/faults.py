"""What the answers of a store mean: one word by which it is decided what to do next, and a text without secrets."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from loaders.remote.patience import MAX_TRIES

if TYPE_CHECKING:
    from collections.abc import Mapping

_HINTS = {
    "denied": "Check the credentials and that they may read this; a store that is asked too much may say the same",
    "expired": "Renew the credentials, or set a profile whose provider renews them",
    "region": "Set the bucket's region: storage={'region': ...}",
    "short": "The object is smaller than the manifest says: upload it again",
    "missing": "Check the URL, and whether the upload was finished",
    "network": "Check that the server can be reached, and what it answers, then go on from the last checkpoint",
    "certificate": "Name a file with the certificate of who issued it: AWS_CA_BUNDLE, SSL_CERT_FILE, or the text in "
    "storage={'root_certificate': ...}",
    "unranged": "Use a server that answers 206 to a range, such as nginx or a store of objects",
    "encoded": "Let the server send these files as they are, without Content-Encoding",
}


# How often one asks in all where that is the answer; of any other word once.
_MAX_TRIES = {"network": math.inf, "expired": MAX_TRIES, "unranged": MAX_TRIES, "short": MAX_TRIES}


class StoreFault(Exception):
    """A store's answer as one word, by which it is decided what to do next.

    ``missing``, ``short`` (it ends before the range), ``expired``, ``denied``,
    ``region``, ``unusable`` (an option that there is not), ``certificate``, ``unranged`` (all of an object came for a
    range), ``encoded`` (compressed on the way), or ``network`` (anything that may pass).
    """

    def __init__(self, kind: str, text: str, hint: str = "") -> None:
        super().__init__(kind, text, hint)
        self.kind, self.text, self.hint = kind, text, hint or _HINTS.get(kind, "")
        self.max_tries = _MAX_TRIES.get(kind, 1)


# What obstore says by a type of error.
_TYPES = {
    "FileNotFoundError": "missing",
    "NotFoundError": "missing",
    "PermissionDeniedError": "denied",
    "UnauthenticatedError": "denied",
    "InvalidPathError": "unusable",
    "UnknownConfigurationKeyError": "unusable",
}
# What an answer says, as it is found in the text of an error; the first that fits.
_SAYS = (
    ("expired", r"ExpiredToken|TokenRefreshRequired|InvalidToken|token[^.]{0,40}expired"),
    ("denied", r"RequestTimeTooSkewed"),
    ("network", r"SlowDown|TooManyRequests|RequestLimitExceeded|ServiceUnavailable"),
    ("region", r"redirect|AuthorizationHeaderMalformed|\b30[1278]\b|IllegalLocation"),
    ("missing", r"\b410 Gone\b"),
    ("short", r"\b416\b|InvalidRange|Requested range .* out of bounds"),
    ("denied", r"\b40[13]\b|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId"),
    ("unusable", r"builder error|Missing|URL scheme is not allowed|object with invalid path"),
)
# Why a connection failed, as it stands behind what an error of obstore says.
_CONNECTS = (
    ("certificate", r"InvalidCertificate", "the server's certificate is not trusted", ""),
    ("unranged", r"RangeNotSupported", "the server answers a range with all of an object", ""),
    (
        "unusable",
        r"TooManyRedirects",
        "the server sends from one address to the next",
        "See where the URL leads, as by 'curl -L'",
    ),
    (
        "network",
        r"InvalidContentType",
        "the server does not speak TLS",
        "Write http:// in place of https://, or check the port",
    ),
    (
        "network",
        r"dns error",
        "the server's name does not resolve",
        "Check how the endpoint is spelled, and this machine's name server",
    ),
    (
        "network",
        r"ConnectionRefused",
        "the connection is refused",
        "Check the endpoint's port, and that the server runs",
    ),
)
_NO_BUCKET = "There is no such bucket: check its name, or make it"
# Of an error of obstore, what was asked for and how long it took: such numbers and names are no answers.
_ASKED = re.compile(
    r"performing [A-Z]+ \S+ in [^\s,]+(, after \d+ retries, max_retries: \d+, retry_timeout: \S+)?"
    r"|(location|for path) \S+"
)
_XML = re.compile(r"(<\?xml[^>]*>\s*)?<Error>.*?</Error>", re.DOTALL)


def _said_by(answer: re.Match[str]) -> str:
    """Return the code and the message of an answer in XML."""
    found = (re.search(f"<{tag}>([^<]*)<", answer[0]) for tag in ("Code", "Message"))
    return ": ".join(dict.fromkeys(each[1] for each in found if each))


def text_of(error: Exception) -> str:
    """Return what an error of obstore says, without what is for those who mend obstore."""
    return _XML.sub(_said_by, str(error).partition("\n\nDebug source")[0])


def fault_of(error: Exception, ways: str = "") -> StoreFault:
    """Return what an error of obstore, or of what it calls, means; ``ways``: how the store is given credentials."""
    if isinstance(error, StoreFault):
        return error
    text = text_of(error)
    for kind, pattern, what, hint in _CONNECTS:
        if re.search(pattern, str(error).partition("\n\nDebug source")[2]):
            return StoreFault(kind, f"{text}: {what}", hint)
    kind, said = _TYPES.get(type(error).__name__, "network"), _ASKED.sub("", text)
    if "NoSuchBucket" in said:
        return StoreFault("missing", text, _NO_BUCKET)
    is_metadata = "169.254.169.254" in text
    if "token request" in text and (is_metadata or re.search(r"\b40\d\b", said)):
        return StoreFault("denied", text, ways)
    found = (each for each, pattern in _SAYS if re.search(pattern, said, re.IGNORECASE))
    return StoreFault("missing" if kind == "missing" else next(found, kind), text)


def hide_secrets(text: str, secrets: Mapping[str, Any]) -> str:
    """Return a text without the values of these options, and without queries and users of URLs."""
    for value in secrets.values():
        if isinstance(value, str) and len(value) > 3:
            text = text.replace(value, "***")
    text = re.sub(r"(://[^\s?'\"<>]+)\?[^\s'\"<>)]*", r"\1?***", text)
    return re.sub(r"://[^/\s@]+@", "://***@", text)
