"""Verify every attention head of a model on one text, and measure what it does."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from attnviz.arguments import check_texts, checked
from attnviz.attention.verify import Verification, VerifiedAttention, VerifiedLayer, verify_attention
from attnviz.commands.heads.inputs import Options, Target, context_of, read_target, refuse_target
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.encoding import texts_read
from attnviz.model.head_ids import HeadId, LayerId, Stack
from attnviz.model.opening import Model, open_checkpoint
from attnviz.model.sources import Source
from attnviz.model.tokens import Tokens, Units, merge_pattern, visible
from attnviz.model.wording import counted, quoted
from attnviz.patterns.parsers import parser_for
from attnviz.patterns.profile_store import HeadProfile, StoredProfile, StoredRole, find_profile, model_shape
from attnviz.patterns.published import PublishedHead, published_heads
from attnviz.patterns.statistics import TextContext, alignment, measure
from attnviz.patterns.syntax import Parse, parse_texts, relation_accuracy
from attnviz.patterns.verdicts import Label, Verdict, judge, label_of
from attnviz.progress import Progress
from attnviz.results.facts import Facts
from attnviz.results.text_result import OfHeads, TextResult

__all__ = ["Analysis", "HeadFindings", "Options", "analyze"]

_FARTHEST = 1_000_000


@dataclass(frozen=True)
class HeadFindings:
    """Numbers and verdicts of one head.

    Attributes:
        id: layer and head.
        statistics: by name (:data:`attnviz.patterns.statistics.SCALARS`); None where not measurable.
        patterns: every verdict with its score, baseline and n.
        labelled: what it does on this text, from this text alone, with the verdict behind it.
        profile: what a stored profile of the model says of the head; None where there is none.
        alignment: of cross-attention, for each unit of the target its unit of the source of the largest weight.
    """

    id: HeadId
    statistics: dict[str, float | None]
    patterns: tuple[Verdict, ...]
    labelled: Label
    profile: HeadProfile | None = None
    alignment: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The label in one word: ``previous-token``, ``syntactic:det``, ``heterogeneous``, ``too short``."""
        return self.labelled.name

    @property
    def role(self) -> StoredRole | None:
        """What it does over the corpus, from the stored profile alone; None without one, or where no role passes."""
        return None if self.profile is None else self.profile.role

    @property
    def strongest(self) -> Verdict | None:
        """The verdict behind the label, or else the positional one of the largest error reduction."""
        measured = [verdict for verdict in self.patterns if verdict.kind == "positional" and verdict.gain is not None]
        return self.labelled.verdict or max(measured, key=lambda verdict: verdict.gain or 0.0, default=None)

    @property
    def clearness(self) -> tuple[bool, float]:
        """By which heads are ranked: those with a verdict behind their label, by error reduction, before the others."""
        gain = None if self.strongest is None else self.strongest.gain
        return self.labelled.verdict is not None, float("-inf") if gain is None else gain


@dataclass(frozen=True, repr=False)
class Analysis(TextResult, OfHeads[HeadFindings]):
    """What :func:`analyze` measured on one text; nothing in it comes from an unverified head.

    In a notebook it shows its overview and its tables.

    Attributes:
        context: units, masks and baselines of the text.
        attention: the verified heads; patterns are recomputed from it on demand.
        heads: one entry a head, in the model's order.
        parse: the dependency parse; None where there was none.
        syntax_note: why there is no parse; empty where there is one.
        options: what was asked for.
        profile: the stored profile of these weights; None where there is none, or none was looked for.
        published: what papers say of heads of this model; empty where they say nothing.
        target: of an encoder-decoder, what its decoder reads; ``tokens`` and ``context`` are those of its encoder.
        stack: of a part of one (:attr:`parts`), which kind of attention that is.
    """

    command: ClassVar[str] = "heads"

    context: TextContext
    attention: VerifiedAttention
    heads: tuple[HeadFindings, ...]
    parse: Parse | None
    syntax_note: str
    options: Options
    profile: StoredProfile | None = None
    published: tuple[PublishedHead, ...] = ()
    target: Target | None = None
    stack: Stack | None = None

    @property
    def units(self) -> Units:
        """What patterns are between: tokens, or words."""
        return self.context.units

    @property
    def keys(self) -> Units:
        """What is attended to: the same units, but for cross-attention those of the source."""
        return self.context.keys

    @property
    def parts(self) -> "tuple[Analysis, ...]":
        """Of an encoder-decoder one for each kind of attention, with its heads, texts and context; else the whole."""
        if self.stack is not None or not self.checkpoint.stacks:
            return (self,)
        return tuple(
            replace(
                self,
                stack=stack,
                context=self._context(stack.layer(0)),
                heads=tuple(head for head in self.heads if head.id.layer in stack.layers),
            )
            for stack in self.checkpoint.stacks
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads in each, of a part of an encoder-decoder or of a model of one kind."""
        stack = self.stack or self.checkpoint
        return stack.n_layers, stack.n_heads

    def _context(self, layer: int) -> TextContext:
        """The context of a layer's attention."""
        if self.target is None or self.stack is not None:
            return self.context
        return {"E": self.context, "D": self.target.context, "X": self.target.cross}[_letter(layer)]

    @property
    def dropped(self) -> str:
        """What is left out of pictures, and what that did to the rest; empty where nothing is."""
        return ""

    @property
    def facts(self) -> Facts:
        """What every figure, caption and table must say of it."""
        facts = replace(super().facts, n=len(self.units), unit=self.units.name, dropped=self.dropped)
        if self.target is None:
            return facts
        texts = {"E": (self.text,), "D": (self.target.text,)}
        both = (self.text, self.target.text), (len(self.context.keys), len(self.target.context.units))
        of_part = texts.get(self.stack.letter if self.stack is not None else "X")
        return replace(facts, texts=of_part) if of_part else replace(facts, texts=both[0], sizes=both[1])

    @property
    def verification(self) -> Verification:
        """What was compared with the model, and how closely."""
        return self.attention.verification

    def has_role(self, head: HeadFindings) -> bool | None:
        """Whether this text has what the head's role over the corpus is about: the relation, a token that repeats.

        None where the head has no role, or where that is not looked for: coreference, meaning, relations without parse.
        """
        if head.role is None or (head.role.relation is not None and self.parse is None):
            return None
        name, is_relation = head.role.relation or head.role.role, head.role.relation is not None
        instances = [each.n for each in head.patterns if (each.name, each.kind == "syntactic") == (name, is_relation)]
        return any(instances) if instances or is_relation else None

    def layer_patterns(self, layer: int) -> Tensor:
        """The verified patterns of one layer, [n_heads, n_queries, n_keys], float32 or wider, on the CPU."""
        context = self._context(layer)
        pattern = self.attention.layer(layer).wide[0]
        return merge_pattern(pattern, context.units.members, context.keys.members).cpu()

    def patterns(self, heads: Iterable[HeadFindings] | None = None) -> Iterator[tuple[HeadFindings, Tensor]]:
        """Each head with its verified pattern, [n, n]: row = query, column = key, over :attr:`units`.

        Of cross-attention, a row is a unit of the target, a column one of the source.

        A layer is recomputed once and then dropped, so that memory holds one layer's patterns at a time.

        Args:
            heads: in the model's order; default all.
        """
        layer, patterns = -1, Tensor()
        for head in self.heads if heads is None else heads:
            if head.id.layer != layer:
                layer, patterns = head.id.layer, self.layer_patterns(head.id.layer)
            yield head, patterns[head.id.head]

    def pattern(self, head: str | HeadId) -> Tensor:
        """The verified pattern of one head, [n, n]: row = query, column = key, over :attr:`units`.

        Raises:
            UsageError: the model has no such head.
        """
        named = self.head(head).id
        return self.layer_patterns(named.layer)[named.head]

    def __repr__(self) -> str:
        """One line: what was analysed, and what was verified."""
        return (
            f"<Analysis of {quoted(self.text)} with {visible(self.checkpoint.name)}: "
            f"{counted(len(self.units), self.units.name)}, {self.verification.heads_compared} heads verified>"
        )


@checked
def analyze(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    words: bool = False,
    local_window: int = 1,
    long_range_from: int = 4,
    syntax: bool = True,
    parser: str | None = None,
    truncate: bool = False,
    profile: bool = True,
    target: str | None = None,
    max_new_tokens: int = 40,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Analysis:
    """Recompute every attention head of a model on a text, verify it, and measure what it does.

    Args:
        text: one text.
        model: a built-in name (``minilm``), a checkpoint's folder, a hub id, a Source found before, or a model in
            memory: of transformers, or the ``checkpoint`` of an earlier analysis. It runs where and as it is. A model
            that was loaded with sdpa or flash attention is switched to eager attention for the one forward pass,
            because only eager attention returns a pattern to compare with, and switched back; so is its train mode.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        words: merge word pieces: sum over the pieces attended to, mean over those attending.
        local_window: largest distance that counts as local, in tokens (or words).
        long_range_from: smallest distance that counts as long-range, likewise.
        syntax: measure syntactic patterns where spaCy and a pipeline are installed.
        parser: the spaCy pipeline to use, whatever the text looks like; default an installed one of its language.
        truncate: cut a text that is longer than the model instead of raising.
        profile: look for a stored profile of the weights, the user's or a shipped one, which gives heads their roles
            over a corpus; there is none of a model in memory, whose weights may have changed.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        max_new_tokens: of that text, at most.
        progress: told of every layer verified.
        warn: told of a stored profile that cannot be used; default a Python warning.

    Returns:
        tokens, verified patterns, statistics, verdicts and figures.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do
            not reproduce the model.
    """
    if not (0 <= local_window <= _FARTHEST and 1 <= long_range_from <= _FARTHEST):
        raise UsageError(
            f"expected local_window >= 0 and long_range_from >= 1 (both at most {_FARTHEST}), "
            f"found {local_window} and {long_range_from}."
        )
    if local_window >= long_range_from:
        raise UsageError(
            f"expected long_range_from above local_window, found {long_range_from} and {local_window}: a distance of "
            f"{local_window} would be local and long-range at once."
        )
    check_texts(text, pair, "analyze one text at a time")
    if parser is not None and not syntax:
        raise UsageError(f"the parser {parser!r} was named, but syntax was switched off; give one or the other.")
    checkpoint, source = open_checkpoint(model, tokenizer, revision, device, dtype, encoder_decoders=True)
    refuse_target(checkpoint, pair, target)
    options = Options(words, local_window, long_range_from)
    tokens = checkpoint.tokenize(text, pair, truncate)
    context = context_of(tokens, checkpoint.architecture.causal, options)
    if checkpoint.stacks:
        read = read_target(
            checkpoint, tokens, context.units, target, options, truncate=truncate, max_new_tokens=max_new_tokens
        )
        return _of_two_texts(text, checkpoint, tokens, context, read, options, progress)
    stored = _stored_profile(source, checkpoint, warn or _warn) if profile and source is not None else None
    texts = texts_read([text] if pair is None else [text, pair], tokens)
    parse, note = (
        _parse(texts, tokens, parser) if syntax else (None, "it was switched off (--no-syntax, syntax=False).")
    )
    heads: list[HeadFindings] = []

    def judge_layer(layer: VerifiedLayer) -> None:
        heads.extend(_judged(layer, context, tokens, parse, stored))

    attention = verify_attention(checkpoint, tokens, judge_layer, progress)
    return Analysis(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        context=context,
        attention=attention,
        heads=tuple(heads),
        parse=parse,
        syntax_note=note,
        options=options,
        profile=stored,
        published=published_heads(
            checkpoint.name, checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads, checkpoint.revision
        ),
    )


def _of_two_texts(
    text: str,
    checkpoint: Checkpoint,
    tokens: Tokens,
    context: TextContext,
    target: Target,
    options: Options,
    progress: Progress | None,
) -> Analysis:
    """The analysis of an encoder-decoder, in which every kind of attention has a context of its own."""
    contexts = {"E": context, "D": target.context, "X": target.cross}
    heads: list[HeadFindings] = []

    def judge_layer(layer: VerifiedLayer) -> None:
        heads.extend(_judged(layer, contexts[_letter(layer.check.layer)], tokens, None, None))

    attention = verify_attention(checkpoint, tokens, judge_layer, progress, target.tokens)
    return Analysis(
        text=text,
        pair=None,
        checkpoint=checkpoint,
        tokens=tokens,
        context=context,
        attention=attention,
        heads=tuple(sorted(heads, key=lambda head: head.id)),  # they ran in another order
        parse=None,
        syntax_note="encoder-decoders are not parsed.",
        options=options,
        target=target,
    )


def _letter(layer: int) -> str:
    return layer.stack.letter if isinstance(layer, LayerId) else ""


def _stored_profile(source: Source, checkpoint: Checkpoint, warn: Callable[[str], None]) -> StoredProfile | None:
    architecture = checkpoint.architecture.name
    shape = model_shape(architecture, checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_model)
    return find_profile(replace(source, sha256=checkpoint.weights_sha256), shape, warn)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=6)  # at the caller of analyze()


def _parse(texts: Sequence[str], tokens: Tokens, parser: str | None) -> tuple[Parse | None, str]:
    pipeline, note = parser_for(texts, parser)
    return (None if pipeline is None else parse_texts(pipeline, texts, tokens)), note


def _judged(
    layer: VerifiedLayer, context: TextContext, tokens: Tokens, parse: Parse | None, stored: StoredProfile | None
) -> Iterator[HeadFindings]:
    statistics = measure(layer, context)
    relations = relation_accuracy(layer, parse, tokens.sinks, context.causal) if parse else []
    between = context.source is not None
    patterns = merge_pattern(layer.wide[0], context.units.members, context.keys.members) if between else ()
    for head in range(layer.check.heads_compared):
        of_head = {name: values[head] for name, values in statistics.items()}
        verdicts = judge(of_head, context, relations, head)
        id = HeadId(layer.check.layer, head)
        profile = None if stored is None else stored.of(id)
        aligned = tuple(alignment(patterns[head])) if between else ()
        yield HeadFindings(id, of_head, tuple(verdicts), label_of(verdicts, context.n_content), profile, aligned)
