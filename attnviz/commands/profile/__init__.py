"""The command ``attnviz profile``: what each head of a model does, measured on corpora.

measure.py runs corpora through a model (corpus_run.py) into tallies and turns these into roles; views.py, charts.py and
likeness.py draw, report.py tells.
"""

__all__: list[str] = []
