"""The command ``attnviz profile``: what each head of a model does, measured on corpora.

tallies -> measuring; tallies, offsets, meanings, repeats -> roles; all of these, head_distances -> profiling
  -> role_families -> figures -> likeness, pages -> drawing
  -> document -> saving; tables
"""

__all__: list[str] = []
