"""The names that run/transformers_compat.py uses of transformers: those that this version lacks, one a line.

It needs no pytest and no attnviz, so that it runs beside any version: python tests/support/transformers_names.py
"""

import importlib
import inspect
import sys

NAMES = {
    "transformers": ("AttentionInterface",),
    "transformers.masking_utils": ("AttentionMaskInterface", "eager_mask"),
    "transformers.modeling_utils": ("ALL_ATTENTION_FUNCTIONS",),
    "transformers.models.bert.modeling_bert": ("eager_attention_forward",),
    "transformers.models.gpt2.modeling_gpt2": ("GPT2Attention._upcast_and_reordered_attn", "eager_attention_forward"),
    "transformers.models.gpt_neo.modeling_gpt_neo": ("GPTNeoSelfAttention._attn",),
    "transformers.models.llama.modeling_llama": ("eager_attention_forward",),
}
"""By module; ``eager_attention_forward`` and ``_attn`` are found by these names in every family's file."""

ARGUMENTS = {
    ("transformers.models.bert.modeling_bert", "eager_attention_forward"): "module query key value attention_mask",
    ("transformers.models.gpt2.modeling_gpt2", "eager_attention_forward"): "module query key value attention_mask",
    ("transformers.models.gpt_neo.modeling_gpt_neo", "GPTNeoSelfAttention._attn"): "self query key value",
    ("transformers.models.gpt2.modeling_gpt2", "GPT2Attention._upcast_and_reordered_attn"): "self query key value",
    ("transformers.masking_utils", "eager_mask"): "batch_size q_length kv_length q_offset",
}
"""The arguments that they are called with, in this order."""

SETTINGS = ("_attn_implementation", "_experts_implementation", "return_dict")


def lacking() -> list[str]:
    """What is missing, in words."""
    missing = []
    for module, names in NAMES.items():
        for name in names:
            try:
                owner = importlib.import_module(module)
                for step in name.split("."):
                    owner = getattr(owner, step)
            except (ImportError, AttributeError) as error:
                missing.append(f"{module} has no {name}: {error}")
                continue
            expected = ARGUMENTS.get((module, name), "").split()
            given = list(inspect.signature(owner).parameters)[: len(expected)] if expected else []
            if given != expected:
                missing.append(f"{module}.{name} takes {' '.join(given)}, expected {' '.join(expected)}")
    if missing:
        return missing
    from transformers import AttentionInterface, GPT2Config
    from transformers.masking_utils import AttentionMaskInterface

    for interface in (AttentionInterface, AttentionMaskInterface):  # run/transformers_compat.py sets and deletes it
        if "__getitem__" in vars(interface) or not hasattr(interface, "__getitem__"):
            missing.append(f"{interface.__name__} does not inherit its __getitem__")
    if "eager" not in AttentionMaskInterface():
        missing.append("AttentionMaskInterface() has no mask for eager")
    config = GPT2Config()
    missing += [f"a config has no {setting}" for setting in SETTINGS if not hasattr(config, setting)]
    return missing


if __name__ == "__main__":
    found = lacking()
    print("\n".join(found))
    sys.exit(bool(found))
