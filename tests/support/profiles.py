"""Profiles by hand: everything that figures of a profile look at, and no model."""

from pathlib import Path
from types import SimpleNamespace

import torch

from attnviz.commands.profile.measure import Profile
from attnviz.judge.roles import Role
from attnviz.measures.repeats import RepeatScores
from attnviz.models.head_ids import HeadId, one_stack
from attnviz.profiles.examples import Example, RoleExamples, Unit

LAYERS, HEADS = 2, 3


def role(head, name, score, baseline=0.2, passed=None, n=100, direction=None, layer=0, baselines=None):
    passed = score - baseline >= 0.1 if passed is None else passed
    interval = (max(0.0, score - 0.05), min(1.0, score + 0.05))
    above = (score - baseline - 0.05, score - baseline + 0.05)
    baselines = baselines or {"fixed offset": baseline, "other words": 0.0}
    return Role(
        HeadId(layer, head), name, score, baseline, n, n, interval, above, "the rule", passed, direction, baselines
    )


def roles_of(name, scores, baseline=0.2, heads=HEADS, **changes):
    """Of every head, by layers."""
    return [role(i % heads, name, score, baseline, layer=i // heads, **changes) for i, score in enumerate(scores)]


def examples_of(found, text):
    """A hit, and a miss with the right one elsewhere, of every role that passes."""
    the, cat, last = Unit("the", 0, 3), Unit("cat", 4, 7), Unit(text.split()[-1], text.rindex(" ") + 1, len(text))
    hit = Example("a.conllu", 0, text, the, cat, 0.9, True, (the, cat), 0.9)
    miss = Example("a.conllu", 1, text, the, last, 0.7, False, (the, cat), 0.2)
    return tuple(
        RoleExamples(role.id, role.role, role.direction, (hit,) * 5, (miss,) * 4) for role in found.roles if role.holds
    )


def relation(name, n=100, offset=1):
    return SimpleNamespace(relation=name, n=n, offset=offset)


def with_best(relations, roles):
    """Those relations for which heads were judged, each with its best head, direction and accuracy."""
    for relation in relations:
        judged = [role for role in roles if role.role == f"syntactic:{relation.relation}"]
        if judged:
            best = max(judged, key=lambda role: role.score)
            yield SimpleNamespace(**vars(relation), best=(best.id, best.direction, best.score))


def corpus(name, kind, texts=1234, tokens=56789):
    return SimpleNamespace(corpus=SimpleNamespace(path=Path("/folder") / name, kind=kind), texts=texts, tokens=tokens)


def model(name="a-model", n_layers=LAYERS, n_heads=HEADS):
    kind = one_stack(range(n_layers), n_heads)
    sizes = {"n_layers": n_layers, "n_heads": n_heads, "layers": kind.layers}
    return SimpleNamespace(short_name=name, full_name=name, stacks=(), kinds=(kind,), **sizes)


def statistics(entropy, uniform=2.5):
    values = {"entropy": entropy, "distance": 3 * entropy}
    return SimpleNamespace(results=lambda: values, baselines=lambda: {"entropy": uniform})


ROLES = (
    *roles_of("previous-token", [0.9, 0.1, 0.1, 0.1, 0.1, 0.1]),
    *roles_of("sink", [0.1, 0.7, 0.1, 0.1, 0.1, 0.95]),
    *roles_of("syntactic:nsubj", [0.1, 0.1, 0.1, 0.6, 0.1, 0.5], direction="dependent_to_head"),
    *roles_of("syntactic:acl:relcl", [0.1, 0.1, 0.1, 0.35, 0.1, 0.2], direction="head_to_dependent"),
    *roles_of("syntactic:obl", [0.1, 0.1, 0.1, 0.25, 0.1, 0.2], direction="head_to_dependent"),
    *roles_of("syntactic:dep", [0.1] * 6, direction="dependent_to_head"),
    *roles_of("coreference", [0.5] * 5 + [0.8], 0.55),
)
RELATIONS = (relation("nsubj", 1000, -2), relation("obl", 90, 3), relation("acl:relcl", 40, 1), relation("dep", 3))


def profile(roles=ROLES, **changes):
    """A profile by hand, of everything that the figures look at."""
    parts = {
        "checkpoint": model(), "weights_sha256": None, "seed": 0, "verification": None, "texts_verified": 1,
        "corpora": (corpus("trees.conllu", "conllu"), corpus("names.tsv", "gap", 77, 888)),
        "statistics": statistics(torch.tensor([[1.0, 2.0, 0.0], [0.5, 1.5, 2.5]])),
        "relations": RELATIONS, "gold": True, "coreference": None, "control_texts": 500,
        "repeats": RepeatScores({"previous": torch.zeros(32, LAYERS, HEADS)}, 50, {}),
        "head_distances": None, "roles": tuple(roles),
    }  # fmt: skip
    parts |= changes
    relations = parts["relations"] and tuple(with_best(parts["relations"], roles))
    return Profile(**(parts | {"relations": relations}))
