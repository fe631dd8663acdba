"""Parsers, relation names, and checks of a text's language."""
