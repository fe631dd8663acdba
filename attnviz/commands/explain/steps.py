"""What every step of a layer is called, its formula, and what it does in one plain sentence."""

import math
from dataclasses import dataclass

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.reference import activation_named

__all__ = ["StageWords", "not_compared", "numbered_shape", "order_of", "score_formula", "stage_words"]


@dataclass(frozen=True)
class StageWords:
    """A step in words.

    Attributes:
        title: what it is called.
        formula: with this model's numbers.
        sentence: what it does.
    """

    title: str
    formula: str
    sentence: str


_NOT_COMPARED = {
    "input": "taken from the model as it is",
    "split": "the same numbers, regrouped",
    "scores": "the model does not show them: checked through the pattern",
    "mask": "the model does not show it: checked through the pattern",
    "weighted": "the model does not show them by head: checked side by side, in the next step",
}


def not_compared(name: str) -> str:
    """Why a step has no check of its own."""
    return _NOT_COMPARED[name]


def numbered_shape(name: str, shape: tuple[int, ...]) -> str:
    """``[12, 9, 32]``; of queries, keys and values together ``3 × [12, 9, 32]``."""
    return f"3 × {list(shape[1:])}" if name == "split" else str(list(shape))


def order_of(explained: Explained) -> str:
    """Where the layer norms stand, in one sentence."""
    if explained.pre_norm:
        return (
            "Pre-norm (GPT-2): a layer norm stands before the attention and one before the feed-forward network; what "
            "they give is added to the residual stream, which itself is never normed inside a layer."
        )
    return (
        "Post-norm (BERT): the residual is added first, and a layer norm follows, after the attention and again after "
        "the feed-forward network; so the residual stream itself is normed twice a layer."
    )


def stage_words(explained: Explained, name: str) -> StageWords:
    """A step in words, for this layer of this model."""
    return _attention_words(explained, name) or _other_words(explained, name)


def _attention_words(explained: Explained, name: str) -> StageWords | None:
    model = explained.checkpoint
    d_model, d_head, n_heads = model.d_model, model.d_head, model.n_heads
    x = "norm(x)" if explained.pre_norm else "x"
    return {
        "query": StageWords("Queries", f"Q = {x} W_Q + b_Q", "What each token looks for, of all heads side by side."),
        "key": StageWords("Keys", f"K = {x} W_K + b_K", "What each token offers to be found by."),
        "value": StageWords("Values", f"V = {x} W_V + b_V", "What each token hands on where it is attended to."),
        "split": StageWords(
            "Split into heads",
            f"{d_model} = {n_heads} × {d_head}",
            f"Q, K and V are cut into {n_heads} heads of {d_head} dimensions each; d_head = d_model / n_heads.",
        ),
        "scores": StageWords(
            "Scores",
            score_formula(explained),
            f"How well each query fits each key: their dot product, {_scaled(explained)}.",
        ),
        "mask": StageWords(
            "Mask",
            "allowed: key ≤ query" if model.architecture.causal else "allowed: every key",
            "A token may attend only to itself and to what precedes it; all other scores become −∞."
            if model.architecture.causal
            else f"Every token may attend to every token: nothing is masked {_in_what(explained)}.",
        ),
        "pattern": StageWords(
            "Attention pattern",
            "A = softmax(masked scores)",
            "Every row of scores becomes weights that sum to 1: how much each query takes from each key.",
        ),
        "weighted": StageWords(
            "Weighted values", "A V", "Each token's new vector in a head: the values, mixed by the weights."
        ),
        "concatenated": StageWords(
            "Concatenation",
            f"{n_heads} × {d_head} = {d_model}",
            "The heads' results are laid side by side again; no number changes.",
        ),
        "attention_output": StageWords(
            "Attention output",
            "concat W_O + b_O",
            "One linear map mixes the heads: each head's slice of W_O says what it writes into the residual stream.",
        ),
    }.get(name)


def _other_words(explained: Explained, name: str) -> StageWords:
    pre, d_ff = explained.pre_norm, explained.d_ff
    d_model = explained.checkpoint.d_model
    middle = "h" if pre else "norm(h)"
    activation = activation_named(explained.activation)
    normed = "norm(x) = (x − mean) / √(var + ε) · γ + β"
    to_one = "Each token's vector is brought to mean 0 and variance 1, then weighted (γ) and shifted (β)"
    return {
        "input": _input_words(explained),
        "attention_norm": StageWords(
            "Layer norm before the attention" if pre else "Layer norm after the residual",
            normed if pre else normed.replace("x", "h"),
            f"{to_one}: pre-norm, only the attention sees it."
            if pre
            else f"{to_one}: post-norm, it is now the residual stream.",
        ),
        "attention_residual": StageWords(
            "Residual",
            "h = x + attention",
            "The attention's output is added to the layer's input, which passes around it unchanged.",
        ),
        "feed_forward_norm": StageWords(
            "Layer norm before the feed-forward network",
            normed.replace("x", "h"),
            f"{to_one}: pre-norm, only the network sees it.",
        ),
        "expanded": StageWords(
            "Feed-forward: expand",
            "u = norm(h) W_1 + b_1",
            f"Every token alone, from {d_model} to {d_ff} dimensions: no token sees another from here on.",
        ),
        "activated": StageWords(
            f"Feed-forward: {activation.name}",
            f"f(u), f(x) = {activation.formula}",
            "The network's only step that is not linear: it lets some of the numbers through and holds others back.",
        ),
        "feed_forward_output": StageWords(
            "Feed-forward: contract", "f(u) W_2 + b_2", f"Back from {d_ff} to {d_model} dimensions."
        ),
        "feed_forward_residual": StageWords(
            "Residual", f"y = {middle} + feed forward", "The network's output is added to what went into it."
        ),
        "output": StageWords(
            "Output",
            f"{middle} + feed forward" if pre else normed.replace("x", "y"),
            _output_sentence(explained, "The network's output is added to the residual stream." if pre else
                             "The second layer norm."),
        ),
        "final_norm": StageWords(
            "Final layer norm",
            normed.replace("x", "out"),
            "After the last layer, outside of it: what the language-modelling head reads.",
        ),
    }[name]  # fmt: skip


def _input_words(explained: Explained) -> StageWords:
    sentence = "The residual stream as it enters the layer: one vector a token."
    if explained.layer:
        return StageWords("Input", f"x = output of layer {explained.layer - 1}", sentence)
    architecture = explained.checkpoint.architecture
    tables = "word + position + segment" if architecture.segments else "word + position"
    return StageWords("Input", f"x = {tables}" if explained.pre_norm else f"x = norm({tables})", sentence)


def score_formula(explained: Explained, *, brief: bool = False) -> str:
    """With the scale that this layer has: GPT-2's config may leave it out, or divide by the layer's number too.

    Args:
        explained: the layer.
        brief: as short as a panel needs it.
    """
    scale, d_head = _scale(explained), explained.checkpoint.d_head
    if _usual(explained):
        return f"Q Kᵀ/√{d_head}" if brief else f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}"
    if scale == 1:
        return "Q Kᵀ"
    return f"Q Kᵀ · {scale:.3g}" if brief else f"Q Kᵀ · {scale:.4g}"


def _scale(explained: Explained) -> float:
    model = explained.checkpoint
    return float(model.architecture.parameters(model.model, explained.layer).scale)


def _usual(explained: Explained) -> bool:
    return abs(_scale(explained) * math.sqrt(explained.checkpoint.d_head) - 1) < 1e-9


def _scaled(explained: Explained) -> str:
    if _usual(explained):
        return "scaled so that it does not grow with d_head"
    return "which this model does not scale" if _scale(explained) == 1 else "scaled as this model's config has it"


def _in_what(explained: Explained) -> str:
    return "in a single text" if explained.pair is None else "in a pair of texts either"


def _output_sentence(explained: Explained, what: str) -> str:
    following = explained.layer + 1
    if following < explained.checkpoint.n_layers:
        return f"{what} This is what layer {following} takes in."
    after = "the final layer norm takes in" if explained.pre_norm else "the model gives: its last hidden state"
    return f"{what} This is what {after}."
