"""Sinks are found: known truth on patterns made by hand, on models with a wish, and on real ones."""

import pytest
import torch
from transformers import GPT2Model

from attnviz import compare, head_outputs, rollout
from attnviz.commands.heads.measure import analyze
from attnviz.inputs.text import tokenize
from attnviz.measures.sinks import SinkTally, with_found_sinks
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference.tolerances import TOLERANCES
from attnviz.run.verify import PendingCheck, VerifiedRows
from tests.conftest import SENTENCE, needs_minilm
from tests.support.families import checkpoint_of
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert
from tests.support.tolerances import SUMS_32


def found(checkpoint, text=SENTENCE):
    """Positions that are sinks, and those that are so by convention."""
    tokens = tokenize(checkpoint, text)
    return [tuple(sorted(each.sinks)) for each in (with_found_sinks(checkpoint, tokens), tokens)]


def sinks_in(patterns, checkpoint, chunk=5):
    """The sinks that the patterns of a text would show if they were those of this model, [n_heads, n, n] by layer."""
    n = patterns[0].shape[-1]
    tally = SinkTally(checkpoint, tokenize(checkpoint, " ".join(["the"] + ["cat"] * (n - 1))))
    for layer, pattern in enumerate(patterns):
        for first in range(0, n, chunk):
            rows = pattern[None, :, first : first + chunk, : first + chunk]
            tally.update(VerifiedRows(PendingCheck(layer), TOLERANCES[torch.float32], rows, first, n, n))
    return tuple(sorted(tally.tokens().sinks))


def attending_to(place: int, share: float, heads: int, n: int = 9):
    """Of three layers causal patterns, even but for some heads, which give that share to one position."""
    patterns = torch.ones(3, 4, n, n).tril()
    patterns /= patterns.sum(-1, keepdim=True)
    patterns[:, :heads, place + 1 :] *= 1 - share
    patterns[:, :heads, place + 1 :, place] += share
    return patterns


def fresh_gpt2(**changes):
    """A GPT-2 that was never trained, with attention that is nearly even."""
    torch.manual_seed(0)
    return from_loaded(GPT2Model(gpt2_config(attn_implementation="eager", **changes)).eval(), gpt2_tokenizer())


def resting_gpt2(word):
    """A GPT-2 whose heads all attend to one word: its keys have a direction that every query has."""
    model, n = fresh_gpt2(n_positions=100).model, 32
    (token,) = gpt2_tokenizer()(f" {word}")["input_ids"]
    direction = torch.eye(n)[0] - torch.eye(n)[1]  # a layer norm leaves its mean
    with torch.no_grad():
        model.wte.weight[token] += 30 * direction
        for block in model.h:
            block.attn.c_attn.weight[:, n : 2 * n] += 2 * direction[:, None]
            block.attn.c_attn.bias[:n] += 2.0
    return model


@pytest.mark.parametrize(
    ("share", "heads", "is_sink"), [(0.5, 4, True), (0.5, 3, True), (0.5, 2, False), (0.3, 4, True), (0.1, 4, False)]
)
def test_a_position_that_most_heads_rest_on_is_a_sink(share, heads, is_sink):
    assert sinks_in(attending_to(2, share, heads), fresh_gpt2()) == ((0, 2) if is_sink else (0,))


def test_a_position_that_heads_rest_on_in_one_layer_of_three_is_none():
    patterns = attending_to(2, 0.9, 4)
    patterns[1:] = attending_to(2, 0.0, 4)[1:]
    assert sinks_in(patterns, fresh_gpt2()) == (0,)


def test_a_mean_takes_four_queries_after_a_key():
    """Of seven tokens the third has four after it, the fourth three."""
    checkpoint = fresh_gpt2()
    assert [sinks_in(attending_to(2, 0.9, 4, n), checkpoint) for n in (7, 6)] == [(0, 2), (0,)]
    assert sinks_in(attending_to(3, 0.9, 4, 7), checkpoint) == (0,)


@needs_minilm
@pytest.mark.parametrize("name", ["minilm", "tiny-gpt2"])
def test_real_models_on_a_sentence_rest_on_nothing_else(name):
    now, before = found(open_checkpoint(name)[0], "When Mary and John went to the store, John gave a drink to the man")
    assert now == before


def test_encoders_and_untrained_models_have_the_sinks_of_convention():
    assert found(from_loaded(sharp_bert(), bert_tokenizer())) == [(0, 8)] * 2
    assert found(fresh_gpt2(), "the cat saw the cat " * 7) == [(0,)] * 2


def test_every_command_of_a_single_text_has_the_same_sinks():
    """Position 2 is the one word that all heads look at."""
    options = {"model": resting_gpt2("cat"), "tokenizer": gpt2_tokenizer()}
    analysis = analyze(SENTENCE, syntax=False, **options)
    outputs, rolled = head_outputs(SENTENCE, **options), rollout(SENTENCE, **options)
    compared = {"tokens": compare(analysis, analysis).document()["tokens"][1]}
    kinds = [token["sink"] for token in analysis.document()["tokens"]]
    assert kinds == ["first", None, "found", *[None] * (len(kinds) - 3)]
    for document in (outputs.document(), rolled.document(), compared):
        assert [token["sink"] for token in document["tokens"]] == kinds
    assert [entry["sink"] for entry in rolled.document()["inputs"]] == [kind is not None for kind in kinds]
    by_head = {head.id: head.sink for head in outputs.heads}
    assert by_head == pytest.approx({head.id: head.statistics["sink"] for head in analysis.heads}, abs=SUMS_32)
    assert min(by_head.values()) > 0.5
    assert all("“cat” (#2)" in result.report(verbose=True) for result in (analysis, outputs, rolled))


@pytest.mark.parametrize("memory", [None, "1B"])
def test_sinks_of_the_whole_run_are_those_of_its_first_tokens_alone(memory):
    """And statistics are those with these sinks from the beginning, as rows of some queries have them."""
    options = {"model": resting_gpt2("cat"), "tokenizer": gpt2_tokenizer(), "syntax": False, "memory": memory}
    text = "the cat saw the dog and" + " a dog saw the house and" * 12
    whole, rows = analyze(text, **options), analyze(text, queries="0:", **options)
    assert len(whole.tokens) > 64
    assert whole.tokens.sinks == rows.tokens.sinks > {0}
    for head, other in zip(whole.heads, rows.heads, strict=True):
        numbers, expected = (
            {name: value for name, value in each.statistics.items() if value is not None} for each in (head, other)
        )
        assert numbers == pytest.approx(expected, rel=SUMS_32, abs=SUMS_32)


def test_in_a_window_the_queries_that_no_longer_see_a_key_do_not_count():
    """All attention of the four that see the third token is on it, and none of the thirty after them."""
    checkpoint = checkpoint_of("mistral", sliding_window=5)
    patterns = torch.zeros(checkpoint.n_layers, checkpoint.n_heads, 36, 36)
    for place in range(36):
        patterns[:, :, place, 2 if 2 < place < 7 else place] = 1
    assert 2 in sinks_in(patterns, checkpoint)
