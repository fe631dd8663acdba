"""Effects of removed heads in files and tables (:mod:`attnviz.measures.removals`)."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from attnviz.measures.intervals import Estimate
from attnviz.measures.predictions import METRICS, OF_FUNCTION, Metric
from attnviz.measures.removals import Curve, HeadEffect, RoleEffect, SetEffect
from attnviz.models.head_ids import HeadId
from attnviz.present.documents import Entry, layer_entry
from attnviz.present.fields import HEAD, Field, Table, pick
from attnviz.present.published import role_name
from attnviz.wording import amount, bracketed

EFFECT: tuple[Field[HeadEffect], ...] = (
    *HEAD,
    Field(name="roles", csv={}),
    Field(name="rank"),
    *(
        Field[HeadEffect](
            value=lambda head, name=name: head.damage.get(name),  # type: ignore[misc]
            name=name,
            csv={name: ("value",), f"{name}_low": ("interval", 0), f"{name}_high": ("interval", 1)},
            meaning=f"{metric.title} without the head ({metric.unit or 'of the function'})",
        )
        for name, metric in (METRICS | {OF_FUNCTION.name: OF_FUNCTION}).items()
    ),
    Field(name="gradient", write=amount, meaning="how much the loss changes with the head's scale"),
)


def _by_metric(effect: SetEffect, together: str, **others: dict[str, Estimate]) -> Entry:
    """What a set of heads does, and other estimates, of each metric."""
    estimates = {together: effect.damage, "one_at_a_time": effect.singles, "difference": effect.excess, **others}
    return {metric: {name: of[metric] for name, of in estimates.items()} for metric in effect.damage}


def set_entry(effect: SetEffect) -> Entry:
    """A set of heads of one layer, or of several, in a document."""
    return {**layer_entry(effect.layer), "heads": effect.heads, **_by_metric(effect, "together")}


def curve_entry(curve: Curve) -> Entry:
    """The curve in a document."""
    points = [
        {"removed": point.removed, **_by_metric(point.least, "least_important", random_order=point.random.damage)}
        for point in curve.points
    ]
    return {"order": curve.order, "random_order": curve.random_order, "points": points}


def amounts(metric: Metric, title: str, path: str, interval: bool = False, unit: str = "") -> list[Field[Any]]:
    """A column of estimates by a metric, and perhaps one of their intervals."""
    name, of_row = metric.name, attrgetter(path)
    columns = [Field[Any](title, lambda row: amount(of_row(row)[name].value), unit)]
    if interval:
        short = title.partition(" ")[0]
        columns.append(Field("Interval", lambda row: bracketed(of_row(row)[name].interval, amount), short, detail=True))
    return columns


class _RoleOfHead(NamedTuple):
    id: HeadId
    effect: RoleEffect


def roles_table(heads: Sequence[HeadEffect], metric: Metric, intervals: bool, top: int | None) -> Table[Any]:
    """Heads on the tokens of roles."""
    columns = [
        *pick(HEAD, "id"),
        Field[Any]("Role", lambda row: role_name(row.effect.role, row.effect.direction)),
        *amounts(metric, "On its tokens", "effect.queries"),
        *amounts(metric, "On others", "effect.others"),
        *amounts(metric, "Difference", "effect.difference", intervals),
        Field("n", "effect.n", detail=True),
    ]
    rows = [_RoleOfHead(head.id, effect) for head in heads for effect in head.roles]
    rows.sort(key=lambda row: -row.effect.difference[metric.name].value)
    title, order = f"Heads on the tokens of roles, {metric.title} in {metric.unit}", "the largest difference first"
    return Table(title, columns, rows).first(top, "ablate.json", "row", order)


def sets_table(sets: Sequence[SetEffect], metric: Metric, intervals: bool, of_layers: bool) -> Table[Any]:
    """Sets of heads removed together: those of each layer, or those that were selected."""
    columns = [
        *([Field[Any]("Layer", lambda effect: effect.heads[0].layer_name)] if of_layers else []),
        *amounts(metric, "Together", "damage"),
        *amounts(metric, "One at a time", "singles"),
        *amounts(metric, "Difference", "excess", intervals),
    ]
    which = "Heads of a layer" if of_layers else "Selected heads"
    return Table(f"{which} removed together ({metric.title}, {metric.unit})", columns, sets)


def curve_table(curve: Curve, metric: Metric, intervals: bool) -> Table[Any]:
    """More and more heads removed."""
    columns = [
        Field("Heads", name="removed"),
        *amounts(metric, "Least important", "least.damage", intervals),
        *amounts(metric, "Sum of one at a time", "least.singles"),
        *amounts(metric, "Random order", "random.damage"),
    ]
    return Table(f"More and more heads removed ({metric.title}, {metric.unit})", columns, curve.points)
