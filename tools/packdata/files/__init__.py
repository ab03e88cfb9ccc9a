"""One sample for each file of a source: what pictures and arrays share.

``splits`` opens the splits of a source, with ``labels`` and masks; ``recipe`` is all but what becomes of a file.
"""
