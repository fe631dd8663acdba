"""A model as a user names it, or has it in memory, to a checkpoint that is ready to run."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.model.devices import resolve_device, resolve_dtype
from attnviz.model.sources import Source, find_checkpoint

__all__ = ["Model", "open_checkpoint"]

Model = str | Path | Source | Checkpoint | nn.Module
"""A built-in name, a folder, a hub id, a Source found before, a Checkpoint loaded before, or a transformers model."""


def open_checkpoint(
    model: Model,
    tokenizer: Any = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    language_head: bool = False,
) -> tuple[Checkpoint, Source | None]:
    """The model, and where its weights lie; a model in memory may have others than any file.

    Args:
        model: see :data:`Model`. One in memory runs where and as it is.
        tokenizer: of a model in memory; a fast one.
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``, or a torch.device.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``, or torch's own.
        language_head: also load the head that gives logits, where the checkpoint has one.

    Raises:
        AttnvizError: the checkpoint cannot be found, read or reproduced.
        UsageError: options for models by name with a model in memory, or a tokenizer with a name.
    """
    if isinstance(model, Checkpoint | nn.Module):
        if any(option is not None for option in (revision, device, dtype)):
            raise UsageError(
                "revision, device and dtype are for models by name; a loaded model runs as it is: "
                "move or convert it yourself, model.to(...)."
            )
        if isinstance(model, nn.Module):
            return from_loaded(model, tokenizer), None
    if tokenizer is not None:
        raise UsageError("tokenizer is for a loaded model; a model by name brings its own.")
    if isinstance(model, Checkpoint):
        return model, None
    source = model if isinstance(model, Source) else _found(model, revision)
    place = resolve_device(_name("device", device, torch.device, "auto"))
    number_format = resolve_dtype(_name("dtype", dtype, torch.dtype, "float32"), place)
    return load_checkpoint(source, place, number_format, language_head), source


def _found(model: object, revision: object) -> Source:
    """The checkpoint of a model by name."""
    if not isinstance(model, str | Path):
        raise UsageError(
            "expected a model as a built-in name, a folder, a hub id or a transformers model, "
            f"found {type(model).__name__}."
        )
    if revision is not None and not isinstance(revision, str):
        raise UsageError(f"expected the revision as a string, found {revision!r}.")
    return find_checkpoint(str(model), revision)


def _name(what: str, given: object, torch_kind: type, default: str) -> str:
    """The name of a device or number format that may be given as torch's own."""
    if given is None:
        return default
    if not isinstance(given, str | torch_kind):
        raise UsageError(f"expected the {what} as a string such as {default!r}, found {given!r}.")
    return str(given).removeprefix("torch.")
