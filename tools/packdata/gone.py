"""What left before 1.0, each with a sentence that names what to use instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "append": "use 'packdata extend SRC... DST': the target comes last",
    "plan": "each part lists its source; '--dry-run --json > plan.json' makes what --plan takes",
    "repair": "copy the damaged shards from a backup, or pack again; 'packdata verify' names them",
}
# By command, and by option as it is typed.
_JOIN = "use packdata.write(view, dst, add={field: values})"
OPTIONS = {
    "copy": dict.fromkeys(("--add", "--update", "--on", "--as", "--missing"), _JOIN),
    "preview": {
        "--augment": "draw samples of ShardDataset(..., augment=presets.simclr()) yourself",
        "--columns": "the sheet is a little wider than high; --num sets its samples",
    },
    "images": {"--lossless-rotate": "rotate the files first with 'jpegtran -rotate'"},
    "cache": {
        "--verify": "a cached shard is verified when it is read; 'packdata cache --clear' deletes all"
    },
}


def sentence_for(words: Sequence[str]) -> str | None:
    """Return what to use instead of the first removed thing on a command line, or None.

    Example:
        >>> sentence_for(["append", "all", "more"])
        "'append' was removed: use 'packdata extend SRC... DST': the target comes last"
    """
    command = words[0] if words else ""
    if command in COMMANDS:
        return f"'{command}' was removed: {COMMANDS[command]}"
    options = OPTIONS.get(command, {})
    names = (word.partition("=")[0] for word in words)
    name = next((name for name in names if name in options), None)
    return None if name is None else f"{name} was removed: {options[name]}"
