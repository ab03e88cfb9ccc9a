"""Packing, from a recipe to a published dataset: shards, journal, and the folder that is packed into."""
