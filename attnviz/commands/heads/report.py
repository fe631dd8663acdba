"""JSON, CSV, tables, attention weights and messages of ``attnviz heads``."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from io import BytesIO
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from safetensors.torch import save
from torch import Tensor

from attnviz.analysis.findings import HeadFindings, selected_verdict
from attnviz.analysis.result import Analysis, Part, units_with
from attnviz.commands.heads.first_look import (
    LABEL,
    MOST_DRAWN,
    MOST_LISTED,
    in_text,
    look_rows,
    look_table,
    score_notes,
    seen,
    sentences,
    summary_entry,
)
from attnviz.commands.heads.relations import HeadRelation, relations_of, word_positions
from attnviz.commands.heads.spans import lookback_fields, span_table, span_tables, spans_entry
from attnviz.judge.verdicts import ENOUGH, LEAST_N, Verdict
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import REPEATS, SINK, shares
from attnviz.measures.rows import LEARNED_SINKS, ONE_TEXT, TWO_TEXTS
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, TextContext, scalars, statistics
from attnviz.models.head_ids import ids_and_names, number_of
from attnviz.present.documents import target_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, Table, entry, pick, plain, values_of
from attnviz.present.figure_context import capital
from attnviz.present.kv_heads import kv_head_field, kv_table
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.sentences import checked_line, cut_note, first_lines, target_note, verification_line
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import glued, notes
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import SYNTACTIC
from attnviz.reference.attention import Chunk
from attnviz.wording import counted, quoted, rounded, visible

_STRONGEST, _RELATIONS, _MOST_LISTED = 5, 8, 12
_FEW_PAIRS = 3  # pairs of spans on the first screen
_FARTHEST = 3  # heads that attend farthest

# A role over the stored corpus; profile.json has its evidence.
_STORED_ROLE = plain(
    *("role", "score", "baseline", "n", "interval", "holds"),
    *("passed", "direction", "untrained", "refuted"),
)


_VERDICT = plain("name", "score", "baseline", "n", "holds", "passed", "kind", "enough", "threshold")
# Fields of verdicts, by kind where these have more.
_VERDICTS = {
    "syntactic": (*_VERDICT, *plain("direction", "offset", "baselines")),
    "repeats": (*_VERDICT, *plain("on_repeats", "baseline_on_repeats", "types")),
    "broad": (*_VERDICT, *plain("on_content")),
}


def _content(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    parts = [(part, part.select(choices.select)) for part in analysis.parts]
    target, written, parse = analysis.target, analysis.continuation, analysis.parse
    words = analysis.options.words
    tokens = tokens_entry(analysis.tokens)
    more = dict[str, Any]()
    if written is not None:
        tokens = [{**token, "generated": position >= written.first} for position, token in enumerate(tokens)]
        more = {"generate": written.requested, "generated": written.count}
        more |= {"continuation": written.text, "hit_eos": written.hit_eos}
    elif target is not None:
        more = {
            **target_entry(target),
            "target_tokens_cut_off": target.tokens.truncated,
            "target_words": analysis.parts[-1].units.labels if words else None,
        }
    parsed = None
    if parse is not None:  # words by their tokens, arcs by word; also the parser's own arcs if they were mapped
        mapped_from = parse.vocabulary.mapped_from
        parsed = {
            "parser": parse.parser,
            "vocabulary": parse.vocabulary.name,
            "mapped_from": mapped_from,
            "words": [{"text": word.text, "tokens": word.positions} for word in parse.words],
            "arcs": parse.arcs,
            "own_arcs": None if mapped_from is None else parse.own_arcs,
        }
    return {
        "model": analysis.model_entry,
        "text": analysis.text,
        "pair": analysis.pair,
        "tokens": tokens,
        **more,
        **spans_entry(
            analysis.spans,
            [head.id for head in analysis.select(choices.select)],
            lambda span: units_with(analysis.context.units, span.tokens),
        ),
        "options": {
            **asdict(analysis.options),
            "tokens_cut_off": analysis.tokens.truncated,
            "parser": parse.parser if parse else None,
        },
        **({"decision": analysis.decision} if analysis.decision else {}),
        "verification": verification_entry(analysis.verification),
        "summary": {part.name: summary_entry(part, of_part) for part, of_part in parts if of_part}
        if analysis.parts[0].name
        else summary_entry(*parts[0]),
        "words": analysis.units.labels if words else None,
        "parse": parsed,
        "syntax_note": analysis.syntax_note or None,
        "profile": None if analysis.profile is None else analysis.profile.origin,
    }


def table(analysis: Analysis, choices: ViewOptions) -> Table[HeadFindings]:
    """A row a head."""
    heads = analysis.select(choices.select)
    fields = _fields(analysis)
    if choices.relation:
        related = {
            relation.head.id: _relation_entry(analysis, relation)
            for relation in relations_of(analysis, heads, choices.relation)
        }
        fields.append(Field(value=lambda head: related.get(head.id), name="relation", csv={}))
    return Table("", fields, heads, name="heads")


def _fields(analysis: Analysis) -> list[Field[HeadFindings]]:
    def context(head: HeadFindings) -> TextContext:
        return analysis.context_of(head.id.layer)

    def uniform(statistic: str, name: str, **more: Any) -> Field[HeadFindings]:
        return Field(value=lambda head: context(head).uniform.get(statistic), name=name, **more)

    def baselines(head: HeadFindings) -> dict[str, float | None]:
        known = context(head).baselines_of(head.statistics)
        return {name: known.get(name) for name in shares()}

    def role(head: HeadFindings) -> dict[str, Any] | None:
        if head.role is None:
            return None
        numbers = values_of(head.role, "direction", "score", "baseline", "error_reduction", "n")
        shown = {"in_text": in_text(analysis, head), "seen": seen(analysis, head)[0]}
        return {"name": head.role.role, **numbers, **shown}

    return [
        *HEAD,
        kv_head_field(analysis.checkpoint),
        statistic_field("entropy"),
        uniform("entropy", "entropy_uniform"),
        *(statistic_field(name) for name in scalars() if name != "entropy"),
        *(replace(statistic_field(name), if_known=True) for name in (NOWHERE, *CONTACTS)),
        *(uniform(name, f"{name}_baseline", if_known=True) for name in CONTACTS),
        replace(statistic_field(DIAGONALITY), of_stacks=True),
        uniform(DIAGONALITY, "diagonality_baseline", of_stacks=True, csv={}),
        *lookback_fields(analysis.spans),
        Field(value=lambda head: list(head.alignment) or None, name="alignment", of_stacks=True, csv={}),
        Field(value=baselines, name="baseline", csv={}),
        Field(
            value=lambda head: [entry(_VERDICTS.get(verdict.kind, _VERDICT), verdict) for verdict in head.verdicts],
            name="patterns",
            csv={},
        ),
        *LABEL,
        Field(
            value=role,
            name="role",
            meaning="what it does most clearly over a corpus; its direction, score, best guess and n are those of the "
            "corpus, and in text says whether this text has it",
            csv={
                "role": ("name",),
                **{f"role_{name}": (name,) for name in ("direction", "score", "baseline", "n")},
                "role_in_text": ("seen",),
            },
        ),
        Field(
            value=lambda head: None if head.roles is None else [entry(_STORED_ROLE, role) for role in head.roles],
            name="profile",
            csv={},
        ),
    ]


def _relation_entry(analysis: Analysis, relation: HeadRelation) -> dict[str, Any]:
    """Entry of a head's relation, pair by pair, by positions (tokens, or words)."""
    pairs = []
    for pair in relation.pairs:
        words = {"query": pair.query, "key": pair.key, "attends_most": pair.guess}
        places = {
            name: None if word is None else word_positions(analysis.units, relation.parse, word)
            for name, word in words.items()
        }
        pairs.append({**places, "found": pair.found})
    return values_of(relation, "name", "direction", "found") | {"n": len(pairs), "pairs": pairs}


def _tables(analysis: Analysis, choices: ViewOptions) -> Iterator[RenderableType]:
    """What the heads do and those to look at; if verbose also patterns, every statistic, and notes."""
    _, names = ids_and_names(choices.select)
    chosen, target = analysis.select(choices.select), analysis.target
    rows = look_rows(analysis, choices, 0 if choices.verbose else MOST_LISTED)
    of_target = []
    if target is not None:
        of_target = [target_note(target.text, target.generated), cut_note(target.tokens, "target")]
    first, *others = sentences(analysis, choices)
    yield first_lines(first, ["", *others])
    if rows:
        yield look_table(analysis, rows, choices)
    if not choices.verbose:
        yield from _contact_table(analysis, chosen, choices.rows(MOST_LISTED))
        yield from span_tables(analysis, chosen, choices.rows(_FEW_PAIRS), whole=False)
        below = notes(*of_target, *(score_notes(analysis, rows) if rows else ()))
        yield Group(below, checked_line(analysis.verification, analysis.checkpoint))
        return
    for part in analysis.parts_of(choices.select):
        heads = part.ranked(choices.select)
        if part.name:
            yield Text(f"{capital(part.name)} ({part.stack.letter}): {part.figure_context.text_line}", "bold")
        yield _farthest(part, heads)
        top = _MOST_LISTED if choices.top is None else choices.top or len(heads)
        clearest = "of what selected them" if names else "pattern"
        yield _head_table(part, heads, top, f"clearest {clearest} first")
        if len(heads) > 1:
            yield _pattern_table(heads)
    yield from _contact_table(analysis, chosen, choices.top)
    yield from span_tables(analysis, chosen, choices.top, whole=True)
    yield notes(*_notes(analysis), *of_target)
    yield verification_line(analysis.verification, analysis.checkpoint)


def _head_table(part: Part, ranked: Sequence[HeadFindings], top: int | None, order: str) -> RenderableType:
    context, unit = part.context, part.units.name
    lacking = {
        ONE_TEXT if context.source is not None else TWO_TEXTS,
        *([] if context.learned_sinks else [LEARNED_SINKS]),
    }
    listed = [name for name, each in statistics().items() if each.column and each.value and each.needs not in lacking]
    columns: list[Field[HeadFindings]] = [
        HEAD[0],
        Field("Label", lambda head: Text(head.shown, "dim" if head.mark else "")),  # grey if it is an indication only
        *pick(LABEL, "label_score", "label_baseline", "label_n"),
        *(statistic_field(name, unit) for name in listed),
    ]
    last = ["uniform", "", "", "", "", *(context.uniform.get(name) for name in listed)]
    return Table("Heads", columns, ranked, last).first(top, "heads.csv", order=order)


def _contact_table(analysis: Analysis, heads: Sequence[HeadFindings], top: int | None) -> Iterator[RenderableType]:
    if analysis.context.contacts is None:
        return
    columns = [HEAD[0], *map(statistic_field, CONTACTS)]
    ranked = sorted(heads, key=lambda head: -(head.statistics["contacts_l"] or 0.0))
    last = ["chance", *analysis.context.contacts.chance.values()]
    yield Table("Heads that find contacts", columns, ranked, last).first(top, "heads.csv", order="best first")


def _pattern_table(heads: Sequence[HeadFindings]) -> RenderableType:
    """Patterns and relations: the strongest heads of each, score beside baseline, and how many heads show it."""
    of_roles: dict[str, list[tuple[HeadFindings, Verdict]]] = {}
    for head in heads:
        for verdict in head.verdicts:
            of_roles.setdefault(verdict.role, []).append((head, verdict))
    patterns, relations = [], []
    for role, entries in of_roles.items():
        n, base = entries[0][1].n, role.removeprefix(SYNTACTIC).partition(":")[0]
        if entries[0][1].relation is None:
            patterns.append(entries)
        elif n >= LEAST_N and (role == SYNTACTIC + base or n < of_roles[SYNTACTIC + base][0][1].n):
            relations.append(entries)  # no subtype that is all of its base
    rows = list[dict[str, object]]()
    for entries in [*patterns, *relations[:_RELATIONS]]:
        measured = [verdict for _, verdict in entries if verdict.score is not None] or [entries[0][1]]
        best = min(measured, key=lambda verdict: (-(verdict.score or 0.0), verdict.direction or ""))
        guess = "" if best.baseline is None else best.largest_baseline
        showing = f"{sum(verdict.holds for _, verdict in entries)}/{len(entries)}" if best.n >= ENOUGH else "–"
        row: dict[str, object] = {
            "Pattern": role_name(best.name, best.direction),
            "Strongest heads": _strongest(best, entries),
        }
        rows.append(row | {"Baseline": best.baseline, "which": guess, "n": best.n, "Show": showing})
    columns = [Field[Any](title, title, detail=title == "which") for title in rows[0]]
    return Table("Patterns (the strongest heads of each, with their scores)", columns, rows)


def _strongest(best: Verdict, entries: Sequence[tuple[HeadFindings, Verdict]]) -> str | Text:
    """The strongest heads of a pattern; those that cannot be told apart are counted."""
    if best.score is None:
        return "no copy of an earlier token" if best.kind == "repeats" and not best.n else "not measurable on this text"
    alike = [entry for entry in entries if entry[1].direction == best.direction and entry[1].score is not None]
    ranked = sorted(alike, key=lambda entry: (-(entry[1].score or 0.0), entry[0].id))
    groups = [list(group) for _, group in groupby(ranked, key=lambda entry: _scores(entry[1]))]
    if len(groups[0]) > _STRONGEST:
        return f"{len(groups[0])} heads {_scores(best)}"
    listed: list[str] = []
    for group in groups:
        if len(listed) + len(group) > _STRONGEST:
            break
        listed += [f"{head.id} {_scores(verdict)}" for head, verdict in group]
    return glued(listed)


def _scores(verdict: Verdict) -> str:
    """The score; for induction and duplicate-token also that of repeated tokens."""
    on_repeats = f" ({rounded(verdict.on_repeats)})" if verdict.kind == "repeats" else ""
    return rounded(verdict.score) + on_repeats


def _notes(analysis: Analysis) -> Iterator[str]:
    parse, unit = analysis.parse, analysis.units.name
    yield (
        "Label: what the head does on this text, by this text alone: sink if more than 0.6 of the attention rests "
        "on sinks; then, of the patterns that it shows, the one with the largest error reduction, (score - baseline) / "
        f"(1 - baseline); below n = {LEAST_N} no label. Show: heads above the threshold, for n of {ENOUGH} or more."
    )
    yield "The columns named content leave sinks out and scale each row to sum to 1 (after Voita et al. 2019)."
    repeats = sinks = ""
    if any(analysis.parts[0].context.counts[name] for name in REPEATS):
        repeats = f" In brackets, of induction and duplicate-token: the attention of repeated {unit}s."
    if analysis.sinks:
        tokens = analysis.tokens
        later = any(sink and position and not tokens.special[position] for position, sink in enumerate(tokens.sink))
        how = ", found: most heads of most layers give it over 0.3 of their attention (Gu et al. 2024)" if later else ""
        sinks = f" Sinks: {visible(analysis.sinks)}{how}."
    syntax = analysis.syntax_note
    if parse is not None:
        mapped = parse.vocabulary.mapped_from
        syntax = f"{parse.parser}, may be wrong{f' ({mapped} labels as {parse.vocabulary.name})' if mapped else ''}."
    yield (
        f"Baseline: uniform attention (long-range: the head's weights, keys shuffled), or the best guess.{repeats} n: "
        f"{unit}s or instances; below {ENOUGH} weak (?). A sink that also does something else counts under both kinds."
        f"{sinks} Parser: {syntax}"
    )
    yield _windows_note(analysis)


def _windows_note(analysis: Analysis) -> str:
    if not analysis.windowed:
        return ""
    causal, windows = analysis.context.causal, {context.window or 0 for context in analysis.windowed.values()}
    sizes = " or ".join(str(window if causal else window - 1) for window in sorted(windows))
    seen = (
        f"the last {sizes} tokens alone, itself included" if causal else f"itself and {sizes} tokens on each side alone"
    )
    if all(isinstance(window, Chunk) for window in windows):
        seen = f"its own chunk of {sizes} tokens alone, up to itself"
    return (
        f"Windows: in {counted(len(analysis.windowed), 'layer')} of {analysis.checkpoint.n_layers} a token sees "
        f"{seen}; baselines of these heads are of uniform attention within the window, the last row's of all."
    )


def _farthest(part: Part, heads: Sequence[HeadFindings]) -> Text:
    uniform = part.context.uniform["distance_non_sink"] or 0.0
    distances = [(head.statistics["distance_non_sink"] or 0.0, head.id) for head in heads if SINK not in head.kinds]
    ranked = sorted((-away, id) for away, id in distances if away > uniform)[:_FARTHEST]
    named = ", ".join(f"{id} {-away:.2f}" for away, id in ranked)
    mean = f"mean {part.units.name}s away (uniform attention {uniform:.2f})"
    return notes(f"Farthest (no sinks), {mean}: {named}." if named else "")


def _in_paper(analysis: Analysis, choices: ViewOptions) -> Table[HeadFindings]:
    """Heads that were selected by what they do stand in the terminal's order, with the numbers that selected them."""
    whole = table(analysis, choices)
    _, names = ids_and_names(choices.select)
    if not names:
        return whole
    rows = []
    for part in analysis.parts:
        for head in part.ranked(choices.select):
            verdict, labelled = selected_verdict(head, names), head.labelled
            if verdict is not None:
                labelled = replace(labelled, verdicts=(verdict,), n=verdict.n)
            rows.append(replace(head, labelled=labelled))
    return replace(whole, rows=rows)


def _further(analysis: Analysis, choices: ViewOptions) -> Iterator[tuple[str, bytes | str]]:
    if analysis.spans is not None:
        yield "heads-spans.csv", span_table(analysis.spans, analysis.select(choices.select)).csv()
    if choices.save_attention:
        yield "attention.safetensors", save(*_tensors(analysis))
    if choices.save_npz:
        tensors, metadata = _tensors(analysis)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays |= {name: np.array(json.loads(text) if "labels" in name else text) for name, text in metadata.items()}
        content = BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        yield "attention.npz", content.getvalue()


def _kv_heads(analysis: Analysis) -> Table[dict[str, Any]]:
    names, heads = analysis.heads[0].statistics, analysis.heads
    return kv_table(
        analysis.checkpoint, {name: {head.id: head.statistics.get(name) for head in heads} for name in names}
    )


def _tensors(analysis: Analysis) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All patterns, [n_heads, n_queries, n_keys] a layer (``layer.0``, ``encoder.0``), and what is said of them."""
    tensors, units = {}, analysis.units
    for part in analysis.parts:
        for layer in part.layers:
            tensors[f"{part.name or 'layer'}.{number_of(layer)}"] = part.layer_patterns(layer).contiguous()
    metadata = {"unit": units.name, "labels": json.dumps(list(units.labels)), "model": analysis.checkpoint.name}
    if analysis.target is not None:
        metadata["target_labels"] = json.dumps(list(analysis.parts[-1].units.labels))
    return tensors, metadata


def hints(analysis: Analysis, choices: ViewOptions, document: dict[str, Any]) -> Iterator[str]:
    """Messages: the generated text, heads without a picture, and the view for long texts."""
    n, unit = len(analysis.units), analysis.units.name
    if analysis.target is not None and analysis.target.generated:
        yield f"the model generated the target, greedily: {quoted(analysis.target.text)}; --target gives another."
    written = analysis.continuation
    if written is not None:
        end = f", and ended it before the {written.requested} that were asked for" if written.hit_eos else ""
        how = f"by {counted(written.count, 'token')}, greedily{end}"
        yield f"the model continued the text {how}: {quoted(written.text.strip())}."
    n_drawn = len({name.partition(".")[0] for name in document["figures"] if name.startswith("heads/")})
    if not choices.select and len(analysis.heads) > MOST_DRAWN and 0 < n_drawn < len(analysis.heads):
        yield f"heatmaps of {n_drawn} heads to look at; --figures heads draws those of all {len(analysis.heads)}."
    drawn = {re.split(r"\W", name, maxsplit=1)[0] for name in document["figures"]}
    if "lines" in drawn:
        from attnviz.commands.heads.token_views import lines_left_out

        yield lines_left_out(analysis, choices)
    if "lines" in drawn and n > _LONG_TEXT:
        yield f"lines of {n} {unit}s are a tangle: --figures text shows the text, shaded by what each {unit} receives."
    if choices.relation:
        from attnviz.commands.heads.relations_view import relations_left_out

        yield from relations_left_out(analysis, choices)


_LONG_TEXT = 100  # tokens from which on the view ``text`` is recommended over ``lines``

# The command's presentation.
SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    table=table,
    patterns=True,
    kv_heads=_kv_heads,
    further=_further,
    in_paper=_in_paper,
    paper=(
        *("id", "label", "label_score", "label_baseline", "label_n"),
        *("role", "role_direction", "role_score", "role_baseline", "role_n", "role_in_text"),
    ),
    top=None,
)
