"""Reads a config.json and builds its empty model.

Numbers that would take too much memory or time are refused first.
"""

import importlib.util
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from attnviz.errors import CheckpointError
from attnviz.models.files import read_json
from attnviz.models.libraries import calling_transformers, first_line

# Settings that must be at least 1, and their names in messages.
SIZES = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "a width",
    "vocab_size": "a vocabulary",
    "max_position_embeddings": "positions",
}

# Words in the names of settings from which transformers builds lists or modules of that length.
_COUNTED = ("layer", "label", "head", "expert", "depth", "block", "stage")

_LARGEST_COUNT = 1_000_000

# Numbers by which the config's model may exceed the weights' files; loading then names the missing weights.
_SPARE_NUMBERS = 10_000_000

_MOST_MODULES = 50_000  # limit of an empty model, some seconds to build; 2,000 layers of BERT have as many

_OTHER_WEIGHTS = {
    "transformers_weights": "would load other weights than those of the checkpoint, which are hashed",
    "fusion_config": "would exchange modules of the model",
}

# Transformers' configs that dequantise, by ``quant_method``.
_DEQUANTISING = {"compressed-tensors": "CompressedTensorsConfig", "fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config"}


def read_config(folder: Path) -> Any:
    """The transformers config of a folder, without the implementation of attention; only config.json is read.

    CheckpointError where transformers does not know such a config, or a number in it is too large.
    """
    from transformers import AutoConfig

    path = folder / "config.json"
    content = read_json(path)
    _refuse_counts(content, path)
    if not isinstance(content.get("architectures"), list | None):
        raise CheckpointError(
            f"{path} has architectures={content['architectures']!r}; expected a list of names of classes. Mend "
            "config.json."
        )
    with calling_transformers(f"transformers cannot read {path}"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config._attn_implementation = None  # the file may name a kernel to be fetched and run
    return config


def of_first_layer(config: Any) -> Any:
    """The config itself; where settings differ by layer (Gemma 4), that of its first layer."""
    return config.per_layer_config[0] if getattr(config, "is_heterogeneous", False) else config


def refuse_other_weights(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a setting, or an adapter beside it, by which the model would have other weights."""
    settings = content.get("quantization_config")
    method = str(settings.get("quant_method")) if isinstance(settings, dict) else str(settings or "")
    if method == "bitsandbytes" and importlib.util.find_spec(method) is None:
        raise CheckpointError(f"{folder} is quantised by bitsandbytes; type: pip install bitsandbytes accelerate")
    if method not in ("", "bitsandbytes"):
        how = "with the lines in the guide, troubleshooting.md"
        if (config := _DEQUANTISING.get(method)) is not None:
            how = (
                f"AutoModelForCausalLM.from_pretrained(FOLDER, quantization_config={config}(dequantize=True))"
                ".save_pretrained(NEW, save_original_format=False), and save the tokenizer, too"
            )
        raise CheckpointError(f"{folder} has quantised weights ({method}), not run; dequantise them: {how}.")
    for key, what in _OTHER_WEIGHTS.items():
        if content.get(key) is not None:
            raise CheckpointError(
                f"{folder / 'config.json'} has {key}, which {what}; save the whole model anew, without it, "
                "as safetensors in bfloat16 (save_pretrained)."
            )
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} has an adapter (adapter_config.json), whose weights come on top of the model's; "
            "name it (--adapter, adapter=...) and move it to a folder of its own, or remove it."
        )


def empty_model(config: Any, model_class: Any = None, most_modules: int = _MOST_MODULES) -> nn.Module:
    """The model of a config on torch's meta device, without memory for weights: the bare model, or of a given class.

    CheckpointError where transformers cannot build it, or it has more than ``most_modules``.
    """
    from transformers import AutoModel

    most = min(most_modules, _MOST_MODULES)
    built = 0

    def count(*_: Any) -> None:
        nonlocal built
        built += 1
        if built > most:
            raise CheckpointError(f"its model has more than {most:,} modules")

    with calling_transformers("transformers cannot build its model"), torch.device("meta"), ExitStack() as stack:
        stack.callback(register_module_module_registration_hook(count).remove)
        if model_class is None:
            model: nn.Module = AutoModel.from_config(config, attn_implementation="eager", trust_remote_code=False)
        else:
            model = model_class._from_config(deepcopy(config), attn_implementation="eager")
    return model


def check_sizes(folder: Path, config: Any, model_class: Any, n_bytes: int) -> nn.Module:
    """The empty model of a config; CheckpointError for one that is far larger than its weights' files."""
    try:
        most_modules = 2000 + n_bytes // 50  # more than a file of this size could have weights for
        empty = empty_model(config, model_class, most_modules)
        expected = sum(parameter.numel() for parameter in empty.parameters())
        if expected > _SPARE_NUMBERS + n_bytes:  # a number takes a byte at least
            raise CheckpointError(f"its model has {expected:,} numbers, its weights have {n_bytes:,} bytes")
    except CheckpointError as error:
        settings = ", ".join(f"{name}={getattr(config, name)}" for name in SIZES if hasattr(config, name))
        misfit = f"{folder / 'config.json'} does not fit its weights ({settings})"
        raise CheckpointError(f"{misfit}: {first_line(error)}.") from error
    return empty


def _refuse_counts(content: Any, path: Path) -> None:
    """Refuse numbers of layers, labels, … for which transformers would fill the memory with lists."""
    for key, value in content.items():
        if isinstance(value, dict):
            _refuse_counts(value, path)
        elif isinstance(value, int) and value > _LARGEST_COUNT and any(word in key for word in _COUNTED):
            raise CheckpointError(f"{path} has {key}={value}; expected at most {_LARGEST_COUNT:,}. Mend config.json.")
