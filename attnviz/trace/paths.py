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
from attnviz.trace.contributions import check_total
from attnviz.trace.patterns import LayerQK, of_heads
from attnviz.trace.removal import KeptPass, answering, attention_known, resume, run_block
from attnviz.trace.taps import at_site, sites_of, taps

LOGITS = "logits"

FROZEN, RUN = PATH_NETWORKS

READS = {"q": "queries", "k": "keys", "v": "values"}
"""What a head reads the stream for, by the letter after its id."""

AT_ONCE = 2048
"""Tokens that are run at a time."""


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: the queries, keys or values of a head, or the logits."""

    head: HeadId | None  # None for the logits
    reads: str  # q, k or v; of the logits ""

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}.{self.reads}"

    def senders(self, checkpoint: Checkpoint, selections: Sequence[str] = ()) -> list[HeadId]:
        """The heads that write into the stream before it is read here, layer by layer; all, or those of selections.

        Raises:
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
    """A receiver from ``L10H7.q``, ``10.7.k`` or ``logits``.

    Raises:
        UsageError: it names none, a head that the model lacks, or the model has no direct paths.
    """
    if why := why_no_paths(checkpoint):
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
    if checkpoint.stacks:
        return "an encoder-decoder has two residual streams, and paths between heads are followed in one"
    if not checkpoint.architecture.pre_norm:
        return (
            "in BERT and its relatives a norm after each layer changes the whole residual stream, so that nothing a "
            "head writes reaches a later head directly"
        )
    return ""


def sent(checkpoint: Checkpoint, base: KeptPass, other: KeptPass, head: HeadId, at: Tensor | None = None) -> Tensor:
    """What is added to the base's residual stream when a head writes what it writes in the other run.

    ``at``: boolean [rows, n], the positions at which it does; None for all.

    Returns:
        [rows, n, d_model], in float32 at least.
    """
    of = checkpoint.modules[head.layer]
    weight = checkpoint.architecture.parameters(checkpoint.model, head.layer).output_weight[head.head]
    own, instead = (upcast(kept.o_proj[head.layer][..., _columns(head, len(weight))]) for kept in (base, other))
    added = (instead - own) @ upcast(weight)
    if of.attention_output_norm is not None:
        written = of.o_proj(base.o_proj[head.layer])
        added = upcast(of.attention_output_norm(written + added) - of.attention_output_norm(written))
    if at is not None:
        added = added * at[..., None]
    return added * checkpoint.architecture.residual_multiplier(checkpoint.config)


def _columns(head: HeadId, d_head: int) -> slice:
    """Where its weighted values stand among those of its layer, side by side."""
    return slice(head.head * d_head, (head.head + 1) * d_head)


def along_paths(
    checkpoint: Checkpoint,
    base: KeptPass,
    other: KeptPass,
    receiver: Receiver,
    senders: Sequence[HeadId],
    at: Tensor | None = None,
    networks: str = FROZEN,
) -> Iterator[tuple[list[int], Tensor]]:
    """Patch the path from each sender to a receiver, inside :func:`attnviz.trace.removal.running`.

    ``at``: as of :func:`sent`. ``networks``: those between are ``frozen``, or ``run``.

    Yields:
        numbers of senders, and the final states with the path of each patched, [n_senders * rows, n, d_model].

    Raises:
        VerificationError: with nothing sent these are not the final states of the base.
    """
    streams = _with_networks if networks == RUN else _frozen
    step = max(1, AT_ONCE // base.final[..., 0].numel())
    for first in range(0, len(senders), step):
        numbers = list(range(first, min(first + step, len(senders))))
        changed = streams(checkpoint, base, other, receiver, [senders[number] for number in numbers], at)
        final = _final_states(checkpoint, base, receiver, changed)
        final = final.reshape(len(changed), *base.final.shape)
        check_unchanged(checkpoint, base, final[0], f"the path to {receiver} with nothing sent along it")
        yield numbers, final[1:].flatten(0, 1)


def _final_states(checkpoint: Checkpoint, base: KeptPass, receiver: Receiver, changed: Tensor) -> Tensor:
    """Final states where the receiver reads changed streams, [copies * rows, n, d_model]."""
    if receiver.head is None:
        return checkpoint.architecture.final_states(checkpoint.model, changed)
    weighted = _received(checkpoint, base, receiver, changed.flatten(0, 1))
    with taps(sites_of(checkpoint, ["concatenated"], [receiver.head.layer]), lambda *_: weighted):
        return resume(checkpoint, base, receiver.head.layer, len(changed))


def _frozen(
    checkpoint: Checkpoint,
    base: KeptPass,
    other: KeptPass,
    receiver: Receiver,
    senders: Sequence[HeadId],
    at: Tensor | None,
) -> Tensor:
    """The stream that is read with nothing sent, then with what each head sends, [1 + n_senders, rows, n, d_model]."""
    changes = [sent(checkpoint, base, other, sender, at) for sender in senders]
    stream = _read_stream(checkpoint, base, receiver)
    return (stream + torch.stack([torch.zeros_like(changes[0]), *changes])).to(stream.dtype)


def _with_networks(
    checkpoint: Checkpoint,
    base: KeptPass,
    other: KeptPass,
    receiver: Receiver,
    senders: Sequence[HeadId],
    at: Tensor | None,
) -> Tensor:
    """The same with networks between running: where heads are frozen, no token changes another one."""
    copies, every = 1 + len(senders), checkpoint.every_layer
    first = min(sender.layer for sender in senders)
    end = len(every) if receiver.head is None else every.index(receiver.head.layer)
    stream = base.calls[first][0][0]
    where = torch.ones_like(stream[..., 0], dtype=torch.bool) if at is None else at
    hidden = stream[where].repeat(copies, 1, 1)  # [copies, n_tokens, d_model]
    for layer in every[every.index(first) : end]:
        of = checkpoint.modules[layer]
        with ExitStack() as known:
            if of.attends:
                values = base.o_proj[layer][where].repeat(copies, 1, 1)
                for copy, sender in enumerate(senders, start=1):
                    if sender.layer == layer:
                        columns = _columns(sender, values.shape[-1] // checkpoint.n_heads_of(layer))
                        values[copy, :, columns] = other.o_proj[layer][where][:, columns]
                known.enter_context(attention_known(checkpoint, layer, values))
            else:
                mixed = _mixed(checkpoint, base, layer)[where].repeat(copies, 1, 1)
                known.enter_context(answering(of.output, lambda *_, mixed=mixed, **__: mixed))
            hidden = run_block(of.block, base, layer, hidden)
    streams = _read_stream(checkpoint, base, receiver).repeat(copies, 1, 1, 1)
    streams[:, where] = hidden
    return streams


def _mixed(checkpoint: Checkpoint, base: KeptPass, layer: int) -> Tensor:
    """What the mixer of a layer without heads gives in the base, [rows, n, d_model]."""
    of, given = checkpoint.modules[layer], list[Tensor]()
    with at_site(of.output, "output", given.append):
        run_block(of.block, base, layer, base.calls[layer][0][0])
    return given[0]


def _read_stream(checkpoint: Checkpoint, base: KeptPass, receiver: Receiver) -> Tensor:
    """The residual stream of the base that a receiver reads, [rows, n, d_model]."""
    if receiver.head is None:
        return last_stream(checkpoint, base)
    stream: Tensor = base.calls[receiver.head.layer][0][0]
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


def _received(checkpoint: Checkpoint, base: KeptPass, receiver: Receiver, changed: Tensor) -> Tensor:
    """Weighted values of the receiver's layer, where it reads changed streams, [copies * rows, n, n_heads * d_head]."""
    assert receiver.head is not None
    layer, head = receiver.head
    stream = base.calls[layer][0][0]
    norm = checkpoint.modules[layer].attention_norm
    copies = len(changed) // len(stream)
    unchanged = stream.repeat(copies, 1, 1)
    inputs = {reads: changed if reads == receiver.reads else unchanged for reads in READS}
    if norm is not None:
        inputs = {reads: norm(x) for reads, x in inputs.items()}
    parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
    query, key = attention.queries_and_keys(inputs["q"], inputs["k"], parameters)
    mask = base.inputs.get("attention_mask")
    mask = None if mask is None or bool(mask.all()) else mask.repeat(copies, 1)
    pattern = of_heads(LayerQK(query, key, parameters, mask, False, {}), [head]).rows(0, query.shape[-2])
    value = attention.values(inputs["v"], parameters)[:, head]
    weighted = base.o_proj[layer].repeat(copies, 1, 1)
    weighted[..., _columns(receiver.head, value.shape[-1])] = pattern[:, 0] @ value
    return weighted
