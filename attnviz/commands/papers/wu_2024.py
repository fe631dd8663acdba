"""Wu et al. 2024: retrieval heads, which copy a needle out of a long text."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.papers.table import PAPERS, PaperRun, PaperTable, Rows
from attnviz.errors import CheckpointError, CorpusError
from attnviz.inputs.batches import batch_of_ids, running_tokens
from attnviz.inputs.encoding import encodings
from attnviz.judge.roles import ENOUGH_SEQUENCES
from attnviz.measures.intervals import of_share
from attnviz.models.checkpoint import Checkpoint
from attnviz.progress import tell
from attnviz.run.corpus import SampledAttention
from attnviz.run.generate import drafted_greedily
from attnviz.wording import counted

NEEDLES: list[dict[str, str]] = PAPERS["wu-2024"]["needles"]
LENGTHS = (256, 512, 1024)  # tokens of a prompt with its answer (the paper: 1,000 to 50,000)
DEPTHS = [(tenth + 0.5) / 10 for tenth in range(10)]  # where the needle stands in the text (the paper: 0 to 1)
THRESHOLD = 0.1  # score of a retrieval head (the paper)
RECALLED = 0.5  # share of an answer's tokens to be written (the paper)
LISTED = 10  # heads that are named at most
CONTROLLED = 5  # one of so many prompts is put to the untrained copy, which writes slowly


@dataclass(frozen=True)
class Prompt:
    """A text with a needle, and its question."""

    ids: tuple[int, ...]
    start: int  # of the answer in the needle
    answer: tuple[int, ...]


def prompts(checkpoint: Checkpoint, haystack: list[int]) -> list[Prompt]:
    """Every needle at every depth of texts of every length that model and haystack have; of each another stretch."""
    with_needle = list[Prompt]()
    begin = encodings(checkpoint, ["a"])[0].ids[:1]
    if begin[0] != checkpoint.tokenizer.bos_token_id:
        begin = []
    start = 0  # of the next stretch

    def ids(text: str) -> list[int]:
        return list(checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"])

    for length in dict.fromkeys(min(most, checkpoint.positions) for most in LENGTHS):
        for needle in NEEDLES:
            before = ids("\n{statement}".format_map(needle))
            answer = ids("\n{statement}{end}".format_map(needle))[len(before) :]
            asked = ids("\nQuestion: {question}\nAnswer: {statement}".format_map(needle))
            room = length - len(begin + before + asked) - 2 * len(answer) - 1
            if not len(asked) < room <= len(haystack):
                continue
            for depth in DEPTHS:
                if start + room > len(haystack):
                    start = 0
                text = haystack[start : start + room]
                cut = round(depth * room)
                start += room
                first = [*begin, *text[:cut], *before]
                whole = (*first, *answer, *ids("\n")[-1:], *text[cut:], *asked)
                with_needle.append(Prompt(whole, len(first), tuple(answer)))
    return with_needle


def retrieval(checkpoint: Checkpoint, attention: SampledAttention, prompt: Prompt) -> tuple[Tensor, bool]:
    """Retrieval scores of a model that answers, [n_layers, n_heads], and whether it wrote over half of the answer."""
    answer = prompt.answer
    written = drafted_greedily(checkpoint, prompt.ids, answer)
    ids = (*prompt.ids, *written[:-1])
    copied = torch.tensor(written)[:, None] == torch.tensor(ids)  # [n_written, n]
    copied[:, : prompt.start] = copied[:, prompt.start + len(answer) :] = False
    scores = torch.zeros(checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)

    def on_pattern(layer: int, pattern: Tensor) -> None:
        largest = pattern[0, :, -len(written) :].argmax(-1).cpu()  # [n_heads, n_written]
        scores[layer] = copied.gather(1, largest.T).sum(0) / len(answer)

    attention.run(batch_of_ids(checkpoint, [ids]), on_pattern)
    return scores, len(set(answer) & set(written)) > RECALLED * len(set(answer))


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.language_head is None or not checkpoint.architecture.causal:
        raise CheckpointError("wu-2024 lets the model write: expected a decoder, such as gpt2.")


def _measure(run: PaperRun) -> Rows:
    checkpoint, options = run.checkpoint, run.options
    corpora = run.opened("gap", "chats")
    most = max(LENGTHS) * len(NEEDLES) * len(DEPTHS)
    haystack = list(islice(running_tokens(checkpoint, corpora, options["limit"]), most))
    asked = prompts(checkpoint, haystack)
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
        evidence: Any = {"untrained": control.max(), "interval": interval, "few": few}
        yield run.claimed("retrieval", score, n, head=run.head(layer, head), at_least=THRESHOLD, **evidence)


TABLE = PaperTable(
    "wu-2024",
    {"NEEDLES": len(NEEDLES), "DEPTHS": len(DEPTHS), "LENGTHS": LENGTHS, "THRESHOLD": THRESHOLD},
    refuse=_refuse,
    measure=_measure,
)
