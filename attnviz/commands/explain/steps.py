"""The steps of a layer as data: name, formula, sentence, numbers, and drawing of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.reference import activation_named, layer_parameters
from attnviz.models.wording import counted, rounded, shortened_token, visible
from attnviz.reference.attention import HeadParameters, nowhere, of_all_heads

_FIRST, _STRONGEST, _LONGEST = 4, 4, 16
_THROUGH_PATTERN = "the model does not show them: checked through the pattern"
_ADDED = {
    "attention_residual": ("input", "attention_output"),
    "feed_forward_residual": ("attention_norm", "feed_forward_output"),
    "output": ("attention_residual", "feed_forward_output"),
}
"""By sum, the stream and what is added to it, before its own norm if it has one."""

_NORMS = {
    "layer norm": "norm(x) = (x − mean) / √(var + ε) · γ + β",
    "RMS norm": "norm(x) = x / √(mean(x²) + ε) · γ",
}
_TO_ONE = {
    "layer norm": "Each token's vector is brought to mean 0 and variance 1, then weighted (γ) and shifted (β)",
    "RMS norm": "Each token's vector is brought to mean square 1, then weighted (γ)",
}


def _label(result: Explanation, position: int) -> str:
    return f"‘{shortened_token(visible(result.tokens.labels[position]), _LONGEST)}’"


def _rows(result: Explanation, *names: str) -> list[Tensor]:
    """Rows of these steps for the followed token."""
    return [result.tensor(name)[result.token] for name in names]


def _of_head(result: Explanation, name: str) -> Tensor:
    return result.tensor(name)[..., result.head.head, result.token, :]


def _length(vector: Tensor) -> str:
    return f"length {float(vector.norm()):.3g}"


def _vector(vector: Tensor) -> str:
    first = ", ".join(rounded(float(value)) for value in vector[:_FIRST])
    return f"{_length(vector)}; [{first}{', …' if len(vector) > _FIRST else ''}]"


def _keys(result: Explanation, row: Tensor, write: Callable[[float], str]) -> str:
    """The largest allowed numbers of a row, with their keys."""
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
    """Note on the keys and values of a head that shares them, or ''."""
    heads = _heads_of(result)
    group = heads.n_heads // heads.key.weight.shape[0]
    return f" (with key-value head {result.head.head // group})" if group > 1 else ""


def _pair_numbers(result: Explanation, name: str) -> str:
    query, key = map(_vector, _of_head(result, name))
    return f" in {result.head}: query {query}, key {key}"


def _rotary_numbers(result: Explanation, name: str) -> str:
    """Rotation of the token's query and key in the fastest and the slowest pair of dimensions."""
    rotary = _heads_of(result).rotary
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
    gone = f"; {float(nowhere(row)):.4f} goes nowhere" if result.checkpoint.architecture.learned_sinks else ""
    return f" in {result.head} attends most to {strongest}; all {len(row)} sum to {float(row.sum()):.4f}{gone}"


def _norm_numbers(result: Explanation, name: str) -> str:
    """What the norm removes from the token's vector, and its length afterwards."""
    stream = "input" if result.parallel else "attention_residual"
    before = {"final_norm": "output", "output": "feed_forward_residual", "feed_forward_norm": stream}
    before |= {f"{name}_norm": name for name in ("attention_output", "feed_forward_output")}
    old, new = _rows(result, before.get(name, "input" if result.pre_norm else "attention_residual"), name)
    mean, spread = rounded(float(old.mean())), float(old.std(correction=0))
    taken = f"mean {mean} and standard deviation {spread:.3g} are taken out"
    if norm_kind(result) == "RMS norm":
        taken = f"divided by its root mean square, {float(old.square().mean().sqrt()):.3g}"
    return f": {taken}; {_length(new)}"


def _residual_numbers(result: Explanation, name: str) -> str:
    """Lengths of the stream and of the added vector, and the angle between them."""
    before, after = _ADDED[name]
    stream, added, total = _rows(result, "input" if result.parallel else before, _as_added(result, after), name)
    if result.parallel:
        added = added + _rows(result, _as_added(result, "attention_output"))[0]
    added = added * layer_parameters(result.checkpoint, result.layer).residual_multiplier
    cosine = rounded(float(torch.nn.functional.cosine_similarity(stream, added, dim=0)))
    return f": {_length(stream)} plus a vector of {_length(added)} (their cosine is {cosine}) gives {_length(total)}"


def _activation_numbers(result: Explanation, name: str) -> str:
    before, after = _rows(result, "gate" if "gate" in result.stages else "expanded", name)
    return f": {int((before > 0).sum())} of {len(before)} inputs are positive; {_vector(after)}"


def _experts_numbers(result: Explanation, _: str) -> str:
    return f" takes {experts_line(result, result.token)}"


def experts_line(result: Explanation, token: int) -> str:
    """The experts that a token takes and their weights: ``3 (0.61), 0 (0.39)``."""
    return ", ".join(f"{expert} ({weight:.2f})" for expert, weight in result.experts_of(token).items())


@dataclass(frozen=True)
class Step:
    """One step of a layer. Names in braces are filled in for the model by :func:`step_of`."""

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
    "head_norm": Step("Norms of queries and keys", "{norm_q}{bound}, and likewise of k", "{each_query} "
                      "{brought_to_one}: scores depend less on lengths.",
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
    "pattern": Step("Attention pattern", "A = softmax({masked_scores})", "Every row of scores becomes weights that sum "
                    "to 1{less}: how much each query takes from each key.", "pattern A", "softmax", _pattern_numbers),
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
    "expanded": Step("Feed-forward: expand", "u = {h} W_1{b_1}", "Every token alone, from {d_model} to {d_ff} "
                     "dimensions: no token sees another from here on.", "expanded u", "· W_1{b_1}"),
    "activated": Step("Feed-forward: {activation}", "f(u), f(x) = {activation_formula}", "{activating}",
                      "{activation}", "f(u)", _activation_numbers),
    "feed_forward_output": Step("Feed-forward: contract", "f(u) W_2{b_2}",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_2{b_2}"),
    "feed_forward_output_norm": Step("RMS norm after the feed-forward network", "{norm_f}", "{to_one}: only what that "
                                     "network writes is normed, before it is added.", "norm(f)", "", _norm_numbers),
    "feed_forward_residual": Step("Residual", "y = norm(h) + feed forward",
                                  "The feed-forward network's output is added to what went into it.",
                                  numbers=_residual_numbers),
    "final_norm": Step("Final {norm_kind}", "{norm_out}", "After the last layer, outside of it: what the "
                       "language-modelling head reads.", "final norm", "", _norm_numbers),
}  # fmt: skip
_PRE_NORM = {
    "attention_norm": Step("{Norm} before the attention", "{norm_x}",
                           "{to_one}: pre-norm, only {norm_seen_by} it.", "norm(x)", "", _norm_numbers),
    "feed_forward_norm": Step("{Norm} before the feed-forward network", "{norm_h}",
                              "{to_one}: pre-norm, only that network sees it.", "{h}", "", _norm_numbers),
    "output": Step("Output", "h + {feed_forward}", "The feed-forward network's output is added to the residual stream. "
                   "{taken}", "output", "", _residual_numbers),
}  # fmt: skip
_PARALLEL = {
    "output": Step("Output", "x + {attention} + {feed_forward}", "Both outputs are added to the layer's input at once: "
                   "neither half sees what the other writes here. {taken}", "output", "", _residual_numbers),
}  # fmt: skip
_POST_NORM = {
    "attention_norm": Step("{Norm} after the residual", "{norm_h}",
                           "{to_one}: post-norm, it is now the residual stream.", "norm(h)", "", _norm_numbers),
    "output": Step("Output", "{norm_y}", "The second {norm_kind}. {taken}", "output", "", _norm_numbers),
}  # fmt: skip
_GATED = {
    "gate": Step("Feed-forward: gate", "g = {h} W_gate{b_gate}", "Every token alone, from {d_model} to {d_ff} "
                 "dimensions: no token sees another from here on.", "gate g", "· W_gate, W_up"),
    "expanded": Step("Feed-forward: expand", "u = {h} W_up{b_1}",
                     "A second map to {d_ff} dimensions: the numbers that the gate lets through or holds back.", "u"),
    "activated": Step("Feed-forward: {activation}", "f(g), f(x) = {activation_formula}", "The activation of the gate.",
                      "{brief_activation}(g)", "", _activation_numbers),
    "gated": Step("Feed-forward: gated", "f(g) · u", "Each number of u is multiplied by that of its gate.", "gated",
                  "{brief_activation}(g) · u"),
    "feed_forward_output": Step("Feed-forward: contract", "(f(g) · u) W_down{b_2}",
                                "Back from {d_ff} to {d_model} dimensions.", "feed-forward", "· W_down{b_2}"),
}  # fmt: skip


_ROUTED = {
    "router": Step("Router", "r = norm(h) W_r{b_r}", "A logit for each of the {n_experts} experts, which are "
                   "feed-forward networks of {d_expert} dimensions.", "router r", "· W_r{b_r}"),
    "experts": Step("Experts", "{shares}", "Each token takes the {n_taken} experts of the highest logits: all others "
                    "compute nothing for it.", "experts", "top {n_taken}", _experts_numbers),
    "experts_output": Step("Experts: output", "Σ weight_e · expert_e(norm(h))", "What the experts that a token takes "
                           "make of it, weighted.", "experts' sum"),
    "shared_gate": Step("Shared expert: weight", "s = norm(h) w_s", "The logit of the weight of the expert that every "
                        "token takes.", "s"),
    "feed_forward_output": Step("Feed-forward: output", "Σ weight_e · expert_e(norm(h)){and_shared}",
                                "expert(x) = {expert_network}, each with its own matrices.",
                                "feed-forward", "weighted sum"),
}  # fmt: skip


def _steps_of(result: Explanation) -> dict[str, Step]:
    """The steps of the model's kind of layer by name, with braces."""
    every = _STEPS | (_PRE_NORM if result.pre_norm else _POST_NORM) | (_GATED if "gated" in result.stages else {})
    every |= _PARALLEL if result.parallel else {}
    if "router" not in result.stages:
        return every
    shared = {name: replace(step, title=step.title.replace("Feed-forward", "Shared expert"))
              for name, step in _GATED.items()}  # fmt: skip
    return every | shared | {"shared_output": shared["feed_forward_output"]} | _ROUTED


def step_of(result: Explanation, name: str) -> Step:
    """A step, filled in for this layer of this model."""
    template, words = _steps_of(result)[name], _words_of(result)
    texts = ("title", "formula", "sentence", "label", "brief")
    return replace(template, **{text: getattr(template, text).format_map(words) for text in texts})


def numbers_of(result: Explanation, name: str) -> str:
    """One line of numbers of a step, for the followed token and head."""
    return _label(result, result.token) + step_of(result, name).numbers(result, name)


def norm_kind(result: Explanation) -> str:
    """``layer norm`` or ``RMS norm``."""
    return "layer norm" if result.checkpoint.architecture.norm_kind.startswith("layer") else "RMS norm"


def _heads_of(result: Explanation) -> HeadParameters:
    """The parameters of the layer's attention."""
    return result.checkpoint.architecture.parameters(result.checkpoint.model, result.layer)


def _as_added(result: Explanation, name: str) -> str:
    """The step that is added to the stream: an output, or its own norm if it has one."""
    return f"{name}_norm" if f"{name}_norm" in result.stages else name


def norm_order(result: Explanation) -> str:
    """Sentence on the order of norms."""
    if result.pre_norm:
        known, norm = ("GPT-2", "a layer norm") if norm_kind(result) == "layer norm" else ("Llama", "an RMS norm")
        after = " and one after each, of what is added" if "attention_output_norm" in result.stages else ""
        if result.norm_order == "reordered norm":
            return (
                f"Reordered norm (OLMo 2): attention and feed-forward network take the residual stream as it is; "
                f"{norm} stands after each of them, before what they give is added to it."
            )
        if result.parallel:
            how = f"each through {norm} of its own" if "feed_forward_norm" in result.stages else f"both through {norm}"
            return (
                f"Pre-norm, in parallel (GPT-NeoX): attention and feed-forward network read the same residual stream, "
                f"{how}; what both give is added to it at once."
            )
        return (
            f"Pre-norm ({known}): {norm} stands before the attention and one before the feed-forward "
            f"network{after}; what they give is added to the residual stream, which itself is never normed inside a "
            "layer."
        )
    return (
        "Post-norm (BERT): the residual is added first, and a layer norm follows, after the attention and again after "
        "the feed-forward network; so the residual stream itself is normed twice a layer."
    )


def _words_of(result: Explanation) -> dict[str, object]:
    """Words for the braces of all steps, for this layer and model."""
    model, layer, pre = result.checkpoint, result.layer, result.pre_norm
    separate = not pre or "feed_forward_norm" in result.stages  # not one norm for both halves
    architecture, activation = model.architecture, activation_named(result.activation)
    tables = architecture.embeddings(model.model)
    factor = tables.scale_of(result.tokens.ids)
    by_root = abs(factor**2 / model.d_model - 1) < 1e-2  # as the number format rounds it
    words = "word" if factor == 1 else f"word · {'√d_model' if by_root else f'{factor:g}'}"
    words = words if tables.words_project is None else f"{words} W"
    words += " (0 at masks)" * (tables.dropped in result.tokens.ids)
    others = (" + position" * (tables.positions is not None), " + segment" * (tables.segments is not None))
    source = words + "".join(others)
    source = source if tables.norm is None else f"norm({source})"
    source = source if tables.project is None else f"{source} W + b"
    source = f"output of layer {layer - 1}" if layer else source
    taken = f"layer {layer + 1} takes in"
    if layer + 1 == model.n_layers:
        taken = f"the final {norm_kind(result)} takes in" if pre else "the model gives: its last hidden state"
        if architecture.output_map(model.model) is not None:
            taken = "the model maps to its last hidden state"
    activating = "The feed-forward network's only step that is not linear: some numbers pass, others are held back."
    if activation.name == "linear":
        activating = "This model has no activation: the numbers stay as they are."
    texts = "in a single text" if result.pair is None else "in a pair of texts either"
    allowed, masked = "every key", f"Every token may attend to every token: nothing is masked {texts}."
    if architecture.causal:
        allowed = "key ≤ query"
        masked = "A token may attend only to itself and to what precedes it; all other scores become −∞."
    heads, brief_mask = _heads_of(result), ""
    if heads.window is not None and heads.window < len(result.tokens):
        size = heads.window
        if architecture.causal:
            allowed, brief_mask = f"query − {size} < key ≤ query", f"last {size} keys"
            last = f"the last {counted(size, 'token')}, itself included"
        else:
            allowed, brief_mask = f"|query − key| < {size}", f"{2 * size - 1} keys around"
            last = f"itself and {counted(size - 1, 'token')} on each side"
        masked = f"A token may attend only to {last}; all other scores become −∞."
    # GPT-2's config may leave the scale out, or divide it by the layer's number too
    scale, d_head = float(heads.scale) * heads.query_scale, model.d_head
    scores, brief, scaled = f"Q Kᵀ · {scale:.4g}", f"Q Kᵀ · {scale:.3g}", "scaled as this model's config has it"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores, brief = f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}", f"Q Kᵀ/√{d_head}"
        scaled = "scaled so that it does not grow with d_head"
    elif scale == 1:
        scores, brief, scaled = "Q Kᵀ", "Q Kᵀ", "which this model does not scale"
    if heads.position_bias is not None:
        scores, brief = f"{scores.replace(' = ', ' + b = ')} + b", f"{brief} + b"
        scaled += ", plus b, which the head has learned for their distance"
    return {
        **{"d_model": model.d_model, "n_heads": model.n_heads, "d_head": d_head},
        **{"activation": activation.name, "brief_activation": activation.name.partition("_")[0],
           "activation_formula": activation.formula, "activating": activating},
        **{"x": "norm(x)" if pre and "attention_norm" in result.stages else "x",
           "h": "norm(x)" if result.parallel else "norm(h)" if separate else "h"},
        **{"input": source, "taken": f"This is what {taken}."},
        "masked_scores": "masked scores" + ", learned sink" * (heads.sinks is not None),
        "less": " with the share of the head’s learned sink, which goes nowhere" * (heads.sinks is not None),
        "norm_seen_by": "the attention sees" if separate else "both halves see",
        **{"scores": scores, "brief_scores": brief, "scaled": scaled, "allowed": allowed, "masked": masked},
        **{"brief_mask": brief_mask, "cap": f"{heads.cap or 0:g}"},
        **_split_words(result), **_bias_words(result), **_norm_words(result), **_network_words(result),
    }  # fmt: skip


def _network_words(result: Explanation) -> dict[str, object]:
    """Words on the width of the feed-forward network, and on experts."""
    experts = layer_parameters(result.checkpoint, result.layer).experts
    words: dict[str, object] = {
        "d_ff": result.stages["expanded"].shape[-1] if "expanded" in result.stages else result.d_ff
    }
    if experts is None:
        return words
    return words | {
        **{"d_expert": result.d_ff, "n_taken": experts.n_taken, "n_experts": result.stages["router"].shape[-1]},
        "b_r": " + b_r" * (experts.router.bias is not None),
        "expert_network": result.checkpoint.architecture.expert_network(result.checkpoint.config, result.activation),
        "shares": result.checkpoint.architecture.expert_formula(result.checkpoint.config),
        "and_shared": " + σ(s) · shared(norm(h))" * (experts.shared_gate is not None),
    }


def _split_words(result: Explanation) -> dict[str, object]:
    """Words on the split into heads, and the rotary share of a head."""
    model, heads = result.checkpoint, _heads_of(result)
    n_heads, n_shared, d_head = heads.n_heads, heads.key.weight.shape[0], model.d_head
    split, parts = f"{n_heads * d_head} = {n_heads} × {d_head}", f"{n_heads} heads of {d_head} dimensions each"
    cut = f"Q, K and V are cut into {parts}" + "; d_head = d_model / n_heads." * (n_heads * d_head == model.d_model)
    if n_shared < n_heads:
        split = f"Q: {split}; K, V: {n_shared * d_head} = {n_shared} × {d_head}"
        each = f"{n_heads // n_shared} query heads share one of them" if n_shared > 1 else "all query heads share them"
        cut = f"Q is cut into {parts}, K and V into {counted(n_shared, 'head')}: {each}."
    turned = 0 if heads.rotary is None else 2 * len(heads.rotary.frequencies)
    part = "Q and K" if turned == d_head else f"the first {turned} dimensions of Q and K"
    together = of_all_heads(heads.query_norm, d_head)
    each_query = (
        "Each token's query, of all heads together, and likewise key," if together else "Each head's query and key"
    )
    cut = cut.removesuffix(".") + "."
    return {"each_query": each_query, "split": split, "cut": cut, "turned": part, "d_heads": n_heads * d_head}


def _bias_words(result: Explanation) -> dict[str, object]:
    """Formula of each bias by name, '' without a bias; and of the bound of queries, keys and values."""
    layer = layer_parameters(result.checkpoint, result.layer)
    heads = layer.heads
    biases = {"Q": heads.query.bias, "K": heads.key.bias, "V": heads.value.bias, "O": heads.output_bias}
    maps = {"1": layer.up_proj, "2": layer.down_proj, "gate": layer.gate}
    biases |= {name: None if linear is None else linear.bias for name, linear in maps.items()}
    bound = f", between ±{heads.value.clip:g}" if heads.value.clip is not None else ""
    bounded = "QKV" if heads.query_norm is None else "V"  # the others by their norms
    words: dict[str, object] = {
        f"b_{name}": f" + b_{name}" * (bias is not None) + bound * (name in bounded) for name, bias in biases.items()
    }
    return words | {"bound": bound}


def _norm_words(result: Explanation) -> dict[str, object]:
    """Words on the norms, and on what is added."""
    kind = norm_kind(result)
    formula, to_one = _NORMS[kind], _TO_ONE[kind]
    own, heads = layer_parameters(result.checkpoint, result.layer), _heads_of(result)
    norm: Any = own.attention_norm or own.feed_forward_norm or own.attention_output_norm
    if norm.bias is None:
        formula, to_one = formula.removesuffix(" + β"), to_one.replace(" and shifted (β)", "")
    if norm.weight is None:
        formula, to_one = formula.removesuffix(" · γ"), to_one.partition(", then")[0]
    if result.checkpoint.architecture.norm_kind.endswith("1 + w"):
        formula = formula.replace("γ", "(1 + γ)")
    letters = {"x": "x", "h": "x" if result.parallel else "h", "y": "y", "out": "out", "q": "q", "a": "attention",
               "f": "feed forward"}  # fmt: skip
    norms = {f"norm_{name}": formula.replace("x", letter) for name, letter in letters.items()}
    added = {name: _as_added(result, f"{name}_output") for name in ("attention", "feed_forward")}
    said = {name: name.replace("_", " ") for name in added}
    said |= {name: f"norm({said[name]})" for name, step in added.items() if step.endswith("norm")}
    factor, of_heads = own.residual_multiplier, to_one.partition(" vector ")[2]
    if heads.query_norm is not None and heads.query_norm.bias is None:
        norms["norm_q"] = norms["norm_q"].removesuffix(" + β")
        of_heads = of_heads.replace(" and shifted (β)", "")
    said = said if factor == 1 else {name: f"{factor:g} · {of}" for name, of in said.items()}
    names = {"norm_kind": kind, "Norm": kind[0].upper() + kind[1:]}
    return {**norms, **said, **names, "to_one": to_one, "brought_to_one": of_heads}
