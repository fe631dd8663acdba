"""An explained layer as documents: JSON, CSV and tensors, and the names of all its files."""

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from safetensors.torch import save

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.position_share import PositionShares, ScoreShares
from attnviz.commands.explain.numbers import summary
from attnviz.commands.explain.steps import stage_words
from attnviz.commands.explain.stages import Stage
from attnviz.commands.heads.export import model_entry
from attnviz.results.output_folder import Layout

__all__ = ["EXPLAIN", "STAGES_FILE", "explain_csv", "explain_document", "stages_bytes"]

STAGES_FILE = "stages.safetensors"
"""The name of the file with all tensors."""

_COLUMNS = (
    "name", "title", "formula", "shape", "min", "max", "mean", "norm", "compared", "place", "error", "scale",
    "tolerance",
)  # fmt: skip


def explain_document(explained: Explained, figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of explain.json; what cannot be measured is None.

    Args:
        explained: the layer.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    tokens, shares = explained.tokens, explained.positions
    return {
        "attnviz": version,
        "model": {**model_entry(explained.checkpoint), "d_ff": explained.d_ff, "activation": explained.activation},
        "text": explained.text,
        "pair": explained.pair,
        "options": {
            "layer": explained.layer,
            "head": str(explained.head),
            "token": explained.token,
            "tokens_cut_off": tokens.truncated,
        },
        "tokens": [
            {"id": token_id, "text": text, "special": special}
            for token_id, text, special in zip(tokens.ids, tokens.labels, tokens.special, strict=True)
        ],
        "norm_order": "pre-norm" if explained.pre_norm else "post-norm",
        "verification": _verification(explained),
        "stages": [_stage(explained, stage) for stage in explained.stages.stages],
        "positions": None if shares is None else _positions(shares),
        "figures": list(figures),
    }


def explain_csv(content: dict[str, Any]) -> str:
    """A row a step of the document; empty where nothing was compared."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for stage in content["stages"]:
        writer.writerow({**stage, "shape": "x".join(map(str, stage["shape"]))})
    return buffer.getvalue()


EXPLAIN = Layout(
    manifest="explain.json",
    table="explain.csv",
    table_text=explain_csv,
    others=re.compile(rf"(explain|positions)\.(png|svg|pdf)|captions\.md|{re.escape(STAGES_FILE)}"),
    folder="explain",
    same=("attnviz", "model", "text", "pair", "options"),
)
"""What ``attnviz explain`` writes."""


def stages_bytes(explained: Explained) -> bytes:
    """Every step in safetensors, by its name, in the dtype of the model; the mask as booleans."""
    tensors = {stage.name: stage.tensor.cpu().contiguous() for stage in explained.stages.stages}
    labels = json.dumps(list(explained.tokens.labels))
    facts = {"model": explained.checkpoint.name, "layer": str(explained.layer), "labels": labels}
    content: bytes = save(tensors, facts)
    return content


def _verification(explained: Explained) -> dict[str, Any]:
    stages = explained.stages
    output = stages["output"].check
    assert output is not None
    return {
        "passed": True,
        "stages_compared": len(stages.compared),
        "pattern_tolerance": _tolerance(stages["pattern"]),
        "output_tolerance": output.tolerance,
        "output_error": output.error,
        "output_scale": output.scale,
        "layers": None
        if explained.layers is None
        else [
            {
                "layer": end.layer,
                "stages_compared": end.compared,
                "worst_stage": end.worst,
                "worst_error": end.worst_error,
                "output_error": end.output_error,
            }
            for end in explained.layers
        ],
    }


def _tolerance(stage: Stage) -> float | None:
    return None if stage.check is None else stage.check.tolerance


def _stage(explained: Explained, stage: Stage) -> dict[str, Any]:
    words, brief, check = stage_words(explained, stage.name), summary(stage), stage.check
    return {
        "name": stage.name,
        "title": words.title,
        "formula": words.formula,
        "shape": list(stage.shape),
        "min": brief.least,
        "max": brief.largest,
        "mean": brief.mean,
        "norm": brief.norm,
        "compared": check is not None,
        "place": None if check is None else check.place,
        "error": None if check is None else check.error,
        "scale": None if check is None else check.scale,
        "tolerance": None if check is None else check.tolerance,
    }


def _positions(shares: PositionShares) -> dict[str, Any]:
    return {
        "error": shares.error,
        "scale": shares.scale,
        "tolerance": shares.tolerance,
        "layer": _shares(shares.layer),
        "heads": [{"id": f"L0H{head}", **_shares(share)} for head, share in enumerate(shares.heads)],
    }


def _shares(share: ScoreShares) -> dict[str, Any]:
    return {**share.groups, "terms": share.terms, "spread": share.spread}
