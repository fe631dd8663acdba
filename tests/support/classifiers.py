"""Small checkpoints with a head for classes of every kind, sharpened as those of :mod:`tests.support.models`."""

import re
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from attnviz.models.head_ids import HeadId
from tests.support.ablations import output_map
from tests.support.llamas import llama_config
from tests.support.llamas import sentencepiece_tokenizer as llama_tokenizer
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.relatives import RELATIVES, sharp

LABELS = {0: "bad", 1: "good", 2: "so-so"}
NO_CLASSES = ("clip_text_model", "siglip_text_model", "gemma3_text-both")
LLAMAS = ("llama", "gemma2")
KINDS = ("bert", "gpt2", *LLAMAS, *(kind for kind in RELATIVES if kind not in NO_CLASSES))


def sharp_classifier(
    kind: str, task: str = "ForSequenceClassification", **changes: Any
) -> tuple[Any, PreTrainedTokenizerFast]:
    """A model of three classes (unless changed) whose head matters, with its tokenizer."""
    auto_class = getattr(transformers, f"AutoModel{task}")
    settings = {"num_labels": 3, "id2label": LABELS, "label2id": {name: i for i, name in LABELS.items()}, **changes}
    if kind == "bert":
        model, tokenizer = sharp_bert(model_class=getattr(transformers, f"Bert{task}"), **settings), bert_tokenizer()
    elif kind == "gpt2":
        settings = {"pad_token_id": 0, **settings}
        model, tokenizer = sharp_gpt2(model_class=getattr(transformers, f"GPT2{task}"), **settings), gpt2_tokenizer()
    elif kind in LLAMAS:
        torch.manual_seed(0)
        model = auto_class.from_config(llama_config(kind, **settings)).eval()
        tokenizer = llama_tokenizer()
    else:
        model, tokenizer = sharp(kind, auto_class=auto_class, **settings), RELATIVES[kind].tokenizer
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[0] in ("classifier", "pre_classifier", "score", "qa_outputs") or "pooler" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model, tokenizer


CARRIER = HeadId(1, 2)  # the head of hand_built_classifier that alone carries the class


@torch.no_grad()
def hand_built_classifier(kind: str, task: str = "ForSequenceClassification") -> tuple[Any, PreTrainedTokenizerFast]:
    """A BERT or GPT-2 of two classes in which one head alone speaks for a class.

    The classifier reads dimension 0 less dimension 1. Embeddings and all other heads leave both at zero, and the mean
    of the others too, so that no layer norm moves them; feed-forward networks give zeros.
    """
    model, tokenizer = sharp_classifier(kind, task, num_labels=2, id2label={0: "bad", 1: "good"}, label2id={})
    for name, parameter in model.named_parameters():
        if ("embeddings." in name and ".LayerNorm." not in name) or name.endswith(("wte.weight", "wpe.weight")):
            parameter.copy_(_outside(parameter))
        elif name.endswith("LayerNorm.bias") or re.search(r"mlp\.c_proj|\d\.output\.dense", name):
            parameter.zero_()
    d_head = model.config.hidden_size // model.config.num_attention_heads
    for layer in range(model.config.num_hidden_layers):
        weight, bias = output_map(model, layer)
        weight.copy_(_outside(weight))
        bias.copy_(_outside(bias))
        if layer == CARRIER.layer:
            rows = slice(CARRIER.head * d_head, (CARRIER.head + 1) * d_head)
            weight[rows] = 0
            weight[rows, 0] = torch.linspace(-3, 5, d_head)
            weight[rows, 1] = -weight[rows, 0]
    head = getattr(model, "score", None) or model.classifier
    head.weight.zero_()
    head.weight[:, :2] = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    if head.bias is not None:
        head.bias.zero_()
    if kind == "bert" and model.bert.pooler is not None:
        model.bert.pooler.dense.weight.copy_(torch.eye(model.config.hidden_size))
        model.bert.pooler.dense.bias.zero_()
    return model, tokenizer


def _outside(vectors: torch.Tensor) -> torch.Tensor:
    """Without the first two dimensions, and with mean zero."""
    rest = vectors[..., 2:] - vectors[..., 2:].mean(-1, keepdim=True)
    return torch.cat([torch.zeros_like(vectors[..., :2]), rest], dim=-1)
