"""attnviz.draw: pictures of attention weights from any library, which nobody takes for verified ones."""

from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import UsageError

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


@pytest.mark.parametrize("view", ["overview", "heads", "lines", "map", "mean", "text"])
def test_every_picture_says_that_it_is_not_verified(view: str):
    figure = attnviz.draw(WEIGHTS, TOKENS, name="mine").figure(view)
    said = " ".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))
    assert "mine (not verified)" in " ".join(said.split())


@pytest.mark.parametrize("shape", [(9, 9), (3, 9, 9), (2, 3, 9, 9)])
def test_weights_may_be_of_one_head_of_one_layer_or_of_all(shape: tuple[int, ...]):
    weights = torch.full(shape, 1 / 9)
    n_layers, n_heads = (1, 1, *shape[:-2])[-2:]
    shown = repr(attnviz.draw(weights, TOKENS))
    assert str(n_layers) in shown
    assert f"× {n_heads} head" in shown
    assert "not verified" in shown


def test_the_first_token_of_causal_weights_is_a_sink():
    causal = torch.ones(1, 1, 5, 5).tril() / torch.arange(1, 6)[:, None]
    first = causal.clone()
    first[...] = torch.eye(5)[0]
    drawing = attnviz.draw(torch.cat([causal, first], 1), list("abcde"))
    assert [head.label for head in drawing._analysis.heads] == ["broad", "sink"]


@pytest.mark.parametrize(
    ("weights", "tokens", "said"),
    [
        (torch.ones(2, 3), ["a", "b"], r"found \[2, 3\]"),
        (
            torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
            ["a", "b"],
            "sums to 2 at L0H0, query #1",
        ),
        ([[1.0, 0.0], [0.5, float("nan")]], ["a", "b"], "found nan at L0H0, query #1, key #1"),
        (torch.eye(2).log().expand(2, 1, 2, 2), ["a", "b"], "found -inf at L0H0"),
        (torch.eye(2) - 0.25, ["a", "b"], "found -0.25 at L0H0"),
        ("text", ["a"], "found str"),
        (np.array([["a"]]), ["a"], "found ndarray of <U1"),
        (torch.eye(2, dtype=torch.complex64), ["a", "b"], r"real numbers, found Tensor of torch.complex64"),
        ([[1.0], [1.0, 2.0]], ["a"], "found list"),
        (torch.eye(2), ["a"], "each of the 2 rows"),
        (torch.eye(2), "ab", "a list of tokens"),
    ],
)
def test_what_are_no_weights_is_refused(weights: Any, tokens: Any, said: str):
    with pytest.raises(UsageError, match=said):
        attnviz.draw(weights, tokens)


@pytest.mark.parametrize(
    ("token", "special"),
    [
        ("[CLS]", True),
        ("<s>", True),
        ("<|endoftext|>", True),
        ("[UNK]", False),
        ("<unk>", False),
        ("[1]", False),
        ("<", False),
    ],
)
def test_special_tokens_are_known_by_their_form(token: str, special: bool):
    (drawn, *_) = attnviz.draw(torch.eye(4), [token, "a", "b", "c"])._analysis.tokens.special
    assert drawn is special
