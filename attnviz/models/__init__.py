"""The model: a name becomes a folder, a checkpoint, tokens."""
