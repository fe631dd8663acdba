"""attnviz.draw: pictures of attention weights from any library, which nobody takes for verified ones."""

from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import UsageError
from tests.support.drawn import texts_of

TOKENS = "[CLS] the cat that i saw ran away [SEP]".split()
WEIGHTS = (3 * torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))).softmax(-1)


@pytest.mark.parametrize(
    "given",
    [WEIGHTS, WEIGHTS.numpy(), WEIGHTS.tolist(), tuple(layer[None] for layer in WEIGHTS), WEIGHTS.half()],
    ids=["tensor", "array", "lists", "attentions", "half"],
)
def test_the_weights_are_drawn_as_they_were_given(given: Any):
    figure = attnviz.draw(given, TOKENS).figure("heads", select="L1H2")
    drawn = next(
        image.get_array() for ax in figure.axes for image in ax.get_images() if image.get_array().shape == (9, 9)
    )
    np.testing.assert_allclose(np.asarray(drawn), WEIGHTS[1, 2], atol=1e-3)


@pytest.mark.parametrize("shape", [(9, 9), (3, 9, 9), (2, 3, 9, 9)])
def test_every_picture_says_that_it_is_not_verified(shape: tuple[int, ...]):
    drawing = attnviz.draw(torch.full(shape, 1 / 9), TOKENS, name="mine")
    for view in ("overview", "heads", "lines", "map", "mean", "text"):
        assert "not verified" in " ".join(" ".join(texts_of(drawing.figure(view))).split())


def test_the_first_token_of_causal_weights_alone_is_a_sink():
    causal = torch.ones(1, 1, 5, 5).tril() / torch.arange(1, 6)[:, None]
    first = causal.clone()
    first[...] = torch.eye(5)[0]
    drawing = attnviz.draw(torch.cat([causal, first], 1), list("abcde"))
    assert [head.label for head in drawing._analysis.heads] == ["broad", "sink"]
    assert not any(attnviz.draw(WEIGHTS, list("abcdefghi"))._analysis.tokens.sink)  # these are not causal


@pytest.mark.parametrize(
    ("weights", "tokens", "said"),
    [
        (torch.ones(2, 3), ["a", "b"], r"\[2, 3\]"),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), ["a", "b"], "L0H0, query #1"),
        ([[1.0, 0.0], [0.5, float("nan")]], ["a", "b"], "nan at L0H0, query #1, key #1"),
        (torch.eye(2) - 0.25, ["a", "b"], "-0.25 at L0H0"),
        ("text", ["a"], "str"),
        (np.array([["a"]]), ["a"], "<U1"),
        (torch.eye(2, dtype=torch.complex64), ["a", "b"], "complex64"),
        ([[1.0], [1.0, 2.0]], ["a"], "list"),
        (torch.eye(2), ["a"], "2 rows"),
        (torch.eye(2), "ab", "list of tokens"),
    ],
)
def test_what_are_no_weights_is_refused(weights: Any, tokens: Any, said: str):
    with pytest.raises(UsageError, match=said):
        attnviz.draw(weights, tokens)


@pytest.mark.parametrize(
    ("token", "special"),
    [("[CLS]", True), ("<s>", True), ("<|endoftext|>", True), ("[UNK]", False), ("<unk>", False), ("[1]", False)],
)
def test_special_tokens_are_known_by_their_form(token: str, special: bool):
    (drawn, *_) = attnviz.draw(torch.eye(4), [token, "a", "b", "c"])._analysis.tokens.special
    assert drawn is special
