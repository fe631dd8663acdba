"""JSON, CSV and tables of a card, or of several."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from math import inf
from operator import itemgetter
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.ablate.report import with_intervals
from attnviz.commands.card.measure import NEAREST, Card, Cards
from attnviz.commands.card.tables import (
    LEGEND,
    cell_text,
    measured_on,
    no_sentence,
    not_measured,
    notes_of,
    sentence_of,
    strongest,
    tables_of,
    title_of,
)
from attnviz.commands.profile.report import ROLE_FIELDS
from attnviz.commands.profile.show import example_tables
from attnviz.judge.roles import Role, role_key
from attnviz.present.documents import model_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, NamedTable, by_name, entry, pick
from attnviz.present.figure_context import capital
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, left_out, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import examples_entry
from attnviz.profiles.published import published_entries

_ROLES = pick(ROLE_FIELDS, "role", "direction", "score", "interval", "baseline", "untrained", "n")


def _content(result: Card | Cards, _: ViewOptions) -> dict[str, Any]:
    first = result.cards[0]
    return {
        "model": model_entry(first.checkpoint),
        "texts": list(result.texts),
        "corpora": [] if first.corpus is None else [{"path": str(first.corpus)}],
        "options": first.options,
        "profile": first.profile and first.profile.origin,
        "cards": [_card_entry(card) for card in result.cards],
    }


def _card_entry(card: Card) -> dict[str, Any]:
    head, effects, circuits, repeats = card.head, card.outputs.effects, card.circuits, card.on_repeats
    shown = card.shown_examples
    promotions = None if effects is None else effects.promotions.get(head)
    of_weights = without = None
    if circuits is not None:
        reads, read_by = (
            pair and {**asdict(pair), "id": str(pair.id), "writer": str(pair.writer)}
            for pair in strongest(circuits, head)
        )
        of_head = circuits.head(head)
        of_weights = {"reads": reads, "read_by": read_by, "copying": of_head.copying, "untrained": of_head.untrained}
    if card.ablation is not None:
        effect = card.ablation.head(head)
        roles = [with_intervals(vars(role)) for role in effect.roles]
        without = {"texts": card.ablation.n_texts, "method": card.ablation.method}
        without |= {**with_intervals(effect.damage), "roles": roles}
    return {
        "shown": card.text,
        "tokens": tokens_entry(card.tokens),
        "verification": verification_entry(card.analysis.verification),
        **target_entry(card.analysis.target),
        "head": str(head),
        "sentence": sentence_of(card).removesuffix(".") or None,
        "not_measured": not_measured(card),
        "roles": [entry(_ROLES, role) for role in card.roles],
        "examples": shown and examples_entry([shown]),
        "published": published_entries(claim for claim in card.analysis.published if claim.id == head),
        "nearest": [{"id": str(other), "divergence": distance} for other, distance in card.nearest[:NEAREST]],
        "outputs": {
            "projection_share": card.outputs.head(head).projection_share,
            "at": effects and effects.position,
            "promoted": promotions and [asdict(token) for token in promotions.promoted],
        },
        "circuits": of_weights,
        "ablation": without,
        "patch": card.patched,
        "on_repeats": repeats and with_intervals(vars(repeats.head(head).roles[0])),
    }


def _table(result: Card | Cards, _: ViewOptions) -> NamedTable[dict[str, Any]]:
    rows = [{"id": str(card.head), **entry(_ROLES, role)} for card in result.cards for role in card.roles]
    fields = [replace(field, value=itemgetter(field.name)) for field in _ROLES]
    return NamedTable("", [*by_name("id"), *fields], rows)


def _tables(result: Card | Cards, choices: ViewOptions) -> Iterator[RenderableType]:
    first = result.cards[0]
    yield verification_line(first.analysis.verification, first.checkpoint)
    if isinstance(result, Card):
        yield Text(title_of(result), "bold")
        yield Text(sentence_of(result) or no_sentence(result))
        for table in tables_of(result):
            listed = table.texts[: choices.rows(3) or None]
            texts = [
                Field[list[str]](capital(name) if len(name) > 1 else name, itemgetter(number))
                for number, name in enumerate(table.columns)
            ]
            caption = left_out(len(listed), len(table.rows), "row", "card.csv")
            yield RowTable(table.title, texts, listed, caption=caption)
        if choices.verbose:
            if result.profile is not None and result.shown_examples is not None:
                yield from example_tables(result.profile, [result.shown_examples], 0)
            yield notes(*notes_of(result))
        return

    def of_role(title: str, value: Callable[[Role], object]) -> Field[Card]:
        return Field(title, lambda card: value(card.roles[0]) if card.roles else "")

    columns: list[Field[Card]] = [
        Field("Head", lambda card: card.head),
        of_role("Role", lambda role: role_name(role.role, role.direction)),
        of_role("Score", lambda role: role.score),
        of_role("Guess", lambda role: shown_baseline(role.baseline)),
        of_role("Interval", lambda role: cell_text(role.interval, 2)),
        of_role("Untrained", lambda role: role.untrained),
        of_role("n", lambda role: role.n),
        Field("Roles", lambda card: len(card.roles)),
    ]
    title = f"Cards of {result.checkpoint.short_name}"
    if any(card.roles for card in result.cards):
        title += f", roles over {measured_on(*result.cards)}"
    cards = sorted(result.cards, key=lambda card: role_key(card.roles[0]) if card.roles else (inf,))
    yield first_rows(title, columns, cards, choices.rows(14), "card.csv", order="the clearest role first")
    if choices.verbose:
        yield notes(LEGEND)


SPEC = CommandSpec[Any](content=_content, table=_table, tables=_tables, patterns=True)
