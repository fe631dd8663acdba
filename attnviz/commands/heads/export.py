"""Results of one text as documents: JSON, CSV, attention weights."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from safetensors.torch import save

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.published import published_entries
from attnviz.patterns.registry import SHARES
from attnviz.patterns.verdicts import Pattern
from attnviz.results.output_folder import Layout

__all__ = ["HEADS", "attention_bytes", "csv_text", "document", "model_entry"]

_SCALARS = (
    "id", "layer", "head", "entropy", "entropy_uniform", "distance", "confidence", "sink",
    *SHARES, "label",
)  # fmt: skip


def document(findings: Findings, heads: Sequence[HeadFindings], figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of heads.json; what cannot be measured is None.

    Args:
        findings: of one text.
        heads: those to list.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    model, tokens = findings.checkpoint, findings.tokens
    listed = {head.id for head in heads}
    return {
        "attnviz": version,
        "model": model_entry(model),
        "text": findings.text,
        "pair": findings.pair,
        "options": {
            "words": findings.options.words,
            "local_window": findings.options.local_window,
            "long_range_from": findings.options.long_range_from,
            "tokens_cut_off": tokens.truncated,
            "parser": findings.parse.parser if findings.parse else None,
        },
        "tokens": [
            {"id": token_id, "text": text, "special": special, "word": word}
            for token_id, text, special, word in zip(
                tokens.ids, tokens.labels, tokens.special, tokens.words, strict=True
            )
        ],
        "verification": _verification(findings),
        "heads": [_head(head, findings) for head in heads],
        "figures": list(figures),
        "words": list(findings.units.labels) if findings.options.words else None,
        "profile": None if findings.profile is None else findings.profile.origin,
        "published": published_entries(head for head in findings.published if head.id in listed),
    }


def model_entry(model: Checkpoint) -> dict[str, Any]:
    """What every document says of a model."""
    return {
        "name": model.name,
        "architecture": model.architecture.name,
        "revision": model.revision,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "d_model": model.d_model,
        "d_head": model.d_head,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def csv_text(content: dict[str, Any]) -> str:
    """The scalar columns of the document's heads, one row a head; empty where not measurable."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _SCALARS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(content["heads"])
    return buffer.getvalue()


HEADS = Layout(
    manifest="heads.json",
    table="heads.csv",
    table_text=csv_text,
    others=re.compile(
        r"(overview|lines|map-[a-z-]+|mean|mean-all|pair|(heads|lines|pair)/L\d+H\d+)\.(png|svg|pdf)"
        r"|captions\.md|attention\.safetensors"
    ),
    folder="heads",
    more_folders=("lines", "pair"),
    same=("attnviz", "model", "text", "pair", "options", "profile"),
)
"""What ``attnviz heads`` writes."""


def attention_bytes(findings: Findings) -> bytes:
    """All patterns in safetensors: one tensor [n_heads, n, n] a layer, named ``layer.0`` and so on."""
    tensors = {
        f"layer.{layer}": findings.layer_patterns(layer).contiguous() for layer in range(findings.checkpoint.n_layers)
    }
    labels = json.dumps(list(findings.units.labels))
    content: bytes = save(tensors, {"unit": findings.units.name, "labels": labels, "model": findings.checkpoint.name})
    return content


def _verification(findings: Findings) -> dict[str, Any]:
    found = findings.verification
    return {
        "passed": True,
        "heads_compared": found.heads_compared,
        "pattern_tolerance": found.tolerance.pattern,
        "output_tolerance": found.tolerance.output,
        "layers": [
            {
                "layer": check.layer,
                "pattern_error": check.pattern_error,
                "output_error": check.output_error,
                "output_scale": check.output_scale,
            }
            for check in found.layers
        ],
    }


def _head(head: HeadFindings, findings: Findings) -> dict[str, Any]:
    statistics = dict(head.statistics)
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "entropy": statistics["entropy"],
        "entropy_uniform": findings.frame.entropy_uniform,
        **{name: statistics[name] for name in ("distance", "confidence", "sink", *SHARES)},
        "baseline": {name: findings.frame.baselines[name] for name in SHARES},
        "patterns": [_pattern(pattern) for pattern in head.patterns],
        "label": head.label,
        "profile": None if head.profile is None else [asdict(role) for role in head.profile.roles],
    }


def _pattern(pattern: Pattern) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": pattern.name,
        "score": pattern.score,
        "baseline": pattern.baseline,
        "n": pattern.n,
        "passed": pattern.passed,
        "kind": pattern.kind,
        "enough": pattern.enough,
        "threshold": pattern.threshold,
    }
    if pattern.kind == "syntactic":
        content |= {"direction": pattern.direction, "offset": pattern.offset}
    if pattern.kind == "repeats":
        content |= {"on_repeats": pattern.on_repeats, "baseline_on_repeats": pattern.baseline_on_repeats}
    return content
