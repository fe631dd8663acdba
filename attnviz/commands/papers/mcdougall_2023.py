"""McDougall et al. 2023: how much of what a head does is copy suppression, by the ablation that keeps nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.papers.table import (
    OF_TEXTS,
    PaperRun,
    PaperTable,
    Rows,
    profiled,
    too_few,
)
from attnviz.errors import CheckpointError, CorpusError
from attnviz.inputs.batches import batch_of_ids
from attnviz.inputs.encoding import encodings
from attnviz.inputs.reading import read_texts
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import Simultaneous, TextSamples
from attnviz.measures.patterns import COPY_SUPPRESSION
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.progress import tell
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.contributions import why_not_linear, without_gradients
from attnviz.run.corpus import SampledAttention
from attnviz.run.sites import Site, recording, sites_of

PREDICTED = 0.05  # a source token is kept where it is among this share of those that the query predicts (the paper)
MOST_TEXTS = 200  # that are read; the paper has millions of tokens
MOST_TOKENS = 256  # of each
HEADS = 2  # heads of a model of which the paper names none: the clearest of the role copy-suppression
NAMED = {("gpt2", 12, 12): ("L10H7", "L11H10")}  # the paper's heads of GPT-2 small, by architecture, layers and heads


@dataclass(frozen=True)
class Seen:
    """What a pass of one text has at one head; sizes n tokens, d dimensions."""

    ids: Tensor  # [n]
    entered: Tensor  # [n, d], the residual stream before the head's layer
    pattern: Tensor  # [n, n]
    values: Tensor  # [n, d_head], without bias
    final: Tensor  # [n, d], the residual stream before the final norm


class KeptSuppression:
    """Divergences of a model whose head is ablated, whole or but for copy suppression; direct effects alone.

    Of a source token s at a query the head keeps what its output of s has along the unembedding of s, if that is
    negative, and only where s is among the 5 % of tokens that the residual stream predicts there, before the head's
    layer, through final norm and unembedding. All other sources are replaced by the mean output of a source.
    """

    def __init__(self, checkpoint: Checkpoint, id: HeadId, seed: int) -> None:
        self._checkpoint, self._id = checkpoint, id
        self._attention = SampledAttention(checkpoint, seed)
        self._norm_module: Any = checkpoint.architecture.final_norm(checkpoint.model)
        parameters = checkpoint.architecture.parameters(checkpoint.model, id.layer)
        self._parameters = replace(parameters, value=replace(parameters.value, bias=None))
        self._output = upcast(parameters.output_weight[id.head])  # [d_head, d]
        self._unembedding = upcast(parameter_of(checkpoint.language_head, "weight"))
        self._sums = torch.zeros(2, len(self._output), dtype=torch.float64)
        self._n = 0

    def see(self, ids: Sequence[int]) -> Seen:
        """Run the model on one text, verified like all others."""
        batch = batch_of_ids(self._checkpoint, [ids])
        layer, head = self._id
        patterns = dict[int, Tensor]()
        sites = sites_of(self._checkpoint, ["residual", "source"], [layer])
        with recording(sites | {(layer, "final"): Site(self._norm_module, "input")}) as seen:
            self._attention.run(batch, patterns.__setitem__)
        values = attention.values(upcast(seen[layer, "source"]), self._parameters)[0, head]
        return Seen(
            ids=batch.inputs["input_ids"][0],
            entered=seen[layer, "residual"][0],
            pattern=patterns[layer][0, head],
            values=upcast(values),
            final=seen[layer, "final"][0],
        )

    def count(self, seen: Seen) -> None:
        """Add one text to the means that take the place of what is removed."""
        values = seen.values.double().cpu()
        self._sums += torch.stack([values.sum(0), (seen.pattern.double().cpu() @ values).sum(0)])
        self._n += len(values)

    def divergences(self, seen: Seen) -> Tensor:
        """KL from the model as it is to that without the head, and with copy suppression alone, [2, n] in nats."""
        mean, mean_output = (self._sums / self._n).to(self._output) @ self._output
        outputs = seen.values @ self._output  # [n, d], of each source
        written = seen.pattern @ outputs
        reading = self._checkpoint.norm(self._norm_module).read_by(self._unembedding[seen.ids].T).T  # [n, d]
        along = (outputs * reading).sum(-1) / reading.square().sum(-1)
        suppressed = along.clamp(max=0)[:, None] * reading
        logits = self._logits(seen.entered)
        least = logits.topk(max(1, int(PREDICTED * logits.shape[-1])), -1).values[:, -1:]
        weights = seen.pattern * (logits[:, seen.ids] >= least)
        kept = weights @ suppressed + (seen.pattern - weights).sum(-1, keepdim=True) * mean
        changes = (0, mean_output - written, kept - written)
        clean, *others = (self._logits(seen.final + change).log_softmax(-1) for change in changes)
        return torch.stack([(clean.exp() * (clean - other)).sum(-1) for other in others])

    def _logits(self, residual: Tensor) -> Tensor:
        return upcast(self._norm_module(residual)) @ self._unembedding.T


def explained(sums: Tensor, samples: TextSamples) -> Simultaneous:
    """Share of the ablation's divergence that copy suppression alone does not have.

    ``sums``: of each text, [n_texts, 2], as :meth:`KeptSuppression.divergences`.
    """
    ablated, kept = sums.double()[:, :, None].unbind(1)
    return samples.ratios(ablated - kept, ablated)


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
