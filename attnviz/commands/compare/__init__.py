"""The command ``attnviz compare``: differences of all heads between two models or two texts."""
