"""Models that accelerate spreads over devices and disk: the same numbers to the bit, and no weight held in between."""

import gc
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import disk_offload
from safetensors.torch import load_file, save_file
from transformers import AutoModel, GPT2ForSequenceClassification, GPT2LMHeadModel
from transformers.masking_utils import causal_mask_function, eager_mask

import attnviz
from attnviz.errors import CheckpointError, DeviceError, UsageError
from attnviz.models.offloading import fitted_map
from attnviz.models.opening import open_checkpoint, resolve_device_map
from attnviz.trace.recorder import _lazy_mask
from attnviz.trace.verify import verify_attention
from tests.conftest import SENTENCE, needs_minilm
from tests.support.encoder_decoders import saved
from tests.support.families import model_of
from tests.support.models import bert_tokenizer, gpt2_config, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.spoiled import change_json, without
from tests.support.tolerances import SUMS_32

TINY_GPT2 = {"": "cpu", "transformer.h": "disk", "wte": "disk"}
MINILM = {"": "cpu", "encoder.layer": "disk", "embeddings.word_embeddings": "disk"}
BERT = {"": "cpu", "encoder": "disk"}


def on_meta(model: torch.nn.Module) -> float:
    """The share of a model's parameters that have no values at present."""
    sizes = [(parameter.numel(), parameter.is_meta) for parameter in model.parameters()]
    return sum(size for size, meta in sizes if meta) / sum(size for size, _ in sizes)


def document_without_place(result: Any) -> dict[str, Any]:
    """What is written, but where the model was."""
    document: dict[str, Any] = result.document()
    assert document["model"].pop("device")
    return document


def heads(model: Any, **more: Any) -> Any:
    return attnviz.analyze(SENTENCE, model, syntax=False, **more)


COMMANDS: dict[str, tuple[Any, dict[str, str], float]] = {
    "heads": (lambda **at: heads("tiny-gpt2", generate=3, **at), TINY_GPT2, 0.8),
    "heads of minilm": (lambda **at: heads("minilm", **at), MINILM, 0.9),
    "outputs": (lambda **at: attnviz.head_outputs(SENTENCE, "tiny-gpt2", **at), TINY_GPT2, 0.8),
    "rollout": (lambda **at: attnviz.rollout(SENTENCE, "tiny-gpt2", **at), TINY_GPT2, 0.8),
    "explain": (lambda **at: attnviz.explain(SENTENCE, "tiny-gpt2", **at), TINY_GPT2, 0.8),
    "ablate": (lambda **at: attnviz.ablate([SENTENCE], "tiny-gpt2", **at), TINY_GPT2, 0.8),
    "ablate uniform": (
        lambda **at: attnviz.ablate([SENTENCE], "tiny-gpt2", method="uniform", curve=False, **at), TINY_GPT2, 0.8
    ),
}  # fmt: skip


@pytest.mark.draws
@needs_minilm
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_gives_the_same_to_the_bit_from_disk(command):
    measure, device_map, share = COMMANDS[command]
    plain, spread = measure(), measure(device_map=device_map)
    assert on_meta(spread.checkpoint.model) > share
    assert spread.checkpoint.device_names == "cpu, disk"
    assert spread.checkpoint.weights_sha256 == plain.checkpoint.weights_sha256
    assert document_without_place(spread) == document_without_place(plain)


@pytest.mark.draws
@pytest.mark.parametrize("family", ["bart", "t5", "bert in bfloat16", "bert in float64"])
def test_other_models_on_disk_are_the_same_to_the_bit(tmp_path, bert_folder, family):
    family, _, dtype = family.partition(" in ")
    folder = bert_folder if dtype else saved(family, tmp_path)
    given = BERT if dtype else {"": "cpu", "encoder": "disk", "decoder": "disk"}
    more = {"dtype": dtype} if dtype else {"target": "ein Hund lief weg"}
    plain, spread = (heads(folder, device_map=each, **more) for each in (None, given))
    assert on_meta(spread.checkpoint.model) > 0.4
    assert document_without_place(spread) == document_without_place(plain)


def test_a_profile_is_measured_from_disk(tmp_path):
    (tmp_path / "corpus.txt").write_text("the cat ran away\ni saw the dog\nthe dog ran\n")
    of = {"paths": [tmp_path / "corpus.txt"], "syntax": False, "limit": 3}
    plain = attnviz.profile_heads("tiny-gpt2", control=False, **of)
    spread = attnviz.profile_heads("tiny-gpt2", control=False, device_map=TINY_GPT2, **of)
    assert document_without_place(spread) == document_without_place(plain)
    with pytest.raises(UsageError, match="--no-control"):
        attnviz.profile_heads("tiny-gpt2", device_map=TINY_GPT2, **of)


def test_experts_on_disk_are_explained_the_same_up_to_rounding(tmp_path):
    """Weights in a file need not be aligned, on which the rounding of small products depends."""
    folder = save_checkpoint(*model_of("qwen2_moe"), tmp_path / "model")
    maps = None, {"": "cpu", "layers": "disk"}
    plain, spread = (attnviz.explain("the cat ran away", folder, device_map=each) for each in maps)
    assert on_meta(spread.checkpoint.model) > 0.3
    for name in plain.stages:
        torch.testing.assert_close(spread.tensor(name), plain.tensor(name), rtol=SUMS_32, atol=SUMS_32)


@pytest.mark.parametrize(("family", "words"), [("bert", "embeddings.word_embeddings"), ("gpt2", "wte")])
def test_a_tied_head_goes_where_its_table_is(tmp_path, family, words):
    folder, logits = save_checkpoint(*model_of(family, headed=True), tmp_path / "model"), []
    for device_map in (None, {"": "cpu", words: "disk"}):
        checkpoint, _ = open_checkpoint(folder, device_map=device_map)
        tokens = checkpoint.tokenize("the cat ran away")
        with torch.no_grad():
            logits.append(checkpoint.language_head(checkpoint.model(**tokens.model_inputs(checkpoint.device))[0]))
    assert torch.equal(*logits)


@pytest.mark.draws
@pytest.mark.parametrize("offload", [disk_offload, None])
def test_a_model_that_the_user_has_dispatched_is_taken_as_it_is(bert_folder, tmp_path, offload):
    tokenizer = bert_tokenizer()
    plain = attnviz.analyze("the cat ran away", AutoModel.from_pretrained(bert_folder), tokenizer=tokenizer)
    if offload is None:
        device_map = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}
        spread = AutoModel.from_pretrained(bert_folder, device_map=device_map)
    else:
        spread = offload(AutoModel.from_pretrained(bert_folder), offload_dir=tmp_path)
    again = attnviz.analyze("the cat ran away", spread, tokenizer=tokenizer)
    assert on_meta(spread) > 0.4
    assert document_without_place(again) == document_without_place(plain)


def test_weights_on_disk_that_were_changed_since_are_noticed(tmp_path):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    analysis = attnviz.analyze("the cat ran away", folder, device_map=BERT, syntax=False)
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file({**weights, name: weights[name] * 1.01}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(attnviz.AttnvizError, match="layer 1 no longer gives the verified patterns"):
        analysis.pattern("L1H0")


def test_weights_to_convert_are_offloaded_to_a_folder_that_goes_with_the_model(tmp_path, monkeypatch):
    folder = save_checkpoint(*model_of("mixtral"), tmp_path / "model")  # experts are joined
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
    assert heads(bert_folder, device_map="auto").heads


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        ("nonsense", UsageError, "cannot be read"),
        *((given, UsageError, "expected a device map") for given in ([1], {})),
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


def test_what_a_device_map_does_not_go_with_is_refused(bert_folder, tmp_path, monkeypatch):
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    without("layer.1.output.dense.bias")(folder)
    with pytest.raises(CheckpointError, match="1 missing"):
        open_checkpoint(folder, device_map=BERT)
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


def test_a_head_that_is_not_named_goes_where_the_word_embeddings_are():
    model = GPT2ForSequenceClassification(gpt2_config(pad_token_id=0))
    assert fitted_map({"transformer": "cpu", "transformer.wte": 1}, model, ("score",))["score"] == 1


def test_a_mask_that_is_moved_gives_its_rows_there(monkeypatch):
    monkeypatch.setattr("attnviz.trace.recorder.MOST_MASKS", 0)
    named = {"batch_size": 1, "q_length": 5, "kv_length": 5, "q_offset": 0, "kv_offset": 0, "dtype": torch.float32}
    mask = _lazy_mask(eager_mask, **named, mask_function=causal_mask_function, device=torch.device("cpu"))
    moved: Any = mask.to(torch.device("meta"))
    assert mask.to(torch.device("cpu")) is mask
    assert moved.rows(1, 3).shape == mask.rows(1, 3).shape == (1, 1, 2, 5)
    assert moved.rows(1, 3).is_meta


@pytest.mark.parametrize(("saved_as", "stated"), [(torch.bfloat16, True), (torch.float64, False)])
def test_auto_is_the_checkpoints_own_number_format(tmp_path: Path, saved_as, stated):
    folder = save_checkpoint(sharp_bert().to(saved_as), bert_tokenizer(), tmp_path / "model")
    if not stated:
        change_json(folder / "config.json", dtype=None)
    checkpoint, _ = open_checkpoint(folder, dtype="auto")
    assert checkpoint.dtype == saved_as
    assert verify_attention(checkpoint, checkpoint.tokenize("the cat")).verification.level == 4
    change_json(folder / "config.json", dtype="float8_e4m3fn")
    with pytest.raises(CheckpointError, match="float8_e4m3fn"):
        open_checkpoint(folder, dtype="auto")
