"""The residual stream that logits are made of, as the model's own modules gave it in a forward pass."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnviz.attention.contributions import error_of_sum
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import LayerId


@dataclass
class ResidualStream:
    """What the model's own modules gave in one forward pass, of one text.

    Attributes:
        first: what the first layer was given, [n, d_model].
        feed_forward: a layer each, what its feed-forward network added, [n, d_model].
        last: the residual stream after the last layer, before its last norm, [n, d_model].
        normed: the final state: the same after the final norm, or that of the last layer, [n, d_model].
    """

    first: Tensor | None = None
    feed_forward: list[Tensor] = field(default_factory=list)
    last: Tensor | None = None
    normed: Tensor | None = None


def why_no_attribution(checkpoint: Checkpoint) -> str:
    """Why the logits of this model are no sum over heads, in one sentence; empty where they are."""
    if (classifier := checkpoint.classifier) is not None:
        why = classifier.why_no_classes and f": {classifier.why_no_classes}"
        return f"Promoted tokens are not given: this checkpoint has a head for sequence classification{why}."
    if not checkpoint.architecture.pre_norm or checkpoint.architecture.final_norm(checkpoint.model) is None:
        return (
            "Promoted tokens are not given: in BERT and its relatives every residual passes through later layer norms, "
            "and a masked-LM head begins with a transform that is not linear, so that no head's part of the logits can "
            "be told apart."
            if not checkpoint.stacks
            else "Promoted tokens are not given: in this model every residual passes through later layer norms, so "
            "that no head's part of the logits can be told apart; they are in T5 and mT5."
        )
    if checkpoint.language_head is None:
        return (
            "Promoted tokens are not given: the model has no language-modelling head; load one that has "
            f"({checkpoint.architecture.language_class})."
        )
    if not hasattr(checkpoint.language_head, "weight"):
        return (
            "Promoted tokens are not given: this model bounds its logits (final_logit_softcapping), so that they are "
            "no sum of parts."
        )
    return ""


@contextmanager
def recording_stream(checkpoint: Checkpoint) -> Iterator[ResidualStream]:
    """Read feed-forward networks and the last norm in the last forward pass inside, where logits can be taken apart."""
    stream = ResidualStream()
    if why_no_attribution(checkpoint) and checkpoint.classifier is None:
        yield stream
        return
    layers = [checkpoint.modules[layer] for layer in last_stream(checkpoint)]
    norm: Any = checkpoint.architecture.final_norm(checkpoint.model) or layers[-1].feed_forward_norm

    def before_layers(_: nn.Module, given: tuple[Any, ...]) -> None:
        stream.first = given[0][0]

    # cross-attention has the feed-forward network of its block
    added = list(dict.fromkeys(layer.feed_forward_output_norm or layer.contract for layer in layers))

    def after_feed_forward(module: nn.Module, _: Any, output: Tensor) -> None:
        if module is added[0]:
            stream.feed_forward.clear()
        stream.feed_forward.append(output[0])

    def after_norm(_: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        stream.last, stream.normed = given[0][0], output[0]

    with ExitStack() as stack:
        hooks = [module.register_forward_hook(after_feed_forward) for module in added]
        hooks.append(layers[0].block.register_forward_pre_hook(before_layers))
        for handle in (*hooks, norm.register_forward_hook(after_norm)):
            stack.callback(handle.remove)
        yield stream


def last_stream(checkpoint: Checkpoint) -> list[int]:
    """The layers that write into the residual stream that logits are made of, all but an encoder's, as they run."""
    layers = [layer for layer in checkpoint.layers if not isinstance(layer, LayerId) or layer.stack.letter != "E"]
    return sorted(layers, key=lambda layer: layer.number if isinstance(layer, LayerId) else layer)


def check_parts(
    total: Tensor, own: Tensor, tolerance: float, what: str, where: Callable[[int], str], removed: str = ""
) -> tuple[float, float]:
    """Hold the sum of all parts of the stream against the model's own numbers.

    Args:
        total: the sum, at one position.
        own: the model's numbers there.
        tolerance: of the largest difference, as a share of the largest of the model's numbers.
        what: the numbers are, for the message.
        where: in words, by the place of the largest difference.
        removed: from both; ends in a semicolon and a space.

    Returns:
        this difference, and the largest of the model's numbers.

    Raises:
        VerificationError: they differ by more than the tolerance.
    """
    error, scale, place = error_of_sum(total, own)
    if not error <= tolerance:  # a NaN is a failure, too
        raise VerificationError(
            f"embeddings, heads, biases and feed-forward networks do not sum to the model's own {what}: they differ "
            f"most {where(place)}: the model gives {float(own[place]):.6g}, the sum {float(total[place]):.6g} "
            f"({removed}tolerance {tolerance:g} of the largest, {scale:.6g}). Nothing was written. Try --dtype "
            "float64: it makes rounding smaller, but not an error."
        )
    return error, scale
