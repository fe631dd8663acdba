"""A comparison in words, for titles, notes and captions: what A and B are, which weight differs most."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.commands.compare.differences import Differences, HeadDifference
from attnviz.commands.heads.findings import Findings
from attnviz.model.tokens import visible
from attnviz.model.wording import quoted

__all__ = [
    "ENDS",
    "MAP_SCALE",
    "Worded",
    "bar_words",
    "difference_caption",
    "grid_caption",
    "largest_in_words",
    "map_caption",
    "pooling_note",
    "short",
    "side_lines",
    "side_names",
    "signed",
]

_LONGEST_LABEL, _MOST_TOKENS = 24, 4
_BEFORE_DIFFERENCE = 30
"""Characters at most that are quoted of what two texts have in common before their first difference."""

_COLOURS = "orange is more in B, blue more in A"

ENDS = ("more in A", "more in B")
"""What the two ends of a colour bar of differences mean."""

MAP_SCALE = "Jensen-Shannon distance (same scale for all heads)"
"""What the colour bar of the map says."""


@dataclass(frozen=True)
class Worded:
    """A plan's words.

    Attributes:
        title: what is shown.
        notes: further lines above the picture.
        caption: one sentence to set below it.
        scale: which scale the colour bar shows.
        ends: what its two ends mean; empty where its numbers say that.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    scale: str
    ends: tuple[str, ...]


def signed(value: float) -> str:
    """Two decimals with a sign: ``+0.31``, ``−0.08``."""
    return f"{value:+.2f}".replace("-", "−")


def side_names(found: Differences) -> tuple[str, str]:
    """What tells A and B apart: the names of the models, or the texts in quotation marks."""
    if found.compared == "texts":
        return _quoted_texts(found)
    models = found.first.checkpoint, found.second.checkpoint
    for names in (
        [model.short_name for model in models],
        [model.name for model in models],
        [f"{model.name} at {model.revision}" for model in models if model.revision is not None],
        [f"{model.name} in {str(model.dtype).removeprefix('torch.')}" for model in models],
    ):
        if len(set(names)) == 2:
            return visible(names[0]), visible(names[1])
    return visible(models[0].short_name), visible(models[1].short_name)


def side_lines(found: Differences) -> list[str]:
    """What A and B are, and what they share, a line each."""
    first, second = side_names(found)
    shared = f"text: {_quoted(found.first)}"
    if found.compared == "texts":
        shared = f"model: {visible(found.first.checkpoint.short_name)}"
    return [f"A: {first}", f"B: {second}", shared, *([_differing(found)] if any(found.differing) else [])]


def _differing(found: Differences) -> str:
    """How many tokens (or words) differ, and the first of them."""
    labels = [short(label) for label, differs in zip(found.labels, found.differing, strict=True) if differs]
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    unit = found.unit if len(found.labels) == 1 else f"{found.unit}s"
    verb = "differs" if len(labels) == 1 else "differ"
    return f"{len(labels)} of {len(found.labels)} {unit} {verb}: {', '.join(labels[:_MOST_TOKENS])}{more}"


def _sides_in_words(found: Differences) -> str:
    """What A and B are, for a caption."""
    first, second = side_names(found)
    by_words = "" if found.unit == "token" else ", by words"
    if any(found.differing):
        by_words += f" ({_differing(found)})"
    if found.compared == "texts":
        return f"A being {first} and B {second}, both read by {visible(found.first.checkpoint.short_name)}{by_words}"
    return f"A being {first} and B {second}, on the text {_quoted(found.first)}{by_words}"


def _quoted(side: Findings, starts: Sequence[int] = (0, 0)) -> str:
    """The text, and that of a pair, from so many characters on."""
    texts = [text for text in (side.text, side.pair) if text is not None]
    return " + ".join(quoted(f"…{text[start:]}" if start else text) for text, start in zip(texts, starts, strict=False))


def _quoted_texts(found: Differences) -> tuple[str, str]:
    """Both texts; where quotations of their beginnings would be the same, from a little before the first difference."""
    sides = _quoted(found.first), _quoted(found.second)
    if sides[0] != sides[1]:
        return sides
    first, second = found.first, found.second
    starts = [
        _near_difference(a, b) for a, b in ((first.text, second.text), (first.pair, second.pair)) if a is not None
    ]
    return _quoted(first, starts), _quoted(second, starts)


def _near_difference(first: str, second: str | None) -> int:
    """Where a word or so before the first difference begins; 0 where there is none."""
    if second is None or first == second:
        return 0
    ends = (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    differs = next(ends, min(len(first), len(second)))
    start = differs
    while start and len(visible(first[start - 1 : differs])) <= _BEFORE_DIFFERENCE:
        start -= 1
    word = first.find(" ", start, differs)
    return word + 1 if start and word >= 0 else start


def pooling_note(pooled: int, what: str) -> str:
    """A line on what a cell (or pixel) of a pooled picture stands for."""
    return f"Each {what} is the largest of {pooled} × {pooled} differences, with its sign (pooled for drawing only)."


def _pooled_in_words(pooled: int) -> str:
    return "" if pooled == 1 else f"; for drawing only, the largest of {pooled} × {pooled} differences is shown"


def largest_in_words(found: Differences, head: HeadDifference) -> str:
    """The weight that differs most, for the notes of its picture."""
    if head.rounding:
        return "no weight differs beyond rounding"
    labels = [short(found.labels[position]) for position in (head.largest.query, head.largest.key)]
    return f"outlined: largest difference, ‘{labels[0]}’ attends to ‘{labels[1]}’ {signed(head.largest.difference)}"


def short(label: str) -> str:
    """A label cut where it is longer than any axis has room for."""
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def difference_caption(found: Differences, head: HeadDifference, vmax: float, own_scale: bool, pooled: int) -> str:
    """One sentence for below the picture of one head."""
    same = "of this head" if own_scale else "the same for every head"
    return (
        f"Attention of {head.id} in B minus that in A, query by row and key by column, {_sides_in_words(found)}; "
        f"{_COLOURS}, {_scale(vmax)} ({same}); Jensen-Shannon distance {head.distance:.3f} (root nats), "
        f"rank {head.rank} of {len(found.heads)}{_pooled_in_words(pooled)}{_nothing(head.rounding)}."
    )


def grid_caption(found: Differences, count: str, vmax: float, pooled: int) -> str:
    """One sentence for below the picture of many heads; ``count`` says how many."""
    return (
        f"Attention in B minus that in A of {count}, {_sides_in_words(found)}; {_COLOURS}, {_scale(vmax)}, "
        f"the same for every head{_pooled_in_words(pooled)}{_nothing(not found.any_beyond_rounding)}."
    )


def map_caption(found: Differences, vmax: float) -> str:
    """One sentence for below the map of all heads."""
    changed = sum(head.label_changed for head in found.heads)
    return (
        "Jensen-Shannon distance (root nats, 0 to 0.83) between the attention of every head in A and in B, "
        f"{_sides_in_words(found)}, with the mean of every layer; the strongest colour is {vmax:.2g}; "
        f"a marked corner is a head whose label differs ({changed} of {len(found.heads)})."
    )


def bar_words(own_scale: bool) -> str:
    """What the colour bar of differences says: of what, and which scale."""
    scale = "of this head alone" if own_scale else "same for all heads"
    return f"attention in B minus A (root scale, {scale})"


def _scale(vmax: float) -> str:
    return f"on a square-root scale to ±{vmax:g}"


def _nothing(rounding: bool) -> str:
    return "; no weight differs beyond rounding" if rounding else ""
