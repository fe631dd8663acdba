"""Gemma 4: late layers attend to keys and values of earlier ones. And texts longer than windows and buckets."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnviz
from attnviz.errors import ArchitectureError, CheckpointError, UsageError, VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.families import architecture_of
from attnviz.models.families.base import LayerModules
from attnviz.models.opening import open_checkpoint
from tests.models.test_every_family import right_in
from tests.support.families import TEXT, checkpoint_of, model_of, padded
from tests.support.llamas import llama_config
from tests.support.models import save_checkpoint
from tests.support.tolerances import SUMS_32

ALONE = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
made = cache(checkpoint_of)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma4_text", {}),
        ("gemma4_text", ALONE | EXPERTS),
        ("gemma4_text", {"attention_k_eq_v": False, "use_double_wide_mlp": True}),
        ("umt5", {}),
        ("llama4_text", {"attention_chunk_size": 50, "floor_scale": 50}),
        ("llama4_text", {"attention_chunk_size": 50, "floor_scale": 50, "rope_parameters": YARN}),
    ],
)
def test_short_and_long_texts_verify(family, settings, attention):
    checkpoint = checkpoint_of(family, positions=256, **settings)
    checkpoint.model.set_attn_implementation(attention)
    for length in (17, 120):
        right_in(checkpoint, padded(checkpoint, (length,)))


def test_a_layer_without_keys_of_its_own_is_told_and_its_scores_are_of_what_the_earlier_one_read():
    checkpoint = made("gemma4_text", headed=True)
    assert [modules.keys_layer for modules in checkpoint.modules] == [None, None, 0, 1]
    assert checkpoint.notes
    assert checkpoint.d_head == 8
    widths = [checkpoint.architecture.parameters(checkpoint.model, layer).query.weight.shape[-1] for layer in range(4)]
    assert widths == [8, 16, 8, 16]
    result = attnviz.why(TEXT, checkpoint, head="L3H1")
    layers = {source.layer for source in result.scores.key_sources if hasattr(source, "layer")}
    assert (layers, result.scores.error < SUMS_32) == ({0}, True)
    assert {source.layer for source in result.scores.query_sources if hasattr(source, "layer")} == {0, 1, 2}


@pytest.mark.parametrize("name", ["stream_factor", "writers"])
def test_parts_without_the_factor_of_the_stream_or_what_is_read_last_do_not_pass(monkeypatch, name):
    checkpoint, right = made("gemma4_text", headed=True), LayerModules.writers.fget
    assert attnviz.head_outputs(TEXT, checkpoint).effects.error < SUMS_32
    wrong = {"stream_factor": 1.0, "writers": property(lambda self: {"feed-forward": right(self)["feed-forward"]})}
    monkeypatch.setattr(LayerModules, name, wrong[name])
    with pytest.raises(VerificationError):
        attnviz.head_outputs(TEXT, checkpoint)


def test_composition_is_of_the_layer_that_makes_the_keys():
    checkpoint = made("gemma4_text", headed=True)
    found = attnviz.circuits(checkpoint)
    pairs = {(pair.kind, pair.writer.layer, pair.id.layer) for pair in found.pairs()}
    assert {(kind, *layers) for kind, *layers in pairs if layers[1] == 3} == {
        ("query", 0, 3), ("query", 1, 3), ("query", 2, 3), ("key", 0, 3), ("value", 0, 3)
    }  # fmt: skip
    layers = [layer.state_dict() for layer in checkpoint.model.layers]

    def read(layer: int, name: str, norm: str = "") -> Any:
        """From the stream to a head, L3H1 or L0H0: of keys and values there is one for all in layer 1."""
        d_head, head = (16, 1) if layer else (8, 0)
        rows = slice(head * d_head, (head + 1) * d_head) if name == "q" else slice(d_head)
        before, weight = layers[layer]["input_layernorm.weight"], layers[layer][f"self_attn.{name}_proj.weight"][rows]
        after = layers[layer][f"self_attn.{norm}_norm.weight"] if norm else torch.ones(d_head)
        return (before[:, None] * weight.T * after).double().numpy()

    def written(layer: int) -> Any:
        d_head, head = (16, 1) if layer else (8, 0)
        columns = layers[layer]["self_attn.o_proj.weight"][:, head * d_head : (head + 1) * d_head]
        return (columns.T * layers[layer]["post_attention_layernorm.weight"]).double().numpy()

    writes = read(0, "v") @ written(0)
    reads = {"key": read(1, "k", "k") @ read(3, "q", "q").T, "value": read(1, "k") @ written(3)}
    for kind, matrix in reads.items():
        expected = np.linalg.norm(writes @ matrix) / np.linalg.norm(writes) / np.linalg.norm(matrix)
        assert float(found.scores[kind][13, 0]) == pytest.approx(expected, abs=SUMS_32)
    document = found.document()["pairs"]
    (row,) = [each for each in document if (each["id"], each["from"]) == ("L3H1", "L2H0")]
    assert (row["key"], row["query"] is None) == (None, False)  # layer 2 writes after the keys of layer 3 were made


def test_what_follows_the_stream_from_layer_to_layer_is_refused():
    checkpoint = made("gemma4_text", headed=True)
    with pytest.raises(UsageError, match="--to"):
        attnviz.patch(TEXT, checkpoint, corrupt=TEXT.replace("cat", "dog"), receiver="L3H1.q")
    for command in (attnviz.rollout, attnviz.explain):
        with pytest.raises(ArchitectureError, match="gemma4_text"):
            command(TEXT, checkpoint)


PARTLY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"num_global_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_kv_shared_layers": 9}, "num_kv_shared_layers"),
        ({"rope_parameters": {"full_attention": PARTLY}}, "partial_rotary_factor"),
    ],
)
def test_other_settings_are_refused_by_name(settings, named):
    with pytest.raises(ArchitectureError, match=named):
        architecture_of(llama_config("gemma4_text", **settings), torch.float32)


def test_maps_to_keys_that_the_hub_keeps_for_layers_without_them_are_left_out(tmp_path):
    folder = save_checkpoint(*model_of("gemma4_text"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    for name in ("k_proj", "k_norm"):
        weights[f"model.layers.2.self_attn.{name}.weight"] = weights[f"model.layers.0.self_attn.{name}.weight"].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(str(folder), device="cpu")[0].language_head is not None
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_proj"):
        open_checkpoint(str(folder), device="cpu")


def test_a_model_with_fewer_layers_than_its_config_says_is_refused():
    model, tokenizer = model_of("gemma4_text")
    del model.model.layers[1:]
    with pytest.raises(ArchitectureError):
        from_loaded(model, tokenizer)
