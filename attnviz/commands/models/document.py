"""Configurations of models as documents: JSON and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from attnviz.commands.models.configurations import Configuration
from attnviz.commands.models.known_configurations import PAPERS
from attnviz.results.output_folder import Layout

__all__ = ["MODELS", "models_csv", "models_document"]

_COLUMNS = (
    "name", "kind", "source", "architecture", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_head", "positions",
    "vocabulary", "parameters", "attention_parameters", "stated_parameters", "float32_gib", "reproduced", "reason",
    "notes",
)  # fmt: skip


def models_document(found: Sequence[Configuration], version: str) -> dict[str, Any]:
    """The document of models.json.

    Args:
        found: the configurations.
        version: of attnviz.
    """
    cited = {model.source for model in found if model.kind == "paper"}
    return {
        "attnviz": version,
        "models": [model.entry() for model in found],
        "papers": {paper: title for paper, title in PAPERS.items() if paper in cited},
    }


def models_csv(content: dict[str, Any]) -> str:
    """A row a model of the document; empty where a number is not known."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for model in content["models"]:
        writer.writerow({**model, "notes": "; ".join(model["notes"])})
    return buffer.getvalue()


MODELS = Layout(
    manifest="models.json",
    table="models.csv",
    table_text=models_csv,
    others=re.compile(r"(?!)"),
    folder="",
    same=("attnviz",),
)
"""What ``attnviz models`` writes on request."""
