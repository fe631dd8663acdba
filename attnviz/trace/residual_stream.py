"""The residual stream of one text: recorded outputs of modules."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import classification_class
from attnviz.models.head_ids import LayerId
from attnviz.trace.recorder import at_site, own_run


@dataclass
class ResidualStream:
    """Outputs of the model's own modules in one forward pass on one text, [n, d_model] each."""

    first: Tensor | None = None  # input of the first layer
    feed_forward: list[Tensor] = field(default_factory=list)  # output of each layer's feed-forward network
    last: Tensor | None = None  # the residual stream after the last layer, before its last norm
    normed: Tensor | None = None  # the final state: the same after the final norm, or that of the last layer


def why_no_effects(checkpoint: Checkpoint) -> str:
    """Sentence on why no logits of this model can be divided into direct effects, or ''."""
    if checkpoint.classifier is not None:
        why = checkpoint.classifier.why_no_classes
        return why and f"Direct effects are not given: {why}."
    if checkpoint.encoder_only:
        return "Direct effects are not given: the encoder of an encoder-decoder makes no logits."
    if checkpoint.language_head is None:
        return (
            "Direct effects are not given: the model has no head for tokens or classes; expected a checkpoint that was "
            f"saved as {checkpoint.architecture.language_class} or {classification_class(checkpoint.architecture)}."
        )
    return ""


@contextmanager
def recording_stream(checkpoint: Checkpoint) -> Iterator[ResidualStream]:
    """Record feed-forward networks and the last norm in the last forward pass inside, for direct effects."""
    stream = ResidualStream()
    if why_no_effects(checkpoint):
        yield stream
        return
    layers = [checkpoint.modules[layer] for layer in last_stream(checkpoint)]
    norm: Any = checkpoint.architecture.final_norm(checkpoint.model) or layers[-1].feed_forward_norm

    # cross-attention has the feed-forward network of its block
    added = list(dict.fromkeys(layer.feed_forward_output_norm or layer.network_output for layer in layers))

    def before_layers(residual: Tensor) -> None:
        stream.first, stream.feed_forward = residual[0], []

    def after_network(output: Tensor) -> None:
        stream.feed_forward.append(output.flatten(0, -2))

    with ExitStack() as stack:
        stack.enter_context(at_site(layers[0].block, "input", own_run(stack, layers[0])(before_layers)))
        for module in added:
            stack.enter_context(at_site(module, "output", after_network))
        stack.enter_context(at_site(norm, "input", lambda residual: setattr(stream, "last", residual[0])))
        final = checkpoint.architecture.output_map(checkpoint.model) or norm
        stack.enter_context(at_site(final, "output", lambda normed: setattr(stream, "normed", normed[0])))
        yield stream


def last_stream(checkpoint: Checkpoint) -> list[int]:
    """Layers that write into the residual stream of the logits, all but an encoder's, in running order."""
    layers = [layer for layer in checkpoint.layers if not isinstance(layer, LayerId) or layer.stack.letter != "E"]
    return sorted(layers, key=lambda layer: layer.number if isinstance(layer, LayerId) else layer)
