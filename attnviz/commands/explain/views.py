"""The figures of an explanation: the followed row as a table for a slide, and the page with the steps as panels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from attnviz.commands.explain.measure import Explanation, queries_and_keys
from attnviz.commands.explain.report import FEW_KEYS, check_line, row_table, steps_of, verified_line
from attnviz.errors import UsageError
from attnviz.figures.fonts import fitted_token, font_families, text_width
from attnviz.figures.matrix import LONGEST
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.models.head_ids import HeadId
from attnviz.page.page import packed_numbers
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.reference.attention import BY_POSITION, upcast
from attnviz.wording import counted, right_to_left, visible

_SIZE, _SMALL = 7.5, 6.0  # points of the text, and in a column of a paper


@dataclass(frozen=True)
class RowPlan(PagePlan):
    """The table as texts."""

    columns: tuple[tuple[str, ...], ...]  # the first cell is the header, the last below a rule
    needed: int  # columns without which the softmax cannot be redone


def _plan_row(result: Explanation, _: ViewOptions) -> Iterator[RowPlan]:
    table, about = row_table(result, FEW_KEYS), result.figure_context
    columns = [
        (field.title, *(cell.plain for cell in table.cells(field, number)))
        for number, field in enumerate(table.columns)
    ]
    keys = tuple(fitted_token(cell, _SIZE, LONGEST) for cell in columns[0])
    yield RowPlan(
        stem="explain-row",
        **about.caption_and_notes(f"{table.title}, on {about.quotes}", table.caption),
        title=table.title,
        columns=(keys, *columns[1:]),
        needed=sum(not field.detail for field in table.columns),
    )


def row_figure(plan: RowPlan, style: Style, _vector: bool = False) -> Figure:
    """A new figure of the table, with as many products of values as fit; UsageError if the width is too small."""
    size = _SIZE if style.room is None else _SMALL
    widths = [max(text_width(cell, size, "bold") for cell in cells) / DPI + size / 75 for cells in plan.columns]
    while style.room is not None and len(widths) > plan.needed and sum(widths) + 2 * MARGIN > style.room:
        widths.pop()
    natural, n_lines = sum(widths) + 2 * MARGIN, len(plan.columns[0])
    width = page_width(style, natural)
    if natural > width:
        raise UsageError(
            f"the row of a head does not fit in {width:g} inches; expected a --width of at least "
            f"{natural + 0.05:.1f}in, or --figures none."
        )
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=size / 44 * n_lines + MARGIN)
        ax = page.add_subplot(xlim=(0, width - MARGIN), ylim=(n_lines, 0))
        ax.axis("off")
        for right, cells in zip(np.cumsum(widths), plan.columns, strict=False):
            for line, cell in enumerate(cells):
                text = ax.text(right, line + 0.5, cell, ha="right", va="center", size=size, parse_math=False)
                text.set(color=style.ink, weight="normal" if line else "bold", family=font_families([cell]))
        ax.hlines([1, n_lines - 1], 0, sum(widths), color=style.frame, linewidth=PIXEL)
        return page


ROW = Drawing(_plan_row, row_figure)


_MOST_TOKENS, _MOST_NUMBERS = 48, 512  # tokens on the page, and numbers of a vector in the residual stream

# Steps that have all heads side by side, and are thinned where they are wide, so that all are seen.
_ALL_HEADS = {"query", "key", "value", "concatenated"}


def page_data(result: Explanation, _: ViewOptions) -> dict[str, Any]:
    """``LayerData`` as in ``attnviz/page/steps.js``."""
    about, model, stages = result.figure_context, result.checkpoint, result.stages
    n = len(result.tokens)
    n_kept = min(_MOST_TOKENS, n)  # the followed token among them
    first = min(max(0, result.token + 1 - n_kept), n - n_kept)
    rows = slice(first, first + n_kept)
    labels = [visible(label) for label in result.tokens.labels[rows]]
    vectors = {}
    for name, stage in stages.items():
        if stage.tensor.ndim == 2 and name != "mask":
            tensor = stage.wide[rows]
            thinned = math.ceil(tensor.shape[1] / _MOST_NUMBERS) if name in _ALL_HEADS else 1
            vectors[name] = {
                "numbers": packed_numbers(tensor[:, ::thinned][:, :_MOST_NUMBERS]),
                "lengths": packed_numbers(torch.linalg.vector_norm(tensor, dim=-1)),
                "width": tensor.shape[1],
            }
    return {
        "command": "explain",
        "title": f"Layer {result.layer} of {about.model} on {about.text_line}",
        "caption": (
            f"Interactive page of layer {result.layer} of {about.model} on {about.quotes}, step by step, with all "
            f"{counted(model.n_heads, 'head')}; opens from disk, without network."
        ),
        "verification": verified_line(result).plain,
        "notes": list(_notes(result, n_kept)),
        "tables": [],
        "heads": [str(HeadId(result.layer, head)) for head in range(model.n_heads)],
        "tokens": {
            "labels": labels,
            "muted": [bool(special) for special in result.tokens.special[rows]],
            "first": first,
            "left_out": n - n_kept,
            "rtl": right_to_left("".join(labels)),
        },
        "steps": [
            {
                "formula": step.formula,
                "sentence": step.sentence,
                "name": name,
                "title": f"{step.number}  {step.title}",
                "label": step.label or step.title,
                "check": check_line(stages[name], step.unseen)[0],
            }
            for name, step in steps_of(result).items()
        ],
        "numbers": {name: packed_numbers(tensor) for name, tensor in _numbers(result, rows)},
        "vectors": vectors,
        "sums": _sums(result),
        "scale": float(result.parameters.scale),
        "added": [name for name in BY_POSITION if name in stages],
        "start": {"head": result.head.head, "token": result.token - first},
    }


def _numbers(result: Explanation, rows: slice) -> Iterator[tuple[str, Tensor]]:
    """The tensors of every head, and what its result times its rows of W_O gives."""
    stages, parameters = result.stages, result.parameters
    yield from zip(("query", "key"), queries_and_keys(stages)[:, :, rows], strict=True)
    yield "value", stages["split"].wide[2, :, rows, : parameters.output_weight.shape[1]]
    yield "mask", stages["mask"].wide[rows, rows]
    for name, stage in stages.items():
        if stage.tensor.ndim > 2 and name != "weighted":
            yield name, stage.wide[..., rows, :] if stage.tensor.ndim == 4 else stage.wide[:, rows, rows]
    weighted = stages["weighted"].wide[:, rows]
    outputs = torch.matmul(weighted, _plain(parameters.output_weight))
    yield "weighted", weighted
    yield "outputs", outputs[..., :_MOST_NUMBERS]
    yield "output_lengths", torch.linalg.vector_norm(outputs, dim=-1)
    if parameters.output_bias is not None:
        yield "output_bias", _plain(parameters.output_bias)[:_MOST_NUMBERS]
    if parameters.sinks is not None:
        yield "sinks", _plain(parameters.sinks)


def _plain(parameter: Tensor) -> Tensor:
    return upcast(parameter.detach()).cpu()


def _sums(result: Explanation) -> dict[str, list[tuple[str, float]]]:
    """What the sums of the residual stream are of: steps, and what each is multiplied by."""
    layer = result.stages.parameters
    attention, network = (
        (f"{name}_norm" if f"{name}_norm" in result.stages else name, layer.residual_multiplier)
        for name in ("attention_output", "feed_forward_output")
    )
    if layer.parallel:
        return {"output": [("input", 1.0), attention, network]}
    entered = "attention_residual" if layer.pre_norm else "attention_norm"
    second = "output" if layer.pre_norm else "feed_forward_residual"
    return {"attention_residual": [("input", 1.0), attention], second: [(entered, 1.0), network]}


def _notes(result: Explanation, n_kept: int) -> Iterator[str]:
    n, width = len(result.tokens), max(result.checkpoint.d_model, result.d_ff)
    if n_kept < n:
        yield (
            f"{n_kept} of {counted(n, 'token')} are on this page, those up to the followed one; the others are summed "
            "in one line of each table."
        )
    if width > _MOST_NUMBERS:
        yield (
            f"Of vectors of up to {width} numbers the first {_MOST_NUMBERS} are on this page; where heads stand side "
            "by side, as many of all heads. Lengths are of all."
        )
    yield "Numbers are those of explain.json and of the tensors in Python, in float32."


PAGE = page_drawing("explain", page_data)
