"""Configurations of models, from configs and papers, with counted parameters."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from attnviz.arguments import is_whole
from attnviz.commands.models.configurations import (
    ConfigFile,
    Configuration,
    built_in_configs,
    cached_configs,
    find_config,
    paper_configuration,
    paper_configurations,
    width_of_heads,
)
from attnviz.errors import ArchitectureError, CheckpointError, UsageError
from attnviz.models.smollm2 import check_cache
from attnviz.models.sources import BUILT_IN, as_folder, read_json, weight_files
from attnviz.options import checked

if TYPE_CHECKING:
    from attnviz.models.families.base import Architecture


_NAMES = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "n_embed"),
    "d_head": ("head_dim", "d_kv", "kv_channels"),
    "positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
    "vocabulary": ("vocab_size",),
}
"""Names of each size across architectures: transformers' standard name first, which it maps others to."""

_OF_DECODER = {
    "n_decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "n_decoder_heads": ("decoder_attention_heads", "num_heads"),
}
"""Names of the decoder's sizes; a name that both parts share stands for both."""

_LONGEST = 160
"""Most characters of a reason from transformers."""

_SHORT = re.compile(r"\bhas (\w+=[^,;]+)|\b(architecture '[^']*')")


@checked
def model_configurations(
    names: str | Path | Iterable[str | Path] | None = (), tell: Callable[[int, int], None] = lambda _, __: None
) -> list[Configuration]:
    """List sizes and parameters of models, from configs and papers; no weights are loaded.

    Args:
        names: built-in names, folders, hub ids, and names of papers' models (``bert-large``, ``gpt2-xl``,
            ``gpt3-175b``); one alone needs no list. A name that is both a paper's model and in the hub's cache gives
            both. None or an empty list: the built-in models, all in the hub's cache, and the papers'.
        tell: callback with how many are read, of how many.

    Raises:
        CheckpointError: a name leads nowhere, or its config cannot be read.
        UsageError: a name is empty, or no name at all.
    """
    wanted = list(dict.fromkeys(_names(names)))
    if not wanted:
        return _known_here(tell)
    configurations: list[Configuration] = []
    for count, name in enumerate(wanted):
        tell(count, len(wanted))
        configurations += _named(name)
    return configurations


def _names(names: object) -> list[str]:
    """Names as a list of strings; UsageError for anything else."""
    several = [names] if isinstance(names, str | Path) else [] if names is None else names
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise UsageError(f"expected a list of models such as ['minilm', 'gpt2-xl'], found {names!r}.")
    listed = list(several)
    for name in listed:
        if not isinstance(name, str | Path):
            raise UsageError(f"expected names or folders of models, found {name!r} among them.")
    return [str(name) for name in listed]


def _named(name: str) -> list[Configuration]:
    paper = paper_configuration(name)
    if paper is None or name in BUILT_IN or as_folder(name) is not None:
        return [read_configuration(find_config(name))]
    cached = cached_configs().get(name)
    return [paper] if cached is None else [paper, read_configuration(cached)]


def _known_here(tell: Callable[[int, int], None]) -> list[Configuration]:
    """Configurations in the cache; unreadable ones are listed with the reason."""
    configurations, files = list[Configuration](), [*built_in_configs(), *cached_configs().values()]
    for count, file in enumerate(files):
        tell(count, len(files))
        try:
            configurations.append(read_configuration(file))
        except CheckpointError as error:
            configurations.append(Configuration(file.name, file.kind, file.revision, reason=str(error)))
    return configurations + paper_configurations()


def read_configuration(file: ConfigFile) -> Configuration:
    """Read a model of any architecture from its config.json; no weights are read, no code of the checkpoint is run.

    Raises:
        CheckpointError: the file cannot be read, or is not a transformers model's.
    """
    if file.kind == "built-in" and file.name == "smollm2":
        check_cache(only=file.path.name)
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
    from attnviz.models.configs import read_config
    from attnviz.models.libraries import calling_transformers

    config = read_config(file.folder)
    with calling_transformers(f"transformers cannot tell the sizes in {file.path}"):
        model = _with_sizes_of(model, config)
    return _counted(model, config, file)


def _with_sizes_of(model: Configuration, config: Any) -> Configuration:
    """Fill in the sizes of the main part; sizes that differ between layers are None."""
    from attnviz.models.families import ARCHITECTURES

    def setting(name: str) -> Any:
        try:
            return getattr(inner, name, None)
        except RuntimeError:  # transformers' own, where each layer has its own
            varying.append(name)
            return None

    inner, notes, varying = config, list[str](), list[str]()
    decoder = getattr(config, "is_encoder_decoder", False)
    if not isinstance(getattr(config, "hidden_size", None), int):
        with suppress(ValueError):  # several parts, none of them the main one
            inner = config.get_text_config()
        if inner is not config:
            notes.append(f"sizes are those of its part {inner.model_type!r}; parameters are counted for the whole")
    elif decoder:
        notes.append("encoder and decoder: layers and heads are those of the encoder + those of the decoder")
    family = ARCHITECTURES.get(config.model_type)
    one_width = family is not None and not family.states_d_head
    model = replace(model, notes=tuple(notes))
    model = _with_sizes(model, setting, decoder=decoder and inner is config, one_width=one_width)
    if not varying:
        return model
    origins = {size: origin for size, origin in model.origins.items() if size != "d_head"}
    differs = f"{', '.join(varying)}: each layer has its own"
    return replace(model, d_head=None, origins=origins, notes=(*notes, differs))


def _counted(model: Configuration, config: Any, file: ConfigFile) -> Configuration:
    """Fill in the parameters, and whether the reference reproduces the model."""
    from torch import nn

    from attnviz.models.configs import empty_model
    from attnviz.models.families.base import first_position

    architecture, reason = _reproduced(model, config)
    try:
        empty = empty_model(config)
    except CheckpointError as error:
        why = str(error) if architecture is not None else f"parameters not counted: {error}"
        why = shorten(why, _LONGEST, placeholder=" …")
        return replace(model, reason=reason or why, notes=(*model.notes, *([why] if reason else [])))
    total = sum(parameter.numel() for parameter in empty.parameters())  # what is shared comes once
    if architecture is None:
        return replace(model, reason=reason).with_counts(total, None)
    if unused := first_position(architecture, config):
        usable = f"of {model.positions} positions {unused} are for no token: they are counted from pad_token_id + 1"
        left = config.max_position_embeddings - unused
        origins = {**model.origins, "positions": "derived"}
        model = replace(model, positions=left, origins=origins, notes=(*model.notes, usable))
    in_attention = nn.ModuleList(
        part for layer in architecture.modules(empty) for part in (layer.pattern, layer.o_proj)
    )
    reproduced = replace(model, reproduced=True, notes=(*model.notes, *_missing_weights(file)))
    return reproduced.with_counts(total, sum(parameter.numel() for parameter in in_attention.parameters()))


def _reproduced(model: Configuration, config: Any) -> "tuple[Architecture | None, str | None]":
    """The architecture that reproduces the config, or a short reason why none does."""
    import torch

    from attnviz.models.families import ARCHITECTURES, architecture_of

    unknown = [name for name in ("n_layers", "n_heads", "d_model") if getattr(model, name) is None]
    if model.architecture in ARCHITECTURES and unknown:
        return None, f"its config has no {' and no '.join(unknown)} above 0"
    try:
        return architecture_of(config, torch.float32), None
    except ArchitectureError as error:
        short = _SHORT.search(str(error))
        return None, str(error) if short is None else next(filter(None, short.groups()))


def _missing_weights(file: ConfigFile) -> list[str]:
    """Reasons why the weights cannot be loaded."""
    try:
        weight_files(file.folder)
    except CheckpointError:
        where = "in the cache: attnviz heads will fetch them" if file.kind == "hub" else "in the folder"
        return [f"its weights are not {where}"]
    return []


def _with_sizes(
    model: Configuration, get: Callable[[str], Any], *, decoder: bool = False, one_width: bool = False
) -> Configuration:
    """Fill in sizes, under any architecture's names; None for what is no number.

    ``one_width``: heads are d_model / n_heads wide, whatever the config says.
    """
    sizes = {size: _first_number(get, names) for size, names in (_NAMES | (_OF_DECODER if decoder else {})).items()}
    stated = None if one_width else sizes["d_head"]
    sizes["d_head"], odd = width_of_heads(sizes["d_model"], sizes["n_heads"], stated)
    origins = {size: "config" for size, number in sizes.items() if number is not None}
    if stated is None and sizes["d_head"] is not None:
        origins["d_head"] = "derived"
    return replace(model, **sizes, origins=origins, notes=(*model.notes, *([odd] if odd else [])))  # type: ignore[arg-type]


def _first_number(get: Callable[[str], Any], names: Iterable[str]) -> int | None:
    """The first of these that is a positive int; some configs have a list with a number per layer."""
    return next((value for value in map(get, names) if is_whole(value) and value > 0), None)
