"""The command ``attnviz rollout``: attention followed through all layers.

attention_rollout, summed_norms, max_flow, results -> rolling
  -> words, sizes -> figures -> drawing
  -> document, tables -> saving
"""

__all__: list[str] = []
