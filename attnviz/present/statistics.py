"""The statistics of a head as tables, maps and pages name them: one entry a statistic."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from attnviz.measures.alignments import ROWS
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import ON_REPEATS, PATTERNS, MaskInput
from attnviz.measures.statistics import DIAGONALITY, NOWHERE
from attnviz.plugins import live
from attnviz.present.fields import Field

# what the lookback ratio is
LOOKBACK = (
    "mean attention of new tokens (generated, or the answer that ends a chat) to a token before them, over that and "
    "their mean attention to a new token"
)

_CONTACTS = "share of contacts among the L (or L/5) pairs of L residues that attend most to each other"
_SHARE = "share of the attention on content that lands on"
_CONTENT = "without sinks, rows renormalised"
_AFTER = "mean attention of the {unit}s with a copy before them to"


class Statistic(NamedTuple):
    """What a statistic is called."""

    title: str  # its name in maps and on the page
    # in words; ``{unit}`` stands for token or word, ``{sinks}`` for the sinks of the text, ``{window}`` and
    # ``{far}`` for the two distances
    meaning: str
    unit: str = ""  # '' of shares, 0-1
    column: str = ""  # header of its column in tables; default the title


STATISTICS = live(lambda: {
    "entropy": Statistic("entropy", "mean entropy of the rows", "nats", "Entropy"),
    "entropy_non_sink": Statistic("entropy on content", f"mean entropy of the rows, {_CONTENT}", "nats"),
    "distance": Statistic(
        "distance", "mean distance between query and key, weighted by attention", "{unit}s", "Distance"
    ),
    "distance_non_sink": Statistic(
        "distance on content", f"mean distance between query and key, {_CONTENT}", "{unit}s", "Distance, content"
    ),
    "confidence": Statistic("confidence", "mean of each row’s largest weight", "", "Conf"),
    "confidence_non_sink": Statistic(
        "confidence on content", f"mean of each row’s largest weight, {_CONTENT}", "", "Conf, content"
    ),
    DIAGONALITY: Statistic(
        DIAGONALITY, "how far a head goes through the source as the target goes on, 1 for a diagonal", "", "Diagonal"
    ),
    **{
        f"{name}_{rows}": Statistic(f"{title}, {rows}", f"{meaning} gold word alignments", "", f"{title}, {rows}")
        for rows in ROWS
        for name, title, meaning in (
            ("aer", "AER", "error rate of the largest weights, against"),
            ("precision", "Precision", "share of the largest weights that are in"),
            ("recall", "Recall", "share that the largest weights find, of sure"),
            ("gain", "Gain", "AER of the baseline minus that of the head, against"),
        )
    },
    "aer_baseline": Statistic("AER, baseline", "AER of the diagonal, or of random links if less", "", "AER, baseline"),
    "sink": Statistic("sink share", "mean attention of the other {unit}s to {sinks}", "", "Sink"),
    **{
        name + ending: Statistic(title + more, f"{_CONTACTS}{less}, {CONTACTS[name][0]} or more apart")
        for name, title in (
            ("contacts_l", "P@L"),
            ("contacts_l5", "P@L/5"),
            ("long_contacts_l", "long P@L"),
            ("long_contacts_l5", "long P@L/5"),
        )
        for ending, more, less in (("", "", ""), ("_apc", " APC", " by A + Aᵀ less its average product"))
    },
    NOWHERE: Statistic(NOWHERE, "mean attention of content that goes to a learned sink, no token", "", "Nowhere"),
    **{
        spec.statistic: Statistic(f"{spec.name} share", f"{_SHARE} {spec.target}", "", spec.column)
        for spec in PATTERNS
    },
    **{
        ON_REPEATS[spec.statistic]: Statistic(f"{spec.name} where a token repeats", f"{_AFTER} {spec.target}")
        for spec in PATTERNS
        if spec.on_repeats
    },
})  # fmt: skip


def filled(text: str, **words: object) -> str:
    """The text with these words for their names in braces; other braces, such as those of a plug-in, stay."""
    return re.sub(r"\{(\w+)\}", lambda named: str(words.get(named[1], named[0])), text)


def described(name: str, unit: str, sinks: str) -> tuple[str, str, str]:
    """Title, meaning and unit ('' of shares) of a statistic, of texts in this unit and with these words for sinks."""
    words = {"unit": unit, "sinks": sinks, "window": MaskInput.local_window, "far": MaskInput.long_range_from}
    title, meaning, of = (filled(part, **words) for part in STATISTICS[name][:3])
    return title, meaning, of


def statistic_field(name: str, value: Callable[[Any], object], unit: str = "token") -> Field[Any]:
    """The field of a statistic in rows from which ``value`` reads it."""
    known = STATISTICS[name]
    title, meaning = known.column or known.title, described(name, unit, "the sinks")[1]
    return Field(title, value, filled(known.unit, unit=unit), name, detail=True, meaning=meaning)
