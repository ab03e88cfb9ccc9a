"""The version; a file of its own, for what lies below the package's public names."""

__version__ = "0.1.0"
