"""The reference attention, and how it is verified against the running model."""
