"""Gemma 4 (Gemma Team 2026): the last layers may attend to keys and values of earlier ones, and values are normed."""

from dataclasses import replace
from typing import Any

import torch

from attnviz.models.families.base import Architecture, LayerModules, NormKind, first_of, not_reproduced
from attnviz.models.families.llama import Gemma2, with_images
from attnviz.reference.attention import HeadParameters


class Gemma4(Gemma2, name="gemma4_text", prefix="Gemma4Text"):
    """Heads are wider, and groups larger, in layers without a window; layers may read a table of words of their own."""

    language_class = "Gemma4ForCausalLM"
    norm_kind: NormKind = "rms, rounded once"
    cap_setting = ""
    only = (("use_bidirectional_attention", "vision"),)  # which is of images alone
    projection_names = ("q_proj", "o_proj")
    head_norm_names = ("q_norm",)
    scaled = False
    scale = Architecture.scale
    resumable = False  # a pass that began at a layer would lack its keys
    stream_alone = False
    explained = False

    def refuse(self, config: Any) -> None:
        """CheckpointError where no layer has keys of its own."""
        n_shared, n_layers = config.num_kv_shared_layers, config.num_hidden_layers
        if not 0 <= n_shared < n_layers:
            raise not_reproduced(self.name, "num_kv_shared_layers", n_shared, f"0 to {n_layers - 1}")
        super().refuse(config)

    def notes(self, config: Any) -> tuple[str, ...]:
        """How wide heads are without a window, and how many layers attend to keys of earlier ones."""
        wide = f"In layers without a window d_head is {config.per_layer_config[-1].head_dim}."
        n_shared = config.num_kv_shared_layers
        return wide, *([f"The last {n_shared} layers attend to keys and values of earlier ones."] if n_shared else [])

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:
        """With the layer's own number of key-value heads."""
        return config.num_attention_heads, config.per_layer_config[layer].num_key_value_heads

    def modules_of(self, base_model: Any, layer: int) -> LayerModules:
        """With keys and values of the last layer of its type that has some; its values may be its keys."""
        modules, config = super().modules_of(base_model, layer), base_model.config
        having = range(config.num_hidden_layers - config.num_kv_shared_layers)
        alike = [each for each in having if config.layer_types[each] == config.layer_types[layer]]
        shared = None if layer in having else alike[-1]
        owner: Any = modules.attention if shared is None else base_model.layers[shared].self_attn
        value: Any = first_of(owner.v_proj, owner.k_proj)
        return replace(
            modules,
            projections=(*modules.projections, owner.k_proj, value),
            head_norms=(*modules.head_norms, owner.k_norm),
            keys_layer=shared,
            read_last=getattr(modules.block, "post_per_layer_input_norm", None),
        )

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With the norm of values, which has no weights."""
        parameters = super().parameters(base_model, layer)
        norm: Any = parameters.key_norm
        return replace(parameters, value_norm=replace(norm, weight=torch.ones_like(norm.weight)))


Gemma4WithImages = with_images("gemma4", "Gemma4", Gemma4)
