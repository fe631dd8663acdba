"""An attention rollout in words: which token is looked from, what the numbers mean, how far the rows still differ."""

from torch import Tensor

from attnviz.commands.rollout.results import RolledOut
from attnviz.model.tokens import visible
from attnviz.model.wording import quoted

__all__ = [
    "METHOD_NAMES",
    "chosen",
    "counted",
    "flow_sentence",
    "flows_sentence",
    "layer_named",
    "layers_in_words",
    "model_name",
    "residual_in_words",
    "sink_sentence",
    "spread_sentence",
    "text_in_words",
]

METHOD_NAMES = {
    "attention": "attention",
    "rollout": "rollout",
    "norm_rollout": "norm rollout",
    "flow": "flow",
}
"""By method, its name for people."""

_ALIKE, _APART = 0.1, 0.5
_MOST_NUMBERS = 4
_FLOW = "Flow: the largest that could pass to each input were weights capacities, divided by the sum over the inputs"


def model_name(found: RolledOut) -> str:
    """Short, safe to show."""
    return visible(found.checkpoint.short_name)


def text_in_words(found: RolledOut) -> str:
    """The text, or both texts of a pair, in quotation marks, and how many tokens or words there are."""
    quotes = " / ".join(quoted(text) for text in (found.text, found.pair) if text is not None)
    return f"{quotes} ({counted(found, len(found.units))})"


def counted(found: RolledOut, number: int) -> str:
    """``9 tokens``."""
    return f"{number} {found.units.name}{'' if number == 1 else 's'}"


def chosen(found: RolledOut) -> str:
    """The output token whose inputs are ranked, with its places."""
    numbers = [f"#{position}" for position in found.positions]
    shown = ", ".join(numbers[:_MOST_NUMBERS]) + (", …" if len(numbers) > _MOST_NUMBERS else "")
    mean = f", mean of {len(numbers)}" if len(numbers) > 1 else ""
    return f"“{found.units.labels[found.positions[0]]}” ({shown}{mean})"


def layer_named(found: RolledOut) -> str:
    """The layer up to which was rolled out: ``layer 5, the last``."""
    return f"layer {found.layer}{', the last' if found.layer == found.checkpoint.n_layers - 1 else ''}"


def layers_in_words(found: RolledOut) -> str:
    """The layers that were rolled out: ``layers 0 to 5``."""
    return "layer 0" if found.layer == 0 else f"layers 0 to {found.layer}"


def residual_in_words(found: RolledOut) -> str:
    """How the residual enters: ``0.5 attention + 0.5 identity in every layer``."""
    share = found.options.residual
    return f"{1 - share:g} attention + {share:g} identity in every layer"


def spread_sentence(found: RolledOut) -> str:
    """How far two rows of the rollout still differ, from its numbers; empty where there is one row."""
    last = found.layers[-1].rows_apart
    rollout, norms, uniform = last["rollout"], last["norm_rollout"], last["uniform_rollout"]
    if rollout is None or norms is None or uniform is None:
        return ""
    larger = max(rollout, norms)
    verdict, so = "rows still differ", ""
    if larger < _ALIKE:
        verdict = "rows are nearly alike"
        so = f": the rollout says little about one {found.units.name} in particular"
    elif larger < _APART:
        verdict = "rows have much in common"
    first = found.layers[0].rows_apart["rollout"]
    before = f", after layer 0 alone {first:.2f}" if found.layer and first is not None else ""
    return (
        f"After layer {found.layer} {verdict}{so} (mean distance between two rows, 0 to 1: {rollout:.3f}, by norms "
        f"{norms:.3f}, with uniform attention {uniform:.3f}{before})."
    )


def sink_sentence(found: RolledOut) -> str:
    """How much of the rollout lies on sinks, from its numbers; empty where that cannot be measured."""
    last = found.layers[-1].sink
    rollout, norms, uniform = last["rollout"], last["norm_rollout"], last["uniform_rollout"]
    if rollout is None or norms is None or uniform is None:
        return ""
    units = found.units
    kinds = ["special tokens"] * any(units.special)
    kinds += [f"the first {units.name}"] * (units.sink[0] and not units.special[0])
    return (
        f"Sinks ({' and '.join(kinds)}) hold {rollout:.0%} of the rollout of all other {units.name}s, {norms:.0%} by "
        f"norms; {uniform:.0%} if attention were uniform."
    )


def flow_sentence(found: RolledOut) -> str:
    """What the flow is, and how much it tells inputs apart, from its numbers; empty where there is none."""
    if found.flow is None:
        return ""
    return f"{_FLOW}; here from {_range(found.flow)}, as even as ways down are many."


def flows_sentence(found: RolledOut) -> str:
    """The same of the flows from every token, which are shown as a matrix; empty where there are none."""
    if found.flows is None:
        return ""
    return f"{_FLOW}; over all rows from {_range(found.flows)}, as even as ways down are many."


def _range(flows: Tensor) -> str:
    seen = flows[flows > 0]
    return f"{float(seen.min()):.3f} to {float(seen.max()):.3f}"
