"""How the relation of each head is told: a table, and entries of heads.json."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.relations import HeadRelation, places_of, relations_of
from attnviz.model.head_ids import HeadId
from attnviz.results.tables import Column, column_table, titled
from attnviz.results.view import Choices

__all__ = ["relation_entries", "relation_table"]


def relation_entries(analysis: Analysis, choices: Choices) -> Callable[[HeadId], dict[str, Any]]:
    """Of each head ``relation``, with its pairs by positions (tokens, or words); nothing unless it is asked for."""
    if not choices.relations:
        return lambda _: {}
    found = relations_of(analysis, analysis.select(choices.select), choices.relation)
    entries = {each.head.id: _entry(analysis, each) for each in found}
    return lambda head: {"relation": entries.get(head)}


def _entry(analysis: Analysis, relation: HeadRelation) -> dict[str, Any]:
    ends = ((pair.query, pair.key, pair.guess) for pair in relation.pairs)
    places = [[None if word is None else places_of(analysis, word) for word in words] for words in ends]
    return {
        "name": relation.name,
        "direction": relation.direction,
        "found": relation.found,
        "n": len(relation.pairs),
        "pairs": [
            {"query": query, "key": key, "attends_most": guess, "found": pair.found}
            for (query, key, guess), pair in zip(places, relation.pairs, strict=True)
        ],
    }


def relation_table(analysis: Analysis, choices: Choices, width: int) -> Iterator[RenderableType]:
    """How many pairs each head finds, those that find most first."""
    found = list(relations_of(analysis, analysis.select(choices.select), choices.relation))
    listed = sorted(found, key=lambda each: (-each.found / len(each.pairs), each.head.id))[: choices.top or None]
    if listed:
        yield titled(
            "Relations (pairs of the parse that a head finds)", column_table("", _COLUMNS, listed, width=width)
        )


_COLUMNS: list[Column[HeadRelation]] = [
    Column("Head", lambda each: each.head.id, left=True),
    Column("Relation", lambda each: each.arrow, left=True),
    Column("Found", lambda each: each.found),
    Column("n", lambda each: len(each.pairs)),
]
