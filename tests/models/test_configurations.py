"""Configurations from configs and papers: sizes under any name, parameters counted without weights, odd configs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    T5Config,
    T5Model,
)

from attnviz.commands.models import measure
from attnviz.commands.models.measure import (
    PAPERS,
    ConfigFile,
    Configuration,
    built_in_configs,
    paper_configuration,
    paper_configurations,
    read_configuration,
    width_of_heads,
)
from attnviz.errors import CheckpointError
from attnviz.models import configs
from tests.conftest import needs_minilm
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2


def written(folder: Path, **config: Any) -> ConfigFile:
    """A folder with a config.json and nothing else."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ConfigFile("the-model", "folder", folder)


def read(folder: Path, **config: Any) -> Configuration:
    return read_configuration(written(folder, **config))


def loaded_counts(folder: Path) -> tuple[int, int]:
    """Parameters of the model with its weights, and those whose names are the attention's."""
    model = AutoModel.from_pretrained(folder)
    named = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    in_attention = [
        count
        for name, count in named
        if ".attn." in name or ".attention.self." in name or ".attention.output.dense." in name
    ]
    return sum(count for _, count in named), sum(in_attention)


# --- counting


@pytest.mark.parametrize(
    ("model_class", "tokenizer", "make"),
    [
        (BertModel, bert_tokenizer, sharp_bert),
        (BertForMaskedLM, bert_tokenizer, sharp_bert),
        (GPT2Model, gpt2_tokenizer, sharp_gpt2),
        (GPT2LMHeadModel, gpt2_tokenizer, sharp_gpt2),
    ],
)
def test_parameters_are_those_of_the_loaded_model_without_its_head(model_class, tokenizer, make, tmp_path):
    folder = save_checkpoint(make(model_class=model_class), tokenizer(), tmp_path / "model")
    found = read_configuration(ConfigFile("m", "folder", folder))
    assert (found.parameters, found.attention_parameters) == loaded_counts(folder)
    assert (found.n_layers, found.n_heads, found.d_model, found.d_head, found.positions) == (3, 4, 32, 8, 40)
    assert (found.reproduced, found.reason, found.notes) == (True, None, ())
    assert found.float32_gib == pytest.approx(found.parameters * 4 / 1024**3)


def test_what_is_shared_counts_once(tmp_path):
    config = T5Config(d_model=16, d_ff=8, d_kv=4, num_heads=2, num_layers=2, vocab_size=50)
    configuration = read(tmp_path, **config.to_dict())
    assert configuration.parameters == sum(parameter.numel() for parameter in T5Model(config).parameters())
    assert configuration.attention_parameters is None
    assert "layers and heads are those of the encoder + those of the decoder" in configuration.notes[0]
    assert (configuration.n_decoder_layers, configuration.n_decoder_heads) == (2, 2)


def test_the_largest_models_take_no_memory(tmp_path):
    """240 GB of weights in float32: no machine that runs tests could hold them."""
    found = read(tmp_path, model_type="gpt2", n_layer=2, n_embd=49152, n_head=96, vocab_size=50257)
    assert found.attention_parameters == 2 * 4 * (49152**2 + 49152)
    assert (found.parameters or 0) > 2 * 12 * 49152**2 + 50257 * 49152
    assert (found.float32_gib or 0) > 200


def test_a_config_alone_is_enough_and_no_weights_are_opened(bert_folder, tmp_path, monkeypatch):
    whole = read_configuration(ConfigFile("m", "folder", bert_folder))
    (tmp_path / "config.json").write_bytes((bert_folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    for loader in ("safetensors.safe_open", "torch.load"):
        monkeypatch.setattr(loader, lambda *_, **__: pytest.fail("weights were opened"))
    assert read_configuration(ConfigFile("m", "folder", tmp_path)) == whole
    (tmp_path / "model.safetensors").unlink()
    alone = read_configuration(ConfigFile("m", "folder", tmp_path))
    assert alone == replace(whole, notes=("its weights are not in the folder",))
    of_hub = read_configuration(ConfigFile("m", "hub", tmp_path, "a" * 40))
    assert of_hub.notes == ("its weights are not in the cache: attnviz heads will fetch them",)
    assert of_hub.source == "a" * 40


@pytest.mark.parametrize("name", [pytest.param("minilm", marks=needs_minilm), "tiny-gpt2"])
def test_a_built_in_model_is_counted_as_it_is_loaded(name):
    (file,) = [file for file in built_in_configs() if file.name == name]
    found = read_configuration(file)
    assert (found.parameters, found.attention_parameters) == loaded_counts(file.folder)
    assert found.reproduced


# --- what the papers say


def test_the_papers_models_are_as_printed():
    rows = {row.name: row for row in paper_configurations()}
    printed = {
        "bert-base": (110, 12, 768, 12, 64, 512),
        "bert-large": (340, 24, 1024, 16, 64, 512),
        "gpt2-small": (117, 12, 768, 12, 64, 1024),
        "gpt2-medium": (345, 24, 1024, 16, 64, 1024),
        "gpt2-large": (762, 36, 1280, 20, 64, 1024),
        "gpt2-xl": (1542, 48, 1600, 25, 64, 1024),
        "gpt3-125m": (125, 12, 768, 12, 64, 2048),
        "gpt3-350m": (350, 24, 1024, 16, 64, 2048),
        "gpt3-760m": (760, 24, 1536, 16, 96, 2048),
        "gpt3-1.3b": (1300, 24, 2048, 24, 128, 2048),
        "gpt3-2.7b": (2700, 32, 2560, 32, 80, 2048),
        "gpt3-6.7b": (6700, 32, 4096, 32, 128, 2048),
        "gpt3-13b": (13000, 40, 5140, 40, 128, 2048),
        "gpt3-175b": (175000, 96, 12288, 96, 128, 2048),
    }
    assert list(rows) == list(printed)
    for name, (stated, *sizes) in printed.items():
        row = rows[name]
        assert row.stated_parameters == stated * 10**6
        assert [row.n_layers, row.d_model, row.n_heads, row.d_head, row.positions] == sizes
        assert row.source in PAPERS
        assert row.kind == "paper"


def test_what_the_papers_do_not_print_is_marked():
    rows = {row.name: row for row in paper_configurations()}
    origins = {name: {key: row.origins[key] for key in ("n_heads", "d_head", "d_model")} for name, row in rows.items()}
    assert origins["bert-base"] == {"n_heads": "paper", "d_head": "derived", "d_model": "paper"}
    assert origins["gpt2-xl"] == {"n_heads": "released", "d_head": "released", "d_model": "paper"}
    assert set(origins["gpt3-175b"].values()) == {"paper"}
    numbers = ("n_layers", "n_heads", "d_model", "d_head", "positions", "vocabulary", "parameters", "stated_parameters")
    for row in rows.values():
        assert {name for name in numbers if getattr(row, name) is not None} <= set(row.origins)
        assert all(getattr(row, name) is not None for name in row.origins)


def test_gpt3_is_not_reproduced_and_its_misprints_are_noted():
    rows = {row.name: row for row in paper_configurations() if row.architecture == "gpt3"}
    for row in rows.values():
        assert (row.reproduced, row.reason, row.parameters) == (False, "weights are not public", None)
    width, printed, *_ = rows["gpt3-1.3b"].notes
    assert (width, printed) == ("24 heads of 128 are 3072 wide, d_model is 2048", "n_heads and d_head are as printed")
    assert rows["gpt3-13b"].notes[0] == "40 heads of 128 are 5120 wide, d_model is 5140"
    assert [name for name, row in rows.items() if len(row.notes) > 1] == ["gpt3-1.3b", "gpt3-13b"]


@pytest.mark.parametrize(
    ("name", "called"),
    [("BERT-Large", "bert-large"), ("GPT-3-175B", "gpt3-175b"), ("gpt3", "gpt3-175b"), ("GPT3-XL", "gpt3-1.3b"),
     ("gpt-2-small", "gpt2-small"), ("gpt2", None), ("bert-base-uncased", None), ("", None)],
)  # fmt: skip
def test_papers_models_are_found_by_name_in_any_case(name, called):
    configuration = paper_configuration(name)
    assert (configuration and configuration.name) == called


# --- widths


@pytest.mark.parametrize(
    ("d_model", "n_heads", "stated", "width", "note"),
    [
        (768, 12, None, 64, None),
        (768, 12, 64, 64, None),
        (100, 3, None, None, "d_model 100 is no multiple of 3 heads, so there is no d_head"),
        (2304, 8, 256, 256, "8 heads of 256 are 2048 wide, d_model is 2304"),
        (None, 8, 256, 256, None),
        (768, None, None, None, None),
        (768, 0, None, None, None),
        (768, -2, None, None, None),
    ],
)
def test_the_width_of_heads_and_what_is_odd_about_it(d_model, n_heads, stated, width, note):
    assert width_of_heads(d_model, n_heads, stated) == (width, note)


# --- other architectures

LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}


@pytest.mark.draws
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"model_type": "arcee", **LLAMA, "intermediate_size": 96, "vocab_size": 99}, (2, 8, 2, 64, 8, 4096)),
        ({"model_type": "convbert"}, (12, 12, None, 768, 64, 512)),
        ({"model_type": "ctrl", "n_embd": 64, "n_head": 4, "n_layer": 2}, (2, 4, None, 64, 16, 256)),
        (
            {"model_type": "umt5", "d_model": 64, "num_heads": 4, "num_layers": 2, "d_kv": 16},
            (2, 4, None, 64, 16, None),
        ),
        ({"model_type": "swin"}, (4, None, None, 768, None, None)),
    ],
)
def test_other_architectures_have_their_sizes_and_are_not_reproduced(config, sizes, tmp_path):
    found = read(tmp_path, **config)
    numbers = (found.n_layers, found.n_heads, found.n_kv_heads, found.d_model, found.d_head, found.positions)
    assert numbers == sizes
    assert not found.reproduced
    assert found.reason == f"architecture '{config['model_type']}'"
    assert found.attention_parameters is None
    if config["model_type"] != "umt5":  # the encoder-decoder has a test of its own
        built = AutoModel.from_config(AutoConfig.for_model(**config))
        assert found.parameters == sum(parameter.numel() for parameter in built.parameters())


def test_a_width_of_heads_of_its_own_is_taken_from_the_config_and_noted(tmp_path):
    found = read(tmp_path, model_type="llama", **LLAMA, head_dim=16, intermediate_size=96, vocab_size=99)
    assert found.d_head == 16
    assert found.origins["d_head"] == "config"
    assert found.notes[0] == "8 heads of 16 are 128 wide, d_model is 64"


@pytest.mark.parametrize("model_type", ["bert", "bart"])
def test_a_width_of_heads_that_the_family_does_not_read_is_not_taken_from_the_config(model_type, tmp_path):
    found = read(tmp_path, model_type=model_type, hidden_size=64, num_attention_heads=4, head_dim=32, vocab_size=99)
    assert (found.d_head, found.origins["d_head"]) == (16, "derived")
    assert not [note for note in found.notes if "wide" in note]


def test_an_architecture_that_transformers_does_not_know_has_sizes_as_its_config_names_them(tmp_path):
    """And the code that it names is not run: there is none."""
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}, "n_embd": 64, "n_head": 4, "n_layer": [1]}
    found = read(tmp_path, **config)
    assert (found.n_layers, found.n_heads, found.d_model, found.d_head) == (None, 4, 64, 16)
    assert (found.parameters, found.reproduced, found.reason) == (None, False, "architecture 'mine'")
    assert "does not know it" in found.notes[0]


# --- what is not reproduced, and odd configs


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert", "is_decoder": True}, "is_decoder=True"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=True"),
        ({"model_type": "bert", "num_hidden_layers": 0}, "its config has no n_layers above 0"),
        ({"model_type": "bert", "max_position_embeddings": 0}, "max_position_embeddings=0"),
    ],
)
def test_settings_that_are_not_reproduced_are_named(config, reason, tmp_path):
    found = read(tmp_path, **config)
    assert (found.reproduced, found.reason, found.attention_parameters) == (False, reason, None)
    assert found.parameters is not None


def test_heads_that_do_not_divide_the_width_are_noted_and_not_reproduced(tmp_path):
    found = read(tmp_path, model_type="bert", hidden_size=100, num_attention_heads=3)
    assert (found.d_head, found.parameters, found.reproduced) == (None, None, False)
    assert found.notes[0] == "d_model 100 is no multiple of 3 heads, so there is no d_head"
    assert found.reason == "num_attention_heads=3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"cannot read .*config\.json: Expecting property name.*; save or download the checkpoint again"),
        (b"[]", r"expected a JSON object, found list"),
        (b"[" * 100_000, r"cannot read .*config\.json: "),
        (b"\xff", r"cannot read .*config\.json: .*codec can't decode"),
        (b"{}", r"config\.json has model_type None; expected the name of an architecture, such as 'bert'"),
        (b'{"model_type": ["bert"]}', r"config\.json has model_type \['bert'\]; expected the name"),
        (b'{"model_type": ""}', r"config\.json has model_type ''; expected the name"),
        (b'{"model_type": "bert", "hidden_size": "768"}', r"transformers cannot read .*config\.json: .*hidden_size"),
        (b'{"model_type": "bert", "hidden_size": null}', r"transformers cannot read .*config\.json: .*hidden_size"),
    ],
)
def test_what_is_no_config_is_one_error_that_names_the_file(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_configuration(ConfigFile("m", "folder", tmp_path))


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
        counted = read_configuration(ConfigFile(row.name, "folder", tmp_path))
        assert (counted.parameters, counted.attention_parameters) == (row.parameters, row.attention_parameters)
        assert (counted.architecture, counted.reproduced) == (row.architecture, row.reproduced)
        if row.name in rounded:
            assert round((row.parameters or 0) / 10**6) == rounded[row.name]
            assert any("parameter counts are wrong" in note for note in row.notes)


def test_more_layers_than_anything_has_are_not_built(tmp_path, monkeypatch):
    monkeypatch.setattr(configs, "_MOST_MODULES", 200)
    found = read(tmp_path, model_type="bert", num_hidden_layers=10**5)
    assert found.reason == "its model has more than 200 modules"
    assert (found.n_layers, found.reproduced, found.parameters) == (10**5, False, None)
    with pytest.raises(CheckpointError, match="num_hidden_layers=1000000000; expected at most 1,000,000"):
        read(tmp_path, model_type="bert", num_hidden_layers=10**9)


@pytest.mark.parametrize("model_type", ["gemma4_text", "musicgen"])
def test_an_architecture_whose_sizes_transformers_does_not_tell_is_a_row(tmp_path, model_type):
    row = read(tmp_path, model_type=model_type)
    assert (row.architecture, row.reason) == (model_type, f"architecture '{model_type}'")
    assert row.d_head is None


def test_whatever_a_config_raises_is_a_row_of_the_list(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("per layer")

    monkeypatch.setattr(measure, "_with_sizes_of", broken)
    with pytest.raises(CheckpointError, match=r"transformers cannot tell the sizes in .*config\.json: per layer"):
        read(tmp_path, model_type="llama")
