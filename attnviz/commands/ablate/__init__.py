"""The command ``attnviz ablate``: what happens without a head."""

__all__: list[str] = []
