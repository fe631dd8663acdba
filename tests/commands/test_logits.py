"""What logits rest on: the whole model's own, and heads that are not linear. Each mutation is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

import attnviz
from attnviz.errors import VerificationError
from attnviz.trace import direct_effects
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
    with pytest.raises(VerificationError, match="does not give the logits that the model returns"):
        function(TEXT, built, tokenizer=tokenizer)


def _not_linear(kind: str) -> tuple[Any, Any]:
    if kind == "masked":
        return masked_token_model()
    return (sharp_llama("gemma2"), sentencepiece_tokenizer()) if kind == "gemma2" else sharp_classifier(kind)


@pytest.mark.parametrize("kind", ["masked", "gemma2", "bert", "distilbert"])
@pytest.mark.parametrize("factor", [1.0, -3.0, 0.9])
def test_a_wrong_gradient_of_a_head_that_is_not_linear_is_refused(
    kind: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is what the gradient leaves out, so that parts sum to the logits whatever the gradient is."""
    right = torch.autograd.grad

    def wrong(*given: Any, **more: Any) -> Any:
        return [factor * each for each in right(*given, **more)]

    model, tokenizer = _not_linear(kind)
    monkeypatch.setattr(direct_effects.torch.autograd, "grad", wrong)
    text = "the cat [MASK] i saw" if kind == "masked" else TEXT
    if factor == 1:
        effects = attnviz.head_outputs(text, model, tokenizer=tokenizer).effects
        assert effects is not None
        assert not effects.linear
    else:
        with pytest.raises(VerificationError, match="are not how the logits move"):
            attnviz.head_outputs(text, model, tokenizer=tokenizer)


def test_a_large_part_that_is_no_head_does_not_widen_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, right = sharp_gpt2(model_class=GPT2LMHeadModel), direct_effects._linearised
    given = attnviz.head_outputs(TEXT, model, tokenizer=gpt2_tokenizer()).effects
    assert given is not None
    large, missed = 1000 * given.scale, 0.01 * given.scale

    def with_more(*arguments: Any) -> Any:
        gradient, rest = right(*arguments)
        more = (direct_effects.PartEffect("bias", None, value) for value in (large, missed - large))
        return gradient, [*rest, *more]

    monkeypatch.setattr(direct_effects, "_linearised", with_more)
    with pytest.raises(VerificationError, match="direct effects at position"):
        attnviz.head_outputs(TEXT, model, tokenizer=gpt2_tokenizer())


@pytest.mark.parametrize("value", [0.1, 1.0, 3.0])
def test_parts_sum_where_all_weights_are_equal(value: float) -> None:
    """A norm then takes a large number from all parts, which leaves nothing but rounding."""
    model = sharp_gpt2(model_class=GPT2LMHeadModel)
    for parameter in model.parameters():
        parameter.data.fill_(value)
    account = attnviz.why("a b c d", model, tokenizer=gpt2_tokenizer(), head="L1H0")
    assert account.effects is not None
    assert account.effects.error < SUMS_32
