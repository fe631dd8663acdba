"""A model by name or in memory, with or without its language-modelling head, on a device of this machine."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attnviz import analyze
from attnviz.errors import DeviceError, UsageError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import DTYPES, open_checkpoint, resolve_device, resolve_dtype
from attnviz.reference.tolerances import TOLERANCES
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

CPU = torch.device("cpu")
TOKENIZERS = {"bert": bert_tokenizer, "gpt2": gpt2_tokenizer}
WITH_HEAD = [(sharp_bert, transformers.BertForPreTraining), (sharp_gpt2, transformers.GPT2LMHeadModel)]


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
    checkpoint, _ = open_checkpoint(folder, device="cpu")
    inputs = tokenize(checkpoint, "the cat ran away").model_inputs(torch.device("cpu"))
    with torch.inference_mode():
        whole = model(**inputs)
        expected = whole.prediction_logits if model_class is transformers.BertForPreTraining else whole.logits
        hidden = checkpoint.model(**inputs).last_hidden_state
        assert checkpoint.language_head is not None
        torch.testing.assert_close(checkpoint.language_head(hidden), expected)
    assert expected.std() > 0.01
    assert not checkpoint.language_head.training
    assert from_loaded(model, checkpoint.tokenizer).language_head is not None


def test_what_has_no_head_of_its_own(bert_folder: Path, gpt2_folder: Path, tmp_path: Path) -> None:
    bert, _ = open_checkpoint(bert_folder, device=CPU, dtype=torch.float64)  # torch's own
    assert (bert.language_head, bert.device, bert.dtype) == (None, CPU, torch.float64)
    tied, _ = open_checkpoint(gpt2_folder, device="cpu")  # a bare GPT-2 has its tied head
    assert tied.language_head.weight is tied.model.wte.weight  # type: ignore[union-attr]
    classes = (
        (sharp_bert, transformers.BertForSequenceClassification),
        (sharp_gpt2, transformers.GPT2ForSequenceClassification),
    )
    for make, model_class in classes:
        checkpoint, _ = open_checkpoint(saved(make, model_class, tmp_path / make.__name__)[1], device="cpu")
        assert (checkpoint.language_head, checkpoint.classifier is not None) == (None, True)
    folder = save_checkpoint(sharp_gpt2(tie_word_embeddings=False), gpt2_tokenizer(), tmp_path / "untied")
    assert open_checkpoint(folder, device="cpu")[0].language_head is None


@pytest.mark.parametrize(
    "options",
    [
        *({"device": value} for value in (0, ["cpu"])),
        *({"dtype": value} for value in (32, torch.int8)),
        *({"model": value} for value in (3.5, 3)),
        {"revision": 3},
    ],
)
def test_what_names_nothing_is_refused(options: dict[str, Any], bert_folder: Path) -> None:
    with pytest.raises(UsageError):
        open_checkpoint(**{"model": bert_folder, **options})


@pytest.fixture
def machine(monkeypatch):
    def pretend(gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "mps", "expected"), [(0, False, "cpu"), (0, True, "mps"), (1, False, "cuda"), (2, True, "cuda")]
)
def test_auto_takes_cuda_then_mps_then_cpu(machine, gpus, mps, expected):
    machine(gpus, mps)
    assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize(
    ("gpus", "name", "error"),
    [
        *((0, name, DeviceError) for name in ("cuda", "cuda:7", "mps")),
        *((gpus, name, DeviceError) for gpus, name in ((1, "cuda:1"), (2, "cuda:99"))),
        *(
            (2, name, UsageError)
            for name in ("", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda: 1", "cuda:0:1", "cpu:0",
                         "mps:0", "auto:0", " cpu", "xpu", ":", "meta", "cuda:00", "cuda:٠")
        ),
    ],
)  # fmt: skip
def test_a_device_that_is_none_or_not_there_is_refused(machine, gpus, name, error):
    machine(gpus)
    with pytest.raises(error):
        resolve_device(name)


def test_dtypes_go_by_the_names_of_torch_and_have_a_tolerance(machine):
    for name, dtype in DTYPES.items():
        assert resolve_dtype(name, CPU) is dtype is getattr(torch, name)
    assert set(DTYPES.values()) == set(TOLERANCES)
    for name in ("", "double", "half", "float", "FLOAT32", "torch.float32", "int8", "float8"):
        with pytest.raises(UsageError, match="dtype"):
            resolve_dtype(name, CPU)
    assert resolve_dtype("float16", torch.device("mps")) == torch.float16
    with pytest.raises(DeviceError, match="float64"):
        resolve_dtype("float64", torch.device("mps"))
    machine(gpus=2, mps=True)
    assert all(resolve_device(name) == torch.device(name) for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps"))


class Wrapper(nn.Module):
    """The first module of a SentenceTransformer, and the second."""

    pooling_mode = "mean"

    def __init__(self, model: Any = None) -> None:
        super().__init__()
        self.auto_model = model


class SentenceModel(nn.Sequential):
    """As sentence-transformers builds one: a transformer, a pooling, and more, one after the other."""

    tokenizer = bert_tokenizer()


def test_a_sentence_transformer_is_the_transformer_inside_it_and_its_pooling_is_noted() -> None:
    bert = sharp_bert()
    checkpoint, _ = open_checkpoint(SentenceModel(Wrapper(bert), Wrapper(), nn.Identity()))
    assert checkpoint.model is bert
    (note,) = checkpoint.notes
    assert "mean Wrapper, Identity" in note
    assert analyze("the cat that i saw ran away", checkpoint).verification.heads_compared == 12
