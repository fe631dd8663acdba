"""The steps of a layer in words: title, formula with this model's numbers, and what it does."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.reference.attention import BY_POSITION
from attnviz.run.layer_steps import VerifiedStages

_NORMS = {"layer norm": "norm(x) = (x − mean) / √(var + ε)", "RMS norm": "norm(x) = x / √(mean(x²) + ε)"}
TEXTS = tomllib.loads((Path(__file__).parents[1] / "data" / "layer_steps.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class LayerStep:
    """One step of a layer, from data/layer_steps.toml; names in braces are filled in by :func:`steps_of`."""

    number: int  # among the steps of the layer, from 1
    title: str
    formula: str  # with this model's numbers
    sentence: str  # what it does
    label: str = ""  # above its numbers on the page; empty where that is the title
    unseen: str = "the model does not show them: checked through the pattern"  # why it has no check of its own


def steps_of(stages: VerifiedStages) -> dict[str, LayerStep]:
    """Every step by name, filled in for this layer of this model."""
    layer = stages.parameters
    kinds = {
        "every": True,
        "pre_norm": layer.pre_norm,
        "post_norm": not layer.pre_norm,
        "parallel": layer.parallel,
        "gated": "gated" in stages,
        "mixture": stages.experts > 0,
    }
    templates = {name: texts for kind, is_so in kinds.items() if is_so for name, texts in TEXTS[kind].items()}
    words = _words_of(stages)
    return {
        name: LayerStep(number=number, **{part: text.format_map(words) for part, text in templates[name].items()})
        for number, name in enumerate(stages, 1)
    }


def _words_of(stages: VerifiedStages) -> dict[str, object]:
    model = stages.checkpoint
    layer = stages.parameters
    heads = layer.heads
    x = "norm(x)" if layer.pre_norm and "attention_norm" in stages else "x"
    h = "norm(h)" if not layer.pre_norm or "feed_forward_norm" in stages else "h"
    biases = {"Q": heads.query.bias, "K": heads.key.bias, "V": heads.value.bias, "O": heads.output_bias}
    for name, linear in (("1", layer.up_proj), ("2", layer.down_proj), ("gate", layer.gate)):
        biases[name] = None if linear is None else linear.bias
    words = {f"b_{name}": "" if bias is None else f" + b_{name}" for name, bias in biases.items()}
    bound = "" if heads.value.clip is None else f", between ±{heads.value.clip:g}"
    for name in "QKV" if heads.query_norm is None else "V":  # the others are bounded by their norms
        words[f"b_{name}"] += bound
    source = f"output of layer {stages.layer - 1}"
    if not stages.layer:  # the sum: norm(word + position + segment)
        tables = model.architecture.embeddings(model.model)
        factor, source = tables.scale_of(stages.tokens.ids), "word"
        if factor != 1:
            by_root = abs(factor**2 / model.d_model - 1) < 1e-2  # as the dtype rounds it
            source = "word · √d_model" if by_root else f"word · {factor:g}"
        parts = {
            " W": tables.words_project is not None,
            " (0 at masks)": tables.dropped in stages.tokens.ids,
            " + position": tables.positions is not None,
            " + segment": tables.segments is not None,
        }
        source += "".join(part for part, is_there in parts.items() if is_there)
        if tables.norm is not None:
            source = f"norm({source})"
        if tables.project is not None:
            source += " W + b"
    return {
        **words,
        "bound": bound,
        "d_model": model.d_model,
        "n_heads": model.n_heads,
        "d_value": heads.output_weight.shape[1],
        "d_heads": heads.output_weight.shape[:2].numel(),
        "d_ff": stages.d_ff,
        "n_experts": stages.experts,
        "activation": layer.activation.name,
        "short_activation": layer.activation.name.partition("_")[0],
        "activation_formula": layer.activation.formula,
        "x": x,
        "of_Q": x if heads.query.latent is None else f"norm({x} W_DQ)",
        "of_KV": x if heads.key.latent is None else f"norm({x} W_DKV)",
        "shared": "" if heads.key.latent is None else f", beside {x} W_KR in all heads",
        "h": "norm(x)" if layer.parallel else h,
        "input": source,
        "masked_scores": "masked scores" if heads.sinks is None else "masked scores, learned sink",
        "cap": f"{heads.cap or 0:g}",
        **_attention_words(stages),
        **_norm_words(stages),
    }


def _attention_words(stages: VerifiedStages) -> dict[str, str]:
    """The formula of the scores, which keys a token may attend to, the split into heads, what of a head is turned."""
    heads, d_head, causal = stages.parameters.heads, stages.checkpoint.d_head, stages.checkpoint.architecture.causal
    scale = float(heads.scale) * heads.query_scale  # GPT-2's config may leave it out
    added = "".join(f" + {TEXTS['every'][name]['label']}" for name in BY_POSITION if name in stages)
    scores = f"Q Kᵀ · {scale:.4g}{added}"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores = f"Q Kᵀ / √d_head{added} = Q Kᵀ / √{d_head}{added}"
    elif scale == 1:
        scores = f"Q Kᵀ{added}"
    allowed = "key ≤ query" if causal else "every key"
    if heads.window is not None and heads.window < len(stages.tokens):
        allowed = f"query − {heads.window} < key ≤ query" if causal else f"|query − key| < {heads.window}"
    n_shared = heads.key.weight.shape[0]
    split = f"{heads.n_heads * d_head} = {heads.n_heads} × {d_head}"
    if heads.key.latent is not None:
        split = f"Q, K: {split}; V: {heads.n_heads} × {heads.output_weight.shape[1]}, drawn with zeros to one width"
    if n_shared < heads.n_heads:
        split = f"Q: {split}; K, V: {n_shared * d_head} = {n_shared} × {d_head}"
    n_turned = 0 if heads.rotary is None else 2 * len(heads.rotary.frequencies)
    end = "last" if heads.rotary is not None and heads.rotary.at_end else "first"
    turned = "Q and K" if n_turned == d_head else f"the {end} {n_turned} dimensions of Q and K"
    heat = heads.temperature
    heated = "" if heat is None else f"; q · (1 + {heat.beta:g} ln(1 + ⌊position / {heat.original}⌋))"
    turned_words = {"turned": turned, "heated": heated}
    return {"scores": scores, "scale": f"{scale:.4g}", "allowed": allowed, "split": split} | turned_words


def _norm_words(stages: VerifiedStages) -> dict[str, str]:
    norm_kind, layer = stages.checkpoint.architecture.norm_kind, stages.parameters
    kind = "layer norm" if norm_kind.startswith("layer") else "RMS norm"
    norm: Any = layer.attention_norm or layer.feed_forward_norm or layer.attention_output_norm
    weight = " · (1 + γ)" if norm_kind.endswith("1 + w") else " · γ"
    formula = _NORMS[kind] + ("" if norm.weight is None else weight)
    biased = formula if norm.bias is None else f"{formula} + β"
    letters = {"x": "x", "h": "x" if layer.parallel else "h", "y": "y", "out": "out", "q": "q"}
    letters |= {"a": "attention", "f": "feed forward"}
    words = {f"norm_{name}": biased.replace("x", letter) for name, letter in letters.items()}
    if layer.heads.query_norm is not None and layer.heads.query_norm.bias is None:
        words["norm_q"] = formula.replace("x", "q")
    for name in ("attention", "feed_forward"):
        added = name.replace("_", " ")
        if f"{name}_output_norm" in stages:
            added = f"norm({added})"
        words[name] = added if layer.residual_multiplier == 1 else f"{layer.residual_multiplier:g} · {added}"
    return words | {"norm_kind": kind, "Norm": kind[0].upper() + kind[1:]}
