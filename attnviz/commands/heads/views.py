"""The figures of ``attnviz heads``: overview, heatmaps, map and mean patterns; others have modules of their own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import numpy as np
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from attnviz.analysis.findings import HeadFindings, evidence, shorter
from attnviz.analysis.pictures import hidden_cells, pooled_patterns
from attnviz.analysis.result import Analysis, Part, PatternView, units_with
from attnviz.commands.heads.first_look import MOST_DRAWN, corpora_of, in_text, listed_heads, over_corpus, unless_seen
from attnviz.commands.heads.page_view import kinds_in_words, page_data, statistic_meaning, uniform_value
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import outlined_note, outlines_of
from attnviz.figures.families import brief_name, family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling
from attnviz.figures.heatmap import (
    OF_TWO_TEXTS,
    HeatmapPlan,
    has_numbers,
    heatmap_files,
    heatmap_pooling,
)
from attnviz.figures.maps import HeadMap, HeadMapPlan, Tile, TilesPlan, tile_pooling
from attnviz.figures.matrix import Array, Bracket, Labels, PooledPattern, max_pool, scale_of_means
from attnviz.figures.page import format_number
from attnviz.inputs.prompt import Positions, sinks_in_words
from attnviz.inputs.spans import REST
from attnviz.judge.verdicts import UNNAMED
from attnviz.measures.statistics import NOWHERE, statistic_named, statistics
from attnviz.models.head_ids import HeadId
from attnviz.present.figure_context import hatched_in_words, norm_in_words
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


def _largest(cells: Array) -> float:
    return float(np.nanmax(cells)) or 1.0  # without any weight, 1: it ends a scale


def _facts(shown: PatternView, choices: ViewOptions, pooled: int, every: int) -> tuple[str, ...]:
    """What every picture of patterns says of its labels, its cells and its colours."""
    about = shown.figure_context
    written = f"bold: generated {about.unit}s" if any(shown.generated) else ""
    why_log = choices.style.why_log(shown.analysis.longest)
    return written, why_log, about.label_interval_note(every), about.pooled(pooled)


def _overview(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    style, heads = choices.style.scaled_for(analysis.longest), analysis.select(choices.select)
    shown = analysis.drawn(choices)
    first, about = shown[0], analysis.parts[-1].drawn(choices.drop_special).figure_context
    per_head = style.scale == "per-head"
    # a small selection, whose tokens are named
    few = len(shown) == 1 and len(heads) <= min(_FEW, len(analysis.heads) - 1)
    labels, keys = _labels(first) if few else (None, None)
    named = [axis.texts for axis in (labels, keys) if axis is not None]
    n = max(len(units) for view in shown for units in (view.units, view.keys))
    pooled, every = grid_pooling(n, [head.id for head in heads], style, marked=True, labels=named)
    cells, sinks = [], frozenset[int]()
    for view in shown:
        sinks = frozenset(position // pooled for position, sink in enumerate(view.keys.sink) if sink)
        for head, values in pooled_patterns(view, view.select(choices.select), pooled):
            cells.append(_cell(analysis, head, values / _largest(values) if per_head else values, sinks))
    count = f"all {len(heads)} heads"
    if len(heads) < len(analysis.heads):
        count = f"{len(heads)} of {len(analysis.heads)} heads"
    rows = "rows attend to columns"
    if few and first.context.source is not None:
        rows = "rows (target) attend to columns (source)"
    if keys is not None:
        rows = f"{rows}, stretched to squares"
    if sinks:
        rows = f"{rows}; ticks: {sinks_in_words(first.keys, about.unit)}"
    roles, corpus = "", ""
    if analysis.profile is not None:
        corpus = "the role over a corpus (hollow: this text does not show it; half: not known)"
        roles, corpus = f"On the right: {corpus}.", f"on the right {corpus}, {corpora_of(analysis, heads)}"
    written, why_log, label_interval, of_cells = _facts(first, choices, pooled, every)
    yield HeadGridPlan(
        stem="overview",
        **about.caption_and_notes(
            f"Attention of {count} of {about.model} on {about.text_line}",
            rows,
            label_interval if few else kinds_in_words(analysis),
            "below an id: the label on this text (?: an indication only)",
            written if few else "",
            why_log,
            of_cells,
            "what rows lack to 1 goes nowhere, to a learned sink" if analysis.context.learned_sinks else "",
            caption_only=(
                norm_in_words(style.norm(), "the largest weight of each head" if per_head else ""),
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
        norm=style.norm(),
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


def _labels(shown: PatternView) -> tuple[Labels, Labels | None]:
    """Labels of rows, and of columns if these are another text."""
    rows = Labels(shown.units.labels, shown.units.sink, shown.generated)
    return rows, None if shown.is_square else Labels(shown.keys.labels, shown.keys.sink)


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
    style = choices.style.scaled_for(analysis.longest)
    for shown in analysis.drawn(choices):
        heads, about = shown.select(choices.select), shown.figure_context
        of_heads = relations_of(analysis, heads, choices.relation) if choices.relation else ()
        relations = {relation.head.id: relation for relation in of_heads}
        labels, keys = _labels(shown)
        brackets = [_brackets(analysis, units) for units in (shown.units, shown.keys)]
        spans = " · ".join(dict.fromkeys(bracket.name for of_side in brackets for bracket in of_side))
        pooled, every = heatmap_pooling(labels.texts, style, len(shown.keys))
        which, axes = f"row = {about.unit} that attends, column = {about.unit} attended to", HeatmapPlan.axes
        if shown.context.source is not None:
            axes, which = (
                OF_TWO_TEXTS,
                f"row = {about.unit} that the decoder reads, column = {about.unit} of the source",
            )
        for head, values in pooled_patterns(shown, heads, pooled):
            most, label, on_text, over = _largest(values), head.shown, evidence(head), over_corpus(analysis, head)
            nowhere, relation = head.statistics.get(NOWHERE), relations.get(head.id)
            largest = f"largest weight, {most:.2g}" if style.scale == "per-head" else ""
            gone = "" if nowhere is None else f"{nowhere:.2f} goes nowhere"
            findings = [on_text, over, gone, largest.replace(",", "")]
            numbers = "weights of at least 0.005 are written in the cells"
            yield HeatmapPlan(
                stem=f"heads/{head.id.file_stem}",
                **about.caption_and_notes(
                    f"Attention of head {head.id} of {about.subject}: {which}",
                    *_facts(shown, choices, pooled, every),
                    "" if relation is None else outlined_note(relation),
                    first_note=f"{about.model} on {about.drawn_line}",
                    caption_only=(
                        norm_in_words(style.norm(), largest and f"the head's {largest}"),
                        hatched_in_words(values),
                        spans and f"brackets: the spans {spans}",
                        numbers if has_numbers(values, labels.texts, style) else "",
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
                row_brackets=brackets[0],
                column_brackets=brackets[1],
                axes=axes,
                outlines=() if relation is None else tuple(outlines_of(shown, relation, pooled)),
                norm=style.norm(most),
                bar_norm=style.norm(),
                bar=_BARS[style.scale],
                pooled=pooled,
            )


def _heatmap_files(analysis: Analysis, choices: ViewOptions, file_format: str) -> Iterator[File]:
    for _, plans in groupby(_heatmaps(analysis, choices), attrgetter("labels", "keys")):
        yield from heatmap_files(plans, choices.style, file_format)


def _fewer_heatmaps(analysis: Analysis, choices: ViewOptions) -> ViewOptions:
    """Of a model of many heads those to look at, unless heads are selected."""
    if choices.select or len(analysis.heads) <= MOST_DRAWN:
        return choices
    return replace(choices, select=tuple(str(head.id) for head in listed_heads(analysis)))


def _means(analysis: Analysis, choices: ViewOptions) -> Iterator[TilesPlan]:
    style = choices.style
    for shown in analysis.drawn(choices):
        about = shown.figure_context
        labels, keys = _labels(shown)
        heads = [head.id for head in shown.select(choices.select)]
        of_layers = {layer: [head.head for head in ids] for layer, ids in groupby(heads, lambda head: head.layer)}
        pooled, every = tile_pooling(labels.texts, len(of_layers) + 1, _TILE, style, keys.texts if keys else ())
        means = _mean_patterns(shown, of_layers, pooled)
        norm, cut = scale_of_means(means, style, analysis.longest)
        kind = f"{shown.name} ".lstrip()
        whose, title = f"each {kind}layer’s heads, and of all", f"mean pattern of each {kind}layer’s heads"
        selected, last = "", ("all layers", "all")
        if len(heads) < len(shown.heads):
            count = f"{len(heads)} of {len(shown.heads)} {kind}heads"
            whose, title = f"{count}, by layer and of all of them", f"mean pattern of {count}"
            selected = f"selected: {visible(', '.join(choices.select).replace(',', ', ').replace(',  ', ', '))}"
            last = "all selected", "selected"
        names = [HeadId(layer, 0).layer_name for layer in of_layers]
        titles = [*((f"layer {name.removeprefix('L')}", name) for name in names), last]
        rows = (
            "Rows attend to columns." if shown.context.source is None else "Rows (target) attend to columns (source)."
        )
        yield TilesPlan(
            stem=shown.stem("mean"),
            **about.caption_and_notes(
                f"{about.model} on {about.text_line}: mean attention pattern of {whose}",
                selected,
                f"a mean: no head need look like it. {rows}",
                *_facts(shown, choices, pooled, every),
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


def _mean_patterns(shown: PatternView, of_layers: Mapping[int, Sequence[int]], pooled: int) -> list[Array]:
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
        parts = [part for part in analysis.parts if np.isfinite(_values(part, statistic)).any()] or analysis.parts[-1:]
        name, meaning, unit = statistic_meaning(parts[0], statistic)
        bar = f"{name} ({unit or '0–1'})" if unit or statistics()[statistic].bounded else name
        of_parts = [_map(part, statistic, bar) for part in parts]
        sizes = ", ".join(
            f"{of_part.name} {part.shape[0]} × {part.shape[1]}".strip()
            for part, (of_part, *_) in zip(parts, of_parts, strict=True)
        )
        yield HeadMapPlan(
            stem=f"map-{statistic.replace('_', '-')}",
            **about.caption_and_notes(
                f"{about.model} on {about.text_line}, {name}, head by head ({sizes})",
                f"{meaning}{f', in {unit}' if unit else ''}",
                *dict.fromkeys(hatched for _, hatched, _ in of_parts),
                caption_only=tuple(dict.fromkeys(ends for _, _, ends in of_parts)),
            ),
            title=f"{about.model}: {name}, head by head",
            maps=tuple(of_part for of_part, *_ in of_parts),
        )


def _map(part: Part, statistic: str, bar: str) -> tuple[HeadMap, str, str]:
    """The map of a part, what is hatched in it, and what the ends of its colours are."""
    values, uniform = _values(part, statistic), uniform_value(part, statistic)
    measured = values[np.isfinite(values)]
    title, whose = (f"{part.stack.letter}: {part.name}", f" ({part.name})") if part.name else ("", "")
    bounded = statistics()[statistic].bounded
    top = (0.0 if bounded else max(uniform or 0.0, float(measured.max(initial=0.0)))) or 1.0
    several = len({part.context_of(layer).window for layer in part.layers}) > 1
    mean, lacking = " (mean of layers)" if several else "", len(part.heads) - len(measured)
    ends = [f"colours from 0 to {format_number(top)}{whose}"] if len(measured) else []
    if uniform is not None:
        ends.append(f"uniform attention would give {format_number(uniform)}{whose}{mean}")
    hatched = f"hatched: not measurable on this text for {lacking} of {len(part.heads)} heads" if lacking else ""
    of_part = HeadMap(
        values,
        part.layers,
        title,
        norm=Normalize(0, top, clip=True),
        bar=bar if len(measured) else "",
        reference=None if uniform is None else (uniform, f"uniform attention{mean}"),
    )
    return of_part, hatched, "; ".join(ends)


def _values(part: Part, statistic: str) -> Array:
    """Values [n_layers, n_heads], NaN for None."""
    values = [head.statistics.get(statistic) for head in part.heads]
    return np.array(values, dtype=float).reshape(part.shape)


_NO_PAGE = "it shows all rows; leave out --queries (queries=...)"

OVERVIEW = Drawing(_overview)
HEADS = Drawing(_heatmaps, files=_heatmap_files, by_default=_fewer_heatmaps)
MAP = Drawing(_maps)
MEAN = Drawing(_means)
PAGE = page_drawing("heads", page_data, lambda analysis: "" if analysis.options.queries is None else _NO_PAGE)
