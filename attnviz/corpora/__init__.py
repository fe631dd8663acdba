"""Corpora: from files of many texts to batches through a model, by one process or by several.

reading -> texts -> batches -> sampling      interrupts, resuming, processes: long runs
                                              bootstrap: how sure a number over texts is
"""

__all__: list[str] = []
