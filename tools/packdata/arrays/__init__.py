"""Arrays of numbers: ``.npy`` and ``.npz`` files to records of one dtype and one order of axes.

``recipe`` reads and packs one after the other, ``plan`` is what a caller gets.
"""
