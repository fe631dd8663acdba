"""The figures of ``attnviz heads``: overview, heatmaps, map and mean patterns; others have modules of their own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from attnviz.commands.heads.analysis import Analysis, units_with
from attnviz.commands.heads.findings import HeadFindings, evidence, shorter
from attnviz.commands.heads.first_look import MOST_DRAWN, corpora_of, in_text, listed_heads, over_corpus, unless_seen
from attnviz.commands.heads.page_view import kinds_in_words, page_data, statistic_meaning, uniform_value
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import outlined_note, outlines_of
from attnviz.figures.families import brief_name, family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
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
from attnviz.figures.page import format_number
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.inputs.spans import REST
from attnviz.inputs.tokens import Positions, sinks_in_words
from attnviz.judge.verdicts import UNNAMED
from attnviz.measures.statistics import NOWHERE, statistic_named, statistics
from attnviz.models.head_ids import HeadId
from attnviz.present.figure_context import colours_in_words, hatched_in_words, norm_in_words
from attnviz.present.published import role_name
from attnviz.present.view import Drawing, File, ViewOptions, page_drawing
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

_FEW = 12  # most heads of an overview that names their tokens

_TILE = 1.6  # inches

# Names of the colour bar, by scale.
_BARS = {
    "shared": "attention weight",
    "per-head": "share of the head’s largest weight",
    "log": "attention weight (log scale)",
}


def pooled_patterns(
    shown: Analysis, heads: Iterable[HeadFindings], factor: int
) -> Iterator[tuple[HeadFindings, Array]]:
    """Yield each head with its pooled pattern: of ``factor`` × ``factor`` weights the largest, NaN if all hidden."""
    n_queries, n_keys = len(shown.units), len(shown.keys)
    hidden = dict[int | None, NDArray[np.bool_]]()  # by window, the only difference between the masks of a text
    for head, pooled in shown.read(heads, lambda _: PooledPattern(n_queries, n_keys, factor)):
        window = shown.context_of(head.id.layer).window
        if window not in hidden:
            hidden[window] = hidden_cells(shown, head.id.layer, factor)
        yield head, np.where(hidden[window], np.nan, pooled.cells)


def hidden_cells(shown: Analysis, layer: int, factor: int) -> NDArray[np.bool_]:
    """Cells of a layer's pooled patterns in which its mask hides every key: later ones, those beyond a window."""
    seen = PooledPattern(len(shown.units), len(shown.keys), factor)
    for first, allowed in shown.allowed(layer):
        seen.add(first, allowed)
    hidden: NDArray[np.bool_] = seen.cells == 0
    return hidden


def _largest(cells: Array) -> float:
    return float(np.nanmax(cells)) or 1.0  # without any weight, 1: it ends a scale


def _overview(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    style = choices.style.scaled_for(analysis.longest)
    heads = analysis.select(choices.select)
    shown = [part.drawn(choices.drop_special) for part in analysis.parts_of(choices.select)]
    about = analysis.drawn(choices.drop_special).figure_context
    per_head = style.scale == "per-head"
    # a small selection, whose tokens are named
    few = len(shown) == 1 and len(heads) <= min(_FEW, len(analysis.heads) - 1)
    labels, keys = _labels(shown[0]) if few else (None, None)
    named = [axis.texts for axis in (labels, keys) if axis is not None]
    n = max(len(units) for part in shown for units in (part.units, part.keys))
    pooled, every = grid_pooling(n, [head.id for head in heads], style, marked=True, labels=named)
    cells, sinks = [], frozenset[int]()
    for part in shown:
        sinks = frozenset(position // pooled for position, sink in enumerate(part.keys.sink) if sink)
        for head, values in pooled_patterns(part, part.select(choices.select), pooled):
            cells.append(_cell(analysis, head, values / _largest(values) if per_head else values, sinks))
    count = f"{len(heads)} of {len(analysis.heads)} heads"
    if len(heads) == len(analysis.heads):
        count = f"all {len(heads)} heads"
    of_source = few and shown[0].context.source is not None
    rows = "rows (target) attend to columns (source)" if of_source else "rows attend to columns"
    if keys is not None:
        rows = f"{rows}, stretched to squares"
    if sinks:
        rows = f"{rows}; ticks: {sinks_in_words(shown[0].keys, about.unit)}"
    roles, corpus = "", ""
    if analysis.profile is not None:
        roles = "On the right: the role over a corpus (hollow: this text does not show it; half: not known)."
        corpus = (
            f"on the right the role over a corpus ({corpora_of(analysis, heads)}; a stored profile), hollow "
            "where this text does not show it, half where that is not known"
        )
    yield HeadGridPlan(
        stem="overview",
        **about.caption_and_notes(
            f"Attention of {count} of {about.model} on {about.text_line}",
            rows,
            about.label_interval_note(every) if few else kinds_in_words(analysis),
            "below an id: the label on this text (?: an indication only)",
            f"bold: generated {about.unit}s" if labels is not None and labels.bold else "",
            choices.style.why_log(analysis.longest),
            about.pooled(pooled),
            "what rows lack to 1 goes nowhere, to a learned sink" if analysis.context.learned_sinks else "",
            caption_only=(
                colours_in_words(style, "the largest weight of each head"),
                hatched_in_words(*(cell.values for cell in cells)),
                corpus,
            ),
        ),
        title=f"{about.model}: {count}",
        roles=roles,
        cells=tuple(cells),
        labels=labels,
        keys=keys,
        pooled=pooled,
        every=every,
        norm=Normalize(0, 1, clip=True) if per_head else style.norm(),
        bar=_BARS[style.scale],
    )


def _cell(analysis: Analysis, head: HeadFindings, values: Array, sinks: frozenset[int]) -> HeadCell:
    """The overview's cell: a head with its label on the text and, right of its id, its role over the corpus."""
    label, role, over_corpus = visible(head.label), head.role, None
    if role is not None:
        name = role_name(role.role, None)
        over_corpus = (
            family_of_label(role.role),
            (name + unless_seen(analysis, head), name, brief_name(role.role)),
            in_text(analysis, head),
        )
    names = (label, label.replace(SYNTACTIC, "syn: "), visible(brief_name(head.label)), shorter(label))
    last = "" if head.label == UNNAMED else brief_name(shorter(label)) + head.mark  # the family's sign says as much
    return HeadCell(
        id=head.id,
        values=values,
        beside=label + head.mark,
        family=family_of_label(head.label),
        shorter=(*(name + head.mark for name in names[1:]), last),
        muted=bool(head.mark),
        right=over_corpus,
        sinks=sinks,
    )


def _labels(shown: Analysis) -> tuple[Labels, Labels | None]:
    """Labels of rows, and of columns if these are another text."""
    rows = Labels(shown.units.labels, shown.units.sink, shown.generated)
    return rows, Labels(shown.keys.labels, shown.keys.sink) if shown.rows_differ_from_columns else None


def _brackets(analysis: Analysis, shown: Positions) -> tuple[Bracket, ...]:
    """The named spans of a text among the units that are shown, without the rest that an only span is compared with."""
    brackets = list[Bracket]()
    spans = () if analysis.spans is None else analysis.spans.spans
    for span in spans:
        places = units_with(shown, span.tokens)
        starts = [place for place in places if place - 1 not in places]
        ends = [place for place in places if place + 1 not in places]
        if places and (span.given or span.name != REST):
            brackets.append(Bracket(visible(span.name), tuple(zip(starts, ends, strict=True))))
    return tuple(brackets)


def _heatmaps(analysis: Analysis, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    for part in analysis.parts_of(choices.select):
        yield from _heatmaps_of(part, choices)


def _heatmaps_of(analysis: Analysis, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    heads, shown = analysis.select(choices.select), analysis.drawn(choices.drop_special)
    style = choices.style.scaled_for(analysis.longest)
    of_heads = relations_of(analysis, heads, choices.relation) if choices.relation else ()
    relations = {relation.head.id: relation for relation in of_heads}
    about = shown.figure_context
    labels, keys = _labels(shown)
    row_brackets, column_brackets = (_brackets(analysis, units) for units in (shown.units, shown.keys))
    spans = " · ".join(dict.fromkeys(bracket.name for bracket in (*row_brackets, *column_brackets)))
    pooled, every = heatmap_pooling(labels.texts, style, len(shown.keys))
    which, axes = f"row = {about.unit} that attends, column = {about.unit} attended to", HeatmapPlan.axes
    if analysis.context.source is not None:
        axes, which = OF_TWO_TEXTS, f"row = {about.unit} that the decoder reads, column = {about.unit} of the source"
    for head, values in pooled_patterns(shown, heads, pooled):
        most, label = _largest(values), head.shown
        on_text = evidence(head)
        over = over_corpus(analysis, head)
        nowhere = head.statistics.get(NOWHERE)
        findings = [on_text, over, "" if nowhere is None else f"{nowhere:.2f} goes nowhere"]
        if style.scale == "per-head":
            findings.append(f"largest weight {most:.2g}")
        relation, pairs = relations.get(head.id), ""
        if relation is not None:
            pairs = outlined_note(analysis, relation)
        yield HeatmapPlan(
            stem=f"heads/{head.id.file_stem}",
            **about.caption_and_notes(
                f"Attention of head {head.id} of {about.subject}: {which}",
                f"bold: generated {about.unit}s" if labels.bold else "",
                choices.style.why_log(analysis.longest),
                about.label_interval_note(every),
                about.pooled(pooled),
                pairs,
                first_note=f"{about.model} on {about.drawn_line}",
                caption_only=(
                    colours_in_words(style, f"the head's largest weight, {most:.2g}"),
                    hatched_in_words(values),
                    spans and f"brackets: the spans {spans}",
                    "weights of at least 0.005 are written in the cells"
                    if has_numbers(values, labels.texts, style)
                    else "",
                    f"label on this text: {label} ({on_text.replace(' · ', ', ')})",
                    "the question mark: an indication only" if label.endswith("?") else "",
                    over and f"{over}, measured on {corpora_of(analysis, [head])}",
                ),
            ),
            title=head.title,
            evidence=" · ".join(filter(None, findings)),
            values=values,
            labels=labels,
            keys=keys,
            row_brackets=row_brackets,
            column_brackets=column_brackets,
            axes=axes,
            outlines=() if relation is None else tuple(outlines_of(shown, relation, pooled)),
            norm=style.norm(most),
            bar_norm=style.norm(),
            bar=_BARS[style.scale],
            pooled=pooled,
        )


def _heatmap_files(analysis: Analysis, choices: ViewOptions, file_format: str) -> Iterator[File]:
    for part in analysis.parts_of(choices.select):
        yield from heatmap_files(_heatmaps_of(part, choices), choices.style, file_format)


def _fewer_heatmaps(analysis: Analysis, choices: ViewOptions) -> ViewOptions:
    """Of a model of many heads those to look at, unless heads are selected."""
    if choices.select or len(analysis.heads) <= MOST_DRAWN:
        return choices
    return replace(choices, select=tuple(str(head.id) for head in listed_heads(analysis)))


def _means(analysis: Analysis, choices: ViewOptions) -> Iterator[TilesPlan]:
    style = choices.style
    for part in analysis.parts_of(choices.select):
        shown = part.drawn(choices.drop_special)
        about = shown.figure_context
        labels, keys = _labels(shown)
        heads = [head.id for head in part.select(choices.select)]
        of_layers = {layer: [head.head for head in ids] for layer, ids in groupby(heads, lambda head: head.layer)}
        pooled, every = tile_pooling(labels.texts, len(of_layers) + 1, _TILE, style, keys.texts if keys else ())
        means = _mean_patterns(shown, of_layers, pooled)
        norm, cut = scale_of_means(means, style, part.longest)
        kind = f"{shown.stack_name} " if shown.stack_name else ""
        whose, title = f"each {kind}layer’s heads, and of all", f"mean pattern of each {kind}layer’s heads"
        selected, last = "", ("all layers", "all")
        if len(heads) < len(part.heads):
            count = f"{len(heads)} of {len(part.heads)} {kind}heads"
            whose, title = f"{count}, by layer and of all of them", f"mean pattern of {count}"
            selected = f"selected: {visible(', '.join(choices.select).replace(',', ', ').replace(',  ', ', '))}"
            last = "all selected", "selected"
        names = [HeadId(layer, 0).layer_name for layer in of_layers]
        titles = [*((f"layer {name.removeprefix('L')}", name) for name in names), last]
        of_source = shown.context.source is not None
        rows = "Rows (target) attend to columns (source)." if of_source else "Rows attend to columns."
        yield TilesPlan(
            stem=shown.stem("mean"),
            **about.caption_and_notes(
                f"{about.model} on {about.text_line}: mean attention pattern of {whose}",
                selected,
                f"a mean: no head need look like it. {rows}",
                about.label_interval_note(every),
                about.pooled(pooled),
                style.why_log(part.longest),
                caption_only=(
                    f"{norm_in_words(norm)}{' (larger weights look the same)' if cut else ''}",
                    hatched_in_words(*means),
                ),
            ),
            title=f"{about.model}: {title}",
            tiles=tuple(Tile(long, mean, (short,)) for (long, short), mean in zip(titles, means, strict=True)),
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
    total, hidden = np.zeros((n_queries, n_keys)), list[NDArray[np.bool_]]()
    for layer, heads in of_layers.items():
        of_layer = PooledPattern(n_queries, n_keys, pooled, np.float64)
        for first, chunk in shown.chunks(layer, heads):
            mean = chunk.double().mean(0)
            of_layer.add(first, mean)
            total[first : first + len(mean), : mean.shape[1]] += len(heads) * mean.numpy()
        hidden.append(hidden_cells(shown, layer, pooled))
        means.append(np.where(hidden[-1], np.nan, of_layer.cells))
    of_all = max_pool(total / sum(map(len, of_layers.values())), pooled)
    return [*means, np.where(np.all(hidden, axis=0), np.nan, of_all)]


def _maps(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of all heads by each statistic; of an encoder-decoder one per kind of attention that has it."""
    about = analysis.figure_context
    for statistic in dict.fromkeys(map(statistic_named, choices.maps or ("entropy",))):
        of_parts = [(part, _values(part, statistic)) for part in analysis.parts]
        of_parts = [(part, values) for part, values in of_parts if np.isfinite(values).any()] or of_parts[-1:]
        name, meaning, unit = statistic_meaning(of_parts[0][0], statistic)
        bounded = statistics()[statistic].bounded
        maps, facts, alone, sizes = [], list[str](), list[str](), []
        for part, values in of_parts:
            measured = values[np.isfinite(values)]
            uniform = uniform_value(part, statistic)
            top = 0.0 if bounded else max(uniform or 0.0, float(measured.max(initial=0.0)))
            top = top or 1.0
            several = len({part.context_of(layer).window for layer in part.layers}) > 1
            mean = " (mean of layers)" if several else ""
            title, whose, reference = "", "", None
            if part.stack:
                title, whose = f"{part.stack.letter}: {part.stack.name}", f" ({part.stack.name})"
            if len(measured):
                alone.append(f"colours from 0 to {format_number(top)}{whose}")
            if uniform is not None:
                reference = (uniform, f"uniform attention{mean}")
                alone.append(f"uniform attention would give {format_number(uniform)}{whose}{mean}")
            n_heads = len(part.heads)
            hatched = []
            if lacking := n_heads - len(measured):
                hatched.append(f"hatched: not measurable on this text for {lacking} of {n_heads} heads")
            if values.size > n_heads:
                hatched.append("hatched layers: without attention")
            facts.append("; ".join(hatched))
            sizes.append(f"{title} {part.shape[0]} × {part.shape[1]}".strip())
            bar = f"{name} ({unit or '0–1'})" if unit or bounded else name
            bar = bar if len(measured) else ""
            norm = Normalize(0, top, clip=True)
            maps.append(HeadMap(values, part.layers, title, norm=norm, bar=bar, reference=reference))
        yield HeadMapPlan(
            stem=f"map-{statistic.replace('_', '-')}",
            **about.caption_and_notes(
                f"{about.model} on {about.text_line}, {name}, head by head ({', '.join(sizes)})",
                f"{meaning}{f', in {unit}' if unit else ''}",
                *dict.fromkeys(facts),
                caption_only=tuple(dict.fromkeys(alone)),
            ),
            title=f"{about.model}: {name}, head by head",
            maps=tuple(maps),
        )


def _values(analysis: Analysis, statistic: str) -> Array:
    """Values [n_layers, n_heads], NaN for None, and for layers without attention."""
    values = np.full(analysis.shape, np.nan)
    layers = list(analysis.layers)
    for head in analysis.heads:
        value = head.statistics.get(statistic)
        if value is not None:
            values[layers.index(head.id.layer), head.id.head] = value
    return values


_NO_PAGE = "it shows all rows; leave out --queries (queries=...)"

OVERVIEW = Drawing(_overview, head_grid_figure, draw_head_grid)
HEADS = Drawing(_heatmaps, heatmap_figure, draw_heatmap, files=_heatmap_files, by_default=_fewer_heatmaps)
MAP = Drawing(_maps, head_map_figure, draw_head_map)
MEAN = Drawing(_means, tiles_figure, draw_last_tile)
PAGE = page_drawing("heads", page_data, lambda analysis: "" if analysis.options.queries is None else _NO_PAGE)
