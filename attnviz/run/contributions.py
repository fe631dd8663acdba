"""What each head of a verified layer adds to the residual stream, checked against the model's attention output.

For one layer with pattern A, a head's values v = x W_V + b_V and its slice of W_O (Elhage et al. 2021)::

    o_h = (A v) W_O                                              [n, d_model]: what head h adds
    o   = sum over h of o_h, + b_O                               [n, d_model]: the attention's output
    f(x_k) = v_k W_O,  ||A[q, k] f(x_k)|| = A[q, k] ||f(x_k)||   norm-weighted attention (Kobayashi et al. 2020)

Where a query has a gate g_q, o_h = (A v ∘ g) W_O, and its norm-weighted attention is A[q, k] ||(v_k ∘ g_q) W_O||.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference import attention
from attnviz.run.sites import what_to_try
from attnviz.run.verify import VerifiedAttention


@contextmanager
def without_gradients(device: torch.device) -> Iterator[None]:
    """No gradients and no autocast, as in verification; unlike inference mode, tensors can be used in a graph later."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def why_not_linear(checkpoint: Checkpoint) -> str:
    """Reason why the logits of this model are no sum over heads, or ''."""
    head = checkpoint.class_head
    if head is not None:
        why = head.why_no_classes and f": {head.why_no_classes}"
        return f"this checkpoint has a head for {checkpoint.head_in_words}{why}"
    if checkpoint.encoder_only:
        return "the encoder of an encoder-decoder makes no logits"
    if not checkpoint.architecture.pre_norm or checkpoint.architecture.final_norm(checkpoint.model) is None:
        return (
            "in BERT and its relatives every residual passes through later layer norms, and a masked-LM head begins "
            "with a transform that is not linear, so that no head's part of the logits can be told apart"
            if not checkpoint.stacks and not checkpoint.architecture.causal
            else "in this model every residual passes through later layer norms, so that no head's part of the logits "
            "can be told apart"
        )
    if checkpoint.language_head is None:
        return f"the model has no language-modelling head; load one that has ({checkpoint.architecture.language_class})"
    why = "this model bounds its logits (final_logit_softcapping), so that they are no sum of parts"
    if not checkpoint.architecture.causal and not checkpoint.stacks:
        why = "a masked-LM head begins with a transform that is not linear, so that logits are no sum of parts"
    return "" if hasattr(checkpoint.language_head, "weight") else why


@dataclass(frozen=True, eq=False)
class LayerContributions:
    """The values and output weights of one layer's verified heads; numbers in float32 at least."""

    attention: VerifiedAttention  # from which patterns are recomputed, a chunk of rows at a time
    layer: int
    value: Tensor  # x W_V + b_V, [n_heads, n_keys, d_head]; heads that share values have the same
    output_weight: Tensor  # W_O, [n_heads, d_head, d_model]
    output_bias: Tensor  # b_O, [d_model]; zeros where the model has none
    gate: Tensor | None  # [n_heads, n, d_head]

    @property
    def n_heads(self) -> int:
        return len(self.value)

    def rows(self, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """The first query of each chunk of rows of A, and the rows, [n_heads, rows, keys that these rows see]."""
        for rows in self.attention.rows(self.layer, heads):
            yield rows.first, rows.in_float32[0]

    def gate_at(self, head: int, first: int, n_rows: int) -> Tensor | None:
        """The gate of the head at some queries, [n_rows, d_head]; None without one."""
        return None if self.gate is None else self.gate[head, first : first + n_rows]

    def added(self, head: int, rows: Tensor, first: int) -> Tensor:
        """What the head adds to the residual stream, [rows, d_model], from rows of its pattern, [rows, n_keys]."""
        gate = self.gate_at(head, first, len(rows))
        with without_gradients(rows.device):
            return attention.head_outputs(rows, self.value[head, : rows.shape[-1]], self.output_weight[head], gate)

    def outputs(self, heads: Sequence[int]) -> Tensor:
        """What each of the heads adds to the residual stream, [n_heads, n, d_model]."""
        chunks = [
            torch.stack([self.added(head, of_head, first) for head, of_head in zip(heads, rows, strict=True)])
            for first, rows in self.rows(heads)
        ]
        return torch.cat(chunks, dim=1)

    def pattern_row(self, position: int, head: int) -> Tensor:
        """The pattern of one head at one position, [n_keys that it sees]."""
        rows = next(replace(self.attention, queries=(position,)).rows(self.layer, [head]))
        return rows.in_float32[0, 0, 0]

    def value_norms(self, head: int) -> Tensor:
        """||f(x_k)|| of every key, before any gate, [n]."""
        with without_gradients(self.value.device):
            norms: Tensor = attention.transformed_values(self.value[head], self.output_weight[head]).norm(dim=-1)
            return norms

    def pattern(self, head: int) -> Tensor:
        """A of one head, whole, [n_queries, n_keys]."""
        pattern = self.value.new_zeros(len(self.attention.tokens_of(self.layer)[0]), self.value.shape[1])
        for first, rows in self.rows([head]):
            pattern[first : first + rows.shape[1], : rows.shape[2]] = rows[0]
        return pattern

    def norms(self, head: int) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n]."""
        return self.weighted_norms(head, self.pattern(head), 0, self.value_norms(head))

    def weighted_norms(self, head: int, rows: Tensor, first: int, value_norms: Tensor) -> Tensor:
        """Norm-weighted attention in rows of the head's pattern, [rows, n_keys], from :meth:`value_norms`."""
        n_keys, gate = rows.shape[-1], self.gate_at(head, first, len(rows))
        if gate is None:
            return rows * value_norms[:n_keys]
        with without_gradients(rows.device):
            narrow = torch.linalg.qr(self.output_weight[head].mT, mode="r").R.mT  # keeps lengths; [d_head, d_head]
            value = self.value[head, :n_keys]
            return rows * torch.stack([((value * at_query) @ narrow).norm(dim=-1) for at_query in gate])


def layer_contributions(verified: VerifiedAttention, layer: int) -> LayerContributions:
    """Recompute one layer's values, and collect its output weights; VerificationError if the model was changed."""
    checkpoint = verified.checkpoint
    with without_gradients(checkpoint.device):
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
        x, source = verified.inputs_of(layer)
        value = attention.values(source, parameters)[0]
        gate = attention.gate_of(x, parameters)
        weight, bias = parameters.output_weight, parameters.output_bias
        bias = weight.new_zeros(weight.shape[-1]) if bias is None else bias
        value, weight, bias = (attention.upcast(tensor.detach()) for tensor in (value, weight, bias))
        gate = None if gate is None else attention.upcast(gate[0])
        return LayerContributions(verified, layer, value, weight, bias, gate)


def check_sum(verified: VerifiedAttention, layer: int, total: Tensor, parts: str) -> tuple[float, float]:
    """Compare a sum of ``parts`` and b_O, [n, d_model], with the model's own attention output of a layer."""
    output = verified.model_output(layer)[0].to(total.dtype)
    labels = verified.tokens_of(layer)[0].labels

    def where(worst: int) -> str:
        query, dimension = divmod(worst, output.shape[-1])
        return f"at query {query} ({labels[query]!r}), dimension {dimension}"

    what = f"{parts} to the model's own attention output"
    return check_total(verified.checkpoint, total, output, what, where, largest="the layer's largest output")


def check_total(
    checkpoint: Checkpoint,
    total: Tensor,
    model_numbers: Tensor,
    what: str,
    where: Callable[[int], str],
    largest: str = "the largest",
) -> tuple[float, float]:
    """Compare the sum of parts with the model's own numbers; VerificationError if they differ beyond the tolerance.

    For the message: ``what`` begins it; ``where`` puts the flat index of the largest difference in words; ``largest``
    says of what the tolerance is a share. Returns the largest absolute difference as a share of the largest of the
    model's numbers, and this number.
    """
    tolerance = checkpoint.tolerance.output
    scale, difference = float(model_numbers.abs().max()), (total - model_numbers).abs()
    error = float(difference.max()) / (scale or 1.0)
    if not error <= tolerance:  # a NaN is a failure, too
        worst = int(difference.nan_to_num(nan=torch.inf).argmax())
        raise VerificationError(
            f"{what}: they differ most {where(worst)}: the model gives {float(model_numbers.flatten()[worst]):.6g}, "
            f"the sum {float(total.flatten()[worst]):.6g} (tolerance {tolerance:g} of {largest}, {scale:.6g}). "
            f"Nothing was written. {what_to_try(checkpoint)}"
        )
    return error, scale
