"""Patterns of families that are not declared: from the queries and keys that the model itself computes.

A function of ours takes the place of the model's attention in transformers' attention interface. It calls the model's
own eager attention and recomputes the pattern beside it: softmax(scale q k^T) over the keys that the kind of
architecture allows. The mask is our own, since a model whose mask is lost would agree with its own lost mask; and the
final states have to be those of the untouched model.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.attention.capture import eager_and_eval, refuse_not_finite
from attnviz.attention.checks import LayerCheck, Verification, compare_patterns, within, worst_place
from attnviz.attention.verify import VerifiedAttention, VerifiedLayer
from attnviz.errors import ArchitectureError, VerificationError
from attnviz.model.architectures.undeclared import EAGER
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId
from attnviz.model.libraries import calling_transformers
from attnviz.model.tokens import Tokens
from attnviz.progress import Progress, tell

_NAME = "attnviz"


@dataclass(frozen=True)
class _Given:
    """What the model gave to its attention in one layer: queries [1, n_heads, n, d_head], keys of as many or fewer."""

    query: Tensor
    key: Tensor
    scale: float
    cap: float | None

    def pattern(self, allowed: Tensor) -> Tensor:
        """The pattern [1, n_heads, n, n] over the keys that are allowed."""
        key = attention.shared_by_groups(self.key, self.query.shape[1])
        scores = attention.attention_scores(self.query, key, self.scale)
        scores = scores if self.cap is None else attention.capped(scores, self.cap)
        wide = scores if scores.dtype == torch.float64 else scores.float()
        return attention.attention_pattern(wide, allowed).to(self.query.dtype)


class _GivenAttention(VerifiedAttention):
    """Patterns that are recomputed on demand from the queries and keys that the model gave."""

    def __init__(self, checkpoint: Checkpoint, tokens: Tokens, verification: Verification, given: list[_Given]) -> None:
        super().__init__(checkpoint, tokens, verification, [], [], [], [])
        self._given = given

    def layer(self, layer: int) -> VerifiedLayer:
        """Recompute the patterns of one layer."""
        pattern = self._given[layer].pattern(_allowed(self.checkpoint, len(self.tokens), layer))
        return VerifiedLayer(self.verification.layers[layer], self.verification.tolerance, pattern)


def compare_given_patterns(
    checkpoint: Checkpoint,
    tokens: Tokens,
    visit: Callable[[VerifiedLayer], None],
    progress: Progress | None = None,
) -> VerifiedAttention:
    """Run the model twice, untouched and with our function; recompute its patterns and hand them over layer by layer.

    That is level 1 of :attr:`attnviz.attention.checks.Verification.level`, with the final states compared besides.
    ``visit`` is called with each layer of a family that is not declared, first layer first.

    Raises:
        ArchitectureError: not all layers go through the interface, or one has a window on both sides.
        VerificationError: a pattern or a final state is not the model's own.
    """
    n, checks, every = len(tokens), list[LayerCheck](), list[_Given]()
    _refuse_two_sided(checkpoint, n)

    def compare(given: _Given, own: Tensor | None) -> None:
        layer = len(every)
        if layer >= checkpoint.n_layers or own is None or own.shape != (1, checkpoint.n_heads, n, n):
            raise _not_through(checkpoint)
        pattern = given.pattern(_allowed(checkpoint, n, layer))
        check = compare_patterns(layer, pattern, own, checkpoint.tolerance)
        if not within(check, checkpoint.tolerance):
            raise _differs(checkpoint, tokens, layer, pattern, own)
        every.append(given)
        checks.append(check)
        visit(VerifiedLayer(check, checkpoint.tolerance, pattern))
        tell(progress, "verifying", len(checks), checkpoint.n_layers)

    tell(progress, "verifying", 0, checkpoint.n_layers)
    with eager_and_eval(checkpoint.model):
        with calling_transformers(f"this {checkpoint.architecture.name!r} does not run on a text", ArchitectureError):
            untouched = _final_states(checkpoint, tokens)
        with _through(compare, checkpoint.model):
            states = _final_states(checkpoint, tokens)
    if len(every) != checkpoint.n_layers:
        raise _not_through(checkpoint)
    if not torch.equal(states, untouched):
        raise VerificationError(
            "the patterns were taken in a run whose final states are not those of the untouched model: they differ by "
            f"up to {float((states - untouched).abs().max()):.2g}. Nothing was written."
        )
    return _GivenAttention(checkpoint, tokens, Verification(checkpoint.tolerance, tuple(checks), level=1), every)


def _allowed(checkpoint: Checkpoint, n: int, layer: int) -> Tensor:
    mask = torch.ones(1, n, dtype=torch.long, device=checkpoint.device)
    return attention.allowed_positions(mask, checkpoint.architecture.causal, checkpoint.windows[layer])


def _refuse_two_sided(checkpoint: Checkpoint, n: int) -> None:
    narrow = [window for window in checkpoint.windows if window is not None and window < n]
    if narrow and not checkpoint.architecture.causal:
        raise ArchitectureError(
            f"{checkpoint.architecture.name!r} has windows on both sides of a token ({min(narrow)} tokens), which are "
            f"not recomputed; give a text of at most {min(narrow)} tokens, found {n}."
        )


def _not_through(checkpoint: Checkpoint) -> ArchitectureError:
    return ArchitectureError(
        f"not every layer of this {checkpoint.architecture.name!r} goes once through transformers' attention interface "
        f"with {checkpoint.n_heads} heads; --any-family recomputes nothing else."
    )


def _differs(checkpoint: Checkpoint, tokens: Tokens, layer: int, pattern: Tensor, own: Tensor) -> VerificationError:
    batch, head, query, key = worst_place((pattern - own).abs())
    return VerificationError(
        f"softmax(scale q k) over the keys that {checkpoint.architecture.name!r} allows is not its attention: "
        f"{HeadId(layer, head)} gives {tokens.labels[query]!r} (#{query}) of {tokens.labels[key]!r} (#{key}) "
        f"{float(own[batch, head, query, key]):.6g}, recomputed {float(pattern[batch, head, query, key]):.6g} "
        f"(tolerance {checkpoint.tolerance.pattern:g}). Nothing was written."
    )


def _final_states(checkpoint: Checkpoint, tokens: Tokens) -> Tensor:
    """Of one run of the model, as it is set."""
    model: Any = checkpoint.model
    inputs: dict[str, Any] = tokens.model_inputs(checkpoint.device)
    if "use_cache" in signature(model.forward).parameters:
        inputs["use_cache"] = False
    with torch.inference_mode(), torch.autocast(checkpoint.device.type, enabled=False):
        states: Tensor = model(**inputs)[0]
    refuse_not_finite(states, "final hidden state")
    return states


@contextmanager
def _through(compare: Callable[[_Given, Tensor | None], None], model: Any) -> Iterator[None]:
    """The model, which has eager attention, with our function as its attention for the time of one pass."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any) -> Any:
        own: Any = getattr(sys.modules[type(module).__module__], EAGER)
        result = own(module, query, key, value, mask, **more)
        scale = more.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        compare(_Given(query, key, scale, more.get("softcap")), result[1])
        return result

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, eager_mask)  # without it the model would run without any mask
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("eager")
