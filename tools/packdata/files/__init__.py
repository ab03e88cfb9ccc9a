"""One sample for each file of a source: what pictures and arrays share.

``splits`` opens the splits of a source, with ``labels`` and masks; ``recipe`` and ``plan`` are all but what becomes
of a file.
"""
