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
from attnviz.commands.heads.summary import label_and_role
from attnviz.errors import UsageError
from attnviz.figures.lines import LinesPlan, draw_lines, lines_figure
from attnviz.figures.matrix import Array
from attnviz.models.tokens import find_positions, sinks_in_words, text_at
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import percent, shortened_token, visible

MOST_HEADS = 8
"""Most heads in one picture: as many as there are colours safe for colour blindness."""

MOST_PICTURES, MOST_ROWS = 24, 1600
"""Most pictures of one head, and rows of all of them, since they take time and disk space."""

FAINTEST_LINE, MOST_LINES = 0.02, 2000
"""Weights below are not drawn; where more lines than this would remain, the threshold is raised."""

READABLE_LINES = 240
"""Lines that an eye can follow in one picture, about; of more, each token keeps only its strongest keys."""

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
    """Plan up to eight heads in one picture; of more, one each. Kinds of attention never share a picture."""
    for part in parts_selected(analysis, choices):
        heads = _heads_drawn(part, choices)
        if len(part.select(choices.select)) <= MOST_HEADS:
            yield _plan(
                part, list(_weights_of(part, heads, len(heads), choices)), choices, part.stem("lines"), MOST_LINES
            )
            continue
        for each in _weights_of(part, heads, 1, choices):
            yield _plan(part, [each], choices, f"lines/{each[0].id.file_stem}", MOST_LINES // 2)


def parts_selected(analysis: Analysis, choices: ViewOptions) -> list[Analysis]:
    """Kinds of attention of the selected heads; with a token, those whose queries have it."""
    parts = analysis.parts_of(choices.select)
    if len(parts) == 1 or choices.token is None:
        return parts
    having, refused = [], dict[str, None]()
    for part in parts:
        try:
            positions_of(part, choices.token)
            having.append(part)
        except UsageError as error:
            refused[str(error).removesuffix(".")] = None
    if not having:
        raise UsageError(f"{'; '.join(refused)}.")
    return having


def positions_of(part: Analysis, token: str | int) -> tuple[int, ...]:
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
    heads, shown = analysis.select(choices.select), analysis.drawn(choices.drop_special)
    if len(heads) <= MOST_HEADS:
        return heads
    count = max(1, min(MOST_PICTURES, MOST_ROWS // len(shown.units)))
    kept = {head.id for head in clearest_first(heads)[:count]}
    return [head for head in heads if head.id in kept]


class StrongestKeys:
    """Collects the strongest keys of a head's drawn queries, block by block.

    Args:
        starts: the drawn queries, boolean [n_queries].
        count: keys of each; at most all of them.
        sinks: keys without lines, boolean [n_keys].

    Attributes:
        rest: attention of all other keys.
        to_sinks: attention of the keys without lines.
    """

    def __init__(self, starts: NDArray[np.bool_], count: int, sinks: NDArray[np.bool_]) -> None:
        self._starts, self._count, self._sinks = starts, count, sinks
        self._keys, self._weights = list[Array](), list[Array]()
        self.rest, self.to_sinks = 0.0, 0.0

    def add(self, first: int, rows: Tensor) -> None:
        """Add the next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may be missing."""
        weights = rows.float().numpy()
        sinks, starts = self._sinks[: weights.shape[1]], self._starts[first : first + len(weights)]
        self.to_sinks += float(weights[starts][:, sinks].sum(dtype=np.float64))
        weights = np.where(sinks, 0, weights)
        weights = weights[starts]
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
    def weights(self) -> Array:
        """Weights of the :attr:`keys`."""
        return np.concatenate(self._weights)


def _weights_of(
    analysis: Analysis, heads: Sequence[HeadFindings], share: int, choices: ViewOptions
) -> Iterator[tuple[HeadFindings, StrongestKeys]]:
    """Each head with its candidate weights, for a number of heads per picture."""
    shown = analysis.drawn(choices.drop_special)
    start, _ = start_of(shown, choices.token)
    n, n_keys = len(shown.units), len(shown.keys)
    from_sinks, to_sinks = _without_lines(shown)
    starts = ~from_sinks if start is None else np.isin(np.arange(n), start)
    count = _strongest(share, n, n_keys) if start is None else n_keys
    return shown.read(heads, lambda _: StrongestKeys(starts, count, to_sinks))


def _without_lines(shown: Analysis) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Sinks that have no lines: among the queries, and among the keys; none if there is nothing else."""
    queries, keys = (np.array(each.sink, bool) for each in (shown.units, shown.keys))
    if queries.all() or keys.all():
        return np.zeros_like(queries), np.zeros_like(keys)
    return queries, keys


def _plan(
    analysis: Analysis,
    of_heads: Sequence[tuple[HeadFindings, StrongestKeys]],
    choices: ViewOptions,
    stem: str,
    most: int,
) -> LinesPlan:
    """Plan one picture of up to eight heads, with at most ``most`` lines."""
    shown = analysis.drawn(choices.drop_special)
    about, units, heads = shown.figure_context, shown.units, [head for head, _ in of_heads]
    start, chosen = start_of(shown, choices.token)
    candidates = np.stack([each.weights for _, each in of_heads])
    strongest = candidates.shape[-1]
    least = _threshold(candidates, most)
    head, row, column = (candidates >= least).nonzero()
    order = np.argsort(candidates[head, row, column], kind="stable")
    head, row, column = head[order], row[order], column[order]
    drawn_weights = candidates[head, row, column]
    from_sinks, _ = _without_lines(shown)
    query = (np.flatnonzero(~from_sinks) if start is None else np.array(sorted(start)))[row]
    key = np.stack([each.keys for _, each in of_heads])[head, row, column]
    non_sink, onto = (
        frozenset(position for position, sink in enumerate(each.sink) if not sink) for each in (units, shown.keys)
    )
    said = []
    rest, sinks = (np.array([getattr(each, name) for _, each in of_heads]) for name in ("rest", "to_sinks"))
    totals = sinks + rest + candidates.sum((1, 2), dtype=np.float64)
    if sinks.any():
        said.append(f"no lines to {sinks_in_words(shown.keys, about.unit)}: {_shares(sinks, totals)} of the attention")
    left_out = rest + np.where(candidates < least, candidates, 0).sum((1, 2), dtype=np.float64)
    keys = f"of each {about.unit} its {strongest} strongest only, " if strongest < len(shown.keys) else ""
    said.append(f"{keys}weights below {least:.3g} are not drawn: {_shares(left_out, totals)} of the attention")
    written: dict[int, str] = {}
    if start is not None and len(start) == len(heads) == 1:
        written = {int(to): f"{weight:.2f}" for to, weight in zip(key, drawn_weights, strict=True)}
    title = heads[0].title if len(heads) == 1 else f"{len(heads)} heads"
    return LinesPlan(
        stem=stem,
        **about.caption_and_notes(_what(shown, heads, chosen), *said),
        title=f"{about.model}: {title}{f', from {chosen}' if chosen else ''}",
        labels=tuple(shortened_token(label, _LONGEST_LABEL) for label in units.labels),
        bright=(non_sink, onto) if start is None else (frozenset(start), frozenset(key.tolist())),
        breaks=_breaks([shown.row_tokens.segments[members[0]] for members in units.members]),
        heads=tuple(each.title for each in heads),
        head=head,
        query=query,
        key=key,
        weights=drawn_weights,
        samples=tuple(sorted({least, *(weight for weight in (0.1, 0.5, 1.0) if weight > 1.5 * least)})),
        written=written,
        unit=about.unit,
        keys=tuple(shortened_token(label, _LONGEST_LABEL) for label in shown.keys.labels)
        if analysis.rows_differ_from_columns
        else None,
        one_text=analysis.context.source is None,
    )


def start_of(shown: Analysis, token: str | int | None) -> tuple[tuple[int, ...] | None, str]:
    """The drawn queries, None for all, and the token with its positions in the whole text."""
    if token is None:
        return None, ""
    everything, numbers = shown.context.units, positions_of(shown, token)
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


def _strongest(n_heads: int, n: int, n_keys: int) -> int:
    """Keys with a line per token, for a number of heads per picture; at most all."""
    return min(n_keys, max(1, READABLE_LINES // (n_heads * n)))


def _breaks(segments: Sequence[int | None]) -> tuple[int, ...]:
    """Positions at which another text begins; special tokens do not count."""
    known = [(position, segment) for position, segment in enumerate(segments) if segment is not None]
    return tuple(after for (_, one), (after, other) in itertools.pairwise(known) if one != other)


def _shares(parts: Array, totals: Array) -> str:
    """Share of the attention, or the least and the largest of several heads."""
    shares = parts / np.where(totals, totals, 1)
    low, high = percent(shares.min()), percent(shares.max())
    return high if low == high else f"{low} to {high}"


def _what(shown: Analysis, heads: Sequence[HeadFindings], chosen: str) -> str:
    """The first part of the caption."""
    about = shown.figure_context
    return (
        f"Attention{f' from {chosen} alone' if chosen else ''} in {about.subject}, "
        f"{', '.join(f'{head.id} ({label_and_role(shown, head)})' for head in heads)}: lines run from the "
        f"{about.unit} that attends (left) to the {about.unit} attended to (right), their width and opacity the "
        "attention weight on a scale from 0 to 1"
    )


LINES = Drawing(_plans, lines_figure, draw_lines)
