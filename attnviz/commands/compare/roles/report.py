"""JSON, CSV and tables of the best heads of two models, role by role, and of what two classifiers decide."""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare.corpus.measure import RoleComparison
from attnviz.commands.compare.report import FEW
from attnviz.commands.compare.wording import side_lines
from attnviz.judge.roles import BestHeads, Role
from attnviz.measures.decisions import TextDecisions
from attnviz.measures.intervals import ERROR_RATE, excludes_zero
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import ENDS, Field, NamedTable, pick
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import bracketed, counted, percent, quoted, rounded, signed, visible

CHOSEN_HERE = (
    "The best heads were chosen on the texts that they are scored on; intervals allow for that, at "
    f"{ERROR_RATE:g} over all heads of a role, or all pairs of a head of A and one of B."
)


def headline(result: RoleComparison) -> str:
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


def _tables(result: RoleComparison, choices: ViewOptions) -> Iterator[RenderableType]:
    yield from first_lines(result, headline(result))
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


SPEC = CommandSpec[RoleComparison](
    content=content,
    tables=_tables,
    table=lambda result, _: NamedTable("roles", ROLES, result.roles),
    patterns=True,
    paper=tuple("role a_head a_score b_head b_score difference low high a_baseline a_n b_baseline".split()),
)
