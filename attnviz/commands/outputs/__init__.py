"""The command ``attnviz outputs``: what each head writes into the residual stream.

contributions, residual_stream -> promoted_tokens -> measure
  -> figures -> drawing (one head), overview, maps (all heads)
  -> document, tables -> saving
"""

__all__: list[str] = []
