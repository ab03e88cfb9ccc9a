"""A dataset's URL, looked at as the doctor looks at a machine."""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
import uuid
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loaders.bench.doctor import Finding, examine, finding
from loaders.data.shards import open_manifest
from loaders.remote.origin import origin_of
from loaders.remote.wire import MAX_CONNECTIONS, PART_BYTES
from loaders.text import describe_size, in_seconds, number

if TYPE_CHECKING:
    from loaders.remote.origin import Origin

_ASKS = 5
_FAR_S, _SKEW_S, _REFUSED_SKEW_S = 0.2, 5.0, 300.0
_HOSTS = {
    "s3": "https://s3.amazonaws.com",
    "s3a": "https://s3.amazonaws.com",
    "gs": "https://storage.googleapis.com",
    "hf": "https://huggingface.co",
}


class StoreProbe:
    """Asks the store of a URL for bytes of a dataset, through the fetcher as loaders do; LoadersError if it cannot.

    With ``write`` an object is put there, and deleted.
    """

    def __init__(self, place: Path | str, *, write: bool = False) -> None:
        manifest, _, _ = open_manifest(place)
        self._origin: Origin = origin_of(place)
        self._write = write
        largest = max(manifest.shards, key=lambda shard: shard.size_bytes)
        self._name, self._size = largest.file, largest.size_bytes
        self._latency_s = 0.0

    def findings(self, timeout_s: float = 60.0) -> list[Finding]:
        """Look at all; each that fails is a line of its own."""
        checks = [
            self.latency, self.one_connection, self.all_connections, self.clock, self.ranges, self.etags,
            self.conditional_puts,
        ]  # fmt: skip
        return examine(checks, timeout_s=timeout_s)

    def _seconds(self, num: int, nbytes: int) -> float:
        """Return how long so many ranges of the largest shard take at once."""
        began = time.perf_counter()
        self._origin.ranges([(self._name, 0, nbytes)] * num)
        return time.perf_counter() - began

    def latency(self) -> Finding:
        """Time requests of one byte."""
        times = [self._seconds(1, 1) for _ in range(_ASKS)]
        self._latency_s = min(times)
        middle = statistics.median(times)
        found = f"{in_seconds(middle)} a request of one byte ({in_seconds(min(times))} to {in_seconds(max(times))})"
        cost = "a sample that is read by its range waits so long, and so does the first batch"
        is_far = middle >= _FAR_S
        do = "train in the region of the bucket"
        return finding("latency", found, cost=cost if is_far else "", do=do)

    def one_connection(self) -> Finding:
        """Measure one request of a part."""
        return finding("one connection", self._rate(1))

    def all_connections(self) -> Finding:
        """Measure as many at once as the fetcher makes."""
        return finding(f"{MAX_CONNECTIONS} connections", self._rate(MAX_CONNECTIONS))

    def _rate(self, num: int) -> str:
        nbytes = min(PART_BYTES, self._size)
        transfer_s = max(1e-6, self._seconds(num, nbytes) - self._latency_s)
        total = num * nbytes
        return f"{number(total / transfer_s / 1e6)} MB/s, of {describe_size(total)} behind the first byte"

    def clock(self) -> Finding:
        """Compare this machine's clock with the server's: signed requests are refused where they differ."""
        before = time.time()
        date = _date_of(self._origin)
        if isinstance(date, str):
            return Finding("clock", "unknown", f"not compared with the server's: {date}")
        skew = time.time() / 2 + before / 2 - date
        found = f"{in_seconds(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the server's, in whole seconds"
        cost = "signed requests are refused beyond 15 minutes" if abs(skew) >= _SKEW_S else ""
        risk = cost if abs(skew) >= _REFUSED_SKEW_S else ""
        return finding("clock", found, cost=cost, risk=risk, do="set the clock by NTP")

    def ranges(self) -> Finding:
        """Ask for a range."""
        said = self._origin.probe(self._name)["range"]
        risk = "shards come in parts, and records by ranges: nothing can be read" if said else ""
        do = "use a server that answers 206 to a range"
        return finding("ranges", said or "they are answered as asked", risk=risk, do=do)

    def etags(self) -> Finding:
        """Ask for an object of another e-tag than it has."""
        answer = self._origin.probe(self._name)
        cost = "a shard that is replaced while it is fetched is found by its hash alone, and fetched again"
        if not answer["has_etag"]:
            return Finding("if-match", "unknown", "objects have no e-tags", cost)
        if answer["other_etag"].startswith("changed"):
            return finding("if-match", "honoured when reading")
        return finding("if-match", "ignored when reading", cost=cost)

    def conditional_puts(self) -> Finding:
        """Put an object where one is, under the condition that none is."""
        if not self._write:
            return Finding(
                "conditional puts", "unknown", "not tried: --write puts an object and deletes it"
            )
        name, folder = f"loaders-doctor-{uuid.uuid4().hex}", tempfile.TemporaryDirectory()
        with folder as place:
            file = Path(place, "object")
            file.write_bytes(b"1")
            try:
                first, again = (self._origin.put(name, file, {}) for _ in range(2))
            finally:
                self._origin.delete(name)
        if first and not again:
            return finding("conditional puts", "honoured")
        risk = "of two who publish at one place at the same time, the last one wins"
        do = "publish from one place at a time"
        return finding("conditional puts", "ignored", risk=risk, do=do)


def _date_of(origin: Origin) -> float | str:
    """Return what time a store's server has, whatever else it answers; or why that is not known."""
    scheme = origin.url.scheme
    server = (
        str(origin.url) if scheme in ("http", "https") else origin.endpoint or _HOSTS.get(scheme)
    )
    if not server:
        return f"it is not known which server {scheme}:// is"
    place = urlsplit(server)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.netloc, timeout=10)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    except (OSError, http.client.HTTPException) as error:
        return f"{place.netloc} does not answer ({error})"
    finally:
        connection.close()
    return parsedate_to_datetime(date).timestamp() if date else f"{place.netloc} does not say it"
