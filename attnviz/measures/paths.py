"""Path patching: what a head does by reaching the queries, keys or values of another, or the logits, directly.

Of two runs on texts of as many tokens one is patched, the base (Wang et al. 2022, "Interpretability in the Wild";
Goldowsky-Dill et al. 2023, "Localizing Model Behavior with Path Patching"):

1. The sender writes into the residual stream what it writes in the other run. All other heads write what they write in
   the base. So do all feed-forward networks, if they are frozen, as along an edge of Goldowsky-Dill et al.: the stream
   that the receiver's layer reads is then that of the base, plus the difference of the sender's two outputs. As Wang et
   al. define it, the networks between run on what the sender writes.
2. The receiver's queries, keys or values are made of this stream, through the norm of its layer, which is computed
   anew; the other two of the three are those of the base. Heads that share keys and values do so no more: the
   receiver's alone are changed.
3. What the receiver then gives takes the place of what it gives in the base, and all after it runs as usual.

The logits as a receiver read the last layer's stream, so changed, through the final norm, computed anew, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.arguments import as_found
from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, select_heads
from attnviz.options import PATH_NETWORKS
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.contributions import check_total
from attnviz.run.edit import Edit, KeptPass, answering, attention_known, edited, resume, run_block, split_variants
from attnviz.run.patterns import LayerHeads
from attnviz.run.sites import at_site

LOGITS = "logits"

FROZEN, RUN = PATH_NETWORKS

READS = {"q": "queries", "k": "keys", "v": "values"}  # what a head reads the stream for, by the letter after its id


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: the queries, keys or values of a head, or the logits."""

    head: HeadId | None  # None for the logits
    reads: str  # q, k or v; of the logits ""

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}.{self.reads}"

    def senders(self, checkpoint: Checkpoint, selections: Sequence[str] = ()) -> list[HeadId]:
        """The heads that write into the stream before it is read here, layer by layer; all, or those of selections.

        UsageError: a selection cannot be read, or names a head that does not write before.
        """
        n_layers = checkpoint.n_layers if self.head is None else self.head.layer
        before = [head for head in select_heads((), checkpoint.kinds) if head.layer < n_layers]
        chosen = select_heads(selections, checkpoint.kinds) if selections else before
        late = [head for head in chosen if head not in before]
        if late or not chosen:
            sender = late[0] if late else "any head"
            raise UsageError(f"no path leads from {sender} to {self}: expected a sender in an earlier layer.")
        return chosen


def receiver_named(name: str, checkpoint: Checkpoint) -> Receiver:
    """A receiver from ``L10H7.q``, ``10.7.k`` or ``logits``; UsageError without such a one, or without direct paths."""
    why = why_no_paths(checkpoint)
    if why:
        raise UsageError(f"leave out --to (receiver=...): {why}.")
    if name.strip().lower() == LOGITS:
        return Receiver(None, "")
    head, _, reads = name.strip().rpartition(".")
    if reads.lower() not in READS:
        raise UsageError(
            f"expected the end of a path such as L2H1.q, L2H1.k, L2H1.v (queries, keys or values of a head) or logits, "
            f"found {as_found(name)}."
        )
    return Receiver(head_named(head, checkpoint.kinds), reads.lower())


def why_no_paths(checkpoint: Checkpoint) -> str:
    """Reason why no path between heads of this model is direct, or ''."""
    if not checkpoint.architecture.stream_alone:
        return "its layers read keys of earlier ones, or words, beside the residual stream, or multiply it"
    if checkpoint.stacks:
        return "an encoder-decoder has two residual streams, and paths between heads are followed in one"
    if not checkpoint.architecture.pre_norm:
        return (
            "in BERT and its relatives a norm after each layer changes the whole residual stream, so that nothing a "
            "head writes reaches a later head directly"
        )
    return ""


def sent(checkpoint: Checkpoint, base: KeptPass, other: KeptPass, head: HeadId, at: Tensor | None = None) -> Tensor:
    """What is added to the base's stream when a head writes what it does in the other run, [rows, n, d_model].

    ``at``: boolean [rows, n], the positions at which it does; None for all.
    """
    modules = checkpoint.modules[head.layer]
    weight = checkpoint.parameters(head.layer).output_weight[head.head]
    before, instead = (upcast(kept.values[head.layer, "z"][:, :, head.head]) for kept in (base, other))
    added = (instead - before) @ upcast(weight)
    if modules.attention_output_norm is not None:
        written = modules.o_proj(base.values[head.layer, "z"].flatten(-2))
        added = upcast(modules.attention_output_norm(written + added) - modules.attention_output_norm(written))
    if at is not None:
        added = added * at[..., None]
    return added * checkpoint.residual_multiplier


def along_paths(
    checkpoint: Checkpoint,
    base: KeptPass,
    other: KeptPass,
    receiver: Receiver,
    senders: Sequence[HeadId],
    at: Tensor | None = None,
    networks: str = FROZEN,
) -> Iterator[tuple[list[int], Tensor]]:
    """Patch the path from each sender to a receiver, inside :func:`attnviz.run.edit.running`.

    ``at``: as of :func:`sent`. ``networks``: those between are ``frozen``, or ``run``. Yields numbers of senders, and
    the final states with the path of each patched, [n_senders * rows, n, d_model]. VerificationError: with nothing sent
    these are not the final states of the base.
    """
    for numbers in split_variants(list(range(len(senders))), base):
        some = [senders[number] for number in numbers]
        if networks == RUN:
            changed = _with_networks(checkpoint, base, other, receiver, some, at)
        else:
            changes = [sent(checkpoint, base, other, sender, at) for sender in some]
            stream = _read_stream(checkpoint, base, receiver.head)
            changed = (stream + torch.stack([torch.zeros_like(changes[0]), *changes])).to(stream.dtype)
        if receiver.head is None:
            final = checkpoint.architecture.final_states(checkpoint.model, changed)
        else:
            received = _received(checkpoint, base, receiver.head, receiver.reads, changed.flatten(0, 1))
            edit = Edit(receiver.head.layer, received[:, :, None], heads=[receiver.head.head])
            with edited(checkpoint, [[edit]]):
                final = resume(checkpoint, base, receiver.head.layer, len(changed))
        final = final.reshape(len(changed), *base.final.shape)
        check_unchanged(checkpoint, base, final[0], f"the path to {receiver} with nothing sent along it")
        yield numbers, final[1:].flatten(0, 1)


def _with_networks(
    checkpoint: Checkpoint,
    base: KeptPass,
    other: KeptPass,
    receiver: Receiver,
    senders: Sequence[HeadId],
    at: Tensor | None,
) -> Tensor:
    """The stream that is read with nothing sent, then with what each head sends, [1 + n_senders, rows, n, d_model].

    Networks between run: where heads are frozen, no token changes another one.
    """
    copies = 1 + len(senders)
    every = checkpoint.every_layer
    first = min(sender.layer for sender in senders)
    end = len(every) if receiver.head is None else every.index(receiver.head.layer)
    stream = base.calls[first][0][0]
    where = torch.ones_like(stream[..., 0], dtype=torch.bool) if at is None else at
    hidden = stream[where].repeat(copies, 1, 1)  # [copies, n_tokens, d_model]
    for layer in every[every.index(first) : end]:
        modules = checkpoint.modules[layer]
        with ExitStack() as known:
            if modules.attends:
                values = base.values[layer, "z"][where].repeat(copies, 1, 1, 1)  # [copies, n_tokens, n_heads, d_head]
                for copy, sender in enumerate(senders, start=1):
                    if sender.layer == layer:
                        values[copy, :, sender.head] = other.values[layer, "z"][where][:, sender.head]
                known.enter_context(attention_known(checkpoint, layer, values.flatten(-2)))
            else:
                given: list[Tensor] = []  # what the layer's mixer gives in the base, [rows, n, d_model]
                with at_site(modules.output, "output", given.append):
                    run_block(modules.block, base, layer, base.calls[layer][0][0])
                mixed = given[0][where].repeat(copies, 1, 1)
                known.enter_context(answering(modules.output, lambda *_, mixed=mixed, **__: mixed))
            hidden = run_block(modules.block, base, layer, hidden)
    streams = _read_stream(checkpoint, base, receiver.head).repeat(copies, 1, 1, 1)
    streams[:, where] = hidden
    return streams


def _read_stream(checkpoint: Checkpoint, base: KeptPass, head: HeadId | None) -> Tensor:
    """The residual stream of the base that a head reads, or the logits, [rows, n, d_model]."""
    stream: Tensor = last_stream(checkpoint, base) if head is None else base.calls[head.layer][0][0]
    return stream


def check_unchanged(checkpoint: Checkpoint, base: KeptPass, final: Tensor, what: str) -> None:
    """Raise VerificationError unless final states are those of a kept pass, where ``what`` was done."""
    mask = base.inputs.get("attention_mask")
    tokens = torch.ones_like(final[..., 0]).bool() if mask is None else mask.bool()
    says = f"{what} does not give the model's own final states"
    check_total(checkpoint, upcast(final[tokens]), upcast(base.final[tokens]), says, "at number {}".format)


def last_stream(checkpoint: Checkpoint, base: KeptPass) -> Tensor:
    """The residual stream after the last layer of a kept pass, [rows, n, d_model]."""
    last = checkpoint.every_layer[-1]
    return run_block(checkpoint.modules[last].block, base, last, base.calls[last][0][0])


def _received(checkpoint: Checkpoint, base: KeptPass, head: HeadId, reads: str, changed: Tensor) -> Tensor:
    """Weighted values of a head that reads changed streams, [copies * rows, n, d_head]."""
    layer = head.layer
    stream = base.calls[layer][0][0]
    norm = checkpoint.modules[layer].attention_norm
    copies = len(changed) // len(stream)
    unchanged = stream.repeat(copies, 1, 1)
    inputs = {name: changed if name == reads else unchanged for name in (*READS, "gate")}
    if norm is not None:
        inputs = {name: norm(x) for name, x in inputs.items()}
    parameters = checkpoint.parameters(layer)
    query, key = attention.queries_and_keys(inputs["q"], inputs["k"], parameters)
    mask = base.inputs.get("attention_mask")
    mask = None if mask is None or bool(mask.all()) else mask.repeat(copies, 1)
    heads = LayerHeads(query, key, attention.values(inputs["v"], parameters), parameters, mask).of([head.head])
    weighted = heads.weighted(heads.rows(0, query.shape[-2])).expand(-1, parameters.n_heads, -1, -1)
    return attention.gated(weighted, inputs["gate"], parameters)[:, head.head]
