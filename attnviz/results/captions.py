"""The file captions.md: a sentence beside the name of each figure in the folder."""

import re
from collections.abc import Iterable
from typing import Any

from attnviz.results.output_folder import OutputFolder

__all__ = ["CAPTIONS", "captions_text", "read_captions", "write_captions"]

CAPTIONS = "captions.md"
"""The name of the file."""

_ENTRY = re.compile(r"\*\*([^*]+)\*\*: (.*)")
_MARKUP = re.compile(r"([\\`*_<>\[\]#|&$])")


def write_captions(output: OutputFolder, document: dict[str, Any], captions: dict[str, str]) -> None:
    """Write the file for these figures and for those of an earlier run that stay in the folder.

    Args:
        output: the folder, open.
        document: that is to be committed there; it decides which earlier files stay.
        captions: by file name.
    """
    if not captions:
        return
    kept = output.kept(document)
    earlier: dict[str, str] = {}
    if CAPTIONS in kept:
        text = (output.path / CAPTIONS).read_text(encoding="utf-8", errors="replace")
        earlier = {name: sentence for name, sentence in read_captions(text) if name in kept}
    output.write(CAPTIONS, captions_text((earlier | captions).items()))


def captions_text(captions: Iterable[tuple[str, str]]) -> str:
    """The content of the file.

    Args:
        captions: file name and sentence of each figure; files with the same sentence that differ only in their
            format share an entry. Sentences are taken as plain text.
    """
    entries: dict[tuple[str, str], list[str]] = {}
    for name, sentence in captions:
        entries.setdefault((name.rpartition(".")[0], sentence), []).append(name)
    lines = []
    for (_, sentence), names in entries.items():
        escaped = _MARKUP.sub(r"\\\1", sentence)
        lines.append(f"**{', '.join(names)}**: {escaped}")
    return "\n\n".join(["# Captions", *lines]) + "\n"


def read_captions(text: str) -> list[tuple[str, str]]:
    """File name and sentence of each figure, from what :func:`captions_text` wrote; other lines are passed over."""
    entries = filter(None, map(_ENTRY.fullmatch, text.splitlines()))
    return [(name, re.sub(r"\\(.)", r"\1", entry[2])) for entry in entries for name in entry[1].split(", ")]
