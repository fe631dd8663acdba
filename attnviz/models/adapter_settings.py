"""The settings of an adapter that peft is given: those listed here, and no others.

Some settings make peft import a module, or read or download a file, that the adapter names; more come with new
versions. So what merging needs is allowed, what it does not depend on is left out, and an adapter that sets anything
else is refused. peft takes some names as regular expressions, which may take for ever: here a name is a plain one.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnviz.errors import ArchitectureError, CheckpointError
from attnviz.wording import shortened

_EVERY = set(
    "peft_type task_type target_modules modules_to_save exclude_modules layers_to_transform layers_pattern bias "
    "fan_in_fan_out".split()
)
_LORA = set(
    "r lora_alpha use_rslora use_dora rank_pattern alpha_pattern init_lora_weights trainable_token_indices lora_bias "
    "target_parameters ensure_weight_tying".split()
)
_LOHA = {"r", "alpha", "rank_pattern", "alpha_pattern", "use_effective_conv2d"}
_OFT = {"r", "oft_block_size", "coft", "eps", "block_share", "use_cayley_neumann", "num_cayley_neumann_terms"}

# The settings of each kind of adapter (peft's name for it) that its merged weights depend on.
ALLOWED: dict[str, set[str]] = {
    "LORA": _EVERY | _LORA,
    "LOHA": _EVERY | _LOHA,
    "LOKR": _EVERY | _LOHA | {"decompose_both", "decompose_factor"},
    "OFT": _EVERY | _OFT,
    "IA3": _EVERY | {"feedforward_modules"},
    "LN_TUNING": _EVERY,
    "TRAINABLE_TOKENS": _EVERY | {"token_indices"},
}

# Settings for training, or for what is loaded by other means; so is every dropout.
_WITHOUT_EFFECT = set(
    "auto_mapping base_model_name_or_path revision inference_mode peft_version init_weights init_ia3_weights "
    "megatron_core qalora_group_size rank_dropout_scale runtime_config".split()
)

_NAME = re.compile(r"\^?(?:[\w-]|\\?\.)+")
_STARTS = re.compile(r"gaussian|orthogonal|olora|pissa(_niter_[0-9]{1,3})?")


def allowed_settings(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings that an adapter is merged with; ArchitectureError for a kind, setting or name that is not taken."""
    kind = settings.get("peft_type")
    if not isinstance(kind, str) or kind not in ALLOWED:
        known = ", ".join(ALLOWED)
        raise _refused(name, f"is of the kind {kind}, which is not merged into the weights; expected {known}")
    taken = {key: value for key, value in settings.items() if key in ALLOWED[kind]}
    start = taken.get("init_lora_weights")
    others = settings.keys() - taken.keys() - _WITHOUT_EFFECT
    other = [key for key in others if settings[key] and not key.endswith("dropout")]
    if isinstance(start, str) and not _STARTS.fullmatch(start):
        other.append("init_lora_weights")
    if other:
        setting = f"{shortened(min(other), 40)} = {shortened(str(settings[min(other)]), 60)}"
        raise _refused(name, f"has the setting {setting}, by which peft may import or read something")
    expressions = ("target_modules", "exclude_modules")  # names are then those of the weights: see with_names
    for text in _strings(value for key, value in taken.items() if key not in expressions or not isinstance(value, str)):
        if text and not _NAME.fullmatch(text):
            shown = shortened(text, 60)
            raise _refused(name, f"has the pattern {shown!r}, which may take for ever; expected a plain name")
    return taken


def _refused(name: str, why: str) -> ArchitectureError:
    return ArchitectureError(
        f"the adapter {name!r} {why}. Merge it where you trust it (peft's merge_and_unload), and save the whole model."
    )


def with_names(settings: dict[str, Any], weights: Iterable[str], root: str, prefix: str) -> dict[str, Any]:
    """The settings with the names of adapted modules in the place of a pattern, from the names of the weights.

    ``root`` stands before each, and ``prefix`` begins the names of the adapter's own parts.
    """
    target, excluded = settings.get("target_modules"), settings.get("exclude_modules")
    if not isinstance(excluded, str) and (not isinstance(target, str) or target == "all-linear"):
        return settings
    of_parameters = tuple(name.rpartition(".")[0] for name in settings.get("target_parameters") or ())
    modules = (key.removeprefix(root).partition(f".{prefix}") for key in weights)
    names = sorted({module for module, adapted, _ in modules if adapted and not module.endswith(of_parameters)})
    dropped = ("exclude_modules", "layers_to_transform", "layers_pattern")
    return {key: value for key, value in settings.items() if key not in dropped} | {"target_modules": names}


def refuse_other_sizes(settings: dict[str, Any], shapes: Iterable[Iterable[int]], where: Path) -> None:
    """Raise CheckpointError for a rank beyond every size of the weights: peft would first make weights of that rank."""
    if settings["peft_type"] == "LOKR":  # of a large rank it makes whole matrices
        return
    largest = max((size for shape in shapes for size in shape), default=0)
    for key in ("r", "rank_pattern"):
        value = settings.get(key)
        for size in value.values() if isinstance(value, dict) else [value]:
            if isinstance(size, int) and size > largest:
                raise CheckpointError(
                    f"the adapter in {where} has {key} = {shortened(str(size), 40)}, but the largest size of its "
                    f"weights is {largest}; take the adapter_config.json that was saved with them."
                )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _strings(value.values())
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings(item)
