"""The statistics of a head as tables, maps and pages name them."""

import re
from typing import Any

from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import statistics
from attnviz.present.fields import Field

# what the lookback ratio is
LOOKBACK = (
    "mean attention of new tokens (generated, or the answer that ends a chat) to a token before them, over that and "
    "their mean attention to a new token"
)


def filled(text: str, **words: object) -> str:
    """The text with these words for their names in braces; other braces, such as those of a plug-in, stay."""
    return re.sub(r"\{(\w+)\}", lambda named: str(words.get(named[1], named[0])), text)


def described(name: str, unit: str, sinks: str) -> tuple[str, str, str]:
    """Title, meaning and unit of a statistic, of texts in this unit and with these words for sinks."""
    words = {"unit": unit, "sinks": sinks, "window": MaskInput.local_window, "far": MaskInput.long_range_from}
    known = statistics()[name]
    return filled(known.title, **words), filled(known.meaning, **words), filled(known.unit, **words)


def statistic_field(name: str, unit: str = "token", path: str = "statistics.{}") -> Field[Any]:
    """The field of a statistic in rows that have it at this ``path``."""
    title, meaning, of = described(name, unit, "the sinks")
    return Field(statistics()[name].column or title, path.format(name), of, name, detail=True, meaning=meaning)
