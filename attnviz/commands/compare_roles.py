"""Compare two models of any shapes over a corpus, role by role: the best head of each, with intervals and guesses.

For every role the head with the highest score of each model is taken; the difference of both scores is B - A, and its
interval holds over all pairs of a head of A and one of B (:func:`attnviz.judge.roles.best_heads`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare import FEW
from attnviz.inputs.reading import Corpus
from attnviz.judge.roles import BestHeads, Role
from attnviz.measures.decisions import TextDecisions
from attnviz.measures.intervals import ERROR_RATE, excludes_zero
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.compared import model_names, why_not_compared
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import Field, Table, interval_field, pick, values_of
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result
from attnviz.present.sentences import first_lines, verification_line
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.run.checks import Verification
from attnviz.wording import bracketed, counted, percent, quoted, rounded, signed, visible


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RoleComparison(Result):
    """Of two models of any shapes the best head of each for every role; both are verified on a sample of the texts."""

    command: ClassVar[str] = "compare.roles"
    noun: ClassVar[str] = "Comparison"

    first: Checkpoint  # A
    second: Checkpoint  # B
    corpus: Corpus
    texts: int  # that were compared
    tokens: int
    left_out: int  # texts
    seed: int
    verifications: tuple[Verification, Verification]  # of A and of B
    texts_verified: int
    parser: str | None  # of a corpus without trees; None without one
    roles: tuple[BestHeads, ...]  # the largest difference first, those without an interval last
    decisions: tuple[TextDecisions, ...] | None = None  # of two classifiers, a text each; None for other models
    text_notes: tuple[str, ...] = ()  # on how A reads the corpus

    @property
    def flips(self) -> list[TextDecisions]:
        """The texts of which two classifiers have different classes."""
        return [text for text in self.decisions or () if text.flips]

    @property
    def accuracy(self) -> dict[str, float] | None:
        """Shares of the texts with a label that ``a`` and ``b`` are right on, and their number, ``n``; None without."""
        labelled = [text for text in self.decisions or () if text.label is not None]
        if not labelled:
            return None
        right = {side: sum(getattr(text, side) == text.label for text in labelled) for side in "ab"}
        return {side: n / len(labelled) for side, n in right.items()} | {"n": len(labelled)}

    @property
    def reading_notes(self) -> list[str]:
        notes = [*self.first.notes, *self.second.notes, *self.text_notes]
        if self.decisions is None and self.first.classifier is not None and self.second.classifier is not None:
            notes.append(f"Decisions are not compared: {why_not_compared(self.first, self.second)}.")
        return list(dict.fromkeys(notes))

    @property
    def checkpoint(self) -> Checkpoint:  # of the heads' numbers
        return self.first

    @property
    def side_names(self) -> tuple[str, str]:
        return model_names(self.first, self.second)

    @property
    def source(self) -> str:
        """One line: the corpus and how much of it was read."""
        counts = f"{counted(self.texts, 'text')}, {counted(self.tokens, 'token')}"
        return f"{visible(self.corpus.path.name)} ({counts})"

    @property
    def side_lines(self) -> list[str]:
        a, b = self.side_names
        return [f"A: {a}", f"B: {b}", f"corpus: {self.source}"]

    @property
    def sides_in_words(self) -> str:
        a, b = self.side_names
        return f"A being {a} and B {b}, over the corpus {self.source}"

    @property
    def in_words(self) -> str:
        first, second = self.side_names
        return f"of {first} with {second} on {self.source}: the best heads for {counted(len(self.roles), 'role')}"

    @property
    def judged_roles(self) -> list[BestHeads]:
        """The roles whose difference has an interval: of enough texts."""
        return [row for row in self.roles if row.interval is not None]


# What is written and said

CHOSEN_HERE = (
    "The best heads were chosen on the texts that they are scored on; intervals allow for that, at "
    f"{ERROR_RATE:g} over all heads of a role, or all pairs of a head of A and one of B."
)

_INTERVAL = partial(bracketed, write=rounded)


def _of(side: str) -> Iterator[Field[BestHeads]]:
    best = f"the head of {side.upper()} with the highest score"
    yield Field(side.upper(), f"{side}.id", name=f"{side}_head", meaning=best)
    meanings = {"direction": "", "score": "its score", "baseline": "its guess", "n": "its instances, or tokens"}
    for name, meaning in meanings.items():
        yield Field(name, f"{side}.{name}", name=f"{side}_{name}", meaning=meaning)
    yield interval_field(f"{side}_interval", f"{side}.interval", write=_INTERVAL)


_FIELDS: tuple[Field[BestHeads], ...] = (
    Field(name="role", write=lambda role: role_name(role, None)),
    *_of("a"),
    *_of("b"),
    Field("B − A", name="difference", write=signed, meaning="score of B less that of A"),
    interval_field(write=_INTERVAL, over="over all pairs of heads"),
)


def content(result: RoleComparison, _: ViewOptions) -> dict[str, Any]:
    """What the documents of models of one shape and of others have in common."""
    counts = values_of(result, "texts", "tokens", "left_out", "parser")
    verified = [{**verification_entry(side), "texts_verified": result.texts_verified} for side in result.verifications]
    return {
        "models": [model_entry(model) for model in (result.first, result.second)],
        "corpora": [{**result.corpus.entry, **counts}],
        "seed": result.seed,
        "verification": verified,
        **({"accuracy": result.accuracy, "flips": result.flips} if result.decisions is not None else {}),
    }


def found_lines(result: RoleComparison, said: str) -> Text:
    """What was found, both sides, and how they were verified; what decisions say of both, if they are compared."""
    sample = f" on {counted(result.texts_verified, 'text')}"
    models = zip(result.verifications, (result.first, result.second), strict=True)
    if result.decisions is not None:
        said += f".\nB gives {len(result.flips)} of {counted(result.texts, 'text')} another class than A"
    if result.accuracy is not None:
        a, b = (percent(result.accuracy[side]) for side in "ab")
        said += f"; of {result.accuracy['n']:,} with a label A is right on {a}, B on {b}"
    verified = [verification_line(side, model, sample=sample) for side, model in models]
    return first_lines(f"{said}.", result.side_lines, *verified)


def flip_table(result: RoleComparison, rows: int | None, file: str) -> Table[TextDecisions]:
    """The texts of which two classifiers have different classes."""
    columns: list[Field[TextDecisions]] = [
        Field(name="line"),
        Field(name="a", write=visible),
        Field(name="b", write=visible),
        Field(name="label", write=lambda label: label and visible(label), detail=True),
        Field(name="text", write=quoted),
    ]
    return Table("Texts that change their class", columns, result.flips).first(rows, file, "text")


def role_table(result: RoleComparison, rows: int | None, file: str) -> Table[BestHeads]:
    """The best heads of both models side by side, the largest difference first; ``file`` has all rows."""

    def score(role: Role) -> str:
        return f"{rounded(role.score)} ({rounded(shown_baseline(role.baseline, role.role))})"

    columns: list[Field[BestHeads]] = [
        *pick(_FIELDS, "role", "a_head"),
        Field("Score (guess)", lambda row: score(row.a)),
        *pick(_FIELDS, "b_head"),
        Field("Score (guess)", lambda row: score(row.b)),
        *pick(_FIELDS, "difference", "interval", "a_n"),
    ]
    table = Table("Best heads by role", columns, result.roles)
    return table.first(rows, file, "role", "the largest difference first")


def _tables(result: RoleComparison, choices: ViewOptions) -> Iterator[RenderableType]:
    yield found_lines(result, roles_headline(result))
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
    table=lambda result, _: Table("", _FIELDS, result.roles, name="roles"),
    patterns=True,
    paper=tuple("role a_head a_score b_head b_score difference low high a_baseline a_n b_baseline".split()),
)


def roles_headline(result: RoleComparison) -> str:
    """For how many roles the best head of either model scores clearly higher, and higher than its guess."""
    known = result.judged_roles
    clear = [row.difference > 0 for row in known if excludes_zero(row.interval) and row.better.margin > 0]
    (a, b), of_a, of_b = result.side_names, clear.count(False), clear.count(True)
    roles = f"{counted(len(known), 'role')} with an interval"
    return f"Of {roles} {a} has the clearly better head for {of_a}, {b} for {of_b}"
