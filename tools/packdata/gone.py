"""What left before 1.0, each with a sentence that names what to use instead."""

_JOIN = "use packdata.write(view, dst, add={field: values})"
_DCT = "a copy has the defaults of dct; 'packdata images' packs files with others"
# Commands, and options as they are typed behind theirs.
GONE = {
    "append": "use 'packdata extend SRC... DST': the target comes last",
    "plan": "each part lists its source; '--dry-run --json > plan.json' makes what --plan takes",
    "help": "use 'packdata COMMAND --help'",
    "completion": "use 'packdata COMMAND --help'",
    "repair": "copy the damaged shards from a backup, or pack again; 'packdata verify' names them",
    **{f"copy --{name}": _JOIN for name in ("add", "update", "on", "as", "missing")},
    **{f"copy --{name}": _DCT for name in ("subsampling", "compression")},
    "preview --augment": "draw samples of ShardDataset(..., augment=presets.simclr()) yourself",
    "preview --columns": "the sheet is a little wider than high; --num sets its samples",
    "images --lossless-rotate": "rotate the files first with 'jpegtran -rotate'",
    "diff --limit": "shards are compared by their hashes; ShardDataset(...).column('key') has the keys of samples",
    "cache --verify": "a cached shard is verified when it is read; 'packdata cache --clear' deletes all",
}
