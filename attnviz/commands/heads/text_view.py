"""The view ``text``: running text, each token shaded by the attention it receives; for long texts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from unicodedata import bidirectional

import numpy as np
import torch
from matplotlib.colors import Normalize
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.lines_view import MOST_HEADS, parts_selected, start_of
from attnviz.commands.heads.summary import label_and_role
from attnviz.figures.matrix import Array, scale_end
from attnviz.figures.running_text import HIGHEST, Piece, ShadedText, TextPlan, draw_text, text_figure, text_inches
from attnviz.models.tokens import Positions, Tokens
from attnviz.models.words import OTHERS, WORDPIECE
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted, percent, visible

_JOINER = "\u200d"
_WIDE = 0x2E80
"""First code point of scripts without spaces, between whose characters a line may end."""


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[TextPlan]:
    """Plan up to eight heads in one picture if it fits a page, else one each; of more, their mean."""
    for part in parts_selected(analysis, choices):
        if all(part.keys.special):  # a target of one token: its decoder reads the start token alone
            continue
        heads = part.select(choices.select)
        plan = _plan(part, heads, choices, part.stem("text"))
        if len(plan.blocks) == 1 or text_inches(plan, choices.style)[1] <= HIGHEST - 1.5:
            yield plan
            continue
        for head in heads:
            yield _plan(part, [head], choices, f"text/{head.id.file_stem}")


def _plan(part: Analysis, heads: Sequence[HeadFindings], choices: ViewOptions, stem: str) -> TextPlan:
    """Plan one picture of up to eight heads, or of the mean of more."""
    shown = part.drawn(choices.drop_special)
    about, other_rows = shown.figure_context, shown.rows_differ_from_columns
    start, chosen = start_of(shown, choices.token)
    non_sink = [unit for unit, sink in enumerate(shown.units.sink) if not sink] or [*range(len(shown.units))]
    queries = non_sink if start is None else list(start)
    pieces, units_of = pieces_of(*_source(part), shown.keys)
    received = [each.mean for _, each in shown.read(heads, lambda _: _Received(queries, shown))]
    is_mean = len(heads) > MOST_HEADS
    if is_mean:
        blocks = [_block(f"mean of {len(heads)} heads", np.mean(received, axis=0), units_of)]
    else:
        blocks = [_block(head.title, values, units_of) for head, values in zip(heads, received, strict=True)]
    sinks = [all(shown.keys.sink[unit] for unit in units) for units in units_of]
    top, cut = _top(blocks, sinks)
    named = ", ".join(f"{head.id} ({label_and_role(part, head)})" for head in heads)
    whose = f"from {chosen}" if chosen else f"mean over the {counted(len(queries), shown.units.name)} that attend"
    title = heads[0].title if len(heads) == 1 else f"{len(heads)} heads"
    return TextPlan(
        stem=stem,
        **about.caption_and_notes(
            f"Attention received in {about.subject}, {blocks[0].name if is_mean else named}",
            f"shade: the attention that each {about.unit} receives, {whose}",
            "a mean: no head need look like it" if is_mean else "",
            "later tokens are seen by fewer (a causal model)" if start is None and shown.context.causal else "",
            "special tokens are no part of the text, their share stands beside" if any(shown.keys.special) else "",
            "framed: where the attention comes from" if start is not None and not other_rows else "",
            caption_only=(f"colours from 0 to {top:g}{' or more' if cut else ''}",),
        ),
        title=f"{about.model}: {'mean of ' if is_mean else ''}{title}{f', from {chosen}' if chosen else ''}",
        pieces=pieces,
        blocks=tuple(blocks),
        framed=frozenset(at for at, units in enumerate(units_of) if start and not other_rows and {*units} & {*start}),
        norm=Normalize(0.0, top, clip=True),
        bar="attention received",
        cut=cut,
    )


class _Received:
    """Sums the attention that each key receives from some queries of a head, block by block."""

    def __init__(self, queries: Sequence[int], shown: Analysis) -> None:
        self._counted = torch.zeros(len(shown.units), dtype=torch.bool)
        self._counted[list(queries)] = True
        self._total = torch.zeros(len(shown.keys), dtype=torch.float64)

    def add(self, first: int, rows: Tensor) -> None:
        """Add the next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may be missing."""
        self._total[: rows.shape[1]] += rows[self._counted[first : first + len(rows)]].double().sum(0)

    @property
    def mean(self) -> Array:
        """Mean over the queries, [n_keys]."""
        mean: Array = (self._total / int(self._counted.sum())).numpy()
        return mean


def _block(name: str, received: Array, units_of: Sequence[Sequence[int]]) -> ShadedText:
    """Shaded text of one head: the sum over each piece's units, and the share of special tokens."""
    values = np.array([received[list(units)].sum() for units in units_of])
    elsewhere = sum(map(len, units_of)) < len(received)
    return ShadedText(name, f"special tokens {percent(received.sum() - values.sum())}" if elsewhere else "", values)


def _top(blocks: Sequence[ShadedText], sinks: Sequence[bool]) -> tuple[float, bool]:
    """End of the shared scale, by the largest value besides sinks, and whether any value exceeds it."""
    values = np.stack([block.values for block in blocks])
    non_sink = values[:, ~np.array(sinks)] if not all(sinks) else values
    top = scale_end(non_sink.max())
    return top, bool(values.max() > top)


def _source(part: Analysis) -> tuple[Tokens, list[str]]:
    """Tokens of the keys, and the text, or both of a pair."""
    if part.target is not None and part.stack_letter == "D":
        return part.target.tokens, part.target.tokens.texts_read(part.target.text)
    return part.tokens, part.tokens.texts_read(part.text, part.pair)


def pieces_of(
    tokens: Tokens, texts: Sequence[str], units: Positions
) -> tuple[tuple[Piece, ...], list[tuple[int, ...]]]:
    """Split texts into pieces, one per unit without special tokens; also returns the units of each piece.

    Positions that share a character, such as the bytes of an emoji, are one piece.
    """
    pieces: list[Piece] = []
    units_of: list[tuple[int, ...]] = []
    end, segment = 0, 0
    for unit, members in enumerate(units.members):
        of = tokens.segments[members[0]]
        if of is None:
            continue
        first, last = tokens.offsets[members[0]][0], max(tokens.offsets[member][1] for member in members)
        begins = of != segment and bool(pieces)
        end, segment = (0, of) if begins else (end, segment)
        if first < end and last <= end and not begins:
            units_of[-1] = (*units_of[-1], unit)
            continue
        pieces.append(_piece(texts[of], end, max(first, end), last, units.labels[unit], begins))
        units_of.append((unit,))
        end = max(end, last)
    return tuple(_joined(pieces)), units_of


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Insert joiners between the pieces of an Arabic word, so that letters keep their joined forms."""
    meets = [
        not after.space and not after.begins and bidirectional(one.text[-1]) == bidirectional(after.text[0]) == "AL"
        for one, after in pairwise(pieces)
    ]
    for piece, before, after in zip(pieces, [False, *meets], [*meets, False], strict=True):
        yield replace(piece, text=f"{_JOINER * before}{piece.text}{_JOINER * after}")


def _piece(text: str, end: int, first: int, last: int, label: str, begins: bool) -> Piece:
    """A piece of a text after ``before``; its label, if the text has no characters for it."""
    own, between = text[first:last], text[end:first]
    if not own.strip():
        bare = label.removeprefix(OTHERS).removeprefix(WORDPIECE)
        return Piece(visible(bare), bare == label, begins=begins)
    before = between + own[: len(own) - len(own.lstrip())]
    wide = first > 0 and ord(own.lstrip()[0]) >= _WIDE and own.lstrip()[0].isalnum()
    return Piece(visible(own.strip()), bool(before), wide, begins or "\n" in before)


TEXT = Drawing(_plans, text_figure, draw_text)
