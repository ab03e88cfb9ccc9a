"""What left before 1.0, and what to use instead: errors about such a name or option end with it."""

_INSTEAD = {
    "loaders.InflateOnDevice": "pass the dataset itself to the loader, which decompresses on the host",
    "RAMDataset.from_frame": "use RAMDataset.from_arrays(**packdata.arrays_of(frame, target=...))",
    "RAMDataset(shared='all_users')": "pass shared=True: each user has a copy, or use ShardDataset, "
    "whose files lie once in the page cache",
    "cache={'mode': 'records'}": "make a dataset of a few samples by packdata.write(view, dst)",
}


def gone(what: str, hint: str = "") -> str:
    """Return the end of a message about a missing name or option; ``hint`` where there was never one."""
    return f": removed before 1.0, {_INSTEAD[what]}" if what in _INSTEAD else hint
