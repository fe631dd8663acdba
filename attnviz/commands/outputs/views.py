"""The figures of head outputs: all heads by norm, maps, and one head by weight and by norm."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.commands.outputs.report import chosen, how_it_is_read, versus
from attnviz.commands.outputs.shares import HeadContribution
from attnviz.figures.fonts import fitted
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.matrix import (
    Array,
    Labels,
    PooledPattern,
    draw_matrix,
    hundredths,
    label_pixels,
    label_size,
    pooled_for,
    write_numbers,
)
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    ColourScale,
    PagePlan,
    colour_bar,
    new_page,
    page_width,
    settled,
    written,
)
from attnviz.figures.style import DPI, FAINTEST, Style, figure_style
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import percent, quoted, signed
from attnviz.present.figure_context import KINDS
from attnviz.present.view import Drawing, ViewOptions

_LARGEST_SIDE, _LEAST_SIDE, _LARGEST_CELL, _SIDE_BY_SIDE = 4.3, 1.2, 0.293, 5.0
_STRIP, _NAME, _BETWEEN, _BAR = 0.42, 0.26, 0.5, 0.6

_SCALES = {"per-head": "scale of this head", "shared": "scale of all heads", "log": "log scale"}
"""Where the colours end, by scale."""

_BESIDE = {"attention bias": "b_O", "feed-forward": "FFN", "norm bias": "LN"}


@dataclass(frozen=True)
class HeadPlan(PagePlan):
    """One head's raw pattern and norm-weighted attention, [m, m], and ||f(x)|| of its keys, [m]."""

    # pooled by their largest, ``pooled`` positions in a cell
    pattern: Array
    weighted: Array
    value_norms: Array
    labels: Labels
    keys: Labels | None
    pooled: int
    norms: tuple[Normalize, Normalize]  # of the two panels, from numbers to colours
    bars: tuple[str, str]  # and what the colours are


def _overview(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    heads, n = result.select(choices.select), _longest(result)
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    own = style.scale == "per-head"
    pooled = grid_pooling(n, [head.id for head in heads], style)
    cells = [
        HeadCell(head.id, norms / ((own and head.largest) or 1.0), percent(head.projection_share))
        for head, _, (_, norms) in _pooled(result, heads, lambda _: pooled)
    ]
    about, norm = result.figure_context, _norm_colours(style, 1.0 if own else result.largest)
    count = f"{'all' if len(heads) == len(result.heads) else f'{len(heads)} of'} {len(result.heads)} heads"
    scale = "from 0 to the largest of each head" if own else f"{_ends(norm)}, the same for every head"
    shares = "each head’s share of the norm of its layer’s attention output"
    shown = "‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020)"
    yield HeadGridPlan(
        stem="outputs",
        **about.caption_and_notes(
            f"{about.subject}, norm-weighted attention of {count}, one row per layer, one column per head",
            f"{shown}: rows attend to columns",
            why_log,
            KINDS if result.target else "",
            about.pooled(pooled),
            alone=(f"colours {scale}", f"beside the names {shares}, where there is room"),
        ),
        title=f"{about.model}: norm-weighted attention of {count}",
        cells=tuple(cells),
        norm=norm,
        bar="share of the head’s largest ‖A f(x)‖" if own else f"norm-weighted ‖A f(x)‖ ({_SCALES[style.scale]})",
        beside=f"In %: {shares}.",
    )


def _longest(result: HeadOutputs) -> int:
    """Tokens of the text, or of the longest of the texts that an encoder-decoder reads."""
    return max(len(tokens) for part in result.parts for tokens in (part.queries, part.keys))


def _norm_colours(style: Style, largest: float) -> Normalize:
    """The colours of norms up to the largest; logarithmic ones begin at a power of ten."""
    end = largest or 1.0
    if style.scale != "log":
        return Normalize(0.0, end, clip=True)
    return LogNorm(10.0 ** math.floor(math.log10(FAINTEST * end)), end, clip=True)


def _ends(norm: Normalize) -> str:
    """Both ends of a colour scale in words."""
    logarithmic = isinstance(norm, LogNorm)
    return f"{'logarithmic ' * logarithmic}from {norm.vmin:g}{' or less' * logarithmic} to {norm.vmax:.2g}"


def _heads(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadPlan]:
    for head, norms, panels in _pooled(
        result, chosen(result, choices), lambda head: _pooling(result.part_of(head), choices.style)
    ):
        yield _head(result, head, norms, panels, choices.style)


def _pooling(part: HeadOutputs, style: Style) -> int:
    """Tokens per cell."""
    most = max(part.queries.labels, part.keys.labels, key=len)
    return pooled_for(len(most), _geometry(most, style)[0])


def _pooled(
    result: HeadOutputs, heads: Sequence[HeadContribution], factor: Callable[[HeadContribution], int]
) -> Iterator[tuple[HeadContribution, Array, tuple[Array, Array]]]:
    """Yield heads in the model's order with ||f(x)|| of their keys, and pooled pattern and norm-weighted attention.

    Of every ``factor`` × ``factor`` numbers the largest is kept, block by block.
    """
    for layer, of_layer in result.by_layer(heads):
        norms = [layer.value_norms(head.id.head) for head in of_layer]
        shape = len(result.attention.tokens_of(layer.layer)[0]), layer.value.shape[1]
        pooled = [[PooledPattern(*shape, factor(head)) for _ in range(2)] for head in of_layer]
        for first, block in layer.rows([head.id.head for head in of_layer]):
            for (raw, weighted), of_keys, rows in zip(pooled, norms, block, strict=True):
                raw.add(first, rows.cpu())
                weighted.add(first, (rows * of_keys[: rows.shape[1]]).cpu())
        for head, of_keys, (raw, weighted) in zip(of_layer, norms, pooled, strict=True):
            yield head, of_keys.float().cpu().numpy(), (raw.cells, weighted.cells)


def _head(
    result: HeadOutputs, head: HeadContribution, norms: Array, panels: tuple[Array, Array], style: Style
) -> HeadPlan:
    part, why_log = result.part_of(head), style.why_log(_longest(result))
    style = style.scaled_for(_longest(result), "per-head")
    about, pooled, (pattern, weighted) = part.figure_context, _pooling(part, style), panels
    labels, keys = (Labels(tokens.labels, tokens.sink) for tokens in (part.queries, part.keys))
    own, scale = style.scale == "per-head", _SCALES[style.scale]
    of_weights = style.norm(float(pattern.max()))
    of_norms = _norm_colours(style, head.largest if own else result.largest)
    return HeadPlan(
        stem=f"outputs/{head.id.file_stem}",
        **about.caption_and_notes(
            f"{about.subject}, head {head.id}: raw attention A[q, k] beside norm-weighted attention ‖A[q, k] f(x_k)‖, "
            "with ‖f(x_k)‖ of every key above it",
            _amounts(result, head),
            "rows attend to columns. f(x) = (x W_V + b_V) W_O is what the head writes for a token (Kobayashi et al. "
            f"2020){f'; grey: {result.sinks}' if result.sinks else ''}",
            why_log,
            about.pooled(pooled),
            alone=(
                f"colours {_ends(of_weights)} (weights) and {_ends(of_norms)} (norms), "
                f"{'the head’s largest' if own else 'the same for every head'}",
            ),
        ),
        title=f"{about.model} {head.id}: attention by weight and by norm",
        pattern=pattern,
        weighted=weighted,
        value_norms=np.maximum.reduceat(norms, np.arange(0, len(norms), pooled)),
        labels=labels,
        keys=keys if part.queries is not part.keys else None,
        pooled=pooled,
        norms=(of_weights, of_norms),
        bars=(
            f"attention weight A ({'0–1' if style.scale == 'shared' else scale})",
            f"norm-weighted ‖A f(x)‖ ({scale})",
        ),
    )


def _amounts(result: HeadOutputs, head: HeadContribution) -> str:
    """Sentence on the head's share of the output, and the share of sinks by weight and by norm."""
    if head.projection_share is None:
        return "No share of the output is given: the text has no content tokens."
    sinks = f"{percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm"
    return (
        f"{percent(head.projection_share)} of the attention output’s norm in layer {head.id.layer!s} "
        f"({percent(head.norm_share)} of its heads’ norms){f'; on {result.sinks}: {sinks}' if result.sinks else ''}."
    )


def _head_figure(plan: HeadPlan, style: Style, vector: bool = False) -> Figure:
    keys = plan.keys or plan.labels
    side, beside, stacked = _geometry(max(plan.labels.texts, keys.texts, key=len), style)
    rows, columns = plan.pattern.shape
    wide, tall = side * columns / max(rows, columns), side * rows / max(rows, columns)
    width = page_width(style, beside + wide + 2 * MARGIN + (0 if stacked else _BETWEEN + wide))
    panel = tall + _BAR + 0.3 * (wide < 2)  # if the names of colour bars take several lines
    body = _STRIP + 2 * _NAME + 0.8 * beside + (2 * panel + _NAME if stacked else panel)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=body)
        drawn: list[tuple[Axes, Array, AxesImage | QuadMesh]] = []
        panels = page.subplots(1 + stacked, 2 - stacked)
        all_sides, names = ("l", "lb") if stacked else ("lb", "b"), ("by weight: A[q, k]", "by norm: ‖A[q, k] f(x)‖")
        for ax, values, norm, sides, name, bar in zip(
            panels, (plan.pattern, plan.weighted), plan.norms, all_sides, names, plan.bars, strict=True
        ):
            cells = draw_matrix(
                ax, values, norm, style, labels=plan.labels, keys=plan.keys, sides=sides, pooled=plan.pooled,
                vector=vector, cell=side * 72 / max(values.shape),
            )  # fmt: skip
            ax.set_box_aspect(rows / columns)
            _name(ax, name, wide, style)
            colour_bar(page, ax, ColourScale(norm=norm, bar=bar), style, across=wide)
            drawn.append((ax, values, cells))
        strip = panels[1].inset_axes((0, 1 + _NAME / tall, 1, _STRIP / tall))
        _draw_value_norms(strip, plan, style)
        _name(strip, "‖f(x)‖ of each key", wide, style)
        for _ in range(1 + stacked):  # the bars above a panel are as high as the panel makes them
            settled(page)
        page.set_layout_engine("none")  # or it would all be laid out again when it is written
        for (ax, values, cells), write in zip(drawn, (hundredths, _norm), strict=True):
            write_numbers(ax, values, cells, write, air=4)
        return page


def _draw_head(ax: Axes, plan: HeadPlan, style: Style) -> AxesImage | QuadMesh:
    cells = draw_matrix(ax, plan.weighted, plan.norms[1], style, labels=plan.labels, keys=plan.keys, pooled=plan.pooled)
    settled(ax.figure)
    write_numbers(ax, plan.weighted, cells, _norm, air=4)
    return cells


def _draw_value_norms(ax: Axes, plan: HeadPlan, style: Style) -> None:
    """Draw ||f(x)|| of every key as bars over the columns of the matrix below; grey for cells of sinks."""
    edges = np.arange(len(plan.value_norms) + 1) - 0.5
    of_keys = (plan.keys or plan.labels).muted
    muted = np.minimum.reduceat(of_keys, np.arange(0, len(of_keys), plan.pooled))
    for which, colour in ((~muted, style.colour_map()(0.75)), (muted, style.greys.muted)):
        ax.stairs(plan.value_norms * which, edges, fill=True, facecolor=colour, edgecolor="none")
    top = 1.08 * float(plan.value_norms.max()) or 1.0
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0, top), xticks=[], facecolor=style.greys.paper)
    ax.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.tick_params(labelsize=6.5, length=2, width=PIXEL, pad=2, color=style.greys.frame, labelcolor=style.greys.ink)
    ax.spines[:].set(linewidth=PIXEL, edgecolor=style.greys.frame)
    ax.spines[["top", "right"]].set_visible(False)


def _name(ax: Axes, name: str, inches: float, style: Style) -> None:
    text = fitted(name, 7.5, DPI, inches * DPI)
    ax.set_title(text, loc="left", y=1.0, fontsize=7.5, pad=3, color=style.greys.ink, parse_math=False)


def _geometry(labels: Sequence[str], style: Style) -> tuple[float, float, bool]:
    """Inches of a square and of the labels beside it, and whether the squares are stacked."""
    size = label_size(72 * _LARGEST_CELL)
    beside = label_pixels(labels, size) / DPI + 0.1
    largest = max(_LEAST_SIDE, len(labels) * _LARGEST_CELL)
    if style.width is None:
        return min(_LARGEST_SIDE, largest), beside, False
    stacked = style.width < _SIDE_BY_SIDE
    room = style.width - beside - 2 * MARGIN
    return min(room if stacked else (room - _BETWEEN) / 2, largest), beside, stacked


def _norm(value: float) -> str:
    return "" if value < 0.005 else written(value)


def _letter(part: HeadOutputs) -> str:
    """Kind of attention of a map, of an encoder-decoder."""
    return "" if part.stack is None else f"{part.stack.letter} ({part.stack.name})"


def _plan_effects(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of each head's direct effect on the answer minus the foil."""
    about, split = result.figure_context, result.effects
    assert split is not None
    others = [(part.name, part.layer, part.direct_effect) for part in split.parts]
    biases = "b_O" if result.checkpoint.architecture.pre_norm else "b_O; LN: those of norms"
    rest = ", ".join(f"{name} {signed(value)}" for name, layer, value in others if layer is None)
    yield HeadMapPlan(
        stem="outputs-effects",
        **about.caption_and_notes(
            f"{about.subject}: what every head adds directly to the logit of {versus(split)}, and what biases "
            f"({biases}) and feed-forward networks (FFN) of each layer add",
            f"at position #{split.position} (“{result.read.labels[split.position]}”). {how_it_is_read(result, split)}",
            f"all parts sum to the difference of the logits, {signed(split.difference)}; the rest: {rest}",
        ),
        title=f"{about.model}: direct effect of each head on {versus(split)}",
        maps=tuple(
            _effects(part, split.heads, others, choices.style, f"logits for {quoted(split.answer.text)}")
            for part in result.parts
            if part.stack is None or part.stack.letter != "E"
        ),
    )


def _effects(
    part: HeadOutputs, effects: dict[HeadId, float], others: list[tuple[str, int | None, float]], style: Style, bar: str
) -> HeadMap:
    """Map of effects of one kind of attention or of all, beside those of its layers' other parts."""
    layers = [layer.layer for layer in part.layers]
    values = np.array([effects[head] for head in sorted(effects) if head.layer in layers])
    of_layers = [other for other in others if other[1] in layers]
    columns = ((short, [value for name, _, value in of_layers if name == kind]) for kind, short in _BESIDE.items())
    beside = tuple((short, np.array(column)) for short, column in columns if column)
    values = values.reshape(len(layers), -1)
    top = max(float(np.nan_to_num(np.abs(each)).max()) for each in (values, *(column for _, column in beside))) or 1.0
    norm, colours = Normalize(-top, top, clip=True), style.diverging_map()
    return HeadMap(values, norm=norm, bar=bar, colours=colours, name=_letter(part), beside=beside)


OVERVIEW = Drawing(_overview, head_grid_figure, draw_head_grid)
EFFECTS = Drawing(
    _plan_effects, head_map_figure, draw_head_map,
    missing=lambda result: str(result.no_effects).removesuffix("."),
)  # fmt: skip
HEADS = Drawing(_heads, _head_figure, _draw_head)
