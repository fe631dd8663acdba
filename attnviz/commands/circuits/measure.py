"""Composition of every pair of heads, copying and succession of every head, from the weights alone.

Composition and copying are those of Elhage et al. 2021, succession is that of Gould et al. 2023.

In rows, a head writes x W_V W_O, and scores x W_Q (y W_K)^T. N is the norm before a layer (for a layer norm centring,
then its weight), its scale left out, as all numbers here are ratios. With W' = N W a later head 2 reads of head 1::

    query: |A W_Q2' W_K2'^T|     key: |A W_K2' W_Q2'^T|     value: |A W_V2' W_O2|,     A = W_V1' W_O1

each divided by the Frobenius norms of its two factors. With W_V1' = Q R and Q orthonormal, |W_V1' W_O1 X| = |R W_O1 X|,
so that all is computed from factors as narrow as a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnviz.commands.circuits.successors import Succession, succession
from attnviz.errors import ArchitectureError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress, tell
from attnviz.reference.attention import HeadParameters, LayerNorm, Norm, Projection, normed_heads, repeat_kv, upcast
from attnviz.run.contributions import without_gradients
from attnviz.run.finite import refuse_not_finite
from attnviz.wording import counted

COMPOSITION_INPUTS = ("query", "key", "value")  # what a later head makes of what an earlier one writes


@dataclass(frozen=True)
class HeadCopying:
    """What a head writes of the tokens that it reads; None without a language head."""

    id: HeadId
    copying: float | None  # -1 to 1, the sum of the eigenvalues of W_E W_V W_O W_U by the sum of their absolute values
    untrained: float | None  # that of a head of this shape with weights drawn at random
    successor: float | None = None  # 0-1, share of tokens of ordinal sequences of which it writes the successor
    shuffled: float | None = None  # its best score where the sequences are in random order


@dataclass(frozen=True)
class Pair:
    """Composition of two heads."""

    id: HeadId  # the later head, which reads
    writer: HeadId  # the earlier head
    kind: str  # one of :data:`COMPOSITION_INPUTS`
    score: float  # 0-1
    deviations: float  # how many standard deviations the squared score is above that of random rotations


@dataclass(frozen=True, repr=False, eq=False)
class Circuits(Result, OfHeads[HeadCopying]):
    """What :func:`circuits` measured."""

    command: ClassVar[str] = "circuits"

    checkpoint: Checkpoint
    heads: tuple[HeadCopying, ...]  # in the model's order, which is that of the matrices, too
    scores: dict[str, Tensor]  # by kind, [n, n], row = the head that reads, column = the earlier one; NaN elsewhere
    deviations: dict[str, Tensor]  # likewise, see :class:`Pair`
    baseline: float  # root of the mean squared score of two matrices with these singular values, turned at random
    no_copying: str  # reason why copying is None, or ''
    succession: Succession  # successor scores by sequence
    linearised: bool  # whether copying leaves out the activation of a masked-language head
    rotary: bool  # whether queries and keys are rotated by positions, which is left out

    def pairs(self, select: Sequence[str | HeadId] = ()) -> list[Pair]:
        """All pairs with a selected head on either side, the furthest above the baseline first.

        Raises UsageError for an unknown head.
        """
        chosen = {head.id for head in self.select(select)}
        ids = [head.id for head in self.heads]
        wanted = torch.tensor([id in chosen for id in ids])
        either, pairs = wanted[:, None] | wanted, list[Pair]()
        for kind in COMPOSITION_INPUTS:
            scores, above = self.scores[kind], self.deviations[kind]
            pairs += [
                Pair(ids[reader], ids[writer], kind, float(scores[reader, writer]), float(above[reader, writer]))
                for reader, writer in (either & ~scores.isnan()).nonzero().tolist()
            ]
        return sorted(pairs, key=lambda pair: -pair.deviations)

    @property
    def in_words(self) -> str:
        return f"of {self.checkpoint.short_name}: {counted(len(self.heads), 'head')}"


@checked
def circuits(
    model: Model | None = None, *, progress: Progress | None = None, **opening: Unpack[ModelOptions]
) -> Circuits:
    """Measure composition of every pair of heads and copying of every head, from the weights alone.

    Of an encoder-decoder the encoder alone is measured.

    >>> attnviz.circuits("tiny-gpt2").pairs(["L1H0"])[0]  # doctest: +SKIP
    """
    opened, _ = open_checkpoint(model, **opening)
    checkpoint = opened.encoder
    scores, deviations = dict[str, Tensor](), dict[str, Tensor]()
    with without_gradients(checkpoint.device):
        layers = _Layers(checkpoint)
        squared, spread = layers.compositions(progress)
        head = _Unembedding(checkpoint)
        copying, untrained = ([], []) if head.why_none else _copying(checkpoint, layers, head)
        following = _succession(checkpoint, layers, head)
    for kind, of_kind, deviation in zip(COMPOSITION_INPUTS, squared, spread, strict=True):
        scores[kind] = of_kind.sqrt()
        deviations[kind] = (of_kind * layers.dimensions - 1) / deviation
    ids = [HeadId(layer, head) for layer in checkpoint.layers for head in range(checkpoint.n_heads_of(layer))]
    none: list[float | None] = [None] * len(ids)
    successor, shuffled = none, none
    if following.right:
        successor, shuffled = following.scores.flatten().tolist(), following.shuffled.flatten().tolist()
    heads = zip(ids, copying or none, untrained or none, successor, shuffled, strict=True)
    return Circuits(
        checkpoint=checkpoint,
        heads=tuple(HeadCopying(*head) for head in heads),
        scores=scores,
        deviations=deviations,
        baseline=layers.dimensions**-0.5,
        no_copying=head.why_none,
        succession=following,
        linearised=bool(head.dense),
        rotary=layers.rotary,
    )


class _Layers:
    """The layers, walked from the first to the last."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        family = checkpoint.architecture
        if family.gated:
            raise ArchitectureError(
                f"circuits are of the weights alone, but the gates of {family.name!r} depend on the text; "
                "attnviz outputs measures what its heads write."
            )
        self._checkpoint, self._modules = checkpoint, checkpoint.modules[: checkpoint.n_layers]
        self._pre_norm, self.rotary = checkpoint.architecture.pre_norm, False
        before = [modules.attention_norm if self._pre_norm else None for modules in self._modules]
        self._norms = [None if norm is None else checkpoint.norm(norm) for norm in before]
        self._centred = any(isinstance(norm, LayerNorm) for norm in self._norms)
        self.dimensions = checkpoint.d_model - self._centred  # of the space of what is written and what is read
        self.outputs = list[Tensor]()  # W_O, [n_heads, d_head, d_model], through the norms up to the last layer
        self.values = list[Tensor]()  # W_V', [n_heads, d_model, d_head]

    def compositions(self, progress: Progress | None) -> tuple[Tensor, Tensor]:
        """Squared scores and their spread by random rotation, relative to their mean, [3, n, n]; NaN where none is.

        Keeps W_O and W_V' of all layers.
        """
        counts = [self._checkpoint.n_heads_of(layer) for layer in range(len(self._modules))]
        starts = [sum(counts[:layer]) for layer in range(len(counts))]
        both = torch.full((2, len(COMPOSITION_INPUTS), sum(counts), sum(counts)), torch.nan, dtype=torch.float64)
        narrow: list[Tensor] = []
        for layer in range(len(self._modules)):
            parameters = self._checkpoint.architecture.parameters(self._checkpoint.model, layer)
            self.rotary = self.rotary or parameters.rotary is not None
            query, key = (self._reads(layer, parameters, name) for name in ("query", "key"))
            if (latent := parameters.key.latent) is not None:  # the scale of the rotated part differs by token
                query, key = (weight[..., : weight.shape[-1] - latent.n_apart] for weight in (query, key))
            value, output = self.value_output(layer)
            pairs = ((query, key), (key, query), (value, output.mT))
            products = [weight @ torch.linalg.qr(other, mode="r").R.mT for weight, other in pairs]
            width = max(product.shape[-1] for product in products)
            # what the layer makes of its input, [3, n_heads, d_model, d_head], as narrow as a head
            reads = torch.stack([pad(product, (0, width - product.shape[-1])) for product in products])
            sizes, evenness = _size(reads), _evenness(reads.mT)
            for earlier, (factor, written) in enumerate(zip(narrow, self.outputs, strict=True)):
                writes = factor @ written
                writes = writes - writes.mean(-1, keepdim=True) if self._centred else writes
                product = writes.flatten(0, 1) @ reads.permute(2, 0, 1, 3).flatten(1)
                parts = product.reshape(*writes.shape[:2], *reads.shape[:2], -1).square().sum((1, 4))
                shares = parts / (_size(writes)[:, None, None] * sizes)  # [writers, kinds, readers]
                spread = rotation_spread(_evenness(writes)[:, None, None], evenness, self.dimensions)
                rows, columns = (slice(starts[side], starts[side] + counts[side]) for side in (layer, earlier))
                shared = self._modules[layer].keys_layer  # made before later layers write: only queries read these
                kinds = slice(None) if shared is None or earlier < shared else slice(1)
                for matrices, values in zip(both, (shares, spread), strict=True):
                    matrices[kinds, rows, columns] = values.permute(1, 2, 0)[kinds].to(matrices)
            narrow.append(torch.linalg.qr(value, mode="r").R)
            self.values.append(value)
            self.outputs = [_scaled(self.after(layer, written)) for written in (*self.outputs, output)]
            tell(progress, "composing", layer + 1, len(self._modules))
        return both[0], both[1]

    def after(self, layer: int, rows: Tensor) -> Tensor:
        """Rows of the residual stream, [.., d_model], through the norms of a layer that stand after."""
        modules = self._modules[layer]
        for norm in () if self._pre_norm else (modules.attention_norm, modules.feed_forward_norm):
            rows = _normed(self._checkpoint, norm, rows)
        return rows * modules.stream_factor

    def _reads(self, layer: int, parameters: HeadParameters, name: str) -> Tensor:
        """A linear map with the norms before and after it, of each query head, [n_heads, d_model, d_head]."""
        projection: Projection = getattr(parameters, name)
        norm: Norm | None = getattr(parameters, f"{name}_norm")
        shared = self._modules[layer].keys_layer
        before = self._norms[layer if shared is None or name == "query" else shared]
        weight = _scaled(upcast(projection.linear_part().weight))
        weight = normed_heads(weight if before is None else before.read_by(weight), norm, linearly=True)
        return _scaled(repeat_kv(weight, parameters.n_heads))

    def value_output(self, layer: int) -> tuple[Tensor, Tensor]:
        """W_V', [n_heads, d_model, d_head], and W_O through the norm of the layer's output."""
        parameters = self._checkpoint.architecture.parameters(self._checkpoint.model, layer)
        output, norm = _scaled(upcast(parameters.output_weight)), self._modules[layer].attention_output_norm
        value = self._reads(layer, parameters, "value")
        return value, _scaled(_normed(self._checkpoint, norm, output))


class _Unembedding:
    """The way from the last layer to logits: the model's norm, then dense maps and norms of its language head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.why_none, self.dense = "", list[nn.Module]()
        head: Any = None if checkpoint.encoder_only else checkpoint.language_head
        if head is None:
            kind = "encoder" if checkpoint.encoder_only else "checkpoint"
            self.why_none = f"this {kind} has no language head, so nothing maps what heads write to tokens"
            return
        inner = [module for module in head.modules() if not [*module.children()] and hasattr(module, "weight")]
        *self.dense, unembedding = [module for module in inner if parameter_of(module, "weight").ndim == 2]
        self._checkpoint, self._last = checkpoint, checkpoint.architecture.final_norm(checkpoint.model)
        self._norms = [module for module in inner if parameter_of(module, "weight").ndim == 1]
        self.tokens = upcast(parameter_of(unembedding, "weight"))  # W_U, [vocabulary, d_model]

    def __call__(self, rows: Tensor) -> Tensor:
        """What W_U reads of rows [.., d_model] after the last layer, their scale and the head's activation left out."""
        rows = _normed(self._checkpoint, self._last, rows)
        for linear in self.dense:
            rows = rows @ upcast(parameter_of(linear, "weight")).T
        for norm in self._norms:
            rows = _normed(self._checkpoint, norm, rows)
        return rows


def rotation_spread(first: Tensor, second: Tensor, d: int) -> Tensor:
    """Standard deviation of |A U B|², as a share of its mean, |A|² |B|² / d, over all rotations U of d dimensions.

    From the fourth moments of U (Weingarten 1978) and both sums of fourth powers of singular values, each a share of
    the squared sum of their squares.
    """
    return (2 * (d * first - 1) * (d * second - 1) / ((d - 1) * (d + 2))).clamp(min=0).sqrt()


def _normed(checkpoint: Checkpoint, norm: Any, rows: Tensor) -> Tensor:
    """Rows [.., d_model] through a norm whose scale is left out; as they are where it is None."""
    return rows if norm is None else checkpoint.norm(norm).linear_part(rows, 1.0)


def _scaled(matrices: Tensor) -> Tensor:
    """Matrices [.., m, n], each divided by its largest number: all here are ratios, and no product overflows."""
    return matrices / matrices.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)


def _size(matrices: Tensor) -> Tensor:
    return matrices.square().sum((-2, -1))


def _evenness(wide: Tensor) -> Tensor:
    """Sum of the fourth powers of the singular values by the square of the sum of their squares; of [.., few, many]."""
    return _size(wide @ wide.mT) / _size(wide).square()


def _copying(checkpoint: Checkpoint, layers: _Layers, head: _Unembedding) -> tuple[list[float], list[float]]:
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    words = upcast(tables.words)
    tied = words.data_ptr() == head.tokens.data_ptr()
    across = _normed(checkpoint, tables.norm, head.tokens.T @ words)  # [d_model, d_model]: W_U W_E
    if tables.project is not None:
        across = across @ upcast(parameter_of(tables.project, "weight")).T
    of_model: list[float] = []
    for layer, (output, value) in enumerate(zip(layers.outputs, layers.values, strict=True)):
        of_model += _copied(head(output) @ across @ value)
        across = layers.after(layer, across)
    draw = torch.Generator().manual_seed(0)

    def fresh(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(words)

    table = fresh(*words.shape)
    across = (table.T if tied and not head.dense else fresh(checkpoint.d_model, words.shape[0])) @ table
    del table
    if tables.project is not None:
        across = across @ fresh(words.shape[1], checkpoint.d_model)
    random: list[float] = []
    for output, value in zip(layers.outputs, layers.values, strict=True):
        random += _copied(fresh(*output.shape) @ across @ fresh(*value.shape))
    return of_model, random


def _copied(matrices: Tensor) -> list[float]:
    """Sum of eigenvalues by the sum of their absolute values, of each of [n, m, m]; 0 for zeros."""
    refuse_not_finite(matrices, "product of embeddings, heads and unembedding")  # LAPACK ends the process
    values = torch.linalg.eigvals(matrices.cpu())
    shares = values.real.sum(-1) / values.abs().sum(-1).clamp(min=torch.finfo(values.real.dtype).tiny)
    return [float(share) for share in shares]


def successors(checkpoint: Checkpoint) -> Succession:
    """Successor scores of all heads; see :mod:`attnviz.commands.circuits.successors`."""
    with without_gradients(checkpoint.device):
        return _succession(checkpoint, _Layers(checkpoint), _Unembedding(checkpoint))


def _succession(checkpoint: Checkpoint, layers: _Layers, head: _Unembedding) -> Succession:
    if head.why_none:
        return Succession({}, torch.empty(0), head.why_none)

    def logits_of(rows: Tensor, ids: Tensor) -> Tensor:
        of_layers = []
        for layer in range(checkpoint.n_layers):
            value, output = layers.value_output(layer)
            written = rows @ value @ output
            for later in range(layer, checkpoint.n_layers):
                written = layers.after(later, written)
            of_layers.append(head(written) @ head.tokens[ids].T)
            rows = layers.after(layer, rows)
        return torch.stack(of_layers)

    return succession(checkpoint, logits_of)
