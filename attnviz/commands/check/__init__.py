"""The command ``attnviz check``: claims on heads, from a file or a paper, held against measurements."""
