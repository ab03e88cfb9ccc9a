"""Arrays of numbers: ``.npy`` and ``.npz`` files to records of one dtype and one order of axes.

``files`` has the options, ``recipe`` reads and packs one after the other, and ``plan`` is what a caller gets.
"""
