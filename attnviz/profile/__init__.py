"""The command ``attnviz profile``: what each head of a model does, measured on corpora.

tallies, offsets, meanings, repeats, head_distances -> measuring -> roles -> profiling
  -> role_families -> figures -> likeness, pages -> drawing
  -> document, tables -> saving
"""

__all__: list[str] = []
