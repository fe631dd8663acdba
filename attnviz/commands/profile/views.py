"""The figures of a profile: the map of roles; relations have a module of their own."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Patch

from attnviz.commands.profile.charts import draw_relations, plan_relations, relations_figure
from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.page_view import family_of, page_data
from attnviz.figures.families import ABBREVIATIONS, FAMILIES, UNNAMED, counted_families
from attnviz.figures.fonts import fitted
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.page import PIXEL
from attnviz.figures.style import DPI
from attnviz.judge.roles import Role
from attnviz.models.wording import visible
from attnviz.present.figure_context import sentence
from attnviz.present.view import Drawing, ViewOptions, page_drawing

_NAME_WIDTH = 86
"""Largest width of a name in the map of roles, in pixels."""


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
    title = f"{profile.checkpoint.short_name}: the clearest role of every head, "
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


ROLES = Drawing(_plan_roles, head_map_figure, draw_head_map)
RELATIONS = Drawing(
    plan_relations, relations_figure, draw_relations,
    missing=lambda profile: "" if any(role.role.startswith("syntactic:") for role in profile.roles)
    else "no relation is frequent enough in these corpora",
)  # fmt: skip
PAGE = page_drawing("profile", page_data)
