"""The figures of a profile: maps of roles and scores; others have modules of their own."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Patch

from attnviz.commands.profile.charts import draw_relations, layers_figure, plan_layers, plan_relations, relations_figure
from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.page_view import family_of, page_data
from attnviz.figures.families import ABBREVIATIONS, FAMILIES, UNNAMED, counted_families
from attnviz.figures.fonts import fitted
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.page import PIXEL, ReferenceValue
from attnviz.figures.style import DPI
from attnviz.judge.roles import Role
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE
from attnviz.models.wording import rounded, visible
from attnviz.present.figure_context import sentence
from attnviz.present.published import shown_baseline
from attnviz.present.view import Drawing, ViewOptions, page_drawing

MOST_MAPS = 24
"""Most roles with a map of their own: first those of every corpus, then relations and offsets by margin."""

_NAME_WIDTH = 86
"""Largest width of a name in the map of roles, in pixels."""

_ACCURACY = "accuracy, in the head's better direction"
_UNIFORM = ("uniform attention", "content tokens")
_SHUFFLED = ("shuffled attention", "content tokens")
_READING = {
    "sink": ("attention on special tokens", *_UNIFORM),
    "semantic": ("cosine of centred input embeddings, weighted by attention", *_UNIFORM),
    INACTIVE: ("share of the tokens at which the head writes little beside its layer", "heads alike", "content tokens"),
    COPYING: ("share of the cases in which the attended token's own logit is raised", *_SHUFFLED),
    COPY_SUPPRESSION: ("share of the cases in which the attended token's own logit is lowered", *_SHUFFLED),
    "broad": ("entropy, as a share of uniform attention's", *_UNIFORM),
    "syntactic": (_ACCURACY, "largest of a head's guesses", "instances"),
    "coreference": (_ACCURACY, "largest of a head's guesses", "pronouns"),
    "induction": ("mean attention to the token after the copy", "uniform attention", "random sequences"),
    "duplicate-token": ("mean attention to the copy", "uniform attention", "random sequences"),
    "retrieval": ("share of tokens to be copied with the largest attention", "any visible token", "random sequences"),
}
"""Meaning of score, baseline and n, by role or its kind."""


def _plan_roles(profile: Profile, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of every head's clearest role, that of the largest error reduction."""
    passed = list(profile.passed_roles().values())
    families = [family_of(of_head) for of_head in passed]
    drawn = [family for family in FAMILIES if family is not UNNAMED]
    shape = profile.checkpoint.n_layers, profile.checkpoint.n_heads
    values = np.array([math.nan if family is UNNAMED else drawn.index(family) for family in families]).reshape(shape)
    texts = [_names(of_head) for of_head in passed]
    frame = choices.style.greys.frame
    handles = [
        Patch(facecolor="none" if family is UNNAMED else family.colour, edgecolor=frame, linewidth=PIXEL, label=label)
        for family, label in counted_families(families)
    ]
    source = profile.source()
    title = f"{visible(profile.checkpoint.short_name)}: the clearest role of every head, "
    title += f"{sum(map(bool, passed))} of {len(passed)} have one"
    clearest = "Clearest: the largest error reduction, specific roles first, sink last; +2: two further roles."
    each = HeadMap(
        values, norm=Normalize(0, len(drawn) - 1), bar="", colours=ListedColormap([family.colour for family in drawn]),
        texts=tuple(tuple(texts[row : row + shape[1]]) for row in range(0, len(texts), shape[1])),
        legend=tuple(handles),
    )  # fmt: skip
    yield HeadMapPlan("roles", sentence(title, source, clearest), title, (clearest, source), (each,))


def _names(roles: Sequence[Role]) -> str:
    """The name of the first role, short if it must, and on a second line the number of others."""
    name = short_name(roles[0].role) if roles else ""
    if fitted(name, 6.5, DPI, _NAME_WIDTH) != name:
        name = fitted(ABBREVIATIONS.get(name, name), 6.5, DPI, _NAME_WIDTH)
    return f"{name}\n+{len(roles) - 1}" if len(roles) > 1 else name


def short_name(role: str) -> str:
    """Name of a role without its kind: ``nsubj``, ``offset −3``."""
    kind, _, rest = role.partition(":")
    return visible(f"offset {rest.replace('-', '−')}" if kind == "offset" else rest or role)


def _plan_scores(profile: Profile, _: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan a map for each role that some head passes; of relations and offsets, the clearest."""
    best: dict[str, float] = {}
    for role in profile.roles:
        if role.passed:
            best[role.role] = max(best.get(role.role, -math.inf), role.margin)
    names = sorted(best, key=lambda name: (":" in name, -best[name] if ":" in name else 0.0))[:MOST_MAPS]
    for name, stem in zip(names, file_stems(names), strict=True):
        yield _score_map(profile, name, [role for role in profile.roles if role.role == name], f"roles/{stem}")


def _score_map(profile: Profile, name: str, roles: Sequence[Role], stem: str) -> HeadMapPlan:
    values = np.full((profile.checkpoint.n_layers, profile.checkpoint.n_heads), np.nan)
    for role in roles:
        values[role.id] = role.score
    passed = frozenset((role.id.layer, role.id.head) for role in roles if role.passed)
    kind = name.partition(":")[0]
    quantity, trivial, unit = _READING.get(kind, ("share of the attention on content", *_UNIFORM))
    if kind == "syntactic":
        quantity += f", {profile.trees}"
    low, high = min(role.baseline for role in roles), max(role.baseline for role in roles)
    alike, known = high - low < 0.005, shown_baseline(low) is not None
    against = f" Baseline: {trivial}, {rounded(low)}{'' if alike else f' to {rounded(high)}'}." if known else ""
    note = f"Score: {quantity}.{against}"
    best = "Each head has a score only for the offset, of those from −8 to +8, that it attends to most."
    largest = max(0.1, math.ceil(10 * float(np.nanmax(values))) / 10) if kind == "semantic" else 1.0
    source = profile.source(name, f"n = {roles[0].n:,} {unit}")
    title = f"{visible(name)}: score of every head, {len(passed)} of {values.size} pass (outlined)"
    each = HeadMap(
        values, norm=Normalize(0, largest, clip=True), outlined=passed,
        reference=ReferenceValue(low, "baseline" if alike else "least baseline") if known else None,
        bar="score (no colour: 0 or less)" if kind == "semantic" else "score",
    )  # fmt: skip
    more = f"to pass: {roles[0].threshold}", best if kind == "offset" else ""
    return HeadMapPlan(stem, sentence(title, source, note, *more), title, (note, source), (each,))


def file_stems(roles: Sequence[str]) -> list[str]:
    """A file stem for each role, safe and distinct on any file system."""
    stems: list[str] = []
    for role in roles:
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", role)[:80].strip(".") or "role"
        candidates = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
        stems.append(next(each for each in candidates if each.lower() not in map(str.lower, stems)))
    return stems


ROLES = Drawing(_plan_roles, head_map_figure, draw_head_map)
SCORES = Drawing(
    _plan_scores, head_map_figure, draw_head_map,
    missing=lambda profile: "" if any(role.passed for role in profile.roles) else "no head passes for any role",
)  # fmt: skip
RELATIONS = Drawing(
    plan_relations, relations_figure, draw_relations,
    missing=lambda profile: "" if any(role.role.startswith("syntactic:") for role in profile.roles)
    else "no relation is frequent enough in these corpora",
)  # fmt: skip
LAYERS = Drawing(
    plan_layers, layers_figure,
    missing=lambda profile: "there are no sentences in these corpora" if profile.statistics is None else "",
)  # fmt: skip
PAGE = page_drawing("profile", page_data)
