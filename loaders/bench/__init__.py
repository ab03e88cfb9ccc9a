"""``python -m loaders.bench``: measure a dataset and its loader, say what bounds them, and what to change.

Each answer comes from a few files, in this order:

- ``sweep``: ``targets`` (what is measured), ``measure`` (one loader under the clock), ``sweep`` (many settings, in
  turns), ``stages`` (what a sample costs in each alone: the facts that ``loaders.verdict`` judges), ``report`` (how
  they are shown).
- ``recommend``: the same; the number of workers is kept (``loaders.loading.tuning``).
- ``plan``: ``planner``: memory, and what an epoch over a URL downloads.
- ``doctor``: ``doctor``.

``cli`` has the commands. ``loaders.profiling`` times a run of the user's.
"""
