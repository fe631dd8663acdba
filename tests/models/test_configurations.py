"""Configurations from configs and papers: sizes, parameters counted without weights, odd configs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModel, BertConfig, GPT2Config, T5Config, T5Model

from attnviz.commands.models import (
    Configuration,
    paper_configuration,
    paper_configurations,
    paper_titles,
    read_configuration,
)
from attnviz.errors import CheckpointError
from attnviz.models.sources import Source
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2


def read(folder: Path, **config: Any) -> Configuration:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_configuration(Source("the-model", folder, kind="folder"))


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_parameters_are_those_of_the_loaded_model_without_its_head(name, tmp_path):
    make, tokenizer = (sharp_bert, bert_tokenizer) if "Bert" in name else (sharp_gpt2, gpt2_tokenizer)
    folder = save_checkpoint(make(model_class=getattr(transformers, name)), tokenizer(), tmp_path / "model")
    found = read_configuration(Source("m", folder, kind="folder"))
    sizes = {name: each.numel() for name, each in AutoModel.from_pretrained(folder).named_parameters()}
    of_attention = (".attn.", ".attention.self.", ".attention.output.dense.")
    assert found.parameters == sum(sizes.values())
    assert found.attention_parameters == sum(
        size for name, size in sizes.items() if any(part in name for part in of_attention)
    )
    assert (found.n_layers, found.n_heads, found.d_model, found.d_head, found.positions) == (3, 4, 32, 8, 40)
    assert (found.reproduced, found.reason, found.notes) == (True, None, ())
    assert found.float32_gib == pytest.approx(found.parameters * 4 / 1024**3)


def test_what_is_shared_counts_once_and_the_largest_models_take_no_memory(tmp_path):
    """240 GB of weights in float32: no machine that runs tests could hold them."""
    sizes = {"d_model": 16, "d_ff": 8, "d_kv": 4, "num_heads": 2, "num_layers": 2, "vocab_size": 50}
    config = T5Config(**sizes, decoder_start_token_id=0)
    found = read(tmp_path, **config.to_dict())
    assert found.parameters == sum(parameter.numel() for parameter in T5Model(config).parameters())
    assert (found.n_decoder_layers, found.n_decoder_heads) == (2, 2)
    found = read(tmp_path, model_type="gpt2", n_layer=2, n_embd=49152, n_head=96, vocab_size=50257)
    assert found.attention_parameters == 2 * 4 * (49152**2 + 49152)


def test_a_config_alone_is_enough_and_no_weights_are_opened(bert_folder, tmp_path, monkeypatch):
    whole = read_configuration(Source("m", bert_folder, kind="folder"))
    (tmp_path / "config.json").write_bytes((bert_folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: pytest.fail("weights were opened"))
    assert read_configuration(Source("m", tmp_path, kind="folder")) == whole
    (tmp_path / "model.safetensors").unlink()
    alone = read_configuration(Source("m", tmp_path, kind="folder"))
    assert alone == replace(whole, notes=("its weights are not in the folder",))
    of_hub = read_configuration(Source("m", tmp_path, "a" * 40, kind="hub"))
    assert (of_hub.source, "will fetch" in of_hub.notes[0]) == ("a" * 40, True)


PRINTED = """
bert-base 110 12 768 12 64 512
bert-large 340 24 1024 16 64 512
gpt2-small 117 12 768 12 64 1024
gpt2-medium 345 24 1024 16 64 1024
gpt2-large 762 36 1280 20 64 1024
gpt2-xl 1542 48 1600 25 64 1024
gpt3-125m 125 12 768 12 64 2048
gpt3-350m 350 24 1024 16 64 2048
gpt3-760m 760 24 1536 16 96 2048
gpt3-1.3b 1300 24 2048 24 128 2048
gpt3-2.7b 2700 32 2560 32 80 2048
gpt3-6.7b 6700 32 4096 32 128 2048
gpt3-13b 13000 40 5140 40 128 2048
gpt3-175b 175000 96 12288 96 128 2048
"""
"""Millions of parameters, layers, d_model, heads, d_head, positions."""


def test_the_papers_models_are_as_printed_and_what_is_not_is_marked():
    for row, line in zip(paper_configurations(), PRINTED.strip().splitlines(), strict=True):
        name, stated, *sizes = line.split()
        assert (row.name, row.stated_parameters) == (name, int(stated) * 10**6)
        assert [row.n_layers, row.d_model, row.n_heads, row.d_head, row.positions] == list(map(int, sizes))
        assert (row.source in paper_titles(), row.kind) == (True, "paper")
        if row.architecture == "gpt3":
            assert (row.reproduced, row.parameters) == (False, None)
            assert (row.n_heads * row.d_head != row.d_model) == any("wide" in note for note in row.notes)
    origins = {
        row.name: [row.origins[key] for key in ("n_heads", "d_head", "d_model")] for row in paper_configurations()
    }
    assert origins["bert-base"] == ["paper", "derived", "paper"]
    assert origins["gpt2-xl"] == ["released", "released", "paper"]
    for name, called in (("GPT-3-175B", "gpt3-175b"), ("gpt3", "gpt3-175b"), ("GPT3-XL", "gpt3-1.3b"), ("gpt2", None)):
        configuration = paper_configuration(name)
        assert (configuration and configuration.name) == called


@pytest.mark.thorough
@pytest.mark.draws
def test_released_models_are_counted_and_reproduced_as_their_configs_are(tmp_path):
    """What OpenAI's README corrects the GPT-2 paper to: 124M, 355M, 774M, 1558M."""
    rounded = {"gpt2-small": 124, "gpt2-medium": 355, "gpt2-large": 774, "gpt2-xl": 1558}
    for row in paper_configurations():
        if row.architecture == "gpt3":
            continue
        sizes = {"num_hidden_layers": row.n_layers, "hidden_size": row.d_model, "num_attention_heads": row.n_heads}
        config: Any = GPT2Config(**sizes)
        if row.architecture == "bert":
            config = BertConfig(**sizes, intermediate_size=4 * (row.d_model or 0))
        assert (row.positions, row.vocabulary) == (config.max_position_embeddings, config.vocab_size)
        config.save_pretrained(tmp_path)
        counted = read_configuration(Source(row.name, tmp_path, kind="folder"))
        assert (counted.parameters, counted.attention_parameters) == (row.parameters, row.attention_parameters)
        assert (counted.architecture, counted.reproduced) == (row.architecture, row.reproduced)
        if row.name in rounded:
            assert round((row.parameters or 0) / 10**6) == rounded[row.name]


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 99}


@pytest.mark.parametrize(
    ("family", "given", "d_head", "origin", "wide"),
    [
        ("llama", 16, 16, "config", True),
        ("llama", 8, 8, "config", False),
        ("bert", 32, 8, "derived", False),
        ("bart", 32, 8, "derived", False),
    ],
)
def test_a_width_of_heads_is_taken_from_the_config_if_the_family_reads_it(
    tmp_path, family, given, d_head, origin, wide
):
    found = read(tmp_path, **LLAMA | {"model_type": family, "head_dim": given})
    assert (found.d_head, found.origins["d_head"]) == (d_head, origin)
    assert any("wide, d_model is 64" in note for note in found.notes) == wide


@pytest.mark.parametrize("model_type", ["bitnet", "deberta", "swin", "gemma3n", "t5gemma2", "llama4", "mine"])
def test_an_architecture_that_attnviz_does_not_know_is_a_row_with_the_reason(tmp_path, model_type):
    found = read(tmp_path, model_type=model_type, auto_map={"AutoConfig": "code.Mine"}, n_embd=64)
    assert (found.architecture, found.reproduced, bool(found.reason)) == (model_type, False, True)
    assert (found.n_layers, found.parameters) == (None, None)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("bert", "is_decoder", True),
        ("bert", "num_hidden_layers", 0),
        ("bert", "max_position_embeddings", 0),
        ("bert", "num_attention_heads", 5),
    ],
)
def test_settings_that_are_not_reproduced_are_named(kind, name, value, tmp_path):
    found = read(tmp_path, model_type=kind, **{name: value})
    assert (found.reproduced, found.reason, found.attention_parameters) == (False, f"{name}={value}", None)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"model_type": ["bert"]}',
        b'{"model_type": "bert", "hidden_size": "768"}',
        b'{"model_type": "bert", "num_hidden_layers": 1000000000}',
    ],
)
def test_what_is_no_config_is_one_error_that_names_the_file(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_configuration(Source("m", tmp_path, kind="folder"))
