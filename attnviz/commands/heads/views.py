"""The figures of ``attnviz heads``: overview, heatmaps and mean patterns; others have modules of their own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, evidence, shorter
from attnviz.commands.heads.page_view import kinds_in_words, page_data
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import outlines_of, relations_note
from attnviz.commands.heads.summary import MOST_DRAWN, corpora_of, listed_heads, over_corpus, unless_seen
from attnviz.figures.families import brief_name, family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.heatmap import (
    OF_TWO_TEXTS,
    HeatmapPlan,
    draw_heatmap,
    has_numbers,
    heatmap_figure,
    heatmap_pooling,
)
from attnviz.figures.heatmap_files import heatmap_files
from attnviz.figures.matrix import Array, Bracket, Labels, PooledPattern, max_pool, scale_of_means
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.judge.verdicts import UNNAMED
from attnviz.measures.statistics import NOWHERE
from attnviz.models.head_ids import HeadId
from attnviz.models.spans import REST
from attnviz.models.tokens import Positions, sinks_in_words
from attnviz.present.figure_context import colours_in_words, norm_in_words
from attnviz.present.published import role_name
from attnviz.present.view import Drawing, File, ViewOptions, page_drawing
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

_FEW = 12  # most heads of an overview that names their tokens

_TILE, _FULL_NAMES = 1.6, {"all": "all layers", "selected": "all selected"}
_LEARNED = "what rows lack to 1 goes nowhere, to a learned sink"


_BARS = {
    "shared": "attention weight",
    "per-head": "share of the head’s largest weight",
    "log": "attention weight (log scale)",
}
"""Names of the colour bar, by scale."""


def pooled_patterns(
    shown: Analysis, heads: Iterable[HeadFindings], factor: int, own: bool = False
) -> Iterator[tuple[HeadFindings, Array]]:
    """Yield each head with its pooled pattern: of every ``factor`` × ``factor`` weights the largest.

    With ``own``, weights are divided by the head's largest.
    """
    n_queries, n_keys = len(shown.units), len(shown.keys)
    for head, pooled in shown.read(heads, lambda _: PooledPattern(n_queries, n_keys, factor)):
        yield head, pooled.cells / _largest(pooled.cells) if own else pooled.cells


def _largest(cells: Array) -> float:
    """The largest weight, for the end of a scale; 1 without any."""
    return float(cells.max()) or 1.0


def _as_drawn(analysis: Analysis, choices: ViewOptions) -> tuple[Analysis, ViewOptions]:
    """With --symmetric corrected attention, which has no end in common: each head has its own scale."""
    if not analysis.options.symmetric:
        return analysis, choices
    own = replace(choices.style, scale="per-head")
    return replace(analysis, corrected=True), replace(choices, drop_special=True, style=own)


def _overview(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    analysis, choices = _as_drawn(analysis, choices)
    style, heads = choices.style.scaled_for(analysis.longest), analysis.select(choices.select)
    why_log = choices.style.why_log(analysis.longest)
    shown = [part.drawn(choices.drop_special) for part in analysis.parts_of(choices.select)]
    about = analysis.drawn(choices.drop_special).figure_context
    own = style.scale == "per-head"
    # a small selection, whose tokens are named
    few = len(shown) == 1 and len(heads) <= min(_FEW, len(analysis.heads) - 1)
    labels, keys = _labels(shown[0]) if few else (None, None)
    named = [each.texts for each in (labels, keys) if each is not None]
    n = max(len(units) for part in shown for units in (part.units, part.keys))
    pooled = grid_pooling(n, [head.id for head in heads], style, marked=True, labels=named)
    cells, sinks = [], frozenset[int]()
    for part in shown:
        sinks = frozenset(position // pooled for position, sink in enumerate(part.keys.sink) if sink)
        for head, values in pooled_patterns(part, part.select(choices.select), pooled, own):
            cells.append(_cell(analysis, head, values, sinks))
    count = f"{len(heads)} of {len(analysis.heads)} heads"
    if len(heads) == len(analysis.heads):
        count = f"all {len(heads)} heads"
    ticks = f"; ticks: {sinks_in_words(shown[0].keys, about.unit)}" if sinks else ""
    of_source = few and shown[0].context.source is not None
    rows = "rows (target) attend to columns (source)" if of_source else "rows attend to columns"
    if analysis.corrected:
        rows = "both directions added"
    rows = rows if keys is None else f"{rows}, stretched to squares"
    roles, corpus = "", ""
    if analysis.profile is not None:
        roles = "On the right: the role over a corpus (hollow: not in this text; half: not looked for)."
        corpus = (
            f"on the right the role over a corpus ({corpora_of(analysis, heads)}; a stored profile), hollow "
            "where this text has no case of it, half where that is not known"
        )
    yield HeadGridPlan(
        stem="overview",
        **about.caption_and_notes(
            f"Attention of {count} of {about.model} on {about.text_line}",
            f"{rows}{ticks}",
            "" if few else kinds_in_words(analysis),
            "below an id: the label on this text (?: an indication only)",
            f"bold: generated {about.unit}s" if labels is not None and labels.bold else "",
            why_log,
            about.pooled(pooled),
            _LEARNED if analysis.context.learned_sinks else "",
            caption_only=(colours_in_words(style, "the largest weight of each head"), corpus),
        ),
        title=f"{about.model}: {count}",
        roles=roles,
        cells=tuple(cells),
        sinks=sinks,
        labels=labels,
        keys=keys,
        pooled=pooled,
        norm=Normalize(0, 1, clip=True) if own else style.norm(),
        bar=_BARS[style.scale],
    )


def _cell(analysis: Analysis, head: HeadFindings, values: Array, sinks: frozenset[int]) -> HeadCell:
    """The overview's cell: a head with its label on the text and, right of its id, its role over the corpus."""
    label, mark, role = visible(head.label), head.mark, head.role
    over_corpus = None
    if role is not None:
        name = role_name(role.role, None)
        over_corpus = (
            family_of_label(role.role),
            (name + unless_seen(analysis, head), name, brief_name(role.role)),
            analysis.has_role(head),
        )
    forms = (label, label.replace(SYNTACTIC, "syn: "), visible(brief_name(head.label)), shorter(label))
    beside, *briefer = (form + mark for form in forms)
    briefer.append("" if head.label == UNNAMED else brief_name(shorter(label)) + mark)  # the mark says as much
    family = family_of_label(head.label)
    return HeadCell(head.id, values, beside, family, tuple(briefer), bool(mark), over_corpus, sinks)


def _labels(shown: Analysis) -> tuple[Labels, Labels | None]:
    """Labels of rows, and of columns if these are another text."""
    rows = Labels(shown.units.labels, shown.units.sink, shown.generated)
    if not shown.rows_differ_from_columns:
        return rows, None
    return rows, Labels(shown.keys.labels, shown.keys.sink)


def _brackets(analysis: Analysis, shown: Positions) -> tuple[Bracket, ...]:
    """The named spans of a text among the units that are shown, without the rest that an only span is compared with."""
    found, spans = list[Bracket](), () if analysis.spans is None else analysis.spans.spans
    for span in spans:
        tokens = set(span.tokens)
        places = [at for at, members in enumerate(shown.members) if not tokens.isdisjoint(members)]
        starts = [at for at in places if at - 1 not in places]
        ends = [at for at in places if at + 1 not in places]
        if places and (span.given or span.name != REST):
            found.append(Bracket(visible(span.name), tuple(zip(starts, ends, strict=True))))
    return tuple(found)


def _heatmaps(analysis: Analysis, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    analysis, choices = _as_drawn(analysis, choices)
    for part in analysis.parts_of(choices.select):
        yield from _heatmaps_of(part, part.select(choices.select), choices)


def _heatmaps_of(analysis: Analysis, heads: list[HeadFindings], choices: ViewOptions) -> Iterator[HeatmapPlan]:
    """Plan the heatmaps of one kind of attention."""
    shown, style = analysis.drawn(choices.drop_special), choices.style.scaled_for(analysis.longest)
    why_log = choices.style.why_log(analysis.longest)
    of_heads = relations_of(analysis, heads, choices.relation) if choices.relation else ()
    relations = {each.head.id: each for each in of_heads}
    about, own, between = shown.figure_context, style.scale == "per-head", analysis.context.source is not None
    labels, keys = _labels(shown)
    of_rows, of_columns = (_brackets(analysis, units) for units in (shown.units, shown.keys))
    names = " · ".join(dict.fromkeys(each.name for each in (*of_rows, *of_columns)))
    pooled, every = heatmap_pooling(labels.texts, style, len(shown.keys))
    which, axes = f"row = {about.unit} that attends, column = {about.unit} attended to", HeatmapPlan.axes
    if analysis.corrected:
        which, axes = f"of each pair of {about.unit}s, both directions added", (about.unit, about.unit)
    if between:
        axes, which = OF_TWO_TEXTS, f"row = {about.unit} that the decoder reads, column = {about.unit} of the source"
    for head, values in pooled_patterns(shown, heads, pooled):
        most, label = _largest(values), head.shown
        on_text, over = evidence(head), over_corpus(analysis, head)
        gone = head.statistics.get(NOWHERE)
        lost = "" if gone is None else f"{gone:.2f} goes nowhere"
        findings = " · ".join(filter(None, (on_text, over, lost)))
        written = has_numbers(values, labels.texts, style)
        relation = relations.get(head.id)
        pairs = "" if relation is None else f"outlined: {relation.arrow}, {relation.count} (solid; missed: dashed)"
        yield HeatmapPlan(
            stem=f"heads/{head.id.file_stem}",
            **about.caption_and_notes(
                f"Attention of head {head.id} of {about.subject}: {which}",
                f"bold: generated {about.unit}s" if labels.bold else "",
                why_log,
                about.label_interval_note(every),
                about.pooled(pooled),
                pairs and f"{pairs}, {relations_note(analysis)}",
                first_note=f"{about.model} on {about.drawn_line}",
                caption_only=(
                    colours_in_words(style, f"the head's largest weight, {most:.2g}"),
                    names and f"brackets: the spans {names}",
                    "weights of at least 0.005 are written in the cells" if written else "",
                    f"label on this text: {label} ({on_text.replace(' · ', ', ')})",
                    "the question mark: an indication only" if label.endswith("?") else "",
                    over and f"{over}, measured on {corpora_of(analysis, [head])}",
                ),
            ),
            title=head.title,
            evidence=f"{findings} · largest weight {most:.2g}" if own else findings,
            values=values,
            labels=labels,
            keys=keys,
            row_brackets=of_rows,
            column_brackets=of_columns,
            axes=axes,
            outlines=() if relation is None else tuple(outlines_of(shown, relation, pooled)),
            norm=style.norm(most),
            bar_norm=style.norm(),
            bar=_BARS[style.scale],
            pooled=pooled,
        )


def _heatmap_files(analysis: Analysis, choices: ViewOptions, file_format: str) -> Iterator[File]:
    for part in analysis.parts:
        yield from heatmap_files(_heatmaps(part, choices), choices.style, file_format)


def _fewer_heatmaps(analysis: Analysis, choices: ViewOptions) -> ViewOptions:
    """Of a model of many heads those to look at, unless heads are selected."""
    if choices.select or len(analysis.heads) <= MOST_DRAWN:
        return choices
    return replace(choices, select=tuple(str(head.id) for head in listed_heads(analysis)))


def _means(analysis: Analysis, choices: ViewOptions) -> Iterator[TilesPlan]:
    """Plan the means of each layer's heads and of all; of an encoder-decoder those of each kind of attention."""
    analysis, choices = _as_drawn(analysis, choices)
    for part in analysis.parts_of(choices.select):
        yield _mean(part, choices)


def _mean(part: Analysis, choices: ViewOptions) -> TilesPlan:
    """Plan the means of one kind of attention, over the selected heads."""
    shown = part.drawn(choices.drop_special)
    about, style = shown.figure_context, choices.style
    labels, keys = _labels(shown)
    heads = [head.id for head in part.select(choices.select)]
    of_layers = {layer: [head.head for head in ids] for layer, ids in groupby(heads, lambda head: head.layer)}
    pooled, every = tile_pooling(labels.texts, len(of_layers) + 1, _TILE, style, keys.texts if keys else ())
    means = _mean_patterns(shown, of_layers, pooled)
    norm, cut = scale_of_means(means, style, part.longest)
    kind = f"{shown.stack_name} " if shown.stack_name else ""
    names = [*(HeadId(layer, 0).layer_name for layer in of_layers), "all"]
    whose, title = f"each {kind}layer’s heads, and of all", f"mean pattern of each {kind}layer’s heads"
    selected = ""
    if len(heads) < len(part.heads):
        names[-1], whose = "selected", f"{len(heads)} of {len(part.heads)} {kind}heads, by layer and of all of them"
        title = f"mean pattern of {len(heads)} of {len(part.heads)} {kind}heads"
        selected = f"selected: {visible(', '.join(choices.select).replace(',', ', ').replace(',  ', ', '))}"
    rows = "Rows attend to columns." if shown.context.source is None else "Rows (target) attend to columns (source)."
    if part.corrected:
        rows = "Both directions added."
    larger = " (larger weights look the same)" if cut else ""
    return TilesPlan(
        stem=shown.stem("mean"),
        **about.caption_and_notes(
            f"{about.model} on {about.text_line}: mean attention pattern of {whose}",
            selected,
            f"a mean: no head need look like it. {rows}",
            about.label_interval_note(every),
            about.pooled(pooled),
            style.why_log(part.longest),
            caption_only=(f"{norm_in_words(norm)}{larger}",),
        ),
        title=f"{about.model}: {title}",
        tiles=tuple(
            Tile(_FULL_NAMES.get(name, f"layer {name.removeprefix('L')}"), mean, (name,))
            for name, mean in zip(names, means, strict=True)
        ),
        labels=labels,
        keys=keys,
        norm=norm,
        bar="mean attention weight" if norm.vmin == 0 else "mean attention weight (log scale)",
        pooled=pooled,
        cut=cut,
        target=_TILE,
    )


def _mean_patterns(shown: Analysis, of_layers: Mapping[int, Sequence[int]], pooled: int) -> list[Array]:
    """Mean over these heads of each layer, and over all of them, pooled, float64."""
    n_queries, n_keys, means = len(shown.units), len(shown.keys), list[Array]()
    total = np.zeros((n_queries, n_keys))
    for layer, heads in of_layers.items():
        of_layer = PooledPattern(n_queries, n_keys, pooled, np.float64)
        for first, block in shown.blocks(layer, heads):
            mean = block.double().mean(0)
            of_layer.add(first, mean)
            total[first : first + len(mean), : mean.shape[1]] += len(heads) * mean.numpy()
        means.append(of_layer.cells)
    return [*means, max_pool(total / sum(map(len, of_layers.values())), pooled)]


def _no_page(analysis: Analysis) -> str:
    """Reason why there is no page, or ''."""
    return "" if analysis.options.queries is None else "it shows all rows; leave out --queries (queries=...)"


OVERVIEW = Drawing(_overview, head_grid_figure, draw_head_grid)
HEADS = Drawing(_heatmaps, heatmap_figure, draw_heatmap, files=_heatmap_files, by_default=_fewer_heatmaps)
MEAN = Drawing(_means, tiles_figure, draw_last_tile)
PAGE = page_drawing("heads", page_data, _no_page)
