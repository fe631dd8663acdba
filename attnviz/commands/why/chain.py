"""The chain: from a score into the head that most of it came from, and so on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from attnviz.commands.why.scores import SIDES, QueryScores, ScoreDecomposer
from attnviz.models.head_ids import HeadId
from attnviz.trace.residual_parts import Source

_SHOWN = 3  # sources of a score that are nodes of their own; all others are one


@dataclass(frozen=True)
class ChainLink:
    """The score of one head and key, and where most of it came from.

    Attributes:
        scores: of the one key that the chain is at.
        side: on which the followed head stands, or the one with the largest source: query or key.
        source: the head with the largest part of the difference; None where no earlier head raises it.
        branches: the largest sources of that side and their shares of the difference, the followed head first; None
            where parts cancel.
        rest: share of all that is left out; None likewise.
        position: where that head wrote; that of the query or of the key.
        key: the key from which it took most of its part.
        key_share: what came from there, as a share of that part.
    """

    scores: QueryScores
    side: str
    source: HeadId | None
    branches: tuple[tuple[Source, float | None], ...]
    rest: float | None
    position: int
    key: int | None = None
    key_share: float | None = None


def follow(heads: Callable[[HeadId], ScoreDecomposer], scores: QueryScores, depth: int) -> tuple[ChainLink, ...]:
    """Follow the first key's score, ``depth`` heads at most; ends where no earlier head raises it, or has one key."""
    steps: list[ChainLink] = []
    while True:
        of_head, key = heads(scores.head), scores.keys[0]
        sides = {side: scores.totals(side, key) for side in SIDES}
        ranked = [
            (value, side, source) for side in SIDES for source, value in sides[side] if isinstance(source, HeadId)
        ]
        value, side, source = max(ranked, key=lambda each: each[0], default=(0.0, "key", None))
        source = source if value > 0 and key.difference > 0 else None
        largest = sorted(sides[side], key=lambda each: each[0] != source)[:_SHOWN]
        branches = tuple((each, key.share(part)) for each, part in largest)
        rest = key.share(key.difference - sum(part for _, part in largest))
        position = scores.query if side == "query" else key.key
        step = ChainLink(scores, side, source, branches, rest, position)
        if source is None:
            return (*steps, step)
        taken = of_head.attribute_to_source(scores, side, source)
        most = int(taken.argmax())
        steps.append(replace(step, key=most, key_share=float(taken[most] / taken.sum())))
        if len(steps) == depth or len(heads(source).allowed(position)) == 1:
            return tuple(steps)
        scores = heads(source).decompose(position, most, 1)
