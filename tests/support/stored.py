"""Stored profiles and published heads made by hand, for several test modules."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnviz.judge.roles import Role
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import find_checkpoint, weights_sha256
from attnviz.profiles.store import StoredProfile

WEIGHTS = "ab" * 32  # a hash of no file
_TREES = {"path": "a/folder/a.conllu", "sentences": 1234}
_NAMES = {"path": "a/folder/b.tsv", "sentences": 7}
PARTS = {  # what measured the roles of the profiles made here
    "statistics": {"corpora": [_TREES]}, "syntax": {"corpora": [_TREES]}, "coreference": {"corpora": [_NAMES]},
    "repeats": {"corpora": []},
}  # fmt: skip


def role(
    name: str, score: float, baseline: float, *, passed: bool = True, direction: str | None = None, head: str = "L0H0"
) -> Role:
    interval, difference = (score - 0.05, score + 0.05), (score - baseline - 0.05, score - baseline + 0.05)
    id = HeadId.parse(head)
    return Role(id, name, score, baseline, 200, 200, interval, difference, "a rule", passed, direction, {})


def profile_of(roles: dict[str, list[Role]], *, shipped: bool = True) -> StoredProfile:
    return StoredProfile(
        path=Path("profiles") / f"bert-2x2x16-{WEIGHTS}.json",
        shipped=shipped,
        document={"attnviz": "1.2.3", "seed": 3, "model": {}, "corpora": [_TREES, _NAMES]},
        roles={
            HeadId.parse(head): tuple(replace(role, id=HeadId.parse(head)) for role in of_head)
            for head, of_head in roles.items()
        },
        parts=PARTS,
    )


PROFILE = profile_of(
    {
        "L0H0": [role("local", 0.9, 0.3), role("previous-token", 0.95, 0.1), role("sink", 0.5, 0.4, passed=False)],
        "L0H1": [role("syntactic:nsubj", 0.7, 0.4, direction="dependent_to_head")],
        "L1H1": [role("coreference", 0.75, 0.5, direction="pronoun_to_name")],
    }
)


def document_for(folder: Path, roles: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of a profile of the tiny checkpoint in a folder, as far as it is read again."""
    weights = weights_sha256(find_checkpoint(str(folder)))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    gpt2 = config["model_type"] == "gpt2"
    names = ("n_layer", "n_head", "n_embd") if gpt2 else ("num_hidden_layers", "num_attention_heads", "hidden_size")
    sizes = dict(zip(("n_layers", "n_heads", "d_model"), (config[name] for name in names), strict=True))
    values = {"score": 0.9, "baseline": 0.2, "n": 77, "interval": [0.8, 1.0], "holds": True, "direction": None}
    return {
        "attnviz": "1.2.3",
        "model": {"architecture": config["model_type"], **sizes, "weights_sha256": weights},
        "corpora": [{"path": "/a/folder/trees.conllu", "sentences": 50}],
        "seed": 0,
        "statistics": {},
        "syntax": {"gold": True},
        "repeats": {},
        "roles": [values | role for role in roles],
    }
