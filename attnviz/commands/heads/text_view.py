"""The view ``text``: running text, each token shaded by the attention it receives; for long texts."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from unicodedata import bidirectional

import numpy as np
import torch
from matplotlib.colors import Normalize
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.first_look import labels_and_roles
from attnviz.commands.heads.lines_view import MOST_HEADS, parts_selected, start_of
from attnviz.figures.matrix import Array, scale_end
from attnviz.figures.running_text import HIGHEST, Piece, ShadedText, TextPlan, draw_text, text_figure, text_inches
from attnviz.models.tokens import Positions, Tokens
from attnviz.models.words import OTHERS, WORDPIECE
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted, percent, visible

_JOINER = "\u200d"
_WIDE = 0x2E80  # first code point of scripts without spaces, between whose characters a line may end


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
    shown = part.drawn(choices.drop_special)
    about, other_rows = shown.figure_context, shown.rows_differ_from_columns
    start, chosen = start_of(shown, choices.token)
    non_sink = [unit for unit, sink in enumerate(shown.units.sink) if not sink] or [*range(len(shown.units))]
    queries = non_sink if start is None else list(start)
    tokens, texts = part.tokens, part.tokens.texts_read(part.text, part.pair)
    if part.target is not None and part.stack_letter == "D":
        tokens, texts = part.target.tokens, part.target.tokens.texts_read(part.target.text)
    pieces, units_of = pieces_of(tokens, texts, shown.keys)
    received = [total.mean for _, total in shown.read(heads, lambda _: _Received(queries, shown))]
    is_mean = len(heads) > MOST_HEADS
    names = [head.title for head in heads]
    if is_mean:
        received, names = [np.mean(received, axis=0)], [f"mean of {len(heads)} heads"]
    blocks = []
    for name, of_units in zip(names, received, strict=True):
        of_pieces = np.array([of_units[list(units)].sum() for units in units_of])
        elsewhere = sum(map(len, units_of)) < len(of_units)
        note = f"special tokens {percent(of_units.sum() - of_pieces.sum())}" if elsewhere else ""
        blocks.append(ShadedText(name, note, of_pieces))
    values = np.stack([block.values for block in blocks])
    sinks = np.array([all(shown.keys.sink[unit] for unit in units) for units in units_of])
    top = scale_end(values.max() if sinks.all() else values[:, ~sinks].max())  # by the largest value besides sinks
    cut = bool(values.max() > top)
    whose = f"from {chosen}" if chosen else f"mean over the {counted(len(queries), shown.units.name)} that attend"
    title = heads[0].title if len(heads) == 1 else f"{len(heads)} heads"
    return TextPlan(
        stem=stem,
        **about.caption_and_notes(
            f"Attention received in {about.subject}, {names[0] if is_mean else labels_and_roles(part, heads)}",
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
        framed=frozenset(
            piece for piece, units in enumerate(units_of) if start and not other_rows and {*units} & {*start}
        ),
        norm=Normalize(0.0, top, clip=True),
        bar="attention received",
        cut=cut,
    )


class _Received:
    """Sums the attention that each key receives from some queries of a head, chunk by chunk."""

    def __init__(self, queries: Sequence[int], shown: Analysis) -> None:
        self._counted = torch.zeros(len(shown.units), dtype=torch.bool)
        self._counted[list(queries)] = True
        self._total = torch.zeros(len(shown.keys), dtype=torch.float64)

    def add(self, first: int, rows: Tensor) -> None:
        """Add the next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may be missing."""
        self._total[: rows.shape[1]] += rows[self._counted[first : first + len(rows)]].double().sum(0)

    @property
    def mean(self) -> Array:  # over the queries, [n_keys]
        mean: Array = (self._total / int(self._counted.sum())).numpy()
        return mean


def pieces_of(
    tokens: Tokens, texts: Sequence[str], units: Positions
) -> tuple[tuple[Piece, ...], list[tuple[int, ...]]]:
    """Split texts into pieces, one per unit without special tokens; also returns the units of each piece.

    Positions that share a character, such as the bytes of an emoji, are one piece.
    """
    pieces, units_of = list[Piece](), list[tuple[int, ...]]()
    end, segment = 0, 0
    for unit, members in enumerate(units.members):
        number = tokens.segments[members[0]]
        if number is None:
            continue
        first, last = tokens.offsets[members[0]][0], max(tokens.offsets[member][1] for member in members)
        begins = number != segment and bool(pieces)
        if begins:
            end, segment = 0, number
        if first < end and last <= end and not begins:
            units_of[-1] = (*units_of[-1], unit)
            continue
        text, first = texts[number], max(first, end)
        shown = text[first:last].lstrip()
        if not shown:  # the text has no characters for it
            label = units.labels[unit].removeprefix(OTHERS).removeprefix(WORDPIECE)
            pieces.append(Piece(visible(label), label == units.labels[unit], begins=begins))
        else:
            before = text[end : last - len(shown)]
            wide = first > 0 and ord(shown[0]) >= _WIDE and shown[0].isalnum()
            pieces.append(Piece(visible(shown.rstrip()), bool(before), wide, begins or "\n" in before))
        units_of.append((unit,))
        end = max(end, last)
    for place, (one, after) in enumerate(pairwise(pieces)):  # letters of an Arabic word keep their joined forms
        apart = after.space or after.begins
        if not apart and bidirectional(one.text[-1]) == bidirectional(after.text[0]) == "AL":
            pieces[place] = pieces[place]._replace(text=pieces[place].text + _JOINER)
            pieces[place + 1] = after._replace(text=_JOINER + after.text)
    return tuple(pieces), units_of


TEXT = Drawing(_plans, text_figure, draw_text)
