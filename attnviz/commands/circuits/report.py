"""JSON, CSV and tables of circuits, and sentences shared with their figures."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.circuits.measure import Circuits, HeadCopying, Pair
from attnviz.measures.composition import COMPOSITION_INPUTS
from attnviz.measures.successors import MAJORITY
from attnviz.present.documents import model_entry
from attnviz.present.fields import HEAD, Field, NamedTable, by_name, entry, pick
from attnviz.present.figure_context import capital
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, rounded, signed, visible

_HEADS: tuple[Field[HeadCopying], ...] = (
    *HEAD,
    Field("Copying", name="copying", unit="−1 to 1", write=signed),
    Field("Untrained", name="untrained", write=signed),
    Field("Successor", name="successor", unit="0–1"),
    Field("Shuffled", name="shuffled"),
)
_PAIRS: tuple[Field[Pair], ...] = (
    Field("Head", lambda pair: str(pair.id)),
    Field("reads", lambda pair: pair.kind),
    Field("from", lambda pair: str(pair.writer)),
    Field("Composition", lambda pair: rounded(pair.score, 3), "0–1"),
    Field("Above baseline", lambda pair: signed(pair.deviations), "SD"),
)


def left_out(result: Circuits) -> str:
    """Sentence on what weights alone cannot say."""
    of_latents = len(result.checkpoint.modules[0].projections) == 2  # MLA
    read = "without their rotated part" if of_latents else "as at distance 0"
    rotary = f"rotary positions (queries and keys {read}), " if result.rotary else ""
    return (
        f"Weights alone: no text is read. Left out: {rotary}feed-forward networks and heads on the way, biases, the "
        "scale of norms (each is linear with its scale held fixed), and whether the heads ever attend."
    )


def _content(result: Circuits, choices: ViewOptions) -> dict[str, Any]:
    return {
        "model": model_entry(result.checkpoint),
        "options": {"select": list(choices.select)},
        "baseline": result.baseline,
        "heads": [entry(_HEADS, head) for head in result.select(choices.select)],
        "no_copying": result.no_copying or None,
        "no_successors": result.succession.why_none or None,
        "activation_left_out": result.linearised,
        "rotary_left_out": result.rotary,
    }


def _pairs(result: Circuits, choices: ViewOptions) -> NamedTable[dict[str, Any]]:
    """A row a pair of heads, with the composition of each kind."""
    names = ("id", "from", *COMPOSITION_INPUTS, *(f"{kind}_deviations" for kind in COMPOSITION_INPUTS))
    rows: dict[tuple[Any, Any], dict[str, Any]] = {}
    for pair in result.pairs(choices.select):
        unknown = dict.fromkeys(names) | {"id": str(pair.id), "from": str(pair.writer)}
        row = rows.setdefault((pair.id, pair.writer), unknown)
        row |= {pair.kind: pair.score, f"{pair.kind}_deviations": pair.deviations}
    return NamedTable("pairs", by_name(*names), [rows[key] for key in sorted(rows)])


def _tables(result: Circuits, choices: ViewOptions) -> Iterator[RenderableType]:
    model, heads = result.checkpoint, result.select(choices.select)
    yield Text(
        f"{counted(len(result.heads), 'head')} of {visible(model.name)} ({model.runs_as}), from the weights alone."
    )
    pairs = result.pairs(choices.select)
    of_kinds = {"Composition": pairs}
    if choices.verbose:
        of_kinds = {
            f"{capital(kind)} composition": [pair for pair in pairs if pair.kind == kind] for kind in COMPOSITION_INPUTS
        }
    order = f"the furthest above the baseline, {result.baseline:.3f}, first"
    for title, of_kind in of_kinds.items():
        if of_kind:
            top = choices.rows(6)
            yield first_rows(title, _PAIRS, of_kind, top, "circuits.csv", noun="pair", order=order)
    if not pairs:
        yield notes("No pairs: composition takes two layers.")
    order = "the largest first"
    if not result.no_copying:
        copying = sorted(heads, key=lambda head: -abs(head.copying or 0.0))
        columns = pick(_HEADS, "id", "copying", "untrained")
        yield first_rows("Copying", columns, copying, choices.rows(3), "circuits.json", order=order)
    following = sorted((head for head in heads if head.successor is not None), key=lambda head: -(head.successor or 0))
    if following and (choices.verbose or (following[0].successor or 0) >= MAJORITY):
        columns = pick(_HEADS, "id", "successor", "shuffled")
        yield first_rows("Successors", columns, following, choices.rows(3), "circuits.json", order=order)
    if not choices.verbose:
        return
    untrained = [head.untrained or 0.0 for head in result.heads]
    low, high = signed(min(untrained)), signed(max(untrained))
    yield notes(
        "Composition (Elhage et al. 2021): ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, A what the earlier head writes, B "
        "what the later one makes of it for its queries, keys or values, norms folded in. Baseline: root mean square "
        "for random rotations of the same singular values; SD: standard deviations of the square.",
        f"Copying: no value, {result.no_copying}."
        if result.no_copying
        else "Copying: Σλ / Σ|λ| of W_E W_V W_O W_U (Elhage et al. 2021); 1: a head raises the tokens it attends to, "
        f"−1: lowers them. Untrained: weights drawn at random, here {low} to {high}.",
        f"Successors: no value, {result.succession.why_none}."
        if result.succession.why_none
        else "Successors: share of the tokens of ordinal sequences (numbers, days, letters) of which a head writes the "
        "next, from what the first layer's network makes of them (Gould et al. 2023). Shuffled: its best of 20 random "
        "orders.",
        "The activation of the masked-language head is left out of copying." if result.linearised else "",
        left_out(result),
    )


SPEC = CommandSpec[Circuits](content=_content, table=_pairs, tables=_tables, top=8)
