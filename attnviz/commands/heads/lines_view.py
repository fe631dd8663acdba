"""The view ``lines``: tokens left and right, a line for every attention weight between them that can be seen.

Sinks have no lines: they take most attention of many heads, and would cover what else these do. Lines too
weak to see are left out so that files stay small. The picture says what share of the attention either hides.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, clearest_first
from attnviz.commands.heads.first_look import labels_and_roles
from attnviz.errors import UsageError
from attnviz.figures.lines import LinesPlan, draw_lines, lines_figure
from attnviz.figures.matrix import Array
from attnviz.models.tokens import Positions, find_positions, sinks_in_words, text_at
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import percent, shortened_token, visible

MOST_HEADS = 8  # in one picture: as many as there are colours safe for colour blindness
MOST_PICTURES, MOST_ROWS = 24, 1600  # of one head, and their rows, since they take time and disk space
FAINTEST_LINE, MOST_LINES = 0.02, 2000  # weights below are not drawn; the threshold rises where more lines remain
READABLE_LINES = 240  # that an eye can follow in one picture; of more, each token keeps only its strongest keys
_LONGEST_LABEL = 20


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


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[LinesPlan]:
    for part in parts_selected(analysis, choices):  # kinds of attention never share a picture
        yield from _plans_of(part, part.drawn(choices.drop_special), choices)


def _plans_of(part: Analysis, shown: Analysis, choices: ViewOptions) -> Iterator[LinesPlan]:
    heads = _heads_drawn(part, choices)
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
    of_heads = shown.read(heads, lambda _: StrongestKeys(starts, count, to_sinks))
    if together:
        yield _plan(shown, list(of_heads), np.flatnonzero(starts), chosen, part.stem("lines"), MOST_LINES)
        return
    for head, keys in of_heads:
        stem = f"lines/{head.id.file_stem}"
        yield _plan(shown, [(head, keys)], np.flatnonzero(starts), chosen, stem, MOST_LINES // 2)


def parts_selected(analysis: Analysis, choices: ViewOptions) -> list[Analysis]:
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


def token_positions(part: Analysis, token: str | int) -> tuple[int, ...]:
    """Positions of a token among the queries; for an encoder-decoder the error names their text."""
    try:
        return find_positions(part.context.units, token)
    except UsageError as error:
        if part.stack is None:
            raise
        text = "source" if part.stack_letter == "E" else "target"
        raise UsageError(f"the token is looked for in the {text}, whose tokens attend there: {error}") from error


def _heads_drawn(analysis: Analysis, choices: ViewOptions) -> list[HeadFindings]:
    """The selected heads; of more than eight the clearest within the limits of pictures and rows."""
    heads = analysis.select(choices.select)
    shown = analysis.drawn(choices.drop_special)
    if len(heads) <= MOST_HEADS:
        return heads
    count = max(1, min(MOST_PICTURES, MOST_ROWS // len(shown.units)))
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


def _plan(
    shown: Analysis,
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
        f"{labels_and_roles(shown, heads)}: lines run from the "
        f"{about.unit} that attends (left) to the {about.unit} attended to (right), their width and opacity the "
        "square root of the attention weight, from 0 to 1"
    )
    segments = enumerate(shown.row_tokens.segments[members[0]] for members in units.members)
    of_texts = [(position, segment) for position, segment in segments if segment is not None]  # no special token
    return LinesPlan(
        stem=stem,
        **about.caption_and_notes(caption, *said),
        title=f"{about.model}: {title}{f', from {chosen}' if chosen else ''}",
        labels=_labels(units),
        bright=(bright[0], bright[1]),
        breaks=tuple(after for (_, one), (after, other) in itertools.pairwise(of_texts) if one != other),
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
        keys=_labels(shown.keys) if shown.rows_differ_from_columns else None,
        one_text=shown.context.source is None,
    )


def _labels(units: Positions) -> tuple[str, ...]:
    return tuple(shortened_token(label, _LONGEST_LABEL) for label in units.labels)


def start_of(shown: Analysis, token: str | int | None) -> tuple[tuple[int, ...] | None, str]:
    """The drawn queries, None for all, and the token with its positions in the whole text."""
    if token is None:
        return None, ""
    everything, numbers = shown.context.units, token_positions(shown, token)
    position_of = {members: position for position, members in enumerate(shown.units.members)}
    kept = [number for number in numbers if everything.members[number] in position_of]
    if not kept:
        said = f"“{visible(str(token))}” is among the tokens that are dropped; keep them to see its attention."
        if shown.options.queries is not None and not shown.without_sinks:
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


LINES = Drawing(_plans, lines_figure, draw_lines)
