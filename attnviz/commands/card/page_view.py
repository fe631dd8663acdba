"""The view ``page`` of cards: the head in words, its pattern, roles and sentences, for a browser."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from attnviz.commands.card.measure import Card, Cards, clarity_key
from attnviz.commands.card.wording import evidence_of, not_measured, paragraphs
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
from attnviz.present.published import ARROWS, role_name, role_numbers, shown_baseline
from attnviz.present.view import ViewOptions


def of_pattern(card: Card, choices: ViewOptions) -> ViewOptions:
    """Choices for the pattern of a card: pairs of its first role are outlined if that is a relation of the text."""
    outlined = bool(card.roles) and card.roles[0].relation is not None and not without_relations(card.part)
    return replace(choices, select=(str(card.head),), relation=OWN if outlined else None)


def page_data(card: Card, choices: ViewOptions, analysis: Analysis | None = None) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``: the page of ``heads`` on the text, with this head in words.

    ``analysis`` has the heads that are on it; default all.
    """
    data = page_of_heads(analysis or card.analysis, of_pattern(card, choices))
    of_head = next(head for head in data["heads"] if head["id"] == str(card.head))
    of_head["words"] = _words(card)
    title = f"{card.head} of {data['title']}"
    line = data["command_line"]
    options = [*line["options"], *COMMANDS["card"].typed(card.options)]
    return data | {
        "command": "card",
        "title": title,
        "caption": sentence(f"Interactive page of {title}; opens from disk, without network"),
        "command_line": line | {"program": ["card"], "texts": [str(card.corpus or card.text)], "options": options},
        **_evidence([card]),
        "notes": ["Labels are of this text alone; ? marks an indication only.", *_notes([card])],
    }


def pages_data(result: Cards, choices: ViewOptions) -> dict[str, Any]:
    """The same of several cards, each with the text that its own pattern is of."""
    pages, heads, patterns, axes = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]](), list[Any]()
    for card in result.cards:
        own = replace(card.analysis, heads=(card.analysis.head(card.head),))
        page = page_data(card, replace(choices, budget=0), own)
        (of_head,), (packed,) = page["heads"], page["patterns"]
        pages.append(page)
        name = role_name(card.roles[0].role, None) if card.roles else UNNAMED.name
        numbers = (f"{role_name(role.role, role.direction)}, {role_numbers(role)}" for role in card.roles[:1])
        heads.append(of_head | {
            "label": name, "short": brief_name(name), "role": None, "patterns": [len(patterns)],
            "family": asdict(family_of_label(card.roles[0].role) if card.roles else UNNAMED),
            "evidence": ". ".join([*numbers, f"The pattern is on {card.part.figure_context.text_line}."]),
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
        "command_line": line | {"texts": line["texts"] * given},
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
        **_evidence(result.cards),
        "notes": [
            "A head's label is its clearest role over the corpus; each has a text of its own.",
            *_notes(result.cards),
        ],
    }  # fmt: skip


def _words(card: Card) -> list[list[str]]:
    """The paragraphs with their headings, and what was not measured."""
    words = paragraphs(card) | {"Not measured": not_measured(card).partition(": ")[2]}
    return [[heading, text] for heading, text in words.items() if text]


def _notes(cards: Sequence[Card]) -> list[str]:
    """Notes on the weights, and licences of the sentences."""
    licences = (licence_lines(card.profile, card.examples) for card in cards if card.profile is not None)
    return [f"Weights on the page are within {ERROR} of the recomputed ones.", *dict.fromkeys(chain(*licences))]


def _evidence(cards: Iterable[Card]) -> dict[str, Any]:
    """Notes, the table of roles, and sentences."""
    rows = [
        [
            str(card.head), role_name(role.role, None), ARROWS.get(role.direction or "", ""), short_float(role.score),
            short_float(shown_baseline(role.baseline)), short_float(role.untrained), *map(short_float, role.interval),
            role.n,
        ]
        for card in cards
        for role in card.roles
    ]  # fmt: skip
    columns = ["head", "role", "direction", "score", "baseline", "untrained", "interval from", "to", "n"]
    note = evidence_of(role for card in cards for role in card.roles)
    table = {"title": f"Roles ({len(rows)})", "note": note, "columns": columns, "rows": rows, "head": 0}
    sentences = list[dict[str, Any]]()
    for card in cards:
        by_name = {role.role: role for role in card.roles}
        sentences += [sentences_entry(of, by_name.get(of.role)) for of in card.examples]
    return {"tables": [table] * bool(rows), "examples": sentences}
