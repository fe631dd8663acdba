"""The figures of ``attnviz explain``: the layer from input to output, as a picture and as a page."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.page_view import page_data
from attnviz.commands.explain.path_drawing import SQUARE, Block, PathPlan, path_figure
from attnviz.commands.explain.steps import Step, norm_kind, steps_of
from attnviz.figures.matrix import Array, Labels, max_pool
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.wording import error, quoted, visible

_MOST_ROWS, _MOST_COLUMNS = 100, 128
"""Most rows and columns of a panel; beyond, tokens are pooled (their order matters), and dimensions thinned."""

_SATURATED = 0.99
_WIDE, _MODEL, _HEAD, _MASK, _STACKED = 1.3, 1.05, 0.72, 0.6, 0.38
"""Widths of panels, the size of the mask, height of one of several panels; the side of the pattern's is 1."""

_STACKS = {"split": ("query", "key", "value"), "gate": ("gate", "expanded")}
_STACKS |= dict.fromkeys(("head_norm", "rotated"), ("query", "key"))
"""Steps that several panels show, from the top."""

_ATTENTION = (
    *("split", "head_norm", "rotated", *SQUARE),
    *("weighted", "concatenated", "attention_output", "attention_output_norm"),
)
_NETWORK = "gate expanded activated gated router experts feed_forward_output feed_forward_output_norm".split()


def _plan_path(result: Explanation, _: ViewOptions) -> Iterator[PathPlan]:
    about, order, steps = result.figure_context, result.norm_order, steps_of(result)
    halves = {
        half: [_block(result, steps, name) if name in steps else Block(name) for name in names]
        for half, names in _halves(result).items()
    }
    token = f"{quoted(result.tokens.labels[result.token])} (#{result.token})"
    yield PathPlan(
        stem="explain",
        **about.caption_and_notes(
            f"Layer {result.layer} of {about.model} ({order}) on {about.quotes}, from input to output with its "
            "residual path, one panel of actual numbers per step",
            first_note=f"{about.drawn_line}; {order}; head {result.head}; outlined: {token}.",
            caption_only=(
                f"Q to A V: head {result.head}. Outlined: it among all heads, and the row of {token}",
                "below each panel: the shape of the tensor of all heads, and the numbers that have the two strongest "
                "colours; 99% lie between them",
                "recomputed step by step: the output is the model's within "
                f"{error(result.output.error)} of the largest",
                "rows: tokens; columns: dimensions (of square panels: keys)",
                *_left_out([block for half in halves.values() for block in half if block.panels]),
            ),
        ),
        title=f"{about.model}: layer {result.layer} from input to output",
        halves=halves,
        labels=Labels(
            tuple(visible(label) for label in result.tokens.labels),
            result.tokens.special,
            tuple(position == result.token for position in range(len(result.tokens))),
        ),
        followed=result.token,
    )


def _halves(result: Explanation) -> dict[str, list[str]]:
    """Steps and operations of both halves, in order; of halves in parallel the second has the sum of both."""
    stages, norm, sum_of = result.stages, norm_kind(result), ["+"]
    attention, network = ([name for name in names if name in stages] for names in (_ATTENTION, _NETWORK))
    if "gate" in stages:
        network.remove("expanded")
    if "router" in stages:
        network = [name for name in network if name not in ("gate", "expanded", "activated", "gated")]
    for names in (attention, network):
        if names[-1].endswith("_norm"):
            names.insert(-1, norm)
    if not result.pre_norm:
        return {
            "Attention": ["input", *attention, "+", norm],
            "Feed-forward": ["attention_norm", *network, "+", norm, "output"],
        }
    before = {name: [norm, name] if name in stages else [] for name in ("attention_norm", "feed_forward_norm")}
    second, entered = "attention_residual", before["feed_forward_norm"]
    if result.parallel:
        second, entered, sum_of = "input", entered or before["attention_norm"], ["+ attention", "+"]
    final = [norm, "final_norm"] if "final_norm" in stages else []
    return {
        "Attention": ["input", *before["attention_norm"], *attention, *([] if result.parallel else ["+"])],
        "Feed-forward": [second, *entered, *network, *sum_of, "output", *final],
    }


def _block(result: Explanation, steps: Mapping[str, Step], name: str) -> Block:
    """The panel of a step, or its panels."""
    tensor, step, head = result.tensor(name), steps[name], result.head.head
    stack = _STACKS.get(name, (name,))
    parts = [result.tensor(part) for part in stack] if tensor.ndim == 2 else [tensor]
    if tensor.ndim > 2:
        parts = [part[head] for part in (tensor if tensor.ndim == 4 else tensor[None])]
    numbers: list[Array] = [part.float().numpy() for part in parts]  # [n, columns]
    (n, n_columns), square = numbers[0].shape, name in SQUARE
    rows = math.ceil(n / _MOST_ROWS)
    columns = rows if square else math.ceil(n_columns / _MOST_COLUMNS)
    drawn = [max_pool(each, rows) if square else max_pool(each[:, ::columns], rows, 1) for each in numbers]
    sizes = np.abs(np.concatenate(numbers))
    limit = float(sizes.max()) or 1.0
    if name == "mask":
        scale = step.brief or ("all allowed" if numbers[0].all() else "key ≤ query")
    elif name == "pattern":
        scale = f"0 to {_brief(limit)}"
    else:  # of all numbers, drawn or not; if nearly all are 0 the largest
        limit = float(np.quantile(sizes, _SATURATED)) or limit
        scale = f"−{_brief(limit)} to {_brief(limit)}"
    model = result.checkpoint
    width = {model.d_head: _HEAD, model.d_model: _MODEL}.get(n_columns, _WIDE)
    side, share = _MASK if name == "mask" else 1.0, drawn[0].shape[1] / model.n_heads
    return Block(
        name=name,
        label=", ".join(steps[part].label for part in stack),
        brief="" if name == "mask" else step.brief,
        words=(str(list(result.stages[name].shape[-3:])), scale),
        panels=tuple(drawn),
        limit=limit,
        width=side if square else width,
        height=side if len(drawn) == 1 else _STACKED,
        marked=(head * share, (head + 1) * share) if name == "concatenated" else None,
        pooling=(rows, columns),
    )


def _left_out(blocks: Sequence[Block]) -> Iterator[str]:
    """Notes on thinning and pooling."""
    thinned = sorted({block.pooling[1] for block in blocks if block.name not in SQUARE} - {1})
    if thinned:
        most = " to ".join(str(each) for each in thinned[:: max(1, len(thinned) - 1)])
        yield f"where there are too many dimensions, one in {most} is drawn."
    if (rows := blocks[0].pooling[0]) > 1:
        yield f"{rows} tokens share a row (keys a column): the number furthest from 0 is drawn."


def _brief(value: float) -> str:
    """A number in two digits, without a power of ten if possible."""
    return f"{value:.2g}" if not 99.5 <= value < 99_999 else f"{value:.0f}"


PATH = Drawing(_plan_path, path_figure)
PAGE = page_drawing("explain", page_data)
