"""Arrays of numbers: ``.npy`` and ``.npz`` files to records of one dtype and one order of axes.

``files`` reads them, ``recipe`` packs one after the other, and ``plan`` is what a caller gets.
"""
