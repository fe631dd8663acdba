"""Names of the two sides and of what they share, above tables and figures and in captions."""

from attnviz.commands.compare.corpus.measure import RoleComparison
from attnviz.commands.compare.measure import Comparison
from attnviz.commands.compare.sides import quoted_text
from attnviz.models.head_ids import layers_in_words
from attnviz.present.figure_context import capital
from attnviz.wording import amount, counted, quoted, rounded, shortened_token

LONGEST_LABEL = 24  # most characters of a label in a sentence

_MOST_TOKENS = 4


def side_lines(result: Comparison | RoleComparison) -> list[str]:
    """Lines that name A, B, and what they share."""
    if isinstance(result, RoleComparison):
        shared = [f"corpus: {result.source}"]
    else:
        line = f"text: {quoted_text(result.first)}"
        if result.compared == "texts":
            line = f"model: {result.checkpoint.short_name}"
        shared = ["; ".join([line, *_target(result)]), *_differing(result), *_decisions(result)]
    return [*(f"{name}: {side}" for name, side in zip("AB", result.side_names, strict=True)), *shared]


def headline(result: Comparison) -> str:
    """What changed, in a sentence: which layers, how many heads, the head that moved most, labels."""
    if not any(head.largest.difference for head in result.heads):
        return "Nothing changed: every weight of every head is the same on both sides."
    if not result.any_beyond_rounding:
        return "No weight of any head differs by more than rounding allows: both sides attend alike."
    moved = [head for head in result.heads if not head.rounding]
    touched = {head.id.layer for head in moved}
    layers = sorted({head.id.layer for head in result.heads})
    same, other = ([layer for layer in layers if (layer in touched) == has] for has in (False, True))
    n = sum(head.id.layer in touched for head in result.heads)
    which = "every head" if len(moved) == n else f"{len(moved)} of {counted(n, 'head')}"
    n_labels = sum(head.label_changed for head in result.heads)
    most = moved[0].distance
    distance = amount(most) if most < 0.0005 else rounded(most, 3)
    parts = [
        *([f"{layers_in_words(same)} identical"] if same else []),
        f"{which} of {layers_in_words(other)} moved",
        f"most {moved[0].id}, {distance} of at most {result.furthest:.2f}",
        f"{counted(n_labels, 'label') if n_labels else 'no label'} changed",
    ]
    return f"{capital('; '.join(parts))}."


def _decisions(result: Comparison) -> list[str]:
    if not result.decisions:
        return []
    a, b = (decision.in_words for decision in result.decisions)
    return [f"class by A: {a}, by B: {b}{' (it flips)' if result.flips else ''}"]


def sides_in_words(result: Comparison | RoleComparison) -> str:
    """A, B and what they share for a caption."""
    a, b = result.side_names
    sides = f"A being {a} and B {b}"
    if isinstance(result, RoleComparison):
        return f"{sides}, over the corpus {result.source}"
    shared = f"on the text {quoted_text(result.first)}"
    if result.compared == "texts":
        shared = f"both read by {result.checkpoint.short_name}"
    words = ["by words"] if result.unit == "word" else []
    said = ", ".join([sides, shared, *_target(result), *words])
    return " ".join([said, *(f"({differing})" for differing in _differing(result))])


def _differing(result: Comparison) -> list[str]:
    """Number of tokens (or words) that differ, and the first, if any do."""
    labels = [label for label, _, differs in zip(*result.rows, strict=True) if differs]
    if not labels:
        return []
    first = ", ".join(shortened_token(label, LONGEST_LABEL) for label in labels[:_MOST_TOKENS])
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    number = f"{len(labels)} of {counted(len(result.rows.labels), result.unit)}"
    return [f"{number} {'differs' if len(labels) == 1 else 'differ'}: {first}{more}"]


def _target(result: Comparison) -> list[str]:
    target = result.first.target
    return [] if target is None else [f"target: {quoted(target.text)}"]
