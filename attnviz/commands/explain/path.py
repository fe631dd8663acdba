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
    """One step as a picture."""

    name: str  # of the step; query, key and value are those of the head
    label: str  # above the panel
    brief: str  # the formula below the label; may be empty
    words: tuple[str, ...]  # below the panel: shape of the whole tensor, and what the strongest colour stands for
    values: Array  # [rows, columns] as drawn; rows are tokens
    kind: str  # signed, weights or mask
    limit: float  # the value of the strongest colour
    width: float  # as a multiple of the side of the pattern's panel, as is the height
    height: float = 1.0
    marked: tuple[float, float] | None = None  # first and past-the-last column of the head that is followed
    pooling: tuple[int, int] = (1, 1)  # tokens in one row, and dimensions (or keys) of which one column is drawn

    @property
    def square(self) -> bool:
        """Whether columns are tokens too."""
        return self.name in _SQUARE


@dataclass(frozen=True)
class Node:
    """One thing in a row: a panel, three panels one above the other, a sum (``+``) or a ``layer norm``."""

    panels: tuple[Panel, ...] = ()
    operation: str = ""
    joined: bool = False  # whether it must stand in the same row as the node before


@dataclass(frozen=True)
class PathPlan:
    """The figure of a layer."""

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    bands: tuple[tuple[str, tuple[Node, ...]], ...]
    """Name and nodes of the layer's halves; each begins with the residual stream and has one sum."""
    labels: Labels  # of the tokens, beside the first panel
    pooled: int  # tokens in one row
    head: str  # the one that is followed

    @cached_property
    def panels(self) -> dict[str, Panel]:
        """By the name of the step."""
        return {panel.name: panel for _, band in self.bands for node in band for panel in node.panels}


def plan_path(result: Explanation, choices: Choices) -> Iterator[PathPlan]:  # noqa: ARG001
    """Plan the figure of a layer."""
    bands, facts = _bands(result), result.facts
    order = "pre-norm: layer norms come first" if result.pre_norm else "post-norm: layer norms follow the sums"
    reading = (
        f"Rows: tokens; columns: dimensions, in scores, mask and pattern keys. Q to A V: head {result.head}, outlined "
        "where heads are concatenated. ±: 99% of a panel's numbers are smaller; in brackets the largest."
    ) + "".join(_left_out(bands))
    verified = (
        "Every step is recomputed from the one before; the output is the model's next hidden state within "
        f"{error(result.output.error)} of its largest value."
    )
    yield PathPlan(
        stem="explain",
        caption=f"Layer {result.layer} of {facts.model} ({order.partition(':')[0]}) on {facts.quotes}, from input to "
        + sentence("output with its residual path, a panel of actual numbers a step", reading, verified),
        title=f"{facts.model}: layer {result.layer} from input to output",
        notes=(f"{facts.text_line}; {order}.", reading, verified),
        bands=bands,
        labels=Labels(tuple(visible(label) for label in result.tokens.labels), result.tokens.special),
        pooled=bands[0][1][0].panels[0].pooling[0],
        head=str(result.head),
    )


def _bands(result: Explanation) -> tuple[tuple[str, tuple[Node, ...]], ...]:
    def panels(*names: str, joined: bool = False) -> list[Node]:
        return [Node((_panel(result, name),), joined=joined) for name in names]

    total, norm = Node(operation="+", joined=True), Node(operation="layer norm", joined=True)
    core = [Node(_split(result)), *panels(*_SQUARE, "weighted", joined=True)]
    core += [*panels("concatenated", "attention_output"), total]
    feed = [*panels("expanded", "activated", "feed_forward_output"), total]
    if result.pre_norm:
        attention = [*panels("input"), norm, *panels("attention_norm", joined=True), *core]
        before = [*panels("attention_residual"), norm, *panels("feed_forward_norm", joined=True)]
        feed = [*before, *feed, *panels("output")]
        if "final_norm" in result.stages:
            feed += [Node(operation="layer norm"), *panels("final_norm", joined=True)]
    else:
        attention = [*panels("input"), *core, norm]
        feed = [*panels("attention_norm"), *feed, norm, *panels("output")]
    return ("Attention", tuple(attention)), ("Feed-forward", tuple(feed))


def _split(result: Explanation) -> tuple[Panel, ...]:
    """Queries, keys and values of the head; queries and keys, which are compared, on one scale."""
    query, key, value = (replace(_panel(result, name), width=_HEAD, height=THIRD) for name in _PARTS)
    limit, shape = max(query.limit, key.limit), str(list(result.stages["split"].shape[1:]))
    words = (shape, f"Q, K ±{_brief(limit)}", f"V ±{_brief(value.limit)}")
    return *(replace(each, limit=limit, words=()) for each in (query, key)), replace(value, words=words)


def _panel(result: Explanation, name: str) -> Panel:
    tensor = result.tensor("split")[_PARTS.index(name)] if name in _PARTS else result.tensor(name)
    values: Array = (tensor[result.head.head] if tensor.ndim == 3 else tensor).float().numpy()  # [n, columns]
    step = step_of(result, name)
    square, kind = name in _SQUARE, {"pattern": "weights", "mask": "mask"}.get(name, "signed")
    rows = math.ceil(len(values) / _MOST_ROWS)
    columns = rows if square else math.ceil(values.shape[1] / _MOST_COLUMNS)
    drawn = max_pool(values if square else values[:, ::columns], rows, rows if square else 1)
    largest = float(np.abs(values).max())
    # of all numbers, drawn or not; where nearly all are 0 the largest
    limit = (float(np.quantile(np.abs(values), _SATURATED)) if kind == "signed" else 0.0) or largest or 1.0
    scales = {"weights": f"0 to {_brief(largest)}", "mask": "all allowed" if values.all() else "key ≤ query"}
    scale = scales.get(kind, f"±{_brief(limit)} ({_brief(largest)})")
    widths = {result.checkpoint.d_head: _HEAD, result.checkpoint.d_model: _MODEL}
    side = _MASK if kind == "mask" else 1.0
    head, share = result.head.head, drawn.shape[1] / result.checkpoint.n_heads
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


def _left_out(bands: tuple[tuple[str, tuple[Node, ...]], ...]) -> Iterator[str]:
    """What was thinned and pooled, a sentence each."""
    panels = [panel for _, band in bands for node in band for panel in node.panels]
    thinned = sorted({panel.pooling[1] for panel in panels if not panel.square} - {1})
    if thinned:
        most = " to ".join(str(each) for each in thinned[:: max(1, len(thinned) - 1)])
        yield f" Of dimensions, one in {most} is drawn where they are too many."
    if (rows := max(panel.pooling[0] for panel in panels)) > 1:
        yield f" {rows} tokens are one row (keys one column): the number furthest from 0 is drawn."


def _brief(value: float) -> str:
    """Two digits, and no power of ten where it can be avoided."""
    return f"{value:.2g}" if not 99.5 <= value < 99_999 else f"{value:.0f}"
