"""The steps of a layer in words, the terminal's walk through them, JSON and CSV."""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from attnviz.commands.explain.measure import MOST_KEYS, Explanation
from attnviz.commands.explain.reference import LayerParameters
from attnviz.commands.explain.stages import Stage
from attnviz.present.documents import text_entry
from attnviz.present.fields import Field, NamedTable, by_name
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable
from attnviz.present.view import ViewOptions
from attnviz.reference.attention import BY_POSITION
from attnviz.run.checks import Verification
from attnviz.wording import counted, error, rounded, shortened_token, visible

_NORMS = {"layer norm": "norm(x) = (x − mean) / √(var + ε)", "RMS norm": "norm(x) = x / √(mean(x²) + ε)"}
_TABLES = tomllib.loads((Path(__file__).parents[2] / "data" / "layer_steps.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Step:
    """One step of a layer, from data/layer_steps.toml; names in braces are filled in by :func:`steps_of`."""

    number: int  # among the steps of the layer, from 1
    title: str
    formula: str  # with this model's numbers
    sentence: str  # what it does
    label: str = ""  # above its numbers on the page; empty where that is the title
    unseen: str = "the model does not show them: checked through the pattern"  # why it has no check of its own


def steps_of(result: Explanation) -> dict[str, Step]:
    """Every step by name, filled in for this layer of this model."""
    layer = result.stages.parameters
    kinds = {
        "every": True,
        "pre_norm": layer.pre_norm,
        "post_norm": not layer.pre_norm,
        "parallel": layer.parallel,
        "gated": "gated" in result.stages,
        "mixture": result.experts > 0,
    }
    templates = {name: texts for kind, is_so in kinds.items() if is_so for name, texts in _TABLES[kind].items()}
    words = _words_of(result)
    return {
        name: Step(number=number, **{part: text.format_map(words) for part, text in templates[name].items()})
        for number, name in enumerate(result.stages, 1)
    }


def _words_of(result: Explanation) -> dict[str, object]:
    model = result.checkpoint
    layer = result.stages.parameters
    heads = layer.heads
    x = "norm(x)" if layer.pre_norm and "attention_norm" in result.stages else "x"
    h = "norm(h)" if not layer.pre_norm or "feed_forward_norm" in result.stages else "h"
    biases = {"Q": heads.query.bias, "K": heads.key.bias, "V": heads.value.bias, "O": heads.output_bias}
    for name, linear in (("1", layer.up_proj), ("2", layer.down_proj), ("gate", layer.gate)):
        biases[name] = None if linear is None else linear.bias
    words = {f"b_{name}": "" if bias is None else f" + b_{name}" for name, bias in biases.items()}
    bound = "" if heads.value.clip is None else f", between ±{heads.value.clip:g}"
    for name in "QKV" if heads.query_norm is None else "V":  # the others are bounded by their norms
        words[f"b_{name}"] += bound
    source = f"output of layer {result.layer - 1}"
    if not result.layer:  # the sum: norm(word + position + segment)
        tables = model.architecture.embeddings(model.model)
        factor, source = tables.scale_of(result.tokens.ids), "word"
        if factor != 1:
            by_root = abs(factor**2 / model.d_model - 1) < 1e-2  # as the dtype rounds it
            source = "word · √d_model" if by_root else f"word · {factor:g}"
        parts = {
            " W": tables.words_project is not None,
            " (0 at masks)": tables.dropped in result.tokens.ids,
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
        "d_ff": result.d_ff,
        "n_experts": result.experts,
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
        **_attention_words(result, layer),
        **_norm_words(result, layer),
    }


def _attention_words(result: Explanation, layer: LayerParameters) -> dict[str, str]:
    """The formula of the scores, which keys a token may attend to, the split into heads, what of a head is turned."""
    heads, d_head, causal = layer.heads, result.checkpoint.d_head, result.checkpoint.architecture.causal
    scale = float(heads.scale) * heads.query_scale  # GPT-2's config may leave it out
    added = "".join(f" + {_TABLES['every'][name]['label']}" for name in BY_POSITION if name in result.stages)
    scores = f"Q Kᵀ · {scale:.4g}{added}"
    if abs(scale * math.sqrt(d_head) - 1) < 1e-9:
        scores = f"Q Kᵀ / √d_head{added} = Q Kᵀ / √{d_head}{added}"
    elif scale == 1:
        scores = f"Q Kᵀ{added}"
    allowed = "key ≤ query" if causal else "every key"
    if heads.window is not None and heads.window < len(result.tokens):
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


def _norm_words(result: Explanation, layer: LayerParameters) -> dict[str, str]:
    norm_kind, heads = result.checkpoint.architecture.norm_kind, layer.heads
    kind = "layer norm" if norm_kind.startswith("layer") else "RMS norm"
    norm: Any = layer.attention_norm or layer.feed_forward_norm or layer.attention_output_norm
    weight = " · (1 + γ)" if norm_kind.endswith("1 + w") else " · γ"
    formula = _NORMS[kind] + ("" if norm.weight is None else weight)
    biased = formula if norm.bias is None else f"{formula} + β"
    letters = {"x": "x", "h": "x" if layer.parallel else "h", "y": "y", "out": "out", "q": "q"}
    letters |= {"a": "attention", "f": "feed forward"}
    words = {f"norm_{name}": biased.replace("x", letter) for name, letter in letters.items()}
    if heads.query_norm is not None and heads.query_norm.bias is None:
        words["norm_q"] = formula.replace("x", "q")
    for name in ("attention", "feed_forward"):
        added = name.replace("_", " ")
        if f"{name}_output_norm" in result.stages:
            added = f"norm({added})"
        words[name] = added if layer.residual_multiplier == 1 else f"{layer.residual_multiplier:g} · {added}"
    return words | {"norm_kind": kind, "Norm": kind[0].upper() + kind[1:]}


# Numbers of a vector that the table of the row has room for, and its rows unless every table is asked for.
_FIRST, FEW_KEYS = 4, 12


def _content(result: Explanation, _: ViewOptions) -> dict[str, Any]:
    checks, entry, row = result.stages.checks, text_entry(result), result.row
    with_vectors = set(row.strongest(MOST_KEYS))
    of_keys = {name: getattr(row, name) for name in ("product", "score", "allowed", "exponential")}
    of_keys |= {**row.added, "capped": row.capped, "weight": row.weight}
    keys: list[dict[str, Any]] = []
    for place, label in enumerate(result.tokens.labels):
        key = {"position": place, "token": label}
        key |= {name: None if numbers is None else numbers[place].item() for name, numbers in of_keys.items()}
        if place in with_vectors:
            key |= {"key": row.key[place].tolist(), "value": row.value[place].tolist()}
            key["weighted_value"] = (row.weight[place] * row.value[place]).tolist()
        keys.append(key)
    return {
        **entry,
        "model": {**entry["model"], "d_ff": result.d_ff, "activation": result.stages.parameters.activation.name},
        "options": {
            "layer": result.layer,
            "head": str(result.head),
            "token": result.token,
            "tokens_cut_off": result.tokens.truncated,
        },
        "tokens": [{key: token[key] for key in ("id", "text", "special")} for token in entry["tokens"]],
        "norm_order": result.norm_order,
        "verification": {
            "passed": True,
            "level": Verification.level,
            "stages_compared": len(checks),
            "pattern_tolerance": checks["pattern"].tolerance,
            **{f"output_{key}": getattr(result.output, key) for key in ("tolerance", "error", "scale")},
        },
        "followed": {
            "head": str(result.head),
            "token": result.token,
            "query": row.query.tolist(),
            **{name: getattr(row, name) for name in ("scale", "largest", "sink", "total")},
            "keys": keys,
            "output": row.output.tolist(),
        },
    }


def _stages(result: Explanation, _: ViewOptions) -> NamedTable[dict[str, Any]]:
    """A row a step. ``norm``: mean Euclidean length along the last axis; ``mean`` of the mask: share allowed."""
    steps, rows = steps_of(result), list[dict[str, Any]]()
    for name, stage in result.stages.items():
        wide, check = stage.wide, stage.check
        row: dict[str, Any] = {"name": name, "title": steps[name].title, "formula": steps[name].formula}
        row |= {"shape": list(stage.shape)}
        row |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
        row["norm"] = None if name == "mask" else float(torch.linalg.vector_norm(wide, dim=-1).mean())
        row["compared"] = check is not None
        rows.append(row | {key: getattr(check, key, None) for key in ("place", "error", "scale", "tolerance")})
    fields = {field.name: field for field in by_name(*rows[0])}
    fields["shape"] = replace(fields["shape"], csv={"shape": (lambda shape: "x".join(map(str, shape)),)})
    return NamedTable("stages", list(fields.values()), rows)


def _tables(result: Explanation, choices: ViewOptions) -> Iterator[RenderableType]:
    if choices.verbose:
        model, tokens = result.checkpoint, result.tokens
        title = f"Layer {result.layer} of {model.n_layers} in {visible(model.name)}, step by step, on "
        sizes = (
            f"\n{counted(len(tokens), 'token')}, d_model {model.d_model}, {counted(model.n_heads, 'head')} of d_head "
            f"{model.d_head}, d_ff {result.d_ff}. Followed: token #{result.token} "
            f"‘{visible(tokens.labels[result.token])}’, head {result.head}.\n"
        )
        order = _TABLES["norm_orders"][result.norm_order]
        yield Text.assemble((f"{title}{result.figure_context.quotes}", "bold"), sizes, order)
        lines: list[RenderableType] = []
        shown_token = f"‘{shortened_token(visible(tokens.labels[result.token]), 16)}’"
        for name, step in steps_of(result).items():
            stage = result.stages[name]
            shape = f"3 × {list(stage.shape[1:])}" if name == "split" else str(list(stage.shape))
            lines.append(Text.assemble(f"{step.number:2d}  ", (step.title, "bold"), (f"  {shape}", "cyan")))
            numbers = ""  # of one head: in the table of the row
            if name == "mask":
                n_allowed = int(stage.tensor[result.token].sum())
                numbers = f"{shown_token} may attend to {n_allowed} of {counted(len(tokens), 'token')}"
            elif stage.tensor.ndim == 2:
                vector = stage.wide[result.token]
                first = ", ".join(rounded(float(value)) for value in vector[:_FIRST])
                more = ", …" if len(vector) > _FIRST else ""
                numbers = f"{shown_token}: length {float(vector.norm()):.3g} [{first}{more}]"
            texts = [Text(words) for words in (step.formula, step.sentence, numbers) if words]
            lines += [Padding.indent(text, 4) for text in (*texts, Text(*check_line(stage, step.unseen)))]
        yield Group(*lines)
    yield row_table(result, MOST_KEYS if choices.verbose else FEW_KEYS)
    yield verified_line(result)


def row_table(result: Explanation, most: int) -> RowTable[int]:
    """Table of the followed row, a line a key, with all that its softmax is computed from."""
    row, labels, steps = result.row, result.tokens.labels, steps_of(result)
    first = row.output[:_FIRST].tolist()
    keys, weighted = row.strongest(most), row.weight[:, None] * row.value

    def numbers(title: str, of_keys: Tensor, detail: bool = False) -> Field[int]:
        return Field(title, lambda key: float(of_keys[key]), write=_digits, detail=detail)

    columns: list[Field[int]] = [
        Field("Key", lambda key: f"#{key} {visible(labels[key])}"),
        numbers("q · k", row.product),
        *(numbers(steps[name].label, of_keys) for name, of_keys in row.added.items()),
        numbers("Score", row.score),
        *([] if row.capped is None else [numbers("Capped", row.capped)]),
        Field("exp", lambda key: float(row.exponential[key]) if row.allowed[key] else None, write=_digits),
        numbers("Weight w", row.weight),
        *(numbers(f"w · v{number + 1}", weighted[:, number], detail=True) for number in range(len(first))),
    ]
    blank = [""] * (len(columns) - 3 - len(first))
    which = f"all {len(labels)} keys"
    if len(keys) < len(labels):
        which = f"{len(keys)} of {len(labels)} keys, those of largest weight; sums are of all"
    masked = "" if row.allowed.all() else " –: masked."
    sink = "" if row.sink is None else f" The sum has {_digits(row.sink)} of a learned sink, which is no token."
    return RowTable(
        f"The row of ‘{visible(labels[result.token])}’ (#{result.token}) in {result.head} of "
        f"{result.figure_context.model}, to redo by hand ({which})",
        columns,
        keys,
        ["Sum", *blank, *map(_digits, (row.total, float(row.weight.sum()), *first))],
        f"Score: {steps['scores'].formula}. exp: of the score less the largest, {_digits(row.largest)}."
        f"{masked} w: exp / {_digits(row.total)}.{sink} w · v: the first {len(first)} of {len(row.output)} numbers of "
        "the value times w, in sum A V. explain.json has all (followed).",
    )


def _digits(value: float | None) -> str:
    """As many digits as a computation by hand needs."""
    return rounded(value, 4)


def verified_line(result: Explanation) -> Text:
    """How many steps were compared with the model, and how closely the output is its own."""
    stages, output = result.stages, result.output
    start = f"the output of layer {result.layer - 1}" if result.layer else "the embedding tables"
    n_hidden = len(stages) - len(stages.checks)
    hidden = f", which does not show the other {n_hidden}" if n_hidden else ""
    experts = ", but for what the mixture of experts gives, which is the model's own" if result.experts else ""
    return Text.assemble(
        ("Verified", "bold green"),
        f" {len(stages.checks)} of {len(stages)} steps against the running model "
        f"({result.checkpoint.runs_as}){hidden}; each is recomputed from the step before it{experts}, "
        f"beginning with {start}; the output is the model's next hidden state within {error(output.error)} of the "
        f"largest (tolerance {output.tolerance:.0e}).",
    )


def check_line(stage: Stage, unseen: str) -> tuple[str, str]:
    """What the comparison of a step with the model gave, and its style; ``unseen`` says why there is none."""
    check = stage.check
    if check is None:
        return f"– not compared: {unseen}", "dim"
    of_what = "" if stage.name == "pattern" else f" of the largest, {check.scale:.3g}"
    how = f"within {error(check.error)}{of_what} (tolerance {check.tolerance:.0e})" if check.error else "bit for bit"
    return f"✓ the model's own, {how}", "green"


SPEC: CommandSpec[Explanation] = CommandSpec(
    content=_content, table=_stages, tables=_tables, paper=("title", "formula", "shape", "norm", "error")
)
