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
from attnviz.inputs.chats import Chat
from attnviz.inputs.prompt import Continuation, Positions, Prompt, UnitRows, sinks_in_words
from attnviz.inputs.sound import Frames
from attnviz.language.syntax import Parse
from attnviz.measures.decisions import Decision
from attnviz.measures.spans import SpanShares
from attnviz.measures.statistics import OPTIONAL, TextContext
from attnviz.models.head_ids import HeadId, Stack, ids_and_names
from attnviz.present.figure_context import FigureContext
from attnviz.present.report import View
from attnviz.present.result import OfHeads, TextResult
from attnviz.present.view import ViewOptions
from attnviz.profiles.published import PublishedHead, published_heads
from attnviz.profiles.store import StoredProfile
from attnviz.run.checks import Verification
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import counted, quoted, visible


class PatternReader(Protocol):
    """Protocol: reads the pattern of one head in chunks of queries, never as a whole."""

    def add(self, first: int, rows: Tensor) -> None:
        """Read the next rows, [rows, n_keys], from query ``first`` on; later keys are hidden from all of them."""


T = TypeVar("T", bound=PatternReader)

_CHUNK = 64  # rows of a mask that are made at once


@dataclass(frozen=True)
class Options:
    """Options that change numbers."""

    words: bool = False  # merge the pieces of words
    queries: str | int | None = None  # the rows measured, see attnviz.inputs.prompt.find_queries; None for all
    contacts: str | None = None  # a file, see attnviz.measures.contacts.ContactMap


@dataclass(frozen=True)
class Target:
    """What the decoder of an encoder-decoder reads."""

    text: str
    tokens: Prompt  # a start token and the target without its last token: position q predicts q + 1
    generated: bool  # by the model, greedily
    context: TextContext  # of the decoder's attention to itself
    cross: TextContext  # of its attention to the source
    max_new_tokens: int | None = None  # that it may generate, if that was limited


@dataclass(frozen=True, repr=False, eq=False)
class Analysis(TextResult, OfHeads[HeadFindings]):
    """Result of :func:`analyze` on one text; nothing in it comes from an unverified head.

    In a notebook it shows its page, its overview and its tables. Of an encoder-decoder ``tokens`` and ``context`` are
    those of the source; of a decoder that wrote a continuation, of both.
    """

    command: ClassVar[str] = "heads"

    context: TextContext  # units, masks and baselines of the text
    verified: VerifiedAttention  # patterns are recomputed from it on demand
    heads: tuple[HeadFindings, ...]  # in the model's order
    parse: Parse | None
    syntax_note: str  # why there is no parse, or ''
    options: Options
    profile: StoredProfile | None = None  # of these weights
    contexts: dict[int, TextContext] = field(default_factory=dict)  # by layer: of other texts, or with shorter windows
    target: Target | None = None  # of an encoder-decoder
    continuation: Continuation | None = None  # of a decoder, if requested
    chat: Chat | None = None  # that ``text`` was rendered from
    decision: Decision | None = None  # of a classifier, for the text
    spans: SpanShares | None = None  # attention between spans of the text; None without spans
    stack: Stack | None = None  # of one of ``parts``, which kind of attention that is
    all_heads: tuple[HeadFindings, ...] = ()  # of such a part, the heads of the whole
    without_sinks: bool = False  # for drawing, see ``drawn``

    @property
    def units(self) -> Positions:
        """Rows of patterns: tokens, or words; with :attr:`Options.queries` some of them."""
        if self.context.queries is None and not self.without_sinks:
            return self.context.units
        sinks, wanted = self.context.units.sink, set(self.context.query_positions)
        return _some(
            self.context.units,
            [position in wanted and not (self.without_sinks and sink) for position, sink in enumerate(sinks)],
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
    def longest(self) -> int:  # units of the longest text, sinks included
        return max(len(units) for part in self.parts for units in (part.context.units, part.context.keys))

    @property
    def row_tokens(self) -> Prompt:
        """The tokens that the units of a part (:attr:`parts`) are made of: those of the source, or of the target."""
        return self.target.tokens if self.target is not None and self.stack_letter in ("D", "X") else self.tokens

    @property
    def stack_letter(self) -> str:  # E, D or X of a part; empty of the whole, or of a model of one kind
        return "" if self.stack is None else self.stack.letter

    @property
    def stack_name(self) -> str:  # encoder, decoder or cross-attention; likewise
        return "" if self.stack is None else self.stack.name

    @property
    def generated(self) -> tuple[bool, ...]:  # of the units, which the model wrote, wholly or in part
        if self.continuation is None:
            return ()
        return tuple(max(members) >= self.continuation.first for members in self.units.members)

    @property
    def published(self) -> tuple[PublishedHead, ...]:  # heads of this model that papers name, for cards
        return published_heads(self.checkpoint)

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
        """The parts of which heads are selected."""
        return [part for part in self.parts if part.select(selections)]

    def stem(self, name: str) -> str:
        """The name of a picture of a part, or of a model of one kind: ``mean-encoder``, ``mean``."""
        return name if self.stack is None else f"{name}-{self.stack.name}"

    @property
    def layers(self) -> Sequence[int]:  # of a part of an encoder-decoder or of a model of one kind, as the shape
        return (self.stack or self.checkpoint).layers

    @property
    def shape(self) -> tuple[int, int]:  # layers, and heads in each
        return len(self.layers), (self.stack or self.checkpoint).n_heads

    def context_of(self, layer: int) -> TextContext:
        """The context of a layer's heads: of its kind of attention, and with a window that is shorter than the text."""
        return self.contexts.get(self.checkpoint.layer_of(layer), self.context)

    @cached_property
    def optional(self) -> list[str]:  # the statistics of this text or model that others lack
        return [name for name in OPTIONAL if any(name in head.statistics for head in self.heads)]

    @property
    def windowed(self) -> dict[int, TextContext]:  # by layer, those with a window that is shorter than the text
        return {layer: context for layer, context in self.contexts.items() if context.window is not None}

    def drawn(self, drop_special: bool) -> "Analysis":
        """The analysis for drawing: on request without sinks, rows scaled to sum to 1, or 0 where nothing is left.

        Statistics and labels are those of the whole text.

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
        contexts = {
            layer: replace(context, source=context.source and source) for layer, context in self.contexts.items()
        }
        return replace(shown, contexts=contexts, context=replace(self.context, source=self.context.source and source))

    @property
    def figure_context(self) -> FigureContext:
        units = self.context.units
        sinks = sinks_in_words(units, units.name, first="first")
        dropped = f"{sinks} dropped, rows renormalised" if sinks and self.without_sinks else ""
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
        return self.verified.verification

    def _first_plan(self, view: View, choices: ViewOptions) -> Any:
        """The plan of the picture that stands for a view, of heatmaps without a selection that of the clearest head."""
        if view.name == "heads" and not choices.select:
            choices = replace(choices, select=(str(clearest_first(self.heads)[0].id),))
        return super()._first_plan(view, choices)

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The entries of the heads that the selections name, in the order of ``heads``; without a selection all.

        A selection is ``L2H8``, ``L2``, ``L*H8``, …; or a label on this text or a role over a corpus (``obj``,
        ``previous``, ``syntactic``). One may stand without a list around it.

        Raises:
            UsageError: a selection cannot be read, or names what no head has.
        """
        ids, names = ids_and_names(selections)
        chosen = heads_named(names, self.all_heads or self.heads)
        if ids or not names:
            chosen |= {head.id for head in super().select(ids)}
        return [head for head in self.heads if head.id in chosen]

    def chunks(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """The verified patterns of a layer, or of some of its heads, in chunks of queries between :attr:`units`.

        A chunk is its first query and [n_heads, rows, n_keys], float32 or wider, on the CPU; keys after the last of
        them are hidden from all its queries.
        """
        layer = self.checkpoint.layer_of(layer)
        context, merge, first = self.context_of(layer), None, 0
        for rows in self.verified.rows(layer, heads):
            merge = merge or UnitRows(context.units.members, context.keys.members, rows.n_queries, rows.n_keys)
            unit, merged = merge.add(rows.first, rows.in_float32[0])
            pattern = merged.cpu()
            if self.without_sinks:
                non_sink = context.non_sink[unit : unit + pattern.shape[1]]
                pattern = pattern[:, non_sink][:, :, context.key_non_sink[: pattern.shape[2]]]
                totals = pattern.sum(-1, keepdim=True)
                pattern = pattern / totals.masked_fill(totals == 0, 1.0)
            yield first, pattern
            first += pattern.shape[1]

    def allowed(self, layer: int) -> Iterator[tuple[int, Tensor]]:
        """The keys that a layer's mask lets rows attend to, boolean [rows, n_keys], in chunks as of :meth:`chunks`."""
        context = self.context_of(layer)
        rows, columns = torch.tensor(context.query_positions), torch.ones(len(context.keys), dtype=torch.bool)
        if self.without_sinks:
            rows, columns = context.non_sink.nonzero()[:, 0], context.key_non_sink
        for first in range(0, len(rows), _CHUNK):
            chunk = rows[first : first + _CHUNK]
            start, end = int(chunk[0]), int(chunk[-1]) + 1
            yield first, context.allowed_rows(start, end).cpu()[chunk - start][:, columns]

    def read(
        self, heads: Iterable[HeadFindings], reader: Callable[[HeadFindings], T]
    ) -> Iterator[tuple[HeadFindings, T]]:
        """Yield each head with its own ``reader``, which has read the whole pattern chunk by chunk.

        Heads come in the model's order: a layer is recomputed once for those of its heads that stand together.
        """
        for layer, of_layer in groupby(heads, lambda head: head.id.layer):
            readers = [(head, reader(head)) for head in of_layer]
            for first, chunk in self.chunks(layer, [head.id.head for head, _ in readers]):
                for (_, of_head), rows in zip(readers, chunk, strict=True):
                    of_head.add(first, rows)
            yield from readers

    def layer_patterns(self, layer: int, heads: Sequence[int] | None = None) -> Tensor:
        """The verified patterns of one layer, or of some of its heads, [n_heads, n_queries, n_keys], on the CPU."""
        patterns = torch.empty(0)
        context = self.context_of(layer)
        n_queries = int(context.non_sink.sum()) if self.without_sinks else len(context.query_positions)
        n_keys = int(context.key_non_sink.sum()) if self.without_sinks else len(context.keys)
        for first, chunk in self.chunks(layer, heads):
            if not patterns.numel():
                patterns = chunk.new_zeros(len(chunk), n_queries, n_keys)
            patterns[:, first : first + chunk.shape[1], : chunk.shape[2]] = chunk
        return patterns

    def patterns(self, heads: Iterable[HeadFindings] | None = None) -> Iterator[tuple[HeadFindings, Tensor]]:
        """Each head with its verified pattern, [n, n]: row = query, column = key, over :attr:`units`; default all.

        Of cross-attention, a row is a unit of the target, a column one of the source. A layer is recomputed once and
        then dropped: memory holds one layer's patterns at a time, where heads come in the model's order.

        Raises:
            UsageError: these are not this result's heads.
        """
        listed = self.heads if heads is None else self.all_own(heads)
        for layer, of_layer in groupby(listed, lambda head: head.id.layer):
            patterns = self.layer_patterns(layer)
            yield from ((head, patterns[head.id.head]) for head in of_layer)

    def pattern(self, head: str | HeadId) -> Tensor:
        """The verified pattern of one head, as of :meth:`patterns`; UsageError where the model has no such head."""
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

    def activation(self, site: str, layer: int) -> Tensor:
        """The tensor of a named site of a layer, of all tokens of the text, on the CPU; numbers of the model's dtype.

        ==============================  ======================================================================
        resid_pre, resid_mid            [n, d_model]: the stream that the block reads; after its attention
        q                               [n, n_heads, d_head]: x W_Q + b_Q, before rotary positions and norms
        k, v                            [n, n_kv_heads, d_head]: likewise, of the source in cross-attention
        scores, pattern                 [n_heads, n, n]: before the softmax, -inf where hidden; and after it
        z                               [n, n_heads, d_head]: weighted values, which W_O is applied to
        head_out                        [n, n_heads, d_model]: z W_O of each head, without b_O
        attn_out, mlp_out, resid_post   [n, d_model]: what is added to the stream; what the block passes on
        ==============================  ======================================================================

        Those of heads are recomputed from the verified inputs of the layer (with :attr:`Options.queries` z, head_out,
        scores and pattern have these rows alone); the others are read in a pass of which every head is verified.

        Raises:
            UsageError: no such site or layer.
            ArchitectureError: a site that this family lacks.
            VerificationError: the model's weights changed since.
        """
        check_kind("site", site, str)
        return self.verified.activation(site, layer)

    @property
    def in_words(self) -> str:
        verified = "verified" if self.verification.level else "not verified"
        return (
            f"of {quoted(self.text)} with {visible(self.checkpoint.name)}: "
            f"{counted(len(self.units), self.units.name)}, {self.verification.heads_compared} heads {verified}"
        )

    def _repr_html_(self) -> str:
        from attnviz.page.page import NOTEBOOK_BUDGET

        below = super()._repr_html_()
        title = html.escape(repr(self))
        page = html.escape(self.page(budget=NOTEBOOK_BUDGET))
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="900" '
            f'style="border: 0" srcdoc="{page}"></iframe>'
            f"<details><summary>{title}: overview and tables</summary>{below}</details>"
        )


def units_with(units: Positions, tokens: Iterable[int]) -> list[int]:
    """Positions of the units that have one of these tokens."""
    wanted = set(tokens)
    return [unit for unit, members in enumerate(units.members) if not wanted.isdisjoint(members)]


def _some(units: Positions, wanted: Sequence[bool]) -> Positions:
    names = ("labels", "special", "sink", "members")
    left: dict[str, Any] = {name: tuple(compress(getattr(units, name), wanted)) for name in names}
    return replace(units, **left)
