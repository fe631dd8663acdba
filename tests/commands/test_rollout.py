"""Attention rollout: worked by hand, against other ways to compute them, and on models known by design."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnviz
from attnviz.commands import rollout as command
from attnviz.commands.rollout import norm_patterns, rolled_out, rows_apart, summed_norms
from attnviz.errors import UsageError, VerificationError
from attnviz.inputs.prompt import merge_pattern
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.families import first_of
from tests.support.hand_made import uniform_pattern
from tests.support.models import LOOKS_AT, bert_tokenizer, gpt2_tokenizer, hand_built_bert, sharp_bert, sharp_gpt2
from tests.support.outputs import of_head, own_numbers
from tests.support.tolerances import SHARP_32
from tests.support.verified import random_patterns

TEXT = "the cat that i saw ran away"


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def roll(patterns: Any, residual: float = 0.5) -> list[torch.Tensor]:
    return list(rolled_out(doubles(patterns), residual))


@pytest.mark.parametrize(
    ("patterns", "first", "last"),
    [
        (
            [[[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]],
            [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]],
            [[0.375, 0.375, 0.25], [0.25, 0.5, 0.25], [0.125, 0.375, 0.5]],
        ),
        (
            [[[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]], [[1, 0, 0], [1, 0, 0], [0.4, 0.6, 0]]],
            [[1, 0, 0], [0.25, 0.75, 0], [0.1, 0.2, 0.7]],
            [[1, 0, 0], [0.625, 0.375, 0], [0.325, 0.325, 0.35]],
        ),
    ],
    ids=["bidirectional", "causal"],
)
def test_three_tokens_and_two_layers_worked_by_hand(patterns: Any, first: Any, last: Any):
    rolled = roll(patterns)  # (A + I) / 2, and of the second layer that times the first
    torch.testing.assert_close(rolled[0], doubles(first))
    torch.testing.assert_close(rolled[1], doubles(last))


@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_uniform_patterns_have_a_closed_form(residual: float):
    n, n_layers = 7, 4
    rolled = roll(uniform_pattern(n).repeat(n_layers, 1, 1).tolist(), residual)
    kept = residual**n_layers  # of the identity: each layer replaces the rest by the mean over all tokens
    expected = kept * torch.eye(n, dtype=torch.float64) + (1 - kept) / n
    torch.testing.assert_close(rolled[-1], expected)
    assert rows_apart(rolled[-1]) == pytest.approx(kept)


@given(st.integers(1, 6), st.integers(1, 4), st.booleans(), st.floats(0, 1), st.integers(0, 99))
def test_rows_sum_to_one_and_the_causal_triangle_stays_empty(
    n: int, n_layers: int, causal: bool, residual: float, seed: int
):
    patterns = random_patterns(n, n_layers, causal, seed)
    for rolled in rolled_out(patterns, residual):
        torch.testing.assert_close(rolled.sum(-1), torch.ones(n, dtype=torch.float64))
        assert (rolled >= 0).all()
        if causal:
            assert not rolled.triu(1).any()


def test_norms_become_patterns_and_nothing_added_keeps_the_token():
    given_norms = doubles([[3, 1, 0], [0, 0, 0], [2, 2, 4]])
    torch.testing.assert_close(norm_patterns(given_norms), doubles([[0.75, 0.25, 0], [0, 1, 0], [0.25, 0.25, 0.5]]))


def test_distance_between_rows():
    assert [rows_apart(torch.eye(4)), rows_apart(torch.full((4, 4), 0.25)), rows_apart(torch.ones(1, 1))] == [
        1,
        0,
        None,
    ]
    matrix = random_patterns(6, 1, seed=3)[0]
    pairs = [(matrix[a] - matrix[b]).abs().sum() / 2 for a, b in itertools.combinations(range(6), 2)]
    assert rows_apart(matrix) == pytest.approx(float(sum(pairs) / len(pairs)))


MODELS = {"bert": (sharp_bert, bert_tokenizer), "gpt2": (sharp_gpt2, gpt2_tokenizer)}


def measured(kind: str, text: str = TEXT, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    model, tokenizer = MODELS[kind]
    return attnviz.rollout(text, model().to(dtype), tokenizer=tokenizer(), **options)


of_model = cache(measured)


@pytest.mark.parametrize("kind", MODELS)
def test_norms_match_an_independent_float64_computation(kind: str):
    found = of_model(kind, dtype=torch.float64)
    own = own_numbers(kind, found.checkpoint.model, TEXT)
    for layer, heads in enumerate(own["patterns"]):
        added = sum(A[:, :, None] * of_head(own, layer, head)[0] for head, A in enumerate(heads))
        norms = np.linalg.norm(added, axis=-1)
        np.testing.assert_allclose(found.norm_means[layer], norms / norms.sum(-1, keepdims=True))
        np.testing.assert_allclose(found.means[layer], heads.mean(0))
    identity = torch.eye(len(found.units), dtype=torch.float64)
    rolled = identity
    for pattern in found.norm_means:
        rolled = (pattern + identity) / 2 @ rolled
    torch.testing.assert_close(found.norms[-1], rolled)


def test_blocks_of_queries_change_nothing():
    pattern, vectors = random_patterns(7, 3), torch.randn(3, 7, 5, dtype=torch.float64)
    whole = summed_norms(pattern, vectors)
    for at_once in (1, 35, 80):
        for one, other in zip(whole, summed_norms(pattern, vectors, at_once), strict=True):
            torch.testing.assert_close(one, other)


WRONG: dict[str, Any] = {
    "longer vectors": lambda pattern, vectors: (pattern, 1.01 * vectors),
    "heads swapped": lambda pattern, vectors: (pattern, vectors.roll(1, 0)),
    "queries for keys": lambda pattern, vectors: (pattern.mT, vectors),
    "other tokens": lambda pattern, vectors: (pattern, vectors.roll(1, 1)),
    "not a number": lambda pattern, vectors: (pattern, vectors * float("nan")),
}


@pytest.mark.draws
@pytest.mark.parametrize("kind", first_of(MODELS))
@pytest.mark.parametrize("mistake", [*WRONG, "output_bias", "output_weight", "value"])
def test_parts_that_do_not_add_up_to_the_models_output_are_refused(
    kind: str, mistake: str, monkeypatch: pytest.MonkeyPatch
):
    parameters = command.layer_contributions

    def wrong(*given: Any) -> Any:
        writing = parameters(*given)
        return replace(writing, **{mistake: 0.9 * getattr(writing, mistake)})

    if mistake in WRONG:
        monkeypatch.setattr(command, "summed_norms", lambda *given: summed_norms(*WRONG[mistake](*given)))
    else:
        monkeypatch.setattr(command, "layer_contributions", wrong)
    with pytest.raises(VerificationError, match="layer 0"):
        measured(kind)


def test_a_bert_known_by_design_gives_the_rollout_worked_by_hand():
    """Head 0 of layer 0 looks at itself, all others at [CLS]."""
    looks = [[LOOKS_AT["current-token"], LOOKS_AT["sink"]], [LOOKS_AT["sink"], LOOKS_AT["sink"]]]
    found = attnviz.rollout("cat", hand_built_bert(looks), tokenizer=bert_tokenizer())
    assert found.units.labels == ("[CLS]", "cat", "[SEP]")
    first = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.25, 0, 0.75]])
    last = torch.tensor([[1, 0, 0], [0.625, 0.375, 0], [0.625, 0, 0.375]])
    torch.testing.assert_close(found.weights, torch.stack([first, last]), atol=SHARP_32, rtol=0)
    assert found.layers[1].sink["rollout"] == pytest.approx(0.625, abs=SHARP_32)  # of "cat", the one token of the text


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("bert", torch.float64), ("bert", torch.float32), ("gpt2", torch.bfloat16), ("bert", torch.float16)],
)
def test_rows_sum_to_one_in_every_number_format(kind: str, dtype: torch.dtype):
    found = of_model(kind, dtype=dtype)
    for matrices in (found.weights, found.norms):
        assert matrices.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(matrices.sum(-1), torch.ones_like(matrices.sum(-1)))
        assert bool(matrices.triu(1).any()) == (kind == "bert")


def test_layer_token_and_residual_are_those_that_were_asked_for():
    whole, part = of_model("bert"), of_model("bert", layer=1)
    torch.testing.assert_close(part.weights, whole.weights[:2])
    torch.testing.assert_close(part.inputs.attention, whole.means[1][0])
    assert (whole.positions, of_model("gpt2").positions) == ((0,), (len(of_model("gpt2").units) - 1,))
    word = of_model("bert", "the unable cat", token="unable")
    torch.testing.assert_close(word.inputs.rollout, word.weights[-1][[2, 3]].mean(0))
    none, all_of_it = of_model("gpt2", residual=0), of_model("gpt2", residual=1)
    torch.testing.assert_close(none.weights[1], none.means[1] @ none.means[0])
    torch.testing.assert_close(all_of_it.weights[-1], torch.eye(len(all_of_it.units)))


def test_the_baseline_is_the_rollout_of_uniform_attention():
    found = of_model("gpt2")
    n = len(found.units)
    uniform = torch.ones(n, n).tril()
    mixed = (uniform / uniform.sum(-1, keepdim=True) + torch.eye(n)).double() / 2
    torch.testing.assert_close(found.last.uniform_rollout, mixed @ mixed @ mixed, check_dtype=False)
    torch.testing.assert_close(found.inputs.uniform, torch.full((n,), 1 / n, dtype=torch.float64))


def test_words_are_merged_after_rolling_out():
    text = "the unbelievableness ran"
    tokens = of_model("bert", text)
    words = of_model("bert", text, words=True, token="unbelievableness")
    assert words.units.labels == ("[CLS]", "the", "unbelievableness", "ran", "[SEP]")
    for name in ("means", "norm_means", "weights", "norms"):
        merged = merge_pattern(getattr(tokens, name), words.units.members)
        torch.testing.assert_close(getattr(words, name), merged)
    torch.testing.assert_close(words.weights.sum(-1), torch.ones(3, 5))
    torch.testing.assert_close(words.inputs.rollout, words.weights[-1][2])


@pytest.mark.parametrize(
    "options",
    [{"layer": 3}, {"layer": -1}, {"layer": "2"}, {"layer": True}, {"residual": "x"}, {"residual": 1.01},
     {"residual": float("nan")}, {"token": "dog"}],
)  # fmt: skip
def test_options_out_of_range(options: dict[str, Any]):
    with pytest.raises(UsageError, match=str(*options.values())):
        measured("bert", **options)


def test_the_picture_has_attention_rollout_and_norm_rollout_of_the_last_layer_on_one_scale():
    found = of_model("bert")
    (plan,) = drawing_of("rollout", "rollout").plans(found, ViewOptions())
    for tile, matrix in zip(plan.tiles, (found.means, found.weights, found.norms), strict=True):
        np.testing.assert_array_equal(tile.values, matrix[-1].numpy())
    assert np.mean(np.concatenate([tile.values.ravel() for tile in plan.tiles]) <= plan.norm.vmax) >= 0.98
