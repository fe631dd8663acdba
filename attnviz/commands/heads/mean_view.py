"""The view ``mean``: the mean pattern over the heads of each layer and over all heads; always named as a mean.

A mean hides what its heads do: twelve heads that each look elsewhere have the mean of one that looks everywhere. So
every picture says that no head need look like it.
"""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from attnviz.commands.heads.drawn import drawn
from attnviz.commands.heads.measure import Analysis
from attnviz.figures.look import FAINTEST, Look
from attnviz.figures.matrix import Array, Labels, max_pool, named_every, pooled_for, write_numbers
from attnviz.figures.page import settled
from attnviz.figures.tiles import Tile, TilesPlan, draw_tile, tile_inches, tiles_figure
from attnviz.model.wording import counted
from attnviz.results.facts import sentence
from attnviz.results.view import Choices, View

__all__ = ["MEAN"]

_TILE, _ALONE = 1.6, 6.4
_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COVERED = 0.995
"""Share of the cells that the shared scale has to cover."""


def _plans(analysis: Analysis, choices: Choices) -> Iterator[TilesPlan]:
    """Every layer's mean with that of all heads, ``mean``; then the latter alone, large, ``mean-all``."""
    shown = drawn(analysis, choices)
    patterns = [shown.layer_patterns(layer).double().mean(0).numpy() for layer in range(analysis.checkpoint.n_layers)]
    means = [*patterns, np.mean(patterns, axis=0)]
    labels = Labels(shown.units.labels, shown.units.sink)
    pooled = pooled_for(len(shown.units), tile_inches(labels.texts, [len(means)], _TILE, choices.look)[1])
    cells = np.concatenate([max_pool(mean, pooled).ravel() for mean in means])
    top = next((top for top in _TOPS if top >= np.quantile(cells, _COVERED)), 1.0)
    yield _plan(shown, means, labels, top, choices.look)
    yield _plan(shown, means[-1:], labels, top, choices.look)


def _plan(shown: Analysis, means: list[Array], labels: Labels, top: float, look: Look) -> TilesPlan:
    facts, n_layers, alone = shown.facts, shown.checkpoint.n_layers, len(means) == 1
    target = _ALONE if alone else _TILE
    _, inches, _ = tile_inches(labels.texts, [len(means)], target, look)
    pooled = pooled_for(len(shown.units), inches)
    largest = max(float(mean.max()) for mean in means)
    own, cut = look.scale == "per-head" and not alone, look.scale == "shared" and largest > top
    of_layer = counted(shown.checkpoint.n_heads, "head")
    of_all = counted(len(shown.heads), "head")
    everything = of_all if len(shown.heads) == 1 else f"all {of_all}"
    title = f"mean of {everything}" if alone else f"mean pattern of each layer’s {of_layer}"
    whose = everything if alone else f"the {of_layer} of each layer, and of all layers"
    pictures = "" if alone else " of each picture"
    scales = {
        "shared": ("shared scale", f"colours from 0 to {top:g}{' (larger weights look the same)' if cut else ''}"),
        "per-head": ("scale of this picture", f"colours from 0 to the largest weight{pictures}"),
        "log": ("log scale", f"logarithmic colours from {FAINTEST:g} to 1"),
    }
    bar, colours = scales[look.scale]
    names = [*(f"layer {layer}" for layer in range(n_layers)), "all layers"][-len(means) :]
    tiles = tuple(_tile(name, max_pool(mean, pooled), own) for name, mean in zip(names, means, strict=True))
    return TilesPlan(
        stem="mean-all" if alone else "mean",
        caption=sentence(
            f"{facts.model} on {facts.text_line}: mean attention pattern of {whose} (a mean: no head need look like "
            "it)",
            f"{facts.dropped} in every head before the mean" if facts.dropped else "",
            colours,
            facts.pooled(pooled),
        ),
        title=f"{facts.model}: {title}",
        notes=facts.notes(
            "A mean: no head need look like it. Rows attend to columns.",
            f"{facts.named(named_every(inches * 72 / facts.n * pooled, pooled))} {facts.pooled(pooled)}".strip(),
            "Each picture has its own scale, from 0 to the weight beside its name." if own else "",
        ),
        groups=(("", tiles),),
        labels=labels,
        norm=Normalize(0, 1 if own else top, clip=True) if own or look.scale == "shared" else look.norm(largest),
        bar="share of each picture’s largest weight (own scales)" if own else f"mean attention weight ({bar})",
        pooled=pooled,
        cut=cut,
        target=target,
    )  # fmt: skip


def _tile(name: str, mean: Array, own: bool) -> Tile:
    """One mean, with a scale of its own where that is asked for."""
    if not own:
        return Tile(name, mean)
    largest = float(mean.max())
    short = f"{name.replace('layer ', 'L').removesuffix(' layers')}"
    names = f"{name} · 0–{largest:.2f}", f"{short} · 0–{largest:.2f}", f"{short}·0–{largest:.2f}".replace("0.", ".")
    return Tile(names[0], mean, names[1:], Normalize(0, largest or 1, clip=True))


def _draw(ax: Axes, plan: TilesPlan, look: Look) -> AxesImage | QuadMesh:
    """The last tile, the mean over all heads, with its weights where cells have room."""
    tile = plan.groups[0][1][-1]
    cells = draw_tile(ax, plan, tile, look)
    settled(ax.figure)
    write_numbers(ax, tile.values, cells, plan.write)
    return cells


MEAN = View("mean", "mean pattern of each layer's heads and of all", _plans, tiles_figure, _draw,
            stems="mean(-all)?", default=False)  # fmt: skip
"""The mean pattern of each layer's heads, and of all."""
