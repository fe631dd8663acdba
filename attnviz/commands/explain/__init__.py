"""The command ``attnviz explain``: one layer, step by step, every step held against the running model."""
