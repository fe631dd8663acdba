"""An ablation as documents: JSON and CSV, and the names of all its files."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnviz.commands.ablate.compensation import compensation_text, ratio_of, removable, verdict_of
from attnviz.commands.ablate.gradient_importance import PROJECTIONS
from attnviz.commands.ablate.inputs import STATES
from attnviz.commands.ablate.results import Ablated, CurvePoint, Estimate, HeadDamage, SetDamage
from attnviz.commands.heads.export import model_entry
from attnviz.results.output_folder import Layout

__all__ = ["ABLATE", "ablation_csv", "ablation_document"]

_NUMBERS = ("loss", "kl", "cosine", "l2")
_COLUMNS = (
    "id", "layer", "head", "rank",
    *(f"{name}{end}" for name in _NUMBERS for end in ("", "_low", "_high")),
    "gradient", "gradient_normalised",
)  # fmt: skip


def ablation_document(found: Ablated, figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of ablate.json; what was not, or cannot be, measured is None.

    Args:
        found: the ablation.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    options = found.options
    return {
        "attnviz": version,
        "model": model_entry(found.checkpoint),
        "corpora": [
            {"path": str(corpus.path), "sha256": corpus.sha256, "sentences": read}
            for corpus, read in zip(found.sources.corpora, found.sources.read, strict=True)
        ],
        "texts": list(found.sources.given),
        "options": {
            "method": options.method,
            "select": list(options.select),
            "together": options.together,
            "limit": options.limit,
            "seed": options.seed,
        },
        "measured": {
            "kind": found.kind,
            "importance": found.measure.name,
            "texts": found.n_texts,
            "tokens": found.n_places,
            "loss": found.clean_loss,
        },
        "verification": _verification(found),
        "heads": [_head(head) for head in found.heads],
        "layers": [_set(layer, found) for layer in found.layers],
        "together": None if found.together is None else _set(found.together, found),
        "curve": _curve(found),
        "gradient": _gradient(found),
        "compensation": {"text": compensation_text(found), "removable": removable(found)},
        "figures": list(figures),
    }


def ablation_csv(content: dict[str, Any]) -> str:
    """A row a head of the document, the one that matters most first; empty where nothing was measured."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for head in content["heads"]:
        row = dict(head)
        for name in _NUMBERS:
            estimate = head[name] or {"value": None, "interval": None}
            low, high = estimate["interval"] or (None, None)
            row |= {name: estimate["value"], f"{name}_low": low, f"{name}_high": high}
        writer.writerow(row)
    return buffer.getvalue()


ABLATE = Layout(
    manifest="ablate.json",
    table="ablate.csv",
    table_text=ablation_csv,
    others=re.compile(r"ablate-(heads|map|curve|gradient)\.(png|svg|pdf)|captions\.md"),
    folder="",
    same=("attnviz", "model", "corpora", "texts", "options", "measured"),
)
"""What ``attnviz ablate`` writes."""


def _verification(found: Ablated) -> dict[str, Any]:
    checked = found.checked
    return {
        "passed": True,
        "heads_compared": checked.heads.heads_compared,
        "rows_verified": checked.rows,
        "pattern_tolerance": checked.heads.tolerance.pattern,
        "output_tolerance": checked.heads.tolerance.output,
        "values_error": checked.values_error,
        "resumed_error": checked.resumed_error,
        "layers": [
            {name: value for name, value in asdict(check).items() if name != "heads_compared"}
            for check in checked.heads.layers
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    interval = None if estimate.low is None else [estimate.low, estimate.high]
    return {"value": estimate.value, "interval": interval}


def _head(head: HeadDamage) -> dict[str, Any]:
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "rank": head.rank,
        **{name: _estimate(head.damage.get(name)) for name in _NUMBERS},
        "gradient": head.gradient,
        "gradient_normalised": head.gradient_normalised,
    }


def _set(each: SetDamage, found: Ablated) -> dict[str, Any]:
    return {
        "layer": each.layer,
        "heads": [str(head) for head in each.heads],
        **{
            name: {
                "together": _estimate(each.damage[name]),
                "one_at_a_time": _estimate(each.singles[name]),
                "difference": _estimate(each.excess[name]),
            }
            for name in each.damage
        },
        "ratio": ratio_of(each, found.measure),
        "verdict": verdict_of(each, found.measure),
    }


def _curve(found: Ablated) -> dict[str, Any] | None:
    if found.curve is None:
        return None
    return {
        "order": [str(head) for head in found.curve.order],
        "random_order": [str(head) for head in found.curve.random_order],
        "points": [_point(point) for point in found.curve.points],
    }


def _point(point: CurvePoint) -> dict[str, Any]:
    names = point.least.damage
    return {
        "removed": point.removed,
        **{
            name: {
                "least_important": _estimate(point.least.damage[name]),
                "one_at_a_time": _estimate(point.least.singles[name]),
                "difference": _estimate(point.least.excess[name]),
                "random_order": _estimate(point.random.damage[name]),
            }
            for name in names
        },
    }


def _gradient(found: Ablated) -> dict[str, Any] | None:
    if not found.options.gradient:
        return None
    of = f"{PROJECTIONS} random projections of the final states" if found.kind == STATES else f"{found.kind} loss"
    return {"of": of, "spearman": dict(found.rank_correlations)}
