"""Sinks are found: known truth on patterns made by hand, on models with a wish, and on real ones."""

import pytest
import torch
from transformers import GPT2Model
from transformers.models.mistral import modeling_mistral

from attnviz import compare, head_outputs, rollout
from attnviz.commands.heads.measure import analyze
from attnviz.errors import VerificationError
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from tests.conftest import SENTENCE, needs_minilm
from tests.support.families import checkpoint_of
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert
from tests.support.tolerances import SUMS_32

EAGER = "transformers.models.gpt2.modeling_gpt2.eager_attention_forward"


def found(checkpoint, text=SENTENCE):
    """Positions that are sinks, and those that are so by convention."""
    tokens = checkpoint.tokenize(text)
    return [tuple(sorted(each.sinks)) for each in (with_found_sinks(checkpoint, tokens), tokens)]


def attending_to(place: int, share: float, heads: int):
    """Stands for a GPT-2's attention: some heads give that share to one position, whatever else they do."""

    def eager(module, query, key, value, attention_mask, **more):
        weights = torch.softmax(query @ key.mT * 8**-0.5 + attention_mask, dim=-1)
        weights[:, :heads, place + 1 :] *= 1 - share
        weights[:, :heads, place + 1 :, place] += share
        return (weights @ value).transpose(1, 2), weights

    return eager


def fresh_gpt2(**changes):
    """A GPT-2 that was never trained, with attention that is nearly even."""
    torch.manual_seed(0)
    return from_loaded(GPT2Model(gpt2_config(attn_implementation="eager", **changes)).eval(), gpt2_tokenizer())


def resting_gpt2(word):
    """A GPT-2 whose heads all attend to one word: its keys have a direction that every query has."""
    model, n = fresh_gpt2().model, 32
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
def test_a_position_that_most_heads_rest_on_is_a_sink(monkeypatch, share, heads, is_sink):
    monkeypatch.setattr(EAGER, attending_to(2, share, heads))
    now, before = found(fresh_gpt2())
    assert before == (0,)
    assert now == ((0, 2) if is_sink else (0,))


def test_a_mean_takes_four_queries_after_a_key(monkeypatch):
    """Of seven tokens the third has four after it, the fourth three."""
    monkeypatch.setattr(EAGER, attending_to(2, 0.9, 4))
    checkpoint = fresh_gpt2()
    assert [found(checkpoint, " ".join(["the"] + ["cat"] * n))[0] for n in (6, 5)] == [(0, 2), (0,)]
    monkeypatch.setattr(EAGER, attending_to(3, 0.9, 4))
    assert found(checkpoint, " ".join(["the"] + ["cat"] * 6))[0] == (0,)


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


def test_a_first_run_that_is_not_finite_is_refused():
    checkpoint, runs = fresh_gpt2(), []

    def spoiled(module, args, states):
        runs.append(module)
        return states * torch.nan if len(runs) == 1 else states

    checkpoint.model.ln_f.register_forward_hook(spoiled)
    with pytest.raises(VerificationError):
        found(checkpoint)


def test_in_a_window_the_queries_that_no_longer_see_a_key_do_not_count(monkeypatch):
    """All attention of the four that see the third token is on it, and none of the thirty after them."""
    checkpoint = checkpoint_of("mistral", sliding_window=5, attn_implementation="eager")
    own = modeling_mistral.eager_attention_forward

    def eager(module, query, key, value, attention_mask, **more):
        output, weights = own(module, query, key, value, attention_mask, **more)
        weights = torch.zeros_like(weights)
        for place in range(weights.shape[-1]):
            weights[:, :, place, 2 if 2 < place < 7 else place] = 1
        return output, weights

    monkeypatch.setattr(modeling_mistral, "eager_attention_forward", eager)
    assert 2 in found(checkpoint, "the cat that i saw ran away from the dog " * 3)[0]
