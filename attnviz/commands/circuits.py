"""Composition of every pair of heads, copying and succession of every head, from the weights alone.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; all norms are Frobenius norms::

    composition   ‖A B‖ / (‖A‖ ‖B‖)    A: what the earlier head writes, B: what the later one makes of it
    copying       Σλ / Σ|λ|            λ: the eigenvalues of W_E W_V W_O W_U
    succession    share of tokens of ordinal sequences of which a head writes the next (Gould et al. 2023)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from attnviz.measures.composition import COMPOSITION_INPUTS, Layers
from attnviz.measures.successors import MAJORITY, Succession
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.documents import Entry, model_entry
from attnviz.present.fields import HEAD, Field, Table, entry, pick, plain
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, Result
from attnviz.present.view import Drawing, ViewOptions
from attnviz.progress import Progress
from attnviz.run.contributions import without_gradients
from attnviz.wording import counted, rounded, signed, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.figures.maps import TilesPlan

_INCHES = 4.5
_MOST_RULES = 12


@dataclass(frozen=True)
class HeadCopying:
    """What a head writes of the tokens that it reads; None without a language head."""

    id: HeadId
    copying: float | None  # -1 to 1, the sum of the eigenvalues of W_E W_V W_O W_U by the sum of their absolute values
    untrained: float | None  # that of a head of this shape with weights drawn at random
    successor: float | None = None  # 0-1, share of tokens of ordinal sequences of which it writes the successor
    shuffled: float | None = None  # its best score where the sequences are in random order


@dataclass(frozen=True)
class Pair:
    """Composition of two heads."""

    id: HeadId  # the later head, which reads
    writer: HeadId  # the earlier head
    kind: str  # one of :data:`COMPOSITION_INPUTS`
    score: float  # 0-1
    deviations: float  # how many standard deviations the squared score is above that of random rotations


@dataclass(frozen=True, repr=False, eq=False)
class Circuits(Result, OfHeads[HeadCopying]):
    """What :func:`circuits` measured."""

    command: ClassVar[str] = "circuits"

    checkpoint: Checkpoint
    heads: tuple[HeadCopying, ...]  # in the model's order, which is that of the matrices, too
    scores: dict[str, Tensor]  # by kind, [n, n], row = the head that reads, column = the earlier one; NaN elsewhere
    deviations: dict[str, Tensor]  # likewise, see :class:`Pair`
    baseline: float  # root of the mean squared score of two matrices with these singular values, turned at random
    no_copying: str  # reason why copying is None, or ''
    succession: Succession  # successor scores by sequence
    linearised: bool  # whether copying leaves out the activation of a masked-language head
    rotary: bool  # whether queries and keys are rotated by positions, which is left out

    def pairs(self, select: Sequence[str | HeadId] = ()) -> list[Pair]:
        """All pairs with a selected head on either side, the furthest above the baseline first.

        Raises UsageError for an unknown head.
        """
        chosen = {head.id for head in self.select(select)}
        ids = [head.id for head in self.heads]
        wanted = torch.tensor([id in chosen for id in ids])
        either, pairs = wanted[:, None] | wanted, list[Pair]()
        for kind in COMPOSITION_INPUTS:
            scores, above = self.scores[kind], self.deviations[kind]
            pairs += [
                Pair(ids[reader], ids[writer], kind, float(scores[reader, writer]), float(above[reader, writer]))
                for reader, writer in (either & ~scores.isnan()).nonzero().tolist()
            ]
        return sorted(pairs, key=lambda pair: -pair.deviations)

    @property
    def in_words(self) -> str:
        return f"of {self.checkpoint.short_name}: {counted(len(self.heads), 'head')}"


@checked
def circuits(
    model: Model | None = None, *, progress: Progress | None = None, **opening: Unpack[ModelOptions]
) -> Circuits:
    """Measure composition of every pair of heads and copying of every head, from the weights alone.

    Of an encoder-decoder the encoder alone is measured.

    >>> attnviz.circuits("tiny-gpt2").pairs(["L1H0"])[0]  # doctest: +SKIP
    """
    layers = Layers(open_checkpoint(model, **opening)[0].encoder)
    checkpoint = layers.checkpoint
    ids = select_heads((), checkpoint.kinds)
    none: Sequence[float | None] = [None] * len(ids)
    copying = untrained = successor = shuffled = none
    with without_gradients(checkpoint.device):
        squared, spread = layers.compositions(progress)
        if not layers.why_no_logits:
            copying, untrained = layers.copying(), layers.untrained_copying()
        following = layers.succession()
    if following.right:
        successor, shuffled = following.scores.flatten().tolist(), following.shuffled.flatten().tolist()
    heads = zip(ids, copying, untrained, successor, shuffled, strict=True)
    return Circuits(
        checkpoint=checkpoint,
        heads=tuple(HeadCopying(*head) for head in heads),
        scores=dict(zip(COMPOSITION_INPUTS, squared.sqrt(), strict=True)),
        deviations=dict(zip(COMPOSITION_INPUTS, (squared * layers.dimensions - 1) / spread, strict=True)),
        baseline=layers.dimensions**-0.5,
        no_copying=layers.why_no_logits,
        succession=following,
        linearised=layers.dense,
        rotary=layers.rotary,
    )


# --- tables


_HEAD_COLUMNS: tuple[Field[HeadCopying], ...] = (
    *HEAD,
    Field("Copying", name="copying", unit="−1 to 1", write=signed),
    Field("Untrained", name="untrained", write=signed),
    Field("Successor", name="successor", unit="0–1"),
    Field("Shuffled", name="shuffled"),
)
_PAIR_COLUMNS: tuple[Field[Pair], ...] = (
    Field("Head", name="id"),
    Field("reads", name="kind"),
    Field("from", name="writer"),
    Field("Composition", lambda pair: rounded(pair.score, 3), "0–1"),
    Field("Above baseline", unit="SD", name="deviations", write=signed),
)


def _content(result: Circuits, choices: ViewOptions) -> Entry:
    return {
        "model": model_entry(result.checkpoint),
        "options": {"select": choices.select},
        "baseline": result.baseline,
        "heads": [entry(_HEAD_COLUMNS, head) for head in result.select(choices.select)],
        "no_copying": result.no_copying or None,
        "no_successors": result.succession.why_none or None,
        "activation_left_out": result.linearised,
        "rotary_left_out": result.rotary,
    }


def _pairs(result: Circuits, choices: ViewOptions) -> Table[Entry]:
    """A row a pair of heads, with the composition of each kind."""
    names = ("id", "from", *COMPOSITION_INPUTS, *(f"{kind}_deviations" for kind in COMPOSITION_INPUTS))
    rows: dict[tuple[HeadId, HeadId], Entry] = {}
    for pair in result.pairs(choices.select):
        row = rows.setdefault((pair.id, pair.writer), {"id": pair.id, "from": pair.writer})
        row |= {pair.kind: pair.score, f"{pair.kind}_deviations": pair.deviations}
    return Table("", plain(*names), [rows[key] for key in sorted(rows)], name="pairs")


def _tables(result: Circuits, choices: ViewOptions) -> "Iterator[RenderableType]":
    model, heads, pairs = result.checkpoint, result.select(choices.select), result.pairs(choices.select)
    yield f"{counted(len(result.heads), 'head')} of {visible(model.name)} ({model.runs_as}), from the weights alone."
    of_kinds = {"Composition": pairs}
    if choices.verbose:
        of_kinds = {
            f"{capital(kind)} composition": [pair for pair in pairs if pair.kind == kind] for kind in COMPOSITION_INPUTS
        }
    order = f"the furthest above the baseline, {result.baseline:.3f}, first"
    for title, of_kind in of_kinds.items():
        if of_kind:
            yield Table(title, _PAIR_COLUMNS, of_kind).first(choices.rows(6), "circuits.csv", "pair", order)
    if not pairs:
        yield "No pairs: composition takes two layers."

    def largest(title: str, score: str, control: str) -> Table[HeadCopying]:
        known = [head for head in heads if getattr(head, score) is not None]
        ranked = sorted(known, key=lambda head: -abs(getattr(head, score)))
        table = Table(title, pick(_HEAD_COLUMNS, "id", score, control), ranked)
        return table.first(choices.rows(3), "circuits.json", order="the largest first")

    if not result.no_copying:
        yield largest("Copying", "copying", "untrained")
    successors = [head.successor for head in heads if head.successor is not None]
    if successors and (choices.verbose or max(successors) >= MAJORITY):
        yield largest("Successors", "successor", "shuffled")


# --- sentences


def _left_out(result: Circuits) -> str:
    """What weights alone cannot say."""
    of_latents = len(result.checkpoint.modules[0].projections) == 2  # MLA
    read = "without their rotated part" if of_latents else "as at distance 0"
    rotary = f"rotary positions (queries and keys {read}), " if result.rotary else ""
    return (
        f"Weights alone: no text is read. Left out: {rotary}feed-forward networks and heads on the way, biases, the "
        "scale of norms (each is linear with its scale held fixed), and whether the heads ever attend."
    )


def _notes(result: Circuits, choices: ViewOptions) -> Iterator[str]:
    if not choices.verbose:
        return
    yield (
        "Composition (Elhage et al. 2021): ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, A what the earlier head writes, B "
        "what the later one makes of it for its queries, keys or values, norms folded in. Baseline: root mean square "
        "for random rotations of the same singular values; SD: standard deviations of the square."
    )
    if result.no_copying:
        yield f"Copying: no value, {result.no_copying}."
    else:
        untrained = [head.untrained or 0.0 for head in result.heads]
        yield (
            "Copying: Σλ / Σ|λ| of W_E W_V W_O W_U (Elhage et al. 2021); 1: a head raises the tokens it attends to, "
            f"−1: lowers them. Untrained: weights drawn at random, here {signed(min(untrained))} to "
            f"{signed(max(untrained))}."
        )
    if result.succession.why_none:
        yield f"Successors: no value, {result.succession.why_none}."
    else:
        yield (
            "Successors: share of the tokens of ordinal sequences (numbers, days, letters) of which a head writes the "
            "next, from what the first layer's network makes of them (Gould et al. 2023). Shuffled: its best of 20 "
            "random orders."
        )
    if result.linearised:
        yield "The activation of the masked-language head is left out of copying."
    yield _left_out(result)


SPEC = CommandSpec[Circuits](content=_content, table=_pairs, tables=_tables, notes=_notes, top=8)


# --- picture


def _plans(result: Circuits, choices: ViewOptions) -> "Iterator[TilesPlan]":
    """A matrix of heads for each kind of composition."""
    from matplotlib.colors import Normalize

    from attnviz.figures.maps import Tile, TilesPlan, tile_pooling
    from attnviz.figures.matrix import Labels, max_pool

    model, names = result.checkpoint.short_name, [str(head.id) for head in result.heads]
    top = max(float(scores.nan_to_num().max()) for scores in result.scores.values())
    pooled, _ = tile_pooling(names, 1, _INCHES, choices.style)
    layers = [head.id.layer for head in result.heads]
    rules = [float(number) for number in range(1, len(layers)) if layers[number] != layers[number - 1]]
    shown = f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else ""
    for kind in COMPOSITION_INPUTS:
        values = max_pool(result.scores[kind].nan_to_num().numpy().astype(np.float32), pooled)
        yield TilesPlan(
            stem=f"composition-{kind}",
            caption=caption_of(
                f"{capital(kind)} composition of every head (row) with every earlier head (column) of {model}: "
                "‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms (Elhage et al. 2021)",
                f"colours from {result.baseline:.3f}, what random rotations of the same singular values score",
                shown,
                _left_out(result),
            ),
            title=f"{model}: {kind} composition",
            notes=(
                "Rows: the later head, which reads. Columns: the earlier head, which writes.",
                f"{capital(shown)}." if shown else "",
            ),
            tiles=(Tile("", values),),
            labels=Labels(tuple(names)),
            norm=Normalize(result.baseline, max(top, 1.01 * result.baseline), clip=True),
            bar="composition, 0–1; paper: no more than random rotations",
            pooled=pooled,
            rules=tuple(rules) if len(rules) < _MOST_RULES else (),
            target=_INCHES,
        )


COMPOSITION = Drawing(
    _plans,
    missing=lambda result: "" if result.checkpoint.n_layers > 1 else "composition takes two layers",
)
