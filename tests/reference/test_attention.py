"""The reference attention against four oracles: transformers, torch's own kernel, a plain loop, and algebra."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnviz.errors import ArchitectureError
from attnviz.models.checkpoint import from_loaded
from attnviz.reference.attention import (
    HeadParameters,
    Projection,
    allowed_positions,
    head_outputs,
    joined_output,
    pattern_of,
    project,
    queries_and_keys,
    transformed_values,
    values,
)
from tests.support.drawn_parameters import random_input, random_parameters
from tests.support.models import sharp_bert, sharp_gpt2
from tests.support.recorded import batch, recorded
from tests.support.tolerances import SHARP, SHARP_64, SUMS_32, SUMS_64


def multi_head_attention(x: Tensor, parameters: HeadParameters, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The pattern of every head, and the output of all heads, of a layer with the input x."""
    query, key = queries_and_keys(x, x, parameters)
    pattern = pattern_of(query, key, parameters, allowed)
    return pattern, joined_output(pattern @ values(x, parameters), parameters)


def assert_reproduces(model: Any, inputs: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Compare every row of a real query, in every layer, with what the model computed."""
    checkpoint, real = from_loaded(model, object()), inputs["attention_mask"].bool()
    layers = recorded(checkpoint, inputs)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = model(**inputs, output_attentions=True).attentions
    for layer, own in zip(layers, attentions, strict=True):
        torch.testing.assert_close(layer.pattern, own, rtol=0, atol=SUMS_32)  # the oracle itself
        assert layer.pattern[0].max(dim=-1).values[..., 1:].mean() > 0.2  # and sharp: 0.09 would hide wrong formulas
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer.layer)
        with torch.inference_mode():
            allowed = allowed_positions(inputs["attention_mask"], parameters.causal)
            pattern, output = multi_head_attention(layer.record.attention_input, parameters, allowed)
        assert pattern.dtype == output.dtype == dtype
        difference = (pattern - layer.pattern).abs().amax(dim=(1, 3))[real]
        assert difference.max() <= SHARP[dtype]
        scale = layer.record.output[real].abs().max()
        assert (output - layer.record.output)[real].abs().max() <= SHARP[dtype] * scale


def plain_loops(x: Tensor, parameters: HeadParameters, allowed: Tensor) -> tuple[list[Any], list[Any]]:
    """The formulas of the paper on Python floats: no torch arithmetic at all."""
    n, d_model = x.shape
    n_heads, _, d_head = parameters.query.weight.shape
    rows = x.tolist()

    def vector(projection: Projection, head: int, position: int) -> list[float]:
        weight, bias = projection.weight[head].tolist(), projection.bias[head].tolist()
        return [bias[e] + math.fsum(rows[position][d] * weight[d][e] for d in range(d_model)) for e in range(d_head)]

    pattern = [[[0.0] * n for _ in range(n)] for _ in range(n_heads)]
    output = [list(parameters.output_bias.tolist()) for _ in range(n)]
    for head in range(n_heads):
        keys = [vector(parameters.key, head, k) for k in range(n)]
        values = [vector(parameters.value, head, k) for k in range(n)]
        w_o = parameters.output_weight[head].tolist()
        for q in range(n):
            query = vector(parameters.query, head, q)
            seen = [k for k in range(n) if allowed[q, k]]
            scores = {k: parameters.scale * math.fsum(a * b for a, b in zip(query, keys[k], strict=True)) for k in seen}
            top = max(scores.values())
            total = math.fsum(math.exp(score - top) for score in scores.values())
            for k in seen:
                pattern[head][q][k] = math.exp(scores[k] - top) / total
            for e in range(d_head):
                weighted = math.fsum(pattern[head][q][k] * values[k][e] for k in seen)
                for d in range(d_model):
                    output[q][d] += weighted * w_o[e][d]
    return pattern, output


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("seed", "lengths"), [(0, (11,)), (1, (11, 6))])
def test_reference_reproduces_bert(dtype, seed, lengths):
    assert_reproduces(sharp_bert(seed).to(dtype), batch(61, lengths), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=3)))
def test_reference_reproduces_gpt2_under_every_flag(dtype, flags):
    names = "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"
    model, inputs = sharp_gpt2(**dict(zip(names, flags, strict=True))).to(dtype), batch(400, (11, 6))
    if dtype == torch.float64 and flags[2]:  # whose float64 mask transformers itself cannot add to float32 scores
        with pytest.raises(ArchitectureError, match="reorder_and_upcast_attn"):
            from_loaded(model, object())
    else:
        assert_reproduces(model, inputs, dtype)


@pytest.mark.parametrize("flag", ["upcast", "softmax_in_float32"])
def test_scores_and_softmax_or_the_softmax_alone_can_be_in_float32(flag):
    parameters = random_parameters(2, 3, sharpness=3.0 if flag == "upcast" else 1.0)
    x, allowed = random_input(5, 6), torch.ones(5, 5, dtype=torch.bool)
    narrow, _ = multi_head_attention(x, replace(parameters, **{flag: True}), allowed)
    wide, _ = multi_head_attention(x, parameters, allowed)
    assert narrow.dtype == torch.float64
    assert torch.equal(narrow, narrow.float().double())  # nothing finer than float32 is left
    assert not torch.equal(wide, wide.float().double())
    torch.testing.assert_close(narrow, wide, rtol=0, atol=SUMS_32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("real", [9, 6])
def test_reference_agrees_with_torch_scaled_dot_product_attention(causal, real):
    parameters, x = random_parameters(4, 8, sharpness=0.3, causal=causal), random_input(2, 9, 32)
    mask = (torch.arange(9) < torch.tensor([[9], [real]])).long()
    allowed = allowed_positions(mask, causal)
    _, output = multi_head_attention(x, parameters, allowed)

    def linear(projection: Projection) -> Tensor:
        weight = projection.weight.transpose(0, 1).flatten(1)
        return torch.nn.functional.linear(x, weight.T, projection.bias.flatten()).view(2, 9, 4, 8).transpose(1, 2)

    of_each = map(linear, (parameters.query, parameters.key, parameters.value))
    heads = torch.nn.functional.scaled_dot_product_attention(*of_each, attn_mask=allowed, scale=8**-0.5)
    joined = heads.transpose(1, 2).reshape(2, 9, 32)
    expected = torch.nn.functional.linear(joined, parameters.output_weight.flatten(0, 1).T, parameters.output_bias)
    torch.testing.assert_close(output[mask.bool()], expected[mask.bool()], rtol=SHARP_64, atol=SHARP_64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "n_heads", "d_head", "d_model"), [(1, 1, 1, 1), (5, 3, 2, 6), (4, 2, 3, 5)])
def test_reference_agrees_with_plain_loops(causal, n, n_heads, d_head, d_model):
    parameters = random_parameters(n_heads, d_head, d_model=d_model, seed=n, causal=causal)
    x, allowed = random_input(n, d_model), allowed_positions(torch.ones(1, n), causal)[0, 0]
    expected = [torch.tensor(each, dtype=torch.float64) for each in plain_loops(x, parameters, allowed)]
    for found, wanted in zip(multi_head_attention(x, parameters, allowed), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=SUMS_64, atol=SUMS_64)


def test_allowed_positions_are_those_before_a_query_and_no_padding():
    assert allowed_positions(torch.ones(1, 3), causal=False).tolist() == [[[[True] * 3] * 3]]
    assert allowed_positions(torch.ones(1, 3), causal=True).int().tolist() == [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
    allowed = allowed_positions(torch.tensor([[1, 1, 1], [1, 1, 0]]), causal=False)
    assert allowed[0].all()
    assert allowed[1, 0].int().tolist() == [[1, 1, 0]] * 3


few = settings(max_examples=40, deadline=None, derandomize=True)
cases = {
    "n": st.integers(1, 6),
    "n_heads": st.integers(1, 4),
    "d_head": st.integers(1, 4),
    "seed": st.integers(0, 10_000),
    "sharpness": st.sampled_from([0.0, 0.1, 1.0, 30.0]),
}


@few
@given(**cases, causal=st.booleans())
def test_rows_sum_to_one_and_later_tokens_change_nothing(n, n_heads, d_head, seed, sharpness, causal):
    parameters = random_parameters(n_heads, d_head, seed=seed, sharpness=sharpness, causal=causal)
    x = random_input(n + 1, n_heads * d_head, seed=seed)
    allowed = allowed_positions(torch.ones(1, n + 1), causal)[0, 0]
    pattern, output = multi_head_attention(x, parameters, allowed)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(n_heads, n + 1).double(), rtol=0, atol=SUMS_64)
    assert (pattern >= 0).all()
    if causal:
        assert (pattern.triu(1) == 0).all()
        shorter, shorter_output = multi_head_attention(x[:n], parameters, allowed[:n, :n])
        torch.testing.assert_close(pattern[:, :n, :n], shorter, rtol=0, atol=SHARP_64)
        torch.testing.assert_close(output[:n], shorter_output, rtol=SHARP_64, atol=SHARP_64)


@few
@given(**cases, data=st.data())
def test_heads_in_another_order_and_no_key_bias_leave_the_output(n, n_heads, d_head, seed, sharpness, data):
    """A key bias adds the same score to every key of a query, which the softmax cancels."""
    parameters = random_parameters(n_heads, d_head, seed=seed, sharpness=sharpness)
    order = data.draw(st.permutations(range(n_heads)))
    changed = {
        name: Projection(getattr(parameters, name).weight[order], getattr(parameters, name).bias[order])
        for name in ("query", "key", "value")
    }
    changed["key"] = replace(changed["key"], bias=torch.zeros_like(changed["key"].bias))
    permuted = replace(parameters, **changed, output_weight=parameters.output_weight[order])
    x, allowed = random_input(n, n_heads * d_head, seed=seed), torch.ones(n, n, dtype=torch.bool)
    pattern, output = multi_head_attention(x, parameters, allowed)
    new_pattern, new_output = multi_head_attention(x, permuted, allowed)
    torch.testing.assert_close(new_pattern, pattern[order], rtol=0, atol=SHARP_64)
    torch.testing.assert_close(new_output, output, rtol=SHARP_64, atol=SHARP_64)


@pytest.mark.parametrize("make", [sharp_bert, sharp_gpt2])
def test_head_outputs_and_the_bias_add_up_to_the_attention_output(make: Any) -> None:
    model = make().double()
    parameters = from_loaded(model, object()).architecture.parameters(model, 1)
    x = torch.randn(2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    allowed = allowed_positions(torch.ones(2, 7), parameters.causal)
    with torch.no_grad():
        pattern, output = multi_head_attention(x, parameters, allowed)
        value = project(x, parameters.value)
        written = head_outputs(pattern, value, parameters.output_weight)
        of_each_key = transformed_values(value, parameters.output_weight)
    assert written.shape == (2, 4, 7, 32)
    torch.testing.assert_close(written.sum(1) + parameters.output_bias, output)
    torch.testing.assert_close(torch.einsum("bhqk,bhkd->bhqd", pattern, of_each_key), written)
