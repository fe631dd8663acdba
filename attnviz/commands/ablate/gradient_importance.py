"""How sensitive a model is to its heads, by gradients alone.

From Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1. Each head is multiplied by a gate,
1 in the model as it is. The derivative of a text's loss by the gate is Att_h(x)^T dL/dAtt_h(x): to first order, how
much the loss falls when the head is removed. Its importance is the mean absolute value over texts; the paper also
divides by the l2 norm over the heads of each layer.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.commands.ablate.hooks import gated_heads
from attnviz.commands.ablate.inputs import STATES, InputBatch
from attnviz.commands.ablate.metrics import BatchMetrics
from attnviz.commands.ablate.resumed_forward import KeptPass, run_block
from attnviz.model.checkpoint import Checkpoint

__all__ = ["PROJECTIONS", "GradientTally", "layer_normalised", "spearman"]

PROJECTIONS = 4
"""Random directions in which the final states of a text are followed, where there is no loss."""


class GradientTally:
    """Adds up gate gradients, text by text.

    Where nothing is predicted there is no loss. Then the loss is a random projection v·s / sqrt(n) of the n final
    states s, several times: over random v the mean square of its gradient is the mean square length of ds/dgate over
    the tokens, so that its root is, to first order, how far the states move without the head.
    """

    def __init__(self, checkpoint: Checkpoint, kind: str, counts: Sequence[int], seed: int) -> None:
        """Start at zero; ``counts``: the measured positions of each text, ``seed``: of the random directions."""
        self._checkpoint, self._kind, self._seed = checkpoint, kind, seed
        self._counts = torch.tensor(counts, dtype=torch.float64)
        self._sums = torch.zeros(len(counts), checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)

    def add(self, inputs: InputBatch, kept: KeptPass, metrics: BatchMetrics) -> None:
        """Measure a batch, going back layer by layer: memory is that of one layer."""
        texts = torch.tensor([each.text for each in inputs.inputs])
        if self._kind == STATES:
            for number in range(PROJECTIONS):
                towards = self._projection(inputs, kept.final, number)
                self._sums.index_add_(0, texts, self._back(kept, towards).square() / PROJECTIONS)
            return
        self._sums.index_add_(0, texts, self._back(kept, metrics.loss_gradient(1 / self._counts[texts])))

    def by_text(self) -> Tensor:
        """The importance of every head for each text, [n_texts, n_layers, n_heads]."""
        return self._sums.sqrt() if self._kind == STATES else self._sums.abs()

    def _projection(self, inputs: InputBatch, final: Tensor, number: int) -> Tensor:
        """A random direction at every token, which depends on the text and not on its batch."""
        towards = torch.zeros_like(final)
        for row, each in enumerate(inputs.inputs):
            n = len(each.item)
            digest = hashlib.sha256(f"{self._seed}:{number}:{each.item.ids}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            drawn = torch.randn(n, final.shape[-1], generator=generator) / math.sqrt(n)
            towards[row, :n] = drawn.to(final)
        return towards

    def _back(self, kept: KeptPass, gradient: Tensor) -> Tensor:
        """Gate gradients of every row, [rows, n_layers, n_heads], from the gradient by the final states."""
        model, architecture = self._checkpoint, self._checkpoint.architecture
        blocks = [modules.block for modules in architecture.modules(model.model)]
        norm = architecture.final_norm(model.model)
        gates = torch.ones(len(gradient), model.n_heads, dtype=gradient.dtype, device=gradient.device)
        of_gates: list[Tensor] = []
        for layer in reversed(range(model.n_layers)):
            with torch.enable_grad():
                hidden = kept.calls[layer][0][0].detach().requires_grad_()
                gate = gates.clone().requires_grad_()
                with gated_heads(model, layer, gate):
                    after = run_block(blocks[layer], kept, layer, hidden, 1, {})
                if norm is not None and layer == model.n_layers - 1:
                    after = norm(after)
            gradient, of_gate = torch.autograd.grad(after, (hidden, gate), gradient)
            of_gates.insert(0, of_gate.detach().double().cpu())
        return torch.stack(of_gates, dim=1)


def layer_normalised(importance: Tensor) -> Tensor:
    """Importance [n_layers, n_heads] over its l2 norm in each layer, as in the paper; 0 where all of a layer are 0."""
    return torch.nn.functional.normalize(importance, dim=-1, eps=torch.finfo(importance.dtype).tiny)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None for fewer than three, or all alike."""
    if len(first) < 3:
        return None
    ranks = torch.stack([_ranks(first), _ranks(second)])
    centred = ranks - ranks.mean(1, keepdim=True)
    lengths = centred.norm(dim=1)
    if not bool((lengths > 0).all()):
        return None
    return max(-1.0, min(1.0, float(centred[0] @ centred[1] / lengths.prod())))


def _ranks(values: Sequence[float]) -> Tensor:
    """Ranks from 1 on, equal values sharing their mean rank."""
    given = torch.tensor(values, dtype=torch.float64)
    below = (given[None] < given[:, None]).sum(1)
    alike = (given[None] == given[:, None]).sum(1)
    return below + (alike + 1) / 2
