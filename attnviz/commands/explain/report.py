"""JSON, CSV, tensors, and the terminal's walk through the steps of a layer."""

from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from attnviz.commands.explain.followed_row import MOST_KEYS
from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.stages import Stage
from attnviz.commands.explain.steps import norm_order, numbers_of, step_of, steps_of
from attnviz.present.documents import text_entry
from attnviz.present.fields import Field, NamedTable, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable
from attnviz.present.view import ViewOptions
from attnviz.trace.checks import Verification
from attnviz.wording import counted, error, rounded, visible

_FIRST, FEW_KEYS = 4, 12
"""Numbers of a vector that the table of the row has room for, and its rows unless every table is asked for."""


def _content(result: Explanation, _: ViewOptions) -> dict[str, Any]:
    tokens, checks = result.tokens, result.stages.checks
    read = text_entry(result)
    return {
        **read,
        "model": {**read["model"], "d_ff": result.d_ff, "activation": result.activation},
        "options": {"layer": result.layer, "head": str(result.head)}
        | {"token": result.token, "tokens_cut_off": tokens.truncated},
        "tokens": [_token(result, *each) for each in enumerate(read["tokens"])],
        "norm_order": result.norm_order,
        "verification": {
            "passed": True,
            "level": Verification.level,
            "stages_compared": len(checks),
            "pattern_tolerance": checks["pattern"].tolerance,
            **{f"output_{key}": getattr(result.output, key) for key in ("tolerance", "error", "scale")},
        },
        "followed": _followed(result),
    }


def _followed(result: Explanation) -> dict[str, Any]:
    """Entry of the followed row; of a long text with the vectors of its strongest keys."""
    row, listed = result.row, set(result.row.strongest(MOST_KEYS))
    keys: list[dict[str, Any]] = []
    for at, label in enumerate(result.tokens.labels):
        numbers = {name: getattr(row, name)[at].item() for name in ("product", "score", "allowed", "exponential")}
        numbers |= {name: float(of[at]) for name, of in row.added.items()}
        capped = None if row.capped is None else float(row.capped[at])
        keys.append({"position": at, "token": label, **numbers, "capped": capped, "weight": float(row.weight[at])})
        if at in listed:
            weighted = row.weight[at] * row.value[at]
            vectors = {"key": row.key[at], "value": row.value[at], "weighted_value": weighted}
            keys[at] |= {name: vector.tolist() for name, vector in vectors.items()}
    return {
        "head": str(result.head),
        "token": result.token,
        "query": row.query.tolist(),
        **{name: getattr(row, name) for name in ("scale", "largest", "sink", "total")},
        "keys": keys,
        "output": row.output.tolist(),
    }


def _token(result: Explanation, position: int, whole: dict[str, Any]) -> dict[str, Any]:
    """Entry of a token, in a layer with experts with those that it takes."""
    content = {key: whole[key] for key in ("id", "text", "special")}
    taken = [{"expert": expert, "weight": weight} for expert, weight in result.experts_of(position).items()]
    return content | ({"experts": taken} if taken else {})


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
        yield _heading(result)
        yield _walk_through(result)
    yield row_table(result, MOST_KEYS if choices.verbose else FEW_KEYS)
    yield verified_line(result)


def row_table(result: Explanation, most: int) -> RowTable[int]:
    """Table of the followed row, a line a key, with all that its softmax is computed from."""
    row, labels, first = result.row, result.tokens.labels, result.row.output[:_FIRST].tolist()
    keys, weighted = row.strongest(most), row.weight[:, None] * row.value

    def numbers(title: str, of: Tensor, detail: bool = False) -> Field[int]:
        return Field(title, lambda at: float(of[at]), write=_digits, detail=detail)

    columns: list[Field[int]] = [
        Field("Key", lambda at: f"#{at} {visible(labels[at])}"),
        numbers("q · k", row.product),
        *(numbers(step_of(result, name).label, of) for name, of in row.added.items()),
        numbers("Score", row.score),
        *([] if row.capped is None else [numbers("Capped", row.capped)]),
        Field("exp", lambda at: float(row.exponential[at]) if row.allowed[at] else None, write=_digits),
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
        f"Score: {step_of(result, 'scores').formula}. exp: of the score less the largest, {_digits(row.largest)}."
        f"{masked} w: exp / {_digits(row.total)}.{sink} w · v: the first {len(first)} of {len(row.output)} numbers of "
        "the value times w, in sum A V. explain.json has all (followed).",
    )


def _digits(value: float | None) -> str:
    """As many digits as a computation by hand needs."""
    return rounded(value, 4)


def verified_line(result: Explanation) -> Text:
    """How many steps were compared with the model, and how closely the output is its own."""
    stages, model, output = result.stages, result.checkpoint, result.output
    start = f"the output of layer {result.layer - 1}" if result.layer else "the embedding tables"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {len(stages.checks)} of {len(stages)} steps against the running model "
        f"({model.runs_as}), each recomputed from the step before it, "
        f"beginning with {start}; the output is the model's next hidden state within {error(output.error)} of the "
        f"largest (tolerance {output.tolerance:.0e}).",
    )


def _heading(result: Explanation) -> Text:
    model, tokens = result.checkpoint, result.tokens
    quotes = result.figure_context.quotes
    heading = f"Layer {result.layer} of {model.n_layers} in {visible(model.name)}, step by step, on {quotes}"
    token = visible(tokens.labels[result.token])
    sizes = (
        f"\n{counted(len(tokens), 'token')}, d_model {model.d_model}, {counted(model.n_heads, 'head')} of d_head "
        f"{model.d_head}, d_ff {result.d_ff}. Followed: token #{result.token} ‘{token}’, head {result.head}.\n"
    )
    return Text.assemble((heading, "bold"), sizes, norm_order(result))


def _walk_through(result: Explanation) -> Group:
    lines: list[RenderableType] = []
    for name, step in steps_of(result).items():
        stage = result.stages[name]
        shape = f"3 × {list(stage.shape[1:])}" if name == "split" else str(list(stage.shape))
        lines.append(Text.assemble(f"{step.number:2d}  ", (step.title, "bold"), (f"  {shape}", "cyan")))
        below = [Text(words) for words in (step.formula, step.sentence, numbers_of(result, name)) if words]
        lines += [Padding.indent(text, 4) for text in (*below, Text(*check_line(stage, step.unseen)))]
    return Group(*lines)


def check_line(stage: Stage, unseen: str) -> tuple[str, str]:
    """What the comparison of a step with the model gave, and its style; ``unseen`` says why there is none."""
    check = stage.check
    if check is None:
        return f"– not compared: {unseen}", "dim"
    of = "" if stage.name == "pattern" else f" of the largest, {check.scale:.3g}"
    how = f"within {error(check.error)}{of} (tolerance {check.tolerance:.0e})" if check.error else "bit for bit"
    return f"✓ the model's own, {how}", "green"


SPEC: CommandSpec[Explanation] = CommandSpec(
    content=_content,
    table=_stages,
    tables=_tables,
)
