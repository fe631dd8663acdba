"""The model: a name becomes a folder, a checkpoint, tokens."""

__all__: list[str] = []
