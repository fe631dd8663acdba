"""Tables of an attention rollout for the terminal: what was verified, the inputs of one token ranked, the layers."""

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.commands.rollout.results import METHODS, RolledOut
from attnviz.commands.rollout.words import (
    METHOD_NAMES,
    chosen,
    counted,
    flow_sentence,
    layer_named,
    layers_in_words,
    residual_in_words,
    sink_sentence,
    spread_sentence,
)
from attnviz.model.tokens import visible
from attnviz.results.tables import add_row, error, number, plain_table

__all__ = ["input_table", "layer_table", "rollout_report"]

_RANK, _GAPS, _NUMBER = 5, 4, 6
_LEAST_LABEL, _LONGEST_LABEL = 4, 24


def rollout_report(found: RolledOut, *, top: int, width: int) -> RenderableType:
    """Everything that ``attnviz rollout`` prints.

    Args:
        found: the rollout.
        top: how many input tokens to list at most; 0 for all.
        width: columns of the terminal.
    """
    return Group(
        _verification_line(found),
        Text(),
        Text(f"Inputs of {chosen(found)} at the output of {layer_named(found)}, ranked", style="bold"),
        input_table(found, top=top, width=width),
        Text(),
        layer_table(found),
        Text(),
        _notes(found),
    )


def input_table(found: RolledOut, *, top: int, width: int) -> Table:
    """The input tokens of the chosen token, ranked by each method on its own."""
    n = len(found.units)
    shown = min(n, top or n)
    table = plain_table("")
    table.add_column("Rank", justify="right", no_wrap=True)
    rows = {name: row for name, row in found.inputs._asdict().items() if name in METHODS and row is not None}
    places = len(str(n - 1)) + 1
    room = (width - _RANK - _GAPS) // len(rows) - _NUMBER - places - 2
    room = max(_LEAST_LABEL, min(_LONGEST_LABEL, room))
    for name in rows:
        table.add_column(METHOD_NAMES[name].capitalize(), no_wrap=True)
    columns = [_ranked(found, row, shown, places, room) for row in rows.values()]
    for rank, cells in enumerate(zip(*columns, strict=True), start=1):
        add_row(table, [str(rank), *cells])
    if shown < n:
        table.caption = f"{shown} of {counted(found, n)}: --top 0 lists all; rollout.csv has them."
    return table


def layer_table(found: RolledOut) -> Table:
    """By layer, how much of attention and rollouts lies on sinks, and how far two rows differ."""
    table = plain_table("Layers (on sinks, and mean distance between two rows; 0–1)")
    table.add_column("Layer", justify="right", no_wrap=True)
    for name in ("Sinks:\nattention", "\nrollout", "\nnorms", "\nuniform", "Rows:\nrollout", "\nnorms", "\nuniform"):
        table.add_column(name, justify="right", no_wrap=True)
    for of in found.layers:
        sinks = (of.sink[name] for name in ("attention", "rollout", "norm_rollout", "uniform_rollout"))
        apart = (of.rows_apart[name] for name in ("rollout", "norm_rollout", "uniform_rollout"))
        add_row(table, [str(of.layer), *map(number, (*sinks, *apart))])
    return table


def _ranked(found: RolledOut, row: Tensor, shown: int, places: int, room: int) -> list[str]:
    """The largest first, of equals the first: the share, the position, and the token as far as there is room."""
    order = torch.argsort(row, descending=True, stable=True)[:shown].tolist()
    return [f"{row[i]:.3f} {f'#{i}':<{places}} {_cut(found.units.labels[i], room)}" for i in order]


def _cut(label: str, room: int) -> str:
    return label if len(label) <= room else label[: room - 1] + "…"


def _verification_line(found: RolledOut) -> Text:
    """How many heads were compared with the model, and how closely they and what they add agree."""
    verified, model = found.attention.verification, found.checkpoint
    dtype = str(model.dtype).removeprefix("torch.")
    parts = max(of.parts_error for of in found.layers)
    return Text.assemble(
        ("Verified", "bold green"),
        f" {verified.heads_compared} heads in {model.n_layers} layers of {visible(model.name)} ({dtype}, "
        f"{model.device}): weights within {error(verified.pattern_error)} of the model's own (tolerance "
        f"{verified.tolerance.pattern:.0e}), outputs within {error(verified.output_error)} of the largest, what "
        f"attention adds from each token, summed, within {error(parts)} (tolerance {verified.tolerance.output:.0e}).",
    )


def _notes(found: RolledOut) -> Text:
    lines = [
        f"Rollout (Abnar & Zuidema 2020) over {layers_in_words(found)}: the mean pattern of the heads, "
        f"{residual_in_words(found)}, layers multiplied. Norm rollout: the same with the norm of what attention adds "
        "(Kobayashi et al. 2020) in place of the weight. Uniform: rollout of attention that is the same for every key. "
        "Feed-forward networks and layer norms are left out of all of these.",
        flow_sentence(found),
        sink_sentence(found),
        spread_sentence(found),
    ]
    return Text("\n".join(line for line in lines if line), style="dim")
