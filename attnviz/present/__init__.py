"""Presentation that all commands share: tables, documents, captions, output folder."""
