"""Claims that have been checked: a number, the verdict that its interval gives, and the evidence beside it."""

from dataclasses import dataclass, replace
from typing import Any

from attnviz.commands.check.claims import Claim
from attnviz.measures.estimates import Interval

VERDICTS = HOLDS, UNDECIDED, FAILS = "holds", "cannot be decided", "fails"  # from the best to the worst
REPORTED = "reported"  # the verdict of a number that stands beside a paper's, and of which nothing is claimed


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, one of the :data:`VERDICTS` or :data:`REPORTED`, and the evidence."""

    claim: Claim
    verdict: str
    measured: float | str | None = None  # a number, or the label that the head has; None where there is none
    n: int | None = None  # instances, content positions, texts, tokens or heads of the number
    baseline: float | None = None
    interval: Interval | None = None  # of the number over a corpus
    source: str = ""  # the stored profile, or the profile's corpora; '' where the claim names all
    reason: str = ""  # why it fails or cannot be decided, where the numbers do not say so
    sentence: str | None = None  # of a role, for a paper
    untrained: float | None = None  # of a role, or in a paper's table, the same of an untrained copy


def bounded(claim: Claim, value: float, n: int, **evidence: Any) -> CheckedClaim:
    """A number by the claim's bounds; over a corpus there are too few texts where it has no interval."""
    low, high = evidence.get("interval") or (value, value)
    sides = [HOLDS]
    if claim.at_least is not None:
        sides.append(FAILS if high < claim.at_least else HOLDS if low >= claim.at_least else UNDECIDED)
    if claim.at_most is not None:
        sides.append(FAILS if low > claim.at_most else HOLDS if high <= claim.at_most else UNDECIDED)
    verdict, why = max(sides, key=VERDICTS.index), ""
    if evidence.get("interval") is None and not claim.text:
        verdict, why = UNDECIDED, "too few texts, or too few with an effect, for an interval"
    elif verdict == UNDECIDED:
        why = "the bound is within the interval"
    checked = CheckedClaim(claim, verdict, value, n, **evidence)
    return replace(checked, reason="; ".join(filter(None, [checked.reason, why])))
