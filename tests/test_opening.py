"""A model by name or in memory, with or without its language-modelling head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

from attnviz.errors import CheckpointError, UsageError
from attnviz.model.checkpoint import from_loaded
from attnviz.model.opening import open_checkpoint
from tests.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

TOKENIZERS = {"bert": bert_tokenizer, "gpt2": gpt2_tokenizer}
WITH_HEAD = [(sharp_bert, BertForMaskedLM), (sharp_bert, BertForPreTraining), (sharp_gpt2, GPT2LMHeadModel)]


def saved(make: Any, model_class: Any, folder: Path) -> tuple[Any, Path]:
    model = make(model_class=model_class)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("cls"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, save_checkpoint(model, TOKENIZERS[make.__name__[6:]](), folder)


@pytest.mark.parametrize(("make", "model_class"), WITH_HEAD)
def test_the_head_gives_the_models_own_logits(make: Any, model_class: Any, tmp_path: Path) -> None:
    model, folder = saved(make, model_class, tmp_path)
    checkpoint, _ = open_checkpoint(folder, device="cpu", language_head=True)
    inputs = checkpoint.tokenize("the cat ran away").model_inputs(torch.device("cpu"))
    with torch.inference_mode():
        whole = model(**inputs)
        expected = whole.prediction_logits if model_class is BertForPreTraining else whole.logits
        hidden = checkpoint.model(**inputs).last_hidden_state
        assert checkpoint.language_head is not None
        torch.testing.assert_close(checkpoint.language_head(hidden), expected)
    assert expected.std() > 0.01
    assert not checkpoint.language_head.training


@pytest.mark.parametrize(("make", "model_class"), WITH_HEAD)
def test_the_head_is_left_out_unless_asked_for(make: Any, model_class: Any, tmp_path: Path) -> None:
    _, folder = saved(make, model_class, tmp_path)
    assert open_checkpoint(folder, device="cpu")[0].language_head is None


def test_a_bert_without_head_has_none(bert_folder: Path, tmp_path: Path) -> None:
    assert open_checkpoint(bert_folder, device="cpu", language_head=True)[0].language_head is None
    _, folder = saved(sharp_bert, BertForSequenceClassification, tmp_path)
    assert open_checkpoint(folder, device="cpu", language_head=True)[0].language_head is None


def test_a_bare_gpt2_has_its_tied_head(gpt2_folder: Path, tmp_path: Path) -> None:
    for folder in (gpt2_folder, saved(sharp_gpt2, GPT2ForSequenceClassification, tmp_path)[1]):
        checkpoint, _ = open_checkpoint(folder, device="cpu", language_head=True)
        assert checkpoint.language_head is not None
        assert checkpoint.language_head.weight is checkpoint.model.wte.weight  # type: ignore[union-attr]


def test_a_gpt2_whose_own_head_is_missing_has_none(tmp_path: Path) -> None:
    folder = save_checkpoint(sharp_gpt2(tie_word_embeddings=False), gpt2_tokenizer(), tmp_path)
    assert open_checkpoint(folder, device="cpu", language_head=True)[0].language_head is None


def test_missing_weights_below_the_head_are_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _, folder = saved(sharp_gpt2, GPT2LMHeadModel, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.attn.c_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 missing \(h\.1\.attn\.c_proj\.weight\)"):
        open_checkpoint(folder, device="cpu", language_head=True)


@pytest.mark.parametrize(("make", "model_class"), WITH_HEAD)
def test_a_model_in_memory_brings_its_head(make: Any, model_class: Any) -> None:
    checkpoint = from_loaded(make(model_class=model_class), TOKENIZERS[make.__name__[6:]]())
    assert checkpoint.language_head is not None
    assert from_loaded(make(), TOKENIZERS[make.__name__[6:]]()).language_head is None


def test_devices_and_formats_may_be_those_of_torch(bert_folder: Path) -> None:
    checkpoint, _ = open_checkpoint(bert_folder, device=torch.device("cpu"), dtype=torch.float64)
    assert (checkpoint.device, checkpoint.dtype) == (torch.device("cpu"), torch.float64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": 0}, "expected the device as a string such as 'auto', found 0"),
        ({"device": ["cpu"]}, "expected the device"),
        ({"dtype": 32}, "expected the dtype as a string such as 'float32', found 32"),
        ({"dtype": torch.int8}, "unknown dtype 'int8'"),
        ({"model": None}, "expected a model .* found NoneType"),
        ({"model": 3}, "found int"),
        ({"revision": 3}, "expected the revision as a string, found 3"),
    ],
)
def test_what_names_nothing_is_one_message(options: dict[str, Any], message: str, bert_folder: Path) -> None:
    with pytest.raises(UsageError, match=message):
        open_checkpoint(**{"model": bert_folder, **options})


def test_a_model_without_tokenizer_is_advised_whatever_was_called() -> None:
    with pytest.raises(CheckpointError, match="needs its tokenizer") as caught:
        open_checkpoint(sharp_bert())
    assert "analyze" not in str(caught.value)
