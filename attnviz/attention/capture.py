"""One forward pass of the model with hooks: what went into every attention layer and what came out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnviz.errors import VerificationError
from attnviz.model.architectures.base import LayerModules
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import LayerId
from attnviz.model.weights import all_finite


@dataclass(frozen=True)
class LayerRecord:
    """What one attention layer of the model took and gave.

    Attributes:
        attention_input: [batch, n, d_model]: what W_Q, W_K and W_V are applied to.
        pattern: [batch, n_heads, n, n]: the model's own.
        output: [batch, n, d_model]: the model's own, after W_O and b_O, before the residual.
        residual: [batch, n, d_model]: what the output is added to.
        summed: [batch, n, d_model]: the norm after the attention was given this, their sum.
        normed: [batch, n, d_model]: what this norm gave.
        output_norm: the norm of the output before it is added (Gemma); None where there is none.
        source: of cross-attention, [batch, n_keys, d_model]: what W_K and W_V are applied to, the encoder's final
            states; None of self-attention.
    """

    layer: int
    attention_input: Tensor
    pattern: Tensor
    output: Tensor
    residual: Tensor
    summed: Tensor
    normed: Tensor
    norm: nn.Module
    output_norm: nn.Module | None = None
    source: Tensor | None = None


def capture_layers(checkpoint: Checkpoint, inputs: dict[str, Tensor], visit: Callable[[LayerRecord], None]) -> None:
    """Run the model once on what its forward takes and ``visit`` each layer's record as soon as the layer has run.

    The model runs in eval mode with its eager attention, since sdpa and flash attention give no
    pattern; a model that was loaded otherwise gets its own settings back afterwards. Nothing is
    kept here: a record's pattern lives as long as ``visit`` keeps it.

    Raises:
        VerificationError: a layer gave no pattern, or ran more or less than once, or the final state is not finite.
    """
    visited, encoded = list[int](), list[Tensor]()

    def visit_next(record: LayerRecord) -> None:
        visited.append(record.layer)
        if record.source is not None:
            _refuse_other_source(record, encoded)
        visit(record)

    with ExitStack() as stack:
        stack.enter_context(eager_and_eval(checkpoint.model))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(encoder.register_forward_hook(lambda _, __, result: encoded.append(result[0])))
        for layer, modules in zip(checkpoint.layers, checkpoint.modules, strict=True):
            norm = modules.after_attention(checkpoint.architecture.pre_norm)
            for handle in _hooks(layer, modules, norm, visit_next):
                stack.enter_context(handle)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        result = checkpoint.running(**inputs, use_cache=False)
    if visited != _in_run_order(checkpoint.layers):
        raise VerificationError(
            f"expected one attention pattern from each of {checkpoint.n_layers} layers, in order, "
            f"found them from layers [{', '.join(map(str, visited))}]; nothing can be verified against this model."
        )
    refuse_not_finite(result[0], "final hidden state")


def _refuse_other_source(record: LayerRecord, encoded: Sequence[Tensor]) -> None:
    """Refuse cross-attention whose keys and values come from anything but the encoder's own output."""
    if len(encoded) == 1 and torch.equal(record.source, encoded[0]):  # type: ignore[arg-type]
        return
    raise VerificationError(
        f"layer {record.layer}: the states that cross-attention was given are not the encoder's own output, so that "
        "they stand for no tokens of the source. Nothing was written."
    )


def refuse_not_finite(values: Tensor, what: str) -> None:
    """A VerificationError for numbers of the model that are not finite; its weights are, or it would not be loaded."""
    if not all_finite(values):
        raise VerificationError(
            f"The model's own {what} has values that are not finite in {str(values.dtype).removeprefix('torch.')}; a "
            "wider --dtype may help. Nothing was written."
        )


def _in_run_order(layers: Sequence[int]) -> list[int]:
    """The layers as they run: a decoder's own attention and its cross-attention take turns after the encoder."""

    def turn(layer: int) -> tuple[bool, int, int]:
        return (layer.stack.first > 0, layer.number, layer) if isinstance(layer, LayerId) else (False, layer, layer)

    return sorted(layers, key=turn)


def _hooks(
    layer: int, modules: LayerModules, norm: nn.Module, visit: Callable[[LayerRecord], None]
) -> list[RemovableHandle]:
    seen: dict[str, Tensor] = {}

    def before_block(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["residual"] = args[0] if args else kwargs["hidden_states"]

    def before_pattern(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["attention_input"] = args[0] if args else kwargs["hidden_states"]
        if kwargs.get("key_value_states") is not None:
            seen["source"] = kwargs["key_value_states"]

    def after_pattern(_: nn.Module, __: Any, result: Any) -> None:
        if not isinstance(result[-1], Tensor):
            raise VerificationError(
                f"layer {layer} of the model returned no attention pattern, although it was set to eager attention; "
                "expected a tensor of attention weights to compare with."
            )
        seen["pattern"] = result[-1]

    def after_output(_: nn.Module, __: Any, result: Any) -> None:
        seen["output"] = result[0] if isinstance(result, tuple) else result

    def after_norm(_: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
        if missing := {"attention_input", "pattern", "output"} - set(seen):
            raise VerificationError(
                f"layer {layer} of the model ran the norm after its attention without {' and '.join(sorted(missing))}; "
                "nothing can be verified against this model."
            )
        visit(
            LayerRecord(
                layer, summed=args[0], normed=result, norm=norm, output_norm=modules.attention_output_norm, **seen
            )
        )
        seen.clear()

    return [
        modules.block.register_forward_pre_hook(before_block, with_kwargs=True),
        modules.pattern.register_forward_pre_hook(before_pattern, with_kwargs=True),
        modules.pattern.register_forward_hook(after_pattern),
        modules.output.register_forward_hook(after_output),
        norm.register_forward_hook(after_norm),
    ]


@contextmanager
def eager_and_eval(model: Any) -> Iterator[None]:
    """Eager attention and no dropout, for the time of one pass."""
    implementation = model.config._attn_implementation
    training = [module for module in model.modules() if module.training]
    if implementation != "eager":
        model.set_attn_implementation("eager")
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if implementation != "eager":
            model.set_attn_implementation(implementation)
