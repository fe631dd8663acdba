"""JSON, CSV and tables of a rollout, and sentences shared with its figures."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from attnviz.commands.rollout.measure import METHODS, LayerShares, Rollout
from attnviz.inputs.prompt import text_at
from attnviz.present.documents import text_entry, verification_entry
from attnviz.present.fields import Field, NamedTable, by_name, entry, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, glued, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import error, shortened_token

_ALIKE, _APART = 0.1, 0.5
_MOST_NUMBERS = 4
_LONGEST_LABEL = 24


def last_layer(result: Rollout) -> str:
    """The layer up to which attention was rolled out: ``layer 5, the last``."""
    return f"layer {result.layer}{', the last' if result.layer == result.checkpoint.n_layers - 1 else ''}"


def method_text(result: Rollout) -> str:
    """Sentence on the layers multiplied and the share of the residual."""
    share = result.residual
    layers, everywhere = (f"layers 0 to {result.layer}", " in every layer") if result.layer else ("layer 0", "")
    return f"through {layers}, {1 - share:g} attention + {share:g} identity{everywhere}"


def spread_sentence(result: Rollout) -> str:
    """Whether rows of the rollout still differ after the last layer; '' for a single row."""
    apart = result.layers[-1].rows_apart
    known = [apart[name] or 0.0 for name in METHODS[1:] if apart[name] is not None]
    if not known:
        return ""
    verdict = "rows have much in common"
    if max(known) >= _APART:
        verdict = "rows still differ"
    elif max(known) < _ALIKE:
        verdict = f"rows are nearly alike: the rollout says little about one {result.units.name} in particular"
    return f"After layer {result.layer} {verdict} (distance {known[0]:.2f})."


def _content(result: Rollout, _: ViewOptions) -> dict[str, Any]:
    units, positions = result.units, list(result.positions)
    parts = {layer.layer: layer.parts_error for layer in result.layers}
    return {
        **text_entry(result),
        "options": {
            "words": units.name == "word",
            "layer": result.layer,
            "residual": result.residual,
            "from": positions,
            "tokens_cut_off": result.tokens.truncated,
        },
        "words": list(units.labels) if units.name == "word" else None,
        "verification": verification_entry(
            result.attention.verification, lambda check: {"parts_error": parts.get(check.layer)}
        ),
        "from": {"text": units.labels[positions[0]], "positions": positions},
        "layers": [entry(plain("layer", "sink", "rows_apart"), layer) for layer in result.layers],
    }


def _inputs(result: Rollout, _: ViewOptions) -> NamedTable[dict[str, Any]]:
    units = result.units
    columns = {"position": range(len(units)), "text": units.labels, "special": units.special, "sink": units.sink}
    columns |= {name: row.tolist() for name, row in result.inputs._asdict().items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return NamedTable("inputs", by_name(*columns), rows)


def _tables(result: Rollout, choices: ViewOptions) -> Iterator[RenderableType]:
    worst = max(layer.parts_error for layer in result.layers)
    parts = f", the sum of what attention adds from each token by at most {error(worst)}"
    yield verification_line(result.attention.verification, result.checkpoint, parts if choices.verbose else "")
    units, positions = result.units, result.positions

    def ranked(name: str) -> Field[int]:
        row: Tensor = getattr(result.inputs, name)
        order = row.argsort(descending=True, stable=True).tolist()

        def at_rank(rank: int) -> Text:
            position = order[rank]
            return glued([f"{row[position]:.3f} #{position} {shortened_token(units.labels[position], _LONGEST_LABEL)}"])

        return Field(name.replace("_", " ").capitalize(), at_rank)

    numbers = ", ".join(f"#{position}" for position in positions[:_MOST_NUMBERS])
    numbers += ", …" if len(positions) > _MOST_NUMBERS else ""
    numbers += f", mean of {len(positions)}" if len(positions) > 1 else ""
    title = f"Inputs of “{text_at(units, positions)}” ({numbers}) at the output of {last_layer(result)}"
    columns = [Field[int]("Rank", lambda rank: rank + 1), *map(ranked, METHODS)]
    yield first_rows(title, columns, range(len(units)), choices.rows(9), "rollout.csv", noun=units.name, order="ranked")
    if not choices.verbose:
        yield notes(spread_sentence(result))
        return

    short = {"attention": "attention", "rollout": "rollout", "norm_rollout": "norms", "uniform_rollout": "uniform"}

    def share(title: str, summary: str, method: str) -> Field[LayerShares]:
        return Field(f"{title}: {short[method]}", lambda layer: getattr(layer, summary)[method])

    of_layers = [
        Field[LayerShares]("Layer", name="layer"),
        *(share("Sinks", "sink", method) for method in short),
        *(share("Rows", "rows_apart", method) for method in short if method != "attention"),
    ]
    yield RowTable("Layers (on sinks, and mean distance between two rows; 0–1)", of_layers, result.layers)
    yield notes(
        f"Rollout (Abnar & Zuidema 2020): the mean pattern of the heads, {method_text(result)}"
        f"{', layers multiplied' if result.layer else ''}; norm "
        "rollout: the norm of what attention adds (Kobayashi et al. 2020) in place of the weight; uniform: of uniform "
        "attention. Feed-forward networks and layer norms are left out.",
        f"Sinks: {result.sinks}." if result.sinks else "",
        spread_sentence(result),
    )


SPEC = CommandSpec[Rollout](content=_content, table=_inputs, tables=_tables)
