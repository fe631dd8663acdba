"""Direct logit attribution: exact, against the model's own logits; a head that is known by design; wrong parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM, BertModel, GPT2LMHeadModel

import attnviz
from attnviz.commands.outputs import direct_effects
from attnviz.commands.outputs.direct_effects import MOST_TOKENS
from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.commands.outputs.residual_stream import recording_stream
from attnviz.errors import UsageError, VerificationError
from attnviz.models.head_ids import HeadId
from attnviz.models.words import vocabulary_labels
from attnviz.reference.attention import upcast
from attnviz.reference.tolerances import TOLERANCES
from attnviz.trace.contributions import LayerContributions
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.outputs import D_MODEL, N_HEADS, N_LAYERS, of_head, own_numbers, sharper_gpt2

TOKENIZER = gpt2_tokenizer()
DTYPES = [(torch.float32, 1e-4), (torch.float64, 1e-11)]


def promoted_by(model: Any, text: str = SENTENCE, **options: Any) -> HeadOutputs:
    return attnviz.head_outputs(text, model, tokenizer=TOKENIZER, **options)


def centred(logits: np.ndarray) -> np.ndarray:
    return logits - logits.mean()


# --- the decomposition ------------------------------------------------------------------------------------


@pytest.mark.draws
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("at", [0, 2, None])
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_all_parts_sum_to_the_logits_of_the_model(dtype, limit, at, bias):
    model = sharper_gpt2(dtype, bias)
    ids = TOKENIZER(SENTENCE)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().numpy()
    result = promoted_by(model, token=at).attribution
    position = len(ids) - 1 if at is None else at
    own = centred(logits[position])
    assert result.position == position
    assert result.predicted.id == own.argmax()
    assert result.predicted.logit == pytest.approx(own.max(), rel=limit)
    for token in filter(None, (result.predicted, result.actual)):
        assert token.model_logit == pytest.approx(logits[position, token.id], abs=limit)
        assert token.logit + token.mean_logit == pytest.approx(token.model_logit, abs=limit)
    parts = [*result.heads, *result.parts]
    assert len(parts) == N_LAYERS * (N_HEADS + 2) + 3 + bias
    assert sum(part.predicted for part in parts) == pytest.approx(own.max(), rel=limit)
    if at is None:
        assert result.actual is None
        assert {part.actual for part in parts} == {None}
    else:
        following = ids[position + 1]
        assert result.actual.id == following
        assert result.actual.logit == pytest.approx(own[following], abs=limit)
        assert sum(part.actual for part in parts) == pytest.approx(own[following], abs=limit)
    assert result.error < limit / 10
    assert result.scale == pytest.approx(np.abs(own).max(), rel=limit)
    assert result.tolerance == TOLERANCES[dtype].output


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_a_heads_tokens_are_those_of_plain_numpy(dtype, limit):
    model = sharper_gpt2(dtype)
    own = own_numbers("gpt2", model)
    streams: list[torch.Tensor] = []
    handle = model.transformer.ln_f.register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))
    with torch.no_grad():
        model(**{"input_ids": torch.tensor([TOKENIZER(SENTENCE)["input_ids"]])})
    handle.remove()
    position = 3
    x = streams[0][position].detach().double().numpy()
    s = np.sqrt(((x - x.mean()) ** 2).mean() + model.config.layer_norm_epsilon)
    gamma = model.transformer.ln_f.weight.detach().double().numpy()
    unembedding = model.lm_head.weight.detach().double().numpy()
    result = promoted_by(model, token=position)
    assert result.attribution.deviation == pytest.approx(s, rel=1e-6)
    for layer, head in ((0, 1), (2, 3)):
        c = of_head(own, layer, head)[2][position]
        logits = centred(unembedding @ (gamma * (c - c.mean()) / s))
        got = result.promoted(HeadId(layer, head))
        order = np.argsort(-logits)
        assert [token.id for token in got.promoted] == list(order[:MOST_TOKENS])
        assert [token.id for token in got.suppressed] == list(order[::-1][:MOST_TOKENS])
        for token in (*got.promoted, *got.suppressed):
            assert token.logit == pytest.approx(logits[token.id], abs=limit)
        assert got.predicted == pytest.approx(logits[result.attribution.predicted.id], abs=limit)


def test_other_positions_are_asked_for_by_token_or_number():
    result = promoted_by(sharper_gpt2(), token="cat")
    assert result.attribution.position == result.tokens.labels.index("cat")
    for at in ("#4", 4):
        assert result.attribute(at).position == 4
    assert result.promoted("L1H1", token=4) == result.attribute(4).of(HeadId(1, 1)) != result.promoted("L1H1")
    assert result.promoted("L1H1") == result.attribution.of(HeadId(1, 1))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("dog", "no token “dog” in the text: expected one of"),
        (99, "the text has positions 0 to 4, found 99"),
        (True, "expected a token of the text, .* found True"),
        ("cat", r"the token “cat” stands in the text 2 times; name one: cat#1 \(#1\), cat#2 \(#3\)\."),
    ],
)
def test_positions_that_are_none_or_several(at, message):
    with pytest.raises(UsageError, match=message):
        promoted_by(sharper_gpt2(), "the cat the cat the", token=at)


# --- a head known by design -------------------------------------------------------------------------------


def hand_built(target: int, layer: int = 0, head: int = 1) -> Any:
    """A GPT-2 with one head that writes the unembedding of a token, wherever it looks; all others write nothing."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(gpt2_config(n_embd=64, n_layer=2, n_head=4)).eval()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_proj.weight.zero_()
            block.mlp.c_proj.weight.zero_()
            block.attn.c_attn.bias.zero_()
        attn = model.transformer.h[layer].attn
        first = head * 16
        attn.c_attn.weight[:, 128 + first] = 0.0  # the head's first value is 1 for every token
        attn.c_attn.bias[128 + first] = 1.0
        attn.c_proj.weight[first] = 20 * model.lm_head.weight[target]
    return model


@pytest.mark.parametrize("word", [" cat", " that"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_head_that_writes_a_tokens_unembedding_promotes_that_token(word, layer):
    (target,) = TOKENIZER(word)["input_ids"]
    result = promoted_by(hand_built(target, layer))
    promotion = result.promoted(HeadId(layer, 1))
    assert promotion.promoted[0].id == target
    assert promotion.promoted[0].text == word.strip()
    assert promotion.promoted[0].logit > 2 * promotion.promoted[1].logit
    assert result.attribution.predicted.id == target
    assert promotion.predicted == pytest.approx(promotion.promoted[0].logit)
    assert promotion.predicted > 0.9 * result.attribution.predicted.logit
    assert {head.id for head in result.attribution.heads if head.predicted} == {HeadId(layer, 1)}
    assert result.heads[0].id == HeadId(layer, 1)
    assert result.heads[0].norm_share == pytest.approx(1)


def test_a_head_that_writes_the_opposite_suppresses_the_token():
    (target,) = TOKENIZER(" cat")["input_ids"]
    model = hand_built(target)
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight.neg_()
    assert promoted_by(model).promoted("L0H1").suppressed[0].id == target


def test_a_head_that_writes_nothing_promotes_nothing():
    (target,) = TOKENIZER(" cat")["input_ids"]
    result = promoted_by(hand_built(target))
    nothing, some = result.promoted("L1H2"), result.promoted("L0H1")
    assert (nothing.promoted, nothing.suppressed) == ((), ())
    assert all(token.logit > 0 for token in some.promoted)
    assert all(token.logit < 0 for token in some.suppressed)
    assert result.report()


# --- wrong parts ------------------------------------------------------------------------------------------


def _unembedding(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    right = direct_effects._Unembedding.__init__

    def wrong(self, checkpoint, last):
        right(self, checkpoint, last)
        copies = {name: getattr(self._norm, name).detach().clone() for name in ("weight", "bias")}
        self._norm = replace(self._norm, **copies)  # the model keeps its own
        change(self)

    monkeypatch.setattr(direct_effects._Unembedding, "__init__", wrong)


def _not_centred(self, part):
    logits = (upcast(part) / self.deviation * self._norm.weight) @ self._weight.T
    return logits - logits.mean(-1, keepdim=True)


def _feed_forward_of_the_layer_before(monkeypatch: pytest.MonkeyPatch) -> None:
    right = direct_effects.attribute_logits

    def wrong(verified, stream, position):
        stream.feed_forward.insert(0, stream.feed_forward.pop())
        stream.feed_forward[0] = torch.zeros_like(stream.feed_forward[0])
        return right(verified, stream, position)

    monkeypatch.setattr("attnviz.commands.outputs.measure.attribute_logits", wrong)


def _outputs_at_the_next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LayerContributions.outputs_at
    monkeypatch.setattr(LayerContributions, "outputs_at", lambda self, position: right(self, position + 1))


MUTANTS = {
    "no gamma": lambda patch: _unembedding(patch, lambda self: self._norm.weight.fill_(1.0)),
    "no beta": lambda patch: _unembedding(patch, lambda self: self._norm.bias.fill_(0.0)),
    "no number": lambda patch: _unembedding(patch, lambda self: setattr(self, "deviation", float("nan"))),
    "variance for deviation": lambda patch: _unembedding(
        patch, lambda self: setattr(self, "deviation", self.deviation**2)
    ),
    "words shuffled": lambda patch: _unembedding(patch, lambda self: setattr(self, "_weight", self._weight.flip(0))),
    "mean not subtracted": lambda patch: patch.setattr(direct_effects._Unembedding, "__call__", _not_centred),
    "feed-forward of the layer before": _feed_forward_of_the_layer_before,
    "heads at the next position": _outputs_at_the_next_position,
    "no position embedding": lambda patch: patch.setattr(
        direct_effects, "_embeddings", lambda checkpoint, ids, at: [("w", checkpoint.model.wte.weight[ids[at]])]
    ),
}


@pytest.mark.draws
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_parts_do_not_pass(mutant, dtype, monkeypatch):
    model = sharper_gpt2(dtype)
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(VerificationError, match=r"do not sum to the model's own logits at position 2 \('that'\)"):
        promoted_by(model, "the cat that i saw", token=2)


# --- models without ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", [BertModel, BertForMaskedLM])
def test_bert_says_why_it_has_none(model_class):
    result = attnviz.head_outputs(SENTENCE, sharp_bert(model_class=model_class), tokenizer=bert_tokenizer())
    assert result.attribution is None
    assert result.stream.feed_forward == []
    assert result.no_attribution in " ".join(result.report(width=400).split())
    for call in (result.attribute, lambda: result.promoted("L0H0"), lambda: result.figure("effects")):
        with pytest.raises(UsageError, match="Promoted tokens are not given: in BERT"):
            call()


def test_a_bare_gpt2_in_memory_has_no_head_but_its_checkpoint_has(tmp_path):
    model = sharp_gpt2()
    result = promoted_by(model)
    assert "no language-modelling head" in result.no_attribution
    folder = save_checkpoint(model, TOKENIZER, tmp_path / "bare")  # the unembedding is tied to the embedding
    assert attnviz.head_outputs(SENTENCE, folder, device="cpu").attribution is not None


def test_hooks_are_gone_and_a_second_pass_starts_anew():
    model = sharper_gpt2()
    result = promoted_by(model)
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert len(result.stream.feed_forward) == N_LAYERS
    assert result.stream.last.shape == result.stream.normed.shape == (len(result.tokens), D_MODEL)
    with recording_stream(result.checkpoint) as stream, torch.no_grad():
        for _ in range(2):
            result.checkpoint.model(torch.tensor([[1, 2, 3]]))
    assert len(stream.feed_forward) == N_LAYERS


def test_entries_of_the_vocabulary_as_they_are_shown():
    ids = TOKENIZER.get_vocab()
    labels = vocabulary_labels(TOKENIZER, [ids[piece] for piece in ("Ġcat", "c", "Ġ", ",", "Ċ", "<|endoftext|>", "Ã")])
    assert labels == ["cat", "~c", "␣", ",", r"\n", "<|endoftext|>", r"\xc3"]
    assert vocabulary_labels(TOKENIZER, [100_000]) == ["id 100000"]
    wordpieces = bert_tokenizer()
    ids = wordpieces.convert_tokens_to_ids(["cat", "##able", "[CLS]", "$"])
    assert vocabulary_labels(wordpieces, ids) == ["cat", "##able", "[CLS]", "$"]
