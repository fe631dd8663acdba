"""JSON, CSV and tables of a comparison over a corpus."""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter, sub
from typing import Any

from rich.console import RenderableType

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange
from attnviz.commands.compare.report import DIFFERENCE, FEW, MOST_DIFFERENT_FIRST, THOUSANDTHS
from attnviz.commands.compare.roles.report import (
    CHOSEN_HERE,
    ROLES,
    content,
    first_lines,
    flip_table,
    left_out_note,
    role_table,
)
from attnviz.judge.roles import MIN_TEXTS_SHARES
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT
from attnviz.present.fields import ENDS, HEAD, Field, NamedTable, pick, plain
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import bracketed, counted, span, visible


def headline(result: CorpusComparison) -> str:
    """Sentence on the head that moved most, and on roles."""
    moved = [head for head in result.heads if head.distance]
    if not moved:
        return "Nothing changed: every head attends the same way on both sides"
    most = moved[0]
    interval = "" if most.interval is None else f" ({span(most.interval, digits=3)})"
    n_roles = sum(head.role_changed for head in result.heads)
    roles = f"{counted(n_roles, 'role')} changed" if n_roles else "no role changed"
    return (
        f"{len(moved)} of {counted(len(result.heads), 'head')} moved, most {most.id}: {most.distance:.3f}{interval} of "
        f"at most {result.largest:.2f}; {roles}"
    )


def _content(result: CorpusComparison, choices: ViewOptions) -> dict[str, Any]:
    roles = NamedTable("roles", ROLES, result.roles).entries()
    return {**content(result, choices), "largest_possible": result.largest, "roles": roles}


def _role(side: str) -> Field[HeadChange]:
    def value(head: HeadChange) -> dict[str, Any] | None:
        role = getattr(head, side)
        names = ("direction", "score", "baseline", "n")
        return role and {"name": role.role, **{name: getattr(role, name) for name in names}}

    meaning = f"the clearest role of the {'first' if side == 'before' else 'second'} model's head"
    return Field(value=value, name=f"role_{side}", csv={f"role_{side}": ("name",)}, meaning=meaning)


def _roles(head: HeadChange) -> str:
    names = ["none" if role is None else role_name(role.role, None) for role in (head.before, head.after)]
    return visible(f"{names[0]} → {names[1]}" if head.role_changed else names[1])


_WRITE_INTERVAL = partial(bracketed, write=THOUSANDTHS)


def _distance_on(group: str, title: str) -> tuple[Field[HeadChange], Field[HeadChange]]:
    ends = {f"{group}_low": (0,), f"{group}_high": (1,)}
    return (
        Field(title, attrgetter(f"{group}.distance"), name=group, unit="√nats", write=THOUSANDTHS),
        Field("Interval", attrgetter(f"{group}.interval"), name=f"{group}_interval", csv=ends, write=_WRITE_INTERVAL),
    )


_ON_FLIPS = (*_distance_on("on_flips", "On these"), *_distance_on("on_others", "On others"))
_FIELDS: tuple[Field[HeadChange], ...] = (
    *HEAD,
    *pick(DIFFERENCE, "rank", "distance"),
    Field(
        "Interval",
        name="interval",
        csv=ENDS,
        write=_WRITE_INTERVAL,
        detail=True,
        meaning=f"its interval at {ERROR_RATE:g}, for all heads together",
    ),
    *pick(DIFFERENCE, "divergence", "total_variation"),
    _role("before"),
    _role("after"),
    *plain("role_changed"),
)


def _tables(result: CorpusComparison, choices: ViewOptions) -> Iterator[RenderableType]:
    yield from first_lines(result, headline(result))
    columns: list[Field[HeadChange]] = [
        *pick(_FIELDS, "rank", "id", "distance", *(["interval"] if result.judged else [])),
        Field("Role (A → B)", _roles),
        *pick(_FIELDS, "total_variation"),
    ]
    last = ["", "largest", THOUSANDTHS(result.largest), *[""] * (len(columns) - 3)]
    heads, rows = result.select(choices.select), choices.rows(FEW)
    yield first_rows("Heads", columns, heads, rows, "compare-corpus.csv", order=MOST_DIFFERENT_FIRST, last=last)
    if result.flips:
        yield from _flips(result, rows)
    if not choices.verbose:
        yield notes(left_out_note(result))
        return
    yield role_table(result, rows, "compare-corpus.json")
    intervals = (
        f"Intervals: at {ERROR_RATE} over all heads together, by a bootstrap over texts; not known where fewer than "
        f"{LEAST_WITH_EFFECT} texts differ."
    )
    if not result.judged:
        intervals = f"With fewer than {ENOUGH_TEXTS} texts there are no intervals."
    shares = ""
    if result.texts < MIN_TEXTS_SHARES:
        shares = f" Shares of attention give no role with fewer than {MIN_TEXTS_SHARES} texts."
    yield notes(
        "Distance: square root of the Jensen-Shannon divergence averaged over the queries of a text, then the mean "
        f"over texts. The largest possible here is {result.largest:.3f}.",
        intervals,
        f"Role: the clearest on this corpus, without the control by an untrained copy that profile has.{shares}",
        CHOSEN_HERE,
        left_out_note(result),
    )


def _flips(result: CorpusComparison, rows: int | None) -> Iterator[RenderableType]:
    """The texts that change their class, and the heads that change more on these than on others."""
    yield flip_table(result, rows, "compare-corpus.json")
    if min(len(result.flips), result.texts - len(result.flips)) < ENOUGH_TEXTS:
        yield notes(
            f"Too few to tell which heads change with the class: {ENOUGH_TEXTS} are needed, and as many others."
        )
        return
    distances = attrgetter("on_others.distance", "on_flips.distance")
    heads = sorted(result.heads, key=lambda head: sub(*distances(head)))
    columns = [*pick(_FIELDS, "id"), *_ON_FLIPS]
    yield first_rows(
        "Heads on texts that change their class",
        columns,
        heads,
        rows,
        "compare-corpus.csv",
        order="the largest difference first",
    )


def _table(result: CorpusComparison, choices: ViewOptions) -> NamedTable[HeadChange]:
    fields = _FIELDS if result.heads[0].on_flips is None else (*_FIELDS, *_ON_FLIPS)
    return NamedTable("heads", fields, result.select(choices.select))


SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    table=_table,
    patterns=True,
    all_selected=True,
    paper=("id", "distance", "low", "high", "role_before", "role_after"),
)
