"""What heads write over a corpus: how much, and what it does to the logits of the tokens that they attend to."""

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.measure import PatternRows
from attnviz.measures.patterns import CHOSEN_OF_ROW, COPY_SUPPRESSION, COPYING, INACTIVE, allowed_units
from attnviz.measures.tallies import TextTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import upcast
from attnviz.run.contributions import why_not_linear
from attnviz.run.stream import of_stream

# A head is quiet at a token where its output is shorter than this share of the mean over its layer's heads (our own
# choice; Sandoval-Segura et al. 2025 try several; of 270 heads of SmolLM2 five are quiet at over 0.9 of the tokens).
QUIET = 0.5


class WritingTally(TextTally):
    """How often each head is quiet, and raises or lowers the logit of the token that it attends to.

    o_h(q) is what a head adds at a content token q: after W_O and any norm behind it, without b_O.

    - It is quiet where ||o_h(q)|| is below :data:`QUIET` of the mean over the heads of its layer. Of heads that write
      alike none ever is: the baseline is 0.
    - The attended token of q is the key of its largest weight among other content tokens, if this is at least
      :data:`attnviz.measures.patterns.CHOSEN_OF_ROW`; only such q are cases. Its logit is raised, or lowered, where the
      direct effect of o_h(q) on it, less the mean over the vocabulary, is above, or below, 0: through the final norm,
      whose scale is positive and changes no sign, and W_U. The baseline is that of the same weights in random order
      over these keys, in the mean over all orders: the share of the keys whose tokens are raised, or lowered, there. So
      a head that raises whatever the text has scores no more than its baseline.

    ``why_no_copying`` is the reason why the second is not measured, or ''.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._checkpoint = checkpoint
        self.why_no_copying = why_not_linear(checkpoint)
        if not self.why_no_copying:
            self._unembedding: Tensor = parameter_of(checkpoint.language_head, "weight").detach()
            self._mean = self._unembedding.mean(0, dtype=torch.float64)
        self._grams: dict[int, Tensor] = {}  # by layer, W_O W_O^T, [n_heads, d_head, d_head]
        self._keys, self._pattern, self._tokens = list[Tensor](), torch.empty(0), torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the content tokens of a batch, and find the keys of each."""
        super().begin(batch, weights)
        self._keys = [self.other_keys(batch, window)[:, None].float() for window in self._windows]
        self._tokens = self._read_of(batch)

    def other_keys(self, batch: Batch, window: int | None = None) -> Tensor:
        """The other content tokens that each content token sees, boolean [batch, n, n]."""
        allowed = allowed_units(batch.non_sink.shape[1], self._causal, window).fill_diagonal_(False)
        return batch.non_sink[:, :, None] & batch.non_sink[:, None] & allowed.to(batch.non_sink.device)

    def update(self, rows: PatternRows) -> None:
        """Keep a layer's patterns until its heads have written."""
        self._pattern = rows.in_float32

    def add_written(self, layer: int, weighted: Tensor) -> None:
        """Count what a layer's heads write, from their weighted values, [batch, n, n_heads, d_head].

        Counts are quiet; cases; raised or lowered, raised less lowered; and the last two of shuffled attention.
        """
        sums = (self._quiet(layer, weighted) & self._batch.non_sink[:, None]).sum(-1, keepdim=True)
        if not self.why_no_copying:
            keys = self._keys[self._of_layer[layer]].to(self._pattern)
            weight, attended = (self._pattern * keys).max(-1)
            signs = self._effects(layer, weighted, self._tokens).sign_().to(keys).mul_(keys)
            attended_signs = signs.gather(-1, attended[..., None])[..., 0]
            shuffled, n_keys = signs.sum(-1), keys.sum(-1).clamp_(min=1)
            moved = attended_signs.abs(), attended_signs, signs.abs_().sum(-1) / n_keys, shuffled / n_keys
            case = (weight >= CHOSEN_OF_ROW).to(keys)
            values = torch.stack([torch.ones_like(case), *moved], -1)
            sums = torch.cat([sums, (case[:, :, None] @ values)[:, :, 0]], -1)
        self._keep("sums", sums)

    def shown(self, role: str, layer: int, weighted: Tensor, batch: Batch) -> Tensor:
        """Where heads show one of :data:`attnviz.measures.patterns.WRITTEN`, boolean [batch, n_heads, n, n].

        At a query they do for the keys whose tokens are raised, or lowered; for all keys where the head is quiet.
        """
        if role == INACTIVE:
            return self._quiet(layer, weighted)[..., None].expand(-1, -1, -1, weighted.shape[1])
        effects = self._effects(layer, weighted, self._read_of(batch))
        return effects > 0 if role == COPYING else effects < 0

    def _quiet(self, layer: int, weighted: Tensor) -> Tensor:
        """Where each head is quiet, boolean [batch, n_heads, n]."""
        if layer not in self._grams:
            output = self._output_weight(layer)
            self._grams[layer] = output @ output.mT
        values = upcast(weighted).transpose(1, 2)
        norms = (values @ self._grams[layer]).mul_(values).sum(-1).clamp_(min=0).sqrt_()
        return norms < QUIET * norms.mean(1, keepdim=True)

    def _read_of(self, batch: Batch) -> Tensor:
        """What the logit of each token reads, less the mean over the vocabulary, [batch, n, d_model]."""
        if self.why_no_copying:
            return torch.empty(0)
        tokens = upcast(self._unembedding[batch.inputs["input_ids"]])
        less_mean: Tensor = tokens - self._mean.to(tokens)
        return less_mean

    def _effects(self, layer: int, weighted: Tensor, tokens: Tensor) -> Tensor:
        """Direct effects on the logit of each key's token but for a positive scale, [batch, n_heads, n, n]."""
        output = self._output_weight(layer)
        read = of_stream(self._checkpoint, tokens.to(output).mT).mT @ output.flatten(0, 1).T
        return torch.einsum("bqhd,bkhd->bhqk", upcast(weighted), read.view(*read.shape[:2], *output.shape[:2]))

    def _output_weight(self, layer: int) -> Tensor:
        """W_O, through any norm behind it but for its positive scale, [n_heads, d_head, d_model]."""
        model = self._checkpoint
        weight: Tensor = upcast(model.parameters(layer).output_weight.detach())
        norm = model.modules[layer].attention_output_norm
        return weight if norm is None else model.norm(norm).linear_part(weight, 1.0)

    def estimates(self) -> dict[str, HeadScores]:
        """Scores of :data:`attnviz.measures.patterns.WRITTEN` beside their baselines; all are shares."""
        sums = self._counts["sums"]
        quiet = sums[..., 0] / self._positions[:, 1, None, None]
        shares = {INACTIVE: (quiet, "equal heads", torch.zeros_like(quiet))}
        if not self.why_no_copying:
            # shares of raised and lowered: half of moved, and half of raised less lowered
            moved, more, all_moved, all_more = (sums[..., 2:] / sums[..., 1:2]).unbind(-1)
            shares[COPYING] = (moved + more) / 2, "shuffled attention", (all_moved + all_more) / 2
            shares[COPY_SUPPRESSION] = (moved - more) / 2, "shuffled attention", (all_moved - all_more) / 2
        estimates = {}
        for role, (score, name, baseline) in shares.items():
            n = self.n_non_sink if role == INACTIVE else sums[0, ..., 1].round().long()
            estimates[role] = estimated(score[:, None], {name: baseline[:, None]}, n, self.n_texts)
        return estimates

    def cases(self) -> Tensor:
        """Share of the content tokens that are cases of copying, [n_layers, n_heads]."""
        return self._counts["sums"][0, ..., 1] / self._positions[0, 1]
