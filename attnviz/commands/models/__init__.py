"""The command ``attnviz models``: sizes of models, from their configurations alone."""
