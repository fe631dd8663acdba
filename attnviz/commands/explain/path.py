"""What the figure of a layer shows: a panel of actual numbers a step, in the order of computing.

Where there are more numbers than a panel has room for, tokens are pooled (their order matters), and dimensions, which
have none, thinned.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.steps import step_of
from attnviz.figures.matrix import Array, Labels, max_pool
from attnviz.model.tokens import visible
from attnviz.results.facts import sentence
from attnviz.results.tables import error
from attnviz.results.view import Choices

__all__ = ["THIRD", "Node", "Panel", "PathPlan", "plan_path"]

_MOST_ROWS, _MOST_COLUMNS = 100, 128
_SATURATED = 0.99
_PARTS = ("query", "key", "value")
_SQUARE = ("scores", "mask", "pattern")
_WIDE, _MODEL, _HEAD, _MASK = 1.3, 1.05, 0.72, 0.6
"""Widths of panels, as multiples of the side of the pattern's."""

THIRD = 0.42
"""Height of each of three panels, likewise."""


@dataclass(frozen=True)
class Panel:
    """One step as a picture.

    Attributes:
        name: of the step; ``query``, ``key`` and ``value`` are those of the head.
        label, brief: title and formula above the panel; the formula may be empty.
        words: below it: shape of the whole tensor, and what the strongest colour stands for.
        values: [rows, columns] as drawn; rows are tokens.
        kind: ``signed``, ``weights`` or ``mask``.
        limit: the value of the strongest colour.
        width, height: as multiples of the side of the pattern's panel.
        marked: first and past-the-last column of the head that is followed; None for none.
        pooling: tokens in one row, and dimensions (or keys) of which one column is drawn.
    """

    name: str
    label: str
    brief: str
    words: tuple[str, ...]
    values: Array
    kind: str
    limit: float
    width: float
    height: float = 1.0
    marked: tuple[float, float] | None = None
    pooling: tuple[int, int] = (1, 1)

    @property
    def square(self) -> bool:
        """Whether columns are tokens too."""
        return self.name in _SQUARE


@dataclass(frozen=True)
class Node:
    """One thing in a row: a panel, three panels one above the other, a sum (``+``) or a ``layer norm``.

    Attributes:
        panels: none for an operation.
        operation: its sign; empty for panels.
        joined: whether it must stand in the same row as the node before.
    """

    panels: tuple[Panel, ...] = ()
    operation: str = ""
    joined: bool = False


@dataclass(frozen=True)
class PathPlan:
    """The figure of a layer.

    Attributes:
        stem, caption: of the file.
        title, notes: above the panels.
        bands: name and nodes of the layer's halves; each begins with the residual stream and has one sum.
        labels: of the tokens, beside the first panel.
        pooled: tokens in one row.
        head: the one that is followed.
    """

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    bands: tuple[tuple[str, tuple[Node, ...]], ...]
    labels: Labels
    pooled: int
    head: str

    @cached_property
    def panels(self) -> dict[str, Panel]:
        """By the name of the step."""
        return {panel.name: panel for _, band in self.bands for node in band for panel in node.panels}


def plan_path(result: Explanation, choices: Choices) -> Iterator[PathPlan]:  # noqa: ARG001
    """Plan the figure of a layer."""
    bands, facts = _bands(result), result.facts
    pooled = bands[0][1][0].panels[0].pooling[0]
    order = "pre-norm: layer norms come first" if result.pre_norm else "post-norm: layer norms follow the sums"
    reading = (
        f"Rows: tokens; columns: dimensions, in scores, mask and pattern keys. Q to A V: head {result.head}, outlined "
        "where heads are concatenated. ±: 99% of a panel's numbers are smaller; in brackets the largest."
    ) + "".join(_left_out(bands))
    verified = (
        "Every step is recomputed from the one before; the output is the model's next hidden state within "
        f"{error(result.output.error)} of its largest value."
    )
    texts = " / ".join(facts.texts and [facts.quotes])
    yield PathPlan(
        stem="explain",
        caption=f"Layer {result.layer} of {facts.model} ({order.partition(':')[0]}) on {texts}, from input to output "
        + sentence("with its residual path, a panel of actual numbers a step", reading, verified),
        title=f"{facts.model}: layer {result.layer} from input to output",
        notes=(f"{facts.text_line}; {order}.", reading, verified),
        bands=bands,
        labels=Labels(tuple(visible(label) for label in result.tokens.labels), result.tokens.special),
        pooled=pooled,
        head=str(result.head),
    )


def _bands(result: Explanation) -> tuple[tuple[str, tuple[Node, ...]], ...]:
    """Both halves of the layer, in the order of computing."""

    def panels(*names: str, joined: bool = False) -> list[Node]:
        return [Node((_panel(result, name),), joined=joined) for name in names]

    total, norm = Node(operation="+", joined=True), Node(operation="layer norm", joined=True)
    core = [
        Node(_split(result)),
        *panels(*_SQUARE, "weighted", joined=True),
        *panels("concatenated", "attention_output"),
        total,
    ]
    feed = [*panels("expanded", "activated", "feed_forward_output"), total]
    if not result.pre_norm:
        attention = [*panels("input"), *core, norm]
        return (
            ("Attention", tuple(attention)),
            ("Feed-forward", (*panels("attention_norm"), *feed, norm, *panels("output"))),
        )
    final = [Node(operation="layer norm"), *panels("final_norm", joined=True)] if "final_norm" in result.stages else []
    before = [*panels("attention_residual"), norm, *panels("feed_forward_norm", joined=True)]
    return (
        ("Attention", (*panels("input"), norm, *panels("attention_norm", joined=True), *core)),
        ("Feed-forward", (*before, *feed, *panels("output"), *final)),
    )


def _split(result: Explanation) -> tuple[Panel, ...]:
    """Queries, keys and values of the head; queries and keys, which are compared, on one scale."""
    query, key, value = (replace(_panel(result, name), width=_HEAD, height=THIRD) for name in _PARTS)
    limit = max(query.limit, key.limit)
    scales = (f"Q, K ±{_brief(limit)}", f"V ±{_brief(value.limit)}")
    shape = str(list(result.stages["split"].shape[1:]))
    return (
        replace(query, limit=limit, words=()),
        replace(key, limit=limit, words=()),
        replace(value, words=(shape, *scales)),
    )


def _panel(result: Explanation, name: str) -> Panel:
    values, step = _values(result, name), step_of(result, name)
    square, kind = name in _SQUARE, {"pattern": "weights", "mask": "mask"}.get(name, "signed")
    rows, columns = (
        math.ceil(count / most) for count, most in zip(values.shape, (_MOST_ROWS, _MOST_COLUMNS), strict=True)
    )
    columns = rows if square else columns
    drawn = max_pool(values if square else values[:, ::columns], rows, rows if square else 1)
    largest = float(np.abs(values).max())
    # of all numbers, drawn or not; where nearly all are 0 the largest
    limit = (float(np.quantile(np.abs(values), _SATURATED)) if kind == "signed" else 0.0) or largest or 1.0
    scale = {"weights": f"0 to {_brief(largest)}", "mask": "all allowed" if values.all() else "key ≤ query"}.get(
        kind, f"±{_brief(limit)} ({_brief(largest)})"
    )
    widths = {result.checkpoint.d_head: _HEAD, result.checkpoint.d_model: _MODEL}
    side = _MASK if kind == "mask" else 1.0
    head, n_heads = result.head.head, result.checkpoint.n_heads
    share = drawn.shape[1] / n_heads
    return Panel(
        name=name,
        label=step.label,
        brief=step.brief,
        words=(str(list(result.stages[name].shape)), scale),
        values=drawn,
        kind=kind,
        limit=limit,
        width=side if square else widths.get(values.shape[1], _WIDE),
        height=side,
        marked=(head * share, (head + 1) * share) if name == "concatenated" else None,
        pooling=(rows, columns),
    )


def _values(result: Explanation, name: str) -> Array:
    """All numbers of a step, those of the head where heads have their own, [n, columns]."""
    tensor = result.tensor("split")[_PARTS.index(name)] if name in _PARTS else result.tensor(name)
    values: Array = (tensor[result.head.head] if tensor.ndim == 3 else tensor).float().numpy()
    return values


def _left_out(bands: tuple[tuple[str, tuple[Node, ...]], ...]) -> Iterator[str]:
    """What was thinned and pooled, a sentence each."""
    panels = [panel for _, band in bands for node in band for panel in node.panels]
    thinned = sorted({panel.pooling[1] for panel in panels if not panel.square} - {1})
    if thinned:
        most = f"{thinned[-1]}" if len(thinned) == 1 else f"{thinned[0]} to {thinned[-1]}"
        yield f" Of dimensions, one in {most} is drawn where they are too many."
    if (rows := max(panel.pooling[0] for panel in panels)) > 1:
        yield f" {rows} tokens are one row (keys one column): the number furthest from 0 is drawn."


def _brief(value: float) -> str:
    """Two digits, and no power of ten where it can be avoided."""
    return f"{value:.2g}" if not 99.5 <= value < 99_999 else f"{value:.0f}"
