"""Gould et al. 2023: heads that write the successor of what they read, by the weights alone."""

from typing import Any

from attnviz.commands.papers.table import PaperRun, PaperTable, Rows
from attnviz.errors import UsageError
from attnviz.measures.composition import successors
from attnviz.measures.successors import MAJORITY, SHUFFLES


def _measure(run: PaperRun) -> Rows:
    trained = successors(run.checkpoint)
    if trained.why_none:
        raise UsageError(
            f"gould-2023 cannot be measured: {trained.why_none}; expected a language model with such tokens."
        )
    untrained = successors(run.untrained).scores
    place = divmod(int(trained.scores.argmax()), trained.scores.shape[1])
    best = run.head(*place)
    row = "successors, the best head", trained.scores[place], trained.n
    controls: Any = {"baseline": trained.shuffled[place], "untrained": untrained.max()}
    yield run.claimed(*row, head=best, at_least=MAJORITY, **controls)
    for name, (right, n) in trained.right.items():
        yield run.reported(f"of {name}", float(right[place]) / n, n, head=best)
    n_heads, control = (int((scores >= MAJORITY).sum()) for scores in (trained.scores, untrained))
    yield run.reported("successor heads", n_heads, trained.scores.numel(), untrained=control)


TABLE = PaperTable(
    "gould-2023",
    {"SHUFFLES": SHUFFLES, "MAJORITY": MAJORITY},
    takes=(),
    needs_corpus=False,
    measure=_measure,
)
