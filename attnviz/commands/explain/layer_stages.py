"""One layer recomputed from its input to its output, every step from the step before, never from the model's.

    post-norm (BERT)   x -> attention -> + x -> norm -> feed forward -> + -> norm
    pre-norm (GPT-2)   x -> norm -> attention -> + x -> norm -> feed forward -> +

"Post-norm" and "pre-norm" after Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture".
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention import reference as attention
from attnviz.attention.reference import HeadParameters
from attnviz.commands.explain.reference import Activation, LayerNorm, LinearMap, activation_named, layer_norm
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Tokens

__all__ = ["LayerParameters", "embedded", "layer_parameters", "recompute_layer", "reference_norm"]


@dataclass(frozen=True)
class LayerParameters:
    """The parameters of one whole layer.

    Attributes:
        heads: of the attention.
        attention_norm: the layer norm before the attention (pre-norm), or after its residual (post-norm).
        expand: the feed-forward network's first map, d_model to d_ff.
        activation: what comes between its maps.
        contract: its second map, d_ff to d_model.
        feed_forward_norm: the layer norm before the network (pre-norm), or after its residual (post-norm).
        pre_norm: which of the two.
        final_norm: the layer norm of the model after this layer; None where there is none.
    """

    heads: HeadParameters
    attention_norm: LayerNorm
    expand: LinearMap
    activation: Activation
    contract: LinearMap
    feed_forward_norm: LayerNorm
    pre_norm: bool
    final_norm: LayerNorm | None


def layer_parameters(checkpoint: Checkpoint, layer: int) -> LayerParameters:
    """The parameters of a layer, with the settings of the config.

    Raises:
        ArchitectureError: the activation is not among those that are reproduced.
    """
    architecture, model = checkpoint.architecture, checkpoint.model
    modules = architecture.modules(model)[layer]
    final = architecture.final_norm(model) if layer == checkpoint.n_layers - 1 else None
    return LayerParameters(
        heads=architecture.parameters(model, layer),
        attention_norm=reference_norm(checkpoint, modules.attention_norm),
        expand=_linear_map(modules.expand),
        activation=activation_named(getattr(checkpoint.config, architecture.activation_setting)),
        contract=_linear_map(modules.contract),
        feed_forward_norm=reference_norm(checkpoint, modules.feed_forward_norm),
        pre_norm=architecture.pre_norm,
        final_norm=None if final is None else reference_norm(checkpoint, final),
    )


def reference_norm(checkpoint: Checkpoint, norm: Any) -> LayerNorm:
    """The parameters of a layer norm, with the epsilon of the config."""
    epsilon = float(getattr(checkpoint.config, checkpoint.architecture.epsilon_setting))
    return LayerNorm(norm.weight, norm.bias, epsilon)


def embedded(checkpoint: Checkpoint, tokens: Tokens) -> Tensor:
    """What enters the first layer, [n, d_model]: word + position (+ segment), normed where the model norms it."""
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    x = tables.words[torch.tensor(tokens.ids, device=checkpoint.device)] + tables.positions[: len(tokens)]
    if tables.segments is not None:
        x = x + tables.segments[torch.tensor(tokens.type_ids or [0] * len(tokens), device=checkpoint.device)]
    return x if tables.norm is None else layer_norm(x, reference_norm(checkpoint, tables.norm))


def recompute_layer(x: Tensor, parameters: LayerParameters, allowed: Tensor) -> dict[str, Tensor]:
    """Every step of a layer, in the order of computing.

    Args:
        x: the residual stream that enters, [n, d_model].
        parameters: of the layer.
        allowed: boolean [n, n], True = may attend.

    Returns:
        by name: ``attention_norm`` (where it comes first), ``query``, ``key``, ``value`` [n, d_model], ``split``
        [3, n_heads, n, d_head], ``scores`` [n_heads, n, n], ``mask`` [n, n], ``pattern`` [n_heads, n, n], ``weighted``
        [n_heads, n, d_head], ``concatenated``, ``attention_output``, ``attention_residual`` [n, d_model], a norm,
        ``expanded``, ``activated`` [n, d_ff], ``feed_forward_output`` [n, d_model], ``feed_forward_residual`` (where
        a norm follows), ``output`` and, after a model's last layer, ``final_norm`` [n, d_model].
    """
    steps: dict[str, Tensor] = {}
    attended = x
    if parameters.pre_norm:
        attended = steps["attention_norm"] = layer_norm(x, parameters.attention_norm)
    _attend(attended, parameters.heads, allowed, steps)
    middle = steps["attention_residual"] = x + steps["attention_output"]
    name, norm = ("feed_forward_norm", parameters.feed_forward_norm)
    if not parameters.pre_norm:
        name, norm = ("attention_norm", parameters.attention_norm)
    normed = steps[name] = layer_norm(middle, norm)
    steps["expanded"] = parameters.expand(normed)
    steps["activated"] = parameters.activation(steps["expanded"])
    steps["feed_forward_output"] = parameters.contract(steps["activated"])
    if parameters.pre_norm:
        steps["output"] = middle + steps["feed_forward_output"]
    else:
        steps["feed_forward_residual"] = normed + steps["feed_forward_output"]
        steps["output"] = layer_norm(steps["feed_forward_residual"], parameters.feed_forward_norm)
    if parameters.final_norm is not None:
        steps["final_norm"] = layer_norm(steps["output"], parameters.final_norm)
    return steps


def _attend(x: Tensor, heads: HeadParameters, allowed: Tensor, steps: dict[str, Tensor]) -> None:
    """The steps of the attention, with the functions of :mod:`attnviz.attention.reference`."""
    split = [attention.project(x, projection) for projection in (heads.query, heads.key, heads.value)]
    for name, part in zip(("query", "key", "value"), split, strict=True):
        steps[name] = part.transpose(0, 1).flatten(1)
    steps["split"] = torch.stack(split)
    query, key, value = split
    if heads.upcast:
        query, key = query.float(), key.float()
    steps["scores"] = attention.attention_scores(query, key, heads.scale)
    steps["mask"] = allowed
    steps["pattern"] = attention.attention_pattern(steps["scores"].clone(), allowed).to(x.dtype)
    steps["weighted"] = torch.matmul(steps["pattern"], value)
    steps["concatenated"] = steps["weighted"].transpose(0, 1).flatten(1)
    steps["attention_output"] = steps["concatenated"] @ heads.output_weight.flatten(0, 1) + heads.output_bias


def _linear_map(module: Any) -> LinearMap:
    """nn.Linear keeps its weight [d_out, d_in], transformers' Conv1D [d_in, d_out]."""
    return LinearMap(module.weight.T if isinstance(module, nn.Linear) else module.weight, module.bias)
