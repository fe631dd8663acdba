"""JSON, CSV, attention weights and messages of ``attnviz heads``."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import BytesIO
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis, units_with
from attnviz.commands.heads.findings import HeadFindings, selected_verdict, sorted_by_selection
from attnviz.commands.heads.first_look import in_text, seen
from attnviz.commands.heads.relations import HeadRelation, relations_of, word_positions
from attnviz.commands.heads.spans import lookback_fields, span_table, spans_entry
from attnviz.commands.heads.summary import LABEL, MOST_DRAWN, summary_entry
from attnviz.commands.heads.tables import head_tables
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import SHARES
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, SCALARS, TextContext
from attnviz.models.head_ids import LayerId, ids_and_names
from attnviz.present.documents import target_entry, text_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, entry, plain
from attnviz.present.kv_heads import kv_head_field, kv_table
from attnviz.present.report import CommandSpec
from attnviz.present.statistics import statistic_field
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, quoted

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
            "target_words": list(target.context.units.labels) if words else None,
        }
    parsed = None
    if parse is not None:  # words by their tokens, arcs by word; also the parser's own arcs if they were mapped
        mapped_from = parse.vocabulary.mapped_from
        parsed = {
            "parser": parse.parser,
            "vocabulary": parse.vocabulary.name,
            "mapped_from": mapped_from,
            "words": [{"text": word.text, "tokens": list(word.positions)} for word in parse.words],
            "arcs": list(map(asdict, parse.arcs)),
            "own_arcs": None if mapped_from is None else list(map(asdict, parse.own_arcs)),
        }
    return {
        **text_entry(analysis),
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
        "tokens": tokens,
        **({"decision": analysis.decision.entry} if analysis.decision else {}),
        "verification": verification_entry(analysis.verification),
        "summary": summary_entry(*parts[0])
        if target is None
        else {part.stack_name: summary_entry(part, of_part) for part, of_part in parts if of_part},
        "words": list(analysis.units.labels) if words else None,
        "parse": parsed,
        "syntax_note": analysis.syntax_note or None,
        "profile": None if analysis.profile is None else analysis.profile.origin,
    }


def table(analysis: Analysis, choices: ViewOptions) -> NamedTable[HeadFindings]:
    """A row a head."""
    heads = [head for part in analysis.parts for head in part.select(choices.select)]
    fields = _fields(analysis)
    if choices.relation:
        related = {
            relation.head.id: _relation_entry(analysis, relation)
            for relation in relations_of(analysis, heads, choices.relation)
        }
        fields.append(Field(value=lambda head: related.get(head.id), name="relation", csv={}))
    return NamedTable("heads", fields, heads)


def _fields(analysis: Analysis) -> list[Field[HeadFindings]]:
    parts = {head.id: part for part in analysis.parts for head in part.heads}

    def context(head: HeadFindings) -> TextContext:
        return parts[head.id].context_of(head.id.layer)

    def baselines(head: HeadFindings) -> dict[str, float | None]:
        known = context(head).baselines_of(head.statistics)
        return {name: known[name] for name in SHARES}

    def role(head: HeadFindings) -> dict[str, Any] | None:
        if head.role is None:
            return None
        numbers = {
            name: getattr(head.role, name) for name in ("direction", "score", "baseline", "error_reduction", "n")
        }
        part = parts[head.id]
        return {"name": head.role.role, **numbers, "in_text": in_text(part, head), "seen": seen(part, head)}

    return [
        *HEAD,
        kv_head_field(analysis.checkpoint),
        _statistic("entropy"),
        Field(value=lambda head: context(head).uniform["entropy"], name="entropy_uniform"),
        *(_statistic(name) for name in SCALARS if name != "entropy"),
        *(replace(_statistic(name), if_known=True) for name in (NOWHERE, *CONTACTS)),
        *(
            Field(value=lambda head, name=name: context(head).uniform.get(name), name=f"{name}_baseline", if_known=True)  # type: ignore[misc]
            for name in CONTACTS
        ),
        replace(_statistic(DIAGONALITY), of_stacks=True),
        Field(
            value=lambda head: parts[head.id].context.uniform[DIAGONALITY],
            name="diagonality_baseline",
            of_stacks=True,
            csv={},
        ),
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


def _statistic(name: str) -> Field[HeadFindings]:
    return statistic_field(name, lambda head: head.statistics.get(name))


def _relation_entry(analysis: Analysis, relation: HeadRelation) -> dict[str, Any]:
    """Entry of a head's relation, pair by pair, by positions (tokens, or words)."""
    pairs = []
    for pair in relation.pairs:
        words = {"query": pair.query, "key": pair.key, "attends_most": pair.guess}
        places = {name: None if word is None else word_positions(analysis, word) for name, word in words.items()}
        pairs.append({**places, "found": pair.found})
    return {
        "name": relation.name,
        "direction": relation.direction,
        "found": relation.found,
        "n": len(relation.pairs),
        "pairs": pairs,
    }


def _in_paper(analysis: Analysis, choices: ViewOptions) -> NamedTable[HeadFindings]:
    """Heads that were selected by what they do stand in the terminal's order, with the numbers that selected them."""
    whole = table(analysis, choices)
    _, names = ids_and_names(choices.select)
    if not names:
        return whole
    rows = []
    for part in analysis.parts:
        for head in sorted_by_selection(part.select(choices.select), names):
            verdict, labelled = selected_verdict(head, names), head.labelled
            if verdict is not None:
                labelled = replace(labelled, verdicts=(verdict,), n=verdict.n)
            rows.append(replace(head, labelled=labelled))
    return NamedTable("heads", whole.fields, rows)


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


def _kv_heads(analysis: Analysis) -> NamedTable[dict[str, Any]]:
    names, heads = analysis.heads[0].statistics, analysis.heads
    return kv_table(
        analysis.checkpoint, {name: {head.id: head.statistics.get(name) for head in heads} for name in names}
    )


def _tensors(analysis: Analysis) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All patterns, [n_heads, n_queries, n_keys] a layer (``layer.0``, ``encoder.0``), and what is said of them."""
    tensors = {}
    for layer in analysis.checkpoint.layers:
        name = f"{layer.stack.name}.{layer.number}" if isinstance(layer, LayerId) else f"layer.{layer}"
        tensors[name] = analysis.layer_patterns(layer).contiguous()
    units = analysis.units
    metadata = {"unit": units.name, "labels": json.dumps(list(units.labels)), "model": analysis.checkpoint.name}
    if analysis.target is not None:
        metadata["target_labels"] = json.dumps(list(analysis.target.context.units.labels))
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
        from attnviz.commands.heads.lines_view import lines_left_out

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
    tables=head_tables,
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
