"""The thresholds by which a head shows a pattern, the same for a text and a corpus, with their sources.

Sources are marked as paper, code of a paper, or our own choice. A text also needs enough n; a corpus needs evidence:
intervals, a false discovery rate, and a control.
"""

import math
from dataclasses import dataclass, replace

from attnviz.measures.guesses import error_reduction
from attnviz.measures.patterns import (
    CHOSEN_OF_ROW,
    CHOSEN_OF_UNIFORM,
    COPY_SUPPRESSION,
    COPYING,
    INACTIVE,
    SINK_ONLY,
    PatternSpec,
)
from attnviz.measures.writing import QUIET

# A positional pattern holds where it takes more than half of the attention (paper: Clark et al. 2019, section 3.1, and
# their plotting code).
MAJORITY = 0.5

# ... and is at least 10 points above its baseline (paper: Voita et al. 2019, section 5.2, for syntactic heads; for
# other patterns our own choice).
MARGIN = 0.10

_ROUNDING = 1e-9  # so that 0.6 against 0.5 is 10 points in floating point, too

# Local holds where the error reduction is above this, which is possible in texts of any length (our own choice).
HALF_OF_THE_REST = 0.5

# Long-range holds where more than this share of the attention that is not on sinks goes to far keys that the head
# chooses (our own choice: five of the 72 heads of all-MiniLM-L6-v2 have more on a treebank, UD English EWT, dev; their
# median is 0.04; no head of an untrained copy has more than 0.001) ...
CHOSEN_FAR = 0.15

# ... and at least this share of what the same weights would give with the keys of each row shuffled: the head chooses
# far keys about as readily as near ones (our own choice; of those five heads L2H9, at 0.18 beside 0.27, does not).
NO_DECAY = 0.8

# A head is a sink head where sinks take more than this (code: plotting code of Clark et al. 2019, for [CLS] and [SEP]
# each).
SINK_SHARE = 0.6

# Entropy as a share of the uniform entropy (code: plotting code of Clark et al. 2019, above 3.8 nats; that uniform
# attention has about 4.5 on their texts is our own estimate).
BROAD_SHARE = 3.8 / 4.5

ALMOST_ALWAYS = 0.9  # share of the tokens at which an inactive head is quiet at least (our own choice)

RETRIEVED = 0.1  # share of the needle's tokens that a retrieval head retrieves at least (paper: Wu et al. 2024).


@dataclass(frozen=True)
class Rule:
    """The thresholds of a score."""

    words: str  # the rule with its sources
    above: float = -math.inf  # score that must be exceeded
    above_rest: float = -math.inf  # error reduction that must be exceeded
    margin: float = -math.inf  # least score - baseline
    of_baseline: float | None = None  # least score as a share of the baseline
    least: float | None = None  # least score, in place of a baseline
    reject_sink_heads: bool = False  # of heads with more than SINK_ONLY of their attention off content

    def holds(self, score: float | None, baseline: float | None, off_content: float = 0.0) -> bool:
        """Whether a score passes; ``off_content`` is the share of attention that the score is not about, 0-1."""
        if score is None or baseline is None or (self.reject_sink_heads and off_content > SINK_ONLY + _ROUNDING):
            return False
        if self.least is not None:
            return score >= self.least
        far = math.isinf(self.above_rest) or (error_reduction(score, baseline) or 0.0) > self.above_rest
        decays = self.of_baseline is not None and score < self.of_baseline * baseline - _ROUNDING
        return far and not decays and score > self.above and score - baseline >= self.margin - _ROUNDING


_ABOVE_UNIFORM = f"{MARGIN:.2f} above uniform attention (our own, after Voita et al. 2019)"
_NOT_RESTING = f"at most {SINK_ONLY} of the attention elsewhere (paper: Vig & Belinkov 2019)"

POSITION = Rule(
    f"over {MAJORITY} (paper and code: Clark et al. 2019), {_ABOVE_UNIFORM}, {_NOT_RESTING}",
    above=MAJORITY,
    margin=MARGIN,
    reject_sink_heads=True,
)
DISTANCE = Rule(
    f"over {HALF_OF_THE_REST} of what uniform attention leaves (our own), {_NOT_RESTING}",
    above_rest=HALF_OF_THE_REST,
    reject_sink_heads=True,
)
LONG_RANGE = Rule(
    f"over {CHOSEN_FAR} on far keys that get at least {CHOSEN_OF_UNIFORM} times uniform attention and "
    f"{CHOSEN_OF_ROW} of their query's, and at least {NO_DECAY} of what these weights would give with keys shuffled "
    f"(our own), {_NOT_RESTING}",
    above=CHOSEN_FAR,
    of_baseline=NO_DECAY,
    reject_sink_heads=True,
)
DIAGONALITY = replace(DISTANCE, words=f"diagonality {DISTANCE.words}")
REPEATED = Rule(
    f"on repeats (paper: Olsson et al. 2022) over {MAJORITY} (our own, after Clark et al. 2019), {_ABOVE_UNIFORM}",
    above=MAJORITY,
    margin=MARGIN,
)
RETRIEVAL = Rule(
    f"largest attention on the token to be copied, over {RETRIEVED} of the time (paper: Wu et al. 2024), "
    f"{_ABOVE_UNIFORM}",
    above=RETRIEVED,
    margin=MARGIN,
)
RARE = Rule(
    f"largest attention on the rarest token over {MAJORITY} of the time (after Voita et al. 2019: 0.66 and over 0.5), "
    f"{MARGIN:.2f} above a random token and the best fixed offset (our own)",
    above=MAJORITY,
    margin=MARGIN,
)
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
    margin=MARGIN,
    reject_sink_heads=True,
)
# The rules of attnviz.measures.patterns.WRITTEN, by role.
OF_WRITTEN = {
    name: Rule(
        f"the attended token's own logit {moved} in over {MAJORITY} of the cases, {MARGIN:.2f} above shuffled "
        f"attention (our own, after {source}), {_NOT_RESTING}",
        above=MAJORITY,
        margin=MARGIN,
        reject_sink_heads=True,
    )
    for name, moved, source in (
        (COPYING, "raised", "Elhage et al. 2021"),
        (COPY_SUPPRESSION, "lowered", "McDougall et al. 2023"),
    )
} | {
    INACTIVE: Rule(
        f"an output shorter than {QUIET} of the mean of the layer's heads (our own, after Sandoval-Segura et al. 2025) "
        f"at over {ALMOST_ALWAYS} of the tokens (our own)",
        above=ALMOST_ALWAYS,
    )
}


def of_position(spec: PatternSpec) -> Rule:
    """The rule of a positional pattern: of one position, of a range of distances, or of keys chosen at a distance."""
    if spec.chosen:
        return LONG_RANGE
    return POSITION if spec.specific else DISTANCE
