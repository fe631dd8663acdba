"""The view ``page`` of ``attnviz explain``: the steps of the layer as panels, for every head and token."""

import math
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.commands.explain.followed_row import queries_and_keys
from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.report import check_line, verified_line
from attnviz.commands.explain.stages import Stage
from attnviz.commands.explain.steps import panel_words, step_of
from attnviz.figures.matrix import max_pool
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import counted, right_to_left, visible
from attnviz.page.page import colours_entry, packed_numbers
from attnviz.present.view import ViewOptions
from attnviz.reference.attention import upcast

_MOST_TOKENS = 48
"""Tokens on the page: a table with more rows is not read."""

_BYTES = 6
"""Of the page, for a number in float32 and its share of the rest."""

_LONG_SIDE, _SHORT_SIDE = 384, 128
"""Most columns and rows of the picture of a weight matrix, along the heads and across them."""

_PANELS = {"query": "projections", "key": "projections", "value": "projections"}
_PANELS |= {"split": "heads", "head_norm": "heads", "rotated": "heads"}
"""The panels of several steps."""

_OF_HEADS = ("scores", "capped", "pattern", "weighted")
_IN_PANELS = {*_PANELS, *_OF_HEADS, "mask"}
"""Steps that are not shown as one vector for each token."""


def page_data(result: Explanation, choices: ViewOptions) -> dict[str, Any]:
    """``LayerData`` as in ``attnviz/page/steps.js``; ``choices.budget`` bounds what is on the page."""
    about, model, stages = result.figure_context, result.checkpoint, result.stages
    vectors = [stage for name, stage in stages.items() if name not in _IN_PANELS]
    kept, width = _room(result, len(vectors), choices.budget)
    rows, whole = slice(kept.start, kept.stop), len(result.tokens)
    labels = [visible(result.tokens.labels[at]) for at in kept]
    parameters = result.parameters
    outputs = torch.matmul(stages["weighted"].wide[:, rows], _plain(parameters.output_weight))
    both, of_heads = queries_and_keys(stages, parameters)[:, :, rows], {}
    for name in _OF_HEADS:
        if name in stages:
            tensor = stages[name].wide[:, rows]
            of_heads[name] = tensor if name == "weighted" else tensor[..., rows]
    numbers = {
        **dict(zip(("query", "key"), both, strict=True)),
        "value": stages["split"].wide[2, :, rows],
        **of_heads,
        "mask": stages["mask"].wide[rows, rows],
        "outputs": outputs[..., :width],
        "output_lengths": torch.linalg.vector_norm(outputs, dim=-1),
    }
    if parameters.output_bias is not None:
        numbers["output_bias"] = _plain(parameters.output_bias)[:width]
    if parameters.sinks is not None:
        numbers["sinks"] = _plain(parameters.sinks)
    return {
        "command": "explain",
        "title": f"Layer {result.layer} of {about.model} on {about.text_line}",
        "caption": (
            f"Interactive page of layer {result.layer} of {about.model} on {about.quotes}, step by step, with all "
            f"{counted(model.n_heads, 'head')}; opens from disk, without network."
        ),
        "verification": verified_line(result).plain,
        "notes": list(_notes(result, kept, width)),
        "tables": [],
        "colours": colours_entry(),
        "heads": [str(HeadId(result.layer, head)) for head in range(model.n_heads)],
        "tokens": {
            "labels": labels,
            "muted": [bool(result.tokens.special[at]) for at in kept],
            "first": kept.start,
            "left_out": whole - len(kept),
            "rtl": right_to_left("".join(labels)),
        },
        "steps": list(_steps(result)),
        "numbers": {name: packed_numbers(tensor) for name, tensor in numbers.items()},
        "vectors": {stage.name: _vectors(stage, rows, width) for stage in vectors},
        "sums": _sums(result),
        "scale": float(parameters.scale),
        "bias": parameters.position_bias is not None,
        "weights": {
            **{name: _weights(getattr(parameters, name).weight) for name in ("query", "key", "value")},
            "output": _weights(parameters.output_weight, down=True),
        },
        "start": {"head": result.head.head, "token": result.token - kept.start},
    }


def _plain(parameter: Tensor) -> Tensor:
    """A parameter on the CPU, in float32 at least, without gradients."""
    return upcast(parameter.detach()).cpu()


def _room(result: Explanation, n_vectors: int, budget: int) -> tuple[range, int]:
    """The positions on the page, the followed one among them, and how many numbers of each vector."""
    model, n = result.checkpoint, min(_MOST_TOKENS, len(result.tokens))
    numbers = budget // _BYTES

    def of_heads(n: int) -> int:
        return model.n_heads * n * (4 * model.d_head + 3 * n)

    while n > 1 and of_heads(n) > numbers // 2:
        n -= 1
    width = (numbers - of_heads(n)) // (n * (model.n_heads + n_vectors))
    first = min(max(0, result.token + 1 - n), len(result.tokens) - n)
    return range(first, first + n), max(4, min(width, model.d_model))


def _steps(result: Explanation) -> Iterator[dict[str, Any]]:
    """The panels in order: one step each, but for the projections, and for what is made of them."""
    groups: dict[str, list[Stage]] = {}
    for stage in result.stages.values():
        groups.setdefault(_PANELS.get(stage.name, stage.name), []).append(stage)
    for name, stages in groups.items():
        steps = [step_of(result, stage.name) for stage in stages]
        title, told = steps[0].title, steps[0].sentence
        if name not in result.stages:
            title, told = panel_words(name)
        compared = [stage for stage in stages if stage.check is not None]
        worst = max(compared, key=lambda stage: stage.check.error if stage.check else 0.0, default=stages[-1])
        yield {
            "name": name,
            "title": title,
            "formulas": [step.formula for step in steps],
            "sentence": told,
            "label": steps[0].label or title,
            "check": check_line(worst, steps[-1].unseen)[0],
        }


def _vectors(stage: Stage, rows: slice, width: int) -> dict[str, Any]:
    """Entry of a step with one vector for each token."""
    tensor = stage.wide[rows]
    numbers, lengths = packed_numbers(tensor[:, :width]), packed_numbers(torch.linalg.vector_norm(tensor, dim=-1))
    return {"numbers": numbers, "lengths": lengths, "width": tensor.shape[1]}


def _sums(result: Explanation) -> dict[str, list[tuple[str, float]]]:
    """What the sums of the residual stream are of: steps, and what each is multiplied by."""
    stages, multiplier = result.stages, result.checkpoint.architecture.residual_multiplier(result.checkpoint.config)

    def added(name: str) -> tuple[str, float]:
        return (f"{name}_norm" if f"{name}_norm" in stages else name), multiplier

    attention, network = added("attention_output"), added("feed_forward_output")
    if result.parallel:
        return {"output": [("input", 1.0), attention, network]}
    entered = "attention_residual" if result.pre_norm else "attention_norm"
    second = "output" if result.pre_norm else "feed_forward_residual"
    return {"attention_residual": [("input", 1.0), attention], second: [(entered, 1.0), network]}


def _weights(weight: Tensor, down: bool = False) -> dict[str, Any]:
    """A matrix of all heads as places among the colours, heads side by side, or of W_O one below the other."""
    wide = _plain(weight)
    matrix = wide.flatten(0, 1) if down else wide.transpose(0, 1).flatten(1)
    limits = (_LONG_SIDE, _SHORT_SIDE) if down else (_SHORT_SIDE, _LONG_SIDE)
    factors = [math.ceil(size / limit) for size, limit in zip(matrix.shape, limits, strict=True)]
    pooled = max_pool(matrix.float().numpy(), *factors)
    largest = float(np.abs(pooled).max()) or 1.0
    places: NDArray[np.uint8] = np.rint(127.5 * (1 + np.sign(pooled) * np.sqrt(np.abs(pooled) / largest))).astype(
        np.uint8
    )
    return {
        "shape": list(pooled.shape),
        "data": b64encode(places.tobytes()).decode("ascii"),
        "of": list(matrix.shape),
        "largest": largest,
        "heads": len(wide),
        "down": down,
    }


def _notes(result: Explanation, kept: range, width: int) -> Iterator[str]:
    """What is left out of the page, and how it is drawn."""
    whole, model = len(result.tokens), result.checkpoint
    if len(kept) < whole:
        yield (
            f"{len(kept)} of {counted(whole, 'token')} are on this page, those up to the followed one; the others are "
            "summed in one line of each table."
        )
    if width < model.d_model:
        yield f"Of the {model.d_model} numbers of a vector the first {width} are on this page; lengths are of all."
    yield (
        "Numbers are those of explain.json and of the tensors in Python, in float32. Colours: blue below 0, orange "
        "above, by the root, to the largest number of a picture; patterns 0 to 1. The pictures of weights are pooled "
        "to the number furthest from 0."
    )
