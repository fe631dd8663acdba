"""Small checkpoints for sequence classification of every kind, sharpened as those of :mod:`tests.models`."""

from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.llamas import llama_config
from tests.llamas import sentencepiece_tokenizer as llama_tokenizer
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.relatives import RELATIVES, sharp

LABELS = {0: "bad", 1: "good", 2: "so-so"}
LLAMAS = ("llama", "gemma2")
KINDS = ("bert", "gpt2", *LLAMAS, *RELATIVES)


def sharp_classifier(kind: str, **changes: Any) -> tuple[Any, PreTrainedTokenizerFast]:
    """A model of three classes (unless changed) whose head matters, with its tokenizer."""
    settings = {"num_labels": 3, "id2label": LABELS, "label2id": {name: i for i, name in LABELS.items()}, **changes}
    if kind == "bert":
        model, tokenizer = sharp_bert(model_class=BertForSequenceClassification, **settings), bert_tokenizer()
    elif kind == "gpt2":
        settings = {"pad_token_id": 0, **settings}
        model, tokenizer = sharp_gpt2(model_class=GPT2ForSequenceClassification, **settings), gpt2_tokenizer()
    elif kind in LLAMAS:
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(llama_config(kind, **settings)).eval()
        tokenizer = llama_tokenizer()
    else:
        model, tokenizer = sharp(kind, auto_class=AutoModelForSequenceClassification, **settings), RELATIVES[kind].tokenizer
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[0] in ("classifier", "pre_classifier", "score") or "pooler" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model, tokenizer
