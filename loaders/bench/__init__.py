"""``python -m loaders.bench``: measure a dataset and its loader, say what bounds them, and what to change."""
