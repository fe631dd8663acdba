"""Hostile weights, arguments, paths and folders: one message that says what is wrong and what to do, whatever runs."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertForMaskedLM, GPT2LMHeadModel, PreTrainedTokenizerFast

import attnviz
from attnviz.errors import CheckpointError, UsageError, VerificationError
from attnviz.models.checkpoint import from_loaded
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.signatures import parameters_of


@pytest.mark.parametrize("call", [attnviz.analyze, attnviz.rollout, attnviz.head_outputs, attnviz.explain])
def test_states_after_the_last_attention_that_overflow_are_named(call):
    model = sharp_gpt2()
    with torch.no_grad():
        model.ln_f.bias.fill_(3e38)
        model.ln_f.weight.fill_(3e38)
    with pytest.raises(VerificationError, match="final"):
        call(SENTENCE, model, tokenizer=gpt2_tokenizer())


@pytest.mark.parametrize(
    ("make", "model_class", "tokenizer", "part"),
    [(sharp_bert, BertForMaskedLM, bert_tokenizer, "cls.predictions.transform.dense.weight"),
     (sharp_gpt2, GPT2LMHeadModel, gpt2_tokenizer, "transformer.wte.weight")],
)  # fmt: skip
def test_a_loss_that_overflows_is_named(make, model_class, tokenizer, part):
    model = make(0, model_class)
    with torch.no_grad():
        model.get_parameter(part)[-1] = torch.finfo(torch.float32).max
    with pytest.raises(VerificationError, match=r"nan|inf"):
        attnviz.ablate(SENTENCE, model, tokenizer=tokenizer())


def test_a_tokenizer_of_special_tokens_alone_has_no_random_text():
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    checkpoint = from_loaded(sharp_bert(), tokenizer)
    with pytest.raises(CheckpointError, match="--repeats"):
        attnviz.profile_heads(checkpoint, [], repeats=True, control=False)


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (attnviz.profile_heads, {"texts": [], "batch_size": 0}),
    (attnviz.profile_heads, {"texts": [], "seed": 2**63}),
    (attnviz.profile_heads, {"texts": [], "unfinished": "file"}),
    (attnviz.profile_heads, {"texts": [], "model": torch.nn.ReLU(), "tokenizer": "minilm", "repeats": True}),
    (attnviz.analyze, {"text": SENTENCE, "words": "yes"}),
    (attnviz.analyze, {"text": SENTENCE, "progress": 3}),
    (attnviz.head_outputs, {"text": SENTENCE, "dtype": 32}),
]


@pytest.mark.parametrize(("call", "wrong"), WRONG)
def test_arguments_of_other_kinds_are_refused_by_every_function(call: Any, wrong: dict[str, Any]):
    assert set(wrong) <= set(parameters_of(call))  # else it is refused for that
    with pytest.raises(UsageError):
        call(**{"model": "tiny-gpt2", **wrong})


def test_a_surrogate_is_no_folder_and_a_number_no_selection():
    found = attnviz.analyze(SENTENCE, "tiny-gpt2", syntax=False)
    with pytest.raises(UsageError):
        found.save("\ud800")
    with pytest.raises(UsageError):
        next(found.patterns(1))


def test_a_result_is_itself_and_can_be_a_key():
    one, other = (attnviz.analyze(SENTENCE, "tiny-gpt2", syntax=False) for _ in range(2))
    assert {one: 1, other: 2}[one] == 1
    assert one != other
