"""The figures of a profile drawn: each plan on the caller's Axes, or on a page with its caption.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from attnviz.commands.profile.figures import (
    LayersPlan,
    RelationsPlan,
    RoleMapPlan,
    ScoreMapPlan,
    file_stems,
    plan_layers,
    plan_relations,
    plan_role_map,
    plan_score_maps,
)
from attnviz.commands.profile.likeness import (
    LABEL_SIZE,
    NEAR,
    LikenessPlan,
    label_edge,
    likeness_unavailable,
    plan_likeness,
)
from attnviz.commands.profile.pages import MARGIN, new_page
from attnviz.commands.profile.profiling import Profile
from attnviz.commands.profile.role_families import NO_ROLE, Family, signed
from attnviz.figures.colours import FRAME, INK, QUIET, colour_map
from attnviz.figures.fonts import fitted, font_families
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.rendering import figure_bytes

__all__ = [
    "draw_layers",
    "draw_likeness",
    "draw_relations",
    "draw_role_map",
    "draw_score_map",
    "layers_figure",
    "likeness_figure",
    "profile_figures",
    "profile_files",
    "relations_figure",
    "role_map_figure",
    "score_map_figure",
]

PASSED, PALE, RULE = "#D55E00", "#9ecae1", "#e4e4e4"
"""What passes (Okabe and Ito's vermilion, distinct from any blue), what does not, and lines to guide the eye."""

STRONG = "#2171b5"

_POINT = 72 / DPI
_ARROWS = {"dependent_to_head": "dep → head", "head_to_dependent": "head → dep"}


def profile_figures(
    profile: Profile, head_distances: Tensor | None, n_queries: int | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every figure that these corpora can give, with its name without suffix (``roles/syntactic-nsubj``).

    Args:
        profile: what was measured.
        head_distances: [n_all_heads, n_all_heads], mean divergences in nats; None where none were measured. Without
            scikit-learn (:func:`attnviz.commands.profile.likeness.likeness_unavailable`) they are not drawn.
        n_queries: over how many queries, for the caption.
    """
    yield "roles", role_map_figure(plan_role_map(profile))
    maps = list(plan_score_maps(profile))
    for stem, plan in zip(file_stems([plan.role for plan in maps]), maps, strict=True):
        yield f"roles/{stem}", score_map_figure(plan)
    if (relations := plan_relations(profile)) is not None:
        yield "relations", relations_figure(relations)
    if (layers := plan_layers(profile)) is not None:
        yield "layers", layers_figure(layers)
    if head_distances is not None and likeness_unavailable() is None:
        likeness = plan_likeness(profile, head_distances, n_queries)
        if likeness is not None:
            yield "likeness", likeness_figure(likeness)


def profile_files(
    profile: Profile,
    head_distances: Tensor | None,
    formats: Sequence[str] = ("png",),
    n_queries: int | None = None,
) -> Iterator[tuple[str, bytes]]:
    """The same as files: name with suffix (``roles/sink.png``) and content, one figure in memory at a time.

    Args:
        profile: as for :func:`profile_figures`.
        head_distances: as there.
        formats: of :data:`attnviz.figures.rendering.FORMATS`.
        n_queries: as there.
    """
    for name, figure in profile_figures(profile, head_distances, n_queries):
        for file_format in formats:
            yield f"{name}.{file_format}", figure_bytes(figure, file_format, indexed=False)


def draw_score_map(ax: Axes, plan: ScoreMapPlan) -> None:
    """Draw the scores of one role on the caller's Axes, from white for 0 to dark blue; outlined is what passes."""
    n_layers, n_heads = plan.values.shape
    edges = [np.arange(n + 1) - 0.5 for n in (n_heads, n_layers)]
    ax.pcolormesh(
        *edges, np.ma.masked_invalid(plan.values), cmap=colour_map(), vmin=0, vmax=plan.vmax, ec="white", lw=_POINT
    )
    _dress_map(ax, n_layers, n_heads)
    for (layer, head), value in np.ndenumerate(plan.values):
        passed = bool(plan.passed[layer, head])
        if passed:
            _outline(ax, layer, head)
        if _cell_width(n_heads) >= 40:
            text = f"{value:.2f}" if np.isfinite(value) else "–"
            colour = "white" if value > 0.65 * plan.vmax else INK
            weight = "bold" if passed else "normal"
            ax.text(head, layer, text, size=7, color=colour, weight=weight, ha="center", va="center")


def _cell_width(n_heads: int) -> int:
    """Pixels a cell of a map of scores; from 40 there is room for the score."""
    return 58 if n_heads <= 12 else 46 if n_heads <= 16 else 30


def _outline(ax: Axes, layer: int, head: int) -> None:
    """Inside a cell's edges, so that the outlines of neighbours stand side by side."""
    ax.add_patch(Rectangle((head - 0.45, layer - 0.44), 0.9, 0.88, fill=False, ec=PASSED, lw=1.5))


def _dress_map(ax: Axes, n_layers: int, n_heads: int) -> None:
    ax.set(xlim=(-0.5, n_heads - 0.5), ylim=(n_layers - 0.5, -0.5), facecolor="#eeeeee")
    ax.set_xticks(range(n_heads), [str(head) for head in range(n_heads)], fontsize=7, color=INK)
    ax.set_yticks(range(n_layers), [str(layer) for layer in range(n_layers)], fontsize=7, color=INK)
    ax.tick_params(length=0, pad=4)
    ax.set_xlabel("head", fontsize=8, color=INK)
    ax.set_ylabel("layer", fontsize=8, color=INK)
    for spine in ax.spines.values():
        spine.set(linewidth=_POINT, edgecolor=FRAME)


def score_map_figure(plan: ScoreMapPlan) -> Figure:
    """A map of one role with colour bar, baseline and caption."""
    n_layers, n_heads = plan.values.shape
    cell, row = _cell_width(n_heads), 40 if _cell_width(n_heads) >= 40 else 30
    width, height = n_heads * cell, n_layers * row
    with figure_style():
        page = new_page(plan.caption, 64 + width + 230, max(height, 150) + 56)
        draw_score_map(page.axes(64, 0, width, height), plan)
        bar = page.axes(64 + width + 128, 0, 14, min(max(height, 150), 420))
        colour_bar = page.figure.colorbar(ScalarMappable(Normalize(0, plan.vmax), colour_map()), cax=bar)
        colour_bar.outline.set(linewidth=_POINT, edgecolor=FRAME)
        bar.tick_params(labelsize=7, length=2, width=_POINT, color=FRAME, labelcolor=INK)
        bar.set_ylabel("score", fontsize=7.5, color=INK)
        shown = min(max(plan.baseline, 0.0), plan.vmax)
        bar.plot([0, 1], [shown] * 2, color=PASSED, lw=1.6, clip_on=False)
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": INK, "annotation_clip": False}
        text = f"baseline {plan.baseline:.2f}"
        bar.annotate(text, (0, shown), xytext=(-4, 0), ha="right", va="center", **style)
        return page.figure


def draw_role_map(ax: Axes, plan: RoleMapPlan) -> None:
    """Draw the clearest role of every head on the caller's Axes: colour for the family, and its name."""
    _dress_map(ax, len(plan.families), len(plan.families[0]))
    for layer, row in enumerate(plan.families):
        for head, family in enumerate(row):
            edge = RULE if family is NO_ROLE else "white"
            ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fc=family.colour, ec=edge, lw=_POINT))
            name, more = fitted(plan.names[layer][head], 6.5, DPI, _ROLE_CELL - 6), plan.more[layer][head]
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "parse_math": False}
            ax.text(head, layer - 0.16 * bool(more), name, size=6.5, family=font_families([name]), **style)
            if more:
                ax.text(head, layer + 0.24, f"+{more}", size=5.5, **style)


_ROLE_CELL = 92


def role_map_figure(plan: RoleMapPlan) -> Figure:
    """The map of all roles with legend and caption."""
    width, height = len(plan.families[0]) * _ROLE_CELL, len(plan.families) * 46
    handles = [
        Patch(facecolor=family.colour, edgecolor=FRAME, linewidth=_POINT, label=_counted(family, count))
        for family, count in plan.counts
    ]
    with figure_style():
        page = new_page(plan.caption, 64 + width + MARGIN, height + 56, handles)
        draw_role_map(page.axes(64, 0, width, height), plan)
        return page.figure


def draw_relations(ax: Axes, plan: RelationsPlan) -> None:
    """Draw accuracies by relation on the caller's Axes, which need room on both sides for what each row rests on."""
    for y, row in enumerate(plan.rows):
        passed = row.best.passed
        ax.plot([row.baseline, row.best.score], [y, y], color=PALE if passed else RULE, lw=3, zorder=2)
        ax.plot(row.best.interval, [y, y], color=INK, lw=0.6, zorder=3)
        needed = row.baseline + plan.threshold
        ax.plot([needed, needed], [y - 0.4, y + 0.4], color=PASSED, lw=1, zorder=4)
        dot: dict[str, Any] = {"marker": "o", "clip_on": False}
        ax.plot(row.best.score, y, **dot, mfc=STRONG if passed else PALE, mec="white", mew=0.5, ms=6.5, zorder=5)
        ax.plot(row.baseline, y, **dot, mfc="white", mec=INK, mew=0.8, ms=4, zorder=6)
    _relation_texts(ax, plan)
    ax.set(xlim=(0, 1), ylim=(len(plan.rows) - 0.4, -0.6), xticks=np.linspace(0, 1, 6))
    ax.set_yticks(range(len(plan.rows)), [])
    ax.set_axisbelow(True)
    ax.grid(color=RULE, lw=_POINT)
    ax.tick_params(length=0, labelsize=7, labelcolor=INK)
    ax.set_xlabel("accuracy", fontsize=8, color=INK)
    for side, spine in ax.spines.items():
        spine.set(visible=side == "bottom", linewidth=_POINT, edgecolor=FRAME)


_COLUMNS = ((0, -88, "right", "relation"), (0, -8, "right", "n"), (1, 8, "left", "head"), (1, 74, "left", "direction"),
            (1, 226, "right", "offset"), (1, 282, "right", "gain"))  # fmt: skip
"""Beside the axes: from which edge, how far in pixels, how aligned, and the heading."""


def _relation_texts(ax: Axes, plan: RelationsPlan) -> None:
    texts = [[heading for *_, heading in _COLUMNS]] + [
        [
            fitted(row.relation, 7, DPI, 130),
            f"{row.n:,}",
            str(row.best.id),
            _ARROWS.get(row.best.direction or "", ""),
            signed(row.offset),
            f"{row.gain:+.2f}".replace("-", "−"),
        ]
        for row in plan.rows
    ]
    for line, cells in enumerate(texts, start=-1):
        for text, (edge, shift, alignment, _) in zip(cells, _COLUMNS, strict=True):
            ax.annotate(
                text,
                (edge, line),
                xycoords=("axes fraction", "data"),
                xytext=(shift * _POINT, 0),
                textcoords="offset points",
                ha=alignment,
                va="center",
                fontsize=7,
                family=font_families([text]),
                color=QUIET if line < 0 else INK,
                annotation_clip=False,
                parse_math=False,
            )


def relations_figure(plan: RelationsPlan) -> Figure:
    """Accuracy against baseline by relation, with legend and caption."""
    mark: dict[str, Any] = {"marker": "o", "ls": ""}
    handles = [
        Line2D([], [], **mark, mfc="white", mec=INK, mew=0.8, ms=4, label="best fixed offset"),
        Line2D([], [], **mark, mfc=STRONG, mec="white", mew=0.5, ms=6.5, label="best head, passes"),
        Line2D([], [], **mark, mfc=PALE, mec="white", mew=0.5, ms=6.5, label="best head, does not pass"),
        Line2D(
            [], [], marker="|", ls="", mec=PASSED, ms=7, label=f"{100 * plan.threshold:.0f} points above the offset"
        ),
        Line2D([], [], color=INK, lw=0.6, label="interval"),
    ]
    with figure_style():
        height = 24 * len(plan.rows) + 24
        page = new_page(plan.caption, 238 + 600 + 302, height + 24 + 52, handles)
        draw_relations(page.axes(238, 24, 600, height), plan)
        return page.figure


def draw_layers(entropy: Axes, distance: Axes, plan: LayersPlan) -> None:
    """Draw entropy and distance by layer on two of the caller's Axes."""
    for ax, values, label in (
        (entropy, plan.entropy, "entropy (nats)"),
        (distance, plan.distance, "distance (tokens)"),
    ):
        n_layers, n_heads = values.shape
        spread = (np.arange(n_heads) - (n_heads - 1) / 2) * 0.6 / n_heads
        ax.scatter(
            np.arange(n_layers)[:, None] + spread, values, s=11, color=STRONG, alpha=0.7, lw=0, zorder=3, clip_on=False
        )
        ax.plot(range(n_layers), values.mean(1), color=INK, lw=1.1, marker="_", ms=7, mew=1.6, zorder=4)
        top = float(np.nanmax(values))
        if ax is entropy and plan.uniform_entropy is not None:
            top = max(top, plan.uniform_entropy)
            ax.axhline(plan.uniform_entropy, color=PASSED, lw=1, ls=(0, (4, 3)), zorder=2)
            text = f"uniform attention {plan.uniform_entropy:.2f}"
            ax.annotate(text, (1, plan.uniform_entropy), xycoords=("axes fraction", "data"), xytext=(-3, 3),
                        textcoords="offset points", ha="right", fontsize=7, color=INK)  # fmt: skip
        ax.set(xlim=(-0.6, n_layers - 0.4), ylim=(0, top * 1.12), xticks=range(n_layers))
        ax.set_axisbelow(True)
        ax.grid(axis="y", color=RULE, lw=_POINT)
        ax.tick_params(length=2, width=_POINT, labelsize=7, color=FRAME, labelcolor=INK)
        ax.set_xlabel("layer", fontsize=8, color=INK)
        ax.set_ylabel(label, fontsize=8, color=INK)
        for side, spine in ax.spines.items():
            spine.set(visible=side in ("left", "bottom"), linewidth=_POINT, edgecolor=FRAME)


def layers_figure(plan: LayersPlan) -> Figure:
    """Entropy and distance by layer, side by side, with caption."""
    width = max(440, 40 * len(plan.entropy))
    with figure_style():
        page = new_page(plan.caption, 2 * (72 + width) + MARGIN + 20, 340 + 56)
        draw_layers(page.axes(72, 0, width, 340), page.axes(164 + width, 0, width, 340), plan)
        return page.figure


def draw_likeness(ax: Axes, plan: LikenessPlan) -> None:
    """Draw the arrangement of heads on the caller's Axes: colour and marker for the family, and ids."""
    for point, family, head, label in zip(plan.points, plan.families, plan.heads, plan.labels, strict=True):
        ax.plot(*point, zorder=3, **_marker(family))
        if label is not None:
            end = label_edge(point, label, str(head))
            if np.hypot(*(point - end)) > NEAR:
                ax.plot(*zip(point, end, strict=True), color=FRAME, lw=_POINT, zorder=1)
            ax.text(*label, str(head), size=LABEL_SIZE, color=INK, ha="center", va="center", zorder=4)
    ax.set(xlim=(0, plan.size[0]), ylim=(plan.size[1], 0), xticks=(), yticks=())
    for spine in ax.spines.values():
        spine.set(linewidth=_POINT, edgecolor=FRAME)


def likeness_figure(plan: LikenessPlan) -> Figure:
    """The arrangement of heads with legend and caption."""
    handles = [Line2D([], [], label=_counted(family, count), **_marker(family)) for family, count in plan.counts]
    with figure_style():
        page = new_page(plan.caption, 2 * MARGIN + plan.size[0], plan.size[1] + 12, handles)
        draw_likeness(page.axes(MARGIN, 0, *plan.size), plan)
        return page.figure


def _marker(family: Family) -> dict[str, Any]:
    """How a head of this family is drawn; a diamond smaller, since it stands on its corner."""
    edge = QUIET if family is NO_ROLE else INK
    size = 5.0 if family.marker == "D" else 6.0
    return {"marker": family.marker, "ls": "", "ms": size, "mfc": family.colour, "mec": edge, "mew": 0.6}


def _counted(family: Family, count: int) -> str:
    return f"{family.name} ({count})"
