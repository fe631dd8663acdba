"""OLMo (Groeneveld et al. 2024) and its successors: Llamas with other norms."""

from attnviz.models.families.base import NormKind
from attnviz.models.families.llama import Llama


class Olmo2(Llama):
    """Team OLMo 2024: outputs alone are normed, and queries and keys of all heads together."""

    name = "olmo2"
    class_prefix = "Olmo2"
    norm_kind: NormKind = "rms, rounded once"
    norm_names = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
    normed_heads = True
    rotary_in_float32 = True
