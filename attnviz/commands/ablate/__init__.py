"""The command ``attnviz ablate``: effects of removing heads."""
