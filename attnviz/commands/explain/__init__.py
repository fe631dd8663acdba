"""The command ``attnviz explain``: one layer, step by step, every step held against the running model.

reference -> stages -> position_share -> measure -> steps -> report, views; path_drawing -> views
"""
