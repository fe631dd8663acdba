"""Tiny random models of families that attnviz does not declare, with attention far from uniform."""

from typing import Any

import torch
import transformers

from tests.support.llamas import convert

_SIZES: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

UNDECLARED: dict[str, tuple[str, dict[str, Any]]] = {
    "helium": ("Helium", {"num_key_value_heads": 2, "head_dim": 8}),
    "seed_oss": ("SeedOss", {"num_key_value_heads": 2, "head_dim": 8}),
    "ministral": (
        "Ministral",
        {"num_key_value_heads": 2, "sliding_window": 4, "head_dim": 8, "layer_types": ["sliding_attention"] * 2},
    ),
    "ultrabert": ("Ultrabert", {"num_key_value_heads": 2, "sliding_window": 3}),
    "ernie": ("Ernie", {}),
}
"""By ``model_type``: what the names of its classes begin with, and settings by which what is special about it shows."""


def config_of(prefix: str, **changes: Any) -> Any:
    return getattr(transformers, f"{prefix}Config")(**{**_SIZES, **changes})


def undeclared_model(family: str, task: str = "Model", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    prefix, settings = UNDECLARED[family]
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}{task}")(config_of(prefix, **{**settings, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name.lower() for part in ("q_proj", "k_proj", "query", "key", "wqkv")):
                parameter.mul_(8)
    return convert(model, dtype).eval()
