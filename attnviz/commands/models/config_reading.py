"""From a config.json to a configuration: sizes under any architecture's names, parameters counted without weights."""

import re
from collections.abc import Callable
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from attnviz.commands.models.config_files import ConfigFile
from attnviz.commands.models.configurations import Configuration, width_of_heads
from attnviz.commands.models.parameter_counts import Sizes, attention_parameters, bare_parameters
from attnviz.errors import ArchitectureError, CheckpointError
from attnviz.model.sources import read_json, weight_files

if TYPE_CHECKING:
    from torch import nn

    from attnviz.model.architectures import Architecture

__all__ = ["built_in_configuration", "read_configuration"]

_NAMES = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "n_embed"),
    "d_head": ("head_dim", "d_kv", "kv_channels"),
    "positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
    "vocabulary": ("vocab_size",),
}
"""What the architectures call each size: transformers' own name first, where it maps the others to it."""

_ONE_WIDTH = ("bert", "gpt2")
"""Architectures whose heads are always d_model / n_heads wide, whatever else a config says."""

_MOST_LAYERS = 2_000
"""Of a model that is built for its parameters: a second or two a thousand, and no real one has as many."""

_LONGEST = 160
"""Characters of a reason that is transformers' own."""

_SHORT = re.compile(r"\bhas (\w+=[^,;]+)|\b(architecture '[^']*')")


def built_in_configuration(file: ConfigFile) -> Configuration:
    """A built-in model from its config.json alone: torch is not imported, so that a list of models is quick."""
    raw = read_json(file.path)
    model = _with_sizes(Configuration(file.name, file.kind, None, raw["model_type"]), raw.get)
    assert model.n_layers is not None
    assert model.d_model is not None
    assert model.vocabulary is not None
    assert model.positions is not None
    d_ff = raw.get("intermediate_size") or raw.get("n_inner") or 4 * model.d_model
    segments = raw.get("type_vocab_size", 0)
    sizes = Sizes(model.n_layers, model.d_model, d_ff, model.vocabulary, model.positions, segments)
    parameters = bare_parameters(sizes, pooler=model.architecture == "bert")
    return _with_counts(replace(model, reproduced=True), parameters, attention_parameters(sizes))


def read_configuration(file: ConfigFile) -> Configuration:
    """A model of any architecture from its config.json; no weights are read and no code of the checkpoint is run.

    Raises:
        CheckpointError: the file cannot be read, or is not a transformers model's.
    """
    raw = read_json(file.path)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            f"{file.path} has model_type {model_type!r}; expected the name of an architecture, such as 'bert', as "
            "transformers' save_pretrained writes it."
        )
    model = Configuration(file.name, file.kind, file.revision, model_type)
    from transformers import CONFIG_MAPPING, __version__

    if model_type not in CONFIG_MAPPING:
        unknown = f"transformers {__version__} does not know it: sizes as its config names them, parameters not counted"
        return _with_sizes(replace(model, reason=f"architecture {model_type!r}", notes=(unknown,)), raw.get)
    return _of_config(model, file)


def _of_config(model: Configuration, file: ConfigFile) -> Configuration:
    """The configuration of an architecture that transformers knows."""
    from attnviz.model.checkpoint import read_config

    config = read_config(file.folder)
    inner, notes = config, []
    if not isinstance(getattr(config, "hidden_size", None), int):
        inner = config.get_text_config()
        if inner is not config:
            notes.append(f"sizes are those of its part {inner.model_type!r}; parameters are counted for the whole")
    elif getattr(config, "is_encoder_decoder", False):
        notes.append("encoder and decoder: sizes are the encoder's; parameters are counted for both")
    model = _with_sizes(replace(model, notes=tuple(notes)), lambda name: getattr(inner, name, None))
    return _counted(model, config, file)


def _counted(model: Configuration, config: Any, file: ConfigFile) -> Configuration:
    """The configuration with its parameters, and with the verdict on whether it is reproduced."""
    from attnviz.model.checkpoint import empty_model

    architecture, reason = _reproduced(model, config)
    if (model.n_layers or 0) > _MOST_LAYERS:
        return replace(model, reason=reason or f"more than {_MOST_LAYERS} layers, so that parameters are not counted")
    try:
        empty = empty_model(config)
    except CheckpointError as error:
        if architecture is not None:
            return replace(model, reason=shorten(str(error), _LONGEST, placeholder=" …"))
        note = shorten(f"parameters not counted: {error}", _LONGEST, placeholder=" …")
        return replace(model, reason=reason, notes=(*model.notes, note))
    total = sum(parameter.numel() for parameter in empty.parameters())  # each once, if shared
    if architecture is None:
        return _with_counts(replace(model, reason=reason), total, None)
    notes = (*model.notes, *_missing_weights(file))
    return _with_counts(replace(model, reproduced=True, notes=notes), total, _in_attention(architecture, empty))


def _reproduced(model: Configuration, config: Any) -> "tuple[Architecture | None, str | None]":
    """The architecture that reproduces the config, or why none does, in short."""
    import torch

    from attnviz.model.architectures import ARCHITECTURES, architecture_of

    unknown = [name for name in ("n_layers", "n_heads", "d_model") if getattr(model, name) is None]
    if model.architecture in ARCHITECTURES and unknown:
        return None, f"its config has no {' and no '.join(unknown)} above 0"
    try:
        return architecture_of(config, torch.float32), None
    except ArchitectureError as error:
        short = _SHORT.search(str(error))
        return None, str(error) if short is None else next(filter(None, short.groups()))


def _in_attention(architecture: "Architecture", model: "nn.Module") -> int:
    """Parameters of the modules that hold W_Q, W_K, W_V and W_O, each once."""
    parts = [part for layer in architecture.modules(model) for part in (layer.pattern, layer.concatenated)]
    return sum({id(parameter): parameter.numel() for part in parts for parameter in part.parameters()}.values())


def _missing_weights(file: ConfigFile) -> list[str]:
    """Whether there is anything to load, which the config does not say."""
    try:
        weight_files(file.folder)
    except CheckpointError:
        where = "in the cache: attnviz heads will fetch them" if file.kind == "hub" else "in the folder"
        return [f"its weights are not {where}"]
    return []


def _with_sizes(model: Configuration, get: Callable[[str], Any]) -> Configuration:
    """The configuration with its sizes, by whatever names they have; None for what is no number."""
    sizes = {size: next(filter(None, map(_number, map(get, names))), None) for size, names in _NAMES.items()}
    stated = None if model.architecture in _ONE_WIDTH else sizes["d_head"]
    sizes["d_head"], odd = width_of_heads(sizes["d_model"], sizes["n_heads"], stated)
    origins = {size: "config" for size, number in sizes.items() if number is not None}
    if stated is None and sizes["d_head"] is not None:
        origins["d_head"] = "derived"
    return replace(model, **sizes, origins=origins, notes=(*model.notes, *([odd] if odd else [])))  # type: ignore[arg-type]


def _with_counts(model: Configuration, parameters: int, in_attention: int | None) -> Configuration:
    counts = {"parameters": parameters, "attention_parameters": in_attention}
    counted = {name: "counted" for name, count in counts.items() if count is not None}
    return replace(model, origins={**model.origins, **counted}, **counts)  # type: ignore[arg-type]


def _number(value: Any) -> int | None:
    """A positive whole number; some configs have lists, a number a layer."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
