"""The command ``attnviz outputs``: what each head writes into the residual stream.

head_writing, residual_stream -> promoted_tokens -> written
  -> figures -> drawing (one head), overview, maps (all heads)
  -> document, tables -> saving
"""

__all__: list[str] = []
