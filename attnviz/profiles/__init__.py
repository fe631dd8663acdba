"""Stored profiles and published heads: what is known of a model before it runs."""
