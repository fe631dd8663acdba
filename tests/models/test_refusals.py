"""Hostile checkpoints: whatever is wrong in a folder or a model is one error that says what was found."""

import json
import math
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

import attnviz
from attnviz.errors import ArchitectureError, CheckpointError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.families import architecture_of
from attnviz.models.sources import find_checkpoint
from tests.conftest import SENTENCE
from tests.support import spoiled
from tests.support.encoder_decoders import saved
from tests.support.families import config_of, first_of
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.spoiled import POINTER, WEIGHTS, Spoil, also, config, weights, write


def load(folder: Path) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, bert_folder: Path, gpt2_folder: Path) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("headed")
    return {
        "bert": bert_folder,
        "gpt2": gpt2_folder,
        "masked": save_checkpoint(sharp_bert(model_class=BertForMaskedLM), bert_tokenizer(), place / "masked"),
        "writing": save_checkpoint(sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer(), place / "writing"),
        "mixtral": save_checkpoint(sharp_llama("mixtral"), sentencepiece_tokenizer(), place / "mixtral"),
        "t5": saved("t5", place / "t5"),
    }


def with_value(name: str, value: float) -> Spoil:
    def change(all: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        all[name][-1] = value
        return all

    return weights(change)


def of_dtype(dtype: torch.dtype) -> Spoil:
    return weights(lambda all: all | {"pooler.dense.bias": all["pooler.dense.bias"].to(dtype)})


def shards_named(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for place in (folder.parent / "other", folder / "sub"):
            place.mkdir()
            shutil.copy(folder / WEIGHTS, place / "x.safetensors")
        spoiled.indexed(json.dumps({"weight_map": {"a": name.format(other=folder.parent)}}))(folder)

    return spoil


def in_shards(first: Any = None, second: Any = None) -> Spoil:
    def spoil(folder: Path) -> None:
        sharp_bert().save_pretrained(folder, max_shard_size="20KB")
        (folder / WEIGHTS).unlink(missing_ok=True)
        for shard, change in zip(sorted(folder.glob("model-*.safetensors")), (first, second), strict=False):
            if change:
                change(shard)

    return spoil


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def many_faults(all: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    kept = {name: tensor for name, tensor in all.items() if ".layer.1." not in name}
    return kept | {"foo.bar": torch.zeros(1), "pooler.dense.bias": torch.zeros(3)}


QUERY = "encoder.layer.1.attention.self.query.weight"
OUTSIDE = ("../other/x.safetensors", "{other}/other/x.safetensors", "sub/x.safetensors", "..", "")
NONSENSE: dict[str, dict[str, list[Any]]] = {
    "bert": {
        "architectures": [1], "hidden_dropout_prob": [math.nan], "num_hidden_layers": [0, "x"], "hidden_size": [0, -32],
        "layer_norm_eps": [0.0, -1e-12, "x"], "num_attention_heads": ["four", 3, None], "hidden_act": ["foo"],
        "vocab_size": [0], "pad_token_id": [9999], "id2label": [3], "dtype": ["float99"], "quantization_config": [3],
        "sub_configs": [5],
    },
    "gpt2": {"resid_pdrop": [math.nan], "layer_norm_epsilon": [1.5], "n_head": [0, 3], "activation_function": ["foo"]},
    "mixtral": {"num_experts_per_tok": [0, 6], "num_key_value_heads": [0]},
    "t5": {"decoder_start_token_id": [10**7, "x"], "dropout_rate": [math.inf]},
}  # fmt: skip
REFUSED: list[tuple[str, Spoil, str]] = [
    # weights that are not those that are hashed
    *(
        (kind, config(**{key: "other.safetensors"}), key)
        for key in ("transformers_weights", "fusion_config") for kind in ("bert", "masked")
    ),
    ("bert", write("adapter_config.json", "{}"), r"adapter_config\.json"),
    *(("bert", shards_named(name), "outside") for name in OUTSIDE),
    # a config far beyond its weights, before anything is built
    *(
        ("bert", config(**{name: value}), f"{name}={value}")
        for name, value in (
            ("hidden_size", 8192), ("vocab_size", 30_000_000), ("num_hidden_layers", 10_000_000), ("num_labels", 10**12)
        )
    ),
    ("bert", config(intermediate_size=10_000_000), r"[\d,]+ numbers"),
    # a config that does not fit its weights, weights that do not fit
    ("bert", config(num_hidden_layers=2), "16 unexpected"),
    ("bert", config(num_hidden_layers=4), "16 missing"),
    ("bert", config(hidden_size=64), "shape"),
    ("bert", config(vocab_size=10), r"word_embeddings\.weight \[61, 32\], expected \[10, 32\]"),
    ("bert", config(max_position_embeddings=10), r"position_embeddings\.weight \[40, 32\], expected \[10, 32\]"),
    ("bert", config(model_type="gpt2"), "40 missing"),
    ("bert", spoiled.without(QUERY), rf"1 missing \({QUERY}\)"),
    ("gpt2", spoiled.without("h.1.attn.c_attn.weight"), r"1 missing \(h\.1\.attn\.c_attn\.weight\)"),
    ("writing", spoiled.without("h.1.attn.c_proj.weight"), r"1 missing \(h\.1\.attn\.c_proj\.weight\)"),
    ("bert", also(foo__bar=torch.zeros(2)), r"1 unexpected \(foo\.bar\)"),
    ("bert", also(encoder__layer__9__x=torch.zeros(2)), r"1 unexpected \(encoder\.layer\.9\.x\)"),
    ("bert", also(encoder__classifier=torch.zeros(2)), r"1 unexpected \(encoder\.classifier\)"),
    ("masked", also(bert__encoder__layer__9__x=torch.zeros(2)), r"1 unexpected \((bert\.)?encoder\.layer\.9\.x\)"),
    ("bert", also(**{QUERY.replace(".", "__"): torch.zeros(16, 32)}), rf"{QUERY} \[16, 32\], expected \[32, 32\]"),
    ("bert", weights(many_faults), r"16 missing .*1 unexpected \(foo\.bar\); 1 of the wrong shape"),
    # weights that are no numbers to compute with, or no weights
    ("bert", with_value("embeddings.word_embeddings.weight", math.nan), "embeddings.word_embeddings.weight"),
    ("bert", with_value("encoder.layer.2.output.dense.bias", -math.inf), "encoder.layer.2.output.dense.bias"),
    *(("bert", of_dtype(dtype), str(dtype)[6:]) for dtype in (torch.complex64, torch.int64)),
    *(("bert", spoiled.cut(keep), r"model\.safetensors .*\d+ bytes") for keep in (0, 8, 100, -1)),
    *(("bert", write(WEIGHTS, data), WEIGHTS) for data in (b"\x02\0\0\0\0\0\0\0{}extra", b"<html>404</html>")),
    *(("bert", write(name, POINTER), f"{name}.* git lfs") for name in (WEIGHTS, "config.json", "tokenizer.json")),
    ("bert", in_shards(lambda shard: shard.write_text(POINTER)), "git lfs"),
    ("bert", in_shards(lambda shard: shard.write_bytes(b"x" * 50)), "model-00001"),
    ("bert", in_shards(None, lambda shard: shard.unlink()), "model-00002"),
    *(
        ("bert", spoiled.indexed(index), "index")
        for index in ('{"weight_map": {}}', "[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}')
    ),
    ("bert", spoiled.as_pickle, r"pytorch_model\.bin"),
    *(
        ("bert", config(quantization_config={"quant_method": method}), method)
        for method in ("fp8", "mxfp4", "compressed-tensors", "gptq", "awq")
    ),
    # a config that is none
    *(("bert", write("config.json", content), r"config\.json") for content in ("not json", "[1]", "", b"\xff\xfe")),
    # what is not reproduced, before any weight is read
    *(
        ("bert", spoiled.both(config(model_type=kind), write(WEIGHTS, "garbage")), "model_type|deberta")
        for kind in ("mamba", None, ["bert"], "deberta")
    ),
    *(
        (kind, config(**{name: value}), f"{name}={value!r}")
        for kind, name, value in (
            ("bert", "add_cross_attention", True), ("bert", "position_embedding_type", "relative_key"),
            ("gpt2", "add_cross_attention", True),
        )
    ),
    *(
        (kind, config(**{name: value}), "")
        for kind, settings in NONSENSE.items() for name, values in settings.items() for value in values
    ),
    # tokenizers
    ("bert", without_tokenizer, "tokenizer"),
    *(
        ("bert", write("tokenizer.json", content), "tokenizer")
        for content in ('{"version": "1.0", "model": {"type": "Nonsense"}}', "{}", "[1]")
    ),
    ("bert", gpt2_tokenizer().save_pretrained, "vocabulary ends at 60"),
]  # fmt: skip


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(("kind", "spoil", "message"), REFUSED)
def test_a_spoiled_folder_is_one_error_that_says_what_is_wrong(folders, tmp_path, capfd, recwarn, kind, spoil, message):
    folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
    spoil(folder)
    capfd.readouterr()
    with pytest.raises((CheckpointError, ArchitectureError), match=message or re.escape(str(folder))) as raised:
        tokenize(load(folder), SENTENCE)
    assert "\n" not in str(raised.value)
    assert (capfd.readouterr(), list(recwarn)) == (("", ""), [])  # what libraries log and warn is in the message alone


def test_a_checkpoint_in_a_folder_whose_name_is_no_text_is_not_called_corrupt(bert_folder: Path, tmp_path: Path):
    folder = shutil.copytree(bert_folder, tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(CheckpointError, match="UTF-8"):
        load(Path(folder))


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


def wrong(family: str, **changes: Any) -> tuple[str, dict[str, Any], str]:
    (name,) = changes
    return family, changes, f"{name}={changes[name]!r}"


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", rope("axial"), "rope_type='axial'"),
    ("llama", rope("default", partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "axial"}}}, "rope_type='axial'"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types='chunked_attention'"),
    ("phimoe", rope("linear", factor=2.0, short_mscale=1.0, long_mscale=1.5), "long_mscale=1.5"),
    ("bart", {"decoder_layers": 0}, "0 layers"),
    ("ministral3", rope("yarn", factor=2.0, original_max_position_embeddings=9), "llama_4_scaling_beta=None"),
    wrong("llama", num_key_value_heads=3),
    wrong("falcon", alibi=True),
    wrong("minicpm3", dim_model_base=0),
    wrong("gemma2", use_bidirectional_attention=True),
    wrong("opt", _remove_final_layer_norm=True),
    wrong("opt", word_embed_proj_dim=16),
    wrong("mpnet", pad_token_id=0),
    wrong("mpnet", relative_attention_num_buckets=31),
    wrong("deberta-v2", conv_kernel_size=3),
    wrong("deberta-v2", embedding_size=16),
    wrong("esm", position_embedding_type="absolute"),
    *(wrong("esm", **{name: True}) for name in ("is_decoder", "is_folding_model")),
    *(wrong("esm", **{name: None}) for name in ("pad_token_id", "mask_token_id")),
    *(wrong("roberta", pad_token_id=value) for value in (None, -1, 65)),
    wrong("distilbert", n_layers=0),
    wrong("bart", is_encoder_decoder=False),
    wrong("deepseek_v2", num_key_value_heads=2),
    wrong("t5", decoder_start_token_id=None),
    wrong("t5", relative_attention_num_buckets=7),
    wrong("m2m_100", pad_token_id=None),
]


@pytest.mark.parametrize(("family", "changes", "word"), SETTINGS)
def test_settings_that_are_not_reproduced_are_refused_by_name_and_value(family, changes, word):
    with pytest.raises(ArchitectureError, match=re.escape(word)):
        architecture_of(config_of(family, **changes), torch.float32)


IN_MEMORY: list[tuple[Any, str]] = [
    (lambda model: model.to("meta"), "meta"),
    (lambda model: model.embeddings.word_embeddings.weight.fill_(float("nan")), "finite"),
    (
        lambda model: setattr(model.encoder.layer[1].attention.self.query, "bias", None),
        r"encoder\.layer\.1\.attention\.self\.query",
    ),
    (lambda model: delattr(model.encoder.layer[0], "attention"), "'attention'"),
    (lambda model: model.encoder.layer.pop(2), "3 layers"),
    (lambda model: model.encoder.layer[1].half(), "torch.float16, torch.f"),
    (lambda model: model.encoder.layer[1].to("meta"), "cpu, meta"),
]


@pytest.mark.parametrize(("spoil", "message"), IN_MEMORY)
def test_a_model_in_memory_that_cannot_be_read_is_named(spoil: Any, message: str) -> None:
    model = sharp_bert()
    with torch.no_grad():
        spoil(model)
    with pytest.raises(CheckpointError, match=message):
        from_loaded(model, bert_tokenizer())


@pytest.mark.parametrize(
    ("make", "tokenizer", "error"),
    [
        (sharp_bert, None, CheckpointError),
        (sharp_bert, object(), CheckpointError),
        (lambda: torch.nn.Linear(2, 2), bert_tokenizer(), ArchitectureError),
        (torch.nn.Identity, bert_tokenizer(), ArchitectureError),  # without parameters
        (lambda: sharp_llama().to(torch.bfloat16), sentencepiece_tokenizer(), CheckpointError),  # rotary frequencies
        (lambda: sharp_bert(is_decoder=True), bert_tokenizer(), ArchitectureError),
    ],
)
def test_what_else_is_refused_of_a_model_in_memory(make: Any, tokenizer: Any, error: Any) -> None:
    with pytest.raises(error):
        tokenize(from_loaded(make(), tokenizer), SENTENCE)


@pytest.mark.parametrize(
    ("family", "changes"),
    first_of(
        [
            ("deepseek_v2", {"topk_method": "other"}),
            ("exaone4", {"sliding_window": None}),
            ("mistral4", rope("default", llama_4_scaling_beta=0.1, original_max_position_embeddings=9)),
        ]
    ),
)
def test_a_config_that_transformers_cannot_run_is_one_error(family, changes, tmp_path: Path) -> None:
    folder = save_checkpoint(sharp_llama(family), sentencepiece_tokenizer(), tmp_path / family)
    config(**changes)(folder)
    for run in (attnviz.analyze, attnviz.head_outputs, partial(attnviz.ablate, curve=False, select="L0H0")):
        with pytest.raises(CheckpointError):
            run("the cat ran", folder, device="cpu")


def test_what_a_hook_of_the_user_raises_stays_as_it_is() -> None:
    model = sharp_bert()

    def hook(*_: object) -> None:
        raise LookupError("mine")

    model.encoder.layer[1].register_forward_hook(hook)
    with pytest.raises(LookupError, match="mine"):
        attnviz.analyze("the cat ran", model, tokenizer=bert_tokenizer())
