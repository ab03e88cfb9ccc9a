"""Pictures: files of any kind to records of one codec, in one or several sizes.

``pictures`` reads and decodes a file, ``fit`` brings it to a size; ``recipe`` does all of it for
each item, and ``plan`` is what a caller gets. ``jpegs`` mends, encodes and divides JPEGs, ``marks`` has the values of
masks, ``shapes`` boxes and keypoints. ``stored`` is the way of a picture that a ``Writer`` is given.
"""
