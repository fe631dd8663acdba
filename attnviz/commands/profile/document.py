"""A profile as files: profile.json, as the contract lays it out, and profile.csv, a row a head and role."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from attnviz.commands.heads.export import model_entry
from attnviz.commands.profile.profiling import Profile
from attnviz.commands.profile.roles import Role
from attnviz.commands.profile.tallies import NameTally
from attnviz.patterns.published import published_entries, published_heads
from attnviz.patterns.registry import SHARES
from attnviz.results.output_folder import Layout

__all__ = ["PROFILE", "profile_csv", "profile_document"]

_COLUMNS = ("id", "role", "direction", "score", "baseline", "n", "low", "high", "passed", "threshold")


def profile_document(profile: Profile, version: str, figures: Sequence[str] = ()) -> dict[str, Any]:
    """The document of profile.json; a part that the corpora cannot give is None.

    Args:
        profile: what was measured.
        version: of attnviz.
        figures: their paths, relative to the folder.
    """
    model = profile.checkpoint
    return {
        "attnviz": version,
        "model": {**model_entry(model), "weights_sha256": profile.weights_sha256},
        "corpora": [
            {
                "path": str(count.corpus.path),
                "sha256": count.corpus.sha256,
                "sentences": count.texts,
                "tokens": count.tokens,
                "left_out": count.left_out,
            }
            for count in profile.corpora
        ],
        "seed": profile.seed,
        "verification": _verification(profile),
        "statistics": _statistics(profile),
        "syntax": _syntax(profile),
        "coreference": _coreference(profile),
        "repeats": _repeats(profile),
        "roles": [_role(role) for role in profile.roles],
        "figures": list(figures),
        "published": published_entries(
            published_heads(model.name, model.architecture.name, model.n_layers, model.n_heads, model.revision)
        ),
    }


def profile_csv(document: dict[str, Any]) -> str:
    """A row a head and role, from the document."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for role in document["roles"]:
        low, high = role["interval"]
        writer.writerow({**{key: value for key, value in role.items() if key != "interval"}, "low": low, "high": high})
    return buffer.getvalue()


PROFILE = Layout(
    manifest="profile.json",
    table="profile.csv",
    table_text=profile_csv,
    others=re.compile(r"(roles|relations|layers|likeness|roles/[\w.-]+)\.(png|svg|pdf)"),
    folder="roles",
    same=("attnviz", "model", "corpora", "seed"),
)
"""What ``attnviz profile`` writes."""


def _verification(profile: Profile) -> dict[str, Any]:
    found = profile.verification
    return {
        "passed": True,
        "heads_compared": found.heads_compared,
        "sentences_verified": profile.texts_verified,
        "pattern_tolerance": found.tolerance.pattern,
        "output_tolerance": found.tolerance.output,
        "layers": [
            {name: value for name, value in asdict(check).items() if name != "heads_compared"} for check in found.layers
        ],
    }


def _statistics(profile: Profile) -> dict[str, Any] | None:
    if profile.statistics is None:
        return None
    found, _ = profile.statistics.results()
    baselines = profile.statistics.baselines()
    return {
        **{name: _numbers(found[name]) for name in ("entropy", "distance", "confidence", "sink", *SHARES)},
        "baseline": {name: baselines[name] for name in (*SHARES, "sink", "entropy")},
    }


def _syntax(profile: Profile) -> dict[str, Any] | None:
    if profile.relations is None:
        return None
    relations = []
    for relation in profile.relations:
        accuracy = {direction: hits.double() / relation.n for direction, hits in relation.hits.items()}
        direction = max(accuracy, key=lambda direction: float(accuracy[direction].max()))
        layer, head = divmod(int(accuracy[direction].argmax()), profile.checkpoint.n_heads)
        best = {"id": f"L{layer}H{head}", "direction": direction, "accuracy": float(accuracy[direction].max())}
        relations.append(
            {
                "relation": relation.relation,
                "n": relation.n,
                "offset": relation.offset,
                "offset_accuracy": relation.offset_hits / relation.n,
                "best": best,
                "accuracy": {direction: _numbers(values) for direction, values in accuracy.items()},
            }
        )
    return {"gold": profile.gold, "relations": relations}


def _coreference(profile: Profile) -> dict[str, Any] | None:
    names = profile.coreference
    if names is None or not names.n:
        return None
    return {
        "n": names.n,
        "nearer_name": names.nearer / names.n,
        "accuracy": {
            direction: _numbers(names.hits[direction] / names.n) if direction in names.hits else None
            for direction in NameTally.DIRECTIONS
        },
    }


def _repeats(profile: Profile) -> dict[str, Any] | None:
    if profile.repeats is None:
        return None
    return {name: _numbers(scores.mean(0)) for name, scores in profile.repeats.scores.items()}


def _role(role: Role) -> dict[str, Any]:
    return {
        "id": str(role.id),
        "role": role.role,
        "score": role.score,
        "baseline": role.baseline,
        "n": role.n,
        "interval": list(role.interval),
        "threshold": role.threshold,
        "passed": role.passed,
        "direction": role.direction,
    }


def _numbers(values: Tensor) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in values.tolist()]
