"""Models whose weights have 4 or 8 bits: verified against dequantised weights, read as their modules multiply."""

import copy
import importlib.util
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BitsAndBytesConfig, GPT2LMHeadModel

import attnviz
from attnviz.errors import ArchitectureError, UsageError, VerificationError
from attnviz.models import offloading
from attnviz.models.families import base
from attnviz.models.offloading import parameter_of
from attnviz.models.opening import open_checkpoint
from attnviz.models.quantised import has_gradient, input_rounding, rounded_to_8_bits
from attnviz.present.sentences import verification_line
from attnviz.reference.attention import linear
from tests.support.families import first_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.tolerances import SHARP_32

bitsandbytes = pytest.importorskip("bitsandbytes")
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")

TEXT = "the cat that i saw ran away"
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
HALF = {"bnb_4bit_compute_dtype": torch.bfloat16, "bnb_4bit_use_double_quant": True}
FORMATS = {
    "nf4": (BitsAndBytesConfig(**FOUR_BITS), "4 bits (nf4)"),
    "nf4 twice": (BitsAndBytesConfig(**FOUR_BITS, **HALF), "4 bits (nf4)"),
    "fp4": (BitsAndBytesConfig(load_in_4bit=True), "4 bits (fp4)"),
    "int8": (BitsAndBytesConfig(load_in_8bit=True), "8 bits"),
    "torchao": (None, "Int8Tensor"),
}
IN_TORCHAO = pytest.param("bert", "torchao", marks=needs_torchao)


def of_torchao(name="Int8WeightOnlyConfig"):
    from torchao import quantization
    from transformers import TorchAoConfig

    return TorchAoConfig(getattr(quantization, name)())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    parent = tmp_path_factory.mktemp("plain")
    gpt2, bert = sharp_gpt2(model_class=GPT2LMHeadModel, n_embd=64), sharp_bert(hidden_size=64, intermediate_size=128)
    return {
        "gpt2": save_checkpoint(gpt2, gpt2_tokenizer(), parent / "gpt2"),
        "bert": save_checkpoint(bert, bert_tokenizer(), parent / "bert"),
    }


def quantised(folders, family, name, **more):
    kind = AutoModelForCausalLM if family == "gpt2" else AutoModel
    config = FORMATS[name][0] or of_torchao()
    return kind.from_pretrained(folders[family], quantization_config=config, dtype=torch.float32, **more)


def analyzed(model, family):
    tokenizer = gpt2_tokenizer() if family == "gpt2" else bert_tokenizer()
    return attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False)


@pytest.mark.parametrize("attention", first_of(["sdpa", "eager"]))
@pytest.mark.parametrize(
    ("family", "name"), [("gpt2", "nf4"), ("bert", "nf4 twice"), ("bert", "fp4"), ("gpt2", "int8"), IN_TORCHAO]
)
def test_a_loaded_model_is_verified_and_left_as_it_is(folders, family, name, attention):
    model = quantised(folders, family, name, attn_implementation=attention).eval()
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        before = model(ids)[0]
    result = analyzed(model, family)
    assert FORMATS[name][1] in verification_line(result.verification, result.checkpoint).plain
    again = analyzed(model, family)
    assert again.checkpoint.weights_sha256 == result.checkpoint.weights_sha256
    assert again.document()["model"]["quantised"]
    with torch.no_grad():
        assert torch.equal(model(ids)[0], before)


@pytest.mark.parametrize("name", ["nf4", "nf4 twice", "int8"])
def test_weights_are_those_that_the_module_multiplies_by(folders, name):
    model = quantised(folders, "bert", name).eval()
    module = model.encoder.layer[0].output.dense  # [64, 128]: two blocks of 64 in a row
    for _ in ("before its first pass", "after it"):
        weight, largest = parameter_of(module, "weight"), float(parameter_of(module, "weight").abs().max())
        with torch.no_grad():
            multiplied = (module(torch.eye(128)) - module(torch.zeros(1, 128))).T
            assert torch.allclose(weight.float(), multiplied, rtol=0, atol=1e-2 * largest)


def test_a_checkpoint_is_opened_as_it_runs(folders, tmp_path):
    folder = save_checkpoint(quantised(folders, "gpt2", "int8"), gpt2_tokenizer(), tmp_path / "model")
    opened, _ = open_checkpoint(folder)
    assert FORMATS["int8"][1] in opened.runs_as
    assert attnviz.analyze(TEXT, opened, syntax=False).verification.level == 4


def test_what_8_bits_read_is_rounded_as_the_model_rounds_it(folders, monkeypatch):
    model = quantised(folders, "gpt2", "int8").eval()
    assert max(check.input_error for check in analyzed(model, "gpt2").verification.layers) < SHARP_32
    monkeypatch.setattr(base, "input_rounding", lambda _: None)
    with pytest.raises(VerificationError):
        analyzed(model, "gpt2")


def test_large_numbers_are_not_rounded_to_8_bits():
    torch.manual_seed(0)
    module = bitsandbytes.nn.Linear8bitLt(64, 32, has_fp16_weights=False, threshold=6.0)
    module.weight = bitsandbytes.nn.Int8Params(torch.randn(32, 64), has_fp16_weights=False, requires_grad=False)
    module = module.to("cpu").eval()
    x = torch.randn(2, 5, 64)
    x[1, 3, 7], x[0, 0, 9] = 40, -12
    with torch.no_grad():
        expected, own = module(x), parameter_of(module, "weight")
    bias, largest = module.bias.detach(), float(expected.abs().max())
    without_outliers = partial(rounded_to_8_bits, threshold=0.0)
    assert float((linear(x, own, bias, input_rounding(module)) - expected).abs().max()) < 1e-3 * largest
    assert float((linear(x, own, bias, without_outliers) - expected).abs().max()) > 3e-3 * largest


def test_wrong_weights_do_not_verify(folders, monkeypatch):
    model = quantised(folders, "gpt2", "nf4").eval()
    right = offloading.dequantised
    monkeypatch.setattr(offloading, "dequantised", lambda *given: 1.2 * right(*given))
    with pytest.raises(VerificationError):
        analyzed(model, "gpt2")


@needs_torchao
def test_maps_that_round_what_they_read_are_refused(folders):
    config = of_torchao("Int8DynamicActivationInt8WeightConfig")
    model = AutoModel.from_pretrained(folders["bert"], quantization_config=config, dtype=torch.float32)
    with pytest.raises(ArchitectureError):
        analyzed(model, "bert")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_other_commands_read_dequantised_weights(folders, name):
    tokenizer, model = gpt2_tokenizer(), quantised(folders, "gpt2", name).eval()
    of_plain = attnviz.circuits(copy.deepcopy(model).dequantize(), tokenizer=tokenizer)
    of_quantised = attnviz.circuits(model, tokenizer=tokenizer)
    assert [each.copying for each in of_quantised.heads] == pytest.approx(
        [each.copying for each in of_plain.heads], abs=1e-2
    )
    attnviz.head_outputs(TEXT, model, tokenizer=tokenizer)
    attnviz.explain(TEXT, model, tokenizer=tokenizer)
    with nullcontext() if has_gradient(model) else pytest.raises(UsageError, match="--no-gradient"):
        attnviz.ablate(TEXT, model, tokenizer=tokenizer, curve=False)
    attnviz.ablate(TEXT, model, tokenizer=tokenizer, curve=False, gradient=False)
