"""The chain: from a score into the head that most of it came from, and so on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from attnviz.commands.why.scores import SIDES, QueryScores, ScoreDecomposer
from attnviz.models.head_ids import HeadId
from attnviz.run.stream import Source

_SHOWN = 3  # sources of a score that are nodes of their own; all others are one


@dataclass(frozen=True)
class ChainLink:
    """The score of one head and key, and where most of it came from; shares are None where parts cancel."""

    scores: QueryScores  # of the one key that the chain is at
    side: str  # on which the followed head stands, or the one with the largest source: query or key
    source: HeadId | None  # the head with the largest part; None where no earlier head raises the difference
    branches: tuple[tuple[Source, float | None], ...]  # the largest sources of that side, the followed head first
    rest: float | None  # share of all that is left out
    position: int  # where that head wrote; that of the query or of the key
    key: int | None = None  # from which it took most of its part
    key_share: float | None = None  # what came from there, as a share of that part


def follow(heads: Callable[[HeadId], ScoreDecomposer], scores: QueryScores, depth: int) -> tuple[ChainLink, ...]:
    """Follow the first key's score, ``depth`` heads at most; ends where no earlier head raises it, or has one key."""
    links: list[ChainLink] = []
    while True:
        key = scores.keys[0]
        sides = {side: scores.totals(side, key) for side in SIDES}
        ranked = [
            (value, side, source) for side in SIDES for source, value in sides[side] if isinstance(source, HeadId)
        ]
        value, side, source = max(ranked, key=lambda part: part[0], default=(0.0, "key", None))
        source = source if value > 0 and key.difference > 0 else None
        largest = sorted(sides[side], key=lambda part: part[0] != source)[:_SHOWN]
        link = ChainLink(
            scores=scores,
            side=side,
            source=source,
            branches=tuple((name, key.share(part)) for name, part in largest),
            rest=key.share(key.difference - sum(part for _, part in largest)),
            position=scores.query if side == "query" else key.key,
        )
        if source is None:
            return (*links, link)
        taken = heads(scores.head).attribute_to_source(scores, side, source)
        most = int(taken.argmax())
        links.append(replace(link, key=most, key_share=float(taken[most] / taken.sum())))
        if len(links) == depth or len(heads(source).allowed(link.position)) == 1:
            return tuple(links)
        scores = heads(source).decompose(link.position, most, 1)
