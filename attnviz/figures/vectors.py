"""Heatmaps as SVG: what never changes is drawn once, and each head's cells, numbers and title are written as text.

Letters stay letters, cells of one colour are one path, and a picture of more than 64 rows holds its cells as an
image of one pixel a cell.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attnviz.figures.colours import colour_table, ink_on
from attnviz.figures.fonts import DEFAULT_FAMILY, font_families
from attnviz.figures.heatmap_drawing import (
    VECTOR_CELLS,
    HeatmapFigure,
    figure_style,
    heatmap_layout,
    number_place,
    number_text,
)
from attnviz.figures.heatmaps import HeatmapPlan
from attnviz.figures.palettes import png

__all__ = ["svg_files"]

_CELLS = "attnviz-cells"
_TEXT = "attnviz-text-{}-"


def svg_files(plans: Iterable[HeatmapPlan], draw: Callable[[Figure], bytes]) -> Iterator[bytes]:
    """The SVG files of many heatmaps of the same text, in order.

    Args:
        plans: as for :func:`attnviz.figures.rendering.heatmap_files`.
        draw: one figure to an SVG file.
    """
    templates: dict[tuple[str, ...], _Template] = {}
    for plan in plans:
        families = tuple(font_families((plan.title, plan.evidence)))
        if families not in templates:
            templates[families] = _Template(plan, families, draw)
        yield templates[families].filled(plan)


class _Template:
    """An SVG in pieces, between which the texts and the cells of one head belong."""

    def __init__(self, plan: HeatmapPlan, families: tuple[str, ...], draw: Callable[[Figure], bytes]) -> None:
        with figure_style():
            self.layout: HeatmapFigure = heatmap_layout(plan)
            self.layout.axes.patch.set_gid(_CELLS)
            marks = [_TEXT.format(place) for place in range(len(self.layout.slots))]
            before = len(self.layout.figure.texts)
            self.layout.write(marks, whole=True)
            for text in self.layout.figure.texts[before:]:
                text.set_fontfamily(families)
        content = draw(self.layout.figure).decode()
        begin, _, after = content.partition(f'<g id="{_CELLS}">')
        patch, end, rest = after.partition("</g>")
        places = sorted((place, mark) for mark in marks if (place := rest.find(f">{mark}<")) >= 0)
        self._order = [marks.index(mark) for _, mark in places]
        self._pieces = [f'{begin}<g id="{_CELLS}">{patch}{end}\n']
        for _, mark in places:
            piece, _, rest = rest.partition(mark)
            self._pieces.append(piece)
        self._pieces.append(rest)

    def filled(self, plan: HeatmapPlan) -> bytes:
        """The file of one plan."""
        words = self.layout.words(plan)
        first, *pieces = self._pieces
        texts = [escape(words[place]) for place in self._order]
        filled = [part for pair in zip(pieces, [*texts, ""], strict=True) for part in pair]
        return "".join([first, *_cells(self.layout, plan), *filled]).encode()


def _cells(layout: HeatmapFigure, plan: HeatmapPlan) -> Iterator[str]:
    """The cells in points, from the top left of the figure."""
    unit = 72 / plan.dpi
    left, top, side = layout.left * unit, layout.top * unit, plan.size * unit
    if len(plan.values) > VECTOR_CELLS:
        data = base64.b64encode(png(plan.levels, plan.dpi, plan.look.theme)).decode("ascii")
        yield (
            f'<image x="{left:.6g}" y="{top:.6g}" width="{side:.6g}" height="{side:.6g}" preserveAspectRatio="none" '
            'style="image-rendering:crisp-edges;image-rendering:pixelated" '
            f'xlink:href="data:image/png;base64,{data}"/>\n'
        )
        return
    edges = [f"{(layout.left + column * plan.cell) * unit:.6g}" for column in range(len(plan.values))]
    rows = [f"{(layout.top + row * plan.cell) * unit:.6g}" for row in range(len(plan.values))]
    cell = f"{plan.cell * unit:.6g}"
    levels = plan.levels
    for level in np.unique(levels[levels > 0]):
        colour = to_hex(colour_table(plan.look.theme)[level] / 255)
        path = "".join(f"M{edges[x]} {rows[y]}h{cell}v{cell}h-{cell}z" for y, x in np.argwhere(levels == level))
        yield f'<path d="{path}" fill="{colour}" stroke="{colour}" stroke-width="0.2"/>\n'
    yield from _numbers(layout, plan, unit)


def _numbers(layout: HeatmapFigure, plan: HeatmapPlan, unit: float) -> Iterator[str]:
    if plan.number_size is None:
        return
    across, down = number_place(plan.cell, plan.number_size, plan.dpi)
    style = f"font: {plan.number_size:.6g}px '{DEFAULT_FAMILY}'; text-anchor: middle"
    levels, hundredths = plan.levels, plan.hundredths
    inks = {ink_on(int(level), plan.look.theme) for level in np.unique(levels)}
    for ink in sorted(inks):
        yield f'<g style="{style}" fill="{ink}">\n'
        for row, column in np.argwhere(hundredths > 0):
            if ink_on(int(levels[row, column]), plan.look.theme) == ink:
                x = (layout.left + column * plan.cell + across) * unit
                y = (layout.top + row * plan.cell + down) * unit
                yield f'<text x="{x:.5g}" y="{y:.5g}">{number_text(int(hundredths[row, column]))}</text>\n'
        yield "</g>\n"
