"""The residual stream of one text as a sum over everything that wrote into it.

The input of an attention layer, and the final state, are sums of embeddings, outputs of heads, feed-forward networks
and biases, once each norm on the way is held at the scale that it has in the model (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"): (x - mean of x) / s * weight + bias, a linear map divided by one number a
position. So a map W [d_model, d] of this input reads from what was written early in the model through one matrix
[d_model, d], and from a head through W_O of that head and this matrix: nothing of n × parts × d_model is ever made.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import classification_class
from attnviz.models.families.base import first_of, position_rows
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.offloading import parameter_of
from attnviz.models.tokens import Tokens
from attnviz.reference.attention import Norm, upcast
from attnviz.run.contributions import check_total, layer_contributions
from attnviz.run.sites import Site, taps
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import visible

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
    if checkpoint.class_head is not None:
        why = checkpoint.class_head.why_no_classes
        return why and f"Direct effects are not given: {why}."
    if checkpoint.encoder_only:
        return "Direct effects are not given: the encoder of an encoder-decoder makes no logits."
    if checkpoint.language_head is None:
        saved_as = visible((getattr(checkpoint.config, "architectures", None) or ["the model"])[0])
        family = checkpoint.architecture
        return (
            f"Direct effects are not given: {saved_as} has no head for tokens or classes; expected a checkpoint saved "
            f"as {family.language_class}{family.head_setting} or {classification_class(family)}."
        )
    return ""


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
        read = torch.einsum("nsi,sio->sno", vectors, self.weight.to(self.scale))
        return (read if self.then is None else read @ self.then) * self.scale[positions]

    def by_key(self, verified: VerifiedAttention, head: HeadId, position: int) -> Tensor:
        """What the part of one of its heads at a position took from each key that it sees, [n_keys, d_out].

        VerificationError if these do not sum to what the model's head weighted its values to.
        """
        contributions, number = layer_contributions(verified, head.layer), self.sources.index(head)
        row = contributions.pattern_row(position, head.head)
        value = row[:, None] * contributions.value[head.head][: len(row)]
        gate = contributions.gate_at(head.head, position, 1)
        value = value if gate is None else value * gate
        what = f"what {head} adds for each key does not sum to its output"
        of_head = upcast(self.vectors[position, number])
        check_total(verified.checkpoint, value.sum(0), of_head, what, "in dimension {}".format)
        read = value.to(self.scale) @ self.weight[number].to(self.scale)
        return (read if self.then is None else read @ self.then) * self.scale[position]


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


class WrittenParts:
    """What modules wrote into the residual stream of one text in one pass, and the scales of the norms it went through.

    ``sites`` are by layer and name, [n, ..]; those of norms are scales, [n, 1].
    """

    def __init__(self, checkpoint: Checkpoint, tokens: Tokens) -> None:
        self._checkpoint, self._tokens = checkpoint, tokens
        every = list(checkpoint.every_layer)  # of an encoder-decoder the stream is that of the logits
        self.layers = [layer for layer in every if not is_of_source(layer)] or every
        self.sites: dict[tuple[int | None, str], Tensor] = {}

    def terms(self, weight: Tensor, layer: int) -> Iterator[Term]:
        """What ``weight`` [d_model, d] reads from the attention's input of a layer, from its norm down."""
        reading = _Reading(upcast(weight), upcast(weight).new_ones(len(self._tokens), 1))
        if self._checkpoint.architecture.pre_norm:
            yield from self._through(reading, layer, "attention_norm")
        yield from self._below(reading, self.layers.index(layer), embeddings_apart=not self._checkpoint.stacks)

    def final_terms(self) -> Iterator[Term]:
        """What wrote the final state, in float64 on the CPU: a large number that a norm takes out leaves no rounding.

        Embeddings that are normed or projected are one part.
        """
        checkpoint, architecture = self._checkpoint, self._checkpoint.architecture
        tables, last = architecture.embeddings(checkpoint.model), architecture.final_norm(checkpoint.model)
        width = self.sites[None, "final"].shape[-1]
        weight = torch.eye(width, dtype=torch.float64)
        reading = _Reading(weight, weight.new_ones(len(self.sites[None, "final"]), 1))
        mapped = architecture.output_map(checkpoint.model)
        if mapped is not None:
            reading.weight = parameter_of(mapped, "weight").to(reading.weight).T @ reading.weight
        if last is not None:
            norm = checkpoint.norm(last)
            yield from reading.through(norm, self.final_scale(norm), ("final norm bias", None))
        apart = architecture.pre_norm and tables.project is None and tables.norm is None
        yield from self._below(reading, len(self.layers), embeddings_apart=apart)

    def final_scale(self, norm: Norm) -> Tensor:
        """What the final norm divides by, [n, 1]."""
        return norm.scale(self.sites[None, "last"].cpu().double())

    def _below(self, reading: "_Reading", end: int, *, embeddings_apart: bool) -> Iterator[Term]:
        """What is read from what the first ``end`` layers and the embeddings wrote."""
        checkpoint, architecture = self._checkpoint, self._checkpoint.architecture
        modules = checkpoint.modules
        factor = architecture.residual_multiplier(checkpoint.config)
        per_block = 2 if checkpoint.stacks and not checkpoint.encoder_only else 1  # self- and cross-attention
        for number in reversed(range(end)):
            layer, first = self.layers[number], self.layers[number - number % per_block]
            reading.weight = reading.weight * modules[layer].stream_factor
            if (number + 1) % per_block == 0:
                if not architecture.pre_norm:
                    yield from self._through(reading, first, "feed_forward_norm")
                for name in modules[first].writers:
                    written = self.sites[first, name][:, None]
                    yield Term(((name, first),), written, factor * reading.weight[None], reading.scale)
            if not architecture.pre_norm:
                yield from self._through(reading, layer, "attention_norm")
            if not modules[layer].attends:
                continue
            parameters = architecture.parameters(checkpoint.model, layer)
            of_output = _Reading(factor * reading.weight, reading.scale)
            if modules[layer].attention_output_norm is not None:
                yield from self._through(of_output, layer, "attention_output_norm")
            weighted = self.sites[layer, "weighted"]
            vectors = weighted.reshape(len(weighted), parameters.n_heads, -1)
            heads = tuple(HeadId(layer, head) for head in range(parameters.n_heads))
            output = upcast(parameters.output_weight)
            then = of_output.weight
            if then.shape[1] < then.shape[0]:
                yield Term(heads, vectors, output.to(then) @ then, of_output.scale)
            else:
                yield Term(heads, vectors, output, of_output.scale, then)
            if parameters.output_bias is not None:
                yield of_output.constant(("attention bias", layer), parameters.output_bias)
        if not embeddings_apart:
            start = self.sites[None, "first"][:, None]
            yield Term((("embeddings", None),), start, reading.weight[None], reading.scale)
            return
        tables = architecture.embeddings(checkpoint.model)
        if tables.project is not None:
            project: Any = tables.project
            bias = parameter_of(project, "bias")
            if bias is not None:
                yield reading.constant(("embedding bias", None), bias)
            reading.weight = upcast(parameter_of(project, "weight")).T @ reading.weight
        if tables.norm is not None:
            norm = checkpoint.norm(tables.norm)
            yield from reading.through(norm, self.sites[None, "embedding_norm"], ("embedding bias", None))
        for name, vectors in embeddings_of(checkpoint, self._tokens).items():
            yield Term(((f"{name} embedding", None),), vectors[:, None], reading.weight[None], reading.scale)

    def _through(self, reading: "_Reading", layer: int, name: str) -> Iterator[Term]:
        """Read what a norm was given instead of what it gave; yields its bias."""
        module = getattr(self._checkpoint.modules[layer], name)
        if module is not None:
            norm = self._checkpoint.norm(module)
            yield from reading.through(norm, self.sites[layer, name], ("norm bias", layer))


@dataclass
class _Reading:
    """What a map reads at one point of the stream: a matrix [d_model, d], and a factor a position, [n, 1]."""

    weight: Tensor
    scale: Tensor

    def through(self, norm: Norm, scale: Tensor, bias: Source) -> Iterator[Term]:
        if norm.bias is not None:
            yield self.constant(bias, norm.bias)
        on_device = norm if norm.weight is None else replace(norm, weight=norm.weight.to(self.weight.device))
        self.weight, self.scale = on_device.read_by(self.weight), self.scale / scale.to(self.scale)

    def constant(self, source: Source, vector: Tensor) -> Term:
        """The term of a vector that is the same at all positions, [d_model]."""
        return constant_term(source, vector.to(self.weight) @ self.weight, self.scale)


def constant_term(source: Source, part: Tensor, scale: Tensor) -> Term:
    """The term of a part [d] that is the same at all positions but for their scale [n, 1] or [n, d]."""
    return Term((source,), torch.ones_like(scale[:, :1])[:, None], part[None, None], scale)


@contextmanager
def recording_parts(checkpoint: Checkpoint, tokens: Tokens, last: int | None = None) -> Iterator[WrittenParts]:
    """Record what is written into the stream in the last forward pass inside.

    ``tokens`` are those that the stream reads. Up to the attention of the layer ``last``; None for the final state.
    """
    written = WrittenParts(checkpoint, tokens)
    layers = written.layers if last is None else written.layers[: written.layers.index(last) + 1]
    of_layers, architecture = checkpoint.modules, checkpoint.architecture

    def keep(key: tuple[int | None, str], tensor: Tensor) -> None:
        flat = tensor.flatten(0, -2)  # one text; OPT's network sees no batch
        written.sites[key] = checkpoint.norm(sites[key].module).scale(flat) if key[1].endswith("norm") else flat

    start = of_layers[layers[0]]
    embedding_norm = architecture.embeddings(checkpoint.model).norm
    sites: dict[tuple[int | None, str], Site] = {(None, "first"): Site(start.block, "input", start)}
    if embedding_norm is not None and not checkpoint.stacks:
        sites[None, "embedding_norm"] = Site(embedding_norm, "input")
    for layer in layers:
        modules = of_layers[layer]
        sites |= {(layer, name): Site(module, "output", modules) for name, module in modules.writers.items()}
        if modules.attends:
            sites[layer, "weighted"] = Site(modules.o_proj, "input", modules)
        for name in ("attention_norm", "attention_output_norm", "feed_forward_norm"):
            norm = getattr(modules, name)
            if norm is not None:
                sites[layer, name] = Site(norm, "input", modules)
    if last is None:
        final: Any = architecture.final_norm(checkpoint.model)
        if final is not None:
            sites[None, "last"] = Site(final, "input")
        ends = architecture.output_map(checkpoint.model), final, of_layers[layers[-1]].feed_forward_norm
        whole: Any = first_of(*ends)
        sites[None, "final"] = Site(whole, "output")
    with taps(sites, keep):
        yield written


def embeddings_of(checkpoint: Checkpoint, tokens: Tokens) -> dict[str, Tensor]:
    """``word``, ``position`` and, where the model has them, ``segment`` embeddings, [n, width] each."""
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    ids = torch.tensor(tokens.ids, device=checkpoint.device)
    parts = {"word": tables.of_words(ids)}
    if tables.positions is not None:
        parts["position"] = tables.positions[position_rows(checkpoint.architecture, checkpoint.config, ids)]
    if tables.segments is not None:
        types = torch.tensor(tokens.type_ids or [0] * len(tokens), device=checkpoint.device)
        parts["segment"] = tables.segments[types]
    return parts
