"""JSON, CSV, tensors and tables of head outputs, and sentences shared with figures."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.outputs.measure import NO_PROMOTIONS, HeadContribution, HeadOutputs
from attnviz.measures.direct_effects import NOT_LINEAR, DirectEffects, TokenLogit
from attnviz.present.documents import layer_entry, target_entry, text_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick, plain_value, values_of
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_rows, glued, notes, target_note, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import error, percent, quoted, rounded, shortened_token, signed

_CSV = "outputs.csv"
_PROMOTED, _SUPPRESSED, _LONGEST = 5, 3, 14  # tokens listed as promoted and suppressed, and characters of each

_OF_LAYERS = {
    "attention bias": "b_O of all layers",
    "feed-forward": "feed-forward networks",
    "experts": "experts",
    "mixer": "mixers of layers that do not attend",
    "norm bias": "biases of norms",
    "words by layer": "tables of words that layers read",
}


def _content(result: HeadOutputs, _: ViewOptions) -> dict[str, Any]:
    effects, verification = result.effects, result.attention.verification
    sum_errors = verification_entry(verification, lambda check: {"sum_error": result.layers[check.layer].sum_error})
    return {
        **text_entry(result),
        "options": {"at": effects and effects.position, "tokens_cut_off": result.tokens.truncated},
        "verification": {**sum_errors, "logits": effects and values_of(effects, "error", "scale", "tolerance")},
        **target_entry(result.target),
        "layers": [
            values_of(layer, "layer", "norm", "bias_norm", "bias_projection_share") | layer_entry(layer.layer)
            for layer in result.layers
        ],
        "effects": effects and _effects_entry(effects),
        "end_effects": result.end_effects and _effects_entry(result.end_effects),
        "no_effects": result.no_effects or None,
    }


_WRITTEN = "position boundary difference linear deviation answer predicted foil actual classes".split()


def _effects_entry(effects: DirectEffects) -> dict[str, Any]:
    parts = [asdict(part) | layer_entry(part.layer) for part in effects.parts]
    return {**values_of(effects, *_WRITTEN), "parts": parts}


_FIELDS: tuple[Field[HeadContribution], ...] = (
    Field("‖o_h‖", name="norm"),
    Field("Share", name="norm_share", unit="of Σ‖o_h‖", write=percent),
    Field("Share", name="projection_share", unit="of ‖o‖", write=percent),
    Field("Sink", name="sink", unit="weight", detail=True),
    Field("Sink", name="sink_by_norm", unit="norm", detail=True),
    Field("‖f(x)‖", name="value_norm", detail=True),
    Field("‖f(x)‖", name="value_norm_of_sinks", unit="of sinks", detail=True),
    Field(name="largest"),
)
_FIRST = ("id", "projection_share", "sink", "sink_by_norm")
_LISTED = "id projection_share norm_share norm sink sink_by_norm value_norm value_norm_of_sinks".split()


def _table(result: HeadOutputs, choices: ViewOptions) -> NamedTable[HeadContribution]:
    effects, end = result.effects, result.end_effects
    ranks = {head.id: rank for rank, head in enumerate(result.heads, start=1)}
    of_heads, moved = ({}, {}) if effects is None else (effects.heads, effects.promotions)
    fields: list[Field[HeadContribution]] = [
        *HEAD,
        Field(value=lambda head: ranks[head.id], name="rank"),
        *_FIELDS,
        Field(
            "Adds" if end is None else "Start",
            lambda head: of_heads.get(head.id),
            unit="logits",
            name="direct_effect",
            write=signed,
        ),
        Field(value=lambda head: plain_value(moved.get(head.id)), name="promotion", csv={}),
    ]
    if end is not None:
        at_end = end.heads
        fields.append(Field("End", lambda head: at_end.get(head.id), "logits", "direct_effect_on_end", write=signed))
    return NamedTable("heads", fields, result.select(choices.select))


def _tables(result: HeadOutputs, choices: ViewOptions) -> Iterator[RenderableType]:
    effects, end, verbose = result.effects, result.end_effects, choices.verbose
    more = f", the sum of all heads and b_O by at most {error(max(layer.sum_error for layer in result.layers))}"
    verified = verification_line(result.attention.verification, result.checkpoint, more if verbose else "")
    if effects is not None and verbose:
        verified.append(
            f" All parts sum to the difference of the model's logits at #{effects.position} within "
            f"{error(effects.error * effects.scale)} (tolerance {effects.tolerance * effects.scale:.0e}, in logits)."
        )
    yield verified
    table, few = _table(result, choices), choices.rows(10 if effects is None else 4)
    columns = pick(table.fields, *(_LISTED if verbose else _FIRST))
    order = "the largest share of their layer’s output first"
    yield first_rows("Heads", columns, table.rows, few, _CSV, order=order)
    if effects is None:
        yield notes(result.no_effects)
    else:
        yield _effects_table(effects, end, table, few, verbose)
        yield _effects_text(result, effects)
    if end is not None:
        yield _effects_text(result, end)
    if not verbose:
        return
    how = "" if effects is None else how_it_is_read(result, effects)
    if effects is not None and not effects.classes and not effects.boundary:
        more = "Promoted tokens: mean over the vocabulary removed; ~ continues a word."
        how = f"{how} {more if effects.promotions else NO_PROMOTIONS}"
    yield notes(
        f"Over all queries{f' but {result.sinks}' if result.sinks else ''}. Share of ‖o‖: how far a head’s output "
        "reaches along o, the sum of all heads and b_O; below 0 it works against the others. Share of Σ‖o_h‖: of the "
        "norms of the layer’s heads.",
        f"Sink: attention on {result.sinks or 'sinks (this text has none)'}, by weight A and by norm ‖A f(x)‖ "
        "(Kobayashi et al. 2020); f(x) = (x W_V + b_V) W_O is what a head writes for a token.",
        how,
        f"{target_note(result.target.text, result.target.generated)} X: keys, and so f(x) and sinks, are of the source."
        if result.target
        else "",
    )


def _effects_table(
    effects: DirectEffects, end: DirectEffects | None, table: NamedTable[HeadContribution], top: int | None, whole: bool
) -> RowTable[HeadContribution]:
    """Table of direct effects, the largest first, and of the tokens moved most, or of whom a head speaks for."""
    sizes = {head: abs(value + (end.heads[head] if end else 0.0)) for head, value in effects.heads.items()}
    rows = sorted((row for row in table.rows if row.id in sizes), key=lambda row: (-sizes[row.id], row.id))
    moved, columns = effects.promotions, pick(table.fields, "id", "direct_effect")

    def side(row: HeadContribution) -> str:
        value = effects.heads[row.id]
        choice = effects.answer if value > 0 else effects.foil
        return "–" if choice is None or signed(value) == rounded(0.0) else quoted(choice.text)

    def tokens(named: Sequence[TokenLogit]) -> Text:
        return glued(f"{shortened_token(token.text, _LONGEST)} {signed(token.logit)}" for token in named)

    title = "Direct effects on answer minus foil"
    if end is not None:
        title = "Direct effects on start and end of the answer"
        columns += pick(table.fields, "direct_effect_on_end")
    elif not moved:
        columns.append(Field("Speaks for", side))
    else:
        columns.append(Field("Promotes (logits)", lambda row: tokens(moved[row.id].promoted[:_PROMOTED])))
        if whole:
            columns.append(Field("Suppresses", lambda row: tokens(moved[row.id].suppressed[:_SUPPRESSED]), detail=True))
    return first_rows(title, columns, rows, top, _CSV, order="the largest first")


def versus(effects: DirectEffects) -> str:
    """Answer and foil: ``“good” minus “bad”``; of question answering ``start at “France”``."""
    if effects.foil is None:
        return f"{effects.boundary} at {quoted(effects.answer.text)}"
    return f"{quoted(effects.answer.text)} minus {quoted(effects.foil.text)}"


def _effects_text(result: HeadOutputs, effects: DirectEffects) -> Text:
    predicted, answer = effects.predicted, effects.answer
    where = f"#{effects.position} (‘{result.read.labels[effects.position]}’)"
    sums: dict[str, float] = {"heads": sum(effects.heads.values())}  # and the others, so that the reader can add up
    for part in effects.parts:
        name = _OF_LAYERS.get(part.name, part.name)
        if name.endswith(NOT_LINEAR):
            name = f"what is not linear in the {name.removesuffix(NOT_LINEAR)}"
        sums[name] = sums.get(name, 0.0) + part.direct_effect
    parts = ", ".join(f"{name} {signed(value)}" for name, value in sums.items())
    whole = f"{signed(effects.difference)}, of which {parts}."
    if effects.boundary:
        return Text(
            f"The answer’s {effects.boundary} at {where} has probability {rounded(answer.probability)}; the model’s "
            f"first choice is #{predicted.id} (‘{predicted.text}’, {rounded(predicted.probability)}). "
            f"Its logit: {whole}"
        )
    follows, actual = "", effects.actual
    if actual is not None:
        follows = f"; next in the text: ‘{actual.text}’ (probability {rounded(actual.probability)})"
    return Text(
        f"At {where} the model {'decides for' if effects.classes else 'predicts'} {quoted(predicted.text)} "
        f"(probability {rounded(predicted.probability)}){follows}. The logit of {versus(effects)}: {whole}"
    )


def how_it_is_read(result: HeadOutputs, effects: DirectEffects) -> str:
    """Sentences on which path is linear."""
    norms = "the final norm" if result.checkpoint.architecture.pre_norm else "every later norm"
    held = f"Direct effects alone, through {norms} with its scale at this token held fixed"
    classifier = result.checkpoint.class_head
    what = "unembedding" if classifier is None else "classifier"
    if effects.linear:
        return f"{held}, and through the {what}, which is linear."
    activation = f"{what}'s {classifier.activation}" if classifier and classifier.activation else what
    return (
        f"{held}, up to the {activation}, which is not linear: from there along its gradient at this text, a "
        "linearisation. What that leaves out is a part of its own."
    )


SPEC = CommandSpec(content=_content, tables=_tables, table=_table, all_selected=True)
