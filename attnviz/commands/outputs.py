"""What every head adds to the residual stream on one text, and directly to the logit of an answer.

Norms and shares of o_h = (A v) W_O (:mod:`attnviz.measures.output_shares`), norm-weighted attention ‖A[q, k] f(x_k)‖
with f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020), and direct effects, o_h at one position times the direction of an
answer minus a foil in the unembedding (:mod:`attnviz.measures.direct_effects`; Elhage et al. 2021).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.inputs.encoding import tokenize
from attnviz.inputs.spans import named_span
from attnviz.inputs.tokens import Tokens, find_positions, merge_subwords, position_of
from attnviz.locks import alone
from attnviz.measures.direct_effects import DirectEffects, Promotion, TokenLogit, answer_ids, direct_effects
from attnviz.measures.output_shares import HeadContribution, OutputShares, measure_contributions
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import SPAN
from attnviz.models.head_ids import HeadId, LayerId, Stack
from attnviz.models.opening import Model, open_checkpoint, refuse_target
from attnviz.options import ModelOptions, checked
from attnviz.present.direct_effects import effects_entry, effects_in_words, linear_path, versus
from attnviz.present.documents import Entry, layer_entry, target_entry, text_entry, verification_entry
from attnviz.present.fields import HEAD, Field, Table, pick, plain_value, values_of
from attnviz.present.figure_context import STACK_LEGEND, FigureContext, hatched_in_words
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, TextResult
from attnviz.present.view import Drawing, ViewOptions, in_figures
from attnviz.progress import Progress, tell
from attnviz.reference.attention import allowed_positions, upcast
from attnviz.run.contributions import LayerContributions, layer_contributions, without_gradients
from attnviz.run.generate import TargetTokens, target_tokens
from attnviz.run.record import block_memory
from attnviz.run.stream import WrittenParts, recording_parts, why_no_effects
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted, error, percent, quoted, rounded, shortened_token, signed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.figures.head_grid import HeadGridPlan
    from attnviz.figures.head_map import HeadMap, HeadMapPlan
    from attnviz.figures.matrix import Array
    from attnviz.figures.style import Style
    from attnviz.figures.tiles import TilesPlan

NO_PROMOTIONS = (
    "Promoted tokens are not given: they need logits of tokens that are linear in the final state. Those of a "
    "masked-language head, and those that are bounded (final_logit_softcapping), are not."
)

_SPANS = "The head for question answering gives start and end of an answer: --answer-span (answer_span=...) names one."
_CSV = "outputs.csv"
_PROMOTED, _SUPPRESSED, _LONGEST = 5, 3, 14  # tokens listed as promoted and suppressed, and characters of each
_TILE = 2.6  # inches


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
    def read(self) -> Tokens:
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
    refuse_target(checkpoint, target, max_new_tokens)
    why_not = why_no_effects(checkpoint)
    if token is not None and (why_not or checkpoint.classifier):
        why = why_not or "A classifier reads the final state of one token, the first or the last."
        raise UsageError(f"leave out --token (token=...), where direct effects are read. {why}")
    of_span = checkpoint.class_head is not None and checkpoint.class_head.task == SPAN
    if of_span and (token, answer, foil) != (None, None, None):
        raise UsageError(f"leave out --token, --answer and --foil (token=..., answer=..., foil=...). {_SPANS}")
    if answer_span is not None and not of_span:
        raise UsageError(
            "--answer-span (answer_span=...) is for a checkpoint with a head for question answering; the head of this "
            f"one: {checkpoint.head_in_words}."
        )
    ids = answer_ids(checkpoint, answer, foil)
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    decoded = target_tokens(checkpoint, tokens, target, truncate, max_new_tokens) if checkpoint.stacks else None
    read = tokens if decoded is None else decoded.tokens
    position = _position(checkpoint, read, token)
    ends: tuple[int, int] | None = None
    if answer_span is not None:
        texts, context = [text] if pair is None else ["", pair], _context(tokens)
        span = named_span("", answer_span, texts, tokens, merge_subwords(tokens, words=False)).tokens
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
        text=text,
        pair=pair,
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


def _context(tokens: Tokens) -> list[int]:
    """Positions of the text in which an answer is looked for: of a pair the second."""
    context = int(1 in tokens.segments)
    placed = enumerate(zip(tokens.segments, tokens.special, strict=True))
    return [position for position, (segment, special) in placed if segment == context and not special]


def _best_answer(checkpoint: Checkpoint, written: WrittenParts, tokens: Tokens) -> tuple[int, int]:
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


def _position(checkpoint: Checkpoint, tokens: Tokens, token: str | int | None) -> int:
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
        **text_entry(result),
        "options": {"at": effects and effects.position, "tokens_cut_off": result.tokens.truncated},
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
        Field(value=lambda head: plain_value(moved.get(head.id)), name="promotion", csv={}),
        *([] if end is None else [adds("End", "direct_effect_on_end", end.heads)]),
    ]
    return Table("Heads", columns, result.select(choices.select), name="heads")


def _tables(result: HeadOutputs, choices: ViewOptions) -> "Iterator[RenderableType]":
    from attnviz.present.tables import verification_line

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
    listed = replace(table, columns=pick(table.columns, *(_LISTED if verbose else _FIRST)))
    yield listed.first(few, _CSV, order="the largest share of their layer’s output first")
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
        from attnviz.present.tables import target_note

        yield f"{target_note(target.text, target.generated)} X: keys, and so f(x) and sinks, are of the source."


SPEC = CommandSpec(content=_content, tables=_tables, table=_table, notes=_notes, all_selected=True)


# --- pictures


# what the tiles are called, also where there is little room
_NAMES = (("weight A[q, k]", "A"), ("× ‖f(x)‖ of each key", "× ‖f(x)‖"), ("= norm ‖A[q, k] f(x)‖", "= ‖A f(x)‖"))

_BESIDE = {"attention bias": "b_O", "feed-forward": "FFN", "norm bias": "LN"}


def _overview(result: HeadOutputs, choices: ViewOptions) -> "Iterator[HeadGridPlan]":
    """All heads by norm."""
    from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling

    heads, n = result.select(choices.select), max(len(result.tokens), len(result.read))
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    of_all = None if style.scale == "per-head" else result.largest
    pooled, _ = grid_pooling(n, [head.id for head in heads], style)
    cells = [
        HeadCell(head.id, norms / (of_all or head.largest or 1.0), percent(head.projection_share))
        for head, _, (_, norms) in _pooled(result, heads, lambda _: pooled)
    ]
    about = result.figure_context
    count = f"{'all' if len(heads) == len(result.heads) else f'{len(heads)} of'} {len(result.heads)} heads"
    scale = f"share of the largest ‖A f(x)‖ {'of all heads' if of_all else 'of each head'}"
    shares = "each head’s share of the norm of its layer’s attention output"
    yield HeadGridPlan(
        stem="outputs",
        **about.caption_and_notes(
            f"{about.subject}, norm-weighted attention of {count}, one row per layer, one column per head",
            "‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020): rows attend to columns",
            why_log,
            STACK_LEGEND if result.target else "",
            about.pooled(pooled),
            caption_only=(
                f"colours: {scale}",
                hatched_in_words(*(cell.values for cell in cells)),
                f"beside the names {shares}, where there is room",
            ),
        ),
        title=f"{about.model}: norm-weighted attention of {count}",
        cells=tuple(cells),
        norm=style.norm(1.0),
        bar=scale,
        beside=f"In %: {shares}.",
    )


def _pooled(
    result: HeadOutputs, heads: Sequence[HeadContribution], factor: Callable[[HeadContribution], int]
) -> "Iterator[tuple[HeadContribution, Array, tuple[Array, Array]]]":
    """Yield heads by layer with ||f(x)|| of their keys, and pooled pattern and norm-weighted attention."""
    from attnviz.figures.matrix import PooledPattern

    by_layer = groupby(sorted(heads, key=lambda head: head.id), lambda head: head.id.layer)
    for layer, some in by_layer:
        of_layer, writing = list(some), layer_contributions(result.attention, layer)
        numbers = [head.id.head for head in of_layer]
        norms = [writing.value_norms(number) for number in numbers]
        queries, keys = result.attention.tokens_of(layer)
        pooled = [[PooledPattern(len(queries), len(keys), factor(head)) for _ in range(2)] for head in of_layer]
        for first, patterns in writing.rows(numbers):
            for number, (raw, weighted), of_keys, rows in zip(numbers, pooled, norms, patterns, strict=True):
                raw.add(first, rows.cpu())
                weighted.add(first, writing.norms(number, rows, first, of_keys).cpu())
        hidden = _hidden_cells(result, layer, factor(of_layer[0]))
        for head, of_keys, both in zip(of_layer, norms, pooled, strict=True):
            a, a_f = (np.where(hidden, np.nan, pattern.cells) for pattern in both)
            yield head, of_keys.float().cpu().numpy(), (a, a_f)


def _hidden_cells(result: HeadOutputs, layer: int, factor: int) -> "Array":
    """Cells of a layer's pooled patterns in which its mask hides every key: later ones, those beyond a window."""
    from attnviz.figures.matrix import max_pool

    model, (queries, keys) = result.checkpoint, result.attention.tokens_of(layer)
    if queries is not keys:
        return np.array(False)
    if isinstance(layer, LayerId):
        causal, window = layer.stack.letter == "D", None
    else:
        causal, window = model.architecture.causal, model.windows[layer]
    allowed = allowed_positions(torch.ones(1, len(queries)), causal, window)[0, 0].numpy()
    hidden: Array = max_pool(allowed, factor) == 0
    return hidden


def _head_context(result: HeadOutputs, layer: int) -> FigureContext:
    """What the figure of one head says it read: of an encoder-decoder source, target, or both."""
    about = result.figure_context
    if result.target is None or not isinstance(layer, LayerId) or layer.stack.letter == "X":
        return about
    if layer.stack.letter == "E":
        return replace(about, texts=about.texts[:-1], sizes=())
    return replace(about, texts=about.texts[-1:], sizes=(), n=len(result.read))


def _heads(result: HeadOutputs, choices: ViewOptions) -> "Iterator[TilesPlan]":
    """Plan weights, and ‖f(x)‖ and their product as shares of their largest, of one head after the other."""
    from attnviz.figures.matrix import Labels
    from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling

    def pooling(head: HeadContribution) -> int:
        queries, keys = result.attention.tokens_of(head.id.layer)
        return tile_pooling(queries.labels, len(_NAMES), _TILE, choices.style, keys.labels)[0]

    n, gated = max(len(result.tokens), len(result.read)), result.checkpoint.architecture.gated
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    heads = result.select(choices.select)[: choices.top or None]
    for head, norms, (pattern, weighted) in _pooled(result, heads, pooling):
        about, pooled = _head_context(result, head.id.layer), pooling(head)
        queries, keys = result.attention.tokens_of(head.id.layer)
        value_norms = np.maximum.reduceat(norms, np.arange(0, len(norms), pooled))
        ends = [1.0, float(value_norms.max()), result.largest if style.scale == "shared" else head.largest]
        matrices = pattern, np.broadcast_to(value_norms, pattern.shape), weighted
        before = "", "", "× gate " if gated else ""
        amounts = "No share of the output is given: the text has no content tokens."
        if head.projection_share is not None:
            sinks = f"{percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm"
            amounts = (
                f"{percent(head.projection_share)} of the attention output’s norm in layer {head.id.layer!s} "
                f"({percent(head.norm_share)} of its heads’ norms)"
                f"{f'; on {result.sinks}: {sinks}' if result.sinks else ''}."
            )
        largest = f"1 is a weight of 1, ‖f(x)‖ of {ends[1]:.2g} and ‖A f(x)‖ of {ends[2]:.2g}"
        yield TilesPlan(
            stem=f"outputs/{head.id.file_stem}",
            **about.caption_and_notes(
                f"{about.subject}, head {head.id}: attention weights A[q, k], times ‖f(x_k)‖ of every key"
                f"{' and the gate of the query' if gated else ''}, are norm-weighted attention ‖A[q, k] f(x_k)‖",
                amounts,
                "rows attend to columns. f(x) = (x W_V + b_V) W_O is what the head writes for a token (Kobayashi et "
                f"al. 2020){f'; grey: {result.sinks}' if result.sinks else ''}",
                f"{largest}, which is the largest of all heads" if style.scale == "shared" else largest,
                why_log,
                about.pooled(pooled),
                caption_only=(hatched_in_words(pattern),),
            ),
            title=f"{about.model} {head.id}: attention by weight and by norm",
            tiles=tuple(
                Tile(f"{gate}{name}", values / (end or 1.0), (f"{gate}{shorter}",))
                for gate, (name, shorter), values, end in zip(before, _NAMES, matrices, ends, strict=True)
            ),
            labels=Labels(queries.labels, queries.sink),
            keys=Labels(keys.labels, keys.sink) if queries is not keys else None,
            pooled=pooled,
            target=_TILE,
            norm=style.norm(1.0),
            bar=f"weight, or share of the largest norm{' (log scale)' if style.scale == 'log' else ''}",
        )


def _effects(result: HeadOutputs, choices: ViewOptions) -> "Iterator[HeadMapPlan]":
    """What each head adds to the logit of an answer, a token or a class, minus that of a foil."""
    from attnviz.figures.head_map import HeadMapPlan

    about, splits = result.figure_context, [each for each in (result.effects, result.end_effects) if each is not None]
    of_what = " and ".join(map(versus, splits))
    biases = "b_O" if result.checkpoint.architecture.pre_norm else "b_O; LN: those of norms"
    where = " and ".join(f"#{split.position} (“{result.read.labels[split.position]}”)" for split in splits)
    sums = []
    for split in splits:
        whole = f"the {split.boundary}" if split.boundary else "the difference of the logits"
        rest = ", ".join(f"{part.name} {signed(part.direct_effect)}" for part in split.parts if part.layer is None)
        sums.append(f"all parts sum to {whole}, {signed(split.difference)}; the rest: {rest}")
    stacks: list[Stack | None] = [stack for stack in result.checkpoint.stacks if stack.letter != "E"]
    yield HeadMapPlan(
        stem="outputs-effects",
        **about.caption_and_notes(
            f"{about.subject}: what every head adds directly to the logit of {of_what}, and what biases "
            f"({biases}) and feed-forward networks (FFN) of each layer add",
            f"at position {where}. {linear_path(result.checkpoint, splits[0])}",
            *sums,
        ),
        title=f"{about.model}: direct effect of each head on {of_what}",
        maps=tuple(_effects_map(result, split, stack, choices.style) for split in splits for stack in stacks or [None]),
    )


def _effects_map(result: HeadOutputs, split: DirectEffects, stack: Stack | None, style: "Style") -> "HeadMap":
    from matplotlib.colors import Normalize

    from attnviz.figures.head_map import HeadMap

    layers = [layer.layer for layer in result.layers if stack is None or layer.layer in stack.layers]
    values = np.array([value for head, value in split.heads.items() if head.layer in layers]).reshape(len(layers), -1)
    beside = []
    for kind, short in _BESIDE.items():
        column = [other.direct_effect for other in split.parts if other.name == kind and other.layer in layers]
        if column:
            beside.append((short, np.array(column)))
    top = max(float(np.nan_to_num(np.abs(array)).max()) for array in (values, *(column for _, column in beside))) or 1.0
    return HeadMap(
        values,
        layers,
        norm=Normalize(-top, top, clip=True),
        bar=f"logits for {quoted(split.answer.text)}",
        colours=style.diverging_map(),
        name=split.boundary or ("" if stack is None else f"{stack.letter} ({stack.name})"),
        beside=tuple(beside),
    )


OVERVIEW = Drawing(_overview, in_figures("head_grid.head_grid_figure"), in_figures("head_grid.draw_head_grid"))
EFFECTS = Drawing(
    _effects,
    in_figures("head_map.head_map_figure"),
    in_figures("head_map.draw_head_map"),
    missing=lambda result: str(result.no_effects).removesuffix("."),
)
HEADS = Drawing(_heads, in_figures("tiles.tiles_figure"), in_figures("tiles.draw_last_tile"))
