"""Packs images, tokens, tables and arrays into shards that ``loaders`` serves.

The command is ``packdata``; from Python there are ``Writer`` and ``pack`` for any samples,
``write`` for a view of what was packed, and ``pack_images`` for what ``packdata images`` does.
Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packdata.arrays import pack_arrays as pack_arrays
    from packdata.images.plan import pack_images as pack_images
    from packdata.packed.views import write as write
    from packdata.packing.engine import pack_recipes as pack_recipes
    from packdata.packing.summary import Summary as Summary
    from packdata.recipe import Block as Block
    from packdata.recipe import Recipe as Recipe
    from packdata.recipe import Records as Records
    from packdata.recipe import Target as Target
    from packdata.tables import pack_tables as pack_tables
    from packdata.tables.plan import arrays_of as arrays_of
    from packdata.tokens.plan import TokenOptions as TokenOptions
    from packdata.tokens.plan import pack_tokens as pack_tokens
    from packdata.writer import Writer as Writer
    from packdata.writer import pack as pack

_HOMES = {
    "Block": "recipe",
    "Recipe": "recipe",
    "Records": "recipe",
    "Summary": "packing.summary",
    "Target": "recipe",
    "TokenOptions": "tokens.plan",
    "Writer": "writer",
    "arrays_of": "tables.plan",
    "pack": "writer",
    "pack_arrays": "arrays",
    "pack_images": "images.plan",
    "pack_recipes": "packing.engine",
    "pack_tables": "tables",
    "pack_tokens": "tokens.plan",
    "write": "packed.views",
}
# Of a computed list mypy takes no name; without one, those imported as themselves.
if not TYPE_CHECKING:
    __all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Load a public name on its first use, so that ``packdata --help`` is quick."""
    if name not in _HOMES:
        from loaders.checks import did_you_mean

        what = f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, _HOMES)}"
        raise AttributeError(what)
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_HOMES})
