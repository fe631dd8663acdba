"""Direct effects on an answer minus a foil: against plain loops; a head that is known by design; wrong parts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

import attnviz
from attnviz.commands.outputs import HeadOutputs
from attnviz.errors import UsageError, VerificationError
from attnviz.inputs.words import vocabulary_labels
from attnviz.measures import direct_effects
from attnviz.measures.direct_effects import MOST_TOKENS, PartEffect
from attnviz.models.head_ids import HeadId
from attnviz.present.view import ViewOptions
from attnviz.reference.attention import LayerNorm
from attnviz.reference.tolerances import TOLERANCES
from attnviz.run import contributions
from attnviz.run.stream import Term, WrittenParts, recording_parts
from attnviz.wording import signed
from tests.conftest import SENTENCE
from tests.support.ablations import masked_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.outputs import N_HEADS, N_LAYERS, of_head, own_numbers, sharper_gpt2
from tests.support.printed import rows_in
from tests.support.tolerances import SHARP, SUMS_32

TOKENIZER = gpt2_tokenizer()
DTYPES = [*SHARP.items()]


def promoted_by(model: Any, text: str = SENTENCE, **options: Any) -> HeadOutputs:
    return attnviz.head_outputs(text, model, tokenizer=TOKENIZER, **options)


@pytest.mark.draws
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("at", [0, 2, None])
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_all_parts_sum_to_the_logits_of_the_model(dtype, limit, at, bias):
    model = sharper_gpt2(dtype, bias)
    ids = TOKENIZER(SENTENCE)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().numpy()
    result = promoted_by(model, token=at).effects
    position = len(ids) - 1 if at is None else at
    own = logits[position]
    assert result.position == position
    assert result.predicted.id == own.argmax()
    assert result.foil.id == own.argsort()[-2]
    for token in filter(None, (result.answer, result.foil, result.actual)):
        assert token.logit == pytest.approx(own[token.id], abs=limit)
        assert token.probability == pytest.approx(np.exp(own[token.id]) / np.exp(own).sum(), abs=limit)
    parts = [*result.heads.values(), *(part.direct_effect for part in result.parts)]
    assert len(parts) == N_LAYERS * (N_HEADS + 2) + 3 + bias
    assert result.difference == pytest.approx(own[result.answer.id] - own[result.foil.id], abs=limit)
    assert sum(parts) == pytest.approx(result.difference, abs=limit)
    assert (result.actual and result.actual.id) == (None if at is None else ids[position + 1])
    assert result.error < limit / 10
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
    result = promoted_by(model, token="#3")
    assert result.promoted("L1H1") == promoted_by(model).promoted("L1H1", token=3)
    assert result.effects.deviation == pytest.approx(s, rel=SUMS_32)
    for layer, head in ((0, 1), (2, 3)):
        c = of_head(own, layer, head)[2][position]
        logits = unembedding @ (gamma * (c - c.mean()) / s)
        logits -= logits.mean()
        got = result.promoted(HeadId(layer, head))
        order = np.argsort(-logits)
        assert [token.id for token in got.promoted] == list(order[:MOST_TOKENS])
        assert [token.id for token in got.suppressed] == list(order[::-1][:MOST_TOKENS])
        for token in (*got.promoted, *got.suppressed):
            assert token.logit == pytest.approx(logits[token.id], abs=limit)
        of_two = logits[result.effects.answer.id] - logits[result.effects.foil.id]
        assert result.effects.heads[HeadId(layer, head)] == pytest.approx(of_two, abs=limit)


def test_the_heads_with_the_largest_direct_effects_stand_first_with_the_tokens_that_they_promote():
    result = promoted_by(sharper_gpt2())
    rows = rows_in(result.tables(ViewOptions(verbose=True, top=0)), "Direct effects")
    heads = [HeadId.parse(row["Head"]) for row in rows]
    assert heads == sorted(result.effects.heads, key=lambda head: (-abs(result.effects.heads[head]), head))
    assert [row["Adds"] for row in rows] == [signed(result.effects.heads[head]) for head in heads]
    promoted = [result.promoted(head).promoted[0] for head in heads]
    assert all(signed(token.logit) in row["Promotes (logits)"] for token, row in zip(promoted, rows, strict=True))


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


@pytest.mark.parametrize("layer", [0, 1])
def test_a_head_that_writes_a_tokens_unembedding_promotes_it_and_its_opposite_suppresses_it(layer):
    (target,) = TOKENIZER(" cat")["input_ids"]
    model = hand_built(target, layer)
    result = promoted_by(model)
    promotion = result.promoted(HeadId(layer, 1))
    assert (promotion.promoted[0].id, promotion.promoted[0].text) == (target, "cat")
    assert promotion.promoted[0].logit > 2 * promotion.promoted[1].logit
    assert result.effects.predicted.id == target
    assert result.effects.heads[HeadId(layer, 1)] > 0.9 * result.effects.difference
    assert {head for head, effect in result.effects.heads.items() if effect} == {HeadId(layer, 1)}
    assert result.heads[0].norm_share == pytest.approx(1)
    with torch.no_grad():
        model.transformer.h[layer].attn.c_proj.weight.neg_()
    assert promoted_by(model).promoted(HeadId(layer, 1)).suppressed[0].id == target


def _scaled(change: Any) -> Any:
    """What the final norm divides by, changed for the parts alone."""
    right = WrittenParts.final_scale
    return lambda patch: patch.setattr(WrittenParts, "final_scale", lambda self, norm: change(right(self, norm)))


def _terms(change: Any) -> Any:
    """The terms of the final state changed; those for which ``change`` is None are left out."""
    right = WrittenParts.final_terms
    changed = lambda self: (term for each in right(self) if (term := change(each)) is not None)  # noqa: E731
    return lambda patch: patch.setattr(WrittenParts, "final_terms", changed)


def _without(*part: Any) -> Any:
    return _terms(lambda term: None if term.sources[0][: len(part)] == part else term)


def _heads_at_the_next_position(term: Term) -> Term:
    is_of_heads = isinstance(term.sources[0], HeadId)
    return replace(term, vectors=term.vectors.roll(-1, 0)) if is_of_heads else term


def _read_by(change: Any) -> Any:
    return lambda patch: patch.setattr(LayerNorm, "read_by", change)


MUTANTS: dict[str, Any] = {
    "no gamma": _read_by(lambda norm, weight: weight - weight.mean(-2, keepdim=True)),
    "mean not subtracted": _read_by(lambda norm, weight: norm.weight[:, None] * weight),
    "no beta": _without("final norm bias"),
    "no scale": _scaled(torch.ones_like),
    "no number": _scaled(lambda scale: scale * torch.nan),
    "variance for deviation": _scaled(torch.square),
    "no b_O": _without("attention bias"),
    "no feed-forward of layer 1": _without("feed-forward", 1),
    "heads at the next position": _terms(_heads_at_the_next_position),
    "no position embedding": _without("position embedding"),
    "another bias of the unembedding": lambda patch: patch.setattr(
        direct_effects, "PartEffect", lambda *part: PartEffect(*part[:2], part[2] + ("bias" in part[0]))
    ),
}


@pytest.mark.draws
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_parts_do_not_pass(mutant, monkeypatch):
    model = sharper_gpt2(bias=True)
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(VerificationError, match="at position 2"):
        promoted_by(model, "the cat that i saw", token=2)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "olmo2"])
def test_effects_of_a_head_and_of_its_keys_are_those_of_a_plain_loop(family):
    """Through hooks and the model's own modules: o_h, the norm behind W_O (if any), the final norm, two rows of W_U."""
    model = sharp_llama(family)
    result = attnviz.head_outputs(SENTENCE, model, tokenizer=sentencepiece_tokenizer(), token=3, answer=7, foil=11)
    block = model.model.layers[1]
    attn, final_norm = block.self_attn, model.model.norm
    behind = None if family == "qwen2" else block.post_attention_layernorm
    taken: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: taken.update({name: args[0] if args else kwargs["hidden_states"]}),
            with_kwargs=True,
        )
        for name, module in (("x", attn), ("last", final_norm), ("written", behind))
        if module is not None
    ]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = model(torch.tensor([result.tokens.ids]), output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    n_heads = patterns[1].shape[1]

    def through(vector, norm, x):
        """One of the model's norms with the scale that it has for x."""
        epsilon = getattr(norm, "eps", None) or norm.variance_epsilon
        factor = (norm.weight + (family == "gemma3_text")) / (x.square().mean() + epsilon).sqrt()
        assert torch.allclose(x * factor, norm(x), atol=SUMS_32)
        return vector * factor

    for head in range(n_heads):
        by_key = []
        for key, x in enumerate(taken["x"][0]):
            values = attn.v_proj(x).reshape(-1, attn.head_dim)
            mine = slice(head * attn.head_dim, (head + 1) * attn.head_dim)
            vector = attn.o_proj.weight[:, mine] @ values[head * len(values) // n_heads] * patterns[1][0, head, 3, key]
            if behind is not None:
                vector = through(vector, behind, taken["written"][0, 3])
            vector = through(vector, final_norm, taken["last"][0, 3])
            by_key.append((vector @ (model.lm_head.weight[7] - model.lm_head.weight[11])).item())
        found = direct_effects.direct_effects(result.attention, result.written, 3, 7, 11, HeadId(1, head))
        assert found.keys == pytest.approx(by_key, abs=SUMS_32 * found.scale)
        assert sum(found.keys) == found.heads[HeadId(1, head)]
        assert result.effects.heads[HeadId(1, head)] == pytest.approx(sum(by_key), abs=SUMS_32 * found.scale)


def test_keys_that_do_not_sum_to_the_head_are_refused(monkeypatch):
    result = promoted_by(sharper_gpt2())
    right = contributions.pattern_row
    monkeypatch.setattr(contributions, "pattern_row", lambda *given: 1.01 * right(*given))
    with pytest.raises(VerificationError, match="L1H1"):
        direct_effects.direct_effects(result.attention, result.written, 3, by_key=HeadId(1, 1))


def test_a_masked_language_head_is_linearised_along_its_gradient():
    model, tokenizer = masked_token_model()
    result = attnviz.head_outputs("the cat [MASK] i saw", model, tokenizer=tokenizer)
    found = result.effects
    assert (found.position, found.linear, found.actual) == (3, False, None)
    last = model.bert.encoder.layer[2]
    norms = [last.attention.output.LayerNorm, last.output.LayerNorm]
    given: list[torch.Tensor] = []
    handles = [norm.register_forward_pre_hook(lambda _, args: given.append(args[0][0, 3])) for norm in norms]
    with torch.no_grad():
        final = model.bert(torch.tensor([result.tokens.ids])).last_hidden_state[0, 3]
    for handle in handles:
        handle.remove()
    final.requires_grad_()
    logits = model.cls(final[None])[0]
    assert found.predicted.id == found.answer.id == int(logits.argmax())
    difference = logits[found.answer.id] - logits[found.foil.id]
    (gradient,) = torch.autograd.grad(difference, final)
    for head in range(4):
        part = result.output(HeadId(2, head))[3]
        for norm, x in zip(norms, given, strict=True):
            part = (part - part.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight
        assert found.heads[HeadId(2, head)] == pytest.approx(
            float((part @ gradient).detach()), abs=SUMS_32 * found.scale
        )
    total = sum(found.heads.values()) + sum(part.direct_effect for part in found.parts)
    assert total == pytest.approx(float(difference.detach()), abs=SUMS_32 * found.scale)
    with pytest.raises(UsageError):
        result.promoted("L0H0")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"answer": "unseen"}, "answer"),
        ({"answer": " cat", "foil": "Ġcat"}, "foil"),
        ({"answer": 10**6}, str(10**6)),
        ({"foil": True}, "foil"),
        ({"token": "dog"}, "dog"),
        ({"token": 99}, "99"),
    ],
)
def test_answers_that_are_no_token_or_several(options, word):
    with pytest.raises(UsageError, match=word):
        promoted_by(sharper_gpt2(), **options)


def test_a_bare_bert_has_none():
    result = attnviz.head_outputs(SENTENCE, sharp_bert(), tokenizer=bert_tokenizer())
    assert (result.effects, result.written) == (None, None)
    for call in (result.effects_at, lambda: result.promoted("L0H0"), lambda: result.figure("effects")):
        with pytest.raises(UsageError):
            call()


def test_hooks_are_gone_and_a_second_pass_starts_anew():
    model = sharper_gpt2()
    result = promoted_by(model)
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    with recording_parts(result.checkpoint, result.tokens) as written, torch.no_grad():
        for _ in range(2):
            result.checkpoint.model(torch.tensor([[1, 2, 3]]))
    assert {len(tensor) for tensor in written.sites.values()} == {3}


def test_entries_of_the_vocabulary_as_they_are_shown():
    ids = TOKENIZER.get_vocab()
    labels = vocabulary_labels(TOKENIZER, [ids[piece] for piece in ("Ġcat", "c", "Ġ", ",", "Ċ", "<|endoftext|>", "Ã")])
    assert labels == ["cat", "~c", "␣", ",", r"\n", "<|endoftext|>", r"\xc3"]
    assert vocabulary_labels(TOKENIZER, [100_000]) == ["id 100000"]


# --- logits of the whole model, and of heads that are not linear

TEXT = "the cat that i saw"


class _Negated(LlamaForCausalLM):
    """Its forward gives -2 times what its head gives."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = -2 * output.logits
        return output


@pytest.mark.parametrize("function", [
    attnviz.head_outputs,
    lambda *given, **more: attnviz.why(*given, head="L1H1", **more),
    lambda *given, **more: attnviz.ablate(*given, select="L1", curve=False, **more),
])  # fmt: skip
def test_a_model_that_returns_other_logits_than_its_head_gives_is_refused(function: Callable[..., Any]) -> None:
    built, tokenizer = sharp_llama("llama"), sentencepiece_tokenizer()
    assert function(TEXT, built, tokenizer=tokenizer)
    built.__class__ = _Negated
    with pytest.raises(VerificationError):
        function(TEXT, built, tokenizer=tokenizer)


def _not_linear(kind: str) -> tuple[Any, Any]:
    if kind == "masked":
        return masked_token_model()
    return (sharp_llama("gemma2"), sentencepiece_tokenizer()) if kind == "gemma2" else sharp_classifier(kind)


@pytest.mark.parametrize("kind", ["masked", "gemma2", "bert", "distilbert"])
def test_a_wrong_gradient_of_a_head_that_is_not_linear_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is what the gradient leaves out, so that parts sum to the logits whatever the gradient is."""
    model, tokenizer = _not_linear(kind)
    text = "the cat [MASK] i saw" if kind == "masked" else TEXT
    effects = attnviz.head_outputs(text, model, tokenizer=tokenizer).effects
    assert effects is not None
    assert not effects.linear
    right = torch.autograd.grad
    for factor in (-3.0, 0.9):
        monkeypatch.setattr(
            torch.autograd, "grad", lambda *of, factor=factor, **more: [factor * each for each in right(*of, **more)]
        )
        with pytest.raises(VerificationError):
            attnviz.head_outputs(text, model, tokenizer=tokenizer)


@torch.no_grad()
def test_a_large_part_that_is_no_head_does_not_widen_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both biases are 1,000 times as large as any head, and cancel; a hundredth of a head is missed."""
    model: Any = sharp_gpt2(model_class=GPT2LMHeadModel)
    options: dict[str, Any] = {"tokenizer": gpt2_tokenizer(), "answer": 7, "foil": 11}
    given = attnviz.head_outputs(TEXT, model, **options).effects
    assert given is not None
    towards, large = model.lm_head.weight[7] - model.lm_head.weight[11], 1000 * given.scale
    model.transformer.ln_f.bias += large * towards / towards.square().sum()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(400))
    model.lm_head.bias[7] = -large
    assert attnviz.head_outputs(TEXT, model, **options).effects is not None

    def missed(name: str, layer: int | None, value: float) -> PartEffect:
        return PartEffect(name, layer, value + 0.01 * given.scale * (name == "unembedding bias"))

    monkeypatch.setattr(direct_effects, "PartEffect", missed)
    with pytest.raises(VerificationError):
        attnviz.head_outputs(TEXT, model, **options)


@pytest.mark.parametrize("value", [0.1, 1.0, 3.0])
def test_parts_sum_where_all_weights_are_equal(value: float) -> None:
    """A norm then takes a large number from all parts, which leaves nothing but rounding."""
    model = sharp_gpt2(model_class=GPT2LMHeadModel)
    for parameter in model.parameters():
        parameter.data.fill_(value)
    account = attnviz.why("a b c d", model, tokenizer=gpt2_tokenizer(), head="L1H0")
    assert account.effects is not None
    assert account.effects.error < SUMS_32
