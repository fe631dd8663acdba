"""The command ``attnviz ablate``: what happens without a head.

texts, hooks, resumed_forward -> damage -> gradient_importance -> passes -> results -> removal, words
  -> figures -> drawing
  -> document, tables -> saving
"""

__all__: list[str] = []
