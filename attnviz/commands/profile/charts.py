"""Charts of a profile, relations and layers; and what all figures of a profile say of their sources and families."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.roles import ERROR_RATE, Role
from attnviz.figures.families import FAMILIES, NO_ROLE, Family, family_of_label
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.look import Look, outer_ink
from attnviz.figures.page import PIXEL, add_legend, legend_height, new_page, page_width
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, signed
from attnviz.patterns.verdicts import MARGIN as PASS_MARGIN
from attnviz.results.facts import sentence
from attnviz.results.view import Choices

__all__ = ["Heading", "counted_families", "draw_relations", "family_of", "layers_figure", "plan_layers",
           "plan_relations", "relations_figure", "source_line", "trees"]  # fmt: skip

MOST_RELATIONS = 60
"""Relations in one figure, at most; the most frequent."""

_NEEDED = "#D55E00"
_STACKED_BELOW = 6.0
"""Inches of a page below which the texts beside relations stand in two lines."""

_GAP = 12
_ON_REPEATS = ("induction", "duplicate-token")


def source_line(profile: Profile, role: str | None = None, *more: str) -> str:
    """The model, what was read (for one role, or ``statistics``; default everything) and ``more``, on one line."""
    kinds = {"conllu", "txt"} if role else {"conllu", "txt", "gap"}
    if role == "coreference":
        kinds = {"gap"}
    elif role in _ON_REPEATS:
        kinds = set()
    elif role and role.startswith("syntactic"):
        kinds = {"conllu" if profile.gold else "txt"}
    corpora = [
        f"{visible(count.corpus.path.name)} ({count.texts:,} texts, {count.tokens:,} tokens)"
        for count in profile.corpora
        if count.corpus.kind in kinds
    ]
    if profile.repeats is not None and (role is None or role in _ON_REPEATS):
        corpora.append(f"{len(profile.repeats.scores['previous'])} × {profile.repeats.length} random tokens, repeated")
    return " · ".join([visible(profile.checkpoint.short_name), *corpora, *more])


def trees(profile: Profile) -> str:
    """Whose trees they are."""
    return "gold trees" if profile.gold else "a parser's trees, not gold"


def family_of(roles: Sequence[Role]) -> Family:
    """The family of a head by its clearest role, the first."""
    return family_of_label(roles[0].role) if roles else NO_ROLE


def counted_families(families: Sequence[Family]) -> list[tuple[Family, str]]:
    """Every family that occurs, in the order of legends, and its label: ``sink (11)``."""
    return [(family, f"{family.name} ({families.count(family)})") for family in FAMILIES if family in families]


@dataclass(frozen=True)
class Heading:
    """What every plan begins with: its file's stem and caption, title and notes above the picture."""

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Relation:
    """Its best head beside its best fixed offset; accuracies 0-1, the gain -1 to 1."""

    relation: str
    n: int
    offset: int
    baseline: float
    best: Role

    @property
    def gain(self) -> float:
        return self.best.score - self.baseline


@dataclass(frozen=True)
class _RelationsPlan(Heading):
    """Relations, the largest gain first; ``threshold`` is the gain that a verdict asks for, 0-1."""

    rows: tuple[_Relation, ...]
    threshold: float = PASS_MARGIN


@dataclass(frozen=True)
class _LayersPlan(Heading):
    """Entropy (nats) and distance (tokens), [n_layers, n_heads], and the entropy of uniform attention (nats)."""

    entropy: NDArray[np.float64]
    distance: NDArray[np.float64]
    uniform_entropy: float


def plan_relations(profile: Profile, _: Choices) -> Iterator[_RelationsPlan]:
    """The best head of each relation that was judged, beside its best fixed offset."""
    best: dict[str, Role] = {}
    for role in profile.roles:
        kind, name = role.role.partition(":")[::2]
        if kind == "syntactic":
            best[name] = max(best.get(name, role), role, key=attrgetter("score"))
    counts = [relation for relation in profile.relations or () if relation.relation in best][:MOST_RELATIONS]
    rows = [
        _Relation(count.relation, count.n, count.offset, count.offset_hits / count.n, best[count.relation])
        for count in counts
    ]
    notes = [
        f"Each relation's best head, chosen and scored on the same corpus ({trees(profile)}). It passes "
        f"{100 * PASS_MARGIN:.0f} points above the best fixed offset (Voita et al. 2019), if its interval (Wilson, at "
        f"{ERROR_RATE:g} over all heads together) is above the offset's accuracy, too. Offset +1: the head of the "
        "relation is the next word after the dependent; dep → head: the dependent attends to its head."
    ]
    if left_out := len(profile.relations or ()) - len(rows):
        notes.append(f"{counted(left_out, 'rarer relation')} left out.")
    title = f"{visible(profile.checkpoint.short_name)}: best head against best fixed offset, "
    title += f"{sum(row.best.passed for row in rows)} of {len(rows)} relations pass"
    instances = sum(row.n for row in rows if ":" not in row.relation)  # a subtype's count for its relation, too
    source = source_line(profile, "syntactic", f"n = {instances:,} instances")
    caption = sentence(title, trees(profile), source)
    rows.sort(key=lambda row: (-row.gain, row.relation))
    yield _RelationsPlan("relations", caption, title, (*notes, source), tuple(rows))


def draw_relations(ax: Axes, plan: _RelationsPlan, look: Look) -> PathCollection:
    """Draw accuracies by relation, with words on both sides of the Axes; returns the dots of the best heads."""
    greys, (strong, pale) = look.greys, _blues(look)
    y = np.arange(len(plan.rows))
    scores, baselines = ([row.best.score for row in plan.rows], np.array([row.baseline for row in plan.rows]))
    lows, highs = ([row.best.interval[end] for row in plan.rows] for end in (0, 1))
    needed = baselines + plan.threshold
    shades = [strong if row.best.passed else pale for row in plan.rows]
    rules = [pale if row.best.passed else greys.frame for row in plan.rows]
    ax.hlines(y, baselines, scores, colors=rules, lw=3, alpha=0.6, zorder=2)
    ax.hlines(y, lows, highs, colors=greys.ink, lw=0.6, zorder=3)
    ax.vlines(needed, y - 0.4, y + 0.4, colors=_NEEDED, lw=1, zorder=4)
    dots = ax.scatter(scores, y, s=40, c=shades, edgecolors=greys.paper, lw=0.5, clip_on=False, zorder=5)
    ax.scatter(baselines, y, s=15, c=greys.paper, edgecolors=greys.ink, lw=0.8, clip_on=False, zorder=6)
    stacked = look.width is not None and look.width < _STACKED_BELOW
    _write_beside(ax, plan, look, stacked)
    ax.set(xlim=(0, 1), ylim=(len(plan.rows) - 0.4, -0.6), facecolor=greys.paper)
    ax.set_xticks(np.linspace(0, 1, 3 if stacked else 6))
    ax.set_yticks(range(len(plan.rows)), [])
    ax.set_xlabel("accuracy", fontsize=8, color=outer_ink(look, "axes.labelcolor"))
    _dress(ax, look, "both", ("bottom",))
    return dots


def _write_beside(ax: Axes, plan: _RelationsPlan, look: Look, stacked: bool) -> None:
    """Relation and n on the left, head, direction, offset and gain on the right; stacked in pairs of lines."""
    rows = plan.rows
    texts = [
        ["relation", *(fitted(visible(row.relation), 7, DPI, 130) for row in rows)],
        ["n", *(f"{row.n:,}" for row in rows)],
        ["head", *(str(row.best.id) for row in rows)],
        ["direction", *((row.best.direction or "").replace("_to_", " → ").replace("dependent", "dep") for row in rows)],
        ["offset", *(f"{row.offset:+d}".replace("-", "−") for row in rows)],
        ["gain", *(signed(row.gain) for row in rows)],
    ]
    columns = list(zip(texts, ("right", "right", "left", "left", "right", "right"), strict=True))
    if stacked:
        pairs = zip(columns[::2], columns[1::2], strict=True)
        columns = [(["\n".join(both) for both in zip(one, two, strict=True)], side) for (one, side), (two, _) in pairs]
    n_left = len(columns) // 3
    left = right = _GAP / 2
    widths = [max(text_width(line, 7, DPI) for text in column for line in text.split("\n")) for column, _ in columns]
    for (column, _), width in reversed(list(zip(columns, widths, strict=True))[:n_left]):
        _write_column(ax, column, 0, -left, "right", look)
        left += width + _GAP
    for (column, side), width in list(zip(columns, widths, strict=True))[n_left:]:
        _write_column(ax, column, 1, right + (width if side == "right" else 0), side, look)
        right += width + _GAP


def _write_column(ax: Axes, texts: list[str], edge: int, pixels: float, side: str, look: Look) -> None:
    """A heading and a text beside each row, so many pixels from an edge of the Axes."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "ha": side, "annotation_clip": False}
    style |= {"parse_math": False, "linespacing": 1.05}
    ax.annotate(
        texts[0], (edge, 1), xycoords="axes fraction", xytext=(pixels * PIXEL, 5), va="baseline",
        color=look.greys.quiet, **style,
    )  # fmt: skip
    for y, text in enumerate(texts[1:]):
        ax.annotate(
            text, (edge, y), xycoords=("axes fraction", "data"), xytext=(pixels * PIXEL, 0), color=outer_ink(look),
            va="center" if "\n" in text else "center_baseline", family=font_families([text]), **style,
        )  # fmt: skip


def relations_figure(plan: _RelationsPlan, look: Look, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """Accuracy against baseline by relation, with a legend."""
    greys, (strong, pale) = look.greys, _blues(look)
    dot: dict[str, Any] = {"marker": "o", "ls": "", "mec": greys.paper, "mew": 0.5, "ms": 6}
    handles: list[Artist] = [
        Line2D([], [], **dot | {"mec": greys.ink, "ms": 4}, mfc=greys.paper, label="best fixed offset"),
        Line2D([], [], **dot, mfc=strong, label="best head, passes"),
        Line2D([], [], **dot, mfc=pale, label="best head, does not pass"),
        Line2D([], [], marker="|", ls="", mec=_NEEDED, ms=7, label=f"{100 * plan.threshold:.0f} points above offset"),
        Line2D([], [], color=greys.ink, lw=0.6, label="interval"),
    ]
    width = page_width(look, 7.6)
    row = 0.26 if width < _STACKED_BELOW else 0.16
    with figure_style():
        body = row * (len(plan.rows) + 2) + 0.7 + legend_height(handles, width)
        page = new_page(plan.title, plan.notes, look, width=width, body=body)
        draw_relations(page.subplots(), plan, look)
        add_legend(page, handles, look)
        return page


def plan_layers(profile: Profile, choices: Choices) -> Iterator[_LayersPlan]:  # noqa: ARG001 - as all views
    """Entropy and distance of every head by layer."""
    assert profile.statistics is not None
    values = profile.statistics.results()[0]
    arrays = values["entropy"].numpy(), values["distance"].numpy()
    title = f"{visible(profile.checkpoint.short_name)}: entropy and distance by layer"
    note = "Each dot is a head, head 0 of the layer on the left; the line joins the means of the layers."
    source = source_line(profile, "statistics", f"n = {values['entropy'].numel()} heads")
    uniform = profile.statistics.baselines()["entropy"] or 0.0
    yield _LayersPlan("layers", sentence(title, source, note), title, (note, source), *arrays, uniform)


def layers_figure(plan: _LayersPlan, look: Look, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """Entropy and distance by layer, side by side, or one below the other on a narrow page."""
    panel = max(3.0, 0.27 * len(plan.entropy))
    width = page_width(look, 2 * panel + 1)
    across = 2 if width > 5 else 1
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=2.6 * 2 / across)
        entropy, distance = page.subplots(2 // across, across, squeeze=False).flat
        uniform = plan.uniform_entropy
        _draw_by_layer(entropy, plan.entropy, "entropy (nats)", look, uniform)
        _draw_by_layer(distance, plan.distance, "distance (tokens)", look)
        entropy.axhline(uniform, color=_NEEDED, lw=1, ls=(0, (4, 3)), zorder=2)
        entropy.annotate(
            f"uniform attention {uniform:.2f}", (1, uniform), xycoords=("axes fraction", "data"), xytext=(-3, 3),
            textcoords="offset points", ha="right", fontsize=7, color=look.greys.ink,
        )  # fmt: skip
        return page


def _draw_by_layer(ax: Axes, values: NDArray[np.float64], name: str, look: Look, above: float = 0.0) -> None:
    """A dot a head, and a line through the means; the Axes reach beyond the largest value, and that ``above``."""
    n_layers, n_heads = values.shape
    spread = (np.arange(n_heads) - (n_heads - 1) / 2) * 0.6 / n_heads
    x = np.broadcast_to(np.arange(n_layers)[:, None] + spread, values.shape)
    ax.scatter(x, values, s=11, color=_blues(look)[0], alpha=0.7, lw=0, zorder=3, clip_on=False)
    ax.plot(range(n_layers), values.mean(1), color=look.greys.ink, lw=1.1, marker="_", ms=7, mew=1.6, zorder=4)
    top = max(float(np.nanmax(values)), above) or 1.0
    ax.set(xlim=(-0.6, n_layers - 0.4), ylim=(0, top * 1.12), facecolor=look.greys.paper)
    ax.set_xticks(range(0, n_layers, 1 + n_layers // 16))
    ax.set_xlabel("layer", fontsize=8, color=look.greys.ink)
    ax.set_ylabel(name, fontsize=8, color=look.greys.ink)
    _dress(ax, look, "y", ("left", "bottom"))


def _blues(look: Look) -> tuple[str, str]:
    """What passes and what does not: a strong and a pale colour of the scale."""
    return to_hex(look.colour_map()(0.75)), to_hex(look.colour_map()(0.4))


def _dress(ax: Axes, look: Look, grid: Any, sides: tuple[str, ...]) -> None:
    """Faint guides, small numbers, and frames on these sides only."""
    ax.set_axisbelow(True)
    ax.grid(axis=grid, color=look.greys.frame, alpha=0.3, lw=PIXEL)
    ax.tick_params(length=0, labelsize=7, labelcolor=outer_ink(look, "xtick.color"))
    for side, spine in ax.spines.items():
        spine.set(visible=side in sides, linewidth=PIXEL, edgecolor=look.greys.frame)
