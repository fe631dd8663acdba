"""The steps of a layer, recomputed end to end, each compared with the running model.

One recorded pass gives the model's own steps; :mod:`attnviz.reference.layer` has the mathematics.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import ArchitectureError, UsageError, VerificationError
from attnviz.inputs.prompt import Prompt
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import Architecture, LayerModules, heads_apart
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import input_rounding
from attnviz.reference.attention import BY_POSITION, allowed_positions, repeat_kv, upcast
from attnviz.reference.layer import ACTIVATIONS, LayerParameters, LinearMap, recompute_layer
from attnviz.run.contributions import check_total, without_gradients
from attnviz.run.finite import refuse_not_finite
from attnviz.run.record import Observer, Rows, random_values, record_attention
from attnviz.run.sites import Site, recording_all
from attnviz.run.stream import embeddings_of

_NORMS = ("attention_norm", "feed_forward_norm", "attention_output_norm", "feed_forward_output_norm")

# Tolerances of an activation on the model's own input, by dtype; for others that of outputs.
_ACTIVATION_TOLERANCES = {torch.float32: 1e-6}

_AXES = {2: ("token", "dimension"), 3: ("head", "query", "key"), 4: ("part", "head", "token", "dimension")}
_ON_RANDOM_VALUES = " on random values"

MOST_KEYS = 32  # keys of a followed row that have their vectors, those of largest weight

# By step where it is in the model, in words, and the model's own tensor, without the batch axis.
Shown = dict[str, tuple[str, Tensor]]


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


def probes_of(checkpoint: Checkpoint, layer: int) -> dict[str, Site]:
    """The sites of a layer's steps, in order; names are joined by a + where one module gives several side by side.

    A layer's output is read where it is used: at the input of the next layer, or as the model's own last hidden
    state (after GPT-2's final norm: at the input of that).
    """
    architecture, model, modules = checkpoint.architecture, checkpoint.model, checkpoint.modules
    of, pre = modules[layer], architecture.pre_norm
    maps = {1: ["query+key+value"], 2: ["query"], 3: ["query", "key", "value"]}[len(of.projections)]
    probed: list[tuple[str, nn.Module | None, str]] = [
        ("input", of.block, "input"),
        *((name, module, "output") for name, module in zip(maps, of.projections, strict=False)),
        *((f"head_norm.{number}", module, "output") for number, module in enumerate(of.head_norms)),
        ("concatenated", of.o_proj, "input"),
        ("attention_output", of.output, "output"),
        ("attention_output_norm", of.attention_output_norm, "output"),
        ("attention_residual", None if of.parallel else of.sum_input(pre), "input"),
        ("attention_norm", of.attention_norm, "output"),
    ]
    if of.routed is None:
        if of.gate is of.up_proj:
            probed.append(("gate+expanded", of.gate, "output"))
        else:
            probed += [("gate", of.gate, "output"), ("expanded", of.up_proj, "output")]
        probed.append(("activated", of.activation, "output"))
        probed.append(("activated" if of.activation is None else "gated", of.down_proj, "input"))
    probed.append(("feed_forward_output", of.network_output, "output"))
    probed.append(("feed_forward_output_norm", of.feed_forward_output_norm, "output"))
    if pre:
        probed.append(("feed_forward_norm", of.feed_forward_norm, "output"))
    else:
        probed.append(("feed_forward_residual", of.feed_forward_norm, "input"))
    probes = {name: Site(module, side, of) for name, module, side in probed if module is not None}
    final, mapped = architecture.final_norm(model), architecture.output_map(model)
    if layer < len(modules) - 1:
        probes["output"] = Site(modules[layer + 1].block, "input", modules[layer + 1])
    elif final is not None:
        probes |= {"output": Site(final, "input"), "final_norm": Site(model, "output")}
    else:
        probes["output"] = Site(model, "output") if mapped is None else Site(mapped, "input")
    return probes


def _path_of(checkpoint: Checkpoint, module: nn.Module) -> str:
    path = next(path for path, other in checkpoint.model.named_modules() if other is module)
    return path or "the model"


def _shown(checkpoint: Checkpoint, key: tuple[int, str], site: Site, passed: list[Any]) -> tuple[str, Tensor]:
    """The place of a step in the model, in words, and the model's own tensor, without the batch axis."""
    layer, step = key
    place = f"{site.side} of {_path_of(checkpoint, site.module)}"
    if not passed:
        raise VerificationError(f"layer {layer} of the model ran without {place}; nothing can be verified.")
    for value in passed:
        if not isinstance(value, Tensor):
            raise VerificationError(f"layer {layer}: expected a tensor as {place}, found {type(value).__name__}.")
    if step in ("query", "key"):
        passed = passed[:1]  # DeBERTa's maps read its relative positions after the text
    # a feed-forward network may run in chunks of tokens, and OPT's sees no batch
    return place, torch.cat([value if value.ndim > 2 else value[None] for value in passed], dim=1)[0]


class _ShownPattern(Observer):
    """Keeps what each of some layers shows of its pattern: its weights, or what it makes of random values."""

    probes = True

    def __init__(self, layers: Sequence[int]) -> None:
        self.of_layer: dict[int, Rows] = {}
        self._layers = layers

    def rows(self, layer: int, rows: Rows) -> None:
        """Keep the chunk: with unlimited memory it is the whole layer."""
        if layer in self._layers:
            self.of_layer[layer] = rows


@dataclass(frozen=True)
class StageCheck:
    """Error of a recomputed step."""

    place: str  # in the model, where its own numbers were taken
    error: float  # largest absolute difference from them, divided by scale
    scale: float  # the model's largest absolute value, or 1 for weights of attention
    tolerance: float


@dataclass(frozen=True)
class Stage:
    """One recomputed step of a layer, named as in :func:`attnviz.reference.layer.recompute_layer`."""

    name: str
    tensor: Tensor  # on the model's device and in its dtype, boolean for ``mask``
    check: StageCheck | None  # None if the model shows nothing to compare with

    def __repr__(self) -> str:
        compared = "not compared" if self.check is None else f"the model's own within {self.check.error:.1e}"
        return f"<Stage {self.name} {list(self.shape)}: {compared}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def wide(self) -> Tensor:
        """The tensor on the CPU, in float32 at least."""
        return upcast(self.tensor).cpu()


@dataclass(frozen=True, eq=False)
class FollowedRow:
    """The row of a token in a head: ``weight = exponential / total``, ``output`` = sum over keys of weight · value.

    ``keys`` are the entries of the document, an entry a key: ``product`` of query and key, what is added to it by
    position, ``score``, ``capped`` (None without a cap), ``allowed``, ``exponential`` of the score less the largest (0
    of masked keys), ``weight``; of the :data:`MOST_KEYS` of largest weight also the vectors ``key``, ``value`` and
    ``weighted_value``, [d_head] each.
    """

    query: Tensor  # [d_head]
    keys: list[dict[str, Any]]
    scale: float  # what products are multiplied by
    largest: float  # score that enters the softmax
    sink: float | None  # exponential of a learned sink, which is no token; None without
    total: float  # sum of all exponentials
    output: Tensor  # [d_head]


class VerifiedStages(dict[str, Stage]):
    """The steps of one layer by name, in order; it exists only if every step that the model shows is reproduced."""

    def __init__(
        self, checkpoint: Checkpoint, tokens: Prompt, layer: int, parameters: LayerParameters, stages: Iterable[Stage]
    ) -> None:
        super().__init__((stage.name, stage) for stage in stages)
        self.checkpoint, self.tokens, self.layer, self.parameters = checkpoint, tokens, layer, parameters

    def __missing__(self, name: object) -> Stage:
        raise UsageError(f"layer {self.layer} has no step {name!r}: expected one of {', '.join(self)}.")

    @property
    def checks(self) -> dict[str, StageCheck]:
        return {name: stage.check for name, stage in self.items() if stage.check is not None}

    @property
    def norm_order(self) -> str:
        """``pre-norm`` (GPT-2; GPT-NeoX ``in parallel``), ``post-norm`` (BERT) or ``reordered norm`` (OLMo 2)."""
        if not self.parameters.pre_norm:
            return "post-norm"
        order = "pre-norm" if "attention_norm" in self else "reordered norm"
        return f"{order}, in parallel" if self.parameters.parallel else order

    @property
    def experts(self) -> int:
        """Of a mixture of experts their number; its feed-forward network is one step, the model's own output."""
        routed: Any = self.checkpoint.modules[self.layer].routed
        return 0 if routed is None else len(routed.experts.down_proj)

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward network; of a mixture, of each expert."""
        if not self.experts:
            return self["expanded"].shape[-1]
        routed: Any = self.checkpoint.modules[self.layer].routed
        return int(routed.experts.down_proj[0].numel() // self.checkpoint.d_model)

    @property
    def queries_keys_values(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as they enter the scores (normed, scaled, turned), and values, [n_heads, n, d_head] each."""
        heads = self.parameters.heads
        *_, last = (name for name in self if name in ("split", "head_norm", "rotated"))
        query, key = self[last].wide[:2]
        value = self["split"].wide[2, :, :, : heads.output_weight.shape[1]]
        return query if "rotated" in self else query * heads.query_scale, key, value

    def row(self, head: int, token: int) -> FollowedRow:
        """The row of a token in a head: its scores, weights and values, key by key."""
        parameters = self.parameters.heads
        query, key, value = (of_heads[head] for of_heads in self.queries_keys_values)
        of_row = {name: stage.wide[head, token] for name, stage in self.items() if stage.tensor.ndim == 3}
        allowed, weight = self["mask"].tensor[token].cpu(), of_row["pattern"]
        entering = of_row.get("capped", of_row["scores"])
        sinks = parameters.sinks
        sink = torch.empty(0) if sinks is None else upcast(sinks.detach()).cpu()[head : head + 1]
        largest = torch.cat([entering[allowed], sink]).max()
        exponential, of_sink = torch.where(allowed, (entering - largest).exp(), 0), (sink - largest).exp().sum()
        columns: dict[str, Tensor | None] = {
            "product": key @ query[token],
            "score": of_row["scores"],
            "allowed": allowed,
            "exponential": exponential,
            **{name: of_row[name] for name in BY_POSITION if name in self},
            "capped": of_row.get("capped"),
            "weight": weight,
        }
        entries: list[dict[str, Any]] = [
            {"position": place, "token": label}
            | {name: None if numbers is None else numbers[place].item() for name, numbers in columns.items()}
            for place, label in enumerate(self.tokens.labels)
        ]
        for place in weight.argsort(descending=True, stable=True)[:MOST_KEYS].tolist():
            entries[place] |= {"key": key[place].tolist(), "value": value[place].tolist()}
            entries[place]["weighted_value"] = (weight[place] * value[place]).tolist()
        return FollowedRow(
            query=query[token],
            keys=entries,
            scale=float(parameters.scale),
            largest=float(largest),
            sink=None if sinks is None else float(of_sink),
            total=float(exponential.sum() + of_sink),
            output=of_row["weighted"],
        )


def verify_stages(checkpoint: Checkpoint, tokens: Prompt, layers: Sequence[int]) -> Iterator[VerifiedStages]:
    """Run the model once; recompute these layers, compare every step, and yield each layer.

    The first layer is recomputed from the embedding tables, others from the output of the layer before; within a
    layer every step follows from the recomputed step before, so that the last one checks them all. Of a mixture of
    experts the input is compared; what it gives is the model's own.

    Raises:
        ArchitectureError: the model has an activation that is not reproduced.
        VerificationError: a step differs by more than the tolerance of the dtype; the message names the first. Or a
            module of a layer did not run, or returned something unexpected.
    """
    for layer in layers:
        layer_parameters(checkpoint, layer)  # refuse what is not reproduced before the model runs
    sites = {(layer, step): site for layer in layers for step, site in probes_of(checkpoint, layer).items()}
    patterns = _ShownPattern(layers)
    with recording_all(sites) as passed:
        try:
            record_attention(checkpoint, tokens.model_inputs(checkpoint.device), patterns, torch.inf)
        except VerificationError:
            for (layer, step), values in passed.items():  # the first step that is not finite is named
                for value in values:
                    refuse_not_finite(value, f"{step.replace('_', ' ')} of layer {layer}")
            raise
    for layer in layers:
        shown = {
            key[1]: _shown(checkpoint, key, site, passed.pop(key)) for key, site in sites.items() if key[0] == layer
        }
        with without_gradients(checkpoint.device):
            stages = _verified(checkpoint, tokens, layer, shown, patterns.of_layer.pop(layer))
        yield stages


def _verified(checkpoint: Checkpoint, tokens: Prompt, layer: int, shown: Shown, rows: Rows) -> VerifiedStages:
    parameters, modules = layer_parameters(checkpoint, layer), checkpoint.modules[layer]
    every = torch.ones(1, len(tokens), device=checkpoint.device)
    allowed = allowed_positions(every, parameters.heads.causal, parameters.heads.window)[0, 0]
    x = shown.pop("input")[1] if layer else embedded(checkpoint, tokens)
    mixture = None if modules.routed is None else shown.pop("feed_forward_output")[1]
    steps = {"input": x, **recompute_layer(x, parameters, allowed, mixture)}
    shown = _one_by_one(shown, steps, modules, checkpoint.architecture)
    if unused := set(shown) - set(steps):
        raise VerificationError(f"layer {layer}: the model shows {unused}, which nothing was compared to.")
    where = _path_of(checkpoint, modules.attention)
    compared = dict(steps)
    if rows.weights is None:
        assert rows.probe is not None  # the observer probes
        shown["pattern"] = f"output of {where}{_ON_RANDOM_VALUES}", rows.probe[0].transpose(0, 1)
        random = upcast(random_values(rows.probe[0, :, 0]))
        compared["pattern"] = torch.matmul(upcast(steps["pattern"]), random)
    else:
        shown["pattern"] = f"pattern of {where}", rows.weights[0]
    checks = {
        name: _check(name, tensor, shown[name], layer, checkpoint, tokens)
        for name, tensor in compared.items()
        if name in shown
    }
    if "activated" in shown:  # on the model's own input: kinds of GELU differ by 5e-4, which rounding would hide
        before, (place, after) = shown["gate" if "gate" in shown else "expanded"][1], shown["activated"]
        difference = float((upcast(parameters.activation(before)) - upcast(after)).abs().max())
        tolerance = _ACTIVATION_TOLERANCES.get(checkpoint.dtype, checkpoint.tolerance.output)
        scale = float(after.abs().max())
        if not difference <= tolerance * scale:
            raise VerificationError(
                f"the activation of layer {layer} ({place}) is not {parameters.activation.name}, which the config "
                f"names: values differ by up to {difference:.3g} on the same input (tolerance {tolerance:g} of the "
                f"largest, {scale:.6g}). Nothing was written."
            )
    stages = [Stage(name, tensor, checks.get(name)) for name, tensor in steps.items()]
    return VerifiedStages(checkpoint, tokens, layer, parameters, stages)


def _one_by_one(shown: Shown, steps: dict[str, Tensor], of: LayerModules, architecture: Architecture) -> Shown:
    """The model's tensors by recomputed step: joined tensors split, both head norms stacked."""
    n_heads = len(steps["scores"])
    apart: Shown = {}
    for joined, (place, tensor) in shown.items():
        names = joined.split("+")
        if len(names) == 1:
            apart[joined] = place, tensor
            continue
        sizes = [steps[name].shape[-1] for name in names]
        if sum(sizes) != tensor.shape[-1]:
            raise VerificationError(f"{place} is {tensor.shape[-1]} wide; expected {' + '.join(map(str, sizes))}.")
        in_order = (
            heads_apart(tensor.T, n_heads, n_heads * sizes[-1] // sizes[0]).T if architecture.fused_by_head else tensor
        )
        parts = torch.split(in_order, sizes, dim=-1)
        apart |= {name: (place, part) for name, part in zip(names, parts, strict=True)}
    if of.head_norms:
        both = [apart.pop(f"head_norm.{number}") for number in range(2)]
        n = len(steps["input"])
        if any(tensor.shape[of.heads_first] != n for _, tensor in both):
            raise architecture.misfit("heads_first", f"try {not of.heads_first}")
        shape = (n, -1, steps["split"].shape[-1])  # of all heads together they are flat
        by_head = [tensor if of.heads_first else tensor.reshape(shape).transpose(0, 1) for _, tensor in both]
        apart["head_norm"] = both[0][0], torch.stack([repeat_kv(part, n_heads) for part in by_head])
    return apart


def _check(
    name: str, tensor: Tensor, shown: tuple[str, Tensor], layer: int, checkpoint: Checkpoint, tokens: Prompt
) -> StageCheck:
    (place, model_tensor), tolerance = shown, checkpoint.tolerance
    where = f"{name.replace('_', ' ')} of layer {layer} ({place})"
    if tensor.shape != model_tensor.shape:
        shapes = f"the reference gives the shape {list(tensor.shape)}, the model {list(model_tensor.shape)}"
        raise VerificationError(f"{where}: {shapes}.")
    refuse_not_finite(model_tensor, where)
    axes = ("head", "query", "dimension") if place.endswith(_ON_RANDOM_VALUES) else _AXES[tensor.ndim]

    def place_of(worst: int) -> str:
        indices = torch.unravel_index(torch.tensor(worst), tensor.shape)
        named = [
            f"{axis} {index}" + ("" if axis in ("part", "head", "dimension") else f" ({tokens.labels[index]!r})")
            for axis, index in zip(axes, map(int, indices), strict=True)
        ]
        return f"at {', '.join(named)}"

    what, of_pattern = f"the recomputed layer does not reproduce the model, first at {where}", name == "pattern"
    error, scale = check_total(checkpoint, upcast(tensor), upcast(model_tensor), what, place_of, of_pattern)
    return StageCheck(place, error, scale, tolerance.pattern if of_pattern else tolerance.output)
