"""The reference attention against four oracles: transformers, torch's own kernel, a plain loop, and algebra."""

import cmath
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import layer_norm, linear, rms_norm, scaled_dot_product_attention
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attnviz.errors import ArchitectureError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.families.llama import rotary_of
from attnviz.reference import attention as reference
from attnviz.reference.attention import HeadParameters, LayerNorm, Projection, RMSNorm, allowed_positions, pattern_of
from attnviz.reference.positions import Rotary, apply_rotary, default_frequencies
from tests.support.drawn_parameters import random_input, random_parameters
from tests.support.llamas import ROPE, llama_config
from tests.support.models import sharp_bert, sharp_gpt2
from tests.support.recorded import batch, recorded
from tests.support.tolerances import SHARP, SHARP_64, SUMS_32, SUMS_64


def multi_head_attention(x: Tensor, parameters: HeadParameters, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The pattern of every head, and the output of all heads, of a layer with the input x."""
    query, key = reference.queries_and_keys(x, x, parameters)
    pattern = pattern_of(query, key, parameters, allowed)
    return pattern, reference.joined_output(pattern @ reference.values(x, parameters), parameters)


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

    def projected(projection: Projection) -> Tensor:
        weight = projection.weight.transpose(0, 1).flatten(1)
        return linear(x, weight.T, projection.bias.flatten()).view(2, 9, 4, 8).transpose(1, 2)

    of_each = map(projected, (parameters.query, parameters.key, parameters.value))
    heads = scaled_dot_product_attention(*of_each, attn_mask=allowed, scale=8**-0.5)
    joined = heads.transpose(1, 2).reshape(2, 9, 32)
    expected = linear(joined, parameters.output_weight.flatten(0, 1).T, parameters.output_bias)
    torch.testing.assert_close(output[mask.bool()], expected[mask.bool()], rtol=SHARP_64, atol=SHARP_64)


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
        value = reference.project(x, parameters.value)
        written = reference.head_outputs(pattern, value, parameters.output_weight)
        of_each_key = reference.transformed_values(value, parameters.output_weight)
    assert written.shape == (2, 4, 7, 32)
    torch.testing.assert_close(written.sum(1) + parameters.output_bias, output)
    torch.testing.assert_close(torch.einsum("bhqk,bhkd->bhqd", pattern, of_each_key), written)


# --- positions, norms, groups, caps and windows


@pytest.mark.parametrize("rotated_numbers", [8, 4])
def test_pairs_of_numbers_are_turned_as_complex_numbers(rotated_numbers):
    x, half = random_input(2, 5, 8), rotated_numbers // 2
    frequencies = default_frequencies(rotated_numbers, 100.0)
    turned = apply_rotary(x, Rotary(frequencies, factor=1.5))
    for head in range(2):
        for position in range(5):
            for i in range(half):
                angle = position * 100.0 ** (-2 * i / rotated_numbers)
                pair = complex(x[head, position, i], x[head, position, i + half])
                expected = pair * cmath.exp(1j * angle) * 1.5
                assert float(turned[head, position, i]) == pytest.approx(expected.real, abs=SUMS_32)
                assert float(turned[head, position, i + half]) == pytest.approx(expected.imag, abs=SUMS_32)
    assert torch.equal(turned[..., rotated_numbers:], x[..., rotated_numbers:])


@pytest.mark.parametrize("kind", ROPE)
def test_frequencies_are_those_of_transformers(kind):
    name = kind.split(",")[0]
    config = llama_config("llama", rope_parameters={"rope_type": name, "rope_theta": 10000.0, **ROPE[kind]})
    rotary = rotary_of(config, 16)
    for n in (4, 12):
        expected, factor = ROPE_INIT_FUNCTIONS[name](config, seq_len=n)
        torch.testing.assert_close(rotary.of(n), expected, rtol=SUMS_32, atol=0)
        assert rotary.factor == pytest.approx(factor)


def test_frequencies_by_type_of_layer_are_those_of_transformers():
    settings = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1000}
    settings["truncate"] = False  # transformers reads it of all layers alone, so that here it has no effect
    by_type = {"full_attention": settings, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    config = llama_config("gemma3_text", rope_parameters=by_type, head_dim=64)
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config, layer_type="full_attention")
    rotary = rotary_of(config, 64, "full_attention")
    torch.testing.assert_close(rotary.frequencies, expected, rtol=SUMS_32, atol=0)
    assert rotary.factor == pytest.approx(factor)


def test_norms_are_those_of_torch_and_of_a_loop():
    x, weight, bias = random_input(3, 6), random_input(6, seed=1), random_input(6, seed=2)
    torch.testing.assert_close(LayerNorm(weight, bias, 1e-3)(x), layer_norm(x, (6,), weight, bias, 1e-3))
    torch.testing.assert_close(RMSNorm(weight, 1e-3)(x), rms_norm(x, (6,), weight, 1e-3), rtol=SUMS_32, atol=SUMS_32)
    row = [float(value) for value in x[1]]
    root = math.sqrt(sum(value**2 for value in row) / 6 + 1e-3)
    expected = [value / root * (1 + float(w)) for value, w in zip(row, weight, strict=True)]
    assert RMSNorm(weight, 1e-3, one_more=True)(x)[1].tolist() == pytest.approx(expected, rel=SUMS_32, abs=SUMS_32)


@pytest.mark.parametrize(
    "norm",
    [
        RMSNorm(random_input(6, seed=1), 1e-3),
        RMSNorm(random_input(6, seed=1), 1e-3, one_more=True),
        LayerNorm(random_input(6, seed=1), torch.zeros(6, dtype=torch.float64), 1e-3),
    ],
)
def test_norms_are_linear_with_their_scale_held_fixed(norm):
    x, y = random_input(3, 6), random_input(3, 6, seed=2)
    scale = norm.scale(x + y)
    parts = norm.linear_part(x, scale) + norm.linear_part(y, scale)
    torch.testing.assert_close(parts, norm(x + y), rtol=SUMS_32, atol=SUMS_32)


def test_groups_caps_windows_and_queries_that_see_nothing_by_hand():
    x = torch.arange(3.0)[:, None, None].expand(2, 3, 4, 5)
    assert reference.repeat_kv(x, 6)[1, :, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert reference.repeat_kv(x, 3) is x
    capped = reference.softcap(torch.tensor([0.01, -1.0, 1e6]), 2.0).tolist()
    assert capped == pytest.approx([0.01, 2 * math.tanh(-0.5), 2.0], abs=SUMS_32)
    allowed = allowed_positions(torch.ones(1, 4), causal=True, window=2)[0, 0]
    assert allowed.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    padded = allowed_positions(torch.tensor([[0, 1, 1, 0]]), causal=True, window=1)[0, 0]
    assert padded.int().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    pattern = reference.attention_pattern(
        torch.tensor([[3.0, -5.0], [1.0, 1.0]]), torch.tensor([[False, False], [True, False]])
    )
    assert pattern.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def by_distance(first: int, n_queries: int, n_keys: int) -> Tensor:
    distance = torch.arange(n_keys) - torch.arange(first, first + n_queries)[:, None]
    return 0.3 * torch.arange(4.0, dtype=torch.float64)[:, None, None] * distance


def test_rectangular_attention_with_groups_and_a_bias_is_that_of_a_plain_loop():
    """Queries from one input, keys and values from another, shared by two heads each; a bias by distance."""
    drawn = random_parameters(4, 3, d_model=7, sharpness=0.5)
    few = {
        each: Projection(getattr(drawn, each).weight[:2], getattr(drawn, each).bias[:2]) for each in ("key", "value")
    }
    parameters = replace(drawn, position_bias=by_distance, **few)
    x, source = random_input(3, 7), random_input(5, 7, seed=1)
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[:, 4] = False
    pattern = pattern_of(*reference.queries_and_keys(x, source, parameters), parameters, allowed)
    output = reference.joined_output(pattern @ reference.values(source, parameters), parameters)
    expected, weights = drawn.output_bias.repeat(3, 1), torch.zeros(4, 3, 5, dtype=torch.float64)
    for head, q in itertools.product(range(4), range(3)):
        query = x[q] @ drawn.query.weight[head] + drawn.query.bias[head]
        keys, read = (source[:4] @ few[each].weight[head // 2] + few[each].bias[head // 2] for each in ("key", "value"))
        scores = [float(query @ keys[k]) * parameters.scale + 0.3 * head * (k - q) for k in range(4)]
        total = sum(map(math.exp, scores))
        for k, score in enumerate(scores):
            weights[head, q, k] = math.exp(score) / total
            expected[q] += weights[head, q, k] * read[k] @ parameters.output_weight[head]
    torch.testing.assert_close(pattern, weights, rtol=SHARP_64, atol=0)
    torch.testing.assert_close(output, expected, rtol=SHARP_64, atol=SHARP_64)
