"""Small checkpoints of BERT's relatives, sharpened as :mod:`tests.support.models` are, with tokenizers like theirs."""

import json
from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import torch
import transformers
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    EsmTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)
from transformers.models.esm.configuration_esm import get_default_vocab_list

from attnviz.models.checkpoint import Checkpoint, from_loaded
from tests.support.models import PIECES, WORDS, bert_tokenizer, gpt2_tokenizer

_TEXT = [" ".join(WORDS[:30])] * 20
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MPNET_PIECES = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *WORDS, *PIECES]


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """RoBERTa's own class over a byte-level BPE of a few words: ``<s> A </s></s> B </s>``."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=ROBERTA_SPECIALS, show_progress=False
    )
    backend.train_from_iterator(_TEXT, trainer)
    model = json.loads(backend.to_str())["model"]
    return RobertaTokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
    )


def sentencepiece_tokenizer(family: Callable[..., Any]) -> PreTrainedTokenizerFast:
    """XLM-RoBERTa's or CamemBERT's own class over a few words, pieces and letters, ▁ before each word."""
    pieces = {f"▁{word}": -2.0 for word in WORDS if word.isalpha()} | {piece[2:]: -2.5 for piece in PIECES}
    letters = dict.fromkeys("abcdefghijklmnopqrstuvwxyz.,!?'▁", -6.0)
    return family(vocab=[(special, 0.0) for special in ROBERTA_SPECIALS] + list((letters | pieces).items()))


def mpnet_tokenizer() -> PreTrainedTokenizerFast:
    """MPNet's own class over BERT's few words: ``<s> A </s></s> B </s>``, its special tokens first."""
    return MPNetTokenizer(vocab={piece: i for i, piece in enumerate(MPNET_PIECES)})


class Relative(NamedTuple):
    """A family: its tokenizer, a small config, and the kind of its model with a language-modelling head, if any."""

    tokenizer: PreTrainedTokenizerFast
    config: Callable[..., Any]
    headed: Any = AutoModelForMaskedLM


_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_SIZES |= {"max_position_embeddings": 66}
_DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
_DISTILBERT |= {"intermediate_size": "hidden_dim"}
"""What DistilBERT calls the sizes."""


def _like_bert(
    prefix: str, tokenizer: PreTrainedTokenizerFast, headed: Any = AutoModelForMaskedLM, **own: Any
) -> Relative:
    config, names = getattr(transformers, f"{prefix}Config"), _DISTILBERT if prefix == "DistilBert" else {}

    def make(**changes: Any) -> Any:
        settings = {**_SIZES, "vocab_size": len(tokenizer), **own, **changes}
        return config(**{names.get(name, name): value for name, value in settings.items()})

    return Relative(tokenizer, make, headed)


_ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
_ALBERT = {"embedding_size": 20, "num_hidden_groups": 2, "hidden_dropout_prob": 0.1}

RELATIVES = {
    "roberta": _like_bert("Roberta", roberta_tokenizer(), **_ROBERTA),
    "xlm-roberta": _like_bert("XLMRoberta", sentencepiece_tokenizer(transformers.XLMRobertaTokenizer), **_ROBERTA),
    "distilbert": _like_bert("DistilBert", bert_tokenizer()),
    "electra": _like_bert("Electra", bert_tokenizer(), embedding_size=20),
    "albert": _like_bert("Albert", bert_tokenizer(), **_ALBERT),
    "camembert": _like_bert("Camembert", sentencepiece_tokenizer(transformers.CamembertTokenizer), **_ROBERTA),
    "mpnet": _like_bert("MPNet", mpnet_tokenizer(), layer_norm_eps=1e-5),
}
KINDS = list(RELATIVES)
"""BERT's nearest relatives."""


def esm_tokenizer() -> EsmTokenizer:
    """ESM's own class, a slow one: ``<cls> A <eos>``, a token a residue."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(get_default_vocab_list()))
        file.flush()
        return EsmTokenizer(file.name)


_MODERN = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
_MODERN |= {"local_attention": 6, "norm_bias": True, "mlp_bias": True, "attention_bias": True}
_ESM = {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": True, "rope_theta": 50.0}
_ESM |= {"pad_token_id": 1, "mask_token_id": 32}
_EMBEDDING_GEMMA = {"use_bidirectional_attention": True, "sliding_window": 6, "head_dim": 8, "num_key_value_heads": 2}
_EMBEDDING_GEMMA |= {
    "query_pre_attn_scalar": 1,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "share_att_key": True}
_DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_relative_positions": 9}
_GPT_NEO = {"window_size": 4, "attention_types": [[["global", "local"], 1], [["local"], 1]]}
_FALCON = {"attn_implementation": "eager"}  # it cannot be set later
_FALCON_40B = _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
_OPT_350M = {"word_embed_proj_dim": 20, "do_layer_norm_before": False}
RELATIVES |= {
    "modernbert": _like_bert("ModernBert", bert_tokenizer(), **_MODERN),
    "esm": _like_bert("Esm", esm_tokenizer(), **_ESM),
    "opt": _like_bert("OPT", gpt2_tokenizer(), AutoModelForCausalLM, ffn_dim=48, word_embed_proj_dim=None),
    "opt-350m": _like_bert("OPT", gpt2_tokenizer(), AutoModelForCausalLM, ffn_dim=48, **_OPT_350M),
    "gpt_neo": _like_bert("GPTNeo", gpt2_tokenizer(), AutoModelForCausalLM, **_GPT_NEO),
    "gptj": _like_bert("GPTJ", gpt2_tokenizer(), AutoModelForCausalLM, rotary_dim=6, activation_function="gelu_new"),
    "bloom": _like_bert("Bloom", gpt2_tokenizer(), AutoModelForCausalLM, num_attention_heads=6, hidden_size=36),
    "falcon": _like_bert("Falcon", gpt2_tokenizer(), AutoModelForCausalLM, **_FALCON),
    "falcon-40b": _like_bert("Falcon", gpt2_tokenizer(), AutoModelForCausalLM, **_FALCON_40B),
    "nomic_bert": _like_bert("NomicBert", bert_tokenizer(), head_dim=12),
    "clip_text_model": _like_bert("CLIPText", gpt2_tokenizer(), AutoModel, layer_norm_eps=1e-3),
    "siglip_text_model": _like_bert("SiglipText", gpt2_tokenizer(), AutoModel),
    "deberta-v2": _like_bert("DebertaV2", bert_tokenizer(), **_DEBERTA),
    "gemma3_text-both": _like_bert("Gemma3Text", gpt2_tokenizer(), AutoModel, **_EMBEDDING_GEMMA),
}

RELATIVES |= {
    "jina_embeddings_v3": _like_bert("JinaEmbeddingsV3", RELATIVES["xlm-roberta"].tokenizer, **_ROBERTA),
    "data2vec-text": _like_bert("Data2VecText", roberta_tokenizer(), **_ROBERTA),
    "ernie": _like_bert("Ernie", bert_tokenizer(), use_task_id=True),
    "layoutlm": _like_bert("LayoutLM", bert_tokenizer(), max_2d_position_embeddings=8),
}

_ROPE = st.sampled_from(
    [{"rope_type": "default", "rope_theta": 50.0}, {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0}]
)
_LAYER_TYPES = ("full_attention", "sliding_attention")
DRAWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "mpnet": {
        "layer_norm_eps": st.sampled_from([1e-5, 1e-2]),
        "hidden_act": st.sampled_from(["gelu", "relu", "silu"]),
        "max_position_embeddings": st.integers(14, 40),
    },
    "modernbert": {
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), st.booleans()),
        "local_attention": st.sampled_from([1, 2, 7, 128]),
        "norm_eps": st.sampled_from([1e-5, 1e-2]),
        "hidden_activation": st.sampled_from(["gelu", "silu"]),
        "rope_parameters": st.fixed_dictionaries(dict.fromkeys(_LAYER_TYPES, _ROPE)),
        "layer_types": st.lists(st.sampled_from(_LAYER_TYPES), min_size=3, max_size=3),
    },
    "albert": {
        **dict.fromkeys(("num_hidden_groups", "inner_group_num"), st.integers(1, 3)),
        "num_hidden_layers": st.integers(1, 5),
        "embedding_size": st.sampled_from([5, 32]),
        "hidden_act": st.sampled_from(["gelu", "gelu_new", "relu"]),
        "layer_norm_eps": st.sampled_from([1e-12, 1e-2]),
    },
    "esm": {
        **dict.fromkeys(("token_dropout", "emb_layer_norm_before"), st.booleans()),
        "layer_norm_eps": st.sampled_from([1e-5, 1e-2]),
        "rope_theta": st.sampled_from([50.0, 1e4]),
    },
    "opt": {
        **dict.fromkeys(("enable_bias", "layer_norm_elementwise_affine"), st.booleans()),
        "ffn_dim": st.integers(5, 40),
        "activation_function": st.sampled_from(["relu", "gelu"]),
    },
}
"""By family, settings that its config allows, to be drawn at random."""
DRAWN["clip_text_model"] = DRAWN["siglip_text_model"] = {
    "hidden_act": st.sampled_from(["quick_gelu", "gelu_pytorch_tanh"]),
    "layer_norm_eps": st.sampled_from([1e-5, 1e-2]),
}
DRAWN["deberta-v2"] = {
    **dict.fromkeys(("share_att_key", "position_biased_input", "legacy"), st.booleans()),
    "pos_att_type": st.sampled_from([["c2p"], ["p2c"], ["c2p", "p2c"], "p2c|c2p"]),
    "norm_rel_ebd": st.sampled_from(["none", "layer_norm"]),
    "position_buckets": st.sampled_from([-1, 5, 8, 30]),
    "max_relative_positions": st.sampled_from([-1, 20]),
}
DRAWN["gpt_neo"] = {
    "window_size": st.sampled_from([1, 3, 40]),
    "activation_function": st.sampled_from(["gelu", "relu"]),
}
DRAWN["gptj"] = {"rotary_dim": st.sampled_from([2, 4, 8]), "layer_norm_epsilon": st.sampled_from([1e-5, 1e-2])}
DRAWN["falcon"] = {"multi_query": st.booleans(), "activation": st.sampled_from(["gelu", "relu"])}
DRAWN["falcon-40b"] = {"num_ln_in_parallel_attn": st.sampled_from([1, 2, None]), "num_kv_heads": st.just(1)}
DRAWN["gemma3_text-both"] = {
    "sliding_window": st.sampled_from([2, 5, 6, 40]),
    "layer_types": st.lists(st.sampled_from(_LAYER_TYPES), min_size=3, max_size=3),
}
DRAWN["nomic_bert"] = {"head_dim": st.sampled_from([8, 12]), "rope_parameters": _ROPE}
DRAWN["opt-350m"] = DRAWN["opt"] | {"word_embed_proj_dim": st.sampled_from([6, None])}


@st.composite
def drawn_settings(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """Settings of a family, drawn from what its config allows."""
    heads = draw(st.sampled_from([1, 2, 4]))
    settings = {"num_attention_heads": heads, "hidden_size": 8 * heads, "intermediate_size": draw(st.integers(5, 40))}
    settings |= {"num_key_value_heads": heads} if kind == "gemma3_text-both" else {}
    return settings | {name: draw(values) for name, values in DRAWN.get(kind, {}).items()}


_NAMES = "query key q_lin k_lin Wqkv q_proj k_proj attn.q attn.k query_key_value query_proj key_proj"
_QUERY_OR_KEY = tuple(f".{name}.weight" for name in _NAMES.split())


def sharp(
    kind: str, seed: int = 0, auto_class: Any = AutoModel, dtype: torch.dtype | None = None, **changes: Any
) -> Any:
    """A model whose attention is far from uniform, and whose biases, norms and feed-forward networks matter."""
    torch.manual_seed(seed)
    config = RELATIVES[kind].config(**changes)
    siglip = kind == "siglip_text_model"  # which AutoModel does not know
    model = (transformers.SiglipTextModel._from_config if siglip else auto_class.from_config)(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(_QUERY_OR_KEY):
                parameter.mul_(20)
            elif name.endswith((".bias", "relative_attention_bias.weight", "rel_embeddings.weight")):
                parameter.normal_(std=0.5)
            elif parameter.ndim == 1:
                parameter.normal_(mean=1.0, std=0.3)
    return model.eval()


TWO_TOWERS = {"clip": "CLIP", "siglip": "Siglip"}
"""Families with a text tower of their own beside one of images."""


def sharp_two_towers(family: str, **changes: Any) -> Any:
    """A model of images and texts, with the sharp text tower of its family."""
    text = sharp(f"{family}_text_model", **changes)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = getattr(transformers, f"{TWO_TOWERS[family]}Config")(text_config=text.config, vision_config=vision)
    model = getattr(transformers, f"{TWO_TOWERS[family]}Model")(config)
    model.text_model.load_state_dict(text.state_dict())
    return model.eval()


def checkpoint_of(
    kind: str, dtype: torch.dtype = torch.float32, auto_class: Any = AutoModel, **changes: Any
) -> Checkpoint:
    converted = kind in (*KINDS, "gptj")  # others would round their rotary frequencies
    model = sharp(kind, auto_class=auto_class, dtype=None if converted else dtype, **changes)
    return from_loaded(model.to(dtype) if converted else model, RELATIVES[kind].tokenizer)
