"""The view ``lines``: tokens left and right, a line for every attention weight between them that can be seen.

Lines too weak to see are left out so that files stay small; the picture says from which weight on, and what share of
the attention that hides. In a long text of which only one token's attention is drawn, runs of tokens without a line
share a row.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, clearest_first
from attnviz.commands.heads.summary import label_and_role
from attnviz.errors import UsageError
from attnviz.figures.lines import LinesPlan, draw_lines, lines_figure
from attnviz.figures.matrix import Array
from attnviz.models.tokens import find_positions, text_at
from attnviz.models.wording import shortened, visible
from attnviz.present.facts import capital, sentence
from attnviz.present.view import Drawing, ViewOptions

MOST_HEADS = 8
"""Heads in one picture: as many as there are colours that everybody can tell apart."""

MOST_PICTURES, MOST_ROWS = 24, 1600
"""Pictures of one head each, and rows in all of them together: they take time to draw and room on disk."""

FAINTEST_LINE, MOST_LINES = 0.02, 2000
"""Weights below are not drawn; where more lines than this would remain, the threshold is raised."""

READABLE_LINES = 240
"""Lines that an eye can follow in one picture, about: of more, each token keeps its strongest keys alone."""

WHOLE_ROWS, SHORTEST_RUN = 32, 3
"""Up to so many tokens each has a row of its own; shorter runs of tokens without a line do, too."""

_LONGEST_LABEL = 20


def lines_left_out(analysis: Analysis, choices: ViewOptions) -> str:
    """What to tell the user where not every head that was asked for has a picture; empty where all have."""
    asked = len(analysis.select(choices.select))
    kept = sum(len(_heads_drawn(part, choices)) for part in parts_asked(analysis, choices))
    if kept == asked:
        shown = analysis.drawn(choices.drop_special)
        n_keys = len(shown.keys)
        strongest = _strongest(asked if asked <= MOST_HEADS else 1, len(shown.units), n_keys)
        if choices.token is not None or strongest >= n_keys or analysis.target:
            return ""
        return (
            f"lines show {_keys(strongest)} of each {analysis.units.name}; --token follows one, "
            "--drop-special leaves special tokens out."
        )
    return (
        f"lines are drawn of {kept} of the {asked} heads, those of the clearest labels; choose others with "
        f"--select (up to {MOST_HEADS} share one picture)."
    )


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[LinesPlan]:
    """Up to eight heads in one picture; of more, one each. Kinds of attention never share a picture."""
    for part in parts_asked(analysis, choices):
        heads = _heads_drawn(part, choices)
        if len(part.select(choices.select)) <= MOST_HEADS:
            yield _plan(
                part, list(_weights_of(part, heads, len(heads), choices)), choices, part.stem("lines"), MOST_LINES
            )
            continue
        for found in _weights_of(part, heads, 1, choices):
            yield _plan(part, [found], choices, f"lines/{found[0].id.file_stem}", MOST_LINES // 2)


def parts_asked(analysis: Analysis, choices: ViewOptions) -> list[Analysis]:
    """The kinds of attention of which heads were asked for; with a token, those whose queries have it."""
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


def positions_of(part: Analysis, token: str) -> tuple[int, ...]:
    """The positions of a token in the text that attends; of an encoder-decoder the error says which text that is."""
    try:
        return find_positions(part.context.units, token)
    except UsageError as error:
        if part.stack is None:
            raise
        text = "source" if part.stack_letter == "E" else "target"
        raise UsageError(f"the token is looked for in the {text}, whose tokens attend there: {error}") from error


def _heads_drawn(analysis: Analysis, choices: ViewOptions) -> list[HeadFindings]:
    """The heads asked for; of more than eight only as many as there may be pictures and rows, the clearest."""
    heads, shown = analysis.select(choices.select), analysis.drawn(choices.drop_special)
    if len(heads) <= MOST_HEADS:
        return heads
    clearest = clearest_first(heads)[:MOST_PICTURES]
    rows = [len(shown.units)] * len(clearest)
    if choices.token is not None and len(shown.units) > WHOLE_ROWS:
        found = _weights_of(analysis, clearest, 1, choices)
        pictures = (_plan(analysis, [each], choices, "", MOST_LINES // 2) for each in found)
        rows = [len(picture.labels) for picture in pictures]
    totals = itertools.accumulate(rows)
    kept = {head.id for head, total in zip(clearest, totals, strict=True) if total <= MOST_ROWS} | {clearest[0].id}
    return [head for head in heads if head.id in kept]


class StrongestKeys:
    """The strongest keys of the queries of a head that lines start from; its rows come in blocks.

    Args:
        starts: which queries these are, boolean [n_queries].
        count: keys of each; at most all of them.

    Attributes:
        largest: weight of the whole pattern.
        rest: what all keys get that are not among the strongest.
    """

    def __init__(self, starts: NDArray[np.bool_], count: int) -> None:
        self._starts, self._count = starts, count
        self._keys, self._weights = list[Array](), list[Array]()
        self.largest, self.rest = 0.0, 0.0

    def add(self, first: int, rows: Tensor) -> None:
        """The next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may lack."""
        weights = rows.float().numpy()
        self.largest = max(self.largest, float(weights.max(initial=0)))
        weights = weights[self._starts[first : first + len(weights)]]
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
        """Of each query that lines start from, [n_starts, count], in the order of the text."""
        return np.concatenate(self._keys)

    @property
    def weights(self) -> Array:
        """Those of the :attr:`keys`."""
        return np.concatenate(self._weights)


def _weights_of(
    analysis: Analysis, heads: Sequence[HeadFindings], share: int, choices: ViewOptions
) -> Iterator[tuple[HeadFindings, StrongestKeys]]:
    """Each head with the weights that may have a line, where so many heads share a picture."""
    shown = analysis.drawn(choices.drop_special)
    start, _ = start_of(shown, choices.token)
    n, n_keys = len(shown.units), len(shown.keys)
    starts = np.isin(np.arange(n), range(n) if start is None else start)
    count = _strongest(share, n, n_keys) if start is None else n_keys
    return shown.read(heads, lambda _: StrongestKeys(starts, count))


def _plan(
    analysis: Analysis, found: Sequence[tuple[HeadFindings, StrongestKeys]], choices: ViewOptions, stem: str, most: int
) -> LinesPlan:
    """One picture of up to eight heads with their weights, of at most so many lines."""
    shown = analysis.drawn(choices.drop_special)
    style = choices.style.scaled_for()  # what would be faint has no line
    facts, scale, units, heads = shown.facts, style.scale, shown.units, [head for head, _ in found]
    largest = np.array([each.largest for _, each in found], np.float32)
    start, chosen = start_of(shown, choices.token)
    n_keys, between = len(shown.keys), analysis.between
    candidates = np.stack([each.weights for _, each in found])
    strongest = candidates.shape[-1]
    least = _threshold(candidates, most)
    head, row, column = (candidates >= least).nonzero()
    drawn_weights = candidates[head, row, column]
    order = np.argsort(drawn_weights, kind="stable")
    head, row, column, drawn_weights = head[order], row[order], column[order], drawn_weights[order]
    query = row if start is None else np.array(sorted(start))[row]
    key = np.stack([each.keys for _, each in found])[head, row, column]
    breaks = _breaks([shown.row_tokens.segments[members[0]] for members in units.members])
    whole = start is None or len(units) <= WHOLE_ROWS or between
    alone = range(len(units)) if whole else {*(start or ()), *key.tolist()}
    row_of, first, counts = _rows(len(units), alone, breaks)
    non_sink = frozenset(row for row, position in enumerate(first) if not units.sink[position])
    onto = frozenset(row for row, sink in enumerate(shown.keys.sink) if not sink) if between else non_sink
    row_of_key = np.arange(n_keys) if between else row_of
    keys = f"of each {facts.unit} {_keys(strongest)} only, " if strongest < n_keys else ""
    rest = np.array([each.rest for _, each in found])
    said = [keys + _hidden(candidates, rest, least, facts.unit, start)]
    said += [f"runs of {facts.unit}s without a line share a row"] * (max(counts) > 1)
    names = [f"{each.id} {each.shown}" for each in heads]
    if scale == "per-head":
        names = [f"{name} (up to {weight:.2g})" for name, weight in zip(names, largest, strict=True)]
    title = f"{heads[0].id}  {heads[0].shown}" if len(heads) == 1 else f"{len(heads)} heads"
    whose = "this head" if len(heads) == 1 else "each head"
    single = start is not None and len(start) == len(heads) == 1
    return LinesPlan(
        stem=stem,
        caption=_caption(shown, heads, chosen, scale, said),
        title=f"{facts.model}: {title}{f', from {chosen}' if chosen else ''}",
        notes=facts.notes(*(f"{capital(part)}." for part in said)),
        labels=tuple(
            f"… {count} {facts.unit}s" if count > 1 else shortened(units.labels[position], _LONGEST_LABEL)
            for position, count in zip(first, counts, strict=True)
        ),
        bright=(non_sink, onto) if start is None else (
            frozenset(row_of[list(start)].tolist()), frozenset(row_of_key[key].tolist())
        ),
        breaks=tuple(row_of[list(breaks)].tolist()),
        heads=tuple(names),
        head=head,
        query=row_of[query],
        key=row_of_key[key],
        weights=drawn_weights,
        strengths=_strengths(drawn_weights, largest[head], scale, least),
        scale=f"attention weight{f' ({style.scale_of(whose)})' * (scale != 'shared')}",
        samples=_samples(scale, least, largest),
        written={int(row_of_key[to]): f"{weight:.2f}" for to, weight in zip(key, drawn_weights, strict=True) if single},
        unit=facts.unit,
        keys=tuple(shortened(label, _LONGEST_LABEL) for label in shown.keys.labels) if between else None,
        one_text=analysis.context.source is None,
    )  # fmt: skip


def start_of(shown: Analysis, token: str | None) -> tuple[tuple[int, ...] | None, str]:
    """The positions that lines start from, None for all, and the token with its numbers in the whole text."""
    if token is None:
        return None, ""
    everything, found = shown.context.units, positions_of(shown, token)
    place = {members: position for position, members in enumerate(shown.units.members)}
    kept = [number for number in found if everything.members[number] in place]
    if not kept:
        said = f"“{visible(token)}” is among the tokens that are dropped; keep them to see its attention."
        if shown.options.queries is not None and not shown.without_sinks:
            said = f"the row of “{visible(token)}” is not among those of --queries; leave one of the two out."
        raise UsageError(said)
    numbers = ", ".join(f"#{number}" for number in kept[:4]) + (", …" if len(kept) > 4 else "")
    positions = tuple(place[everything.members[number]] for number in kept)
    return positions, f"“{text_at(everything, kept)}” ({numbers})"


def _threshold(weights: Array, most: int) -> float:
    """The faintest line's weight, or the least of three decimals that leaves no more than so many lines."""
    strong = weights[weights >= FAINTEST_LINE]
    if len(strong) <= most:
        return FAINTEST_LINE
    too_weak = float(np.partition(strong, -most - 1)[-most - 1])
    return math.floor(too_weak * 1000 + 1) / 1000


def _strongest(n_heads: int, n: int, n_keys: int) -> int:
    """Keys of each of n tokens that have a line, in a picture of so many heads; at most all of them."""
    return min(n_keys, max(1, READABLE_LINES // (n_heads * n)))


def _keys(strongest: int) -> str:
    return "the strongest key" if strongest == 1 else f"the {strongest} strongest keys"


def _breaks(segments: Sequence[int | None]) -> tuple[int, ...]:
    """The positions at which another text begins than that of the last token that had one."""
    known = [(position, segment) for position, segment in enumerate(segments) if segment is not None]
    return tuple(after for (_, one), (after, other) in itertools.pairwise(known) if one != other)


def _rows(n: int, alone: Collection[int], breaks: Sequence[int]) -> tuple[NDArray[np.intp], list[int], list[int]]:
    """The row of each position, the first position of each row, and how many it stands for.

    Positions that are to stand alone have a row each; runs of at least three others share one, within one text.
    """
    own = np.zeros(n, bool)
    own[list(alone)] = True
    starts = np.ones(n, bool)
    starts[1:] = own[1:] | own[:-1]
    starts[list(breaks)] = True
    lengths = np.diff(np.append(starts.nonzero()[0], n))
    starts |= np.repeat(lengths < SHORTEST_RUN, lengths)
    first = starts.nonzero()[0]
    return starts.cumsum() - 1, first.tolist(), np.diff(np.append(first, n)).tolist()


def _strengths(weights: Array, largest: Array | float, scale: str, least: float) -> Array:
    """How strong lines are, 0-1; on the logarithmic scale the faintest one drawn has 0."""
    if scale == "log":
        strengths = 1 - np.log(np.maximum(weights, least)) / math.log(least)
    else:
        strengths = weights / (np.where(largest, largest, 1) if scale == "per-head" else 1)
    clipped: Array = np.clip(strengths, 0, 1)
    return clipped


def _samples(scale: str, least: float, largest: Array) -> tuple[tuple[float, str], ...]:
    """Examples for reading the lines: strength and what it stands for."""
    if scale == "per-head":
        shares = (0.25, 0.5, 1.0)
        if len(largest) > 1:
            return tuple(zip(shares, ("¼ of its largest", "½", "largest"), strict=True))
        return tuple((share, f"{share * largest[0]:.2g}") for share in shares)
    weights = sorted({least, *(weight for weight in (0.1, 0.5, 1.0) if weight > 1.5 * least)})
    strengths = _strengths(np.array(weights), 1.0, scale, least)
    return tuple((float(strength), f"{weight:.3g}") for strength, weight in zip(strengths, weights, strict=True))


def _hidden(candidates: Array, rest: Array, least: float, unit: str, start: Sequence[int] | None) -> str:
    """The threshold, and what share of the attention has no line: of the ``rest``, [n_heads], nothing has."""
    totals = rest + candidates.sum((1, 2), dtype=np.float64)
    left_out = rest + np.where(candidates < least, candidates, 0).sum((1, 2), dtype=np.float64)
    hidden = left_out / np.where(totals, totals, 1)
    if hidden.max() == 0:
        return f"all weights are drawn, none is below {least:.3g}"
    low, high = _percent(hidden.min()), _percent(hidden.max())
    share = high if low == high else f"{low} to {high}"
    if low != high and low.startswith("under") and not high.startswith("over"):
        share = f"up to {high}"
    chosen = "" if start is None else f" from the chosen {unit}{'s' if len(start) > 1 else ''}"
    each = "" if len(candidates) == 1 else " of each head"
    return f"weights below {least:.3g} are not drawn: {share} of the attention{chosen}{each}"


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "under 1%"
    return f"{100 * share:.0f}%" if share <= 0.99 or share == 1 else "over 99%"


def _caption(shown: Analysis, heads: Sequence[HeadFindings], chosen: str, scale: str, said: Sequence[str]) -> str:
    facts = shown.facts
    scales = {
        "shared": "on a scale from 0 to 1 that is the same for every head",
        "per-head": "on a scale from 0 to the head's own largest weight",
        "log": "on a logarithmic scale from the least weight drawn to 1, the same for every head",
    }
    return sentence(
        f"Attention{f' from {chosen} alone' if chosen else ''} in {facts.subject}, head{'s' * (len(heads) > 1)} "
        f"{', '.join(f'{head.id} ({label_and_role(shown, head)})' for head in heads)}: "
        + (f"{facts.dropped}; " if facts.dropped else "")
        + f"lines run from the {facts.unit} that attends (left) to the {facts.unit} attended to (right), their width "
        f"and opacity the attention weight {scales[scale]}",
        *said,
    )


LINES = Drawing(_plans, lines_figure, draw_lines)
