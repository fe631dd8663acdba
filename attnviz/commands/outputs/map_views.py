"""The maps of head outputs: shares of a layer's output, direct effects on a logit or a classifier's decision."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.outputs.decision import Decision
from attnviz.commands.outputs.measure import HeadOutputs, Numbers
from attnviz.commands.outputs.promoted_tokens import Attribution
from attnviz.commands.outputs.report import DIRECT, SHARES, how_it_is_read, versus
from attnviz.figures.head_map import HeadMap, HeadMapPlan
from attnviz.figures.page import ReferenceValue
from attnviz.figures.style import Style
from attnviz.models.wording import quoted, rounded, signed
from attnviz.present.view import ViewOptions

_Columns = tuple[tuple[str, Numbers], ...]
_whole = partial(rounded, digits=0)
_BESIDE = {"attention bias": "b_O", "feed-forward": "FFN", "norm bias": "LN"}


def plan_shares(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan two maps: each head's share of its layer's output, by projection and by norm."""
    about = result.figure_context
    over = f"over all queries{f' but {result.sinks}' if result.sinks else ''}"
    yield HeadMapPlan(
        stem="outputs-shares",
        **about.told(
            f"{about.subject}: share of every head in its layer’s attention output in per cent, one row per layer, one "
            "column per head, above of ‖o‖, below of Σ‖o_h‖",
            f"{over}. Every row sums to 100\N{NO-BREAK SPACE}% in either map",
            alone=(SHARES,),
        ),
        title=f"{about.model}: share of each head in its layer’s attention output",
        maps=tuple(draw(part, choices.style) for draw in (_along, _length) for part in result.parts),
    )


def _along(part: HeadOutputs, style: Style) -> HeadMap:
    """Map of shares by projection, of one kind of attention or of all."""
    biases = 100 * np.array([layer.bias_projection_share for layer in part.layers], np.float64)
    return _map(
        100 * part.table("projection_share"), style, "% of ‖o‖; below 0: against the others",
        name=f"{_letter(part)}Length along the output o, the sum of all heads and b_O", beside=(("b_O", biases),),
        diverging=True, write=_whole,
    )  # fmt: skip


def _length(part: HeadOutputs, style: Style) -> HeadMap:
    """Map of shares by norm, of one kind of attention or of all."""
    values = part.table("norm_share")
    return _map(
        100 * values, style, "% of the sum of ‖o_h‖", name=f"{_letter(part)}Length, in any direction",
        reference=ReferenceValue(100 / values.shape[1], "equal shares"), write=_whole,
    )  # fmt: skip


def _letter(part: HeadOutputs) -> str:
    """Kind of attention of a map, of an encoder-decoder."""
    return "" if part.stack is None else f"{part.stack.letter} ({part.stack.name}). "


def plan_effects(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of each head's effect on the logit of the predicted token, or on a classifier's decision."""
    about, attribution = result.figure_context, result.attribution
    if result.decision is not None:
        yield _decision(result, result.decision, choices.style)
        return
    assert attribution is not None
    target = f"“{attribution.predicted.text}”"
    rest = ", ".join(f"{part.name} {signed(part.predicted)}" for part in attribution.parts if part.layer is None)
    at = f"position #{attribution.position} (“{result.read.labels[attribution.position]}”)"
    logit = rounded(attribution.predicted.logit)
    yield HeadMapPlan(
        stem="outputs-effects",
        **about.told(
            f"{about.subject}: what every head adds directly to the logit of the predicted token {target}, and what "
            "biases (b_O) and feed-forward networks (FFN) of each layer add",
            f"at {at}; {DIRECT}. All parts sum to its logit, {logit}; the rest: {rest}",
        ),
        title=f"{about.model}: direct effect of each head on the predicted token {target}",
        maps=tuple(
            _effect(part, attribution, choices.style, f"logits added to {target}")
            for part in result.parts
            if part.stack is None or part.stack.letter != "E"
        ),
    )


def _effect(part: HeadOutputs, attribution: Attribution, style: Style, bar: str) -> HeadMap:
    """Map of effects of one kind of attention or of all, beside those of its layers' other parts."""
    layers = [layer.layer for layer in part.layers]
    values = np.array([head.predicted for head in attribution.heads if head.id.layer in layers])
    beside = _beside(((each.name, each.layer, each.predicted) for each in attribution.parts), layers)
    name = _letter(part).removesuffix(". ")
    return _map(values.reshape(len(layers), -1), style, bar, name=name, beside=beside, diverging=True)


def _beside(parts: Iterable[tuple[str, int | None, float]], layers: Sequence[int]) -> _Columns:
    """Columns of the layers' other parts, one per name, from names, layers and values."""
    of_layers = [part for part in parts if part[1] in layers]
    columns = ((short, [value for name, _, value in of_layers if name == kind]) for kind, short in _BESIDE.items())
    return tuple((short, np.array(column)) for short, column in columns if column)


def _decision(result: HeadOutputs, decision: Decision, style: Style) -> HeadMapPlan:
    about, both = result.figure_context, versus(decision)
    values = np.array([decision.heads[head] for head in sorted(decision.heads)]).reshape(result.table("norm").shape)
    layers = [layer.layer for layer in result.layers]
    beside = _beside(((part.name, part.layer, part.value) for part in decision.parts), layers)
    rest = ", ".join(f"{part.name} {signed(part.value)}" for part in decision.parts if part.layer is None)
    at = f"position #{decision.position} (“{result.tokens.labels[decision.position]}”)"
    total, reading = signed(decision.difference), how_it_is_read(result, decision)
    return HeadMapPlan(
        stem="outputs-effects",
        **about.told(
            f"{about.subject}: what every head adds directly to the logit of {both}, and what biases (b_O; LN: those "
            "of norms) and feed-forward networks (FFN) of each layer add",
            f"at {at}. {reading}",
            f"all parts sum to the difference of the logits, {total}; the rest: {rest}",
        ),
        title=f"{about.model}: direct effect of each head on the decision {both}",
        maps=(_map(values, style, f"logits for {quoted(decision.label.name)}", beside=beside, diverging=True),),
    )


def _map(
    values: Numbers, style: Style, bar: str, *, beside: _Columns = (), diverging: bool = False, **more: Any
) -> HeadMap:
    """A map with diverging colours up to the largest absolute number of heads and extra columns."""
    top = max(float(np.nan_to_num(np.abs(each)).max()) for each in (values, *(column for _, column in beside))) or 1.0
    top = float(math.ceil(top)) if more.get("write") is _whole else top
    norm = Normalize(-top if diverging else 0.0, top, clip=True)
    colours = style.diverging_map() if diverging else None
    return HeadMap(values, norm=norm, bar=bar, colours=colours, beside=beside, **more)
