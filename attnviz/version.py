"""The version of attnviz, which every document carries."""

__version__ = "0.1.0"
