"""What an ablation says in words: whether the heads of a set make up for one another, by stated thresholds."""

from collections.abc import Sequence

from attnviz.commands.ablate.inputs import MASKED, NEXT, STATES
from attnviz.commands.ablate.metrics import Measure
from attnviz.commands.ablate.results import Ablated, Estimate, HeadDamage, SetDamage
from attnviz.corpora.bootstrap import ENOUGH_TEXTS
from attnviz.model.tokens import visible
from attnviz.model.wording import quoted

__all__ = [
    "ADDITIVE",
    "COMPENSATED",
    "LESS",
    "MORE",
    "NO_COST",
    "OVERLAPPING",
    "UNDECIDED",
    "amount",
    "compensation_text",
    "method_words",
    "ratio_of",
    "removable",
    "source_line",
    "span",
    "verdict_of",
    "what_is_measured",
]

COMPENSATED, ADDITIVE, OVERLAPPING = "compensated", "additive", "overlapping"
UNDECIDED, NO_COST = "undecided", "no cost"

MORE, LESS = 1.25, 0.8
"""A set that does so many times what its heads do one at a time does more, or less, than their sum; attnviz's own
choice. The interval of the difference has to lie on that side of zero too."""


def ratio_of(found: SetDamage, measure: Measure) -> float | None:
    """How many times the sum of its heads one at a time a set does; None unless both are positive."""
    together, singles = found.damage[measure.name].value, found.singles[measure.name].value
    return together / singles if together > 0 and singles > 0 else None


def verdict_of(found: SetDamage, measure: Measure) -> str | None:
    """Whether what a set does is more than its heads do one at a time; None where there are no intervals.

    ``compensated``: at least :data:`MORE` times the sum, and the interval of the difference is above zero: while one
    head was missing, the others made up for some of it. ``overlapping``: at most :data:`LESS` times, and below zero:
    heads cost the same thing, which can be lost only once. ``additive``: neither, though the difference is clear.
    ``undecided``: the interval of the difference has zero in it. ``no cost``: what the set costs is not clearly above
    zero, so that there is nothing to make up for, whatever single heads do.
    """
    excess, ratio = found.excess[measure.name], ratio_of(found, measure)
    if excess.low is None:
        return None
    if not found.damage[measure.name].above_zero:
        return NO_COST
    if excess.above_zero:
        return COMPENSATED if ratio is None or ratio >= MORE else ADDITIVE
    if excess.below_zero:
        return OVERLAPPING if ratio is None or ratio <= LESS else ADDITIVE
    return UNDECIDED


def removable(found: Ablated) -> int | None:
    """How many of the least important heads can go, in steps of the curve, before the loss is clearly higher.

    None without a curve or intervals, and where the measure cannot be negative, so that nothing comes for free.
    """
    if found.curve is None or not found.measure.signed:
        return None
    last = 0
    for point in found.curve.points:
        raised = point.least.damage[found.measure.name].above_zero
        if raised is None:
            return None
        if raised:
            break
        last = point.removed
    return last


def amount(value: float) -> str:
    """A number in three digits or so, however small: ``0.0123``, ``1.4e-05``."""
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 0.0005 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def span(estimate: Estimate) -> str:
    """The interval in brackets; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{amount(estimate.low)}, {amount(estimate.high)}]"


def source_line(found: Ablated) -> str:
    """What was measured on: files with their number of texts, or the text, safe to show."""
    files = [
        f"{visible(corpus.path.name)} ({read:,} sentence{'s' * (read != 1)})"
        for corpus, read in zip(found.sources.corpora, found.sources.read, strict=True)
    ]
    given = found.sources.given
    if len(given) > 2:
        return ", ".join([*files, f"{len(given)} texts"])
    return ", ".join([*files, *(quoted(text) for text in given)])


def what_is_measured(found: Ablated) -> str:
    """One sentence: on what, and what the numbers are."""
    texts = f"{found.n_texts:,} text{'s' * (found.n_texts != 1)}"
    if found.kind == STATES:
        return f"final hidden states of {found.n_places:,} tokens in {texts}; the model predicts no tokens"
    tokens = "token" if found.n_places == 1 else "tokens"
    what = {NEXT: f"next {tokens}", MASKED: f"{tokens}, each masked in turn,"}[found.kind]
    return (
        f"{found.n_places:,} {what} in {texts}; loss of the model as it is {amount(found.clean_loss or 0.0)} nats/token"
    )


def method_words(found: Ablated) -> str:
    """What stands in the place of a removed head."""
    return {
        "zero": "a removed head gives zeros (b_O stays)",
        "mean": "a removed head gives its mean over all tokens of the texts",
        "uniform": "a removed head attends to all that it may alike",
    }[found.options.method]


def compensation_text(found: Ablated) -> str:
    """A paragraph that says, from the numbers, how far the remaining heads compensate."""
    sentences = [_single_sentence(found)]
    if found.checked and found.heads[0].damage[found.measure.name].low is None:
        few = f"{found.n_texts} text{'s are' if found.n_texts != 1 else ' is'} too few for intervals"
        sentences.append(
            f"{few} (at least {ENOUGH_TEXTS}), so how far the others compensate is not concluded from these numbers."
        )
        sets = [found.together] if found.together else found.layers
        sentences += [_numbers(each, found.measure) for each in sets[:1] if each is not None]
    elif found.together is not None:
        sentences.append(_set_sentence(found.together, found.measure, "The selected heads"))
    elif found.layers:
        sentences.append(_layers_sentence(found))
    if found.curve is not None and found.heads[0].damage[found.measure.name].low is not None:
        sentences += _curve_sentences(found)
    if found.kind == STATES and (found.layers or found.together):
        sentences.append(
            "Changes of the states in unrelated directions add up in cosine distance, and changes in one direction "
            "give more than the sum: some of an excess may be that."
        )
    return " ".join(sentences)


def _single_sentence(found: Ablated) -> str:
    measure, heads = found.measure, found.heads
    values = [head.damage[measure.name] for head in heads]
    most = heads[0]
    if len(heads) == 1:
        return f"Removing {most.id} alone gives a {measure.title} of {_amount(most, measure)}."
    middle = sorted(value.value for value in values)[len(values) // 2]
    text = (
        f"Removing one head at a time gives a {measure.title} of at most {_amount(most, measure)} ({most.id}), "
        f"and {amount(middle)} for the middle one of {len(heads)}."
    )
    if not measure.signed or values[0].low is None:
        return text
    raised, lowered = sum(bool(v.above_zero) for v in values), sum(bool(v.below_zero) for v in values)
    rest = len(values) - raised - lowered
    return (
        f"{text} {raised} raise the loss and {lowered} lower it (95 % interval on that side of zero, of each head by "
        f"itself); for {rest} it is not decided."
    )


def _amount(head: HeadDamage, measure: Measure) -> str:
    value = head.damage[measure.name]
    unit = f" {measure.unit}" if "/" in measure.unit else ""
    return " ".join(part for part in (f"{amount(value.value)}{unit}", span(value)) if part)


def _numbers(found: SetDamage, measure: Measure) -> str:
    together, singles = found.damage[measure.name].value, found.singles[measure.name].value
    name = f"The {len(found.heads)} heads of layer {found.layer}" if found.layer is not None else "The selected heads"
    return f"{name} give {amount(together)} together, and {amount(singles)} summed over one at a time."


def _set_sentence(found: SetDamage, measure: Measure, name: str) -> str:
    """Numbers, then the word that they earn."""
    excess = found.excess[measure.name]
    numbers = (
        f"{name} ({len(found.heads)}) give {amount(found.damage[measure.name].value)} together, and "
        f"{amount(found.singles[measure.name].value)} summed over one at a time "
        f"(difference {amount(excess.value)} {span(excess)})"
    )
    verdict = verdict_of(found, measure) or UNDECIDED
    if verdict == COMPENSATED and found.singles[measure.name].value <= 0:
        return f"{numbers}: more than the sum; one at a time they cost nothing, so the others stood in for each."
    return f"{numbers}: {_MEANING[verdict]}."


_MEANING = {
    COMPENSATED: "more than the sum, so the others made up for some of what each single removal took away",
    OVERLAPPING: "less than the sum, so what each one takes away is partly the same; no sign of compensation",
    ADDITIVE: "about the sum, so hardly anything was made up for",
    UNDECIDED: "the interval of the difference has zero in it, so compensation is not shown",
    NO_COST: "removing them costs nothing that can be told from zero, so there is nothing to make up for",
}


def _layers_sentence(found: Ablated) -> str:
    by_verdict: dict[str, list[SetDamage]] = {}
    for layer in found.layers:
        by_verdict.setdefault(verdict_of(layer, found.measure) or UNDECIDED, []).append(layer)
    n, held = len(found.layers), len(by_verdict.get(COMPENSATED, []))
    part = "every layer" if held == n else "no layer" if not held else f"{held} of {n} layers"
    parts = [
        f"{_LAYERS[verdict]} in {_layer_names(by_verdict[verdict], found.measure)}"
        for verdict in (COMPENSATED, ADDITIVE, OVERLAPPING, UNDECIDED, NO_COST)
        if verdict in by_verdict
    ]
    return (
        f"That other heads of a layer compensate for one that fails is seen in {part}: removed together, against the "
        f"sum of one at a time, they do {'; '.join(parts)}."
    )


_LAYERS = {
    COMPENSATED: f"more (at least {MORE:g} times, difference above zero)",
    ADDITIVE: "about as much",
    OVERLAPPING: f"less (at most {LESS:g} times, difference below zero)",
    UNDECIDED: "what cannot be told from the sum",
    NO_COST: "nothing that can be told from zero",
}


def _layer_names(layers: Sequence[SetDamage], measure: Measure) -> str:
    names = []
    for layer in layers:
        ratio = ratio_of(layer, measure)
        names.append(f"L{layer.layer}" if ratio is None else f"L{layer.layer} ({ratio:.2g}×)")
    return ", ".join(names)


def _curve_sentences(found: Ablated) -> list[str]:
    assert found.curve is not None
    sentences = []
    free = removable(found)
    if free is not None:
        what = f"The {free} least important heads can go together" if free > 1 else "The least important head can go"
        sentences.append(
            f"{what} before the loss is clearly higher (in the steps of the curve)." if free
            else "Already the least important head is missed."
        )  # fmt: skip
    half = min(found.curve.points, key=lambda point: abs(2 * point.removed - len(found.curve.order)))  # type: ignore[union-attr]
    if 1 < half.removed < len(found.curve.order):
        sentences.append(_set_sentence(half.least, found.measure, "The less important half of all heads"))
        sentences.append(f"As many in a random order give {amount(half.random.damage[found.measure.name].value)}.")
    return sentences
