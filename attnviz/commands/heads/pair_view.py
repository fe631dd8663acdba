"""The view ``pair``: attention within the texts of a pair, between them, and to special tokens.

For a pattern ``A`` over n positions, of which the texts A and B and the special tokens S hold a, b and s
(n = a + b + s):

    share(X to Y) = mean over q in X of sum over k in Y of A[q, k]        X in {A, B}, Y in {A, B, S}

Under uniform attention it is abs(Y) / n. The shares of one text sum to 1: what A and B do not get goes to the special
tokens. As queries the special tokens are left out.

Of an encoder-decoder A and B are the two texts of its source: X is one of these in the encoder, and the target T in
cross-attention.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.pooling import largest, pooled_patterns
from attnviz.commands.heads.summary import label_and_role
from attnviz.errors import UsageError
from attnviz.figures.head_map import HeadMap, HeadMapPlan, head_map_figure
from attnviz.figures.matrix import Array, Labels
from attnviz.figures.style import Style
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.models.wording import counted, quoted
from attnviz.present.figure_context import colours_in_words
from attnviz.present.view import Drawing, ViewOptions

Groups = tuple[list[int], list[int], list[int]]
"""Positions of text A, of text B and of the special tokens."""

_SIDE, _WIDE = 6.0, 5.0


def labels_of(shown: Analysis) -> tuple[Labels, Labels | None]:
    """Labels of rows, and of columns if these are another text."""
    rows = Labels(shown.units.labels, shown.units.sink, shown.generated)
    if not shown.between:
        return rows, None
    return rows, Labels(shown.keys.labels, shown.keys.sink)


def segment_positions(analysis: Analysis) -> Groups:
    """Positions of text A, of text B and of the special tokens, in order."""
    groups: Groups = ([], [], [])
    for position, members in enumerate(analysis.units.members):
        segment = analysis.tokens.segments[members[0]]
        groups[2 if segment is None else segment].append(position)
    return groups


class PairShares:
    """Sums the shares of attention between the groups for a head, block by block."""

    def __init__(self, groups: Groups) -> None:
        self._groups, self._onto = groups, list[Array]()

    def add(self, _: int, rows: Tensor) -> None:
        """Add the next rows, [rows, n_keys]; hidden keys at the end may be missing."""
        weights, n_keys = rows.float().numpy(), rows.shape[1]
        seen = [[key for key in group if key < n_keys] for group in self._groups]
        self._onto.append(np.stack([weights[:, group].sum(-1, dtype=np.float64) for group in seen], -1))

    def of(self, queries: Iterable[list[int]]) -> Array:
        """Shares from each text of ``queries`` to A, B and the special tokens, [n_texts, 3]; rows sum to 1."""
        onto = np.concatenate(self._onto)
        return np.stack([onto[group].mean(0) for group in queries])


def _shares(part: Analysis, heads: Iterable[HeadFindings], groups: Groups) -> Iterator[Array]:
    """Shares of each head, from each text that attends."""
    queries = _queries(part, groups).values()
    return (shares.of(queries) for _, shares in part.read(heads, lambda _: PairShares(groups)))


def _queries(part: Analysis, groups: Groups) -> dict[str, list[int]]:
    """Texts of the queries with their positions: A and B; in cross-attention the target, T."""
    if part.context.source is None:
        return dict(zip("AB", groups, strict=False))
    non_sink = [at for at, special in enumerate(part.units.special) if not special]
    return {"T": non_sink or [*range(len(part.units))]}


def _missing(analysis: Analysis) -> str:
    if analysis.options.queries is not None:
        return "it shows the rows of two whole texts; leave out --queries (queries=...)"
    if analysis.pair is None:
        return "it shows two texts; give the second one with --pair (pair=...)"
    left = [name for name, group in zip(("first", "second"), segment_positions(analysis), strict=False) if not group]
    return f"no {analysis.units.name} is left of the {left[0]} text after tokenization" if left else ""


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadMapPlan | TilesPlan]:
    """Plan maps of all heads, by kind of attention, then the pattern of each selected head."""
    groups = segment_positions(analysis)
    parts = [part for part in analysis.parts_of(choices.select) if part.stack_letter != "D"]
    if not parts:
        raise UsageError("the figure pair shows attention to two texts, but the decoder's heads read the target alone: "
                         "choose others with --select, such as E or X.")  # fmt: skip
    for part in parts:
        yield _map_plan(part, groups, choices.style.scaled_for())
    if len(analysis.select(choices.select)) == len(analysis.heads):
        return
    for part in parts:
        yield from _head_plans(part, part.select(choices.select), groups, choices.style)


def _map_plan(analysis: Analysis, groups: Groups, style: Style) -> HeadMapPlan:
    about, queries = analysis.figure_context, _queries(analysis, groups)
    of_heads = np.stack(list(_shares(analysis, analysis.heads, groups)))
    shares = 100 * of_heads.reshape(*analysis.shape, len(queries), 3)
    norm, colours = {
        "shared": (Normalize(0, 100, clip=True), "colours from 0 to 100 %"),
        "per-head": (
            Normalize(0, float(shares.max()), clip=True), f"colours from 0 to the largest share, {shares.max():.0f} %"
        ),
        "log": (LogNorm(1, 100, clip=True), "logarithmic colours from 1 to 100 %"),
    }[style.scale]  # fmt: skip
    wide = style.width is None or style.width >= _WIDE
    bar = f"share of a text’s attention (percent; {style.scale_of('this picture')})"
    maps = [
        HeadMap(shares[..., source, target], f"{text} → {name}", norm=norm, bar=bar, write="{:.0f}".format)
        for source, text in enumerate(queries)
        for target, name in enumerate(("A", "B", "special"))
    ]
    (whose, texts), (n_layers, n_heads) = _whose(analysis), analysis.shape
    kind = f"{analysis.stack_name} " if analysis.stack_name else ""
    title = "attention within and between two texts" if len(queries) > 1 else "to two texts"
    return HeadMapPlan(
        stem=analysis.stem("pair"),
        **about.caption_and_notes(
            f"{about.model} on {_both_texts(analysis)}, {n_layers} × {n_heads} {kind}heads",
            f"how the {about.unit}s {whose} share their attention out between A, B and the special tokens, in "
            f"percent; {_uniform(groups)}",
            first=f"{texts}: {about.text_line}",
            alone=(colours,),
        ),
        title=f"{about.model}: {kind}{title}, by head",
        maps=tuple(maps if wide else [*maps[::3], *maps[1::3], *maps[2::3]]),
        columns=3 if wide else len(queries),
    )


def _head_plans(analysis: Analysis, heads: Sequence[HeadFindings], groups: Groups, style: Style) -> Iterator[TilesPlan]:
    """Plan the pattern of each head, with rules around the blocks, and their shares."""
    pooled, _ = _head_pooling(*labels_of(analysis), style)
    patterns, shares_of_heads = pooled_patterns(analysis, heads, pooled), _shares(analysis, heads, groups)
    for (head, values), shares in zip(patterns, shares_of_heads, strict=True):
        yield _head_plan(analysis, head, values, shares, groups, style)


def _head_pooling(labels: Labels, keys: Labels | None, style: Style) -> tuple[int, int]:
    """:func:`attnviz.figures.tiles.tile_pooling` for one head."""
    return tile_pooling(labels.texts, [1], _SIDE, style, keys.texts if keys else ())


def _head_plan(
    analysis: Analysis, head: HeadFindings, values: Array, shares: Array, groups: Groups, style: Style
) -> TilesPlan:
    about, name, queries = analysis.figure_context, f"{head.id} ({head.shown})", _queries(analysis, groups)
    why_log, style = style.why_log(analysis.longest), style.scaled_for(analysis.longest)
    labels, keys = labels_of(analysis)
    pooled, every = _head_pooling(labels, keys, style)
    said = "; ".join(
        f"from {text} {a:.0f} % to A, {b:.0f} % to B, {special:.0f} % to special tokens"
        for text, (a, b, special) in zip(queries, 100 * shares, strict=True)
    )
    colours = colours_in_words(style, "1", f"the head’s largest weight, {values.max():.2f}")
    edges = {edge for group in groups[:2] for edge in (group[0], group[-1] + 1)}
    return TilesPlan(
        stem=f"pair/{head.id.file_stem}",
        **about.caption_and_notes(
            f"{about.model} on {_both_texts(analysis)}: attention weights of {head.id} "
            f"({label_and_role(analysis, head)})",
            f"attention {said}; {_uniform(groups)}",
            why_log,
            about.named(every),
            about.pooled(pooled),
            first=f"{_whose(analysis)[1]}: {about.text_line}",
            alone=(colours,),
        ),
        title=f"{about.model} {name}",
        groups=(("", (Tile("", values),)),),
        labels=labels,
        keys=keys,
        norm=style.norm(largest(values)),
        bar=f"attention weight ({style.scale_of('this head')})",
        pooled=pooled,
        rules=tuple(sorted(edges)),
        target=_SIDE,
    )


def _both_texts(analysis: Analysis) -> str:
    a, b = (quoted(text) for text in (analysis.text, analysis.pair or ""))
    n = f"{counted(len(analysis.keys), analysis.units.name)} in all"
    target = "" if analysis.target is None else f", with the target {quoted(analysis.target.text)}"
    return f"text A, {a}, and text B, {b} ({n}){target}"


def _whose(part: Analysis) -> tuple[str, str]:
    """Words for the queries, and names of the texts in the first note."""
    return ("of A and of B", "A / B") if part.context.source is None else ("of the target T", "A / B → T")


def _uniform(groups: Groups) -> str:
    n = sum(map(len, groups))
    a, b, special = (f"{100 * len(group) / n:.0f}" for group in groups)
    return f"uniform attention: {a} % on A, {b} % on B, {special} % on special tokens"


def _figure(plan: HeadMapPlan | TilesPlan, style: Style, vector: bool) -> Figure:
    return head_map_figure(plan, style, vector) if isinstance(plan, HeadMapPlan) else tiles_figure(plan, style, vector)


PAIR = Drawing(_plans, _figure, missing=_missing)
