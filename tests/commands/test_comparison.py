"""What a comparison measures: numbers in closed form, a weight changed on purpose, and what cannot be compared."""

import copy
import csv
import io
import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import attnviz
from attnviz.commands.heads.measure import analyze
from attnviz.errors import TextError, UsageError, VerificationError
from attnviz.measures.differences import LARGEST_DISTANCE, Weight, mean_differences, noting_largest
from attnviz.models.head_ids import HeadId
from attnviz.present.view import ViewOptions
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2, tuned
from tests.support.results import layer_differences
from tests.support.tolerances import SUMS_64
from tests.support.verified import random_patterns

OTHER = "The dog that I saw ran away"


@cache
def analysed(model, text=SENTENCE, **options):
    tokenizer = gpt2_tokenizer() if "gpt2" in type(model).__name__.lower() else bert_tokenizer()
    return analyze(text, model, tokenizer=tokenizer, syntax=False, **options)


@pytest.fixture(scope="module")
def bert():
    return sharp_bert()


@pytest.fixture(scope="module")
def texts(bert):
    return attnviz.compare(analysed(bert), analysed(bert, OTHER))


@pytest.fixture(scope="module")
def models(bert):
    return attnviz.compare(analysed(bert), analysed(tuned(bert, 2, [1])))


def by_hand(first, second):
    """The mean divergence over queries, by the sum of Kullback-Leibler divergences in plain Python."""
    total = 0.0
    for p_row, q_row in zip(first.tolist(), second.tolist(), strict=True):
        for p, q in zip(p_row, q_row, strict=True):
            m = (p + q) / 2
            total += (p * math.log(p / m) if p else 0.0) / 2 + (q * math.log(q / m) if q else 0.0) / 2
    return total / len(first)


def measure_difference(p, q):
    largest = dict[HeadId, Weight]()
    every = torch.ones(len(p), dtype=torch.bool), torch.ones(p.shape[1], dtype=torch.bool)
    rows = [(first, p[None, first : first + 2], q[None, first : first + 2]) for first in range(0, len(p), 2)]
    blocks = noting_largest(0, rows, largest, {}, *every)
    divergence, variation = mean_differences(blocks, every[0][None])
    return divergence.item(), variation.item(), largest[HeadId(0, 0)]


def test_patterns_without_a_key_in_common_are_ln_2_apart():
    divergence, variation, largest = measure_difference(torch.eye(3), torch.eye(3)[[1, 2, 0]])
    assert divergence == pytest.approx(math.log(2))
    assert math.sqrt(divergence) == pytest.approx(LARGEST_DISTANCE)
    assert (variation, largest) == (1.0, (-1.0, 0, 0))  # the first in reading order


@given(seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)), n=st.integers(1, 6))
@settings(max_examples=25)
def test_a_difference_is_bounded_symmetric_and_0_only_for_equal_patterns(seeds, n):
    p, q = (random_patterns(n, n_heads=1, seed=seed)[0] for seed in seeds)
    divergence, variation, largest = measure_difference(p, q)
    assert divergence == pytest.approx(by_hand(p, q), abs=SUMS_64)
    assert 0 <= divergence <= math.log(2)
    assert 0 <= variation <= 1
    assert (divergence < SUMS_64) == (seeds[0] == seeds[1] or n == 1)
    back, same, opposite = measure_difference(q, p)
    assert (back, same) == (pytest.approx(divergence, abs=SUMS_64), pytest.approx(variation))
    difference, query, key = largest
    assert opposite[0] == pytest.approx(-difference)
    assert difference == pytest.approx(float((q - p)[query, key]))


def test_every_head_is_measured_from_its_own_patterns_and_ranked_by_distance(texts):
    assert len(texts.heads) == 12
    for head in texts.heads:
        a, b = (side.layer_patterns(head.id.layer)[head.id.head].double() for side in (texts.first, texts.second))
        assert head.divergence == pytest.approx(by_hand(a, b), rel=SUMS_64, abs=SUMS_64)
        assert head.distance == pytest.approx(math.sqrt(head.divergence))
        assert head.total_variation == pytest.approx(float((a - b).abs().sum(1).mean() / 2))
        difference = layer_differences(texts, head.id.layer)[head.id.head]
        assert head.largest.difference == pytest.approx(difference[head.largest.query, head.largest.key])
        assert abs(head.largest.difference) == pytest.approx(np.abs(difference).max())
        labels = tuple(side.head(head.id).label for side in (texts.first, texts.second))
        assert (head.before.name, head.after.name) == labels
    distances = [head.distance for head in texts.heads]
    assert distances == sorted(distances, reverse=True)
    assert [head.rank for head in texts.heads] == list(range(1, 13))


def test_the_changed_head_ranks_first_and_all_before_it_are_0(models):
    first, *others = models.heads
    assert first.id == HeadId(2, 1)
    assert first.distance > 0.1
    assert not first.rounding
    assert [(head.divergence, head.distance, head.largest.difference) for head in others] == [(0.0, 0.0, 0.0)] * 11
    assert all(head.rounding for head in others)
    assert models.any_beyond_rounding


def test_two_identical_sides_give_exactly_0(bert):
    found = attnviz.compare(analysed(bert), analysed(copy.deepcopy(bert)))
    assert {(head.divergence, head.total_variation, head.largest.difference) for head in found.heads} == {(0, 0, 0)}
    assert not found.any_beyond_rounding
    assert not any(head.label_changed for head in found.heads)


def test_the_errors_of_both_verifications_count_as_rounding(bert):
    def with_error(side, error):
        verification = side.verification
        checks = [replace(check, pattern_error=error) for check in verification.layers]
        verified = copy.copy(side.verified)
        verified.verification = replace(verification, layers=type(verification.layers)(checks))
        return replace(side, verified=verified)

    found = attnviz.compare(with_error(analysed(bert), 4e-5), with_error(analysed(tuned(bert, 2, [1])), 3e-5))
    assert found.floor == pytest.approx(7e-5)


def test_which_tokens_differ_and_how_heads_are_named(texts, models):
    assert [texts.rows.labels[i] for i, differs in enumerate(texts.rows.differing) if differs] == ["cat → dog"]
    assert (texts.compared, models.compared, any(models.rows.differing)) == ("texts", "models", False)
    assert models.rows.labels == models.first.units.labels
    assert texts.rows.muted == texts.first.units.sink
    assert texts.head("L1H2").id == texts.head(HeadId(1, 2)).id == HeadId(1, 2)
    assert [head.rank for head in texts.select("L1")] == sorted(head.rank for head in texts.select(["L1"]))
    with pytest.raises(UsageError, match="L9H0"):
        texts.head("L9H0")


def test_words_are_compared_where_their_pieces_are_not_as_many(bert):
    sides = [analysed(bert, text, words=True) for text in ("the unbelievable cat ran", "the old cat ran")]
    found = attnviz.compare(*sides)
    assert found.unit == "word"
    assert len(found.rows.labels) == 6
    assert layer_differences(found, 0).shape == (4, 6, 6)
    assert "unbelievable → [UNK]" in found.rows.labels[2]


def test_sides_that_cannot_be_compared_are_refused(bert):
    first, other_tokens = analysed(bert), bert_tokenizer()
    other_tokens.add_tokens(["saw ran"])
    merged = analyze(SENTENCE, sharp_bert(vocab_size=len(other_tokens)), tokenizer=other_tokens, syntax=False)
    cut = replace(first.tokens, ids=first.tokens.ids[:-1], labels=first.tokens.labels[:-1])
    segments = replace(first.tokens, type_ids=(1,) * 9)

    def both(one, other, **options):
        return analysed(bert, one, **options), analysed(bert, other, **options)

    for one, other, error, word in (
        (first, analysed(sharp_bert(num_hidden_layers=2)), UsageError, "2 layers"),
        (first, merged, TextError, "saw ran"),
        (first, replace(first, tokens=cut), TextError, "9 and 8"),
        (first, replace(first, tokens=segments), TextError, "segments"),
        (first, analysed(tuned(bert, 0, [0]), OTHER), UsageError, None),
        (*both(SENTENCE, "The cat that I saw ran"), TextError, "9 and 8"),
        (*both("the unbelievable cat", "the white cat"), TextError, "7 and 5.*words"),
        (*both("the cat", "the cat ran", words=True), TextError, "4 and 5"),
        (first, analysed(bert, words=True), UsageError, "options"),
        (replace(first, parse=object()), analysed(bert, OTHER), UsageError, "relations"),
        (first, "a text", UsageError, None),
    ):
        with pytest.raises(error, match=word):
            attnviz.compare(one, other)
    assert attnviz.compare(first, analysed(copy.deepcopy(bert), OTHER)).compared == "texts"  # loaded twice


def test_a_model_changed_since_is_noticed(bert):
    model = copy.deepcopy(bert)
    first = analysed(model)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.neg_()
    with pytest.raises(VerificationError):
        attnviz.compare(first, analysed(bert))


def test_the_document_holds_both_sides_and_every_number_and_the_table_its_rows(texts):
    content = json.loads(json.dumps(texts.document(), allow_nan=False))
    assert (content["compared"], content["texts"], content["differing"]) == ("texts", [SENTENCE, OTHER], [2])
    rows = list(csv.DictReader(io.StringIO(texts.table(ViewOptions(select=("L1",))).csv())))
    assert [row["id"] for row in rows] == [head["id"] for head in texts.document(select=["L1"])["heads"]]
    of_rows = {row["id"]: row for row in rows}
    for entry, head in zip(content["heads"], texts.heads, strict=True):
        assert (entry["id"], entry["divergence"]) == (str(head.id), head.divergence)
        assert entry["largest"]["key_label"] == texts.rows.labels[head.largest.key]
        if row := of_rows.get(entry["id"]):
            assert float(row["distance"]) == entry["distance"]
            assert float(row["largest_difference"]) == entry["largest"]["difference"]


def test_a_pooler_that_the_file_lacks_makes_no_other_model(tmp_path):
    """It is random at every load, and no attention depends on it."""
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    weights = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    first, second = (analyze(text, str(folder), syntax=False) for text in ("the cat ran", "the dog ran"))
    assert attnviz.compare(first, second).heads


def test_the_largest_possible_distance_is_less_where_the_first_token_sees_itself_alone(texts):
    assert texts.document()["largest_possible"] == texts.furthest == pytest.approx(LARGEST_DISTANCE)
    causal = attnviz.compare(analysed(sharp_gpt2()), analysed(sharp_gpt2(seed=1)))
    n = len(causal.first.tokens)
    assert causal.furthest == pytest.approx(math.sqrt(math.log(2) * (n - 1) / n))
    assert all(0 < head.distance < causal.furthest for head in causal.heads)
    assert not np.triu(layer_differences(causal, 1), 1).any()  # no head sees what comes after


def test_the_largest_difference_of_content_has_no_sink_at_either_end(texts):
    content = ~np.array(texts.first.tokens.sink)
    both = np.outer(content, content)
    elsewhere = 0
    for head in texts.heads:
        differences = layer_differences(texts, head.id.layer)[head.id.head] * both
        found = head.largest_content
        assert both[found.query, found.key]
        assert abs(found.difference) == pytest.approx(np.abs(differences).max())
        assert found.difference == pytest.approx(differences[found.query, found.key])
        elsewhere += head.largest != found
    assert elsewhere  # in some head the largest difference is to or from a sink
    alone = attnviz.compare(*(analysed(sharp_gpt2(seed=seed), "the") for seed in (0, 1)))
    assert {head.largest_content for head in alone.heads} == {None}
