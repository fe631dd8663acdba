"""A model as a user names it, or has it in memory, to a checkpoint that is ready to run."""

from pathlib import Path
from typing import Any

from torch import nn

from attnviz.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.devices import resolve_device, resolve_dtype
from attnviz.errors import UsageError
from attnviz.sources import Source, find_checkpoint

__all__ = ["Model", "open_checkpoint"]

Model = str | Path | Source | Checkpoint | nn.Module
"""A built-in name, a folder, a hub id, a Source found before, a Checkpoint loaded before, or a transformers model."""


def open_checkpoint(
    model: Model,
    tokenizer: Any = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    language_head: bool = False,
) -> tuple[Checkpoint, Source | None]:
    """The model, and where its weights lie; a model in memory may have others than any file.

    Args:
        model: see :data:`Model`. One in memory runs where and as it is.
        tokenizer: of a model in memory; a fast one.
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
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
    source = model if isinstance(model, Source) else find_checkpoint(str(model), revision)
    place = resolve_device("auto" if device is None else device)
    number_format = resolve_dtype("float32" if dtype is None else dtype, place)
    return load_checkpoint(source, place, number_format, language_head), source
