"""Models that accelerate spreads over devices and disk: the same numbers to the bit, and no weight held in between."""

import gc
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import disk_offload
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import attnviz
from attnviz.errors import CheckpointError, DeviceError, UsageError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, load_checkpoint
from attnviz.models.opening import DTYPES, open_checkpoint, resolve_device_map
from attnviz.models.sources import find_checkpoint
from attnviz.run.verify import verify_attention
from tests.conftest import SENTENCE
from tests.support.encoder_decoders import saved
from tests.support.families import first_of, model_of
from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert
from tests.support.spoiled import change_json, without

BERT = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}


def headed(prefix: str, parts: dict[str, str], **heads: str) -> dict[str, str]:
    return parts | {f"{prefix}.{name}": device for name, device in parts.items()} | heads


GPT2_PARTS = {"wpe": "cpu", "drop": "cpu", "h": "disk", "ln_f": "cpu", "wte": "disk"}
TINY_GPT2 = headed("transformer", GPT2_PARTS, lm_head="disk")


def in_both_stacks(on_disk: str, *others: str) -> dict[str, str]:
    parts = {on_disk: "disk"} | dict.fromkeys(others, "cpu")
    return {f"{stack}.{name}": device for stack in ("encoder", "decoder") for name, device in parts.items()}


BART = {"shared": "cpu"} | in_both_stacks("layers", "embed_tokens", "embed_positions", "layernorm_embedding")
MAPS = {
    "bert": headed("bert", BERT, cls="cpu"),
    "bart": headed("model", BART, lm_head="cpu", final_logits_bias="cpu"),
    "t5": {"shared": "cpu", "lm_head": "cpu"} | in_both_stacks("block", "embed_tokens", "final_layer_norm", "dropout"),
}


def spread_over(name: str | Path, device_map: dict[str, str], dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A checkpoint of which a part is on disk, which accelerate's own names for maps do on small machines alone."""
    return load_checkpoint(find_checkpoint(str(name)), torch.device("cpu"), dtype, device_map)


def on_meta(model: torch.nn.Module) -> float:
    sizes = [(parameter.numel(), parameter.is_meta) for parameter in model.parameters()]
    return sum(size for size, meta in sizes if meta) / sum(size for size, _ in sizes)


def document_without_place(result: Any) -> dict[str, Any]:
    document: dict[str, Any] = result.document()
    assert document["model"].pop("device")
    return document


def heads(model: Any, **more: Any) -> Any:
    return attnviz.analyze(SENTENCE, model, syntax=False, **more)


COMMANDS: dict[str, Any] = {
    "ablate uniform": lambda model: attnviz.ablate([SENTENCE], model, method="uniform", curve=False),
    "heads": lambda model: heads(model, generate=3),
    "outputs": lambda model: attnviz.head_outputs(SENTENCE, model),
    "explain": lambda model: attnviz.explain(SENTENCE, model),
    "ablate": lambda model: attnviz.ablate([SENTENCE], model),
}


@pytest.mark.draws
@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_gives_the_same_to_the_bit_from_disk(command):
    plain, spread = (COMMANDS[command](model) for model in ("tiny-gpt2", spread_over("tiny-gpt2", TINY_GPT2)))
    assert on_meta(spread.checkpoint.model) > 0.8
    assert spread.checkpoint.device_names == "cpu, disk"
    assert spread.checkpoint.weights_sha256 == plain.checkpoint.weights_sha256
    assert document_without_place(spread) == document_without_place(plain)


@pytest.mark.draws
@pytest.mark.parametrize("family", first_of(["bert in bfloat16", "bart", "t5"]))
def test_other_models_on_disk_are_the_same_to_the_bit(tmp_path, bert_folder, family):
    family, _, dtype = family.partition(" in ")
    folder = bert_folder if dtype else saved(family, tmp_path)
    more = {} if dtype else {"target": "ein Hund lief weg"}
    plain = heads(folder, **more, dtype=dtype or None)
    spread = heads(spread_over(folder, MAPS[family], DTYPES[dtype or "float32"]), **more)
    assert on_meta(spread.checkpoint.model) > 0.4
    assert document_without_place(spread) == document_without_place(plain)


@pytest.mark.thorough
def test_a_profile_is_measured_from_disk(tmp_path):
    (tmp_path / "corpus.txt").write_text("the cat ran away\ni saw the dog\nthe dog ran\n")
    options = {"texts": [tmp_path / "corpus.txt"], "syntax": False, "limit": 3}
    plain, model = attnviz.profile_heads("tiny-gpt2", control=False, **options), spread_over("tiny-gpt2", TINY_GPT2)
    spread = attnviz.profile_heads(model, control=False, **options)
    assert document_without_place(spread) == document_without_place(plain)
    with pytest.raises(UsageError, match="--no-control"):
        attnviz.profile_heads(model, **options)


@pytest.mark.draws
@pytest.mark.thorough
@pytest.mark.parametrize("offload", [True, False])
def test_a_model_that_the_user_has_dispatched_is_taken_as_it_is(bert_folder, tmp_path, offload):
    plain = attnviz.analyze("the cat ran away", AutoModel.from_pretrained(bert_folder), tokenizer=bert_tokenizer())
    spread: Any = AutoModel.from_pretrained(bert_folder, device_map=None if offload else BERT)
    if offload:
        disk_offload(spread, offload_dir=tmp_path)
    again = attnviz.analyze("the cat ran away", spread, tokenizer=bert_tokenizer())
    assert on_meta(spread) > 0.4
    assert document_without_place(again) == document_without_place(plain)


def test_weights_on_disk_that_were_changed_since_are_noticed(tmp_path):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    analysis = attnviz.analyze("the cat ran away", spread_over(folder, MAPS["bert"]), syntax=False)
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file({**weights, name: weights[name] * 1.01}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(attnviz.AttnvizError, match="layer 1"):
        analysis.pattern("L1H0")


@pytest.mark.thorough
def test_weights_to_convert_are_offloaded_to_a_folder_that_goes_with_the_model(tmp_path, monkeypatch):
    folder = save_checkpoint(*model_of("mixtral"), tmp_path / "model")  # experts are joined
    plain = attnviz.analyze("the cat ran away", folder, syntax=False)
    parts = {"embed_tokens": "cpu", "layers": "disk", "norm": "cpu", "rotary_emb": "cpu"}
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    def again() -> torch.Tensor:
        model = spread_over(folder, headed("model", parts, lm_head="cpu"))
        spread = attnviz.analyze("the cat ran away", model, syntax=False)
        assert list((tmp_path / "temporary").rglob("*.*"))
        return spread.pattern("L1H0")

    assert torch.equal(again(), plain.pattern("L1H0"))
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("given", ["nonsense", "map.json", "", {"": "cpu"}, ["auto"], True])
def test_a_map_of_another_name_is_refused(bert_folder, given):
    with pytest.raises(UsageError, match="--device-map"):
        open_checkpoint(bert_folder, device_map=given)


def test_what_a_device_map_does_not_go_with_is_refused(bert_folder, tmp_path, monkeypatch):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    without("layer.1.output.dense.bias")(folder)
    with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\.bias"):
        open_checkpoint(folder, device_map="auto")
    with pytest.raises(UsageError):
        resolve_device_map("auto", "cpu")
    with pytest.raises(UsageError):
        open_checkpoint(AutoModel.from_pretrained(bert_folder), bert_tokenizer(), device_map="auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DeviceError, match=r"attnviz\[large\]"):
        resolve_device_map("auto")


@pytest.mark.parametrize(("saved_as", "stated"), [(torch.bfloat16, True), (torch.float64, False)])
def test_auto_is_the_checkpoints_own_number_format(tmp_path: Path, saved_as, stated):
    folder = save_checkpoint(sharp_bert().to(saved_as), bert_tokenizer(), tmp_path / "model")
    if not stated:
        change_json(folder / "config.json", dtype=None)
    checkpoint, _ = open_checkpoint(folder, dtype="auto", device_map=None if stated else "auto")
    assert checkpoint.dtype == saved_as
    assert verify_attention(checkpoint, tokenize(checkpoint, "the cat")).verification.level == 4
    change_json(folder / "config.json", dtype="float8_e4m3fn")
    with pytest.raises(CheckpointError, match="float8_e4m3fn"):
        open_checkpoint(folder, dtype="auto")
