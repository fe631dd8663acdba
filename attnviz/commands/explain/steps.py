"""The steps of a layer as data, an entry a step: its name, its formula, what it does, its numbers, how it is drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.reference import activation_named
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, rounded

__all__ = ["Step", "norm_order", "numbers_of", "step_of"]

_FIRST, _STRONGEST, _LONGEST = 4, 4, 16
_ADDED = {
    "attention_residual": ("input", "attention_output"),
    "feed_forward_residual": ("attention_norm", "feed_forward_output"),
    "output": ("attention_residual", "feed_forward_output"),
}
"""The stream and what is added to it."""


def _label(result: Explanation, position: int) -> str:
    label = visible(result.tokens.labels[position])
    return f"‘{label if len(label) <= _LONGEST else label[: _LONGEST - 1] + '…'}’"


def _rows(result: Explanation, *names: str) -> list[Tensor]:
    """Of these steps, what belongs to the token that is followed."""
    return [result.tensor(name)[result.token] for name in names]


def _of_head(result: Explanation, name: str) -> Tensor:
    return result.tensor(name)[..., result.head.head, result.token, :]


def _length(vector: Tensor) -> str:
    return f"length {float(vector.norm()):.3g}"


def _vector(vector: Tensor) -> str:
    first = ", ".join(rounded(float(value)) for value in vector[:_FIRST])
    return f"{_length(vector)}; [{first}{', …' if len(vector) > _FIRST else ''}]"


def _keys(result: Explanation, row: Tensor, write: Callable[[float], str]) -> str:
    """The largest numbers of a row with their keys, of those that the mask allows."""
    allowed = result.tensor("mask")[result.token] > 0
    order = torch.where(allowed, row, -torch.inf).argsort(descending=True, stable=True)
    keys = [int(key) for key in order[: min(_STRONGEST, int(allowed.sum()))]]
    return ", ".join(f"{_label(result, key)} {write(float(row[key]))}" for key in keys)


def _token_numbers(result: Explanation, name: str) -> str:
    """Length and first numbers of the token's vector."""
    return f": {_vector(*_rows(result, name))}"


def _head_numbers(result: Explanation, name: str) -> str:
    return f" in {result.head}: {_vector(_of_head(result, name))}"


def _split_numbers(result: Explanation, name: str) -> str:
    parts = zip(("query", "key", "value"), _of_head(result, name), strict=True)
    return f" in {result.head}: {', '.join(f'{part} {_length(vector)}' for part, vector in parts)}"


def _score_numbers(result: Explanation, name: str) -> str:
    return f" in {result.head}, highest: {_keys(result, _of_head(result, name), rounded)}"


def _mask_numbers(result: Explanation, name: str) -> str:
    (row,) = _rows(result, name)
    return f" may attend to {int(row.sum())} of {counted(len(row), 'token')}"


def _pattern_numbers(result: Explanation, name: str) -> str:
    row = _of_head(result, name)
    strongest = _keys(result, row, "{:.2f}".format)
    return f" in {result.head} attends most to {strongest}; all {len(row)} sum to {float(row.sum()):.4f}"


def _norm_numbers(result: Explanation, name: str) -> str:
    """What the layer norm takes out of the token's vector, and its length afterwards."""
    before = {"final_norm": "output", "output": "feed_forward_residual", "feed_forward_norm": "attention_residual"}
    old, new = _rows(result, before.get(name, "input" if result.pre_norm else "attention_residual"), name)
    mean, spread = rounded(float(old.mean())), float(old.std(correction=0))
    return f": mean {mean} and standard deviation {spread:.3g} are taken out; {_length(new)}"


def _residual_numbers(result: Explanation, name: str) -> str:
    """Lengths and angle of the stream and what is added to it."""
    stream, added, total = _rows(result, *_ADDED[name], name)
    cosine = rounded(float(torch.nn.functional.cosine_similarity(stream, added, dim=0)))
    lengths = f"length {float(stream.norm()):.3g} plus a vector of length {float(added.norm()):.3g}"
    return f": {lengths} (their cosine is {cosine}) gives length {float(total.norm()):.3g}"


def _activation_numbers(result: Explanation, name: str) -> str:
    before, after = _rows(result, "expanded", name)
    return f": {int((before > 0).sum())} of {len(before)} inputs are positive; {_vector(after)}"


@dataclass(frozen=True)
class Step:
    """One step of a layer. Texts have names in braces for what differs from model to model; see :func:`step_of`."""

    title: str
    formula: str  # with this model's numbers
    sentence: str  # what it does
    label: str = ""  # above its panel in the figure; empty where it has none
    brief: str = ""  # the formula, as short as a panel needs it
    numbers: Callable[[Explanation, str], str] = _token_numbers  # a line of real numbers, after the token's name
    unseen: str = ""  # why it has no check of its own


_NORM = "norm(x) = (x − mean) / √(var + ε) · γ + β"
_NORM_H, _NORM_Y, _NORM_OUT = (_NORM.replace("x", letter) for letter in ("h", "y", "out"))
_TO_ONE = "Each token's vector is brought to mean 0 and variance 1, then weighted (γ) and shifted (β)"

_STEPS = {
    "input": Step("Input", "x = {input}", "The residual stream as it enters the layer: one vector per token.",
                  "input x", unseen="taken from the model as it is"),
    "query": Step("Queries", "Q = {x} W_Q + b_Q", "What each token looks for; all heads side by side.", "Q"),
    "key": Step("Keys", "K = {x} W_K + b_K", "What each token offers to the queries.", "K"),
    "value": Step("Values", "V = {x} W_V + b_V", "What each token passes on when it is attended to.", "V"),
    "split": Step("Split into heads", "{d_model} = {n_heads} × {d_head}", "Q, K and V are cut into {n_heads} heads of "
                  "{d_head} dimensions each; d_head = d_model / n_heads.", numbers=_split_numbers,
                  unseen="the same numbers, regrouped"),
    "scores": Step("Scores", "{scores}", "How well each query fits each key: their dot product, {scaled}.", "scores",
                   "{brief_scores}", _score_numbers, "the model does not show them: checked through the pattern"),
    "mask": Step("Mask", "allowed: {allowed}", "{masked}", "mask", "", _mask_numbers,
                 "the model does not show it: checked through the pattern"),
    "pattern": Step("Attention pattern", "A = softmax(masked scores)", "Every row of scores becomes weights that sum "
                    "to 1: how much each query takes from each key.", "pattern A", "softmax", _pattern_numbers),
    "weighted": Step("Weighted values", "A V", "Each token's new vector in a head: the values, mixed by the weights.",
                     "A V", "", _head_numbers,
                     "the model does not show them by head: checked side by side, in the next step"),
    "concatenated": Step("Concatenation", "{n_heads} × {d_head} = {d_model}", "The heads' results are laid side by "
                         "side again; no number changes.", "concatenated", "{n_heads} heads"),
    "attention_output": Step("Attention output", "concat W_O + b_O", "One linear map mixes the heads: each head's "
                             "slice of W_O says what it writes into the residual stream.", "attention", "· W_O + b_O"),
    "attention_residual": Step("Residual", "h = x + attention", "The attention's output is added to the layer's input, "
                               "which passes around it unchanged.", "h", "x + attention", _residual_numbers),
    "expanded": Step("Feed-forward: expand", "u = norm(h) W_1 + b_1", "Every token alone, from {d_model} to {d_ff} "
                     "dimensions: no token sees another from here on.", "expanded u", "· W_1 + b_1"),
    "activated": Step("Feed-forward: {activation}", "f(u), f(x) = {activation_formula}", "The network's only step that "
                      "is not linear: it lets some of the numbers through and holds others back.", "{activation}",
                      "f(u)", _activation_numbers),
    "feed_forward_output": Step("Feed-forward: contract", "f(u) W_2 + b_2",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_2 + b_2"),
    "feed_forward_residual": Step("Residual", "y = norm(h) + feed forward",
                                  "The network's output is added to what went into it.", numbers=_residual_numbers),
    "final_norm": Step("Final layer norm", _NORM_OUT, "After the last layer, outside of it: what the "
                       "language-modelling head reads.", "final norm", "", _norm_numbers),
}  # fmt: skip
_PRE_NORM = {
    "attention_norm": Step("Layer norm before the attention", _NORM,
                           f"{_TO_ONE}: pre-norm, only the attention sees it.", "norm(x)", "", _norm_numbers),
    "feed_forward_norm": Step("Layer norm before the feed-forward network", _NORM_H,
                              f"{_TO_ONE}: pre-norm, only the network sees it.", "norm(h)", "", _norm_numbers),
    "output": Step("Output", "h + feed forward", "The network's output is added to the residual stream. {taken}",
                   "output", "", _residual_numbers),
}  # fmt: skip
_POST_NORM = {
    "attention_norm": Step("Layer norm after the residual", _NORM_H,
                           f"{_TO_ONE}: post-norm, it is now the residual stream.", "norm(h)", "", _norm_numbers),
    "output": Step("Output", _NORM_Y, "The second layer norm. {taken}", "output", "", _norm_numbers),
}  # fmt: skip


def step_of(result: Explanation, name: str) -> Step:
    """A step in words, for this layer of this model."""
    template, words = _STEPS.get(name) or (_PRE_NORM if result.pre_norm else _POST_NORM)[name], _words(result)
    texts = ("title", "formula", "sentence", "label", "brief")
    return replace(template, **{text: getattr(template, text).format_map(words) for text in texts})


def numbers_of(result: Explanation, name: str) -> str:
    """One line of real numbers of a step, of the token and the head that are followed."""
    return _label(result, result.token) + step_of(result, name).numbers(result, name)


def norm_order(result: Explanation) -> str:
    """Where the layer norms stand, in one sentence."""
    if result.pre_norm:
        return (
            "Pre-norm (GPT-2): a layer norm stands before the attention and one before the feed-forward network; what "
            "they give is added to the residual stream, which itself is never normed inside a layer."
        )
    return (
        "Post-norm (BERT): the residual is added first, and a layer norm follows, after the attention and again after "
        "the feed-forward network; so the residual stream itself is normed twice a layer."
    )


def _words(result: Explanation) -> dict[str, object]:
    """What differs between layers and models."""
    model, layer, pre = result.checkpoint, result.layer, result.pre_norm
    architecture, activation = model.architecture, activation_named(result.activation)
    tables = architecture.embeddings(model.model)
    source = "word + position" if tables.segments is None else "word + position + segment"
    source = source if tables.norm is None else f"norm({source})"
    source = source if tables.project is None else f"{source} W + b"
    source = f"output of layer {layer - 1}" if layer else source
    taken = f"layer {layer + 1} takes in"
    if layer + 1 == model.n_layers:
        taken = "the final layer norm takes in" if pre else "the model gives: its last hidden state"
    texts = "in a single text" if result.pair is None else "in a pair of texts either"
    allowed, masked = "every key", f"Every token may attend to every token: nothing is masked {texts}."
    if architecture.causal:
        allowed = "key ≤ query"
        masked = "A token may attend only to itself and to what precedes it; all other scores become −∞."
    # GPT-2's config may leave the scale out, or divide it by the layer's number too
    scale, d_head = float(architecture.parameters(model.model, layer).scale), model.d_head
    scores, brief, scaled = f"Q Kᵀ · {scale:.4g}", f"Q Kᵀ · {scale:.3g}", "scaled as this model's config has it"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores, brief = f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}", f"Q Kᵀ/√{d_head}"
        scaled = "scaled so that it does not grow with d_head"
    elif scale == 1:
        scores, brief, scaled = "Q Kᵀ", "Q Kᵀ", "which this model does not scale"
    return {
        **{"d_model": model.d_model, "n_heads": model.n_heads, "d_head": d_head, "d_ff": result.d_ff},
        **{"activation": activation.name, "activation_formula": activation.formula},
        **{"x": "norm(x)" if pre else "x", "input": source, "taken": f"This is what {taken}."},
        **{"scores": scores, "brief_scores": brief, "scaled": scaled, "allowed": allowed, "masked": masked},
    }
