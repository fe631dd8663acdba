"""Sentences on an ablation, shared by tables, documents and captions."""

from collections.abc import Iterator
from statistics import median

from attnviz.commands.ablate.effects import VERDICTS, Estimate, SetEffect
from attnviz.commands.ablate.inputs import CLASS, LABELLED, MASKED, STATES, Metric
from attnviz.commands.ablate.measure import Ablation
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import amount, counted, percent, quoted, visible

_LESS = "together, minus the sum of one at a time"
GIVES = {
    "zero": "a removed head outputs zeros (b_O stays)",
    "mean": "a removed head outputs its mean over all tokens of the texts",
    "uniform": "a removed head attends equally to every visible token",
}
"""Replacement of a removed head in words, by method."""


def source_line(result: Ablation) -> str:
    """The corpora with their number of sentences, or the text."""
    sources = result.sources
    files = [f"{visible(corpus.path.name)} ({counted(read, 'sentence')})" for corpus, read in sources.corpora]
    texts = [quoted(text) for text in sources.given] if len(sources.given) < 3 else [f"{len(sources.given)} texts"]
    return ", ".join([*files, *texts])


def first_order(result: Ablation) -> str:
    """Note on importance by gradients if heads are removed by another method than ``zero``, or ''."""
    return "" if result.options.method == "zero" else "to first order what zero does, not " + result.options.method


def what_is_measured(result: Ablation) -> str:
    """Sentence on texts and metrics."""
    texts, n = counted(result.n_texts, "text"), result.n_positions
    if result.kind == STATES:
        classifier = result.checkpoint.classifier
        why = classifier.why_no_classes if classifier else "the model predicts no tokens"
        return f"final hidden states of {counted(n, 'token')} in {texts}; {why}"
    if result.kind == CLASS:
        return f"class probabilities of {texts} without labels"
    loss = f"loss of the model as it is {amount(result.clean_loss or 0.0)}"
    if result.kind == LABELLED:
        return f"labelled class of {texts}; {loss} nats/text, {percent(result.clean_accuracy)} right"
    what = f"{counted(n, 'token')}, each masked in turn," if result.kind == MASKED else counted(n, "next token")
    where = f"in {texts}"
    if result.checkpoint.stacks:
        given = result.options.target is not None
        where = "of the given target" if given else "of targets that the model writes, greedily"
    return f"{what} {where}; {loss} nats/token"


def loss_words(result: Ablation, states: str) -> str:
    """Name of the loss of gradients; ``states`` replaces it if nothing is predicted."""
    instead = {STATES: states, CLASS: "the loss of the class that the whole model decides for"}
    return instead.get(result.kind, "the loss")


def interval(estimate: Estimate) -> str:
    """The interval in brackets, or ''."""
    low, high = estimate.low, estimate.high
    return "" if low is None or high is None else f"[{amount(low)}, {amount(high)}]"


def _with_interval(estimate: Estimate, unit: str = "") -> str:
    """An estimate with unit and interval, if it has them."""
    return " ".join(filter(None, (amount(estimate.value), unit, interval(estimate))))


def compensation_text(result: Ablation) -> str:
    """Paragraph on the effect of heads together, compared with one at a time."""
    metric = result.metrics[0]
    sentences = [_singles(result, metric)]
    if not result.has_intervals:
        few = "1 text is" if result.n_texts == 1 else f"{result.n_texts} texts are"
        sentences.append(
            f"{few} too few for intervals (at least {ENOUGH_TEXTS}), so these numbers do not show whether heads do "
            "more together than one at a time."
        )
        for each in result.sets[:1]:
            name = "selected heads" if each.layer is None else f"{len(each.heads)} heads of layer {each.layer}"
            sentences.append(f"The {name} {_LESS}: {_less_the_sum(each, result)}.")
    else:
        if result.together is not None:
            verdict, n = result.together.verdict(metric.name), len(result.together.heads)
            numbers = _less_the_sum(result.together, result)
            sentences.append(f"The selected heads ({n}) {_LESS}: {verdict} ({numbers}).")
        elif result.layers:
            sentences.append(_layers(result, metric))
        sentences += _curve(result, metric)
    if result.kind == STATES and result.sets:
        sentences.append(
            "Part of an excess may come from the measure: in cosine distance, changes in unrelated directions add up, "
            "but changes in one direction give more than their sum."
        )
    return " ".join(sentences)


def _singles(result: Ablation, metric: Metric) -> str:
    values, most = [head.damage[metric.name] for head in result.heads], result.heads[0].id
    largest = _with_interval(values[0], metric.unit if "/" in metric.unit else "")
    if len(values) == 1:
        return f"Removing {most} alone gives a {metric.title} of {largest}."
    text = (
        f"Removing one head at a time ({result.options.method}) gives a {metric.title} of at most {largest} ({most}); "
        f"the median of {len(values)} is {amount(median(value.value for value in values))}."
    )
    if not metric.signed or not result.has_intervals:
        return text
    raised, lowered = (sum(value.side == side for value in values) for side in (1, -1))
    return (
        f"{text} {raised} raise the loss and {lowered} lower it (zero is outside the 95 % interval of the head); "
        f"{len(values) - raised - lowered} are undecided."
    )


def _less_the_sum(effect: SetEffect, result: Ablation) -> str:
    """Excess of a set over its heads one at a time, by each method."""
    name, parts = result.metrics[0].name, list[str]()
    for method, by_one in zip(result.methods, effect.by_method, strict=False):
        reading = by_one.reading(name) if effect.second else None
        parts.append(f"{method} {_with_interval(by_one.excess[name])}" + (f", {reading}" if reading else ""))
    return "; ".join(parts)


def _layers(result: Ablation, metric: Metric) -> str:
    """Layers by joint verdict, with the numbers of those without agreement."""
    names: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for layer in result.layers:
        verdict, name = layer.verdict(metric.name) or VERDICTS[-1], HeadId(layer.layer or 0, 0).layer_name
        names[verdict].append(f"{name} ({_less_the_sum(layer, result)})" if verdict == VERDICTS[-1] else name)
    parts = "; ".join(f"{verdict} in {', '.join(those)}" for verdict, those in names.items() if those)
    return f"The heads of a layer {_LESS}, by {' and '.join(result.methods)}: {parts}."


def _curve(result: Ablation, metric: Metric) -> Iterator[str]:
    if result.curve is None:
        return
    if (free := result.removable) is not None:
        several = f"the {free} least important heads can go together" if free > 1 else "the least important head can go"
        ends = f"{several} before the loss is clearly higher (in the steps of the curve)"
        missed = "the loss is clearly higher as soon as the least important head is removed"
        yield f"By {result.options.method} alone, {ends if free else missed}."
    n = len(result.curve.order)
    half = min(result.curve.points, key=lambda point: abs(2 * point.removed - n))
    if 1 < half.removed < n:
        least, drawn = (amount(each.damage[metric.name].value) for each in (half.least, half.random))
        more = _with_interval(half.least.excess[metric.name])
        yield (
            f"Removing the less important half of all heads ({half.removed}) gives {least}, removing as many in a "
            f"random order {drawn}. Minus the sum of one at a time, the former is {more}. That is by one method, "
            f"{result.options.method}, so it is no verdict."
        )
