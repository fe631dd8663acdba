"""Composition of every pair of heads, copying and succession of every head, from the weights alone.

Composition and copying are those of Elhage et al. 2021, succession is that of Gould et al. 2023.

In rows, a head writes x W_V W_O, and scores x W_Q (y W_K)^T. N is the norm before a layer (for a layer norm centring,
then its weight), its scale left out, as all numbers here are ratios. With W' = N W a later head 2 reads of head 1::

    query: |A W_Q2' W_K2'^T|     key: |A W_K2' W_Q2'^T|     value: |A W_V2' W_O2|,     A = W_V1' W_O1

each divided by the Frobenius norms of its two factors. With W_V1' = Q R and Q orthonormal, |W_V1' W_O1 X| = |R W_O1 X|,
so that all is computed from factors as narrow as a head.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import ArchitectureError
from attnviz.measures.successors import Succession, succession
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.offloading import parameter_of
from attnviz.progress import Progress, tell
from attnviz.reference.attention import HeadParameters, LayerNorm, Norm, normed_heads, repeat_kv, upcast
from attnviz.run.contributions import without_gradients
from attnviz.run.finite import refuse_not_finite
from attnviz.run.stream import before_map, of_stream

COMPOSITION_INPUTS = ("query", "key", "value")  # what a later head makes of what an earlier one writes


def successors(checkpoint: Checkpoint) -> Succession:
    """Successor scores of all heads; see :mod:`attnviz.measures.successors`."""
    with without_gradients(checkpoint.device):
        return Layers(checkpoint).succession()


class Layers:
    """The layers, walked from the first to the last."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        family, self.checkpoint = checkpoint.architecture, checkpoint
        if family.gated:
            raise ArchitectureError(
                f"circuits are of the weights alone, but the gates of {family.name!r} depend on the text; "
                "attnviz outputs measures what its heads write."
            )
        self._modules = checkpoint.modules[: checkpoint.n_layers]
        self.rotary = False  # whether queries and keys of a layer that was walked are rotated
        norms = [self._norm_before(layer) for layer in range(checkpoint.n_layers)]
        self._centred = any(isinstance(norm, LayerNorm) for norm in norms)
        self.dimensions = checkpoint.d_model - self._centred  # of the space of what is written and what is read
        self.values, self.outputs = list[Tensor](), list[Tensor]()  # of layers that were walked, as they leave it
        head: Any = None if checkpoint.encoder_only else checkpoint.language_head
        self.why_no_logits, self.dense = "", False
        if head is None:
            kind = "encoder" if checkpoint.encoder_only else "checkpoint"
            self.why_no_logits = f"this {kind} has no language head, so nothing maps what heads write to tokens"
            return
        inner = [module for module in head.modules() if not [*module.children()] and hasattr(module, "weight")]
        *dense, unembedding = [module for module in inner if parameter_of(module, "weight").ndim == 2]
        self.dense = bool(dense)
        self._unembedding = upcast(parameter_of(unembedding, "weight"))  # W_U, [vocabulary, d_model]
        read = torch.eye(self._unembedding.shape[1]).to(self._unembedding)
        for module in reversed(inner):
            if parameter_of(module, "weight").ndim == 1:
                read = checkpoint.norm(module).read_by(read)
        for module in reversed(dense):
            read = before_map(module, read)
        self._last = of_stream(checkpoint, read)  # from the last layer to what W_U reads

    def _norm_before(self, layer: int) -> Norm | None:
        module = self._modules[layer].attention_norm if self.checkpoint.architecture.pre_norm else None
        return None if module is None else self.checkpoint.norm(module)

    def _after(self, layer: int, rows: Tensor) -> Tensor:
        """Rows of the residual stream, [.., d_model], through the norms of a layer that stand after."""
        modules = self._modules[layer]
        if not self.checkpoint.architecture.pre_norm:
            rows = self._normed(modules.feed_forward_norm, self._normed(modules.attention_norm, rows))
        return rows * modules.stream_factor

    def _normed(self, norm: Any, rows: Tensor) -> Tensor:
        """Rows [.., d_model] through a norm whose scale is left out; as they are where it is None."""
        return rows if norm is None else self.checkpoint.norm(norm).linear_part(rows, 1.0)

    def _reads(self, layer: int, parameters: HeadParameters, name: str) -> Tensor:
        """A linear map with the norms before and after it, of each query head, [n_heads, d_model, d_head]."""
        shared = self._modules[layer].keys_layer
        before = self._norm_before(layer if shared is None or name == "query" else shared)
        weight = _scaled(upcast(getattr(parameters, name).linear_part().weight))
        weight = weight if before is None else before.read_by(weight)
        weight = normed_heads(weight, getattr(parameters, f"{name}_norm"), linearly=True)
        return _scaled(repeat_kv(weight, parameters.n_heads))

    def _walk(self) -> Iterator[tuple[HeadParameters, Tensor, Tensor]]:
        """Of each layer its parameters, W_V' and W_O; ``outputs`` are then those of earlier layers as it gets them."""
        for layer, modules in enumerate(self._modules):
            parameters = self.checkpoint.parameters(layer)
            self.rotary = self.rotary or parameters.rotary is not None
            value, output = self._reads(layer, parameters, "value"), _scaled(upcast(parameters.output_weight))
            output = _scaled(self._normed(modules.attention_output_norm, output))
            yield parameters, value, output
            self.values.append(value)
            self.outputs = [_scaled(self._after(layer, written)) for written in (*self.outputs, output)]

    def compositions(self, progress: Progress | None) -> tuple[Tensor, Tensor]:
        """Squared scores and their spread by random rotation, relative to their mean, [3, n, n]; NaN where none is."""
        counts = [self.checkpoint.n_heads_of(layer) for layer in range(len(self._modules))]
        starts = [sum(counts[:layer]) for layer in range(len(counts))]
        both = torch.full((2, len(COMPOSITION_INPUTS), sum(counts), sum(counts)), torch.nan, dtype=torch.float64)
        narrow: list[Tensor] = []
        for layer, (parameters, value, output) in enumerate(self._walk()):
            query, key = (self._reads(layer, parameters, name) for name in ("query", "key"))
            latent = parameters.key.latent
            if latent is not None:  # the scale of the rotated part differs by token
                query, key = (weight[..., : weight.shape[-1] - latent.n_apart] for weight in (query, key))
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
                for matrices, numbers in zip(both, (shares, spread), strict=True):
                    matrices[kinds, rows, columns] = numbers.permute(1, 2, 0)[kinds].to(matrices)
            narrow.append(torch.linalg.qr(value, mode="r").R)
            tell(progress, "composing", layer + 1, len(self._modules))
        return both[0], both[1]

    def _read(self, rows: Tensor) -> Iterator[Tensor]:
        """What the heads of each layer read of rows of the embeddings, [n_heads, n, d_head]."""
        for layer, value in enumerate(self.values):
            yield rows @ value
            rows = self._after(layer, rows)

    def copying(self) -> list[float]:
        """Of every head."""
        tables = self.checkpoint.embeddings
        across = self._last @ self._normed(tables.norm, self._unembedding.T @ upcast(tables.words))  # to d_model
        if tables.project is not None:
            across = across @ upcast(parameter_of(tables.project, "weight")).T
        layers = zip(self.outputs, self._read(across), strict=True)
        return [share for output, read in layers for share in _copied(output @ read)]

    def untrained_copying(self) -> list[float]:
        """Of heads of the same shapes, and embeddings, with weights drawn at random."""
        tables, draw = self.checkpoint.embeddings, torch.Generator().manual_seed(0)
        words = upcast(tables.words)

        def fresh(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(words)

        table, tied = fresh(*words.shape), words.data_ptr() == self._unembedding.data_ptr()
        across = (table.T if tied and not self.dense else fresh(self.checkpoint.d_model, len(words))) @ table
        del table
        if tables.project is not None:
            across = across @ fresh(words.shape[1], self.checkpoint.d_model)
        heads = zip(self.outputs, self.values, strict=True)
        return [
            share for output, value in heads for share in _copied(fresh(*output.shape) @ across @ fresh(*value.shape))
        ]

    def succession(self) -> Succession:
        """Successor scores of all heads."""
        if self.why_no_logits:
            return Succession({}, torch.empty(0), self.why_no_logits)
        if not self.values:
            list(self._walk())

        def logits_of(rows: Tensor, ids: Tensor) -> Tensor:
            of_tokens = self._last @ self._unembedding[ids].T
            layers = zip(self._read(rows), self.outputs, strict=True)
            return torch.stack([read @ output @ of_tokens for read, output in layers])

        return succession(self.checkpoint, logits_of)


def rotation_spread(first: Tensor, second: Tensor, d: int) -> Tensor:
    """Standard deviation of |A U B|², as a share of its mean, |A|² |B|² / d, over all rotations U of d dimensions.

    From the fourth moments of U (Weingarten 1978) and both sums of fourth powers of singular values, each a share of
    the squared sum of their squares.
    """
    return (2 * (d * first - 1) * (d * second - 1) / ((d - 1) * (d + 2))).clamp(min=0).sqrt()


def _scaled(matrices: Tensor) -> Tensor:
    """Matrices [.., m, n], each divided by its largest number: all here are ratios, and no product overflows."""
    return matrices / matrices.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)


def _size(matrices: Tensor) -> Tensor:
    return matrices.square().sum((-2, -1))


def _evenness(wide: Tensor) -> Tensor:
    """Sum of the fourth powers of the singular values by the square of the sum of their squares; of [.., few, many]."""
    return _size(wide @ wide.mT) / _size(wide).square()


def _copied(matrices: Tensor) -> list[float]:
    """Sum of eigenvalues by the sum of their absolute values, of each of [n, m, m]; 0 for zeros."""
    refuse_not_finite(matrices, "product of embeddings, heads and unembedding")  # LAPACK ends the process
    values = torch.linalg.eigvals(matrices.cpu())
    shares = values.real.sum(-1) / values.abs().sum(-1).clamp(min=torch.finfo(values.real.dtype).tiny)
    return list(map(float, shares))
