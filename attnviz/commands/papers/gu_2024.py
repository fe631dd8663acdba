"""Gu et al. 2024: how many heads rest on the first token."""

from dataclasses import replace

from torch import Tensor

from attnviz.commands.papers.table import PaperRun, PaperTable, Rows, over_texts_evidence
from attnviz.inputs.encoding import encodings
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import rendered
from attnviz.judge.roles import MIN_TEXTS_SHARES
from attnviz.measures.measure import PatternRows
from attnviz.measures.tallies import TextTally

LENGTH = 64  # tokens of a text (the paper)
EPSILON = 0.3  # mean attention to the first token above which a head rests on it in a text (the paper)


class FirstTokenTally(TextTally):
    """In how many texts each head's mean attention to the first token, that of itself included, is above EPSILON."""

    def update(self, rows: PatternRows) -> None:
        """Count one layer's patterns, of texts of one length."""
        self._keep("sums", rows.in_float32[..., 0].mean(-1) > EPSILON)

    def rates(self) -> Tensor:
        """Share of texts, layers and heads by bootstrap sample, [1 + replicates]."""
        n_texts = self._positions[:, 0] / LENGTH  # all are of one length
        return self._counts["sums"].mean((1, 2)) / n_texts


def _measure(run: PaperRun) -> Rows:
    def first_tokens(text: Text) -> Text | None:
        read = rendered(text, run.checkpoint)
        ids = encodings(run.checkpoint, [read.text], None, True, read.chat is not None)[0].ids[:LENGTH]
        return replace(text, ids=tuple(ids), chat=None) if len(ids) == LENGTH else None

    trained, untrained = (FirstTokenTally(checkpoint) for checkpoint in run.models)
    for checkpoint, tally in zip(run.models, (trained, untrained), strict=True):
        run.over_texts(checkpoint, tally, prepared=first_tokens)
    rates = trained.rates()
    evidence = over_texts_evidence(rates, trained.n_texts) | {"untrained": untrained.rates()[0]}
    published = "0.18 in their model of 60M, 0.45 in that of 1B"
    yield run.claimed("sink rate", rates[0], trained.n_texts, published=published, **evidence)


TABLE = PaperTable(
    "gu-2024",
    {"LENGTH": LENGTH, "EPSILON": EPSILON},
    least=MIN_TEXTS_SHARES,
    measure=_measure,
)
