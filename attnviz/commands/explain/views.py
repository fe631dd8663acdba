"""The figures of ``attnviz explain``: the layer from input to output, and content and position in its scores."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.page_view import page_data
from attnviz.commands.explain.path_drawing import OPERATIONS, SQUARE, STACKS, Panel, PathPlan, path_figure
from attnviz.commands.explain.steps import norm_kind, step_of
from attnviz.figures.matrix import Array, Labels, max_pool
from attnviz.models.wording import error, quoted, visible
from attnviz.present.view import Drawing, ViewOptions, page_drawing

_MOST_ROWS, _MOST_COLUMNS = 100, 128
"""Most rows and columns of a panel; beyond, tokens are pooled (their order matters), and dimensions thinned."""

_SATURATED = 0.99
_WIDE, _MODEL, _HEAD, _MASK, _THIRD, _HALF = 1.3, 1.05, 0.72, 0.6, 0.38, 0.5
"""Widths of panels, the size of the mask, heights of each of three or two panels; the side of the pattern's is 1."""

_PARTS = {"query": ("split", 0), "key": ("split", 1), "value": ("split", 2)}
_PARTS |= {"normed query": ("head_norm", 0), "normed key": ("head_norm", 1)}
_PARTS |= {"turned query": ("rotated", 0), "turned key": ("rotated", 1)}
"""Panels that show a part of a step's tensor, of one head: the step, and which part."""


def _plan_path(result: Explanation, _: ViewOptions) -> Iterator[PathPlan]:
    bands, about = _bands(result), result.figure_context
    names = [name for band in bands.values() for group in band for name in group if name not in OPERATIONS]
    drawn = [panel for name in names for panel in (_stack(result, name) if name in STACKS else [_panel(result, name)])]
    order = result.norm_order
    token = f"{quoted(result.tokens.labels[result.token])} (#{result.token})"
    yield PathPlan(
        stem="explain",
        **about.caption_and_notes(
            f"Layer {result.layer} of {about.model} ({order}) on {about.quotes}, from input to output with its "
            "residual path, one panel of actual numbers per step",
            first=f"{about.text_line}; {order}.",
            alone=(
                f"Q to A V: head {result.head}. Outlined: it among all heads, and the row of {token}",
                "±: the strongest colour, which 99% of a panel's numbers do not reach; in brackets the largest",
                "recomputed step by step: the output is the model's within "
                f"{error(result.output.error)} of the largest",
                "rows: tokens; columns: dimensions (scores, mask and pattern: keys)",
                *_left_out(drawn),
            ),
        ),
        title=f"{about.model}: layer {result.layer} from input to output",
        panels={panel.name: panel for panel in drawn},
        bands=bands,
        labels=Labels(
            tuple(visible(label) for label in result.tokens.labels),
            result.tokens.special,
            tuple(position == result.token for position in range(len(result.tokens))),
        ),
        followed=result.token,
    )


def _bands(result: Explanation) -> dict[str, list[list[str]]]:
    stages, norm = result.stages, norm_kind(result)
    optional = {"head_norm": "normed heads, ", "rotated": "turned heads, ", "capped": "capped, "}
    norms, turns, cap = (words * (name in stages) for name, words in optional.items())
    heads, scores = f"split, {norms}{turns}".removesuffix(", "), f"scores, {cap}mask, pattern, weighted"
    attention = [*([heads, scores] if norms or turns else [f"{heads}, {scores}"]), "concatenated"]
    feed = ["gates, activated gate, gated"] if "gated" in stages else ["expanded", "activated"]
    if "router" in stages:
        feed = ["router", "experts"]
    if result.pre_norm:
        before = {name: f", {norm}, {name}" * (name in stages) for name in ("attention_norm", "feed_forward_norm")}
        written, stream = _added(result, "attention_output"), "attention_residual"
        if result.parallel:  # the second half begins with the layer's input again, and its sum is that of both
            written, stream = written.removesuffix(", +"), "input"
            before["feed_forward_norm"] = before["feed_forward_norm"] or before["attention_norm"]
        attention = [f"input{before['attention_norm']}", *attention, written]
        feed = [f"{stream}{before['feed_forward_norm']}", *feed, _added(result, "feed_forward_output")]
        feed += ["output"] + [f"{norm}, final_norm"] * ("final_norm" in stages)
    else:
        attention = ["input", *attention, "attention_output, +, layer norm"]
        feed = ["attention_norm", *feed, "feed_forward_output, +, layer norm", "output"]
    halves = {"Attention": attention, "Feed-forward": feed}
    return {half: [group.split(", ") for group in groups] for half, groups in halves.items()}


def _added(result: Explanation, name: str) -> str:
    """Panels of an output, its own norm if it has one, and the sum."""
    return f"{name}, {norm_kind(result)}, {name}_norm, +" if f"{name}_norm" in result.stages else f"{name}, +"


def _stack(result: Explanation, name: str) -> list[Panel]:
    """Stacked panels; queries and keys of a head, which are compared, share a scale."""
    panels = [replace(_panel(result, part), words=(), beside=True) for part in STACKS[name][0]]
    if name in ("gates", "activated gate"):
        return list(_gates(result, [replace(panel, height=_HALF) for panel in panels]))
    limit, step = max(panel.limit for panel in panels[:2]), _PARTS[panels[0].name][0]
    above, words = step_of(result, step).brief, (f"±{_brief(limit)}",)
    query, key = (replace(panel, width=_HEAD, height=_THIRD, limit=limit, brief="") for panel in panels[:2])
    if name != "split":
        return [replace(query, brief=above), replace(key, words=words)]
    shape, words = str(list(result.stages["split"].shape[1:])), (f"Q, K ±{_brief(limit)}",)
    value = replace(panels[2], width=_HEAD, height=_THIRD, words=(shape, *words, f"V ±{_brief(panels[2].limit)}"))
    return [replace(query, brief=str(result.head)), key, value]


def _gates(result: Explanation, panels: Sequence[Panel]) -> Iterator[Panel]:
    """Panels of the gate and what it multiplies; the activated gate has its scale above, since a line passes below."""
    if len(panels) == 1:
        yield replace(panels[0], label="", brief=f"{panels[0].label} ±{_brief(panels[0].limit)}")
        return
    gate, up = panels
    shape = str(list(result.stages["gate"].shape))
    yield replace(gate, label="g")
    yield replace(up, label="u", brief="", words=(shape, f"g ±{_brief(gate.limit)}", f"u ±{_brief(up.limit)}"))


def _panel(result: Explanation, name: str) -> Panel:
    stage, part = _PARTS.get(name, (name, None))
    tensor = result.tensor(stage) if part is None else result.tensor(stage)[part]
    head, model, step = result.head.head, result.checkpoint, step_of(result, name.rsplit(" ", maxsplit=1)[-1])
    values: Array = (tensor[head] if tensor.ndim == 3 else tensor).float().numpy()  # [n, columns]
    square, rows = name in SQUARE, math.ceil(len(values) / _MOST_ROWS)
    columns = rows if square else math.ceil(values.shape[1] / _MOST_COLUMNS)
    drawn = max_pool(values, rows) if square else max_pool(values[:, ::columns], rows, 1)
    largest = float(np.abs(values).max())
    limit, scale = largest or 1.0, f"0 to {_brief(largest)}"
    if name == "mask":
        scale = step.brief or ("all allowed" if values.all() else "key ≤ query")
    elif name != "pattern":  # of all numbers, drawn or not; if nearly all are 0 the largest
        limit = float(np.quantile(np.abs(values), _SATURATED)) or limit
        scale = f"±{_brief(limit)} ({_brief(largest)})"
    width = {model.d_head: _HEAD, model.d_model: _MODEL}.get(values.shape[1], _WIDE)
    side, share = _MASK if name == "mask" else 1.0, drawn.shape[1] / model.n_heads
    return Panel(
        name=name,
        label=step.label,
        brief="" if name == "mask" else step.brief,
        words=(str(list(result.stages[stage].shape)), scale),
        values=drawn,
        limit=limit,
        width=side if square else width,
        height=side,
        marked=(head * share, (head + 1) * share) if name == "concatenated" else None,
        pooling=(rows, columns),
    )


def _left_out(panels: Sequence[Panel]) -> Iterator[str]:
    """Notes on thinning and pooling."""
    thinned = sorted({panel.pooling[1] for panel in panels if panel.name not in SQUARE} - {1})
    if thinned:
        most = " to ".join(str(each) for each in thinned[:: max(1, len(thinned) - 1)])
        yield f"where there are too many dimensions, one in {most} is drawn."
    if (rows := panels[0].pooling[0]) > 1:
        yield f"{rows} tokens share a row (keys a column): the number furthest from 0 is drawn."


def _brief(value: float) -> str:
    """A number in two digits, without a power of ten if possible."""
    return f"{value:.2g}" if not 99.5 <= value < 99_999 else f"{value:.0f}"


PATH = Drawing(_plan_path, path_figure)
PAGE = page_drawing("explain", page_data)
