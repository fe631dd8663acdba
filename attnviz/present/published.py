"""Table of heads that papers name, and names of roles with their direction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from attnviz.present.fields import Field, Table
from attnviz.present.tables import notes
from attnviz.profiles.parts import SYNTACTIC
from attnviz.profiles.published import PublishedHead
from attnviz.wording import rounded, visible

if TYPE_CHECKING:
    from attnviz.judge.roles import Role
    from attnviz.judge.verdicts import Verdict

# directions as tables write them
ARROWS = {
    "dependent_to_head": "dep→head",
    "head_to_dependent": "head→dep",
    "pronoun_to_name": "pronoun→name",
    "name_to_pronoun": "name→pronoun",
}

# what roles that only describe are, for people
DESCRIBING = "Sink, broad, local and long-range say where attention is, by a threshold alone: no interval, no control."


def role_name(role: str, direction: str | None) -> str:
    """A role with its direction: ``nsubj dep→head``."""
    name = visible(role.removeprefix(SYNTACTIC))
    return name if direction is None else f"{name} {ARROWS.get(direction, visible(direction))}"


def role_numbers(role: "Role") -> str:
    """``score 0.52, baseline 0.31, n = 1,234`` of a role over a corpus."""
    baseline = shown_baseline(role.baseline, role.role)
    beside_it = "" if baseline is None else f" baseline {rounded(baseline)},"
    return f"score {rounded(role.score)},{beside_it} n = {role.n:,}"


def shown_baseline(baseline: float | None, role: str = "broad") -> float | None:
    """The baseline; None for 1 of ``broad``, whose score is itself a share of uniform attention and has no other."""
    return None if baseline == 1 and role == "broad" else baseline


def score_and_baseline(judged: "Verdict | Role | None") -> tuple[float | None, float | None]:
    """Score and baseline as tables show them; None for what there is none of."""
    if judged is None:
        return None, None
    score, baseline = judged.judged
    return score, None if score is None else shown_baseline(baseline, judged.role)


def published_table(published: Sequence[PublishedHead]) -> Group:
    """Claims of papers on heads of this model (at least one), with caveats."""
    by_role: dict[str, list[str]] = {}
    for head in published:
        scores = "" if head.score is None else f" {head.score:.3f} ({head.baseline:.3f})"
        own = "" if head.universal[0] == head.role else f" (paper: {role_name(head.role, None)})"
        heads = by_role.setdefault(role_name(*head.universal) + own, [])
        heads.append(f"({head.id})" if head.weaker else f"{head.id}{scores}")
    fields: list[Field[tuple[str, list[str]]]] = [
        Field("Role", lambda row: row[0]),
        Field("Heads", lambda row: "  ".join(row[1])),
    ]
    lines = sorted({head.measured for head in published})
    lines += [f"{role_name(head.role, None)}: {head.note}" for head in published if head.note]
    if any(head.by_name for head in published):
        lines.append("The model is recognised by its name only: a fine-tuned model of this name is another one.")
    papers = ", ".join(sorted({head.paper for head in published}))
    return Group(Table(f"Published ({papers}; not measured here)", fields, list(by_role.items())), notes(*lines))
