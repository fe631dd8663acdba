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
from typing import get_args

import torch
from torch import Tensor

from attnviz.arguments import as_found
from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, select_heads
from attnviz.options import PathNetworks
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.edit import Edit, KeptPass, answering, attention_known, edited, split_variants
from attnviz.run.patterns import LayerHeads
from attnviz.run.sites import at_site

LOGITS = "logits"

FROZEN, RUN = get_args(PathNetworks)

READS = {"q": "queries", "k": "keys", "v": "values"}  # what a head reads the stream for, by the letter after its id


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: the queries, keys or values of a head, or the logits."""

    head: HeadId | None  # None for the logits
    reads: str  # q, k or v; of the logits ""
    networks: str = FROZEN  # those between the sender and here are frozen, or run

    @property
    def layer(self) -> int | None:
        return None if self.head is None else self.head.layer

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}.{self.reads}"

    @property
    def in_words(self) -> str:
        """``the keys of L2H1``, ``the logits``."""
        return f"the {LOGITS}" if self.head is None else f"the {READS[self.reads]} of {self.head}"

    def senders(self, checkpoint: Checkpoint, selections: Sequence[str] = ()) -> list[HeadId]:
        """The heads that write into the stream before it is read here, layer by layer; all, or those of selections.

        UsageError: a selection cannot be read, or names a head that does not write before.
        """
        end = checkpoint.n_layers if self.layer is None else self.layer
        before = [head for head in select_heads((), checkpoint.kinds) if head.layer < end]
        chosen = select_heads(selections, checkpoint.kinds) if selections else before
        late = [head for head in chosen if head not in before]
        if late or not chosen:
            sender = late[0] if late else "any head"
            raise UsageError(f"no path leads from {sender} to {self}: expected a sender in an earlier layer.")
        return chosen


def receiver_named(name: str, checkpoint: Checkpoint, networks: str = FROZEN) -> Receiver:
    """A receiver from ``L10H7.q``, ``10.7.k`` or ``logits``; UsageError without such a one, or without direct paths."""
    why = why_no_paths(checkpoint)
    if why:
        raise UsageError(f"leave out --to (receiver=...): {why}.")
    if name.strip().lower() == LOGITS:
        return Receiver(None, "", networks)
    head, _, reads = name.strip().rpartition(".")
    if reads.lower() not in READS:
        raise UsageError(
            f"expected the end of a path such as L2H1.q, L2H1.k, L2H1.v (queries, keys or values of a head) or logits, "
            f"found {as_found(name)}."
        )
    return Receiver(head_named(head, checkpoint.kinds), reads.lower(), networks)


def why_no_paths(checkpoint: Checkpoint) -> str:
    """Reason why no path between heads of this model is direct, or ''."""
    if not checkpoint.architecture.stream_alone:
        return "its layers read keys of earlier ones, or words, beside the residual stream, or multiply it"
    if not checkpoint.architecture.pre_norm:
        return (
            "in BERT and its relatives a norm after each layer changes the whole residual stream, so that nothing a "
            "head writes reaches a later head directly"
        )
    return ""


def sent(base: KeptPass, other: KeptPass, head: HeadId, at: Tensor) -> Tensor:
    """What is added to the base's stream when a head writes what it does in the other run, [rows, n, d_model].

    ``at``: boolean [rows, n], the positions at which it does.
    """
    checkpoint, values = base.checkpoint, base.values[head.layer, "z"]
    modules = checkpoint.modules[head.layer]
    weight = checkpoint.parameters(head.layer).output_weight[head.head]
    before, instead = (upcast(kept.values[head.layer, "z"][:, :, head.head]) for kept in (base, other))
    added = (instead - before) @ upcast(weight)
    if modules.attention_output_norm is not None:
        written = modules.o_proj(values.flatten(-2))
        added = upcast(modules.attention_output_norm(written + added) - modules.attention_output_norm(written))
    return added * at[..., None] * checkpoint.residual_multiplier


def along_paths(
    base: KeptPass, other: KeptPass, path: Receiver, senders: Sequence[HeadId], at: Tensor
) -> Iterator[tuple[list[int], Tensor]]:
    """Patch the path from each sender to a receiver, inside :func:`attnviz.run.edit.running`.

    ``at``: as of :func:`sent`. Yields numbers of senders, and the final states with the path of each patched,
    [n_senders * rows, n, d_model]. VerificationError: with nothing sent these are not the final states of the base.
    """
    checkpoint, head = base.checkpoint, path.head
    for numbers in split_variants(list(range(len(senders))), base):
        some = [senders[number] for number in numbers]
        if path.networks == RUN:
            changed = _with_networks(base, other, path, some, at)
        else:
            changes = [sent(base, other, sender, at) for sender in some]
            stream = base.stream(path.layer)
            changed = (stream + torch.stack([torch.zeros_like(changes[0]), *changes])).to(stream.dtype)
        if head is None:
            final = checkpoint.architecture.final_states(checkpoint.model, changed)
        else:
            received = _received(base, head, path.reads, changed.flatten(0, 1))
            with edited(checkpoint, [[Edit(head.layer, received[:, :, None], heads=[head.head])]]):
                final = base.resume(head.layer, len(changed))
        final = final.reshape(len(changed), *base.final.shape)
        base.check_unchanged(final[0], f"the path to {path} with nothing sent along it")
        yield numbers, final[1:].flatten(0, 1)


def _with_networks(base: KeptPass, other: KeptPass, path: Receiver, senders: Sequence[HeadId], at: Tensor) -> Tensor:
    """The stream that is read with nothing sent, then with what each head sends, [1 + n_senders, rows, n, d_model].

    Networks between run: where heads are frozen, no token changes another one.
    """
    checkpoint, copies = base.checkpoint, 1 + len(senders)
    every = checkpoint.every_layer
    first = min(sender.layer for sender in senders)
    end = len(every) if path.layer is None else every.index(path.layer)
    hidden = base.stream(first)[at].repeat(copies, 1, 1)  # [copies, n_tokens, d_model]
    for layer in every[every.index(first) : end]:
        modules = checkpoint.modules[layer]
        with ExitStack() as known:
            if modules.attends:
                values = base.values[layer, "z"][at].repeat(copies, 1, 1, 1)  # [copies, n_tokens, n_heads, d_head]
                for copy, sender in enumerate(senders, start=1):
                    if sender.layer == layer:
                        values[copy, :, sender.head] = other.values[layer, "z"][at][:, sender.head]
                known.enter_context(attention_known(checkpoint, layer, values.flatten(-2)))
            else:
                given: list[Tensor] = []  # what the layer's mixer gives in the base, [rows, n, d_model]
                with at_site(modules.output, "output", given.append):
                    base.run_block(layer, base.stream(layer))
                mixed = given[0][at].repeat(copies, 1, 1)
                known.enter_context(answering(modules.output, lambda *_, mixed=mixed, **__: mixed))
            hidden = base.run_block(layer, hidden)
    streams = base.stream(path.layer).repeat(copies, 1, 1, 1)
    streams[:, at] = hidden
    return streams


def _received(base: KeptPass, head: HeadId, reads: str, changed: Tensor) -> Tensor:
    """Weighted values of a head that reads changed streams, [copies * rows, n, d_head]."""
    checkpoint, stream = base.checkpoint, base.stream(head.layer)
    norm = checkpoint.modules[head.layer].attention_norm
    copies = len(changed) // len(stream)
    unchanged = stream.repeat(copies, 1, 1)
    inputs = {name: changed if name == reads else unchanged for name in (*READS, "gate")}
    if norm is not None:
        inputs = {name: norm(x) for name, x in inputs.items()}
    parameters = checkpoint.parameters(head.layer)
    query, key = attention.queries_and_keys(inputs["q"], inputs["k"], parameters)
    mask = base.inputs.get("attention_mask")
    mask = None if mask is None or bool(mask.all()) else mask.repeat(copies, 1)
    heads = LayerHeads(query, key, attention.values(inputs["v"], parameters), parameters, mask).of([head.head])
    weighted = heads.weighted(heads.rows(0, query.shape[-2])).expand(-1, parameters.n_heads, -1, -1)
    return attention.gated(weighted, inputs["gate"], parameters)[:, head.head]
