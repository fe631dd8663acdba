"""One layer of a model on one text, step by step: what was computed, and how it was verified."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.explain.position_share import PositionShares, position_shares
from attnviz.commands.explain.stages import VerifiedStages, check_layer, verify_stages
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId
from attnviz.model.opening import Model, open_checkpoint
from attnviz.model.tokens import Tokens, find_positions

__all__ = ["Explained", "LayerEnd", "explain_layer", "layer_and_head"]


@dataclass(frozen=True)
class LayerEnd:
    """How closely one of all layers was reproduced.

    Attributes:
        layer: counted from 0.
        compared: steps that were compared with the model.
        worst: the name of the step that differs most, as a share of its tolerance.
        worst_error: its largest difference, as a share of its largest value.
        output_error: the same of the layer's output.
    """

    layer: int
    compared: int
    worst: str
    worst_error: float
    output_error: float


@dataclass(frozen=True)
class Explained:
    """One layer on one text.

    Attributes:
        checkpoint: the model.
        text: as given.
        pair: the second segment; None where there is none.
        tokens: what the model reads.
        head: the head that is followed, of the layer that is explained.
        token: the position of the token that is followed.
        stages: every step of the layer, verified.
        positions: content and position in the scores; None unless the layer is the first.
        layers: how closely every layer was reproduced; None where only this one was asked for.
    """

    checkpoint: Checkpoint
    text: str
    pair: str | None
    tokens: Tokens
    head: HeadId
    token: int
    stages: VerifiedStages
    positions: PositionShares | None
    layers: tuple[LayerEnd, ...] | None

    @property
    def layer(self) -> int:
        """The layer that is explained."""
        return self.stages.layer

    @property
    def pre_norm(self) -> bool:
        """Whether layer norms stand before attention and feed-forward network."""
        return self.checkpoint.architecture.pre_norm

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward network."""
        return self.stages["expanded"].shape[-1]

    @property
    def activation(self) -> str:
        """The name of its activation."""
        return str(getattr(self.checkpoint.config, self.checkpoint.architecture.activation_setting))

    def tensor(self, name: str) -> Tensor:
        """A step's numbers on the CPU, in float32 at least (the mask as 0 and 1).

        Raises:
            UsageError: there is no such step.
        """
        return self.stages[name].wide


def layer_and_head(layer: int | None, head: str | int | HeadId | None, checkpoint: Checkpoint) -> HeadId:
    """The layer to explain and the head to follow: by default the first.

    Args:
        layer: as asked for; None for that of the head, or the first.
        head: its number in the layer, ``L2H8``, or a HeadId.
        checkpoint: the model.

    Raises:
        UsageError: the model has no such layer or head, or the two contradict each other.
    """
    if isinstance(head, bool) or not (head is None or isinstance(head, str | int | HeadId)):
        raise UsageError(f"expected the head to follow as a number, such as 3, or as 'L2H3', found {head!r}.")
    if layer is not None:
        check_layer(checkpoint, layer)
    alone = isinstance(head, int) or (isinstance(head, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", head) is not None)
    named = None if head is None or alone else HeadId.parse(str(head))
    if named is not None and layer is not None and named.layer != layer:
        raise UsageError(f"--head {named} is not in the layer that --layer names, {layer}; leave one of them out.")
    number = int(head) if isinstance(head, str | int) and named is None else 0
    found = named or HeadId(layer or 0, number)
    check_layer(checkpoint, found.layer)
    if not 0 <= found.head < checkpoint.n_heads:
        raise UsageError(
            f"layer {found.layer} of {checkpoint.name} has no head {found.head}: "
            f"expected one from 0 to {checkpoint.n_heads - 1}, or an id such as L{found.layer}H0."
        )
    return found


def explain_layer(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    layer: int | None = None,
    head: str | int | HeadId | None = None,
    token: str | None = None,
    every_layer: bool = False,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    truncate: bool = False,
    progress: Callable[[str, int, int], None] = lambda _, __, ___: None,
) -> Explained:
    """Recompute every step of a layer and compare it with the running model.

    Args:
        text: the text.
        model: see :data:`attnviz.model.opening.Model`.
        tokenizer: of a model in memory.
        pair: a second segment (BERT).
        layer: counted from 0; default the first.
        head: to follow, a number, ``L2H8`` or a HeadId; default the layer's first.
        token: to follow, as figures show it or ``#3``; default the last of the text.
        every_layer: verify all layers, not only this one.
        revision: of a hub model.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        truncate: cut a text that is longer than the model.
        progress: told what is done, how far, of how much.

    Raises:
        AttnvizError: the model cannot be read, or lacks the layer, head or token.
        VerificationError: a step differs from the model's own.
    """
    checkpoint, _ = open_checkpoint(model, tokenizer, revision, device, dtype)
    followed = layer_and_head(layer, head, checkpoint)
    tokens = checkpoint.tokenize(text, pair, truncate)
    position = _followed(tokens, token)
    kept: list[VerifiedStages] = []
    ends: list[LayerEnd] = []
    layers = range(checkpoint.n_layers) if every_layer else [followed.layer]

    def visit(verified: VerifiedStages) -> None:
        ends.append(_end(verified))
        if verified.layer == followed.layer:
            kept.append(verified)
        progress("verifying", len(ends), len(layers))

    verify_stages(checkpoint, tokens, layers, visit)
    (stages,) = kept
    positions = position_shares(checkpoint, tokens, stages) if followed.layer == 0 else None
    every = tuple(ends) if every_layer else None
    return Explained(checkpoint, text, pair, tokens, followed, position, stages, positions, every)


def _followed(tokens: Tokens, token: object) -> int:
    """The position of the token to follow; by default the last one that is not special, or the last one."""
    if isinstance(token, str):
        return find_positions(tokens.labels, token)[0]
    if token is not None:
        raise UsageError(
            "expected the token to follow (token) as a string, its text or '#' and its position, such as 'cat' or "
            f"'#3', found {token!r}."
        )
    of_text = [position for position, special in enumerate(tokens.special) if not special]
    return of_text[-1] if of_text else len(tokens) - 1


def _end(verified: VerifiedStages) -> LayerEnd:
    worst, output = verified.worst, verified["output"]
    assert worst.check is not None
    assert output.check is not None
    return LayerEnd(verified.layer, len(verified.compared), worst.name, worst.check.error, output.check.error)
