"""Importance of heads by gradients (Michel et al. 2019): gates on the heads, on the way back through a pass."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import VerificationError
from attnviz.measures.bootstrap import named_generator
from attnviz.measures.predictions import BatchMetrics
from attnviz.models.checkpoint import Checkpoint
from attnviz.run import edit
from attnviz.run.finite import refuse_not_finite
from attnviz.run.passes import Pass

PROJECTIONS = 4  # random projections of final states, where there is no loss


class GradientTally:
    """Sums the sensitivity of a model to each head over texts (Michel et al. 2019, section 4.1).

    Each head is multiplied by a gate, 1 in the model as it is. The derivative of a text's loss by the gate is
    Att_h(x)^T dL/dAtt_h(x): to first order, how much the loss falls when the head gives zeros. Its importance is the
    mean absolute value over texts.

    Where nothing is predicted, the loss is a random projection v·s / sqrt(n) of the n final states s, several times:
    the root mean square of its derivatives is, to first order, how far the states move without the head.
    """

    def __init__(self, checkpoint: Checkpoint, predicts: bool, counts: Tensor, seed: int) -> None:
        """``counts``: measured positions, [n_texts] float64; ``seed``: of the random directions."""
        self._checkpoint, self._predicts, self._counts, self._seed = checkpoint, predicts, counts, seed
        self._n_heads = [checkpoint.n_heads_of(layer) for layer in range(checkpoint.n_layers)]
        self._sums = torch.zeros(len(counts), checkpoint.n_layers, max(self._n_heads), dtype=torch.float64)

    def add(self, unchanged: Pass, metrics: BatchMetrics) -> None:
        """Measure a batch."""
        inputs, kept, _ = unchanged
        texts = torch.tensor(inputs.texts)
        if self._predicts:
            gradient = metrics.loss_gradient(kept.final, 1 / self._counts[texts])
            self._sums.index_add_(0, texts, self._gate_gradients(kept, gradient))
            return
        for number in range(PROJECTIONS):
            direction = torch.zeros_like(kept.final)  # at every token; it depends on the text but not on its batch
            for row, text in enumerate(inputs.inputs):
                n = len(text.positions)
                generator = named_generator(f"{self._seed}:{number}:{text.item.ids}")
                direction[row, :n] = (torch.randn(n, direction.shape[-1], generator=generator) / n**0.5).to(direction)
            self._sums.index_add_(0, texts, self._gate_gradients(kept, direction).square() / PROJECTIONS)

    @property
    def importance(self) -> Tensor:
        """Importance of every head, mean over texts, [n_layers, n_heads]."""
        return (self._sums.abs() if self._predicts else self._sums.sqrt()).mean(0)

    def _gate_gradients(self, kept: edit.KeptPass, gradient: Tensor) -> Tensor:
        """Derivatives by the gates, [rows, n_layers, n_heads], 0 where a layer has fewer heads.

        Where a pass can be resumed, layers are run again one by one from the last; else all are one graph.
        """
        model = self._checkpoint
        of_gates: Sequence[Tensor]
        if model.architecture.resumable and not model.other_layers:
            of_gates = self._by_layer(kept, gradient)
        else:
            gates = [gradient.new_ones(len(gradient), n, requires_grad=True) for n in self._n_heads]
            with torch.enable_grad(), edit.edited(model, [[edit.gated(*gate) for gate in enumerate(gates)]]):
                of_gates = torch.autograd.grad(edit.run_model(model, kept.inputs), gates, gradient)
        widest = max(self._n_heads)
        stacked = torch.stack([pad(of_gate.double().cpu(), (0, widest - of_gate.shape[1])) for of_gate in of_gates], 1)
        refuse_not_finite(stacked, "gradient by its heads")
        return stacked

    def _by_layer(self, kept: edit.KeptPass, gradient: Tensor) -> list[Tensor]:
        model = self._checkpoint
        layers = model.modules
        of_gates = list[Tensor]()
        for layer in reversed(range(model.n_layers)):
            with torch.enable_grad():
                hidden = kept.calls[layer][0][0].detach().requires_grad_()
                gate = gradient.new_ones(len(gradient), self._n_heads[layer], requires_grad=True)
                with edit.edited(model, [[edit.gated(layer, gate)]]):
                    after = edit.run_block(layers[layer].block, kept, layer, hidden)
                if layer == model.n_layers - 1:
                    after = model.architecture.final_states(model.model, after)
            try:
                gradient, of_gate = torch.autograd.grad(after, (hidden, gate), gradient)
            except RuntimeError as error:  # torch's own, where one of them is not in the graph
                raise VerificationError(
                    f"the output of layer {layer} does not depend on its input and its heads, so that there is no "
                    "gradient; expected a layer that passes on what its heads add."
                ) from error
            of_gates.insert(0, of_gate)
        return of_gates
