"""Corpora: from files of many texts to batches through a model, by one process or by several.

reading -> batches -> texts, sampling; resuming and processes for long runs, bootstrap for intervals
"""

__all__: list[str] = []
