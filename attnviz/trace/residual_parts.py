"""What linear maps read from the residual stream, as a sum over everything that wrote into it.

The input of an attention layer is a sum of embeddings, outputs of heads, feed-forward networks and biases, once each
norm on the way is held at the scale that it has in the model (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"). At a fixed scale s a norm is (x - mean of x) / s * weight + bias: a linear map, divided by one
number a position. So a map W [d_model, d] of this input reads from what was written early in the model through one
matrix [d_model, d], and from a head through W_O of that head and this matrix, [d_head, d]: nothing of the size
n × parts × d_model is ever made.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import position_rows
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.models.tokens import Tokens
from attnviz.reference.attention import upcast
from attnviz.trace.recorder import at_site, own_run

Source = HeadId | tuple[str, int | None]
"""What wrote a part: a head, or a name with its layer (None for what belongs to no layer)."""


def source_name(source: Source) -> str:
    """``L2H8``, ``feed-forward L2``, ``word embedding``."""
    if isinstance(source, HeadId):
        return str(source)
    name, layer = source
    return name if layer is None else f"{name} {HeadId(layer, 0).layer_name}"


@dataclass(frozen=True, eq=False)
class Term:
    """What a map reads of some sources at every position: vectors, a matrix for each source, and a factor.

    Attributes:
        vectors: [n, n_sources, d_in], in the model's number format.
        weight: [n_sources, d_in, d_out].
        scale: [n, 1].
    """

    sources: tuple[Source, ...]
    vectors: Tensor
    weight: Tensor
    scale: Tensor

    def at(self, positions: Tensor) -> Tensor:
        """The parts at some positions, [n_sources, n_positions, d_out]."""
        read = torch.einsum("nsi,sio->sno", upcast(self.vectors[positions]), self.weight)
        return read * self.scale[positions]


def parts_at(terms: Iterable[Term], positions: Tensor) -> tuple[list[Source], Tensor]:
    """The sources of some terms, each once, and their parts at some positions, [n_sources, n_positions, d_out]."""
    listed = list(terms)
    every = [source for term in listed for source in term.sources]
    sources = list(dict.fromkeys(every))
    numbers = {source: number for number, source in enumerate(sources)}
    read = torch.cat([term.at(positions) for term in listed])
    where = torch.tensor([numbers[source] for source in every], device=read.device)
    return sources, read.new_zeros(len(sources), *read.shape[1:]).index_add_(0, where, read)


class WrittenParts:
    """What modules wrote into the residual stream of one text in one pass, and the scales of the norms it went through.

    Tensors are by the layer and the name of a site, [n, ..]; those of norms are scales, [n, 1].
    """

    def __init__(self, checkpoint: Checkpoint, tokens: Tokens) -> None:
        self._checkpoint, self._tokens = checkpoint, tokens
        self.sites: dict[tuple[int, str], Tensor] = {}

    def terms(self, weight: Tensor, layer: int) -> Iterator[Term]:
        """What ``weight`` [d_model, d] reads from the attention's input of a layer, from its norm down."""
        checkpoint, architecture = self._checkpoint, self._checkpoint.architecture
        modules, factor = checkpoint.modules, architecture.residual_multiplier(checkpoint.config)
        reading = _Reading(upcast(weight), torch.ones(len(self._tokens), 1, dtype=upcast(weight).dtype))
        if architecture.pre_norm:
            yield from self._through(reading, layer, "attention_norm")
        for below in range(layer - 1, -1, -1):
            if not architecture.pre_norm:
                yield from self._through(reading, below, "feed_forward_norm")
            network = self.sites[below, "network"][:, None]
            yield Term((("feed-forward", below),), network, factor * reading.weight[None], reading.scale)
            if not architecture.pre_norm:
                yield from self._through(reading, below, "attention_norm")
            parameters = architecture.parameters(checkpoint.model, below)
            of_output = _Reading(factor * reading.weight, reading.scale)
            if modules[below].attention_output_norm is not None:
                yield from self._through(of_output, below, "attention_output_norm")
            written = self.sites[below, "weighted"].reshape(len(self._tokens), parameters.n_heads, -1)
            heads = tuple(HeadId(checkpoint.layers[below], head) for head in range(parameters.n_heads))
            yield Term(heads, written, upcast(parameters.output_weight) @ of_output.weight, of_output.scale)
            if parameters.output_bias is not None:
                yield of_output.constant(("attention bias", below), parameters.output_bias)
        yield from self._embedding_terms(reading)

    def _embedding_terms(self, reading: "_Reading") -> Iterator[Term]:
        """What is read from the embeddings; of an encoder in one, since tables are those of its decoder."""
        tables = self._checkpoint.architecture.embeddings(self._checkpoint.model)
        if self._checkpoint.stacks:
            yield Term((("embeddings", None),), self.sites[0, "first"][:, None], reading.weight[None], reading.scale)
            return
        if tables.project is not None:
            project: Any = tables.project
            if (bias := parameter_of(project, "bias")) is not None:
                yield reading.constant(("embedding bias", None), bias)
            reading.weight = upcast(parameter_of(project, "weight")).T @ reading.weight
        if tables.norm is not None:
            norm = self._checkpoint.norm(tables.norm)
            if norm.bias is not None:
                yield reading.constant(("embedding bias", None), norm.bias)
            reading.through(norm.read_by, self.sites[0, "embedding_norm"])
        for name, vectors in embeddings_of(self._checkpoint, self._tokens).items():
            yield Term(((f"{name} embedding", None),), vectors[:, None], reading.weight[None], reading.scale)

    def _through(self, reading: "_Reading", layer: int, name: str) -> Iterator[Term]:
        """Read what a norm was given instead of what it gave; yields its bias."""
        module = getattr(self._checkpoint.modules[layer], name)
        if module is None:
            return
        norm = self._checkpoint.norm(module)
        if norm.bias is not None:
            yield reading.constant(("norm bias", layer), norm.bias)
        reading.through(norm.read_by, self.sites[layer, name])


@dataclass
class _Reading:
    """What a map reads at one point of the stream: a matrix [d_model, d], and a factor a position, [n, 1]."""

    weight: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        self.scale = self.scale.to(self.weight)

    def through(self, read_by: Callable[[Tensor], Tensor], scale: Tensor) -> None:
        self.weight, self.scale = read_by(self.weight), self.scale / scale

    def constant(self, source: Source, vector: Tensor) -> Term:
        """The term of a vector that is the same at all positions, [d_model]."""
        return constant_term(source, upcast(vector) @ self.weight, self.scale)


def constant_term(source: Source, part: Tensor, scale: Tensor) -> Term:
    """The term of a part [d] that is the same at all positions but for their scale [n, 1]."""
    return Term((source,), torch.ones_like(scale)[:, None], part[None, None], scale)


@contextmanager
def recording_parts(checkpoint: Checkpoint, tokens: Tokens, layer: int) -> Iterator[WrittenParts]:
    """Record what is written up to the attention of a layer, in the last forward pass inside."""
    written = WrittenParts(checkpoint, tokens)

    def keep(key: tuple[int, str], tensor: Tensor) -> None:
        written.sites[key] = tensor.flatten(0, -2)  # one text; OPT's network sees no batch

    def keep_scale(key: tuple[int, str], norm: nn.Module, tensor: Tensor) -> None:
        written.sites[key] = checkpoint.norm(norm).scale(tensor.flatten(0, -2))

    modules, embedding_norm = checkpoint.modules, checkpoint.architecture.embeddings(checkpoint.model).norm
    with ExitStack() as stack:
        stack.enter_context(at_site(modules[0].block, "input", own_run(stack, modules[0])(partial(keep, (0, "first")))))
        if embedding_norm is not None and not checkpoint.stacks:
            visit = partial(keep_scale, (0, "embedding_norm"), embedding_norm)
            stack.enter_context(at_site(embedding_norm, "input", visit))
        for below, of in enumerate(modules[: layer + 1]):
            own, network = own_run(stack, of), of.feed_forward_output_norm or of.network_output
            stack.enter_context(at_site(of.o_proj, "input", own(partial(keep, (below, "weighted")))))
            stack.enter_context(at_site(network, "output", own(partial(keep, (below, "network")))))
            for name in ("attention_norm", "attention_output_norm", "feed_forward_norm"):
                if (norm := getattr(of, name)) is not None:
                    stack.enter_context(at_site(norm, "input", own(partial(keep_scale, (below, name), norm))))
        yield written


def embeddings_of(checkpoint: Checkpoint, tokens: Tokens) -> dict[str, Tensor]:
    """``word``, ``position`` and, where the model has them, ``segment`` embeddings, [n, width] each."""
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    both = tokens.ids, tokens.type_ids or [0] * len(tokens)
    ids, types = (torch.tensor(values, device=checkpoint.device) for values in both)
    rows = position_rows(checkpoint.architecture, checkpoint.config, ids)
    parts = {"word": tables.of_words(ids)}
    if tables.positions is not None:
        parts["position"] = tables.positions[rows]
    return parts if tables.segments is None else {**parts, "segment": tables.segments[types]}
