"""The views ``lines`` and ``text``: attention between the tokens of a text as they stand in it, of one token or all.

``lines``: tokens left and right, a line for every attention weight between them that can be seen. Sinks have no lines:
they take most attention of many heads, and would cover what else these do. Lines too weak to see are left out so that
files stay small. The picture says what share of the attention either hides.

``text``: running text, each token shaded by the attention it receives; for long texts.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from unicodedata import bidirectional

import numpy as np
import torch
from matplotlib.colors import Normalize
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analysis.findings import HeadFindings, clearest_first
from attnviz.analysis.result import Analysis, Part, PatternView
from attnviz.commands.heads.first_look import labels_and_roles
from attnviz.errors import UsageError
from attnviz.figures.lines import LinesPlan
from attnviz.figures.matrix import Array, scale_end
from attnviz.figures.text import HIGHEST, Piece, ShadedText, TextPlan
from attnviz.inputs.prompt import Positions, Prompt, find_positions, sinks_in_words, text_at
from attnviz.inputs.words import OTHERS, WORDPIECE
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted, percent, shortened_token, visible

MOST_HEADS = 8  # in one picture: as many as there are colours safe for colour blindness
MOST_PICTURES, MOST_ROWS = 24, 1600  # of one head, and their rows, since they take time and disk space
FAINTEST_LINE, MOST_LINES = 0.02, 2000  # weights below are not drawn; the threshold rises where more lines remain
READABLE_LINES = 240  # that an eye can follow in one picture; of more, each token keeps only its strongest keys
_LONGEST_LABEL = 20
_JOINER = "\u200d"
_WIDE = 0x2E80  # first code point of scripts without spaces, between whose characters a line may end


def lines_left_out(analysis: Analysis, choices: ViewOptions) -> str:
    """Message on selected heads without lines, or ''."""
    requested = len(analysis.select(choices.select))
    kept = sum(len(_heads_drawn(part, choices)) for part in parts_selected(analysis, choices))
    if kept == requested:
        return ""
    return (
        f"lines are drawn of {kept} of the {requested} heads, those of the clearest labels; choose others with "
        f"--select (up to {MOST_HEADS} share one picture)."
    )


def _lines_plans(analysis: Analysis, choices: ViewOptions) -> Iterator[LinesPlan]:
    for part in parts_selected(analysis, choices):  # kinds of attention never share a picture
        heads, shown = _heads_drawn(part, choices), part.drawn(choices.drop_special)
        together = len(part.select(choices.select)) <= MOST_HEADS
        start, chosen = start_of(shown, choices.token)
        n, n_keys = len(shown.units), len(shown.keys)
        from_sinks, to_sinks = (np.array(units.sink, bool) for units in (shown.units, shown.keys))
        if from_sinks.all() or to_sinks.all():  # there is nothing else
            from_sinks, to_sinks = np.zeros_like(from_sinks), np.zeros_like(to_sinks)
        if start is None:
            starts = ~from_sinks
            count = min(n_keys, max(1, READABLE_LINES // (n * (len(heads) if together else 1))))
        else:
            starts, count = np.isin(np.arange(n), start), n_keys
        of_heads = shown.read(heads, StrongestKeys, starts, count, to_sinks)
        if together:
            yield _lines_plan(shown, list(of_heads), np.flatnonzero(starts), chosen, part.stem("lines"), MOST_LINES)
            continue
        for head, keys in of_heads:
            stem = f"lines/{head.id.file_stem}"
            yield _lines_plan(shown, [(head, keys)], np.flatnonzero(starts), chosen, stem, MOST_LINES // 2)


def parts_selected(analysis: Analysis, choices: ViewOptions) -> list[Part]:
    """Kinds of attention of the selected heads; with a token, those whose queries have it."""
    parts = analysis.parts_of(choices.select)
    if len(parts) == 1 or choices.token is None:
        return parts
    having, refused = [], dict[str, None]()
    for part in parts:
        try:
            token_positions(part, choices.token)
            having.append(part)
        except UsageError as error:
            refused[str(error).removesuffix(".")] = None
    if not having:
        raise UsageError(f"{'; '.join(refused)}.")
    return having


def token_positions(part: Part, token: str | int) -> tuple[int, ...]:
    """Positions of a token among the queries; for an encoder-decoder the error names their text."""
    try:
        return find_positions(part.context.units, token)
    except UsageError as error:
        if not part.name:
            raise
        text = "source" if part.rows is part.analysis.tokens else "target"
        raise UsageError(f"the token is looked for in the {text}, whose tokens attend there: {error}") from error


def _heads_drawn(part: Part, choices: ViewOptions) -> list[HeadFindings]:
    """The selected heads; of more than eight the clearest within the limits of pictures and rows."""
    heads = part.select(choices.select)
    if len(heads) <= MOST_HEADS:
        return heads
    count = max(1, min(MOST_PICTURES, MOST_ROWS // len(part.drawn(choices.drop_special).units)))
    kept = {head.id for head in clearest_first(heads)[:count]}
    return [head for head in heads if head.id in kept]


class StrongestKeys:
    """Collects the strongest keys of a head's drawn queries, chunk by chunk.

    ``starts`` are the drawn queries, boolean [n_queries], ``count`` the keys of each, at most all, and ``sinks`` keys
    without lines, boolean [n_keys].
    """

    def __init__(self, starts: NDArray[np.bool_], count: int, sinks: NDArray[np.bool_]) -> None:
        self._starts, self._count, self._sinks = starts, count, sinks
        self._keys, self._weights = list[Array](), list[Array]()
        self.rest = 0.0  # attention of all other keys
        self.to_sinks = 0.0  # attention of the keys without lines

    def add(self, first: int, rows: Tensor) -> None:
        """Add the next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may be missing."""
        weights = rows.float().numpy()
        sinks, starts = self._sinks[: weights.shape[1]], self._starts[first : first + len(weights)]
        self.to_sinks += float(weights[starts][:, sinks].sum(dtype=np.float64))
        weights = np.where(sinks, 0, weights)[starts]
        weights = np.pad(weights, [(0, 0), (0, max(0, self._count - weights.shape[1]))])
        if self._count == 1:  # of equal ones the first, as below, and many times faster
            keys = weights.argmax(-1)[:, None]
        else:
            keys = np.sort(np.argsort(-weights, axis=-1, kind="stable")[:, : self._count], axis=-1)
        self._keys.append(keys)
        self._weights.append(np.take_along_axis(weights, keys, -1))
        np.put_along_axis(weights, keys, 0, -1)
        self.rest += float(weights.sum(dtype=np.float64))

    @property
    def keys(self) -> Array:
        """Strongest keys of each drawn query, [n_starts, count], in the order of the text."""
        return np.concatenate(self._keys)

    @property
    def weights(self) -> Array:  # of the keys
        return np.concatenate(self._weights)


def _lines_plan(
    shown: PatternView,
    of_heads: Sequence[tuple[HeadFindings, StrongestKeys]],
    starts: NDArray[np.intp],
    chosen: str,
    stem: str,
    most: int,
) -> LinesPlan:
    about, units, heads = shown.figure_context, shown.units, [head for head, _ in of_heads]
    candidates = np.stack([keys.weights for _, keys in of_heads])
    n_strongest, least = candidates.shape[-1], _threshold(candidates, most)
    head, row, column = (candidates >= least).nonzero()
    order = np.argsort(candidates[head, row, column], kind="stable")
    head, row, column = head[order], row[order], column[order]
    weights = candidates[head, row, column]
    key = np.stack([keys.keys for _, keys in of_heads])[head, row, column]
    said = []
    rest, sinks = (np.array([getattr(keys, name) for _, keys in of_heads]) for name in ("rest", "to_sinks"))
    totals = sinks + rest + candidates.sum((1, 2), dtype=np.float64)
    if sinks.any():
        said.append(f"no lines to {sinks_in_words(shown.keys, about.unit)}: {_shares(sinks, totals)} of the attention")
    left_out = rest + np.where(candidates < least, candidates, 0).sum((1, 2), dtype=np.float64)
    strongest = f"of each {about.unit} its {n_strongest} strongest only, " if n_strongest < len(shown.keys) else ""
    said.append(f"{strongest}weights below {least:.3g} are not drawn: {_shares(left_out, totals)} of the attention")
    bright = [frozenset(np.flatnonzero(~np.array(axis.sink)).tolist()) for axis in (units, shown.keys)]
    if chosen:
        bright = [frozenset(starts.tolist()), frozenset(key.tolist())]
    title = heads[0].title if len(heads) == 1 else f"{len(heads)} heads"
    caption = (
        f"Attention{f' from {chosen} alone' if chosen else ''} in {about.subject}, "
        f"{labels_and_roles(shown.analysis, heads)}: lines run from the "
        f"{about.unit} that attends (left) to the {about.unit} attended to (right), their width and opacity the "
        "square root of the attention weight, from 0 to 1"
    )
    segments = enumerate(shown.rows.segments[members[0]] for members in units.members)
    of_texts = [(position, segment) for position, segment in segments if segment is not None]  # no special token
    return LinesPlan(
        stem=stem,
        **about.caption_and_notes(caption, *said),
        title=f"{about.model}: {title}{f', from {chosen}' if chosen else ''}",
        labels=_labels(units),
        bright=(bright[0], bright[1]),
        breaks=tuple(after for (_, one), (after, other) in pairwise(of_texts) if one != other),
        heads=tuple(head.title for head in heads),
        head=head,
        query=starts[row],
        key=key,
        weights=weights,
        samples=tuple(sorted({least, *(weight for weight in (0.1, 0.5, 1.0) if weight > 1.5 * least)})),
        written={int(to): f"{weight:.2f}" for to, weight in zip(key, weights, strict=True)}
        if chosen and len(starts) == len(heads) == 1
        else {},
        unit=about.unit,
        keys=None if shown.is_square else _labels(shown.keys),
        one_text=shown.context.source is None,
    )


def _labels(units: Positions) -> tuple[str, ...]:
    return tuple(shortened_token(label, _LONGEST_LABEL) for label in units.labels)


def start_of(shown: PatternView, token: str | int | None) -> tuple[tuple[int, ...] | None, str]:
    """The drawn queries, None for all, and the token with its positions in the whole text."""
    if token is None:
        return None, ""
    everything, numbers = shown.context.units, token_positions(shown, token)
    position_of = {members: position for position, members in enumerate(shown.units.members)}
    kept = [number for number in numbers if everything.members[number] in position_of]
    if not kept:
        said = f"“{visible(str(token))}” is among the tokens that are dropped; keep them to see its attention."
        if shown.context.queries is not None and not shown.without_sinks:
            said = f"the row of “{visible(str(token))}” is not among those of --queries; leave one of the two out."
        raise UsageError(said)
    listed = ", ".join(f"#{number}" for number in kept[:4]) + (", …" if len(kept) > 4 else "")
    positions = tuple(position_of[everything.members[number]] for number in kept)
    return positions, f"“{text_at(everything, kept)}” ({listed})"


def _threshold(weights: Array, most: int) -> float:
    """Least weight drawn: that of the faintest line, or the least of three decimals that leaves ``most`` lines."""
    strong = weights[weights >= FAINTEST_LINE]
    if len(strong) <= most:
        return FAINTEST_LINE
    too_weak = float(np.partition(strong, -most - 1)[-most - 1])
    return math.floor(too_weak * 1000 + 1) / 1000


def _shares(parts: Array, totals: Array) -> str:
    """Share of the attention, or the least and the largest of several heads."""
    shares = parts / np.where(totals, totals, 1)
    low, high = percent(shares.min()), percent(shares.max())
    return high if low == high else f"{low} to {high}"


def _text_plans(analysis: Analysis, choices: ViewOptions) -> Iterator[TextPlan]:
    """Plan up to eight heads in one picture if it fits a page, else one each; of more, their mean."""
    for part in parts_selected(analysis, choices):
        if all(part.keys.special):  # a target of one token: its decoder reads the start token alone
            continue
        heads = part.select(choices.select)
        plan = _text_plan(part, heads, choices, part.stem("text"))
        if len(plan.blocks) == 1 or plan.body(choices.style)[1] <= HIGHEST - 1.5:
            yield plan
            continue
        for head in heads:
            yield _text_plan(part, [head], choices, f"text/{head.id.file_stem}")


def _text_plan(part: Part, heads: Sequence[HeadFindings], choices: ViewOptions, stem: str) -> TextPlan:
    shown = part.drawn(choices.drop_special)
    about, is_framed = shown.figure_context, shown.is_square
    start, chosen = start_of(shown, choices.token)
    non_sink = [unit for unit, sink in enumerate(shown.units.sink) if not sink] or [*range(len(shown.units))]
    queries = non_sink if start is None else list(start)
    pieces, units_of = pieces_of(shown.columns, shown.keys)
    received = [total.mean for _, total in shown.read(heads, _Received, queries, shown)]
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
            f"Attention received in {about.subject}, {names[0] if is_mean else labels_and_roles(part.analysis, heads)}",
            f"shade: the attention that each {about.unit} receives, {whose}",
            "a mean: no head need look like it" if is_mean else "",
            "later tokens are seen by fewer (a causal model)" if start is None and shown.context.causal else "",
            "special tokens are no part of the text, their share stands beside" if any(shown.keys.special) else "",
            "framed: where the attention comes from" if start is not None and is_framed else "",
            caption_only=(f"colours from 0 to {top:g}{' or more' if cut else ''}",),
        ),
        title=f"{about.model}: {'mean of ' if is_mean else ''}{title}{f', from {chosen}' if chosen else ''}",
        pieces=pieces,
        blocks=tuple(blocks),
        framed=frozenset(piece for piece, units in enumerate(units_of) if start and is_framed and {*units} & {*start}),
        norm=Normalize(0.0, top, clip=True),
        bar="attention received",
        cut=cut,
    )


class _Received:
    """Sums the attention that each key receives from some queries of a head, chunk by chunk."""

    def __init__(self, queries: Sequence[int], shown: PatternView) -> None:
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


def pieces_of(tokens: Prompt, units: Positions) -> tuple[tuple[Piece, ...], list[tuple[int, ...]]]:
    """Split a text into pieces, one per unit without special tokens; also returns the units of each piece.

    Positions that share a character, such as the bytes of an emoji, are one piece.
    """
    pieces, units_of = list[Piece](), list[tuple[int, ...]]()
    texts, end, segment = tokens.texts, 0, 0
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


LINES = Drawing(_lines_plans)
TEXT = Drawing(_text_plans)
