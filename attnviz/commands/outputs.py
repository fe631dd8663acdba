"""What every head adds to the residual stream on one text, and directly to the logit of an answer.

Norms and shares of o_h = (A v) W_O (:mod:`attnviz.measures.output_shares`), norm-weighted attention ‖A[q, k] f(x_k)‖
with f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020), and direct effects, o_h at one position times the direction of an
answer minus a foil in the unembedding (:mod:`attnviz.measures.direct_effects`; Elhage et al. 2021).
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.errors import CheckpointError, UsageError
from attnviz.inputs.prompt import Prompt, TargetTokens, find_positions, merge_subwords, position_of
from attnviz.inputs.refusals import refuse
from attnviz.inputs.spans import named_span
from attnviz.inputs.text import tokenize
from attnviz.locks import alone
from attnviz.measures.direct_effects import DirectEffects, Promotion, TokenLogit, answer_ids, direct_effects
from attnviz.measures.output_shares import HeadContribution, OutputShares, measure_contributions
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.direct_effects import effects_entry, effects_in_words, linear_path
from attnviz.present.documents import Entry, layer_entry, target_entry, text_entry, verification_entry
from attnviz.present.fields import HEAD, Field, Table, pick, values_of
from attnviz.present.figure_context import FigureContext
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, TextResult
from attnviz.present.view import ViewOptions
from attnviz.progress import Progress, tell
from attnviz.reference.attention import upcast
from attnviz.run.contributions import LayerContributions, layer_contributions, without_gradients
from attnviz.run.generate import target_tokens
from attnviz.run.record import block_memory
from attnviz.run.stream import WrittenParts, recording_parts, why_no_effects
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted, error, percent, quoted, rounded, shortened_token, signed

if TYPE_CHECKING:
    from rich.console import RenderableType


NO_PROMOTIONS = (
    "Promoted tokens are not given: they need logits of tokens that are linear in the final state. Those of a "
    "masked-language head, and those that are bounded (final_logit_softcapping), are not."
)

_SPANS = "The head for question answering gives start and end of an answer: --answer-span (answer_span=...) names one."
_CSV = "outputs.csv"
_PROMOTED, _SUPPRESSED, _LONGEST = 5, 3, 14  # tokens listed as promoted and suppressed, and characters of each


@dataclass(frozen=True, repr=False, eq=False)
class HeadOutputs(TextResult, OfHeads[HeadContribution]):
    """Result of :func:`head_outputs`; nothing in it comes from an unverified head."""

    command: ClassVar[str] = "outputs"
    noun: ClassVar[str] = "Outputs"

    attention: VerifiedAttention  # the verified heads, from which tensors are recomputed on demand
    layers: tuple[OutputShares, ...]  # first layer first
    heads: tuple[HeadContribution, ...]  # by share of the output's norm, the largest first
    written: WrittenParts | None  # the residual stream in parts, for direct effects; None where there are none
    effects: DirectEffects | None  # of heads on an answer minus a foil: two tokens, or classes of the text or a token
    no_effects: str  # why there are none, or ''
    target: TargetTokens | None = None  # of an encoder-decoder, what its decoder reads
    end_effects: DirectEffects | None = None  # on the end of an answer in question answering; ``effects``: its start

    @property
    def read(self) -> Prompt:
        """The text whose next tokens are predicted: the target, or in models of one kind the text."""
        return self.tokens if self.target is None else self.target.tokens

    @property
    def figure_context(self) -> FigureContext:
        about = super().figure_context
        if self.target is None:
            return about
        sizes = counted(len(self.tokens), "token"), counted(len(self.read), "token")
        return replace(about, texts=(*about.texts, self.target.text), sizes=sizes)

    def output(self, head: str | HeadId) -> Tensor:
        """Output of a head in the residual stream, (A V) W_O, [n, d_model], on the CPU.

        Raises UsageError where there is no such head, VerificationError where the model was changed since.
        """
        layer, number = self._written_by(head)
        return torch.cat([layer.outputs(number, rows[0], first).cpu() for first, rows in layer.rows([number])])

    def norms(self, head: str | HeadId) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.norms(number, layer.pattern(number)).cpu()

    def value_norms(self, head: str | HeadId) -> Tensor:
        """||f(x_k)|| of every key, [n], on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.value_norms(number).cpu()

    def pattern(self, head: str | HeadId) -> Tensor:
        """The raw pattern A, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.pattern(number).cpu()

    def _written_by(self, head: str | HeadId) -> tuple[LayerContributions, int]:
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer), id.head

    @alone
    def effects_at(
        self, token: str | int | None = None, answer: str | int | None = None, foil: str | int | None = None
    ) -> DirectEffects:
        """Direct effects at another position, or on another answer minus a foil; arguments as of :func:`head_outputs`.

        Raises UsageError where there is no such position, token or class, or the model gives no logits.
        """
        if self.written is None:
            raise UsageError(self.no_effects)
        if self.end_effects is not None:
            raise UsageError(f"effects_at is not for question answering. {_SPANS}")
        position = _position(self.checkpoint, self.read, token)
        return direct_effects(self.attention, self.written, position, *answer_ids(self.checkpoint, answer, foil))

    def promoted(self, head: str | HeadId, token: str | int | None = None) -> Promotion:
        """The tokens that a head's output promotes and suppresses, by default at the position of :attr:`effects`.

        Raises UsageError for no such head or position, or a model or a head of which no logits are a linear map.
        """
        id = self.head(head).id
        effects = self.effects if token is None and self.effects is not None else self.effects_at(token)
        if not effects.promotions:
            raise UsageError(NO_PROMOTIONS)
        if id not in effects.promotions:
            raise UsageError(
                f"{id} writes into the encoder's residual stream, of which no logits are made; expected a head of "
                "the decoder or of cross-attention."
            )
        return effects.promotions[id]

    @cached_property
    def largest(self) -> float:
        return max(head.largest for head in self.heads)

    @property
    def in_words(self) -> str:
        id, value = self.heads[0].id, self.heads[0].projection_share
        share = "no share" if value is None else f"{rounded(value)} of its layer's output"
        counts = f"{len(self.heads)} heads verified, {id} first ({share})"
        return f"of {quoted(self.text)} with {self.figure_context.model}: {counts}"


@checked
def head_outputs(
    text: str,
    model: Model | None = None,
    *,
    pair: str | None = None,
    truncate: bool = False,
    token: str | int | None = None,
    answer: str | int | None = None,
    foil: str | int | None = None,
    answer_span: str | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> HeadOutputs:
    """Measure what every head of a model adds to the residual stream on a text.

    >>> result = attnviz.head_outputs("The cat that I saw ran away")  # doctest: +SKIP
    >>> result.heads[0].id, result.heads[0].projection_share  # doctest: +SKIP
    >>> result.output("L2H8").shape, result.norms("L2H8").shape  # doctest: +SKIP

    Args:
        text: one text.
        model: see :data:`attnviz.models.opening.Model`.
        pair: a second segment (BERT).
        truncate: cut a text that is longer than the model instead of raising.
        token: where direct effects and promoted tokens are read: a token or word of the text, ``cat#2``, ``#3`` or a
            position counted from 0; default the last, and of a masked-language model its mask, else the last but
            special tokens. Of an encoder-decoder (T5) one of the decoder's. A classifier reads its own; in token
            classification a word's first piece is read.
        answer: whose logit is divided into direct effects: a token, as text or as its id in the vocabulary, or a class,
            by name or number; default the model's first choice.
        foil: whose logit is subtracted from the answer's; default the first of the model's other choices.
        answer_span: in question answering, the stretch of the context whose start and end logits are divided: its
            text, ``text#2`` or ``#10-#12``; default the model's own answer. The text is the question, ``pair`` the
            context.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        max_new_tokens: of that text, at most; default 40.
        memory: that a chunk of query rows may take, in bytes, or as ``"64M"``; default 48 MiB, on a GPU 1 GiB or a
            quarter of what is free.
        progress: callback for every layer verified and measured.
        opening: see :class:`attnviz.options.ModelOptions`.

    Raises:
        AttnvizError: VerificationError where the heads do not reproduce the model, do not sum to its attention outputs,
            or the parts of its logits do not sum to these; UsageError for what the model or text lacks.
    """
    of_chunk = block_memory(memory)
    checkpoint, _ = open_checkpoint(model, **opening)
    refuse({"target": target, "max_new_tokens": max_new_tokens}, checkpoint)
    why_not = why_no_effects(checkpoint)
    if token is not None and (why_not or checkpoint.classifier):
        why = why_not or "A classifier reads the final state of one token, the first or the last."
        raise UsageError(f"leave out --token (token=...), where direct effects are read. {why}")
    labels = [] if checkpoint.class_head is None else checkpoint.class_head.labels
    of_span = checkpoint.answers_questions
    if of_span and len(labels) != 2:
        raise CheckpointError(
            f"the head for question answering gives {len(labels)} numbers a token; expected two, of the start and the "
            "end of an answer (num_labels in config.json)."
        )
    if of_span and (token, answer, foil) != (None, None, None):
        raise UsageError(f"leave out --token, --answer and --foil (token=..., answer=..., foil=...). {_SPANS}")
    if answer_span is not None and not of_span:
        raise UsageError(
            "--answer-span (answer_span=...) is for a checkpoint with a head for question answering; the head of this "
            f"one: {checkpoint.head_in_words}."
        )
    ids = answer_ids(checkpoint, answer, foil)
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    decoded = target_tokens(checkpoint, tokens, target, truncate, max_new_tokens)
    read = tokens if decoded is None else decoded.tokens
    position = _position(checkpoint, read, token)
    ends: tuple[int, int] | None = None
    if answer_span is not None:
        context = _context(tokens)
        span = named_span("", answer_span, tokens, merge_subwords(tokens, words=False)).tokens
        ends = span[0], span[-1]
        if not {*span} <= {*context}:
            raise UsageError(
                f"--answer-span (answer_span=...) is {answer_span!r}: expected positions of the context, "
                f"#{context[0]} to #{context[-1]}."
            )
    with recording_parts(checkpoint, read) if not why_not else nullcontext() as written:
        verified = verify_attention(
            checkpoint, tokens, progress=progress, target=decoded and decoded.tokens, memory=of_chunk
        )
    layers, heads = [], []
    for layer in checkpoint.layers:
        shares, of_layer = measure_contributions(verified, layer)
        layers.append(shares)
        heads += of_layer
        tell(progress, "measuring", layer + 1, checkpoint.n_layers)
    effects, end = None, None
    if written is not None and of_span:
        first, last = ends or _best_answer(checkpoint, written, tokens)
        effects, end = direct_effects(verified, written, first, 0), direct_effects(verified, written, last, 1)
    elif written is not None:
        effects = direct_effects(verified, written, position, *ids)
    return HeadOutputs(
        checkpoint=checkpoint,
        tokens=tokens,
        attention=verified,
        layers=tuple(layers),
        heads=tuple(sorted(heads, key=lambda head: (-(head.projection_share or 0.0), head.id))),
        written=written,
        effects=effects,
        no_effects=why_not,
        target=decoded,
        end_effects=end,
    )


def _context(tokens: Prompt) -> list[int]:
    """Positions of the text in which an answer is looked for: of a pair the second."""
    context = int(1 in tokens.segments)
    placed = enumerate(zip(tokens.segments, tokens.special, strict=True))
    return [position for position, (segment, special) in placed if segment == context and not special]


def _best_answer(checkpoint: Checkpoint, written: WrittenParts, tokens: Prompt) -> tuple[int, int]:
    """First and last token of the stretch of the context with the largest sum of both logits."""
    head = checkpoint.prediction_head
    assert head is not None
    with without_gradients(checkpoint.device):
        start, end = upcast(head(written.sites[None, "final"])).unbind(-1)
        outside = torch.ones(len(tokens), dtype=torch.bool, device=start.device)
        outside[_context(tokens)] = False
        start, before = start.masked_fill(outside, -torch.inf).cummax(0)
        last = int((start + end.masked_fill(outside, -torch.inf)).argmax())
    return int(before[last]), last


def _position(checkpoint: Checkpoint, tokens: Prompt, token: str | int | None) -> int:
    """A token, of a word of several pieces the last, or the first that gets a class; default: the predicting one."""
    of_tokens = checkpoint.class_head is not None and checkpoint.classifier is None
    if token is not None:
        return find_positions(merge_subwords(tokens, words=False), token)[0 if of_tokens else -1]
    if checkpoint.classifier is not None:
        return checkpoint.classifier.position(tokens.ids)
    if checkpoint.stacks or (checkpoint.architecture.causal and not of_tokens):
        return len(tokens) - 1
    masked = [position for position, id in enumerate(tokens.ids) if id == checkpoint.tokenizer.mask_token_id]
    return masked[0] if masked else position_of(tokens)


# --- tables


def _content(result: HeadOutputs, _: ViewOptions) -> Entry:
    effects, verification = result.effects, result.attention.verification
    sum_errors = verification_entry(verification, lambda check: {"sum_error": result.layers[check.layer].sum_error})
    return {
        **text_entry(result, {"at": effects and effects.position}),
        "verification": {**sum_errors, "logits": effects and values_of(effects, "error", "scale", "tolerance")},
        **target_entry(result.target),
        "layers": [
            values_of(layer, "layer", "norm", "bias_norm", "bias_projection_share") | layer_entry(layer.layer)
            for layer in result.layers
        ],
        "effects": effects and effects_entry(effects),
        "end_effects": result.end_effects and effects_entry(result.end_effects),
        "no_effects": result.no_effects or None,
    }


_COLUMNS: tuple[Field[HeadContribution], ...] = (
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


def _table(result: HeadOutputs, choices: ViewOptions) -> Table[HeadContribution]:
    effects, end = result.effects, result.end_effects
    ranks = {head.id: rank for rank, head in enumerate(result.heads, start=1)}
    of_heads, moved = ({}, {}) if effects is None else (effects.heads, effects.promotions)

    def adds(title: str, name: str, by_head: dict[HeadId, float]) -> Field[HeadContribution]:
        return Field(title, lambda head: by_head.get(head.id), "logits", name, write=signed)

    columns: list[Field[HeadContribution]] = [
        *HEAD,
        Field(value=lambda head: ranks[head.id], name="rank"),
        *_COLUMNS,
        adds("Adds" if end is None else "Start", "direct_effect", of_heads),
        Field(value=lambda head: moved.get(head.id), name="promotion", csv={}),
        *([] if end is None else [adds("End", "direct_effect_on_end", end.heads)]),
    ]
    return Table("Heads", columns, result.select(choices.select), name="heads")


def _tables(result: HeadOutputs, choices: ViewOptions) -> "Iterator[RenderableType]":
    from attnviz.present.sentences import verification_line

    effects, verbose = result.effects, choices.verbose
    more = f", the sum of all heads and b_O by at most {error(max(layer.sum_error for layer in result.layers))}"
    verified = verification_line(result.attention.verification, result.checkpoint, more if verbose else "")
    if effects is not None and verbose:
        verified.append(
            f" All parts sum to the difference of the model's logits at #{effects.position} within "
            f"{error(effects.error * effects.scale)} (tolerance {effects.tolerance * effects.scale:.0e}, in logits)."
        )
    yield verified
    table, few = _table(result, choices), choices.rows(10 if effects is None else 4)
    yield table.pick(*(_LISTED if verbose else _FIRST)).first(
        few, _CSV, order="the largest share of their layer’s output first"
    )
    if effects is not None:
        yield _effects_table(result, effects, table, verbose).first(few, _CSV, order="the largest first")
    for of_end in (effects, result.end_effects):
        if of_end is not None:
            yield effects_in_words(of_end, result.read.labels)


def _effects_table(
    result: HeadOutputs, effects: DirectEffects, table: Table[HeadContribution], whole: bool
) -> Table[HeadContribution]:
    """Direct effects, the largest first, and the tokens moved most, or of whom a head speaks for."""
    from attnviz.present.tables import glued

    end, moved = result.end_effects, effects.promotions
    sizes = {head: abs(value + (end.heads[head] if end else 0.0)) for head, value in effects.heads.items()}
    rows = sorted((row for row in table.rows if row.id in sizes), key=lambda row: (-sizes[row.id], row.id))
    columns = pick(table.columns, "id", "direct_effect")

    def side(row: HeadContribution) -> str:
        value = effects.heads[row.id]
        choice = effects.answer if value > 0 else effects.foil
        return "–" if choice is None or signed(value) == rounded(0.0) else quoted(choice.text)

    def tokens(named: Sequence[TokenLogit]) -> object:
        return glued(f"{shortened_token(token.text, _LONGEST)} {signed(token.logit)}" for token in named)

    title = "Direct effects on answer minus foil"
    if end is not None:
        title = "Direct effects on start and end of the answer"
        columns += pick(table.columns, "direct_effect_on_end")
    elif not moved:
        columns.append(Field("Speaks for", side))
    else:
        columns.append(Field("Promotes (logits)", lambda row: tokens(moved[row.id].promoted[:_PROMOTED])))
        if whole:
            columns.append(Field("Suppresses", lambda row: tokens(moved[row.id].suppressed[:_SUPPRESSED]), detail=True))
    return Table(title, columns, rows)


def _notes(result: HeadOutputs, choices: ViewOptions) -> Iterator[str]:
    effects, target = result.effects, result.target
    if effects is None:
        yield result.no_effects
    if not choices.verbose:
        return
    yield (
        f"Over all queries{f' but {result.sinks}' if result.sinks else ''}. Share of ‖o‖: how far a head’s output "
        "reaches along o, the sum of all heads and b_O; below 0 it works against the others. Share of Σ‖o_h‖: of the "
        "norms of the layer’s heads."
    )
    yield (
        f"Sink: attention on {result.sinks or 'sinks (this text has none)'}, by weight A and by norm ‖A f(x)‖ "
        "(Kobayashi et al. 2020); f(x) = (x W_V + b_V) W_O is what a head writes for a token."
    )
    if effects is not None:
        yield linear_path(result.checkpoint, effects)
        if not effects.classes and not effects.boundary:
            promoted = "Promoted tokens: mean over the vocabulary removed; ~ continues a word."
            yield promoted if effects.promotions else NO_PROMOTIONS
    if target is not None:
        from attnviz.present.sentences import target_note

        yield f"{target_note(target.text, target.generated)} X: keys, and so f(x) and sinks, are of the source."


SPEC = CommandSpec(content=_content, tables=_tables, table=_table, notes=_notes, all_selected=True)
