"""Reads captions.md back."""

import re


def read_captions(text: str) -> list[tuple[str, str]]:
    """File name and caption of each figure, its details and its model on lines of their own."""
    entries = re.findall(r"^\*\*([^*]+)\*\*: (.*(?:\n\n(?:Details|Model): .*)*)$", text, re.MULTILINE)
    return [
        (name, re.sub(r"\\(.)", r"\1", entry.replace("\n\n", "\n")))
        for names, entry in entries
        for name in names.split(", ")
    ]
