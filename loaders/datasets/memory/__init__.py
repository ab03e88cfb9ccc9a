"""Datasets that are copied to memory: of a process, of a machine, of a device."""
