"""What a comparison says first: which layers and heads moved, how far, and the largest difference between content."""

import math

import numpy as np
import pytest

import attnviz
from attnviz.commands.compare.wording import answer
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2, tuned
from tests.support.results import TEXT, TEXTS, layer_differences


def analysed(model, text=TEXT, tokenizer=None):
    return attnviz.analyze(text, model, tokenizer=tokenizer or bert_tokenizer(), syntax=False)


@pytest.fixture(scope="module")
def bert():
    return sharp_bert()


@pytest.fixture(scope="module")
def texts(bert):
    return attnviz.compare(*(analysed(bert, text) for text in TEXTS))


def test_the_sentence_names_the_layers_that_are_identical_and_the_heads_that_moved(bert):
    changed = attnviz.compare(analysed(bert), analysed(tuned(bert, 1, range(4))))
    most, n_labels = changed.heads[0], sum(head.label_changed for head in changed.heads)
    for part in ("Layer 0 identical", "layers 1–2 moved", f"{most.id}, {most.distance:.3f}", str(n_labels or "no")):
        assert part in answer(changed)
    assert " ".join(changed.report(100).split()).startswith(answer(changed))
    last = attnviz.compare(analysed(bert), analysed(tuned(bert, 2, [1])))
    assert answer(last).startswith("Layers 0–1 identical; 1 of 4 heads of layer 2 moved; most L2H1, ")


def test_the_largest_possible_distance_is_less_where_the_first_token_sees_itself_alone(texts):
    assert texts.furthest == pytest.approx(math.sqrt(math.log(2)))
    causal = attnviz.compare(*(analysed(sharp_gpt2(), text, gpt2_tokenizer()) for text in (TEXT, TEXT)))
    n = len(causal.first.tokens)
    assert causal.furthest == pytest.approx(math.sqrt(math.log(2) * (n - 1) / n))
    assert texts.document()["largest_possible"] == texts.furthest


def test_the_largest_difference_of_content_has_no_sink_at_either_end(texts):
    content = [not sink for sink in texts.first.tokens.sink]
    both = np.outer(content, content)
    elsewhere = 0
    for head in texts.heads:
        differences = layer_differences(texts, head.id.layer)[head.id.head] * both
        assert abs(head.largest_content.difference) == pytest.approx(np.abs(differences).max())
        at = head.largest_content.query, head.largest_content.key
        assert head.largest_content.difference == pytest.approx(differences[at])
        assert content[at[0]]
        assert content[at[1]]
        elsewhere += head.largest != head.largest_content
    assert elsewhere  # in some head the largest difference is to or from a sink


def test_of_a_single_token_there_is_no_content_that_differs():
    alone = attnviz.compare(*(analysed(sharp_gpt2(seed), "the", gpt2_tokenizer()) for seed in (0, 1)))
    assert {head.largest_content for head in alone.heads} == {None}
