"""What differs between layers and models in the words for a layer's steps."""

import math

from attnviz.attention.reference import HeadParameters
from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.reference import activation_named, layer_parameters
from attnviz.model.wording import counted

_NORMS = {
    "layer": "norm(x) = (x − mean) / √(var + ε) · γ + β",
    "rms": "norm(x) = x / √(mean(x²) + ε) · γ",
    "rms, 1 + w": "norm(x) = x / √(mean(x²) + ε) · (1 + γ)",
}
_TO_ONE = {
    "layer norm": "Each token's vector is brought to mean 0 and variance 1, then weighted (γ) and shifted (β)",
    "RMS norm": "Each token's vector is brought to mean square 1, then weighted (γ)",
}


def norm_kind(result: Explanation) -> str:
    """``layer norm`` or ``RMS norm``."""
    return "layer norm" if result.checkpoint.architecture.norm_kind == "layer" else "RMS norm"


def heads_of(result: Explanation) -> HeadParameters:
    """The parameters of the layer's attention."""
    return result.checkpoint.architecture.parameters(result.checkpoint.model, result.layer)


def as_added(result: Explanation, name: str) -> str:
    """The step that is added to the stream: an output, or its own norm where it has one."""
    return f"{name}_norm" if f"{name}_norm" in result.stages else name


def words_of(result: Explanation) -> dict[str, object]:
    """What differs between layers and models."""
    model, layer, pre = result.checkpoint, result.layer, result.pre_norm
    architecture, activation = model.architecture, activation_named(result.activation)
    tables = architecture.embeddings(model.model)
    words = "word" if tables.scale == 1 else "word · √d_model"
    others = (" + position" * (tables.positions is not None), " + segment" * (tables.segments is not None))
    source = words + "".join(others)
    source = source if tables.norm is None else f"norm({source})"
    source = source if tables.project is None else f"{source} W + b"
    source = f"output of layer {layer - 1}" if layer else source
    taken = f"layer {layer + 1} takes in"
    if layer + 1 == model.n_layers:
        taken = f"the final {norm_kind(result)} takes in" if pre else "the model gives: its last hidden state"
    texts = "in a single text" if result.pair is None else "in a pair of texts either"
    allowed, masked = "every key", f"Every token may attend to every token: nothing is masked {texts}."
    if architecture.causal:
        allowed = "key ≤ query"
        masked = "A token may attend only to itself and to what precedes it; all other scores become −∞."
    heads, brief_mask = heads_of(result), ""
    if heads.window is not None and heads.window < len(result.tokens):
        allowed, brief_mask = f"query − {heads.window} < key ≤ query", f"last {heads.window} keys"
        last = f"the last {counted(heads.window, 'token')}, itself included"
        masked = f"A token may attend only to {last}; all other scores become −∞."
    # GPT-2's config may leave the scale out, or divide it by the layer's number too
    scale, d_head = float(heads.scale), model.d_head
    scores, brief, scaled = f"Q Kᵀ · {scale:.4g}", f"Q Kᵀ · {scale:.3g}", "scaled as this model's config has it"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores, brief = f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}", f"Q Kᵀ/√{d_head}"
        scaled = "scaled so that it does not grow with d_head"
    elif scale == 1:
        scores, brief, scaled = "Q Kᵀ", "Q Kᵀ", "which this model does not scale"
    return {
        **{"d_model": model.d_model, "n_heads": model.n_heads, "d_head": d_head, "d_ff": result.d_ff},
        **{"activation": activation.name, "brief_activation": activation.name.partition("_")[0],
           "activation_formula": activation.formula},
        **{"x": "norm(x)" if pre else "x", "input": source, "taken": f"This is what {taken}."},
        **{"scores": scores, "brief_scores": brief, "scaled": scaled, "allowed": allowed, "masked": masked},
        **{"brief_mask": brief_mask, "cap": f"{heads.cap or 0:g}"},
        **_split_words(result), **_bias_words(result), **_norm_words(result),
    }  # fmt: skip


def _split_words(result: Explanation) -> dict[str, object]:
    """How queries, keys and values are cut into heads, and how much of a head is turned."""
    model, heads = result.checkpoint, heads_of(result)
    n_heads, n_shared, d_head = heads.n_heads, heads.key.weight.shape[0], model.d_head
    split, parts = f"{n_heads * d_head} = {n_heads} × {d_head}", f"{n_heads} heads of {d_head} dimensions each"
    cut = f"Q, K and V are cut into {parts}" + "; d_head = d_model / n_heads." * (n_heads * d_head == model.d_model)
    if n_shared < n_heads:
        split = f"Q: {split}; K, V: {n_shared * d_head} = {n_shared} × {d_head}"
        each = f"{n_heads // n_shared} query heads share one of them" if n_shared > 1 else "all query heads share them"
        cut = f"Q is cut into {parts}, K and V into {counted(n_shared, 'head')}: {each}."
    turned = 0 if heads.rotary is None else 2 * len(heads.rotary.frequencies)
    part = "Q and K" if turned == d_head else f"the first {turned} dimensions of Q and K"
    return {"split": split, "cut": cut.removesuffix(".") + ".", "turned": part, "d_heads": n_heads * d_head}


def _bias_words(result: Explanation) -> dict[str, object]:
    """By name, how each bias is added in a formula; nothing where there is none."""
    layer = layer_parameters(result.checkpoint, result.layer)
    heads, gate = layer.heads, layer.gate
    biases = {"Q": heads.query.bias, "K": heads.key.bias, "V": heads.value.bias, "O": heads.output_bias}
    biases |= {"1": layer.expand.bias, "2": layer.contract.bias, "gate": None if gate is None else gate.bias}
    return {f"b_{name}": "" if bias is None else f" + b_{name}" for name, bias in biases.items()}


def _norm_words(result: Explanation) -> dict[str, object]:
    """The norm of everything that is normed, and what is added."""
    kind = norm_kind(result)
    formula = _NORMS[result.checkpoint.architecture.norm_kind]
    letters = {"x": "x", "h": "h", "y": "y", "out": "out", "q": "q", "a": "attention", "f": "feed forward"}
    norms = {f"norm_{name}": formula.replace("x", letter) for name, letter in letters.items()}
    added = {name: as_added(result, f"{name}_output") for name in ("attention", "feed_forward")}
    said = {name: name.replace("_", " ") for name in added}
    said |= {name: f"norm({said[name]})" for name, step in added.items() if step.endswith("norm")}
    return {**norms, **said, "norm_kind": kind, "Norm": kind[0].upper() + kind[1:], "to_one": _TO_ONE[kind]}
