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
from attnviz.models.classifier import classification_class
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.run.sites import what_to_try
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import visible


@contextmanager
def without_gradients(device: torch.device) -> Iterator[None]:
    """No gradients and no autocast, as in verification; unlike inference mode, tensors can be used in a graph later."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def why_no_logits(checkpoint: Checkpoint) -> str:
    """Reason why this model makes no logits of tokens or classes, or ''."""
    family = checkpoint.architecture
    if checkpoint.class_head is not None:
        return checkpoint.class_head.why_no_classes
    if checkpoint.encoder_only:
        return "the encoder of an encoder-decoder makes no logits"
    if checkpoint.language_head is not None:
        return ""
    saved_as = visible((getattr(checkpoint.config, "architectures", None) or ["the model"])[0])
    return (
        f"{saved_as} has no head for tokens or classes; expected a checkpoint saved as {family.language_class}"
        f"{family.head_setting} or {classification_class(family)}"
    )


def why_not_linear(checkpoint: Checkpoint) -> str:
    """Reason why the logits of this model are no sum over heads, or ''."""
    why = why_no_logits(checkpoint)
    if checkpoint.class_head is not None:
        return f"this checkpoint has a head for {checkpoint.head_in_words}{why and f': {why}'}"
    if not checkpoint.architecture.pre_norm or checkpoint.final_norm is None:
        return (
            "in this model every residual passes through later layer norms, so that no head's part of the logits can "
            "be told apart"
        )
    if why or hasattr(checkpoint.language_head, "weight"):
        return why
    if not checkpoint.architecture.causal and not checkpoint.stacks:
        return "a masked-LM head begins with a transform that is not linear, so that logits are no sum of parts"
    return "this model bounds its logits (final_logit_softcapping), so that they are no sum of parts"


@dataclass(frozen=True, eq=False)
class LayerContributions:
    """The values and output weights of one layer's verified heads; numbers in float32 at least."""

    attention: VerifiedAttention  # from which patterns are recomputed, a chunk of rows at a time
    layer: int
    value: Tensor  # x W_V + b_V, [n_heads, n_keys, d_head]; heads that share values have the same
    output_weight: Tensor  # W_O, [n_heads, d_head, d_model]
    output_bias: Tensor  # b_O, [d_model]; zeros where the model has none
    gate: Tensor | None  # [n_heads, n, d_head]

    def rows(self, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """The first query of each chunk of rows of A, and the rows, [n_heads, rows, keys that these rows see]."""
        for rows in self.attention.rows(self.layer, heads):
            yield rows.first, rows.in_float32[0]

    def outputs(self, head: int, rows: Tensor, first: int = 0) -> Tensor:
        """What the head adds to the residual stream, [rows, d_model], from rows of its pattern, [rows, n_keys]."""
        gate = None if self.gate is None else self.gate[head, first : first + len(rows)]
        with without_gradients(rows.device):
            return attention.head_outputs(rows, self.value[head, : rows.shape[-1]], self.output_weight[head], gate)

    def pattern(self, head: int) -> Tensor:
        """A of one head, whole, [n_queries, n_keys]."""
        pattern = self.value.new_zeros(len(self.attention.tokens_of(self.layer)[0]), self.value.shape[1])
        for first, rows in self.rows([head]):
            pattern[first : first + rows.shape[1], : rows.shape[2]] = rows[0]
        return pattern

    def weighted_values(self, head: int, position: int) -> Tensor:
        """A[q, k] v_k of each key that a position sees, gated by it, [n_keys, d_head]; W_O of their sum is o_h."""
        row = pattern_row(self.attention, HeadId(self.layer, head), position)
        value = row[:, None] * self.value[head, : len(row)]
        return value if self.gate is None else value * self.gate[head, position]

    def value_norms(self, head: int) -> Tensor:
        """||f(x_k)|| of every key, before any gate, [n]."""
        with without_gradients(self.value.device):
            norms: Tensor = attention.transformed_values(self.value[head], self.output_weight[head]).norm(dim=-1)
            return norms

    def norms(self, head: int, rows: Tensor, first: int = 0, value_norms: Tensor | None = None) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, from rows of the head's pattern, [rows, n_keys]."""
        n_keys = rows.shape[-1]
        if self.gate is None:
            return rows * (self.value_norms(head) if value_norms is None else value_norms)[:n_keys]
        with without_gradients(rows.device):
            narrow = torch.linalg.qr(self.output_weight[head].mT, mode="r").R.mT  # keeps lengths; [d_head, d_head]
            value, gates = self.value[head, :n_keys], self.gate[head, first : first + len(rows)]
            return rows * torch.stack([((value * gate) @ narrow).norm(dim=-1) for gate in gates])


def pattern_row(verified: VerifiedAttention, head: HeadId, position: int) -> Tensor:
    """The verified pattern of one head at one position, [n_keys that it sees]."""
    (rows,) = replace(verified, queries=(position,)).rows(head.layer, [head.head])
    return rows.in_float32[0, 0, 0]


def layer_contributions(verified: VerifiedAttention, layer: int) -> LayerContributions:
    """Recompute one layer's values, and collect its output weights; VerificationError if the model was changed."""
    checkpoint = verified.checkpoint
    with without_gradients(checkpoint.device):
        parameters = checkpoint.parameters(layer)
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

    return check_total(verified.checkpoint, total, output, f"{parts} to the model's own attention output", where)


def check_total(
    checkpoint: Checkpoint,
    total: Tensor,
    model_numbers: Tensor,
    what: str,
    where: Callable[[int], str],
    of_pattern: bool = False,
) -> tuple[float, float]:
    """Compare what was recomputed with the model's own numbers; VerificationError if they differ too much.

    ``what`` begins the message; ``where`` puts the flat index of the largest difference in words. Returns the largest
    absolute difference as a share of the largest of the model's numbers, and this number; of a pattern it is 1.
    """
    tolerance = checkpoint.tolerance.pattern if of_pattern else checkpoint.tolerance.output
    scale = 1.0 if of_pattern else float(model_numbers.abs().max())
    difference = (total - model_numbers).abs()
    error = float(difference.max()) / (scale or 1.0)
    if not error <= tolerance:  # a NaN is a failure, too
        worst = int(difference.nan_to_num(nan=torch.inf).argmax())
        raise VerificationError(
            f"{what}: they differ most {where(worst)}: the model gives {float(model_numbers.flatten()[worst]):.6g}, "
            f"recomputed it is {float(total.flatten()[worst]):.6g}, by {error:.2g} (tolerance {tolerance:g}) of "
            f"{'1' if of_pattern else f'the largest, {scale:.6g}'}. Nothing was written. {what_to_try(checkpoint)}"
        )
    return error, scale
