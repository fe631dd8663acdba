"""What the figures of a profile show, planned before anything is drawn: arrays, texts and verdicts, no axes in sight.

:mod:`attnviz.commands.profile.drawing` draws the plans; the arrangement of heads by likeness is planned in
:mod:`attnviz.commands.profile.likeness`.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.commands.profile.profiling import CorpusCount, Profile
from attnviz.commands.profile.role_families import (
    FAMILIES,
    Family,
    clearest_roles,
    family_of,
    margin,
    short_name,
    signed,
)
from attnviz.commands.profile.roles import ERROR_RATE, Role
from attnviz.model.tokens import visible
from attnviz.patterns.verdicts import MARGIN

__all__ = [
    "Caption",
    "LayersPlan",
    "Numbers",
    "RelationRow",
    "RelationsPlan",
    "RoleMapPlan",
    "ScoreMapPlan",
    "file_stems",
    "plan_layers",
    "plan_relations",
    "plan_role_map",
    "plan_score_maps",
    "source_line",
]

Numbers = NDArray[np.float64]
T = TypeVar("T")

MOST_MAPS = 24
"""Roles that get a map of their own, at most: first those of every corpus, then relations and offsets by margin."""

MOST_RELATIONS = 60
"""Relations in one figure, at most; the most frequent."""


_CONTENT = ("share of the attention on content", "uniform attention", "content tokens")
_READING = {
    "sink": ("attention on special tokens", "uniform attention", "content tokens"),
    "semantic": ("cosine of centred input embeddings, weighted by attention", "uniform attention", "content tokens"),
    "broad": ("entropy, as a share of uniform attention's", "uniform attention", "content tokens"),
    "syntactic": ("accuracy, in the head's better direction", "best fixed offset", "instances"),
    "coreference": ("accuracy, in the head's better direction", "nearer name", "pronouns"),
    "induction": ("mean attention to the token after the copy", "uniform attention", "random sequences"),
    "duplicate-token": ("mean attention to the copy", "uniform attention", "random sequences"),
}
"""By role or its kind: what the score is, what the baseline is, and what n counts."""


@dataclass(frozen=True)
class Caption:
    """The words around a figure: its title, how to read it, and what it rests on."""

    title: str
    notes: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class ScoreMapPlan:
    """The scores of every head for one role.

    Attributes:
        role: its full name.
        values: [n_layers, n_heads], shares or accuracies, 0-1, of ``semantic`` cosines; NaN where not scored.
        passed: [n_layers, n_heads], whose verdict holds.
        baseline: the same for every head.
        vmax: the score that is darkest.
        caption: the words around.
    """

    role: str
    values: Numbers
    passed: NDArray[np.bool_]
    baseline: float
    vmax: float
    caption: Caption


@dataclass(frozen=True)
class RoleMapPlan:
    """The clearest role of every head.

    Attributes:
        families: [n_layers][n_heads].
        names: short names of the clearest roles; empty where there is none.
        more: how many further roles each head has.
        counts: heads of each family that occurs, in the order of :data:`FAMILIES`.
        caption: the words around.
    """

    families: tuple[tuple[Family, ...], ...]
    names: tuple[tuple[str, ...], ...]
    more: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[Family, int], ...]
    caption: Caption


@dataclass(frozen=True)
class RelationRow:
    """One relation: its best head beside its best fixed offset; accuracies and their interval 0-1."""

    relation: str
    n: int
    offset: int
    baseline: float
    best: Role

    @property
    def gain(self) -> float:
        """Accuracy above the baseline, -1 to 1."""
        return self.best.score - self.baseline


@dataclass(frozen=True)
class RelationsPlan:
    """Relations, the largest gain first; ``threshold`` is the gain that a verdict asks for, 0-1."""

    rows: tuple[RelationRow, ...]
    threshold: float
    caption: Caption


@dataclass(frozen=True)
class LayersPlan:
    """Entropy (nats) and distance (tokens), [n_layers, n_heads], and the entropy of uniform attention (nats)."""

    entropy: Numbers
    distance: Numbers
    uniform_entropy: float | None
    caption: Caption


def file_stems(roles: Sequence[str]) -> list[str]:
    """For each role a file name, safe and distinct on any file system, without suffix."""
    stems: list[str] = []
    for role in roles:
        stem = candidate = re.sub(r"[^A-Za-z0-9._-]", "-", role)[:80].strip(".") or "role"
        number = 1
        while candidate.lower() in {name.lower() for name in stems}:
            number += 1
            candidate = f"{stem}-{number}"
        stems.append(candidate)
    return stems


def plan_score_maps(profile: Profile) -> Iterator[ScoreMapPlan]:
    """A map for each role that at least one head passes; of relations and offsets, the clearest."""
    by_role: dict[str, list[Role]] = {}
    for role in profile.roles:
        by_role.setdefault(role.role, []).append(role)
    best = {
        name: max(margin(role) for role in roles if role.passed)
        for name, roles in by_role.items()
        if any(role.passed for role in roles)
    }
    names = sorted(best, key=lambda name: (":" in name, -best[name] if ":" in name else 0.0))
    for name in names[:MOST_MAPS]:
        yield _score_map(profile, name, by_role[name])


def _score_map(profile: Profile, name: str, roles: Sequence[Role]) -> ScoreMapPlan:
    shape = profile.checkpoint.n_layers, profile.checkpoint.n_heads
    values, passed = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    for role in roles:
        values[role.id], passed[role.id] = role.score, role.passed
    first = roles[0]
    quantity, trivial, unit = _READING.get(name.partition(":")[0], _CONTENT)
    if _is_relation(name):
        quantity += ", " + _trees(profile)
        trivial += f" ({signed(_offsets(profile)[name.partition(':')[2]])})"
    notes = [
        f"Score: {quantity}. Baseline: {trivial}, {first.baseline:.2f}.",
        f"Outlined: heads that pass ({first.threshold}).",
    ]
    if name.startswith("offset:"):
        notes.append("Each head has a score only for the offset, of those from −8 to +8, that it attends to most.")
    vmax = 1.0
    if name == "semantic":
        vmax = max(0.1, math.ceil(10 * float(np.nanmax(values))) / 10)
        notes[0] += " White: 0 or less."
    source = source_line(profile, name, f"n = {first.n:,} {unit}")
    title = f"{visible(name)}: score of every head, {passed.sum()} of {passed.size} pass"
    return ScoreMapPlan(name, values, passed, first.baseline, vmax, Caption(title, tuple(notes), source))


def plan_role_map(profile: Profile) -> RoleMapPlan:
    """One map of all roles: every head's clearest, by the largest margin above its baseline."""
    roles = clearest_roles(profile)
    n_heads = profile.checkpoint.n_heads
    families = [family_of(found[0] if found else None) for found in roles.values()]
    names = [short_name(found[0].role) if found else "" for found in roles.values()]
    more = [max(0, len(found) - 1) for found in roles.values()]
    some = sum(map(bool, roles.values()))
    caption = Caption(
        f"{visible(profile.checkpoint.short_name)}: the clearest role of every head, {some} of {len(roles)} have one",
        ("Clearest: the largest score above its baseline among the roles passed; +2: two further roles.",),
        source_line(profile),
    )
    counts = tuple((family, families.count(family)) for family in FAMILIES if family in families)
    return RoleMapPlan(_rows(families, n_heads), _rows(names, n_heads), _rows(more, n_heads), counts, caption)


def plan_relations(profile: Profile) -> RelationsPlan | None:
    """The best head of each relation beside its best fixed offset; None without relations that were judged."""
    best: dict[str, Role] = {}
    for role in profile.roles:
        if _is_relation(role.role):
            name = role.role.partition(":")[2]
            best[name] = max(best.get(name, role), role, key=attrgetter("score"))
    if not best:
        return None
    counts = [relation for relation in profile.relations or () if relation.relation in best][:MOST_RELATIONS]
    rows = [
        RelationRow(count.relation, count.n, count.offset, count.offset_hits / count.n, best[count.relation])
        for count in counts
    ]
    passed = sum(row.best.passed for row in rows)
    left_out = len(profile.relations or ()) - len(rows)
    notes = [
        f"Each relation's best head, chosen and scored on the same corpus ({_trees(profile)}). It passes "
        f"{100 * MARGIN:.0f} points above the best fixed offset (Voita et al. 2019), if its interval (Wilson, at "
        f"{ERROR_RATE:g} over all heads together) is above the offset's accuracy, too. Offset +1: the head of the "
        "relation is the next word after the dependent; dep → head: the dependent attends to its head.",
    ]
    if left_out:
        notes.append(f"{left_out} rarer relation{'s are' if left_out > 1 else ' is'} left out.")
    model = visible(profile.checkpoint.short_name)
    title = f"{model}: best head against best fixed offset, {passed} of {len(rows)} relations pass"
    instances = sum(row.n for row in rows if ":" not in row.relation)
    caption = Caption(title, tuple(notes), source_line(profile, "syntactic", f"n = {instances:,} instances"))
    return RelationsPlan(tuple(sorted(rows, key=lambda row: (-row.gain, row.relation))), MARGIN, caption)


def plan_layers(profile: Profile) -> LayersPlan | None:
    """Entropy and distance of every head by layer; None where no sentences were measured."""
    if profile.statistics is None:
        return None
    found, _ = profile.statistics.results()
    caption = Caption(
        f"{visible(profile.checkpoint.short_name)}: entropy and distance by layer",
        ("Each dot is a head, head 0 of the layer on the left; the line joins the means of the layers.",),
        source_line(profile, "statistics", f"n = {found['entropy'].numel()} heads"),
    )
    uniform = profile.statistics.baselines()["entropy"]
    return LayersPlan(found["entropy"].numpy(), found["distance"].numpy(), uniform, caption)


def source_line(profile: Profile, role: str | None = None, *more: str) -> str:
    """The model, what was read, and further parts, on one line.

    Args:
        profile: what was measured.
        role: name only what this role, or ``statistics``, was measured on; default everything.
        more: added at the end.
    """
    parts = [visible(profile.checkpoint.short_name)]
    parts += [
        f"{visible(count.corpus.path.name)} ({count.texts:,} texts, {count.tokens:,} tokens)"
        for count in _corpora(profile, role)
    ]
    if profile.repeats is not None and role in (None, "induction", "duplicate-token"):
        sequences = len(profile.repeats.scores["previous"])
        parts.append(f"{sequences} × {profile.repeats.length} random tokens, repeated")
    return " · ".join([*parts, *more])


def _corpora(profile: Profile, role: str | None) -> list[CorpusCount]:
    if role is None:
        return list(profile.corpora)
    kinds = {"conllu", "txt"}
    if role == "coreference":
        kinds = {"gap"}
    elif role in ("induction", "duplicate-token"):
        kinds = set()
    elif role.startswith("syntactic"):
        kinds = {"conllu" if profile.gold else "txt"}
    return [count for count in profile.corpora if count.corpus.kind in kinds]


def _trees(profile: Profile) -> str:
    return "gold trees" if profile.gold else "a parser's trees, not gold"


def _offsets(profile: Profile) -> dict[str, int]:
    return {relation.relation: relation.offset for relation in profile.relations or ()}


def _is_relation(role: str) -> bool:
    return role.startswith("syntactic:")


def _rows(items: Sequence[T], width: int) -> tuple[tuple[T, ...], ...]:
    return tuple(tuple(items[first : first + width]) for first in range(0, len(items), width))
