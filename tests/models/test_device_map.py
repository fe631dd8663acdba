"""Models that accelerate spreads over devices and disk: the same numbers to the bit, and no weight held in between."""

import gc
import importlib.util
import json
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertForMaskedLM, GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import CheckpointError, DeviceError, UsageError
from attnviz.models.offloading import fitted_map
from attnviz.models.opening import open_checkpoint, resolve_device_map
from attnviz.trace.recorder import _lazy_mask
from attnviz.trace.verify import verify_attention
from tests.conftest import SENTENCE, needs_minilm
from tests.support.encoder_decoders import saved
from tests.support.llamas import sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

MINILM = {"": "cpu", "encoder.layer": "disk", "embeddings.word_embeddings": "disk"}
TINY_GPT2 = {"": "cpu", "transformer.h": "disk", "wte": "disk"}


def on_meta(model: torch.nn.Module) -> float:
    """The share of a model's parameters that have no values at present."""
    sizes = [(parameter.numel(), parameter.is_meta) for parameter in model.parameters()]
    return sum(size for size, meta in sizes if meta) / sum(size for size, _ in sizes)


def document_without_place(result: Any) -> dict[str, Any]:
    """What is written, but where the model was."""
    document: dict[str, Any] = result.document()
    assert document["model"].pop("device")
    return document


@pytest.mark.draws
@needs_minilm
def test_heads_of_minilm_on_disk_are_the_same_to_the_bit():
    plain, spread = (attnviz.analyze(SENTENCE, "minilm", syntax=False, device_map=each) for each in (None, MINILM))
    assert on_meta(spread.checkpoint.model) > 0.9
    assert spread.checkpoint.device_names == "cpu, disk"
    assert spread.checkpoint.weights_sha256 == plain.checkpoint.weights_sha256
    assert document_without_place(spread) == document_without_place(plain)
    assert torch.equal(spread.pattern("L5H11"), plain.pattern("L5H11"))


@pytest.mark.draws
@pytest.mark.parametrize(
    "command",
    [
        lambda **at: attnviz.analyze(SENTENCE, "tiny-gpt2", generate=3, syntax=False, **at),
        lambda **at: attnviz.head_outputs(SENTENCE, "tiny-gpt2", **at),
        lambda **at: attnviz.rollout(SENTENCE, "tiny-gpt2", **at),
        lambda **at: attnviz.explain(SENTENCE, "tiny-gpt2", **at),
        lambda **at: attnviz.ablate([SENTENCE], "tiny-gpt2", **at),
        lambda **at: attnviz.ablate([SENTENCE], "tiny-gpt2", method="uniform", curve=False, **at),
    ],
    ids=["heads", "outputs", "rollout", "explain", "ablate", "ablate uniform"],
)
def test_every_command_gives_the_same_to_the_bit_from_disk(command):
    spread = command(device_map=TINY_GPT2)
    assert on_meta(spread.checkpoint.model) > 0.8
    assert document_without_place(spread) == document_without_place(command())


def test_a_profile_is_measured_from_disk(tmp_path):
    (tmp_path / "corpus.txt").write_text("the cat ran away\ni saw the dog\nthe dog ran\n")
    of = {"paths": [tmp_path / "corpus.txt"], "syntax": False, "limit": 3}
    plain = attnviz.profile_heads("tiny-gpt2", control=False, **of)
    spread = attnviz.profile_heads("tiny-gpt2", control=False, device_map=TINY_GPT2, **of)
    assert document_without_place(spread) == document_without_place(plain)
    with pytest.raises(UsageError, match=r"untrained copy .* expected --no-control"):
        attnviz.profile_heads("tiny-gpt2", device_map=TINY_GPT2, **of)


@pytest.mark.draws
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_encoder_decoder_on_disk_is_the_same_to_the_bit(tmp_path, family):
    folder = saved(family, tmp_path)
    given = {"": "cpu", "encoder": "disk", "decoder": "disk"}
    plain, spread = (
        attnviz.analyze("a dog ran away", folder, target="ein Hund lief weg", device_map=each, syntax=False)
        for each in (None, given)
    )
    assert on_meta(spread.checkpoint.model) > 0.5
    assert document_without_place(spread) == document_without_place(plain)


def test_experts_on_disk_are_explained_the_same_up_to_rounding(tmp_path):
    """Weights in a file need not be aligned, on which the rounding of small products depends."""
    folder = save_checkpoint(sharp_llama("qwen2_moe"), gpt2_tokenizer(), tmp_path / "model")
    plain, spread = (
        attnviz.explain("the cat ran away", folder, device_map=each) for each in (None, {"": "cpu", "layers": "disk"})
    )
    assert on_meta(spread.checkpoint.model) > 0.3
    for name in plain.stages:
        torch.testing.assert_close(spread.tensor(name), plain.tensor(name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model_class", [BertForMaskedLM, GPT2LMHeadModel])
def test_a_tied_head_goes_where_its_table_is(tmp_path, model_class):
    sharp, tokenizer = (
        (sharp_bert, bert_tokenizer()) if model_class is BertForMaskedLM else (sharp_gpt2, gpt2_tokenizer())
    )
    folder = save_checkpoint(sharp(model_class=model_class), tokenizer, tmp_path / "model")
    words = "embeddings.word_embeddings" if model_class is BertForMaskedLM else "wte"
    logits = []
    for device_map in (None, {"": "cpu", words: "disk"}):
        checkpoint, _ = open_checkpoint(folder, device_map=device_map)
        assert checkpoint.language_head is not None
        tokens = checkpoint.tokenize("the cat ran away")
        with torch.no_grad():
            logits.append(checkpoint.language_head(checkpoint.model(**tokens.model_inputs(checkpoint.device))[0]))
    assert torch.equal(*logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_weights_on_disk_are_converted_as_those_in_memory_are(bert_folder, dtype):
    given = {"": "cpu", "encoder": "disk"}
    plain, spread = (
        attnviz.analyze("the cat ran away", bert_folder, dtype=dtype, device_map=each, syntax=False)
        for each in (None, given)
    )
    assert document_without_place(spread) == document_without_place(plain)


@pytest.mark.draws
@pytest.mark.parametrize("offload", [cpu_offload, disk_offload])
def test_a_model_that_the_user_has_dispatched_is_taken_as_it_is(bert_folder, tmp_path, offload):
    model, tokenizer = AutoModel.from_pretrained(bert_folder), bert_tokenizer()
    plain = attnviz.analyze("the cat ran away", AutoModel.from_pretrained(bert_folder), tokenizer=tokenizer)
    spread = offload(model, **({"offload_dir": tmp_path} if offload is disk_offload else {}))
    again = attnviz.analyze("the cat ran away", spread, tokenizer=tokenizer)
    assert on_meta(spread) == 1
    assert again.document() == plain.document()


def test_a_model_with_a_device_map_of_transformers_is_taken_as_it_is(bert_folder):
    model = AutoModel.from_pretrained(bert_folder, device_map={"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"})
    again = attnviz.analyze("the cat ran away", model, tokenizer=bert_tokenizer())
    assert again.checkpoint.device_names == "cpu, disk"
    plain = attnviz.analyze("the cat ran away", AutoModel.from_pretrained(bert_folder), tokenizer=bert_tokenizer())
    assert document_without_place(again) == document_without_place(plain)


def test_weights_on_disk_that_were_changed_since_are_noticed(tmp_path):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    analysis = attnviz.analyze("the cat ran away", folder, device_map={"": "cpu", "encoder": "disk"}, syntax=False)
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file({**weights, name: weights[name] * 1.01}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(attnviz.AttnvizError, match="layer 1 no longer gives the verified patterns"):
        analysis.pattern("L1H0")


def test_weights_to_convert_are_offloaded_to_a_folder_that_goes_with_the_model(tmp_path, monkeypatch):
    folder = save_checkpoint(sharp_llama("mixtral"), gpt2_tokenizer(), tmp_path / "model")  # experts are joined
    plain = attnviz.analyze("the cat ran away", folder, syntax=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    def again() -> torch.Tensor:
        spread = attnviz.analyze("the cat ran away", folder, device_map={"": "cpu", "layers": "disk"}, syntax=False)
        assert list((tmp_path / "temporary").rglob("*.*"))
        return spread.pattern("L1H0")

    assert torch.equal(again(), plain.pattern("L1H0"))
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def test_what_accelerate_decides_itself_runs(bert_folder):
    for device_map in ("auto", "balanced", "sequential"):
        assert attnviz.analyze("the cat ran away", bert_folder, device_map=device_map, syntax=False).heads


def test_weights_that_are_missing_are_still_an_error_with_a_device_map(tmp_path):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 missing \(encoder\.layer\.1\.output\.dense\.bias\)"):
        open_checkpoint(folder, device_map={"": "cpu", "encoder": "disk"})


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        ("nonsense", UsageError, "cannot be read"),
        *(([1], UsageError, "expected a device map"), ({}, UsageError, "expected a device map")),
        ({"": True}, UsageError, "device True"),
        ({"": "auto"}, UsageError, "device 'auto'"),
        ({"": "gpu"}, UsageError, "unknown device"),
        ({"": "cpu", "encoder": 99}, DeviceError, "cuda"),
        ({"": "cpu", "layers": "disk"}, UsageError, "names 'layers'"),
        ({"encoder": "disk", "pooler": "cpu"}, UsageError, "says nothing of"),
        ({"": "disk"}, UsageError, "leaves all on disk"),
    ],
)
def test_a_map_that_is_none_or_does_not_fit_the_model_is_refused(bert_folder, tmp_path, given, error, word):
    (tmp_path / "map.json").write_text("{" if given == "nonsense" else json.dumps(given))
    for each in (given, tmp_path / "map.json"):
        with pytest.raises(error, match=word):
            open_checkpoint(bert_folder, device_map=each)


def test_what_a_device_map_does_not_go_with_is_refused(bert_folder, monkeypatch):
    assert resolve_device_map("auto", "auto") == "auto"
    with pytest.raises(UsageError, match="expected one of them"):
        resolve_device_map("auto", "cpu")
    with pytest.raises(UsageError, match="for models by name"):
        open_checkpoint(AutoModel.from_pretrained(bert_folder), bert_tokenizer(), device_map="auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DeviceError, match=r"attnviz\[large\]"):
        resolve_device_map("auto")


def test_names_of_a_map_are_those_of_the_bare_model_or_of_one_with_a_head():
    bare, whole = sharp_gpt2(), sharp_gpt2(model_class=GPT2LMHeadModel)
    given = {"transformer": "cpu", "transformer.h.1": "disk", "lm_head": "cpu"}
    assert fitted_map(given, bare, ("lm_head",))["h.1"] == "disk"
    assert fitted_map({"": "cpu", "h.1": "disk"}, whole, ("lm_head",))["transformer.h.1"] == "disk"
    assert fitted_map({"h.1": "disk", "": "cpu"}, bare, ())["h.0"] == "cpu"


def test_a_mask_that_is_moved_gives_its_rows_there(monkeypatch):
    monkeypatch.setattr("attnviz.trace.recorder._MOST_MASKS", 0)
    named = {"batch_size": 1, "q_length": 5, "kv_length": 5, "q_offset": 0, "kv_offset": 0, "dtype": torch.float32}
    from transformers.masking_utils import causal_mask_function

    mask = _lazy_mask(**named, mask_function=causal_mask_function, device=torch.device("cpu"))
    moved: Any = mask.to(torch.device("meta"))
    assert mask.to(torch.device("cpu")) is mask
    assert moved.rows(1, 3).shape == mask.rows(1, 3).shape == (1, 1, 2, 5)
    assert moved.rows(1, 3).is_meta


def test_the_command_reads_the_map_from_a_file(bert_folder, tmp_path):
    (tmp_path / "map.json").write_text(json.dumps({"": "cpu", "encoder": "disk"}))
    command = ["heads", "the cat ran away", "-m", str(bert_folder), "--no-syntax", "--figures", "none"]
    done = CliRunner().invoke(app, [*command, "--device-map", str(tmp_path / "map.json"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    assert "cpu, disk" in " ".join(done.stdout.split())
    assert "meta device" not in done.stderr
    assert json.loads((tmp_path / "out" / "heads.json").read_text())["model"]["device"] == "cpu, disk"


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("stated", [True, False])
def test_auto_is_the_checkpoints_own_number_format(tmp_path, saved, stated):
    folder = save_checkpoint(sharp_bert().to(saved), bert_tokenizer(), tmp_path / "model")
    if not stated:
        config = json.loads((folder / "config.json").read_text())
        assert config.pop("dtype") == str(saved).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config))
    checkpoint, _ = open_checkpoint(folder, dtype="auto")
    assert checkpoint.dtype == saved
    assert verify_attention(checkpoint, checkpoint.tokenize("the cat")).verification.level == 4
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float8_e4m3fn"}))
    with pytest.raises(CheckpointError, match="float8_e4m3fn"):
        open_checkpoint(folder, dtype="auto")
