"""One layer of a model on one text, step by step, every step recomputed and held against the running model.

The mathematics is in :mod:`attnviz.reference.layer`, the comparison in :mod:`attnviz.run.layer_steps`. Of one token and
one head every number is given, so that its softmax can be redone by hand: ``weight = exponential / total``.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.arguments import is_whole
from attnviz.errors import ArchitectureError, UsageError
from attnviz.inputs.prompt import position_of
from attnviz.inputs.text import tokenize
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.page.page import packed_numbers
from attnviz.present.documents import Entry, text_entry
from attnviz.present.fields import Field, Table, values_of
from attnviz.present.layer_steps import TEXTS, steps_of
from attnviz.present.report import CommandSpec
from attnviz.present.result import TextResult
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.progress import Progress, tell
from attnviz.reference.attention import BY_POSITION, HeadParameters, upcast
from attnviz.run.checks import Verification
from attnviz.run.layer_steps import MOST_KEYS, FollowedRow, Stage, StageCheck, VerifiedStages, verify_stages
from attnviz.wording import counted, error, right_to_left, rounded, shortened_token, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from attnviz.figures.charts import RowPlan

FEW_KEYS = 12  # keys of the row on the first screen, those of largest weight

_FIRST = 4  # numbers of a vector that the table of the row has room for
_MOST_TOKENS, _MOST_NUMBERS = 48, 512  # tokens on the page, and numbers of a vector in the residual stream

# Steps that have all heads side by side, and are thinned where they are wide, so that all are seen.
_ALL_HEADS = {"query", "key", "value", "concatenated"}


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(TextResult):
    """Result of :func:`explain`: every tensor of one layer from its input to its output, recomputed and verified."""

    command: ClassVar[str] = "explain"

    head: HeadId  # followed head, of the explained layer
    token: int  # position of the followed token
    stages: VerifiedStages  # every step of the layer by name; each has ``name``, ``tensor`` and ``check``

    @property
    def layer(self) -> int:
        return self.stages.layer

    @property
    def output(self) -> StageCheck:
        return self.stages.checks["output"]

    @property
    def parameters(self) -> HeadParameters:
        return self.stages.parameters.heads

    @cached_property
    def row(self) -> FollowedRow:
        """The row of the followed token in the followed head: its scores, weights and values, key by key."""
        return self.stages.row(self.head.head, self.token)

    @checked
    def tensor(self, name: str) -> Tensor:
        """A step's tensor on the CPU, in float32 at least (the mask as 0 and 1); UsageError for an unknown step."""
        return self.stages[name].wide

    @property
    def in_words(self) -> str:
        return (
            f"of layer {self.layer} of {self.checkpoint.short_name} on "
            f"{counted(len(self.tokens), 'token')}: {len(self.stages)} steps, output within {self.output.error:.1e}"
        )


@checked
def explain(
    text: str,
    model: Model | None = None,
    *,
    pair: str | None = None,
    layer: int | None = None,
    head: str | int | HeadId | None = None,
    token: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> Explanation:
    """Recompute one layer of a model on one text step by step, and verify it.

    >>> result = attnviz.explain("The cat that I saw ran away", layer=2)  # doctest: +SKIP
    >>> result.tensor("pattern").shape, result.stages["output"].check.error  # doctest: +SKIP

    ``layer`` counts from 0; default that of ``head``, or the first. ``head``: to follow with numbers, as ``3``,
    ``L2H3`` or a HeadId; default the layer's first. ``token``: to follow, as figures show it, ``#3`` or 3; default the
    last of the text. The other arguments are as of :func:`attnviz.head_outputs`.

    Raises:
        AttnvizError: VerificationError where a step differs from the model's own; UsageError for a layer, head or token
            that is not there.
    """
    checkpoint, _ = open_checkpoint(model, encoder_decoders=False, **opening)
    if not checkpoint.architecture.explained:
        family = checkpoint.architecture.name
        raise ArchitectureError(
            f"explain recomputes whole layers, but not those of {family!r}; attnviz heads takes it."
        )
    if layer is not None:
        checkpoint.layer_of(layer)
    if isinstance(head, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", head):
        head = int(head)
    if head is None or is_whole(head):
        head = HeadId(layer or 0, int(head or 0))
    followed = head_named(head, checkpoint.kinds, "the number of a head, such as 3, or")
    if layer is not None and followed.layer != layer:
        raise UsageError(f"--head {followed} is not in the layer that --layer names, {layer}; leave one of them out.")
    tokens = tokenize(checkpoint, text, pair, truncate)
    position = position_of(tokens, token)
    (stages,) = verify_stages(checkpoint, tokens, [followed.layer])
    tell(progress, "verifying", 1, 1)
    return Explanation(
        checkpoint=checkpoint,
        tokens=tokens,
        head=followed,
        token=position,
        stages=stages,
    )


# --- tables and sentences


def _content(result: Explanation, _: ViewOptions) -> Entry:
    checks, row = result.stages.checks, result.row
    entry = text_entry(result, values_of(result, "layer", "head", "token"))
    return {
        **entry,
        "model": {**entry["model"], "d_ff": result.stages.d_ff, "activation": result.stages.parameters.activation.name},
        "tokens": [{key: token[key] for key in ("id", "text", "special")} for token in entry["tokens"]],
        "norm_order": result.stages.norm_order,
        "verification": {
            "passed": True,
            "level": Verification.level,
            "stages_compared": len(checks),
            "pattern_tolerance": checks["pattern"].tolerance,
            **{f"output_{key}": getattr(result.output, key) for key in ("tolerance", "error", "scale")},
        },
        "followed": {
            **values_of(result, "head", "token"),
            "query": row.query.tolist(),
            **values_of(row, "scale", "largest", "sink", "total", "keys"),
            "output": row.output.tolist(),
        },
    }


def _stages(result: Explanation, _: ViewOptions) -> Table[Entry]:
    """A row a step. ``norm``: mean Euclidean length along the last axis; ``mean`` of the mask: share allowed."""
    steps, rows = steps_of(result.stages), list[Entry]()
    for name, stage in result.stages.items():
        wide, check = stage.wide, stage.check
        row: Entry = {"name": name, "title": steps[name].title, "formula": steps[name].formula}
        row |= {"shape": list(stage.shape)}
        row |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
        row["norm"] = None if name == "mask" else float(torch.linalg.vector_norm(wide, dim=-1).mean())
        row["compared"] = check is not None
        rows.append(row | {key: getattr(check, key, None) for key in ("place", "error", "scale", "tolerance")})
    of_shape = Field[Entry](name="shape", csv={"shape": (lambda shape: "x".join(map(str, shape)),)})
    columns = [of_shape if name == "shape" else Field[Entry](name=name) for name in rows[0]]
    return Table("", columns, rows, name="stages")


def _tables(result: Explanation, choices: ViewOptions) -> "Iterator[RenderableType]":
    if choices.verbose:
        yield _walk(result)
    yield row_table(result, MOST_KEYS if choices.verbose else FEW_KEYS)
    yield verified_line(result)


def _walk(result: Explanation) -> "RenderableType":
    """Every step: its formula, what it does, its numbers of the followed token, and how closely it was compared."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    model, tokens = result.checkpoint, result.tokens
    title = f"Layer {result.layer} of {model.n_layers} in {visible(model.name)}, step by step, on "
    sizes = (
        f"\n{counted(len(tokens), 'token')}, d_model {model.d_model}, {counted(model.n_heads, 'head')} of d_head "
        f"{model.d_head}, d_ff {result.stages.d_ff}. Followed: token #{result.token} "
        f"‘{visible(tokens.labels[result.token])}’, head {result.head}.\n"
    )
    order = TEXTS["norm_orders"][result.stages.norm_order]
    lines: list[RenderableType] = [
        Text.assemble((f"{title}{result.figure_context.quotes}", "bold"), sizes, order, "\n")
    ]
    shown_token = f"‘{shortened_token(visible(tokens.labels[result.token]), 16)}’"
    for name, step in steps_of(result.stages).items():
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
    return Group(*lines)


def row_table(result: Explanation, most: int) -> Table[Entry]:
    """Table of the followed row, a line a key, with all that its softmax is computed from."""
    row, labels, steps = result.row, result.tokens.labels, steps_of(result.stages)
    first = row.output[:_FIRST].tolist()
    strongest = sorted(row.keys, key=lambda key: -key["weight"])[:most]
    keys = sorted(strongest, key=lambda key: key["position"])

    def numbers(title: str, name: str) -> Field[Entry]:
        return Field(title, name=name, write=_digits)

    def weighted(number: int) -> Field[Entry]:
        return Field(f"w · v{number + 1}", lambda key: key["weighted_value"][number], write=_digits, detail=True)

    columns: list[Field[Entry]] = [
        Field("Key", lambda key: f"#{key['position']} {visible(key['token'])}"),
        numbers("q · k", "product"),
        *(numbers(steps[name].label, name) for name in BY_POSITION if name in result.stages),
        numbers("Score", "score"),
        *([numbers("Capped", "capped")] if "capped" in result.stages else []),
        Field("exp", lambda key: key["exponential"] if key["allowed"] else None, write=_digits),
        numbers("Weight w", "weight"),
        *map(weighted, range(len(first))),
    ]
    blank = [""] * (len(columns) - 3 - len(first))
    which = f"all {len(labels)} keys"
    if len(keys) < len(labels):
        which = f"{len(keys)} of {len(labels)} keys, those of largest weight; sums are of all"
    masked = "" if all(key["allowed"] for key in row.keys) else " –: masked."
    sink = "" if row.sink is None else f" The sum has {_digits(row.sink)} of a learned sink, which is no token."
    return Table(
        f"The row of ‘{visible(labels[result.token])}’ (#{result.token}) in {result.head} of "
        f"{result.figure_context.model}, to redo by hand ({which})",
        columns,
        keys,
        ["Sum", *blank, *map(_digits, (row.total, sum(key["weight"] for key in row.keys), *first))],
        f"Score: {steps['scores'].formula}. exp: of the score less the largest, {_digits(row.largest)}."
        f"{masked} w: exp / {_digits(row.total)}.{sink} w · v: the first {len(first)} of {len(row.output)} numbers of "
        "the value times w, in sum A V. explain.json has all (followed).",
    )


def _digits(value: float | None) -> str:
    """As many digits as a computation by hand needs."""
    return rounded(value, 4)


def verified_line(result: Explanation) -> "Text":
    """How many steps were compared with the model, and how closely the output is its own."""
    from rich.text import Text

    stages, output = result.stages, result.output
    start = f"the output of layer {result.layer - 1}" if result.layer else "the embedding tables"
    n_hidden = len(stages) - len(stages.checks)
    hidden = f", which does not show the other {n_hidden}" if n_hidden else ""
    experts = ", but for what the mixture of experts gives, which is the model's own" if result.stages.experts else ""
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


# --- pictures


def _plan_row(result: Explanation, _: ViewOptions) -> "Iterator[RowPlan]":
    """The table of the followed row, to redo its softmax by hand."""
    from attnviz.figures.charts import ROW_SIZE, RowPlan
    from attnviz.figures.fonts import fitted_token
    from attnviz.figures.matrix import LONGEST

    table, about = row_table(result, FEW_KEYS), result.figure_context
    columns = [
        (field.title, *(cell.plain for cell in cells))
        for field, cells in zip(table.columns, table.cells(), strict=True)
    ]
    keys = tuple(fitted_token(cell, ROW_SIZE, LONGEST) for cell in columns[0])
    yield RowPlan(
        stem="explain-row",
        **about.caption_and_notes(f"{table.title}, on {about.quotes}", table.caption),
        title=table.title,
        columns=(keys, *columns[1:]),
        needed=sum(not field.detail for field in table.columns),
    )


def page_data(result: Explanation, _: ViewOptions) -> Entry:
    """``LayerData`` as in ``attnviz/page/steps.js``."""
    about, model, stages = result.figure_context, result.checkpoint, result.stages
    n = len(result.tokens)
    n_kept = min(_MOST_TOKENS, n)  # the followed token among them
    first = min(max(0, result.token + 1 - n_kept), n - n_kept)
    rows = slice(first, first + n_kept)
    labels = [visible(label) for label in result.tokens.labels[rows]]
    vectors = {}
    for name, stage in stages.items():
        if stage.tensor.ndim == 2 and name != "mask":
            tensor = stage.wide[rows]
            thinned = math.ceil(tensor.shape[1] / _MOST_NUMBERS) if name in _ALL_HEADS else 1
            vectors[name] = {
                "numbers": packed_numbers(tensor[:, ::thinned][:, :_MOST_NUMBERS]),
                "lengths": packed_numbers(torch.linalg.vector_norm(tensor, dim=-1)),
                "width": tensor.shape[1],
            }
    return {
        "command": "explain",
        "title": f"Layer {result.layer} of {about.model} on {about.text_line}",
        "caption": (
            f"Interactive page of layer {result.layer} of {about.model} on {about.quotes}, step by step, with all "
            f"{counted(model.n_heads, 'head')}; opens from disk, without network."
        ),
        "verification": verified_line(result).plain,
        "notes": list(_notes(result, n_kept)),
        "tables": [],
        "heads": [str(HeadId(result.layer, head)) for head in range(model.n_heads)],
        "tokens": {
            "labels": labels,
            "muted": [bool(special) for special in result.tokens.special[rows]],
            "first": first,
            "left_out": n - n_kept,
            "rtl": right_to_left("".join(labels)),
        },
        "steps": [
            {
                "formula": step.formula,
                "sentence": step.sentence,
                "name": name,
                "title": f"{step.number}  {step.title}",
                "label": step.label or step.title,
                "check": check_line(stages[name], step.unseen)[0],
            }
            for name, step in steps_of(result.stages).items()
        ],
        "numbers": {name: packed_numbers(tensor) for name, tensor in _numbers(result, rows)},
        "vectors": vectors,
        "sums": _sums(result),
        "scale": float(result.parameters.scale),
        "added": [name for name in BY_POSITION if name in stages],
        "start": {"head": result.head.head, "token": result.token - first},
    }


def _numbers(result: Explanation, rows: slice) -> Iterator[tuple[str, Tensor]]:
    """The tensors of every head, and what its result times its rows of W_O gives."""
    stages, parameters = result.stages, result.parameters
    for name, of_heads in zip(("query", "key", "value"), stages.queries_keys_values, strict=True):
        yield name, of_heads[:, rows]
    yield "mask", stages["mask"].wide[rows, rows]
    for name, stage in stages.items():
        if stage.tensor.ndim > 2 and name != "weighted":
            yield name, stage.wide[..., rows, :] if stage.tensor.ndim == 4 else stage.wide[:, rows, rows]
    weighted = stages["weighted"].wide[:, rows]
    outputs = torch.matmul(weighted, _plain(parameters.output_weight))
    yield "weighted", weighted
    yield "outputs", outputs[..., :_MOST_NUMBERS]
    yield "output_lengths", torch.linalg.vector_norm(outputs, dim=-1)
    if parameters.output_bias is not None:
        yield "output_bias", _plain(parameters.output_bias)[:_MOST_NUMBERS]
    if parameters.sinks is not None:
        yield "sinks", _plain(parameters.sinks)


def _plain(parameter: Tensor) -> Tensor:
    return upcast(parameter.detach()).cpu()


def _sums(result: Explanation) -> dict[str, list[tuple[str, float]]]:
    """What the sums of the residual stream are of: steps, and what each is multiplied by."""
    layer = result.stages.parameters
    attention, network = (
        (f"{name}_norm" if f"{name}_norm" in result.stages else name, layer.residual_multiplier)
        for name in ("attention_output", "feed_forward_output")
    )
    if layer.parallel:
        return {"output": [("input", 1.0), attention, network]}
    entered = "attention_residual" if layer.pre_norm else "attention_norm"
    second = "output" if layer.pre_norm else "feed_forward_residual"
    return {"attention_residual": [("input", 1.0), attention], second: [(entered, 1.0), network]}


def _notes(result: Explanation, n_kept: int) -> Iterator[str]:
    n, width = len(result.tokens), max(result.checkpoint.d_model, result.stages.d_ff)
    if n_kept < n:
        yield (
            f"{n_kept} of {counted(n, 'token')} are on this page, those up to the followed one; the others are summed "
            "in one line of each table."
        )
    if width > _MOST_NUMBERS:
        yield (
            f"Of vectors of up to {width} numbers the first {_MOST_NUMBERS} are on this page; where heads stand side "
            "by side, as many of all heads. Lengths are of all."
        )
    yield "Numbers are those of explain.json and of the tensors in Python, in float32."


ROW = Drawing(_plan_row)
PAGE = page_drawing("explain", page_data)
