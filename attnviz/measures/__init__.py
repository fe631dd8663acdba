"""Measures: sums over rows, texts and corpora."""
