"""Removing all 144 heads of a BERT-base-sized model on 32 sentences, and the forward passes that it stands for."""

import random
import statistics
import time
from typing import Any

import torch
from transformers import BertConfig, BertModel

import attnviz
from tests.models import WORDS, bert_tokenizer

SENTENCES, HEADS = 32, 144


def ablation_seconds(**options: Any) -> tuple[float, float]:
    """How long attnviz takes, and how long 144 times 32 forward passes of a sentence each do.

    The weights are random, the sentences random words, about as many as in those of an English treebank. The passes
    are those of transformers as it comes, without gradients and with as many threads; a round over all 32 sentences is
    timed after every batch of attnviz's, outside of its own time, so that whatever else the machine does slows both
    down alike. The median round stands for 144 of them.

    Args:
        options: of :func:`attnviz.ablate`.
    """
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    plain = BertModel(BertConfig()).eval()  # with its own attention implementation
    tokenizer, texts = bert_tokenizer(), _sentences()
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    _timed_round(plain, inputs)  # to warm up
    rounds: list[float] = []

    def tell(*_: Any) -> None:
        rounds.append(_timed_round(plain, inputs))

    begin = time.perf_counter()
    found = attnviz.ablate(texts, model, tokenizer=tokenizer, progress=tell, **options)
    seconds = time.perf_counter() - begin - sum(rounds)
    assert (len(found.heads), found.n_texts) == (HEADS, SENTENCES)
    return seconds, HEADS * statistics.median(rounds)


def _timed_round(model: BertModel, inputs: list[dict[str, torch.Tensor]]) -> float:
    begin = time.perf_counter()
    with torch.inference_mode():
        for each in inputs:
            model(**each)
    return time.perf_counter() - begin


def _sentences() -> list[str]:
    """Random words; 4 to 47 of them, 19 on average."""
    draw = random.Random(0)
    lengths = [max(3, min(60, int(draw.lognormvariate(2.85, 0.6)))) for _ in range(SENTENCES)]
    return [" ".join(draw.choice(WORDS[:30]) for _ in range(length)) for length in lengths]
