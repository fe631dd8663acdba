"""The figures of several cards: one each."""

from collections.abc import Iterator

from attnviz.commands.card.measure import Cards
from attnviz.commands.card.page_view import pages_data
from attnviz.commands.card.views import CARD as OF_ONE
from attnviz.commands.card.views import CardPlan, plan_card
from attnviz.present.view import Drawing, ViewOptions, page_drawing


def _plans(result: Cards, choices: ViewOptions) -> Iterator[CardPlan]:
    return (plan_card(card, choices, f"cards/{card.head.file_stem}") for card in result.cards)


CARD = Drawing(_plans, OF_ONE.figure)
PAGE = page_drawing("cards", pages_data)
