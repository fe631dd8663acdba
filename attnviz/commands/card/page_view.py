"""The view ``page`` of a card: the head, its pattern, tables and sentences, for a browser."""

from dataclasses import replace
from typing import Any

from attnviz.commands.card.measure import Card
from attnviz.commands.card.tables import Cell, cell_text, notes_of, tables_of, title_of
from attnviz.commands.heads.page_view import page_data as page_of_heads
from attnviz.commands.heads.relations import OWN, without_relations
from attnviz.commands.profile.page_view import sentences_entry
from attnviz.commands.profile.show import licence_lines
from attnviz.options import COMMANDS
from attnviz.page.page import ERROR, short_float
from attnviz.present.figure_context import caption_of
from attnviz.present.view import ViewOptions


def of_pattern(card: Card, choices: ViewOptions) -> ViewOptions:
    """Choices for the pattern of a card: pairs of its first role are outlined if that is a relation of the text."""
    outlined = bool(card.roles) and card.roles[0].relation is not None and not without_relations(card.part)
    return replace(choices, select=(str(card.head),), relation=OWN if outlined else None)


def page_data(card: Card, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``: the page of ``heads`` on the text, with this card."""
    data = page_of_heads(card.analysis, of_pattern(card, choices))
    (of_head,) = [head for head in data["heads"] if head["id"] == str(card.head)]
    of_head["words"] = [["Card", title_of(card)], *(["Note", note] for note in notes_of(card))]
    title = f"{card.head} of {data['title']}"
    by_name = {role.role: role for role in card.roles}
    licences = [] if card.profile is None else licence_lines(card.profile, card.examples)

    def page_cell(value: Cell) -> object:  # numbers as numbers, so that the page sorts them
        if isinstance(value, float):
            return short_float(value)
        return value if isinstance(value, int) else cell_text(value)

    return data | {
        "command": "card",
        "title": title,
        "sentences": [title],
        "look": None,
        "caption": caption_of(f"Interactive page of {title}; opens from disk, without network"),
        "command_line": {
            "program": ["card"],
            "texts": [str(card.corpus or card.text)],
            "options": [*data["command_line"]["options"], *COMMANDS["card"].typed(card.options)],
        },
        "tables": [
            {
                "title": table.title,
                "note": "",
                "columns": ["head", *(field.title.lower() for field in table.columns)],
                "rows": [[str(card.head), *map(page_cell, row)] for row in table.rows],
                "head": 0,
            }
            for table in tables_of(card)
        ],
        "examples": [sentences_entry(examples, by_name.get(examples.role)) for examples in card.examples],
        "notes": [
            "Labels are of this text alone; ? marks an indication only.",
            f"Weights on the page are within {ERROR} of the recomputed ones.",
            *licences,
        ],
    }
