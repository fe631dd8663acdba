"""Writes the table of families in examples/guide/models.md from their declarations."""

import re
from pathlib import Path

from attnviz.models.families import ARCHITECTURES, commands_in_words, commands_of
from attnviz.models.families.base import Architecture
from attnviz.models.families.encoders import ClipText
from attnviz.models.families.llama import Llama

MODELS = Path(__file__).parent / "guide" / "models.md"


def kind_of(family: Architecture) -> str:
    """What the guide calls models of its kind."""
    if family.encoder_commands or family.reads_sound:
        return "encoder-decoders"
    if family.mixer_at:
        return "hybrids: only some layers attend"
    if isinstance(family, ClipText):
        return "texts of CLIP and SigLIP"
    if isinstance(family, Llama) and family.causal:
        return "the Llama kind, with images" if family.text_tower_at else "the Llama kind"
    return "GPT-2 and its successors" if family.causal else "BERT and its relatives"


def table() -> str:
    """The table in Markdown: a row for each kind of models that the same commands take."""
    rows = dict[tuple[str, str], list[str]]()
    for name, family in sorted(ARCHITECTURES.items()):
        rows.setdefault((kind_of(family), commands_in_words(commands_of(family))), []).append(f"`{name}`")
    lines = [f"| {kind} | {', '.join(names)} | {commands} |" for (kind, commands), names in sorted(rows.items())]
    return "\n".join(["| kind | `model_type` in config.json | commands |", "| --- | --- | --- |", *lines])


if __name__ == "__main__":
    page = MODELS.read_text(encoding="utf-8")
    MODELS.write_text(re.sub(r"^\| kind \|.*?(?=\n\n)", table(), page, flags=re.M | re.S), encoding="utf-8")
