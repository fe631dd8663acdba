"""Corpora: from files of many texts to batches through a model, by one process or by several.

reading -> batches -> texts, sampling
interrupts, resuming, processes: long runs; bootstrap: how sure a number over texts is
"""

__all__: list[str] = []
