"""What logits rest on: the whole model's own, and heads that are not linear. Each mutation is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

import attnviz
from attnviz.errors import VerificationError
from attnviz.trace import direct_effects
from attnviz.trace.direct_effects import PartEffect
from tests.support.ablations import masked_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import gpt2_tokenizer, sharp_gpt2
from tests.support.tolerances import SUMS_32

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
