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
    mixture        of experts (Shazeer et al. 2017): what the model's own module gives, not recomputed

"Post-norm" and "pre-norm" after Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture". The
variance is that of the d_model numbers themselves (divided by d_model, not d_model - 1). Norms and activations are
computed in float32 at least and rounded once, as torch's own kernels do.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnviz.errors import ArchitectureError
from attnviz.inputs.prompt import Prompt
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import input_rounding
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Norm, upcast
from attnviz.run.stream import embeddings_of

_ROWS = 128  # queries per chunk of the softmax


@dataclass(frozen=True)
class LinearMap:
    """x W + b."""

    weight: Tensor  # [d_in, d_out]
    bias: Tensor | None  # [d_out]
    rounding: Callable[[Tensor], Tensor] | None = None  # as of :func:`attention.linear`

    def __call__(self, x: Tensor) -> Tensor:
        """From [.., d_in] to [.., d_out]."""
        product = attention.linear(x, self.weight.T, None, self.rounding)
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


# Reproduced activations, by name in the config. GELU: Hendrycks & Gimpel 2016; Φ is the normal distribution.
ACTIVATIONS = {
    name: Activation(name, formula, function)
    for names, formula, function in (
        ("gelu gelu_python", "x Φ(x)", functional.gelu),
        (
            "gelu_new gelu_pytorch_tanh gelu_python_tanh gelu_accurate gelu_fast",
            "x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))",
            partial(functional.gelu, approximate="tanh"),
        ),
        ("quick_gelu", "x σ(1.702 x)", lambda x: x * torch.sigmoid(1.702 * x)),
        ("relu", "max(x, 0)", torch.relu),
        ("relu2", "max(x, 0)²", lambda x: torch.relu(x).square()),
        ("silu swish", "x σ(x)", functional.silu),
        ("tanh", "tanh(x)", torch.tanh),
        ("linear", "x", lambda x: x),
    )
    for name in names.split()
}


_NORMS = ("attention_norm", "feed_forward_norm", "attention_output_norm", "feed_forward_output_norm")


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer; norms stand before attention and network (pre-norm) or after residuals."""

    heads: HeadParameters
    attention_norm: Norm | None
    up_proj: LinearMap | None  # d_model to d_ff; None of a mixture of experts, as is down_proj
    activation: Activation
    down_proj: LinearMap | None  # d_ff to d_model
    feed_forward_norm: Norm | None
    pre_norm: bool
    final_norm: Norm | None  # of the model, after its last layer
    gate: LinearMap | None  # d_model to d_ff, in a gated network
    attention_output_norm: Norm | None  # before the residual is added (Gemma)
    feed_forward_output_norm: Norm | None
    residual_multiplier: float  # of what is added to the residual stream
    parallel: bool  # whether the network reads the layer's input, too


def layer_parameters(checkpoint: Checkpoint, layer: int) -> LayerParameters:
    """Read the parameters of a layer, and its config; ArchitectureError for an unknown activation."""
    architecture, model, modules = checkpoint.architecture, checkpoint.model, checkpoint.modules[layer]
    name: Any = architecture.activation(checkpoint.config)
    activation = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if activation is None:
        wanted = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        raise ArchitectureError(
            f"this model's feed-forward network has the activation {wanted!r}, which the reference does not reproduce; "
            f"expected one of: {', '.join(ACTIVATIONS)}."
        )
    maps = (modules.gate, modules.up_proj, modules.down_proj) if modules.routed is None else (None, None, None)
    gate, up_proj, down_proj = map(_linear_map, maps)
    if up_proj is not None and modules.gate is modules.up_proj:  # the first half of one module
        halves = up_proj.weight.chunk(2, dim=1)
        biases = (None, None) if up_proj.bias is None else up_proj.bias.chunk(2)
        gate, up_proj = (replace(up_proj, weight=half, bias=bias) for half, bias in zip(halves, biases, strict=True))
    heads = architecture.parameters(model, layer)
    if checkpoint.attention != "eager" and checkpoint.dtype in (torch.bfloat16, torch.float16):
        heads = replace(heads, upcast=True)  # others do not round scores to the dtype
    norms = {name: getattr(modules, name) for name in _NORMS}
    norms["final_norm"] = architecture.final_norm(model) if layer == checkpoint.n_layers - 1 else None
    return LayerParameters(
        heads=heads,
        gate=gate,
        up_proj=up_proj,
        activation=activation,
        down_proj=down_proj,
        pre_norm=architecture.pre_norm,
        residual_multiplier=architecture.residual_multiplier(checkpoint.config),
        parallel=modules.parallel,
        **{name: None if module is None else checkpoint.norm(module) for name, module in norms.items()},
    )


def _linear_map(module: Any) -> LinearMap | None:
    """Read an nn.Linear, whose weight is [d_out, d_in], or transformers' Conv1D, [d_in, d_out]."""
    if module is None:
        return None
    weight = parameter_of(module, "weight")
    weight = weight.T if isinstance(module, nn.Linear) else weight
    return LinearMap(weight, parameter_of(module, "bias"), input_rounding(module))


def embedded(checkpoint: Checkpoint, tokens: Prompt) -> Tensor:
    """Input of the first layer, [n, d_model]: word + position (+ segment), then norm and projection."""
    first, *others = embeddings_of(checkpoint, tokens).values()
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    x = sum(others, start=first)
    x = x if tables.norm is None else checkpoint.norm(tables.norm)(x)
    project = _linear_map(tables.project)
    return x if project is None else project(x)


def recompute_layer(
    x: Tensor, parameters: LayerParameters, allowed: Tensor, mixture: Tensor | None = None
) -> dict[str, Tensor]:
    """Compute every step of a layer by name, in order, from the residual stream x, [n, d_model].

    ``allowed``: boolean [n, n], True = may attend. ``mixture``: what the model's own experts give, [n, d_model], where
    the layer has a mixture of them; it is the step ``feed_forward_output`` as it is.

    Returns:
        ``query``, ``key``, ``value`` and ``concatenated`` [n, heads * d_head], ``split`` [3, n_heads, n, d_head]
        (values narrower than keys end in zeros), ``head_norm`` and ``rotated`` [2, n_heads, n, d_head], those of
        :data:`attention.BY_POSITION`, ``scores``, ``capped`` and ``pattern`` [n_heads, n, n], ``mask`` [n, n],
        ``weighted`` [n_heads, n, d_head], ``gate``, ``expanded``, ``activated`` and ``gated`` [n, d_ff]; all others are
        [n, d_model]. What this layer lacks is left out (parallel: ``attention_residual``): ``feed_forward_residual`` is
        there if a norm follows it, ``final_norm`` after a model's last layer.
    """
    steps: dict[str, Tensor] = {}

    def normed(norm: str, of: Tensor, name: str = "") -> Tensor:
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
    if parameters.up_proj is None or parameters.down_proj is None:
        assert mixture is not None  # a layer without these maps has one
        steps["feed_forward_output"] = mixture
    else:
        if parameters.gate is not None:
            steps["gate"] = parameters.gate(entered)
        steps["expanded"] = parameters.up_proj(entered)
        passed = steps["activated"] = parameters.activation(steps["expanded" if parameters.gate is None else "gate"])
        if parameters.gate is not None:
            passed = steps["gated"] = passed * steps["expanded"]
        steps["feed_forward_output"] = parameters.down_proj(passed)
    added = normed("feed_forward_output_norm", steps["feed_forward_output"]) * parameters.residual_multiplier
    if parameters.pre_norm:
        steps["output"] = middle + added
    else:
        steps["feed_forward_residual"] = entered + added
        normed("feed_forward_norm", steps["feed_forward_residual"], "output")
    normed("final_norm", steps["output"])
    return steps


def _attend(x: Tensor, heads: HeadParameters, allowed: Tensor, steps: dict[str, Tensor]) -> None:
    projected: dict[str, tuple[Tensor, Tensor]] = {}
    query, key = attention.queries_and_keys(x, x, heads, projected)
    split = (*projected.pop("projected"), attention.project(x, heads.value))
    for name, part in zip(("query", "key", "value"), split, strict=True):
        steps[name] = part.transpose(0, 1).flatten(1)
    for name, parts in (("split", split), *projected.items()):
        width = max(part.shape[-1] for part in parts)
        wide = (functional.pad(part, (0, width - part.shape[-1])) for part in parts)
        steps[name] = torch.stack([attention.repeat_kv(part, heads.n_heads) for part in wide])
    steps.update(attention.added_by_position(query, key, heads))
    scores = steps["scores"] = attention.scores_of(query, key, heads)
    if heads.cap is not None:
        steps["capped"] = attention.softcap(scores, heads.cap)
    steps["mask"] = allowed
    pattern = steps["pattern"] = torch.empty_like(scores, dtype=x.dtype)
    for first in range(0, len(x), _ROWS):  # so that no copy of all scores is made
        rows = slice(first, first + _ROWS)
        pattern[:, rows] = attention.pattern_of_scores(scores[:, rows].clone(), heads, allowed[rows])
    steps["weighted"] = torch.matmul(pattern, attention.repeat_kv(split[2], heads.n_heads))
    steps["concatenated"] = steps["weighted"].transpose(0, 1).flatten(1)
    steps["attention_output"] = attention.joined_output(steps["weighted"], heads)
