"""How an ablation is told: JSON and CSV, tables of heads, sets and the curve, and the sentences that figures share."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.ablate.compensation import amount, compensation_text, interval, ratio_of, removable, verdict_of
from attnviz.commands.ablate.effects import CurvePoint, Estimate, HeadEffect, SetEffect
from attnviz.commands.ablate.gradient_importance import PROJECTIONS
from attnviz.commands.ablate.inputs import MASKED, STATES
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.metrics import METRICS
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted
from attnviz.results.documents import model_entry, verification_entry
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, error, left_out, notes, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT", "method_words", "sentence_case", "source_line", "what_is_measured"]

_WIDE = 100
_COLUMNS = (
    "id", "layer", "head", "rank",
    *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")),
    "gradient", "gradient_normalised",
)  # fmt: skip


def source_line(result: Ablation) -> str:
    """What was measured on: files with their number of sentences, or the text, safe to show."""
    sources = result.sources
    files = [
        f"{visible(corpus.path.name)} ({counted(read, 'sentence')})"
        for corpus, read in zip(sources.corpora, sources.read, strict=True)
    ]
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
    return {
        "zero": "a removed head gives zeros (b_O stays)",
        "mean": "a removed head gives its mean over all tokens of the texts",
        "uniform": "a removed head attends to all that it may alike",
    }[result.options.method]


def sentence_case(words: str) -> str:
    """The words with a capital letter."""
    return f"{words[0].upper()}{words[1:]}"


def _content(result: Ablation, _: Choices) -> dict[str, Any]:
    options, sources, checked = result.options, result.sources, result.verified
    return {
        "model": model_entry(result.checkpoint),
        "corpora": [
            {"path": str(corpus.path), "sha256": corpus.sha256, "sentences": read}
            for corpus, read in zip(sources.corpora, sources.read, strict=True)
        ],
        "texts": list(sources.given),
        "options": {name: getattr(options, name) for name in ("method", "select", "together", "limit", "seed")}
        | {"select": list(options.select)},
        "measured": {"kind": result.kind, "importance": result.metrics[0].name}
        | {"texts": result.n_texts, "tokens": result.n_positions, "loss": result.clean_loss},
        "verification": verification_entry(checked.heads)
        | {"rows_verified": checked.n_inputs}
        | {"values_error": checked.values_error, "resumed_error": checked.resumed_error},
        "heads": [_head_entry(head) for head in result.heads],
        "layers": [_set_entry(layer, result) for layer in result.layers],
        "together": None if result.together is None else _set_entry(result.together, result),
        "curve": _curve_entry(result),
        "gradient": _gradient_entry(result),
        "compensation": {"text": compensation_text(result), "removable": removable(result)},
    }


def _estimate_entry(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "interval": None if estimate.low is None else [estimate.low, estimate.high]}


def _head_entry(head: HeadEffect) -> dict[str, Any]:
    return {
        **{"id": str(head.id), "layer": head.id.layer, "head": head.id.head, "rank": head.rank},
        **{name: _estimate_entry(head.damage.get(name)) for name in METRICS},
        "gradient": head.gradient,
        "gradient_normalised": head.gradient_normalised,
    }


def _effect_entry(effect: SetEffect, name: str, together: str = "together") -> dict[str, Any]:
    return {
        together: _estimate_entry(effect.damage[name]),
        "one_at_a_time": _estimate_entry(effect.singles[name]),
        "difference": _estimate_entry(effect.excess[name]),
    }


def _set_entry(effect: SetEffect, result: Ablation) -> dict[str, Any]:
    metric = result.metrics[0]
    return {
        "layer": effect.layer,
        "heads": [str(head) for head in effect.heads],
        **{each.name: _effect_entry(effect, each.name) for each in result.metrics},
        "ratio": ratio_of(effect, metric),
        "verdict": verdict_of(effect, metric),
    }


def _curve_entry(result: Ablation) -> dict[str, Any] | None:
    if result.curve is None:
        return None
    points: list[dict[str, Any]] = []
    for point in result.curve.points:
        points.append({"removed": point.removed})
        for name in (metric.name for metric in result.metrics):
            least, shuffled = _effect_entry(point.least, name, "least_important"), point.random.damage[name]
            points[-1][name] = {**least, "random_order": _estimate_entry(shuffled)}
    orders = {"order": result.curve.order, "random_order": result.curve.random_order}
    return {**{name: [str(head) for head in order] for name, order in orders.items()}, "points": points}


def _gradient_entry(result: Ablation) -> dict[str, Any] | None:
    if not result.options.gradient:
        return None
    projections = f"{PROJECTIONS} random projections of the final states"
    of = projections if result.kind == STATES else f"{result.kind} loss"
    return {"of": of, "spearman": result.rank_correlations}


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
    yield Text(f"{visible(result.checkpoint.short_name)} on {source_line(result)}", style="bold")
    yield Text(f"{sentence_case(what_is_measured(result))}. {sentence_case(method_words(result))}.")
    more = (
        f", what is replaced of each head within {error(checked.values_error)}, final states of resumed passes within "
        f"{error(checked.resumed_error)}, on {counted(checked.n_inputs, 'input')}"
    )
    yield verification_line(checked.heads, result.checkpoint, more)
    yield _head_table(result, choices.top or None, width)
    if sets := [result.together] if result.together else list(result.layers):
        yield _set_table(result, sets)
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
    columns: list[Column[HeadEffect]] = [
        Column("Rank", lambda head: head.rank),
        Column("Head", lambda head: head.id, left=True),
    ]
    for metric, wide in zip(result.metrics, (True, width >= _WIDE), strict=True):
        of = lambda head, name=metric.name: head.damage[name]  # noqa: E731
        columns += _measured(of, sentence_case(metric.title), metric.unit, wide and result.has_intervals)
    if result.options.gradient:
        columns += [
            Column("Gradient", lambda head: amount(head.gradient or 0.0)),
            Column("in its\nlayer", lambda head: head.gradient_normalised),
        ]
    count = f"{len(heads)} of {n}" if len(heads) < n else str(n)
    title = f"Heads removed one at a time ({count}, the one that matters most first)"
    return column_table(title, columns, heads, caption=left_out(len(heads), n, "head", "ablate.csv"))


def _set_table(result: Ablation, sets: Sequence[SetEffect]) -> Table:
    metric = result.metrics[0]
    columns: list[Column[SetEffect]] = [
        Column("Set", lambda each: "selected" if each.layer is None else f"L{each.layer}", left=True),
        Column("Heads", lambda each: len(each.heads)),
        Column("Together", lambda each: amount(each.damage[metric.name].value)),
        Column("One at\na time", lambda each: amount(each.singles[metric.name].value)),
        Column("Ratio", lambda each: ratio_of(each, metric)),
        *_measured(lambda each: each.excess[metric.name], "Difference", "", result.has_intervals),
    ]
    if result.has_intervals:
        columns.append(Column("Verdict", lambda each: verdict_of(each, metric), left=True))
    return column_table(f"Heads removed together ({metric.title}, {metric.unit})", columns, sets)


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
        known = [(metric.title, result.rank_correlations[metric.name]) for metric in result.metrics]
        correlations = ", ".join(f"{title} {'–' if value is None else f'{value:.2f}'}" for title, value in known)
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


_SAME = ("attnviz", "model", "corpora", "texts", "options", "measured")
REPORT: Report[Ablation] = Report(_content, _COLUMNS, _rows, _tables, _SAME)
