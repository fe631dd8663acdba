"""Wu et al. 2024: retrieval heads, which copy a needle out of a long text."""

from itertools import islice

import torch
from torch import Tensor

from attnviz.commands.papers.table import PAPERS, PaperRun, PaperTable, Rows
from attnviz.errors import CheckpointError, CorpusError
from attnviz.inputs.batches import running_tokens
from attnviz.judge.roles import ENOUGH_SEQUENCES
from attnviz.measures.intervals import of_share
from attnviz.measures.needles import DEPTHS, LENGTHS, prompts, retrieval
from attnviz.models.checkpoint import Checkpoint
from attnviz.progress import tell
from attnviz.run.corpus import SampledAttention
from attnviz.wording import counted

NEEDLES: list[dict[str, str]] = PAPERS["wu-2024"]["needles"]
THRESHOLD = 0.1  # score of a retrieval head (the paper)
LISTED = 10  # heads that are named at most
CONTROLLED = 5  # one of so many prompts is put to the untrained copy, which writes slowly


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.language_head is None or not checkpoint.architecture.causal:
        raise CheckpointError("wu-2024 lets the model write: expected a decoder, such as gpt2.")


def _measure(run: PaperRun) -> Rows:
    checkpoint, options = run.checkpoint, run.options
    corpora = run.opened("gap", "chats")
    most = max(LENGTHS) * len(NEEDLES) * len(DEPTHS)
    haystack = list(islice(running_tokens(checkpoint, corpora, options["limit"]), most))
    asked = prompts(checkpoint, haystack, NEEDLES)
    if not asked and len(haystack) < LENGTHS[0]:
        raise CorpusError(
            f"expected {LENGTHS[0]} tokens of text at least, in which wu-2024 hides a sentence, found "
            f"{len(haystack)}; give a longer text."
        )
    if not asked:
        raise CheckpointError(
            f"wu-2024 expects a model that reads {LENGTHS[0]} tokens, in which it hides a sentence, found one of "
            f"{counted(checkpoint.positions, 'position')}; give another model."
        )
    attention, of_untrained = (SampledAttention(model, options["seed"]) for model in run.models)
    answers, untrained = list[tuple[Tensor, bool]](), list[tuple[Tensor, bool]]()
    for number, prompt in enumerate(asked):
        answers.append(retrieval(checkpoint, attention, prompt))
        if number % CONTROLLED == 0:
            untrained.append(retrieval(run.untrained, of_untrained, prompt))
        tell(options["progress"], "needles", number + 1, len(asked))
    scores_of_found = [scores for scores, recalled in answers if recalled]
    n = len(scores_of_found)
    control = torch.stack([scores for scores, _ in untrained]).mean(0)
    recalled = sum(recalled for _, recalled in untrained) / len(untrained)
    yield run.reported("needles that the model finds", n / len(asked), len(asked), untrained=recalled)
    few = "" if n >= ENOUGH_SEQUENCES else f"the model finds {n} needles, of {ENOUGH_SEQUENCES} that an interval takes"
    by_prompt = torch.stack(scores_of_found or [torch.zeros_like(control)])
    means = by_prompt.mean(0)
    share, of_control = (float((scores > THRESHOLD).double().mean()) for scores in (means, control))
    yield run.reported("heads above 0.1", share, means.numel(), published="0.03 to 0.06", untrained=of_control)
    for place in means.flatten().argsort(descending=True)[:LISTED].tolist():
        layer, head = divmod(place, checkpoint.n_heads)
        score = float(means[layer, head])
        if score < THRESHOLD and place != int(means.argmax()):
            break
        interval = None
        if not few:
            interval = of_share(score, float(by_prompt[:, layer, head].std()) / n**0.5, n, means.numel())
        yield run.claimed(
            "retrieval",
            score,
            n,
            head=run.head(layer, head),
            at_least=THRESHOLD,
            untrained=control.max(),
            interval=interval,
            few=few,
        )


TABLE = PaperTable(
    "wu-2024",
    {"NEEDLES": len(NEEDLES), "DEPTHS": len(DEPTHS), "LENGTHS": LENGTHS, "THRESHOLD": THRESHOLD},
    refuse=_refuse,
    measure=_measure,
)
