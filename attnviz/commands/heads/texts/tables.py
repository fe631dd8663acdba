"""Fields of heads over several texts, and of the texts, for terminal, page and documents."""

from collections.abc import Sequence
from dataclasses import replace

from attnviz.commands.heads.texts.measure import HeadSpread, OneText, TextsAnalysis
from attnviz.measures.alignments import ALIGNMENT
from attnviz.measures.decisions import Decision
from attnviz.present.fields import ID, Field, plain
from attnviz.present.statistics import statistic_field
from attnviz.wording import counted, quoted, span, visible

LISTED = ("sink", "entropy", "previous", "next", "confidence", "distance")

# The fields of a text in documents.
LINES: tuple[Field[OneText], ...] = (
    Field("Line", lambda text: text.place and text.place.line, name="line"),
    Field("Id", name="id", if_known=True),
    Field("Class", name="label", if_known=True),
    Field("Text", name="text", write=quoted),
    Field("Pair", name="pair", if_known=True, write=lambda pair: pair and quoted(pair)),
    Field(
        "Decision",
        lambda text: text.decision and text.decision.entry,
        name="decision",
        if_known=True,
        write=lambda decided: decided and Decision(**decided).in_words,
    ),
    Field("Tokens", lambda text: text.n_tokens, name="tokens"),
    Field(value=lambda text: text.cut, name="tokens_cut_off"),
    *plain("folder", "pattern_error", "output_error"),
)

NAMED = ("line", "id", "label", "text", "pair")  # those that say which text it is


def text_row(text: OneText) -> str:
    """A line for a text: its place, tokens, how many heads have a label there, and how it begins."""
    place = "" if text.place is None else f"{text.place}: "
    labelled = sum(head.labelled for head in text.heads)
    heads = f"{labelled} of {counted(len(text.heads), 'head')} labelled"
    return f"{place}{counted(text.n_tokens, 'token')}, {heads}: {quoted(text.text)}"


_ID = Field[HeadSpread]("Head", lambda head: str(head.id), name="head", meaning=ID)
_LABEL = Field[HeadSpread](
    "Label", lambda head: visible(head.label), name="label", meaning="the one that most texts give"
)
_SCORE = Field[HeadSpread](
    "Score", lambda head: head.score.mean, name="score", meaning="of its pattern, the mean over texts"
)


def number_fields(result: TextsAnalysis) -> list[Field[HeadSpread]]:
    """The columns of a table of heads for a paper: numbers of texts and means."""
    texts = Field[HeadSpread]("Texts", lambda head: head.labels[head.label], name="texts", meaning="how many give it")
    names = LISTED if result.gold is None else ALIGNMENT
    means = (statistic_field(name, lambda head, name=name: head.statistics[name].mean) for name in names)  # type: ignore[misc]
    return [_ID, _LABEL, texts, _SCORE, *means]


def label_fields(n: int) -> list[Field[HeadSpread]]:
    """The columns of the label that most of ``n`` texts give a head, for the terminal."""
    texts = Field[HeadSpread]("Texts", lambda head: f"{head.labels[head.label]}/{n}")
    scores = Field[HeadSpread]("Range", lambda head: span([head.score.least, head.score.largest]), detail=True)
    return [_LABEL, texts, _SCORE, scores]


def spread_fields(names: Sequence[str]) -> list[Field[HeadSpread]]:
    """The columns of a head and these statistics of it, for the terminal."""
    spreads = (statistic_field(name, lambda head, name=name: head.statistics[name].in_words) for name in names)  # type: ignore[misc]
    return [_ID, *(replace(field, unit="mean ± sd") for field in spreads)]
