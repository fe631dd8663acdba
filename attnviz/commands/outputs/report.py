"""JSON, CSV, tensors and tables of head outputs, and sentences shared with figures."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from safetensors.torch import save

from attnviz.commands.outputs.direct_effects import NOT_LINEAR, Attribution, Decision, HeadPromotion, TokenLogit
from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.commands.outputs.residual_stream import HeadContribution
from attnviz.errors import UsageError
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import error, percent, quoted, rounded, shortened_token, signed, unisolated
from attnviz.present.documents import model_entry, stack_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, entry, named
from attnviz.present.report import CommandSpec
from attnviz.present.tables import cut_note, first_rows, notes, target_note, verification_line
from attnviz.present.view import ViewOptions

MOST_BYTES = 4 * 2**30
"""Most bytes of outputs.safetensors, which is made in memory."""

_CSV = "outputs.csv"
_PROMOTED, _SUPPRESSED, _LONGEST, _LEAST = 5, 3, 14, 14
"""Tokens listed as promoted and suppressed, and characters of each; least width in columns of the terminal."""

_OF_LAYERS = {
    "attention bias": "b_O of all layers",
    "feed-forward": "feed-forward networks",
    "norm bias": "biases of norms",
    "classifier bias": "biases of the classifier",
    NOT_LINEAR: "what is not linear in the classifier",
}


SHARES_IN_WORDS = (
    "Share of ‖o‖: how far a head’s output reaches along o, the sum of all heads and b_O; below 0 it works against the "
    "others. Share of Σ‖o_h‖: of the norms of the layer’s heads"
)
DIRECT = "through the final norm with its scale held fixed, mean over the vocabulary removed"


def chosen(result: HeadOutputs, choices: ViewOptions) -> list[HeadContribution]:
    """The heads listed, and drawn one by one, the largest share first."""
    return result.select(choices.select)[: choices.top or None]


def _content(result: HeadOutputs, choices: ViewOptions) -> dict[str, Any]:
    attribution, verification = result.attribution, result.attention.verification
    decision, ranks = result.decision, {head.id: rank for rank, head in enumerate(result.heads, start=1)}
    logits = attribution and {name: getattr(attribution, name) for name in ("error", "scale", "tolerance")}
    sum_errors = verification_entry(verification, lambda check: {"sum_error": result.layers[check.layer].sum_error})
    of_layers = ("layer", "norm", "bias_norm", "bias_projection_share")
    return {
        "model": model_entry(result.checkpoint),
        "text": result.text,
        "pair": result.pair,
        "options": {"at": attribution and attribution.position, "tokens_cut_off": result.tokens.truncated},
        "tokens": tokens_entry(result.tokens),
        "verification": {**sum_errors, "logits": logits},
        **target_entry(result.target),
        "layers": [
            {name: getattr(layer, name) for name in of_layers} | stack_entry(layer.layer) for layer in result.layers
        ],
        "heads": [
            entry(
                _FIELDS, head, rank=ranks[head.id],
                promotion=attribution and _promotion(attribution.find(head.id)),
                decision=decision and decision.heads[head.id],
            )
            for head in result.select(choices.select)
        ],
        "attribution": attribution and {
            "position": attribution.position,
            "predicted": asdict(attribution.predicted),
            "actual": attribution.actual and asdict(attribution.actual),
            "deviation": attribution.deviation,
            "parts": [asdict(part) | stack_entry(part.layer) for part in attribution.parts],
        },
        "no_attribution": result.no_attribution or None,
        "decision": decision and _decision_entry(decision),
    }  # fmt: skip


def _promotion(promotion: HeadPromotion | None) -> dict[str, Any] | None:
    if promotion is None:
        return None
    moved = {name: [asdict(token) for token in getattr(promotion, name)] for name in ("promoted", "suppressed")}
    return {"predicted": promotion.predicted, "actual": promotion.actual, **moved}


_FIELDS: tuple[Field[HeadContribution], ...] = (
    *HEAD,
    Field(name="rank"),
    Field("‖o_h‖", name="norm"),
    Field("Share", name="norm_share", unit="of Σ‖o_h‖", write=percent),
    Field("Share", name="projection_share", unit="of ‖o‖", write=percent),
    Field("Sink", name="sink", unit="weight", optional=1),
    Field("Sink", name="sink_by_norm", unit="norm", optional=2),
    Field("‖f(x)‖", name="value_norm", optional=3),
    Field("‖f(x)‖", name="value_norm_of_sinks", unit="of sinks", optional=4),
    Field(name="largest"),
    Field(name="promotion", csv={"predicted": ("predicted",), "actual": ("actual",)}),
    Field(name="decision"),
)
_LISTED = "id projection_share norm_share norm sink sink_by_norm value_norm value_norm_of_sinks".split()


def _tensors(result: HeadOutputs, choices: ViewOptions) -> bytes:
    """Outputs of the selected heads, ``layer.0``, … [n_heads, n, d_model], and b_O, ``bias.0``, …, as safetensors."""
    heads, model = result.select(choices.select), result.checkpoint
    size = len(heads) * len(result.tokens) * model.d_model * (8 if model.dtype == torch.float64 else 4)
    if size > MOST_BYTES:
        raise UsageError(
            f"the outputs of {len(heads)} heads are {size / 2**30:.1f} GiB, more than the {MOST_BYTES / 2**30:g} GiB "
            "that --save-outputs (tensors=True) writes; choose heads with --select (select=...)."
        )
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, list[int]] = {}
    for layer, of_layer in result.by_layer(heads):
        of_kind = stack_entry(layer.layer)
        name, number = of_kind.get("stack", "layer"), of_kind.get("layer", layer.layer)
        bias = f"{name}.bias" if of_kind else "bias"
        numbers[f"{name}.{number}"] = chosen = [head.id.head for head in of_layer]
        tensors[f"{name}.{number}"] = layer.outputs(chosen).cpu()
        tensors[f"{bias}.{number}"] = layer.output_bias.cpu().clone()
    labels = json.dumps(list(result.tokens.labels))
    content: bytes = save(tensors, {"model": model.name, "labels": labels, "heads": json.dumps(numbers)})
    return content


def _tables(result: HeadOutputs, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    """The verification, heads by share, promoted tokens, and notes."""
    attribution, decision = result.attribution, result.decision
    worst = max(layer.sum_error for layer in result.layers)
    more = f", the sum of all heads and b_O by at most {error(worst)}"
    verified = verification_line(result.attention.verification, result.checkpoint, more)
    if split := attribution or decision:
        whole = (
            f"the model's logits at #{attribution.position}" if attribution else "the difference of two classes' logits"
        )
        verified.append(
            f" All parts sum to {whole} within {error(split.error)} of the largest (tolerance {split.tolerance:.0e})."
        )
    yield verified
    heads, title = result.select(choices.select), "Heads ({}, the largest share of their layer’s output first)"
    yield first_rows(title, named(_FIELDS, *_LISTED), heads, choices.top, _CSV, width=width)
    if attribution is not None:
        yield _promotions(attribution, heads, choices.top, width)
        yield _rest(result, attribution)
    if decision is not None:
        yield _decision_table(decision, heads, choices.top, width)
        yield _decision_text(result, decision)
    yield notes(
        f"Over all queries{f' but {result.sinks}' if result.sinks else ''}. {SHARES_IN_WORDS}.",
        f"Sink: attention on {result.sinks or 'sinks (this text has none)'}, by weight A and by norm ‖A f(x)‖ "
        "(Kobayashi et al. 2020); f(x) = (x W_V + b_V) W_O is what a head writes for a token.",
        f"Promoted tokens: direct effect alone, {DIRECT}. ~ continues a word."
        if attribution is not None
        else result.no_attribution
        if decision is None
        else how_it_is_read(result, decision),
        f"{target_note(result.target.text, result.target.generated)} X: keys, and so f(x) and sinks, are of the source."
        if result.target
        else "",
        cut_note(result.tokens),
    )


def _promotions(attribution: Attribution, heads: Sequence[HeadContribution], top: int | None, width: int) -> Table:
    """Table of direct effects: on the predicted and the next token, and the tokens moved most."""
    known = [promotion for head in heads if (promotion := attribution.find(head.id)) is not None]
    ranked = sorted(known, key=lambda head: (-abs(head.predicted), head.id))
    following: list[Field[HeadPromotion]] = [Field("Next", lambda head: signed(head.actual or 0.0))]
    columns = [
        Field("Head", lambda head: head.id, left=True),
        Field("Predicted", lambda head: signed(head.predicted)),
        *(following if attribution.actual is not None else []),
        Field("Promotes (logits)", fit=lambda head, room: _tokens(head.promoted, room), left=True, least=_LEAST),
        Field(
            "Suppresses", fit=lambda head, room: _tokens(head.suppressed[:_SUPPRESSED], room), left=True, least=_LEAST
        ),
    ]
    title = f"Tokens promoted ({{}} head{'s' * (len(known) != 1)}, the largest direct effect first)"
    return first_rows(title, columns, ranked, top, _CSV, width=width)


def _rest(result: HeadOutputs, attribution: Attribution) -> Text:
    """Sentence on the predicted and the next token, and parts of their logits besides heads."""
    predicted, actual = attribution.predicted, attribution.actual
    following = "" if actual is None else f"; next in the text: ‘{actual.text}’ {signed(actual.logit)}"
    others = ((part.name, part.predicted) for part in attribution.parts)
    parts = _listed_parts("heads add", sum(head.predicted for head in attribution.heads), others)
    return Text(
        f"At #{attribution.position} (‘{result.read.labels[attribution.position]}’) the model predicts "
        f"‘{predicted.text}’ {signed(predicted.logit)} above the mean of all logits, {signed(predicted.mean_logit)} "
        f"(the model's own: {signed(predicted.model_logit)}){following}. Of "
        f"{'this' if actual is None else 'the former'}, {parts}."
    )


def _tokens(tokens: Sequence[TokenLogit], room: int) -> str:
    """Tokens with their logits that fit, at least one, cut if necessary; a dash for none."""
    texts = [f"{shortened_token(token.text, _LONGEST)} {signed(token.logit)}" for token in tokens[:_PROMOTED]]
    lines = ["  ".join(texts[:count]) for count in range(len(texts), 0, -1)]
    if not lines or len(lines[-1]) <= room:
        return next((line for line in lines if len(line) <= room), "–")
    return f"{shortened_token(tokens[0].text, room - 1 - len(signed(tokens[0].logit)))} {signed(tokens[0].logit)}"


def _decision_entry(decision: Decision) -> dict[str, Any]:
    """Entry of the decision in outputs.json; effects of heads stand with the heads."""
    named = ("position", "difference", "linear", "error", "scale", "tolerance")
    return {
        **{name: getattr(decision, name) for name in named},
        **{name: getattr(decision, name).name for name in ("label", "against", "predicted")},
        "classes": [asdict(each) for each in decision.classes],
        "parts": [asdict(part) for part in decision.parts],
    }


def versus(decision: Decision) -> str:
    """The two classes: ``“good” against “bad”``."""
    return f"{quoted(decision.label.name)} against {quoted(decision.against.name)}"


def _decision_table(decision: Decision, heads: Sequence[HeadContribution], top: int | None, width: int) -> Table:
    """Table of the heads' parts of the difference of logits, the largest first."""
    ranked = sorted((head.id for head in heads), key=lambda head: (-abs(decision.heads[head]), head))

    def side(head: HeadId) -> str:
        value = decision.heads[head]
        name = (decision.label if value > 0 else decision.against).name
        return "–" if signed(value) == rounded(0.0) else unisolated(quoted(name))

    columns: list[Field[HeadId]] = [
        Field("Head", lambda head: head, left=True),
        Field("Adds", lambda head: signed(decision.heads[head]), "logits"),
        Field("Speaks for", side, left=True),
    ]
    title = "Parts of the decision ({} heads, the largest direct effect first)"
    return first_rows(title, columns, ranked, top, _CSV, width=width)


def _listed_parts(heads: str, total: float, parts: Iterable[tuple[str, float]]) -> str:
    """Sum of heads, and all other parts with layers summed, so that the reader can add up."""
    sums = {heads: total}
    for name, value in parts:
        sums[_OF_LAYERS.get(name, name)] = sums.get(_OF_LAYERS.get(name, name), 0.0) + value
    return ", ".join(f"{name} {signed(value)}" for name, value in sums.items())


def _decision_text(result: HeadOutputs, decision: Decision) -> Text:
    """Sentences on the decision, and all parts of the difference."""
    predicted, token = decision.predicted, result.tokens.labels[decision.position]
    named = ((part.name, part.value) for part in decision.parts)
    parts = _listed_parts("heads", sum(decision.heads.values()), named)
    return Text(
        f"At #{decision.position} (‘{token}’) the model decides for {unisolated(quoted(predicted.name))} (probability "
        f"{rounded(predicted.probability)}). The logit of {unisolated(versus(decision))}: "
        f"{signed(decision.difference)}, of which {parts}."
    )


def how_it_is_read(result: HeadOutputs, decision: Decision) -> str:
    """Sentences on which path is linear."""
    norms = "the final norm" if result.checkpoint.architecture.pre_norm else "every later norm"
    held = f"direct effect alone, through {norms} with its scale at this token held fixed"
    classifier = result.checkpoint.classifier
    if decision.linear or classifier is None:
        return f"Decision: {held}, and through the classifier, which is linear."
    return (
        f"Decision: {held}, up to the classifier's {classifier.activation}, which is not linear: from there along its "
        f"gradient at this text, a linearisation. What that leaves out is a part of its own."
    )


SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    fields=_FIELDS,
    all_selected=True,
    tensors=("outputs.safetensors", _tensors),
)
