"""The result of :func:`attnviz.analyze`: what was measured of a text, its parts, and these as pictures show them.

An analysis has one part for each kind of attention: encoder, decoder and that between them, or the one that others
have. A part knows what its rows and its columns are of; a :class:`PatternView` is a part as a picture shows it.
"""

import html
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from attnviz.analysis.findings import HeadFindings, clearest_first, heads_named, sorted_by_selection
from attnviz.arguments import check_kind
from attnviz.errors import UsageError
from attnviz.inputs.prompt import Continuation, Positions, Prompt, TargetTokens, UnitRows, sinks_in_words
from attnviz.language.syntax import Parse
from attnviz.measures.decisions import Decision
from attnviz.measures.spans import SpanShares
from attnviz.measures.statistics import OPTIONAL, TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, Stack, ids_and_names
from attnviz.present.documents import Entry, model_entry
from attnviz.present.figure_context import FigureContext
from attnviz.present.report import View
from attnviz.present.result import OfHeads, TextResult
from attnviz.present.view import ViewOptions
from attnviz.profiles.published import PublishedHead, published_heads
from attnviz.profiles.store import StoredProfile
from attnviz.run.checks import Verification
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import counted, quoted, visible


class AttentionSource(Protocol):
    """Where patterns come from: a verified model (:class:`VerifiedAttention`), or weights of any library."""

    @property
    def verification(self) -> Verification:
        """What was compared with the model, and how closely."""

    def tokens_of(self, layer: int) -> tuple[Prompt, Prompt]:
        """The tokens of a layer's queries, and of its keys."""

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[Any]:
        """Chunks of rows of all or some heads of a layer, as :class:`attnviz.run.verify.VerifiedRows` has them."""

    def activation(self, name: str, layer: int) -> Tensor:
        """The tensor of a named site of a layer: see :meth:`Analysis.activation`."""


class PatternReader(Protocol):
    """Reads the pattern of one head in chunks of queries, never as a whole."""

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


class OfPatterns(OfHeads[HeadFindings]):
    """What has patterns to read: an analysis, and its parts."""

    @abstractmethod
    def part_of(self, layer: int) -> "Part":
        """The part that a layer is of; UsageError where there is no such layer."""

    def layer_patterns(self, layer: int, heads: Sequence[int] | None = None) -> Tensor:
        """The verified patterns of one layer, or of some of its heads, [n_heads, n_queries, n_keys], on the CPU."""
        part, patterns = self.part_of(layer), torch.empty(0)
        for first, chunk in part.chunks(layer, heads):
            if not patterns.numel():
                patterns = chunk.new_zeros(len(chunk), len(part.units), len(part.keys))
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


@dataclass(frozen=True, repr=False, eq=False)
class Analysis(TextResult, OfPatterns):
    """Result of :func:`attnviz.analyze` on one text; nothing in it comes from an unverified head.

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
    target: TargetTokens | None = None  # what the decoder of an encoder-decoder reads, in rows of the last part
    decision: Decision | None = None  # of a classifier, for the text
    spans: SpanShares | None = None  # attention between spans of the text; None without spans

    @property
    def continuation(self) -> Continuation | None:  # what a decoder wrote, if requested
        return self.tokens.written

    @cached_property
    def parts(self) -> "tuple[Part, ...]":
        """One for each kind of attention: of an encoder-decoder up to three, of other models one."""
        return tuple(Part(self, stack) for stack in self.checkpoint.kinds)

    def part_of(self, layer: int) -> "Part":
        """The part that a layer is of; UsageError where there is no such layer."""
        known = self.checkpoint.layer_of(layer)
        return next(part for part in self.parts if known in part.layers)

    def parts_of(self, selections: Iterable[str | HeadId]) -> "list[Part]":
        """The parts of which heads are selected."""
        return [part for part in self.parts if part.select(selections)]

    def drawn(self, choices: ViewOptions) -> "list[PatternView]":
        """The parts of which heads are selected, as pictures show them."""
        return [part.drawn(choices.drop_special) for part in self.parts_of(choices.select)]

    @property
    def units(self) -> Positions:
        """Rows of patterns: tokens, or words; with :attr:`Options.queries` some of them; of the first part."""
        return self.parts[0].units

    @property
    def keys(self) -> Positions:  # columns of patterns, likewise
        return self.parts[0].keys

    @property
    def longest(self) -> int:  # units of the longest text, sinks included
        return max(len(units) for part in self.parts for units in (part.context.units, part.context.keys))

    @property
    def published(self) -> tuple[PublishedHead, ...]:  # heads of this model that papers name, for cards
        return published_heads(self.checkpoint)

    def context_of(self, layer: int) -> TextContext:
        """The context of a layer's heads: of its kind of attention, and with a window that is shorter than the text."""
        return self.contexts.get(self.checkpoint.layer_of(layer), self.context)

    @cached_property
    def optional(self) -> list[str]:  # the statistics of this text or model that others lack
        return [name for name in OPTIONAL if any(name in head.statistics for head in self.heads)]

    @property
    def windowed(self) -> dict[int, TextContext]:  # by layer, those with a window that is shorter than the text
        return {layer: context for layer, context in self.contexts.items() if context.window is not None}

    @property
    def figure_context(self) -> FigureContext:  # of an encoder-decoder, that of source and target
        return self.parts[-1].figure_context

    @property
    def verification(self) -> Verification:
        return self.verified.verification

    @property
    def model_entry(self) -> Entry:  # of the document
        return model_entry(self.checkpoint)

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
        chosen = heads_named(names, self.heads)
        if ids or not names:
            chosen |= {head.id for head in super().select(ids)}
        return [head for head in self.heads if head.id in chosen]

    def attention(self) -> Tensor:
        """The verified patterns of all heads, [n_layers, n_heads, n, n]: row = query, column = key, over :attr:`units`.

        All are in memory at once, float32 or wider, on the CPU; :meth:`patterns` gives one head after the other.

        Raises:
            UsageError: an encoder-decoder, whose three kinds of attention are of other texts; each part has its own.
        """
        if len(self.parts) > 1:
            names = ", ".join(f"parts[{number}] ({part.name})" for number, part in enumerate(self.parts))
            raise UsageError(f"an encoder-decoder has attention of several kinds; expected that of one: {names}.")
        return self.parts[0].attention()

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


@dataclass(frozen=True, eq=False)
class Part(OfPatterns):
    """One kind of attention of an analysis."""

    analysis: Analysis
    stack: Stack  # its layers

    @property
    def name(self) -> str:  # encoder, decoder or cross-attention; empty of a model of one kind
        return self.stack.name

    @property
    def layers(self) -> Sequence[int]:
        return self.stack.layers

    @property
    def shape(self) -> tuple[int, int]:  # layers, and heads in each
        return len(self.layers), self.stack.n_heads

    @cached_property
    def heads(self) -> tuple[HeadFindings, ...]:  # type: ignore[override] # made when it is first asked for
        return tuple(head for head in self.analysis.heads if head.id.layer in self.layers)

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override]
        return self.analysis.checkpoint

    @property
    def context(self) -> TextContext:
        """The context of its heads, without windows."""
        return self.analysis.context_of(self.layers[0]) if self.name else self.analysis.context

    def context_of(self, layer: int) -> TextContext:
        """The context of the heads of one layer, with its window."""
        return self.analysis.context_of(layer)

    @property
    def rows(self) -> Prompt:
        return self.source.tokens_of(self.layers[0])[0]

    @property
    def columns(self) -> Prompt:
        return self.source.tokens_of(self.layers[0])[1]

    @property
    def units(self) -> Positions:
        """Rows of patterns: tokens, or words; with :attr:`Options.queries` some of them."""
        return _some(self.context.units, self.context.query_positions)

    @property
    def keys(self) -> Positions:
        """Columns of patterns: all units of the same text, or of the source in cross-attention."""
        return self.context.keys

    @property
    def is_square(self) -> bool:  # whether rows and columns are the same units
        return self.context.source is None and self.context.queries is None

    @property
    def source(self) -> AttentionSource:
        return self.analysis.verified

    def part_of(self, layer: int) -> "Part":
        """Itself; UsageError where the model has no such layer."""
        self.checkpoint.layer_of(layer)
        return self

    def stem(self, name: str) -> str:
        """The name of a picture of it: ``mean-encoder``, or ``mean`` of a model of one kind."""
        return f"{name}-{self.name}" if self.name else name

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """Those of its heads that the selections name, as of :meth:`Analysis.select`."""
        return [head for head in self.analysis.select(selections) if head.id.layer in self.layers]

    def ranked(self, selections: Iterable[str | HeadId]) -> list[HeadFindings]:
        """Those that the selections name, the clearest first of what selects them; see ``sorted_by_selection``."""
        return sorted_by_selection(self.select(selections), ids_and_names(selections)[1])

    def attention(self) -> Tensor:
        """The verified patterns, [n_layers, n_heads, n_queries, n_keys]: see :meth:`Analysis.attention`."""
        return torch.stack([self.layer_patterns(layer) for layer in self.layers])

    def chunks(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """The verified patterns of a layer, or of some of its heads, in chunks of queries between :attr:`units`.

        A chunk is its first query and [n_heads, rows, n_keys], float32 or wider, on the CPU; keys after the last of
        them are hidden from all its queries.
        """
        layer = self.checkpoint.layer_of(layer)
        context, merge, first = self.context_of(layer), None, 0
        for rows in self.source.rows(layer, heads):
            merge = merge or UnitRows(context.units.members, context.keys.members, rows.n_queries, rows.n_keys)
            pattern = merge.add(rows.first, rows.in_float32[0])[1].cpu()
            yield first, pattern
            first += pattern.shape[1]

    def read(
        self, heads: Iterable[HeadFindings], reader: Callable[..., T], *given: Any
    ) -> Iterator[tuple[HeadFindings, T]]:
        """Yield each head with a ``reader(*given)`` of its own, which has read the whole pattern chunk by chunk.

        Heads come in the model's order: a layer is recomputed once for those of its heads that stand together.
        """
        for layer, of_layer in groupby(heads, lambda head: head.id.layer):
            readers = [(head, reader(*given)) for head in of_layer]
            for first, chunk in self.chunks(layer, [head.id.head for head, _ in readers]):
                for (_, of_head), rows in zip(readers, chunk, strict=True):
                    of_head.add(first, rows)
            yield from readers

    def allowed(self, layer: int) -> Iterator[tuple[int, Tensor]]:
        """The keys that a layer's mask lets rows attend to, boolean [rows, n_keys], in chunks as of :meth:`chunks`."""
        context = self.context_of(layer)
        rows = torch.tensor(context.query_positions)
        for first in range(0, len(rows), _CHUNK):
            chunk = rows[first : first + _CHUNK]
            start, end = int(chunk[0]), int(chunk[-1]) + 1
            yield first, context.allowed_rows(start, end).cpu()[chunk - start]

    def drawn(self, drop_special: bool) -> "PatternView":
        """The part as pictures show it: on request without sinks.

        Raises:
            UsageError: nothing of the text would be left.
        """
        check_kind("drop_special", drop_special, bool)
        units = self.context.units
        if drop_special and (not self.context.non_sink.any() or all(self.keys.sink)):
            all_of_it = f"its only {units.name} is" if len(units) == 1 else f"its {len(units)} {units.name}s are all"
            raise UsageError(
                f"--drop-special (drop_special=True) leaves nothing of this text to draw: {all_of_it} special or the "
                "first; give a longer text, or leave the option out."
            )
        return PatternView(self.analysis, self.stack, drop_special)

    @property
    def figure_context(self) -> FigureContext:
        units, context, written = self.units, self.context, self.rows.written
        between, texts, sizes = context.source is not None, self.rows.source.texts, list[str]()
        if between:
            texts = self.columns.source.texts + texts
            sizes = [
                self.columns.size or counted(len(context.keys), units.name),
                counted(len(context.units), units.name),
            ]
        return FigureContext(
            f"{self.checkpoint.short_name}{'' if self.analysis.verification.level else ' (not verified)'}",
            tuple(texts),
            n=len(units if between else self.keys),
            unit=units.name,
            sizes=tuple(sizes),
            generated="" if written is None else written.text,
            n_generated=0 if written is None else written.count,
            n_rows=0 if context.queries is None else len(units),
        )


@dataclass(frozen=True, eq=False)
class PatternView(Part):
    """A part as pictures show it: a sound in intervals, and perhaps without sinks, rows scaled to sum to 1.

    Where nothing is left of a row it is 0. Statistics and labels are those of the whole text.
    """

    without_sinks: bool = False

    @cached_property
    def context(self) -> TextContext:  # made once
        return self._in_intervals(super().context)

    def context_of(self, layer: int) -> TextContext:
        """As of :class:`Part`; of a sound, with intervals for frames."""
        return self._in_intervals(super().context_of(layer))

    def _in_intervals(self, context: TextContext) -> TextContext:
        intervals = self.columns.intervals
        return context if intervals is None else replace(context, source=intervals)

    @property
    def units(self) -> Positions:  # those of the part that are shown
        return _some(super().units, self._shown(super().units))

    @property
    def keys(self) -> Positions:  # likewise
        return _some(super().keys, self._shown(super().keys))

    def _shown(self, units: Positions) -> list[int]:
        return [place for place, sink in enumerate(units.sink) if not (sink and self.without_sinks)]

    @property
    def generated(self) -> tuple[bool, ...]:  # of the units, which the model wrote, wholly or in part
        written = self.rows.written
        return () if written is None else tuple(max(members) >= written.first for members in self.units.members)

    def chunks(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """As of :class:`Part`, between the units that are shown."""
        chunks = super().chunks(layer, heads)
        if not self.without_sinks:
            yield from chunks
            return
        for first, pattern in self._kept(chunks):
            totals = pattern.sum(-1, keepdim=True)
            yield first, pattern / totals.masked_fill(totals == 0, 1.0)

    def allowed(self, layer: int) -> Iterator[tuple[int, Tensor]]:
        """As of :class:`Part`, between the units that are shown."""
        return self._kept(super().allowed(layer))

    def _kept(self, chunks: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """The rows and columns that are shown of chunks [.., rows, n_keys]."""
        rows, columns = (torch.tensor(self._shown(units)) for units in (super().units, super().keys))
        done = 0
        for first, chunk in chunks:
            here = rows[(rows >= first) & (rows < first + chunk.shape[-2])] - first
            yield done, chunk[..., here, :][..., columns[columns < chunk.shape[-1]]]
            done += len(here)

    @property
    def figure_context(self) -> FigureContext:  # says what was left out
        units = self.context.units
        sinks = sinks_in_words(units, units.name, first="first")
        dropped = f"{sinks} dropped, rows renormalised" if sinks and self.without_sinks else ""
        return replace(super().figure_context, dropped=dropped)


def units_with(units: Positions, tokens: Iterable[int]) -> list[int]:
    """Positions of the units that have one of these tokens."""
    wanted = set(tokens)
    return [unit for unit, members in enumerate(units.members) if not wanted.isdisjoint(members)]


def _some(units: Positions, places: Sequence[int]) -> Positions:
    """The units at these places; itself where these are all."""
    if len(places) == len(units):
        return units
    names = ("labels", "special", "sink", "members")
    left: dict[str, Any] = {name: tuple(getattr(units, name)[place] for place in places) for name in names}
    return replace(units, **left)
