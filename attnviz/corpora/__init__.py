"""From files of many texts to batches through a model: reading, batches, runs; long_runs to go on or share the work."""
