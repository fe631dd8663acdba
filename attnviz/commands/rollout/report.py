"""JSON, CSV and tables of a rollout, and sentences shared with its figures."""

import json
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from safetensors.torch import save
from torch import Tensor

from attnviz.commands.rollout.measure import METHODS, LayerShares, Rollout
from attnviz.models.opening import encoder_note
from attnviz.models.tokens import text_at
from attnviz.models.wording import error, percent, shortened_token
from attnviz.present.documents import model_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import column_table, first_rows, notes, titled, verification_line
from attnviz.present.view import ViewOptions

METHOD_NAMES = {name: name.replace("_", " ") for name in METHODS}
"""Display names of methods."""

_ALIKE, _APART = 0.1, 0.5
_MOST_NUMBERS = 4
_NUMBER, _LONGEST_LABEL = 6, 24


def chosen(result: Rollout) -> str:
    """The output token whose inputs are ranked, with its positions."""
    numbers = [f"#{position}" for position in result.positions]
    listed = ", ".join(numbers[:_MOST_NUMBERS]) + (", …" if len(numbers) > _MOST_NUMBERS else "")
    mean = f", mean of {len(numbers)}" if len(numbers) > 1 else ""
    return f"“{text_at(result.units, result.positions)}” ({listed}{mean})"


def last_layer(result: Rollout) -> str:
    """The layer up to which attention was rolled out: ``layer 5, the last``."""
    return f"layer {result.layer}{', the last' if result.layer == result.checkpoint.n_layers - 1 else ''}"


def how(result: Rollout) -> str:
    """Sentence on the layers multiplied and the share of the residual."""
    share = result.residual
    layers, each = (f"layers 0 to {result.layer}", " in every layer") if result.layer else ("layer 0", "")
    return f"through {layers}, {1 - share:g} attention + {share:g} identity{each}"


def spread_sentence(result: Rollout, *, brief: bool = False) -> str:
    """Sentence on the distance between rows of the rollout, long or short; '' for a single row."""
    last = result.layers[-1].rows_apart
    rollout, norms, uniform = last["rollout"], last["norm_rollout"], last["uniform_rollout"]
    if rollout is None or norms is None or uniform is None:
        return ""
    larger = max(rollout, norms)
    verdict = "rows still differ" if larger >= _APART else "rows have much in common"
    if larger < _ALIKE:
        verdict = f"rows are nearly alike: the rollout says little about one {result.units.name} in particular"
    if brief:
        return f"after layer {result.layer} {verdict.partition(':')[0]} (distance {rollout:.2f})"
    first = result.layers[0].rows_apart["rollout"]
    before = f", after layer 0 alone {first:.2f}" if result.layer and first is not None else ""
    return (
        f"After layer {result.layer} {verdict} (mean distance between two rows, 0 to 1: {rollout:.3f}, by norms "
        f"{norms:.3f}, with uniform attention {uniform:.3f}{before})."
    )


def sink_sentence(result: Rollout) -> str:
    """Sentence on the share of sinks in the rollout; '' if not measurable."""
    last, unit = result.layers[-1].sink, result.units.name
    if last["rollout"] is None:
        return ""
    rollout, norms, uniform = (percent(last[name]) for name in ("rollout", "norm_rollout", "uniform_rollout"))
    return (
        f"Sinks ({result.sinks}) hold {rollout} of the rollout of all other {unit}s, {norms} by norms; "
        f"{uniform} if attention were uniform."
    )


def flow_sentence(flows: Tensor | None, over: str = "here") -> str:
    """Sentence on the flow and how far it separates inputs; '' without a flow."""
    if flows is None:
        return ""
    unreached = ", 0 where no path leads" if bool((flows == 0).any()) else ""
    low, high = (f"{float(value):.3f}" for value in (flows[flows > 0].min(), flows.max()))
    return (
        "Flow: the largest flow that could reach each input if attention weights were capacities, as a share of the "
        f"sum over the inputs; {over} {low if low == high else f'from {low} to {high}'}{unreached}. The more paths "
        "lead down, the more even it is."
    )


def _content(result: Rollout, _: ViewOptions) -> dict[str, Any]:
    units, positions = result.units, list(result.positions)
    parts = {of.layer: of.parts_error for of in result.layers}
    return {
        "model": model_entry(result.checkpoint),
        "text": result.text,
        "pair": result.pair,
        "options": {
            "words": units.name == "word",
            "layer": result.layer,
            "residual": result.residual,
            "from": positions,
            "flow": "all" if result.flows is not None else "token" if result.flow is not None else None,
            "tokens_cut_off": result.tokens.truncated,
        },
        "tokens": tokens_entry(result.tokens),
        "words": list(units.labels) if units.name == "word" else None,
        "verification": verification_entry(
            result.attention.verification, lambda check: {"parts_error": parts.get(check.layer)}
        ),
        "from": {"text": units.labels[positions[0]], "positions": positions},
        "inputs": _inputs(result),
        "layers": [{"layer": of.layer, "sink": of.sink, "rows_apart": of.rows_apart} for of in result.layers],
    }


def _inputs(result: Rollout) -> list[dict[str, Any]]:
    units, measured = result.units, {**result.inputs._asdict(), "max_flow": result.max_flow}
    columns = {"position": range(len(units)), "text": units.labels, "special": units.special, "sink": units.sink}
    columns |= {name: [None] * len(units) if row is None else row.tolist() for name, row in measured.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _tensors(result: Rollout, _: ViewOptions) -> bytes:
    """``rollout`` and ``norm_rollout``, [n_layers, n, n] each, and ``flow`` [n, n]."""
    tensors = {"rollout": result.weights.contiguous(), "norm_rollout": result.norms.contiguous()}
    if result.flows is not None:
        tensors["flow"] = result.flows.contiguous()
    labels, share = json.dumps(list(result.units.labels)), f"{result.residual:g}"
    about = {"unit": result.units.name, "labels": labels, "model": result.checkpoint.name, "residual": share}
    content: bytes = save(tensors, about)
    return content


def _tables(result: Rollout, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    worst = max(of.parts_error for of in result.layers)
    parts = f", the sum of what attention adds from each token by at most {error(worst)}"
    yield verification_line(result.attention.verification, result.checkpoint, parts)
    fields, ranks, noun = _ranked_inputs(result), range(len(result.units)), result.units.name
    table = first_rows("", fields, ranks, choices.top, "rollout.csv", width=width, noun=noun)
    yield titled(f"Inputs of {chosen(result)} at the output of {last_layer(result)}, ranked", table)
    yield column_table(
        "Layers (on sinks, and mean distance between two rows; 0–1)", _LAYER_COLUMNS, result.layers, width=width
    )
    yield notes(
        f"Rollout (Abnar & Zuidema 2020): the mean pattern of the heads, {how(result)}"
        f"{', layers multiplied' if result.layer else ''}; norm "
        "rollout: the norm of what attention adds (Kobayashi et al. 2020) in place of the weight; uniform: of uniform "
        "attention. Feed-forward networks and layer norms are left out.",
        flow_sentence(result.flow),
        sink_sentence(result),
        spread_sentence(result),
        encoder_note(result.checkpoint),
    )


def _ranked_inputs(result: Rollout) -> list[Field[int]]:
    """Table of the chosen token's inputs by rank, a column per method, each ranked by itself."""
    labels = result.units.labels
    rows = {name: row for name, row in result.inputs._asdict().items() if name in METHODS and row is not None}
    digits = len(str(len(labels) - 1)) + 1

    def column(name: str, row: Tensor) -> Field[int]:
        order = row.argsort(descending=True, stable=True).tolist()

        def written(rank: int, room: int) -> str:
            number, left = f"{row[order[rank]]:.3f} {f'#{order[rank]}':<{digits}}", room - _NUMBER - digits - 1
            return f"{number} {shortened_token(labels[order[rank]], min(left, _LONGEST_LABEL))}" if left > 1 else number

        return Field(METHOD_NAMES[name].capitalize(), fit=written, left=True, least=_NUMBER + digits)

    return [Field("Rank", lambda rank: rank + 1), *(column(*of_method) for of_method in rows.items())]


_LAYER_COLUMNS: list[Field[LayerShares]] = [
    Field("Layer", lambda of: of.layer),
    Field("Sinks:\nattention", lambda of: of.sink["attention"]),
    Field("\nrollout", lambda of: of.sink["rollout"]),
    Field("\nnorms", lambda of: of.sink["norm_rollout"]),
    Field("\nuniform", lambda of: of.sink["uniform_rollout"]),
    Field("Rows:\nrollout", lambda of: of.rows_apart["rollout"]),
    Field("\nnorms", lambda of: of.rows_apart["norm_rollout"]),
    Field("\nuniform", lambda of: of.rows_apart["uniform_rollout"]),
]

SPEC = CommandSpec[Rollout](
    content=_content,
    tables=_tables,
    fields=plain(
        "position", "text", "special", "sink", "attention", "rollout", "norm_rollout", "flow", "max_flow", "uniform",
        "uniform_rollout",
    ),
    entries="inputs",
    tensors=("rollout.safetensors", _tensors),
)  # fmt: skip
