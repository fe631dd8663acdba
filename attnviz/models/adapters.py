"""Merges an adapter of peft (LoRA and its kin) into a model, and checks every merged module against the adapter's."""

import copy
from collections.abc import Collection
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnviz.errors import ArchitectureError, CheckpointError, VerificationError
from attnviz.models.adapter_settings import allowed_settings, refuse_other_sizes, with_names
from attnviz.models.classifier import SPAN, TEXT, TOKEN
from attnviz.models.families import architecture_of
from attnviz.models.families.base import Architecture
from attnviz.models.files import read_json
from attnviz.models.libraries import calling_transformers
from attnviz.models.sources import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Source
from attnviz.models.weights import check_weights, each_weight, read_weights
from attnviz.reference.tolerances import TOLERANCES
from attnviz.wording import shortened

_ROOT = "base_model.model."  # before each name in the file of an adapter

_TASKS = {"SEQ_CLS": TEXT, "TOKEN_CLS": TOKEN, "QUESTION_ANS": SPAN}  # what a head is for, by peft's name


def merge_adapter(model: Any, architecture: Architecture, adapter: Source) -> None:
    """Merge an adapter into a model on the CPU; what it has for a task head that the model lacks is left out.

    Raises:
        CheckpointError: peft cannot load or merge it, or its weights do not fit the model.
        VerificationError: a merged module gives other numbers than with the adapter beside it.
    """
    from peft import PeftModel, set_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING

    saved = read_weights([adapter.folder / ADAPTER_WEIGHTS])
    check_weights(saved.items(), str(adapter.folder))
    settings = allowed_settings(read_json(adapter.folder / ADAPTER_CONFIG), adapter.name)
    refuse_other_sizes(settings, [tensor.shape for tensor in saved.values()], adapter.folder)
    with calling_transformers(f"peft cannot merge the adapter in {adapter.folder}"), torch.no_grad():
        settings = with_names(settings, saved, _ROOT, PEFT_TYPE_TO_PREFIX_MAPPING[settings["peft_type"]])
        config_class = PEFT_TYPE_TO_CONFIG_MAPPING[settings["peft_type"]]
        known = {key: value for key, value in settings.items() if value or key in config_class.__dataclass_fields__}
        config = config_class(**known, inference_mode=True)
        root = _root(model.eval(), architecture, saved)
        parts = dict(root.named_modules())
        if vars(config).get("modules_to_save"):
            config.modules_to_save = [name for name in config.modules_to_save if any(name in part for part in parts)]
        inside = f"{architecture.base_model(model).base_model_prefix}."
        heads = (*architecture.head_weights, *architecture.optional_weights)
        may_lack = [*heads, *(inside + head for head in heads)]
        absent = tuple(f"{_ROOT}{head}." for head in may_lack if head not in parts)
        adapted: Any = PeftModel(root, config).eval()
        fit: Any = set_peft_model_state_dict(adapted, {key: saved[key] for key in saved if not key.startswith(absent)})
        misfit = [*fit.unexpected_keys, *(key for key in fit.missing_keys if ".default" in key)]
        if misfit:
            raise CheckpointError(
                f"the adapter in {adapter.folder} does not fit its base model: {len(misfit)} weights are left over or "
                f"missing, such as {shortened(misfit[0], 150)}. Name the model that it was trained on: --model."
            )
        _merge_checked(adapted.base_model, model, architecture, repr(adapter.name))


def merged_copy(model: Any) -> nn.Module:
    """A copy of a model of peft with its adapter merged; the model stays as it is.

    Raises:
        ArchitectureError: an adapter that cannot be merged, or that peft's own class does not hold.
        VerificationError: a merged module gives other numbers than with the adapter beside it.
    """
    from peft import PeftModel

    if not isinstance(model, PeftModel) or not hasattr(model.base_model, "merge_and_unload"):
        raise ArchitectureError(
            f"expected an adapter that peft merges into the weights, found {type(model).__name__} with another; name "
            "its base and its folder: model=BASE, adapter=FOLDER."
        )
    with calling_transformers("peft cannot merge the adapter of this model"), torch.no_grad():
        copied: Any = copy.deepcopy(model).eval()
        base = copied.get_base_model()
        architecture = architecture_of(base.config, next(base.parameters()).dtype)
        _merge_checked(copied.base_model, base, architecture, "of this model")
    return cast(nn.Module, base)


def _merge_checked(adapted: Any, model: Any, architecture: Architecture, name: str) -> None:
    """Merge an adapter in place, and compare every module that it changes before and after, on a short text."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()  # which may be one
    names = [
        part_name
        for part_name, part in model.named_modules()
        if isinstance(part, BaseTunerLayer) or part in (embeddings, head)
    ]
    calls = _calls(model, architecture, names)
    shared: Any = getattr(getattr(embeddings, "base_layer", None), "weight", None)
    embeddings_alone = shared is not None and getattr(head, "weight", None) is shared
    head_weight = nn.Parameter(shared.clone()) if embeddings_alone else None
    adapted.merge_and_unload(safe_merge=True)
    if head_weight is not None:
        head.weight = head_weight
    for part_name, (inputs, keywords, expected) in calls.items():
        tolerance = TOLERANCES[expected.dtype].output
        error = float((model.get_submodule(part_name)(*inputs, **keywords) - expected).abs().max())
        error /= float(expected.abs().max()) or 1
        if not error <= tolerance:
            raise VerificationError(
                f"the adapter {name} is not what was merged: with it beside the weights, {part_name} gives other "
                f"numbers, by {error:.2g} of the largest (tolerance {tolerance:g}). Nothing was written."
            )


def saved_head(adapter: Source | None) -> tuple[str, dict[str, int]]:
    """What the head is for that an adapter brings, the names of its weights, and rows of each; nothing without one."""
    task = "" if adapter is None else _TASKS.get(read_json(adapter.folder / ADAPTER_CONFIG).get("task_type", ""), "")
    if adapter is None or not task:
        return "", {}
    names = {
        name.removeprefix(_ROOT): len(weight)
        for name, weight in each_weight([adapter.folder / ADAPTER_WEIGHTS])
        if name.startswith(tuple(f"{_ROOT}{head}." for head in ("classifier", "score", "qa_outputs")))
    }
    return task, dict(sorted(names.items(), key=lambda entry: "out_proj" not in entry[0]))


def _root(model: Any, architecture: Architecture, saved: Collection[str]) -> Any:
    """The module that the names in an adapter start from: with a task head, whose base has a name, or the base."""
    base: Any = architecture.base_model(model)
    of_whole = any(key.startswith(f"{_ROOT}{base.base_model_prefix}.") for key in saved)
    if base is not model or not of_whole:
        return model if of_whole else base
    shell: Any = nn.Module()
    shell.config, shell.base_model_prefix = base.config, base.base_model_prefix
    setattr(shell, base.base_model_prefix, base)
    return shell


def _calls(model: Any, architecture: Architecture, names: Collection[str]) -> dict[str, Any]:
    """Arguments, keywords and output of some modules by name, on a short text of any tokens."""
    calls: dict[str, Any] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Tensor) -> None:
        calls[name] = inputs, keywords, output

    hooks = [model.get_submodule(name).register_forward_hook(partial(note, name), with_kwargs=True) for name in names]
    embeddings = model.get_input_embeddings().weight
    ids = (torch.arange(8, device=embeddings.device) % len(embeddings))[None]
    model(input_ids=ids, **({"decoder_input_ids": ids} if architecture.stacks(model.config) else {}))
    for hook in hooks:
        hook.remove()
    return calls
