"""The rest of the residual stream: what feed-forward networks and the final norm give while heads are verified."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnviz.model.checkpoint import Checkpoint

__all__ = ["ResidualStream", "recording_stream", "why_no_attribution"]


@dataclass
class ResidualStream:
    """What the model's own modules gave in one forward pass, of one text.

    Attributes:
        feed_forward: a layer each, what its feed-forward network added, [n, d_model].
        last: the residual stream after the last layer, [n, d_model].
        normed: the same after the final layer norm, [n, d_model].
    """

    feed_forward: list[Tensor] = field(default_factory=list)
    last: Tensor | None = None
    normed: Tensor | None = None


def why_no_attribution(checkpoint: Checkpoint) -> str:
    """Why the logits of this model are no sum over heads, in one sentence; empty where they are."""
    if not checkpoint.architecture.pre_norm or checkpoint.architecture.final_norm(checkpoint.model) is None:
        return (
            "Promoted tokens are not given: in BERT every residual passes through later layer norms, and a masked-LM "
            "head begins with a transform that is not linear, so that no head's part of the logits can be told apart."
        )
    if checkpoint.language_head is None:
        return (
            "Promoted tokens are not given: the model has no language-modelling head; load one that has "
            "(GPT2LMHeadModel)."
        )
    return ""


@contextmanager
def recording_stream(checkpoint: Checkpoint) -> Iterator[ResidualStream]:
    """Read the feed-forward networks and the final norm in the forward passes inside; nothing where there is no use.

    Only [n, d_model] a layer is kept. The last pass inside counts.
    """
    stream = ResidualStream()
    with ExitStack() as stack:
        norm = checkpoint.architecture.final_norm(checkpoint.model)
        if norm is not None and not why_no_attribution(checkpoint):
            modules = checkpoint.architecture.modules(checkpoint.model)

            def after_feed_forward(module: nn.Module, _: Any, output: Tensor) -> None:
                if module is modules[0].contract:
                    stream.feed_forward.clear()
                stream.feed_forward.append(output[0])

            def after_norm(_: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
                stream.last, stream.normed = given[0][0], output[0]

            hooks = [layer.contract.register_forward_hook(after_feed_forward) for layer in modules]
            for handle in (*hooks, norm.register_forward_hook(after_norm)):
                stack.callback(handle.remove)
        yield stream
