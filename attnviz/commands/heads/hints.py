"""What ``attnviz heads`` says on standard error in the end: how to see what its pictures cannot show."""

from collections.abc import Iterator
from typing import Any

from attnviz.commands.heads.drawn import MOSTLY_WHITE
from attnviz.commands.heads.lines_view import lines_left_out
from attnviz.commands.heads.measure import Analysis
from attnviz.commands.heads.relations_view import relations_left_out
from attnviz.commands.heads.text_view import LONG_TEXT
from attnviz.model.wording import quoted
from attnviz.results.view import Choices

__all__ = ["hints"]


def hints(analysis: Analysis, choices: Choices, document: dict[str, Any]) -> Iterator[str]:
    """Which heads have no picture of their lines; how small weights can be seen in a long text."""
    n, unit = len(analysis.units), analysis.units.name
    if analysis.target is not None and analysis.target.generated:
        text = quoted(analysis.target.text)
        yield f"the model generated the target, greedily: {text}; --target gives another."
    if analysis.continuation is not None:
        yield f"the model continued the text, greedily: {quoted(analysis.continuation.text.strip())}."
    if n > MOSTLY_WHITE and choices.look.scale == "shared" and {"overview", "heads"} & _drawn(document):
        yield f"among {n} {unit}s most weights are near 0, and their cells white: --scale log shows them."
    if any(name.startswith("lines") for name in document["figures"]) and (message := lines_left_out(analysis, choices)):
        yield message
    if n > LONG_TEXT and any(name.startswith("lines") for name in document["figures"]):
        yield f"lines of {n} {unit}s are a tangle: --figures text shows the text, shaded by what each {unit} receives."
    if choices.relations and (message := relations_left_out(analysis, choices)):
        yield message


def _drawn(document: dict[str, Any]) -> set[str]:
    """The views of which there are pictures now."""
    return {name.partition("/")[0].partition(".")[0] for name in document["figures"]}
