"""What one run found: the data that tables, figures and files are made from."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from attnviz.checkpoint import Checkpoint
from attnviz.errors import UsageError
from attnviz.heads import HeadId, select_heads
from attnviz.patterns import Pattern, deciding_pattern
from attnviz.profile_store import HeadProfile, StoredProfile
from attnviz.published import PublishedHead
from attnviz.statistics import Frame
from attnviz.syntax import Parse
from attnviz.tokens import Tokens, Units, merge_pattern
from attnviz.verify import Verification, VerifiedAttention

__all__ = ["Findings", "HeadFindings", "Options"]


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
        statistics: by name (:data:`attnviz.statistics.SCALARS`); None where not measurable.
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
    def verification(self) -> Verification:
        """What was compared with the model, and how closely."""
        return self.attention.verification

    def layer_patterns(self, layer: int) -> Tensor:
        """The verified patterns of one layer, [n_heads, n, n] over :attr:`units`, float32 or wider, on the CPU."""
        return merge_pattern(self.attention.layer(layer).wide[0], self.units.members).cpu()

    def select(self, selections: Iterable[str] = ()) -> list[HeadFindings]:
        """The heads that the selections name (``L2H8``, ``L2``, ``L*H8``, …); all without one.

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
        wanted = HeadId.parse(head) if isinstance(head, str) else head
        for found in self.heads:
            if found.id == wanted:
                return found
        last = HeadId(self.checkpoint.n_layers - 1, self.checkpoint.n_heads - 1)
        raise UsageError(f"the model has no head {wanted}; it has {HeadId(0, 0)} to {last}.")
