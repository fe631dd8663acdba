"""The result of :func:`attnviz.analyze`: findings of every head, text, model and verified patterns."""

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, groupby
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from attnviz.arguments import check_kind
from attnviz.commands.heads.findings import HeadFindings, clearest_first, heads_named
from attnviz.errors import UsageError
from attnviz.language.syntax import Parse
from attnviz.measures.contacts import corrected
from attnviz.measures.spans import SpanShares
from attnviz.measures.statistics import OPTIONAL, TextContext
from attnviz.models.chats import Chat
from attnviz.models.head_ids import HeadId, Stack, ids_and_names
from attnviz.models.sound import Frames
from attnviz.models.tokens import Positions, Tokens, UnitRows, sinks_in_words
from attnviz.present.figure_context import FigureContext
from attnviz.present.report import View
from attnviz.present.result import OfHeads, TextResult
from attnviz.present.view import ViewOptions
from attnviz.profiles.published import PublishedHead, published_heads
from attnviz.profiles.store import StoredProfile
from attnviz.trace.checks import Verification
from attnviz.trace.verify import VerifiedAttention
from attnviz.wording import counted, quoted, visible


class PatternReader(Protocol):
    """Protocol: reads the pattern of one head in blocks of queries, never as a whole."""

    def add(self, first: int, rows: Tensor) -> None:
        """Read the next rows, [rows, n_keys], from query ``first`` on; later keys are hidden from all of them."""


T = TypeVar("T", bound=PatternReader)


@dataclass(frozen=True)
class Options:
    """Options that change numbers.

    Attributes:
        words: merge the pieces of words.
        queries: the rows measured, see :func:`attnviz.models.tokens.find_queries`; None for all.
        symmetric, apc: what is drawn, see :func:`attnviz.measures.contacts.corrected`; statistics are of the weights.
        contacts: a file, see :class:`attnviz.measures.contacts.ContactMap`.
    """

    words: bool = False
    queries: str | int | None = None
    symmetric: bool = False
    apc: bool = False
    contacts: str | None = None


@dataclass(frozen=True)
class Target:
    """What the decoder of an encoder-decoder reads.

    Attributes:
        tokens: the decoder's input: a start token and the target without its last token. Position q predicts q + 1.
        generated: whether the model wrote it, by greedy generation.
        longest: in tokens, of what it may generate.
        context: of the decoder's attention to itself.
        cross: of its attention to the source.
    """

    text: str
    tokens: Tokens
    generated: bool
    longest: int
    context: TextContext
    cross: TextContext


@dataclass(frozen=True)
class Continuation:
    """What a decoder wrote after its text.

    Attributes:
        whole: the text and what was written after it, as the tokens spell them.
        first: the position of its first token.
        count: its tokens.
        requested: how many tokens were asked for.
        hit_eos: whether the model ended the text before these were written; the end token is left out.
    """

    text: str
    whole: str
    first: int
    count: int
    requested: int
    hit_eos: bool


@dataclass(frozen=True, repr=False, eq=False)
class Analysis(TextResult, OfHeads[HeadFindings]):
    """Result of :func:`analyze` on one text; nothing in it comes from an unverified head.

    In a notebook it shows its page, its overview and its tables.

    Attributes:
        context: units, masks and baselines of the text.
        verified: the verified heads; patterns are recomputed from it on demand.
        heads: one entry a head, in the model's order.
        parse: the dependency parse, or None.
        syntax_note: reason why there is no parse, or ''.
        options: options that change numbers.
        profile: the stored profile of these weights, or None.
        contexts: by layer, contexts other than ``context``: of other texts, or with a window shorter than the text,
            and baselines over the keys within it.
        target: of an encoder-decoder, what its decoder reads; ``tokens`` and ``context`` are those of its encoder.
        continuation: of a decoder, what it wrote after the text, if requested; ``tokens`` are of both.
        chat: the messages that ``text`` was rendered from, if any.
        spans: attention between the spans of the text, such as the messages of a chat; None without spans.
        stack: of a part of one (:attr:`parts`), which kind of attention that is.
        all_heads: of such a part, the heads of the whole.
        without_sinks: whether sinks are left out of patterns, for drawing (:meth:`drawn`).
        corrected: whether patterns without sinks are as :attr:`Options.symmetric` and :attr:`Options.apc` say.
    """

    command: ClassVar[str] = "heads"

    context: TextContext
    verified: VerifiedAttention
    heads: tuple[HeadFindings, ...]
    parse: Parse | None
    syntax_note: str
    options: Options
    profile: StoredProfile | None = None
    contexts: dict[int, TextContext] = field(default_factory=dict)
    target: Target | None = None
    continuation: Continuation | None = None
    chat: Chat | None = None
    spans: SpanShares | None = None
    stack: Stack | None = None
    all_heads: tuple[HeadFindings, ...] = ()
    without_sinks: bool = False
    corrected: bool = False

    @property
    def units(self) -> Positions:
        """Rows of patterns: tokens, or words; with :attr:`Options.queries` some of them."""
        if self.context.queries is None and not self.without_sinks:
            return self.context.units
        sink, wanted = self.context.units.sink, set(self.context.query_positions)
        return _some(
            self.context.units,
            [at in wanted and not (self.without_sinks and sink[at]) for at in range(len(sink))],
        )

    @property
    def keys(self) -> Positions:
        """Columns of patterns: all units of the same text, or of the source in cross-attention."""
        keys = self.context.keys
        return _some(keys, [not sink for sink in keys.sink]) if self.without_sinks else keys

    @property
    def rows_differ_from_columns(self) -> bool:
        """Whether rows are other units than columns: in cross-attention, or with some queries alone."""
        return self.context.source is not None or self.context.queries is not None

    @property
    def longest(self) -> int:
        """Units of the longest text, sinks included."""
        return max(len(units) for part in self.parts for units in (part.context.units, part.context.keys))

    @property
    def row_tokens(self) -> Tokens:
        """The tokens that the units of a part (:attr:`parts`) are made of: those of the source, or of the target."""
        return self.target.tokens if self.target is not None and self.stack_letter in ("D", "X") else self.tokens

    @property
    def stack_letter(self) -> str:
        """``E``, ``D`` or ``X`` of a part; empty of the whole, or of a model of one kind."""
        return "" if self.stack is None else self.stack.letter

    @property
    def stack_name(self) -> str:
        """``encoder``, ``decoder`` or ``cross-attention``; likewise."""
        return "" if self.stack is None else self.stack.name

    @property
    def generated(self) -> tuple[bool, ...]:
        """The :attr:`units` that the model wrote, wholly or in part."""
        first = None if self.continuation is None else self.continuation.first
        return () if first is None else tuple(max(members) >= first for members in self.units.members)

    @property
    def published(self) -> tuple[PublishedHead, ...]:
        """Heads of this model that papers name, for cards."""
        model = self.checkpoint
        return published_heads(model.name, model.architecture.name, model.n_layers, model.n_heads, model.revision)

    @property
    def parts(self) -> "tuple[Analysis, ...]":
        """Of an encoder-decoder one for each kind of attention, with its heads, texts and context; else the whole."""
        if self.stack is not None or not self.checkpoint.stacks:
            return (self,)
        return tuple(
            replace(
                self,
                stack=stack,
                context=self.context_of(stack.layer(0)),
                contexts={},
                parse=self.parse if stack.letter == "E" else None,  # it is of the source
                heads=tuple(head for head in self.heads if head.id.layer in stack.layers),
                all_heads=self.heads,
            )
            for stack in self.checkpoint.stacks
        )

    def parts_of(self, selections: Iterable[str | HeadId]) -> "list[Analysis]":
        """The parts of which heads are selected; see :meth:`select`."""
        return [part for part in self.parts if part.select(selections)]

    def stem(self, name: str) -> str:
        """The name of a picture of a part, or of a model of one kind: ``mean-encoder``, ``mean``."""
        return name if self.stack is None else f"{name}-{self.stack.name}"

    @property
    def layers(self) -> Sequence[int]:
        """The layers of a part of an encoder-decoder or of a model of one kind."""
        return (self.stack or self.checkpoint).layers

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads in each, of a part of an encoder-decoder or of a model of one kind."""
        return len(self.layers), (self.stack or self.checkpoint).n_heads

    def context_of(self, layer: int) -> TextContext:
        """The context of a layer's heads: of its kind of attention, and with a window that is shorter than the text."""
        return self.contexts.get(self.checkpoint.layer_of(layer), self.context)

    @cached_property
    def optional(self) -> list[str]:
        """The statistics of this text or model that others lack."""
        return [name for name in OPTIONAL if any(name in head.statistics for head in self.heads)]

    @property
    def windowed(self) -> dict[int, TextContext]:
        """By layer, the contexts with a window that is shorter than the text."""
        return {layer: context for layer, context in self.contexts.items() if context.window is not None}

    def drawn(self, drop_special: bool) -> "Analysis":
        """The analysis for drawing: on request without sinks, rows scaled to sum to 1.

        Statistics and labels are those of the whole text. A row without remaining attention is 0.

        Raises:
            UsageError: nothing of the text would be left.
        """
        check_kind("drop_special", drop_special, bool)
        units = self.context.units
        if drop_special and (not self.context.non_sink.any() or all(self.context.keys.sink)):
            all_of_it = f"its only {units.name} is" if len(units) == 1 else f"its {len(units)} {units.name}s are all"
            raise UsageError(
                f"--drop-special (drop_special=True) leaves nothing of this text to draw: {all_of_it} special or the "
                "first; give a longer text, or leave the option out."
            )
        shown = replace(self, without_sinks=drop_special)
        if not isinstance(self.tokens, Frames):
            return shown
        source = self.tokens.intervals
        contexts = {layer: replace(each, source=each.source and source) for layer, each in self.contexts.items()}
        return replace(shown, contexts=contexts, context=replace(self.context, source=self.context.source and source))

    @property
    def figure_context(self) -> FigureContext:
        """Text, model and unit, for figures, captions and tables."""
        units = self.context.units
        sinks = sinks_in_words(units, units.name, first="first")
        dropped = f"{sinks} dropped, rows renormalised" if sinks and self.without_sinks else ""
        if self.corrected:
            less = ", less the average product correction (0 where negative)" if self.options.apc else ""
            dropped = f"special tokens dropped; A + Aᵀ of the attention A{less}"
        about = replace(super().figure_context, n=len(self.units), unit=units.name, dropped=dropped)
        if self.context.queries is not None:
            about = replace(about, n=len(self.keys), n_rows=len(self.units))
        if not self.verification.level:
            about = replace(about, model=f"{about.model} (not verified)")
        if self.continuation is not None:
            about = replace(about, generated=self.continuation.text, n_generated=self.continuation.count)
        if self.target is None or self.stack_letter == "E":
            return about
        if self.stack_letter == "D":
            return replace(about, texts=(self.target.text,))
        target, of_source = self.target.context.units, counted(len(self.context.keys), units.name)
        if isinstance(self.tokens, Frames):
            of_source = self.tokens.in_words
        sizes = of_source, counted(len(target), target.name)
        return replace(about, texts=(*about.texts, self.target.text), sizes=sizes)

    @property
    def verification(self) -> Verification:
        """Errors of the comparison with the model."""
        return self.verified.verification

    def _first_plan(self, view: View, choices: ViewOptions) -> Any:
        """The plan of the picture that stands for a view, of heatmaps without a selection that of the clearest head."""
        if view.name == "heads" and not choices.select:
            choices = replace(choices, select=(str(clearest_first(self.heads)[0].id),))
        return super()._first_plan(view, choices)

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The entries of the heads that the selections name, in the order of ``heads``; without a selection all.

        Args:
            selections: ``L2H8``, ``L2``, ``L*H8``, …; a label on this text or a role over a corpus (``obj``,
                ``previous``, ``syntactic``); one may stand without a list around it.

        Raises:
            UsageError: a selection cannot be read, or names what no head has.
        """
        ids, names = ids_and_names(selections)
        chosen = heads_named(names, self.all_heads or self.heads)
        if ids or not names:
            chosen |= {head.id for head in super().select(ids)}
        return [head for head in self.heads if head.id in chosen]

    def has_role(self, head: HeadFindings) -> bool | None:
        """Whether this text has an instance of the head's role over the corpus: the relation, a repeated token.

        None without a role, or if that is not measured: coreference, meaning, relations without parse.
        """
        head = self.own(head)
        if head.role is None or (head.role.relation is not None and self.parse is None):
            return None
        name, is_relation = head.role.relation or head.role.role, head.role.relation is not None
        instances = [each.n for each in head.verdicts if (each.name, each.kind == "syntactic") == (name, is_relation)]
        return any(instances) if instances or is_relation else None

    def blocks(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """The verified patterns of a layer, or of some of its heads, in blocks of queries between :attr:`units`.

        A block is its first query and [n_heads, rows, n_keys], float32 or wider, on the CPU; keys after the last of
        them are hidden from all its queries.
        """
        layer = self.checkpoint.layer_of(layer)
        context, merge, first = self.context_of(layer), None, 0
        if self.corrected:
            whole = replace(self, without_sinks=False, corrected=False).layer_patterns(layer, heads)
            kept = context.non_sink
            yield 0, corrected(whole[:, kept][:, :, kept], self.options.apc).clamp(min=0)
            return
        for rows in self.verified.rows(layer, heads):
            merge = merge or UnitRows(context.units.members, context.keys.members, rows.n_queries, rows.n_keys)
            unit, merged = merge.add(rows.first, rows.wide[0])
            pattern = merged.cpu()
            if self.without_sinks:
                non_sink = context.non_sink[unit : unit + pattern.shape[1]]
                pattern = pattern[:, non_sink][:, :, context.key_non_sink[: pattern.shape[2]]]
                totals = pattern.sum(-1, keepdim=True)
                pattern = pattern / totals.masked_fill(totals == 0, 1.0)
            yield first, pattern
            first += pattern.shape[1]

    def read(
        self, heads: Iterable[HeadFindings], reader: Callable[[HeadFindings], T]
    ) -> Iterator[tuple[HeadFindings, T]]:
        """Yield each head with its reader, which has read the whole pattern block by block.

        Args:
            heads: in the model's order, since a layer is recomputed once for those of its heads that stand together.
            reader: makes the reader of a head.
        """
        for layer, of_layer in groupby(heads, lambda head: head.id.layer):
            readers = [(head, reader(head)) for head in of_layer]
            for first, block in self.blocks(layer, [head.id.head for head, _ in readers]):
                for (_, each), rows in zip(readers, block, strict=True):
                    each.add(first, rows)
            yield from readers

    def layer_patterns(self, layer: int, heads: Sequence[int] | None = None) -> Tensor:
        """The verified patterns of one layer, or of some of its heads, [n_heads, n_queries, n_keys], on the CPU."""
        patterns, context = torch.empty(0), self.context_of(layer)
        shape = [
            int(kept.sum()) if self.without_sinks else n
            for kept, n in ((context.non_sink, len(context.query_positions)), (context.key_non_sink, len(context.keys)))
        ]
        for first, block in self.blocks(layer, heads):
            if not patterns.numel():
                patterns = block.new_zeros(len(block), *shape)
            patterns[:, first : first + block.shape[1], : block.shape[2]] = block
        return patterns

    def patterns(self, heads: Iterable[HeadFindings] | None = None) -> Iterator[tuple[HeadFindings, Tensor]]:
        """Each head with its verified pattern, [n, n]: row = query, column = key, over :attr:`units`.

        Of cross-attention, a row is a unit of the target, a column one of the source.

        A layer is recomputed once and then dropped: memory holds one layer's patterns at a time.

        Args:
            heads: in the model's order; default all.

        Raises:
            UsageError: these are not this result's heads.
        """
        listed = self.heads if heads is None else self.all_own(heads)
        for layer, of_layer in groupby(listed, lambda head: head.id.layer):
            patterns = self.layer_patterns(layer)
            yield from ((head, patterns[head.id.head]) for head in of_layer)

    def pattern(self, head: str | HeadId) -> Tensor:
        """The verified pattern of one head, [n, n]: row = query, column = key, over :attr:`units`.

        Raises:
            UsageError: the model has no such head.
        """
        named = self.head(head).id
        return self.layer_patterns(named.layer, [named.head])[0]

    def attention(self) -> Tensor:
        """The verified patterns of all heads, [n_layers, n_heads, n, n]: row = query, column = key, over :attr:`units`.

        All are in memory at once, float32 or wider, on the CPU; :meth:`patterns` gives one head after the other.

        Raises:
            UsageError: an encoder-decoder, whose three kinds of attention are of other texts; each part has its own.
        """
        parts = self.parts
        if len(parts) > 1:
            names = ", ".join(f"parts[{number}] ({part.stack_name})" for number, part in enumerate(parts))
            raise UsageError(f"an encoder-decoder has attention of several kinds; expected that of one: {names}.")
        layers = dict.fromkeys(head.id.layer for head in parts[0].heads)
        return torch.stack([self.layer_patterns(layer) for layer in layers])

    def __repr__(self) -> str:
        """One line: what was analysed, and what was verified."""
        verified = "verified" if self.verification.level else "not verified"
        return (
            f"<Analysis of {quoted(self.text)} with {visible(self.checkpoint.name)}: "
            f"{counted(len(self.units), self.units.name)}, {self.verification.heads_compared} heads {verified}>"
        )

    def _repr_html_(self) -> str:
        """The page in a frame; below it, if scripts are off, overview and tables."""
        from attnviz.page.page import NOTEBOOK_BUDGET

        below = super()._repr_html_()
        title, page = html.escape(repr(self)), html.escape(self.page(budget=NOTEBOOK_BUDGET))
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="900" '
            f'style="border: 0" srcdoc="{page}"></iframe>'
            f"<details><summary>{title}: overview and tables</summary>{below}</details>"
        )


def _some(units: Positions, wanted: Sequence[bool]) -> Positions:
    """The wanted units."""
    of_each = ("labels", "special", "sink", "members")
    left: dict[str, Any] = {name: tuple(compress(getattr(units, name), wanted)) for name in of_each}
    return replace(units, **left)
