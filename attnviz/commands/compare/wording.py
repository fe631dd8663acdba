"""Names of the two sides and of what they share, above tables and figures and in captions."""

from attnviz.commands.compare.corpus.measure import CorpusComparison
from attnviz.commands.compare.measure import Comparison
from attnviz.commands.compare.sides import quoted_text
from attnviz.models.wording import counted, quoted, shortened, visible

LONGEST_LABEL = 24
"""Most characters of a label in a sentence."""

_MOST_TOKENS = 4


def side_lines(result: Comparison | CorpusComparison) -> list[str]:
    """Lines that name A, B, and what they share."""
    if isinstance(result, CorpusComparison):
        shared = [f"corpus: {result.source}"]
    else:
        model, text = visible(result.checkpoint.short_name), quoted_text(result.first)
        line = f"model: {model}" if result.compared == "texts" else f"text: {text}"
        shared = ["; ".join(filter(None, [line, _target(result)])), _differing(result)]
    return [*(f"{name}: {side}" for name, side in zip("AB", result.side_names, strict=True)), *filter(None, shared)]


def sides_in_words(result: Comparison | CorpusComparison) -> str:
    """A, B and what they share for a caption."""
    sides = "A being {} and B {}".format(*result.side_names)
    if isinstance(result, CorpusComparison):
        return f"{sides}, over the corpus {result.source}"
    shared = f"on the text {quoted_text(result.first)}"
    if result.compared == "texts":
        shared = f"both read by {visible(result.checkpoint.short_name)}"
    words, differing = "by words" * (result.unit == "word"), _differing(result)
    return ", ".join(filter(None, [sides, shared, _target(result), words])) + f" ({differing})" * bool(differing)


def _differing(result: Comparison) -> str:
    """Number of tokens (or words) that differ, and the first; or ''."""
    labels = [label for label, _, differs in zip(*result.rows, strict=True) if differs]
    first = ", ".join(shortened(label, LONGEST_LABEL) for label in labels[:_MOST_TOKENS])
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    number = f"{len(labels)} of {counted(len(result.rows.labels), result.unit)}"
    return f"{number} differ{'s' * (len(labels) == 1)}: {first}{more}" if labels else ""


def _target(result: Comparison) -> str:
    """Target of an encoder-decoder; else ''."""
    target = result.first.target
    return "" if target is None else f"target: {quoted(target.text)}"
