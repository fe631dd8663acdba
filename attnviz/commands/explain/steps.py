"""The steps of a layer as data, in one entry a step: what it is called, its formula, what it does, how it is drawn."""

import math
from dataclasses import dataclass, replace

from attnviz.commands.explain import numbers
from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.numbers import Numbers
from attnviz.commands.explain.reference import activation_named

__all__ = ["Step", "norm_order", "numbered_shape", "step_of"]


@dataclass(frozen=True)
class Step:
    """One step of a layer. Texts have names in braces for what differs from model to model; see :func:`step_of`.

    Attributes:
        title: what it is called.
        formula: with this model's numbers.
        sentence: what it does.
        label: above its panel in the figure; empty where it has none.
        brief: the formula, as short as a panel needs it.
        numbers: one line of real numbers.
        unseen: why it has no check of its own.
    """

    title: str
    formula: str
    sentence: str
    label: str = ""
    brief: str = ""
    numbers: Numbers = numbers.of_token
    unseen: str = ""


_NORM = "norm(x) = (x − mean) / √(var + ε) · γ + β"
_NORM_H, _NORM_Y, _NORM_OUT = (_NORM.replace("x", letter) for letter in ("h", "y", "out"))
_TO_ONE = "Each token's vector is brought to mean 0 and variance 1, then weighted (γ) and shifted (β)"

_STEPS = {
    "input": Step("Input", "x = {input}", "The residual stream as it enters the layer: one vector a token.", "input x",
                  unseen="taken from the model as it is"),
    "query": Step("Queries", "Q = {x} W_Q + b_Q", "What each token looks for, of all heads side by side.", "Q"),
    "key": Step("Keys", "K = {x} W_K + b_K", "What each token offers to be found by.", "K"),
    "value": Step("Values", "V = {x} W_V + b_V", "What each token hands on where it is attended to.", "V"),
    "split": Step(
        "Split into heads", "{d_model} = {n_heads} × {d_head}",
        "Q, K and V are cut into {n_heads} heads of {d_head} dimensions each; d_head = d_model / n_heads.",
        numbers=numbers.of_split, unseen="the same numbers, regrouped",
    ),
    "scores": Step(
        "Scores", "{scores}", "How well each query fits each key: their dot product, {scaled}.", "scores",
        "{brief_scores}", numbers.of_scores, "the model does not show them: checked through the pattern",
    ),
    "mask": Step("Mask", "allowed: {allowed}", "{masked}", "mask", "", numbers.of_mask,
                 "the model does not show it: checked through the pattern"),
    "pattern": Step(
        "Attention pattern", "A = softmax(masked scores)",
        "Every row of scores becomes weights that sum to 1: how much each query takes from each key.", "pattern A",
        "softmax", numbers.of_pattern,
    ),
    "weighted": Step(
        "Weighted values", "A V", "Each token's new vector in a head: the values, mixed by the weights.", "A V", "",
        numbers.of_head, "the model does not show them by head: checked side by side, in the next step",
    ),
    "concatenated": Step(
        "Concatenation", "{n_heads} × {d_head} = {d_model}",
        "The heads' results are laid side by side again; no number changes.", "concatenated", "{n_heads} heads",
    ),
    "attention_output": Step(
        "Attention output", "concat W_O + b_O",
        "One linear map mixes the heads: each head's slice of W_O says what it writes into the residual stream.",
        "attention", "· W_O + b_O",
    ),
    "attention_residual": Step(
        "Residual", "h = x + attention",
        "The attention's output is added to the layer's input, which passes around it unchanged.", "h", "x + attention",
        numbers.of_residual,
    ),
    "expanded": Step(
        "Feed-forward: expand", "u = norm(h) W_1 + b_1",
        "Every token alone, from {d_model} to {d_ff} dimensions: no token sees another from here on.", "expanded u",
        "· W_1 + b_1",
    ),
    "activated": Step(
        "Feed-forward: {activation}", "f(u), f(x) = {activation_formula}",
        "The network's only step that is not linear: it lets some of the numbers through and holds others back.",
        "{activation}", "f(u)", numbers.of_activation,
    ),
    "feed_forward_output": Step("Feed-forward: contract", "f(u) W_2 + b_2",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_2 + b_2"),
    "feed_forward_residual": Step("Residual", "y = norm(h) + feed forward",
                                  "The network's output is added to what went into it.", numbers=numbers.of_residual),
    "final_norm": Step(
        "Final layer norm", _NORM_OUT,
        "After the last layer, outside of it: what the language-modelling head reads.", "final norm", "",
        numbers.of_norm,
    ),
}  # fmt: skip

_PRE_NORM = {
    "attention_norm": Step("Layer norm before the attention", _NORM,
                           f"{_TO_ONE}: pre-norm, only the attention sees it.", "norm(x)", "", numbers.of_norm),
    "feed_forward_norm": Step("Layer norm before the feed-forward network", _NORM_H,
                              f"{_TO_ONE}: pre-norm, only the network sees it.", "norm(h)", "", numbers.of_norm),
    "output": Step("Output", "h + feed forward", "The network's output is added to the residual stream. {taken}",
                   "output", "", numbers.of_residual),
}  # fmt: skip

_POST_NORM = {
    "attention_norm": Step("Layer norm after the residual", _NORM_H,
                           f"{_TO_ONE}: post-norm, it is now the residual stream.", "norm(h)", "", numbers.of_norm),
    "output": Step("Output", _NORM_Y, "The second layer norm. {taken}", "output", "", numbers.of_norm),
}  # fmt: skip


def step_of(explanation: Explanation, name: str) -> Step:
    """A step in words, for this layer of this model."""
    template = _STEPS.get(name) or (_PRE_NORM if explanation.pre_norm else _POST_NORM)[name]
    values = _model_words(explanation) | _score_words(explanation) | _place_words(explanation)
    texts = ("title", "formula", "sentence", "label", "brief")
    return replace(template, **{text: getattr(template, text).format_map(values) for text in texts})


def numbered_shape(name: str, shape: tuple[int, ...]) -> str:
    """``[12, 9, 32]``; of queries, keys and values together ``3 × [12, 9, 32]``."""
    return f"3 × {list(shape[1:])}" if name == "split" else str(list(shape))


def norm_order(explanation: Explanation) -> str:
    """Where the layer norms stand, in one sentence."""
    if explanation.pre_norm:
        return (
            "Pre-norm (GPT-2): a layer norm stands before the attention and one before the feed-forward network; what "
            "they give is added to the residual stream, which itself is never normed inside a layer."
        )
    return (
        "Post-norm (BERT): the residual is added first, and a layer norm follows, after the attention and again after "
        "the feed-forward network; so the residual stream itself is normed twice a layer."
    )


def _model_words(explanation: Explanation) -> dict[str, object]:
    model, activation = explanation.checkpoint, activation_named(explanation.activation)
    return {
        "x": "norm(x)" if explanation.pre_norm else "x",
        "d_model": model.d_model,
        "n_heads": model.n_heads,
        "d_head": model.d_head,
        "d_ff": explanation.d_ff,
        "activation": activation.name,
        "activation_formula": activation.formula,
    }


def _score_words(explanation: Explanation) -> dict[str, str]:
    """The scale that this layer has: GPT-2's config may leave it out, or divide by the layer's number too."""
    model = explanation.checkpoint
    scale, d_head = float(model.architecture.parameters(model.model, explanation.layer).scale), model.d_head
    causal = model.architecture.causal
    texts = "in a single text" if explanation.pair is None else "in a pair of texts either"
    masked = {
        "allowed": "key ≤ query" if causal else "every key",
        "masked": "A token may attend only to itself and to what precedes it; all other scores become −∞."
        if causal
        else f"Every token may attend to every token: nothing is masked {texts}.",
    }
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scaled = "scaled so that it does not grow with d_head"
        return {"scores": f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}", "brief_scores": f"Q Kᵀ/√{d_head}", "scaled": scaled,
                **masked}  # fmt: skip
    if scale == 1:
        return {"scores": "Q Kᵀ", "brief_scores": "Q Kᵀ", "scaled": "which this model does not scale", **masked}
    scaled = "scaled as this model's config has it"
    return {"scores": f"Q Kᵀ · {scale:.4g}", "brief_scores": f"Q Kᵀ · {scale:.3g}", "scaled": scaled, **masked}


def _place_words(explanation: Explanation) -> dict[str, str]:
    """Where the input comes from, and what takes the output in."""
    layer, pre = explanation.layer, explanation.pre_norm
    tables = "word + position + segment" if explanation.checkpoint.architecture.segments else "word + position"
    first = tables if pre else f"norm({tables})"
    taken = f"This is what layer {layer + 1} takes in."
    if layer + 1 == explanation.checkpoint.n_layers:
        after = "the final layer norm takes in" if pre else "the model gives: its last hidden state"
        taken = f"This is what {after}."
    return {"input": f"output of layer {layer - 1}" if layer else first, "taken": taken}
