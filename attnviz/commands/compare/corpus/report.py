"""JSON, CSV and tables of a comparison over a corpus."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange
from attnviz.commands.compare.report import DIFFERENCE, NOISE, THOUSANDTHS
from attnviz.commands.compare.wording import dropout_note, side_lines
from attnviz.judge.roles import ENOUGH_TEXTS as ENOUGH_FOR_ROLES
from attnviz.judge.roles import ERROR_RATE, Role
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.models.opening import encoder_note
from attnviz.models.wording import counted, span, visible
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import HEAD, Field, entry, named, plain
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions


def changed_line(result: CorpusComparison) -> str:
    """Sentence on how many heads changed, or why there is no verdict."""
    if not result.judged:
        return f"Too few texts to say which heads changed: {counted(result.texts, 'text')}, expected {ENOUGH_TEXTS}"
    beyond = "by more than dropout" if result.dropout else "at all (no dropout to compare with)"
    return f"{len(result.changed)} of {counted(len(result.heads), 'head')} changed {beyond}"


def _content(result: CorpusComparison, choices: ViewOptions) -> dict[str, Any]:
    return {
        "models": [model_entry(model) for model in (result.first, result.second)],
        "corpora": [
            {
                "path": str(result.corpus.path), "sha256": result.corpus.sha256, "texts": result.texts,
                "tokens": result.tokens, "left_out": result.left_out, "parser": result.parser,
            }
        ],
        "seed": result.seed,
        "verification": [
            {**verification_entry(each), "texts_verified": result.texts_verified} for each in result.verifications
        ],
        "yardsticks": {"dropout": result.dropout or None, "largest": result.largest},
        "changed": len(result.changed) if result.judged else None,
        "heads": [entry(_FIELDS, head) for head in result.select(choices.select)],
    }  # fmt: skip


def _role(role: Role | None) -> dict[str, Any] | None:
    if role is None:
        return None
    return {"name": role.role, **{name: getattr(role, name) for name in ("direction", "score", "baseline", "n")}}


def _roles(head: HeadChange) -> str:
    names = ["none" if role is None else role_name(role.role, None) for role in (head.before, head.after)]
    return visible(f"{names[0]} → {names[1]}" if head.role_changed else names[1])


_FIELDS: tuple[Field[HeadChange], ...] = (
    *HEAD,
    *named(DIFFERENCE, "rank", "distance"),
    Field(
        "Interval", lambda head: head.interval and list(head.interval), name="interval",
        csv={"low": (0,), "high": (1,)}, write=partial(span, digits=3), optional=2,
    ),
    *named(DIFFERENCE, "divergence", "total_variation"),
    NOISE,
    Field(value=lambda head: head.above_noise and list(head.above_noise), name="above_noise", csv={}),
    *plain("p", "q"),
    Field(
        "Changed", lambda head: head.changed if head.interval else None, name="changed",
        write={True: "yes", False: "no"}.get, left=True,
    ),
    Field(value=lambda head: _role(head.before), name="role_before", csv={"role_before": ("name",)}),
    Field(value=lambda head: _role(head.after), name="role_after", csv={"role_after": ("name",)}),
    *plain("role_changed"),
)  # fmt: skip


def _tables(result: CorpusComparison, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    sample = f" on {counted(result.texts_verified, 'text')}"
    yield Text("\n".join(side_lines(result)), style="bold")
    models = zip(result.verifications, (result.first, result.second), strict=True)
    yield Text("\n").join(verification_line(each, model, sample=sample) for each, model in models)
    yield Text(changed_line(result), style="bold")
    columns: list[Field[HeadChange]] = [
        *named(_FIELDS, "rank", "id", "distance", "interval", "noise", "changed"),
        Field("Role (A → B)", _roles, left=True, least=12),
        *named(_FIELDS, "total_variation"),
    ]
    last = ["", "largest", THOUSANDTHS(result.largest), *[""] * 5]
    heads, order = result.select(choices.select), "the most different first"
    yield first_rows("Heads", columns, heads, choices.top, "compare-corpus.csv", width=width, order=order, last=last)
    yield _notes(result)


def _notes(result: CorpusComparison) -> Text:
    few = f"With fewer than {ENOUGH_TEXTS} texts there are no intervals, and no head is said to have changed."
    changed = (
        "Changed: the interval of the distance is above dropout, and so is that of their difference, text by text; "
        f"both at {ERROR_RATE} over all heads together (Bonferroni), and the rate of false discoveries is at most "
        f"{ERROR_RATE} (Benjamini-Yekutieli 2001)."
    )
    dropout = (
        f"Dropout: {dropout_note(result.dropout, 'the same texts')}."
        if result.dropout
        else "A has no module that drops hidden states, so there is no noise to compare with: changed means different "
        "from 0."
    )
    many = "" if result.texts >= ENOUGH_FOR_ROLES else (
        f" Shares of attention give no role with fewer than {ENOUGH_FOR_ROLES} texts."
    )  # fmt: skip
    return notes(
        "Distance: square root of the Jensen-Shannon divergence averaged over the queries of a text, then the mean "
        f"over texts. The largest possible here is {result.largest:.3f}.",
        dropout,
        changed if result.judged else few,
        f"Role: the clearest on this corpus, without the control by an untrained copy that profile has.{many} "
        f"It is another in B for {counted(sum(head.role_changed for head in result.heads), 'head')}.",
        encoder_note(result.first),
        f"{counted(result.left_out, 'text')} left out." if result.left_out else "",
    )


SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    fields=_FIELDS,
    patterns=True,
    all_selected=True,
    paper=("rank", "id", "distance", "low", "high", "changed", "role_before", "role_after"),
)  # fmt: skip
"""The command's presentation."""
