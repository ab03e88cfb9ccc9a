"""Inputs: one file per kind, each a ``Source`` of items in a fixed order."""
