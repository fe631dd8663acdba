"""The command ``attnviz ablate``: what happens without a head."""
