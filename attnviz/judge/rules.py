"""The rules by which a score is a pattern of a head: of a text and over a corpus the same, with their sources.

A source is a paper, the code that came with one, or attnviz's own choice, and says which. A text adds that n is not too
small, a corpus its evidence: intervals, the rate of false discoveries, and the control.
"""

import math
from dataclasses import dataclass

from attnviz.measures.guesses import error_reduction
from attnviz.measures.patterns import GENERAL

MAJORITY = 0.5
"""A positional pattern holds where it takes more than half of the attention (paper: Clark et al. 2019, section 3.1, and
their plotting code)."""

MARGIN = 0.10
"""... and is at least 10 points above its baseline (paper: Voita et al. 2019, section 5.2, for syntactic heads; for
other patterns our own choice)."""

_ROUNDING = 1e-9  # so that 0.6 against 0.5 is 10 points in floating point, too

HALF_OF_THE_REST = 0.5
"""Local and long-range hold where a head has more than this share of what uniform attention leaves, so that either can
be reached, and missed, in texts of any length (our own choice)."""

SINK_SHARE = 0.6
"""A head rests on the sinks where they take more than this (code: plotting code of Clark et al. 2019, for [CLS] and
[SEP] each)."""

SINK_ONLY = 0.9
"""Above this, too little attention lands on content for a positional pattern (paper: Vig & Belinkov 2019, section 4.3,
who leave such heads out)."""

BROAD_SHARE = 3.8 / 4.5
"""Entropy as a share of the uniform entropy (code: plotting code of Clark et al. 2019, above 3.8 nats; that uniform
attention has about 4.5 on their texts is our own estimate)."""

RETRIEVED = 0.1
"""Of the needle's tokens, what a retrieval head finds at least (paper: Wu et al. 2024)."""


@dataclass(frozen=True)
class Rule:
    """What a score has to reach.

    Attributes:
        words: the rule with its sources.
        above: what the score has to exceed.
        above_rest: what its error reduction has to exceed: of what the baseline misses, the share that it does not.
        margin: how far above its baseline it has to be.
        least: the least score, where that takes the baseline's place.
        rests: whether it fails for heads with more than :data:`SINK_ONLY` of their attention elsewhere.
    """

    words: str
    above: float = -math.inf
    above_rest: float = -math.inf
    margin: float = -math.inf
    least: float | None = None
    rests: bool = False

    def holds(self, score: float | None, baseline: float | None, elsewhere: float = 0.0) -> bool:
        """Whether a score with its baseline reaches it, for a head with so much of its attention elsewhere, 0-1."""
        if score is None or baseline is None or (self.rests and elsewhere > SINK_ONLY + _ROUNDING):
            return False
        if self.least is not None:
            return score >= self.least
        far = math.isinf(self.above_rest) or (error_reduction(score, baseline) or 0.0) > self.above_rest
        return far and score > self.above and score - baseline >= self.margin - _ROUNDING


_ABOVE_UNIFORM = f"{MARGIN:.2f} above uniform attention (our own, after Voita et al. 2019)"
_NOT_RESTING = f"at most {SINK_ONLY} of the attention elsewhere (paper: Vig & Belinkov 2019)"

POSITION = Rule(
    f"over {MAJORITY} (paper and code: Clark et al. 2019), {_ABOVE_UNIFORM}, {_NOT_RESTING}",
    above=MAJORITY, margin=MARGIN, rests=True,
)  # fmt: skip
DISTANCE = Rule(
    f"over {HALF_OF_THE_REST} of what uniform attention leaves (our own), {_NOT_RESTING}",
    above_rest=HALF_OF_THE_REST, rests=True,
)  # fmt: skip
DIAGONALITY = Rule(
    f"diagonality over {HALF_OF_THE_REST} of what uniform attention leaves (our own), {_NOT_RESTING}",
    above_rest=HALF_OF_THE_REST, rests=True,
)  # fmt: skip
REPEATED = Rule(
    f"on repeats (paper: Olsson et al. 2022) over {MAJORITY} (our own, after Clark et al. 2019), {_ABOVE_UNIFORM}",
    above=MAJORITY, margin=MARGIN,
)  # fmt: skip
RETRIEVAL = Rule(
    f"largest attention on the token to be copied, over {RETRIEVED} of the time (paper: Wu et al. 2024), "
    f"{_ABOVE_UNIFORM}",
    above=RETRIEVED, margin=MARGIN,
)  # fmt: skip
SINK = Rule(
    f"over {SINK_SHARE} (code: plotting code of Clark et al. 2019), {_ABOVE_UNIFORM}", above=SINK_SHARE, margin=MARGIN
)
BROAD = Rule(
    f"entropy at least {BROAD_SHARE:.2f} of the uniform entropy (code: plotting code of Clark et al. 2019)",
    least=BROAD_SHARE,
)
RELATION = Rule(f"{MARGIN:.2f} above (paper: Voita et al. 2019) the largest of its baselines (our own)", margin=MARGIN)
SEMANTIC = Rule(
    f"cosine of centred input embeddings, special tokens left out of the baseline too, {MARGIN:.2f} above uniform "
    f"attention (our own), {_NOT_RESTING}",
    margin=MARGIN, rests=True,
)  # fmt: skip


def of_position(name: str) -> Rule:
    """The rule of a pattern of positions: that of a single one, or of a distance."""
    return DISTANCE if name in GENERAL else POSITION
