"""What A and B are, in words, for titles, notes, captions and tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnviz.commands.heads.measure import Analysis
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted

if TYPE_CHECKING:
    from attnviz.commands.compare.measure import Comparison

__all__ = ["short", "side_lines", "side_names", "sides_in_words"]

_LONGEST_LABEL, _MOST_TOKENS = 24, 4
_BEFORE_DIFFERENCE = 30
"""Characters at most that are quoted of what two texts have in common before their first difference."""


def side_names(result: "Comparison") -> tuple[str, str]:
    """What tells A and B apart: the names of the models, or the texts in quotation marks."""
    if result.compared == "texts":
        return _quoted_texts(result.first, result.second)
    models = result.first.checkpoint, result.second.checkpoint
    for names in (
        [model.short_name for model in models],
        [model.name for model in models],
        [f"{model.name} at {model.revision}" for model in models if model.revision is not None],
        [f"{model.name} in {str(model.dtype).removeprefix('torch.')}" for model in models],
    ):
        if len(set(names)) == 2:
            return visible(names[0]), visible(names[1])
    return visible(models[0].short_name), visible(models[1].short_name)


def side_lines(result: "Comparison") -> list[str]:
    """What A and B are, and what they share, a line each."""
    first, second = side_names(result)
    shared = f"text: {_quoted(result.first)}"
    if result.compared == "texts":
        shared = f"model: {visible(result.first.checkpoint.short_name)}"
    return [f"A: {first}", f"B: {second}", shared, *([_differing(result)] if any(result.differing) else [])]


def sides_in_words(result: "Comparison") -> str:
    """What A and B are, for a caption."""
    first, second = side_names(result)
    more = "" if result.unit == "token" else ", by words"
    if any(result.differing):
        more += f" ({_differing(result)})"
    if result.compared == "texts":
        return f"A being {first} and B {second}, both read by {visible(result.first.checkpoint.short_name)}{more}"
    return f"A being {first} and B {second}, on the text {_quoted(result.first)}{more}"


def short(label: str) -> str:
    """A label cut where it is longer than any sentence has room for."""
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def _differing(result: "Comparison") -> str:
    """How many tokens (or words) differ, and the first of them."""
    labels = [short(label) for label, differs in zip(result.labels, result.differing, strict=True) if differs]
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    verb = "differs" if len(labels) == 1 else "differ"
    return (
        f"{len(labels)} of {counted(len(result.labels), result.unit)} {verb}: {', '.join(labels[:_MOST_TOKENS])}{more}"
    )


def _quoted(side: Analysis, starts: Sequence[int] = (0, 0)) -> str:
    """The text, and that of a pair, from so many characters on."""
    texts = [text for text in (side.text, side.pair) if text is not None]
    return " + ".join(quoted(f"…{text[start:]}" if start else text) for text, start in zip(texts, starts, strict=False))


def _quoted_texts(first: Analysis, second: Analysis) -> tuple[str, str]:
    """Both texts; where quotations of their beginnings would be the same, from a little before the first difference."""
    sides = _quoted(first), _quoted(second)
    if sides[0] != sides[1]:
        return sides
    starts = [_near_difference(a, b) for a, b in ((first.text, second.text), (first.pair, second.pair))]
    return _quoted(first, starts), _quoted(second, starts)


def _near_difference(first: str | None, second: str | None) -> int:
    """Where a word or so before the first difference begins; 0 where there is none."""
    if first is None or second is None or first == second:
        return 0
    ends = (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    differs = next(ends, min(len(first), len(second)))
    start = differs
    while start and len(visible(first[start - 1 : differs])) <= _BEFORE_DIFFERENCE:
        start -= 1
    word = first.find(" ", start, differs)
    return word + 1 if start and word >= 0 else start
