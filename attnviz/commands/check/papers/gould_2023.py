"""Gould et al. 2023: heads that write the successor of what they read, by the weights alone."""

from collections.abc import Iterator
from typing import Any

from attnviz.commands.check.checked import CheckedClaim
from attnviz.commands.check.papers.table import PaperRun, PaperTable
from attnviz.errors import UsageError
from attnviz.measures.composition import successors
from attnviz.measures.successors import MAJORITY, SHUFFLES


def _measure(run: PaperRun) -> Iterator[CheckedClaim]:
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


GOULD_2023 = PaperTable(
    name="gould-2023",
    cited="Gould et al. 2023, Successor Heads: Recurring, Interpretable Attention Heads in the Wild",
    data="numbers to 200, number words, ordinal words, days and months, also short, and letters, as far as each is a "
    "token of its own, with a space before it where most are",
    metric="share of tokens at which W_U W_O W_V MLP_0(W_E), with norms, has its largest logit among the sequence's "
    f"tokens at the successor; baseline: the head's best of {SHUFFLES} random orders",
    threshold=f"{MAJORITY}, and above both controls (our own; the paper compares heads by their scores)",
    needs_corpus=False,
    takes=(),
    measure=_measure,
)
