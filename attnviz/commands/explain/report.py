"""JSON, CSV, tensors, and the terminal's walk through the steps of a layer."""

from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from attnviz.commands.explain.measure import MOST_KEYS, Explanation
from attnviz.commands.explain.stages import Stage
from attnviz.commands.explain.steps import NORM_ORDERS, steps_of
from attnviz.present.documents import text_entry
from attnviz.present.fields import Field, NamedTable, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable
from attnviz.present.view import ViewOptions
from attnviz.run.checks import Verification
from attnviz.wording import counted, error, rounded, shortened_token, visible

# Numbers of a vector that the table of the row has room for, and its rows unless every table is asked for.
_FIRST, FEW_KEYS = 4, 12


def _content(result: Explanation, _: ViewOptions) -> dict[str, Any]:
    checks, entry, row = result.stages.checks, text_entry(result), result.row
    with_vectors = set(row.strongest(MOST_KEYS))
    keys: list[dict[str, Any]] = []
    for place, label in enumerate(result.tokens.labels):
        key = {"position": place, "token": label}
        key |= {name: getattr(row, name)[place].item() for name in ("product", "score", "allowed", "exponential")}
        key |= {name: float(numbers[place]) for name, numbers in row.added.items()}
        key["capped"] = None if row.capped is None else float(row.capped[place])
        key["weight"] = float(row.weight[place])
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


def _stages(result: Explanation, _: ViewOptions) -> NamedTable[Stage]:
    """A row a step. ``norm``: mean Euclidean length along the last axis; ``mean`` of the mask: share allowed."""
    steps = steps_of(result)

    def norm(stage: Stage) -> float | None:
        return None if stage.name == "mask" else float(torch.linalg.vector_norm(stage.wide, dim=-1).mean())

    def of_check(name: str) -> Field[Stage]:
        return Field(value=lambda stage: getattr(stage.check, name, None), name=name)

    fields: tuple[Field[Stage], ...] = (
        *plain("name"),
        Field(value=lambda stage: steps[stage.name].title, name="title"),
        Field(value=lambda stage: steps[stage.name].formula, name="formula"),
        Field(
            value=lambda stage: list(stage.shape),
            name="shape",
            csv={"shape": (lambda shape: "x".join(map(str, shape)),)},
        ),
        Field(value=lambda stage: float(stage.wide.min()), name="min"),
        Field(value=lambda stage: float(stage.wide.max()), name="max"),
        Field(value=lambda stage: float(stage.wide.mean()), name="mean"),
        Field(value=norm, name="norm"),
        Field(value=lambda stage: stage.check is not None, name="compared"),
        *map(of_check, ("place", "error", "scale", "tolerance")),
    )
    return NamedTable("stages", fields, list(result.stages.values()))


def _tables(result: Explanation, choices: ViewOptions) -> Iterator[RenderableType]:
    if choices.verbose:
        model, tokens = result.checkpoint, result.tokens
        title = f"Layer {result.layer} of {model.n_layers} in {visible(model.name)}, step by step, on "
        sizes = (
            f"\n{counted(len(tokens), 'token')}, d_model {model.d_model}, {counted(model.n_heads, 'head')} of d_head "
            f"{model.d_head}, d_ff {result.d_ff}. Followed: token #{result.token} "
            f"‘{visible(tokens.labels[result.token])}’, head {result.head}.\n"
        )
        yield Text.assemble((f"{title}{result.figure_context.quotes}", "bold"), sizes, NORM_ORDERS[result.norm_order])
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
