"""Reads captions.md back."""

import re


def read_captions(text: str) -> list[tuple[str, str]]:
    """File name and caption of each figure."""
    entries = filter(None, map(re.compile(r"\*\*([^*]+)\*\*: (.*)").fullmatch, text.splitlines()))
    return [(name, re.sub(r"\\(.)", r"\1", entry[2])) for entry in entries for name in entry[1].split(", ")]
