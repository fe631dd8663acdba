"""The view ``page`` of cards: the head, its pattern, tables and sentences, for a browser."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from attnviz.commands.card.measure import Card, Cards, clarity_key
from attnviz.commands.card.tables import (
    CardTable,
    ablation_table,
    cell_text,
    exchange_table,
    notes_of,
    role_table,
    title_of,
)
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.page_view import page_data as page_of_heads
from attnviz.commands.heads.relations import OWN, without_relations
from attnviz.commands.profile.page_view import sentences_entry
from attnviz.commands.profile.show import licence_lines
from attnviz.figures.families import UNNAMED, brief_name, family_of_label
from attnviz.models.wording import counted
from attnviz.options import COMMANDS
from attnviz.page.page import ERROR, short_float, statistic_entry
from attnviz.present.figure_context import sentence
from attnviz.present.published import role_name, role_numbers, shown_baseline
from attnviz.present.view import ViewOptions


def of_pattern(card: Card, choices: ViewOptions) -> ViewOptions:
    """Choices for the pattern of a card: pairs of its first role are outlined if that is a relation of the text."""
    outlined = bool(card.roles) and card.roles[0].relation is not None and not without_relations(card.part)
    return replace(choices, select=(str(card.head),), relation=OWN if outlined else None)


def page_data(result: Card | Cards, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``; of one card beside all heads of the text."""
    return _of_card(result, choices) if isinstance(result, Card) else _of_cards(result, choices)


def _of_card(card: Card, choices: ViewOptions, analysis: Analysis | None = None) -> dict[str, Any]:
    """The page of ``heads`` on the text, with this card; ``analysis`` has the heads that are on it, default all."""
    data = page_of_heads(analysis or card.analysis, of_pattern(card, choices))
    of_head = next(head for head in data["heads"] if head["id"] == str(card.head))
    of_head["words"] = [["Card", title_of(card)], *(["Note", note] for note in notes_of(card))]
    title = f"{card.head} of {data['title']}"
    line = data["command_line"]
    options = [*line["options"], *COMMANDS["card"].typed(card.options)]
    return data | {
        "command": "card",
        "title": title,
        "caption": sentence(f"Interactive page of {title}; opens from disk, without network"),
        "command_line": line | {"program": ["card"], "texts": [str(card.corpus or card.text)], "options": options},
        "tables": _tables([card]),
        "examples": _sentences(card),
        "notes": ["Labels are of this text alone; ? marks an indication only.", *_notes([card])],
    }


def _of_cards(result: Cards, choices: ViewOptions) -> dict[str, Any]:
    """Several cards, each with the text that its own pattern is of."""
    pages, heads, patterns, axes = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]](), list[Any]()
    for card in result.cards:
        alone = replace(card.analysis, heads=(card.analysis.head(card.head),))
        page = _of_card(card, replace(choices, budget=0), alone)
        (of_head,), (packed,) = page["heads"], page["patterns"]
        pages.append(page)
        name = role_name(card.roles[0].role, None) if card.roles else UNNAMED.name
        evidence = [f"The pattern is on {card.part.figure_context.text_line}."]
        if card.roles:
            role = card.roles[0]
            evidence.insert(0, f"{role_name(role.role, role.direction)}, {role_numbers(role)}")
        family = family_of_label(card.roles[0].role) if card.roles else UNNAMED
        heads.append(of_head | {
            "label": name, "short": brief_name(name), "role": None, "patterns": [len(patterns)],
            "family": asdict(family), "evidence": ". ".join(evidence),
        })  # fmt: skip
        patterns.append(packed | {side: packed[side] + len(axes) for side in ("rows", "columns")})
        axes += page["axes"]
    title = f"{counted(len(heads), 'head')} of {result.checkpoint.short_name}"
    scores = [card.roles[0].score if card.roles else None for card in result.cards]
    baselines = [shown_baseline(card.roles[0].baseline) if card.roles else None for card in result.cards]
    counts = [len(card.roles) for card in result.cards]
    begins = min(range(len(pages)), key=lambda at: clarity_key(result.cards[at]))
    line, first = pages[begins]["command_line"], result.cards[0]
    given = first.corpus is not None or first.text in first.texts[1:]  # else each head has an example of its own
    return pages[begins] | {
        "title": title,
        "command_line": line | {"texts": line["texts"] if given else []},
        "rows": list(dict.fromkeys(head.id.layer_name for head in result.cards[0].analysis.heads)),
        "caption": sentence(f"Interactive page of the cards of {title}; opens from disk, without network"),
        "statistics": [
            statistic_entry("score", "score", "of the clearest role", "", [None], scores),
            statistic_entry("baseline", "baseline", "of the same role", "", [None], baselines),
            statistic_entry("roles", "roles", "that the head passes", "", [None], counts),
        ],
        "heads": heads,
        "axes": axes,
        "patterns": patterns,
        "tables": _tables(result.cards),
        "examples": [entry for card in result.cards for entry in _sentences(card)],
        "notes": [
            "A head's label is its clearest role over the corpus; each has a text of its own.",
            *_notes(result.cards),
        ],
    }  # fmt: skip


def _notes(cards: Sequence[Card]) -> list[str]:
    """Notes on the weights, and licences of the sentences."""
    licences = [
        line for card in cards if card.profile is not None for line in licence_lines(card.profile, card.examples)
    ]
    return [f"Weights on the page are within {ERROR} of the recomputed ones.", *dict.fromkeys(licences)]


def _tables(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """The tables of the cards that have rows, with a column for the head."""
    entries = []
    for make in (role_table, exchange_table, ablation_table):
        tables = [(card, make(card)) for card in cards]
        rows = [[str(card.head), *map(_page_cell, row)] for card, table in tables for row in table.rows]
        if rows:
            first: CardTable = tables[0][1]
            entries.append(
                {"title": first.title, "note": "", "columns": ["head", *first.columns], "rows": rows, "head": 0}
            )
    return entries


def _page_cell(value: Any) -> Any:
    """Numbers as numbers, so that the page sorts them."""
    if isinstance(value, float):
        return short_float(value)
    return value if isinstance(value, int) else cell_text(value)


def _sentences(card: Card) -> list[dict[str, Any]]:
    by_name = {role.role: role for role in card.roles}
    return [sentences_entry(of, by_name.get(of.role)) for of in card.examples]
