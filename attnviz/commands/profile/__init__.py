"""The command ``attnviz profile``: roles of all heads, measured on corpora."""
