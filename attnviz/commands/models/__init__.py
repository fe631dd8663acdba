"""The command ``attnviz models``: what models there are, from their configurations alone."""
