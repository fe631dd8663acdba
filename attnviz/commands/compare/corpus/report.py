"""JSON, CSV and tables of a comparison over a corpus: of every head, or of the best heads role by role."""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter, sub
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange, RoleComparison
from attnviz.commands.compare.report import DIFFERENCE, FEW, MOST_DIFFERENT_FIRST, THOUSANDTHS, side_lines
from attnviz.judge.roles import MIN_TEXTS_SHARES, BestHeads, Role
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.decisions import TextDecisions
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT, excludes_zero
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import ENDS, HEAD, Field, NamedTable, pick, plain
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import bracketed, counted, percent, quoted, rounded, signed, span, visible

CHOSEN_HERE = (
    "The best heads were chosen on the texts that they are scored on; intervals allow for that, at "
    f"{ERROR_RATE:g} over all heads of a role, or all pairs of a head of A and one of B."
)


def role_headline(result: RoleComparison) -> str:
    """For how many roles the best head of either model scores clearly higher, and higher than its guess."""
    known = with_intervals(result)
    clear = [row.difference > 0 for row in known if excludes_zero(row.interval) and row.better.margin > 0]
    (a, b), of_a, of_b = result.side_names, clear.count(False), clear.count(True)
    roles = f"{counted(len(known), 'role')} with an interval"
    return f"Of {roles} {a} has the clearly better head for {of_a}, {b} for {of_b}"


def with_intervals(result: RoleComparison) -> list[BestHeads]:
    """The roles whose difference has an interval: of enough texts."""
    return [row for row in result.roles if row.interval is not None]


def _of(side: str) -> Iterator[Field[BestHeads]]:
    best = f"the head of {side.upper()} with the highest score"
    yield Field(side.upper(), lambda row: str(getattr(row, side).id), name=f"{side}_head", meaning=best)
    meanings = {"direction": "", "score": "its score", "baseline": "its guess", "n": "its instances, or tokens"}
    for name, meaning in meanings.items():
        yield Field(name, attrgetter(f"{side}.{name}"), name=f"{side}_{name}", meaning=meaning)
    ends = {f"{side}_low": (0,), f"{side}_high": (1,)}
    yield Field(value=attrgetter(f"{side}.interval"), name=f"{side}_interval", csv=ends)


ROLES: tuple[Field[BestHeads], ...] = (
    Field("Role", name="role", write=lambda role: role_name(role, None)),
    *_of("a"),
    *_of("b"),
    Field("B − A", name="difference", write=signed, meaning="score of B less that of A"),
    Field(
        "Interval",
        name="interval",
        csv=ENDS,
        write=partial(bracketed, write=rounded),
        meaning=f"its interval at {ERROR_RATE:g}, over all pairs of heads",
    ),
)


def content(result: RoleComparison, _: ViewOptions) -> dict[str, Any]:
    """What the documents of models of one shape and of others have in common."""
    counts = {name: getattr(result, name) for name in ("texts", "tokens", "left_out", "parser")}
    verified = [{**verification_entry(side), "texts_verified": result.texts_verified} for side in result.verifications]
    flips = [text._asdict() for text in result.flips]
    return {
        "models": [model_entry(model) for model in (result.first, result.second)],
        "corpora": [{**result.corpus.entry, **counts}],
        "seed": result.seed,
        "verification": verified,
        **({"accuracy": result.accuracy, "flips": flips} if result.decisions is not None else {}),
    }


def first_lines(result: RoleComparison, said: str) -> Iterator[Text]:
    """The sides, how they were verified, and what was found."""
    sample = f" on {counted(result.texts_verified, 'text')}"
    models = zip(result.verifications, (result.first, result.second), strict=True)
    yield Text("\n".join(side_lines(result)), style="bold")
    yield Text("\n").join(verification_line(side, model, sample=sample) for side, model in models)
    if result.decisions is not None:
        said += f".\nB gives {len(result.flips)} of {counted(result.texts, 'text')} another class than A"
    if result.accuracy is not None:
        a, b = (percent(result.accuracy[side]) for side in "ab")
        said += f"; of {result.accuracy['n']:,} with a label A is right on {a}, B on {b}"
    yield Text(f"{said}.", style="bold")


def flip_table(result: RoleComparison, rows: int | None, file: str) -> RowTable[TextDecisions]:
    """The texts of which two classifiers have different classes."""
    columns: list[Field[TextDecisions]] = [
        Field("Line", lambda text: text.line),
        Field("A", lambda text: visible(text.a)),
        Field("B", lambda text: visible(text.b)),
        Field("Label", lambda text: None if text.label is None else visible(text.label), detail=True),
        Field("Text", lambda text: quoted(text.text)),
    ]
    return first_rows("Texts that change their class", columns, result.flips, rows, file, "text")


def role_table(result: RoleComparison, rows: int | None, file: str) -> RowTable[BestHeads]:
    """The best heads of both models side by side, the largest difference first; ``file`` has all rows."""

    def score(role: Role) -> str:
        return f"{rounded(role.score)} ({rounded(shown_baseline(role.baseline, role.role))})"

    columns: list[Field[BestHeads]] = [
        *pick(ROLES, "role", "a_head"),
        Field("Score (guess)", lambda row: score(row.a)),
        *pick(ROLES, "b_head"),
        Field("Score (guess)", lambda row: score(row.b)),
        *pick(ROLES, "difference", "interval", "a_n"),
    ]
    order = "the largest difference first"
    return first_rows("Best heads by role", columns, result.roles, rows, file, "role", order)


def _tables_of_roles(result: RoleComparison, choices: ViewOptions) -> Iterator[RenderableType]:
    yield from first_lines(result, role_headline(result))
    yield role_table(result, choices.rows(FEW), "compare-roles.csv")
    if result.flips:
        yield flip_table(result, choices.rows(FEW), "compare-roles.json")
    yield notes(
        "Guess: uniform attention, of a relation the best of six rules. n: tokens of A, or instances between words "
        "that are content for both models. A causal model sees earlier words alone.",
        CHOSEN_HERE if choices.verbose else "",
        left_out_note(result),
    )


def left_out_note(result: RoleComparison) -> str:
    """How many texts were left out, or ''."""
    return f"{counted(result.left_out, 'text')} left out." if result.left_out else ""


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

ROLES_SPEC = CommandSpec[RoleComparison](
    content=content,
    tables=_tables_of_roles,
    table=lambda result, _: NamedTable("roles", ROLES, result.roles),
    patterns=True,
    paper=tuple("role a_head a_score b_head b_score difference low high a_baseline a_n b_baseline".split()),
)
