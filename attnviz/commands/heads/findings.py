"""What one run found: the data that tables, figures and files are made from."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from torch import Tensor

from attnviz.attention.verify import Verification, VerifiedAttention
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId, head_named, select_heads
from attnviz.model.tokens import Tokens, Units, merge_pattern
from attnviz.patterns.profile_store import HeadProfile, StoredProfile
from attnviz.patterns.published import PublishedHead
from attnviz.patterns.statistics import Frame
from attnviz.patterns.syntax import Parse
from attnviz.patterns.verdicts import Pattern, deciding_pattern

__all__ = ["Findings", "FindingsWithoutSinks", "HeadFindings", "Options", "without_sinks"]


@dataclass(frozen=True)
class Options:
    """What was asked for, as far as it changes numbers.

    Attributes:
        words: merge the pieces of words.
        local_window: largest distance that counts as local, in tokens (words with ``words``).
        long_range_from: smallest distance that counts as long-range, likewise.
    """

    words: bool = False
    local_window: int = 1
    long_range_from: int = 4


@dataclass(frozen=True)
class HeadFindings:
    """Numbers and verdicts of one head.

    Attributes:
        id: layer and head.
        statistics: by name (:data:`attnviz.patterns.statistics.SCALARS`); None where not measurable.
        patterns: every pattern with score, baseline, n and verdict.
        label: the most telling pattern that passed.
        profile: what a stored profile of the model says of the head; None where there is none.
    """

    id: HeadId
    statistics: dict[str, float | None]
    patterns: tuple[Pattern, ...]
    label: str
    profile: HeadProfile | None = None

    @property
    def deciding(self) -> Pattern | None:
        """The pattern behind the label, of the text or of the profile; None for a heterogeneous head."""
        return deciding_pattern(self.patterns, self.profile)

    @property
    def strongest(self) -> Pattern | None:
        """The pattern behind the label, or else the positional one furthest above its baseline."""
        measured = [pattern for pattern in self.patterns if pattern.kind == "positional" and pattern.score is not None]
        return self.deciding or max(measured, key=lambda pattern: pattern.margin, default=None)


@dataclass(frozen=True)
class Findings:
    """Everything that one run on one text found; nothing in it comes from an unverified head.

    Attributes:
        text, pair: as given.
        checkpoint: the model.
        tokens: the text as the model read it.
        frame: units, masks and baselines of the text.
        attention: the verified heads; patterns are recomputed from it on demand.
        heads: one entry a head, in the model's order.
        parse: the dependency parse; None where there was none.
        syntax_note: why there is no parse; empty where there is one.
        options: what was asked for.
        profile: the stored profile of these weights; None where there is none, or none was looked for.
        published: what papers say of heads of this model; empty where they say nothing.
    """

    text: str
    pair: str | None
    checkpoint: Checkpoint
    tokens: Tokens
    frame: Frame
    attention: VerifiedAttention
    heads: tuple[HeadFindings, ...]
    parse: Parse | None
    syntax_note: str
    options: Options
    profile: StoredProfile | None = None
    published: tuple[PublishedHead, ...] = ()

    @property
    def units(self) -> Units:
        """What patterns are between: tokens, or words."""
        return self.frame.units

    @property
    def dropped(self) -> str:
        """What is left out of pictures, and what that did to the rest; empty where nothing is."""
        return ""

    @property
    def verification(self) -> Verification:
        """What was compared with the model, and how closely."""
        return self.attention.verification

    def layer_patterns(self, layer: int) -> Tensor:
        """The verified patterns of one layer, [n_heads, n, n] over :attr:`units`, float32 or wider, on the CPU."""
        return merge_pattern(self.attention.layer(layer).wide[0], self.frame.units.members).cpu()

    def select(self, selections: Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The heads that the selections name (``L2H8``, ``L2``, ``L*H8``, …); all without one.

        One selection may stand without a list around it: ``select("L2")``.

        Raises:
            UsageError: a selection cannot be read or names what the model lacks.
        """
        chosen = set(select_heads(selections, self.checkpoint.n_layers, self.checkpoint.n_heads))
        return [head for head in self.heads if head.id in chosen]

    def head(self, head: str | HeadId) -> HeadFindings:
        """The findings of one head, by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.

        Raises:
            UsageError: the model has no such head.
        """
        wanted = head_named(head, self.checkpoint.n_layers, self.checkpoint.n_heads)
        return next(found for found in self.heads if found.id == wanted)


class FindingsWithoutSinks(Findings):
    """The same findings for drawing only: patterns have no sinks, and their rows are divided by what is left of them.

    Statistics, patterns and labels of the heads are those of the whole text. A row of which nothing is left is 0.
    """

    @property
    def units(self) -> Units:
        """Those that are no sinks."""
        units = self.frame.units
        kept = [i for i, sink in enumerate(units.sink) if not sink]
        return Units(
            name=units.name,
            labels=tuple(units.labels[i] for i in kept),
            special=tuple(units.special[i] for i in kept),
            sink=(False,) * len(kept),
            members=tuple(units.members[i] for i in kept),
        )

    @property
    def dropped(self) -> str:
        """Which positions are left out, and that rows were renormalised."""
        units = self.frame.units
        kinds = ["special tokens"] * any(units.special)
        if any(sink and not special for sink, special in zip(units.sink, units.special, strict=True)):
            kinds.append(f"first {units.name}")
        return f"{' and '.join(kinds)} dropped, rows renormalised" if kinds else ""

    def layer_patterns(self, layer: int) -> Tensor:
        """The verified patterns of one layer between the units that are left, [n_heads, n, n]; rows sum to 1, or 0."""
        kept = [i for i, sink in enumerate(self.frame.units.sink) if not sink]
        patterns = super().layer_patterns(layer)[:, kept][:, :, kept]
        totals = patterns.sum(-1, keepdim=True)
        return patterns / totals.masked_fill(totals == 0, 1.0)


def without_sinks(findings: Findings) -> FindingsWithoutSinks:
    """The findings with sinks left out of the patterns, for drawing only.

    Raises:
        UsageError: nothing would be left.
    """
    units = findings.frame.units
    if all(units.sink):
        all_of_it = f"its only {units.name} is" if len(units) == 1 else f"its {len(units)} {units.name}s are all"
        raise UsageError(
            f"--drop-special (drop_special=True) leaves nothing of this text to draw: {all_of_it} special or the "
            "first; give a longer text, or leave the option out."
        )
    return FindingsWithoutSinks(**{field.name: getattr(findings, field.name) for field in fields(Findings)})
