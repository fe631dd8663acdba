"""The passes of an ablation: per batch an unchanged one, and one resumed at a layer for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states. On the way
back through an unchanged pass, gates on the heads say how sensitive the model is to each.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.commands.ablate.effects import BatchMetrics, HeadSet
from attnviz.commands.ablate.inputs import STATES, InputBatch, ModelInput, Tell, input_batches, kind_of, metrics_of
from attnviz.errors import VerificationError
from attnviz.measures.bootstrap import named_generator
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.texts.batches import EVERY, SampledAttention
from attnviz.trace import removal
from attnviz.trace.checks import Verification
from attnviz.trace.logits import check_logits
from attnviz.trace.recorder import refuse_not_finite
from attnviz.trace.verify import VerifiedRows

PROJECTIONS = 4
"""Random projections of final states, where there is no loss."""

_VERIFIED = 8
"""Least number of verified inputs; after these one batch in :data:`EVERY` is verified."""

_AT_ONCE = 2048
"""Least tokens of a resumed pass, which runs several copies of a small batch."""

_LOGITS_COMPARED = 8
"""Positions of the first input of a verified batch whose logits are compared with the whole model's."""


class GradientTally:
    """Sums the sensitivity of a model to each head over texts (Michel et al. 2019, section 4.1).

    Each head is multiplied by a gate, 1 in the model as it is. The derivative of a text's loss by the gate is
    Att_h(x)^T dL/dAtt_h(x): to first order, how much the loss falls when the head gives zeros. Its importance is the
    mean absolute value over texts.

    Where nothing is predicted there is no loss. Then the loss is a random projection v·s / sqrt(n) of the n final
    states s, several times: over random v the mean square of its gradient is the mean square length of ds/dgate over
    the tokens, so that its root is, to first order, how far the states move without the head.
    """

    def __init__(self, checkpoint: Checkpoint, kind: str, counts: Tensor, seed: int) -> None:
        """Start at zero; ``counts``: measured positions, [n_texts] float64, ``seed``: of the random directions."""
        self._checkpoint, self._kind, self._counts, self._seed = checkpoint, kind, counts, seed
        self._heads = [checkpoint.n_heads_of(layer) for layer in range(checkpoint.n_layers)]
        self._sums = torch.zeros(len(counts), checkpoint.n_layers, max(self._heads), dtype=torch.float64)

    def add(self, inputs: InputBatch, kept: removal.KeptPass, metrics: BatchMetrics) -> None:
        """Measure a batch, going back layer by layer: memory is that of one layer."""
        texts = torch.tensor([each.text for each in inputs.inputs])
        if self._kind != STATES:
            self._sums.index_add_(0, texts, self._back(kept, metrics.loss_gradient(1 / self._counts[texts])))
            return
        for number in range(PROJECTIONS):
            towards = self._projection(inputs, kept.final, number)
            self._sums.index_add_(0, texts, self._back(kept, towards).square() / PROJECTIONS)

    @property
    def importance(self) -> Tensor:
        """Importance of every head, mean over texts, [n_layers, n_heads]."""
        return (self._sums.sqrt() if self._kind == STATES else self._sums.abs()).mean(0)

    def _projection(self, inputs: InputBatch, final: Tensor, number: int) -> Tensor:
        """A random direction at every token, which depends on the text but not on its batch."""
        towards = torch.zeros_like(final)
        for row, each in enumerate(inputs.inputs):
            n = len(each.positions)
            generator = named_generator(f"{self._seed}:{number}:{each.item.ids}")
            towards[row, :n] = (torch.randn(n, final.shape[-1], generator=generator) / math.sqrt(n)).to(final)
        return towards

    def _back(self, kept: removal.KeptPass, gradient: Tensor) -> Tensor:
        """Gate gradients of every row, [rows, n_layers, n_heads], from the gradient by the final states."""
        if not self._checkpoint.architecture.resumable:
            return self._back_at_once(kept, gradient)
        model = self._checkpoint
        layers = model.modules
        of_gates: list[Tensor] = []
        for layer in reversed(range(model.n_layers)):
            with torch.enable_grad():
                hidden = kept.calls[layer][0][0].detach().requires_grad_()
                gate = torch.ones(len(gradient), model.n_heads).to(gradient).requires_grad_()
                with removal.gated_heads(model, layer, gate):
                    after = removal.run_block(layers[layer].block, kept, layer, hidden)
                if layer == model.n_layers - 1:
                    after = model.architecture.final_states(model.model, after)
            gradient, of_gate = _gradients(after, (hidden, gate), gradient, layer)
            of_gates.insert(0, of_gate.detach().double().cpu())
        return torch.stack(of_gates, dim=1)

    def _back_at_once(self, kept: removal.KeptPass, gradient: Tensor) -> Tensor:
        """The same for a model that is not resumable, in one graph of all layers; 0 where a layer has fewer heads."""
        model, rows = self._checkpoint, len(gradient)
        with torch.enable_grad(), ExitStack() as stack:
            gates = [torch.ones(rows, n).to(gradient).requires_grad_() for n in self._heads]
            for layer, gate in enumerate(gates):
                stack.enter_context(removal.gated_heads(model, layer, gate))
            final = removal.final_states(model, kept.inputs)
            of_gates = torch.autograd.grad(final, gates, gradient)
        padded = torch.stack([pad(each.double().cpu(), (0, max(self._heads) - each.shape[1])) for each in of_gates], 1)
        refuse_not_finite(padded, "gradient by its heads")
        return padded


def _gradients(after: Tensor, of: tuple[Tensor, Tensor], gradient: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Gradients by a layer's input and gates; the error for an unused output names the layer."""
    try:
        by_input, by_gates = torch.autograd.grad(after, of, gradient)
    except RuntimeError as error:  # torch's own, where one of them is not in the graph
        raise VerificationError(
            f"the output of layer {layer} does not depend on its input and its heads, so that no gradient reaches "
            f"them ({' '.join(str(error).split())[:120]}); expected a layer that passes on what its heads add."
        ) from error
    refuse_not_finite(by_gates, f"gradient by the heads of layer {layer}")
    return by_input, by_gates


@dataclass(frozen=True)
class SampleVerification:
    """Errors of the verified sample; it exists only if all checks passed.

    Both errors are largest differences, as a share of the largest value compared.
    """

    attention: Verification  # patterns and attention outputs, by the reference attention
    n_inputs: int  # on which all of this was compared
    values_error: float  # of each head's weighted values from the reference's
    # of final states resumed at any layer by the model's own blocks, nothing removed, from those of a whole pass: that
    # resuming changes nothing
    resumed_error: float
    tolerance: float  # of both errors


class Passes:
    """Measures sets of heads on the inputs of texts, batch by batch.

    ``counts``: measured positions of each text in each sum, [n_texts, n_sums], float64, the first of all. ``clean``: as
    of :class:`BatchMetrics`, by text, [2, n_texts]; None before the first run, too.
    """

    def __init__(
        self, checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int, weights: Sequence[Tensor]
    ) -> None:
        """``weights``: as of :class:`BatchMetrics`, by text."""
        self._checkpoint, self._inputs, self._batch_size, self._weights = checkpoint, inputs, batch_size, weights
        self.counts = torch.stack([each.sum(0) for each in weights])
        self.clean: Tensor | None = None
        self._attention, self._tolerance = SampledAttention(checkpoint), checkpoint.tolerance.output
        self._errors = {"values_error": 0.0, "resumed_error": 0.0}

    @property
    def verified(self) -> SampleVerification:
        """Errors of what was compared so far."""
        attention = self._attention
        return SampleVerification(
            attention.verification, attention.texts_verified, **self._errors, tolerance=self._tolerance
        )

    def run(
        self,
        replacement: removal.Replacement,
        wanted: Sequence[HeadSet],
        tell: Tell,
        gradients: GradientTally | None = None,
    ) -> dict[HeadSet, Tensor]:
        """The metrics without each set of heads, in sums: [n_texts, n_sums, n_metrics], float64.

        All share the unchanged passes. The first run verifies a sample of the batches; ``gradients`` is filled on the
        way.

        Raises:
            VerificationError: the heads, resumed passes, or the head for logits do not reproduce the model.
        """
        n_metrics = len(metrics_of(kind_of(self._checkpoint)))
        sums = torch.zeros(len(wanted), *self.counts.shape, n_metrics, dtype=torch.float64)
        clean = torch.zeros(2, len(self.counts), dtype=torch.float64)
        first = not self._attention.texts_verified
        tell(done := 0, len(self._inputs))
        with removal.running(self._checkpoint):
            for number, inputs in enumerate(input_batches(self._checkpoint, self._inputs, self._batch_size)):
                texts = torch.tensor([each.text for each in inputs.inputs])
                few = self._attention.texts_verified < _VERIFIED
                verifying = first and (few or number % EVERY == 0)  # in a drawn order: a sample
                kept = removal.run_and_keep(self._checkpoint, inputs.batch.inputs, inside=verifying)
                if verifying:
                    self._verify(inputs, kept)
                metrics = BatchMetrics(self._checkpoint, inputs, kept.final, self._weights)
                for numbers, changes in self._changes(replacement, wanted, inputs, kept, metrics):
                    sums[numbers] = sums[numbers].index_add(1, texts, changes)
                if gradients is not None:
                    gradients.add(inputs, kept, metrics)
                if metrics.clean is not None:
                    self.clean = clean.index_add_(1, texts, metrics.clean)
                tell(done := done + len(inputs.inputs), len(self._inputs))
        return dict(zip(wanted, sums, strict=True))

    def _changes(
        self,
        replacement: removal.Replacement,
        wanted: Sequence[HeadSet],
        inputs: InputBatch,
        kept: removal.KeptPass,
        metrics: BatchMetrics,
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield numbers of sets and their changes per row; sets of one first layer share passes."""
        by_layer: dict[int, list[int]] = {}
        for number, heads in enumerate(wanted):
            by_layer.setdefault(min(heads).layer, []).append(number)
        tensors = inputs.batch.inputs
        masks = [tensors[name] for name in ("attention_mask", "decoder_attention_mask") if name in tensors]
        copies = max(1, _AT_ONCE // masks[0].numel())
        for layer, numbers in by_layer.items():
            for first in range(0, len(numbers), copies):
                some = numbers[first : first + copies]
                variants = [wanted[number] for number in some]
                with removal.removed_heads(self._checkpoint, variants, replacement, *masks):
                    final = removal.resume(self._checkpoint, kept, layer, len(some))
                yield some, metrics.changes(final)

    def _verify(self, inputs: InputBatch, kept: removal.KeptPass) -> None:
        """Compare an unchanged pass with the reference and with resumed passes, and its logits with the model's."""
        values: dict[int, Tensor] = {}  # of the layer that attends

        def compare(rows: VerifiedRows) -> None:
            if rows.layer not in values:
                values.clear()
                parameters = self._checkpoint.architecture.parameters(self._checkpoint.model, rows.layer)
                values[rows.layer] = attention.values(kept.attention_inputs[rows.layer], parameters)
            self._compare_values(inputs, kept, rows, values[rows.layer])

        self._attention.verify(inputs.batch, compare)
        own = kept.final[inputs.batch.predicting]
        if kind_of(self._checkpoint) != STATES:
            at = list(inputs.inputs[0].positions[-_LOGITS_COMPARED:])
            alone = {name: tensor[:1] for name, tensor in inputs.batch.inputs.items()}
            check_logits(self._checkpoint, alone, kept.final[0, at], at)
        for layer in self._checkpoint.layers:
            again = removal.resume(self._checkpoint, kept, layer)[inputs.batch.predicting]
            what = (
                f"a pass resumed at layer {layer}, with nothing removed, does not reproduce the model's final states: "
                "they differ"
            )
            self._check("resumed_error", (again - own).abs(), own, what, "the largest")

    def _compare_values(self, inputs: InputBatch, kept: removal.KeptPass, rows: VerifiedRows, value: Tensor) -> None:
        n_rows, n_keys = rows.pattern.shape[-2:]
        layer, at, valid = rows.layer, slice(rows.first, rows.first + n_rows), inputs.batch.queries(rows.layer)
        expected = torch.matmul(rows.pattern, value[..., :n_keys, :]).transpose(1, 2)[valid[:, at]]
        if not len(expected):  # padding alone
            return
        own = kept.o_proj[layer]
        difference = (own[:, at][valid[:, at]].reshape(expected.shape) - expected).abs().amax((0, 2))
        head = HeadId(layer, int(difference.nan_to_num(nan=torch.inf).argmax()))
        what = f"what is to be removed of {head} differs from what the reference gives for it"
        self._check("values_error", difference, own[valid], what, "the layer's largest weighted value")

    def _check(self, name: str, difference: Tensor, values: Tensor, what: str, largest: str) -> None:
        """Compare as a share of the largest value; NaN is within no tolerance."""
        scale, error = float(values.abs().max()), float(difference.max())
        error = error / scale if scale > 0 else error
        self._errors[name] = max(self._errors[name], error)
        if not error <= self._tolerance:
            raise VerificationError(
                f"{what} by {error:.1e} of {largest} (tolerance {self._tolerance:g}). Nothing was written."
            )


def mean_values(checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int, tell: Tell) -> list[Tensor]:
    """The mean weighted value of every head over all tokens, special ones too, a layer each [n_heads, d_head], float64.

    In the decoder and in cross-attention of an encoder-decoder, tokens are those of the target.
    """
    sums = torch.zeros(checkpoint.n_layers, checkpoint.n_heads * checkpoint.d_head, dtype=torch.float64)
    tokens, done = torch.zeros(checkpoint.n_layers, dtype=torch.float64), 0
    with removal.running(checkpoint):
        for each in input_batches(checkpoint, inputs, batch_size):
            kept = removal.run_and_keep(checkpoint, each.batch.inputs)
            for layer in checkpoint.layers:
                valid = each.batch.queries(layer)
                sums[layer] += kept.o_proj[layer][valid].double().sum(0).cpu()
                tokens[layer] += int(valid.sum())
            tell(done := done + len(each.inputs), len(inputs))
    means = sums / tokens[:, None]
    return [of_layer.reshape(checkpoint.n_heads_of(layer), -1) for layer, of_layer in enumerate(means)]
