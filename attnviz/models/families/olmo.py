"""OLMo (Groeneveld et al. 2024) and its successors: Llamas with other norms."""

from dataclasses import replace
from typing import Any

from attnviz.models.families.base import NormKind
from attnviz.models.families.llama import Llama, Qwen2
from attnviz.reference.attention import HeadParameters


class Olmo(Llama, name="olmo", prefix="Olmo"):
    """Layer norms without weights; bounded queries, keys and values."""

    norm_kind: NormKind = "layer"
    epsilon_setting: str | float = 1e-5
    rotary_in_float32 = True
    bounded = ("query", "key", "value")

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With the bound ``clip_qkv``."""
        parameters = super().parameters(base_model, layer)
        clip = base_model.config.clip_qkv
        bounded: dict[str, Any] = {name: replace(getattr(parameters, name), clip=clip) for name in self.bounded}
        return replace(parameters, **bounded)


class Olmo2(Llama, name="olmo2", prefix="Olmo2"):
    """Team OLMo 2024: outputs alone are normed, and queries and keys of all heads together."""

    norm_kind: NormKind = "rms, rounded once"
    norm_names = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
    rotary_in_float32 = True


class Olmo3(Olmo2, Qwen2, name="olmo3", prefix="Olmo3"):
    """Team OLMo 2025: OLMo 2 with windows, and rotary positions by type of layer."""


class OlmoE(Olmo, name="olmoe", prefix="Olmoe"):
    """Muennighoff et al. 2024: experts; queries and keys of all heads are normed together, then bounded."""

    norm_kind: NormKind = "rms"
    epsilon_setting = Llama.epsilon_setting
    rotary_in_float32 = False
    bounded = ("query_norm", "key_norm", "value")
