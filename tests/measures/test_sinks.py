"""Sinks are found: known truth on patterns made by hand, on models with a wish, and on real ones."""

import pytest
import torch
from transformers import GPT2Model

from attnviz import compare, head_outputs, rollout
from attnviz.commands.heads.measure import analyze
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.trace import sinks
from attnviz.trace.sinks import with_found_sinks
from tests.conftest import SENTENCE, needs_minilm
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert
from tests.support.tolerances import SUMS_32
from tests.support.verified import random_patterns

EAGER = "transformers.models.gpt2.modeling_gpt2.eager_attention_forward"


def found(checkpoint, text=SENTENCE):
    """Positions that are sinks, and those that are so by convention."""
    tokens = checkpoint.tokenize(text)
    return [tuple(sorted(each.sinks)) for each in (with_found_sinks(checkpoint, tokens), tokens)]


def attending_to(place: int, share: float, heads: int):
    """Stands for a GPT-2's attention: some heads give that share to one position, whatever else they do."""

    def eager(module, query, key, value, attention_mask, **more):
        scores = query @ key.mT * 8**-0.5 + attention_mask
        weights = torch.softmax(scores, dim=-1)
        weights[:, :heads, place + 1 :] *= 1 - share
        weights[:, :heads, place + 1 :, place] += share
        return (weights @ value).transpose(1, 2), weights

    return eager


def fresh_gpt2():
    """A GPT-2 that was never trained, with attention that is nearly even."""
    torch.manual_seed(0)
    return from_loaded(GPT2Model(gpt2_config(attn_implementation="eager")).eval(), gpt2_tokenizer())


def resting_gpt2(word):
    """A GPT-2 whose heads all attend to one word: its keys have a direction that every query has."""
    tokenizer = gpt2_tokenizer()
    model = fresh_gpt2().model
    (token,) = tokenizer(f" {word}")["input_ids"]
    with torch.no_grad():
        direction = torch.zeros(model.config.n_embd)
        direction[0], direction[1] = 1.0, -1.0  # a layer norm leaves its mean
        model.wte.weight[token] += 30 * direction
        for block in model.h:
            weight, bias = block.attn.c_attn.weight, block.attn.c_attn.bias
            n = model.config.n_embd
            weight[:, n : 2 * n] += 2 * direction[:, None]
            bias[:n] += 2.0
    return model


@pytest.mark.parametrize(
    ("share", "heads", "is_sink"), [(0.5, 4, True), (0.5, 3, True), (0.5, 2, False), (0.1, 4, False)]
)
def test_a_position_that_most_heads_rest_on_is_a_sink(monkeypatch, share, heads, is_sink):
    monkeypatch.setattr(EAGER, attending_to(2, share, heads))
    now, before = found(fresh_gpt2())
    assert before == (0,)
    assert now == ((0, 2) if is_sink else (0,))


def test_what_a_key_gets_is_the_mean_over_the_queries_after_it_that_see_it():
    pattern, windows = random_patterns(9, n_heads=3, causal=True, seed=1).float(), (None, 6)
    for window, received in zip(windows, sinks._received(pattern.expand(2, -1, -1, -1), windows), strict=True):
        for key in range(9):
            rows = [q for q in range(key + 1, 9) if window is None or q - key < window]
            expected = pattern[:, rows, key].mean(1) if len(rows) >= 4 else torch.zeros(3)
            torch.testing.assert_close(received[:, key], expected)


def test_an_encoder_has_the_sinks_of_convention():
    now, before = found(from_loaded(sharp_bert(), bert_tokenizer()))
    assert now == before == (0, 8)


@needs_minilm
@pytest.mark.parametrize("name", ["minilm", "tiny-gpt2"])
def test_real_models_on_a_sentence_rest_on_nothing_else(name):
    checkpoint, _ = open_checkpoint(name)
    now, before = found(checkpoint, "When Mary and John went to the store, John gave a drink to the man who waited")
    assert now == before


def test_an_untrained_model_has_no_sink_but_the_first():
    now, before = found(fresh_gpt2(), "the cat saw the cat " * 7)
    assert now == before == (0,)


def test_every_command_of_a_single_text_has_the_same_sinks():
    """Position 2 is the one word that all heads look at."""
    model = resting_gpt2("cat")
    options = {"model": model, "tokenizer": gpt2_tokenizer()}
    analysis = analyze(SENTENCE, syntax=False, **options)
    outputs, rolled = head_outputs(SENTENCE, **options), rollout(SENTENCE, **options)
    compared = compare(analysis, analysis)
    kinds = [token["sink"] for token in analysis.document()["tokens"]]
    assert kinds == ["first", None, "found", *[None] * (len(kinds) - 3)]
    for document in (outputs.document(), rolled.document(), {"tokens": compared.document()["tokens"][1]}):
        assert [token["sink"] for token in document["tokens"]] == kinds
    assert [entry["sink"] for entry in rolled.document()["inputs"]] == [kind is not None for kind in kinds]
    by_head = {head.id: head.sink for head in outputs.heads}
    for head in analysis.heads:
        assert by_head[head.id] == pytest.approx(head.statistics["sink"], abs=SUMS_32)
        assert by_head[head.id] > 0.5
    for result in (analysis, outputs, rolled):
        assert "“cat” (#2)" in " ".join(result.report(verbose=True).split())


def test_a_first_run_that_is_not_finite_is_refused():
    checkpoint, runs = fresh_gpt2(), []

    def spoiled(module, args, states):
        runs.append(module)
        return states * torch.nan if len(runs) == 1 else states

    checkpoint.model.ln_f.register_forward_hook(spoiled)
    with pytest.raises(VerificationError, match="not finite"):
        found(checkpoint)
