"""Time limits and retries of clients, fetcher and stores.

Five loops retry: a reader, for a shard that was evicted before it was opened (``RemoteShard``), and for a manifest
that came damaged (``read_remote``); a client, the next fetcher where one died (``Origin.ask``); the fetcher, a store
(``ServedURL.again``); and a download, all of a file whose bytes are not those of the manifest (``Download.run``). What
is written obstore repeats itself, part by part, within the same deadline. All who wait for one thing get the same error
at once.
"""

from __future__ import annotations

# A client, for its fetcher.
START_S = 30.0  # to start
BEAT_S = 1.0  # between two signs of it that a question is being worked on
SILENCE_S = 60.0  # without such a sign: it was stopped, which is an error that names it
MAX_DEATHS = 8  # of fetchers, during one question
MAX_EVICTIONS = 8  # of a shard, between being fetched and being mapped

# The fetcher, for a store.
ANSWER_S = 20.0  # for a byte of one answer (``timeout`` of storage=); for a part of a write three times that
DEADLINE_S = 60.0  # since the last byte that came, however often it asked (``retry_timeout``)
MAX_TRIES = 3  # at what more time does not mend, and at a whole file
PAUSE_S = 5.0  # between two tries, at most: they come less and less often
CREDENTIALS_S = 4.0  # for botocore to find some
METADATA_S = 2.0  # of that, for the metadata service
RENEWED_S = 5.0  # after they were renewed they are not renewed again

# The fetcher, for its clients and its disk.
MAP_S = 1.0  # the file that a client was given last stays: it is about to be mapped
FULL_S = 10.0  # a file waits for room on a disk that evicted files which are still mapped fill
FAILED_S = 8.0  # a file that failed is not tried again, and who asks for it gets the same error
IDLE_S = 3.0  # without a client: it ends
