"""The version of attnviz, which every document carries."""

__all__ = ["__version__"]

__version__ = "0.1.0"
