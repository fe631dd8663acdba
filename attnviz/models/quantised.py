"""Weights of 4 and 8 bits, dequantised: the numbers that their modules multiply by.

bitsandbytes keeps them in parameters of its own (nf4 and fp4: Dettmers et al. 2023, "QLoRA"; LLM.int8(): Dettmers et
al. 2022), torchao and quanto in subclasses of torch's Tensor with a ``dequantize`` of their own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import ArchitectureError

_FOUR_BITS, _EIGHT_BITS = "Params4bit", "Int8Params"  # bitsandbytes' classes of parameters


def is_quantised(value: object) -> bool:
    """Whether a parameter holds other numbers than those that it stands for."""
    of_torch = getattr(type(value), "dequantize", Tensor.dequantize) is Tensor.dequantize
    return type(value).__name__ in (_FOUR_BITS, _EIGHT_BITS) or not of_torch


def dequantised(module: Any, weight: Any) -> Tensor:
    """The numbers that a module's quantised weight stands for, in the number format that it multiplies them in."""
    if type(weight).__name__ == _EIGHT_BITS:
        scales = module.state.SCB if weight.SCB is None else weight.SCB  # the first pass moves them
        return weight.data * scales[:, None].float() / 127  # type: ignore[no-any-return]
    if type(weight).__name__ != _FOUR_BITS:
        return weight.dequantize()  # type: ignore[no-any-return]
    import bitsandbytes

    state = weight.quant_state
    _, dtype = _format_of(module, weight)
    if getattr(state, "packing_format_for_cpu", False):  # since its first pass on a CPU; state_dict() would spoil it
        every = torch.eye(state.shape[1], dtype=torch.bfloat16)
        return bitsandbytes.matmul_4bit(every, weight, quant_state=state).T  # type: ignore[no-any-return]
    return bitsandbytes.functional.dequantize_4bit(weight.data, state).to(dtype)  # type: ignore[no-any-return]


def input_rounding(module: Any) -> Callable[[Tensor], Tensor] | None:
    """How LLM.int8() rounds what a module reads, [.., d]; None for modules that round nothing."""
    if type(getattr(module, "weight", None)).__name__ != _EIGHT_BITS:
        return None
    return partial(rounded_to_8_bits, threshold=float(module.state.threshold))


def rounded_to_8_bits(x: Tensor, threshold: float) -> Tensor:
    """Vectors [.., d], each rounded to 127 steps of its largest number (Dettmers et al. 2022, section 3).

    Dimensions in which any vector has a number of at least the threshold stay as they are; for 0 there are none.
    """
    rows = x.flatten(0, -2).half()
    outliers = rows.abs() >= (threshold or torch.inf)
    small = rows.masked_fill(outliers, 0)
    steps = 127 / small.abs().amax(-1, keepdim=True).float().clamp_min(torch.finfo(torch.half).tiny)
    rounded = ((small * steps).round() / steps).reshape(x.shape)
    return torch.where(outliers.any(0), x, rounded.to(x))


def formats_of(model: nn.Module) -> dict[str, torch.dtype]:
    """The formats of quantised weights in words, each with the number format that its modules multiply in.

    ArchitectureError for modules that also round what they read, in a way that is not reproduced.
    """
    return dict(
        _format_of(module, weight)
        for module in model.modules()
        for weight in module.parameters(recurse=False)
        if is_quantised(weight)
    )


def has_gradient(model: nn.Module) -> bool:
    """Whether torch can differentiate its maps; not what bitsandbytes does with 4 bits on CPUs with AVX512-BF16."""
    return not any(_is_packed(module, getattr(module, "weight", None)) for module in model.modules())


def _is_packed(module: Any, weight: Any) -> bool:
    on_cpu = type(weight).__name__ == _FOUR_BITS and weight.device.type == "cpu"
    return on_cpu and getattr(module, "support_avx512bf16_for_cpu", False)


def _format_of(module: Any, weight: Any) -> tuple[str, torch.dtype]:
    words, dtype = f"the format {type(weight).__name__}", weight.dtype
    if type(weight).__name__ == _FOUR_BITS:
        dtype = torch.bfloat16 if _is_packed(module, weight) else module.compute_dtype
        words = f"4 bits ({weight.quant_type})"
    elif type(weight).__name__ == _EIGHT_BITS:
        words, dtype = "8 bits (LLM.int8())", torch.float16
    elif getattr(weight, "act_quant_kwargs", None) or getattr(module, "activation_qtype", None):
        raise ArchitectureError(f"this model has {words} and rounds what its maps read, too; quantise weights alone.")
    return f"weights of {words}, dequantised", dtype or torch.float32
