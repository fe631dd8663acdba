"""The figure of a whole layer, planned: its panels, where they stand, and the words around them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.path_layout import Layout, Node, Sizes, arrange, row_width, rows_of
from attnviz.commands.explain.path_panels import Panel, panel_of, split_panels
from attnviz.errors import UsageError
from attnviz.figures.fonts import drawable, text_width
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted
from attnviz.results.tables import error

__all__ = ["Band", "PathPlan", "TokenName", "plan_path"]

Band = tuple[str, list[Node]]
"""The name of a half of the layer, and what stands in it."""

_MARGIN = 22
_LARGEST, _LEAST, _LEAST_WRAPPED = 132, 70, 60
_SIZES, _SMALL_SIZES = Sizes(), Sizes(18, 16, 26, 26, 22, 22, 14)
_FONTS, _SMALL_FONTS = (7.5, 6.5, 6.0), (6.0, 5.5, 5.5)
"""Of a page as wide as its content asks for, and of one of a chosen width."""

_LONGEST_NAME = 14
_LINE = 0.95
"""Of names below each other, in sizes of their font: letters without the air above and below."""

_SMALLEST_NAME = 5.5
_CORE = ("scores", "mask", "pattern", "weighted")


@dataclass(frozen=True)
class TokenName:
    """The name of a token, beside its row of the first panel: the middle of it, in shares of the panel's height."""

    text: str
    place: float


@dataclass(frozen=True)
class PathPlan:
    """The figure of a layer.

    Attributes:
        title: model and layer.
        notes: text, what is drawn, how to read it.
        caption: all of this in one sentence.
        layout: panels, lines and names of the bands.
        sizes: pixels between things.
        names: of tokens, beside the first panel.
        left: where the rows begin.
        room: what they may take.
        page: width of the page, in pixels at :data:`attnviz.figures.heatmaps.DPI`.
        fonts: points of titles, of formulas, and of the names of tokens.
        head: the one that is followed.
        look: theme and width.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    layout: Layout
    sizes: Sizes
    names: tuple[TokenName, ...]
    left: float
    room: float
    page: int
    fonts: tuple[float, float, float]
    head: str
    look: Look

    @cached_property
    def panels(self) -> dict[str, Panel]:
        """By the name of the step."""
        return {panel.name: panel for placed in self.layout.placed for panel in placed.node.panels}


def plan_path(explained: Explained, look: Look) -> PathPlan:
    """Plan the figure of a layer.

    Args:
        explained: the layer.
        look: theme and width.

    Raises:
        UsageError: the width has no room for it.
    """
    sizes, fonts = (_SIZES, _FONTS) if look.width is None else (_SMALL_SIZES, _SMALL_FONTS)
    longest = max(text_width(_short(label), fonts[2], DPI) for label in set(explained.tokens.labels))
    left, beyond = _MARGIN + longest + 8, _MARGIN + 22
    if look.width is None:
        bands = _bands(explained, _LARGEST, 1.0)
        room = max(row_width(band, sizes) for _, band in bands)
        page = round(left + room + beyond)
    else:
        page = round(look.width * DPI)
        room = page - left - beyond
        fitting = _fitting_bands(explained, room, sizes)
        if fitting is None:
            wider = (n / 10 for n in itertools.count(math.ceil(10 * look.width)))
            enough = next(w for w in wider if _fitting_bands(explained, round(w * DPI) - left - beyond, sizes))
            raise UsageError(
                f"the figure of a layer does not fit in {look.width:g} inches with the names of these tokens; "
                f"expected a --width of at least {enough:g}in, or --no-figures."
            )
        bands = fitting
    layout = arrange(bands, left, room, sizes)
    panels = [panel for placed in layout.placed for panel in placed.node.panels]
    names, size = _token_names(explained, panels[0], fonts[2])
    notes = _notes(explained, panels, names)
    return PathPlan(
        title=f"{visible(explained.checkpoint.short_name)}: layer {explained.layer} from input to output",
        notes=tuple(notes),
        caption=_caption(explained, notes),
        layout=layout,
        sizes=sizes,
        names=names,
        left=left,
        room=room,
        page=page,
        fonts=(*fonts[:2], size),
        head=str(explained.head),
        look=look,
    )


def _fitting_bands(explained: Explained, room: float, sizes: Sizes) -> list[Band] | None:
    """With a row a band, or else in as few rows as can be; the panels as large as they may then be; None for no way."""
    best: tuple[int, list[Band]] | None = None
    for size in range(_LARGEST, _LEAST_WRAPPED - 1, -4):
        bands = _bands(explained, size, 0.5)
        rows = [row for _, band in bands for row in rows_of(band, room, sizes)]
        fits = all(row_width(row, sizes) <= room for row in rows)
        if fits and (best is None or len(rows) < best[0]) and (size >= _LEAST or best is None):
            best = len(rows), bands
    return None if best is None else best[1]


def _bands(explained: Explained, size: float, cell: float) -> list[Band]:
    """Both halves of the layer, with panels of so many pixels and cells of multiples of so many."""

    def panel(name: str, joined: bool = False) -> Node:
        return Node((panel_of(explained, name, size, cell),), joined=joined)

    pre = explained.pre_norm
    total, norm = Node(operation="+", joined=True), Node(operation="norm", joined=True)
    three = Node(tuple(split_panels(explained, size, cell)))
    core = [three, *(panel(name, joined=True) for name in _CORE), panel("concatenated"), panel("attention_output")]
    feed = [panel("expanded"), panel("activated"), panel("feed_forward_output")]
    if pre:
        ending = [Node(operation="norm"), panel("final_norm", joined=True)] if "final_norm" in explained.stages else []
        return [
            ("Attention", [panel("input"), norm, panel("attention_norm", joined=True), *core, total]),
            (
                "Feed-forward",
                [panel("attention_residual"), norm, panel("feed_forward_norm", joined=True), *feed, total,
                 panel("output"), *ending],
            ),
        ]  # fmt: skip
    return [
        ("Attention", [panel("input"), *core, total, norm]),
        ("Feed-forward", [panel("attention_norm"), *feed, total, norm, panel("output")]),
    ]


def _token_names(explained: Explained, panel: Panel, size: float) -> tuple[tuple[TokenName, ...], float]:
    """As many as fit beside the panel, and their font: a smaller one where all then fit."""
    labels, n = explained.tokens.labels, len(explained.tokens)
    all_fit = panel.height / n / (_LINE * DPI / 72)
    size = all_fit if _SMALLEST_NAME <= all_fit < size else size
    step = math.ceil(size / all_fit)
    names = (TokenName(_short(labels[position]), (position + 0.5) / n) for position in range(0, n, step))
    return tuple(names), size


def _short(label: str) -> str:
    shown = drawable(visible(label))
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


def _texts(explained: Explained) -> str:
    return " / ".join(quoted(text) for text in (explained.text, explained.pair) if text is not None)


def _notes(explained: Explained, panels: Sequence[Panel], names: Sequence[TokenName]) -> list[str]:
    order = "post-norm: layer norms follow the sums" if not explained.pre_norm else "pre-norm: layer norms come first"
    output = explained.stages["output"].check
    assert output is not None
    named = "" if len(names) == len(explained.tokens) else f" ({len(names)} of {len(explained.tokens)} named)"
    return [
        f"{_texts(explained)} ({counted(len(explained.tokens), 'token')}); {order}.",
        f"Rows: tokens{named}; columns: dimensions, in scores, mask and pattern keys. Q to A V: head {explained.head}, "
        "outlined where heads are concatenated. ±: 99% of a panel's numbers are smaller; in brackets the largest."
        + "".join(_left_out(panels)),
        "Every step is recomputed from the one before; the output is the model's next hidden state within "
        f"{error(output.error)} of its largest value.",
    ]


def _left_out(panels: Sequence[Panel]) -> Iterator[str]:
    """What was thinned and pooled, a sentence each."""
    rows = max(panel.pooling[0] for panel in panels)
    columns = sorted({panel.pooling[1] for panel in panels if not panel.square} - {1})
    if columns:
        most = f"{columns[-1]}" if len(columns) == 1 else f"{columns[0]} to {columns[-1]}"
        yield f" Of dimensions, one in {most} is drawn where they are too many."
    if rows > 1:
        yield f" Up to {rows} tokens are one row (keys one column): the number furthest from 0 is drawn."


def _caption(explained: Explained, notes: Sequence[str]) -> str:
    """One sentence: model, layer, text, what is shown, on which scale, what was pooled and verified."""
    order = "pre-norm" if explained.pre_norm else "post-norm"
    return (
        f"Layer {explained.layer} of {visible(explained.checkpoint.short_name)} ({order}) on {_texts(explained)}, from "
        f"input to output with its residual path, a panel of actual numbers a step: {' '.join(notes[1:])}"
    )
