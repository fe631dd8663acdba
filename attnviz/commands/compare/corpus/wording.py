"""What a comparison over a corpus says of itself, in tables, titles and captions alike."""

from attnviz.commands.compare.corpus.measure import CorpusComparison
from attnviz.commands.compare.sides import model_names
from attnviz.corpora.bootstrap import ENOUGH_TEXTS
from attnviz.model.wording import counted

__all__ = ["changed_line", "side_lines", "sides_in_words"]


def side_lines(result: CorpusComparison) -> list[str]:
    """What A and B are, and what they read, a line each."""
    first, second = model_names(result.first, result.second)
    return [f"A: {first}", f"B: {second}", f"corpus: {result.source}"]


def sides_in_words(result: CorpusComparison) -> str:
    """The same, for a caption."""
    first, second = model_names(result.first, result.second)
    return f"A being {first} and B {second}, over the corpus {result.source}"


def changed_line(result: CorpusComparison) -> str:
    """How many heads changed, or why that cannot be said."""
    if not result.judged:
        return f"Too few texts to say which heads changed: {counted(result.texts, 'text')}, expected {ENOUGH_TEXTS}"
    beyond = "by more than dropout" if result.dropout else "at all (no dropout to compare with)"
    return f"{len(result.changed)} of {counted(len(result.heads), 'head')} changed {beyond}"
