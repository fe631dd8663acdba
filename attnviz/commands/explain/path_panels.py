"""What the figure of a layer shows: a panel of actual numbers a step.

Where there are more than pixels, tokens are pooled (their order matters), and dimensions, which have none, thinned.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.steps import numbered_shape, score_formula

__all__ = ["Panel", "Values", "fitting", "panel_of", "pooled", "split_panels"]

Values = NDArray[np.float32]

_PARTS = ("query", "key", "value")
_SQUARE = ("scores", "mask", "pattern")
_SATURATED = 0.99
_FIDELITY = 0.35
_SIZES = {"token": 1.0, "model": 1.15, "head": 0.72, "wide": 1.45, "mask": 0.6}


@dataclass(frozen=True)
class Panel:
    """One step as a picture.

    Attributes:
        name: of the step; ``query``, ``key`` and ``value`` are those of the head.
        title: above the panel.
        formula: below the title; may be empty.
        shape: of the whole tensor.
        scale: what the strongest colour stands for.
        values: [rows, columns] as drawn; rows are tokens.
        kind: ``signed``, ``weights`` or ``mask``.
        limit: the value of the strongest colour.
        width, height: in pixels.
        cell: the sides of all cells are multiples of this many pixels, so that none is wider than its neighbour.
        marked: first and past-the-last column of the head that is followed, as shares of the width; None for none.
        pooling: tokens in one row, and dimensions (or keys) of which one column is drawn.
    """

    name: str
    title: str
    formula: str
    shape: str
    scale: str
    values: Values
    kind: str
    limit: float
    width: float
    height: float
    cell: float
    marked: tuple[float, float] | None = None
    pooling: tuple[int, int] = (1, 1)

    @property
    def square(self) -> bool:
        """Whether columns are tokens too."""
        return self.name in _SQUARE


def panel_of(explained: Explained, name: str, size: float, cell: float, *, small: bool = False) -> Panel:
    """The panel of a step.

    Args:
        explained: the layer.
        name: of the step; ``query``, ``key`` and ``value`` give those of the head that is followed.
        size: pixels that the panel may be high.
        cell: sides of cells are multiples of so many pixels.
        small: whether three share the height.
    """
    values, kind = _values(explained, name)
    rows, columns = values.shape
    square = name in _SQUARE
    factor = _SIZES["mask" if kind == "mask" else "token" if square else _width_of(explained, columns)]
    row_factor, height = fitting(rows, size * (_SIZES["mask"] if kind == "mask" else 0.42 if small else 1.0), cell)
    column_factor, width = (row_factor, height) if square else fitting(columns, size * factor, cell)
    drawn = pooled(values if square else values[:, ::column_factor], row_factor, column_factor if square else 1)
    largest = float(np.abs(values).max())
    # of all numbers, drawn or not; where nearly all are 0 the largest
    limit = (float(np.quantile(np.abs(values), _SATURATED)) if kind == "signed" else 0.0) or largest
    stage = explained.stages["split" if name in _PARTS else name]
    title, formula = _words(explained, name)
    head = explained.head.head
    marked = (head / explained.checkpoint.n_heads, (head + 1) / explained.checkpoint.n_heads)
    return Panel(
        name=name,
        title=title,
        formula=formula,
        shape=numbered_shape(stage.name, stage.shape),
        scale=_scale_words(kind, limit, largest, values),
        values=drawn,
        kind=kind,
        limit=limit if limit > 0 else 1.0,
        width=width,
        height=height,
        cell=cell,
        marked=marked if name == "concatenated" else None,
        pooling=(row_factor, column_factor),
    )


def split_panels(explained: Explained, size: float, cell: float) -> list[Panel]:
    """Queries, keys and values of the head that is followed; queries and keys, which are compared, on one scale."""
    query, key, value = (panel_of(explained, name, size, cell, small=True) for name in _PARTS)
    limit = max(query.limit, key.limit)
    shape = str(list(explained.stages["split"].shape[1:]))
    both = f"Q, K ±{_brief(limit)}"
    return [
        *(replace(panel, limit=limit, scale=both, shape=shape) for panel in (query, key)),
        replace(value, scale=f"V ±{_brief(value.limit)}", shape=shape),
    ]


def fitting(cells: int, room: float, cell: float) -> tuple[int, float]:
    """How many of so many cells to draw as one, and the length of them all: whole multiples of ``cell`` each.

    As few as one to one where that fills the room; to draw twice as many as one must fill a good quarter more.
    """
    steps = int(room / cell)
    least = max(1, math.ceil(cells / steps))
    lengths = {}
    for factor in range(least, least + 4):
        drawn = math.ceil(cells / factor)
        lengths[factor] = drawn * (steps // drawn) * cell
    best = max(lengths, key=lambda factor: lengths[factor] * (least / factor) ** _FIDELITY)
    return best, lengths[best]


def pooled(values: Values, rows: int, columns: int) -> Values:
    """Of every block of ``rows`` x ``columns`` numbers the one that is furthest from 0."""
    height, width = (math.ceil(count / factor) for count, factor in zip(values.shape, (rows, columns), strict=True))
    padded = np.zeros((height * rows, width * columns), dtype=np.float32)
    padded[: values.shape[0], : values.shape[1]] = values
    blocks = padded.reshape(height, rows, width, columns).transpose(0, 2, 1, 3).reshape(height, width, -1)
    place = np.abs(blocks).argmax(-1)
    furthest: Values = np.take_along_axis(blocks, place[..., None], -1)[..., 0]
    return furthest


def _values(explained: Explained, name: str) -> tuple[Values, str]:
    head = explained.head.head
    tensor = explained.tensor("split")[_PARTS.index(name)] if name in _PARTS else explained.tensor(name)
    if tensor.ndim == 3:
        tensor = tensor[head]
    kind = {"pattern": "weights", "mask": "mask"}.get(name, "signed")
    return tensor.float().numpy(), kind


def _width_of(explained: Explained, columns: int) -> str:
    sizes = {explained.checkpoint.d_head: "head", explained.checkpoint.d_model: "model"}
    return sizes.get(columns, "wide")


def _scale_words(kind: str, limit: float, largest: float, values: Values) -> str:
    if kind == "weights":
        return f"0 to {_brief(largest)}"
    if kind == "mask":
        return "all allowed" if values.all() else "key ≤ query"
    return f"±{_brief(limit)} ({_brief(largest)})"


def _brief(value: float) -> str:
    """Two digits, and no power of ten where it can be avoided."""
    return f"{value:.2g}" if not 99.5 <= value < 99_999 else f"{value:.0f}"


def _words(explained: Explained, name: str) -> tuple[str, str]:
    """Title and formula, both short."""
    model, pre = explained.checkpoint, explained.pre_norm
    return {
        "input": ("input x", ""),
        "attention_norm": ("norm(x)", "") if pre else ("norm(h)", ""),
        "query": ("Q", ""),
        "key": ("K", ""),
        "value": ("V", ""),
        "scores": ("scores", score_formula(explained, brief=True)),
        "mask": ("mask", ""),
        "pattern": ("pattern A", "softmax"),
        "weighted": ("A V", ""),
        "concatenated": ("concatenated", f"{model.n_heads} heads"),
        "attention_output": ("attention", "· W_O + b_O"),
        "attention_residual": ("h", "x + attention"),
        "feed_forward_norm": ("norm(h)", ""),
        "expanded": ("expanded u", "· W_1 + b_1"),
        "activated": (explained.activation, "f(u)"),
        "feed_forward_output": ("feed-forward", "· W_2 + b_2"),
        "output": ("output", ""),
        "final_norm": ("final norm", ""),
    }[name]
