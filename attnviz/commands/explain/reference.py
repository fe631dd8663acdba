"""One layer recomputed from its input to its output, on plain tensors, each step from the step before.

    post-norm (BERT)          x -> attention -> + x -> norm -> feed forward -> + -> norm
    pre-norm (GPT-2, Llama)   x -> norm -> attention -> + x -> norm -> feed forward -> +
    both (Gemma)              x -> norm -> attention -> norm -> + x -> norm -> feed forward -> norm -> +
    of outputs (OLMo 2)       x -> attention -> norm -> + x -> feed forward -> norm -> +
    parallel (GPT-NeoX)       x -> norm -> attention -> + x + <- feed forward <- norm <- x

    layer norm     y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        (Ba et al. 2016), over d_model
    RMS norm       y = x / sqrt(mean(x²) + eps) * weight                         (Zhang & Sennrich 2019)
    feed forward   f(x W_1 + b_1) W_2 + b_2                                      (Vaswani et al. 2017, section 3.3)
    gated          (f(x W_g) * x W_1) W_2                                        (Shazeer 2020, section 2)
    experts        sum of weight_e * gated_e(x) over those that a token takes    (Shazeer et al. 2017)

"Post-norm" and "pre-norm" after Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture". The
variance is that of the d_model numbers themselves (divided by d_model, not d_model - 1). Norms and activations are
computed in float32 at least and rounded once, as torch's own kernels do.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import ArchitectureError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules, RoutedModules
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import outlier_threshold
from attnviz.models.tokens import Tokens
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Norm, upcast
from attnviz.trace.residual_parts import embeddings_of

_ROWS = 128  # queries per block of the softmax


@dataclass(frozen=True)
class LinearMap:
    """x W + b: ``weight`` [d_in, d_out], ``bias`` [d_out] or None; ``threshold`` as of :func:`attention.linear`."""

    weight: Tensor
    bias: Tensor | None
    threshold: float | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map x, [.., d_in], to [.., d_out]."""
        product = attention.linear(x, self.weight.T, None, self.threshold)
        return product if self.bias is None else product + self.bias.to(product)


@dataclass(frozen=True)
class Activation:
    """Activation of a feed-forward network, by its name in transformers' configs."""

    name: str
    formula: str
    function: Callable[[Tensor], Tensor]  # of a tensor in float32 at least

    def __call__(self, x: Tensor) -> Tensor:
        """Apply elementwise, in the dtype of x."""
        return self.function(upcast(x)).to(x.dtype)


ACTIVATIONS = {
    name: Activation(name, formula, function)
    for names, formula, function in (
        ("gelu gelu_python", "x Φ(x)", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu_new gelu_pytorch_tanh gelu_python_tanh gelu_accurate gelu_fast",
         "x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("quick_gelu", "x σ(1.702 x)", lambda x: x * torch.sigmoid(1.702 * x)),
        ("relu", "max(x, 0)", lambda x: x.clamp(min=0)),
        ("relu2", "max(x, 0)²", lambda x: x.clamp(min=0).square()),
        ("silu swish", "x σ(x)", lambda x: x * torch.sigmoid(x)),
        ("tanh", "tanh(x)", torch.tanh),
        ("linear", "x", lambda x: x),
    )
    for name in names.split()
}  # fmt: skip
"""Reproduced activations, by name in the config. GELU: Hendrycks & Gimpel 2016; Φ is the normal distribution."""


def activation_named(name: object) -> Activation:
    """The activation of a config; ArchitectureError if it is not reproduced."""
    activation = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if activation is None:
        wanted = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        raise ArchitectureError(
            f"this model's feed-forward network has the activation {wanted!r}, which the reference does not reproduce; "
            f"expected one of: {', '.join(ACTIVATIONS)}."
        )
    return activation


@dataclass(frozen=True)
class Experts:
    """Gated networks of which each token takes some, by the logits of a router."""

    router: LinearMap  # d_model to n_experts
    gate_up_proj: Tensor  # [n_experts, 2 * d_ff, d_model]
    down_proj: Tensor  # [n_experts, d_model, d_ff]
    n_taken: int
    weights: Callable[[Tensor, Tensor], Tensor]  # of logits and the numbers of the experts that tokens take
    choice: Callable[[Tensor], Tensor]  # of logits, of what each token takes the highest
    shared_gate: LinearMap | None  # d_model to the logit of the weight of the expert that every token takes
    gated: Callable[[Activation, Tensor, Tensor], Tensor]  # from gate and up [n, d_ff] to the input of down_proj
    biases: tuple[Tensor, Tensor] | None = None  # [n_experts, 2 * d_ff] and [n_experts, d_model]
    interleaved: bool = False  # whether gate and up take turns, else all of the gate comes first


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer; norms stand before attention and network (pre-norm) or after residuals."""

    heads: HeadParameters
    attention_norm: Norm | None
    up_proj: LinearMap | None  # d_model to d_ff; with experts of the one that every token takes, or None
    activation: Activation
    down_proj: LinearMap | None  # d_ff to d_model; likewise
    feed_forward_norm: Norm | None
    pre_norm: bool
    final_norm: Norm | None  # of the model, after its last layer
    gate: LinearMap | None = None  # d_model to d_ff, in a gated network
    attention_output_norm: Norm | None = None  # before the residual is added (Gemma)
    feed_forward_output_norm: Norm | None = None
    experts: Experts | None = None
    residual_multiplier: float = 1.0  # of what is added to the residual stream
    parallel: bool = False  # whether the network reads the layer's input, too


def layer_parameters(checkpoint: Checkpoint, layer: int) -> LayerParameters:
    """Read the parameters of a layer, and its config; ArchitectureError for an unknown activation."""
    architecture, model, modules = checkpoint.architecture, checkpoint.model, checkpoint.modules[layer]
    final = architecture.final_norm(model) if layer == checkpoint.n_layers - 1 else None
    gate, up_proj = _gate_and_expand(modules)

    def norm(module: nn.Module | None) -> Norm | None:
        return None if module is None else checkpoint.norm(module)

    heads = architecture.parameters(model, layer)
    if checkpoint.attention != "eager" and checkpoint.dtype in (torch.bfloat16, torch.float16):
        heads = replace(heads, upcast=True)  # others do not round scores to the number format
    return LayerParameters(
        heads=heads,
        attention_norm=norm(modules.attention_norm),
        up_proj=up_proj,
        activation=activation_named(architecture.activation(checkpoint.config)),
        down_proj=_optional_map(modules.down_proj),
        feed_forward_norm=norm(modules.feed_forward_norm),
        pre_norm=architecture.pre_norm,
        final_norm=norm(final),
        gate=gate,
        attention_output_norm=norm(modules.attention_output_norm),
        feed_forward_output_norm=norm(modules.feed_forward_output_norm),
        experts=None if modules.routed is None else _experts(checkpoint, modules.routed),
        residual_multiplier=architecture.residual_multiplier(checkpoint.config),
        parallel=modules.parallel,
    )


def _experts(checkpoint: Checkpoint, routed: RoutedModules) -> Experts:
    architecture, config, experts = checkpoint.architecture, checkpoint.config, routed.experts
    maps, biases = ("gate_up_proj", "down_proj"), ("gate_up_proj_bias", "down_proj_bias")
    gate_up, down = (parameter_of(experts, name) for name in maps)
    return Experts(
        router=LinearMap(parameter_of(routed.router, "weight").T, getattr(routed.router, "bias", None)),
        gate_up_proj=gate_up.mT if experts.is_transposed else gate_up,
        down_proj=down.mT if experts.is_transposed else down,
        gated=partial(architecture.gated, config),
        biases=(parameter_of(experts, biases[0]), parameter_of(experts, biases[1])) if experts.has_bias else None,
        interleaved=not experts.is_concatenated,
        n_taken=architecture.n_taken(config),
        weights=partial(architecture.expert_weights, config),
        choice=partial(architecture.expert_choice, config, routed.router),
        shared_gate=_optional_map(routed.shared_gate),
    )


def _gate_and_expand(modules: LayerModules) -> tuple[LinearMap | None, LinearMap | None]:
    """The maps to d_ff; that of the gate may be the first half of one module."""
    up_proj = _optional_map(modules.up_proj)
    if up_proj is None or modules.gate is not modules.up_proj:
        return _optional_map(modules.gate), up_proj
    gate, expanded = up_proj.weight.chunk(2, dim=1)
    biases = (None, None) if up_proj.bias is None else up_proj.bias.chunk(2)
    return replace(up_proj, weight=gate, bias=biases[0]), replace(up_proj, weight=expanded, bias=biases[1])


def _optional_map(module: nn.Module | None) -> LinearMap | None:
    return None if module is None else _linear_map(module)


def _linear_map(module: Any) -> LinearMap:
    """Read an nn.Linear, whose weight is [d_out, d_in], or transformers' Conv1D, [d_in, d_out]."""
    weight = parameter_of(module, "weight")
    weight = weight.T if isinstance(module, nn.Linear) else weight
    return LinearMap(weight, parameter_of(module, "bias"), outlier_threshold(module))


def projection_of(checkpoint: Checkpoint) -> LinearMap | None:
    """The linear map from the normed embeddings to d_model; None if they are as wide."""
    project = checkpoint.architecture.embeddings(checkpoint.model).project
    return _optional_map(project)


def embedded(checkpoint: Checkpoint, tokens: Tokens) -> Tensor:
    """Input of the first layer, [n, d_model]: word + position (+ segment), then norm and projection."""
    first, *others = embeddings_of(checkpoint, tokens).values()
    x, norm = sum(others, start=first), checkpoint.architecture.embeddings(checkpoint.model).norm
    x = x if norm is None else checkpoint.norm(norm)(x)
    project = projection_of(checkpoint)
    return x if project is None else project(x)


def recompute_layer(
    x: Tensor, parameters: LayerParameters, allowed: Tensor, routing: tuple[Tensor, Tensor] | None = None
) -> dict[str, Tensor]:
    """Compute every step of a layer by name, in order, from the residual stream x, [n, d_model].

    ``allowed``: boolean [n, n], True = may attend. ``routing``: of a layer with experts the model's own logits
    [n, n_experts], and the experts that each token takes [n, n_taken]: rounding decides between two that are alike.

    Returns:
        ``query``, ``key``, ``value`` and ``concatenated`` [n, heads * d_head], ``split`` [3, n_heads, n, d_head]
        (values narrower than keys end in zeros), ``head_norm`` and ``rotated`` [2, n_heads, n, d_head], those of
        :data:`attention.BY_POSITION`, ``scores``, ``capped`` and ``pattern`` [n_heads, n, n], ``mask`` [n, n],
        ``weighted`` [n_heads, n, d_head], ``gate``, ``expanded``, ``activated`` and ``gated`` [n, d_ff], ``router`` and
        ``experts`` (weights; 0 of those not taken) [n, n_experts], ``shared_gate`` [n, 1]; all others are [n, d_model].
        What this layer lacks is left out (parallel: ``attention_residual``): ``feed_forward_residual`` is there if a
        norm follows it, ``final_norm`` after a model's last layer.
    """
    steps: dict[str, Tensor] = {}

    def normed(norm: str, of: Tensor, name: str = "") -> Tensor:
        """Apply a norm that the layer may have, which is a step of its own."""
        parameter: Norm | None = getattr(parameters, norm)
        if parameter is not None:
            steps[name or norm] = parameter(of)
        return of if parameter is None else steps[name or norm]

    attended = normed("attention_norm", x) if parameters.pre_norm else x
    _attend(attended, parameters.heads, allowed, steps)
    middle = x + normed("attention_output_norm", steps["attention_output"]) * parameters.residual_multiplier
    if parameters.parallel:
        entered = attended if parameters.feed_forward_norm is None else normed("feed_forward_norm", x)
    else:
        steps["attention_residual"] = middle
        entered = normed("feed_forward_norm" if parameters.pre_norm else "attention_norm", middle)
    _feed_forward(entered, parameters, routing, steps)
    added = normed("feed_forward_output_norm", steps["feed_forward_output"]) * parameters.residual_multiplier
    if parameters.pre_norm:
        steps["output"] = middle + added
    else:
        steps["feed_forward_residual"] = entered + added
        normed("feed_forward_norm", steps["feed_forward_residual"], "output")
    normed("final_norm", steps["output"])
    return steps


def _attend(x: Tensor, heads: HeadParameters, allowed: Tensor, steps: dict[str, Tensor]) -> None:
    """Add the steps of attention, by :mod:`attnviz.reference.attention`."""
    made: dict[str, tuple[Tensor, Tensor]] = {}
    query, key = attention.queries_and_keys(x, x, heads, made)
    split = (*made.pop("projected"), attention.project(x, heads.value))
    for name, part in zip(("query", "key", "value"), split, strict=True):
        steps[name] = part.transpose(0, 1).flatten(1)
    for name, parts in (("split", split), *made.items()):
        width = max(part.shape[-1] for part in parts)
        wide = (torch.nn.functional.pad(part, (0, width - part.shape[-1])) for part in parts)
        steps[name] = torch.stack([attention.repeat_kv(part, heads.n_heads) for part in wide])
    steps.update(attention.added_by_position(query, key, heads))
    scores = steps["scores"] = attention.scores_of(query, key, heads)
    if heads.cap is not None:
        steps["capped"] = attention.softcap(scores, heads.cap)
    steps["mask"] = allowed
    pattern = steps["pattern"] = torch.empty_like(scores, dtype=x.dtype)
    for row in range(0, len(x), _ROWS):  # so that no copy of all scores is made
        rows = slice(row, row + _ROWS)
        pattern[:, rows] = attention.pattern_of_scores(scores[:, rows].clone(), heads, allowed[rows])
    steps["weighted"] = torch.matmul(pattern, attention.repeat_kv(split[2], heads.n_heads))
    steps["concatenated"] = steps["weighted"].transpose(0, 1).flatten(1)
    steps["attention_output"] = attention.joined_output(steps["weighted"], heads)


def _feed_forward(
    x: Tensor, parameters: LayerParameters, routing: tuple[Tensor, Tensor] | None, steps: dict[str, Tensor]
) -> None:
    """Add the steps of the network; with a gate, the activated gate multiplies the other map's output."""
    experts, name = parameters.experts, "feed_forward_output" if parameters.experts is None else "shared_output"
    if parameters.gate is not None:
        steps["gate"] = parameters.gate(x)
    if parameters.up_proj is not None and parameters.down_proj is not None:
        steps["expanded"] = parameters.up_proj(x)
        passed = steps["activated"] = parameters.activation(steps["expanded" if parameters.gate is None else "gate"])
        if parameters.gate is not None:
            passed = steps["gated"] = passed * steps["expanded"]
        steps[name] = parameters.down_proj(passed)
    if experts is not None and routing is not None:
        steps["router"] = experts.router(x)
        (logits, taken), weights = routing, experts.weights(*routing)
        steps["experts"] = weights.new_zeros(logits.shape).scatter(-1, taken, weights)
        output = _weighted_experts(x, steps["experts"], taken, parameters.activation, experts)
        if "shared_output" in steps:
            shared, steps["experts_output"] = steps["shared_output"], output
            if experts.shared_gate is not None:
                share = steps["shared_gate"] = experts.shared_gate(x)
                shared = share.sigmoid() * shared
            output = output + shared
        steps["feed_forward_output"] = output


def _weighted_experts(x: Tensor, weights: Tensor, taken: Tensor, activation: Activation, experts: Experts) -> Tensor:
    """The weighted sum [n, d_model] of what the experts make of the tokens that take them."""
    total = torch.zeros_like(upcast(x))
    for expert in sorted(set(taken.flatten().tolist())):
        rows = (taken == expert).any(-1)
        first, second = (None, None) if experts.biases is None else (bias[expert] for bias in experts.biases)
        both = LinearMap(experts.gate_up_proj[expert].T, first)(x[rows])
        gate, up = (both[..., ::2], both[..., 1::2]) if experts.interleaved else both.chunk(2, dim=-1)
        output = LinearMap(experts.down_proj[expert].T, second)(experts.gated(activation, gate, up))
        total[rows] += output * weights[rows, expert, None]
    return total.to(x.dtype)
