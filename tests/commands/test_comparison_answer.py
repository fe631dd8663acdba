"""What a comparison says first: which layers and heads moved, how far, and the largest difference between content."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnviz
from attnviz.commands.compare.dropout import dropping_out
from attnviz.commands.compare.wording import answer
from attnviz.models.checkpoint import from_loaded
from attnviz.present.report import spec_of
from tests.support.encoder_decoders import SOURCE, sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2, tuned
from tests.support.recorded import own_patterns
from tests.support.results import TEXT, TEXTS


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
    half = np.median([head.distance for head in changed.heads if head.id.layer > 0])
    above = sum(head.distance > head.noise for head in changed.heads if head.id.layer > 0)
    labels = {0: "no label", 1: "1 label"}.get(n_labels, f"{n_labels} labels")
    expected = (
        f"Layer 0 identical; every head of layers 1–2 moved, half of them by {half:.3f} or less; {above} by more "
        f"than dropout; most {most.id}, {most.distance:.3f} of at most 0.83; {labels} changed."
    )
    assert answer(changed) == expected
    assert " ".join(changed.report(100).split()).startswith(expected)
    last = attnviz.compare(analysed(bert), analysed(tuned(bert, 2, [1])))
    above = int(last.heads[0].distance > last.heads[0].noise)
    assert answer(last).startswith(
        f"Layers 0–1 identical; 1 of 4 heads of layer 2 moved; {above} by more than dropout; most L2H1, "
    )


def test_two_identical_sides_are_said_to_be_so(bert):
    same = attnviz.compare(analysed(bert), analysed(bert))
    said = "Nothing changed: every weight of every head is the same on both sides."
    assert answer(same) == said
    assert " ".join(same.report(100).split()).startswith(said)
    assert "Rank" not in same.report(150)  # no table of zeros


def test_the_largest_possible_distance_is_less_where_the_first_token_sees_itself_alone(texts):
    assert texts.furthest == pytest.approx(math.sqrt(math.log(2)))
    causal = attnviz.compare(*(analysed(sharp_gpt2(), text, gpt2_tokenizer()) for text in (TEXT, TEXT)))
    n = len(causal.first.tokens)
    assert causal.furthest == pytest.approx(math.sqrt(math.log(2) * (n - 1) / n))
    assert texts.document()["yardsticks"] == {"dropout": None, "largest": texts.furthest}


@pytest.mark.parametrize("words", [False, True])
def test_heads_stand_beside_what_dropout_does_to_them(bert, words):
    scipy = pytest.importorskip("scipy.spatial.distance")
    text = "the unbelievable cat ran away"
    before = attnviz.analyze(text, bert, tokenizer=bert_tokenizer(), syntax=False, words=words)
    after = attnviz.analyze(text, tuned(bert, 1, [2]), tokenizer=bert_tokenizer(), syntax=False, words=words)
    found = attnviz.compare(before, after)
    members = before.units.members
    merge = np.array([[at in unit for at in range(len(before.tokens))] for unit in members], dtype=float)
    if words:
        assert len(members) < len(before.tokens)
    inputs, distances = before.tokens.model_inputs(before.checkpoint.device), []
    for pair in range(4):
        passes = []
        for number in (0, 1):
            valid = torch.ones(1, len(before.tokens), dtype=torch.bool)
            with dropping_out(before.checkpoint, valid, [f"dropout:0:{number}:{pair}"]):
                passes.append(own_patterns(before.checkpoint, inputs))
        both = [np.stack([layer[0].double().numpy() for layer in one.values()]) for one in passes]
        p, q = (merge / merge.sum(1, keepdims=True) @ one @ merge.T for one in both)
        distances.append(np.sqrt((scipy.jensenshannon(p, q, axis=-1) ** 2).mean(-1)))
    for head in found.heads:
        assert head.noise == pytest.approx(np.mean(distances, 0)[head.id], rel=1e-4)
    above = sum(head.distance > head.noise for head in found.heads if not head.rounding)
    assert 0 < above < len(found.heads)
    assert f"; {above} by more than dropout; most" in answer(found)
    assert found.document()["yardsticks"]["dropout"] == found.dropout == 0.1
    assert {"noise"} <= set(found.document()["heads"][0])
    said = " ".join(found.report(120).split())
    assert "Dropout: the distance between two passes of A over this text with its own dropout (up to 0.1)" in said


def test_where_there_is_no_noise_the_report_says_why(bert, texts):
    still = sharp_bert(hidden_dropout_prob=0.0)
    without = attnviz.compare(analysed(still), analysed(tuned(still, 1, [2])))
    pieces = unigram_tokenizer()
    bart = [from_loaded(sharp("bart", len(pieces), seed), pieces) for seed in (0, 1)]
    translated = attnviz.compare(*(attnviz.analyze(SOURCE, each, target="die Katzen", syntax=False) for each in bart))
    for found, why in (
        (texts, "it is noise on one text, and here are two"),
        (without, "A has no module that drops hidden states"),
        (translated, "of encoder-decoders it is measured with --corpus alone"),
    ):
        assert f"No yardstick of dropout: {why}." in " ".join(found.report(200).split())
        assert {head.noise for head in found.heads} == {None}
        assert found.document()["yardsticks"]["dropout"] is None
        assert "dropout" not in answer(found)


def test_the_largest_difference_of_content_has_no_sink_at_either_end(texts):
    content = [not sink for sink in texts.first.tokens.sink]
    both = np.outer(content, content)
    elsewhere = 0
    for head in texts.heads:
        differences = texts.layer_differences(head.id.layer)[head.id.head] * both
        assert abs(head.largest_content.difference) == pytest.approx(np.abs(differences).max())
        at = head.largest_content.query, head.largest_content.key
        assert head.largest_content.difference == pytest.approx(differences[at])
        assert content[at[0]]
        assert content[at[1]]
        elsewhere += head.largest != head.largest_content
    assert elsewhere  # in some head the largest difference is to or from a sink


def test_the_table_shows_it_and_the_files_have_both(texts):
    document = texts.document()
    rows = csv.DictReader(io.StringIO(spec_of("compare").csv(document)))
    report = texts.report(150)
    for head, entry, row in zip(texts.heads, document["heads"], rows, strict=True):
        query, key = texts.ends(head, head.largest_content)
        value = f"{head.largest_content.difference:+.2f}".replace("-", "−")
        assert f"{value}  ‘{query}’ to ‘{key}’" in report
        assert entry["largest_content"] == {**head.largest_content._asdict(), "query_label": query, "key_label": key}
        assert float(row["content_difference"]) == head.largest_content.difference
        assert (row["content_query_label"], row["content_key_label"]) == (query, key)
        assert float(row["largest_difference"]) == entry["largest"]["difference"]
    assert "Largest difference of content" in report


def test_where_only_attention_to_sinks_differs_the_table_says_so(texts):
    heads = tuple(replace(head, largest_content=None) for head in texts.heads)
    without = replace(texts, heads=heads)
    assert {entry["largest_content"] for entry in without.document()["heads"]} == {None}
    assert without.report(150).count("none: to or from sinks alone") == 12
    (row, *_) = csv.DictReader(io.StringIO(spec_of("compare").csv(without.document())))
    assert (row["content_difference"], row["content_query_label"]) == ("", "")


def test_of_a_single_token_there_is_no_content_that_differs():
    alone = attnviz.compare(*(analysed(sharp_gpt2(seed), "the", gpt2_tokenizer()) for seed in (0, 1)))
    assert {head.largest_content for head in alone.heads} == {None}
