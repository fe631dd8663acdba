"""Copy suppression: how much of what a head does is to make tokens less likely that it attends to.

The head is ablated but for that (McDougall et al. 2023, "Copy Suppression: Comprehensively Understanding an Attention
Head"), and the KL divergences of both ablations from the model are compared; direct effects alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.batches import batch_of_ids
from attnviz.measures.intervals import Simultaneous, TextSamples
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.corpus import SampledAttention
from attnviz.run.sites import Site, recording, sites_of

PREDICTED = 0.05  # a source token is kept where it is among this share of those that the query predicts (the paper)


@dataclass(frozen=True)
class Seen:
    """What a pass of one text has at one head; sizes n tokens, d dimensions."""

    ids: Tensor  # [n]
    entered: Tensor  # [n, d], the residual stream before the head's layer
    pattern: Tensor  # [n, n]
    values: Tensor  # [n, d_head], without bias
    final: Tensor  # [n, d], the residual stream before the final norm


class KeptSuppression:
    """Divergences of a model whose head is ablated, whole or but for copy suppression; direct effects alone.

    Of a source token s at a query the head keeps what its output of s has along the unembedding of s, if that is
    negative, and only where s is among the 5 % of tokens that the residual stream predicts there, before the head's
    layer, through final norm and unembedding. All other sources are replaced by the mean output of a source.
    """

    def __init__(self, checkpoint: Checkpoint, id: HeadId, seed: int) -> None:
        self._checkpoint, self._id = checkpoint, id
        self._attention = SampledAttention(checkpoint, seed)
        self._norm_module: Any = checkpoint.architecture.final_norm(checkpoint.model)
        parameters = checkpoint.architecture.parameters(checkpoint.model, id.layer)
        self._parameters = replace(parameters, value=replace(parameters.value, bias=None))
        self._output = upcast(parameters.output_weight[id.head])  # [d_head, d]
        self._unembedding = upcast(parameter_of(checkpoint.language_head, "weight"))
        self._sums = torch.zeros(2, len(self._output), dtype=torch.float64)
        self._n = 0

    def see(self, ids: Sequence[int]) -> Seen:
        """Run the model on one text, verified like all others."""
        batch = batch_of_ids(self._checkpoint, [ids])
        layer, head = self._id
        patterns = dict[int, Tensor]()
        sites = sites_of(self._checkpoint, ["residual", "source"], [layer])
        with recording(sites | {(layer, "final"): Site(self._norm_module, "input")}) as seen:
            self._attention.run(batch, patterns.__setitem__)
        values = attention.values(upcast(seen[layer, "source"]), self._parameters)[0, head]
        return Seen(
            ids=batch.inputs["input_ids"][0],
            entered=seen[layer, "residual"][0],
            pattern=patterns[layer][0, head],
            values=upcast(values),
            final=seen[layer, "final"][0],
        )

    def count(self, seen: Seen) -> None:
        """Add one text to the means that take the place of what is removed."""
        values = seen.values.double().cpu()
        self._sums += torch.stack([values.sum(0), (seen.pattern.double().cpu() @ values).sum(0)])
        self._n += len(values)

    def divergences(self, seen: Seen) -> Tensor:
        """KL from the model as it is to that without the head, and with copy suppression alone, [2, n] in nats."""
        mean, mean_output = (self._sums / self._n).to(self._output) @ self._output
        outputs = seen.values @ self._output  # [n, d], of each source
        written = seen.pattern @ outputs
        reading = self._checkpoint.norm(self._norm_module).read_by(self._unembedding[seen.ids].T).T  # [n, d]
        along = (outputs * reading).sum(-1) / reading.square().sum(-1)
        suppressed = along.clamp(max=0)[:, None] * reading
        logits = self._logits(seen.entered)
        least = logits.topk(max(1, int(PREDICTED * logits.shape[-1])), -1).values[:, -1:]
        weights = seen.pattern * (logits[:, seen.ids] >= least)
        kept = weights @ suppressed + (seen.pattern - weights).sum(-1, keepdim=True) * mean
        changes = (0, mean_output - written, kept - written)
        clean, *others = (self._logits(seen.final + change).log_softmax(-1) for change in changes)
        return torch.stack([(clean.exp() * (clean - other)).sum(-1) for other in others])

    def _logits(self, residual: Tensor) -> Tensor:
        return upcast(self._norm_module(residual)) @ self._unembedding.T


def explained(sums: Tensor, samples: TextSamples) -> Simultaneous:
    """Share of the ablation's divergence that copy suppression alone does not have.

    ``sums``: of each text, [n_texts, 2], as :meth:`KeptSuppression.divergences`.
    """
    ablated, kept = sums.double()[:, :, None].unbind(1)
    return samples.ratios(ablated - kept, ablated)
