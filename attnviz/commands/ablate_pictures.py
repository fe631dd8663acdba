"""The pictures of an ablation: the most important heads, and ever more heads removed."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

from attnviz.commands.ablate import REPLACEMENTS, Ablation, measured_text, source_text
from attnviz.figures.charts import Column, CurvesPlan, Estimates, RowsPlan
from attnviz.measures.intervals import ERROR_RATE
from attnviz.measures.predictions import Metric
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted


def _no_curve(result: Ablation) -> str:
    if result.curve is not None:
        return ""
    if len(result.heads) == 1:
        return "one head alone was removed"
    return "the selected heads were removed as one set" if result.together is not None else "no curve was asked for"


def _interval_text(result: Ablation, drawn: str) -> str:
    if not result.has_intervals:
        return f"{counted(result.n_texts, 'text')}: too few for intervals"
    return f"{drawn}: intervals at {ERROR_RATE} over all of them together, bootstrap over texts; none where not known"


def _plan(result: Ablation, name: str, title: str, what: str, *facts: str) -> dict[str, Any]:
    """Name, caption, title and notes of a figure."""
    model, source = result.checkpoint.short_name, source_text(result)
    measured, unchanged = measured_text(result)
    replaced = REPLACEMENTS[result.method]
    last = " ".join(f"{capital(fact)}." for fact in facts if fact)
    noted = (f"{source}: {measured}.", unchanged and f"{capital(unchanged)}.", f"{capital(replaced)}.", last)
    measured = "; ".join(filter(None, (measured, unchanged)))
    return {
        "stem": f"ablate-{name}",
        "caption": caption_of(f"{model} on {source}, {measured}: {what}", replaced, *facts),
        "title": model + title,
        "notes": tuple(filter(None, noted)),
    }


def _drawn(rows: Sequence[Any], path: str, metric: Metric) -> Estimates:
    """The estimates of a metric that rows have at a path of attributes."""
    estimates = [attrgetter(path)(row)[metric.name] for row in rows]
    return Estimates.of([(one.value, one.interval) for one in estimates])


def _plan_heads(result: Ablation, choices: ViewOptions) -> Iterator[RowsPlan]:
    heads = result.heads[: choices.top or None]
    n = len(result.heads)
    count = counted(n, "head") if len(heads) == n else f"{len(heads)} of {n} heads"
    columns = []
    for metric in result.metrics[:2]:
        middle = median(head.damage[metric.name].value for head in result.heads)
        columns.append(Column(metric.title, metric.unit, _drawn(heads, "damage", metric), middle))
    titles = " and ".join(column.title for column in columns)
    what = f"{titles} on removing one head, {count}, the one that matters most first"
    facts = _interval_text(result, "bars"), "dotted: the median of all heads"
    about = _plan(result, "heads", f" without one head: {count}", what, *facts)
    yield RowsPlan(**about, names=tuple(str(head.id) for head in heads), columns=tuple(columns))


def _plan_curve(result: Ablation, _: ViewOptions) -> Iterator[CurvesPlan]:
    assert result.curve is not None
    metric, points = result.metrics[0], result.curve.points
    what = (
        f"{metric.title} on removing ever more of {len(result.heads)} heads, the least important first (line), beside "
        "the sum of what these do one at a time (dashed) and a random order (dotted)"
    )
    facts = "the order was found on the same texts", "above the dashed line: more than the sum"
    title = " without more and more of its heads"
    yield CurvesPlan(
        **_plan(result, "curve", title, what, _interval_text(result, "bands"), *facts),
        removed=tuple(point.removed for point in points),
        least=_drawn(points, "least.damage", metric),
        singles=_drawn(points, "least.singles", metric),
        random=_drawn(points, "random.damage", metric),
        label=f"{metric.title} ({metric.unit})",
    )


HEADS = Drawing(_plan_heads)
CURVE = Drawing(_plan_curve, missing=_no_curve)
