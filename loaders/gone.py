"""What left before 1.0, and what to use instead: errors about such a name or option end with it."""

_OPS = "pass ops to augment=; their parts are in loaders.augment.geometry, .planning, .pixels, .edits and .warps"
_PARTS = """
Edits Geometry Known Move Resampling apply as_augment carry_out check_ops cut edit
fill_mask_of fill_of has_draws move_boxes move_keypoints moved_steps output_lengths
output_size plan reductions steps_of take_steps warp
"""
_INSTEAD = {
    **{f"loaders.augment.{name}": _OPS for name in _PARTS.split()},
    "loaders.InflateOnDevice": "pass the dataset itself to the loader, which decompresses on the host",
    "RAMDataset.from_frame": "use RAMDataset.from_arrays(**packdata.arrays_of(frame, target=...))",
    "RAMDataset(shared='all_users')": "pass shared=True: each user has a copy, or use ShardDataset, "
    "whose files lie once in the page cache",
    "cache={'mode': 'records'}": "make a dataset of a few samples by packdata.write(view, dst)",
}
# Commands of ``loaders.bench``, and options as they are typed behind theirs.
_HELP = "use 'python -m loaders.bench COMMAND --help'"
_BILL = "bytes and requests are printed: multiply them by your provider's prices"
_FAR = "stats().remote of a run has bytes, requests, retries and seconds waited"
BENCH = {
    "help": _HELP,
    "completion": _HELP,
    "sweep --plot": "--json has each figure with its repeats",
    "sweep --cold": "'doctor FOLDER' reads files past the page cache",
    "sweep --no-trials": "nothing is tried on a sample: run the sweep again after a change",
    "plan --per-gb": _BILL,
    "plan --per-1000-requests": _BILL,
    **{f"doctor --{name}": _FAR for name in ("cache", "storage", "write")},
}


def gone(what: str, hint: str = "") -> str:
    """Return the end of a message about a missing name or option; ``hint`` where there was never one."""
    return f": removed before 1.0, {_INSTEAD[what]}" if what in _INSTEAD else hint
