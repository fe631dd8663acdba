"""What an ablation found: numbers with their intervals, of heads, of sets of heads, and of more and more heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.commands.ablate.gradient_importance import spearman
from attnviz.commands.ablate.hooks import METHODS
from attnviz.commands.ablate.inputs import Sources
from attnviz.commands.ablate.metrics import Measure, measures_of
from attnviz.commands.ablate.passes import Checked
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = ["Ablated", "Curve", "CurvePoint", "Estimate", "HeadDamage", "Options", "SetDamage"]


@dataclass(frozen=True)
class Options:
    """How to remove, and what to measure besides.

    Attributes:
        method: one of :data:`attnviz.commands.ablate.hooks.METHODS`.
        select: heads to remove; none for all.
        together: remove them as one set too, and leave curve and layers out.
        limit: sentences of each corpus that are read; None for all.
        batch_size: rows that the model reads at once.
        seed: of the bootstrap, the random order and the random projections.
        curve: also remove heads together: those of each layer, and more and more of them all.
        gradient: also measure the importance by gradients.
    """

    method: str = "zero"
    select: tuple[str, ...] = ()
    together: bool = False
    limit: int | None = None
    batch_size: int = 32
    seed: int = 0
    curve: bool = True
    gradient: bool = True

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown method, or numbers that make no sense."""
        if self.method not in METHODS:
            raise UsageError(f"unknown method {self.method!r}: expected one of {', '.join(METHODS)}.")
        for name, least in (("batch_size", 1), ("limit", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name == "limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"expected {name.replace('_', '-')} of at least {least}, found {value!r}.")


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval by a bootstrap over texts; no interval where these are too few."""

    value: float
    low: float | None
    high: float | None

    @property
    def above_zero(self) -> bool | None:
        """Whether all of the interval is; None without one."""
        return None if self.low is None else self.low > 0

    @property
    def below_zero(self) -> bool | None:
        """Whether all of the interval is; None without one."""
        return None if self.high is None else self.high < 0


@dataclass(frozen=True)
class HeadDamage:
    """What removing one head alone does.

    Attributes:
        id: the head.
        rank: from 1 for the one whose removal does the most, by the first measure.
        damage: by the name of the measure, per token.
        gradient: its importance by Michel et al. 2019, not normalised; None where it was not measured.
        gradient_normalised: divided by the l2 norm over the heads of its layer.
    """

    id: HeadId
    rank: int
    damage: dict[str, Estimate]
    gradient: float | None
    gradient_normalised: float | None


@dataclass(frozen=True)
class SetDamage:
    """What removing several heads at once does, beside what they do one at a time.

    Attributes:
        heads: the set.
        layer: that it is of; None for a set over layers.
        damage: of the set, by the name of the measure, per token.
        singles: sum of what its heads do one at a time.
        excess: how much more the set does than that sum.
    """

    heads: tuple[HeadId, ...]
    layer: int | None
    damage: dict[str, Estimate]
    singles: dict[str, Estimate]
    excess: dict[str, Estimate]


@dataclass(frozen=True)
class CurvePoint:
    """So many heads removed.

    Attributes:
        removed: how many.
        least: the least important ones, by the measures.
        random: as many in a random order.
    """

    removed: int
    least: SetDamage
    random: SetDamage


@dataclass(frozen=True)
class Curve:
    """More and more heads removed: the least important first, and in a random order."""

    order: tuple[HeadId, ...]
    random_order: tuple[HeadId, ...]
    points: tuple[CurvePoint, ...]


class Ablated:
    """What was measured.

    Attributes:
        checkpoint: the model.
        sources: what was measured on.
        options: how.
        kind: ``next-token``, ``masked-token`` or ``states``.
        n_texts, n_places: texts that were measured, and tokens in them that were looked at.
        clean_loss: of the model as it is, in nats a token; None where nothing is predicted.
        checked: what was verified.
        heads: every head that was removed, the one that matters most first.
        layers: for each layer of which two heads or more were removed, these together; empty where that was not asked
            for.
        together: the selected heads as one set; None where that was not asked for.
        curve: None where it was not asked for.
        rank_correlations: Spearman's, of the importance by gradients with each measure; None where not measurable.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        sources: Sources,
        options: Options,
        kind: str,
        counts: tuple[int, int],
        clean_loss: float | None,
        checked: Checked,
        heads: Sequence[HeadDamage],
        layers: Sequence[SetDamage],
        together: SetDamage | None,
        curve: Curve | None,
    ) -> None:
        """Called by :func:`attnviz.commands.ablate.effects.measure_ablation` alone."""
        self.checkpoint, self.sources, self.options, self.kind = checkpoint, sources, options, kind
        self.n_texts, self.n_places = counts
        self.clean_loss, self.checked = clean_loss, checked
        self.heads, self.layers = tuple(heads), tuple(layers)
        self.together, self.curve = together, curve
        self.rank_correlations = {
            measure.name: _correlation(self.heads, measure.name) for measure in measures_of(self.kind)
        }

    @property
    def measures(self) -> tuple[Measure, Measure]:
        """What was measured; heads are ranked by the first one."""
        return measures_of(self.kind)

    @property
    def measure(self) -> Measure:
        """What heads are ranked by."""
        return self.measures[0]

    def head(self, head: str | HeadId) -> HeadDamage:
        """What removing one head does.

        Raises:
            UsageError: it was not removed.
        """
        wanted = HeadId.parse(head) if isinstance(head, str) else head
        for each in self.heads:
            if each.id == wanted:
                return each
        raise UsageError(f"head {wanted} was not removed: {len(self.heads)} heads were.")


def _correlation(heads: Sequence[HeadDamage], name: str) -> float | None:
    """Of the importance by gradients, not normalised, with the size of what removing does."""
    gradients = [head.gradient for head in heads if head.gradient is not None]
    if len(gradients) != len(heads):
        return None
    return spearman(gradients, [head.damage[name].value for head in heads])
