"""A comparison as documents: JSON and CSV, and the names of all its files."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from attnviz.commands.compare.differences import Differences, HeadDifference, LayerDifference
from attnviz.commands.heads.export import document
from attnviz.results.output_folder import Layout

__all__ = ["COMPARE", "compare_csv", "compare_document"]

_COLUMNS = (
    "id", "layer", "head", "rank", "divergence", "distance", "total_variation", "largest_difference", "largest_query",
    "largest_key", "query_label", "key_label", "label_before", "label_after", "label_changed", "beyond_rounding",
)  # fmt: skip


def compare_document(
    found: Differences, heads: Sequence[HeadDifference], figures: Sequence[str], version: str
) -> dict[str, Any]:
    """The document of compare.json.

    Args:
        found: the comparison.
        heads: those to list, the most different first.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    sides = [document(side, (), (), version) for side in (found.first, found.second)]
    first, second = sides
    return {
        "attnviz": version,
        "compared": found.compared,
        "models": [side["model"] for side in sides],
        "texts": [side["text"] for side in sides],
        "pairs": [side["pair"] for side in sides],
        "options": first["options"],
        "tokens": [side["tokens"] for side in sides],
        "words": None if first["words"] is None else [first["words"], second["words"]],
        "differing": [position for position, differs in enumerate(found.differing) if differs],
        "verification": [side["verification"] for side in sides],
        "rounding": found.floor,
        "layers": [_layer(layer) for layer in found.layers],
        "heads": [_head(head, found) for head in heads],
        "figures": list(figures),
    }


def compare_csv(content: dict[str, Any]) -> str:
    """A row a head of the document, the most different first."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for head in content["heads"]:
        largest = {f"largest_{name}": head["largest"][name] for name in ("difference", "query", "key")}
        writer.writerow({**head, **largest, **head["largest"]})
    return buffer.getvalue()


COMPARE = Layout(
    manifest="compare.json",
    table="compare.csv",
    table_text=compare_csv,
    others=re.compile(r"(compare|compare-map|differences/L\d+H\d+)\.(png|svg|pdf)|captions\.md"),
    folder="differences",
    same=("attnviz", "compared", "models", "texts", "pairs", "options"),
)
"""What ``attnviz compare`` writes."""


def _layer(layer: LayerDifference) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "divergence": layer.divergence,
        "distance": layer.distance,
        "total_variation": layer.total_variation,
    }


def _head(head: HeadDifference, found: Differences) -> dict[str, Any]:
    largest = head.largest
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "rank": head.rank,
        "divergence": head.divergence,
        "distance": head.distance,
        "total_variation": head.total_variation,
        "largest": {
            "difference": largest.difference,
            "query": largest.query,
            "key": largest.key,
            "query_label": found.labels[largest.query],
            "key_label": found.labels[largest.key],
        },
        "label_before": head.label_before,
        "label_after": head.label_after,
        "label_changed": head.label_changed,
        "beyond_rounding": not head.rounding,
    }
