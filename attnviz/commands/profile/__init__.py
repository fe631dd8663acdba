"""The command ``attnviz profile``: corpora run through a model into tallies, which give each head its roles."""
