"""Datasets in a store (S3, GCS, Azure, HTTP, or what fsspec reaches), through a cache folder of this machine.

A trainer holds no client of a store: one process per cache folder, the fetcher, downloads whole shards, verifies and
publishes them by a rename, and trainers map the finished files. What talks to a store is imported in the fetcher alone.

::

    url       where a dataset lies, without its secrets
    folder    the cache: where it is, how large it may be, what lies in it; room, and eviction
    patience  time limits and retries of clients, fetcher and stores
    wire      messages over the fetcher's socket
    client    finds or starts the fetcher
    origin    a dataset at a URL, as ``loaders.data`` uses it: asks the fetcher, and another one if it dies; how much of
              a cache this process may map
    ahead     which shards a loader will read, and when: sent to the fetcher
    options   how a URL is opened, on a command line
    fetcher   the process: clients, what to fetch next
    served    a URL that clients ask for: its store, counters, repeated requests, what packdata asks
    transfer  one file in parts: verified, published
    stores    look, get, put and delete, by obstore or fsspec
    credentials  where they come from
    faults    what the answers of a store mean
"""
