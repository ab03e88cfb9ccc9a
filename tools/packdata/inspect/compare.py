"""How two packed datasets differ: in their fields, and by the hashes of their shards."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from loaders.schema import Boxes, Keypoints
from loaders.schema.pictures import first_picture
from packdata.describe import cut

if TYPE_CHECKING:
    from loaders.remote.url import Location
    from loaders.schema import Schema

_MAX_CHARS = 200  # of one side of a difference


def diff(a: Location | str, b: Location | str) -> list[str]:
    """Return how two packed datasets differ, one sentence each; nothing if they have the same fields and shards.

    Only their manifests are read. Equal samples in other shards, or in another format, are a difference.

    Raises:
        ManifestError: A manifest is missing or damaged.
    """
    first, second = read_manifest(a), read_manifest(b)
    found = schema_differences(first.schema, second.schema)
    served = [", ".join(each.schema.defaults) for each in (first, second)]
    found += _different("default fields", served[0], served[1])
    if first.fingerprint != second.fingerprint:
        found += _different("number of samples", first.num_samples, second.num_samples)
        hashes = [[shard.xxh3_128 for shard in each.shards] for each in (first, second)]
        both = {*hashes[0]} & {*hashes[1]}
        num = [f"{len(each)} in {name}" for each, name in zip(hashes, "AB", strict=True)]
        order = " in another order" * (sorted(hashes[0]) == sorted(hashes[1]))
        found.append(f"shards: {', '.join(num)}, {len(both)} the same{order}")
    return found


def schema_differences(a: Schema, b: Schema) -> list[str]:
    """Return where the fields of schema B differ from those of A, one sentence each."""
    found = [f"only A has field {name!r}" for name in a.fields if name not in b.fields]
    found += [f"only B has field {name!r}" for name in b.fields if name not in a.fields]
    for name in (name for name in a.fields if name in b.fields):
        one, other = a.fields[name].to_json(), b.fields[name].to_json()
        for option in one | other if one["kind"] == other["kind"] else ["kind"]:
            what = f"field {name!r}: {option}"
            found += _different(what, one.get(option), other.get(option))
    if any(isinstance(field, Boxes | Keypoints) for field in a.fields.values()):
        what = "first image, in whose pixels boxes are,"
        found += _different(what, first_picture(a.fields), first_picture(b.fields))
    return found


def _different(what: str, a: Any, b: Any) -> list[str]:
    """Return how a value differs, if it does; of lists, at the first place where they do."""
    if a == b:
        return []
    if isinstance(a, list) and isinstance(b, list):
        pairs = enumerate(zip_longest(a, b))
        if unequal := [pair for pair in pairs if pair[1][0] != pair[1][1]]:
            i, (a, b) = unequal[0]  # else one has None at its end, as of dimensions of any length
            what = f"{what} {i}"
    return [f"{what} is {cut(repr(a), _MAX_CHARS)} in A, {cut(repr(b), _MAX_CHARS)} in B"]
