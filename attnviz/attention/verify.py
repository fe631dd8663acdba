"""Recompute every head with the reference attention and hold it against the model's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.attention.capture import LayerRecord, capture_layers
from attnviz.attention.checks import LayerCheck, Verification, compare_layer, locate, within
from attnviz.attention.tolerances import Tolerance
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import LayerId
from attnviz.model.tokens import Tokens
from attnviz.progress import Progress, tell

_SAME_WEIGHTS = 1e-4
"""Fingerprints of a pattern that is recomputed from the same weights differ by rounding alone, in any number format."""


@dataclass(frozen=True)
class VerifiedLayer:
    """The reference patterns of a layer, [batch, n_heads, n_queries, n_keys], each held against the model's own.

    Construction fails where the ``check`` is not within the tolerance.
    """

    check: LayerCheck
    tolerance: Tolerance
    pattern: Tensor

    @property
    def wide(self) -> Tensor:
        """The pattern in float32 at least, so that sums over it are exact enough for statistics."""
        return self.pattern if self.pattern.dtype == torch.float64 else self.pattern.float()

    def __post_init__(self) -> None:
        """Refuse what did not verify, so that no number can be taken from it."""
        if not within(self.check, self.tolerance) or self.check.heads_compared != self.pattern.shape[1]:
            raise VerificationError(f"layer {self.check.layer} did not verify: {self.check}")


@dataclass(eq=False)
class VerifiedAttention:
    """The verified heads of one text: patterns are recomputed on demand, not kept.

    Only the d_model-sized inputs and outputs of the layers stay in memory. A recomputed layer must match the
    fingerprint taken at verification, so a model that was changed in between is noticed. Made by
    :func:`verify_attention`, at level 1 by :mod:`attnviz.attention.interface`; lists are in the order of the layers.
    """

    checkpoint: Checkpoint
    tokens: Tokens
    verification: Verification
    _inputs: list[Tensor]
    _outputs: list[Tensor]
    _fingerprints: list[Tensor]
    _sources: list[Tensor | None]
    _target: Tokens | None = None

    def tokens_of(self, layer: int) -> tuple[Tokens, Tokens]:
        """The tokens of a layer's queries and of its keys; other than :attr:`tokens` in an encoder-decoder alone."""
        return _read_by(self.checkpoint.layers[layer], self.tokens, self._target)

    def attention_input(self, layer: int) -> Tensor:
        """What W_Q, W_K and W_V of a layer are applied to, as the model gave it, [1, n, d_model]."""
        return self._inputs[layer]

    def keys_input(self, layer: int) -> Tensor:
        """What W_K and W_V are applied to, [1, n_keys, d_model]; of cross-attention the encoder's states."""
        source = self._sources[layer]
        return self._inputs[layer] if source is None else source

    def model_output(self, layer: int) -> Tensor:
        """The model's own attention output of a layer, after W_O and b_O, before the residual, [1, n, d_model]."""
        return self._outputs[layer]

    def layer(self, layer: int) -> VerifiedLayer:
        """Recompute the patterns of one layer.

        Raises:
            VerificationError: the model's weights are no longer those that were verified.
        """
        x, model = self._inputs[layer], self.checkpoint
        if (x.dtype, x.device) != (model.dtype, model.device):
            raise VerificationError(
                f"the model was verified in {x.dtype} on {x.device}, but is now in {model.dtype} on {model.device}; "
                "analyze again."
            )
        pattern, _ = _recompute(model, layer, x, self._sources[layer])
        if not torch.allclose(_fingerprint(pattern), self._fingerprints[layer], rtol=_SAME_WEIGHTS, atol=_SAME_WEIGHTS):
            raise VerificationError(
                f"layer {layer} no longer gives the verified patterns: "
                "the model's weights changed since; analyze again."
            )
        return VerifiedLayer(self.verification.layers[layer], self.verification.tolerance, pattern)


def verify_attention(
    checkpoint: Checkpoint,
    tokens: Tokens,
    visit: Callable[[VerifiedLayer], None] = lambda _: None,
    progress: Progress | None = None,
    target: Tokens | None = None,
) -> VerifiedAttention:
    """Run the model once on a text; recompute, compare and hand over its attention layer by layer.

    For every layer the reference recomputes, from the layer's input and the checkpoint's parameters, the pattern of
    every head and the attention output after W_O, and compares both with the model's own. ``visit`` is called with each
    verified layer, first layer first; its pattern is dropped afterwards. ``target`` is what the decoder of an
    encoder-decoder reads.

    Raises:
        VerificationError: a layer differs by more than the tolerance of the dtype; the message
            names the place of the worst difference.
    """
    tolerance = checkpoint.tolerance
    checks: dict[int, LayerCheck] = {}
    kept: dict[int, tuple[Tensor, Tensor, Tensor, Tensor | None]] = {}
    mismatches: list[tuple[float, str]] = []

    def compare(record: LayerRecord) -> None:
        queries, keys = _read_by(record.layer, tokens, target)
        pattern, output = _recompute(checkpoint, record.layer, record.attention_input, record.source)
        check = compare_layer(record, pattern, output, checkpoint)
        checks[record.layer] = check
        if not within(check, tolerance):
            labels = (lambda _: queries.labels), (lambda _: keys.labels)
            mismatches.append(locate(record, pattern, output, check, checkpoint, *labels))
        if mismatches:
            return
        kept[record.layer] = record.attention_input, record.output, _fingerprint(pattern), record.source
        visit(VerifiedLayer(check, tolerance, pattern))
        tell(progress, "verifying", len(checks), checkpoint.n_layers)

    tell(progress, "verifying", 0, checkpoint.n_layers)
    model_inputs = tokens.model_inputs(checkpoint.device)
    if target is not None:
        model_inputs |= {f"decoder_{name}": given for name, given in target.model_inputs(checkpoint.device).items()}
    capture_layers(checkpoint, model_inputs, compare)
    if mismatches:
        _, worst = max(mismatches, key=lambda mismatch: mismatch[0])
        raise VerificationError(
            f"the recomputed heads do not reproduce the model: {len(mismatches)} of {len(checks)} layers differ. "
            f"{worst} Nothing was written. Try --dtype float64: it makes rounding smaller, but not an error."
        )
    verification = Verification(tolerance, tuple(checks[layer] for layer in sorted(checks)))
    inputs, outputs, fingerprints, sources = map(list, zip(*(kept[layer] for layer in sorted(kept)), strict=True))
    return VerifiedAttention(checkpoint, tokens, verification, inputs, outputs, fingerprints, sources, target)


def _read_by(layer: int, tokens: Tokens, target: Tokens | None) -> tuple[Tokens, Tokens]:
    """The tokens of a layer's queries and of its keys."""
    letter = layer.stack.letter if target is not None and isinstance(layer, LayerId) else "E"
    target = tokens if target is None else target
    return {"E": (tokens, tokens), "D": (target, target), "X": (target, tokens)}[letter]


def verify_record(
    checkpoint: Checkpoint,
    record: LayerRecord,
    attention_mask: Tensor,
    labels: Callable[[int], Sequence[str]],
    keys: Callable[[int], Sequence[str]] | None = None,
) -> VerifiedLayer:
    """Recompute one layer of a batch and compare it with what the model gave.

    ``attention_mask`` is [batch, n_keys], 1 for a token and 0 for padding. ``labels`` lead from a text's place in the
    batch to the names of its tokens, for the message; ``keys`` likewise, of what is attended to in another text.

    Raises:
        VerificationError: they differ by more than the tolerance of the dtype.
    """
    pattern, output = _recompute(checkpoint, record.layer, record.attention_input, record.source, attention_mask)
    check = compare_layer(record, pattern, output, checkpoint)
    if not within(check, checkpoint.tolerance):
        _, where = locate(record, pattern, output, check, checkpoint, labels, keys)
        raise VerificationError(f"the recomputed heads do not reproduce the model. {where} Nothing was written.")
    return VerifiedLayer(check, checkpoint.tolerance, pattern)


def _recompute(
    checkpoint: Checkpoint, layer: int, x: Tensor, source: Tensor | None, attention_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The pattern and the output of a layer; keys come from ``source``, where that is another text than x."""
    if attention_mask is None:
        keys = x if source is None else source
        attention_mask = torch.ones(keys.shape[:2], dtype=torch.long, device=x.device)
    with torch.inference_mode(), torch.autocast(x.device.type, enabled=False):
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
        if source is not None:
            return attention.multi_head_attention(x, parameters, attention_mask.bool()[:, None, None, :], source)
        allowed = attention.allowed_positions(attention_mask, parameters.causal, parameters.window)
        return attention.multi_head_attention(x, parameters, allowed)


def _fingerprint(pattern: Tensor) -> Tensor:
    """A few numbers a head that change when any weight does, or when weights or heads change places.

    Products with fixed random vectors on both sides, [batch, n_heads, 4].
    """
    generator = torch.Generator().manual_seed(0)
    n_queries, n_keys = pattern.shape[-2:]
    vectors = torch.rand(5, max(n_queries, n_keys), generator=generator).to(pattern)
    fingerprint: Tensor = vectors[0, :n_queries] @ (pattern @ vectors[1:, :n_keys].T)
    return fingerprint.float()
