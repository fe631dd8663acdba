"""The residual stream of one text as a sum over everything that wrote into it.

The input of an attention layer, and the final state, are sums of embeddings, outputs of heads, feed-forward networks
and biases, once each norm on the way is held at the scale that it has in the model (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"): (x - mean of x) / s * weight + bias, a linear map divided by one number a
position. So a map W [d_model, d] of this input reads from what was written early in the model through one matrix
[d_model, d], and from a head through W_O of that head and this matrix: nothing of n × parts × d_model is ever made.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.prompt import Prompt
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules, first_of, position_rows
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.offloading import parameter_of
from attnviz.reference import attention
from attnviz.reference.attention import Norm, Projection, RMSNorm, normed_heads, of_all_heads, upcast
from attnviz.reference.positions import apply_rotary
from attnviz.run.contributions import check_total, layer_contributions, why_no_logits
from attnviz.run.edit import run_model, running
from attnviz.run.sites import NORMS, WRITERS, Site, sites_of, taps
from attnviz.run.verify import VerifiedAttention

SIDES = ("query", "key")

# What wrote a part: a head, or a name with its layer (None for what belongs to no layer).
Source = HeadId | tuple[str, int | None]


def source_name(source: Source) -> str:
    """``L2H8``, ``feed-forward L2``, ``word embedding``."""
    if isinstance(source, HeadId):
        return str(source)
    name, layer = source
    return name if layer is None else f"{name} {HeadId(layer, 0).layer_name}"


def why_no_effects(checkpoint: Checkpoint) -> str:
    """Sentence on why no logits of this model can be divided into direct effects, or ''."""
    why = why_no_logits(checkpoint)
    return why and f"Direct effects are not given: {why}."


@dataclass(frozen=True, eq=False)
class Term:
    """What a map reads of some sources at every position: vectors, a matrix for each source, and a factor."""

    sources: tuple[Source, ...]
    vectors: Tensor  # [n, n_sources, d_in], in the model's dtype
    weight: Tensor  # [n_sources, d_in, d_out], or [n_sources, d_in, d_model] with ``then``
    scale: Tensor  # [n, 1], or [n, d_out]
    then: Tensor | None = None  # [d_model, d_out], where it is as wide as the stream: their product is never made

    def at(self, positions: Tensor) -> Tensor:
        """The parts at some positions, [n_sources, n_positions, d_out]."""
        vectors = self.vectors[positions.to(self.vectors.device)].to(self.scale)
        return self._through(torch.einsum("nsi,sio->sno", vectors, self.weight.to(self.scale)), positions)

    def by_key(self, verified: VerifiedAttention, head: HeadId, position: int) -> Tensor:
        """What the part of one of its heads at a position took from each key that it sees, [n_keys, d_out].

        VerificationError if these do not sum to what the model's head weighted its values to.
        """
        number = self.sources.index(head)
        value = layer_contributions(verified, head.layer).weighted_values(head.head, position)
        what = f"what {head} adds for each key does not sum to its output"
        of_head = upcast(self.vectors[position, number])
        check_total(verified.checkpoint, value.sum(0), of_head, what, "in dimension {}".format)
        return self._through(value.to(self.scale) @ self.weight[number].to(self.scale), position)

    def _through(self, read: Tensor, positions: Tensor | int) -> Tensor:
        return (read if self.then is None else read @ self.then) * self.scale[positions]


@dataclass
class Reading:
    """What a linear map reads of the stream, carried back from where it reads to what wrote; with the terms on the way.

    It is a matrix [d_model, d], and a factor, [n, 1] or [n, d].
    """

    weight: Tensor
    scale: Tensor
    terms: list[Term] = field(default_factory=list)

    def before(self, norm: Norm, scale: Tensor, bias: Source) -> None:
        """Read what a norm was given instead of what it gave; it divided by ``scale``, and its bias is a term."""
        self.add_constant(bias, norm.bias)
        if norm.weight is not None:
            norm = replace(norm, weight=norm.weight.to(self.weight.device))
        self.weight, self.scale = norm.read_by(self.weight), self.scale / scale.to(self.scale)

    def times(self, factor: float) -> "Reading":
        """The same of a multiple of what it reads now."""
        return Reading(self.weight * factor, self.scale, self.terms)

    def add(self, source: Source, written: Tensor) -> None:
        """Add what it reads of vectors of one source, [n, d_model]."""
        self.terms.append(Term((source,), written[:, None], self.weight[None], self.scale))

    def add_constant(self, source: Source, vector: Tensor | None) -> None:
        """Add what it reads of a vector that is the same at all positions, [d_model]; nothing of None."""
        if vector is not None:
            self.terms.append(constant_term(source, vector.to(self.weight) @ self.weight, self.scale))


def before_map(linear: Any, weight: Tensor) -> Tensor:
    """What ``weight`` [.., d, d_out] reads of what a linear map was given, but for its bias; None is no map."""
    return weight if linear is None else upcast(parameter_of(linear, "weight")).to(weight).T @ weight


def of_stream(checkpoint: Checkpoint, weight: Tensor) -> Tensor:
    """What ``weight`` [.., d_model, d] of the final states reads of the stream after the last layer.

    The final norm's scale at each position, and its bias, are left out.
    """
    last = checkpoint.final_norm
    read = before_map(checkpoint.output_map, weight)
    return read if last is None else checkpoint.norm(last).read_by(read)


def parts_at(terms: Iterable[Term], positions: Tensor) -> tuple[list[Source], Tensor]:
    """The sources of some terms, each once, and their parts at some positions, [n_sources, n_positions, d_out]."""
    terms = list(terms)
    every = [source for term in terms for source in term.sources]
    parts = [term.at(positions) for term in terms]
    sources = list(dict.fromkeys(every))
    numbers = {source: number for number, source in enumerate(sources)}
    read = torch.cat(parts)
    where = torch.tensor([numbers[source] for source in every], device=read.device)
    return sources, read.new_zeros(len(sources), *read.shape[1:]).index_add_(0, where, read)


@dataclass(frozen=True, eq=False)
class WrittenParts:
    """What modules wrote into the residual stream of one text in one pass, and the scales of the norms it went through.

    ``sites`` are by layer and name, [n, ..]; those of norms are scales, [n, 1].
    """

    checkpoint: Checkpoint
    tokens: Prompt  # those that the stream reads
    sites: dict[tuple[int | None, str], Tensor] = field(default_factory=dict)

    @cached_property
    def modules(self) -> Sequence[LayerModules]:
        """Those of all layers, looked up once."""
        return self.checkpoint.modules

    @cached_property
    def layers(self) -> list[int]:
        """The layers that write into it; of an encoder-decoder it is that of the logits."""
        every = list(self.checkpoint.every_layer)
        return [layer for layer in every if not is_of_source(layer)] or every

    def terms(self, weight: Tensor, layer: int, scale: Tensor) -> list[Term]:
        """What ``weight`` [d_model, d] reads of the attention's input of a layer, times ``scale``, [n, 1] or [n, d]."""
        reading = Reading(weight, scale)
        if self.checkpoint.architecture.pre_norm:
            self._before(reading, layer, "attention_norm")
        return self._below(reading, self.layers.index(layer), embeddings_apart=not self.checkpoint.stacks)

    def final_terms(self) -> list[Term]:
        """What wrote the final state, in float64 on the CPU: a large number that a norm takes out leaves no rounding.

        Embeddings that are normed or projected are one part.
        """
        checkpoint, tables, last = self.checkpoint, self.checkpoint.embeddings, self.checkpoint.final_norm
        n, width = self.sites[None, "final"].shape
        whole = before_map(checkpoint.output_map, torch.eye(width, dtype=torch.float64))
        reading = Reading(whole, whole.new_ones(n, 1))
        if last is not None:
            norm = checkpoint.norm(last)
            reading.before(norm, self.final_scale(norm), ("final norm bias", None))
        apart = checkpoint.architecture.pre_norm and tables.project is None and tables.norm is None
        return self._below(reading, len(self.layers), embeddings_apart=apart)

    def final_scale(self, norm: Norm) -> Tensor:
        """What the final norm divides by, [n, 1]."""
        return norm.scale(self.sites[None, "last"].cpu().double())

    def _below(self, reading: Reading, end: int, *, embeddings_apart: bool) -> list[Term]:
        """The terms of a reading and of what the first ``end`` layers and the embeddings wrote."""
        checkpoint, pre_norm = self.checkpoint, self.checkpoint.architecture.pre_norm
        factor = checkpoint.residual_multiplier
        per_block = 2 if checkpoint.stacks and not checkpoint.encoder_only else 1  # self- and cross-attention
        for number in reversed(range(end)):
            layer, first = self.layers[number], self.layers[number - number % per_block]
            modules = self.modules[layer]
            reading = reading.times(modules.stream_factor)
            if (number + 1) % per_block == 0:
                if not pre_norm:
                    self._before(reading, first, "feed_forward_norm")
                for name in self.modules[first].writers:
                    reading.times(factor).add((name, first), self.sites[first, name])
            if not pre_norm:
                self._before(reading, layer, "attention_norm")
            if modules.attends:
                self._add_attention(reading.times(factor), layer)
        if not embeddings_apart:
            reading.add(("embeddings", None), self.sites[None, "first"])
            return reading.terms
        tables, bias = checkpoint.embeddings, ("embedding bias", None)
        if tables.project is not None:
            reading.add_constant(bias, parameter_of(tables.project, "bias"))
            reading.weight = before_map(tables.project, reading.weight)
        if tables.norm is not None:
            reading.before(checkpoint.norm(tables.norm), self.sites[None, "embedding_norm"], bias)
        for name, vectors in embeddings_of(checkpoint, self.tokens).items():
            reading.add((f"{name} embedding", None), vectors)
        return reading.terms

    def _add_attention(self, reading: Reading, layer: int) -> None:
        """Add what is read from the heads of a layer, by W_O, and from its bias."""
        self._before(reading, layer, "attention_output_norm")
        parameters = self.checkpoint.parameters(layer)
        weighted = self.sites[layer, "concatenated"]
        vectors = weighted.reshape(len(weighted), parameters.n_heads, -1)
        heads = tuple(HeadId(layer, head) for head in range(parameters.n_heads))
        output, then = upcast(parameters.output_weight), reading.weight
        if then.shape[1] < then.shape[0]:
            reading.terms.append(Term(heads, vectors, output.to(then) @ then, reading.scale))
        else:
            reading.terms.append(Term(heads, vectors, output, reading.scale, then))
        reading.add_constant(("attention bias", layer), parameters.output_bias)

    def _before(self, reading: Reading, layer: int, name: str) -> None:
        """Read before a norm of a layer, if it has this one."""
        module = getattr(self.modules[layer], name)
        if module is not None:
            reading.before(self.checkpoint.norm(module), self.sites[layer, name], ("norm bias", layer))


def head_terms(verified: VerifiedAttention, written: WrittenParts, head: HeadId, side: str) -> list[Term]:
    """What the queries or keys (``side``) of a head are made of, before they are rotated; norms at their own scale."""
    checkpoint = verified.checkpoint
    parameters = checkpoint.parameters(head.layer)
    projection: Projection = getattr(parameters, side)
    norm: Norm | None = getattr(parameters, f"{side}_norm")
    number = head.head // (parameters.n_heads // len(projection.weight))  # fewer keys where several heads share them
    x = verified.inputs_of(head.layer)[SIDES.index(side)][0]
    shared = checkpoint.modules[head.layer].keys_layer
    layer = head.layer if shared is None or side == "query" else shared  # whose input this is
    projected = upcast(attention.project(x, replace(projection, clip=None)))  # [n_projected, n, d_head]
    if parameters.rotated_first and isinstance(norm, RMSNorm):  # its weights come after, where parts are compared
        projected = projected if parameters.rotary is None else apply_rotary(projected, parameters.rotary)
        norm = RMSNorm(torch.ones_like(norm.weight), norm.epsilon)
    scale = projected.new_ones(len(x), 1)
    if norm is not None and of_all_heads(norm, projected.shape[-1]):
        scale = scale / norm.scale(projected.transpose(0, 1).flatten(1))
    elif norm is not None:
        scale = scale / norm.scale(projected[number])
    if projection.latent is not None:
        scale = scale / projection.latent.scale(x, projected.shape[-1])
    projection = projection.linear_part()
    weight = normed_heads(upcast(projection.weight), norm, linearly=True)[number]
    terms = [*written.terms(weight, layer, scale)]
    constants = dict[Source, tuple[Tensor, Tensor]]()
    if projection.bias is not None:
        bias = normed_heads(upcast(projection.bias)[:, None], norm, linearly=True)[number, 0]
        constants[f"{side} bias", head.layer] = bias, scale
    if norm is not None and norm.bias is not None:
        constants[f"{side} norm bias", head.layer] = upcast(norm.bias), torch.ones_like(scale)
    terms += [constant_term(source, part, factor) for source, (part, factor) in constants.items()]
    if projection.clip is not None or getattr(norm, "clip", None) is not None:
        bounded = upcast(normed_heads(attention.project(x, projection), norm)[number])
        linearly = upcast(x) @ weight * scale + sum(part * factor for part, factor in constants.values())
        whole = Reading(torch.eye(bounded.shape[-1]).to(bounded), torch.ones_like(scale), terms)
        whole.add((f"bound of {side}", head.layer), bounded - linearly)
    return terms


def constant_term(source: Source, part: Tensor, scale: Tensor) -> Term:
    """The term of a part [d] that is the same at all positions but for their scale [n, 1] or [n, d]."""
    return Term((source,), torch.ones_like(scale[:, :1])[:, None], part[None, None], scale)


@contextmanager
def recording_parts(checkpoint: Checkpoint, tokens: Prompt, last: int | None = None) -> Iterator[WrittenParts]:
    """Record what is written into the stream in the last forward pass inside.

    ``tokens`` are those that the stream reads. Up to the attention of the layer ``last``; None for the final state.
    """
    written = WrittenParts(checkpoint, tokens)
    layers = written.layers if last is None else written.layers[: written.layers.index(last) + 1]

    def keep(key: tuple[int | None, str], tensor: Tensor) -> None:
        flat = tensor.flatten(0, -2)  # one text; OPT's network sees no batch
        written.sites[key] = checkpoint.norm(sites[key].module).scale(flat) if key[1].endswith("norm") else flat

    start, embedding_norm = written.modules[layers[0]], checkpoint.embeddings.norm
    sites: dict[Any, Site] = {(None, "first"): Site(start.block, "input", start)}
    if embedding_norm is not None and not checkpoint.stacks:
        sites[None, "embedding_norm"] = Site(embedding_norm, "input")
    sites |= sites_of(checkpoint, (*WRITERS, *NORMS, "concatenated"), layers)
    if last is None:
        final = checkpoint.final_norm
        if final is not None:
            sites[None, "last"] = Site(final, "input")
        whole: Any = first_of(checkpoint.output_map, final, written.modules[layers[-1]].feed_forward_norm)
        sites[None, "final"] = Site(whole, "output")
    with taps(sites, keep):
        yield written


def embeddings_of(checkpoint: Checkpoint, tokens: Prompt) -> dict[str, Tensor]:
    """``word``, ``position`` and, where the model has them, ``segment`` embeddings, [n, width] each."""
    tables = checkpoint.embeddings
    ids = torch.tensor(tokens.ids, device=checkpoint.device)
    parts = {"word": tables.of_words(ids)}
    if tables.positions is not None:
        parts["position"] = tables.positions[position_rows(checkpoint.architecture, checkpoint.config, ids)]
    if tables.segments is not None:
        types = torch.tensor(tokens.type_ids or [0] * len(tokens), device=checkpoint.device)
        parts["segment"] = tables.segments[types]
    return parts


def first_network(checkpoint: Checkpoint, ids: Tensor) -> Tensor:
    """What the first layer's network makes of the embeddings of tokens alone, [n, d_model], in float32 at least.

    In a pass over texts of one token each, in which its input, before any norm, is replaced by the embedding.
    """
    architecture, modules = checkpoint.architecture, checkpoint.modules[checkpoint.every_layer[0]]
    tables, norm = checkpoint.embeddings, modules.after_attention(architecture.pre_norm)
    rows = tables.of_words(ids.to(tables.words.device))
    for module in (tables.norm, tables.project):
        rows = rows if module is None else module(rows)
    entered = [modules.routed, modules.gate, modules.up_proj] if norm is None else [norm]
    sites = {("in", at): Site(module, "input", modules) for at, module in enumerate(entered) if module is not None}
    sites["out", 0] = Site(modules.writers["feed-forward"], "output", modules)
    outputs: list[Tensor] = []

    def visit(key: tuple[str, int], tensor: Tensor) -> Tensor | None:
        if key[0] == "in":
            return rows.view_as(tensor)
        outputs.append(upcast(tensor).view_as(rows))
        return None

    with running(checkpoint), taps(sites, visit):
        run_model(checkpoint, {"input_ids": ids[:, None].to(checkpoint.device)})
    return outputs[0]


def check_logits(checkpoint: Checkpoint, inputs: dict[str, Tensor], states: Tensor, positions: Sequence[int]) -> float:
    """Compare the logits that the whole model returns for one text with those of its head on recorded final states.

    ``inputs``: of the model, [1, n]; ``states``: [n_positions, d_model]; of a classifier at the one that it reads.
    Returns the largest difference as a share of the largest logit. VerificationError: the head alone is not what the
    model does.
    """
    whole, head = checkpoint.whole, checkpoint.prediction_head
    assert whole is not None
    assert head is not None
    keep = torch.tensor(positions, device=checkpoint.device)
    options: dict[str, Any] = {"use_cache": False, "logits_to_keep": keep}
    accepted = {name: value for name, value in options.items() if name in signature(whole.forward).parameters}
    with running(checkpoint):
        given, output = head(states), whole(**inputs, **accepted)
        logits = (torch.stack(tuple(output[:2]), dim=-1) if checkpoint.answers_questions else output[0]).reshape(
            -1, *given.shape[1:]
        )
    logits = logits if len(logits) == len(given) else logits[positions]  # all positions, where none can be asked for
    n_logits = given.shape[-1]

    def where(worst: int) -> str:
        return f"at position {positions[worst // n_logits]}, logit {worst % n_logits}"

    what = "the head of the model, on its final states, does not give the logits that the model returns"
    error, _ = check_total(checkpoint, upcast(given), upcast(logits), what, where)
    return error
