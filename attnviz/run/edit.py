"""One door for what replaces a part of a running model: edits of sites, in passes that are resumed where they begin.

A pass is run once and kept; with edits it is resumed at the first edited block, on stacked copies of its batch, one for
each variant. All below keeps its results, and everything after an edit is the model's own. At ``z``, where the heads'
weighted values stand side by side just before W_O, b_O belongs to no head and stays.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.contributions import check_total, without_gradients
from attnviz.run.record import in_blocks
from attnviz.run.sites import SiteKey, at_named, at_site, recording, sites_of

_AT_ONCE = 2048  # least tokens of an edited pass, which runs several copies of a small batch
Variant = TypeVar("Variant")
BEFORE_Z = ("resid_pre", "q", "k", "v")  # sites whose edits need the block's attention to run anew


@dataclass(frozen=True)
class Uniform:
    """What heads give where each query attends to all keys that it may see alike (Kovaleva et al. 2019)."""

    checkpoint: Checkpoint
    inputs: dict[str, Tensor]  # of one copy of the batch, with its masks, [rows, n]: 1 for a token and 0 for padding

    def values(self, layer: int, x: Tensor) -> Tensor:
        """Weighted values of every head, [copies * rows, n or 1, n_heads, d_head], from the input of W_V."""
        checkpoint = self.checkpoint
        parameters = checkpoint.parameters(layer)
        in_decoder = checkpoint.stacks and layer in checkpoint.stacks[1].layers
        mask = self.inputs["decoder_attention_mask" if in_decoder else "attention_mask"]
        allowed = attention.allowed_positions(mask, parameters.causal, parameters.window)
        if checkpoint.stacks and layer >= checkpoint.stacks[2].first:
            allowed = allowed[:, :, :1]  # every query of the target sees the whole source
        pattern = attention.uniform_pattern(allowed).to(x)  # [rows, 1, n, n]
        value = attention.values(x, parameters)
        copies = value.reshape(-1, len(mask), *value.shape[1:])
        return attention.gated(torch.matmul(pattern, copies).flatten(0, 1), x, parameters).transpose(1, 2)


# What comes instead: values that broadcast to those of the site, in its shape; a function of these; or a uniform
# pattern's, at z.
Instead = Tensor | Callable[[Tensor], Tensor] | Uniform


@dataclass(frozen=True, eq=False)
class Edit:
    """At a site of a layer (:data:`attnviz.run.sites.SITES`), what comes instead of the model's own values.

    It takes the place of some heads, and at some positions alone, [rows, n]; None for all.
    """

    layer: int
    instead: Instead
    site: str = "z"
    heads: Sequence[int] | None = None
    at: Tensor | None = None

    def edited(self, value: Tensor, instead: Tensor) -> Tensor:
        """The value of the site in one copy of the batch, [rows, n, ..]; UsageError for one of another shape."""
        try:
            new = instead.to(value).expand_as(value)
        except RuntimeError as error:
            raise UsageError(
                f"an edit of {self.site} in layer {self.layer}: expected values that broadcast to {list(value.shape)}, "
                f"found {list(instead.shape)}; those of another text must be of as many tokens."
            ) from error
        where = torch.ones((), dtype=torch.bool, device=value.device)
        if self.heads is not None:
            where = torch.zeros(value.shape[-2], 1, dtype=torch.bool, device=value.device)
            where[list(self.heads)] = True
        if self.at is not None:
            where = where & self.at.to(value.device).reshape(*self.at.shape, *[1] * (value.ndim - 2))
        return torch.where(where, new, value)


@dataclass(frozen=True)
class Removal:
    """What takes the place of removed heads' weighted values, by one of :data:`attnviz.options.Replacement`.

    ``zero``: nothing, so that the layer gives what the other heads and b_O give (Michel et al. 2019). ``mean``: the
    head's mean weighted value, the same for every token, of ``means``. ``uniform``: see :class:`Uniform`.
    """

    checkpoint: Checkpoint
    method: str
    means: Sequence[Tensor] | None = None  # a layer each, [n_heads, d_head]

    def edits(self, heads: Collection[HeadId], inputs: dict[str, Tensor]) -> list[Edit]:
        """Edits that remove heads from a pass over the model's inputs."""
        edits = []
        for layer, of_layer in groupby(sorted(heads), key=lambda head: head.layer):
            instead: Instead = torch.zeros(()) if self.means is None else self.means[layer]
            if self.method == "uniform":
                instead = Uniform(self.checkpoint, inputs)
            edits.append(Edit(layer, instead, heads=[head.head for head in of_layer]))
        return edits


def gated(layer: int, gate: Tensor) -> Edit:
    """The heads of a layer times a gate, [rows, n_heads], which gradients can be taken by."""
    return Edit(layer, lambda z: z * gate[:, None, :, None])


@contextmanager
def edited(checkpoint: Checkpoint, variants: Sequence[Sequence[Edit]]) -> Iterator[None]:
    """Inside the block, edit each copy of a batch by one variant: the model must run on the copies stacked, in order.

    VerificationError: an edited layer did not run exactly once, so the output is not that of the edited model.
    """
    here = defaultdict[SiteKey, list[tuple[int, Edit]]](list)
    for copy, edits in enumerate(variants):
        for edit in edits:
            here[edit.layer, edit.site].append((copy, edit))
    runs = dict.fromkeys(here, 0)
    from_source = {edit.layer for edits in variants for edit in edits if isinstance(edit.instead, Uniform)}

    def visit(key: SiteKey, value: Tensor) -> Tensor:
        runs[key] += 1
        copies = list(value.reshape(len(variants), -1, *value.shape[1:]))
        uniform = list[Tensor]()
        for copy, edit in here[key]:
            if isinstance(edit.instead, Uniform):
                if not uniform:
                    of_all = edit.instead.values(edit.layer, sources[edit.layer, "source"])
                    uniform = list(of_all.reshape(len(variants), -1, *of_all.shape[1:]))
                instead = uniform[copy]
            else:
                instead = edit.instead(copies[copy]) if callable(edit.instead) else edit.instead
            copies[copy] = edit.edited(copies[copy], instead)
        return torch.cat(copies)

    with recording(sites_of(checkpoint, ("source",), from_source)) as sources, at_named(checkpoint, runs, visit):
        yield
    wrong = {layer: count for (layer, _), count in runs.items() if count != 1}
    if wrong:
        raise VerificationError(
            f"expected every edited layer to run once, found {wrong} (runs by layer); the edited model cannot be "
            "measured."
        )


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments of a module


@dataclass(frozen=True)
class KeptPass:
    """An unchanged pass of the model, with the inputs of its layers; all is called inside :func:`running`."""

    checkpoint: Checkpoint
    calls: dict[int, _Arguments]  # by layer; the first argument is the residual stream
    values: dict[SiteKey, Tensor]  # by layer and name of a site: z of all layers, and what was requested
    final: Tensor  # the last hidden state, after GPT-2's final norm, [rows, n, d_model]
    inputs: dict[str, Tensor]  # the model's inputs
    encoded: Tensor | None = None  # of an encoder-decoder its encoder's output, [rows, n, d_model]

    def stream(self, layer: int | None) -> Tensor:
        """The residual stream that a layer reads, [rows, n, d_model]; for None that after the last layer."""
        if layer is None:
            last = self.checkpoint.every_layer[-1]
            return self.run_block(last, self.stream(last))
        stream: Tensor = self.calls[layer][0][0]
        return stream

    def run_block(self, layer: int, hidden: Tensor, copies: int = 1) -> Tensor:
        """Run one layer, with its mask and other arguments, on copies of the batch: [copies * rows, n, d_model]."""
        args, kwargs = self.calls[layer]
        rows = len(args[0])

        def repeated(value: Any) -> Any:
            if copies == 1 or rows == 1 or not isinstance(value, Tensor) or value.shape[:1] != (rows,):
                return value  # one row is broadcast
            return _repeated(value, copies)

        block: Any = self.checkpoint.modules[layer].block
        result = block(hidden, *map(repeated, args[1:]), **{name: repeated(value) for name, value in kwargs.items()})
        after: Tensor = result[0] if isinstance(result, tuple) else result
        return after

    def resume(self, layer: int, copies: int = 1, *, attending: bool = False) -> Tensor:
        """Run the model from W_O of a layer on, on stacked copies of the batch: final states, [copies * rows, n, ..].

        All before W_O is taken from this pass, or, where it is ``attending``, all before the layer. Hooks can change
        what follows. A model that is not resumable runs again from the beginning, a decoder from its encoder's output
        on.
        """
        checkpoint = self.checkpoint
        if not checkpoint.architecture.resumable:
            inputs: dict[str, Any] = {name: _repeated(value, copies) for name, value in self.inputs.items()}
            if self.encoded is not None and layer >= checkpoint.stacks[1].first:  # nothing in the encoder changes
                del inputs["input_ids"]
                inputs["encoder_outputs"] = (_repeated(self.encoded, copies),)
            return run_model(checkpoint, inputs)
        hidden = _repeated(self.stream(layer), copies)
        with ExitStack() as known:
            if checkpoint.modules[layer].attends and not attending:
                values = _repeated(self.values[layer, "z"].flatten(-2), copies)
                known.enter_context(attention_known(checkpoint, layer, values))
            hidden = self.run_block(layer, hidden, copies)
        every = checkpoint.every_layer
        for later in every[every.index(layer) + 1 :]:
            hidden = self.run_block(later, hidden, copies)
        return checkpoint.architecture.final_states(checkpoint.model, hidden)

    def check_unchanged(self, final: Tensor, what: str) -> None:
        """Raise VerificationError unless final states are those of this pass, where ``what`` was done."""
        mask = self.inputs.get("attention_mask")
        tokens = torch.ones_like(final[..., 0]).bool() if mask is None else mask.bool()
        says = f"{what} does not give the model's own final states"
        check_total(self.checkpoint, upcast(final[tokens]), upcast(self.final[tokens]), says, "at number {}".format)


@contextmanager
def running(checkpoint: Checkpoint) -> Iterator[None]:
    """Eager attention in blocks of rows, no dropout, no gradients and no autocast inside the block.

    Not ``torch.inference_mode``, whose tensors no gradient can be taken through later on.
    """
    with in_blocks(checkpoint), without_gradients(checkpoint.device):
        yield


def run_model(checkpoint: Checkpoint, inputs: dict[str, Any]) -> Tensor:
    """Run the model: its last hidden states, [rows, n, d_model], of an encoder-decoder those of its decoder."""
    if not checkpoint.stacks:
        final: Tensor = checkpoint.model(**inputs, use_cache=False)[0]  # a tuple, or what can be read as one
        return final
    decoder: Any = checkpoint.model.decoder  # T5's whole model gives logits
    decoded: list[Tensor] = []
    with at_site(decoder, "output", decoded.append):
        checkpoint.model(**inputs, use_cache=False)
    return decoded[0]


def run_and_keep(checkpoint: Checkpoint, inputs: dict[str, Tensor], sites: Collection[SiteKey] = ()) -> KeptPass:
    """Run the model once inside :func:`running`, and keep every layer's input, and the values of sites."""
    values, encoded = dict[SiteKey, Tensor](), list[Tensor]()
    wanted = {*((layer, "z") for layer in checkpoint.layers), *sites}
    with ExitStack() as stack:
        calls = stack.enter_context(recording(sites_of(checkpoint, ["arguments"])))
        stack.enter_context(at_named(checkpoint, wanted, values.__setitem__))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(at_site(encoder, "output", encoded.append))
        final = run_model(checkpoint, inputs)
    return KeptPass(
        checkpoint=replace(checkpoint, looked_up=checkpoint.modules),
        calls={layer: arguments for (layer, _), arguments in calls.items()},
        values=values,
        final=final,
        inputs=inputs,
        encoded=encoded[0] if encoded else None,
    )


def edited_passes(kept: KeptPass, variants: Sequence[Sequence[Edit]]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield numbers of variants, and the final states of a kept batch with each, [n_variants * rows, n, d_model].

    Variants that begin at one layer share passes.
    """
    order = {layer: number for number, layer in enumerate(kept.checkpoint.every_layer)}
    starts = defaultdict[tuple[int, bool], list[int]](list)
    for number, edits in enumerate(variants):
        first = min((edit.layer for edit in edits), key=order.__getitem__)
        before = any(edit.layer == first and edit.site in BEFORE_Z for edit in edits)
        starts[first, before].append(number)
    for (layer, anew), numbers in starts.items():
        for some in split_variants(numbers, kept):
            with edited(kept.checkpoint, [variants[number] for number in some]):
                final = kept.resume(layer, len(some), attending=anew)
            yield some, final


def split_variants(variants: list[Variant], kept: KeptPass) -> Iterator[list[Variant]]:
    """Parts of some variants of a pass that are run together, each on a copy of the batch."""
    step = max(1, _AT_ONCE // kept.final[..., 0].numel())
    for first in range(0, len(variants), step):
        yield variants[first : first + step]


def _repeated(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))


@contextmanager
def attention_known(checkpoint: Checkpoint, layer: int, values: Tensor) -> Iterator[None]:
    """Inside the block, a layer's attention uses these weighted values instead of computing them for every copy."""
    modules = checkpoint.modules[layer]

    def attended(*given: Tensor, **_: Any) -> tuple[Tensor, None]:
        if checkpoint.architecture.attention_adds_residual:
            return given[1] + modules.o_proj(values), None
        return modules.o_proj(values) if modules.output is modules.attention else values, None

    with answering(modules.attention, attended):
        yield


@contextmanager
def answering(module: Any, answer: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, a module gives what ``answer`` does of its arguments."""
    before = vars(module).get("forward")
    module.forward = answer
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
