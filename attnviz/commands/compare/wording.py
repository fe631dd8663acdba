"""Names of the two sides, above tables and figures and in captions."""

from attnviz.commands.compare.measure import Comparison
from attnviz.commands.compare.sides import quoted_text
from attnviz.models.wording import counted, quoted, shortened, visible

LONGEST_LABEL = 24
"""Most characters of a label in a sentence."""

_MOST_TOKENS = 4


def side_lines(result: Comparison) -> list[str]:
    """Lines that name A, B, and what they share."""
    first, second = result.side_names
    shared = f"text: {quoted_text(result.first)}"
    if result.compared == "texts":
        shared = f"model: {visible(result.first.checkpoint.short_name)}"
    lines = [f"A: {first}", f"B: {second}", shared + (_target(result) and f"; {_target(result)}")]
    return [*lines, *([_differing(result)] if any(result.differing) else [])]


def sides_in_words(result: Comparison) -> str:
    """A and B for a caption."""
    first, second = result.side_names
    shared = f"on the text {quoted_text(result.first)}"
    if result.compared == "texts":
        shared = f"both read by {visible(result.first.checkpoint.short_name)}"
    words = "" if result.unit == "token" else ", by words"
    differing = f" ({_differing(result)})" if any(result.differing) else ""
    target = _target(result) and f", {_target(result)}"
    return f"A being {first} and B {second}, {shared}{target}{words}{differing}"


def _differing(result: Comparison) -> str:
    """Number of tokens (or words) that differ, and the first."""
    labels = [label for label, differs in zip(result.labels, result.differing, strict=True) if differs]
    first = ", ".join(shortened(label, LONGEST_LABEL) for label in labels[:_MOST_TOKENS])
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    number = f"{len(labels)} of {counted(len(result.labels), result.unit)}"
    return f"{number} differ{'s' * (len(labels) == 1)}: {first}{more}"


def _target(result: Comparison) -> str:
    """Target of an encoder-decoder; else ''."""
    target = result.first.target
    return "" if target is None else f"target: {quoted(target.text)}"
