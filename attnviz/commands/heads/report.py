"""JSON, CSV, attention weights and messages of ``attnviz heads``."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from safetensors.torch import save

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, selected_verdict, sorted_by_selection
from attnviz.commands.heads.relations import HeadRelation, positions_of, relations_of
from attnviz.commands.heads.spans import lookback_fields, positions_of_span, span_table, spans_entry
from attnviz.commands.heads.summary import LABEL, MOST_DRAWN, seen, summary_entry
from attnviz.commands.heads.tables import head_tables
from attnviz.judge.verdicts import Verdict
from attnviz.language.syntax import Parse
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import SHARES
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, SCALARS, TextContext
from attnviz.models.head_ids import LayerId, ids_and_names
from attnviz.present.documents import target_entry, text_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, entry, plain
from attnviz.present.report import CommandSpec
from attnviz.present.statistics import statistic_field
from attnviz.present.view import ViewOptions
from attnviz.wording import quoted

_STORED_ROLE = plain(
    "role", "score", "baseline", "n", "interval", "holds", "passed", "direction", "untrained", "refuted"
)  # fmt: skip
"""A role over the stored corpus; profile.json has its evidence."""


def _content(analysis: Analysis, choices: ViewOptions) -> dict[str, Any]:
    parts = [(part, part.select(choices.select)) for part in analysis.parts]
    return {
        **text_entry(analysis),
        **_target_entry(analysis),
        **spans_entry(
            analysis.spans,
            [head.id for head in analysis.select(choices.select)],
            partial(positions_of_span, analysis),
        ),
        "options": {
            **asdict(analysis.options),
            "tokens_cut_off": analysis.tokens.truncated,
            "parser": analysis.parse.parser if analysis.parse else None,
        },
        "tokens": _text_tokens(analysis),
        "verification": verification_entry(analysis.verification),
        "summary": summary_entry(*parts[0])
        if analysis.target is None
        else {part.stack_name: summary_entry(part, of_part) for part, of_part in parts if of_part},
        "words": list(analysis.units.labels) if analysis.options.words else None,
        "parse": None if analysis.parse is None else _parse(analysis.parse),
        "syntax_note": analysis.syntax_note or None,
        "profile": None if analysis.profile is None else analysis.profile.origin,
    }


def table(analysis: Analysis, choices: ViewOptions) -> NamedTable[HeadFindings]:
    """A row a head."""
    parts = {head.id: part for part in analysis.parts for head in part.heads}

    def context(head: HeadFindings) -> TextContext:
        return parts[head.id].context_of(head.id.layer)

    def diagonal(head: HeadFindings) -> float | None:
        return parts[head.id].context.uniform[DIAGONALITY]

    def baselines(head: HeadFindings) -> dict[str, float | None]:
        known = context(head).baselines_of(head.statistics)
        return {name: known[name] for name in SHARES}

    fields: list[Field[HeadFindings]] = [
        *HEAD,
        _statistic("entropy"),
        Field(value=lambda head: context(head).uniform["entropy"], name="entropy_uniform"),
        *(_statistic(name) for name in SCALARS if name != "entropy"),
        *(replace(_statistic(name), if_known=True) for name in (NOWHERE, *CONTACTS)),
        *(
            Field(value=lambda head, name=name: context(head).uniform.get(name), name=f"{name}_baseline", if_known=True)  # type: ignore[misc]
            for name in CONTACTS
        ),
        replace(_statistic(DIAGONALITY), of_stacks=True),
        Field(value=diagonal, name="diagonality_baseline", of_stacks=True, csv={}),
        *lookback_fields(analysis.spans),
        Field(value=lambda head: list(head.alignment) or None, name="alignment", of_stacks=True, csv={}),
        Field(value=baselines, name="baseline", csv={}),
        Field(value=lambda head: [_verdict(verdict) for verdict in head.verdicts], name="patterns", csv={}),
        *LABEL,
        Field(
            value=lambda head: _role_entry(head, parts[head.id]),
            name="role",
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
    heads = [head for part in analysis.parts for head in part.select(choices.select)]
    if choices.relation:
        related = {
            each.head.id: _relation_entry(analysis, each) for each in relations_of(analysis, heads, choices.relation)
        }
        fields.append(Field(value=lambda head: related.get(head.id), name="relation", csv={}))
    return NamedTable("heads", fields, heads)


def _further(analysis: Analysis, choices: ViewOptions) -> dict[str, NamedTable[Any]]:
    """Attention between spans, of the selected heads, where the text has spans."""
    if analysis.spans is None:
        return {}
    return {"heads-spans.csv": span_table(analysis.spans, analysis.select(choices.select))}


def _statistic(name: str) -> Field[HeadFindings]:
    return statistic_field(name, lambda head: head.statistics.get(name))


_JUDGED = ("label_score", "label_baseline", "label_n")


def _in_paper(analysis: Analysis, choices: ViewOptions) -> NamedTable[HeadFindings]:
    """Heads that were selected by what they do stand in the terminal's order, with the numbers that selected them."""
    whole = table(analysis, choices)
    _, names = ids_and_names(choices.select)
    if not names:
        return whole

    def selected(field: Field[HeadFindings]) -> Field[HeadFindings]:
        def value(head: HeadFindings) -> Any:
            found = selected_verdict(head, names)
            return field.value_for(head) if found is None else (*found.judged, found.n)[_JUDGED.index(field.name)]

        return replace(field, value=value) if field.name in _JUDGED else field

    fields = [selected(field) for field in whole.fields]
    rows = [head for part in analysis.parts for head in sorted_by_selection(part.select(choices.select), names)]
    return NamedTable("heads", fields, rows)


def _role_entry(head: HeadFindings, analysis: Analysis) -> dict[str, Any] | None:
    """Entry of the head's role over the corpus, with its numbers, and whether it occurs in this text."""
    if head.role is None:
        return None
    numbers = {name: getattr(head.role, name) for name in ("direction", "score", "baseline", "error_reduction", "n")}
    return {"name": head.role.role, **numbers, "in_text": analysis.has_role(head), "seen": seen(analysis, head)}


def _parse(parse: Parse) -> dict[str, Any]:
    """Entry of the parse: words by their tokens, arcs by word; also the parser's own arcs if they were mapped."""
    return {
        "parser": parse.parser,
        "vocabulary": parse.vocabulary.name,
        "mapped_from": parse.vocabulary.mapped_from,
        "words": [{"text": word.text, "tokens": list(word.positions)} for word in parse.words],
        "arcs": [asdict(arc) for arc in parse.arcs],
        "own_arcs": None if parse.vocabulary.mapped_from is None else [asdict(arc) for arc in parse.own_arcs],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    more = {
        "syntactic": ["direction", "offset", "baselines"],
        "repeats": ["on_repeats", "baseline_on_repeats", "types"],
        "broad": ["on_content"],
    }
    names = ["name", "score", "baseline", "n", "holds", "passed", "kind", "enough", "threshold"]
    return {name: getattr(verdict, name) for name in (*names, *more.get(verdict.kind, []))}


def _attention_bytes(analysis: Analysis, _: ViewOptions) -> bytes:
    """All patterns as safetensors: one tensor [n_heads, n_queries, n_keys] a layer, ``layer.0``, ``encoder.0``."""
    layers = analysis.checkpoint.layers
    names = [f"{at.stack.name}.{at.number}" if isinstance(at, LayerId) else f"layer.{at}" for at in layers]
    tensors = {name: analysis.layer_patterns(layer).contiguous() for name, layer in zip(names, layers, strict=True)}
    units = analysis.units
    said = {"unit": units.name, "labels": json.dumps(list(units.labels)), "model": analysis.checkpoint.name}
    if analysis.target is not None:
        said["target_labels"] = json.dumps(list(analysis.target.context.units.labels))
    content: bytes = save(tensors, said)
    return content


def _target_entry(analysis: Analysis) -> dict[str, Any]:
    target, written = analysis.target, analysis.continuation
    if written is not None:
        counts = {"generate": written.requested, "generated": written.count}
        return {**counts, "continuation": written.text, "hit_eos": written.hit_eos}
    if target is None:
        return {}
    return {
        **target_entry(target),
        "target_tokens_cut_off": target.tokens.truncated,
        "target_words": list(target.context.units.labels) if analysis.options.words else None,
    }


def _text_tokens(analysis: Analysis) -> list[dict[str, Any]]:
    entries, written = tokens_entry(analysis.tokens), analysis.continuation
    if written is None:
        return entries
    return [{**entry, "generated": position >= written.first} for position, entry in enumerate(entries)]


def _relation_entry(analysis: Analysis, relation: HeadRelation) -> dict[str, Any]:
    """Entry of a head's relation, pair by pair, by positions (tokens, or words)."""
    ends = ((pair.query, pair.key, pair.guess) for pair in relation.pairs)
    positions = [[None if word is None else positions_of(analysis, word) for word in words] for words in ends]
    return {
        "name": relation.name,
        "direction": relation.direction,
        "found": relation.found,
        "n": len(relation.pairs),
        "pairs": [
            {"query": query, "key": key, "attends_most": guess, "found": pair.found}
            for (query, key, guess), pair in zip(positions, relation.pairs, strict=True)
        ],
    }


def hints(analysis: Analysis, choices: ViewOptions, document: dict[str, Any]) -> Iterator[str]:
    """Messages: the generated text, heads without a picture, and the view for long texts."""
    n, unit = len(analysis.units), analysis.units.name
    if analysis.target is not None and analysis.target.generated:
        yield f"the model generated the target, greedily: {quoted(analysis.target.text)}; --target gives another."
    if analysis.continuation is not None:
        yield f"the model continued the text, greedily: {quoted(analysis.continuation.text.strip())}."
    n_drawn = len({name.partition(".")[0] for name in document["figures"] if name.startswith("heads/")})
    if not choices.select and len(analysis.heads) > MOST_DRAWN and 0 < n_drawn < len(analysis.heads):
        yield f"heatmaps of {n_drawn} heads to look at; --figures heads draws those of all {len(analysis.heads)}."
    drawn = {re.split(r"\W", name, maxsplit=1)[0] for name in document["figures"]}
    if "lines" in drawn:
        from attnviz.commands.heads.lines_view import lines_left_out

        yield lines_left_out(analysis, choices)
    if "lines" in drawn and n > _LONG_TEXT:
        yield f"lines of {n} {unit}s are a tangle: --figures text shows the text, shaded by what each {unit} receives."
    if choices.relation:
        from attnviz.commands.heads.relations_view import relations_left_out

        yield from relations_left_out(analysis, choices)


_LONG_TEXT = 100  # tokens from which on the view ``text`` is recommended over ``lines``

SPEC = CommandSpec(
    content=_content,
    tables=head_tables,
    table=table,
    patterns=True,
    further=_further,
    tensors=("attention.safetensors", _attention_bytes),
    in_paper=_in_paper,
    paper=("id", "label", *_JUDGED, "role", "role_direction", "role_score", "role_baseline", "role_n", "role_in_text"),
    top=None,
)
"""The command's presentation."""
