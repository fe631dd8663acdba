"""The architectures that the reference attention reproduces, one declaration each."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

import torch

from attnviz.arguments import did_you_mean
from attnviz.errors import ArchitectureError
from attnviz.models.configs import SIZES
from attnviz.models.families import (
    bert_gpt2,
    deepseek,
    encoder_decoder,
    encoders,
    gemma4,
    hybrids,
    llama,
    llama_kin,
    neox,
    olmo,
)
from attnviz.models.families.base import DRAWN, Architecture, NormKind
from attnviz.plugins import Registry


def declared_in(modules: Iterable[object]) -> dict[str, Architecture]:
    """The families of modules by name: classes that declare a name of their own; ValueError where two have one name."""
    kinds: dict[str, type[Architecture]] = {}
    for module in modules:
        for kind in vars(module).values():
            if not (isinstance(kind, type) and issubclass(kind, Architecture) and "name" in vars(kind)):
                continue
            if kinds.setdefault(kind.name, kind) is not kind:
                raise ValueError(f"two families are named {kind.name!r}: {kinds[kind.name]} and {kind}")
    return {name: kind() for name, kind in kinds.items()}


_NATIVE = declared_in((bert_gpt2, deepseek, encoder_decoder, encoders, gemma4, hybrids, llama, llama_kin, neox, olmo))


def _check(family: Architecture) -> None:
    for attribute, lengths in (("norm_names", (4,)), ("network_names", (4,)), ("projection_names", (2, 3, 4))):
        if len(names := getattr(family, attribute)) not in lengths:
            raise ValueError(f"expected {attribute} of {' or '.join(map(str, lengths))} names, found {names!r}")
    if family.norm_kind not in get_args(NormKind):
        raise ValueError(f"expected norm_kind as one of {get_args(NormKind)}, found {family.norm_kind!r}")
    if not hasattr(family, "class_prefix") or family.class_prefix in {
        native.class_prefix for native in _NATIVE.values()
    }:
        raise ValueError("expected class_prefix, with which the names of its own classes in transformers begin")


# By model_type, with those of plug-ins.
ARCHITECTURES: Registry[Architecture] = Registry(
    "architecture", f"{Architecture.__module__}.{Architecture.__name__}", _NATIVE, check=_check
)


def architecture_of(config: Any, dtype: torch.dtype) -> Architecture:
    """The architecture of a transformers config, checked to be reproduced in this dtype.

    ArchitectureError for an unknown ``model_type``, a setting that is not reproduced, or a model without layers, heads
    or words.
    """
    model_type = getattr(config, "model_type", None)
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ArchitectureError(
            f"the reference attention does not reproduce the architecture {model_type!r}{instead_of(model_type)}."
        )
    family = ARCHITECTURES[model_type]
    config = getattr(config, "text_config", config)  # of a model that also reads images
    if family.text_tower_at:  # which may be of several families
        if config.model_type not in ARCHITECTURES:
            tower = f"its text tower {config.model_type!r} is not reproduced{instead_of(config.model_type)}"
            raise ArchitectureError(f"this is a {model_type!r}; {tower}.")
        text, at, task = type(ARCHITECTURES[config.model_type]), family.text_tower_at, family.language_task
        if not isinstance(family, text):
            family = llama.with_images(model_type, family.class_prefix, text, at, task)()
    for size, what in SIZES.items():
        if getattr(config, size, 1) < 1:  # T5 has no limit of positions
            setting = config.attribute_map.get(size, size)
            raise ArchitectureError(f"the config has {setting}={getattr(config, size)}; expected a model with {what}.")
    # numbers on which the model's own forward pass, or the reference, would fail
    settings = config.to_dict()
    experts = (settings.get(name) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    n_experts = next(filter(None, experts), 0)
    n_tokens = max(settings.get("decoder_vocab_size") or 0, config.vocab_size)
    ranges: dict[str, tuple[int, Any]] = {name: (0, 1) for name in settings if "drop" in name}
    ranges["num_key_value_heads"] = 1, math.inf
    ranges["dim_model_base"] = 1, math.inf  # by which MiniCPM divides
    if n_experts > 1 or (n_experts == 1 and config.model_type != "jamba"):  # a Jamba with one has none
        ranges["num_experts_per_tok"] = 1, n_experts
    ranges["decoder_start_token_id"] = 0, n_tokens - 1
    for name, (least, most) in ranges.items():
        value = settings.get(name)
        if value is not None and not (isinstance(value, int | float) and least <= value <= most):
            upto = "" if most == math.inf else f" to {most}"
            raise ArchitectureError(f"the config has {name}={value!r}; expected a number from {least}{upto}.")
    architecture = family.variant(config)
    setting = architecture.epsilon_setting
    epsilon = architecture.declared("epsilon_setting", config) if isinstance(setting, str) else setting
    if not (isinstance(epsilon, int | float) and 0 < epsilon < 1):
        raise ArchitectureError(
            f"the config has {setting}={epsilon}; expected a small number above 0, such as 1e-12: "
            "norms divide by its root where all values are alike."
        )
    setting = architecture.not_in_float64
    if dtype == torch.float64 and setting and getattr(config, setting):
        raise ArchitectureError(
            f"this {family.name!r} has {setting}=True, with which transformers cannot compute in "
            "float64; expected float32, float16 or bfloat16."
        )
    try:
        architecture.refuse(config)
    except AttributeError as error:
        if error.obj is config:  # not a bug, but another family's setting
            architecture.declared("name", config, error.name)
        raise
    return architecture


_NO_TEXT = "it reads no text, but images or sound"

_REASONS = {
    "bitnet": "what its heads give is normed together before W_O, and its maps round their weights and what they read",
    "deberta": "biases are added outside of its maps; DeBERTa v3 ('deberta-v2') is reproduced",
    "falcon_h1": "its layers attend and run a state-space mixer side by side",
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "it has four residual streams"),
    "llama4": "it also reads images. Its text model alone is reproduced: tower = model.language_model; "
    "tower.save_pretrained(FOLDER), and the tokenizer, too",
    "deepseek_v4": "it has several residual streams, and keys that stand for several tokens each",
    "kimi_linear": "most of its layers do not attend, but mix tokens by a gated delta rule",
    "t5gemma2": "its decoder attends to the target and to the source in one softmax",
    **dict.fromkeys(("step3p5", "step3p7"), "what each head gives is multiplied by a gate"),
    "laguna": "what its heads give is multiplied by a gate, and its layers have different numbers of heads",
    **dict.fromkeys(("trocr", "vision-encoder-decoder", "speech-encoder-decoder"), _NO_TEXT),
    "paligemma": "it reads a prompt both ways, behind an image. Its text model alone, which then reads what precedes "
    "alone: tower = model.model.language_model; tower.config.use_bidirectional_attention = False; "
    "tower.save_pretrained(FOLDER), and the tokenizer, too",
}
# Architectures that are not reproduced, with the reason and what to do instead.
REFUSED: dict[str, str] = {name: f"{why}. {DRAWN}" for name, why in _REASONS.items()}


def instead_of(model_type: object) -> str:
    """The end of a message about an architecture that is not reproduced: why, or where those stand that are."""
    name = str(model_type)
    if name in REFUSED:
        return f": {REFUSED[name]}"
    if "text" not in _modalities(name):
        return f": {_NO_TEXT}. {DRAWN}"
    return f": not yet.{did_you_mean(name, ARCHITECTURES)} attnviz models --families lists what is. {DRAWN}"


def _modalities(model_type: str) -> Collection[str]:
    """What transformers' bare model of this name reads; text where it does not know one, or does not say."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    try:
        kind: Any = getattr(transformers, str(MODEL_MAPPING_NAMES[model_type]))
        return kind.input_modalities  # type: ignore[no-any-return]
    except (ImportError, AttributeError, KeyError):  # ImportError: it needs another library
        return ("text",)


# The commands that run a model.
COMMANDS = tuple("heads compare outputs ablate patch rollout profile explain why circuits card".split())


def commands_of(architecture: Architecture) -> dict[str, str | None]:
    """What each command measures: the ``model``, its ``encoder`` alone, or None; ``untried`` for a plug-in's family."""
    parts: dict[str, str | None] = dict.fromkeys(
        COMMANDS, "untried" if architecture.name in ARCHITECTURES.plugins else "model"
    )
    parts |= dict.fromkeys(architecture.encoder_commands, "encoder")
    if architecture.reads_sound:
        return dict.fromkeys(COMMANDS) | {"heads": parts["heads"]}
    if architecture.encoder_commands or architecture.language_task == "Model":  # an encoder-decoder, or no predictions
        parts["patch"] = None
    if architecture.mixer_at or architecture.gated or not architecture.stream_alone:
        parts["rollout"] = None
    if architecture.gated:
        parts["circuits"] = None
    return parts if architecture.explained else parts | {"explain": None}


def commands_in_words(parts: Mapping[str, str | None]) -> str:
    """The commands that take a family, by the parts of :func:`commands_of`, or those that do not."""
    without = [command for command, part in parts.items() if part is None]
    encoder = [command for command, part in parts.items() if part == "encoder"]
    if len(without) > len(parts) / 2:
        return "only " + ", ".join(command for command in parts if command not in without)
    words = "all but " + ", ".join(without) if without else "all"
    return words + "; of the encoder " + ", ".join(encoder) if encoder else words
