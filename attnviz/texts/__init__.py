"""Files of many texts to batches through a model: reading, parsing, batches, runs; long_runs keeps and shares work."""
