"""What heads write as documents: JSON, CSV and tensors, and the names of all its files."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save

from attnviz.commands.heads.export import model_entry
from attnviz.commands.outputs.contributions import HeadContribution, OutputShares
from attnviz.commands.outputs.measure import WrittenOutputs
from attnviz.commands.outputs.promoted_tokens import Attribution, HeadPromotion, TokenLogit
from attnviz.errors import UsageError
from attnviz.results.output_folder import Layout

__all__ = ["MOST_BYTES", "OUTPUTS", "check_size", "outputs_bytes", "outputs_csv", "outputs_document"]

MOST_BYTES = 4 * 2**30
"""Of outputs.safetensors, which is made in memory."""

_NUMBERS = (
    "norm", "norm_share", "projection_share", "sink", "sink_by_norm", "value_norm", "value_norm_of_sinks", "largest",
)  # fmt: skip
_COLUMNS = ("id", "layer", "head", "rank", *_NUMBERS, "predicted", "actual")


def outputs_document(
    found: WrittenOutputs, heads: Sequence[HeadContribution], figures: Sequence[str], version: str
) -> dict[str, Any]:
    """The document of outputs.json; what cannot be measured is None.

    Args:
        found: what the heads of the text write.
        heads: those to list, in this order.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    tokens, attribution = found.tokens, found.attribution
    ranks = {head.id: rank for rank, head in enumerate(found.heads, start=1)}
    promotions = {} if attribution is None else {head.id: head for head in attribution.heads}
    return {
        "attnviz": version,
        "model": model_entry(found.checkpoint),
        "text": found.text,
        "pair": found.pair,
        "options": {
            "at": None if attribution is None else attribution.position,
            "tokens_cut_off": tokens.truncated,
        },
        "tokens": [
            {"id": token_id, "text": text, "special": special, "word": word}
            for token_id, text, special, word in zip(
                tokens.ids, tokens.labels, tokens.special, tokens.words, strict=True
            )
        ],
        "verification": _verification(found),
        "layers": [_layer(layer) for layer in found.layers],
        "heads": [_head(head, ranks[head.id], promotions.get(head.id)) for head in heads],
        "attribution": None if attribution is None else _attribution(attribution),
        "no_attribution": found.no_attribution or None,
        "figures": list(figures),
    }


def outputs_csv(content: dict[str, Any]) -> str:
    """A row a head of the document, the largest share first; empty where not measurable."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for head in content["heads"]:
        effects = head["promotion"] or {"predicted": None, "actual": None}
        writer.writerow({**head, "predicted": effects["predicted"], "actual": effects["actual"]})
    return buffer.getvalue()


OUTPUTS = Layout(
    manifest="outputs.json",
    table="outputs.csv",
    table_text=outputs_csv,
    others=re.compile(
        r"(outputs(-shares|-effects)?|outputs/L\d+H\d+)\.(png|svg|pdf)|captions\.md|outputs\.safetensors"
    ),
    folder="outputs",
    same=("attnviz", "model", "text", "pair", "options"),
)
"""What ``attnviz outputs`` writes."""


def check_size(found: WrittenOutputs, heads: Sequence[HeadContribution]) -> None:
    """Raise UsageError where the outputs of so many heads are more than fits in memory beside the model."""
    width = 8 if found.checkpoint.dtype == torch.float64 else 4
    size = len(heads) * len(found.tokens) * found.checkpoint.d_model * width
    if size > MOST_BYTES:
        raise UsageError(
            f"the outputs of {len(heads)} heads are {size / 2**30:.1f} GiB, more than the {MOST_BYTES / 2**30:g} GiB "
            "that --save-outputs (save_outputs=True) writes; choose heads with --select (select=...)."
        )


def outputs_bytes(found: WrittenOutputs, heads: Sequence[HeadContribution]) -> bytes:
    """The outputs in safetensors: one tensor [n_heads, n, d_model] a layer, named ``layer.0`` and so on.

    Of a selection, the tensors have the selected heads of the layer alone, whose numbers the metadata give. With
    ``bias.0`` ([d_model], b_O) the heads of a layer sum to its attention output. In float32, or float64 where the
    model is.

    Raises:
        UsageError: they are too many.
    """
    check_size(found, heads)
    by_layer: dict[int, list[int]] = {}
    for head in sorted(head.id for head in heads):
        by_layer.setdefault(head.layer, []).append(head.head)
    tensors = {}
    for writing in found.each_layer(list(by_layer)):
        outputs = [writing.output(head) for head in by_layer[writing.layer]]
        tensors[f"layer.{writing.layer}"] = torch.stack(outputs).cpu()
        tensors[f"bias.{writing.layer}"] = writing.parameters.output_bias.cpu().clone()
    information = {
        "model": found.checkpoint.name,
        "labels": json.dumps(list(found.tokens.labels)),
        "heads": json.dumps({f"layer.{layer}": numbers for layer, numbers in by_layer.items()}),
    }
    content: bytes = save(tensors, information)
    return content


def _verification(found: WrittenOutputs) -> dict[str, Any]:
    checked, logits = found.attention.verification, found.attribution
    return {
        "passed": True,
        "heads_compared": checked.heads_compared,
        "pattern_tolerance": checked.tolerance.pattern,
        "output_tolerance": checked.tolerance.output,
        "layers": [
            {
                "layer": check.layer,
                "pattern_error": check.pattern_error,
                "output_error": check.output_error,
                "output_scale": check.output_scale,
                "sum_error": shares.sum_error,
            }
            for check, shares in zip(checked.layers, found.layers, strict=True)
        ],
        "logits": None
        if logits is None
        else {"error": logits.error, "scale": logits.scale, "tolerance": logits.tolerance},
    }


def _layer(layer: OutputShares) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "norm": layer.norm,
        "bias_norm": layer.bias_norm,
        "bias_projection_share": layer.bias_projection_share,
    }


def _head(head: HeadContribution, rank: int, promotion: HeadPromotion | None) -> dict[str, Any]:
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "rank": rank,
        **{name: getattr(head, name) for name in _NUMBERS},
        "promotion": None
        if promotion is None
        else {
            "predicted": promotion.predicted,
            "actual": promotion.actual,
            "promoted": [_token(token) for token in promotion.promoted],
            "suppressed": [_token(token) for token in promotion.suppressed],
        },
    }


def _attribution(found: Attribution) -> dict[str, Any]:
    return {
        "position": found.position,
        "predicted": _token(found.predicted),
        "actual": None if found.actual is None else _token(found.actual),
        "deviation": found.deviation,
        "parts": [asdict(part) for part in found.parts],
    }


def _token(token: TokenLogit) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "logit": token.logit}
