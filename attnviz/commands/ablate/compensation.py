"""Whether heads make up for one another: a verdict on each set by stated thresholds, and a paragraph on all of them."""

from attnviz.commands.ablate.effects import Estimate, SetEffect
from attnviz.commands.ablate.inputs import STATES
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.metrics import Metric
from attnviz.corpora.bootstrap import ENOUGH_TEXTS

__all__ = ["LESS", "MORE", "amount", "compensation_text", "interval", "ratio_of", "removable", "verdict_of"]

MORE, LESS = 1.25, 0.8
"""A set that does so many times what its heads do one at a time does more, or less, than their sum; attnviz's own
choice. The interval of the difference has to lie on that side of zero too."""

_SETS = {
    "compensated": "more than the sum, so the others made up for some of what each single removal took away",
    "overlapping": "less than the sum, so what each one takes away is partly the same; no sign of compensation",
    "additive": "about the sum, so hardly anything was made up for",
    "undecided": "the interval of the difference has zero in it, so compensation is not shown",
    "no cost": "removing them costs nothing that can be told from zero, so there is nothing to make up for",
}

_LAYERS = {
    "compensated": f"more (at least {MORE:g} times, difference above zero)",
    "additive": "about as much",
    "overlapping": f"less (at most {LESS:g} times, difference below zero)",
    "undecided": "what cannot be told from the sum",
    "no cost": "nothing that can be told from zero",
}


def ratio_of(effect: SetEffect, metric: Metric) -> float | None:
    """How many times the sum of its heads one at a time a set does; None unless both are positive."""
    together, singles = effect.damage[metric.name].value, effect.singles[metric.name].value
    return together / singles if together > 0 and singles > 0 else None


def verdict_of(effect: SetEffect, metric: Metric) -> str | None:
    """Whether what a set does is more than its heads do one at a time; None where there are no intervals.

    ``compensated``: at least :data:`MORE` times the sum, and the interval of the difference is above zero: while one
    head was missing, the others made up for some of it. ``overlapping``: at most :data:`LESS` times, and below zero:
    heads cost the same thing, which can be lost only once. ``additive``: neither, though the difference is clear.
    ``undecided``: the interval of the difference has zero in it. ``no cost``: what the set costs is not clearly above
    zero, so that there is nothing to make up for, whatever single heads do.
    """
    excess, ratio = effect.excess[metric.name], ratio_of(effect, metric)
    if excess.side is None:
        return None
    if effect.damage[metric.name].side != 1:
        return "no cost"
    if excess.side > 0:
        return "compensated" if ratio is None or ratio >= MORE else "additive"
    if excess.side < 0:
        return "overlapping" if ratio is None or ratio <= LESS else "additive"
    return "undecided"


def removable(result: Ablation) -> int | None:
    """How many of the least important heads can go, in steps of the curve, before the loss is clearly higher.

    None without a curve or intervals, and where the metric cannot be negative, so that nothing comes for free.
    """
    metric = result.metrics[0]
    if result.curve is None or not metric.signed or not result.has_intervals:
        return None
    last = 0
    for point in result.curve.points:
        if point.least.damage[metric.name].side == 1:
            break
        last = point.removed
    return last


def amount(value: float) -> str:
    """A number in three digits or so, however small: ``0.0123``, ``1.4e-05``."""
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 0.0005 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def interval(estimate: Estimate) -> str:
    """The interval in brackets; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{amount(estimate.low)}, {amount(estimate.high)}]"


def compensation_text(result: Ablation) -> str:
    """A paragraph that says, from the numbers, how far the remaining heads compensate."""
    metric, sets = result.metrics[0], [result.together] if result.together else list(result.layers)
    sentences = [_singles(result, metric)]
    if not result.has_intervals:
        few = "1 text is" if result.n_texts == 1 else f"{result.n_texts} texts are"
        sentences.append(
            f"{few} too few for intervals (at least {ENOUGH_TEXTS}), so how far the others compensate is not "
            "concluded from these numbers."
        )
        sentences += [f"{_set_numbers(each, metric)}." for each in sets[:1]]
    elif result.together is not None:
        sentences.append(_set(result.together, metric, "The selected heads (%d)"))
    elif result.layers:
        sentences.append(_layers(result, metric))
    if result.has_intervals:
        sentences += _curve(result, metric)
    if result.kind == STATES and sets:
        sentences.append(
            "Changes of the states in unrelated directions add up in cosine distance, and changes in one direction "
            "give more than the sum: some of an excess may be that."
        )
    return " ".join(sentences)


def _singles(result: Ablation, metric: Metric) -> str:
    values = [head.damage[metric.name] for head in result.heads]
    most = result.heads[0].id
    unit = metric.unit if "/" in metric.unit else ""
    largest = " ".join(part for part in (amount(values[0].value), unit, interval(values[0])) if part)
    if len(values) == 1:
        return f"Removing {most} alone gives a {metric.title} of {largest}."
    middle = sorted(value.value for value in values)[len(values) // 2]
    text = (
        f"Removing one head at a time gives a {metric.title} of at most {largest} ({most}), and {amount(middle)} for "
        f"the middle one of {len(values)}."
    )
    if not metric.signed or not result.has_intervals:
        return text
    raised, lowered = (sum(value.side == side for value in values) for side in (1, -1))
    return (
        f"{text} {raised} raise the loss and {lowered} lower it (95 % interval on that side of zero, of each head by "
        f"itself); for {len(values) - raised - lowered} it is not decided."
    )


def _set_numbers(effect: SetEffect, metric: Metric, name: str = "") -> str:
    layer = "The selected heads" if effect.layer is None else f"The %d heads of layer {effect.layer}"
    subject = (name or layer).replace("%d", str(len(effect.heads)))
    together, singles = (amount(each[metric.name].value) for each in (effect.damage, effect.singles))
    return f"{subject} give {together} together, and {singles} summed over one at a time"


def _set(effect: SetEffect, metric: Metric, name: str) -> str:
    """The numbers of a set, then the words that its verdict stands for."""
    excess, verdict = effect.excess[metric.name], verdict_of(effect, metric) or "undecided"
    meaning = _SETS[verdict]
    if verdict == "compensated" and effect.singles[metric.name].value <= 0:
        meaning = "more than the sum; one at a time they cost nothing, so the others stood in for each"
    numbers = _set_numbers(effect, metric, name)
    return f"{numbers} (difference {amount(excess.value)} {interval(excess)}): {meaning}."


def _layers(result: Ablation, metric: Metric) -> str:
    names: dict[str, list[str]] = {verdict: [] for verdict in _LAYERS}
    for layer in result.layers:
        ratio = ratio_of(layer, metric)
        name = f"L{layer.layer}" if ratio is None else f"L{layer.layer} ({ratio:.2g}×)"
        names[verdict_of(layer, metric) or "undecided"].append(name)
    n, held = len(result.layers), len(names["compensated"])
    part = "every layer" if held == n else "no layer" if not held else f"{held} of {n} layers"
    parts = [f"{_LAYERS[verdict]} in {', '.join(those)}" for verdict, those in names.items() if those]
    return (
        f"That other heads of a layer compensate for one that fails is seen in {part}: removed together, against the "
        f"sum of one at a time, they do {'; '.join(parts)}."
    )


def _curve(result: Ablation, metric: Metric) -> list[str]:
    if result.curve is None:
        return []
    free, n = removable(result), len(result.curve.order)
    sentences = []
    if free is not None:
        several = f"The {free} least important heads can go together" if free > 1 else "The least important head can go"
        ends = f"{several} before the loss is clearly higher (in the steps of the curve)."
        sentences.append(ends if free else "Already the least important head is missed.")
    half = min(result.curve.points, key=lambda point: abs(2 * point.removed - n))
    if 1 < half.removed < n:
        sentences.append(_set(half.least, metric, "The less important half of all heads (%d)"))
        sentences.append(f"As many in a random order give {amount(half.random.damage[metric.name].value)}.")
    return sentences
