"""A card: what the other commands measured of one head, its title, sentence and tables, and what was not measured.

Every number keeps the definition of the command that measures it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any, ClassVar

from attnviz.analysis.result import Analysis
from attnviz.commands.ablate import Ablation
from attnviz.commands.circuits import Circuits, Pair
from attnviz.commands.outputs import HeadOutputs
from attnviz.commands.profile.report import ROLE_FIELDS
from attnviz.errors import UsageError
from attnviz.judge.roles import Role, role_key
from attnviz.judge.verdicts import NO_LABEL, UNNAMED
from attnviz.measures.direct_effects import Promotion
from attnviz.measures.intervals import ERROR_RATE, Estimate
from attnviz.measures.paths import RUN
from attnviz.measures.predictions import Metric
from attnviz.measures.removals import SAME, RoleEffect
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, is_of_source
from attnviz.options import checked
from attnviz.present.claim import sentence
from attnviz.present.documents import Entry, model_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, Table, entry, left_out, pick
from attnviz.present.published import DESCRIBING, role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result, TextResult
from attnviz.present.role_words import role_words
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import RoleExamples, examples_entry
from attnviz.profiles.published import published_entries
from attnviz.profiles.store import StoredProfile
from attnviz.wording import counted, quoted, rounded, signed, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

NEAREST = 3  # heads with similar patterns that a card names
PROMOTED = 3  # tokens whose logits the head raises most, in the table

ROLE_COLUMNS = ("Role", "Score", "Guess", "Interval", "Untrained", "n")

LEGEND = (
    "Guess: the score of uniform attention, or of the best of six guesses where a word has to be found. Untrained: the "
    "best head of an untrained copy of the model. Intervals of scores hold at 95 % for all heads together. "
    f"{DESCRIBING}"
)

SHOWN = 3  # hits, and failures, that a card shows

Cell = str | int | float | tuple[float, float] | None


Row = tuple[Cell, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Card(TextResult):
    """Result of :func:`card`: what the other commands measured of one head; None where it was not measured."""

    command: ClassVar[str] = "card"

    head: HeadId
    analysis: Analysis
    outputs: HeadOutputs
    profile: StoredProfile | None
    nearest: tuple[tuple[HeadId, float], ...]
    circuits: Circuits | None
    ablation: Ablation | None
    on_repeats: Ablation | None
    patched: Entry | None  # its entry in patch.json, with the run's direction, metric and number of pairs
    corpus: Path | None
    texts: tuple[str, ...]
    options: Entry

    @property
    def cards(self) -> "tuple[Card, ...]":
        return (self,)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that it has over a corpus, the clearest first."""
        return () if self.profile is None else self.profile.of(self.head)

    @property
    def examples(self) -> list[RoleExamples]:
        """Sentences of its roles, the clearest role first, or of its best relation."""
        return examples_of(self.profile, self.head)

    @property
    def shown_examples(self) -> RoleExamples | None:
        """Of its clearest role with any the clearest hits and failures, :data:`SHOWN` each; None without a role."""
        passed = {role.role for role in self.roles}
        shown = next((examples for examples in self.examples if examples.role in passed), None)
        return shown and replace(shown, best=shown.best[:SHOWN], failures=shown.failures[:SHOWN])

    @property
    def promotions(self) -> Promotion | None:
        """The tokens whose logits it raises most; None where that is not known."""
        effects = self.outputs.effects
        return None if effects is None else effects.promotions.get(self.head)

    @property
    def in_words(self) -> str:
        roles = counted(len(self.roles), "role") if self.roles else "no role"
        return f"of {self.head} in {self.checkpoint.short_name}: {roles}"


@dataclass(frozen=True, repr=False, eq=False)
class Cards(Result):
    """Result of :func:`cards`: the cards of several heads of one model, in its order."""

    command: ClassVar[str] = "card"

    checkpoint: Checkpoint
    cards: tuple[Card, ...]
    texts: tuple[str, ...]  # that name the folder

    @checked
    def card(self, head: str | HeadId) -> Card:
        """The card of one head; UsageError if it has none."""
        wanted = head_named(head, self.checkpoint.kinds)
        for card in self.cards:
            if card.head == wanted:
                return card
        raise UsageError(f"{wanted} has no card here; {counted(len(self.cards), 'other head')} can be asked for.")

    @property
    def in_words(self) -> str:
        return f"of {counted(len(self.cards), 'head')} of {self.checkpoint.short_name}"


def examples_of(profile: StoredProfile | None, head: HeadId) -> list[RoleExamples]:
    """Sentences of a head's roles, the clearest role first, or of its best relation."""
    if profile is None:
        return []
    ranks = {role.role: rank for rank, role in enumerate(profile.of(head))}
    known = [examples for examples in profile.examples if examples.id == head and examples.best]
    return sorted(known, key=lambda examples: ranks.get(examples.role, len(ranks)))


# --- tables


def card_table(title: str, titles: Sequence[str], rows: Sequence[Row], decimals: int | None = None) -> Table[Row]:
    """A table of rows of values, with these titles of columns, the least important last, and decimals of numbers."""
    write = partial(cell_text, decimals=decimals)
    columns = [Field[Row](column, itemgetter(at), write=write) for at, column in enumerate(titles)]
    return Table(title, columns, rows)


def cell_text(value: Cell, decimals: int | None = None) -> str:
    """A value with these decimals, default in two digits that matter; an interval as ``0.71–0.88``; '' for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        between = " to " if min(value) < 0 else "–"
        return between.join(cell_text(end, decimals) for end in value)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if decimals is None and 0 < size < 0.095:
        return f"{'−' if value < 0 else ''}{size:.2g}"
    return rounded(value, decimals or (2 if size < 9.995 else 0))


def title_of(card: Card) -> str:
    """What the head does, by its clearest role."""
    name = f"{card.head} of {card.checkpoint.short_name}"
    if card.roles:
        return f"{name} {role_words(card.roles[0].role, card.roles[0].direction, verb='looks')}"
    head = card.analysis.head(card.head)
    shown = "no pattern that has a name" if head.label == UNNAMED else visible(head.shown)
    if head.label in NO_LABEL:
        shown = "too short for a label"
    if card.profile is None or not is_of_source(card.head.layer):
        return f"{name} on one text: {shown}"
    return f"{name} has no role over {visible(card.profile.measured_on)}; on one text: {shown}"


def sentence_of(card: Card) -> str:
    """Its clearest role as a sentence for a paper; '' without a role."""
    return f"{sentence(card.roles[0], card.checkpoint.full_name)}." if card.roles else ""


def no_sentence(card: Card) -> str:
    """Why a head without a role has no sentence, where it had too few cases for one; else ''."""
    roles = () if card.profile is None else card.profile.roles.get(card.head, ())
    few = [f"{role_name(role.role, role.direction)} {role.too_few}" for role in roles if role.too_few]
    return "" if card.roles or not few else f"No sentence for a paper, since there are too few cases: {few[0]}."


def role_table(card: Card) -> Table[Row]:
    """The roles that the head has, the clearest first."""
    rows: list[Row] = [
        (
            role_name(role.role, role.direction),
            role.score,
            shown_baseline(role.baseline, role.role),
            role.interval,
            role.untrained,
            role.n,
        )
        for role in card.roles
    ]
    return card_table("Roles", ROLE_COLUMNS, rows, decimals=2)


def measured_on(*cards: Card) -> str:
    """The corpora, or random tokens, that measured the roles of cards of one model; '' without a role."""
    profile = cards[0].profile
    return "" if profile is None else visible(profile.measured_by(role for card in cards for role in card.roles))


def exchange_table(card: Card) -> Table[Row]:
    """The heads that it reads and is read by, those with similar patterns, and what it writes."""
    rows = list[Row]()
    title, patched, circuits = "Reads and writes", card.patched, card.circuits
    if circuits is not None:
        for what, pair in zip(("reads", "is read by"), strongest(circuits, card.head), strict=True):
            if pair is not None:
                other = pair.writer if what == "reads" else pair.id
                rows.append((what, f"{other} ({pair.kind})", pair.score, f"+{rounded(pair.deviations, 0)} SD"))
    share = card.outputs.head(card.head).projection_share
    if share is not None:
        uniform = cell_text(1 / card.checkpoint.n_heads_of(card.head.layer))
        rows.append(("share of layer", "", share, f"uniform {uniform}"))
    weights = None if circuits is None else circuits.head(card.head)
    if weights is not None and weights.copying is not None:
        rows.append(("copying", "", weights.copying, f"random {signed(weights.untrained or 0.0)}"))
    if patched is not None:
        path = f" to {patched['receiver']}" if patched["receiver"] else ""
        path += " through networks" if patched["networks"] == RUN else ""
        run = f"{patched['direction']}{path}, {counted(patched['pairs'], 'pair')}"
        control = patched["unrelated"]
        rows.append(("carries", run, patched["effect"], None if control is None else f"unrelated {cell_text(control)}"))
    if card.outputs.effects is not None and card.promotions is not None:
        position = card.outputs.effects.position
        title += f" (logits at ‘{card.outputs.read.labels[position]}’ #{position})"
        raised = card.promotions.promoted[:PROMOTED]
        if raised:
            rows.append(("raises logits", ", ".join(quoted(token.text) for token in raised), raised[0].logit, None))
    middle = median(distance for _, distance in card.nearest) if card.nearest else 0.0
    if rounded(middle) != rounded(0.0):  # else all heads are alike
        near = card.nearest[:NEAREST]
        names = ", ".join(str(head) for head, _ in near)
        rows.append(("nearest patterns", names, near[0][1], f"median {cell_text(middle)}"))
    return card_table(title, ("What", "Heads or tokens", "Value", "Vs chance"), rows)


def strongest(circuits: Circuits, head: HeadId) -> tuple[Pair | None, Pair | None]:
    """The pair in which it reads, and that in which it writes, furthest above random rotations.

    None where it is not beyond what is normal for the furthest of all pairs of the model, at an error rate of 0.05.
    """
    n_pairs = sum(int((~scores.isnan()).sum()) for scores in circuits.scores.values())
    limit = NormalDist().inv_cdf(1 - ERROR_RATE / max(n_pairs, 1))
    clear = [pair for pair in circuits.pairs([head]) if pair.deviations > limit]
    reads = next((pair for pair in clear if pair.id == head), None)
    return reads, next((pair for pair in clear if pair.writer == head), None)


def ablation_table(card: Card) -> Table[Row]:
    """The effect of removing the head: on all tokens, on those of its first relation, on repeated random tokens."""
    title, rows = "Without it", list[Row]()

    def add(on: str, effect: Estimate, verdict: str | None = None) -> None:
        rows.append((on, effect.value, effect.interval or "too few texts", verdict))

    def add_role(role: RoleEffect, metric: Metric, on: str, others: str) -> None:
        add(on, role.queries[metric.name])
        add(others, role.others[metric.name])
        add("difference", role.difference[metric.name], "none shown" if role.verdict == SAME else role.verdict)

    if card.ablation is not None:
        metric = card.ablation.metrics[0]
        title += f": {metric.title} ({metric.unit})"
        add(card.ablation.texts_measured, card.ablation.head(card.head).damage[metric.name])
        role = effect_on_relation(card)
        if role is not None:
            add_role(role, metric, f"{role_name(role.role, role.direction)} ({role.n:,})", "nearest others")
    if card.on_repeats is not None:
        (role,) = card.on_repeats.head(card.head).roles
        add_role(role, card.on_repeats.metrics[0], "repeats: second copy", "first copy")
    return card_table(title, ("On", "Effect", "Interval", "Verdict"), rows)


def effect_on_relation(card: Card) -> RoleEffect | None:
    """The effect on the tokens of its first relation."""
    relation = first_relation(card.roles)
    if relation is None or card.ablation is None:
        return None
    effects = card.ablation.head(card.head).roles
    wanted = relation.role, relation.direction
    return next((effect for effect in effects if (effect.role, effect.direction) == wanted), None)


def tables_of(card: Card) -> list[Table[Row]]:
    """Its tables that have rows."""
    return [table for table in (role_table(card), exchange_table(card), ablation_table(card)) if table.rows]


def not_measured(card: Card) -> list[str]:
    """What the card does not know."""
    of_source = is_of_source(card.head.layer)
    parts = set(card.profile.parts) if card.profile else set[str]()
    circuits, cut = card.circuits, card.tokens.truncated
    on_its_tokens = effect_on_relation(card) is not None or card.on_repeats is not None
    missing = {
        f"the last {counted(cut, 'token')} of the text": cut > 0,
        "roles in sentences": not of_source or parts.isdisjoint(("statistics", "syntax")),
        "roles on repeated random tokens": not of_source or "repeats" not in parts,
        "nearest heads": not card.nearest,
        "composition": circuits is None,
        "copying": circuits is None or circuits.head(card.head).copying is None,
        "promoted tokens": card.promotions is None,
        "what happens without it": card.ablation is None,
        "what the tokens of its role lose without it": card.ablation is not None and not on_its_tokens,
    }
    return [what for what, lacking in missing.items() if lacking]


def notes_of(card: Card) -> list[str]:
    """What papers say of the head, the legend of its roles, and what was not measured."""
    lines = []
    for head in card.analysis.published:
        if head.id == card.head:
            score = "" if head.score is None else f" ({rounded(head.score)})"
            lines.append(f"{head.paper}: {role_name(*head.universal)}{score}.")
    if card.roles:
        lines.append(f"Roles over {measured_on(card)}. {LEGEND}")
    missing = not_measured(card)
    if missing:
        lines.append(f"Not measured: {'; '.join(missing)}.")
    return lines


def first_relation(roles: Sequence[Role]) -> Role | None:
    """The clearest role that is a relation."""
    return next((role for role in roles if role.relation), None)


# --- document and what is printed


_ROLES = pick(ROLE_FIELDS, "id", "role", "direction", "score", "interval", "baseline", "untrained", "n")


def _content(result: Card | Cards, _: ViewOptions) -> Entry:
    first = result.cards[0]
    return {
        "model": model_entry(first.checkpoint),
        "texts": list(result.texts),
        "corpora": [] if first.corpus is None else [{"path": str(first.corpus)}],
        "options": first.options,
        "profile": first.profile and first.profile.origin,
        "cards": [_card_entry(card) for card in result.cards],
    }


def _card_entry(card: Card) -> Entry:
    head, effects, circuits, repeats = card.head, card.outputs.effects, card.circuits, card.on_repeats
    shown = card.shown_examples
    of_weights = without = None
    if circuits is not None:
        reads, read_by = strongest(circuits, head)
        of_head = circuits.head(head)
        of_weights = {"reads": reads, "read_by": read_by, "copying": of_head.copying, "untrained": of_head.untrained}
    if card.ablation is not None:
        effect = card.ablation.head(head)
        without = {"texts": card.ablation.n_texts, "method": card.ablation.method, **effect.damage}
        without["roles"] = effect.roles
    return {
        "shown": card.text,
        "tokens": tokens_entry(card.tokens),
        "verification": verification_entry(card.analysis.verification),
        **target_entry(card.analysis.target),
        "head": head,
        "sentence": sentence_of(card).removesuffix(".") or None,
        "not_measured": not_measured(card),
        "roles": [entry(_ROLES[1:], role) for role in card.roles],
        "examples": shown and examples_entry([shown]),
        "published": published_entries(claim for claim in card.analysis.published if claim.id == head),
        "nearest": [{"id": other, "divergence": distance} for other, distance in card.nearest[:NEAREST]],
        "outputs": {
            "projection_share": card.outputs.head(head).projection_share,
            "at": effects and effects.position,
            "promoted": card.promotions and card.promotions.promoted,
        },
        "circuits": of_weights,
        "ablation": without,
        "patch": card.patched,
        "on_repeats": repeats and repeats.head(head).roles[0],
    }


def _table(result: Card | Cards, _: ViewOptions) -> Table[Role]:
    return Table("", _ROLES, [role for card in result.cards for role in card.roles])


def _tables(result: Card | Cards, choices: ViewOptions) -> "Iterator[RenderableType]":
    from rich.text import Text

    from attnviz.present.sentences import verification_line

    first = result.cards[0]
    yield verification_line(first.analysis.verification, first.checkpoint)
    if isinstance(result, Card):
        yield Text(title_of(result), "bold")
        yield sentence_of(result) or no_sentence(result)
        for table in tables_of(result):
            listed = table.rows[: choices.rows(3) or None]
            yield replace(table, rows=listed, caption=left_out(len(listed), len(table.rows), "row", "card.csv"))
        if choices.verbose and result.profile is not None and result.shown_examples is not None:
            from attnviz.commands.profile.show import example_tables

            yield from example_tables(result.profile, [result.shown_examples], 0)
        return

    title = f"Cards of {result.checkpoint.short_name}"
    if any(card.roles for card in result.cards):
        title += f", roles over {measured_on(*result.cards)}"
    cards = sorted(result.cards, key=lambda card: role_key(card.roles[0]) if card.roles else (inf,))
    none: Row = (None,) * len(ROLE_COLUMNS)
    clearest = [next(iter(role_table(card).rows), none) for card in cards]
    rows = [(str(card.head), *role, len(card.roles)) for card, role in zip(cards, clearest, strict=True)]
    table = card_table(title, ("Head", *ROLE_COLUMNS, "Roles"), rows, decimals=2)
    yield table.first(choices.rows(14), "card.csv", order="the clearest role first")


def _notes(result: Card | Cards, choices: ViewOptions) -> list[str]:
    if not choices.verbose:
        return []
    return notes_of(result) if isinstance(result, Card) else [LEGEND]


SPEC = CommandSpec[Any](content=_content, table=_table, tables=_tables, notes=_notes, patterns=True)
