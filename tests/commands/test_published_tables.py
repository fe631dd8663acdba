"""Tables of papers: what models built by hand do is found, untrained ones show nothing."""

from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz.commands.check.checked import CheckedClaim
from attnviz.commands.check.papers import PAPER_TABLES
from attnviz.errors import AttnvizError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from tests.support.corpora import WORDS, sentences
from tests.support.models import LOOKS_AT, gpt2_tokenizer, hand_built_gpt2, sharp_gpt2


def texts(path: Path, n_texts: int, n_words: int) -> Path:
    """Texts of so many words, each another one."""
    words = [
        [WORDS[(7 * text + 3 * at + at * at * text) % len(WORDS)] for at in range(n_words)] for text in range(n_texts)
    ]
    path.write_text("\n".join(map(" ".join, words)) + "\n", encoding="utf-8")
    return path


def rows(model: Checkpoint, name: str, *corpora: Path, **options: Any) -> dict[str, CheckedClaim]:
    """The rows of a table by what they measure."""
    found = attnviz.check(corpora, model, published=name, **options)
    return {each.claim.what: each for each in found.claims if each.claim.kind == "table"}


def twenty(query: int) -> list[int]:
    """The first 20 of 64 queries look at the first token: 0.31, and 0.297 if the first did not count."""
    return [0] if query < 20 else [query]


def nineteen(query: int) -> list[int]:
    return [0] if query < 19 else [query]


def test_heads_that_rest_on_the_first_token_are_counted_and_the_first_query_is(tmp_path: Path) -> None:
    heads = [LOOKS_AT["sink"], LOOKS_AT["previous-token"], twenty, nineteen, LOOKS_AT["broad"]]
    model = from_loaded(hand_built_gpt2([heads], 64), gpt2_tokenizer())
    found = rows(model, "gu-2024", texts(tmp_path / "a.txt", 100, 70))
    rate, half = found.values()
    assert (rate.measured, rate.untrained, rate.verdict, rate.n) == (pytest.approx(0.4), 0, "holds", 100)
    assert (half.measured, half.verdict) == (pytest.approx(0.4), "reported")
    few = rows(model, "gu-2024", texts(tmp_path / "b.txt", 20, 70))["sink rate"]
    assert (few.verdict, few.measured) == ("cannot be decided", pytest.approx(0.4))


UNTRAINED = [("gu-2024", 70)]


@pytest.mark.parametrize(("name", "n_words"), UNTRAINED)
def test_no_claim_holds_of_random_weights(name: str, n_words: int, tmp_path: Path) -> None:
    model = sharp_gpt2(n_positions=64)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    found = attnviz.check(texts(tmp_path / "a.txt", 120, n_words), from_loaded(model, gpt2_tokenizer()), published=name)
    assert found.count("holds") == 0
    assert found.exit_code in (1, 3)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("gu-2024", {}, "expected a corpus"),
    ("gu-2023", {}, "gu-2024"),
]


@pytest.mark.parametrize(("name", "more", "word"), WRONG)
def test_what_a_table_cannot_be_measured_on_is_one_line(name: str, more: dict[str, Any], word: str) -> None:
    with pytest.raises(AttnvizError, match=word):
        attnviz.check(model=from_loaded(sharp_gpt2(), gpt2_tokenizer()), published=name, **more)


def test_texts_that_are_too_short_are_left_out_and_if_all_are_the_message_says_how_long(tmp_path: Path) -> None:
    model = from_loaded(sharp_gpt2(n_positions=64), gpt2_tokenizer())
    with pytest.raises(AttnvizError, match="64 tokens"):
        rows(model, "gu-2024", sentences(tmp_path / "short.txt"))


def test_every_table_says_what_it_measures() -> None:
    for name, table in PAPER_TABLES.items():
        assert name == table.name
        assert all((table.cited, table.data, table.metric, table.threshold))
