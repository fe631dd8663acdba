"""The command ``attnviz explain``: one layer, step by step, every step held against the running model.

stage_capture + layer_stages (of layer_reference) -> stages -> explained -> stage_words, stage_numbers
  -> path_panels -> path_layout -> path_figures -> path_drawing
  -> document, tables -> saving
position_share -> position_drawing: content and position in the first layer's scores
"""

__all__: list[str] = []
