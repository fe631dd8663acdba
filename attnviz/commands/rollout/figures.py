"""What the figures of an attention rollout show, planned before anything is drawn: arrays, labels, sizes, texts.

:mod:`attnviz.commands.rollout.drawing` draws the plans. Sizes are in pixels at :data:`attnviz.figures.heatmaps.DPI`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from attnviz.commands.rollout.results import METHODS, RolledOut
from attnviz.commands.rollout.sizes import tile_grid
from attnviz.commands.rollout.words import (
    METHOD_NAMES,
    chosen,
    counted,
    flow_sentence,
    flows_sentence,
    layer_named,
    layers_in_words,
    model_name,
    residual_in_words,
    sink_sentence,
    spread_sentence,
    text_in_words,
)
from attnviz.figures.colours import Array
from attnviz.figures.fonts import fitted
from attnviz.figures.heatmaps import DPI, max_pool, named_every, names_note
from attnviz.figures.look import Look
from attnviz.figures.view_bars import BAR_HEIGHT
from attnviz.figures.view_drawing import PIXEL, label_size, page_width, view_page

__all__ = [
    "MOST_BARS",
    "BarsPlan",
    "Panel",
    "Tile",
    "TileGroup",
    "TilesPlan",
    "plan_bars",
    "plan_layers",
    "plan_rollout",
]

MOST_BARS = 40
"""Input tokens that a picture of bars shows at most."""

_LONGEST_LABEL = 110
_LARGE, _MEDIUM, _SMALL, _PAGE = 420, 260, 150, 960
_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COVERED = 0.98


@dataclass(frozen=True)
class Tile:
    """One matrix.

    Attributes:
        name: what it is.
        values: [m, m], row = output position, column = input token; pooled where too large.
        shorter: the name where there is less room, the longest first; the last may have two lines.
    """

    name: str
    values: Array
    shorter: tuple[str, ...] = ()


@dataclass(frozen=True)
class TileGroup:
    """Tiles that belong together, below a heading; no heading where there is one group."""

    heading: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class TilesPlan:
    """Matrices side by side, ready to draw.

    Attributes:
        title, notes, caption: words above, and one sentence to set below.
        groups: of matrices, from the top.
        labels: [n], drawable texts of the positions.
        quiet: [n], labels to draw in grey (special tokens and other sinks).
        top: the dark end of the scale; larger shares look the same.
        largest: of all shares.
        columns: tiles in a row.
        cell: pixels a cell; halves where the width was chosen, since such pictures have twice the resolution.
        pooled: how many rows and columns one cell stands for.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    groups: tuple[TileGroup, ...]
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    top: float
    largest: float
    columns: int
    cell: float
    pooled: int

    @property
    def size(self) -> int:
        """Pixels of the square of cells of one tile."""
        return round(self.cell * len(self.groups[0].tiles[0].values))

    @property
    def cut(self) -> str:
        """What the scale does not tell apart; empty where it tells everything."""
        return f" (larger ones, up to {self.largest:.2g}, look the same)" if self.largest > 1.001 * self.top else ""

    @property
    def n_tiles(self) -> int:
        """Of all groups."""
        return sum(len(group.tiles) for group in self.groups)


@dataclass(frozen=True)
class Panel:
    """Bars by one method: its name, a share for each row, and what uniform attention would give (None: not known)."""

    name: str
    values: Array
    uniform: Array | None


@dataclass(frozen=True)
class BarsPlan:
    """How one token's attention is shared among the input tokens, ready to draw.

    Attributes:
        title, notes, caption: words above, and one sentence to set below.
        labels: [m], of the input tokens shown, with their positions, in the order of the text.
        quiet: [m], labels to draw in grey (special tokens and other sinks).
        panels: one a method, each with a scale of its own.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    panels: tuple[Panel, ...]


def plan_rollout(found: RolledOut, look: Look) -> TilesPlan:
    """Plan the mean attention of the layer shown beside the rollouts up to it, and the flows where there are all."""
    n_heads, attention = found.checkpoint.n_heads, f"attention of layer {found.layer}"
    matrices = [
        (f"{attention} (mean of {n_heads} head{'s' * (n_heads > 1)})", found.means[-1]),
        ("rollout", found.weights[-1]),
        ("norm rollout", found.norms[-1]),
        *([] if found.flows is None else [("flow", found.flows)]),
    ]
    shown = "the mean attention of that layer alone, its rollout, and its rollout by norms"
    flow = "" if found.flows is None else ", and the maximum flow, rows divided by their sum"
    return _tiles(
        found,
        [("", matrices)],
        look,
        target=_LARGE,
        columns=len(matrices),
        shorter={0: (attention, f"attention\nlayer {found.layer}"), 2: ("norm\nrollout",)},
        title=f"{model_name(found)}: attention rollout to {layer_named(found)}",
        notes=(_how(found), flows_sentence(found), spread_sentence(found)),
        subject=f"What comes to each position at the output of {layer_named(found)}: {shown}{flow}",
    )


def plan_layers(found: RolledOut, look: Look) -> TilesPlan:
    """Plan the rollouts up to each layer, from weights and from norms."""
    n_layers = len(found.layers)
    columns = min(n_layers, 6 if n_layers <= 12 else 8)
    groups = [
        (heading, [(f"layer {layer}", matrix) for layer, matrix in enumerate(matrices)])
        for heading, matrices in (("Rollout up to each layer", found.weights), ("Norm rollout", found.norms))
    ]
    return _tiles(
        found,
        groups,
        look,
        target=_SMALL if look.width is not None else max(_SMALL, min(_MEDIUM, _PAGE // columns)),
        columns=columns,
        shorter={layer: (f"L{layer}",) for layer in range(n_layers)},
        title=f"{model_name(found)}: attention rollout, layer by layer",
        notes=(_how(found), sink_sentence(found), spread_sentence(found)),
        subject="Attention rollout up to each layer, from mean attention weights and from norms",
    )


def plan_bars(found: RolledOut) -> BarsPlan:
    """Plan the shares of the input tokens in the chosen output token, a panel a method."""
    inputs = found.inputs
    measured = {name: row for name in METHODS if (row := getattr(inputs, name)) is not None}
    rows = _most_telling([row for name, row in measured.items() if name != "flow"], MOST_BARS)
    baselines = {"attention": inputs.uniform, "rollout": inputs.uniform_rollout, "norm_rollout": inputs.uniform_rollout}
    panels = tuple(
        Panel(METHOD_NAMES[name], _rows(row, rows), _rows(baselines[name], rows) if name in baselines else None)
        for name, row in measured.items()
    )
    units = found.units
    left_out = ""
    if len(rows) < len(units):
        left_out = (
            f"{len(rows)} of {counted(found, len(units))} are shown: those ranked highest by attention, rollout and "
            "norm rollout, in the order of the text."
        )
    orange = "what uniform attention would give"
    without = " (not known for the flow)" if inputs.flow is not None else ""
    reading = f"Shares of the input tokens, a scale a column. Orange marks: {orange}{without}."
    return BarsPlan(
        title=f"{model_name(found)}: what comes to {chosen(found)} up to {layer_named(found)}",
        notes=_without_empty(text_in_words(found), reading, flow_sentence(found), left_out, spread_sentence(found)),
        caption=_sentence(
            f"Shares of the input tokens in {chosen(found)} at the output of {layer_named(found)} of "
            f"{model_name(found)} on {text_in_words(found)}, by {_methods(panels)}",
            f"attention is the mean pattern of that layer's heads alone, rollout goes through {layers_in_words(found)} "
            f"with {residual_in_words(found)}",
            f"orange marks are {orange}{without}; each column has a scale of its own",
            left_out.rstrip("."),
        ),
        labels=tuple(f"{_label(units.labels[row])}  #{row}" for row in rows),
        quiet=tuple(units.sink[row] for row in rows),
        panels=panels,
    )


def _tiles(
    found: RolledOut,
    groups: Sequence[tuple[str, Sequence[tuple[str, Tensor]]]],
    look: Look,
    *,
    target: int,
    columns: int,
    shorter: Mapping[int, tuple[str, ...]],
    title: str,
    notes: Sequence[str],
    subject: str,
) -> TilesPlan:
    labels = tuple(_label(label) for label in found.units.labels)
    notes = (text_in_words(found), *notes)
    above = view_page(title, notes, page_width(look, 0), BAR_HEIGHT, look).height if look.width is not None else 0
    columns, cell, pooled = tile_grid(labels, [len(of) for _, of in groups], columns, target, look, above)
    drawn = tuple(TileGroup(heading, _pooled(of, shorter, pooled)) for heading, of in groups)
    every = np.concatenate([tile.values.ravel() for group in drawn for tile in group.tiles])
    top = next((top for top in _TOPS if top >= np.quantile(every, _COVERED)), 1.0)
    largest = float(every.max())
    pooling = f"each cell is the largest of {pooled} × {pooled} shares (pooled for drawing only)" if pooled > 1 else ""
    m = len(drawn[0].tiles[0].values)
    left_out = names_note(named_every((cell + 2 / m) * PIXEL, pooled), found.units.name)
    plan = TilesPlan(
        title=title,
        notes=_without_empty(*notes, f"E{pooling[1:]}." if pooling else "", left_out),
        caption="",
        groups=drawn,
        labels=labels,
        quiet=found.units.sink,
        top=top,
        largest=largest,
        columns=columns,
        cell=cell,
        pooled=pooled,
    )
    return replace(plan, caption=_caption(found, plan, subject, pooling))


def _caption(found: RolledOut, plan: TilesPlan, subject: str, pooling: str) -> str:
    return _sentence(
        f"{subject}, of {model_name(found)} on {text_in_words(found)}",
        residual_in_words(found),
        "row = position at the layer's output, column = input token",
        f"colours from 0 to {plan.top:g}{plan.cut}",
        pooling,
    )


def _pooled(
    matrices: Sequence[tuple[str, Tensor]], shorter: Mapping[int, tuple[str, ...]], pooled: int
) -> tuple[Tile, ...]:
    return tuple(
        Tile(name, max_pool(matrix.float().numpy(), pooled), shorter.get(number, ()))
        for number, (name, matrix) in enumerate(matrices)
    )


def _most_telling(rows: Sequence[Tensor], most: int) -> list[int]:
    """The inputs that each method ranks first, second, and so on, until there are enough; in the order of the text."""
    orders = [row.argsort(descending=True, stable=True).tolist() for row in rows]
    ranked = dict.fromkeys(position for same_rank in zip(*orders, strict=True) for position in same_rank)
    return sorted(list(ranked)[:most])


def _rows(values: Tensor, rows: Sequence[int]) -> Array:
    shown: Array = values[list(rows)].float().numpy()
    return shown


def _label(label: str) -> str:
    return fitted(label, label_size(0), DPI, _LONGEST_LABEL)


def _how(found: RolledOut) -> str:
    return (
        f"Row: position at the layer's output; column: input token; rows sum to 1. Through {layers_in_words(found)}, "
        f"{residual_in_words(found)}."
    )


def _methods(panels: Sequence[Panel]) -> str:
    names = [panel.name for panel in panels]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _without_empty(*lines: str) -> tuple[str, ...]:
    return tuple(line for line in lines if line)


def _sentence(*parts: str) -> str:
    return "; ".join(_without_empty(*parts)) + "."
