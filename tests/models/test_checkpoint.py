"""What loads: every weight of the folder, whatever lies beside it and whatever its config asks for."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from attnviz import ablate, analyze
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.configs import read_config
from attnviz.models.families import ARCHITECTURES
from attnviz.models.sources import BUILT_IN, FULL_NAMES, Source, find_checkpoint, weight_files
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.spoiled import Spoil, change_json, config, weights, without, write

CPU = torch.device("cpu")
BERT_CLASSES = [f"BertFor{task}" for task in ("MaskedLM", "PreTraining", "QuestionAnswering")]
GPT2_CLASSES = ["GPT2Model", "GPT2LMHeadModel", "GPT2DoubleHeadsModel"]
Weights = dict[str, Tensor]


def load(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), CPU, dtype, **options)


@pytest.fixture
def bert(bert_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


def assert_same_parameters(checkpoint: Checkpoint, expected: Weights) -> None:
    loaded = checkpoint.model.state_dict()
    assert set(expected) - {name for name in expected if name.startswith("pooler")} <= set(loaded)
    for name, tensor in loaded.items():
        if name in expected or not name.startswith("pooler"):
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.draws
@pytest.mark.parametrize("name", BERT_CLASSES + GPT2_CLASSES)
def test_a_checkpoint_with_any_usual_head_loads_with_the_saved_weights_and_so_it_does_from_memory(tmp_path, name):
    model_class = getattr(transformers, name)
    is_bert = name in BERT_CLASSES
    model = sharp_bert(3, model_class) if is_bert else sharp_gpt2(3, model_class)
    tokenizer = bert_tokenizer() if is_bert else gpt2_tokenizer()
    base = getattr(model, model.base_model_prefix, model)
    checkpoint = load(save_checkpoint(model, tokenizer, tmp_path))
    assert type(checkpoint.model).__name__ == ("BertModel" if is_bert else "GPT2Model")
    assert_same_parameters(checkpoint, base.state_dict())
    in_memory = from_loaded(model.double(), tokenizer)
    assert in_memory.model is base  # not copied
    assert (in_memory.name, in_memory.revision, in_memory.dtype) == (name, None, torch.float64)


def test_a_loaded_checkpoint_describes_itself(bert_folder, gpt2_folder):
    for folder, name in ((bert_folder, "bert"), (gpt2_folder, "gpt2")):
        checkpoint = load(folder, torch.float64)
        assert checkpoint.architecture is ARCHITECTURES[name]
        assert (checkpoint.name, checkpoint.revision) == (str(folder), None)
        assert (checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_model, checkpoint.d_head) == (3, 4, 32, 8)
        assert (checkpoint.dtype, checkpoint.device) == (torch.float64, CPU)
        assert not any(module.training for module in checkpoint.model.modules())
        assert checkpoint.config._attn_implementation == checkpoint.attention == "sdpa"
    model = transformers.BertModel.from_pretrained(bert_folder)
    assert from_loaded(model, bert_tokenizer()).name == str(bert_folder)


def of_the_hub(saved: Weights) -> Weights:
    renamed = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): each
        for name, each in saved.items()
    }
    return renamed | {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "cls.predictions.bias": torch.zeros(61),
        "cls.predictions.transform.LayerNorm.gamma": torch.ones(32),
        "cls.seq_relationship.weight": torch.zeros(2, 32),
    }


def with_masks(prefix: str, name: str, value: Tensor) -> Callable[[Weights], Weights]:
    return lambda saved: (
        {prefix + each: tensor for each, tensor in saved.items()}
        | {f"{prefix}h.{layer}.attn.{name}": value.clone() for layer in range(3)}
    )


def as_in_the_cache_of_the_hub(folder: Path) -> None:
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for path in list(folder.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    assert weight_files(folder) == [folder / "model.safetensors"]


def in_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    sharp_bert().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2


LOADS: list[tuple[str, Spoil]] = [
    ("bert", weights(of_the_hub)),
    ("gpt2", weights(with_masks("", "bias", torch.ones(1, 1, 40, 40)))),
    ("gpt2", weights(with_masks("transformer.", "masked_bias", torch.tensor(-1e4)))),
    ("bert", in_shards),
    ("bert", write("pytorch_model.bin", "never read")),
    ("bert", write("shard-00001-model-00001-of-00001.safetensors", "of a distributed checkpoint")),
    ("bert", as_in_the_cache_of_the_hub),
    ("bert", config(position_embedding_type="absolute")),
    ("bert", without("pooler.dense.weight", "pooler.dense.bias")),
]


@pytest.mark.draws
@pytest.mark.parametrize(("kind", "change"), LOADS)
def test_every_weight_is_loaded_however_it_lies_there(bert_folder, gpt2_folder, tmp_path, kind, change):
    original = {"bert": bert_folder, "gpt2": gpt2_folder}[kind]
    folder = Path(shutil.copytree(original, tmp_path / kind))
    change(folder)
    expected = load_file(original / "model.safetensors")
    if change is LOADS[-1][1]:
        expected = {name: each for name, each in expected.items() if not name.startswith("pooler")}
    assert_same_parameters(load(folder), expected)


def test_code_beside_the_checkpoint_is_never_run(bert):
    witness = bert / "executed"
    (bert / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Evil: pass\n")
    config(auto_map={"AutoModel": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})(bert)
    change_json(bert / "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_evil.Evil", None]})
    assert type(load(bert).model).__name__ == "BertModel"
    assert not witness.exists()


@pytest.mark.parametrize("kernel", ["kernels-community/any-repo@main:fn", "flash_attention_2"])
def test_a_kernel_named_in_the_config_is_not_asked_for(bert, monkeypatch, kernel):
    from transformers import modeling_utils

    def asked(*_: Any, **__: Any) -> None:
        pytest.fail("a kernel was asked for")

    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", asked)
    config(_attn_implementation=kernel, attn_implementation=kernel)(bert)
    assert load(bert).config._attn_implementation == "sdpa"
    assert read_config(bert)._attn_implementation is None


def test_a_text_that_chunks_do_not_divide_runs(bert):
    expected = load(bert)
    config(chunk_size_feed_forward=4)(bert)
    chunked = load(bert)
    inputs = tokenize(expected, SENTENCE).model_inputs(CPU)
    assert torch.equal(chunked.model(**inputs)[0], expected.model(**inputs)[0])


@pytest.mark.parametrize("run", [ablate, analyze])
def test_a_config_that_asks_for_tuples_changes_nothing(bert, run):
    expected = run(SENTENCE, bert).document()
    config(return_dict=False)(bert)
    assert run(SENTENCE, bert).document() == expected


def test_loading_is_silent_and_leaves_transformers_settings(bert_folder, capfd):
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_warning()
    load(bert_folder)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.WARNING, True)
    logging.set_verbosity(verbosity)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "model", "tokenizer"), [
    ("bert", sharp_bert, bert_tokenizer), ("transformer", sharp_gpt2, gpt2_tokenizer),
])  # fmt: skip
def test_a_model_is_found_in_a_class_of_the_users_own_that_does_not_name_it(name, model, tokenizer):
    own = torch.nn.Module()
    own.config, inner = model().config, model()
    setattr(own, name, inner)
    assert from_loaded(own, tokenizer()).model is inner


@pytest.mark.parametrize(
    ("name", "full"), [("minilm", "all-MiniLM-L6-v2"), ("tiny-gpt2", "tiny-gpt2"), ("org/minilm", "org/minilm")]
)
def test_the_full_name_of_a_built_in_model_is_that_of_its_makers(name: str, full: str) -> None:
    checkpoint = replace(from_loaded(sharp_bert(), bert_tokenizer()), name=name)
    assert checkpoint.full_name == full
    adapter = Source("mine", Path("mine"))
    adapted = replace(checkpoint, name=f"{name} + mine", adapter=adapter)
    assert (adapted.short_name, adapted.full_name) == (f"{name} + mine", f"{full} + mine")
    assert set(FULL_NAMES) <= set(BUILT_IN)
