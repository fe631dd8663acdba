"""The families that attnviz reproduces: how deep they are verified, and which commands take them."""

from functools import partial
from typing import Any

from rich.console import RenderableType

from attnviz.attention.checks import Verification
from attnviz.model.architectures import ARCHITECTURES, COMMANDS, commands_of
from attnviz.results.tables import Column, column_table, notes, spaced

__all__ = ["families_document", "families_report"]


def families_document(version: str) -> dict[str, Any]:
    """From the families' own declarations: each one's level, and by command which part of its models is measured."""
    families = [
        {"architecture": name, "level": Verification.level, "commands": commands_of(architecture)}
        for name, architecture in sorted(ARCHITECTURES.items())
    ]
    return {"attnviz": version, "families": families}


def families_report(document: dict[str, Any], width: int) -> RenderableType:
    """A row a family, a column a command."""
    columns: list[Column[dict[str, Any]]] = [
        Column("model_type", lambda family: family["architecture"], left=True),
        Column("Level", lambda family: family["level"]),
    ]
    if width < _WIDE:
        columns.append(Column("Commands", _commands, left=True, fold=True))
    else:
        columns += [Column(name, partial(_part, command=name), left=True) for name in COMMANDS]
    title = "Families that attnviz reproduces"
    return spaced([column_table(title, columns, document["families"], width=width), notes(*_NOTES)])


_WIDE = 80
"""Columns of the terminal from which on every command has a column of its own."""

_NOTES = (
    "model_type: as config.json has it. Level 4: patterns and outputs are recomputed from input and weights, and "
    "compared with a run whose final states are those of the untouched model.",
    "encoder: of an encoder-decoder its encoder alone. –: refused, in one line. All other architectures are refused by "
    "name, unless heads --any-family asks for patterns below level 4; so is Whisper, whose encoder reads sound.",
)


def _part(family: dict[str, Any], command: str) -> str:
    part = family["commands"][command]
    return {None: "–", "model": "yes"}.get(part, str(part))


def _commands(family: dict[str, Any]) -> str:
    """The same on a narrow terminal: those that measure the model, and those that measure its encoder."""
    parts = family["commands"]
    model, encoder = (", ".join(name for name in parts if parts[name] == part) for part in ("model", "encoder"))
    return f"{model}; encoder: {encoder}" if encoder else model
