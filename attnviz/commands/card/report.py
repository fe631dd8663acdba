"""JSON, CSV and tables of a card, or of several."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.ablate.report import with_intervals
from attnviz.commands.card.measure import NEAREST, Card, Cards, clarity_key
from attnviz.commands.card.tables import (
    LEGEND,
    cell_text,
    measured_on,
    not_measured,
    notes_of,
    strongest,
    tables_of,
    title_of,
)
from attnviz.commands.profile.report import ROLE_FIELDS
from attnviz.commands.profile.show import example_tables
from attnviz.present.documents import model_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, NamedTable, by_name, entry, pick
from attnviz.present.figure_context import capital
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, left_out, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import examples_entry
from attnviz.profiles.published import published_entries

_ROLES = pick(ROLE_FIELDS, "role", "direction", "score", "baseline", "untrained", "interval", "n")


def _content(result: Card | Cards, _: ViewOptions) -> dict[str, Any]:
    first = result.cards[0]
    profile = first.profile
    return {
        "model": model_entry(first.checkpoint),
        "texts": list(result.texts),
        "corpora": [] if first.corpus is None else [{"path": str(first.corpus)}],
        "options": first.options,
        "profile": profile and profile.origin,
        "cards": [_head_content(card) for card in result.cards],
    }


def _head_content(card: Card) -> dict[str, Any]:
    effects, ablation, circuits, repeats = card.outputs.effects, card.ablation, card.circuits, card.on_repeats
    shown = card.shown_examples
    promotions = None if effects is None else effects.promotions.get(card.head)
    pairs = (None, None) if circuits is None else strongest(circuits, card.head)
    return {
        "shown": card.text,
        "tokens": tokens_entry(card.tokens),
        "verification": verification_entry(card.analysis.verification),
        **target_entry(card.analysis.target),
        "head": str(card.head),
        "not_measured": not_measured(card),
        "roles": [entry(_ROLES, role) for role in card.roles],
        "examples": shown and examples_entry([shown]),
        "published": published_entries(head for head in card.analysis.published if head.id == card.head),
        "nearest": [{"id": str(head), "divergence": distance} for head, distance in card.nearest[:NEAREST]],
        "outputs": {
            "projection_share": card.outputs.head(card.head).projection_share,
            "at": effects and effects.position,
            "promoted": promotions and [asdict(token) for token in promotions.promoted],
        },
        "circuits": circuits
        and {
            **{
                name: pair and {**asdict(pair), "id": str(pair.id), "writer": str(pair.writer)}
                for name, pair in zip(("reads", "read_by"), pairs, strict=True)
            },
            "copying": circuits.head(card.head).copying,
            "untrained": circuits.head(card.head).untrained,
        },
        "ablation": ablation
        and {
            "texts": ablation.n_texts,
            "method": ablation.method,
            **with_intervals(ablation.head(card.head).damage),
            "roles": [with_intervals(vars(role)) for role in ablation.head(card.head).roles],
        },
        "patch": card.patched,
        "on_repeats": repeats and with_intervals(vars(repeats.head(card.head).roles[0])),
    }


def _table(result: Card | Cards, _: ViewOptions) -> NamedTable[dict[str, Any]]:
    """A row a head and role."""
    rows = [{"id": str(card.head), **entry(_ROLES, role)} for card in result.cards for role in card.roles]
    fields = [replace(field, value=itemgetter(field.name)) for field in _ROLES]
    return NamedTable("", [*by_name("id"), *fields], rows)


def _tables(result: Card | Cards, choices: ViewOptions) -> Iterator[RenderableType]:
    first = result.cards[0]
    yield verification_line(first.analysis.verification, first.checkpoint)
    if isinstance(result, Card):
        yield from _card_tables(result, choices)
    else:
        yield _index(result, choices.rows(14))
        if choices.verbose:
            yield notes(LEGEND)


def _card_tables(card: Card, choices: ViewOptions) -> Iterator[RenderableType]:
    yield Text(title_of(card), "bold")
    top = choices.rows(3) or None
    for table in tables_of(card):
        listed = table.texts[:top]
        columns = [
            Field[list[str]](capital(name) if len(name) > 1 else name, itemgetter(number))
            for number, name in enumerate(table.columns)
        ]
        caption = left_out(len(listed), len(table.rows), "row", "card.csv")
        yield RowTable(table.title, columns, listed, caption=caption)
    if not choices.verbose:
        return
    if card.profile is not None and card.shown_examples is not None:
        yield from example_tables(card.profile, [card.shown_examples], 0)
    yield notes(*notes_of(card))


def _index(result: Cards, top: int | None) -> RenderableType:

    def of_role(value: Any) -> Any:
        return lambda card: value(card.roles[0]) if card.roles else ""

    columns: list[Field[Card]] = [
        Field("Head", lambda card: card.head),
        Field("Role", of_role(lambda role: role_name(role.role, role.direction))),
        Field("Score", of_role(lambda role: role.score)),
        Field("Guess", of_role(lambda role: shown_baseline(role.baseline))),
        Field("Interval", of_role(lambda role: cell_text(role.interval, 2))),
        Field("Untrained", of_role(lambda role: role.untrained)),
        Field("n", of_role(lambda role: role.n)),
        Field("Roles", lambda card: len(card.roles)),
    ]
    title = f"Cards of {result.checkpoint.short_name}"
    if any(card.roles for card in result.cards):
        title += f", roles over {measured_on(*result.cards)}"
    cards = sorted(result.cards, key=clarity_key)
    return first_rows(title, columns, cards, top, "card.csv", order="the clearest role first")


SPEC = CommandSpec[Any](content=_content, table=_table, tables=_tables, patterns=True)
