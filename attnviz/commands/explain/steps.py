"""The steps of a layer as data: title, formula and sentence of each."""

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.reference import activation_named, layer_parameters
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import BY_POSITION, HeadParameters
from attnviz.wording import counted, rounded, shortened_token, visible

_FIRST, _LONGEST = 4, 16
_NORMS = {"layer norm": "norm(x) = (x − mean) / √(var + ε) · γ + β", "RMS norm": "norm(x) = x / √(mean(x²) + ε) · γ"}


def _label(result: Explanation, position: int) -> str:
    return f"‘{shortened_token(visible(result.tokens.labels[position]), _LONGEST)}’"


def numbers_of(result: Explanation, name: str) -> str:
    """One line of a step's numbers, for the followed token."""
    tensor, token = result.tensor(name), _label(result, result.token)
    if name == "mask":
        return f"{token} may attend to {int(tensor[result.token].sum())} of {counted(len(tensor), 'token')}"
    if name == "experts":
        taken = result.experts_of(result.token).items()
        return f"{token} takes {', '.join(f'{expert} ({weight:.2f})' for expert, weight in taken)}"
    if tensor.ndim == 2:
        vector = tensor[result.token]
        first = ", ".join(rounded(float(value)) for value in vector[:_FIRST])
        return f"{token}: length {float(vector.norm()):.3g} [{first}{', …' if len(vector) > _FIRST else ''}]"
    return ""  # of one head: in the table of the row


@dataclass(frozen=True)
class Step:
    """One step of a layer, from data/layer_steps.toml; names in braces are filled in by :func:`steps_of`."""

    title: str
    formula: str  # with this model's numbers
    sentence: str  # what it does
    label: str = ""  # above its panel in the figure; empty where it has none
    brief: str = ""  # the formula, as short as a panel needs it
    unseen: str = "the model does not show them: checked through the pattern"  # why it has no check of its own
    number: int = 0  # among the steps of the layer, from 1


_TABLES = tomllib.loads((Path(__file__).parents[2] / "data" / "layer_steps.toml").read_text(encoding="utf-8"))


def _steps(group: str) -> dict[str, Step]:
    return {name: Step(**texts) for name, texts in _TABLES[group].items()}


def _steps_of(result: Explanation) -> dict[str, Step]:
    """The steps of the model's kind of layer by name, with braces."""
    steps = _steps("every") | _steps("pre_norm" if result.pre_norm else "post_norm")
    if result.parallel:
        steps |= _steps("parallel")
    if "gated" in result.stages:
        steps |= _steps("gated")
    if "router" in result.stages:
        shared = {
            name: replace(step, title=step.title.replace("Feed-forward", "Shared expert"))
            for name, step in _steps("gated").items()
        }
        steps |= shared | {"shared_output": shared["feed_forward_output"]} | _steps("routed")
    return steps


def steps_of(result: Explanation) -> dict[str, Step]:
    """Every step by name, filled in for this layer of this model."""
    templates, words = _steps_of(result), _words_of(result)
    texts = ("title", "formula", "sentence", "label", "brief")
    steps = {}
    for number, name in enumerate(result.stages, 1):
        filled = {text: getattr(templates[name], text).format_map(words) for text in texts}
        steps[name] = replace(templates[name], **filled, number=number)
    return steps


def step_of(result: Explanation, name: str) -> Step:
    """One of :func:`steps_of`."""
    return steps_of(result)[name]


def norm_kind(result: Explanation) -> str:
    """``layer norm`` or ``RMS norm``."""
    return "layer norm" if result.checkpoint.architecture.norm_kind.startswith("layer") else "RMS norm"


def norm_order(result: Explanation) -> str:
    """Sentence on the order of norms."""
    return str(_TABLES["norm_orders"][result.norm_order])


def _words_of(result: Explanation) -> dict[str, object]:
    """What fills the braces of all steps, for this layer and model."""
    model, heads = result.checkpoint, result.parameters
    activation = activation_named(result.activation)
    x = "norm(x)" if result.pre_norm and "attention_norm" in result.stages else "x"
    h = "norm(h)" if not result.pre_norm or "feed_forward_norm" in result.stages else "h"
    return {
        "d_model": model.d_model,
        "n_heads": model.n_heads,
        "d_head": model.d_head,
        "d_value": heads.output_weight.shape[1],
        "d_heads": heads.output_weight.shape[:2].numel(),
        "d_ff": result.stages["expanded"].shape[-1] if "expanded" in result.stages else result.d_ff,
        "activation": activation.name,
        "brief_activation": activation.name.partition("_")[0],
        "activation_formula": activation.formula,
        "x": x,
        "of_Q": x if heads.query.latent is None else f"norm({x} W_DQ)",
        "of_KV": x if heads.key.latent is None else f"norm({x} W_DKV)",
        "shared": "" if heads.key.latent is None else f", beside {x} W_KR in all heads",
        "h": "norm(x)" if result.parallel else h,
        "input": f"output of layer {result.layer - 1}" if result.layer else _embedding_formula(result),
        "masked_scores": "masked scores" if heads.sinks is None else "masked scores, learned sink",
        "cap": f"{heads.cap or 0:g}",
        **_score_words(result, heads),
        **_mask_words(result, heads),
        **_split_words(model, heads),
        **_bias_words(result),
        **_norm_words(result),
        **_expert_words(result),
    }


def _embedding_formula(result: Explanation) -> str:
    """What the first layer's input is the sum of: ``norm(word + position + segment)``."""
    model = result.checkpoint
    tables = model.architecture.embeddings(model.model)
    factor = tables.scale_of(result.tokens.ids)
    words = "word"
    if factor != 1:
        by_root = abs(factor**2 / model.d_model - 1) < 1e-2  # as the number format rounds it
        words = "word · √d_model" if by_root else f"word · {factor:g}"
    if tables.words_project is not None:
        words += " W"
    if tables.dropped in result.tokens.ids:
        words += " (0 at masks)"
    if tables.positions is not None:
        words += " + position"
    if tables.segments is not None:
        words += " + segment"
    if tables.norm is not None:
        words = f"norm({words})"
    return words if tables.project is None else f"{words} W + b"


def _score_words(result: Explanation, heads: HeadParameters) -> dict[str, str]:
    """The formula of the scores, long and short; GPT-2's config may leave the scale out."""
    scale, d_head = float(heads.scale) * heads.query_scale, result.checkpoint.d_head
    scores, brief = f"Q Kᵀ · {scale:.4g}", f"Q Kᵀ · {scale:.3g}"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores, brief = f"Q Kᵀ / √d_head = Q Kᵀ / √{d_head}", f"Q Kᵀ/√{d_head}"
    elif scale == 1:
        scores, brief = "Q Kᵀ", "Q Kᵀ"
    added = "".join(f" + {_TABLES['every'][name]['label']}" for name in BY_POSITION if name in result.stages)
    scores = f"{scores.replace(' = ', f'{added} = ')}{added}"
    return {"scores": scores, "brief_scores": f"{brief}{added}", "scale": f"{scale:.4g}"}


def _mask_words(result: Explanation, heads: HeadParameters) -> dict[str, str]:
    """Which keys a token may attend to, long and short."""
    causal, size = result.checkpoint.architecture.causal, heads.window
    if size is None or size >= len(result.tokens):
        return {"allowed": "key ≤ query" if causal else "every key", "brief_mask": ""}
    if causal:
        return {"allowed": f"query − {size} < key ≤ query", "brief_mask": f"last {size} keys"}
    return {"allowed": f"|query − key| < {size}", "brief_mask": f"{2 * size - 1} keys around"}


def _split_words(model: Checkpoint, heads: HeadParameters) -> dict[str, str]:
    """The split into heads, and the rotary share of a head."""
    d_head, n_shared = model.d_head, heads.key.weight.shape[0]
    split = f"{heads.n_heads * d_head} = {heads.n_heads} × {d_head}"
    if heads.key.latent is not None:
        split = f"Q, K: {split}; V: {heads.n_heads} × {heads.output_weight.shape[1]}, drawn with zeros to one width"
    if n_shared < heads.n_heads:
        split = f"Q: {split}; K, V: {n_shared * d_head} = {n_shared} × {d_head}"
    turned = 0 if heads.rotary is None else 2 * len(heads.rotary.frequencies)
    end = "last" if heads.rotary is not None and heads.rotary.at_end else "first"
    return {"split": split, "turned": "Q and K" if turned == d_head else f"the {end} {turned} dimensions of Q and K"}


def _bias_words(result: Explanation) -> dict[str, str]:
    """Formula of each bias by name, '' without a bias; and of the bound of queries, keys and values."""
    layer = layer_parameters(result.checkpoint, result.layer)
    heads = layer.heads
    biases = {"Q": heads.query.bias, "K": heads.key.bias, "V": heads.value.bias, "O": heads.output_bias}
    maps = {"1": layer.up_proj, "2": layer.down_proj, "gate": layer.gate}
    biases |= {name: None if linear is None else linear.bias for name, linear in maps.items()}
    words = {f"b_{name}": "" if bias is None else f" + b_{name}" for name, bias in biases.items()}
    words["bound"] = "" if heads.value.clip is None else f", between ±{heads.value.clip:g}"
    for name in "QKV" if heads.query_norm is None else "V":  # the others are bounded by their norms
        words[f"b_{name}"] += words["bound"]
    return words


def _norm_words(result: Explanation) -> dict[str, str]:
    """Formulas of the norms, and of what is added to the residual stream."""
    kind, heads = norm_kind(result), result.parameters
    layer = layer_parameters(result.checkpoint, result.layer)
    norm: Any = layer.attention_norm or layer.feed_forward_norm or layer.attention_output_norm
    formula = _NORMS[kind]
    if norm.bias is None:
        formula = formula.removesuffix(" + β")
    if norm.weight is None:
        formula = formula.removesuffix(" · γ")
    if result.checkpoint.architecture.norm_kind.endswith("1 + w"):
        formula = formula.replace("γ", "(1 + γ)")
    letters = {"x": "x", "h": "x" if result.parallel else "h", "y": "y", "out": "out", "q": "q"}
    letters |= {"a": "attention", "f": "feed forward"}
    words = {f"norm_{name}": formula.replace("x", letter) for name, letter in letters.items()}
    if heads.query_norm is not None and heads.query_norm.bias is None:
        words["norm_q"] = words["norm_q"].removesuffix(" + β")
    for name in ("attention", "feed_forward"):
        added = name.replace("_", " ")
        if f"{name}_output_norm" in result.stages:
            added = f"norm({added})"
        words[name] = added if layer.residual_multiplier == 1 else f"{layer.residual_multiplier:g} · {added}"
    return words | {"norm_kind": kind, "Norm": kind[0].upper() + kind[1:]}


def _expert_words(result: Explanation) -> dict[str, object]:
    """Numbers and formulas of experts; empty in a layer without."""
    model, experts = result.checkpoint, layer_parameters(result.checkpoint, result.layer).experts
    if experts is None:
        return {}
    share = "" if experts.shared_gate is None else "σ(s) · "
    return {
        "d_expert": result.d_ff,
        "n_taken": experts.n_taken,
        "n_experts": result.stages["router"].shape[-1],
        "b_r": "" if experts.router.bias is None else " + b_r",
        "expert_network": model.architecture.expert_network(model.config, result.activation),
        "shares": model.architecture.expert_formula(model.config),
        "and_shared": f" + {share}shared(norm(h))" if "shared_output" in result.stages else "",
    }
