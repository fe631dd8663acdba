"""The view ``page`` of ``attnviz heads``: every head to hover over, click and compare, in one file without network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, clearest_first, evidence
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
from attnviz.inputs.sound import Frames
from attnviz.inputs.tokens import Positions, Tokens, merge_subwords, sinks_in_words
from attnviz.judge.verdicts import UNNAMED
from attnviz.measures.statistics import SCALARS, TextContext
from attnviz.models.head_ids import HeadId, ids_and_names
from attnviz.models.sources import BUILT_IN
from attnviz.options import typed
from attnviz.page.page import (
    ERROR,
    PackedPattern,
    axis_entry,
    colours_entry,
    families_entry,
    label_entry,
    pack,
    statistic_entry,
)
from attnviz.present.figure_context import STACK_LEGEND, capital, caption_of
from attnviz.present.published import role_name
from attnviz.present.role_words import family_words
from attnviz.present.statistics import LOOKBACK, described
from attnviz.present.tables import page_table, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import counted

Empty = Callable[[HeadId], PackedPattern]  # makes the empty pattern of a head, by id


def page_data(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``; ``choices`` set the initial view."""
    shown = analysis.drawn(drop_special=False)
    about, model, parts = shown.figure_context, analysis.checkpoint, shown.parts
    of_layer = {head.id.layer: number for number, part in enumerate(parts) for head in part.heads}
    cells = max(len(part.units) * len(part.keys) for part in parts)
    ranked = _most_telling_first(analysis, choices)

    def patterns(ids: Sequence[HeadId], empty: Empty) -> Iterator[tuple[HeadId, Sequence[PackedPattern]]]:
        filled = shown.read(map(shown.head, ids), lambda head: empty(head.id))
        return ((head.id, [pattern]) for head, pattern in filled)

    kept = pack(ranked, patterns, cells, lambda head: parts[of_layer[head.layer]].context.causal, choices.budget)
    index = {head: number for number, head in enumerate(kept)}
    row_of = {layer: row for row, layer in enumerate(of_layer)}
    first_head, start = ranked[0], parts[of_layer[ranked[0].layer]]
    relations = dict(_relations(analysis, choices)) if choices.relation else {}
    first = kept_note(len(kept), len(ranked), choices.budget, "of the clearest labels, sinks last")
    last = parts[-1]
    axes = [axis_of(last)]
    if last.stack_letter == "X":  # the source, then the target
        axes.insert(0, _axis(last, last.keys, last.tokens))
    packed_patterns = []
    for head, (packed,) in kept.items():  # rows and columns by the numbers of their axes: the source, then the target
        part = parts[of_layer[head.layer]]
        rows, columns = part.stack_letter in ("D", "X"), part.stack_letter == "D"
        packed_patterns.append(pattern_entry(packed, int(rows), int(columns), analysis.context_of(head.layer)))
    return {
        "command": "heads",
        "title": f"{about.model} on {about.text_line}",
        "caption": caption_of(
            f"Interactive page of {about.subject}: {counted(len(analysis.heads), 'head')}"
            f"{'' if analysis.target else f', {counted(about.n, about.unit)}'}; opens from disk, without network",
            first,
        ),
        "verification": verification_line(analysis.verification, model).plain,
        "notes": list(filter(None, [first, *_page_notes(analysis)])),
        "sides": [about.model],
        "axes": axes,
        "kinds": [part.stack.name for part in parts if part.stack is not None],
        "end": 1,
        "rows": [HeadId(layer, 0).layer_name for layer in of_layer],
        "columns": max(part.shape[1] for part in parts),
        "statistics": list(_statistics(analysis)),
        "heads": [
            {
                **_head_entry(analysis, head),
                **relations.get(head.id, {}),
                "row": row_of[head.id.layer],
                "kind": of_layer[head.id.layer],
                "patterns": [index[head.id]] if head.id in index else [],
            }
            for head in analysis.heads
        ],
        "patterns": packed_patterns,
        "dropped": analysis.sinks,
        "colours": colours_entry(),
        "families": families_entry(),
        "command_line": {
            "program": ["heads"] if analysis.verification.level else [],
            "texts": [] if analysis.chat is not None or isinstance(analysis.tokens, Frames) else [analysis.text],
            "options": [*command_options(analysis), *typed({"relation": choices.relation})],
            "scale": PLAIN.scaled_for(analysis.longest).scale,
        },
        "start": {
            "head": str(first_head),
            "scale": choices.style.scaled_for(analysis.longest).scale,
            "drop": choices.drop_special,
            "token": list(() if choices.token is None else token_positions(start, choices.token)),
        },
        "tables": [],
        **first_look_entry(analysis, choices),
        **page_spans(analysis),
    }


def first_look_entry(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    """The sentences of the terminal's first screen, and its heads to look at."""
    rows = look_rows(analysis, choices, MOST_LISTED)
    listed = None
    if rows:
        table = look_table(rows, len(analysis.select(choices.select)), choices)
        listed = page_table(table.title, " ".join(score_notes(rows)), table.columns, rows, head=0)
    does = {family.name: family_words(family.name, 2, analysis.units.name, "sinks") for family in FAMILIES}
    return {"sentences": sentences(analysis, choices), "look": listed, "does": does}


def pattern_entry(packed: str, rows: int, columns: int, context: TextContext) -> dict[str, Any]:
    """``Packed`` as in ``attnviz/page/patterns.js``, with what the mask of its layer hides."""
    mask = {"triangle": context.causal, "window": context.window}
    return {"rows": rows, "columns": columns, "data": packed, **mask}


def _most_telling_first(analysis: Analysis, choices: ViewOptions) -> list[HeadId]:
    """Selected heads, by id as they were named; then cross-attention, sinks and broad ones last; the clearest first."""
    selections = [*ids_and_names(choices.select)[0], choices.select] if choices.select else []
    chosen = [head for selection in selections for head in analysis.select(selection)]
    others = clearest_first(analysis.heads)
    others.sort(
        key=lambda head: (head.id.layer_name.startswith("X"), {"sink", "broad"}.isdisjoint(head.kinds)), reverse=True
    )
    return list(dict.fromkeys(head.id for head in (*chosen, *others)))


def _page_notes(analysis: Analysis) -> Iterator[str]:
    recomputed = "verified" if analysis.verification.level else "recomputed"
    yield f"Statistics are those of heads.json; weights on the page are within {ERROR} of the {recomputed} ones."
    if analysis.target:
        yield capital(f"{kinds_in_words(analysis)}.")


def kinds_in_words(analysis: Analysis) -> str:
    """Note on ids and squares of an encoder-decoder, or ''."""
    if analysis.target is None:
        return ""
    if len(analysis.parts) == 1:
        return "from the target (rows) to the source (columns), stretched to squares"
    whose = "generated, greedily" if analysis.target.generated else "given"
    legend = STACK_LEGEND.removeprefix("E: encoder, ") if isinstance(analysis.tokens, Frames) else STACK_LEGEND
    return f"{legend}; the target was {whose}, its rows are what the decoder reads: each predicts the next one"


def _relations(analysis: Analysis, choices: ViewOptions) -> Iterator[tuple[HeadId, dict[str, Any]]]:
    """The pairs that the heatmaps of selected heads outline, as in ``Head`` of ``attnviz/page/patterns.js``."""
    for part in analysis.parts:
        for relation in relations_of(part, part.select(choices.select), choices.relation):
            pairs = [[*outline.rows, *outline.columns, outline.found] for outline in outlines_of(part, relation, 1)]
            said = capital(outlined_note(part, relation))
            yield relation.head.id, {"relation": {"said": said, "pairs": pairs}}


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


def axis_of(analysis: Analysis) -> dict[str, Any]:
    """The tokens of the rows, with the words that they merge into; or the words."""
    return _axis(analysis, analysis.units, analysis.row_tokens)


def _axis(analysis: Analysis, units: Positions, tokens: Tokens) -> dict[str, Any]:
    words = None if analysis.options.words or isinstance(tokens, Frames) else merge_subwords(tokens, True)
    return axis_entry(units, [tokens.segments[members[0]] for members in units.members], words)


def command_options(analysis: Analysis) -> list[str]:
    """Command-line options that give the same numbers."""
    model, target = analysis.checkpoint, analysis.target
    spans = () if analysis.spans is None else analysis.spans.spans
    others = asdict(analysis.options) | {
        "revision": None if model.names[0] in BUILT_IN else model.revision or None,
        "dtype": str(model.dtype).removeprefix("torch."),
        "source_language": getattr(model.tokenizer, "src_lang", None),
        "target_language": getattr(model.tokenizer, "tgt_lang", None),
        "chat": analysis.chat and (analysis.chat.file or "chat.json"),
        "spans": [f"{span.name}={span.given}" for span in spans if span.given],
        "audio": analysis.text if isinstance(analysis.tokens, Frames) else None,
        "pair": analysis.pair,
        "generate": None if analysis.continuation is None else analysis.continuation.requested,
        "target": None if target is None or target.generated else target.text,
        "max_new_tokens": target and target.max_new_tokens,
        "truncate": analysis.tokens.truncated > 0,
    }
    return [*model.model_options, *typed(others)]


def kept_note(kept: int, total: int, budget: int, ranked: str) -> str:
    """Note on patterns left out of the page, or ''; ``ranked`` says which ones come first."""
    if kept == total:
        return ""
    return (
        f"Patterns of {kept} of {counted(total, 'head')} are on this page, those selected (--select) or {ranked}, to "
        f"keep it below {budget / 1_000_000:g} MB; all have their statistics."
    )


def statistic_meaning(analysis: Analysis, statistic: str) -> tuple[str, str, str]:
    """Title, meaning and unit of a statistic of this text; shares have unit ''."""
    unit = analysis.units.name
    return described(statistic, unit, sinks_in_words(analysis.keys, unit, "the special tokens"))


def uniform_value(analysis: Analysis, statistic: str) -> float | None:
    """The statistic under uniform attention, if layers have windows the mean over the layers; None if undefined."""
    layers = analysis.checkpoint.layers if analysis.windowed else analysis.checkpoint.layers[:1]
    values = [analysis.context_of(layer).uniform.get(statistic) for layer in layers]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _statistics(analysis: Analysis) -> Iterable[dict[str, Any]]:
    for name in [*SCALARS, *analysis.optional]:
        uniform = (uniform_value(part, name) for part in analysis.parts)
        values = (head.statistics.get(name) for head in analysis.heads)
        yield statistic_entry(name, *statistic_meaning(analysis, name), uniform, values)
    spans = analysis.spans
    if spans is not None and spans.layout.first_new is not None:
        ratios = [spans.lookback(head.id) for head in analysis.heads]
        even = [spans.lookback_uniform(analysis.heads[0].id)]
        yield statistic_entry("lookback", "lookback ratio", LOOKBACK, "", even, ratios)
