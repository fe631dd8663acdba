"""The command ``attnviz heads``."""

__all__: list[str] = []
