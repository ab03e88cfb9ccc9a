"""Pictures: files of any kind to records of one codec, in one or several sizes.

``pictures`` reads and decodes a file, ``masks`` one whose numbers count; ``fit`` brings them to a size, and ``shapes``
their boxes and keypoints. ``stored`` says what becomes of pixels or of the file. ``recipe`` does all of it for each
item, and ``plan`` is what a caller gets.
"""
