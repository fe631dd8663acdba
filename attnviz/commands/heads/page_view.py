"""The view ``page`` of ``attnviz heads``: every head to hover over, click and compare, in one file without network."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from attnviz.analysis.findings import HeadFindings, clearest_first, evidence
from attnviz.analysis.pictures import axis_of, axis_with, command_options, kept_note, packed_patterns, pattern_entry
from attnviz.analysis.result import Analysis, Part, PatternView
from attnviz.commands.heads.first_look import (
    MOST_LISTED,
    corpora_of,
    in_text,
    look_rows,
    look_table,
    over_corpus,
    score_notes,
    sentences,
    unless_seen,
)
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import outlined_note, outlines_of
from attnviz.commands.heads.spans import page_spans
from attnviz.commands.heads.token_views import token_positions
from attnviz.figures.families import FAMILIES, family_of_label
from attnviz.figures.style import PLAIN
from attnviz.inputs.prompt import sinks_in_words
from attnviz.judge.verdicts import UNNAMED
from attnviz.measures.statistics import scalars
from attnviz.models.head_ids import HeadId, ids_and_names
from attnviz.options import typed
from attnviz.page.page import (
    ERROR,
    PackedPattern,
    label_entry,
    pack,
    statistic_entry,
)
from attnviz.present.figure_context import STACK_LEGEND, capital, caption_of
from attnviz.present.published import role_name
from attnviz.present.role_words import family_words
from attnviz.present.sentences import verification_line
from attnviz.present.statistics import LOOKBACK, described
from attnviz.present.view import ViewOptions
from attnviz.wording import counted


def page_data(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``; ``choices`` set the initial view."""
    views = [part.drawn(drop_special=False) for part in analysis.parts]
    about, ranked, last = analysis.figure_context, _most_telling_first(analysis, choices), views[-1]
    number_of_view = {layer: number for number, view in enumerate(views) for layer in view.layers}
    row_of = {layer: row for row, layer in enumerate(dict.fromkeys(head.id.layer for head in analysis.heads))}
    relations = dict(_relations(analysis, views[0], choices)) if choices.relation else {}
    axes = [axis_of(last)] if last.context.source is None else [axis_with(last, last.keys, last.columns), axis_of(last)]
    kept = _patterns(views, ranked, choices.budget)
    index = {head: number for number, head in enumerate(kept)}
    first = kept_note(len(kept), len(ranked), choices.budget, "of the clearest labels, sinks last")
    recomputed = "verified" if analysis.verification.level else "recomputed"
    within = f"Statistics are those of heads.json; weights on the page are within {ERROR} of the {recomputed} ones."
    kinds, token = kinds_in_words(analysis), []
    if choices.token is not None:
        token = list(token_positions(views[number_of_view[ranked[0].layer]], choices.token))
    return {
        "command": "heads",
        "title": f"{about.model} on {about.text_line}",
        "caption": caption_of(
            f"Interactive page of {about.subject}: {counted(len(analysis.heads), 'head')}"
            f"{'' if analysis.target else f', {counted(about.n, about.unit)}'}; opens from disk, without network",
            first,
        ),
        "verification": verification_line(analysis.verification, analysis.checkpoint).plain,
        "notes": list(filter(None, [first, within, kinds and f"{capital(kinds)}."])),
        "sides": [about.model],
        "axes": axes,
        "kinds": [view.name for view in views if view.name],
        "end": 1,
        "rows": [HeadId(layer, 0).layer_name for layer in row_of],
        "columns": max(view.shape[1] for view in views),
        "statistics": list(_statistics(analysis)),
        "heads": [
            {
                **_head_entry(analysis, head),
                **relations.get(head.id, {}),
                "row": row_of[head.id.layer],
                "kind": number_of_view[head.id.layer],
                "patterns": [index[head.id]] if head.id in index else [],
            }
            for head in analysis.heads
        ],
        "patterns": list(kept.values()),
        "dropped": analysis.sinks,
        "command_line": _command_line(analysis, choices),
        "start": {
            "head": str(ranked[0]),
            "scale": choices.style.scaled_for(analysis.longest).scale,
            "drop": choices.drop_special,
            "token": token,
        },
        "tables": [],
        **first_look_entry(analysis, choices),
        **page_spans(analysis),
    }


def _patterns(views: Sequence[PatternView], ranked: Sequence[HeadId], budget: int) -> dict[HeadId, dict[str, Any]]:
    """``Packed`` of as many heads as there is room for; axis 0 is the source, where there is one, and 1 the target."""

    def read(ids: Sequence[HeadId]) -> Iterator[tuple[HeadId, Sequence[PackedPattern]]]:
        return ((id, [pattern]) for view in views for id, pattern in packed_patterns(view, ids))

    source, entries = views[-1].columns, {}
    for id, (packed,) in pack(ranked, read, max(len(view.units) * len(view.keys) for view in views), budget).items():
        (view,) = [view for view in views if id.layer in view.layers]
        rows, columns = (int(tokens is not source) for tokens in (view.rows, view.columns))
        entries[id] = pattern_entry(packed, rows, columns, view.context_of(id.layer))
    return entries


def first_look_entry(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    """The sentences of the terminal's first screen, and its heads to look at."""
    rows = look_rows(analysis, choices, MOST_LISTED)
    listed = None
    if rows:
        listed = look_table(analysis, rows, choices).for_page(" ".join(score_notes(analysis, rows)), head=0)
    does = {family.name: family_words(family.name, 2, analysis.units.name, "sinks") for family in FAMILIES}
    return {"sentences": sentences(analysis, choices), "look": listed, "does": does}


def _most_telling_first(analysis: Analysis, choices: ViewOptions) -> list[HeadId]:
    """Selected heads, by id as they were named; then cross-attention, sinks and broad ones last; the clearest first."""
    selections = [*ids_and_names(choices.select)[0], choices.select] if choices.select else []
    chosen = [head for selection in selections for head in analysis.select(selection)]
    others = clearest_first(analysis.heads)
    others.sort(
        key=lambda head: (head.id.layer_name.startswith("X"), {"sink", "broad"}.isdisjoint(head.kinds)), reverse=True
    )
    return list(dict.fromkeys(head.id for head in (*chosen, *others)))


def kinds_in_words(analysis: Analysis) -> str:
    """Note on ids and squares of an encoder-decoder, or ''."""
    if analysis.target is None:
        return ""
    if len(analysis.parts) == 1:
        return "from the target (rows) to the source (columns), stretched to squares"
    whose = "generated, greedily" if analysis.target.generated else "given"
    legend = STACK_LEGEND if analysis.parts[0].name == "encoder" else STACK_LEGEND.removeprefix("E: encoder, ")
    return f"{legend}; the target was {whose}, its rows are what the decoder reads: each predicts the next one"


def _relations(analysis: Analysis, view: PatternView, choices: ViewOptions) -> Iterator[tuple[HeadId, dict[str, Any]]]:
    """The pairs that the heatmaps of selected heads outline, as in ``Head`` of ``attnviz/page/patterns.js``."""
    for relation in relations_of(analysis, analysis.select(choices.select), choices.relation):
        pairs = [[*outline.rows, *outline.columns, outline.found] for outline in outlines_of(view, relation, 1)]
        yield relation.head.id, {"relation": {"said": capital(outlined_note(relation)), "pairs": pairs}}


def _head_entry(analysis: Analysis, head: HeadFindings) -> dict[str, Any]:
    role, entry = head.role, None
    if role is not None:
        entry = {
            **label_entry(role_name(role.role, None), head.role_label, seen=in_text(analysis, head)),
            "kinds": list(dict.fromkeys(family_of_label(each.role).name for each in head.roles or ())),
            "where": unless_seen(analysis, head),
            "evidence": f"{over_corpus(analysis, head)}, measured on {corpora_of(analysis, [head])}",
        }
    elif analysis.profile is not None:
        unnamed = UNNAMED if "statistics" in analysis.profile.parts else "not measured"
        entry = {**label_entry(unnamed, UNNAMED), "where": "", "evidence": ""}
    return {
        "id": str(head.id),
        "column": head.id.head,
        **label_entry(head.labelled.shown, head.label, mark=head.mark),
        "evidence": evidence(head),
        "role": entry,
    }


def _command_line(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    """What draws the page again; of given weights nothing does."""
    if not analysis.verification.level:
        return {"program": [], "texts": [], "options": []}
    return {
        "program": ["heads"],
        "texts": analysis.tokens.asked[0],
        "options": [*command_options(analysis), *typed({"relation": choices.relation})],
        "scale": PLAIN.scaled_for(analysis.longest).scale,
    }


def statistic_meaning(part: Part, statistic: str) -> tuple[str, str, str]:
    """Title, meaning and unit of a statistic of this text; shares have unit ''."""
    unit = part.units.name
    return described(statistic, unit, sinks_in_words(part.keys, unit, "the special tokens"))


def uniform_value(part: Part, statistic: str) -> float | None:
    """The statistic under uniform attention, if layers have windows the mean over the layers; None if undefined."""
    values = (part.context_of(layer).uniform.get(statistic) for layer in part.layers)
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _statistics(analysis: Analysis) -> Iterable[dict[str, Any]]:
    for name in [*scalars(), *analysis.optional]:
        uniform = (uniform_value(part, name) for part in analysis.parts)
        values = (head.statistics.get(name) for head in analysis.heads)
        yield statistic_entry(name, *statistic_meaning(analysis.parts[0], name), uniform, values)
    spans = analysis.spans
    if spans is not None and spans.layout.first_new is not None:
        ratios = [spans.lookback(head.id) for head in analysis.heads]
        even = [spans.lookback_uniform(analysis.heads[0].id)]
        yield statistic_entry("lookback", "lookback ratio", LOOKBACK, "", even, ratios)
