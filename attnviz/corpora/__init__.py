"""Corpora: from files of many texts to batches through a model, by one process or by several.

reading -> batches -> runs; long_runs to go on with or to share the work
"""
