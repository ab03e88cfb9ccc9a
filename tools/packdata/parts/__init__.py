"""Packing in parts, on as many machines as there are: in a folder that all of them mount, at a URL, or by Ray."""
