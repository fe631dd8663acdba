"""Parsers, the names of relations, words."""
