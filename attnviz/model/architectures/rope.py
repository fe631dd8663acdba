"""The rotary positions that a config asks for: transformers' names of their kinds and settings."""

import math
from collections.abc import Mapping
from typing import Any

from attnviz.attention.positions import (
    Rotary,
    default_frequencies,
    llama3_frequencies,
    longrope_frequencies,
    yarn_frequencies,
)
from attnviz.errors import ArchitectureError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""Values of ``rope_type`` that are reproduced."""


def refuse_rope(config: Any, partial: bool) -> None:
    """Refuse kinds of rotary positions that are not reproduced; ``partial``: a part of a head may be without.

    Raises:
        ArchitectureError: naming the setting and its value.
    """
    for settings in _by_layer_type(config).values():
        kind, share = settings.get("rope_type"), settings.get("partial_rotary_factor", 1.0)
        if kind not in KINDS:
            raise ArchitectureError(
                f"this {config.model_type} has rope_type={kind!r}, which the reference attention does not reproduce; "
                f"expected one of: {', '.join(KINDS)}."
            )
        if share != 1 and not partial:
            raise ArchitectureError(
                f"this {config.model_type} has partial_rotary_factor={share}, which the reference attention does not "
                "reproduce in this architecture; expected 1."
            )


def _by_layer_type(config: Any) -> dict[str, Mapping[str, Any]]:
    """Settings by type of layer; one set for all under the empty name."""
    given: dict[str, Any] = config.rope_parameters
    return given if all(isinstance(value, dict) for value in given.values()) else {"": given}


def rotary_of(config: Any, d_head: int, layer_type: str = "") -> Rotary:
    """The rotary positions of a layer.

    Args:
        config: of transformers, checked by :func:`refuse_rope`.
        d_head: width of a head.
        layer_type: the layer's, for models where they differ between types of layers.
    """
    by_type = _by_layer_type(config)
    settings = by_type.get(layer_type) or by_type[""]
    kind, base = settings["rope_type"], float(settings["rope_theta"])
    frequencies = default_frequencies(int(d_head * settings.get("partial_rotary_factor", 1.0)), base)
    if kind == "linear":
        return Rotary(frequencies / settings["factor"])
    if kind == "llama3":
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        original = settings["original_max_position_embeddings"]
        return Rotary(llama3_frequencies(frequencies, settings["factor"], low, high, original))
    if kind not in ("yarn", "longrope"):
        return Rotary(frequencies)  # "dynamic" differs in texts longer than the model's positions alone
    original = settings["original_max_position_embeddings"]
    factor = settings.get("factor") or config.max_position_embeddings / original
    if kind == "longrope":
        given = settings.get("attention_factor")
        larger = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        short, long = (longrope_frequencies(frequencies, settings[name]) for name in ("short_factor", "long_factor"))
        return Rotary(short, larger if given is None else given, original, long)
    fast, slow = settings.get("beta_fast") or 32, settings.get("beta_slow") or 1
    whole = config.rope_parameters.get("truncate", True)
    slowed = yarn_frequencies(frequencies, base, factor, fast, slow, original, whole)
    return Rotary(slowed, _yarn_factor(settings, factor))


def _yarn_factor(settings: Mapping[str, Any], factor: float) -> float:
    """What cos and sin are multiplied by: a temperature of the softmax (Peng et al. 2023, section 3.4)."""

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    given, own, of_all = (settings.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is not None:
        return float(given)
    return temperature(own) / temperature(of_all) if own and of_all else temperature(1)
