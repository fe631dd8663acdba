"""The view ``likeness``: multidimensional scaling of heads by the distance of their patterns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from attnviz.commands.profile.measure import Profile
from attnviz.figures.families import UNNAMED, Family, counted_families, family_of_label
from attnviz.figures.fonts import text_width
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, legend_height, new_page, page_width, settled
from attnviz.figures.style import DPI, Style, figure_style, outer_ink
from attnviz.judge.roles import Role
from attnviz.present.figure_context import sentence
from attnviz.present.view import ViewOptions

_Numbers = NDArray[np.float64]
_Box = tuple[float, float, float, float]

ALL_NAMED = 80
"""Most heads of which all are named; of more, only those with a role."""

_LETTERS = 6.5, 5.5
"""Font size of ids in points, and on a narrow page, where dots are smaller, too."""

_NARROW = 5.0
_NEAR = 16
"""Least distance in pixels at which a line joins a dot and its label."""

_WIDEST = 7.6
_DOT = 9.0
_RADII = (3.0, 10.0, 20.0, 32.0, 46.0, 62.0, 80.0)
_ANGLES = [math.pi * eighth / 8 for eighth in (0, 8, 4, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15)]


@dataclass(frozen=True)
class _LikenessPlan(PagePlan):
    points: _Numbers  # [n_all_heads, 2], heads in a plane
    families: tuple[Family, ...]  # of their clearest roles
    names: tuple[str, ...]  # ids, or nothing


def family_of(roles: Sequence[Role]) -> Family:
    """The family of a head's clearest role, the first."""
    return family_of_label(roles[0].role) if roles else UNNAMED


def scikit_learn_missing() -> str:
    """How to install scikit-learn; '' if it is installed."""
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError:
        return "likeness.png needs scikit-learn: pip install 'attnviz[profile]'"
    return ""


def likeness_missing(profile: Profile) -> str:
    """Reason why a profile has no such figure, or ''."""
    distances = profile.head_distances
    if distances is None or not bool(distances.isfinite().all()):
        return "no patterns of sentences were compared"
    return "it takes three heads or more" if len(distances) < 3 else scikit_learn_missing()


def arrange(distances: _Numbers) -> tuple[_Numbers, float]:
    """Metric multidimensional scaling in the plane (SMACOF), on the divergences themselves as Clark et al. 2019 do.

    Distances are [n, n], symmetric, zeros on the diagonal. It begins from classical scaling, so that a matrix has one
    arrangement, turned by its directions of greatest spread to be wider than high.

    Returns:
        points [n, 2] around the origin, in the unit of the distances; Kruskal's stress-1: 0 is exact, 0.2 often poor.
    """
    from sklearn.manifold import MDS

    if not distances.any():
        return np.zeros((len(distances), 2)), 0.0
    scaling = MDS(
        n_components=2, metric_mds=True, metric="precomputed", init="classical_mds", n_init=1, max_iter=1000, eps=1e-9,
        random_state=0, normalized_stress=True,
    )  # fmt: skip
    points = scaling.fit_transform(distances)
    points = points - points.mean(0)
    axes = np.linalg.svd(points, full_matrices=False).Vh
    axes *= np.where(axes[np.arange(2), np.abs(axes).argmax(1)] < 0, -1.0, 1.0)[:, None]
    turned = points @ axes.T
    if np.ptp(turned[:, 1]) > np.ptp(turned[:, 0]):
        turned = turned[:, ::-1]
    return turned, float(scaling.stress_)


def plan_likeness(profile: Profile, _: ViewOptions) -> Iterator[_LikenessPlan]:
    """Plan the arrangement of all heads, coloured by their clearest roles."""
    assert profile.head_distances is not None
    roles = profile.passed_roles()
    points, stress = arrange(profile.head_distances.double().cpu().numpy())
    note = (
        "Heads close to each other have similar patterns: multidimensional scaling of the mean Jensen-Shannon "
        "divergence of their patterns on the verified texts (Clark et al. 2019). The plane is an approximation: "
        f"stress-1 = {stress:.2f}. Ids that do not fit are left out."
    )
    title = f"{profile.checkpoint.short_name}: heads by the similarity of their patterns"
    compared = f"a sample of {profile.queries_compared:,} tokens compared"
    source = profile.source("statistics", compared, f"n = {len(roles)} heads")
    caption = sentence(title, source, f"multidimensional scaling, stress-1 = {stress:.2f}")
    families = tuple(map(family_of, roles.values()))
    names = tuple(str(head) if passed or len(roles) <= ALL_NAMED else "" for head, passed in roles.items())
    yield _LikenessPlan("likeness", caption, title, (note, source), points, families, names)


def draw_likeness(ax: Axes, plan: _LikenessPlan, style: Style) -> PathCollection:
    """Draw the arrangement, with the ids that fit; returns the dots of the first family."""
    points = plan.points
    middle, half = _extent(points)
    xlim, ylim = zip(middle - half, middle + half, strict=True)
    ax.set(xticks=(), yticks=(), facecolor=style.greys.paper, aspect="equal", xlim=xlim, ylim=ylim)
    ax.spines[:].set(linewidth=PIXEL, edgecolor=style.greys.frame)
    drawn: list[PathCollection] = []
    for family in dict.fromkeys(plan.families):
        of_family = [point for point, other in zip(points, plan.families, strict=True) if other is family]
        x, y = np.array(of_family).T
        size, fill, edge = _dot(family, style)
        drawn.append(ax.scatter(x, y, s=size**2, c=fill, marker=family.marker, lw=0.6, edgecolors=edge))
    settled(ax.figure)
    field = ax.get_window_extent()
    scale = DPI / ax.figure.dpi  # labels are measured in pixels of this resolution
    pixels = (ax.transData.transform(points) - (field.x0, field.y0)) * scale
    letters = _LETTERS[_is_narrow(style)]
    labels = place_labels(pixels, (field.width * scale, field.height * scale), plan.names, letters)
    for point, pixel, label, name in zip(points, pixels, labels, plan.names, strict=True):
        if label is not None:
            shift = (np.array(label) - pixel) * PIXEL
            ax.annotate(
                name, point, xytext=tuple(shift), textcoords="offset points", size=letters, ha="center",
                va="center_baseline", color=outer_ink(style), in_layout=False,
            )  # fmt: skip
            if line := _line(pixel, label, name, letters):
                end = np.array(line[-1][:2]) + 1
                to = ax.transData.inverted().transform(end / scale + (field.x0, field.y0))
                ax.plot(*zip(point, to, strict=True), color=style.greys.frame, lw=PIXEL, zorder=0.5)
    return drawn[0]


def likeness_figure(plan: _LikenessPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """Draw the arrangement with a legend, the larger the more heads."""
    handles = []
    for family, label in counted_families(plan.families):
        size, fill, edge = _dot(family, style)
        handles.append(Line2D([], [], marker=family.marker, ls="", ms=size, mfc=fill, mec=edge, mew=0.6, label=label))
    width = page_width(style, _WIDEST * min(1.0, math.sqrt(max(len(plan.points), 24) / 72)))
    _, (across, down) = _extent(plan.points)
    with figure_style():
        body = (width - MARGIN) * down / across + MARGIN + legend_height(handles, width)
        page = new_page(plan.title, plan.notes, style, width=width, body=body)
        add_legend(page, handles, style)
        draw_likeness(page.subplots(), plan, style)
        return page


def _dot(family: Family, style: Style) -> tuple[float, str, str]:
    """Size in points (smaller for a diamond, which stands on its corner), colour and edge."""
    size = 5.0 if family.marker == "D" else 3.5 if family is UNNAMED else 6.0
    fill, edge = (style.greys.paper, style.greys.muted) if family is UNNAMED else (family.colour, style.greys.ink)
    return 0.75 * size if _is_narrow(style) else size, fill, edge


def _is_narrow(style: Style) -> bool:
    return style.width is not None and style.width < _NARROW


def _extent(points: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Centre of the points, and half their extent with a border; never zero."""
    low, high = points.min(0), points.max(0)
    half = (high - low) / 2 + 0.05 * (high - low).max() if (high > low).any() else np.array([1.0, 0.5])
    return (low + high) / 2, np.maximum(half, [0.0, 0.4 * half[0]])


def place_labels(
    points: _Numbers, size: tuple[float, float], texts: Sequence[str], letters: float = _LETTERS[0]
) -> list[tuple[float, float] | None]:
    """Place labels beside their dots without overlap with dots, labels, or the lines that join far ones.

    Each takes the nearest free position around its dot, those in a crowd first.

    Args:
        points: [n, 2], pixels.
        size: width and height of the field, in pixels.
        texts: the labels; '' for dots without one.
        letters: font size in points.

    Returns:
        the centre of each label; None without room or text.
    """
    line_height, dot = letters * DPI / 72, _DOT * letters / _LETTERS[0]
    taken: list[_Box] = [(x - dot, y - dot, x + dot, y + dot) for x, y in points]
    neighbours = (np.linalg.norm(points[:, None] - points[None, :], axis=-1) < 4 * line_height).sum(1)
    labels: list[tuple[float, float] | None] = [None] * len(texts)
    for i in sorted((i for i, text in enumerate(texts) if text), key=lambda i: (-neighbours[i], i)):
        half = np.array([text_width(texts[i], letters, DPI), line_height]) / 2
        others = [*taken[:i], *taken[i + 1 :]]  # without its own dot, where its line begins
        for radius, angle in ((radius, angle) for radius in _RADII for angle in _ANGLES):
            x, y = points[i] + np.array([math.cos(angle), math.sin(angle)]) * (dot + radius + half)
            box = (x - half[0], y - half[1], x + half[0], y + half[1])
            line = _line(points[i], (x, y), texts[i], letters)
            inside = min(box) >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if inside and _is_free(box, taken) and all(_is_free(step, others) for step in line[:-1]):
                labels[i] = (float(x), float(y))
                taken += [box, *line[:-1]]
                break
    return labels


def _line(point: _Numbers, label: tuple[float, float], text: str, letters: float) -> list[_Box]:
    """Boxes along the line from a dot to its label; none if the label is near enough."""
    half = np.array([text_width(text, letters, DPI), letters * DPI / 72]) / 2
    end = np.clip(point, label - half, label + half)
    if np.hypot(*(point - end)) <= _NEAR:
        return []
    steps = point + np.linspace(0.3, 1.0, 8)[:, None] * (end - point)
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in steps.tolist()]


def _is_free(box: _Box, taken: Sequence[_Box]) -> bool:
    left, top, right, bottom = box
    return all(right <= other[0] or left >= other[2] or bottom <= other[1] or top >= other[3] for other in taken)
