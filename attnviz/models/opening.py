"""Opens a model, by name or in memory, as a checkpoint on a device."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnviz.arguments import as_found, one_of
from attnviz.errors import ArchitectureError, DeviceError, UsageError
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.offloading import running_device
from attnviz.models.sources import Source, find_checkpoint, with_tokenizer

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
_DEVICE = re.compile(r"cpu|mps|cuda(:(0|[1-9][0-9]{0,3}))?")

# accelerate's names for ways to spread a model over all devices, the CPU and the disk.
DEVICE_MAPS = ("auto", "balanced", "sequential")

# A built-in name, a folder, a hub id, a Source found before, a Checkpoint loaded before, or a transformers model.
Model = str | Path | Source | Checkpoint | nn.Module


def open_checkpoint(
    model: Model | None,
    tokenizer: Any = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    encoder_decoders: bool = True,
    sound: bool | None = False,
    device_map: str | None = None,
    adapter: str | Path | None = None,
    attention: str | None = None,
    several_devices: bool = False,
) -> tuple[Checkpoint, Source | None]:
    """The checkpoint of a model, and the source of its weights; None for a model in memory, which runs as it is.

    Options are those of :class:`attnviz.options.ModelOptions`; without a model it is the adapter's, else minilm.
    ``encoder_decoders`` and ``several_devices`` are whether the caller supports such models, ``sound`` is whether it
    has a sound for the model, not a text; None for neither.

    Raises:
        AttnvizError: the checkpoint cannot be found, read or reproduced, or is of a kind that the caller does not take.
        UsageError: options for models by name with a model in memory, or a tokenizer of the other kind.
    """
    options = revision, device, dtype, device_map, adapter, attention
    if isinstance(model, Checkpoint | nn.Module) and any(option is not None for option in options):
        raise UsageError(
            "revision, device, dtype, device_map, adapter and attention are for models by name; a loaded model runs as "
            "it is: move, convert or merge it yourself (model.to(...), merge_and_unload(), set_attn_implementation())."
        )
    if tokenizer is not None:
        from transformers import PreTrainedTokenizerBase

        expected: Any = PreTrainedTokenizerBase if isinstance(model, nn.Module) else str | Path
        if isinstance(model, Checkpoint) or not isinstance(tokenizer, expected):
            raise UsageError(
                "expected tokenizer as transformers' object with a model in memory, as a name with a model by name, "
                f"found {type(tokenizer).__name__}."
            )
    source = None
    if isinstance(model, nn.Module):
        checkpoint = from_loaded(model, tokenizer)
    elif isinstance(model, Checkpoint):
        checkpoint = replace(model, encoder_only=False) if model.encoder_only else model
    else:
        source = model if isinstance(model, Source) and adapter is None else named_source(model, revision, adapter)
        source = with_tokenizer(source, tokenizer)
        spread = resolve_device_map(device_map, device)
        if spread and source.adapter:
            raise UsageError(
                "an adapter is merged into weights that are in memory; expected one device (--device) instead of "
                "--device-map (device_map=...)."
            )
        torch_device = resolve_device(_name("device", device, torch.device, "auto"))
        number_format = resolve_dtype(_name("dtype", dtype, torch.dtype, "float32"), torch_device)
        checkpoint = load_checkpoint(source, torch_device, number_format, spread, known_attention(attention))
    if checkpoint.weight_devices and not several_devices:
        devices = dict.fromkeys(str(running_device(layer.block)) for layer in checkpoint.modules)
        if len(devices) > 1:
            raise DeviceError(
                f"the layers of this model run on {', '.join(devices)}, and this command adds up what they give; "
                "expected one device (--device). heads takes several."
            )
    if sound not in (None, checkpoint.architecture.reads_sound):
        reads = "text, not sound" if sound else "sound, which heads --audio FILE (audio=...) alone gives it"
        raise ArchitectureError(f"{checkpoint.architecture.name!r} reads {reads}.")
    if checkpoint.stacks and not encoder_decoders:
        raise ArchitectureError(
            f"{checkpoint.architecture.name!r} is an encoder-decoder, which this command does not take; heads, "
            "compare, outputs and ablate measure its encoder, decoder and cross-attention, rollout and profile its "
            "encoder."
        )
    return checkpoint, source


def known_attention(name: str | None) -> str | None:
    """The name of an implementation of attention, or None; UsageError where transformers has none of this name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = ["eager", *(function for function in ALL_ATTENTION_FUNCTIONS if "|" not in function)]
    if name is not None and name not in known:
        expected = one_of(name, known, "ALL_ATTENTION_FUNCTIONS of transformers.modeling_utils lists them")
        raise UsageError(f"--attention (attention=...) is {name!r}: {expected}")
    return name


def encoder_note(checkpoint: Checkpoint) -> str:
    """A sentence that the encoder alone of an encoder-decoder is measured, or ''."""
    if not checkpoint.encoder_only:
        return ""
    return (
        f"{checkpoint.architecture.name} is an encoder-decoder; this command measures its encoder alone. Its decoder "
        "and its cross-attention are in heads, compare, outputs and ablate."
    )


def resolve_device(name: str) -> torch.device:
    """The torch device for ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; for ``auto`` the first there is: cuda, mps, cpu.

    UsageError for another name, DeviceError where this machine, or this build of torch, lacks the device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if not _DEVICE.fullmatch(name):
        raise UsageError(f"unknown device {name!r}: expected one of auto, cpu, cuda, cuda:N, mps.")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            there = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA GPU, or this build of torch finds none"
            raise DeviceError(f"the device {name!r} was asked for, but this machine has {there}; see --device cpu.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("the device 'mps' was asked for, but torch finds no Apple GPU here; use --device cpu.")
    return torch.device(name)


def resolve_device_map(device_map: object, device: object = None) -> str | None:
    """One of :data:`DEVICE_MAPS`, or None; UsageError for others or beside a device, DeviceError without accelerate."""
    if device_map is None:
        return None
    if not isinstance(device_map, str) or device_map not in DEVICE_MAPS:
        expected = ", ".join(DEVICE_MAPS)
        raise UsageError(f"--device-map (device_map=...) is {as_found(device_map)}; expected one of {expected}.")
    if device not in (None, "auto"):
        raise UsageError("--device (device=...) and --device-map (device_map=...) were given; expected one of them.")
    if importlib.util.find_spec("accelerate") is None:
        raise DeviceError(
            "--device-map (device_map=...) needs the package accelerate, which is not installed; "
            "type: pip install 'attnviz[large]'"
        )
    return device_map


def resolve_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The torch dtype of a name; None for ``auto``: the checkpoint's own.

    UsageError for an unknown name, DeviceError where the device cannot compute in it.
    """
    if name == "auto":
        return None
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}: expected one of {', '.join(DTYPES)}, auto.")
    if device.type == "mps" and name == "float64":
        raise DeviceError("the device 'mps' cannot compute in float64; use --device cpu or --dtype float32.")
    return DTYPES[name]


def named_source(model: object, revision: object, adapter: str | Path | None = None) -> Source:
    """The source of a model by name, or that of an adapter; errors as for :func:`find_checkpoint`."""
    if not isinstance(model, str | Path | None):
        raise UsageError(
            "expected a model as a built-in name, a folder, a hub id or a transformers model, "
            f"found {type(model).__name__}."
        )
    if revision is not None and not isinstance(revision, str):
        raise UsageError(f"expected the revision as a string, found {as_found(revision)}.")
    return find_checkpoint(None if model is None else str(model), revision, adapter=adapter)


def _name(what: str, value: object, torch_kind: type, default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str | torch_kind):
        raise UsageError(f"expected the {what} as a string such as {default!r}, found {as_found(value)}.")
    return str(value).removeprefix("torch.")
