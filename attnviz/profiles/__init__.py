"""Stored profiles and published heads of known models."""
