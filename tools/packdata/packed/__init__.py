"""Datasets made of packed ones: copies, splits, merges, other fields and codecs."""
