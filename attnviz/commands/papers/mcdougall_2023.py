"""McDougall et al. 2023: how much of what a head does is copy suppression, by the ablation that keeps nothing else."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.papers.table import OF_TEXTS, PaperRun, PaperTable, Rows, profiled, too_few
from attnviz.errors import CheckpointError, CorpusError
from attnviz.inputs.encoding import encodings
from attnviz.inputs.reading import read_texts
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.copy_suppression import KeptSuppression, explained
from attnviz.measures.intervals import TextSamples
from attnviz.measures.patterns import COPY_SUPPRESSION
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.progress import tell
from attnviz.run.contributions import why_not_linear, without_gradients

MOST_TEXTS = 200  # that are read; the paper has millions of tokens
MOST_TOKENS = 256  # of each
HEADS = 2  # heads of a model of which the paper names none: the clearest of the role copy-suppression
NAMED = {("gpt2", 12, 12): ("L10H7", "L11H10")}  # the paper's heads of GPT-2 small, by architecture, layers and heads


def _measured(run: PaperRun, checkpoint: Checkpoint, id: HeadId, texts: Sequence[Sequence[int]]) -> Tensor:
    """Sums of the divergences of each text, [n_texts, 2]."""
    measure = KeptSuppression(checkpoint, id, run.options["seed"])
    sums = []
    with without_gradients(checkpoint.device):
        for ids in texts:
            measure.count(measure.see(ids))
        for number, ids in enumerate(texts):
            sums.append(measure.divergences(measure.see(ids)).sum(-1).cpu())
            tell(run.options["progress"], str(id), number + 1, len(texts))
    return torch.stack(sums)


def _refuse(checkpoint: Checkpoint) -> None:
    why = why_not_linear(checkpoint)
    if why:
        raise CheckpointError(f"mcdougall-2023 takes logits apart: {why}. Expected a decoder, such as gpt2.")
    if checkpoint.architecture.gated or any(block.attention_output_norm is not None for block in checkpoint.modules):
        raise CheckpointError(
            "mcdougall-2023 takes heads that write as they are; this model has gates, or a norm after W_O."
        )


def _measure(run: PaperRun) -> Rows:
    checkpoint, options = run.checkpoint, run.options
    corpora = run.opened("gap", "chats")
    read = islice(chain.from_iterable(read_texts(corpus, options["limit"]) for corpus in corpora), MOST_TEXTS)
    most = min(MOST_TOKENS, checkpoint.positions)
    texts = [encodings(checkpoint, [text.text])[0].ids[:most] for text in read]
    texts = [ids for ids in texts if len(ids) > 1]
    if not texts:
        raise CorpusError("mcdougall-2023 found no text of two tokens.")
    n_texts, n_tokens = len(texts), sum(map(len, texts))
    samples = TextSamples(options["seed"], range(n_texts))
    shape = checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads
    heads = [HeadId.parse(name) for name in NAMED.get(shape, ())]
    if not heads:
        profile = profiled(checkpoint, run.texts, False, options)
        roles = [role for role in profile.roles if role.role == COPY_SUPPRESSION]
        heads = [role.id for role in sorted(roles, key=lambda role: -role.margin)[:HEADS]]
    for id in heads:
        trained, untrained = (_measured(run, model, id, texts) for model in run.models)
        share = explained(trained, samples)
        without = float(trained[:, 0].sum())
        few = too_few(n_texts) if without > 0 else "without the head nothing changes"
        evidence: Any = {"interval": share.interval(0), "few": few}
        evidence["untrained"] = explained(untrained, samples).estimates
        row = "share explained by copy suppression", share.estimates, n_texts
        yield run.claimed(*row, head=id, at_least=0.5, published="0.769 of L10H7", **evidence)
        yield run.reported("KL without the head (nats)", without / n_tokens, n_tokens, head=id)


TABLE = PaperTable(
    "mcdougall-2023",
    {"MOST_TEXTS": MOST_TEXTS, "MOST_TOKENS": MOST_TOKENS, "HEADS": HEADS},
    takes=(*OF_TEXTS, "frequencies"),
    least=ENOUGH_TEXTS,
    refuse=_refuse,
    measure=_measure,
)
