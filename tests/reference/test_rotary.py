"""Rotary positions, norms, groups, caps, windows and biases by position: each against a plain loop or transformers."""

import cmath
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attnviz.models.families.llama import rotary_of
from attnviz.reference.attention import (
    LayerNorm,
    Projection,
    RMSNorm,
    allowed_positions,
    attention_pattern,
    joined_output,
    pattern_of,
    queries_and_keys,
    repeat_kv,
    softcap,
    values,
)
from attnviz.reference.positions import Rotary, apply_rotary, default_frequencies
from tests.support.drawn_parameters import random_input, random_parameters
from tests.support.llamas import ROPE, llama_config
from tests.support.tolerances import SHARP_64, SUMS_32


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
    assert repeat_kv(x, 6)[1, :, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert repeat_kv(x, 3) is x
    capped = softcap(torch.tensor([0.01, -1.0, 1e6]), 2.0).tolist()
    assert capped == pytest.approx([0.01, 2 * math.tanh(-0.5), 2.0], abs=SUMS_32)
    allowed = allowed_positions(torch.ones(1, 4), causal=True, window=2)[0, 0]
    assert allowed.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    padded = allowed_positions(torch.tensor([[0, 1, 1, 0]]), causal=True, window=1)[0, 0]
    assert padded.int().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    pattern = attention_pattern(torch.tensor([[3.0, -5.0], [1.0, 1.0]]), torch.tensor([[False, False], [True, False]]))
    assert pattern.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def by_distance(first: int, n_queries: int, n_keys: int) -> Tensor:
    distance = torch.arange(n_keys) - torch.arange(first, first + n_queries)[:, None]
    return 0.3 * torch.arange(4.0, dtype=torch.float64)[:, None, None] * distance


def test_rectangular_attention_with_groups_and_a_bias_is_that_of_a_plain_loop():
    """Queries from one input, keys and values from another, shared by two heads each; no biases of projections."""
    drawn = random_parameters(4, 3, d_model=7, sharpness=0.5)
    w_q, w_k, w_v = drawn.query.weight, drawn.key.weight[:2], drawn.value.weight[:2]
    projections = {"query": Projection(w_q), "key": Projection(w_k), "value": Projection(w_v)}
    parameters = replace(drawn, output_bias=None, position_bias=by_distance, **projections)
    x, source = random_input(3, 7), random_input(5, 7, seed=1)
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[:, 4] = False
    pattern = pattern_of(*queries_and_keys(x, source, parameters), parameters, allowed)
    output = joined_output(pattern @ values(source, parameters), parameters)
    expected, weights = torch.zeros(3, 7, dtype=torch.float64), torch.zeros(4, 3, 5, dtype=torch.float64)
    for head, q in itertools.product(range(4), range(3)):
        query, keys = x[q] @ w_q[head], source[:4] @ w_k[head // 2]
        scores = [float(query @ keys[k]) * parameters.scale + 0.3 * head * (k - q) for k in range(4)]
        total = sum(map(math.exp, scores))
        for k, score in enumerate(scores):
            weights[head, q, k] = math.exp(score) / total
            expected[q] += weights[head, q, k] * (source[k] @ w_v[head // 2]) @ parameters.output_weight[head]
    torch.testing.assert_close(pattern, weights, rtol=SHARP_64, atol=0)
    torch.testing.assert_close(output, expected, rtol=SHARP_64, atol=SHARP_64)
