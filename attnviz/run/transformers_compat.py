"""What is reached of transformers beyond its documented surface: how a model's attention is replaced during a pass.

A function of ours takes the place of the model's attention, and calls it. Which names of transformers that takes is
listed in tests/project/test_transformers.py, for the oldest and the newest version.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import ArchitectureError, VerificationError
from attnviz.memory import MOST_MASKS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.libraries import running_own_code

UPCAST = "_upcast_and_reordered_attn"  # the method by which GPT-2's attention may bypass the interface

# From the name of an implementation, or of the method that bypasses the interface, the attention module, the original
# function or method, and its arguments (those of a method without ``self``) to its results.
Attend = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass of one thread in which ``attend`` takes the place of a model's attention."""

    attend: Attend
    modules: frozenset[int]  # all but those of the encoder of a sound
    configs: frozenset[int]
    thread: int


_passes, _lock = list[_Pass](), Lock()


@contextmanager
def attention_replaced(checkpoint: Checkpoint, attend: Attend) -> Iterator[None]:
    """Have ``attend`` called in place of the model's attention in the passes of this thread, which run plainly.

    VerificationError: transformers does not know the implementation that the model is set to.
    """
    name, model = checkpoint.attention, checkpoint.model
    measured: Any = model.decoder if checkpoint.architecture.reads_sound else model
    modules = list(measured.modules())
    configs = {id(module.config): module.config for module in modules if getattr(module, "config", None)}
    methods = _bypassing(checkpoint) if name == "eager" else {}
    with ExitStack() as stack:
        stack.enter_context(running_plainly(checkpoint))
        if methods:
            for config in configs.values():  # some of these models do not take set_attn_implementation
                stack.callback(setattr, config, "_attn_implementation", getattr(config, "_attn_implementation", None))
                config._attn_implementation = "eager"
            for module, method in methods.items():
                earlier = vars(module).get(method)  # accelerate sets a forward of its own, too
                setattr(module, method, partial(attend, method, module, getattr(module, method)))
                stack.callback(*((delattr, module, method) if earlier is None else (setattr, module, method, earlier)))
        else:
            here = _Pass(attend, frozenset(map(id, modules)), frozenset(configs), get_ident())
            stack.enter_context(_interface_exchanged(here, name))
        yield


def _bypassing(checkpoint: Checkpoint) -> dict[Any, str]:
    """The attention modules that bypass transformers' interface, with the method by which they do.

    In newer versions GPT-J has no such method any more, and goes through the interface.
    """
    method, attending = checkpoint.architecture.bypassing, [layer.attention for layer in checkpoint.modules]
    if method:
        return {module: method for module in attending if hasattr(module, method)}
    return {module: UPCAST for module in attending if getattr(module, "reorder_and_upcast_attn", False)}


@contextmanager
def _interface_exchanged(here: _Pass, name: str) -> Iterator[None]:
    """Have transformers call the attention of this pass where its interface has one of this name.

    The name stays, since some models attend otherwise under another one. What is looked up is exchanged for as long as
    any pass runs, and in the threads of passes alone.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name != "eager" and name not in ALL_ATTENTION_FUNCTIONS:
        raise VerificationError(
            f"the model is set to the attention {name!r}, which transformers does not know; expected one that was "
            "registered: AttentionInterface.register(NAME, FUNCTION)."
        )
    instead = {AttentionInterface: _attention_by_name, AttentionMaskInterface: _mask_by_name}
    with _lock:
        if not _passes:
            for interface, by_name in instead.items():
                interface.__getitem__ = by_name
        _passes.append(here)
    try:
        yield
    finally:
        with _lock:
            _passes.remove(here)
            if not _passes:
                for interface in instead:
                    del interface.__getitem__


def _passes_here() -> list[_Pass]:
    return [running for running in reversed(_passes) if running.thread == get_ident()]


def _attention_by_name(interface: Any, name: str) -> Any:
    """Replaces the look-up in transformers' attention interface: in the thread of a pass, its attention is called."""
    from transformers import AttentionInterface

    try:
        original = super(AttentionInterface, interface).__getitem__(name)
    except KeyError:
        if name != "eager" or not _passes_here():
            raise
        original = _eager
    return partial(_attend, original, name) if _passes_here() else original


def _eager(module: Any, *given: Any, **more: Any) -> Any:
    """The eager attention of the file of a module's class, or of a base class, where none is registered."""
    for kind in type(module).__mro__:
        original = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if original is not None:
            return original(module, *given, **more)
    raise ArchitectureError(f"{type(module).__name__} has no eager attention of its own to call.")


def _attend(original: Callable[..., Any], name: str, module: Any, *given: Any, **more: Any) -> Any:
    """The attention of the pass that runs this module here; else of another model, which runs untouched."""
    for running in _passes_here():
        if id(module) in running.modules:
            return running.attend(name, module, partial(original, module), *given, **more)
    return original(module, *given, **more)


def _mask_by_name(interface: Any, name: str) -> Any:
    """Replaces the look-up in transformers' interface of masks: in the thread of a pass, eager ones may be lazy."""
    from transformers.masking_utils import AttentionMaskInterface

    original = super(AttentionMaskInterface, interface).__getitem__(name)
    return partial(_mask, original) if name == "eager" and _passes_here() else original


def _mask(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of a pass of this model here, a chunk of rows at a time; of another model, or a small one, as it is."""
    ours = any(id(kwargs.get("config")) in running.configs for running in _passes_here())
    n_bytes = 8 * kwargs.get("q_length", 0) * kwargs.get("kv_length", 0) * kwargs.get("batch_size", 1)
    if not ours or args or n_bytes <= MOST_MASKS:
        whole: Tensor | None = original(*args, **kwargs)
        return whole
    offset = int(kwargs.get("q_offset", 0))

    def rows(first: int, last: int) -> Any:
        return original(**{**kwargs, "q_offset": offset + first, "q_length": last - first})

    one = rows(0, 1)
    return None if one is None else _lazy(rows, one.shape[0], int(kwargs["q_length"]), one.shape[-1])


class LazyMask(Tensor):
    """A mask of which ``rows`` makes any of its rows; its own values are NaN, so that plain use shows."""

    rows: Callable[[int, int], Tensor]

    def _changed(self, change: Callable[[Tensor, int, int], Tensor], copies: int = 1) -> "LazyMask":
        """The mask with its rows changed when they are made."""
        return _lazy(
            lambda first, last: change(self.rows(first, last), first, last), copies * self.shape[0], *self.shape[2:]
        )

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same mask, whose rows are converted when they are made."""
        moved = super().to(*args, **kwargs)
        if moved is not self:
            moved.rows = lambda first, last: self.rows(first, last).to(*args, **kwargs)  # type: ignore[attr-defined]
        return moved

    def __getitem__(self, index: Any) -> Any:
        """As lazy where all of it is taken, as Gemma 4 does."""
        taken: Any = super().__getitem__(index)
        if taken.shape == self.shape and hasattr(self, "rows"):  # what is computed from a mask has none
            taken.rows = self.rows
        return taken

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """With more keys hidden, as DeepSeek V3.2's indexer does, lazy too."""
        if not hasattr(self, "rows"):
            return super().masked_fill(mask, value)
        return self._changed(lambda rows, first, last: rows.masked_fill(mask[..., first:last, :], value))

    def __and__(self, other: Any) -> Any:
        """Likewise, of a mask of booleans."""
        if not hasattr(self, "rows"):
            return super().__and__(other)
        return self._changed(lambda rows, first, last: rows & other[..., first:last, :])

    def repeat(self, *sizes: int) -> Tensor:  # type: ignore[override]
        """The mask of copies of the texts, lazy too."""
        if set(sizes[1:]) != {1}:
            raise ValueError(f"expected copies of texts alone (n, 1, 1, 1). Got {sizes}.")
        return self._changed(lambda rows, *_: rows.repeat(*sizes), copies=sizes[0])


def _lazy(rows: Callable[[int, int], Tensor], n_texts: int, n_queries: int, n_keys: int) -> LazyMask:
    """A lazy mask, [n_texts, 1, n_queries, n_keys]."""
    one = rows(0, 1)
    empty = torch.full((1, 1, 1, 1), torch.nan, dtype=one.dtype, device=one.device)
    mask = empty.expand(n_texts, 1, n_queries, n_keys).as_subclass(LazyMask)
    mask.rows = rows
    return mask


@contextmanager
def running_plainly(checkpoint: Checkpoint) -> Iterator[None]:
    """Set plain experts, outputs by name and eval mode, run no compiled code, and restore all at the end.

    CheckpointError: by the block, where the model's own code raises anything.
    """
    config = checkpoint.config
    experts, by_name = config._experts_implementation, config.return_dict
    roots = checkpoint.model if checkpoint.whole is None else checkpoint.whole, checkpoint.language_head
    training = [module for root in roots if root is not None for module in root.modules() if module.training]
    uncompiled = torch.compiler.set_stance("force_eager") if checkpoint.compiled else nullcontext()
    try:
        config.return_dict = True  # BART's own code fails on tuples
        config._experts_implementation = "eager"  # torch's grouped product takes neither float64 nor every width
        for module in training:
            module.training = False
        with uncompiled, running_own_code():
            yield
    finally:
        for module in training:
            module.training = True
        config._experts_implementation, config.return_dict = experts, by_name
