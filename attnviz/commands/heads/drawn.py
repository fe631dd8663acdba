"""The patterns as they are drawn: with or without special tokens, and what every figure says of them."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import UsageError
from attnviz.figures.matrix import Labels
from attnviz.model.tokens import Units
from attnviz.results.view import Choices

MOSTLY_WHITE = 40
"""Tokens from which on nearly all weights are too small to be seen on the linear scale."""


class _WithoutSpecial(Analysis):
    """An analysis whose patterns have no sinks, for drawing only; rows are divided by what is left of them.

    Statistics, patterns and labels of the heads are those of the whole text. A row of which nothing is left is 0.
    """

    @property
    def units(self) -> Units:
        return _without_sinks(self.context.units)

    @property
    def keys(self) -> Units:
        return self.units if self.context.source is None else _without_sinks(self.context.source)

    @property
    def dropped(self) -> str:
        units = self.context.units
        kinds = ["special tokens"] * any(units.special)
        if any(sink and not special for sink, special in zip(units.sink, units.special, strict=True)):
            kinds.append(f"first {units.name}")
        return f"{' and '.join(kinds)} dropped, rows renormalised" if kinds else ""

    def layer_patterns(self, layer: int) -> Tensor:
        queries, keys = _kept(self.context.units), _kept(self.context.keys)
        patterns = super().layer_patterns(layer)[:, queries][:, :, keys]
        totals = patterns.sum(-1, keepdim=True)
        return patterns / totals.masked_fill(totals == 0, 1.0)


def _kept(units: Units) -> list[int]:
    return [i for i, sink in enumerate(units.sink) if not sink]


def _without_sinks(units: Units) -> Units:
    kept, of_each = _kept(units), ("labels", "special", "sink", "members")
    left: dict[str, Any] = {name: tuple(getattr(units, name)[i] for i in kept) for name in of_each}
    return replace(units, **left)


def parts_drawn(analysis: Analysis, choices: Choices) -> list[Analysis]:
    """The kinds of attention of which heads were asked for."""
    return [part for part in analysis.parts if part.select(choices.select)]


def stem_of(part: Analysis, name: str) -> str:
    """Name of a picture of one kind of attention alone: ``mean``, or ``mean-encoder``."""
    return f"{name}-{part.stack_name}" if part.stack_name else name


def kinds_in_words(analysis: Analysis) -> str:
    """How to read the ids and the squares of an encoder-decoder; empty for models of one kind."""
    if analysis.target is None:
        return ""
    whose = "generated, greedily" if analysis.target.generated else "given"
    return (
        "E: encoder, source to source; D: decoder, target to target; X: cross-attention, target (rows) to source "
        f"(columns), stretched to squares; the target was {whose}, and its rows are what the decoder reads: each "
        "predicts the next one"
    )


def labels_of(shown: Analysis) -> tuple[Labels, Labels | None]:
    """Names of the rows of patterns; and of the columns, where these are another text."""
    rows = Labels(shown.units.labels, shown.units.sink, shown.generated)
    if shown.context.source is None:
        return rows, None
    return rows, Labels(shown.keys.labels, shown.keys.sink)


def drawn(analysis: Analysis, choices: Choices) -> Analysis:
    """The analysis as its patterns are to be drawn: without sinks, where that is asked for.

    Raises:
        UsageError: nothing of the text would be left.
    """
    if not choices.drop_special:
        return analysis
    units = analysis.context.units
    if all(units.sink) or all(analysis.keys.sink):
        all_of_it = f"its only {units.name} is" if len(units) == 1 else f"its {len(units)} {units.name}s are all"
        raise UsageError(
            f"--drop-special (drop_special=True) leaves nothing of this text to draw: {all_of_it} special or the "
            "first; give a longer text, or leave the option out."
        )
    return _WithoutSpecial(**{field.name: getattr(analysis, field.name) for field in fields(Analysis)})
