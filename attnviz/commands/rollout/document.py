"""An attention rollout as documents: JSON, CSV and matrices, and the names of all its files."""

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from safetensors.torch import save

from attnviz.commands.heads.export import model_entry
from attnviz.commands.rollout.results import LayerShares, RolledOut
from attnviz.results.output_folder import Layout

__all__ = ["ROLLOUT", "rollout_bytes", "rollout_csv", "rollout_document"]

_COLUMNS = (
    "position", "text", "special", "sink", "attention", "rollout", "norm_rollout", "flow", "max_flow", "uniform",
    "uniform_rollout",
)  # fmt: skip


def rollout_document(found: RolledOut, figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of rollout.json; what was not measured is None.

    Args:
        found: the rollout.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    tokens, options, units = found.tokens, found.options, found.units
    return {
        "attnviz": version,
        "model": model_entry(found.checkpoint),
        "text": found.text,
        "pair": found.pair,
        "options": {
            "words": options.words,
            "layer": found.layer,
            "residual": options.residual,
            "from": list(found.positions),
            "flow": "all" if options.all_flows else "token" if options.flow else None,
            "tokens_cut_off": tokens.truncated,
        },
        "tokens": [
            {"id": token_id, "text": text, "special": special, "word": word}
            for token_id, text, special, word in zip(
                tokens.ids, tokens.labels, tokens.special, tokens.words, strict=True
            )
        ],
        "words": list(units.labels) if options.words else None,
        "verification": _verification(found),
        "from": {"text": units.labels[found.positions[0]], "positions": list(found.positions)},
        "inputs": _inputs(found),
        "layers": [{"layer": of.layer, "sink": of.sink, "rows_apart": of.rows_apart} for of in found.layers],
        "figures": list(figures),
    }


def rollout_csv(content: dict[str, Any]) -> str:
    """A row an input token, or word, of the document; empty where not measured."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(content["inputs"])
    return buffer.getvalue()


def rollout_bytes(found: RolledOut) -> bytes:
    """The matrices in safetensors: ``rollout`` and ``norm_rollout``, [n_layers, n, n] each, and ``flow`` [n, n]."""
    tensors = {"rollout": found.weights.contiguous(), "norm_rollout": found.norms.contiguous()}
    if found.flows is not None:
        tensors["flow"] = found.flows.contiguous()
    information = {
        "unit": found.units.name,
        "labels": json.dumps(list(found.units.labels)),
        "model": found.checkpoint.name,
        "residual": f"{found.options.residual:g}",
    }
    content: bytes = save(tensors, information)
    return content


ROLLOUT = Layout(
    manifest="rollout.json",
    table="rollout.csv",
    table_text=rollout_csv,
    others=re.compile(r"rollout(-layers|-from)?\.(png|svg|pdf)|captions\.md|rollout\.safetensors"),
    folder="",
    same=("attnviz", "model", "text", "pair", "options"),
)
"""What ``attnviz rollout`` writes."""


def _inputs(found: RolledOut) -> list[dict[str, Any]]:
    columns = {name: None if row is None else row.tolist() for name, row in found.inputs._asdict().items()}
    columns["max_flow"] = None if found.max_flow is None else found.max_flow.tolist()
    return [
        {
            "position": position,
            "text": found.units.labels[position],
            "special": found.units.special[position],
            "sink": found.units.sink[position],
            **{name: None if row is None else row[position] for name, row in columns.items()},
        }
        for position in range(len(found.units))
    ]


def _verification(found: RolledOut) -> dict[str, Any]:
    verified = found.attention.verification
    return {
        "passed": True,
        "heads_compared": verified.heads_compared,
        "pattern_tolerance": verified.tolerance.pattern,
        "output_tolerance": verified.tolerance.output,
        "layers": [
            {
                "layer": check.layer,
                "pattern_error": check.pattern_error,
                "output_error": check.output_error,
                "output_scale": check.output_scale,
                "parts_error": _parts_error(found.layers, check.layer),
            }
            for check in verified.layers
        ],
    }


def _parts_error(layers: Sequence[LayerShares], layer: int) -> float | None:
    return layers[layer].parts_error if layer < len(layers) else None
