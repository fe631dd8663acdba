"""What holds for every function that measures a single text: the model stays as it was, and what is no text."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

import attnviz
from attnviz.errors import TextError
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ablate": partial(attnviz.ablate, method="uniform", select="L0-1", curve=False),
    "analyze": partial(attnviz.analyze, syntax=False),
    "explain": partial(attnviz.explain, layer=1),
    "head_outputs": attnviz.head_outputs,
    "rollout": attnviz.rollout,
}
MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bert": lambda: (sharp_bert(model_class=BertForMaskedLM), bert_tokenizer()),
    "gpt2": lambda: (sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer()),
}


@pytest.mark.draws
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_model_in_memory_is_left_as_it_was(name, kind):
    """Also where a library has replaced a module's forward, as those do that move weights about."""
    model, tokenizer = MODELS[kind]()
    model.set_attn_implementation("sdpa")
    model.train()
    replaced, other = (model.transformer.h if kind == "gpt2" else model.bert.encoder.layer)[:2]
    replaced.forward = own = Mock(side_effect=replaced.forward)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = FUNCTIONS[name](SENTENCE, model, tokenizer=tokenizer)
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert replaced.forward is own
    assert own.called
    assert "forward" not in vars(other)
    assert FUNCTIONS[name](SENTENCE, model, tokenizer=tokenizer).document() == first.document()


@pytest.mark.parametrize("name", ["analyze", "explain", "head_outputs", "rollout"])
def test_only_a_string_is_a_text_or_a_pair(name):
    model, tokenizer = MODELS["bert"]()
    for text in (3, b"the cat"):
        found = f"({re.escape(repr(text))}|{type(text).__name__})"
        with pytest.raises(TextError, match=rf"text.*{found}"):
            FUNCTIONS[name](text, model, tokenizer=tokenizer)
        if name != "rollout":
            with pytest.raises(TextError, match=rf"pair.*{found}"):
                FUNCTIONS[name](SENTENCE, model, tokenizer=tokenizer, pair=text)
    if name != "analyze":  # a chat instead, and several
        with pytest.raises(TextError, match=r"text.*None"):
            FUNCTIONS[name](None, model, tokenizer=tokenizer)


def test_progress_is_told_to_the_end_of_each_step():
    told: list[tuple[str, int, int]] = []
    model, tokenizer = MODELS["gpt2"]()
    attnviz.head_outputs(SENTENCE, model, tokenizer=tokenizer, progress=lambda *of: told.append(of))
    assert [what for what, done, total in told if done == total] == ["verifying", "measuring"]
    counts = [done for what, done, _ in told if what == "verifying"]
    assert counts == sorted(set(counts))
