"""How an ablation is told: JSON and CSV, tables of heads, sets and the curve, and the sentences that figures share."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.ablate.effects import LESS, MORE, CurvePoint, Estimate, HeadEffect, SetEffect
from attnviz.commands.ablate.inputs import MASKED, METRICS, STATES, Metric
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.passes import PROJECTIONS
from attnviz.corpora.bootstrap import ENOUGH_TEXTS
from attnviz.model.wording import counted, quoted, unisolated, visible
from attnviz.results.documents import model_entry, verification_entry
from attnviz.results.facts import capital
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, error, left_out, notes, number, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT", "amount", "compensation_text", "interval", "method_words", "source_line", "what_is_measured"]

_WIDE = 100
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
"""What each verdict means for a set, and for the layers that have it, in the order in which they are named."""


_OPTIONS = ("method", "select", "together", "limit", "seed", "curve", "gradient")


def source_line(result: Ablation) -> str:
    """What was measured on: files with their number of sentences, or the text, safe to show."""
    sources = result.sources
    files = [f"{visible(corpus.path.name)} ({counted(read, 'sentence')})" for corpus, read in sources.corpora]
    texts = [quoted(text) for text in sources.given] if len(sources.given) < 3 else [f"{len(sources.given)} texts"]
    return ", ".join([*files, *texts])


def what_is_measured(result: Ablation) -> str:
    """On what, and what the numbers are."""
    texts, n = counted(result.n_texts, "text"), result.n_positions
    if result.kind == STATES:
        return f"final hidden states of {counted(n, 'token')} in {texts}; the model predicts no tokens"
    what = f"{counted(n, 'token')}, each masked in turn," if result.kind == MASKED else counted(n, "next token")
    return f"{what} in {texts}; loss of the model as it is {amount(result.clean_loss or 0.0)} nats/token"


def method_words(result: Ablation) -> str:
    """What stands in the place of a removed head."""
    gives = {"zero": "gives zeros (b_O stays)", "mean": "gives its mean over all tokens of the texts"}
    return f"a removed head {gives.get(result.options.method, 'attends to all that it may alike')}"


def amount(value: float) -> str:
    """A number in three digits or so, however small: ``0.0123``, ``1.4e-05``."""
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 0.0005 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def interval(estimate: Estimate) -> str:
    """The interval in brackets; empty where there is none."""
    low, high = estimate.low, estimate.high
    return "" if low is None or high is None else f"[{amount(low)}, {amount(high)}]"


def _content(result: Ablation, _: Choices) -> dict[str, Any]:
    options, sources, checked = result.options, result.sources, result.verified
    of = f"{PROJECTIONS} random projections of the final states" if result.kind == STATES else f"{result.kind} loss"
    return {
        "model": model_entry(result.checkpoint),
        "corpora": [
            {"path": str(corpus.path), "sha256": corpus.sha256, "sentences": read} for corpus, read in sources.corpora
        ],
        "texts": list(sources.given),
        "options": {name: getattr(options, name) for name in _OPTIONS},
        "measured": {"kind": result.kind, "importance": result.metrics[0].name}
        | {"texts": result.n_texts, "tokens": result.n_positions, "loss": result.clean_loss},
        "verification": verification_entry(checked.attention)
        | {"rows_verified": checked.n_inputs}
        | {"values_error": checked.values_error, "resumed_error": checked.resumed_error},
        "heads": [
            {"id": str(head.id), "layer": head.id.layer, "head": head.id.head, "rank": head.rank}
            | {name: _estimate_entry(head.damage.get(name)) for name in METRICS}
            | {"gradient": head.gradient, "gradient_normalised": head.gradient_normalised}
            for head in result.heads
        ],
        "layers": [_set_entry(layer, result) for layer in result.layers],
        "together": None if result.together is None else _set_entry(result.together, result),
        "curve": _curve_entry(result),
        "gradient": {"of": of, "spearman": result.rank_correlations} if options.gradient else None,
        "compensation": {"text": compensation_text(result), "removable": result.removable},
    }


def _estimate_entry(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "interval": None if estimate.low is None else [estimate.low, estimate.high]}


def _effect_entry(effect: SetEffect, name: str, together: str = "together") -> dict[str, Any]:
    effects = {together: effect.damage, "one_at_a_time": effect.singles, "difference": effect.excess}
    return {key: _estimate_entry(estimates[name]) for key, estimates in effects.items()}


def _set_entry(effect: SetEffect, result: Ablation) -> dict[str, Any]:
    first = result.metrics[0].name
    return {
        "layer": effect.layer,
        "heads": [str(head) for head in effect.heads],
        **{metric.name: _effect_entry(effect, metric.name) for metric in result.metrics},
        "ratio": effect.ratio(first),
        "verdict": effect.verdict(first),
    }


def _curve_entry(result: Ablation) -> dict[str, Any] | None:
    if result.curve is None:
        return None
    points: list[dict[str, Any]] = []
    for point in result.curve.points:
        points.append({"removed": point.removed})
        for name in (metric.name for metric in result.metrics):
            drawn = {"random_order": _estimate_entry(point.random.damage[name])}
            points[-1][name] = _effect_entry(point.least, name, "least_important") | drawn
    orders = {"order": result.curve.order, "random_order": result.curve.random_order}
    return {**{name: [str(head) for head in order] for name, order in orders.items()}, "points": points}


def _rows(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row a head; empty cells where nothing was measured."""
    for head in content["heads"]:
        row = dict(head)
        for name in METRICS:
            estimate = head[name] or {"value": None, "interval": None}
            low, high = estimate["interval"] or (None, None)
            row |= {name: estimate["value"], f"{name}_low": low, f"{name}_high": high}
        yield row


def _tables(result: Ablation, choices: Choices, width: int) -> Iterator[RenderableType]:
    checked = result.verified
    yield Text(f"{visible(result.checkpoint.short_name)} on {unisolated(source_line(result))}", style="bold")
    yield Text(f"{capital(what_is_measured(result))}. {capital(method_words(result))}.")
    more = (
        f", what is replaced of each head within {error(checked.values_error)}, final states of resumed passes within "
        f"{error(checked.resumed_error)}, on {counted(checked.n_inputs, 'input')}"
    )
    yield verification_line(checked.attention, result.checkpoint, more)
    yield _head_table(result, choices.top or None, width)
    if result.sets:
        yield _set_table(result)
    if result.curve is not None:
        yield _curve_table(result, result.curve.points)
    yield Text(compensation_text(result))
    yield notes(*_notes(result))


def _measured(of: Callable[[Any], Estimate], title: str, unit: str, intervals: bool) -> list[Any]:
    """A column of estimates and, where there are any, one of their intervals."""
    values = Column[Any](title, lambda row: amount(of(row).value), unit)
    return [values, Column[Any]("95 % interval", lambda row: interval(of(row)), left=True)][: 1 + intervals]


def _head_table(result: Ablation, top: int | None, width: int) -> Table:
    heads, n = result.heads[:top], len(result.heads)
    columns = [Column[HeadEffect]("Rank", lambda head: head.rank), Column("Head", lambda head: head.id, left=True)]
    for metric, wide in zip(result.metrics, (True, width >= _WIDE), strict=True):
        of = lambda head, name=metric.name: head.damage[name]  # noqa: E731
        columns += _measured(of, capital(metric.title), metric.unit, wide and result.has_intervals)
    if result.options.gradient:
        columns.append(Column("Gradient", lambda head: amount(head.gradient or 0.0)))
        columns.append(Column("in its\nlayer", lambda head: head.gradient_normalised))
    count = f"{len(heads)} of {n}" if len(heads) < n else str(n)
    title = f"Heads removed one at a time ({count}, the one that matters most first)"
    return column_table(title, columns, heads, caption=left_out(len(heads), n, "head", "ablate.csv"))


def _set_table(result: Ablation) -> Table:
    metric = result.metrics[0]
    columns: list[Column[SetEffect]] = [
        Column("Set", lambda each: "selected" if each.layer is None else f"L{each.layer}", left=True),
        Column("Heads", lambda each: len(each.heads)),
        Column("Together", lambda each: amount(each.damage[metric.name].value)),
        Column("One at\na time", lambda each: amount(each.singles[metric.name].value)),
        Column("Ratio", lambda each: each.ratio(metric.name)),
        *_measured(lambda each: each.excess[metric.name], "Difference", "", result.has_intervals),
    ]
    if result.has_intervals:
        columns.append(Column("Verdict", lambda each: each.verdict(metric.name), left=True))
    return column_table(f"Heads removed together ({metric.title}, {metric.unit})", columns, result.sets)


def _curve_table(result: Ablation, points: Sequence[CurvePoint]) -> Table:
    metric = result.metrics[0]
    columns: list[Column[CurvePoint]] = [
        Column("Heads", lambda point: point.removed),
        *_measured(lambda point: point.least.damage[metric.name], "Least\nimportant", "", result.has_intervals),
        Column("Sum of\none at a time", lambda point: amount(point.least.singles[metric.name].value)),
        Column("Random\norder", lambda point: amount(point.random.damage[metric.name].value)),
    ]
    return column_table(f"More and more heads removed ({metric.title}, {metric.unit})", columns, points)


def _notes(result: Ablation) -> Iterator[str]:
    if result.options.gradient:
        projected = "; without a loss L is a random projection of the final states" if result.kind == STATES else ""
        known = result.rank_correlations
        correlations = ", ".join(f"{metric.title} {number(known[metric.name])}" for metric in result.metrics)
        yield (
            "Gradient: mean over texts of |Att·dL/dAtt| (Michel et al. 2019), beside it divided by the l2 norm over "
            f"its layer{projected}. Spearman's rank correlation with it: {correlations}."
        )
    if result.curve is not None:
        yield (
            "The order of the curve was found on the texts that it is measured on, so the sum of the least important "
            "heads is smaller than it would be on others."
        )
    if result.has_intervals:
        yield "Intervals: bootstrap over texts, 95 % each; they speak of texts like these, not of all."


def compensation_text(result: Ablation) -> str:
    """A paragraph that says, from the numbers, how far the remaining heads compensate."""
    metric = result.metrics[0]
    sentences = [_singles(result, metric)]
    if not result.has_intervals:
        few = "1 text is" if result.n_texts == 1 else f"{result.n_texts} texts are"
        sentences.append(
            f"{few} too few for intervals (at least {ENOUGH_TEXTS}), so how far the others compensate is not "
            "concluded from these numbers."
        )
        for each in result.sets[:1]:
            name = "selected heads" if each.layer is None else f"{len(each.heads)} heads of layer {each.layer}"
            sentences.append(f"{_set_numbers(each, metric, f'The {name}')}.")
    else:
        if result.together is not None:
            sentences.append(_set(result.together, metric, "The selected heads"))
        elif result.layers:
            sentences.append(_layers(result, metric))
        sentences += _curve(result, metric)
    if result.kind == STATES and result.sets:
        sentences.append(
            "Changes of the states in unrelated directions add up in cosine distance, and changes in one direction "
            "give more than the sum: some of an excess may be that."
        )
    return " ".join(sentences)


def _singles(result: Ablation, metric: Metric) -> str:
    values, most = [head.damage[metric.name] for head in result.heads], result.heads[0].id
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


def _set_numbers(effect: SetEffect, metric: Metric, name: str) -> str:
    together, singles = amount(effect.damage[metric.name].value), amount(effect.singles[metric.name].value)
    return f"{name} give {together} together, and {singles} summed over one at a time"


def _set(effect: SetEffect, metric: Metric, name: str) -> str:
    """The numbers of a set, then the words that its verdict stands for."""
    excess, verdict = effect.excess[metric.name], effect.verdict(metric.name) or "undecided"
    meaning = _SETS[verdict]
    if verdict == "compensated" and effect.singles[metric.name].value <= 0:
        meaning = "more than the sum; one at a time they cost nothing, so the others stood in for each"
    numbers = _set_numbers(effect, metric, f"{name} ({len(effect.heads)})")
    return f"{numbers} (difference {amount(excess.value)} {interval(excess)}): {meaning}."


def _layers(result: Ablation, metric: Metric) -> str:
    names: dict[str, list[str]] = {verdict: [] for verdict in _LAYERS}
    for layer in result.layers:
        ratio = layer.ratio(metric.name)
        name = f"L{layer.layer}" if ratio is None else f"L{layer.layer} ({ratio:.2g}×)"
        names[layer.verdict(metric.name) or "undecided"].append(name)
    n, held = len(result.layers), len(names["compensated"])
    part = "every layer" if held == n else "no layer" if not held else f"{held} of {n} layers"
    parts = [f"{_LAYERS[verdict]} in {', '.join(those)}" for verdict, those in names.items() if those]
    return (
        f"That other heads of a layer compensate for one that fails is seen in {part}: removed together, against the "
        f"sum of one at a time, they do {'; '.join(parts)}."
    )


def _curve(result: Ablation, metric: Metric) -> Iterator[str]:
    if result.curve is None:
        return
    if (free := result.removable) is not None:
        several = f"The {free} least important heads can go together" if free > 1 else "The least important head can go"
        ends = f"{several} before the loss is clearly higher (in the steps of the curve)."
        yield ends if free else "Already the least important head is missed."
    n = len(result.curve.order)
    half = min(result.curve.points, key=lambda point: abs(2 * point.removed - n))
    if 1 < half.removed < n:
        yield _set(half.least, metric, "The less important half of all heads")
        yield f"As many in a random order give {amount(half.random.damage[metric.name].value)}."


REPORT = Report[Ablation](
    content=_content,
    columns=(
        "id", "layer", "head", "rank", *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")),
        "gradient", "gradient_normalised",
    ),
    rows=_rows,
    tables=_tables,
    same=("attnviz", "model", "corpora", "texts", "options", "measured"),
)  # fmt: skip
