"""The steps of a layer as data, an entry a step: its name, its formula, what it does, its numbers, how it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.step_words import as_added, heads_of, norm_kind, words_of
from attnviz.model.wording import counted, rounded, visible

_FIRST, _STRONGEST, _LONGEST = 4, 4, 16
_THROUGH_PATTERN = "the model does not show them: checked through the pattern"
_A = {"layer norm": "a layer norm", "RMS norm": "an RMS norm"}
_ADDED = {
    "attention_residual": ("input", "attention_output"),
    "feed_forward_residual": ("attention_norm", "feed_forward_output"),
    "output": ("attention_residual", "feed_forward_output"),
}
"""The stream and what is added to it, before its own norm if it has one."""


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
    return f" in {result.head}{_shared(result)}: {', '.join(f'{part} {_length(vector)}' for part, vector in parts)}"


def _shared(result: Explanation) -> str:
    """Which keys and values the head has, where it shares them."""
    heads = heads_of(result)
    group = heads.n_heads // heads.key.weight.shape[0]
    return f" (with key-value head {result.head.head // group})" if group > 1 else ""


def _pair_numbers(result: Explanation, name: str) -> str:
    return f" in {result.head}: query {{0}}, key {{1}}".format(*map(_vector, _of_head(result, name)))


def _rotary_numbers(result: Explanation, name: str) -> str:
    """How far the query and the key of the token are turned, in the pair that turns fastest and in the slowest."""
    rotary = heads_of(result).rotary
    assert rotary is not None
    angles = result.token * rotary.of(len(result.tokens))
    turned = f"{float(angles[0]):.3g} radians in the fastest pair of dimensions, {float(angles[-1]):.2g} in the slowest"
    return f" at position {result.token} is turned by {turned}; {_pair_numbers(result, name).strip()}"


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
    """What the norm takes out of the token's vector, and its length afterwards."""
    before = {"final_norm": "output", "output": "feed_forward_residual", "feed_forward_norm": "attention_residual"}
    before |= {f"{name}_norm": name for name in ("attention_output", "feed_forward_output")}
    old, new = _rows(result, before.get(name, "input" if result.pre_norm else "attention_residual"), name)
    mean, spread = rounded(float(old.mean())), float(old.std(correction=0))
    taken = f"mean {mean} and standard deviation {spread:.3g} are taken out"
    if norm_kind(result) == "RMS norm":
        taken = f"divided by its root mean square, {float(old.square().mean().sqrt()):.3g}"
    return f": {taken}; {_length(new)}"


def _residual_numbers(result: Explanation, name: str) -> str:
    """Lengths and angle of the stream and what is added to it."""
    before, after = _ADDED[name]
    stream, added, total = _rows(result, before, as_added(result, after), name)
    cosine = rounded(float(torch.nn.functional.cosine_similarity(stream, added, dim=0)))
    lengths = f"length {float(stream.norm()):.3g} plus a vector of length {float(added.norm()):.3g}"
    return f": {lengths} (their cosine is {cosine}) gives length {float(total.norm()):.3g}"


def _activation_numbers(result: Explanation, name: str) -> str:
    before, after = _rows(result, "gate" if "gate" in result.stages else "expanded", name)
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


_STEPS = {
    "input": Step("Input", "x = {input}", "The residual stream as it enters the layer: one vector per token.",
                  "input x", unseen="taken from the model as it is"),
    "query": Step("Queries", "Q = {x} W_Q{b_Q}", "What each token looks for; all heads side by side.", "Q"),
    "key": Step("Keys", "K = {x} W_K{b_K}", "What each token offers to the queries.", "K"),
    "value": Step("Values", "V = {x} W_V{b_V}", "What each token passes on when it is attended to.", "V"),
    "split": Step("Split into heads", "{split}", "{cut}", numbers=_split_numbers,
                  unseen="the same numbers, regrouped"),
    "head_norm": Step("Norms of queries and keys", "{norm_q}, and likewise of k", "Each head's query and key "
                      "is brought to mean square 1, then weighted (γ): scores depend less on lengths.",
                      brief="norm", numbers=_pair_numbers),
    "rotated": Step("Rotary positions", "pair i of {turned} turned by position · f_i", "Each query and key is "
                    "turned by angles that grow with its position: a score depends on how far apart the two are.",
                    brief="rotated", numbers=_rotary_numbers, unseen=_THROUGH_PATTERN),
    "scores": Step("Scores", "{scores}", "How well each query fits each key: their dot product, {scaled}.", "scores",
                   "{brief_scores}", _score_numbers, _THROUGH_PATTERN),
    "capped": Step("Capped scores", "{cap} · tanh(scores / {cap})", "Scores of any size are bounded by ±{cap}; small "
                   "ones hardly change.", "capped", "±{cap}", _score_numbers, _THROUGH_PATTERN),
    "mask": Step("Mask", "allowed: {allowed}", "{masked}", "mask", "{brief_mask}", _mask_numbers,
                 "the model does not show it: checked through the pattern"),
    "pattern": Step("Attention pattern", "A = softmax(masked scores)", "Every row of scores becomes weights that sum "
                    "to 1: how much each query takes from each key.", "pattern A", "softmax", _pattern_numbers),
    "weighted": Step("Weighted values", "A V", "Each token's new vector in a head: the values, mixed by the weights.",
                     "A V", "", _head_numbers,
                     "the model does not show them by head: checked side by side, in the next step"),
    "concatenated": Step("Concatenation", "{n_heads} × {d_head} = {d_heads}", "The heads' results are laid side by "
                         "side again; no number changes.", "concatenated", "{n_heads} heads"),
    "attention_output": Step("Attention output", "concat W_O{b_O}", "One linear map mixes the heads: each head's "
                             "slice of W_O says what it writes into the residual stream.", "attention", "· W_O{b_O}"),
    "attention_output_norm": Step("RMS norm after the attention", "{norm_a}", "{to_one}: only what the attention "
                                  "writes is normed, before it is added.", "norm(a)", "", _norm_numbers),
    "attention_residual": Step("Residual", "h = x + {attention}", "The attention's output is added to the layer's "
                               "input, which passes around it unchanged.", "h", "x + {attention}", _residual_numbers),
    "expanded": Step("Feed-forward: expand", "u = norm(h) W_1 + b_1", "Every token alone, from {d_model} to {d_ff} "
                     "dimensions: no token sees another from here on.", "expanded u", "· W_1 + b_1"),
    "activated": Step("Feed-forward: {activation}", "f(u), f(x) = {activation_formula}", "The network's only step that "
                      "is not linear: it lets some of the numbers through and holds others back.", "{activation}",
                      "f(u)", _activation_numbers),
    "feed_forward_output": Step("Feed-forward: contract", "f(u) W_2 + b_2",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_2 + b_2"),
    "feed_forward_output_norm": Step("RMS norm after the feed-forward network", "{norm_f}", "{to_one}: only what the "
                                     "network writes is normed, before it is added.", "norm(f)", "", _norm_numbers),
    "feed_forward_residual": Step("Residual", "y = norm(h) + feed forward",
                                  "The network's output is added to what went into it.", numbers=_residual_numbers),
    "final_norm": Step("Final {norm_kind}", "{norm_out}", "After the last layer, outside of it: what the "
                       "language-modelling head reads.", "final norm", "", _norm_numbers),
}  # fmt: skip
_PRE_NORM = {
    "attention_norm": Step("{Norm} before the attention", "{norm_x}",
                           "{to_one}: pre-norm, only the attention sees it.", "norm(x)", "", _norm_numbers),
    "feed_forward_norm": Step("{Norm} before the feed-forward network", "{norm_h}",
                              "{to_one}: pre-norm, only the network sees it.", "norm(h)", "", _norm_numbers),
    "output": Step("Output", "h + {feed_forward}", "The network's output is added to the residual stream. {taken}",
                   "output", "", _residual_numbers),
}  # fmt: skip
_POST_NORM = {
    "attention_norm": Step("{Norm} after the residual", "{norm_h}",
                           "{to_one}: post-norm, it is now the residual stream.", "norm(h)", "", _norm_numbers),
    "output": Step("Output", "{norm_y}", "The second {norm_kind}. {taken}", "output", "", _norm_numbers),
}  # fmt: skip
_GATED = {
    "gate": Step("Feed-forward: gate", "g = norm(h) W_gate{b_gate}", "Every token alone, from {d_model} to {d_ff} "
                 "dimensions: no token sees another from here on.", "gate g", "· W_gate, W_up"),
    "expanded": Step("Feed-forward: expand", "u = norm(h) W_up{b_1}",
                     "A second map to {d_ff} dimensions: the numbers that the gate lets through or holds back.", "u"),
    "activated": Step("Feed-forward: {activation}", "f(g), f(x) = {activation_formula}", "The activation of the gate.",
                      "{brief_activation}(g)", "", _activation_numbers),
    "gated": Step("Feed-forward: gated", "f(g) · u", "Each number of u is multiplied by that of its gate.", "gated",
                  "{brief_activation}(g) · u"),
    "feed_forward_output": Step("Feed-forward: contract", "(f(g) · u) W_down{b_2}",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_down{b_2}"),
}  # fmt: skip


def step_of(result: Explanation, name: str) -> Step:
    """A step in words, for this layer of this model."""
    every = _STEPS | (_PRE_NORM if result.pre_norm else _POST_NORM) | (_GATED if "gated" in result.stages else {})
    template, words = every[name], words_of(result)
    texts = ("title", "formula", "sentence", "label", "brief")
    return replace(template, **{text: getattr(template, text).format_map(words) for text in texts})


def numbers_of(result: Explanation, name: str) -> str:
    """One line of real numbers of a step, of the token and the head that are followed."""
    return _label(result, result.token) + step_of(result, name).numbers(result, name)


def norm_order(result: Explanation) -> str:
    """Where the norms stand, in one sentence."""
    if result.pre_norm:
        known = "GPT-2" if norm_kind(result) == "layer norm" else "Llama"
        after = " and one after each, of what is added" if "attention_output_norm" in result.stages else ""
        return (
            f"Pre-norm ({known}): {_A[norm_kind(result)]} stands before the attention and one before the feed-forward "
            f"network{after}; what they give is added to the residual stream, which itself is never normed inside a "
            "layer."
        )
    return (
        "Post-norm (BERT): the residual is added first, and a layer norm follows, after the attention and again after "
        "the feed-forward network; so the residual stream itself is normed twice a layer."
    )
