"""JSON, CSV (a row per head and role), Markdown and the index of several cards."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from attnviz.commands.card.measure import Card, Cards, clarity_key
from attnviz.commands.card.report import ROLES, head_content, markdown, roles_on, run_content
from attnviz.commands.card.wording import evidence_of, in_words
from attnviz.present.documents import markdown_text
from attnviz.present.fields import Field, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions


def _content(result: Cards, _: ViewOptions) -> dict[str, Any]:
    cards = [head_content(card) for card in result.cards]
    return run_content(result.cards[0], result.texts) | {"cards": cards}


def _rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row per head and role."""
    return ({"id": card["head"], **role} for card in document["cards"] for role in card["roles"])


def _clearest(card: Card) -> str:
    """What the head does by its clearest role."""
    return in_words(card.roles[0], briefly=True) if card.roles else "passes no role"


def _tables(result: Cards, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    first = result.cards[0]
    yield verification_line(first.analysis.verification, result.checkpoint)
    roles = [role for card in result.cards for role in card.roles]
    over = "" if first.profile is None else f" over {roles_on(first.profile, roles)}"
    columns: list[Field[Card]] = [
        Field("Head", lambda card: card.head, left=True),
        Field("What it does by its clearest role", _clearest, left=True, least=30, fold=True),
        Field("Roles", lambda card: len(card.roles)),
    ]
    title = f"Cards of {result.checkpoint.short_name}{over}"
    cards = sorted(result.cards, key=clarity_key)
    yield first_rows(title, columns, cards, choices.top, "cards.md", width=width, order="the clearest role first")
    yield notes(evidence_of(roles))


def _markdown(result: Cards) -> str:
    """An index, then every card."""
    index = "\n".join(
        f"- [{card.head}](#{str(card.head).lower()}) {markdown_text(_clearest(card))}" for card in result.cards
    )
    cards = (markdown(card, f"## {card.head}").strip() for card in result.cards)
    return "\n\n".join([f"# Heads of {markdown_text(result.checkpoint.short_name)}", index, *cards]) + "\n"


SPEC = CommandSpec[Cards](
    content=_content, tables=_tables, fields=(*plain("id"), *ROLES), entries=_rows, patterns=True, top=20,
    text=("cards.md", _markdown),
)  # fmt: skip
