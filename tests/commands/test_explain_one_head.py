"""Where one head makes the row of all heads, the terminal says so."""

import re
from dataclasses import replace

import pytest

import attnviz
from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.position_share import TERMS, PositionShares, ScoreShares
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.results import TEXT


@pytest.fixture(scope="module")
def explained() -> Explanation:
    return attnviz.explain(TEXT, sharp_bert(), tokenizer=bert_tokenizer())


def shares(content: float, spread: float) -> ScoreShares:
    terms = dict.fromkeys(TERMS, 0.0)
    return ScoreShares(terms | {"content_content": content, "position_position": 1 - content}, spread)


def with_heads(explained: Explanation, *heads: ScoreShares) -> Explanation:
    assert explained.positions is not None
    return replace(explained, positions=replace(explained.positions, heads=heads))


def said(explained: Explanation) -> list[str]:
    return re.findall(r"All heads: .*?\.(?= Share)", " ".join(explained.report(100).split()))


def test_a_head_with_most_of_the_variance_is_named_with_the_shares_of_the_others(explained: Explanation) -> None:
    result = with_heads(explained, shares(1.0, 1.0), shares(0.0, 4.0), shares(1.0, 1.0), shares(0.0, 2**0.5))
    assert result.positions is not None
    assert result.positions.variance_share(1) == pytest.approx(16 / 20)
    assert result.positions.without(1) == pytest.approx(
        {"content": 0.5, "position": 0.5, "both": 0, "segment": 0, "constant": 0}
    )
    assert said(result) == [
        "All heads: L0H1 alone has 80 % of the variance in this row; without it the row would be content 0.50, "
        "position 0.50."
    ]


def test_nothing_is_said_of_heads_that_vary_alike(explained: Explanation) -> None:
    assert said(with_heads(explained, *[shares(0.5, 1.0)] * 4)) == []
    assert said(with_heads(explained, shares(0.5, 1.0))) == []
    assert said(with_heads(explained, *[shares(0.5, 0.0)] * 4)) == []


def test_the_row_of_all_heads_is_made_of_heads_by_their_variance(explained: Explanation) -> None:
    found = explained.positions
    assert isinstance(found, PositionShares)
    numbers = range(len(found.heads))
    assert sum(map(found.variance_share, numbers)) == pytest.approx(1)
    for head in numbers:
        share, others, own = found.variance_share(head), found.without(head), found.heads[head].groups
        for name, of_layer in found.layer.groups.items():
            assert share * (own[name] or 0.0) + (1 - share) * others[name] == pytest.approx(of_layer or 0.0, abs=1e-6)
