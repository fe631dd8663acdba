"""What :func:`attnviz.analyze` gives: the findings of every head, with the text, the model and verified patterns."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from attnviz.attention.checks import Verification
from attnviz.attention.verify import VerifiedAttention
from attnviz.commands.heads.inputs import Continuation, Options, Target
from attnviz.commands.heads.naming import heads_named
from attnviz.model.head_ids import HeadId, LayerId, Stack
from attnviz.model.tokens import Tokens, Units, merge_pattern
from attnviz.model.wording import counted, quoted, visible
from attnviz.patterns.profile_store import HeadProfile, StoredProfile, StoredRole
from attnviz.patterns.published import PublishedHead
from attnviz.patterns.statistics import TextContext
from attnviz.patterns.syntax import Parse
from attnviz.patterns.verdicts import Label, Verdict
from attnviz.results.facts import Facts
from attnviz.results.result import OfHeads, TextResult


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

    In a notebook it shows its page, its overview and its tables.

    Attributes:
        context: units, masks and baselines of the text.
        attention: the verified heads; patterns are recomputed from it on demand.
        heads: one entry a head, in the model's order.
        parse: the dependency parse; None where there was none.
        syntax_note: why there is no parse; empty where there is one.
        options: what was asked for.
        profile: the stored profile of these weights; None where there is none, or none was looked for.
        published: what papers say of heads of this model; empty where they say nothing.
        contexts: by layer, the contexts that are others than ``context``: of other texts, or with a window that is
            shorter than the text, and baselines over the keys within it.
        target: of an encoder-decoder, what its decoder reads; ``tokens`` and ``context`` are those of its encoder.
        continuation: of a decoder, what it wrote after the text, if that was asked for; ``tokens`` are of both.
        stack: of a part of one (:attr:`parts`), which kind of attention that is.
        all_heads: of such a part, the heads of the whole.
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
    contexts: dict[int, TextContext] = field(default_factory=dict)
    target: Target | None = None
    continuation: Continuation | None = None
    stack: Stack | None = None
    all_heads: tuple[HeadFindings, ...] = ()

    @property
    def units(self) -> Units:
        """What patterns are between: tokens, or words."""
        return self.context.units

    @property
    def keys(self) -> Units:
        """What is attended to: the same units, but for cross-attention those of the source."""
        return self.context.keys

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
        """Which of the :attr:`units` the model wrote, wholly or in part; empty where it wrote none."""
        first = None if self.continuation is None else self.continuation.first
        return () if first is None else tuple(max(members) >= first for members in self.units.members)

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

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads in each, of a part of an encoder-decoder or of a model of one kind."""
        stack = self.stack or self.checkpoint
        return stack.n_layers, stack.n_heads

    def context_of(self, layer: int) -> TextContext:
        """The context of a layer's heads: of its kind of attention, and with a window that is shorter than the text."""
        return self.contexts.get(layer, self.context)

    @property
    def windowed(self) -> dict[int, TextContext]:
        """By layer, the contexts with a window that is shorter than the text."""
        return {layer: context for layer, context in self.contexts.items() if context.window is not None}

    @property
    def dropped(self) -> str:
        """What is left out of pictures, and what that did to the rest; empty where nothing is."""
        return ""

    @property
    def facts(self) -> Facts:
        """What every figure, caption and table must say of it."""
        facts = replace(super().facts, n=len(self.units), unit=self.units.name, dropped=self.dropped)
        if self.verification.level < 4:
            facts = replace(facts, model=f"{facts.model} (not verified: level {self.verification.level} of 4)")
        if self.continuation is not None:
            facts = replace(facts, generated=self.continuation.text, n_generated=self.continuation.count)
        if self.target is None or self.stack_letter == "E":
            return facts
        if self.stack_letter == "D":
            return replace(facts, texts=(self.target.text,))
        sizes = len(self.context.keys), len(self.target.context.units)
        return replace(facts, texts=(*facts.texts, self.target.text), sizes=sizes)

    @property
    def verification(self) -> Verification:
        """What was compared with the model, and how closely."""
        return self.attention.verification

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The entries of the heads that the selections name, in the order of ``heads``; without a selection all.

        Args:
            selections: ``L2H8``, ``L2``, ``L*H8``, …; a label on this text or a role over a corpus (``obj``,
                ``previous``, ``syntactic``); one may stand without a list around it.

        Raises:
            UsageError: a selection cannot be read, or names what no head has.
        """
        ids, named = heads_named(selections, self.all_heads or self.heads)
        chosen = {*named, *(head.id for head in super().select(ids))} if ids or not named else named
        return [head for head in self.heads if head.id in chosen]

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
        context = self.context_of(layer)
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
        level = self.verification.level
        verified = "verified" if level == 4 else f"not verified: level {level} of 4"
        return (
            f"<Analysis of {quoted(self.text)} with {visible(self.checkpoint.name)}: "
            f"{counted(len(self.units), self.units.name)}, {self.verification.heads_compared} heads {verified}>"
        )

    def _repr_html_(self) -> str:
        """The page in a frame of its own; below it, for where scripts are off, the overview and the tables."""
        from attnviz.page.data import NOTEBOOK_BUDGET

        below = super()._repr_html_()
        title, page = html.escape(repr(self)), html.escape(self.page(budget=NOTEBOOK_BUDGET))
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="900" '
            f'style="border: 0" srcdoc="{page}"></iframe>'
            f"<details><summary>{title}: overview and tables</summary>{below}</details>"
        )


def letter_of(layer: int) -> str:
    """The letter of the stack of a layer; empty in models of one kind of attention."""
    return layer.stack.letter if isinstance(layer, LayerId) else ""


def clearest_first(heads: Sequence[HeadFindings]) -> list[HeadFindings]:
    """Those of the clearest labels first; heads that cannot be measured last."""
    return sorted(heads, key=lambda head: head.clearness, reverse=True)
