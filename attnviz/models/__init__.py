"""Models: from a name to a folder, a loaded checkpoint and the tokens of a text."""
