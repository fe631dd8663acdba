"""Wrong attentions, by name, each of which verification must notice; and what a model must be left as."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnviz.models.families.bert_gpt2 import GPT2, Bert
from attnviz.reference.attention import HeadParameters, Projection

Change = Callable[[HeadParameters], HeadParameters]

MODELING = {
    "bert": "transformers.models.bert.modeling_bert.eager_attention_forward",
    "gpt2": "transformers.models.gpt2.modeling_gpt2.eager_attention_forward",
}

ARCHITECTURE = {"bert": Bert, "gpt2": GPT2}


def zeros(projection: Projection) -> Projection:
    return Projection(projection.weight, torch.zeros_like(projection.bias))


def joined(projection: Projection) -> Tensor:
    """[d_model, n_heads * d_head], as the checkpoint has it."""
    return projection.weight.transpose(0, 1).flatten(1)


def interleaved(projection: Projection) -> Projection:
    """Columns dealt out to the heads one by one instead of in blocks."""
    n_heads, _, d_head = projection.weight.shape
    weight = joined(projection).unflatten(1, (d_head, n_heads)).permute(2, 0, 1)
    return Projection(weight, projection.bias.flatten().unflatten(0, (d_head, n_heads)).T)


def rolled(projection: Projection) -> Projection:
    return Projection(projection.weight.roll(1, 0), projection.bias.roll(1, 0))


def not_projecting(projection: Projection) -> Projection:
    n_heads, d_model, d_head = projection.weight.shape
    identity = torch.eye(d_model, dtype=projection.weight.dtype)
    return Projection(
        identity.unflatten(1, (n_heads, d_head)).transpose(0, 1).contiguous(), torch.zeros_like(projection.bias)
    )


def transposed_output(p: HeadParameters) -> Tensor:
    return p.output_weight.flatten(0, 1).T.unflatten(0, p.output_weight.shape[:2])


def without_biases(p: HeadParameters) -> HeadParameters:
    return replace(
        p,
        query=zeros(p.query),
        key=zeros(p.key),
        value=zeros(p.value),
        output_bias=torch.zeros_like(p.output_bias),
    )


PATTERN_MUTATIONS: dict[str, Change] = {
    "no scale": lambda p: replace(p, scale=1.0),
    "scale by sqrt(d_model)": lambda p: replace(p, scale=p.query.weight.shape[1] ** -0.5),
    "scale by d_head": lambda p: replace(p, scale=1 / p.query.weight.shape[2]),
    "query and key swapped": lambda p: replace(p, query=p.key, key=p.query),
    "no query and key biases": lambda p: replace(p, query=zeros(p.query), key=zeros(p.key)),
    "no biases": without_biases,
    "query from the value weights": lambda p: replace(p, query=p.value),
    "heads interleaved": lambda p: replace(
        p, query=interleaved(p.query), key=interleaved(p.key), value=interleaved(p.value)
    ),
    "heads permuted": lambda p: replace(
        p, query=rolled(p.query), key=rolled(p.key), value=rolled(p.value), output_weight=p.output_weight.roll(1, 0)
    ),
    "causal the other way": lambda p: replace(p, causal=not p.causal),
}


OUTPUT_MUTATIONS: dict[str, Change] = {
    "no value bias": lambda p: replace(p, value=zeros(p.value)),
    "no output bias": lambda p: replace(p, output_bias=torch.zeros_like(p.output_bias)),
    "W_O transposed": lambda p: replace(p, output_weight=transposed_output(p)),
    "value not projected": lambda p: replace(p, value=not_projecting(p.value)),
    "values interleaved": lambda p: replace(p, value=interleaved(p.value)),
    "values of another head": lambda p: replace(p, value=rolled(p.value)),
    "W_O of another head": lambda p: replace(p, output_weight=p.output_weight.roll(1, 0)),
}


PASSED_ON: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "output scaled by 1.001": lambda output, bias: output * 1.001,
    "b_O dropped": lambda output, bias: output - bias,
    "output dropped": lambda output, bias: torch.zeros_like(output),
    "one number off": lambda output, bias: output.index_fill(-1, torch.tensor([3]), 0.0),
}


def change_parameters(monkeypatch: pytest.MonkeyPatch, kind: str, change: Change) -> None:
    original = ARCHITECTURE[kind].parameters
    monkeypatch.setattr(
        ARCHITECTURE[kind], "parameters", lambda self, model, layer: change(original(self, model, layer))
    )


def hooks_on(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def state_of(model: Any) -> tuple[Any, ...]:
    flags = {name: module.training for name, module in model.named_modules()}
    implementations = {
        name: module.config._attn_implementation for name, module in model.named_modules() if hasattr(module, "config")
    }
    return flags, implementations, hooks_on(model), {n: p.requires_grad for n, p in model.named_parameters()}
