"""Heads arranged by how alike their patterns are: multidimensional scaling, and labels that do not overprint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.commands.profile.figures import Caption, source_line
from attnviz.commands.profile.profiling import Profile
from attnviz.commands.profile.role_families import FAMILIES, Family, clearest_roles, family_of
from attnviz.figures.fonts import text_width
from attnviz.figures.heatmaps import DPI
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible

__all__ = [
    "LABEL_SIZE",
    "NEAR",
    "Box",
    "LikenessPlan",
    "Numbers",
    "arrange",
    "label_edge",
    "likeness_unavailable",
    "place_labels",
    "plan_likeness",
]

Numbers = NDArray[np.float64]
Box = tuple[float, float, float, float]

ROOM = (1240, 840)
"""Width and height in pixels that 72 heads or more are arranged in, at most; without the border."""

LABEL_SIZE = 6.5
"""Of the heads' ids, in points."""

ALL_NAMED = 80
"""Up to this many heads all are named; of more, only those with a role."""

NEAR = 16
"""Pixels between a dot and its label up to which no line has to join them."""

_BORDER = 40
_DOT = 9.0
_RADII = (3.0, 10.0, 20.0, 32.0, 46.0, 62.0, 80.0)
_DIRECTIONS = 16


@dataclass(frozen=True)
class LikenessPlan:
    """Heads as points in a plane.

    Attributes:
        points: [n_all_heads, 2], pixels from the left and the top of the field.
        size: width and height of the field in pixels.
        heads: their ids, in the order of the points.
        families: of their clearest roles.
        labels: centres of the ids, in the same pixels; None where a head is not named.
        counts: heads of each family that occurs.
        caption: the words around.
    """

    points: Numbers
    size: tuple[float, float]
    heads: tuple[HeadId, ...]
    families: tuple[Family, ...]
    labels: tuple[tuple[float, float] | None, ...]
    counts: tuple[tuple[Family, int], ...]
    caption: Caption


def likeness_unavailable() -> str | None:
    """Why heads cannot be arranged, and what to type; None where they can."""
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError:
        return "likeness.png needs scikit-learn: pip install 'attnviz[profile]'"
    return None


def arrange(distances: Numbers) -> tuple[Numbers, float]:
    """Metric multidimensional scaling in the plane (SMACOF), on the divergences themselves as Clark et al. 2019 do.

    It begins from classical scaling and draws nothing at random that matters, so a matrix has one arrangement.
    It is turned so that it is wider than high, by its directions of greatest spread.

    Args:
        distances: [n, n], symmetric, zeros on the diagonal.

    Returns:
        points [n, 2] around the origin, in the unit of the distances; and Kruskal's stress-1, where 0 is exact
        and 0.2 is often called poor.
    """
    from sklearn.manifold import MDS

    if not distances.any():
        return np.zeros((len(distances), 2)), 0.0
    scaling = MDS(
        n_components=2,
        metric_mds=True,
        metric="precomputed",
        init="classical_mds",
        n_init=1,
        max_iter=1000,
        eps=1e-9,
        random_state=0,
        normalized_stress=True,
    )
    points = scaling.fit_transform(distances)
    points = points - points.mean(0)
    _, _, axes = np.linalg.svd(points, full_matrices=False)
    axes *= np.where(axes[np.arange(2), np.abs(axes).argmax(1)] < 0, -1.0, 1.0)[:, None]
    turned = points @ axes.T
    if np.ptp(turned[:, 1]) > np.ptp(turned[:, 0]):
        turned = turned[:, ::-1]
    return turned, float(scaling.stress_)


def plan_likeness(profile: Profile, distances: Tensor, n_queries: int | None = None) -> LikenessPlan | None:
    """Plan the arrangement of all heads; None where there are too few heads or nothing was compared.

    Args:
        profile: for the roles, and for the words.
        distances: [n_all_heads, n_all_heads], mean divergences in nats, of
            :class:`attnviz.commands.profile.head_distances.HeadDistanceTally`.
        n_queries: over how many queries they are means.

    Raises:
        ValueError: the distances are of another number of heads.
        ImportError: scikit-learn is missing; see :func:`likeness_unavailable`.
    """
    roles = clearest_roles(profile)
    if distances.shape != (len(roles), len(roles)):
        raise ValueError(f"distances must have shape {(len(roles),) * 2}. Got {tuple(distances.shape)}.")
    matrix = distances.double().cpu().numpy()
    if len(roles) < 3 or not np.isfinite(matrix).all():
        return None
    plane, stress = arrange(matrix)
    points, size = _in_pixels(plane)
    named = [bool(found) or len(roles) <= ALL_NAMED for found in roles.values()]
    labels = place_labels(points, size, [str(head) if name else None for head, name in zip(roles, named, strict=True)])
    families = tuple(family_of(found[0] if found else None) for found in roles.values())
    counts = tuple((family, families.count(family)) for family in FAMILIES if family in families)
    left_out = sum(map(bool, named)) - sum(label is not None for label in labels)
    notes = (
        "Heads close to each other attend alike: multidimensional scaling of the mean Jensen-Shannon divergence of "
        "their patterns on the verified texts (Clark et al. 2019). The plane is an approximation: stress-1 = "
        f"{stress:.2f}.",
        *([f"Ids left out for want of room: {left_out}."] if left_out else []),
    )
    title = f"{visible(profile.checkpoint.short_name)}: heads by the likeness of their patterns"
    compared = [] if n_queries is None else [f"a sample of {n_queries:,} tokens compared"]
    source = source_line(profile, "statistics", *compared, f"n = {len(roles)} heads")
    caption = Caption(title, notes, source)
    return LikenessPlan(points, size, tuple(roles), families, tuple(labels), counts, caption)


def place_labels(
    points: Numbers, size: tuple[float, float], texts: Sequence[str | None]
) -> list[tuple[float, float] | None]:
    """Where labels can stand beside their dots without covering any dot, each other, or the lines that join far ones.

    Each takes the nearest free place of some around its dot, those in a crowd first; None where there is
    none, or no text.

    Args:
        points: [n, 2], pixels.
        size: width and height of the field that the labels must not leave, in pixels.
        texts: the labels; None for dots that have none.
    """
    extents = [(text_width(text or "", LABEL_SIZE, DPI), LABEL_SIZE * DPI / 72) for text in texts]
    taken: list[Box] = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in points]
    gaps = np.linalg.norm(points[:, None] - points[None, :], axis=-1)
    crowd = (gaps < 4 * LABEL_SIZE * DPI / 72).sum(1)
    found: list[tuple[float, float] | None] = [None] * len(texts)
    for i in sorted(range(len(texts)), key=lambda i: (-crowd[i], i)):
        if texts[i] is None:
            continue
        width, height = extents[i]
        others = [*taken[:i], *taken[i + 1 :]]  # without its own dot, where its line begins
        for x, y in _places(points[i], width, height):
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            line = _line(points[i], (x, y), texts[i] or "")
            inside = min(box) >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if inside and _is_free(box, taken) and all(_is_free(step, others) for step in line):
                found[i] = (x, y)
                taken += [box, *line]
                break
    return found


def label_edge(point: Numbers, label: tuple[float, float], text: str) -> tuple[float, float]:
    """The place on a label's border next to its dot, where a line from the dot should end; all in pixels."""
    half = text_width(text, LABEL_SIZE, DPI) / 2, LABEL_SIZE * DPI / 144
    x, y = (float(np.clip(point[i], label[i] - half[i], label[i] + half[i])) for i in range(2))
    return x, y


def _line(point: Numbers, label: tuple[float, float], text: str) -> list[Box]:
    """Small boxes along the line from a dot to its label; none where the label is near enough to need no line."""
    end = np.array(label_edge(point, label, text))
    if np.hypot(*(point - end)) <= NEAR:
        return []
    steps = point + np.linspace(0.3, 1.0, 8)[:, None] * (end - point)
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in steps[:-1].tolist()]


def _places(point: Numbers, width: float, height: float) -> list[tuple[float, float]]:
    """Centres of a label around a dot: right, left, above, below and between, near ones first."""
    turns = sorted(range(_DIRECTIONS), key=lambda turn: (turn % 4 != 0, turn % 2, turn % 8 != 0, turn))
    angles = [2 * math.pi * turn / _DIRECTIONS for turn in turns]
    return [
        (
            float(point[0] + math.cos(angle) * (_DOT + radius + width / 2)),
            float(point[1] + math.sin(angle) * (_DOT + radius + height / 2)),
        )
        for radius in _RADII
        for angle in angles
    ]


def _is_free(box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    return all(right <= other[0] or left >= other[2] or bottom <= other[1] or top >= other[3] for other in taken)


def _in_pixels(plane: Numbers) -> tuple[Numbers, tuple[float, float]]:
    """Points in pixels, x to the right and y downwards at the same scale, and the size of the field."""
    low, spread = plane.min(0), np.ptp(plane, axis=0)
    room = np.array(ROOM) * min(1.0, math.sqrt(max(len(plane), 20) / 72))
    scale = float((room / np.maximum(spread, 1e-12)).min()) if spread.any() else 1.0
    field = np.ceil(spread * scale) + 2 * _BORDER
    pixels = (plane - low) * scale + _BORDER
    pixels[:, 1] = field[1] - pixels[:, 1]
    return pixels, (float(field[0]), float(field[1]))
